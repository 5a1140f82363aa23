"""axial-attention: its layer of one axis, and along the axes of a picture."""

from axial_attention import AxialAttention, SelfAttention
from torch import nn

REQUIREMENTS = ["axial-attention==0.6.1"]
CANDIDATES = {
    "layer": "identify",
    "axes": "check",
}


def layer() -> nn.Module:
    """Of one axis."""
    return SelfAttention(12, heads=3)


def axes() -> nn.Module:
    """Along both axes of a picture."""
    return AxialAttention(dim=12, dim_index=1, heads=3, num_dimensions=2)
