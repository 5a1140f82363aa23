"""diffusers: its attention by each processor, and to tokens of another width."""

from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0
from torch import nn

REQUIREMENTS = ["diffusers==0.42.1"]
CANDIDATES = {"by_torch": "identify", "written_out": "identify", "cross": "identify"}


def by_torch() -> nn.Module:
    """By torch's function, as by default."""
    return Attention(query_dim=12, heads=3, dim_head=4, processor=AttnProcessor2_0())


def written_out() -> nn.Module:
    """In its own steps."""
    return Attention(query_dim=12, heads=3, dim_head=4, processor=AttnProcessor())


def cross() -> nn.Module:
    """To tokens of another width."""
    return Attention(query_dim=12, cross_attention_dim=9, heads=3, dim_head=4)
