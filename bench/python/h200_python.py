#!/usr/bin/env python3
"""Tests and times the installed Python package on a GPU, and writes the record (fw-python/1).

  bench/python/h200_python.py --output h200_python.json
  ... --only tests,overhead --tests python/tests --steps 100

tests: those that use a GPU. sdpa: F.scaled_dot_product_attention on our kernels and on
PyTorch's own, and our operator, in drawn orders. overhead: what a call costs before its kernel
runs. train: examples/python/train_tiny_gpt.py, whose picture lies beside the record. The record is
written after every part. Needs torch and triton. Exit code 1 if a test failed or a result was wrong.
"""

import argparse
import contextlib
import datetime
import functools
import importlib.util
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PARTS = ("tests", "sdpa", "overhead", "train")
SHAPES = [  # batch, seqlen, heads, head_dim, causal
    (32, 512, 16, 128, True),
    (4, 4096, 16, 128, False),
    (4, 4096, 16, 128, True),
    (1, 16384, 16, 128, True),
    (4, 4096, 32, 64, True),
    (4, 4096, 8, 256, True),
]
SMALL = [(1, 128, 8, 64, True), (8, 1, 32, 128, False)]
ROUNDS, CALLS = 3, 300
TRAIN = "--device cuda --dtype bfloat16 --layers 6 --width 384 --heads 6 --context 512 --batch 64"


def run_tests(paths, seconds):
    """{passed, failed, skipped, failures, skips} of pytest, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        # JAX would take most of the GPU's memory at once.
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run([*command, f"--junitxml={report}", *paths], cwd=ROOT, check=False,
                              env=environment, timeout=seconds)  # fmt: skip
        found = {"exit_code": done.returncode, "passed": 0, "failures": {}, "skips": {}}
        cases = xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else ()
        for case in cases:
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            bad = case.find("failure") if case.find("error") is None else case.find("error")
            skip = case.find("skipped")
            if bad is not None:
                found["failures"][name] = bad.get("message", "")[:500]
            elif skip is not None:
                found["skips"][name] = skip.get("message", "")[:200]
            else:
                found["passed"] += 1
    return found | {"failed": len(found["failures"]), "skipped": len(found["skips"])}


@contextlib.contextmanager
def hooked():
    """F.scaled_dot_product_attention on our kernels."""
    import flashwok.torch

    flashwok.torch.register()
    try:
        yield
    finally:
        flashwok.torch.restore()


def doors(shape, machine):
    """Each way to the same attention: {name: (run, what must hold meanwhile)}."""
    import flashwok
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch, seqlen, heads, head_dim, causal = shape
    q, k, v = (machine.randn(batch, seqlen, heads, head_dim) for _ in range(3))
    bhsd = [x.transpose(1, 2) for x in (q, k, v)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    by_sdpa = functools.partial(sdpa, *bhsd, is_causal=causal)
    mask = "bottom_right" if causal else "none"
    plain = contextlib.nullcontext
    return {
        "flashwok.attention": (lambda: flashwok.attention(q, k, v, causal=mask), plain),
        "sdpa, flashwok": (by_sdpa, lambda: both(hooked(), sdpa_kernel(SDPBackend.FLASH_ATTENTION))),
        "sdpa, flash": (by_sdpa, lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)),
        "sdpa, cudnn": (by_sdpa, lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION)),
        "sdpa, efficient": (by_sdpa, lambda: sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)),
    }


@contextlib.contextmanager
def both(one, other):
    with one, other:
        yield


def check(ways, machine):
    """What each differs by from PyTorch's flash; those that do not run are taken out."""
    results, errors = {}, {}
    for name, (run, holds) in ways.items():
        try:
            with holds():
                o = run()
            machine.sync()
            results[name] = o if name == "flashwok.attention" else o.transpose(1, 2)
        except Exception as error:
            errors[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    for name in errors:
        del ways[name]
    want = results.get("sdpa, flash")
    found = {
        name: {} if want is None else {"difference": (o - want).abs().max().item()}
        for name, o in results.items()
    }
    return found | errors


def wrong(cells):
    """Names of what is ours and failed or differs by more than rounding."""
    return [
        name
        for name, cell in cells.items()
        if "flashwok" in name and ("error" in cell or not cell.get("difference", 0.0) <= 0.05)
    ]


def measure(shape, machine, timer, unit):
    ways = doors(shape, machine)
    cells = check(ways, machine)
    times = {name: [] for name in ways}
    order = random.Random(1)
    for _ in range(ROUNDS):
        names = list(ways)
        order.shuffle(names)
        for name in names:
            run, holds = ways[name]
            with holds():
                times[name].append(timer(run))
    for name, found in times.items():
        cells[name] |= {unit: statistics.median(found)}
    keys = ("batch", "seqlen", "num_heads", "head_dim", "causal")
    print(*shape, {name: round(cell.get(unit, -1), 3) for name, cell in cells.items()}, flush=True)
    return dict(zip(keys, shape, strict=True)) | {"ways": cells}


def microseconds(run):
    """Of a call on the CPU, while the GPU is behind."""
    import torch

    for _ in range(20):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        run()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return seconds / CALLS * 1e6


def load(path):
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(steps, svg):
    example = load("examples/python/train_tiny_gpt.py")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "curves.json"
        files = ["--json", str(path), "--svg", str(svg)]
        example.main([*TRAIN.split(), "--steps", str(steps), *files])
        return json.loads(path.read_text())


def versions():
    import importlib.metadata
    import platform

    import torch

    names = ("flashwok", "torch", "triton", "transformers", "jax", "cupy-cuda13x", "numpy")
    found = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def execute(options, machine):
    """The record, and whether something was wrong."""
    record = {
        "schema": "fw-python/1",
        "program": "bench/python/h200_python.py",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": machine.device(),
        "versions": versions(),
        "method": f"median of {ROUNDS} rounds in drawn orders; ms: as bench/h200_forward.py; us: a "
        f"call on the CPU, mean of {CALLS}; bfloat16; difference: to PyTorch's flash",
    }
    failed = []

    def save(part, value):
        record[part] = value
        options.output.write_text(json.dumps(record, indent=1) + "\n")

    if "tests" in options.only:
        save("tests", run_tests(options.tests, options.seconds))
        found = record["tests"]
        failed += found["failures"] or ["tests"] * (found["exit_code"] != 0 or not found["passed"])
    for part, shapes, timer, unit in (
        ("sdpa", SHAPES, machine.time, "ms"),
        ("overhead", SMALL, microseconds, "us"),
    ):
        if part in options.only:
            save(part, [measure(shape, machine, timer, unit) for shape in shapes])
            failed += [name for cell in record[part] for name in wrong(cell["ways"])]
    if "train" in options.only:
        save("train", train(options.steps, options.output.with_suffix(".svg")))
    return record, failed


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("h200_python.json"))
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--tests", nargs="+", default=["python/tests/test_cuda.py", "python/tests/test_vllm.py"])
    parser.add_argument("--seconds", type=float, default=240, help="that the tests may take")
    parser.add_argument("--steps", type=int, default=400, help="of the training")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT / "bench"))
    import h200_machine as machine_module

    class Here(machine_module.Machine):
        """The machine without the library that h200_forward.py loads."""

        randn = staticmethod(machine_module.randn)

        def __init__(self):
            import torch

            torch.manual_seed(1)

    _, failed = execute(options, Here())
    print("FAILED:" if failed else "all right", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
