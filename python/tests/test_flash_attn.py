"""The faces of flash-attn 2 and 3: names, order and defaults, and what they compute."""

import doctest
import inspect

import pytest

from conftest import SEED
from test_torch import make, math

torch = pytest.importorskip("torch")
from flashwok import flash_attn_3_interface as fa3  # noqa: E402
from flashwok import flash_attn_interface as fa2  # noqa: E402

FA2 = {
    "flash_attn_func": "q k v dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) "
    "softcap=0.0 alibi_slopes=None deterministic=False return_attn_probs=False",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
    "dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "alibi_slopes=None deterministic=False return_attn_probs=False block_table=None",
    "flash_attn_qkvpacked_func": "qkv dropout_p=0.0 softmax_scale=None causal=False "
    "window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False "
    "return_attn_probs=False",
    "flash_attn_kvpacked_func": "q kv dropout_p=0.0 softmax_scale=None causal=False "
    "window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False "
    "return_attn_probs=False",
    "flash_attn_varlen_qkvpacked_func": "qkv cu_seqlens max_seqlen dropout_p=0.0 "
    "softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None "
    "deterministic=False return_attn_probs=False",
    "flash_attn_varlen_kvpacked_func": "q kv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
    "dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "alibi_slopes=None deterministic=False return_attn_probs=False",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None "
    "cache_seqlens=None cache_batch_idx=None cache_leftpad=None block_table=None "
    "softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 rotary_interleaved=True "
    "alibi_slopes=None num_splits=0 return_softmax_lse=False",
}
FA3 = {
    "flash_attn_func": "q k v softmax_scale=None causal=False qv=None q_descale=None "
    "k_descale=None v_descale=None window_size=(-1,-1) attention_chunk=0 softcap=0.0 num_splits=1 "
    "pack_gqa=None deterministic=False sm_margin=0 return_attn_probs=False",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
    "seqused_q=None seqused_k=None softmax_scale=None causal=False qv=None q_descale=None "
    "k_descale=None v_descale=None window_size=(-1,-1) attention_chunk=0 softcap=0.0 num_splits=1 "
    "pack_gqa=None deterministic=False sm_margin=0 return_attn_probs=False",
    "flash_attn_qkvpacked_func": "qkv softmax_scale=None causal=False q_descale=None "
    "k_descale=None v_descale=None window_size=(-1,-1) attention_chunk=0 softcap=0.0 "
    "deterministic=False num_heads_q=None sm_margin=0 return_attn_probs=False",
    "flash_attn_combine": "out_partial lse_partial out=None out_dtype=None",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None qv=None rotary_cos=None "
    "rotary_sin=None cache_seqlens=None cache_batch_idx=None cache_leftpad=None page_table=None "
    "cu_seqlens_q=None cu_seqlens_k_new=None max_seqlen_q=None rotary_seqlens=None q_descale=None "
    "k_descale=None v_descale=None softmax_scale=None causal=False window_size=(-1,-1) "
    "attention_chunk=0 softcap=0.0 rotary_interleaved=True scheduler_metadata=None num_splits=0 "
    "pack_gqa=None sm_margin=0 return_softmax_lse=False",
}
EACH = [(fa2, name) for name in FA2] + [(fa3, name) for name in FA3]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)


@pytest.mark.parametrize(("face", "name"), EACH)
def test_signatures(face, name):
    said = [
        p.name if p.default is p.empty else f"{p.name}={p.default}".replace(" ", "")
        for p in inspect.signature(getattr(face, name)).parameters.values()
    ]
    assert " ".join(said) == (FA2 if face is fa2 else FA3)[name]
    assert set(face.__all__) == set(FA2 if face is fa2 else FA3)


def close(got, want, atol=2e-6):
    torch.testing.assert_close(got.double(), want.double(), atol=atol, rtol=0)


@pytest.mark.parametrize("face", [fa2, fa3])
def test_causal_is_bottom_right_with_gradients(face):
    inputs = [x.requires_grad_() for x in make(2, 20, 30)]
    result = face.flash_attn_func(*inputs, causal=True, return_attn_probs=True)
    o, lse = result[:2]
    assert result[2:] == ((None,) if face is fa2 else ())
    want, want_lse = math(*inputs, "bottom_right")
    close(o, want)
    close(lse, want_lse, 5e-6)
    got = torch.autograd.grad(o.square().sum(), inputs)
    for one, other in zip(got, torch.autograd.grad(want.square().sum(), inputs), strict=True):
        close(one, other, 5e-5)


