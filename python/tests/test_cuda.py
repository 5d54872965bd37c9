"""On a CUDA device: results, streams, graphs, PyTorch's own doors, and what is refused there."""

import multiprocessing

import numpy as np
import pytest

import flashwok
from conftest import SEED
from test_torch import counted, make, math

torch = pytest.importorskip("torch")
import flashwok.torch  # noqa: E402
from flashwok import flash_attn_3_interface as fa3  # noqa: E402
from flashwok import flash_attn_interface as fa2  # noqa: E402

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and flashwok.info()["cuda_devices"]),
    reason="no CUDA device, or a build without CUDA kernels",
)
F = torch.nn.functional


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)


def on_gpu(*shape, dtype=torch.bfloat16, **options):
    return make(*shape, dtype=dtype, device="cuda", **options)


def exact(inputs, causal="none"):
    o, lse = math(*(x.cpu() for x in inputs), causal)
    return o.float(), lse.float()


def close(got, want, atol=0.02):
    torch.testing.assert_close(got.float().cpu(), want, atol=atol, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", ["none", "bottom_right", "top_left"])
@pytest.mark.parametrize("algorithm", ["auto", "standard", "v1", "v2", "v3"])
def test_equals_float64(dtype, causal, algorithm):
    inputs = on_gpu(2, 200, 300, 4, 2, 64, dtype=dtype)
    plan = flashwok.plan(*inputs, causal=causal, algorithm=algorithm)
    if not plan.ok:
        with pytest.raises(NotImplementedError):
            flashwok.attention(*inputs, causal=causal, algorithm=algorithm)
        pytest.skip(plan.refused)
    assert plan.kernel.startswith("cuda")
    o, lse = flashwok.attention(*inputs, causal=causal, algorithm=algorithm, return_lse=True)
    assert o.device == inputs[0].device
    want, want_lse = exact(inputs, causal)
    close(o, want)
    close(lse, want_lse, 5e-3)


def test_the_current_stream_is_used():
    inputs = on_gpu(1, 4096, 4096, 8, 8, 128)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        doubled = [x * 2 for x in inputs]  # not ready for a long while
        o = flashwok.attention(*doubled)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(o, flashwok.attention(*(x * 2 for x in inputs)), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_merge(dtype):
    q, k, v = on_gpu(2, 200, 300, 4, 2, 64, dtype=dtype)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        parts = [
            flashwok.attention(q, k[:, s], v[:, s], return_lse=True)
            for s in (slice(130), slice(130, None))
        ]
        o, lse = flashwok.merge_states(*parts[0], *parts[1])
    torch.cuda.current_stream().wait_stream(stream)
    assert o.device == q.device
    assert o.dtype == dtype
    want, want_lse = exact((q, k, v))
    close(o, want)
    close(lse, want_lse, 5e-3)
    with pytest.raises(ValueError, match="o_b"):
        flashwok.merge_states(*parts[0], parts[1][0].cpu(), parts[1][1])


def test_in_a_graph():
    inputs = on_gpu(2, 256, 256, 4, 4, 64)
    flashwok.attention(*inputs, causal="bottom_right")  # before the capture: kernels loaded
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = flashwok.attention(*inputs, causal="bottom_right")
    for x in inputs:
        x.normal_()
    graph.replay()
    want = flashwok.attention(*inputs, causal="bottom_right")
    torch.testing.assert_close(o, want, atol=0, rtol=0)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode):
    def model(q, k, v):
        return flashwok.attention(q * 2, k, v, causal="bottom_right") + 1

    compiled = torch.compile(model, fullgraph=True, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            inputs = on_gpu(2, 256, 256, 4, 4, 64)
            torch.testing.assert_close(compiled(*inputs), model(*inputs), atol=0.02, rtol=0.02)


def test_opcheck():
    q, k, v = on_gpu(1, 64, 64, 2, 2, 64)
    rest = [None] * len(flashwok._call.TENSORS)
    scalars = (None, "bottom_right", -1, -1, 0.0, 0.0, 0, 0, False, "auto", None, None)
    utils = ("test_schema", "test_faketensor")
    operator = torch.ops.flashwok.attention.default
    torch.library.opcheck(operator, (q, k, v, *rest, *scalars), test_utils=utils)


def test_autocast():
    inputs = on_gpu(2, 64, 64, 4, 4, 64, dtype=torch.float32)
    with torch.autocast("cuda", torch.float16):
        assert flashwok.attention(*inputs).dtype == torch.float16


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.2}])
def test_sdpa(options):
    attention = pytest.importorskip("torch.nn.attention")
    inputs = [x.transpose(1, 2) for x in on_gpu(2, 256, 256, 8, 8, 64)]

    def run():
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*inputs, **options)

    want = run()
    flashwok.torch.register()
    try:
        _, o, calls = counted(run)
    finally:
        flashwok.torch.restore()
    assert calls == 1
    torch.testing.assert_close(o, want, atol=0.02, rtol=0.02)
    assert counted(run)[2] == 0


