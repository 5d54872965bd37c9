"""Trains a small GPT on Python's own sources, with FlashWok's attention and with PyTorch's.

    python examples/python/train_tiny_gpt.py                      # a minute on two cores
    python examples/python/train_tiny_gpt.py --device cuda --dtype bfloat16 --steps 500 \
        --layers 6 --width 384 --heads 6 --context 512 --batch 64 --json curves.json

Both models start from the same weights and see the same batches, so their loss curves lie on each
other; what differs is rounding. Where FlashWok has no backward pass, one model is trained with
PyTorch's attention, and its losses on text that it is not trained on are taken with both. The text
is Python's standard library: every byte is a token.
"""

import argparse
import json
import pathlib
import statistics
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


def has_backward(options):
    """Whether FlashWok has gradients for this device and dtype."""
    dtype = getattr(torch, options.dtype)
    head = torch.empty(1, 8, 1, options.width // options.heads, dtype=dtype, device=options.device)
    return flashwok.plan(head, head, head, causal="bottom_right", backward=True).ok


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


def make_model(name, options):
    torch.manual_seed(options.seed)
    sizes = (options.layers, options.width, options.heads, options.context)
    return TinyGpt(*sizes, ATTENTION[name]).to(options.device)


def losses_of(model, data, options, draw):
    """The loss of each batch that is drawn, without end."""
    span = torch.arange(options.context + 1)
    dtype = getattr(torch, options.dtype)
    while True:
        first = torch.randint(len(data) - options.context - 1, (options.batch, 1), generator=draw)
        batch = data[first + span].long().to(options.device)
        with torch.autocast(options.device, dtype, enabled=dtype != torch.float32):
            logits = model(batch[:, :-1])
        yield F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def train(model, options, data, each_step):
    """One optimizer's step a batch; `each_step` is called with its number and loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    losses = losses_of(model, data, options, torch.Generator().manual_seed(options.seed))
    for step, loss in zip(range(options.steps), losses, strict=False):
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        each_step(step, loss.detach())


def train_both(options, data):
    """A model for each: {name: losses, one a step}, {name: tokens per second}."""
    curves, speeds = {}, {}
    warm = options.steps // 10  # whose time does not count
    for name in ATTENTION:
        losses, start = [], 0.0

        def note(step, loss, name=name, losses=losses):
            nonlocal start
            losses.append(loss)
            tell(name, step, loss, options)
            if step + 1 == warm or step == warm == 0:
                synchronize(options.device)
                start = time.perf_counter()

        train(make_model(name, options), options, data, note)
        synchronize(options.device)
        tokens = (options.steps - max(warm, 1)) * options.batch * options.context
        speeds[name] = tokens / (time.perf_counter() - start)
        curves[name] = torch.stack(losses).tolist()
    return curves, speeds


@torch.no_grad()
def evaluate(model, name, options, data):
    """(mean loss, tokens per second) with this attention in the model's blocks."""
    before = [block.attention for block in model.blocks]
    for block in model.blocks:
        block.attention = ATTENTION[name]
    losses = losses_of(model, data, options, torch.Generator().manual_seed(options.seed))
    next(losses)  # kernels are loaded
    synchronize(options.device)
    start = time.perf_counter()
    found = torch.stack([next(losses) for _ in range(options.evaluations)]).mean().item()
    seconds = time.perf_counter() - start
    for block, attention in zip(model.blocks, before, strict=True):
        block.attention = attention
    return found, options.evaluations * options.batch * options.context / seconds


def train_one(options, data):
    """One model, trained with PyTorch's: the same pair, of its losses on held-out text."""
    held_out, data = data[: len(data) // 10], data[len(data) // 10 :]
    curves, speeds = ({name: [] for name in ATTENTION} for _ in range(2))
    model = make_model("sdpa", options)

    def note(step, loss):
        tell("sdpa", step, loss, options)
        if step % max(1, options.steps // options.points) == 0 or step + 1 == options.steps:
            for name in ATTENTION:
                loss, speed = evaluate(model, name, options, held_out)
                curves[name].append(loss)
                speeds[name].append(speed)

    train(model, options, data, note)
    return curves, {name: statistics.median(found) for name, found in speeds.items()}


def tell(name, step, loss, options):
    if options.verbose and step % max(1, options.steps // 10) == 0:
        print(f"{name:>9} step {step:4} loss {loss.item():.3f}", flush=True)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def smooth(losses, width):
    return torch.tensor(losses).unfold(0, width, 1).mean(1)


COLORS = ("#c0392b", "#2c3e50")


def picture(curves, title):
    """The curves as SVG, the first one drawn last and dashed, so that both are seen."""
    width, height, edge = 640, 400, 50
    low = min(min(losses) for losses in curves.values())
    high = max(max(losses) for losses in curves.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{edge}" y="25">{title}</text>',
        f'<path d="M{edge} {edge}V{height - edge}H{width - edge}" fill="none" stroke="#888"/>',
        f'<text x="5" y="{edge + 5}">{high:.2f}</text>',
        f'<text x="5" y="{height - edge + 5}">{low:.2f}</text>',
    ]
    for n, (name, losses) in reversed(list(enumerate(curves.items()))):
        points = " ".join(
            f"{edge + (width - 2 * edge) * i / max(1, len(losses) - 1):.1f},"
            f"{edge + (height - 2 * edge) * (high - loss) / max(high - low, 1e-9):.1f}"
            for i, loss in enumerate(losses)
        )
        dash = ' stroke-dasharray="6 6"' if n == 0 else ""
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{COLORS[n]}" stroke-width="2"{dash}/>'
        )
        parts.append(
            f'<text x="{width - 150}" y="{edge + 20 * n}" fill="{COLORS[n]}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


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
        "points": 20,
        "evaluations": 8,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--evaluate", action="store_true", help="train with PyTorch's alone")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--json", type=pathlib.Path, help="write both curves there")
    parser.add_argument("--svg", type=pathlib.Path, help="draw both curves there")
    parser.add_argument("--quiet", dest="verbose", action="store_false")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    data = text()
    evaluated = options.evaluate or not has_backward(options)
    curves, speeds = (train_one if evaluated else train_both)(options, data)
    width = 1 if evaluated else max(1, options.steps // 10)
    ends = {name: smooth(losses, width) for name, losses in curves.items()}
    apart = (ends["flashwok"] - ends["sdpa"]).abs().max().item()
    for name in ATTENTION:
        first, last = ends[name][0], ends[name][-1]
        print(f"{name:>9} loss {first:.3f} -> {last:.3f}, {speeds[name]:,.0f} tokens/s")
    print(f"the curves are at most {apart:.4f} apart, as means over {width} steps")
    if options.svg:
        of = "loss on held-out text" if evaluated else "training loss"
        title = f"{of}, {options.steps} steps, {options.dtype} on {options.device}"
        options.svg.write_text(picture(curves, title))
    if options.json:
        record = {
            "options": {name: str(value) for name, value in vars(options).items()},
            "versions": {"flashwok": flashwok.__version__, "torch": torch.__version__},
            "bytes_of_text": len(data),
            "losses_of": "evaluation of one model" if evaluated else "training of each",
            "tokens_per_second": speeds,
            "losses": curves,
            "max_distance": apart,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return curves, apart


if __name__ == "__main__":
    main()