def test_options_of_two():
    q, k, v = make(2, 20, 30)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    distance = (torch.arange(20)[:, None] + 10 - torch.arange(30)).abs()
    bias = -slopes[:, None, None] * distance
    outside = ((torch.arange(20)[:, None] + 10 - torch.arange(30)) > 5) | (
        (torch.arange(30) - torch.arange(20)[:, None] - 10) > 2
    )
    o = fa2.flash_attn_func(q, k, v, 0.0, 0.3, False, (5, 2), 1.5, slopes, True)
    scaled = q * (0.3 * q.shape[-1] ** 0.5)
    close(o, math(scaled, k, v, bias=bias.masked_fill(outside, -torch.inf), softcap=1.5)[0])


def test_packed_forms():
    qkv = torch.randn(2, 20, 3, 4, 24)
    q, k, v = qkv.unbind(2)
    want = fa2.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(fa2.flash_attn_qkvpacked_func(qkv, causal=True), want)
    assert torch.equal(fa2.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), want)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(qkv, causal=True), want)
    wide = torch.cat((q, k[:, :, :2], v[:, :, :2]), 2)
    close(
        fa3.flash_attn_qkvpacked_func(wide, causal=True, num_heads_q=4),
        fa2.flash_attn_func(q, k[:, :, :2], v[:, :, :2], causal=True),
        0,
    )


@pytest.mark.parametrize("face", [fa2, fa3])
def test_varlen(face):
    lengths = torch.tensor([0, 7, 7, 20], dtype=torch.int32)
    q, k, v = (x[0] for x in make(1, 20, 20, 4, 4))
    both = (lengths, lengths)
    o, lse = face.flash_attn_varlen_func(
        q, k, v, *both, 13, 13, causal=True, return_attn_probs=True
    )[:2]
    for first, last in ((0, 7), (7, 20)):
        part = [x[None, first:last] for x in (q, k, v)]
        want, want_lse = math(*part, "bottom_right")
        close(o[None, first:last], want)
        close(lse[None, :, first:last], want_lse, 5e-6)
    with pytest.raises(ValueError, match="max_seqlen_k: is 5, must be at least 13"):
        face.flash_attn_varlen_func(q, k, v, *both, 13, 5)
    if face is fa2:
        qkv = torch.stack((q, k, v), 1)
        packed = fa2.flash_attn_varlen_qkvpacked_func(qkv, lengths, 13, causal=True)
        assert torch.equal(packed, o)
        packed = fa2.flash_attn_varlen_kvpacked_func(q, qkv[:, 1:], *both, 13, 13, causal=True)
        assert torch.equal(packed, o)


def rotated(x, cos, sin, positions, interleaved):
    """By complex numbers."""
    turns = torch.complex(cos, sin)[positions][:, :, None]
    half = cos.shape[-1]
    head = x[..., : 2 * half]
    pairs = head.unflatten(-1, (half, 2)) if interleaved else head.unflatten(-1, (2, half)).mT
    out = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns)
    out = out.flatten(-2) if interleaved else out.mT.flatten(-2)
    return torch.cat((out, x[..., 2 * half :]), -1)


