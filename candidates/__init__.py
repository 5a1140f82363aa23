"""What gets checked: five multi-head attentions from public tutorials, and torch's own.

``conformance check candidates`` runs what ``__conformance__`` lists. ``candidates.broken`` is not
among it: those are mistakes made on purpose, and run under ``conformance teeth`` only.
"""

__conformance__ = [
    "candidates.token_attention",
    "candidates.per_head_matrices",
    "candidates.unbatched_attention",
    "candidates.valid_length_attention",
    "candidates.sinusoidal_positions",
    "candidates.wide_head_attention",
    "candidates.masked_attention",
    "candidates.torch_multihead_attention",
    "candidates.torch_scaled_dot_product",
]
