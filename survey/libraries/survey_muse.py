"""muse-maskgit-pytorch: attention with normalised queries and keys, and a null key."""

import cpu_torchvision
from behind_norm import behind_norm
from muse_maskgit_pytorch.attend import Attend
from muse_maskgit_pytorch.muse_maskgit_pytorch import Attention
from torch import nn

REQUIREMENTS = ["muse-maskgit-pytorch==0.3.5", "torchvision==0.28.0"]
CANDIDATES = {
    "core": "identify",
    "core_flash": "identify",
    "layer": "identify",
}


def core() -> nn.Module:
    """Its function of heads, in its own steps."""
    return Attend()


def core_flash() -> nn.Module:
    """By torch's function."""
    return Attend(flash=True)


def layer() -> nn.Module:
    """Its layer, without the norm of its tokens."""
    return behind_norm(Attention(12, dim_head=4, heads=3))
