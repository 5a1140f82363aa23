"""Identifies what lies in ``undeclared_attention``, each once a test run."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import undeclared_attention

from conformance.identification.implementation import implementation_of
from conformance.identification.job import identify

NAMES = (
    "token_attention",
    "unbatched_attention",
    "valid_length_attention",
    "wide_head_attention",
    "masked_attention",
    "torch_batch_first",
    "torch_sequence_first",
    "tokens_first",
    "value_before_key",
    "one_head",
    "side_by_side",
    "half_scale",
    "fixed_scale",
    "grouped",
    "factory",
    "in_a_dict",
    "padded_causal",
    "causal_by_default",
    "causal_unless_told",
    "normalised",
    "capped",
    "capped_by_default",
    "mistaken",
    "replaced_by_mask",
    "rounded_to_float32",
    "shape_decides",
    "crossed",
    "rows_by_form",
)


@lru_cache
def record(name: str) -> dict[str, Any]:
    """The record of one object, made in this process."""
    value = getattr(undeclared_attention, name)
    line = f"from undeclared_attention import {name}"
    thing = implementation_of(value, target=name, name=name, imports=(line,), expression=name)
    return identify(thing, None, lambda _step, _what: None)