@pytest.mark.parametrize("face", [fa2, fa3])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("kind", ["plain", "paged", "rows"])
def test_kvcache(face, interleaved, kind):
    cache = make(3, 1, 32)[1:]
    q, k, v = make(2, 4, 4)
    seqlens = torch.tensor([9, 20], dtype=torch.int32)
    angles = torch.rand(40, 6) * 6
    cos, sin = angles.cos(), angles.sin()
    words, rows = {}, torch.tensor([0, 1])
    if kind == "rows":
        rows = torch.tensor([2, 0])
        words["cache_batch_idx"] = rows.to(torch.int32)
    stored = cache
    if kind == "paged":
        order = torch.randperm(12)
        stored = []
        for x in cache:
            pages = torch.empty(12, 8, *x.shape[2:])
            pages[order] = x.reshape(12, 8, *x.shape[2:])
            stored.append(pages)
        table = order.reshape(3, 4)[:2].to(torch.int32)
        words["block_table" if face is fa2 else "page_table"] = table
    else:
        stored = [x[: 2 if kind == "plain" else 3].clone() for x in cache]
    o, lse = face.flash_attn_with_kvcache(
        q,
        *stored,
        k,
        v,
        rotary_cos=cos,
        rotary_sin=sin,
        cache_seqlens=seqlens,
        causal=True,
        rotary_interleaved=interleaved,
        return_softmax_lse=True,
        **words,
    )
    for b in range(2):
        length = int(seqlens[b])
        positions = torch.arange(length, length + 4)[None]
        turned = [rotated(x[b : b + 1], cos, sin, positions, interleaved) for x in (q, k)]
        keys = torch.cat((cache[0][rows[b], :length][None], turned[1]), 1)
        values = torch.cat((cache[1][rows[b], :length][None], v[b : b + 1]), 1)
        want, want_lse = math(turned[0], keys, values, "bottom_right")
        close(o[b : b + 1], want, 5e-6)
        close(lse[b : b + 1], want_lse, 1e-5)
        if kind == "plain":
            torch.testing.assert_close(stored[1][b, length : length + 4], v[b])


@pytest.mark.parametrize("face", [fa2, fa3])
def test_decoding_with_one_length(face):
    q, k_cache, v_cache = make(2, 1, 32)
    want, _ = math(q, k_cache[:, :17], v_cache[:, :17])
    close(face.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=17), want)
    close(face.flash_attn_with_kvcache(q, k_cache, v_cache), math(q, k_cache, v_cache)[0])


def test_float8_with_descales():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in make())
    descales = [torch.rand(2, 2) + 0.5 for _ in range(3)]
    o = fa3.flash_attn_func(q, k, v, None, False, None, *descales)
    assert o.dtype == torch.bfloat16
    factors = [x[:, None, :, None] for x in descales]
    wide = [
        q.float() * factors[0].repeat_interleave(2, 2),
        k.float() * factors[1],
        v.float() * factors[2],
    ]
    close(o, math(*wide)[0], 0.03)


def test_combine():
    q, k, v = make(2, 9, 20, 4, 4)
    parts = [
        fa3.flash_attn_func(q, k[:, s], v[:, s], return_attn_probs=True)
        for s in (slice(0, 5), slice(5, 13), slice(13, 20))
    ]
    outs = torch.stack([o for o, _ in parts] + [torch.full_like(parts[0][0], torch.nan)])
    lses = torch.stack([lse.mT for _, lse in parts] + [torch.full((2, 9, 4), -torch.inf)])
    o, lse = fa3.flash_attn_combine(outs, lses)
    want, want_lse = math(q, k, v)
    close(o, want)
    close(lse.mT, want_lse, 5e-6)


def test_what_is_not_taken_is_refused_by_name():
    q, k, v = make()
    lengths = torch.tensor([0, 33], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="return_attn_probs"):
        fa2.flash_attn_func(q, k, v, 0.1, return_attn_probs=True)
    with pytest.raises(NotImplementedError, match="block_table: is given, must be None"):
        fa2.flash_attn_varlen_func(q[0], q[0], q[0], *[lengths] * 2, 33, 33, block_table=lengths)
    with pytest.raises(NotImplementedError, match="cache_leftpad"):
        fa2.flash_attn_with_kvcache(q, k, v, cache_leftpad=lengths)
    for name, value in (
        ("qv", q),
        ("attention_chunk", 4),
        ("pack_gqa", True),
        ("pack_gqa", False),
        ("sm_margin", 8),
    ):
        with pytest.raises(NotImplementedError, match=name):
            fa3.flash_attn_func(q, k, v, **{name: value})
        with pytest.raises(NotImplementedError, match=name):
            fa3.flash_attn_with_kvcache(q, k, v, **{name: value})
    for name in ("cu_seqlens_q", "cu_seqlens_k_new", "max_seqlen_q", "rotary_seqlens"):
        with pytest.raises(NotImplementedError, match=name):
            fa3.flash_attn_with_kvcache(q, k, v, **{name: 5})
    with pytest.raises(NotImplementedError, match="seqused_q"):
        fa3.flash_attn_varlen_func(q[0], q[0], q[0], *[lengths] * 2, 33, 33, seqused_q=lengths)
    with pytest.raises(ValueError, match="cache_seqlens: is None"):
        fa2.flash_attn_with_kvcache(q, k, v, q, q)


