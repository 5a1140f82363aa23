"""local-attention: attention within windows, with and without causality."""

import torch
from local_attention import LocalMHA, LocalTransformer
from torch import nn

REQUIREMENTS = ["local-attention==1.11.2"]
CANDIDATES = {"causal": "identify", "both_sides": "identify", "model": "check"}


def causal() -> nn.Module:
    """Causal, with rotary positions."""
    return LocalMHA(dim=12, heads=3, dim_head=4, window_size=4, causal=True)


def both_sides() -> nn.Module:
    """Of windows on both sides."""
    return LocalMHA(dim=12, heads=3, dim_head=4, window_size=4, causal=False)


def model() -> nn.Module:
    """A whole causal model."""
    torch.manual_seed(0)
    return LocalTransformer(
        num_tokens=50,
        dim=24,
        depth=2,
        max_seq_len=64,
        local_attn_window_size=4,
        heads=3,
        dim_head=8,
    ).eval()
