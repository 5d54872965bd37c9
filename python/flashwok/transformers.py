"""FlashWok as an attention implementation of Hugging Face's transformers.

>>> import flashwok.transformers
>>> flashwok.transformers.register()

and then ``AutoModel.from_pretrained(..., attn_implementation="flashwok")``, or
``model.set_attn_implementation("flashwok")``. Outputs are those of "sdpa": masks are its masks, so
padding, causal attention, windows and packed sequences are; heads of GQA are not repeated, and
softcap, which "sdpa" has not, is taken.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import flash_attn_interface as ours
from .torch import attention

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME = "flashwok"


def register(name: str = NAME) -> None:
    """Makes the implementation known to transformers under `name`; no model uses it by that.

    Raises:
        ImportError: transformers is missing, or older than 4.55.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)
    if name not in _names:
        _names.add(name)
        _answer_for_flash_attention()


_names: set[str] = set()


def _answer_for_flash_attention() -> None:
    """Gives transformers our flash-attn functions for our names.

    It takes every name with "flash" in it for a flavour of flash-attn, and looks for its package
    through this one function.
    """
    from transformers import modeling_flash_attention_utils as utils

    find = getattr(utils, "_lazy_imports", None)
    if find is None or getattr(find, "of_flashwok", False):
        return

    @functools.wraps(find)
    def find_ours(implementation: str | None, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if implementation not in _names:
            found: tuple[Any, ...] = find(implementation, *args, **kwargs)
            return found
        functions: list[Any] = [ours.flash_attn_func, ours.flash_attn_varlen_func]
        if hasattr(utils, "_flash_with_kvcache_fn"):
            functions.append(ours.flash_attn_with_kvcache)
        return (*functions, utils._pad_input, utils._unpad_input)

    find_ours.of_flashwok = True  # type: ignore[attr-defined]
    utils._lazy_imports = find_ours


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for each layer.

    Args:
        query, key, value: ``[batch, num_heads, seqlen, head_dim]``.
        attention_mask: ``[batch, 1 or num_heads, seqlen_q, seqlen_k]``, bool or added; a window is
            in it.
        is_causal: None: what the module says.
        kwargs: cu_seq_lens_q and cu_seq_lens_k, int32, of packed sequences in a batch of one that
            has no mask; and what other implementations take, and this one knows from the mask.

    Returns:
        The output ``[batch, seqlen, num_heads, head_dim]``, and None for the attention weights.

    Raises:
        NotImplementedError: attention sinks (s_aux), or weights as output.
    """
    if s_aux is not None:
        raise NotImplementedError("s_aux: is given, must be None: flashwok has no attention sinks")
    if kwargs.get("output_attentions"):
        raise NotImplementedError(
            "output_attentions: is True, must be False: flashwok never has the weights in memory; "
            "use attn_implementation='eager'"
        )
    mask = bias = None
    if attention_mask is not None:
        if attention_mask.stride(-1) != 1:
            attention_mask = attention_mask.contiguous()
        if attention_mask.dtype.is_floating_point:
            bias = attention_mask
        else:
            mask = attention_mask
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    packed = kwargs.get("cu_seq_lens_q")
    if packed is not None and mask is None and bias is None and query.shape[0] == 1:
        output = attention(
            q[0],
            k[0],
            v[0],
            causal="bottom_right" if is_causal else "none",
            softmax_scale=scaling,
            softcap=softcap or 0.0,
            window=_window(kwargs.get("sliding_window"), is_causal),
            cu_seqlens_q=packed,
            cu_seqlens_k=kwargs.get("cu_seq_lens_k", packed),
            dropout_p=dropout,
        )
        return output[None], None
    # A mask has the causal part in it; a single query is the last one. Queries without a mask are
    # the first ones of the keys.
    causal = is_causal and attention_mask is None and query.shape[2] > 1
    output = attention(
        q,
        k,
        v,
        causal="top_left" if causal else "none",
        softmax_scale=scaling,
        softcap=softcap or 0.0,
        mask=mask,
        bias=bias,
        dropout_p=dropout,
    )
    return output, None


def _window(sliding_window: int | None, is_causal: bool) -> tuple[int, int]:
    """A window of so many keys, the row's own among them."""
    if sliding_window is None:
        return (-1, -1)
    return (sliding_window - 1, -1 if is_causal else sliding_window - 1)
