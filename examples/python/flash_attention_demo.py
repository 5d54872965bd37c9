"""Flash Attention V1 in plain numpy, beside FlashWok's and standard attention.

    python examples/python/flash_attention_demo.py

Standard attention has all n x n scores in memory at once. V1 takes them block by block: a block of
keys and values is fetched once, every block of queries passes over it, and what a query has so far
(its output, the largest score, the sum of exponentials) is corrected when a larger score turns up.
"""

import numpy as np

import flashwok

N, D, BLOCK, SEED = 128, 16, 32, 42


def standard_attention(q, k, v):
    scores = q @ k.T / np.sqrt(q.shape[1])  # [n, n], all of them
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


def flash_attention_v1(q, k, v, block):
    n, d = q.shape
    o = np.zeros_like(q)
    m = np.full((n, 1), -np.inf, q.dtype)  # the largest score of each row so far
    total = np.zeros((n, 1), q.dtype)  # the sum of its exponentials, measured from m
    for first_key in range(0, n, block):  # fetched once
        k_block, v_block = k[first_key : first_key + block], v[first_key : first_key + block]
        for first_row in range(0, n, block):
            rows = slice(first_row, first_row + block)
            scores = q[rows] @ k_block.T / np.sqrt(d)  # [block, block], never more
            m_new = np.maximum(m[rows], scores.max(axis=1, keepdims=True))
            weights = np.exp(scores - m_new)
            kept = np.exp(m[rows] - m_new)  # what the old sums are worth now
            total_new = kept * total[rows] + weights.sum(axis=1, keepdims=True)
            o[rows] = (kept * total[rows] * o[rows] + weights @ v_block) / total_new
            m[rows], total[rows] = m_new, total_new
    return o


def main():
    rng = np.random.default_rng(SEED)
    q, k, v = (rng.standard_normal((N, D), dtype=np.float32) for _ in range(3))
    exact = standard_attention(*(x.astype(np.float64) for x in (q, k, v)))
    results = {
        "standard, numpy": standard_attention(q, k, v),
        "V1, numpy": flash_attention_v1(q, k, v, BLOCK),
    }
    for algorithm in ("standard", "v1", "v2", "v3"):
        # FlashWok's axes are batch, seqlen, heads, head_dim.
        arrays = (x[None, :, None] for x in (q, k, v))
        o = flashwok.attention(*arrays, algorithm=algorithm)
        results[f"{algorithm}, FlashWok"] = o[0, :, 0]
    print(f"n = {N}, d = {D}, block {BLOCK}, float32, seed {SEED}")
    errors = {name: np.abs(o - exact).max() for name, o in results.items()}
    for name, error in errors.items():
        print(f"{name:<20} max error {error:.2e}")
    worst = max(errors.values())
    print(f"max error {worst:.2e} {'<' if worst < 1e-6 else '>='} 1e-6")
    return 0 if worst < 1e-6 else 1


if __name__ == "__main__":
    raise SystemExit(main())
