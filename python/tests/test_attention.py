"""flashwok.attention and its companions on numpy arrays."""

import ast
import doctest
import importlib
import multiprocessing
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import flashwok
from conftest import exact

ALGORITHMS = ("auto", "standard", "v1", "v2", "v3")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("causal", ["none", "bottom_right", "top_left"])
def test_equals_float64(qkv, algorithm, causal):
    q, k, v = qkv()
    o, lse = flashwok.attention(q, k, v, causal=causal, algorithm=algorithm, return_lse=True)
    want, want_lse = exact(q, k, v, causal=causal)
    assert o.dtype == lse.dtype == np.float32
    np.testing.assert_allclose(o, want, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, atol=5e-6)


def test_every_option_of_the_scores(qkv, rng):
    q, k, v = qkv(head_dim_v=16)
    bias = rng.standard_normal((1, 4, 33, 47), dtype=np.float32)
    mask = rng.random((2, 1, 33, 47)) > 0.3
    mask[1, :, 5] = False
    options = {"window": (20, 3), "softcap": 2.0}
    o, lse = flashwok.attention(
        q, k, v, softmax_scale=0.7, bias=bias, mask=mask, return_lse=True, **options
    )
    want, want_lse = exact(q, k, v, scale=0.7, bias=bias, mask=mask, **options)
    np.testing.assert_allclose(o, want, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, atol=5e-6)
    assert (o[1, 5] == 0).all()
    assert np.isneginf(lse[1, :, 5]).all()


def test_alibi_lengths_and_descales(qkv):
    q, k, v = qkv()
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    distance = np.abs(np.arange(33)[:, None] + 47 - 33 - np.arange(47))
    o = flashwok.attention(q, k, v, alibi_slopes=slopes)
    want, _ = exact(q, k, v, bias=-slopes[:, None, None] * distance)
    np.testing.assert_allclose(o, want, atol=2e-6)

    lengths = np.array([47, 20], np.int32)
    o = flashwok.attention(q, k, v, seqused_k=lengths)
    np.testing.assert_allclose(o[1:], exact(q[1:], k[1:, :20], v[1:, :20])[0], atol=2e-6)


def test_varlen_and_pages(qkv):
    q, k, v = qkv(batch=1, seqlen_q=40, seqlen_k=40)
    cu = np.array([0, 7, 7, 40], np.int32)
    o, lse = flashwok.attention(
        q[0], k[0], v[0], cu_seqlens_q=cu, cu_seqlens_k=cu, causal="bottom_right", return_lse=True
    )
    assert lse.shape == (4, 40)
    for first, last in ((0, 7), (7, 40)):
        part = [x[:, first:last] for x in (q, k, v)]
        np.testing.assert_allclose(
            o[None, first:last], exact(*part, causal="bottom_right")[0], atol=2e-6
        )

    pages = [x.reshape(5, 8, *x.shape[2:])[::-1] for x in (k, v)]
    table = np.array([[4, 3, 2, 1, 0]], np.int32)
    pages = [np.ascontiguousarray(x) for x in pages]
    o = flashwok.attention(q, *pages, page_table=table, seqused_k=np.array([40], np.int32))
    np.testing.assert_allclose(o, exact(q, k, v)[0], atol=2e-6)


