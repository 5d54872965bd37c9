"""FlashWok behind `torch.nn.functional.scaled_dot_product_attention`.

PyTorch's function chooses among its backends; these are the kernels of the one it calls flash. Its
tensors are [batch, num_heads, seqlen, head_dim]. Causal is top-left in the CPU's operators and
bottom-right in CUDA's, which PyTorch itself calls only where the two are one, or where
`torch.nn.attention.bias.causal_lower_right` asks for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from .._call import TENSORS, Call

NAME = "flashwok"


def _unit(x: Tensor) -> Tensor:
    """Of an innermost stride of 1, which PyTorch's own kernels do not ask for."""
    return x if x.stride(-1) == 1 or x.numel() == 0 else x.contiguous()


def _rows_first(x: Tensor) -> Tensor:
    return _unit(x).transpose(1, 2)


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    gradients: dict[str, Tensor],
    options: dict[str, Any],
) -> None:
    options["deterministic"] = torch.are_deterministic_algorithms_enabled()
    call = Call(q, k, v, options)
    given = call.views(dout=_unit(dout), o=_unit(o), lse=lse.contiguous())
    _core.backward(call.tensors, call.options, given, call.views(**gradients), call.run)


def _refuse(**given: object) -> None:
    for name, value in given.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name}: flashwok does not take it here")


# The CPU.


def _cpu_bias(dropout_p: float, attn_mask: Tensor | None) -> Tensor | None:
    if dropout_p:
        raise NotImplementedError(f"dropout_p: is {dropout_p}, must be 0 in the CPU's operator")
    if attn_mask is None:
        return None
    while attn_mask.dim() < 4:
        attn_mask = attn_mask.unsqueeze(0)
    return _unit(attn_mask)


def _sdpa_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    bias = _cpu_bias(dropout_p, attn_mask)
    batch, heads, seqlen, _ = query.shape
    out = torch.empty_like(query)  # of PyTorch's strides, as its fake kernel says
    o = out if out.stride(-1) == 1 else torch.empty(out.shape, dtype=out.dtype)
    lse = torch.empty((batch, heads, seqlen))
    tensors = None if bias is None else (bias, *[None] * (len(TENSORS) - 1))
    causal = "top_left" if is_causal else "none"
    scalars = (scale, causal, -1, -1, 0.0, 0.0, 0, 0, False, "auto")
    q, k, v = _unit(query), _unit(key), _unit(value)
    _core.attend(q, k, v, tensors, o, lse, scalars, 0, 0, 0, None, True)
    logsumexp = torch.empty_strided(lse.shape, (heads * seqlen, 1, heads)).copy_(lse)
    return (out if o is out else out.copy_(o)), logsumexp


def _sdpa_cpu_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    bias = _cpu_bias(dropout_p, attn_mask)
    causal = "top_left" if is_causal else "none"
    options = {"causal": causal, "bias": bias, "softmax_scale": scale}
    q, k, v, dout, o = map(_rows_first, (query, key, value, grad_out, out))
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    _backward(dout, q, k, v, o, logsumexp, {"dq": dq, "dk": dk, "dv": dv}, options)
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


# CUDA.


