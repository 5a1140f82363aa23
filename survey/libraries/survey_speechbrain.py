"""speechbrain: its wrapped layer, and those with rotary and relative positions."""

import no_torchaudio
from speechbrain.nnet.attention import MultiheadAttention, RelPosMHAXL, RoPEMHA
from torch import Tensor, nn

import conformance

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
    "rotary_of_equals": "check",
    "relative": "identify",
}
DECIDED = [
    {
        "clause": [
            "position.rotary",
            "numerics.golden",
            "numerics.scale",
            "numerics.large-logits",
            "numerics.accumulation",
            "numerics.near-ties",
            "numerics.subnormal",
            "numerics.any-length",
            "gradients.golden",
            "gradients.options",
            "gradients.any-length",
        ],
        "candidates": "rotary",
        "kind": "value",
        "decided": "undocumented convention",
        "reason": "logits are divided by the root of the width of all heads together",
    },
    {
        "clause": [
            "position.rotary",
            "numerics.golden",
            "numerics.scale",
            "numerics.large-logits",
            "numerics.accumulation",
            "numerics.near-ties",
            "numerics.subnormal",
            "numerics.any-length",
            "gradients.golden",
            "gradients.options",
            "gradients.any-length",
        ],
        "candidates": "rotary_of_equals",
        "kind": "value",
        "decided": "defect",
        "reason": "equal inputs are projected by rows cut head after head, all others by role after role",
        "finding": "032-speechbrain-rotary-layer-cuts-its-weights-in-two-ways",
    },
]


def multihead() -> nn.Module:
    """Torch's layer, batch first."""
    return MultiheadAttention(nhead=3, d_model=12)


def rotary() -> nn.Module:
    """With rotary positions."""
    return RoPEMHA(embed_dim=12, num_heads=3)


def _of_equals() -> conformance.Candidate:
    """Rotary on equal inputs, with the weights by which unequal ones are projected."""
    layer = RoPEMHA(embed_dim=12, num_heads=3).eval()
    q, k, v = layer.in_proj_weight.detach().chunk(3)
    out = layer.out_proj
    weights = conformance.ProjectionWeights(
        q=q, k=k, v=v, o=out.weight.detach(), o_bias=out.bias.detach()
    )

    def forward(tokens: Tensor) -> Tensor:
        answer: Tensor = layer(tokens, tokens, tokens, return_attn_weights=False)
        return answer

    return conformance.fixed_layer(
        forward,
        weights,
        num_heads=3,
        name="rotary_of_equals",
        inputs="self",
        semantics=conformance.STANDARD.replace(
            rotary="interleaved", scale="inverse-sqrt-model-width"
        ),
    )


rotary_of_equals = _of_equals()


def relative() -> nn.Module:
    """With relative positions, which are given to it."""
    return RelPosMHAXL(embed_dim=12, num_heads=3)
