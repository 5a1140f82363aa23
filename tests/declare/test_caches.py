"""Promises about caches: what they exclude is refused in a sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import conformance
from conformance.errors import DeclarationError


def never(*_tensors: torch.Tensor, **_options: object) -> torch.Tensor:
    """A core that is never called."""
    raise AssertionError


@pytest.mark.parametrize(
    ("promises", "message"),
    [
        ({"page_axes": "DHN", "layout": "paged"}, "page_axes is 'DHN', which is unknown"),
        ({"queries": "varlen"}, "queries is 'varlen' with layout='BHSD': only 'paged' has pages"),
        ({"page_sizes": [16]}, "page_sizes is [16] with layout='BHSD', which has no pages"),
        ({"layout": "paged", "page_sizes": [0]}, "page_sizes is [0]: give positive whole numbers"),
        ({"layout": "paged", "masks": ["keep"]}, "masks has 'keep' with layout='paged'"),
        ({"layout": "paged", "causal": "top-left"}, "the causal alignment is 'top-left'"),
        ({"layout": "paged", "features": ["gradients"]}, "the feature 'gradients' cannot be had"),
        ({"features": ["cache_write"]}, "features has 'cache_write' with layout='BHSD'"),
        ({"layout": "varlen", "features": ["cache_lengths"]}, "features has 'cache_lengths' with"),
        (
            {"layout": "paged", "page_index": "csr", "features": ["cache_write"]},
            "features has 'cache_write' with page_index='csr'",
        ),
        (
            {"layout": "paged", "queries": "single", "geometry": {"query_length": 2}},
            "geometry pins query_length to [2], but queries='single' makes it 1",
        ),
    ],
)
def test_what_caches_exclude_is_refused(promises: dict[str, Any], message: str) -> None:
    """One sentence says what does not go together."""
    with pytest.raises(DeclarationError, match=re.escape(message)):
        conformance.core(**promises)(never)


def test_what_a_call_gets_is_required() -> None:
    """A function that lacks the table, or the new keys, is refused."""

    def attend(query: Any, key_cache: Any, value_cache: Any, *, cache_lengths: Any) -> Any:
        return query, key_cache, value_cache, cache_lengths

    with pytest.raises(DeclarationError, match="does not take the keyword 'block_table'"):
        conformance.core(layout="paged")(attend)
    dense = conformance.core(layout="BSHD", features=["cache_lengths"])(attend)
    assert dense.declaration.required == ("cache_lengths",)
    assert "gradients" not in dense.declaration.features
