"""d2l: the attention of the book."""

import cpu_torchvision
import torch
from d2l.torch import DotProductAttention, MultiHeadAttention
from torch import nn

ALONE = ["d2l==1.0.3"]
REQUIREMENTS = [
    "torchvision==0.28.0",
    "matplotlib==3.11.2",
    "matplotlib-inline==0.2.2",
    "ipython==9.18.1",
    "pandas==3.1.1",
    "requests==2.34.2",
    "scipy==1.17.1",
]
CANDIDATES = {
    "function": "identify",
    "layer": "identify",
}


def function() -> nn.Module:
    """On sequences of vectors."""
    return DotProductAttention(0.0)


def layer() -> nn.Module:
    """Its layer, called once: it learns how wide tokens are."""
    layer, tokens = MultiHeadAttention(12, 3, 0.0), torch.zeros(1, 2, 12)
    with torch.no_grad():  # it keeps its weights of attention
        layer(tokens, tokens, tokens, None)
    return layer
