"""sam2: the attention of its decoder, of its memory and of its backbone."""

from sam2.modeling.backbones.hieradet import MultiScaleAttention
from sam2.modeling.sam.transformer import Attention, RoPEAttention
from torch import nn

ALONE = ["sam2==1.1.0"]
REQUIREMENTS = ["hydra-core==1.3.8", "iopath==0.1.10", "pillow==13.0.0", "tqdm==4.70.1"]
CANDIDATES = {
    "decoder": "identify",
    "downsampled": "identify",
    "other_keys": "identify",
    "memory": "identify",
    "backbone": "identify",
}


def decoder() -> nn.Module:
    """As in its decoder."""
    return Attention(12, 3)


def downsampled() -> nn.Module:
    """Of half the width inside."""
    return Attention(12, 3, downsample_rate=2)


def other_keys() -> nn.Module:
    """To tokens of another width."""
    return Attention(12, 3, kv_in_dim=9)


def memory() -> nn.Module:
    """With rotary positions on a square of 16 tokens."""
    return RoPEAttention(12, 3, feat_sizes=(4, 4))


def backbone() -> nn.Module:
    """On pictures, as in its backbone."""
    return MultiScaleAttention(12, 12, 3)
