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
        "clause": ["shape.*", "mask.*", "numerics.*", "equivariance.*", "state.*"],
        "candidates": "function_masks",
        "decided": "defect",
        "reason": "a mask without a bias raises, and a bias without a mask",
        "kind": "raised",
        "finding": "042-memory-efficient-attention-masks-and-chunks",
    },
    {
        "clause": ["shape.*", "numerics.*", "equivariance.*", "state.*"],
        "candidates": "function_chunks",
        "decided": "defect",
        "reason": "chunks that do not divide the lengths count keys twice and answer more queries",
        "finding": "042-memory-efficient-attention-masks-and-chunks",
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
