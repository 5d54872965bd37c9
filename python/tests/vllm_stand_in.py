"""The part of vLLM 0.33 that its attention backends see, where vLLM is not installed.

vLLM is of gigabytes and runs on a GPU; the backend is tested against these few classes, which have
its names, its shapes and its order of arguments.
"""

import abc
import dataclasses
import enum
import sys
import types

import torch


class AttentionType(str, enum.Enum):
    DECODER = "decoder"
    ENCODER_ONLY = "encoder_only"


class AttentionCGSupport(enum.Enum):
    UNIFORM_SINGLE_TOKEN_DECODE = 1


class AttentionMetadata:
    pass


class AttentionBackend:
    @classmethod
    def supports_attn_type(cls, attn_type):
        return attn_type == AttentionType.DECODER


class AttentionImpl(abc.ABC):
    @abc.abstractmethod
    def __init__(self): ...

    @abc.abstractmethod
    def forward(self): ...


class AttentionMetadataBuilder(abc.ABC):
    @abc.abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.device = device

    @abc.abstractmethod
    def build(self): ...


@dataclasses.dataclass
class CommonAttentionMetadata:
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True


class AttentionBackendEnum(enum.Enum):
    CUSTOM = None

    def is_overridden(self):
        return self in OVERRIDES

    def get_path(self):
        return OVERRIDES[self]


OVERRIDES = {}


def register_backend(backend, class_path):
    OVERRIDES[backend] = class_path


def reshape_and_cache_flash(
    key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
):
    """Caches: [num_blocks, block_size, heads, head_size]; slots below 0 are padding."""
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            block, place = divmod(slot, key_cache.shape[1])
            key_cache[block, place], value_cache[block, place] = key[token], value[token]


def install(patch):
    """As the package vllm, for as long as `patch` (pytest's monkeypatch) lasts."""
    here = sys.modules[__name__]
    homes = {
        "vllm": (),
        "vllm._custom_ops": ("reshape_and_cache_flash",),
        "vllm.v1": (),
        "vllm.v1.attention": (),
        "vllm.v1.attention.backend": (
            "AttentionBackend",
            "AttentionCGSupport",
            "AttentionImpl",
            "AttentionMetadata",
            "AttentionMetadataBuilder",
            "AttentionType",
            "CommonAttentionMetadata",
        ),
        "vllm.v1.attention.backends": (),
        "vllm.v1.attention.backends.registry": ("AttentionBackendEnum", "register_backend"),
    }
    for name, words in homes.items():
        module = types.ModuleType(name)
        for word in words:
            setattr(module, word, getattr(here, word))
        patch.setitem(sys.modules, name, module)
