"""What the tests share: random problems, and float64 attention in plain numpy."""

import os

import numpy as np
import pytest

SEED = int(os.environ.get("FLASHWOK_TEST_SEED", np.random.SeedSequence().entropy % 2**32))


def pytest_report_header():
    return f"FLASHWOK_TEST_SEED={SEED}"


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


@pytest.fixture
def qkv(rng):
    """q, k, v by shapes (batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim)."""

    def make(batch=2, seqlen_q=33, seqlen_k=47, heads=4, heads_kv=2, head_dim=24, head_dim_v=None):
        shapes = (
            (batch, seqlen_q, heads, head_dim),
            (batch, seqlen_k, heads_kv, head_dim),
            (batch, seqlen_k, heads_kv, head_dim_v or head_dim),
        )
        return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]

    return make


def exact(
    q, k, v, *, causal="none", window=(-1, -1), scale=None, softcap=0.0, bias=None, mask=None
):
    """(o, lse) in float64, from the definitions."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * np.einsum("bihd,bjhd->bhij", q, k)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    seqlen_q, seqlen_k = scores.shape[-2:]
    shift = 0 if causal == "top_left" else seqlen_k - seqlen_q
    diagonal = np.arange(seqlen_q)[:, None] + shift
    keys = np.arange(seqlen_k)
    seen = np.ones((seqlen_q, seqlen_k), bool)
    if causal != "none":
        seen &= keys <= diagonal
    if window[0] >= 0:
        seen &= keys >= diagonal - window[0]
    if window[1] >= 0:
        seen &= keys <= diagonal + window[1]
    seen = np.broadcast_to(seen, scores.shape)
    if mask is not None:
        seen = seen & mask
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (np.log(total) + np.where(np.isinf(top), 0, top))[..., 0]
        weights = np.where(total > 0, weights / total, 0)
    return np.einsum("bhij,bjhd->bihd", weights, v), lse
