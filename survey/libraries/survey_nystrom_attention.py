"""nystrom-attention: an approximation by landmarks."""

from nystrom_attention import NystromAttention
from torch import nn

REQUIREMENTS = ["nystrom-attention==0.0.14"]
CANDIDATES = {
    "layer": "identify",
}


def layer() -> nn.Module:
    """With six landmarks."""
    return NystromAttention(12, dim_head=4, heads=3, num_landmarks=6, residual=False)
