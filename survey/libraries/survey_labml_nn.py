"""labml-nn: its annotated attentions."""

import cpu_torchvision
from labml_nn.transformers.alibi import AlibiMultiHeadAttention
from labml_nn.transformers.mha import MultiHeadAttention
from labml_nn.transformers.rope import RotaryPEMultiHeadAttention
from torch import nn

ALONE = ["labml-nn==0.5.1"]
# No later labml has what its attentions call.
REQUIREMENTS = [
    "labml==0.4.168",
    "labml-helpers==0.4.89",
    "einops==0.8.2",
    "torchvision==0.28.0",
]
CANDIDATES = {
    "plain": "identify",
    "alibi": "identify",
    "rotary": "identify",
}


def plain() -> nn.Module:
    """As in the paper."""
    return MultiHeadAttention(3, 12, 0.0)


def alibi() -> nn.Module:
    """With linear biases."""
    return AlibiMultiHeadAttention(4, 16, 0.0)


def rotary() -> nn.Module:
    """With rotary positions."""
    return RotaryPEMultiHeadAttention(3, 12, 1.0, 0.0)
