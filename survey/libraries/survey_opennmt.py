"""OpenNMT-py: its layer with each kind of positions."""

from onmt.modules import MultiHeadedAttention
from torch import nn

REQUIREMENTS = ["OpenNMT-py==3.5.1"]
CANDIDATES = {
    "layer": "identify",
    "grouped": "identify",
    "rotary": "identify",
    "alibi": "identify",
}


def _made(heads: int = 3, **more: int) -> nn.Module:
    layer = MultiHeadedAttention(heads, 4 * heads, dropout=0.0, attn_type="self", **more)
    for part in (layer.linear_query, layer.linear_keys, layer.linear_values, layer.final_linear):
        part.reset_parameters()  # it is built without
    return layer


def layer() -> nn.Module:
    """Without positions."""
    return _made()


def grouped() -> nn.Module:
    """Two heads of keys and values for four."""
    return _made(4, num_kv=2)


def rotary() -> nn.Module:
    """With rotary positions."""
    return _made(max_relative_positions=-1)


def alibi() -> nn.Module:
    """With linear biases."""
    return _made(4, max_relative_positions=-2)
