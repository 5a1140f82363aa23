"""CoCa-pytorch: attention to pictures with one head of keys."""

from coca_pytorch.coca_pytorch import CrossAttention
from torch import nn

REQUIREMENTS = ["CoCa-pytorch==0.1.0"]
CANDIDATES = {
    "cross": "identify",
}


def cross() -> nn.Module:
    """To the tokens of a picture."""
    return CrossAttention(12, context_dim=9, dim_head=4, heads=3)
