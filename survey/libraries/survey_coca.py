"""CoCa-pytorch: attention to pictures with one head of keys."""

from behind_norm import behind_norm
from coca_pytorch.coca_pytorch import CrossAttention
from torch import nn

REQUIREMENTS = ["CoCa-pytorch==0.1.0"]
CANDIDATES = {
    "cross": "identify",
}


def cross() -> nn.Module:
    """To the tokens of a picture, without the norm of its own."""
    return behind_norm(CrossAttention(12, context_dim=9, dim_head=4, heads=3))
