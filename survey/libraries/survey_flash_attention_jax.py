"""flash-attention-jax: its attentions with a mask of keys, and its causal ones."""

import flash_attention_jax
import jax.numpy as jnp

import conformance

REQUIREMENTS = ["flash-attention-jax==0.3.1", "jax==0.10.2", "jaxlib==0.10.2"]
CANDIDATES = {"flash": "check", "written_out": "check", "causal_flash": "check"}
DECIDED = [
    {
        "clause": ["numerics.long-sequence"],
        "candidates": "*flash",
        "decided": "defect",
        "reason": "the last chunk of keys is moved back where it does not fit",
        "finding": "043-flash-attention-jax-counts-keys-twice",
    },
    {
        "clause": ["mask.single-key", "mask.causal-first-key", "numerics.large-logits"],
        "candidates": "*flash",
        "decided": "undocumented convention",
        "reason": "its largest score so far begins with -1e6: scores far below that count for nothing, or are NaN",
    },
    {
        "clause": "shape.empty-batch",
        "candidates": "causal_flash",
        "decided": "undocumented convention",
        "reason": "no items are refused, with a division by zero",
    },
]
_ARRAYS = {"arrays": "jax", "without": ["gradients"], "geometry": {"value_head_size": "head_size"}}
_MASKED = {**_ARRAYS, "masks": ["keep"], "mask_shapes": ["BK"]}


def _shown(query, key, keep):
    return jnp.ones((query.shape[0], key.shape[2]), bool) if keep is None else keep


@conformance.core(**_MASKED, empty_rows="zeros")
def flash(query, key, value, *, keep=None):
    """``flash_attention``, in chunks of 1024."""
    return flash_attention_jax.flash_attention(query, key, value, _shown(query, key, keep))


@conformance.core(**_MASKED, empty_rows="mean-of-all")
def written_out(query, key, value, *, keep=None):
    """``attention``, written out."""
    return flash_attention_jax.attention(query, key, value, _shown(query, key, keep))


@conformance.core(**_ARRAYS, causal="bottom-right", always_causal=True)
def causal_flash(query, key, value):
    """``causal_flash_attention``."""
    return flash_attention_jax.causal_flash_attention(query, key, value)
