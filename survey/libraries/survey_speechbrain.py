"""speechbrain: its wrapped layer, and those with rotary and relative positions."""

from speechbrain.nnet.attention import MultiheadAttention, RoPEMHA
from torch import nn

REQUIREMENTS = ["speechbrain==1.1.2"]
CANDIDATES = {
    "multihead": "identify",
    "rotary": "identify",
}


def multihead() -> nn.Module:
    """Torch's layer, batch first."""
    return MultiheadAttention(nhead=3, d_model=12)


def rotary() -> nn.Module:
    """With rotary positions."""
    return RoPEMHA(embed_dim=12, num_heads=3)
