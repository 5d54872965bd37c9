"""FlashWok in PyTorch: operators with gradients, and `scaled_dot_product_attention` on them.

The operators ``torch.ops.flashwok.attention`` and ``attention_backward`` have kernels for the CPU
and CUDA, fake kernels, autograd and autocast, so `torch.compile(fullgraph=True)`, `torch.export`
and CUDA graphs take them. Importing this module defines them and changes nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._call import window_pair
from . import _ops
from ._sdpa import register, restore

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .._call import Algorithm, Causal

__all__ = ["attention", "register", "restore"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: Causal = "none",
    window: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    num_splits: int = 0,
    deterministic: bool = False,
    out_dtype: torch.dtype | str | None = None,
    algorithm: Algorithm = "auto",
    return_lse: bool = False,
) -> Any:
    """`flashwok.attention` on tensors: differentiable for q, k, v and bias, also through lse.

    Args:
        dropout_seed: None: drawn from PyTorch's default generator.
        out_dtype: of the result; None: q's, bfloat16 for float8.
        The rest: as `flashwok.attention`. On a CUDA device the current stream is used, on the CPU
        at most `torch.get_num_threads()` threads.

    Returns:
        o, or (o, lse).

    Raises:
        As `flashwok.attention`; NotImplementedError also from a backward pass that no kernel runs,
        as float8's and, so far, CUDA's.

    Source: `Forward` and `Backward` in ``include/flashwok/attention.h``.

    >>> import torch
    >>> import flashwok.torch
    >>> q = torch.randn(1, 5, 2, 8, requires_grad=True)
    >>> flashwok.torch.attention(q, q, q, causal="bottom_right").sum().backward()
    >>> q.grad.shape
    torch.Size([1, 5, 2, 8])
    """
    tensors = (
        bias,
        mask,
        alibi_slopes,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        page_table,
        q_descale,
        k_descale,
        v_descale,
    )
    scalars = (
        softmax_scale,
        causal,
        *window_pair(window),
        softcap,
        dropout_p,
        dropout_offset,
        num_splits,
        deterministic,
        algorithm,
    )
    o, lse = _ops.attention(q, k, v, tensors, scalars, dropout_seed, out_dtype)
    return (o, lse) if return_lse else o
