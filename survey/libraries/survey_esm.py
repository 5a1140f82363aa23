"""fair-esm: its attention, a descendant of fairseq's, and a whole model."""

import torch
from esm import Alphabet
from esm.axial_attention import RowSelfAttention
from esm.model.esm2 import ESM2
from esm.multihead_attention import MultiheadAttention
from torch import nn

REQUIREMENTS = ["fair-esm==2.0.0"]
CANDIDATES = {"plain": "identify", "rotary": "identify", "rows": "identify", "esm2": "check"}


def plain() -> nn.Module:
    """As fairseq's."""
    return MultiheadAttention(12, 3)


def rotary() -> nn.Module:
    """With rotary positions."""
    return MultiheadAttention(12, 3, use_rotary_embeddings=True)


def rows() -> nn.Module:
    """Shared by the rows of an alignment."""
    return RowSelfAttention(12, 3)


def esm2() -> nn.Module:
    """A whole model of proteins."""
    torch.manual_seed(0)
    return ESM2(
        num_layers=2, embed_dim=24, attention_heads=3, alphabet=Alphabet.from_architecture("ESM-1b")
    ).eval()
