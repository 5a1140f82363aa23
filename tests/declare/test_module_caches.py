from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from conformance import Cache, DeclarationError


def takes_one(module: nn.Module) -> dict[str, Tensor]:
    """Make a cache from one argument, which nobody gives."""
    return dict(module.named_buffers())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "says nothing of the cache"),
        ({"make": dict}, "make of Cache is given without parameter"),
        ({"parameter": 3}, "parameter of Cache is 3"),
        ({"parameter": "past", "make": 3}, "make of Cache is 3"),
        ({"parameter": "past", "make": takes_one}, "make(module, tokens): it takes neither"),
        ({"positions": {"start_pos": "begin"}}, "positions of Cache has 'begin' for 'start_pos'"),
        ({"positions": ["start_pos"]}, "give a dict with parameters' names"),
        ({"reset": 3}, "reset of Cache is 3"),
        ({"parameter": "past", "returned": 1.5}, "returned of Cache is 1.5"),
        ({"parameter": "past", "slots": 0}, "slots of Cache is 0"),
        ({"parameter": "past", "slots": True}, "slots of Cache is True"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], said: str) -> None:
    """Each wrong field is refused in a sentence that says what to give."""
    with pytest.raises(DeclarationError) as raised:
        Cache(**fields)
    assert said in str(raised.value)


def test_the_record_of_a_cache_is_plain() -> None:
    """Functions are told by their names, and what is left out is not written."""
    cache = Cache(parameter="past", make=dict, positions={"places": "L"}, options={"keep": True})
    assert cache.as_json() == {
        "parameter": "past",
        "make": "dict",
        "positions": {"places": "L"},
        "options": {"keep": "True"},
    }
    assert cache.parameters == ("past", "places", "keep")
