"""alphafold3-pytorch: its gated attention, and its function of heads."""

from alphafold3_pytorch.attention import Attend, Attention
from torch import nn

REQUIREMENTS = ["alphafold3-pytorch==0.8.3"]
CANDIDATES = {
    "core": "identify",
    "capped": "identify",
    "layer": "identify",
}


def core() -> nn.Module:
    """Its function of heads."""
    return Attend()


def capped() -> nn.Module:
    """With capped logits."""
    return Attend(enable_attn_softclamp=True, attn_softclamp_value=5.0)


def layer() -> nn.Module:
    """Without its gate."""
    return Attention(dim=12, dim_head=4, heads=3, gate_output=False)
