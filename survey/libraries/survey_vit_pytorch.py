"""vit-pytorch: the attentions of its vision transformers, which normalise their own tokens."""

import cpu_torchvision
import torch
from behind_norm import behind_norm
from torch import nn
from vit_pytorch import SimpleViT, ViT
from vit_pytorch.cait import CaiT
from vit_pytorch.cross_vit import CrossViT
from vit_pytorch.deepvit import DeepViT
from vit_pytorch.simple_vit_with_qk_norm import Attention as NormalisedAttention
from vit_pytorch.vit import Attention
from vit_pytorch.vit_for_small_dataset import LSA

REQUIREMENTS = ["vit-pytorch==1.26.11", "torchvision==0.28.0"]
CANDIDATES = {
    "layer": "identify",
    "layer_behind_norm": "identify",
    "normalised_behind_norm": "identify",
    "local": "identify",
    "vit": "check",
    "simple": "check",
    "deep": "check",
    "cait": "check",
    "cross": "check",
}
_SIZES = {"dim": 24, "depth": 2, "heads": 3, "dim_head": 8, "mlp_dim": 32}
_PICTURE = {"image_size": 16, "patch_size": 4, "num_classes": 5}


def layer() -> nn.Module:
    """The attention of a vision transformer."""
    return Attention(12, heads=3, dim_head=4)


def layer_behind_norm() -> nn.Module:
    """The same without the norm of its tokens."""
    return behind_norm(Attention(12, heads=3, dim_head=4))


def normalised_behind_norm() -> nn.Module:
    """With queries and keys that are normalised, without the norm of its tokens."""
    return behind_norm(NormalisedAttention(12, heads=3, dim_head=4))


def local() -> nn.Module:
    """For small data sets: no query attends to its own place."""
    return LSA(12, heads=3, dim_head=4)


def vit() -> nn.Module:
    """A whole vision transformer."""
    torch.manual_seed(0)
    return ViT(**_PICTURE, **_SIZES).eval()


def simple() -> nn.Module:
    """A plainer one."""
    torch.manual_seed(0)
    return SimpleViT(**_PICTURE, **_SIZES).eval()


def deep() -> nn.Module:
    """Whose heads are mixed after the softmax."""
    torch.manual_seed(0)
    return DeepViT(**_PICTURE, **_SIZES).eval()


def cait() -> nn.Module:
    """Whose heads are mixed before and after the softmax."""
    torch.manual_seed(0)
    return CaiT(**_PICTURE, **_SIZES, cls_depth=1).eval()


def cross() -> nn.Module:
    """With attention between two sizes of patches."""
    torch.manual_seed(0)
    return CrossViT(
        image_size=16,
        num_classes=5,
        sm_dim=24,
        lg_dim=24,
        sm_patch_size=4,
        lg_patch_size=8,
        sm_enc_depth=1,
        lg_enc_depth=1,
        cross_attn_depth=1,
        depth=1,
    ).eval()