# A value of each option that is not its default.
OPTIONS = {
    "dropout_p": 0.25,
    "softmax_scale": 0.7,
    "causal": True,
    "window_size": (3, 1),
    "softcap": 2.0,
    "alibi_slopes": torch.tensor([0.5, 0.25]),
    "deterministic": True,
    "return_attn_probs": True,
    "return_softmax_lse": True,
    "num_splits": 3,
    "num_heads_q": 1,
    "attention_chunk": 4,
    "pack_gqa": True,
    "sm_margin": 2,
    "rotary_interleaved": False,
    "cache_seqlens": 5,
    "out_dtype": torch.float64,
}
TENSORS = ("qv", "block_table", "page_table", "seqused_q", "seqused_k", "q_descale", "k_descale")
TENSORS += ("v_descale", "cache_leftpad", "cache_batch_idx", "cu_seqlens_k_new", "rotary_seqlens")
TENSORS += ("scheduler_metadata",)
# Bounds, which are checked; and what only has a meaning together with others: test_kvcache.
APART = {
    "max_seqlen_q",
    "max_seqlen_k",
    "k",
    "v",
    "rotary_cos",
    "rotary_sin",
    "cu_seqlens_q",
    "out",
}
NEEDED = {
    "qkv": torch.randn(1, 6, 3, 2, 8),
    "kv": torch.randn(1, 6, 2, 2, 8),
    "out_partial": torch.randn(2, 1, 6, 2, 8),
    "lse_partial": torch.randn(2, 1, 6, 2),
    "cu_seqlens": torch.tensor([0, 6], dtype=torch.int32),
    "max_seqlen": 6,
    "k_cache": torch.randn(1, 20, 2, 8),
    "v_cache": torch.randn(1, 20, 2, 8),
} | {name: torch.randn(1, 6, 2, 8) for name in ("q", "k", "v")}


@pytest.mark.parametrize(("face", "name"), EACH)
def test_no_option_is_ignored(face, name, monkeypatch):
    """Each reaches the call, or changes what comes back, or is refused by its name."""
    function = getattr(face, name)
    parameters = inspect.signature(function).parameters
    needed = {}
    for word, parameter in parameters.items():
        if parameter.default is parameter.empty:
            value = NEEDED[word.removesuffix("_q").removesuffix("_k") if "seqlen" in word else word]
            packed = "varlen" in name and isinstance(value, torch.Tensor) and "seqlen" not in word
            needed[word] = value[0] if packed else value
    if "rotary" in "".join(parameters):  # so that all of them have a meaning
        angles = torch.rand(20, 4)
        needed |= {"k": NEEDED["k"], "v": NEEDED["v"], "cache_seqlens": 0}
        needed |= {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
    seen = []

    def spy(*tensors, **options):
        seen.append((tensors, options))
        q = tensors[0]
        lse = torch.zeros(q.shape[-2], *q.shape[:-2]) if q.dim() == 3 else q[..., 0].mT
        return torch.zeros_like(q), lse

    monkeypatch.setattr("flashwok._flash_attn._attention", spy)

    def outcome(**options):
        seen.clear()
        copies = {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in needed.items()}
        returned = function(**(copies | options))
        return repr((seen, returned))

    plain = outcome()
    for word, parameter in parameters.items():
        if parameter.default is parameter.empty or word in APART:
            continue
        shape = (1,) if word == "cache_batch_idx" else (1, 1)
        value = torch.zeros(shape, dtype=torch.int32) if word in TENSORS else OPTIONS[word]
        try:
            changed = outcome(**{word: value}) != plain
        except NotImplementedError as error:
            changed = str(error).startswith(f"{word}: is ")
        assert changed, word


def test_compiled():
    inputs = make(2, 16, 16)
    compiled = torch.compile(fa2.flash_attn_func, fullgraph=True, backend="aot_eager")
    close(compiled(*inputs, causal=True), fa2.flash_attn_func(*inputs, causal=True), 0)


def test_the_examples_in_docstrings():
    for module in (fa2, fa3):
        assert doctest.testmod(module).failed == 0
