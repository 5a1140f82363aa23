"""keras: its layer on torch, by torch's function with any kernel and with its flash kernel alone."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from torch import Tensor

import conformance

REQUIREMENTS = ["keras==3.15.1"]
CANDIDATES = {"layer": "check", "layer_flash": "check"}
DECIDED = [
    {
        "clause": "shape.rejects-mismatch",
        "candidates": "layer*",
        "decided": "defect",
        "reason": "keys with fewer values are answered by torch's function",
        "finding": "018-torch-fewer-values-than-keys-are-answered",
    },
]
PROMISES = [
    {
        "sentence": "The boolean mask specifies which query elements can attend to which key elements, 1 indicates attention and 0 indicates no attention.",
        "link": "https://keras.io/api/layers/attention_layers/multi_head_attention/",
        "clauses": ["mask.golden"],
        "declares": {"masks": ["keep"]},
    },
]


def _declared(name: str, empty_rows: str, *, flash: bool) -> conformance.Candidate:
    """A built layer, whose kernels are [E, H, D] and [H, D, E], with its weights."""
    layer = keras.layers.MultiHeadAttention(3, 4, flash_attention=flash)
    layer.build((None, None, 12), (None, None, 12), (None, None, 12))
    (q, q_bias), (k, k_bias), (v, v_bias), (o, o_bias) = (
        (part.kernel.value.detach(), part.bias.value.detach().flatten())
        for part in (layer._query_dense, layer._key_dense, layer._value_dense, layer._output_dense)
    )
    q, k, v = (kernel.flatten(1).mT for kernel in (q, k, v))
    biases = {"q_bias": q_bias, "k_bias": k_bias, "v_bias": v_bias, "o_bias": o_bias}
    weights = conformance.ProjectionWeights(q=q, k=k, v=v, o=o.flatten(0, 1).mT, **biases)

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        return layer(query, value, key, attention_mask=keep, use_causal_mask=causal)

    return conformance.fixed_layer(
        forward,
        weights,
        num_heads=3,
        name=name,
        masks=["keep"],
        mask_shapes=["BQK"],
        causal="top-left",
        empty_rows=empty_rows,
    )


layer = _declared("layer", "mean-of-all", flash=False)
layer_flash = _declared("layer_flash", "zeros", flash=True)
