"""memory-efficient-attention-pytorch: whole and in buckets."""

from memory_efficient_attention_pytorch import Attention, FlashAttention
from torch import nn

REQUIREMENTS = ["memory-efficient-attention-pytorch==0.1.6"]
CANDIDATES = {
    "plain": "identify",
    "buckets": "identify",
    "flash": "identify",
    "causal_flash": "identify",
}


def plain() -> nn.Module:
    """All logits at once."""
    return Attention(dim=12, heads=3, dim_head=4)


def buckets() -> nn.Module:
    """Four queries and keys at a time."""
    return Attention(
        dim=12, heads=3, dim_head=4, memory_efficient=True, q_bucket_size=4, k_bucket_size=4
    )


def flash() -> nn.Module:
    """With a backward pass of its own."""
    return FlashAttention(dim=12, heads=3, dim_head=4, q_bucket_size=4, k_bucket_size=4)


def causal_flash() -> nn.Module:
    """The same, causal."""
    return FlashAttention(
        dim=12, heads=3, dim_head=4, causal=True, q_bucket_size=4, k_bucket_size=4
    )
