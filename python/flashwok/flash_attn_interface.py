"""The functions of flash-attn 2, by its names, with its arguments and in its order.

``from flashwok import flash_attn_interface`` in the place of ``flash_attn``. Tensors are PyTorch's,
on the CPU or CUDA, [batch, seqlen, num_heads, head_dim], float32 too; functions are differentiable
for q, k and v. Causal is aligned bottom-right, a window is inclusive. Each argument does what it
does there or is refused by name.

With `return_attn_probs` they return (out, softmax_lse, S_dmask), and S_dmask is None, as in
flash-attn without dropout; with dropout it is refused.

Raises, all of them: what `flashwok.attention` raises.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._flash_attn import attend, check_max, refuse, with_kvcache

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

Window = tuple[int, int]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q ``[batch, seqlen_q, num_heads, head_dim]`` over k and v ``[batch, seqlen_k,
    num_heads_kv, head_dim]``.

    >>> import torch
    >>> q = torch.randn(1, 4, 2, 8)
    >>> flash_attn_func(q, q, q, causal=True).shape
    torch.Size([1, 4, 2, 8])
    """
    _check_probs(return_attn_probs, dropout_p)
    out, lse = attend(
        q,
        k,
        v,
        causal=causal,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
    )
    return (out, lse, None) if return_attn_probs else out


def _check_probs(return_attn_probs: bool, dropout_p: float) -> None:
    if return_attn_probs and dropout_p:
        raise NotImplementedError("return_attn_probs: is True, must be False with dropout_p")


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of kv ``[batch, seqlen_k, 2, num_heads_kv, head_dim]``, not copied."""
    k, v = kv.unbind(-3)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of qkv ``[batch, seqlen, 3, num_heads, head_dim]``; nothing is copied."""
    q, k, v = qkv.unbind(-3)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
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
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Sequences of different lengths side by side: q ``[total_q, num_heads, head_dim]``, k and v
    ``[total_k, num_heads_kv, head_dim]``; cu_seqlens int32 ``[batch + 1]``.

    max_seqlen_q and max_seqlen_k bound the lengths; the kernels take these from cu_seqlens. With a
    block_table use `flash_attn_with_kvcache`. softmax_lse is ``[num_heads, total_q]``.

    >>> import torch
    >>> x = torch.randn(7, 2, 8)
    >>> lengths = torch.tensor([0, 3, 7], dtype=torch.int32)
    >>> out = flash_attn_varlen_func(x, x, x, lengths, lengths, 4, 4)
    >>> bool(torch.allclose(out[:3], flash_attn_func(*[x[None, :3]] * 3)[0], atol=1e-6))
    True
    """
    _check_probs(return_attn_probs, dropout_p)
    refuse(block_table=(block_table, None))
    check_max("max_seqlen_q", max_seqlen_q, cu_seqlens_q)
    check_max("max_seqlen_k", max_seqlen_k, cu_seqlens_k)
    out, lse = attend(
        q,
        k,
        v,
        causal=causal,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
    )
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of kv ``[total_k, 2, num_heads_kv, head_dim]``."""
    k, v = kv.unbind(-3)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of qkv ``[total, 3, num_heads, head_dim]``."""
    q, k, v = qkv.unbind(-3)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention over a cache of keys and values, for generation; has no gradient.

    Args:
        k_cache, v_cache: ``[batch_cache, seqlen_cache, num_heads_kv, head_dim]``, or with a
            block_table ``[num_blocks, page_size, num_heads_kv, head_dim]``.
        k, v: ``[batch, seqlen_new, num_heads_kv, head_dim]``, first written into the cache, in
            place, behind the cache_seqlens keys that are there.
        rotary_cos, rotary_sin: ``[seqlen_rotary, rotary_dim / 2]``, applied to q and k.
        cache_leftpad: refused.

    Returns:
        out, or (out, softmax_lse).
    """
    refuse(cache_leftpad=(cache_leftpad, None))
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
        pages=block_table,
        causal=causal,
        window_size=window_size,
        rotary_interleaved=rotary_interleaved,
        softmax_scale=softmax_scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        num_splits=num_splits,
    )
    return (out, lse) if return_softmax_lse else out
