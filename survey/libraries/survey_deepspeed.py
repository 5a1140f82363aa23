"""deepspeed: the attention of its transformer for training."""

from deepspeed.ops.transformer import DeepSpeedTransformerConfig, DeepSpeedTransformerLayer
from torch import nn

REQUIREMENTS = ["deepspeed==0.19.8"]
CANDIDATES = {"layer": "check"}


def layer() -> nn.Module:
    """A layer of BERT."""
    return DeepSpeedTransformerLayer(
        DeepSpeedTransformerConfig(
            batch_size=2,
            hidden_size=12,
            intermediate_size=24,
            heads=3,
            attn_dropout_ratio=0.0,
            hidden_dropout_ratio=0.0,
            num_hidden_layers=1,
            initializer_range=0.02,
        )
    )
