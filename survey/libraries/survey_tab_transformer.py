"""tab-transformer-pytorch: its layer on columns."""

from tab_transformer_pytorch.tab_transformer_pytorch import Attention
from torch import nn

REQUIREMENTS = ["tab-transformer-pytorch==0.6.1"]
CANDIDATES = {
    "layer": "identify",
}


def layer() -> nn.Module:
    """Its layer."""
    return Attention(12, heads=3, dim_head=4)
