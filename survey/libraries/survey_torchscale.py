"""torchscale: the attention of its foundation models."""

from types import SimpleNamespace

from torch import nn
from torchscale.component.multihead_attention import MultiheadAttention

REQUIREMENTS = ["torchscale==0.3.0"]
CANDIDATES = {
    "layer": "identify",
}


def layer() -> nn.Module:
    """As in its encoders."""
    return MultiheadAttention(
        SimpleNamespace(
            multiway=False,
            xpos_rel_pos=False,
            layernorm_eps=1e-5,
            flash_attention=False,
            scale_length=0,
        ),
        12,
        3,
        self_attention=True,
    )
