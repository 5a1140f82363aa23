"""torch_geometric: linear stand-ins of attention, as they say themselves."""

from torch import nn
from torch_geometric.nn.attention import PerformerAttention, SGFormerAttention

REQUIREMENTS = ["torch-geometric==2.8.1"]
CANDIDATES = {
    "performer": "identify",
    "sgformer": "identify",
}


def performer() -> nn.Module:
    """By random features."""
    return PerformerAttention(12, 3, 4)


def sgformer() -> nn.Module:
    """Without a softmax."""
    return SGFormerAttention(12, 1, 12)
