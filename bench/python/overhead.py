#!/usr/bin/env python3
"""Times small calls of the installed Python package on the CPU.

  bench/python/overhead.py --shapes tiny --record overhead.json

What a call costs beside its kernel: `tiny` is one row of one head, whose kernel takes next to
nothing; the others are the small shapes of h200_python.py. Microseconds of a call, the least of
many rounds, whose doors come in drawn orders. Needs torch; numpy, jax as they are there.
"""

import argparse
import importlib.util
import json
import pathlib
import random
import time

SHAPES = {  # batch, seqlen, heads, head_dim, causal
    "tiny": (1, 1, 1, 8, False),
    "decode": (8, 1, 32, 128, False),
    "short": (1, 128, 8, 64, True),
}
ROUNDS, SECONDS = 25, 0.02


def doors(shape):
    """Each way to the same attention: {name: (run, whether our SDPA is to be there)}."""
    import flashwok
    import flashwok.torch
    import numpy as np
    import torch

    batch, seqlen, heads, head_dim, causal = shape
    q, k, v = (torch.randn(batch, seqlen, heads, head_dim) for _ in range(3))
    bhsd = [x.transpose(1, 2) for x in (q, k, v)]
    mask = "bottom_right" if causal else "none"
    arrays = [np.from_dlpack(x) for x in (q, k, v)]
    given = [q, k, v, *[None] * 10, None, mask, -1, -1, 0.0, 0.0, 0, 0, False, "auto", None, None]
    learnt = [x.clone().requires_grad_() for x in (q, k, v)]

    def sdpa():
        return torch.nn.functional.scaled_dot_product_attention(*bhsd, is_causal=causal)

    ways = {
        "attention, torch": (lambda: flashwok.attention(q, k, v, causal=mask), False),
        "the same, with gradients": (lambda: flashwok.attention(*learnt, causal=mask), False),
        "torch.ops": (lambda: torch.ops.flashwok.attention(*given), False),
        "sdpa, flashwok": (sdpa, True),
        "sdpa, torch": (sdpa, False),
        "attention, numpy": (lambda: flashwok.attention(*arrays, causal=mask), False),
    }
    if importlib.util.find_spec("jax"):
        import jax

        traced = [jax.numpy.asarray(x) for x in arrays]
        jitted = jax.jit(lambda q, k, v: flashwok.attention(q, k, v, causal=mask))
        ways["attention, jax"] = (lambda: flashwok.attention(*traced, causal=mask), False)
        ways["attention, jax.jit"] = (lambda: jitted(*traced).block_until_ready(), False)
    return ways


def microseconds(run):
    run()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS or calls < 3:
        run()
        calls += 1
    return (time.perf_counter() - start) / calls * 1e6


def measure(shape, order):
    import flashwok.torch

    ways = doors(shape)
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        names = list(ways)
        order.shuffle(names)
        for name in names:
            run, registered = ways[name]
            if registered:
                flashwok.torch.register()
            try:
                found[name] = min(found[name], microseconds(run))
            finally:
                if registered:
                    flashwok.torch.restore()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=pathlib.Path, help="a file of JSON to write")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    options = parser.parse_args()
    order = random.Random(1)
    record = {name: measure(SHAPES[name], order) for name in options.shapes}
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(" " * 24, *(f"{name:>9}" for name in record))
    for door in next(iter(record.values())):
        print(f"{door:24}", *(f"{cells[door]:9.1f}" for cells in record.values()))


if __name__ == "__main__":
    main()
