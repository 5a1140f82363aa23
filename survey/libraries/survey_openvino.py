"""openvino: its operator of attention on a CPU, compiled once for every size."""

import functools

import numpy as np
import openvino
from openvino import opset13

import conformance

REQUIREMENTS = ["openvino==2026.4.1"]
CANDIDATES = {"operator": "check"}
PROMISES = [
    {
        "sentence": "If true, assumes causal attention masking according to the pseudo-code. In this case attention_mask input described below is ignored.",
        "link": "https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets/operation-specs/sequence/scaled-dot-product-attention.html",
        "clauses": ["mask.causal-and-mask"],
        "declares": {"causal": "top-left", "causal_combination": "causal-only"},
    },
]
DECIDED = [
    {
        "clause": ["shape.rejects-mismatch", "shape.rejects-others"],
        "kind": "not-raised",
        "decided": "defect",
        "reason": "with sizes left open and one thread the refusal is lost: the last answer comes again",
        "finding": "029-openvino-reads-past-fewer-values-than-keys",
    },
]


@functools.cache
def _compiled(kind: str, mask: str, axes: int, *, causal: bool, scale: bool):
    """A model of the one operator, with every size left open."""
    inputs = [opset13.parameter([-1] * 4, np.dtype(kind)) for _ in range(3)]
    if mask or scale:
        form = np.dtype(bool) if mask == "keep" else np.dtype(kind)
        inputs.append(opset13.parameter([-1] * axes, form))
    if scale:
        inputs.append(opset13.parameter([1], np.dtype(kind)))
    node = opset13.scaled_dot_product_attention(*inputs, causal=causal)
    model = openvino.Model([node], inputs)
    how = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return openvino.Core().compile_model(model, "CPU", how)


@conformance.core(
    arrays="numpy",
    masks=["keep", "bias"],
    causal="top-left",
    semantics=conformance.STANDARD.replace(causal_combination="causal-only"),
    empty_rows="any",
    features=["scale"],
    without=["gradients"],
)
def operator(query, key, value, *, keep=None, bias=None, causal=False, scale=None):
    """``opset13.scaled_dot_product_attention``."""
    mask = keep if keep is not None else bias
    name = "keep" if keep is not None else "bias" if bias is not None else ""
    arrays = [query, key, value]
    if mask is None and scale is not None:  # a scale comes after a mask
        mask = np.zeros((1, 1, query.shape[2], key.shape[2]), query.dtype)
    if mask is not None:
        arrays.append(mask)
    if scale is not None:
        arrays.append(np.asarray([scale], query.dtype))
    axes = 0 if mask is None else mask.ndim
    compiled = _compiled(query.dtype.name, name, axes, causal=causal, scale=scale is not None)
    return compiled([np.ascontiguousarray(array) for array in arrays])[0].copy()
