"""What is on by default is turned off for plain calls, and what nothing turns off is told."""

from __future__ import annotations

from typing import Any

import pytest
from identified import record

from conformance.identification.signature import CallParameter, Parameters
from conformance.identification.switches import plain_options


def fact(name: str, wanted: str) -> dict[str, Any]:
    """One fact of an object."""
    entry: dict[str, Any] = {each["fact"]: each for each in record(name)["facts"]}[wanted]
    return entry


def flag(name: str, default: str, meaning: str = "other") -> CallParameter:
    """A parameter with a default."""
    return CallParameter(name, 3, required=False, by_keyword=True, meaning=meaning, default=default)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("causal_by_default", 'options = {"causal": False}'),
        ("causal_unless_told", 'options = {"bidirectional": True}'),
    ],
)
def test_causality_that_is_on_by_default(name: str, line: str) -> None:
    """It is a flag as any other: declared, and handed over in every call."""
    value = fact(name, "causal")["value"]
    assert (value["alignment"], value.get("always")) == ("top-left", None)
    text = record(name)["declaration"]
    assert line in text
    assert "causal='top-left'" in text


def test_masks_beside_causality_that_is_on_by_default() -> None:
    """Masks are asked for in calls that are not causal: each shape that broadcasts is found."""
    shapes = fact("causal_by_default", "mask mask (additive float)")["value"]["shapes"]
    assert {"BHQK", "B1QK", "QK", "K"} <= set(shapes)


def test_a_normalisation_that_can_be_turned_off() -> None:
    """Where only the other value of a flag is plain, the declaration says which value it is of."""
    said = fact("normalised", "flag normalize")["found"]
    assert "with True it computes qk_norm='l2'" in said
    assert "everything else holds with normalize=False" in said
    assert 'options = {"normalize": False}' in record("normalised")["declaration"]


def test_what_a_flag_does_when_it_is_flipped() -> None:
    """A flag of another name than causality is flipped, and its answers are read again."""
    assert "with False it computes scale='none'" in fact("normalised", "flag scale")["found"]


def test_a_cap_that_no_keyword_sets() -> None:
    """It is read off the weights and declared as a function of scores, as weights are judged."""
    entry = fact("capped", "softcap")
    assert (entry["value"]["cap"], entry["value"]["always"]) == (30.0, True)
    assert fact("capped", "scale")["value"]["rule"] == "inverse-sqrt-head-size"
    assert fact("capped", "weights")["value"] == {"averaged": False}
    assert record("capped")["beyond"] == []
    assert "return 30 * torch.tanh(score / 30)" in record("capped")["declaration"]


def test_a_cap_that_is_on_by_default() -> None:
    """The keyword is declared, and None turns the cap off where none is asked for."""
    assert fact("capped_by_default", "softcap")["value"]["works"]
    assert 'options = {"softcap": None}' in record("capped_by_default")["declaration"]


def test_the_order_of_plain_calls() -> None:
    """First without causality and dropout, then as it is, then with one switch off, then all."""
    entries = (
        flag("causal", "True", "causal"),
        flag("dropout_p", "0.1", "dropout"),
        flag("normalize", "True"),
        flag("training", "True"),
        flag("need_weights", "True", "weights"),
        flag("masked", "False", "causal"),
    )
    first = (("causal", "False"), ("dropout_p", "0.0"))
    normalize, training = ("normalize", "False"), ("training", "False")
    assert plain_options(Parameters(entries), ()) == [
        first,
        (),
        (*first, normalize),
        (*first, training),
        (*first, normalize, training),
    ]


def test_nothing_to_turn_off_is_one_way_to_call() -> None:
    """A signature without such defaults costs no further probes."""
    assert plain_options(Parameters((flag("causal", "False", "causal"),)), ()) == [()]
