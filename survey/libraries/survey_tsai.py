"""tsai: the attentions of its transformers of time series."""

from torch import nn
from tsai.models.layers import MultiheadAttention, ScaledDotProductAttention

REQUIREMENTS = ["tsai==1.0.1"]
CANDIDATES = {
    "layer": "identify",
    "local": "identify",
    "core": "identify",
}


def layer() -> nn.Module:
    """Its layer."""
    return MultiheadAttention(12, 3)


def local() -> nn.Module:
    """With a learned scale."""
    return MultiheadAttention(12, 3, lsa=True)


def core() -> nn.Module:
    """Its function of heads."""
    return ScaledDotProductAttention(12, 3)
