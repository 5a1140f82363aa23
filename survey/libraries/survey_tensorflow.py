"""tensorflow: the layer of keras on its back end, and that of keras 2."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tf_keras

import conformance

REQUIREMENTS = ["tensorflow-cpu==2.21.0", "tf-keras==2.21.0", "keras==3.15.1"]
CANDIDATES = {"layer": "check", "layer_of_keras_2": "check"}
PROMISES = [
    {
        "sentence": "The boolean mask specifies which query elements can attend to which key elements, 1 indicates attention and 0 indicates no attention.",
        "link": "https://www.tensorflow.org/api_docs/python/tf/keras/layers/MultiHeadAttention",
        "clauses": ["mask.golden"],
        "declares": {"masks": ["keep"]},
    },
]
DECIDED = [
    {
        "clause": "mask.padding-is-absence",
        "candidates": "layer",
        "kind": "value",
        "decided": "defect",
        "reason": "biases of heads of size 1 are added to tokens where there are as many of these",
        "finding": "044-keras-tensorflow-adds-a-column-as-a-row",
    },
]
_LAYER = {
    "arrays": "numpy",
    "masks": ["keep"],
    "mask_shapes": ["BQK"],
    "causal": "top-left",
    "without": ["gradients"],
}


def _forward(own, geometry, weights):
    """The forward pass of a layer with the weights that are drawn."""
    heads = (geometry.num_heads, -1)
    arrays = []
    for role in "qkv":
        kernel = getattr(weights, role).T
        arrays.append(kernel.reshape(kernel.shape[0], *heads))
        if weights.q_bias is not None:
            arrays.append(getattr(weights, f"{role}_bias").reshape(heads))
    arrays.append(weights.o.T.reshape(geometry.num_heads, -1, geometry.output_size))
    arrays += [] if weights.o_bias is None else [weights.o_bias]
    widths = (geometry.query_size, geometry.key_size, geometry.value_size)
    own(*(np.zeros((1, 1, widths[index]), "float32") for index in (0, 2, 1)))
    # Its own order is query, key, value, output.
    own.set_weights(arrays)

    def forward(query, key, value, *, keep=None, causal=False):
        answer = own(query, value, key, attention_mask=keep, use_causal_mask=causal)
        return np.array(answer)

    return forward


def _options(geometry, weights):
    return {
        "num_heads": geometry.num_heads,
        "key_dim": geometry.head_size,
        "value_dim": geometry.value_head_size,
        "output_shape": geometry.output_size,
        "use_bias": weights.q_bias is not None,
    }


@conformance.layer(**_LAYER)
def layer(geometry, weights):
    """``keras.layers.MultiHeadAttention`` of keras 3."""
    own = keras.layers.MultiHeadAttention(**_options(geometry, weights))
    return _forward(own, geometry, weights)


@conformance.layer(**_LAYER)
def layer_of_keras_2(geometry, weights):
    """``tf_keras.layers.MultiHeadAttention``."""
    own = tf_keras.layers.MultiHeadAttention(**_options(geometry, weights))
    return _forward(own, geometry, weights)
