"""torchvision: its vision transformers."""

import cpu_torchvision
import torch
from torch import nn
from torchvision.models import VisionTransformer
from torchvision.models.swin_transformer import ShiftedWindowAttention

REQUIREMENTS = ["torchvision==0.28.0"]
CANDIDATES = {
    "vit": "check",
    "swin": "check",
}


def vit() -> nn.Module:
    """A whole vision transformer."""
    torch.manual_seed(0)
    return VisionTransformer(
        image_size=16,
        patch_size=4,
        num_layers=2,
        num_heads=3,
        hidden_dim=24,
        mlp_dim=32,
        num_classes=5,
    ).eval()


def swin() -> nn.Module:
    """Attention within shifted windows of a picture."""
    torch.manual_seed(0)
    return ShiftedWindowAttention(24, [4, 4], [0, 0], 3).eval()
