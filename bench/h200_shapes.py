"""The problems that h200_forward.py times, and what is useful work in them."""

import dataclasses
import random

TOKENS, HIDDEN = 16384, 2048
DIMS = (64, 128, 256)
MASKS = ("full", "causal")
SEQS = (16384, 8192, 4096, 2048, 1024, 512)
SLOW_SEQS = (4096, 2048, 1024, 512)  # of V1 and standard, which are slow or large beyond
EXTRAS = ("gqa", "varlen", "window")
SLOW = ("standard", "v1")
ITEM = 2  # bytes of bfloat16


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    seqlen: int  # varlen: the longest
    num_heads: int
    num_heads_kv: int
    head_dim: int
    causal: bool = False
    window: tuple = (-1, -1)
    lengths: tuple = ()  # varlen
    case: str = "grid"

    def tokens(self):
        return sum(self.lengths) if self.lengths else self.batch * self.seqlen

    def pairs(self):
        """Of a query and a key that it sees; half of all when causal, as everybody counts."""
        left, right = self.window
        if (left, right) != (-1, -1):
            return self.batch * sum(
                min(i + right, self.seqlen - 1) - max(i - left, 0) + 1 for i in range(self.seqlen)
            )
        squares = sum(n * n for n in self.lengths or [self.seqlen] * self.batch)
        return squares / 2 if self.causal else squares

    def flops(self):
        return 4 * self.pairs() * self.num_heads * self.head_dim

    def floor_bytes(self):
        return sum(self.floor())

    def floor(self):
        """Bytes read and written when Q, K, V, O and lse move once."""
        rows = self.num_heads + 2 * self.num_heads_kv
        read = self.tokens() * rows * self.head_dim * ITEM
        return read, self.tokens() * self.num_heads * (self.head_dim * ITEM + 4)

    def fields(self):
        """Its part of a cell."""
        fields = {
            "pass": "forward",
            "dtype": "bfloat16",
            "case": self.case,
            "head_dim": self.head_dim,
            "head_dim_v": self.head_dim,
            "causal": "bottom_right" if self.causal else "none",
            "window": list(self.window),
            "batch": self.batch,
            "seqlen_q": self.seqlen,
            "seqlen_k": self.seqlen,
            "num_heads": self.num_heads,
            "num_heads_kv": self.num_heads_kv,
            "floor_read": self.floor()[0],
            "floor_written": self.floor()[1],
        }
        return fields | ({"total_q": self.tokens()} if self.lengths else {})

    def name(self):
        mask = "causal" if self.causal else "full"
        mask = f"window {self.window}" if self.window != (-1, -1) else mask
        case = "" if self.case == "grid" else self.case + " "
        return f"{case}d{self.head_dim} {mask} {self.seqlen}"


def grid(dims, masks, seqs):
    for d in dims:
        for mask in masks:
            for seqlen in seqs:
                heads = HIDDEN // d
                yield Shape(TOKENS // seqlen, seqlen, heads, heads, d, mask == "causal")


def extras(cases, masks):
    draw = random.Random(1)
    lengths = tuple(draw.randint(100, 4000) for _ in range(32))
    for causal in [mask == "causal" for mask in masks]:
        if "gqa" in cases:
            yield Shape(4, 4096, 32, 8, 128, causal, case="gqa")
        if "varlen" in cases:
            longest = max(lengths)
            yield Shape(32, longest, 16, 16, 128, causal, lengths=lengths, case="varlen")
    if "window" in cases:
        yield Shape(2, 8192, 32, 32, 64, window=(128, 0), case="window")


def algorithms(shape, wanted):
    """Of those wanted, the ones that are timed on the shape."""
    quick = shape.case == "grid" and shape.seqlen in SLOW_SEQS
    return [name for name in wanted if name not in SLOW or quick]
