"""ring-attention-pytorch: its function of heads, and its layer on one process."""

from ring_attention_pytorch import RingAttention, ring_attention
from torch import nn

REQUIREMENTS = ["ring-attention-pytorch==0.5.20"]
CANDIDATES = {
    "function": "identify",
    "layer": "identify",
    "causal": "identify",
}
DECIDED = [
    {
        "clause": ["shape.rejects-mismatch", "mask.*", "numerics.*", "gradients.*"],
        "candidates": "causal",
        "decided": "undocumented convention",
        "reason": "where it is causal a mask of keys is ignored, as comments in the source say",
    },
]

function = ring_attention.default_attention


def _made(*, causal: bool) -> nn.Module:
    layer = RingAttention(12, heads=3, dim_head=4, causal=causal, bucket_size=4)
    layer.to_qkv[0] = nn.Identity()  # the norm of its tokens
    return layer


def layer() -> nn.Module:
    """On one process, without the norm of its tokens."""
    return _made(causal=False)


def causal() -> nn.Module:
    """Causal."""
    return _made(causal=True)
