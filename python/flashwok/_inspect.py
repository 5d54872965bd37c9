"""What the library would run, has run, and can run: `plan`, `trace`, `compare`, `info`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _arrays, _core
from ._call import Call, Options

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Unpack

    from ._arrays import Array

ALGORITHMS = ("standard", "v1", "v2", "v3")


@dataclass(frozen=True)
class Plan:
    """Which kernel a call would run, and with what; or, where `ok` is false, why none."""

    ok: bool
    refused: str  # the reason; empty where ok
    kernel: str  # e.g. "cpu_forward_v2"
    algorithm: str
    tile_q: int  # rows of a tile
    tile_kv: int  # keys of a tile
    num_splits: int  # of the keys
    num_threads: int
    workspace_bytes: int  # of scratch memory
    rejections: list[tuple[str, str]] = field(default_factory=list)  # (kernel, why not)


def plan(
    q: Array, k: Array, v: Array, *, backward: bool = False, **options: Unpack[Options]
) -> Plan:
    """Says which kernel `attention` (or its backward pass) would run; runs nothing.

    Args:
        q, k, v, options: those of `attention`; also kernel, the name of the one to take, tile_q and
            tile_kv, rows and keys of a tile, workspace_limit, bytes of scratch memory allowed.
        backward: of the backward pass.

    Raises:
        TypeError: an unknown option, or an array of a wrong kind. A problem that no kernel runs is
            no error: see `Plan.refused`.

    Source: `Plan` in ``include/flashwok/attention.h``.

    >>> import numpy as np
    >>> import flashwok
    >>> q = np.zeros((1, 64, 2, 32), np.float32)
    >>> flashwok.plan(q, q, q, algorithm="v1").kernel
    'cpu_forward_v1'
    >>> flashwok.plan(q, q, q, softcap=-1.0).refused
    'softcap: is -1, must be 0 (off) or from 1.1754944e-38 to 8.507059e+37'
    """
    return Plan(**Call(q, k, v, options).plan(backward))


@dataclass(frozen=True)
class Trace:
    """What one call of a CPU kernel did: an event for each tile that was moved or computed."""

    plan: Plan
    # Structured, in the order of the starts: t0 and duration in ns, bytes (of a load or store),
    # flops (of a product), track (the worker), head (batch * num_heads + head), q_tile, k_tile (or
    # -1), kind and tensor (indices into `kinds` and `tensors`), stage, masked.
    events: np.ndarray[Any, Any]
    kinds: tuple[str, ...] = tuple(_core.event_kinds)
    tensors: tuple[str, ...] = tuple(_core.event_tensors)

    def bytes_of(self, kind: str) -> dict[str, int]:
        """Bytes by tensor of the events of a kind, "load" or "store"."""
        events = self.events[self.events["kind"] == self.kinds.index(kind)]
        sums = {
            name: int(events["bytes"][events["tensor"] == number].sum())
            for number, name in enumerate(self.tensors)
        }
        return {name: total for name, total in sums.items() if total}

    @property
    def bytes_read(self) -> int:
        """From slow memory."""
        return sum(self.bytes_of("load").values())

    @property
    def bytes_written(self) -> int:
        """To slow memory."""
        return sum(self.bytes_of("store").values())


def _events(recorded: bytes | None) -> np.ndarray[Any, Any]:
    import numpy as np

    fields = [tuple(word.split(":")) for word in _core.event_fields.split()]
    events = np.frombuffer(recorded or b"", np.dtype(fields))
    return events[np.lexsort((-events["duration"], events["t0"]))]


def _trace_forward(call: Call, chosen: Plan) -> Trace:
    o, lse = call.new_output()
    outputs = call.views(o=o, lse=lse)
    _core.forward(call.tensors, call.options, outputs, call.run)  # memory touched, threads started
    return Trace(
        chosen, _events(_core.forward(call.tensors, call.options, outputs, call.run, record=True))
    )


def trace(
    q: Array, k: Array, v: Array, *, dout: Array | None = None, **options: Unpack[Options]
) -> Trace:
    """Runs attention on the CPU, or its backward pass, and records every tile.

    Args:
        q, k, v, options: those of `plan`.
        dout: the gradient that arrives at o; with it the backward pass is recorded.

    Raises:
        ValueError: also when there are more than 4,194,304 events.
        The rest as `attention`.

    Source: ``include/flashwok/trace.h``; `flashwok trace` writes the same events to a file.

    >>> import numpy as np
    >>> import flashwok
    >>> q = np.zeros((1, 64, 1, 16), np.float32)
    >>> trace = flashwok.trace(q, q, q, algorithm="v2")
    >>> trace.bytes_of("store") == {"O": q.nbytes, "lse": 64 * 4}
    True
    """
    call = Call(q, k, v, options)
    chosen = Plan(**call.plan(backward=dout is not None))
    if dout is None:
        return _trace_forward(call, chosen)
    o, lse = call.new_output()
    forward_run = {**call.run, "kernel": ""}
    _core.forward(call.tensors, call.options, call.views(o=o, lse=lse), forward_run)
    gradients = {"dq": call.new_like("q"), "dk": call.new_like("k"), "dv": call.new_like("v")}
    inputs = call.views(o=o, lse=lse, dout=dout)
    results = call.views(**gradients)
    recorded = _core.backward(call.tensors, call.options, inputs, results, call.run, record=True)
    return Trace(chosen, _events(recorded))


@dataclass(frozen=True)
class Measured:
    """One algorithm of a comparison."""

    algorithm: str
    refused: str  # why it does not run; the rest is then 0 or nan
    kernel: str = ""
    seconds: float = math.nan  # median
    bytes_read: int = 0  # from slow memory, counted while it ran
    bytes_written: int = 0
    model_bytes: int = 0  # read and written, by formula
    workspace_bytes: int = 0  # of scratch memory
    max_error: float = math.nan  # of o, against float64


@dataclass(frozen=True)
class Comparison:
    """What `compare` measured; prints as a table."""

    rows: tuple[Measured, ...]
    max_difference: float  # between the o of any two

    def __getitem__(self, algorithm: str) -> Measured:
        return next(row for row in self.rows if row.algorithm == algorithm)

    def __str__(self) -> str:
        heads = ("algorithm", "time ms", "read", "written", "by formula", "scratch", "max error")
        lines = [" ".join(f"{head:>12}" for head in heads)]
        for row in self.rows:
            if row.refused:
                lines.append(f"{row.algorithm:>12} {row.refused}")
                continue
            numbers = (row.bytes_read, row.bytes_written, row.model_bytes, row.workspace_bytes)
            cells = [f"{row.algorithm:>12}", f"{1e3 * row.seconds:>12.3f}"]
            cells += [f"{number:>12,}" for number in numbers]
            lines.append(" ".join([*cells, f"{row.max_error:>12.1e}"]))
        return "\n".join([*lines, f"They agree to {self.max_difference:.1e}."])


def _as_float64(array: Array) -> np.ndarray[Any, Any]:
    import numpy as np

    if _arrays.is_torch(array):
        array = array.float()
    return np.asarray(array).astype(np.float64)


def compare(
    q: Array, k: Array, v: Array, *, repeats: int = 3, **options: Unpack[Options]
) -> Comparison:
    """Runs standard attention, V1, V2 and V3 on the same arrays, on the CPU, forward.

    Args:
        q, k, v, options: those of `plan`; algorithm and kernel are set here.
        repeats: timed runs of each; the time is their median.

    Returns:
        Time in seconds, bytes read and written, scratch memory and error against float64 of each.

    Raises:
        ValueError: q is not on the CPU.
        The rest as `attention`.

    Source: `flashwok compare`, which has more to say, does the same on files.

    >>> import numpy as np
    >>> import flashwok
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 256, 2, 16), dtype=np.float32)
    >>> result = flashwok.compare(q, k, v)
    >>> result.max_difference < 1e-5, result["v2"].bytes_read < result["standard"].bytes_read
    (True, True)
    """
    import numpy as np

    rows: list[Measured] = []
    results: list[np.ndarray[Any, Any]] = []
    exact: np.ndarray[Any, Any] | None = None
    for algorithm in ALGORITHMS:
        options["algorithm"] = algorithm  # type: ignore[typeddict-item]
        options["kernel"] = ""
        call = Call(q, k, v, options)
        chosen = Plan(**call.plan())
        if not chosen.ok:
            rows.append(Measured(algorithm, chosen.refused))
            continue
        if exact is None:
            exact = np.frombuffer(_core.reference(call.tensors, call.options)[0], np.float64)
        traced = _trace_forward(call, chosen)
        o, lse = call.new_output()
        outputs = call.views(o=o, lse=lse)
        seconds = []
        for _ in range(max(1, repeats)):
            start = time.perf_counter()
            _core.forward(call.tensors, call.options, outputs, call.run)
            seconds.append(time.perf_counter() - start)
        results.append(_as_float64(o).ravel())
        rows.append(
            Measured(
                algorithm,
                "",
                kernel=chosen.kernel,
                seconds=float(np.median(seconds)),
                bytes_read=traced.bytes_read,
                bytes_written=traced.bytes_written,
                model_bytes=_core.model_bytes(call.tensors, call.options, outputs, call.run),
                workspace_bytes=chosen.workspace_bytes,
                max_error=float(np.abs(results[-1] - exact).max(initial=0.0)),
            )
        )
    spread = np.ptp(results, axis=0).max(initial=0.0) if results else math.nan
    return Comparison(tuple(rows), float(spread))


def info() -> dict[str, Any]:
    """The library's version, the machine's instruction sets and CUDA devices, and the kernels.

    Returns:
        ``version``; ``cpu_targets``, best first; ``cuda_devices``, (name, compute capability) of
        each; ``cuda_absence``, why there are none; ``kernels``, a dict of each: name, pass,
        algorithm, device, dtypes, requirement and whether it is available here.

    Source: `Kernels` and `CpuTargets` in ``include/flashwok/attention.h``.

    >>> import flashwok
    >>> "cpu_forward_v3" in {kernel["name"] for kernel in flashwok.info()["kernels"]}
    True
    """
    return {
        "version": _core.version,
        "cpu_targets": _core.cpu_targets(),
        "cuda_devices": _core.cuda_devices(),
        "cuda_absence": _core.cuda_absence(),
        "kernels": _core.kernels(),
    }
