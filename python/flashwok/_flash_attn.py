"""What the faces of flash-attn 2 and 3 share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .torch import attention as _attention


def refuse(**given: tuple[Any, Any]) -> None:
    """Raises for each argument that is not its only possible value: name=(value, possible)."""
    for name, (value, possible) in given.items():
        is_tensor = isinstance(value, Tensor)
        if is_tensor or value != possible:
            said = "given" if is_tensor else value
            raise NotImplementedError(f"{name}: is {said}, must be {possible} in flashwok")


def unit_stride(x: Tensor | None) -> Tensor | None:
    """As flash-attn does: another innermost stride than 1 is copied."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def check_max(name: str, value: int | None, cu_seqlens: Tensor) -> None:
    """The kernels take lengths from cu_seqlens; a bound that is too low there is an error."""
    if value is None or cu_seqlens.device.type != "cpu" or torch.compiler.is_compiling():
        return
    longest = int(torch.diff(cu_seqlens).max()) if cu_seqlens.numel() > 1 else 0
    if value < longest:
        raise ValueError(f"{name}: is {value}, must be at least {longest}, the longest sequence")


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, **options: Any) -> tuple[Any, Any]:
    """(o, lse), for any head_dim: CUDA's kernels take multiples of 8, others are padded."""
    options["causal"] = "bottom_right" if causal else "none"
    options["window"] = tuple(options.pop("window_size"))
    head_dim, head_dim_v = q.shape[-1], v.shape[-1]
    if options["softmax_scale"] is None:
        options["softmax_scale"] = head_dim**-0.5
    q, k, v = (unit_stride(x) for x in (q, k, v))  # type: ignore[assignment]
    if q.device.type == "cuda":
        q, k, v = (pad(x, -x.shape[-1] % 8) for x in (q, k, v))
    o, lse = _attention(q, k, v, return_lse=True, **options)
    return o[..., :head_dim_v], lse


def pad(x: Tensor, extra: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, extra)) if extra else x


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding. x: [batch, seqlen, heads, head_dim]; positions: [batch, seqlen]."""
    half = cos.shape[-1]
    c, s = (table[positions][:, :, None].float() for table in (cos, sin))
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def append(cache: Tensor, new: Tensor, positions: Tensor, pages: Tensor | None) -> None:
    """Writes `new` [batch, seqlen_new, ...] into the cache at `positions` [batch, seqlen_new]."""
    if pages is None:
        batch = torch.arange(new.shape[0], device=new.device)[:, None]
        cache[batch, positions] = new.to(cache.dtype)
        return
    size = cache.shape[1]
    page = torch.gather(pages.long(), 1, positions // size)
    cache[page, positions % size] = new.to(cache.dtype)


@torch.no_grad()
def with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    *,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    cache_seqlens: int | Tensor | None,
    cache_batch_idx: Tensor | None,
    pages: Tensor | None,
    causal: bool,
    window_size: tuple[int, int],
    rotary_interleaved: bool,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attention over a cache of keys, to which k and v are first appended in place: (o, lse)."""
    batch, seqlen_q = q.shape[:2]
    if cache_batch_idx is not None:
        if pages is not None:
            raise NotImplementedError("cache_batch_idx: must be None beside a page table")
        pages = cache_batch_idx.to(torch.int32)[:, None]  # each row of the cache is one page
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    if (k is None) != (v is None):
        raise ValueError("k: must be given with v, or neither")
    if (k is not None or rotary_cos is not None) and cache_seqlens is None:
        raise ValueError("cache_seqlens: is None, must be given with k and v or rotary_cos")
    if rotary_cos is not None:
        if k is None or rotary_sin is None or cache_seqlens is None:
            raise ValueError("rotary_cos: must be given with rotary_sin, k and v")
        start = cache_seqlens.long()[:, None]
        steps = torch.arange(seqlen_q, device=q.device)
        # Without causal or window all queries stand at the end of the cache.
        moving = causal or tuple(window_size) != (-1, -1)
        q_positions = start + (steps if moving else torch.zeros_like(steps))
        k_positions = start + torch.arange(k.shape[1], device=q.device)
        q = rotate(q, rotary_cos, rotary_sin, q_positions, rotary_interleaved)
        k = rotate(k, rotary_cos, rotary_sin, k_positions, rotary_interleaved)
    if k is not None and v is not None and cache_seqlens is not None:
        positions = cache_seqlens.long()[:, None] + torch.arange(k.shape[1], device=q.device)
        append(k_cache, k, positions, pages)
        append(v_cache, v, positions, pages)
        cache_seqlens = cache_seqlens + k.shape[1]
    if cache_seqlens is None and pages is not None:
        keys = pages.shape[1] * k_cache.shape[1]
        cache_seqlens = torch.full((batch,), keys, dtype=torch.int32, device=q.device)
    if cache_seqlens is not None:
        cache_seqlens = cache_seqlens.to(torch.int32)
    return attend(
        q,
        k_cache,
        v_cache,
        causal=causal,
        window_size=window_size,
        seqused_k=cache_seqlens,
        page_table=pages,
        **options,
    )


__all__ = ["attend", "check_max", "refuse", "with_kvcache"]