def test_any_strides(qkv):
    q, k, v = qkv()
    bhsd = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v)]
    assert not bhsd[0].flags.c_contiguous
    np.testing.assert_array_equal(flashwok.attention(*bhsd), flashwok.attention(q, k, v))
    shared = [np.broadcast_to(x[:1], (2, *x.shape[1:])) for x in (k, v)]
    o = flashwok.attention(q, *shared)
    np.testing.assert_allclose(o, exact(q, *shared)[0], atol=2e-6)
    with pytest.raises(ValueError, match=r"q: .*stride"):
        flashwok.attention(q[..., ::2], k[..., ::2], v)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gradients(qkv, rng, algorithm):
    q, k, v = qkv(seqlen_q=9, seqlen_k=11, head_dim=8)
    bias = rng.standard_normal((1, 4, 9, 11), dtype=np.float32)
    options = {"causal": "bottom_right", "softcap": 3.0, "bias": bias}
    dout = rng.standard_normal(q.shape)
    dlse = rng.standard_normal((2, 4, 9))
    o, lse = flashwok.attention(q, k, v, return_lse=True, algorithm=algorithm, **options)
    got = flashwok.attention_backward(
        dout.astype(np.float32),
        q,
        k,
        v,
        o,
        lse,
        dlse=dlse.astype(np.float32),
        algorithm=algorithm,
        return_dbias=True,
        **options,
    )

    def loss(q, k, v, bias):
        o, lse = exact(q, k, v, **(options | {"bias": bias}))
        return (o * dout).sum() + (lse * dlse).sum()

    # Along random directions, in float64.
    inputs = [x.astype(np.float64) for x in (q, k, v, bias)]
    for n, gradient in enumerate(got):
        direction = rng.standard_normal(gradient.shape)
        ends = []
        for step in (1e-5, -1e-5):
            moved = list(inputs)
            moved[n] = inputs[n] + step * direction
            ends.append(loss(*moved))
        want = (ends[0] - ends[1]) / 2e-5
        assert (gradient * direction).sum() == pytest.approx(want, rel=1e-4, abs=1e-3)


def test_halves_merge(qkv):
    q, k, v = qkv(heads_kv=4)
    parts = [
        flashwok.attention(q, k[:, s], v[:, s], return_lse=True)
        for s in (slice(20), slice(20, None))
    ]
    o, lse = flashwok.merge_states(*parts[0], *parts[1])
    want, want_lse = exact(q, k, v)
    np.testing.assert_allclose(o, want, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, atol=5e-6)


