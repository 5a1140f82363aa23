"""enformer-pytorch: attention with relative positions."""

from enformer_pytorch.modeling_enformer import Attention
from torch import nn

REQUIREMENTS = ["enformer-pytorch==0.8.12"]
CANDIDATES = {
    "layer": "identify",
}


def layer() -> nn.Module:
    """Its layer."""
    return Attention(12, num_rel_pos_features=12, heads=3, dim_key=4, dim_value=4)
