"""speechbrain: its wrapped layer, and those with rotary and relative positions."""

import no_torchaudio
from speechbrain.nnet.attention import MultiheadAttention, RelPosMHAXL, RoPEMHA
from torch import nn

ALONE = ["speechbrain==1.1.2"]
REQUIREMENTS = [
    "hyperpyyaml==1.2.3",
    "huggingface_hub==2.4.0",
    "joblib==1.6.0",
    "pandas==3.1.1",
    "scipy==1.17.1",
    "sentencepiece==0.2.3",
    "soundfile==0.14.0",
]
CANDIDATES = {
    "multihead": "identify",
    "rotary": "identify",
    "relative": "identify",
}
DECIDED = [
    {
        "clause": ["position.rotary", "numerics.*", "gradients.*"],
        "candidates": "rotary",
        "kind": "value",
        "decided": "undocumented convention",
        "reason": "logits are divided by the root of the width of all heads together",
    },
]


def multihead() -> nn.Module:
    """Torch's layer, batch first."""
    return MultiheadAttention(nhead=3, d_model=12)


def rotary() -> nn.Module:
    """With rotary positions."""
    return RoPEMHA(embed_dim=12, num_heads=3)


def relative() -> nn.Module:
    """With relative positions, which are given to it."""
    return RelPosMHAXL(embed_dim=12, num_heads=3)
