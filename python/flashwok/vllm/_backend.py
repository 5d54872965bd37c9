"""The backend: vLLM's paged cache of keys and values, our kernels.

The kernels take queries of one length, so the sequences of a batch run in groups: neighbours with
as many queries are one call. vLLM puts the sequences that decode, of one query each, first.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm._custom_ops import reshape_and_cache_flash
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)

from .. import _core
from .._call import TENSORS


class FlashWokBackend(AttentionBackend):
    """What it can do; vLLM refuses the rest by name."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FlashWokImpl]:
        return FlashWokImpl

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 0 < head_size <= 256

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # the groups are made of the lengths on the CPU

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return any(k["available"] for k in _core.kernels() if k["device"] == "cuda")


@dataclass(frozen=True)
class Run:
    """Neighbouring sequences with as many queries."""

    first: int
    last: int
    row: int  # the first one's first query
    length: int

    def of(self, rows: Tensor) -> Tensor:
        """Theirs of [tokens, heads, head_dim]: [sequences, length, heads, head_dim]."""
        count = self.last - self.first
        own = rows[self.row : self.row + count * self.length]
        return own.view(count, self.length, *rows.shape[1:])


def runs(starts: list[int]) -> list[Run]:
    """The groups of sequences whose queries begin and end at `starts`."""
    groups: list[Run] = []
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    first = 0
    for length, group in itertools.groupby(lengths):
        last = first + len(list(group))
        if length > 0:
            groups.append(Run(first, last, starts[first], length))
        first = last
    return groups


@dataclass
class Metadata(AttentionMetadata):
    """What a batch's layers have in common."""

    runs: list[Run]
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor


class MetadataBuilder(AttentionMetadataBuilder):
    # A graph keeps its groups: batches of one query a sequence have the same ones each time.
    _cudagraph_support: ClassVar[AttentionCGSupport] = (
        AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    )
    reorder_batch_threshold: int | None = 1

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Metadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise NotImplementedError("causal: must be True in flashwok's backend")
        return Metadata(
            runs(common.query_start_loc_cpu.tolist()),
            common.seq_lens,
            common.block_table_tensor,
            common.slot_mapping,
        )


class FlashWokImpl(AttentionImpl):
    """One layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **others: Any,
    ) -> None:
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"attn_type: is {attn_type}, must be decoder")
        for name, value in others.items():
            if value is not None:
                raise NotImplementedError(f"{name}: is given, must be None: flashwok has it not")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.shares_cache = kv_sharing_target_layer_name is not None
        self.slopes = (
            None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        )
        left = -1 if sliding_window is None else sliding_window - 1
        softcap = logits_soft_cap or 0.0
        # Of SCALARS.
        self.scalars = (self.scale, "bottom_right", left, -1, softcap, 0.0, 0, 0, False, "auto")

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Metadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Appends key and value to the cache, and writes the attention of query over it.

        Args:
            query, output: ``[tokens, num_heads, head_size]``.
            key, value: ``[tokens, num_kv_heads, head_size]``.
            kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_size]``, of any strides;
                keys in the first half of the last axis.
            attn_metadata: None in vLLM's trial run for memory.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("output_scale: must be None: flashwok does not quantize")
        if attn_metadata is None:
            return output.zero_()
        k_cache, v_cache = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        if not self.shares_cache and key is not None:
            reshape_and_cache_flash(
                key,
                value,
                k_cache,
                v_cache,
                attn_metadata.slot_mapping,
                self.kv_cache_dtype,
                layer._k_scale,
                layer._v_scale,
            )
        for run in attn_metadata.runs:
            given = {
                "alibi_slopes": self.slopes,
                "seqused_k": attn_metadata.seq_lens[run.first : run.last],
                "page_table": attn_metadata.block_table[run.first : run.last],
            }
            tensors = tuple(map(given.get, TENSORS))
            q, o = run.of(query), run.of(output)
            _core.attend(q, k_cache, v_cache, tensors, o, None, self.scalars, 0, 0, 0, None, False)
        return output
