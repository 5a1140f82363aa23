"""What masks hide while the caller hides nothing, and which inputs reach them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from little_graphs import node
from whole_models import written

from conformance.base.record import SiteEntry
from conformance.models.candidates import model_candidates
from conformance.models.mask_facts import (
    MaskFacts,
    mask_facts,
    misplaced_rules,
    rule_of,
    with_rules_told_apart,
)
from conformance.models.sites import find_sites

PADDED = MaskFacts(causal=False, window=None, inputs=("attention_mask",))
CAUSAL = MaskFacts(causal=True, window=None, inputs=("attention_mask",))
EARLIER = MaskFacts(causal=True, window=None, inputs=())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("encoder", [PADDED, PADDED]),
        ("decoder", [CAUSAL, CAUSAL]),
        (
            "encoder-decoder",
            [PADDED, PADDED, EARLIER, PADDED, EARLIER, PADDED],
        ),
    ],
)
def test_masks_are_told_apart(
    name: str, expected: list[MaskFacts], export_of: Callable[..., Path]
) -> None:
    """Padding, causality, and causality with padding; the model is not run for that."""
    facts = mask_facts(find_sites(export_of(name)))
    assert [facts[index] for index in sorted(facts)] == expected


@pytest.mark.parametrize(
    ("middle", "causal", "inputs"),
    [
        ([node("Mul", "scores half", "scaled")], False, ()),
        ([node("Add", "scores bias", "scaled")], False, ("bias",)),
        ([node("Where", "allowed scores low", "scaled")], False, ("allowed",)),
        (
            [
                node("Trilu", "bias", "lower", upper=0),
                node("Cast", "lower", "earlier", to=9),
                node("Where", "earlier scores low", "scaled"),
            ],
            True,
            ("bias",),
        ),
        (
            [
                node("Trilu", "bias", "upper", upper=1),
                node("Cast", "upper", "later", to=9),
                node("Where", "later scores low", "scaled"),
            ],
            None,
            ("bias",),
        ),
    ],
)
def test_what_a_mask_hides_is_seen(
    middle: list[object], causal: object, inputs: tuple[str, ...], tmp_path: Path
) -> None:
    """Later keys, nothing, or something that is neither: then nothing is claimed."""
    softmax = node("Softmax", "scaled", "weights", axis=-1)
    sites = find_sites(written(tmp_path / "graph.onnx", [*middle, softmax]))  # type: ignore[list-item]  # nodes
    facts = mask_facts(sites)[0]
    assert (facts.causal, facts.inputs) == (causal, inputs)


@pytest.mark.parametrize(
    ("seen", "words", "told"),
    [
        (np.triu, "its own key and later ones", "the wrong way round"),
        (lambda ones: np.tril(ones, -1), "keys before its own alone", "moved by one key"),
        (lambda ones: np.triu(ones, 1), "keys after its own alone", "the wrong way round"),
    ],
)
@pytest.mark.parametrize("queries", [3, 6])
def test_causality_with_a_mistake_is_told(
    seen: Callable[..., Any], words: str, told: str, queries: int
) -> None:
    """Which way it is wrong, of the attentions that have it, also behind past keys."""
    rule = rule_of(seen(np.ones((6, 6), bool))[None, -queries:])
    assert (rule.causal, rule.misplaced) == (None, words)
    described = [
        {"index": index, "misplaced": misplaced}
        for index, misplaced in enumerate((words, "", words))
    ]
    (line,) = misplaced_rules(described)  # type: ignore[arg-type]  # as much of them as is read
    assert line.startswith("attentions #0, #2: ")
    assert words in line
    assert told in line


def test_a_model_whose_mask_is_the_wrong_way_round_says_so(tmp_path: Path) -> None:
    """The verdict cannot tell: every attention is that of its mask, and equal to itself."""
    middle = [
        node("Trilu", "bias", "upper", upper=1),
        node("Cast", "upper", "later", to=9),
        node("Where", "later scores low", "scaled"),
        node("Softmax", "scaled", "weights", axis=-1),
    ]
    path = written(tmp_path / "graph.onnx", middle)
    made = model_candidates(path, find_sites(path), None)
    assert any("the wrong way round" in line for line in made[0][1].warnings)


def test_attentions_that_are_the_same_may_see_other_keys() -> None:
    """Each says which do, and what these see; where all see the same, nothing is said."""

    def entry(index: int, window: int | None, count: int = 3) -> SiteEntry:
        same = [other for other in range(count) if other != index]
        return SiteEntry(
            index=index, nodes=[], scope="", same_as=same, causal=True, window=window, misplaced=""
        )

    seen = {"causal": True, "window": None, "misplaced": ""}
    first, second, third = with_rules_told_apart([entry(0, 4), entry(1, None), entry(2, 4)])
    assert first["otherwise"] == third["otherwise"] == [{"index": 1, **seen}]
    assert [other["index"] for other in second["otherwise"]] == [0, 2]
    alike = with_rules_told_apart([entry(0, 4, 2), entry(1, 4, 2)])
    assert all("otherwise" not in one for one in alike)
