"""monai: the blocks of its transformers, by each kernel."""

import torch
from monai.networks.blocks.crossattention import CrossAttentionBlock
from monai.networks.blocks.selfattention import SABlock
from monai.networks.nets import ViT
from torch import nn

REQUIREMENTS = ["monai==1.6.1", "einops==0.8.2"]
CANDIDATES = {
    "self_attention": "identify",
    "causal": "identify",
    "flash": "identify",
    "cross": "identify",
    "vit": "check",
}
PROMISES = [
    {
        "sentence": "attn_mask (torch.Tensor, optional): mask to apply to the attention matrix. B x (s_dim_1 * ... * s_dim_n).",
        "link": "https://github.com/Project-MONAI/MONAI/blob/1.6.1/monai/networks/blocks/selfattention.py",
        "clauses": ["mask.golden"],
        "declares": {"mask_shapes": ["BK", "B"]},
    },
]
DECIDED = [
    {
        "clause": [
            "shape.*",
            "mask.*",
            "equivariance.*",
            "numerics.*",
            "gradients.*",
            "state.*",
            "device.*",
        ],
        "candidates": "causal",
        "kind": "raised",
        "decided": "documented deviation",
        "reason": "with causal the length of sequences must be given: longer ones than these 16 raise",
    },
]


def self_attention() -> nn.Module:
    """In its own steps."""
    return SABlock(12, 3)


def causal() -> nn.Module:
    """Causal for sequences of a fixed length."""
    return SABlock(12, 3, causal=True, sequence_length=16)


def flash() -> nn.Module:
    """By torch's function."""
    return SABlock(12, 3, use_flash_attention=True)


def cross() -> nn.Module:
    """To a context."""
    return CrossAttentionBlock(12, 3, context_input_size=9)


def vit() -> nn.Module:
    """A whole vision transformer."""
    torch.manual_seed(0)
    return ViT(
        in_channels=1,
        img_size=16,
        patch_size=8,
        hidden_size=24,
        mlp_dim=32,
        num_layers=2,
        num_heads=3,
        spatial_dims=2,
    ).eval()
