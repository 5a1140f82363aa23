"""What no declaration can say is stated, where it is confirmed, and nothing else is."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import pytest
import unusual_attention
from unusual_attention import MIXTURE

from conformance.identification.implementation import implementation_of
from conformance.identification.job import identify
from conformance.views.tool_texts import show_identification


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


@pytest.mark.nightly  # a layer takes seconds: below the nearest one is that of a function
def test_the_nearest_point_is_named() -> None:
    """What is missing is told beside the point that explains all else."""
    near = record("layer_temperatures")["nearest"]
    assert (near["semantics"], near["always_causal"]) == ({"qk_norm": "l2"}, None)
    shown = io.StringIO()
    show_identification(record("layer_temperatures"), shown)
    assert "nearest to it that can be declared: the specification with qk_norm=l2\n" in (
        shown.getvalue()
    )


@pytest.mark.nightly
def test_numbers_of_heads_that_may_be_others() -> None:
    """A function of any number of heads is stated for the number that was read."""
    result = record("leaning_without_rule")
    assert not result["identified"]
    assert "with 3 heads the logits have one more term" in result["reason"]
    assert "-0.8415 in head 0, -0.9093 in head 1, 0.9589 in head 2" in result["reason"]


@pytest.mark.nightly
def test_a_rule_for_numbers_of_heads() -> None:
    """Where one rule gives the numbers of all heads, it is stated for any number of them."""
    (stated,) = record("leaning_by_head")["statements"]
    assert stated["heads"] is None
    assert "the distance from query to key times -0.5 times 2^-h in head h" in stated["text"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["layer_talking", "layer_talking_weights"])
def test_heads_that_read_each_other(name: str) -> None:
    """The table of the sums over heads is the one that they are made with."""
    row = ", ".join(f"{number:.4g}" for number in MIXTURE[1].tolist())
    text = record(name)["statements"][0]["text"]
    assert f"head 1: {row}" in text.replace("-0,", "0,").replace("e-", "")


def test_the_largest_weights_alone() -> None:
    """What no declaration says is stated with its number: so many of a row's weights count."""
    result = record("top_three")
    (said,) = result["statements"]
    assert said["text"] == (
        "the weights are zero for those that are not among the 3 largest of a row, and the others "
        "sum to one"
    )
    assert result["nearest"]["words"] == "the specification"


@pytest.mark.nightly  # its search tries all there is
def test_what_is_not_confirmed_is_not_said() -> None:
    """Where nothing explains the answers only what was seen of the weights is told."""
    result = record("of_channels")
    assert (result["identified"], result["statements"]) == (False, [])
    assert "is that of no reading of attention that is known" in result["reason"]
    assert result["reason"].endswith("and the weights of a query sum to one")


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
