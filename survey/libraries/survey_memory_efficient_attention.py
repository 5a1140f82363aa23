"""memory-efficient-attention: its functions of JAX and of torch, with masks, biases and chunks."""

from memory_efficient_attention import (
    efficient_dot_product_attention_jax,
    efficient_dot_product_attention_pt,
)

import conformance

REQUIREMENTS = ["memory-efficient-attention==0.1.3", "jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {
    "function": "check",
    "function_masks": "check",
    "function_chunks": "check",
    "torch_function": "check",
    "torch_chunks": "check",
}
DECIDED = [
    {
        "clause": "shape.empty-query",
        "candidates": "function*",
        "kind": "raised",
        "decided": "undocumented convention",
        "reason": "without queries there is no chunk, and nothing to put together",
    },
    {
        "clause": [
            "shape.output",
            "shape.dtype",
            "shape.strided",
            "shape.shared",
            "shape.bounds",
            "mask.golden",
            "mask.all-keep",
            "mask.padding-is-absence",
            "mask.per-item",
            "mask.per-head",
            "mask.forms-agree",
            "mask.single-key",
            "mask.strided",
            "mask.no-leak",
            "mask.no-leak-nonfinite",
            "mask.empty-row",
            "mask.empty-row-isolated",
            "mask.bias",
            "mask.bias-counts",
            "mask.bias-far-below",
            "mask.bias-lowest",
            "equivariance.tokens",
            "equivariance.queries",
            "equivariance.keys",
            "equivariance.batch",
            "equivariance.heads",
            "equivariance.batch-independent",
            "numerics.nan-shows",
            "numerics.options",
            "mask.empty-row-options",
            "numerics.convex",
            "state.repeatable",
            "state.bitwise-repeatable",
            "state.no-memory",
            "state.grad-mode",
            "state.inputs-unchanged",
            "state.answer-is-fresh",
            "state.call-order",
            "state.untampered",
            "state.unseen",
            "state.settings",
        ],
        "candidates": "function_masks",
        "kind": "raised",
        "decided": "defect",
        "reason": "a mask without a bias raises, and a bias without a mask",
        "finding": "042-memory-efficient-attention-masks-and-chunks",
    },
    {
        "clause": [
            "shape.output",
            "shape.dtype",
            "shape.empty-batch",
            "shape.strided",
            "shape.expanded",
            "shape.shared",
            "shape.bounds",
            "equivariance.queries",
            "equivariance.keys",
            "equivariance.batch",
            "equivariance.heads",
            "equivariance.batch-independent",
            "numerics.golden",
            "numerics.scale",
            "numerics.large-logits",
            "numerics.accumulation",
            "numerics.nan-shows",
            "numerics.subnormal",
            "numerics.key-shift",
            "numerics.constant-value",
            "numerics.value-linear",
            "numerics.convex",
            "state.repeatable",
            "state.bitwise-repeatable",
            "state.no-memory",
            "state.answer-kept",
            "state.grad-mode",
            "state.inputs-unchanged",
            "state.answer-is-fresh",
            "state.call-order",
            "state.untampered",
            "state.unseen",
            "state.settings",
        ],
        "candidates": "function_chunks",
        "kind": "shape",
        "decided": "defect",
        "reason": "chunks that do not divide the lengths count keys twice and answer more queries",
        "finding": "042-memory-efficient-attention-masks-and-chunks",
    },
    {
        "clause": [
            "numerics.typical-error",
            "numerics.near-ties",
        ],
        "candidates": "function_chunks",
        "kind": "value",
        "decided": "defect",
        "reason": "chunks that do not divide the lengths count keys twice and answer more queries",
        "finding": "042-memory-efficient-attention-masks-and-chunks",
    },
    {
        "clause": [
            "shape.rejects-mismatch",
            "shape.rejects-others",
        ],
        "candidates": "function_chunks",
        "kind": "not-raised",
        "decided": "defect",
        "reason": "chunks that do not divide the lengths count keys twice and answer more queries",
        "finding": "042-memory-efficient-attention-masks-and-chunks",
    },
    {
        "clause": ["shape.empty-batch", "shape.empty-query"],
        "candidates": "torch_*",
        "kind": "raised",
        "decided": "undocumented convention",
        "reason": "without items or queries there is no chunk, and nothing to put together",
    },
]
PROMISES = [
    {
        "sentence": "Attention weights are masked out if their corresponding mask value is `False`.",
        "link": "https://github.com/AminRezaei0x443/memory-efficient-attention",
        "clauses": ["mask.golden"],
        "declares": {"masks": ["keep"]},
    },
]
_JAX = {"arrays": "jax", "layout": "BSHD", "without": ["gradients"]}
_MASKS = {"masks": ["keep", "bias"], "mask_shapes": ["BHQK"], "empty_rows": {"keep": "mean-of-all"}}


@conformance.core(**_JAX)
def function(query, key, value):
    """The function of JAX alone."""
    return efficient_dot_product_attention_jax(query, key, value)


@conformance.core(**_JAX, **_MASKS)
def function_masks(query, key, value, *, keep=None, bias=None):
    """The same with a mask or a bias."""
    return efficient_dot_product_attention_jax(query, key, value, mask=keep, bias=bias)


@conformance.core(**_JAX)
def function_chunks(query, key, value):
    """The same in chunks of 4 queries and 4 keys."""
    sizes = {"query_chunk_size": 4, "key_chunk_size": 4}
    return efficient_dot_product_attention_jax(query, key, value, **sizes)


@conformance.core(layout="BSHD", **_MASKS)
def torch_function(query, key, value, *, keep=None, bias=None):
    """The function of torch with a mask or a bias."""
    return efficient_dot_product_attention_pt(query, key, value, mask=keep, bias=bias)


@conformance.core(layout="BSHD")
def torch_chunks(query, key, value):
    """The same in chunks of 4 queries and 4 keys."""
    sizes = {"query_chunk_size": 4, "key_chunk_size": 4}
    return efficient_dot_product_attention_pt(query, key, value, **sizes)
