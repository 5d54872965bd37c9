from collections.abc import Sequence
from typing import Any, TypedDict

class Array:
    @staticmethod
    def from_dlpack(
        object: Any, name: str, stream: int | None = None, dtype: str = ""
    ) -> Array: ...
    @staticmethod
    def from_pointer(
        data: int,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int],
        read_only: bool,
        owner: Any,
        name: str,
        cuda: int = -1,
    ) -> Array: ...

class PlanDict(TypedDict):
    ok: bool
    refused: str
    kernel: str
    algorithm: str
    tile_q: int
    tile_kv: int
    num_splits: int
    num_threads: int
    workspace_bytes: int
    rejections: list[tuple[str, str]]

_Arrays = dict[str, Array]
_Options = dict[str, Any]

def attend(
    q: Any,
    k: Any,
    v: Any,
    tensors: tuple[Any, ...] | None,
    o: Any,
    lse: Any,
    scalars: tuple[Any, ...],
    dropout_seed: int,
    num_threads: int,
    most_threads: int,
    stream: int | None,
    heads_first: bool,
) -> None: ...
def forward(
    tensors: _Arrays, options: _Options, outputs: _Arrays, run: _Options, record: bool = False
) -> bytes | None: ...
def backward(
    tensors: _Arrays,
    options: _Options,
    inputs: _Arrays,
    gradients: _Arrays,
    run: _Options,
    record: bool = False,
) -> bytes | None: ...
def plan(tensors: _Arrays, options: _Options, which: str, run: _Options) -> PlanDict: ...
def model_bytes(tensors: _Arrays, options: _Options, outputs: _Arrays, run: _Options) -> int: ...
def reference(tensors: _Arrays, options: _Options) -> tuple[bytes, bytes]: ...
def merge_states(
    o_a: Array, lse_a: Array, o_b: Array, lse_b: Array, o: Array, lse: Array, run: _Options
) -> None: ...
def quantize_float8(x: Array, values: Array, descale: Array) -> None: ...
def kernels() -> list[dict[str, Any]]: ...
def cpu_targets() -> list[str]: ...
def cuda_devices() -> list[tuple[str, int]]: ...
def cuda_absence() -> str: ...
def jax_handler(platform: str) -> Any: ...

version: str
event_fields: str
event_kinds: list[str]
event_tensors: list[str]
