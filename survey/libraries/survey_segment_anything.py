"""segment-anything: the attention of its decoder, its encoder of pictures."""

import cpu_torchvision
import torch
from segment_anything.modeling import ImageEncoderViT
from segment_anything.modeling.transformer import Attention
from torch import nn

REQUIREMENTS = ["segment-anything==1.0", "torchvision==0.28.0"]
CANDIDATES = {
    "decoder": "identify",
    "downsampled": "identify",
    "encoder": "check",
    "encoder_relative": "check",
}


def decoder() -> nn.Module:
    """As in its decoder."""
    return Attention(12, 3)


def downsampled() -> nn.Module:
    """Of half the width inside."""
    return Attention(12, 3, downsample_rate=2)


def _encoder(*, relative: bool) -> nn.Module:
    torch.manual_seed(0)
    return ImageEncoderViT(
        img_size=32,
        patch_size=8,
        embed_dim=24,
        depth=2,
        num_heads=3,
        out_chans=8,
        use_rel_pos=relative,
        window_size=0,
    ).eval()


def encoder() -> nn.Module:
    """The encoder of pictures."""
    return _encoder(relative=False)


def encoder_relative() -> nn.Module:
    """With biases of relative positions."""
    return _encoder(relative=True)
