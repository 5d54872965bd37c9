"""FlashWok in JAX: `dot_product_attention` and `attention`, under jit, grad and vmap.

The library is called through `jax.ffi`, with `jax.custom_vjp` for gradients, on the CPU and on
CUDA. Importing this module registers the handlers and changes nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from . import _ffi

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike

    from .._call import Algorithm, Causal

__all__ = ["attention", "dot_product_attention"]


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: Causal = "none",
    window: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    cu_seqlens_q: ArrayLike | None = None,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
    q_descale: ArrayLike | None = None,
    k_descale: ArrayLike | None = None,
    v_descale: ArrayLike | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    num_splits: int = 0,
    deterministic: bool = False,
    out_dtype: str | None = None,
    algorithm: Algorithm = "auto",
    return_lse: bool = False,
) -> Any:
    """`flashwok.attention` on jax arrays, concrete or traced.

    Differentiable for q, k, v and bias, also through lse; slopes and descales are constants. `vmap`
    joins its axis with the batch; varlen and paged problems are not batched that way. Options that
    are not arrays are static.

    Args:
        The same as of `flashwok.attention`; dropout needs a dropout_seed.

    Returns:
        o, or (o, lse).

    Raises:
        ValueError: from here an argument that breaks the contract. What only the core sees comes
            as XLA's `XlaRuntimeError`, with the core's sentence.

    Source: `Forward` and `Backward` in ``include/flashwok/attention.h``.

    >>> import jax
    >>> import flashwok.jax
    >>> q = jax.numpy.ones((1, 5, 2, 8))
    >>> jax.grad(lambda q: flashwok.jax.attention(q, q, q).sum())(q).shape
    (1, 5, 2, 8)
    """
    options, arrays = _ffi.prepare(
        {
            "q": q,
            "k": k,
            "v": v,
            "bias": bias,
            "mask": mask,
            "alibi_slopes": alibi_slopes,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "seqused_k": seqused_k,
            "page_table": page_table,
            "q_descale": q_descale,
            "k_descale": k_descale,
            "v_descale": v_descale,
        },
        causal=causal,
        window=window,
        softmax_scale=softmax_scale,
        softcap=softcap,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        dropout_offset=dropout_offset,
        num_splits=num_splits,
        deterministic=deterministic,
        out_dtype=out_dtype,
        algorithm=algorithm,
    )
    o, lse = _ffi.run(options, arrays)
    return (o, lse) if return_lse else o


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """`jax.nn.dot_product_attention` by FlashWok: its signature, its results.

    Args:
        query: ``[B, T, N, H]`` or ``[T, N, H]``.
        key, value: ``[B, S, K, H]`` or ``[S, K, H]``; N is a multiple of K.
        bias: added to the scores, broadcastable to ``[B, N, T, S]``.
        mask: bool, broadcastable to it; a key is kept where it is true.
        scale: None: 1 / sqrt(H).
        is_causal: row i sees keys j <= i, top-left.
        query_seq_lengths: int32 ``[B]``; later rows are 0.
        key_value_seq_lengths: int32 ``[B]``; later keys are not seen.
        local_window_size: keys to the left and right of i that row i sees, inclusive.
        implementation: None, or an algorithm of FlashWok.
        return_residual: also return lse, ``[B, T, N]``, without a gradient.

    Rows that see no key are 0; jax.nn's are the mean of the values.

    >>> import jax
    >>> import flashwok.jax
    >>> q = jax.random.normal(jax.random.key(0), (2, 5, 4, 8))
    >>> ours = flashwok.jax.dot_product_attention(q, q, q, is_causal=True)
    >>> theirs = jax.nn.dot_product_attention(q, q, q, is_causal=True)
    >>> bool(jax.numpy.allclose(ours, theirs, atol=1e-5))
    True
    """
    import jax

    q, k, v = (jnp.asarray(x) for x in (query, key, value))
    batched = q.ndim == 4
    if not batched:
        q, k, v = q[None], k[None], v[None]
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    masks = [] if mask is None else [_four_axes(mask)]
    rows, keys = jnp.arange(seqlen_q)[:, None], jnp.arange(seqlen_k)
    if query_seq_lengths is not None:
        lengths = jnp.asarray(query_seq_lengths).reshape(-1, 1, 1, 1)
        masks.append(rows < lengths)
    window = (-1, -1)
    seqused_k = key_value_seq_lengths
    if local_window_size is not None:
        window = (
            (local_window_size, local_window_size)
            if isinstance(local_window_size, int)
            else local_window_size
        )
        if not is_causal and (seqlen_q != seqlen_k or seqused_k is not None):
            # The core's diagonal is then the bottom-right one.
            masks.append((keys >= rows - window[0]) & (keys <= rows + window[1]))
            window = (-1, -1)
    full = None
    for part in masks:
        full = part if full is None else full & part
    if full is not None:
        full = _for_core(full, seqlen_k)
    out, lse = attention(
        q,
        k,
        v,
        causal="top_left" if is_causal else "none",
        window=window,
        softmax_scale=scale,
        bias=None if bias is None else _bias_for_core(bias, q.dtype, seqlen_k),
        mask=full,
        seqused_k=seqused_k,
        algorithm=implementation or "auto",  # type: ignore[arg-type]
        return_lse=True,
    )
    lse = jax.lax.stop_gradient(lse.transpose(0, 2, 1))
    if not batched:
        out, lse = out[0], lse[0]
    return (out, lse.astype(k.dtype)) if return_residual else out


def _four_axes(array: ArrayLike) -> Array:
    array = jnp.asarray(array)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _for_core(array: ArrayLike, seqlen_k: int) -> Array:
    """The core broadcasts all axes but the last."""
    array = _four_axes(array)
    return jnp.broadcast_to(array, (*array.shape[:3], seqlen_k))


def _bias_for_core(bias: ArrayLike, dtype: Any, seqlen_k: int) -> Array:
    array = _for_core(bias, seqlen_k)
    return array if array.dtype in (jnp.float32, dtype) else array.astype(jnp.float32)
