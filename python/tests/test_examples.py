"""The programs under examples/python."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_flash_attention_demo():
    demo = load("flash_attention_demo")
    assert (demo.N, demo.D, demo.BLOCK, demo.SEED) == (128, 16, 32, 42)
    program = [sys.executable, str(EXAMPLES / "flash_attention_demo.py")]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert float(lines[-1].split()[2]) < 1e-6
    # Its V1 never needs all the scores: other blocks, the same result.
    q, k, v = np.random.default_rng(0).standard_normal((3, 96, 8))
    want = demo.standard_attention(q, k, v)
    for block in (8, 32, 96):
        np.testing.assert_allclose(demo.flash_attention_v1(q, k, v, block), want, atol=1e-12)


def test_train_tiny_gpt(tmp_path, request):
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine its threads wait for each other in vain
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    record = tmp_path / "curves.json"
    words = ["--steps", "20", "--batch", "4", "--context", "64", "--quiet", "--json", str(record)]
    curves, apart = load("train_tiny_gpt").main(words)
    ours, theirs = curves["flashwok"], curves["sdpa"]
    assert len(ours) == len(theirs) == 20
    assert ours[0] == pytest.approx(theirs[0], abs=1e-5)
    assert ours[-1] < 0.8 * ours[0]  # it learns
    assert apart < 0.02
    assert record.exists()


def test_evaluate_tiny_gpt(tmp_path):
    """What a device without a backward pass does: one model, trained with PyTorch's attention."""
    pytest.importorskip("torch")
    words = ["--steps", "12", "--batch", "4", "--context", "64", "--evaluate", "--points", "3"]
    words += ["--evaluations", "2", "--quiet", "--json", str(tmp_path / "curves.json")]
    curves, apart = load("train_tiny_gpt").main(words)
    assert [len(losses) for losses in curves.values()] == [4, 4]
    assert apart < 1e-4  # the same weights
    assert curves["flashwok"][-1] < 0.9 * curves["flashwok"][0]


def test_the_command_line_is_the_programs():
    def said(*words):
        return subprocess.run(
            [sys.executable, "-m", "flashwok", *words], capture_output=True, text=True, check=False
        )

    version = said("--version")
    assert version.returncode == 0
    assert version.stdout.split()
    run = said("compare", "--shape", "1,64,64,2,2,16", "--json")
    assert run.returncode == 0
    refused = said("compare", "--shape", "1,64,64,3,2,16")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
