"""pytorch-forecasting: the interpretable attention of its fusion transformer."""

from pytorch_forecasting.models.temporal_fusion_transformer.sub_modules import (
    InterpretableMultiHeadAttention,
    ScaledDotProductAttention,
)
from torch import nn

REQUIREMENTS = ["pytorch-forecasting==1.8.0"]
CANDIDATES = {
    "function": "identify",
    "layer": "identify",
}


def function() -> nn.Module:
    """On heads."""
    return ScaledDotProductAttention()


def layer() -> nn.Module:
    """Whose heads share their values."""
    return InterpretableMultiHeadAttention(3, 12)
