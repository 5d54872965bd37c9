"""flashwok.vllm, in vLLM's own order of calls."""

import importlib
import importlib.metadata
import sys
import types

import pytest

import flashwok
from conftest import SEED
from test_torch import counted, math

torch = pytest.importorskip("torch")
import vllm_stand_in  # noqa: E402

BLOCK, HEADS, HEADS_KV, DIM = 16, 4, 2, 24


@pytest.fixture
def backend(monkeypatch):
    torch.manual_seed(SEED)
    vllm_stand_in.install(monkeypatch)
    monkeypatch.setattr(vllm_stand_in, "OVERRIDES", {})
    monkeypatch.delitem(sys.modules, "flashwok.vllm._backend", raising=False)
    yield importlib.import_module("flashwok.vllm._backend")
    sys.modules.pop("flashwok.vllm._backend", None)


LAYOUTS = {"heads first": (0, 1, 2, 3), "tokens first": (0, 2, 1, 3)}


class Server:
    """Sequences in a paged cache, and the layer that computes them."""

    def __init__(self, backend, layout="heads first", **options):
        cls = backend.FlashWokBackend
        window, softcap = options.get("sliding_window"), options.get("logits_soft_cap")
        slopes = options.get("alibi_slopes")
        self.layer = types.SimpleNamespace(_k_scale=torch.ones(()), _v_scale=torch.ones(()))
        self.impl = cls.get_impl_cls()(
            HEADS, DIM, 0.3, HEADS_KV, slopes, window, "auto", softcap, "decoder", None
        )
        self.builder = cls.get_builder_cls()(None, ["layer"], None, torch.device("cpu"))
        order = LAYOUTS[layout]
        shape = [(40, HEADS_KV, BLOCK, 2 * DIM)[axis] for axis in order]
        self.cache = torch.full(shape, torch.nan).permute(order)
        self.free = torch.randperm(40).tolist()
        self.pages, self.keys, self.values = {}, {}, {}

    def step(self, counts):
        """`counts` new tokens of each sequence: (queries, outputs) by sequence."""
        queries, slots = {}, []
        for name, count in counts.items():
            pages = self.pages.setdefault(name, [])
            old = [x.get(name, torch.empty(0, HEADS_KV, DIM)) for x in (self.keys, self.values)]
            self.keys[name], self.values[name] = (
                torch.cat((x, torch.randn(count, HEADS_KV, DIM))) for x in old
            )
            for place in range(len(old[0]), len(self.keys[name])):
                if place // BLOCK == len(pages):
                    pages.append(self.free.pop())
                slots.append(pages[place // BLOCK] * BLOCK + place % BLOCK)
            queries[name] = torch.randn(count, HEADS, DIM)
        rows = list(counts.values())
        table = torch.zeros(len(counts), 8, dtype=torch.int32)
        for n, name in enumerate(counts):
            table[n, : len(self.pages[name])] = torch.tensor(self.pages[name])
        common = vllm_stand_in.CommonAttentionMetadata(
            torch.tensor([0, *rows]).cumsum(0).to(torch.int32),
            torch.tensor([len(self.keys[name]) for name in counts], dtype=torch.int32),
            table,
            torch.tensor([*slots, -1, -1]),  # vLLM pads
        )
        new = [
            torch.cat([x[name][-count:] for name, count in counts.items()])
            for x in (self.keys, self.values)
        ]
        query = torch.cat([*queries.values(), torch.full((2, HEADS, DIM), torch.nan)])
        output = torch.full_like(query, 7.0)
        metadata = self.builder.build(0, common)
        result = self.impl.forward(self.layer, query, *new, self.cache, metadata, output)
        assert result is output
        assert (output[-2:] == 7).all()
        return queries, dict(zip(counts, output[:-2].split(rows), strict=True))

    def want(self, name, query, window=None, softcap=0.0, slopes=None):
        keys = self.keys[name]
        distance = torch.arange(len(query))[:, None] + len(keys) - len(query)
        distance = distance - torch.arange(len(keys))
        bias = torch.zeros(HEADS, *distance.shape, dtype=torch.float64)
        if slopes is not None:
            bias = -torch.tensor(slopes, dtype=torch.float64)[:, None, None] * distance.abs()
        if window is not None:
            bias = bias.masked_fill(distance >= window, -torch.inf)
        scaled = query[None].double() * (0.3 * DIM**0.5)
        inputs = (scaled, keys[None], self.values[name][None])
        return math(*inputs, "bottom_right", bias, softcap)[0][0]


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """New tensors lie on it, in a dtype that its kernels take."""
    gpu = request.param == "cuda"
    if gpu and not (torch.cuda.is_available() and flashwok.info()["cuda_devices"]):
        pytest.skip("no CUDA device, or a build without CUDA kernels")
    torch.set_default_device(request.param)
    torch.set_default_dtype(torch.bfloat16 if gpu else torch.float32)
    yield request.param
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 9}, {"logits_soft_cap": 2.0}, {"alibi_slopes": [0.5, 0.25, 0.1, 0.0]}],
)
def test_prefill_then_decode(backend, layout, options, device):
    server = Server(backend, layout, **options)
    steps = [
        {"a": 33, "b": 5},  # two that begin
        {"a": 1, "b": 1, "c": 40},  # two decode, one begins
        {"a": 1, "b": 1, "c": 20},  # the rest of its prompt
        {"a": 1, "b": 1, "c": 1},
        {"a": 3, "b": 3, "c": 3},  # as speculative tokens are verified
    ]
    words = {
        "window": options.get("sliding_window"),
        "softcap": options.get("logits_soft_cap", 0.0),
        "slopes": options.get("alibi_slopes"),
    }
    calls = []
    for counts in steps:
        _, (queries, outputs), after = counted(lambda counts=counts: server.step(counts))
        calls.append(after)
        for name, query in queries.items():
            want = server.want(name, query, **words)
            close = {"atol": 5e-6, "rtol": 0} if device == "cpu" else {"atol": 0.03, "rtol": 0.02}
            torch.testing.assert_close(outputs[name].double(), want, **close)
    assert calls == [2, 2, 2, 1, 1]  # neighbours of one length are one call


