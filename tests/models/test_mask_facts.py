"""What masks hide while the caller hides nothing, and which inputs reach them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from little_graphs import node, saved
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from whole_models import causal_graph, not_passed, results, written

from conformance.base.record import SiteEntry
from conformance.graphs.protocol import Array
from conformance.models import model_graph
from conformance.models.candidates import model_candidates
from conformance.models.mask_facts import (
    MaskFacts,
    Rule,
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
        {"index": index, "misplaced": misplaced, "scope": "", "nodes": ["n"], "causal": None}
        for index, misplaced in enumerate((words, "", words))
    ]
    (line,) = misplaced_rules(described)  # type: ignore[arg-type]  # as much of them as is read
    assert line.startswith("attentions #0, #2: ")
    assert words in line
    assert told in line


def test_a_stored_mask_of_fewer_keys_is_causal_from_the_first() -> None:
    """Traced at one length and called at another: no mistake of the causal rule."""
    assert rule_of(np.tri(6, 5, dtype=bool)[None]) == Rule(causal=True)


def test_a_model_whose_mask_is_the_wrong_way_round_says_so(tmp_path: Path) -> None:
    """The verdict stays open: every attention is that of its mask, and equal to itself."""
    middle = [
        node("Trilu", "bias", "upper", upper=1),
        node("Cast", "upper", "later", to=9),
        node("Where", "later scores low", "scaled"),
        node("Softmax", "scaled", "weights", axis=-1),
    ]
    path = written(tmp_path / "graph.onnx", middle)
    made = model_candidates(path, find_sites(path), None)
    assert any("the wrong way round" in line for line in made[0][1].warnings)
    assert "the wrong way round" in made[0][1].unjudged


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


@pytest.mark.parametrize("role", ["drop", "keep"])
@pytest.mark.parametrize("name", ["src_mask", "marks"])
def test_causality_needs_neither_weights_nor_names(
    role: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embeddings are read for their shape alone, and a mask is fed what hides least."""
    monkeypatch.setattr(model_graph, "_LARGEST_KEPT", 64)
    path = saved(causal_graph(role=role, name=name), tmp_path / "graph.onnx")
    (facts,) = mask_facts(find_sites(path)).values()
    assert facts == MaskFacts(causal=True, window=None, inputs=(name,))


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_rule_that_ends_too_late_is_told_and_fails(ahead: int, tmp_path: Path) -> None:
    """In every attention of a model of ids, too: it is meant to hide later tokens."""
    path = saved(causal_graph(ahead), tmp_path / "graph.onnx")
    (_, whole), *_ = model_candidates(path, find_sites(path), None)
    key = "the key" if ahead == 1 else "the 2 keys"
    assert f"a query sees {key} after its own, too: " in " ".join(whole.warnings)
    assert set(not_passed(results(whole, "model.causality"))) == {"model.causality"}


def test_of_nothing_and_of_one_row_no_rule_is_told() -> None:
    """Where no key may be seen, and where every query sees the same keys."""
    assert rule_of(np.zeros((6, 6), bool)) == (None, None, "")
    assert rule_of(np.arange(6)[None] > 0) == (None, None, "")
    assert rule_of(np.tri(6, 6, 4, dtype=bool)) == (None, None, "")
    assert rule_of(np.tri(3, 6, 4, dtype=bool)).misplaced == "the key after its own, too"


class Calls(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """One call, by which the steps of integers are chosen."""

    def __init__(self) -> None:
        ids, marks = np.arange(14).reshape(2, 7) % 5, np.zeros((2, 7), bool)
        self._left = [{"ids": ids.astype(np.int64), "marks": marks}]

    def get_next(self) -> dict[str, Array] | None:
        """The call, once."""
        return self._left.pop() if self._left else None


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("steps", ["known", "found as it runs"])
def test_a_rule_that_is_moved_fails_in_8_bits_too(steps: str, ahead: int, tmp_path: Path) -> None:
    """Rounding to integers hides no token that is seen too early, and blames no right rule."""
    path, target = saved(causal_graph(ahead), tmp_path / "whole.onnx"), tmp_path / "graph.onnx"
    if steps == "known":
        quantize_static(
            *(path, target, Calls()),
            quant_format=QuantFormat.QOperator,
            op_types_to_quantize=["MatMul"],
            activation_type=QuantType.QUInt8,  # signed ones are not multiplied on every processor
        )
    else:
        quantize_dynamic(path, target)
    (_, whole), *_ = model_candidates(target, find_sites(target), None)
    failed = set(not_passed(results(whole, "model.causality")))
    assert failed == ({"model.causality"} if ahead else set())
