"""torchvision: its vision transformers."""

import cpu_torchvision
import torch
from torch import nn
from torchvision.models import VisionTransformer
from torchvision.models.swin_transformer import SwinTransformer

REQUIREMENTS = ["torchvision==0.28.0"]
CANDIDATES = {
    "vit": "check",
    "swin": "check",
}


def vit() -> nn.Module:
    """A whole vision transformer."""
    torch.manual_seed(0)
    model = VisionTransformer(
        image_size=16,
        patch_size=4,
        num_layers=2,
        num_heads=3,
        hidden_dim=24,
        mlp_dim=32,
        num_classes=5,
    )
    nn.init.normal_(model.heads.head.weight)  # zeros as it is built: no attention would be seen
    return model.eval()


def swin() -> nn.Module:
    """Attention within windows of a picture, shifted in the second block."""
    torch.manual_seed(0)
    return SwinTransformer([4, 4], 24, [2], [3], [2, 2], num_classes=5).eval()
