"""allennlp: the attention of its transformers, of 2022."""

from allennlp.modules.transformer import SelfAttention, T5Attention
from torch import nn

REQUIREMENTS = ["allennlp==2.10.1"]
CANDIDATES = {
    "layer": "identify",
    "t5": "identify",
}


def layer() -> nn.Module:
    """As in BERT."""
    return SelfAttention(12, 3)


def t5() -> nn.Module:
    """As in T5."""
    return T5Attention(hidden_size=12, key_value_proj_dim=4, num_heads=3, dropout=0.0)
