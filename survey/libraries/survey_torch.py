"""torch: its layer, its function by each kernel of a CPU, flex and variable-length attention."""

import checkout
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from candidates import (
    flex_attention,
    torch_multihead_attention,
    torch_scaled_dot_product,
    varlen_attention,
)

REQUIREMENTS = ["torch==2.13.0"]
CANDIDATES = {
    "multihead": "identify",
    "multihead_batch_first": "identify",
    "multihead_no_bias": "identify",
    "function": "identify",
    "function_math": "identify",
    "function_flash": "identify",
    "multihead_built": "check",
    "multihead_with_weights": "check",
    "multihead_fast_path": "check",
    "declared_math": "check",
    "declared_flash": "check",
    "flex": "check",
    "varlen": "check",
    "encoder": "check",
    "decoder": "check",
}
PROMISES = [
    {
        "sentence": "An error is thrown if both attn_mask and is_causal are set.",
        "link": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        "clauses": ["mask.causal-and-mask"],
        "candidates": "function*",
        "declares": {"causal_combination": "refused"},
    },
    {
        "sentence": "A boolean mask where a value of True indicates that the element *should* take part in attention.",
        "link": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        "clauses": ["mask.golden"],
        "candidates": "function*",
        "declares": {"masks": ["keep"]},
    },
    {
        "sentence": "The attention masking has the form of the upper left causal bias due to the alignment (see :class:`torch.nn.attention.bias.CausalBias`) when the mask is a non-square matrix.",
        "link": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        "clauses": ["mask.causal-alignment"],
        "candidates": "function*",
        "declares": {"causal": "top-left"},
    },
    {
        "sentence": "For a binary mask, a ``True`` value indicates that the corresponding position is not allowed to attend.",
        "link": "https://pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html",
        "clauses": ["mask.golden"],
        "candidates": "multihead*",
        "declares": {"masks": ["drop"]},
    },
    {
        "sentence": "For a float mask, the mask values will be added to the attention weight.",
        "link": "https://pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html",
        "clauses": ["mask.bias"],
        "candidates": "multihead*",
        "declares": {"masks": ["bias"]},
    },
]
DECIDED = [
    {
        "clause": "mask.causal-and-mask",
        "candidates": "function",
        "decided": "defect",
        "reason": "which kernel is chosen decides whether a mask with is_causal is refused",
        "finding": "016-torch-mask-and-causal-are-both-taken",
    },
    {
        "clause": "shape.strided",
        "candidates": "function_flash",
        "decided": "documented deviation",
        "reason": "each of the fused kernels has specific input limitations, as the documentation says: this one refuses channels that do not lie side by side",
    },
]


def multihead() -> nn.Module:
    """Sequence first, as by default."""
    return nn.MultiheadAttention(12, 3)


def multihead_batch_first() -> nn.Module:
    """Batch first."""
    return nn.MultiheadAttention(12, 3, batch_first=True)


def multihead_no_bias() -> nn.Module:
    """Without biases, which its fast path does not take."""
    return nn.MultiheadAttention(12, 3, batch_first=True, bias=False)


function = scaled_dot_product_attention
# What declares itself among the candidates of this project.
multihead_built = torch_multihead_attention.torch_multihead_attention
multihead_with_weights = torch_multihead_attention.torch_multihead_attention_with_weights
multihead_fast_path = torch_multihead_attention.torch_multihead_attention_fast_path
declared_math = torch_scaled_dot_product.torch_scaled_dot_product_math
declared_flash = torch_scaled_dot_product.torch_scaled_dot_product_flash
flex = flex_attention.flex_alibi
varlen = varlen_attention.varlen_attention


def function_math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The function by its composite kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )


def function_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The function by its fused kernel for CPUs."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )


def encoder() -> nn.Module:
    """A whole encoder, which takes its fast path in evaluation mode."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


def decoder() -> nn.Module:
    """A whole decoder, with attention to a memory."""
    torch.manual_seed(0)
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2).eval()
