"""The programs under examples/python."""

import importlib.util
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "python"


def load(name, folder=EXAMPLES):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
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
    svg = tmp_path / "curves.svg"
    words += ["--evaluations", "2", "--quiet", "--svg", str(svg)]
    curves, apart = load("train_tiny_gpt").main(words)
    assert [len(losses) for losses in curves.values()] == [4, 4]
    assert apart < 1e-4  # the same weights
    assert curves["flashwok"][-1] < 0.9 * curves["flashwok"][0]
    lines = xml.etree.ElementTree.parse(svg).iterfind("{*}polyline")
    assert [len(line.get("points").split()) for line in lines] == [4, 4]


def test_the_record_of_a_gpu_counts_its_tests(tmp_path):
    program = load("h200_python", ROOT / "bench" / "python")
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.fixture\ndef broken(): raise ValueError('gone')\n"
        "def test_broken(broken): pass\n"
        "def test_skipped(): pytest.skip('no such kernel')\n"
    )
    found = program.run_tests([str(tests)], 60)
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 2, 1)
    assert "1 == 2" in found["failures"]["test_some::test_bad"]
    assert "gone" in found["failures"]["test_some::test_broken"]
    assert found["skips"] == {"test_some::test_skipped": "no such kernel"}
    cells = {"sdpa, flashwok": {"difference": 0.5}, "flashwok.attention": {"difference": 0.001}}
    assert program.wrong(cells | {"sdpa, flash": {"error": "x"}}) == ["sdpa, flashwok"]


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
