"""conformer: attention with biases of relative positions."""

import torch
from conformer.conformer import Attention, Conformer
from torch import nn

REQUIREMENTS = ["conformer==0.3.2"]
CANDIDATES = {
    "layer": "identify",
    "model": "check",
}


def layer() -> nn.Module:
    """With biases that depend on the queries."""
    return Attention(12, heads=3, dim_head=4)


def model() -> nn.Module:
    """A whole model."""
    torch.manual_seed(0)
    return Conformer(dim=24, depth=2, dim_head=8, heads=3).eval()
