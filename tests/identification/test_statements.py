"""What no declaration can say is stated, where it is confirmed, and nothing else is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import unusual_attention

from conformance.identification.implementation import implementation_of
from conformance.identification.job import identify


@lru_cache
def record(name: str) -> dict[str, Any]:
    """The record of one object, made in this process."""
    value = getattr(unusual_attention, name)
    thing = implementation_of(value, target=name, name=name, imports=(), expression=name)
    return identify(thing, None, lambda _step, _what: None)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("with_one_more", "a one is added to the sum of the exponentials"),
        ("rounded_root", "1/the root of the head size, rounded down"),
        ("sliding", "keys more than 1 before a query's own place are hidden in every call"),
        (
            "layer_sinks",
            "and exp(0.5) in head 0, exp(-1) in head 1, exp(2) in head 2",
        ),
        ("layer_temperatures", "the scores times 4 in head 0, 8 in head 1, 14 in head 2"),
        (
            "layer_table",
            "0 at 0, -0.3718 at 1, -1.316 at 2, -1.965 at 3 in head 2, in others other",
        ),
        (
            "layer_window",
            "a number of each head for each pair of query and key that no input changes",
        ),
    ],
)
def test_what_a_declaration_cannot_say(name: str, said: str) -> None:
    """It is told with its numbers beside the nearest point, and no declaration is written."""
    result = record(name)
    assert result["identified"], result["reason"]
    assert said in result["statements"][0]["text"]
    assert said in result["beyond"][0]
    assert result["declaration"] is None


def test_the_rest_is_found_beside_a_statement() -> None:
    """Masks, dtypes and all else are probed against the answer with the stated change."""
    facts = {fact["fact"]: fact["value"] for fact in record("with_one_more")["facts"]}
    assert (facts["scale"]["rule"], facts["dtypes"]["float64"]) == ("inverse-sqrt-head-size", True)
    assert "golden weights" in next(
        fact["found"] for fact in record("with_one_more")["facts"] if fact["fact"] == "weights"
    )


def test_the_largest_weights_alone() -> None:
    """What no declaration says is stated with its number: so many of a row's weights count."""
    result = record("top_three")
    (said,) = result["statements"]
    assert said["text"] == (
        "the weights are zero for those that are not among the 3 largest of a row, and the others "
        "sum to one"
    )
    assert result["nearest"]["words"] == "the specification"


def test_random_answers_are_called_random() -> None:
    """Noise is no dropout, and no convention is read into it."""
    result = record("noisy")
    assert not result["identified"]
    assert "the answer is random: it differs with torch's seed" in result["reason"]


def test_a_norm_before_the_projections() -> None:
    """It is told apart from the point behind it, and so is what it has learned."""
    result = record("layer_normed")
    (text,) = result["beyond"]
    assert text.startswith("each token of the input is normalised to mean 0 and variance 1")
    facts = {fact["fact"]: fact["value"] for fact in result["facts"]}
    assert round(facts["scale"]["number"], 3) == 0.433
    assert facts["learned besides"] == ["norm.weight", "norm.bias"]


def test_what_no_answer_depends_on_is_said_to_be_unseen() -> None:
    """The query is returned: neither a scale, nor a softmax, nor groups can be seen."""
    facts = {fact["fact"]: fact["found"] for fact in record("the_query")["facts"]}
    for name in ("axes", "scale", "softmax", "groups"):
        assert facts[name].startswith("undetermined (the answers do not depend on")
