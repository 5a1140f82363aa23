"""timesformer-pytorch: its function of heads, and a whole model of films."""

import torch
from timesformer_pytorch import TimeSformer
from timesformer_pytorch.timesformer_pytorch import attn
from torch import nn

REQUIREMENTS = ["timesformer-pytorch==0.4.1", "einops==0.8.2"]
CANDIDATES = {
    "function": "identify",
    "model": "check",
}

function = attn


def model() -> nn.Module:
    """Attention over time, then over space."""
    torch.manual_seed(0)
    return TimeSformer(
        dim=24,
        image_size=8,
        patch_size=4,
        num_frames=3,
        num_classes=5,
        depth=2,
        heads=3,
        dim_head=8,
    ).eval()
