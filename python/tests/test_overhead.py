"""The short ways of a call: where they are taken, where not, and that they come to the same."""

import contextlib
import sys
import types

import numpy as np
import pytest

import flashwok
from conftest import exact
from flashwok import _arrays


def refuse(*_):
    raise AssertionError("the long way was taken")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numpy_arrays_are_read_by_their_buffers(qkv, dtype, monkeypatch):
    q, k, v = (x.astype(dtype) for x in qkv())
    mask = np.ones((2, 4, 33, 47), bool)
    mask[..., 3:9] = False
    lengths = np.array([47, 30], np.int32)
    monkeypatch.setattr(_arrays, "view", refuse)
    o = flashwok.attention(q[:, ::2], k, v, mask=mask[:, :, ::2], seqused_k=lengths)
    mask[1, ..., 30:] = False
    want, _ = exact(q[:, ::2], k, v, mask=mask[:, :, ::2])
    np.testing.assert_allclose(o, want, atol=2e-6 if dtype is np.float32 else 2e-3)


def test_numpy_arrays_whose_buffers_say_too_little(qkv):
    q, k, v = qkv()
    with pytest.raises((BufferError, TypeError, ValueError)):
        flashwok.attention(q.astype(">f4"), k, v)
    uneven = np.zeros((33 * 2, 4 * 24 * 4 + 2), np.uint8)
    uneven = uneven[:, : 4 * 24 * 4].view(np.float32).reshape(2, 33, 4, 24)
    assert any(stride % 4 for stride in uneven.strides)
    with pytest.raises((BufferError, ValueError)):
        flashwok.attention(uneven, k, v)

    class Matrix(np.ndarray):
        pass

    o = flashwok.attention(q.view(Matrix), k, v)
    np.testing.assert_allclose(o, exact(q, k, v)[0], atol=2e-6)


def test_a_window_of_another_type_is_refused(qkv):
    with pytest.raises(TypeError, match="window: is 3, which is of another type"):
        flashwok.attention(*qkv(), window=3)


class FakeArray:
    """cupy's ndarray as far as it is made anew: without __array_namespace__."""

    def __init__(self, array, device):
        self.array, self.device = array, device
        self.shape, self.dtype = array.shape, array.dtype


class FakeDevice:
    now = None

    def __enter__(self):
        FakeDevice.now = self

    def __exit__(self, *_):
        FakeDevice.now = None


def test_results_beside_cupy_arrays(monkeypatch):
    stream = types.SimpleNamespace(ptr=7)
    cupy = types.SimpleNamespace(
        ndarray=FakeArray,
        float32=np.dtype("f4"),
        empty=lambda shape, dtype: FakeArray(np.empty(shape, dtype), FakeDevice.now),
        cuda=types.SimpleNamespace(get_current_stream=lambda: stream),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    q = FakeArray(np.zeros((1, 5, 2, 8), np.float16), FakeDevice())
    for dtype, want in ((None, "f2"), ("float32", "f4")):
        o = _arrays.empty(q, [1, 2], dtype)
        assert (o.shape, o.dtype, o.device) == ((1, 2), np.dtype(want), q.device)
    assert FakeDevice.now is None
    assert _arrays.current_stream(q) == 7
    stream.ptr = 0
    assert _arrays.current_stream(q) == 1


torch = pytest.importorskip("torch")
import flashwok.torch  # noqa: E402
from flashwok.torch import _ops  # noqa: E402


def tensors(**options):
    torch.manual_seed(1)
    return [torch.randn(2, 9, 2, 8, **options) for _ in range(3)]


@contextlib.contextmanager
def no_operator(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.ops.flashwok, "attention", refuse)
        yield


@pytest.mark.parametrize("learning", [False, True])
def test_plain_tensors_go_round_the_dispatcher(learning, monkeypatch):
    q, k, v = tensors(requires_grad=learning)
    rest = [None] * len(flashwok._call.TENSORS)
    scalars = (None, "top_left", -1, -1, 0.0, 0.0, 0, 0, False, "auto")
    by_operator = torch.ops.flashwok.attention(q, k, v, *rest, *scalars, None, None)[:2]
    with no_operator(monkeypatch):
        straight = flashwok.attention(q, k, v, causal="top_left", return_lse=True)
    for one, other in zip(straight, by_operator, strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad == learning
    if learning:
        results = [
            torch.autograd.grad(o.square().sum() + lse.sum(), (q, k, v))
            for o, lse in (straight, by_operator)
        ]
        assert all(map(torch.equal, *results))


def test_tables_of_functions_are_used_where_they_are(monkeypatch):
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no table of DLPack's functions")
    q, k, v = tensors()
    want = flashwok.attention(q, k, v)
    monkeypatch.setattr(_arrays, "view", refuse)
    assert torch.equal(flashwok.attention(q, k, v), want)


def test_modes_profilers_and_transforms_see_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    q, k, v = tensors()
    with Mode():
        flashwok.attention(q, k, v)
    assert "flashwok.attention.default" in seen
    with torch.profiler.profile() as profile:
        flashwok.attention(q, k, v)
    assert "flashwok::attention" in {event.name for event in profile.events()}
    program = make_fx(lambda *qkv: flashwok.attention(*qkv))(q, k, v)
    assert "flashwok.attention" in program.code


def test_only_plain_tensors_are_plain():
    q, k, v = tensors()
    assert _ops._is_plain((q, torch.nn.Parameter(k), None, v))
    negative = torch.complex(q, k).conj().imag
    assert negative.is_neg()
    assert not _ops._is_plain((q, k, negative))
    assert torch.equal(flashwok.attention(negative, k, v), flashwok.attention(-k, k, v))

    class Other(torch.Tensor):
        pass

    assert not _ops._is_plain((q.as_subclass(Other), k, v))
    assert not _ops._is_plain((q.to("meta"), k, v))
    with torch.autocast("cpu", torch.bfloat16):
        assert not _ops._is_plain((q, k, v))
    found = []
    torch.func.vmap(lambda x: found.append(_ops._is_plain((x, k, v))) or x)(q)
    assert found == [False]


def test_errors_come_before_those_of_making_results():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="v: has 0 axes"):
        flashwok.attention(q, k, v.sum())
    with pytest.raises(TypeError, match="softcap: is 'x'"):
        flashwok.attention(q, k, v, softcap="x")
