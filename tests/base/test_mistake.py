"""The names of mistakes."""

from __future__ import annotations

from conformance.base.mistake import parts_of


def test_a_sum_or_an_exponent_in_a_name_joins_no_names() -> None:
    """Names of two mistakes are joined by a plus, which numbers and formulas have as well."""
    assert parts_of("heads: times (h + 1) in head h") == ["heads: times (h + 1) in head h"]
    assert parts_of("logits: rotary positions of base 1e+08+scale-missing") == [
        "logits: rotary positions of base 1e+08",
        "scale-missing",
    ]
