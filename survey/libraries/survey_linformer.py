"""linformer: keys and values projected to fewer, which is an approximation."""

from linformer import LinformerSelfAttention
from torch import nn

REQUIREMENTS = ["linformer==0.2.3"]
CANDIDATES = {
    "layer": "identify",
}


def layer() -> nn.Module:
    """For sequences of a fixed length."""
    return LinformerSelfAttention(12, 16, k=8, heads=3)
