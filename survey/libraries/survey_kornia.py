"""kornia: the attentions of its matchers and of its segmentation."""

from kornia.feature.lightglue import Attention as MatchingAttention
from kornia.feature.loftr.loftr_module.linear_attention import FullAttention, LinearAttention
from kornia.models.siglip2.attention import SigLip2Attention
from torch import nn

REQUIREMENTS = ["kornia==0.9.0"]
CANDIDATES = {
    "loftr_full": "identify",
    "loftr_linear": "identify",
    "lightglue": "identify",
    "siglip": "identify",
}
DECIDED = [
    {
        "clause": [
            "shape.rejects-mismatch",
            "mask.golden",
            "mask.padding-is-absence",
            "mask.single-key",
            "mask.no-leak",
            "numerics.options",
            "numerics.convex",
            "numerics.any-length",
            "gradients.golden",
            "gradients.options",
            "gradients.masked-zero",
            "gradients.any-length",
        ],
        "candidates": "loftr_full",
        "decided": "defect",
        "reason": "a mask of keys hides nothing unless one of queries is given, too",
        "finding": "023-kornia-full-attention-drops-a-mask-of-keys",
    },
]


def loftr_full() -> nn.Module:
    """Softmax attention on [B, L, H, D]."""
    return FullAttention()


def loftr_linear() -> nn.Module:
    """Its linear stand-in, which is no softmax."""
    return LinearAttention()


def lightglue() -> nn.Module:
    """Without its flash kernel."""
    return MatchingAttention(allow_flash=False)


def siglip() -> nn.Module:
    """The layer of its vision tower."""
    return SigLip2Attention(12, 3)
