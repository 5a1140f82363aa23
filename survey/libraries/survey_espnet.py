"""espnet: the attention of its transformers, in its own steps and by torch's function."""

from espnet.nets.pytorch_backend.transformer.attention import MultiHeadedAttention
from torch import nn

ALONE = ["espnet==202511"]
CANDIDATES = {
    "written_out": "identify",
    "by_torch": "identify",
    "normalised": "identify",
}


def written_out() -> nn.Module:
    """In its own steps."""
    return MultiHeadedAttention(3, 12, 0.0)


def by_torch() -> nn.Module:
    """By torch's function."""
    return MultiHeadedAttention(3, 12, 0.0, use_sdpa=True)


def normalised() -> nn.Module:
    """With queries and keys that are normalised."""
    return MultiHeadedAttention(3, 12, 0.0, qk_norm=True)
