from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from declared import core
from examples import sizes
from refusals import refused

from conformance.base.geometry import (
    FIELDS,
    NO_PINS,
    Geometry,
    multiple_of,
    nearest_size,
    read_pins,
)
from conformance.errors import DeclarationError


def test_fields_are_public() -> None:
    """The names of the sizes are those of the public contract."""
    assert set(FIELDS) == {
        "batch", "num_heads", "num_kv_heads", "query_length", "key_length", "head_size",
        "value_head_size", "query_size", "key_size", "value_size", "output_size",
    }  # fmt: skip


def test_no_rule_pins_nothing() -> None:
    """Without ``geometry=`` every size is free."""
    assert read_pins(None) is NO_PINS
    assert NO_PINS.apply(sizes()) == sizes()


def test_multiples_and_ranges_are_sizes() -> None:
    """A kernel's tiles pin lengths to their multiples, a range pins to its numbers."""
    pins = read_pins({"query_length": multiple_of(48), "head_size": range(8, 33, 8)})
    assert pins.sizes == {"query_length": (48, 96, 144), "head_size": (8, 16, 24, 32)}
    assert multiple_of(16) == (16, 32, 48, 64)
    for wrong in (0, True, 2.0):
        with refused(f"multiple_of is given {wrong!r}: give a positive whole number"):
            multiple_of(wrong)  # type: ignore[arg-type]  # that is the test


def test_size_is_pinned() -> None:
    """An integer pins a size."""
    assert read_pins({"num_heads": 3}).apply(sizes()) == sizes(num_heads=3)


@pytest.mark.parametrize(("drawn", "nearest"), [(1, 2), (2, 2), (3, 2), (4, 5), (90, 9)])
def test_nearest_of_a_list_is_taken(drawn: int, nearest: int) -> None:
    """A list pins to its nearest size, the smaller one of two."""
    pins = read_pins({"head_size": [9, 2, 5]})
    assert pins.apply(sizes(head_size=drawn)).head_size == nearest


def test_all_sizes_up_to_a_longest_are_as_a_list_of_them() -> None:
    """What is nearest is the same, though nobody counts to a million."""
    for wanted, least, longest in itertools.product(range(9), (1, 3, 8), (1, 2, 5)):
        within = range(1, longest + 1)
        assert nearest_size(wanted, within, least) == nearest_size(wanted, [*within], least)
    assert nearest_size(10**15, range(1, 10**12 + 1)) == 10**12


def test_field_equals_another_after_sizes_are_pinned() -> None:
    """A name means "equal to that field", which is pinned first."""
    pins = read_pins({"value_head_size": "head_size", "head_size": 8})
    assert pins.apply(sizes()) == sizes(head_size=8, value_head_size=8)


def test_chain_of_equalities_is_followed() -> None:
    """Fields that equal one another through a third are all equal, in whatever order they stand."""
    pins = read_pins(
        {"output_size": "value_size", "value_size": "key_size", "key_size": "query_size"}
    )
    made = pins.apply(sizes())
    assert {made.query_size, made.key_size, made.value_size, made.output_size} == {11}


@pytest.mark.parametrize("layout", ["BHSD", "packed-qkv"])
def test_a_tie_makes_one_size_and_leaves_a_pin(layout: str) -> None:
    """Two fields that equal each other get one size, and a pin of either holds for both."""
    rule = {"query_length": "key_length", "key_length": "query_length"}
    tied = core(geometry=rule, layout=layout)
    pinned = core(geometry={"key_length": 8, "num_kv_heads": 3}, layout="packed-qkv")
    for candidate, allowed in ((tied, (5, 7)), (pinned, (8,))):
        made = candidate.declaration.pins.apply(sizes())
        assert made.query_length == made.key_length
        assert made.key_length in allowed
        assert candidate.declaration.pins.ties_lengths
    assert pinned.declaration.pins.apply(sizes()).num_heads == 3


def test_callable_builds_a_geometry() -> None:
    """A callable makes one geometry from another."""

    def build(geometry: Geometry) -> Geometry:
        return geometry.replace(query_size=geometry.num_heads * geometry.head_size)

    assert read_pins(build).apply(sizes()).query_size == 12


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"heads": 2}, "geometry has no field 'heads'; did you mean 'num_heads'?"),
        ({"num_heads": "headsize"}, "geometry has no field 'headsize'; did you mean 'head_size'?"),
        *(
            (
                {"batch": pin},
                f"geometry pins 'batch' to {pin!r}: give a positive integer or a list of them",
            )
            for pin in (0, -1, True, 1.5, [], [1, 0], [True], [2.0], None, ["2"])
        ),
        (
            {"head_size": [2, 3], "value_head_size": 4, "query_size": "head_size"}
            | {"key_size": "head_size", "value_size": 5, "output_size": "value_size"}
            | {"batch": 1, "num_heads": 5, "num_kv_heads": [2, 3]},
            (
                "geometry pins num_heads to [5] and num_kv_heads to [2, 3]: heads share key/value "
                "heads evenly, so that one must be a multiple of the other"
            ),
        ),
        (
            {"head_size": [10**7, 10**8]},
            (
                "geometry pins sizes with which a tensor of a small problem holds 280,000,000 "
                "numbers: no more than 268,435,456 can be judged"
            ),
        ),
        ([("batch", 1)], "geometry is [('batch', 1)]: give a dict of field to size, or a callable"),
        (3, "geometry is 3: give a dict of field to size, or a callable"),
    ],
)
def test_wrong_rule_is_refused(rule: Any, message: str) -> None:
    """What cannot be a size, a field or a rule is named with what to give instead."""
    with refused(message, DeclarationError):
        read_pins(rule)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"head_size": 4.0}, "its head_size is 4.0"),
        ({"head_size": -1}, "its head_size is -1"),
        ({"value_head_size": 0}, "its value_head_size is 0"),
        ({"num_heads": 3, "num_kv_heads": 2}, "3 heads share 2 key heads"),
    ],
)
def test_callable_that_builds_the_impossible(changes: dict[str, Any], sentence: str) -> None:
    """Sizes that no tensor has are the user's mistake, which is said when they are declared."""
    with pytest.raises(DeclarationError, match=re.escape(sentence)):
        read_pins(lambda geometry: geometry.replace(**changes))


def test_callable_that_fails_later() -> None:
    """A function that fails at other sizes than the first is the user's mistake as well."""
    pins = read_pins(lambda geometry: geometry.replace(batch=4 // (geometry.batch - 1)))
    with pytest.raises(DeclarationError, match="geometry is a function that raised ZeroDivision"):
        pins.apply(sizes(batch=1))
