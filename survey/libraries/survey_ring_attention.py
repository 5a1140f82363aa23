"""ring-attention-pytorch: its function of heads, and its layer on one process."""

from ring_attention_pytorch import RingAttention, ring_attention
from torch import nn

REQUIREMENTS = ["ring-attention-pytorch==0.5.20"]
CANDIDATES = {
    "function": "identify",
    "layer": "identify",
    "causal": "identify",
}

function = ring_attention.default_attention


def layer() -> nn.Module:
    """On one process."""
    return RingAttention(12, heads=3, dim_head=4, bucket_size=4)


def causal() -> nn.Module:
    """Causal."""
    return RingAttention(12, heads=3, dim_head=4, causal=True, bucket_size=4)
