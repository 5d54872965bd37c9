"""FlashWok: exact attention, by standard attention and by Flash Attention V1, V2 and V3.

`attention` takes arrays of numpy, torch, jax, cupy or the array API. Beside it:
`flashwok.torch`, operators and scaled_dot_product_attention; `flashwok.transformers`, an attention
implementation for models; `flashwok.vllm`, an attention backend; `flashwok.jax`;
`flashwok.flash_attn_interface` and `flashwok.flash_attn_3_interface`, the names and arguments of
flash-attn 2 and 3. None of them is imported, and none activated, by importing flashwok.
"""

from ._attention import attention, attention_backward, merge_states, quantize_fp8
from ._core import version as __version__
from ._inspect import Comparison, Measured, Plan, Trace, compare, info, plan, trace

__all__ = [
    "Comparison",
    "Measured",
    "Plan",
    "Trace",
    "__version__",
    "attention",
    "attention_backward",
    "compare",
    "info",
    "merge_states",
    "plan",
    "quantize_fp8",
    "trace",
]
