"""performer-pytorch: attention approximated by random features, as it says itself."""

from performer_pytorch import FastAttention, SelfAttention
from torch import nn

REQUIREMENTS = ["performer-pytorch==1.1.4"]
CANDIDATES = {
    "function": "identify",
    "layer": "identify",
}


def function() -> nn.Module:
    """On heads."""
    return FastAttention(dim_heads=4, nb_features=16)


def layer() -> nn.Module:
    """On tokens."""
    return SelfAttention(dim=12, heads=3, dim_head=4)
