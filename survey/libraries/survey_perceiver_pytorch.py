"""perceiver-pytorch: its attention to a context, and whole models."""

import torch
from perceiver_pytorch import PerceiverIO
from perceiver_pytorch.perceiver_pytorch import Attention
from torch import nn

REQUIREMENTS = ["perceiver-pytorch==0.11.0"]
CANDIDATES = {
    "layer": "identify",
    "cross": "identify",
    "perceiver_io": "check",
}


def layer() -> nn.Module:
    """Of tokens to themselves."""
    return Attention(12, heads=3, dim_head=4)


def cross() -> nn.Module:
    """To a context of another width."""
    return Attention(12, context_dim=9, heads=3, dim_head=4)


def perceiver_io() -> nn.Module:
    """A whole model of tokens."""
    torch.manual_seed(0)
    return PerceiverIO(
        depth=2,
        dim=24,
        queries_dim=16,
        num_latents=6,
        latent_dim=24,
        cross_heads=1,
        latent_heads=3,
        cross_dim_head=8,
        latent_dim_head=8,
    ).eval()
