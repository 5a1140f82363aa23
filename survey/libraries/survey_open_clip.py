"""open_clip: the attention of its transformers, and its towers."""

import cpu_torchvision
import torch
from open_clip.transformer import Attention, CustomResidualAttentionBlock, TextTransformer
from torch import nn

REQUIREMENTS = ["open_clip_torch==3.3.0", "torchvision==0.28.0"]
CANDIDATES = {
    "plain": "identify",
    "head_scale": "identify",
    "cosine": "identify",
    "block": "check",
    "text": "check",
}
DECIDED = [
    {
        "clause": "reached",
        "candidates": "cosine",
        "decided": "defect",
        "reason": "the way of scaled_cosine multiplies four axes by a product of three",
        "finding": "026-open-clip-scaled-cosine-raises",
    },
    {
        "clause": "model.any-size",
        "candidates": "text*",
        "decided": "undocumented convention",
        "reason": "texts are as long as context_length: its causal mask has that size alone",
    },
]


def plain() -> nn.Module:
    """As in its transformers."""
    return Attention(12, num_heads=3)


def head_scale() -> nn.Module:
    """With a learned factor for each head."""
    return Attention(12, num_heads=3, scale_heads=True)


def cosine() -> nn.Module:
    """With queries and keys of unit length, and a learned scale."""
    return Attention(12, num_heads=3, scaled_cosine=True)


def block() -> nn.Module:
    """A block of a tower."""
    torch.manual_seed(0)
    return CustomResidualAttentionBlock(24, 3).eval()


def text() -> nn.Module:
    """The tower of texts."""
    torch.manual_seed(0)
    return TextTransformer(
        context_length=16, vocab_size=50, width=24, heads=3, layers=2, output_dim=8
    ).eval()