def test_the_backward_pass_is_refused_until_it_is_there():
    inputs = [x.requires_grad_() for x in on_gpu(2, 64, 64, 4, 4, 64)]
    o = flashwok.attention(*inputs)
    plan = flashwok.plan(*(x.detach() for x in inputs), backward=True)
    if plan.ok:
        o.sum().backward()
        assert inputs[0].grad.isfinite().all()
    else:
        with pytest.raises(NotImplementedError):
            o.sum().backward()


@pytest.mark.parametrize("face", [fa2, fa3])
def test_flash_attn(face):
    inputs = on_gpu(2, 100, 130, 4, 2, 60)  # a head_dim that is padded
    close(face.flash_attn_func(*inputs, causal=True), exact(inputs, "bottom_right")[0])
    q, k_cache, v_cache = on_gpu(2, 1, 128, 8, 2, 64)
    lengths = torch.tensor([17, 100], dtype=torch.int32, device="cuda")
    o = face.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths)
    for b, length in enumerate((17, 100)):
        part = (q[b : b + 1], k_cache[b : b + 1, :length], v_cache[b : b + 1, :length])
        close(o[b : b + 1], exact(part)[0])


def test_arrays_of_other_devices_are_refused():
    q, k, v = on_gpu()
    with pytest.raises((ValueError, RuntimeError)):
        flashwok.attention(q, k.cpu(), v)
    with pytest.raises(NotImplementedError, match="float32"):
        flashwok.attention(q.float(), k.float(), v.float())


def _use_cuda(messages):
    try:
        flashwok.attention(*(torch.empty(1, 64, 1, 64) for _ in range(3)))
        view = flashwok._core.Array.from_pointer(
            256, "float16", [1, 64, 1, 64], [4096, 64, 64, 1], False, messages, "q", 0
        )
        tensors = dict.fromkeys(("q", "k", "v"), view)
        flashwok._core.forward(tensors, {}, {"o": view}, {})
        messages.put("done")
    except BaseException as error:
        messages.put(f"{type(error).__name__}: {error}")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_cuda_in_a_forked_process_is_refused():
    flashwok.attention(*on_gpu(1, 64, 64, 1, 1, 64))
    context = multiprocessing.get_context("fork")
    messages = context.Queue()
    child = context.Process(target=_use_cuda, args=(messages,))
    child.start()
    message = messages.get(timeout=60)
    child.join(timeout=60)
    assert "RuntimeError: CUDA was used before this process was forked" in message


def test_cupy():
    cupy = pytest.importorskip("cupy")
    arrays = [
        cupy.asarray(np.random.default_rng(n).normal(size=(1, 64, 2, 64)), "f2") for n in (1, 2, 3)
    ]
    o = flashwok.attention(*arrays)
    assert isinstance(o, cupy.ndarray)
    want, _ = math(*(torch.from_numpy(cupy.asnumpy(x)) for x in arrays))
    np.testing.assert_allclose(cupy.asnumpy(o), want, atol=0.01)


def test_jax():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("jax has no GPU")
    q, k, v = jax.random.normal(jax.random.key(SEED % 2**31), (3, 1, 128, 2, 64), "bfloat16")
    o = jax.jit(lambda *x: flashwok.attention(*x, causal="top_left"))(q, k, v)
    want = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(o.astype("float32"), want.astype("float32"), atol=0.03)
