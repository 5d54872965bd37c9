"""Times PyTorch's CPU flash attention, to stand beside ours.

  pip install torch numpy
  python tools/bench_torch_cpu.py [cells.json]   # a list of cells, from a file or standard input
  python tools/bench_torch_cpu.py --serve        # one cell a line in, one result a line out

A cell: {"pass": "forward", "dtype": "float32", "batch": 1, "num_heads": 8, "num_heads_kv": 8,
"seqlen_q": 4096, "seqlen_k": 4096, "head_dim": 64, "causal": "none", "threads": 2}. pass: forward,
backward or gemm (a square product, the ceiling: dtype and threads only). dtype: float32, bfloat16
or float16. causal: none, top_left or bottom_right. Optional: "repeats" (5) and "seconds" (1); it
times until both are met.

The answer is the cell with ms (the median), ms_min, ms_max, repeats, gflops and torch; for a list
also the ceiling of each dtype and number of threads. A cell that cannot run gets an error instead.
Useful FLOPs: forward 4 * batch * num_heads * seqlen_q * seqlen_k * head_dim, half of it if causal;
backward 2.5 times that. Tensors are [batch, seqlen, num_heads, head_dim], seen as bhsd.
"""

import argparse
import functools
import json
import pathlib
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CAUSALS = ("none", "top_left", "bottom_right")
SIZES = ("batch", "num_heads", "num_heads_kv", "seqlen_q", "seqlen_k", "head_dim")
GEMM_SIZE = 2048
WARMUPS = 2


def require(condition, message):
    if not condition:
        raise ValueError(message)


def positive(cell, name):
    value = cell.get(name)
    require(type(value) is int and value > 0, f"{name} is {value!r}, not a positive integer")
    return value


def choice(cell, name, choices):
    value = cell.get(name)
    require(value in tuple(choices), f"{name} is {value!r}, not one of {', '.join(choices)}")
    return value


def flops(cell):
    if cell["pass"] == "gemm":
        return 2 * GEMM_SIZE**3
    sizes = (cell[name] for name in ("batch", "num_heads", "seqlen_q", "seqlen_k", "head_dim"))
    count = functools.reduce(int.__mul__, sizes, 4)
    if cell["causal"] != "none":
        count /= 2
    return count * 2.5 if cell["pass"] == "backward" else count


def gemm(dtype):
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE).to(dtype) for _ in range(2))
    out = torch.empty(GEMM_SIZE, GEMM_SIZE, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def attention(cell, dtype):
    """A function that runs the cell's pass once on random normal inputs."""
    batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim = (positive(cell, name) for name in SIZES)
    causal = choice(cell, "causal", CAUSALS)
    require(heads % heads_kv == 0, f"num_heads {heads} is no multiple of num_heads_kv {heads_kv}")
    require(
        causal == "none" or seqlen_q == seqlen_k,
        f"causal needs equal lengths here, not seqlen_q {seqlen_q} and seqlen_k {seqlen_k}",
    )

    def normal(seqlen, num_heads):
        tensor = torch.randn(batch, seqlen, num_heads, head_dim).to(dtype)
        return tensor.transpose(1, 2).requires_grad_(cell["pass"] == "backward")

    q, k, v = normal(seqlen_q, heads), normal(seqlen_k, heads_kv), normal(seqlen_k, heads_kv)

    def forward():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal != "none", enable_gqa=heads != heads_kv
            )

    if cell["pass"] == "forward":
        return forward
    out = forward()
    dout = torch.randn(batch, seqlen_q, heads, head_dim).to(dtype).transpose(1, 2)
    return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


@functools.lru_cache(maxsize=1)
def prepare(key):
    """The cell's function, warm. The last one is kept, so that a repeated cell starts at once."""
    cell = json.loads(key)
    kind = choice(cell, "pass", ("forward", "backward", "gemm"))
    dtype = DTYPES[choice(cell, "dtype", DTYPES)]
    torch.manual_seed(0)
    run = gemm(dtype) if kind == "gemm" else attention(cell, dtype)
    for _ in range(WARMUPS):
        run()
    return run


def measure(cell):
    """The cell with its times; raises ValueError or RuntimeError if it cannot run."""
    require(isinstance(cell, dict), f"a cell is an object, not {cell!r}")
    repeats, seconds = cell.get("repeats", 5), cell.get("seconds", 1)
    require(type(repeats) is int and repeats > 0, f"repeats is {repeats!r}, not a positive integer")
    require(type(seconds) in (int, float) and seconds >= 0, f"seconds is {seconds!r}, not >= 0")
    shape = {name: value for name, value in cell.items() if name not in ("repeats", "seconds")}
    torch.set_num_threads(positive(cell, "threads"))
    run = prepare(json.dumps(shape, sort_keys=True))
    times = []
    end = time.perf_counter() + seconds
    while len(times) < repeats or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    return shape | {
        "ms": median * 1e3,
        "ms_min": min(times) * 1e3,
        "ms_max": max(times) * 1e3,
        "repeats": len(times),
        "gflops": flops(cell) / median / 1e9,
        "torch": torch.__version__,
    }


def answer(cell):
    try:
        return measure(cell)
    except (ValueError, RuntimeError) as error:
        message = str(error).splitlines()[0]
        return (cell if isinstance(cell, dict) else {}) | {"error": message}


def serve():
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            result = answer(json.loads(line))
        except json.JSONDecodeError as error:
            result = {"error": f"not JSON: {error}"}
        print(json.dumps(result), flush=True)


def bench(cells):
    results = [answer(cell) for cell in cells]
    timed = [result for result in results if "error" not in result]
    pairs = sorted({(result["dtype"], result["threads"]) for result in timed})
    ceilings = [
        measure({"pass": "gemm", "dtype": dtype, "threads": threads}) for dtype, threads in pairs
    ]
    report = {"torch": torch.__version__, "ceilings": ceilings, "cells": results}
    print(json.dumps(report, indent=2))
    return 0 if len(timed) == len(results) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", nargs="?", type=pathlib.Path, help="JSON file; absent: stdin")
    parser.add_argument("--serve", action="store_true", help="answer cell by cell")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return 0
    try:
        text = arguments.cells.read_text() if arguments.cells else sys.stdin.read()
        cells = json.loads(text)
        require(isinstance(cells, list), "the cells are not a list")
    except (OSError, ValueError) as error:
        parser.error(f"{arguments.cells or 'standard input'}: {error}")
    return bench(cells)


if __name__ == "__main__":
    sys.exit(main())
