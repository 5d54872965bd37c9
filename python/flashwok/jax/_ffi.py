"""The calls of `flashwok.jax` into the library."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from .._call import SCALARS, TENSORS

TARGET = "flashwok_attention"
Arrays = dict[str, jax.Array]

for _platform, _name in (("cpu", "cpu"), ("CUDA", "cuda")):
    jax.ffi.register_ffi_target(TARGET, _core.jax_handler(_name), platform=_platform)


@dataclass(frozen=True)
class Options:
    """The attributes of a call."""

    softmax_scale: float
    softcap: float
    causal: str
    algorithm: str
    window_left: int
    window_right: int
    dropout_p: float
    dropout_seed: int
    dropout_offset: int
    num_splits: int
    deterministic: int
    out_dtype: str

    def attributes(self) -> dict[str, Any]:
        cast = {int: np.int64, float: np.float64, str: str}
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["out_dtype"]
        return {name: cast[type(value)](value) for name, value in values.items()}


def prepare(given: dict[str, Any], **options: Any) -> tuple[Options, Arrays]:
    """What `attend` takes, from the arguments of `flashwok.attention`."""
    dropout_p, seed = options["dropout_p"], options["dropout_seed"]
    if dropout_p and seed is None:
        raise ValueError(f"dropout_seed: is None, must be given: dropout_p is {dropout_p}")
    arrays = {
        name: array if isinstance(array, jax.Array) else jnp.asarray(array)
        for name, array in given.items()
        if array is not None
    }
    scale, head_dim = options["softmax_scale"], arrays["q"].shape[-1]
    if scale is None:
        scale = 1.0 / math.sqrt(head_dim) if head_dim else 1.0
    window = options["window"]
    return Options(
        softmax_scale=float(scale),
        softcap=float(options["softcap"]),
        causal=options["causal"],
        algorithm=options["algorithm"],
        window_left=int(window[0]),
        window_right=int(window[1]),
        dropout_p=float(dropout_p),
        dropout_seed=int(seed or 0),
        dropout_offset=int(options["dropout_offset"]),
        num_splits=int(options["num_splits"]),
        deterministic=int(options["deterministic"]),
        out_dtype=options["out_dtype"] or "",
    ), arrays


Shapes = dict[str, jax.ShapeDtypeStruct]


def _call(which: str, options: Options, results: Shapes, arrays: Arrays) -> Arrays:
    names = sorted(arrays)
    attributes = options.attributes()
    attributes |= {"pass": which, "arguments": " ".join(names), "results": " ".join(results)}
    call = jax.ffi.ffi_call(TARGET, tuple(results.values()))
    made = call(*(arrays[name] for name in names), **attributes)
    return dict(zip(results, made, strict=True))


def _batched_call(which: str, options: Options, results: Shapes, arrays: Arrays) -> Arrays:
    """`_call`, whose rule under vmap joins the new axis with the batch."""

    @jax.custom_batching.custom_vmap
    def call(arrays: Arrays) -> Arrays:
        return _call(which, options, results, arrays)

    @call.def_vmap  # type: ignore[untyped-decorator,unused-ignore]
    def rule(size: int, batched: tuple[dict[str, bool]], arrays: Arrays) -> Any:
        if "cu_seqlens_q" in arrays or "page_table" in arrays:
            raise NotImplementedError("vmap: varlen and paged problems have no batch axis to join")
        batch = arrays["q"].shape[-4]
        joined = {
            name: _join(name, array, batched[0][name], size, batch)
            for name, array in arrays.items()
        }
        wider = {
            name: jax.ShapeDtypeStruct((size * batch, *shape.shape[1:]), shape.dtype)
            for name, shape in results.items()
        }
        made = _batched_call(which, options, wider, joined)
        return _split(made, results, size, batch), dict.fromkeys(results, True)

    made: Arrays = call(arrays)
    return made


def _join(name: str, array: jax.Array, batched: bool, size: int, batch: int) -> jax.Array:
    """[size, batch, ...] as [size * batch, ...]; what has one batch for all is repeated."""
    if not batched:
        array = jnp.broadcast_to(array, (size, *array.shape))
    if name == "alibi_slopes" and array.ndim == 2:  # [size, num_heads]
        array = array[:, None]
    if array.shape[1] != batch:
        array = jnp.broadcast_to(array, (size, batch, *array.shape[2:]))
    return array.reshape(size * batch, *array.shape[2:])


def _split(made: Arrays, results: Shapes, size: int, batch: int) -> Arrays:
    split = {}
    for name, array in made.items():
        array = array.reshape(size, batch, *array.shape[1:])
        if results[name].shape[0] != batch:  # dbias of a bias that one batch stands for
            array = array.sum(1, keepdims=True)
        split[name] = array
    return split


def _forward_shapes(options: Options, arrays: Arrays) -> Shapes:
    q, v = arrays["q"], arrays["v"]
    if q.ndim not in (3, 4):
        raise ValueError(f"q: has {q.ndim} axes, must have 3 or 4")
    *rows, heads, _ = q.shape
    float8 = q.dtype.itemsize == 1
    dtype = jnp.dtype(options.out_dtype or ("bfloat16" if float8 else q.dtype))
    varlen = "cu_seqlens_q" in arrays
    lse_shape = (heads, *rows) if varlen else (*rows[:-1], heads, *rows[-1:])
    return {
        "o": jax.ShapeDtypeStruct((*rows, heads, v.shape[-1]), dtype),
        "lse": jax.ShapeDtypeStruct(lse_shape, jnp.float32),
    }


def merge(given: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
    """(o, lse) of the union, for `flashwok.merge_states`."""
    arrays = {name: jnp.asarray(array) for name, array in given.items()}
    shapes = tuple(
        jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype) for name in ("o_a", "lse_a")
    )
    call = jax.ffi.ffi_call(TARGET, shapes)
    attributes = {"pass": "merge", "arguments": " ".join(arrays), "results": "o lse"}
    o, lse = call(*arrays.values(), **attributes)
    return o, lse


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(options: Options, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
    """(o, lse)."""
    made = _batched_call("forward", options, _forward_shapes(options, arrays), arrays)
    return made["o"], made["lse"]


Residuals = tuple[Arrays, jax.Array, jax.Array]


def _attend_forward(options: Options, arrays: Arrays) -> tuple[Any, Residuals]:
    o, lse = attend(options, arrays)
    return (o, lse), (arrays, o, lse)


def _attend_backward(options: Options, residuals: Residuals, cotangents: Any) -> tuple[Any]:
    arrays, o, lse = residuals
    dout, dlse = cotangents
    gradients = {"q": "dq", "k": "dk", "v": "dv"}
    results = {
        gradient: jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype)
        for name, gradient in gradients.items()
    }
    if "bias" in arrays:
        gradients["bias"] = "dbias"
        results["dbias"] = jax.ShapeDtypeStruct(arrays["bias"].shape, jnp.float32)
    given = arrays | {"o": o, "lse": lse, "dout": dout.astype(o.dtype), "dlse": dlse}
    made = _batched_call("backward", options, results, given)
    return (
        {
            name: made[gradients[name]].astype(array.dtype) if name in gradients else None
            for name, array in arrays.items()
        },
    )


attend.defvjp(_attend_forward, _attend_backward)
# Traced once for arrays of the same shapes and options.
_attend_at_once = jax.jit(attend, static_argnums=0)


def run(options: Options, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
    """(o, lse), where arrays may be traced or not."""
    if any(isinstance(array, jax.core.Tracer) for array in arrays.values()):
        return attend(options, arrays)
    made: tuple[jax.Array, jax.Array] = _attend_at_once(options, arrays)
    return made


def attention(
    q: Any,
    k: Any,
    v: Any,
    tensors: tuple[Any, ...],
    scalars: tuple[Any, ...],
    dropout_seed: int | None,
    out_dtype: str | None,
) -> tuple[jax.Array, jax.Array]:
    """(o, lse); `tensors` are TENSORS, `scalars` SCALARS."""
    given = {"q": q, "k": k, "v": v} | dict(zip(TENSORS, tensors, strict=True))
    words = dict(zip(SCALARS, scalars, strict=True))
    words["window"] = (words.pop("window_left"), words.pop("window_right"))
    return run(*prepare(given, **words, dropout_seed=dropout_seed, out_dtype=out_dtype))


def backward(
    dout: Any, o: Any, lse: Any, dlse: Any | None, given: dict[str, Any], **options: Any
) -> dict[str, jax.Array]:
    """The gradients by the names of their arrays, for `flashwok.attention_backward`."""
    made, arrays = prepare(given, **options, num_splits=0, out_dtype=None)
    dlse = jnp.zeros_like(lse) if dlse is None else dlse
    (gradients,) = _attend_backward(made, (arrays, o, lse), (dout, dlse))
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}
