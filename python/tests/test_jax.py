"""flashwok.jax: against jax.nn.dot_product_attention, under jit, grad and vmap."""

import doctest

import numpy as np
import pytest

import flashwok
from conftest import SEED, exact

jax = pytest.importorskip("jax")
import flashwok.jax  # noqa: E402

jnp = jax.numpy


def make(batch=2, seqlen_q=19, seqlen_k=23, heads=4, heads_kv=2, head_dim=16, dtype="float32"):
    keys = jax.random.split(jax.random.key(SEED % 2**31), 3)
    shapes = ((seqlen_q, heads), (seqlen_k, heads_kv), (seqlen_k, heads_kv))
    lead = () if batch is None else (batch,)
    return [
        jax.random.normal(key, (*lead, *shape, head_dim), dtype)
        for key, shape in zip(keys, shapes, strict=True)
    ]


OPTIONS = [
    {},
    {"is_causal": True},
    {"scale": 0.3},
    {"local_window_size": 5},
    {"local_window_size": (4, 2), "is_causal": True},
    {"query_seq_lengths": [19, 7], "key_value_seq_lengths": [23, 11]},
    {"key_value_seq_lengths": [23, 11], "local_window_size": (8, 1)},
    {"mask": (2, 1, 19, 23)},
    {"mask": (1, 4, 1, 23), "is_causal": True},
    {"bias": (1, 4, 19, 23)},
    {"bias": (4, 19, 1)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("batch", [2, None])
def test_equals_jax_nn(options, batch):
    if batch is None and any("lengths" in name or name == "mask" for name in options):
        pytest.skip("of a batch")
    arrays = make(batch)
    words = dict(options)
    rng = np.random.default_rng(SEED)
    if "mask" in words:
        mask = rng.random(words["mask"]) > 0.3
        mask[..., 0] = True  # a row without keys is the mean of the values in jax.nn
        words["mask"] = jnp.asarray(mask)
    if "bias" in words:
        words["bias"] = jnp.asarray(rng.standard_normal(words["bias"], dtype=np.float32))
    for name in words:
        if "lengths" in name:
            words[name] = jnp.asarray(words[name], jnp.int32)

    def run(function):
        names = ["query", "key", "value"] + (["bias"] if "bias" in words else [])
        inputs = [*arrays, *([words["bias"]] if "bias" in words else [])]
        rest = {name: value for name, value in words.items() if name != "bias"}

        def loss(inputs):
            o = function(**dict(zip(names, inputs, strict=True)), **rest)
            if "query_seq_lengths" in rest and batch:  # later rows mean nothing
                seen = (
                    jnp.arange(19)[:, None, None] < rest["query_seq_lengths"][:, None, None, None]
                )
                o = jnp.where(seen, o, 0)
            return (o * jnp.cos(jnp.arange(o.size).reshape(o.shape))).sum(), o

        (_, o), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(inputs)
        return o, gradients

    o, gradients = run(flashwok.jax.dot_product_attention)
    want, want_gradients = run(jax.nn.dot_product_attention)
    np.testing.assert_allclose(o, want, atol=5e-6)
    for one, other in zip(gradients, want_gradients, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=5e-5)


def test_residual_and_dtypes():
    q, k, v = make(dtype="bfloat16")
    ours = flashwok.jax.dot_product_attention(q, k, v, return_residual=True)
    theirs = jax.nn.dot_product_attention(q, k, v, return_residual=True)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        one, other = (x.astype("float32") for x in (one, other))
        np.testing.assert_allclose(one, other, atol=0.06)


@pytest.mark.parametrize("implementation", ["standard", "v1", "v2", "v3"])
def test_algorithms(implementation):
    q, k, v = make()
    o = flashwok.jax.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
    np.testing.assert_allclose(o, exact(q, k, v, causal="top_left")[0], atol=2e-6)


def test_arrays_in_arrays_out():
    q, k, v = make()
    o, lse = flashwok.attention(q, k, v, causal="bottom_right", return_lse=True)
    assert isinstance(o, jax.Array)
    want, want_lse = exact(q, k, v, causal="bottom_right")
    np.testing.assert_allclose(o, want, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, atol=5e-6)
    gradients = flashwok.attention_backward(
        jnp.ones_like(o), q, k, v, o, lse, causal="bottom_right"
    )
    assert all(isinstance(x, jax.Array) for x in gradients)
    want = jax.grad(
        lambda *x: flashwok.attention(*x, causal="bottom_right").sum(), argnums=(0, 1, 2)
    )(q, k, v)
    for one, other in zip(gradients, want, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    merged, merged_lse = jax.jit(flashwok.merge_states)(o, lse, o, lse)
    assert isinstance(merged, jax.Array)
    np.testing.assert_allclose(merged, o, atol=1e-6)
    np.testing.assert_allclose(merged_lse, lse + np.log(2), atol=1e-6)
    with pytest.raises(ValueError, match="stream"):
        flashwok.merge_states(o, lse, o, lse, stream=1)


def test_lse_is_differentiable_and_softcap_taken():
    q, k, v = make(heads_kv=4, seqlen_q=5, seqlen_k=7)

    def ours(q, k):
        return flashwok.attention(q, k, v, softcap=2.0, return_lse=True)[1].sum()

    def theirs(q, k):
        scores = 2.0 * jnp.tanh(jnp.einsum("bihd,bjhd->bhij", q, k) / 4 / 2.0)
        return jax.nn.logsumexp(scores, -1).sum()

    got, want = (jax.grad(f, argnums=(0, 1))(q, k) for f in (ours, theirs))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_vmap():
    rng = np.random.default_rng(SEED)
    inputs = [jnp.stack([x + n for n in range(3)]) for x in make()]
    bias = jnp.asarray(rng.standard_normal((3, 1, 4, 19, 23), dtype=np.float32))
    mask = jnp.asarray(rng.random((1, 1, 19, 23)) > 0.3)
    slopes = jnp.asarray(rng.random((3, 4), dtype=np.float32))

    def one(q, k, v, bias, slopes):
        o = flashwok.attention(
            q, k, v, bias=bias, mask=mask, alibi_slopes=slopes, causal="top_left"
        )
        return (o * jnp.cos(jnp.arange(o.size).reshape(o.shape))).sum()

    both = jax.value_and_grad(one, argnums=(0, 1, 2, 3))
    values, gradients = jax.jit(jax.vmap(both))(*inputs, bias, slopes)
    for n in range(3):
        value, want = both(*(x[n] for x in (*inputs, bias, slopes)))
        np.testing.assert_allclose(values[n], value, rtol=1e-5, atol=1e-4)
        for gradient, other in zip(gradients, want, strict=True):
            np.testing.assert_allclose(gradient[n], other, atol=1e-5)
    # Over some of the arguments alone, and twice.
    q, k, v = inputs
    o = jax.vmap(lambda k: flashwok.attention(q[0], k, v[0]))(k)
    np.testing.assert_allclose(o[2], flashwok.attention(q[0], k[2], v[0]), atol=1e-6)
    twice = jax.vmap(jax.vmap(lambda *x: flashwok.attention(*(y[None] for y in x))))
    np.testing.assert_allclose(
        twice(*inputs)[:, :, 0], jax.vmap(flashwok.attention)(*inputs), atol=1e-6
    )


def test_varlen_and_dropout():
    q, k, v = (x[0] for x in make(1, 20, 20))
    lengths = jnp.asarray([0, 7, 20], jnp.int32)
    o = jax.jit(lambda *x: flashwok.attention(*x, cu_seqlens_q=lengths, cu_seqlens_k=lengths))(
        q, k, v
    )
    np.testing.assert_allclose(o[:7][None], exact(*(x[None, :7] for x in (q, k, v)))[0], atol=2e-6)
    with pytest.raises(NotImplementedError, match="vmap"):
        jax.vmap(lambda q: flashwok.attention(q, k, v, cu_seqlens_q=lengths, cu_seqlens_k=lengths))(
            q[None]
        )
    q, k, v = make()
    with pytest.raises(ValueError, match="dropout_seed"):
        flashwok.attention(q, k, v, dropout_p=0.5)
    o = flashwok.attention(q, k, v, dropout_p=0.5, dropout_seed=3)
    want = flashwok.attention(*(np.asarray(x) for x in (q, k, v)), dropout_p=0.5, dropout_seed=3)
    np.testing.assert_array_equal(o, want)


def test_errors_carry_the_sentence():
    q, k, v = make(heads=3)
    with pytest.raises(Exception, match="num_heads"):
        jax.block_until_ready(flashwok.attention(q, k, v))
    with pytest.raises(ValueError, match="stream: is 1, must be left out: jax decides"):
        flashwok.attention(q, k, v, stream=1)
    with pytest.raises(ValueError, match="q: has 2 axes"):
        flashwok.attention(q[0, 0], k, v)


def test_the_examples_in_docstrings():
    assert doctest.testmod(flashwok.jax).failed == 0
