"""The operators `flashwok::attention` and `attention_backward` in PyTorch's dispatcher."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import Tensor

from .. import _arrays, _core
from .._call import SCALARS, TENSORS, Call, refuse_arrays

_INPUTS = ", ".join(["Tensor q, Tensor k, Tensor v"] + [f"Tensor? {name}" for name in TENSORS])
_OPTIONS = (
    "float? softmax_scale, str causal, SymInt window_left, SymInt window_right, float softcap, "
    "float dropout_p, int dropout_offset, int num_splits, bool deterministic, str algorithm"
)
_NUM_INPUTS = 3 + len(TENSORS)

_library = torch.library.Library("flashwok", "DEF")
# `seed` is what dropout was drawn from: int64 [1], or [0] without dropout. It lies on q's device,
# so that a graph of CUDA has no tensor elsewhere.
_library.define(
    f"attention({_INPUTS}, {_OPTIONS}, int? dropout_seed, ScalarType? out_dtype)"
    " -> (Tensor o, Tensor lse, Tensor seed)",
    tags=(torch.Tag.needs_fixed_stride_order, torch.Tag.nondeterministic_seeded),
)
_library.define(
    f"attention_backward(Tensor dout, Tensor? dlse, Tensor o, Tensor lse, Tensor seed, {_INPUTS}, "
    f"{_OPTIONS}, bool bias_grad) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias)",
    tags=(torch.Tag.needs_fixed_stride_order,),
)


def _make_call(inputs: tuple[Tensor | None, ...], scalars: tuple[Any, ...], seed: int) -> Call:
    q, k, v, *optional = inputs
    assert q is not None
    assert k is not None
    assert v is not None
    options = dict(zip(SCALARS, scalars, strict=True))
    options["window"] = (options.pop("window_left"), options.pop("window_right"))
    options["dropout_seed"] = seed
    return Call(q, k, v, options | dict(zip(TENSORS, optional, strict=True)))


_CORES = os.cpu_count() or 1


def _limit_threads(call: Call) -> None:
    """No more threads than PyTorch itself may use, in the backward pass."""
    most = torch.get_num_threads()
    if call.q.device.type == "cpu" and most < _CORES:
        plan = call.plan(backward=True)
        if plan["ok"]:
            call.run["num_threads"] = min(most, plan["num_threads"])


_DROPOUT = SCALARS.index("dropout_p")


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: tuple[Tensor | None, ...],
    scalars: tuple[Any, ...],
    dropout_seed: int | None,
    out_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, int]:
    """o, lse and the seed."""
    if dropout_seed is None and scalars[_DROPOUT] > 0.0:
        dropout_seed = int(torch.randint(2**62, (1,)))  # of PyTorch's default generator
    seed = dropout_seed or 0
    try:
        o, lse = _new_output(q, v, tensors[_INDEX["cu_seqlens_q"] - 3] is not None, out_dtype)
    except Exception:
        refuse_arrays(q=q, k=k, v=v)
        raise
    threads = torch.get_num_threads()
    _core.attend(q, k, v, tensors, o, lse, scalars, seed, 0, threads, None, False)
    return o, lse, seed


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = arguments[:3]
    scalars, (dropout_seed, out_dtype) = arguments[_NUM_INPUTS:-2], arguments[-2:]
    tensors = arguments[3:_NUM_INPUTS]
    o, lse, seed = _compute(q, k, v, tensors, scalars, dropout_seed, out_dtype)
    if scalars[_DROPOUT] > 0.0:
        # Filled and not copied: a copy from the CPU would wait for the device.
        return o, lse, o.new_full((1,), seed, dtype=torch.int64)
    return o, lse, o.new_empty((0,), dtype=torch.int64)


def _drops(scalars: tuple[Any, ...]) -> bool:
    return bool(scalars[_DROPOUT] > 0.0)


_INDEX = {name: 3 + n for n, name in enumerate(TENSORS)}


def _new_output(
    q: Tensor, v: Tensor, varlen: bool, out_dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    if out_dtype is None:
        out_dtype = torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype
    *rows, heads, _ = q.shape
    lse_shape = (heads, *rows) if varlen else (*rows[:-1], heads, *rows[-1:])
    o = q.new_empty((*rows, heads, v.shape[-1]), dtype=out_dtype)
    return o, q.new_empty(lse_shape, dtype=torch.float32)


def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, out_dtype = arguments[:_NUM_INPUTS], arguments[-1]
    q, v = inputs[0], inputs[2]
    if q.dim() not in (3, 4):
        raise ValueError(f"q: has {q.dim()} axes, must have 3 or 4")
    o, lse = _new_output(q, v, inputs[_INDEX["cu_seqlens_q"]] is not None, out_dtype)
    return o, lse, q.new_empty((int(_drops(arguments[_NUM_INPUTS:])),), dtype=torch.int64)


def _new_gradients(inputs: tuple[Any, ...], bias_grad: bool) -> tuple[Tensor, ...]:
    q, k, v = inputs[:3]
    bias = inputs[_INDEX["bias"]]
    shape = bias.shape if bias_grad else (0,)
    dbias = q.new_empty(shape, dtype=torch.float32)
    return (*(x.new_empty(x.shape) for x in (q, k, v)), dbias)


def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    (dout, dlse, o, lse, seed), rest = arguments[:5], arguments[5:]
    inputs, scalars, bias_grad = rest[:_NUM_INPUTS], rest[_NUM_INPUTS:-1], rest[-1]
    call = _make_call(inputs, scalars, int(seed) if seed.numel() else 0)
    _limit_threads(call)
    gradients = _new_gradients(inputs, bias_grad)
    results = dict(zip(("dq", "dk", "dv", "dbias"), gradients, strict=True))
    if not bias_grad:
        del results["dbias"]
    given = call.views(dout=_unit_stride(dout), dlse=_unit_stride(dlse), o=o, lse=lse)
    _core.backward(call.tensors, call.options, given, call.views(**results), call.run)
    return gradients


def _unit_stride(gradient: Tensor | None) -> Tensor | None:
    """Autograd makes gradients of any strides, such as those of a broadcast number."""
    if gradient is None or gradient.stride(-1) == 1:
        return gradient
    return gradient.contiguous()


def _fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    return _new_gradients(arguments[5 : 5 + _NUM_INPUTS], arguments[-1])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:_NUM_INPUTS], *output)
    ctx.scalars = inputs[_NUM_INPUTS:-2]
    ctx.set_materialize_grads(False)


def _autograd_backward(
    ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: Tensor | None
) -> tuple[Any, ...]:
    *inputs, o, lse, seed = ctx.saved_tensors
    needed = ctx.needs_input_grad[:_NUM_INPUTS]
    none = [None] * (len(ctx.needs_input_grad))
    for name in ("alibi_slopes", "q_descale", "k_descale", "v_descale"):
        if needed[_INDEX[name]]:
            raise NotImplementedError(f"{name}: has no gradient; detach it")
    if dout is None and dlse is None:
        return tuple(none)
    if dout is None:
        dout = torch.zeros_like(o)
    bias = inputs[_INDEX["bias"]]
    bias_grad = needed[_INDEX["bias"]]
    dq, dk, dv, dbias = torch.ops.flashwok.attention_backward(
        dout, dlse, o, lse, seed, *inputs, *ctx.scalars, bias_grad
    )
    gradients: list[Any] = none
    gradients[:3] = [dq, dk, dv]
    if bias_grad:
        gradients[_INDEX["bias"]] = dbias.to(bias.dtype)
    return tuple(gradients)


def _no_double_backward(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError("flashwok::attention_backward has no gradient of its own")


def _autocast(device: str) -> Any:
    def cast(*arguments: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        qkv = [x if x.dtype.itemsize == 1 else x.to(dtype) for x in arguments[:3]]
        rest = list(arguments[3:])
        bias = rest[0]
        if bias is not None and bias.dtype not in (torch.float32, dtype):
            rest[0] = bias.to(dtype)
        # Its keyset excludes the autocast key, so this reaches autograd and the kernel.
        with torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))
        ):
            return torch.ops.flashwok.attention(*qkv, *rest)

    return cast


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _device)
    _library.impl("attention_backward", _backward, _device)
    _library.impl("attention", _autocast(_device.lower()), f"Autocast{_device}")
torch.library.register_fake("flashwok::attention", _fake_forward, lib=_library)
torch.library.register_fake("flashwok::attention_backward", _fake_backward, lib=_library)
torch.library.register_autograd(
    "flashwok::attention", _autograd_backward, setup_context=_setup_context, lib=_library
)
torch.library.register_autograd("flashwok::attention_backward", _no_double_backward, lib=_library)


def _raw(*keys: str) -> int:
    keysets = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)) for key in keys)
    return functools.reduce(lambda raw, keyset: raw | keyset.raw_repr(), keysets, 0)


# Of a thread without modes, transforms or tracing, and of a tensor that is nothing else but one.
_PLAIN_THREAD = ~_raw("ADInplaceOrView", "BackendSelect")
_PLAIN_TENSOR = ~_raw(
    "CPU", "CUDA", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"
)


def _is_plain(given: tuple[Tensor | None, ...]) -> bool:
    """Whether the dispatcher would do nothing but autograd and `_forward`."""
    if (
        torch._C._dispatch_tls_local_include_set().raw_repr() & _PLAIN_THREAD
        or torch._C._is_any_autocast_enabled()
        or torch._C._len_torch_function_stack()
        or torch._C._autograd._profiler_enabled()
    ):
        return False
    for x in given:
        if x is None:
            continue
        if type(x) is not Tensor and type(x) is not torch.nn.Parameter:
            return False
        if torch._C._dispatch_keys(x).raw_repr() & _PLAIN_TENSOR:
            return False
    return True


class _Attention(torch.autograd.Function):
    """What `register_autograd` makes of the operator, without its account of the arguments."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = _forward(*arguments)
        _setup_context(ctx, arguments, output)
        return output

    backward = staticmethod(_autograd_backward)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: tuple[Tensor | None, ...],
    scalars: tuple[Any, ...],
    dropout_seed: int | None,
    out_dtype: str | torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """(o, lse), by the operator or, where that comes to the same, without it.

    `tensors` are TENSORS, `scalars` SCALARS.
    """
    dtype = torch_dtype(out_dtype)
    if torch.are_deterministic_algorithms_enabled():
        scalars = (*scalars[:-2], True, scalars[-1])
    operator = torch.ops.flashwok.attention
    if not torch.compiler.is_compiling() and _is_plain((q, k, v, *tensors)):
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(q, k, v, *tensors)):
            return _compute(q, k, v, tensors, scalars, dropout_seed, dtype)[:2]
        operator = _Attention.apply
    o, lse, _ = operator(q, k, v, *tensors, *scalars, dropout_seed, dtype)
    return o, lse


def torch_dtype(name: str | torch.dtype | None) -> torch.dtype | None:
    """By the core's name."""
    if name is None or isinstance(name, torch.dtype):
        return name
    found = getattr(torch, _arrays._FROM_CORE.get(name, name), None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"out_dtype: is '{name}', must be the name of a dtype")
    return found