def _forward(
    inputs: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    lse: Tensor,
    tensors: tuple[Tensor | None, ...] | None,
    is_causal: bool,
    window: tuple[int, int],
    scale: float | None,
    dropout_p: float,
    num_splits: int = 0,
    heads_first: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The rest of the result: its generator's state, what is unused, and a debug mask."""
    q, k, v = inputs
    q, k, v = _unit(q), _unit(k), _unit(v)
    seed = int(torch.randint(2**62, (1,))) if dropout_p else 0
    causal = "bottom_right" if is_causal else "none"
    scalars = (scale, causal, *window, 0.0, dropout_p, 0, num_splits, False, "auto")
    _core.attend(q, k, v, tensors, out, lse, scalars, seed, 0, 0, None, heads_first)
    # Filled and not copied: a copy from the CPU would wait for the device.
    rng_state = q.new_empty(2, dtype=torch.uint64)
    if dropout_p:
        rng_state.fill_(seed)
    return rng_state, q.new_empty((), dtype=torch.uint64), q.new_empty(0)


def _flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The lengths max_q and max_k are known of cum_seq_q and cum_seq_k."""
    _refuse(return_debug_mask=return_debug_mask)
    *rows, heads, _ = query.shape
    if out is None:
        out = query.new_empty((*rows, heads, value.shape[-1]))
    lse_shape = (heads, *rows) if cum_seq_q is not None else (rows[0], heads, rows[1])
    lse = query.new_empty(lse_shape, dtype=torch.float32)
    given = {
        "alibi_slopes": alibi_slopes,
        "cu_seqlens_q": cum_seq_q,
        "cu_seqlens_k": cum_seq_k,
        "seqused_k": seqused_k,
        "page_table": block_table,
    }
    tensors = tuple(given.get(name) for name in TENSORS)
    window = _window(window_size_left, window_size_right)
    inputs = (query, key, value)
    rest = _forward(inputs, out, lse, tensors, is_causal, window, scale, dropout_p, num_splits or 0)
    return out, lse, *rest


def _window(left: int | None, right: int | None) -> tuple[int, int]:
    return (-1 if left is None else left, -1 if right is None else right)


def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    options = {
        "causal": "bottom_right" if is_causal else "none",
        "window": _window(window_size_left, window_size_right),
        "softmax_scale": scale,
        "cu_seqlens_q": cum_seq_q,
        "cu_seqlens_k": cum_seq_k,
        "dropout_p": dropout_p,
        "dropout_seed": int(rng_state[0]) if dropout_p else 0,
    }
    q, k, v = _unit(query), _unit(key), _unit(value)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    _backward(grad_out, q, k, v, out, logsumexp, {"dq": dq, "dk": dk, "dv": dv}, options)
    return dq, dk, dv


def _sdpa_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    _refuse(return_debug_mask=return_debug_mask)
    shape = query.shape
    like = torch.empty_like(query)
    if value.shape[-1] != shape[-1] or like.stride(-1) != 1:
        like = query.new_empty((*shape[:-1], value.shape[-1]))
    lse = query.new_empty(shape[:-1], dtype=torch.float32)
    rest = _forward(
        (query, key, value), like, lse, None, is_causal, (-1, -1), scale, dropout_p, 0, True
    )
    return like, lse, None, None, shape[2], key.shape[2], *rest


def _sdpa_cuda_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    dout, q, k, v, o = map(_rows_first, (grad_out, query, key, value, out))
    gradients = _flash_backward(
        dout,
        q,
        k,
        v,
        o,
        logsumexp,
        None,
        None,
        max_q,
        max_k,
        dropout_p,
        is_causal,
        philox_seed,
        philox_offset,
        scale=scale,
    )
    return tuple(gradient.transpose(1, 2) for gradient in gradients)


_KERNELS = {
    "CPU": {
        "_scaled_dot_product_flash_attention_for_cpu": _sdpa_cpu,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _sdpa_cpu_backward,
    },
    "CUDA": {
        "_scaled_dot_product_flash_attention": _sdpa_cuda,
        "_scaled_dot_product_flash_attention_backward": _sdpa_cuda_backward,
        "_flash_attention_forward": _flash_forward,
        "_flash_attention_backward": _flash_backward,
    },
}


class Handle:
    """Keeps FlashWok behind scaled_dot_product_attention until `remove`."""

    def __init__(self) -> None:
        self._libraries: list[torch.library.Library] = []
        for device, kernels in _KERNELS.items():
            library = torch.library.Library("aten", "IMPL", device)
            for name, kernel in kernels.items():
                library.impl(name, kernel, device)
            self._libraries.append(library)

    def remove(self) -> None:
        """Puts PyTorch's own kernels back."""
        while self._libraries:
            self._libraries.pop()._destroy()


_active: Handle | None = None


def _activate() -> Handle:
    global _active
    if _active is not None:
        _active.remove()
    _active = Handle()
    return _active


def register(activate: bool = True) -> None:
    """Makes FlashWok the flash attention of `F.scaled_dot_product_attention`.

    By PyTorch's registry (`torch.nn.attention.register_flash_attention_impl`) where there is one,
    otherwise by overriding the operators. Which backend runs stays PyTorch's choice: dropout goes
    elsewhere on the CPU; on CUDA, `sdpa_kernel(SDPBackend.FLASH_ATTENTION)` insists. What it sends
    here and no kernel takes is refused, as float64 is, and a backward pass on CUDA so far.

    Args:
        activate: False only makes the name known to `activate_flash_attention_impl("flashwok")`.

    Raises:
        NotImplementedError: activate is False, and this PyTorch has no registry.
    """
    registry = torch.nn.attention
    if hasattr(registry, "register_flash_attention_impl"):
        registry.register_flash_attention_impl(NAME, register_fn=_activate)
        if activate:
            registry.activate_flash_attention_impl(NAME)
    elif not activate:
        raise NotImplementedError("activate: must be True, this PyTorch has no registry")
    if activate and _active is None:
        _activate()


def restore() -> None:
    """Puts PyTorch's own kernels back behind `F.scaled_dot_product_attention`."""
    global _active
    registry = torch.nn.attention
    current = getattr(registry, "current_flash_attention_impl", lambda: None)
    if current() == NAME and hasattr(registry, "restore_flash_attention_impl"):
        registry.restore_flash_attention_impl()
    if _active is not None:  # the first registries could not take back
        _active.remove()
        _active = None