def test_groups(backend):
    groups = [(r.first, r.last, r.row, r.length) for r in backend.runs([0, 1, 2, 3, 8, 8, 8, 10])]
    assert groups == [(0, 3, 0, 1), (3, 4, 3, 5), (6, 7, 8, 2)]
    assert backend.runs([0]) == []


def test_the_trial_run_and_a_shared_cache(backend):
    server = Server(backend)
    output = torch.full((3, HEADS, DIM), torch.nan)
    query, key = torch.randn_like(output), torch.randn(3, HEADS_KV, DIM)
    server.impl.forward(server.layer, query, key, key, server.cache, None, output)
    assert (output == 0).all()
    server.step({"a": 5})
    server.impl.shares_cache = True
    before = server.cache.clone()
    server.step({"b": 2})  # reads what nobody has written
    torch.testing.assert_close(server.cache, before, equal_nan=True)


def test_what_is_not_taken_is_refused_by_name(backend):
    impl, cls = backend.FlashWokImpl, backend.FlashWokBackend
    with pytest.raises(NotImplementedError, match="sinks"):
        impl(HEADS, DIM, 0.3, sinks=torch.zeros(HEADS))
    with pytest.raises(NotImplementedError, match="attn_type"):
        impl(HEADS, DIM, 0.3, attn_type="encoder_only")
    server = Server(backend)
    x = torch.zeros(1, HEADS, DIM)
    with pytest.raises(NotImplementedError, match="output_scale"):
        server.impl.forward(server.layer, x, x, x, server.cache, None, x, torch.ones(()))
    common = vllm_stand_in.CommonAttentionMetadata(*[torch.zeros(2)] * 4, causal=False)
    with pytest.raises(NotImplementedError, match="causal"):
        server.builder.build(0, common)
    assert [size for size in (0, 20, 64, 80, 256, 264) if cls.supports_head_size(size)] == [
        64,
        80,
        256,
    ]
    assert cls.get_name() == "CUSTOM"


def test_the_plugin_takes_a_free_slot_alone(backend):
    (entry,) = (
        point
        for point in importlib.metadata.entry_points(group="vllm.general_plugins")
        if point.name == "flashwok"
    )
    register = entry.load()
    slot = vllm_stand_in.AttentionBackendEnum.CUSTOM
    register()
    register()
    module, _, name = slot.get_path().rpartition(".")
    assert getattr(importlib.import_module(module), name).__name__ == "FlashWokBackend"
    vllm_stand_in.OVERRIDES[slot] = "another.Backend"
    with pytest.warns(UserWarning, match="another.Backend already"):
        register()
    assert slot.get_path() == "another.Backend"
