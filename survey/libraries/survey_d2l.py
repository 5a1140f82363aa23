"""d2l: the attention of the book."""

import cpu_torchvision
from d2l.torch import DotProductAttention, MultiHeadAttention
from torch import nn

REQUIREMENTS = ["d2l==1.0.3", "torchvision==0.28.0"]
CANDIDATES = {
    "function": "identify",
    "layer": "identify",
}


def function() -> nn.Module:
    """On sequences of vectors."""
    return DotProductAttention(0.0)


def layer() -> nn.Module:
    """Its layer."""
    return MultiHeadAttention(12, 3, 0.0)
