"""flashwok.torch: operators, gradients, compilation, scaled_dot_product_attention."""

import doctest

import numpy as np
import pytest

import flashwok
from conftest import SEED, exact

torch = pytest.importorskip("torch")
import flashwok.torch  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)


def make(batch=2, seqlen_q=33, seqlen_k=47, heads=4, heads_kv=2, head_dim=24, **options):
    shapes = ((seqlen_q, heads), (seqlen_k, heads_kv), (seqlen_k, heads_kv))
    return [torch.randn(batch, *shape, head_dim, **options) for shape in shapes]


def math(q, k, v, causal="none", bias=None, softcap=0.0):
    """(o, lse) in float64, by PyTorch's own operators and so with its gradients."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    if causal != "none":
        rows, keys = scores.shape[-2:]
        shift = keys - rows if causal == "bottom_right" else 0
        seen = torch.ones(rows, keys, dtype=torch.bool).tril(shift)
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v), scores.logsumexp(-1)


def test_tensors_in_tensors_out():
    q, k, v = make()
    o, lse = flashwok.attention(q, k, v, causal="bottom_right", return_lse=True)
    assert isinstance(o, torch.Tensor)
    want, want_lse = exact(q, k, v, causal="bottom_right")
    np.testing.assert_allclose(o, want, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, atol=5e-6)
    assert flashwok.plan(q, k, v).ok


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_types(dtype):
    q, k, v = (x.to(getattr(torch, dtype)) for x in make())
    o = flashwok.attention(q, k, v)
    assert o.dtype == (torch.float16 if dtype == "float16" else torch.bfloat16)
    want, _ = exact(*(x.float() for x in (q, k, v)))
    np.testing.assert_allclose(o.float(), want, atol=0.02)
    assert flashwok.attention(q, k, v, out_dtype="float32").dtype == torch.float32


@pytest.mark.parametrize("causal", ["none", "bottom_right", "top_left"])
def test_gradients_are_those_of_float64(causal):
    inputs = make(seqlen_q=19, seqlen_k=23)
    bias = torch.randn(1, 4, 19, 23)
    inputs = [x.requires_grad_() for x in (*inputs, bias)]
    weights, lse_weights = torch.randn(2, 19, 4, 24), torch.randn(2, 4, 19)

    def gradients(function):
        *qkv, bias = inputs
        o, lse = function(*qkv, causal=causal, bias=bias, softcap=2.0)
        loss = (o * weights).sum() + (lse * lse_weights).sum()
        return torch.autograd.grad(loss, inputs)

    ours = gradients(lambda *x, **y: flashwok.attention(*x, **y, return_lse=True))
    for got, want in zip(ours, gradients(math), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


def test_gradcheck_with_a_float64_face():
    """Finite differences of float64 attention against our gradients."""

    class Ours(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            return math(q, k, v, "bottom_right")[0]

        @staticmethod
        def backward(ctx, dout):
            narrow = [x.detach().float().requires_grad_() for x in ctx.saved_tensors]
            with torch.enable_grad():
                o = flashwok.attention(*narrow, causal="bottom_right")
            return tuple(x.double() for x in torch.autograd.grad(o, narrow, dout.float()))

    inputs = make(1, 4, 5, 2, 1, 3, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(Ours.apply, inputs, eps=1e-6, atol=1e-4, nondet_tol=0.0)


def arguments(**changes):
    q, k, v = (x.requires_grad_() for x in make(1, 9, 9, 2, 2, 8))
    bias = torch.randn(1, 2, 9, 9).requires_grad_()
    names = {"bias": bias} | {
        n: changes.pop(n) for n in list(changes) if n in flashwok._call.TENSORS
    }
    scalars = {
        "softmax_scale": None,
        "causal": "bottom_right",
        "window_left": -1,
        "window_right": -1,
        "softcap": 0.0,
        "dropout_p": 0.0,
        "dropout_offset": 0,
        "num_splits": 0,
        "deterministic": False,
        "algorithm": "auto",
        "dropout_seed": None,
        "out_dtype": None,
    } | changes
    return (q, k, v, *(names.get(n) for n in flashwok._call.TENSORS), *scalars.values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dropout_p": 0.2, "dropout_seed": 7},
        {"causal": "none", "out_dtype": torch.float32},
        {"seqused_k": torch.tensor([5], dtype=torch.int32)},
    ],
)
def test_opcheck(changes):
    torch.library.opcheck(torch.ops.flashwok.attention.default, arguments(**changes))


def test_opcheck_of_the_backward_operator():
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments()]
    o, lse, seed = torch.ops.flashwok.attention(*given)
    dout, dlse = torch.randn_like(o), torch.randn_like(lse)
    backward = (dout, dlse, o, lse, seed, *given[:-2], True)
    torch.library.opcheck(torch.ops.flashwok.attention_backward.default, backward)


def test_there_is_no_double_backward():
    q, k, v = (x.requires_grad_() for x in make())
    (dq,) = torch.autograd.grad(flashwok.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no gradient of its own"):
        dq.sum().backward()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_a_graph_break(dynamic):
    def model(q, k, v):
        o = flashwok.attention(q * 2, k, v, causal="bottom_right")
        return flashwok.torch.attention(o, k, v, window=(5, 0)).square().sum()

    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for seqlen in (16, 24) if dynamic else (16,):
        inputs = [x.requires_grad_() for x in make(2, seqlen, seqlen)]
        want = torch.autograd.grad(model(*inputs), inputs)
        got = torch.autograd.grad(compiled(*inputs), inputs)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return flashwok.attention(q, k, v, causal="top_left")

    inputs = tuple(make())
    program = torch.export.export(Model(), inputs)
    torch.testing.assert_close(program.module()(*inputs), Model()(*inputs))


def test_autocast():
    q, k, v = (x.requires_grad_() for x in make())
    with torch.autocast("cpu", torch.bfloat16):
        o = flashwok.attention(q, k, v, bias=torch.randn(1, 1, 33, 47, dtype=torch.float16))
    assert o.dtype == torch.bfloat16
    o.sum().backward()
    assert q.grad.dtype == torch.float32
    assert flashwok.attention(q, k, v).dtype == torch.float32


def test_dropout_draws_from_the_generator():
    q, k, v = (x.requires_grad_() for x in make())
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(flashwok.attention(q, k, v, dropout_p=0.3))
    torch.testing.assert_close(outputs[0], outputs[1], atol=0, rtol=0)
    assert not torch.equal(outputs[0], outputs[2])
    # The backward pass drops what the forward pass has dropped: o is linear in v.
    (dv,) = torch.autograd.grad(outputs[0].sum(), v)
    torch.testing.assert_close((dv * v).sum(), outputs[0].sum(), atol=1e-3, rtol=1e-4)


def test_errors():
    q, k, v = make()
    with pytest.raises(ValueError, match="num_threads: is 2, must be left out: torch decides"):
        flashwok.attention(q, k, v, num_threads=2)
    with pytest.raises(ValueError, match="causal"):
        flashwok.attention(q, k, v, causal="sideways")
    with pytest.raises(TypeError, match="out_dtype"):
        flashwok.attention(q, k, v, out_dtype="float99")
    with pytest.raises(TypeError, match="float64"):
        flashwok.attention(q.double(), k.double(), v.double())
    slopes = torch.rand(4, requires_grad=True)
    o = flashwok.attention(q, k, v, alibi_slopes=slopes)
    with pytest.raises(NotImplementedError, match="alibi_slopes: has no gradient"):
        o.sum().backward()


@pytest.fixture
def registered():
    flashwok.torch.register()
    yield
    flashwok.torch.restore()


def bhsd(*shape, **options):
    return [x.transpose(1, 2).requires_grad_() for x in make(*shape, **options)]


def counted(function):
    """How often the library ran meanwhile, and the result."""
    calls = []
    attend = flashwok._core.attend

    def spy(*args, **words):
        calls.append(1)
        return attend(*args, **words)

    flashwok._core.attend = spy
    try:
        return len(calls), function(), len(calls)
    finally:
        flashwok._core.attend = attend


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.rand(33, 47) > 0.2},
        {"attn_mask": torch.randn(2, 1, 33, 47)},
        {"enable_gqa": True, "is_causal": True},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sdpa(options, dtype, registered):
    heads_kv = 2 if "enable_gqa" in options else 4
    inputs = bhsd(2, 33, 47, 4, heads_kv, 24, dtype=dtype)
    if options.get("attn_mask", torch.empty(0, dtype=torch.bool)).is_floating_point():
        options = options | {"attn_mask": options["attn_mask"].to(dtype)}

    def run():
        o = F.scaled_dot_product_attention(*inputs, **options)
        return o, torch.autograd.grad(o.square().sum(), inputs)

    before, (o, gradients), after = counted(run)
    assert (before, after) == (0, 1)
    flashwok.torch.restore()
    none, (want, want_gradients), nothing = counted(run)
    assert (none, nothing) == (0, 0)
    close = {"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.15, "rtol": 0.1}
    torch.testing.assert_close(o, want, **close)
    for one, other in zip(gradients, want_gradients, strict=True):
        torch.testing.assert_close(one, other, **close)
        assert one.shape == other.shape


@pytest.mark.parametrize("lengths", [(20, 20), (20, 33)])
def test_sdpa_causal_alignments(lengths, registered):
    bias = pytest.importorskip("torch.nn.attention.bias")
    inputs = bhsd(2, *lengths, 4, 4, 24)
    rows = [x.transpose(1, 2) for x in inputs]
    for make_bias, causal in (
        (bias.causal_upper_left, "top_left"),
        (bias.causal_lower_right, "bottom_right"),
    ):
        o = F.scaled_dot_product_attention(*inputs, attn_mask=make_bias(*lengths))
        torch.testing.assert_close(
            o.transpose(1, 2).double(), math(*rows, causal)[0], atol=2e-6, rtol=0
        )
    # CUDA's operator is bottom-right; it takes any device here.
    o = flashwok.torch._sdpa._sdpa_cuda(*(x.detach() for x in inputs), is_causal=True)[0]
    torch.testing.assert_close(
        o.transpose(1, 2).double(), math(*rows, "bottom_right")[0], atol=2e-6, rtol=0
    )


def test_sdpa_cuda_kernels_on_the_cpu():
    """What PyTorch calls on CUDA, with tensors of the CPU: shapes, dropout, gradients."""
    sdpa = flashwok.torch._sdpa
    q, k, v = (x.detach() for x in bhsd(2, 20, 20, 4, 4, 24))
    o, lse, cu_q, cu_k, max_q, max_k, state, unused, _ = sdpa._sdpa_cuda(q, k, v, 0.25)
    assert o.stride() == q.stride()
    assert (cu_q, cu_k, max_q, max_k) == (None, None, 20, 20)
    dout = torch.randn_like(o)
    rest = (None, None, 20, 20, 0.25, False, state, unused)
    dq, dk, dv = sdpa._sdpa_cuda_backward(dout, q, k, v, o, lse, *rest)
    torch.testing.assert_close((dv * v).sum(), (dout * o).sum(), atol=1e-3, rtol=1e-4)
    assert dq.shape == q.shape
    assert dk.shape == k.shape
    with pytest.raises(NotImplementedError, match="return_debug_mask"):
        sdpa._sdpa_cuda(q, k, v, 0.0, False, True)


def test_sdpa_refuses_what_no_kernel_takes(registered):
    inputs = bhsd(2, 20, 20, 4, 4, 24, dtype=torch.float64)
    with pytest.raises(TypeError, match="q: its dtype is float64"):
        F.scaled_dot_product_attention(*inputs)
    inputs = bhsd(2, 20, 20, 4, 4, 24)  # with dropout PyTorch takes another backend
    assert counted(lambda: F.scaled_dot_product_attention(*inputs, dropout_p=0.5))[2] == 0


def test_sdpa_compiled(registered):
    def model(*inputs):
        return F.scaled_dot_product_attention(*inputs, is_causal=True).square().sum()

    inputs = bhsd(2, 20, 20, 4, 4, 24)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(*inputs), inputs)
    for one, other in zip(got, torch.autograd.grad(model(*inputs), inputs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("lacking", [(), ("restore",), ("restore", "current", "register")])
def test_older_registries(lacking, monkeypatch):
    """PyTorch's first ones could not take back; before them there was none."""
    for word in lacking:
        monkeypatch.delattr(torch.nn.attention, f"{word}_flash_attention_impl", raising=False)
    inputs = bhsd(2, 20, 20, 4, 4, 24)
    for _ in range(2):
        flashwok.torch.register()
        flashwok.torch.register()
        assert counted(lambda: F.scaled_dot_product_attention(*inputs))[2] == 1
        flashwok.torch.restore()
        flashwok.torch.restore()
        assert counted(lambda: F.scaled_dot_product_attention(*inputs))[2] == 0


def test_nothing_is_activated_by_itself():
    inputs = bhsd(2, 20, 20, 4, 4, 24)
    assert counted(lambda: F.scaled_dot_product_attention(*inputs))[2] == 0
    if hasattr(torch.nn.attention, "list_flash_attention_impls"):
        flashwok.torch.register(activate=False)
        assert "flashwok" in torch.nn.attention.list_flash_attention_impls()
        assert counted(lambda: F.scaled_dot_product_attention(*inputs))[2] == 0


def test_the_examples_in_docstrings():
    for module in (flashwok.torch, flashwok.torch._sdpa):
        assert doctest.testmod(module).failed == 0
