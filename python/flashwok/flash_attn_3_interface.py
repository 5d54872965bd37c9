"""The functions of flash-attn 3, by its names, with its arguments and in its order.

Tensors are PyTorch's, on the CPU or CUDA, [batch, seqlen, num_heads, head_dim]; float8 inputs come
with descales float32 ``[batch, num_heads_kv]`` and give bfloat16. Functions are differentiable for
q, k and v in the other dtypes. Causal is aligned bottom-right, a window is inclusive. Each argument
does what it does there or is refused by name: qv, attention_chunk, pack_gqa, sm_margin, seqused_q,
cache_leftpad, rotary_seqlens, scheduler_metadata and a varlen cache are.

With `return_attn_probs` they return (out, softmax_lse).

Raises, all of them: what `flashwok.attention` raises.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._flash_attn import attend, check_max, refuse, with_kvcache

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]

Window = tuple[int, int]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q ``[batch, seqlen_q, num_heads, head_dim]`` over k and v ``[batch, seqlen_k,
    num_heads_kv, head_dim]``.

    >>> import torch
    >>> q = torch.randn(1, 4, 2, 8)
    >>> flash_attn_func(q, q, q, causal=True).shape
    torch.Size([1, 4, 2, 8])
    """
    _refuse_schedule(qv, attention_chunk, pack_gqa, sm_margin)
    out, lse = attend(
        q,
        k,
        v,
        causal=causal,
        softmax_scale=softmax_scale,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        window_size=window_size,
        softcap=softcap,
        num_splits=num_splits,
        deterministic=deterministic,
    )
    return (out, lse) if return_attn_probs else out


def _refuse_schedule(
    qv: Tensor | None, attention_chunk: int, pack_gqa: bool | None, sm_margin: int
) -> None:
    refuse(
        qv=(qv, None),
        attention_chunk=(attention_chunk, 0),
        pack_gqa=(pack_gqa, None),
        sm_margin=(sm_margin, 0),
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of qkv ``[batch, seqlen, 3, num_heads, head_dim]``, or with num_heads_q
    ``[batch, seqlen, num_heads_q + 2 * num_heads_kv, head_dim]``; nothing is copied."""
    if num_heads_q is None:
        q, k, v = qkv.unbind(-3)
    else:
        heads_kv = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, heads_kv, heads_kv], dim=2)
    return flash_attn_func(
        q,
        k,
        v,
        softmax_scale,
        causal,
        None,
        q_descale,
        k_descale,
        v_descale,
        window_size,
        attention_chunk,
        softcap,
        deterministic=deterministic,
        sm_margin=sm_margin,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Sequences of different lengths side by side: q ``[total_q, num_heads, head_dim]``, k and v
    ``[total_k, num_heads_kv, head_dim]``; cu_seqlens int32 ``[batch + 1]``.

    max_seqlen_q and max_seqlen_k bound the lengths; the kernels take these from cu_seqlens.
    """
    _refuse_schedule(qv, attention_chunk, pack_gqa, sm_margin)
    refuse(seqused_q=(seqused_q, None))
    check_max("max_seqlen_q", max_seqlen_q, cu_seqlens_q)
    check_max("max_seqlen_k", max_seqlen_k, cu_seqlens_k)
    out, lse = attend(
        q,
        k,
        v,
        causal=causal,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_k=seqused_k,
        softmax_scale=softmax_scale,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        window_size=window_size,
        softcap=softcap,
        num_splits=num_splits,
        deterministic=deterministic,
    )
    return (out, lse) if return_attn_probs else out


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Joins partial results over disjoint keys.

    Args:
        out_partial: ``[num_splits, batch, seqlen, num_heads, head_dim]``, float32.
        lse_partial: ``[num_splits, batch, seqlen, num_heads]``, float32.
        out: where the result goes; None: new.
        out_dtype: of a new result; None: that of out_partial.

    Returns:
        (out ``[batch, seqlen, num_heads, head_dim]``, lse ``[batch, seqlen, num_heads]``).
    """
    lse = torch.logsumexp(lse_partial, 0)
    # A part without keys has an lse of -inf and may hold anything.
    weights = torch.exp(lse_partial - torch.where(lse.isinf(), 0.0, lse))[..., None]
    total = torch.where(weights > 0, weights * out_partial.float(), 0.0).sum(0)
    total = total.to(out_dtype or out_partial.dtype)
    return (total if out is None else out.copy_(total)), lse


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention over a cache of keys and values, for generation; has no gradient.

    Args:
        k_cache, v_cache: ``[batch_cache, seqlen_cache, num_heads_kv, head_dim]``, or with a
            page_table ``[num_pages, page_size, num_heads_kv, head_dim]``.
        k, v: ``[batch, seqlen_new, num_heads_kv, head_dim]``, first written into the cache, in
            place, behind the cache_seqlens keys that are there.
        rotary_cos, rotary_sin: ``[seqlen_rotary, rotary_dim / 2]``, applied to q and k.

    Returns:
        out, or (out, softmax_lse).
    """
    _refuse_schedule(qv, attention_chunk, pack_gqa, sm_margin)
    refuse(
        cache_leftpad=(cache_leftpad, None),
        cu_seqlens_q=(cu_seqlens_q, None),
        cu_seqlens_k_new=(cu_seqlens_k_new, None),
        max_seqlen_q=(max_seqlen_q, None),
        rotary_seqlens=(rotary_seqlens, None),
        scheduler_metadata=(scheduler_metadata, None),
    )
    out, lse = with_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx,
        pages=page_table,
        causal=causal,
        window_size=window_size,
        rotary_interleaved=rotary_interleaved,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        softmax_scale=softmax_scale,
        softcap=softcap,
        num_splits=num_splits,
    )
    return (out, lse) if return_softmax_lse else out
