"""x-clip: the attention of its towers."""

import cpu_torchvision
import torch
from torch import nn
from x_clip.x_clip import Attention, TextTransformer

REQUIREMENTS = ["x-clip==0.14.4", "torchvision==0.28.0"]
CANDIDATES = {
    "layer": "identify",
    "causal": "identify",
    "text": "check",
}


def layer() -> nn.Module:
    """Its layer."""
    return Attention(12, dim_head=4, heads=3)


def causal() -> nn.Module:
    """Causal."""
    return Attention(12, dim_head=4, heads=3, causal=True)


def text() -> nn.Module:
    """The tower of texts."""
    torch.manual_seed(0)
    return TextTransformer(24, num_tokens=50, max_seq_len=64, dim_head=8, heads=3, depth=2).eval()
