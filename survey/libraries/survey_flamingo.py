"""flamingo-pytorch: the attention of its perceiver."""

from flamingo_pytorch.flamingo_pytorch import PerceiverAttention
from torch import nn

REQUIREMENTS = ["flamingo-pytorch==0.1.2"]
CANDIDATES = {
    "perceiver": "identify",
}


def perceiver() -> nn.Module:
    """Of latents to tokens and to themselves."""
    return PerceiverAttention(dim=12, dim_head=4, heads=3)
