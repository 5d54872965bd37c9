"""One call of the core: its arrays, its options, and the arrays for its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from . import _arrays, _core

if TYPE_CHECKING:
    from ._arrays import Array

Causal = Literal["none", "bottom_right", "top_left"]
Algorithm = Literal["auto", "standard", "v1", "v2", "v3"]

TENSORS = (
    "bias",
    "mask",
    "alibi_slopes",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_k",
    "page_table",
    "q_descale",
    "k_descale",
    "v_descale",
)
SCALARS = (
    "softmax_scale",
    "causal",
    "window_left",
    "window_right",
    "softcap",
    "dropout_p",
    "dropout_offset",
    "num_splits",
    "deterministic",
    "algorithm",
)
RUN = ("num_threads", "stream", "kernel", "tile_q", "tile_kv", "workspace_limit")


class Options(TypedDict, total=False):
    """The keyword arguments of `flashwok.attention` that say what is computed, and how."""

    causal: Causal
    window: tuple[int, int]
    softmax_scale: float | None
    softcap: float
    bias: Array
    mask: Array
    alibi_slopes: Array
    cu_seqlens_q: Array
    cu_seqlens_k: Array
    seqused_k: Array
    page_table: Array
    q_descale: Array
    k_descale: Array
    v_descale: Array
    dropout_p: float
    dropout_seed: int
    dropout_offset: int
    num_splits: int
    deterministic: bool
    num_threads: int
    stream: int | None
    kernel: str
    tile_q: int
    tile_kv: int
    workspace_limit: int
    algorithm: Algorithm


def window_pair(window: tuple[int, int]) -> tuple[int, int]:
    try:
        left, right = window
    except (TypeError, ValueError):
        raise TypeError(f"window: is {window!r}, which is of another type") from None
    return left, right


def new_output(q: Array, v: Array, varlen: bool, out_dtype: str | None) -> tuple[Array, Array]:
    """o and lse, unfilled."""
    *rows, heads, _ = q.shape
    shape = (*rows, heads, v.shape[-1])
    if out_dtype is None and getattr(q.dtype, "itemsize", 1) == 1:
        out_dtype = "bfloat16" if _arrays.dtype_name(q).startswith("float8") else None
    lse_shape = (heads, *rows) if varlen else (*rows[:-1], heads, *rows[-1:])
    return _arrays.empty(q, shape, out_dtype), _arrays.empty(q, lse_shape, "float32")


def refuse_arrays(**arrays: Array) -> None:
    """Raises where one is no array that the core can see."""
    for name, array in arrays.items():
        _arrays.view(array, name)


class Call:
    """What the core's functions take. `arguments` are those of Options."""

    def __init__(self, q: Array, k: Array, v: Array, arguments: Mapping[str, Any]) -> None:
        self.q, self.k, self.v = q, k, v
        options = dict(arguments)
        self.run = {name: options.pop(name) for name in RUN if name in options}
        self.stream = self.run.get("stream")
        if self.stream is None:
            self.stream = self.run["stream"] = _arrays.current_stream(q)
        given = {"q": q, "k": k, "v": v}
        given |= {name: options.pop(name, None) for name in TENSORS}
        self.given = {name: array for name, array in given.items() if array is not None}
        self.tensors = {name: self.view(array, name) for name, array in self.given.items()}
        self.options = options

    def view(self, array: Array, name: str) -> _core.Array:
        return _arrays.view(array, name, self.stream)

    def views(self, **arrays: Array) -> dict[str, _core.Array]:
        return {name: self.view(array, name) for name, array in arrays.items() if array is not None}

    def new_output(self, out_dtype: str | None = None) -> tuple[Array, Array]:
        return new_output(self.q, self.v, "cu_seqlens_q" in self.given, out_dtype)

    def new_like(self, name: str, dtype: str | None = None) -> Array:
        return _arrays.empty(self.q, self.given[name].shape, dtype)

    def plan(self, backward: bool = False) -> _core.PlanDict:
        which = "backward" if backward else "forward"
        return _core.plan(self.tensors, self.options, which, self.run)
