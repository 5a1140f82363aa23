"""numpy-ml: its layer of heads, in NumPy."""

import numpy as np
from numpy_ml.neural_nets.layers import DotProductAttention

import conformance

REQUIREMENTS = ["numpy-ml==0.1.2"]
CANDIDATES = {"function": "check"}


@conformance.core(arrays="numpy", without=["gradients"])
def function(query, key, value):
    """``DotProductAttention(scale=True)``; optional middle dimensions are the heads."""
    own = DotProductAttention(scale=True)
    return own.forward(query, key, value, retain_derived=False).astype(np.float32)
