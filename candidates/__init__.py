"""What gets checked: five multi-head attentions from public tutorials, torch's own, a plain one.

``conformance check candidates`` runs what ``__conformance__`` lists. ``candidates.broken`` is not
among it: those are mistakes made on purpose, and run under ``conformance teeth`` only; nor is
``candidates.ranks``, whose candidates start processes of their own: check it by its name.
"""

import importlib.util
import os

import torch

# Triton needs a GPU, or is interpreted.
_TRITON = importlib.util.find_spec("triton") is not None and (
    torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
)
_JAX = importlib.util.find_spec("jax") is not None
__conformance__ = [
    "eager",
    "online_softmax",
    "token_attention",
    "per_head_matrices",
    "unbatched_attention",
    "valid_length_attention",
    "sinusoidal_positions",
    "wide_head_attention",
    "masked_attention",
    "torch_multihead_attention",
    "torch_scaled_dot_product",
    "varlen_attention",
    "packed_attention",
    "paged_attention",
    "out_attention",
    "operator_attention",
    "numpy_attention",
    "public_signatures",
    "structured_attention",
    "grid_attention",
    "quantised_attention",
    "rotary_tables",
    "latent_attention",
    "served_attention",
    "learned",
    "memory_keys",
    "relative_tables",
    "given_positions",
    "module_caches",
    "onnx_attention",
    *(["jax_attention"] if _JAX else []),
    *(["torch_cuda"] if torch.cuda.is_available() else []),
    *(["triton_attention"] if _TRITON else []),
]
