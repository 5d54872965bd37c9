"""FlashWok as an attention implementation of Hugging Face's transformers.

>>> import flashwok.transformers
>>> flashwok.transformers.register()

and then ``AutoModel.from_pretrained(..., attn_implementation="flashwok")``, or
``model.set_attn_implementation("flashwok")``. Outputs are those of "sdpa": masks are its masks, so
padding, causal attention, windows and packed sequences are; heads of GQA are not repeated, and
softcap, which "sdpa" has not, is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        kwargs: what other implementations take, and this one knows from the mask.

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
    # A mask has the causal part in it; a single query is the last one. Queries without a mask are
    # the first ones of the keys.
    causal = is_causal and attention_mask is None and query.shape[2] > 1
    output = attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        causal="top_left" if causal else "none",
        softmax_scale=scaling,
        softcap=softcap or 0.0,
        mask=mask,
        bias=bias,
        dropout_p=dropout,
    )
    return output, None
