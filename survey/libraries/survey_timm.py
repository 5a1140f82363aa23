"""timm: the attentions of its vision transformers, fused and written out."""

import cpu_torchvision
from timm.layers import Attention
from timm.models import create_model
from torch import nn

REQUIREMENTS = ["timm==1.0.31", "torchvision==0.28.0"]
CANDIDATES = {
    "vision": "identify",
    "written_out": "identify",
    "normalised": "identify",
    "vit": "check",
}
DECIDED = [
    {
        "clause": [
            "mask.causal-and-mask",
            "mask.empty-row",
            "mask.empty-row-options",
            "numerics.any-length",
            "numerics.options",
            "gradients.options",
            "state.call-order",
        ],
        "candidates": "[vn]*",
        "kind": "raised",
        "decided": "defect",
        "reason": "the fused way hands mask and is_causal to torch, whose kernels take or refuse both; the written-out way drops the mask",
        "finding": "020-timm-fused-and-written-out-combine-masks-differently",
    },
]


def vision() -> nn.Module:
    """The attention of its vision transformer, by torch's kernel."""
    return Attention(12, num_heads=3, qkv_bias=True)


def written_out() -> nn.Module:
    """The same in its own steps."""
    layer = Attention(12, num_heads=3, qkv_bias=True)
    layer.fused_attn = False
    return layer


def normalised() -> nn.Module:
    """With normalised queries and keys."""
    return Attention(12, num_heads=3, qkv_bias=True, qk_norm=True, norm_layer=nn.LayerNorm)


def vit() -> nn.Module:
    """A whole vision transformer."""
    return create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2, num_heads=3, num_classes=5
    )
