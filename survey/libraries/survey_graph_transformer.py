"""graph-transformer-pytorch: attention of nodes, with edges."""

from graph_transformer_pytorch.graph_transformer_pytorch import Attention
from torch import nn

REQUIREMENTS = ["graph-transformer-pytorch==0.1.1"]
CANDIDATES = {
    "layer": "identify",
}


def layer() -> nn.Module:
    """Its layer."""
    return Attention(12, dim_head=4, heads=3, edge_dim=6)