def test_float16(qkv):
    q, k, v = (x.astype(np.float16) for x in qkv())
    o = flashwok.attention(q, k, v)
    assert o.dtype == np.float16
    np.testing.assert_allclose(o, exact(q, k, v)[0], atol=2e-3)
    assert flashwok.attention(q, k, v, out_dtype="float32").dtype == np.float32


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_types_of_ml_dtypes(qkv, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(getattr(ml_dtypes, name)) for x in qkv())
    o = flashwok.attention(q, k, v)
    assert o.dtype == ml_dtypes.bfloat16
    error = 0.02 if name == "bfloat16" else 0.1
    np.testing.assert_allclose(o.astype(np.float32), exact(q, k, v)[0], atol=error)
    if name != "bfloat16":
        with pytest.raises(NotImplementedError, match="cpu_forward_v1"):
            flashwok.attention(q, k, v, algorithm="v1")


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_quantized(qkv, name):
    pytest.importorskip("ml_dtypes")
    arrays = [x * scale for x, scale in zip(qkv(), (30, 0.01, 5), strict=True)]
    parts = [flashwok.quantize_fp8(x, num_heads_kv=2, dtype=name) for x in arrays]
    wide = []
    for x, (values, descale) in zip(arrays, parts, strict=True):
        assert values.dtype.name == name
        factors = np.repeat(descale, x.shape[2] // 2, axis=1)[:, None, :, None]
        wide.append(values.astype(np.float32) * factors)
        largest = np.abs(x).max()
        np.testing.assert_allclose(wide[-1], x, rtol=0.13, atol=largest * 1e-3)
        assert np.abs(wide[-1]).max() == pytest.approx(largest, rel=1e-6)
    names = ("q_descale", "k_descale", "v_descale")
    descales = dict(zip(names, (descale for _, descale in parts), strict=True))
    o = flashwok.attention(*(values for values, _ in parts), out_dtype="float32", **descales)
    np.testing.assert_allclose(o, exact(*wide)[0], atol=1e-4)
    with pytest.raises(ValueError, match="descale: num_heads_kv is 3, must divide"):
        flashwok.quantize_fp8(arrays[0], num_heads_kv=3)
    with pytest.raises(ValueError, match="x: rank is 3"):
        flashwok.quantize_fp8(arrays[0][0])


def test_dropout_needs_its_seed_and_keeps_to_it(qkv):
    q, k, v = qkv()
    with pytest.raises(ValueError, match="dropout_seed: is None"):
        flashwok.attention(q, k, v, dropout_p=0.5)
    one, same, other = (
        flashwok.attention(q, k, v, dropout_p=0.5, dropout_seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_empty_and_keyless(qkv):
    q, k, v = qkv(seqlen_q=0)
    assert flashwok.attention(q, k, v).shape == q.shape
    q, k, v = qkv(seqlen_k=0)
    o, lse = flashwok.attention(q, k, v, return_lse=True)
    assert (o == 0).all()
    assert np.isneginf(lse).all()


def test_errors_are_of_fitting_types(qkv):
    q, k, v = qkv()
    with pytest.raises(ValueError, match="num_heads"):
        flashwok.attention(q, k[:, :, :1].repeat(3, 2), v[:, :, :1].repeat(3, 2))
    with pytest.raises(ValueError, match="causal: is 'left', must be one of none, bottom_right"):
        flashwok.attention(q, k, v, causal="left")
    with pytest.raises(ValueError, match="softcap: is -1"):
        flashwok.attention(q, k, v, softcap=-1.0)
    with pytest.raises(TypeError, match="softcap: is 'x'"):
        flashwok.attention(q, k, v, softcap="x")
    with pytest.raises(TypeError, match="q: its dtype is float64"):
        flashwok.attention(q.astype(np.float64), k, v)
    with pytest.raises(TypeError, match="k: is a list"):
        flashwok.attention(q, k.tolist(), v)
    with pytest.raises(ValueError, match="q: has 5 axes"):
        flashwok.attention(q[None], k, v)
    with pytest.raises(TypeError, match="tile: is no argument"):
        flashwok.plan(q, k, v, tile=3)
    with pytest.raises(MemoryError, match="workspace_limit"):
        flashwok.trace(q, k, v, algorithm="standard", workspace_limit=1)


def test_read_only_inputs_are_read_and_not_written(qkv):
    q, k, v = qkv()
    for x in (q, k, v):
        x.flags.writeable = False
    o = flashwok.attention(q, k, v)
    np.testing.assert_allclose(o, exact(q, k, v)[0], atol=2e-6)
    view = flashwok._arrays.view(q, "o")
    with pytest.raises(ValueError, match="o: is read-only"):
        flashwok._core.forward({}, {}, {"o": view}, {})


class Foreign:
    """An array of a library of its own, that speaks an old DLPack or a new one."""

    def __init__(self, array, versioned):
        self.array, self.versioned, self.asked = array, versioned, []

    def __array_namespace__(self):
        return self

    def __getattr__(self, name):
        return getattr(self.array, name)

    def empty(self, shape, dtype, device):
        assert device == "cpu"
        return np.empty(shape, dtype)

    float32, device = np.float32, "cpu"

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **words):
        self.asked.append(set(words))
        if not self.versioned and words.keys() - {"stream"}:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**words)


@pytest.mark.parametrize("versioned", [True, False])
def test_any_dlpack(qkv, versioned):
    arrays = [Foreign(x, versioned) for x in qkv()]
    o = flashwok.attention(*arrays)
    np.testing.assert_array_equal(o, flashwok.attention(*(x.array for x in arrays)))
    assert arrays[0].asked[0] == {"stream", "max_version", "copy"}
    assert len(arrays[0].asked) == (1 if versioned else 2)


def test_the_array_api(qkv):
    xp = pytest.importorskip("array_api_strict")
    q, k, v = qkv()
    o = flashwok.attention(*(xp.asarray(x) for x in (q, k, v)))
    assert type(o).__module__.startswith("array_api_strict")
    np.testing.assert_array_equal(np.asarray(o), flashwok.attention(q, k, v))


def test_plan_trace_compare_info(qkv):
    q, k, v = qkv(seqlen_q=200, seqlen_k=200)
    plan = flashwok.plan(q, k, v, algorithm="v2", tile_q=32, num_threads=1)
    assert (plan.ok, plan.kernel, plan.tile_q, plan.num_threads) == (True, "cpu_forward_v2", 32, 1)
    assert flashwok.plan(q, k, v, backward=True).kernel.startswith("cpu_backward")
    refused = flashwok.plan(q, k, v, kernel="cpu_forward_v9")
    assert not refused.ok
    assert "cpu_forward_v9" in refused.refused

    trace = flashwok.trace(q, k, v, algorithm="v2", causal="bottom_right", tile_q=32, tile_kv=32)
    assert trace.bytes_of("store") == {"O": q.nbytes, "lse": 2 * 4 * 200 * 4}
    kinds = np.bincount(trace.events["kind"], minlength=len(trace.kinds))
    assert kinds[trace.kinds.index("skip")] > 0
    assert (np.diff(trace.events["t0"]) >= 0).all()
    backward = flashwok.trace(q, k, v, dout=np.ones_like(q))
    assert backward.plan.kernel.startswith("cpu_backward")
    assert set(backward.bytes_of("store")) >= {"dQ", "dK", "dV"}

    comparison = flashwok.compare(q, k, v, causal="bottom_right", repeats=1)
    for row in comparison.rows:
        assert not row.refused
        assert row.bytes_read + row.bytes_written == row.model_bytes
        assert 0 < row.max_error < 2e-6
        assert row.seconds > 0
    assert comparison["v1"].bytes_written > comparison["v2"].bytes_written
    assert "standard" in str(comparison)

    info = flashwok.info()
    assert info["version"] == flashwok.__version__
    assert info["cpu_targets"]
    assert info["cuda_devices"] or info["cuda_absence"]
    assert {kernel["algorithm"] for kernel in info["kernels"]} == {"standard", "v1", "v2", "v3"}
    pickle.loads(pickle.dumps(comparison))


def test_threads_run_beside_each_other(qkv):
    """The lock of Python is free during a call: another thread counts on meanwhile."""
    q, k, v = qkv(batch=1, seqlen_q=3000, seqlen_k=3000, heads=8, heads_kv=8, head_dim=64)
    running, counted = threading.Event(), []

    def count():
        running.wait()
        n = 0
        while running.is_set():
            n += 1
        counted.append(n)

    other = threading.Thread(target=count)
    other.start()
    running.set()
    flashwok.attention(q, k, v, num_threads=1)
    running.clear()
    other.join()
    assert counted[0] > 1000


def _in_child(arrays, results):
    results.put(flashwok.attention(*arrays, num_threads=2))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_child_processes(qkv, method):
    arrays = qkv(seqlen_q=300, seqlen_k=300)
    want = flashwok.attention(*arrays, num_threads=2)  # threads have run in this process
    context = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=_in_child, args=(arrays, results))
    child.start()
    np.testing.assert_array_equal(results.get(timeout=60), want)
    child.join(timeout=60)
    assert child.exitcode == 0


