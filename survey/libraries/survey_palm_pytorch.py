"""PaLM-pytorch: attention beside the feed-forward, one head of keys, rotary positions."""

import torch
from palm_pytorch import PaLM
from torch import nn

REQUIREMENTS = ["PaLM-pytorch==0.2.2"]
CANDIDATES = {
    "model": "check",
}


def model() -> nn.Module:
    """A whole decoder."""
    torch.manual_seed(0)
    return PaLM(dim=32, num_tokens=50, depth=2, dim_head=8, heads=4).eval()
