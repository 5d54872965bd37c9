"""Trains a small GPT on Python's own sources, with FlashWok's attention and with PyTorch's.

    python examples/python/train_tiny_gpt.py                      # a minute on two cores
    python examples/python/train_tiny_gpt.py --device cuda --dtype bfloat16 --steps 500 \
        --layers 6 --width 384 --heads 6 --context 512 --batch 64 --json curves.json

Both models start from the same weights and see the same batches, so their loss curves lie on each
other; what differs is rounding. The text is Python's standard library: every byte is a token.
"""

import argparse
import json
import pathlib
import sysconfig
import time

import torch
from torch import nn

import flashwok.torch

F = torch.nn.functional


def attention_flashwok(q, k, v):
    """[batch, seqlen, heads, head_dim]."""
    return flashwok.torch.attention(q, k, v, causal="bottom_right")


def attention_sdpa(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


ATTENTION = {"flashwok": attention_flashwok, "sdpa": attention_sdpa}


class Block(nn.Module):
    def __init__(self, width, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        x = x + self.out(self.attention(*qkv.unbind(2)).flatten(2))
        return x + self.feed(self.norms[1](x))


class TinyGpt(nn.Module):
    def __init__(self, layers, width, heads, context, attention):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attention) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, bytes_in):
        x = self.tokens(bytes_in) + self.places.weight[: bytes_in.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def text():
    """The standard library's sources, one after the other."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    sources = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(sources), dtype=torch.uint8)


def train(name, options, data):
    """The losses, one a step, and tokens per second without the first tenth of the steps."""
    torch.manual_seed(options.seed)
    sizes = (options.layers, options.width, options.heads, options.context)
    model = TinyGpt(*sizes, ATTENTION[name]).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    draw = torch.Generator().manual_seed(options.seed)
    span = torch.arange(options.context + 1)
    dtype = getattr(torch, options.dtype)
    losses, warm, start = [], options.steps // 10, 0.0
    for step in range(options.steps):
        if step == warm:
            synchronize(options.device)
            start = time.perf_counter()
        first = torch.randint(len(data) - options.context - 1, (options.batch, 1), generator=draw)
        batch = data[first + span].long().to(options.device)
        with torch.autocast(options.device, dtype, enabled=dtype != torch.float32):
            logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        if options.verbose and step % max(1, options.steps // 10) == 0:
            print(f"{name:>9} step {step:4} loss {loss.item():.3f}", flush=True)
    synchronize(options.device)
    seconds = time.perf_counter() - start
    tokens = (options.steps - warm) * options.batch * options.context
    return torch.stack(losses).tolist(), tokens / seconds


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def smooth(losses, width):
    return torch.tensor(losses).unfold(0, width, 1).mean(1)


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    for name, value in {
        "steps": 60,
        "layers": 2,
        "width": 128,
        "heads": 4,
        "context": 128,
        "batch": 8,
        "seed": 1,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--json", type=pathlib.Path, help="write both curves there")
    parser.add_argument("--quiet", dest="verbose", action="store_false")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    data = text()
    curves, speeds = {}, {}
    for name in ATTENTION:
        curves[name], speeds[name] = train(name, options, data)
    width = max(1, options.steps // 10)
    ends = {name: smooth(losses, width) for name, losses in curves.items()}
    apart = (ends["flashwok"] - ends["sdpa"]).abs().max().item()
    for name in ATTENTION:
        first, last = ends[name][0], ends[name][-1]
        print(f"{name:>9} loss {first:.3f} -> {last:.3f}, {speeds[name]:,.0f} tokens/s")
    print(f"the curves are at most {apart:.4f} apart, as means over {width} steps")
    if options.json:
        record = {
            "options": {name: str(value) for name, value in vars(options).items()},
            "versions": {"flashwok": flashwok.__version__, "torch": torch.__version__},
            "bytes_of_text": len(data),
            "tokens_per_second": speeds,
            "losses": curves,
            "max_distance": apart,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return curves, apart


if __name__ == "__main__":
    main()