@pytest.mark.parametrize("name", ["_attention", "_inspect"])
def test_the_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"flashwok.{name}")).failed == 0


@pytest.mark.parametrize("name", ["python.md", "zh/python.md"])
def test_the_examples_in_the_documents(name):
    document = Path(__file__).parents[2] / "docs" / name
    done = doctest.testfile(str(document), module_relative=False)
    assert done.failed == 0
    assert done.attempted > 4


def test_the_stub_names_what_is_there():
    stub = Path(flashwok.__file__).parent / "_core.pyi"
    said = {}
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            said[node.name] = [argument.arg for argument in node.args.args]
        elif isinstance(node, ast.AnnAssign):
            said[node.target.id] = None
        elif isinstance(node, ast.ClassDef) and node.name == "Array":
            said[node.name] = None
    core = flashwok._core
    assert set(said) == {name for name in dir(core) if not name.startswith("_")}
    for name, arguments in said.items():
        if arguments is None:
            continue
        signature = getattr(core, name).__nb_signature__[0][0]
        inside = signature[signature.index("(") + 1 :]
        for argument in arguments:
            assert f"{argument}:" in inside or name == "jax_handler", signature


def test_import_needs_no_framework():
    program = (
        "import sys, flashwok; flashwok.info();"
        "found = {'torch', 'jax', 'transformers', 'numpy'} & set(sys.modules);"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
