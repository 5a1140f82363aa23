from __future__ import annotations

import re
from typing import Any

import pytest
from _paths import CHECKOUT

from candidates.onnx_operators import defects
from conformance import Candidate, ExpectedFailure
from conformance.identification.opening import resolve_one

DOCUMENT = (CHECKOUT / "docs" / "onnx-operators.md").read_text(encoding="utf-8")
REPROS = DOCUMENT[DOCUMENT.index("## Minimal repros") :]


def _candidates() -> list[Candidate]:
    return resolve_one(str(CHECKOUT / "candidates" / "onnx_operators"))


def _named() -> dict[str, tuple[ExpectedFailure, ...]]:
    """The defects by name, one or several expected failures each."""
    found: dict[str, tuple[ExpectedFailure, ...]] = {}
    for name, value in vars(defects).items():
        if name.isupper():
            found[name] = (value,) if isinstance(value, ExpectedFailure) else tuple(value)
    return found


def test_every_operator_is_declared_on_every_engine() -> None:
    """Three opsets by kernel, evaluator and function, and both contrib operators."""
    names = [candidate.name for candidate in _candidates()]
    assert len(names) == len(set(names))
    for opset in (23, 24, 25):
        for prefix in ("attention", "reference_attention", "function_body_attention"):
            assert f"{prefix}_{opset}" in names
    for prefix in ("multi_head_attention_", "group_query_attention"):
        assert any(name.startswith(prefix) for name in names)


def test_every_expected_failure_is_a_named_defect() -> None:
    """What a candidate expects comes from the list, and nothing on the list is unused."""
    expected = {entry for one in _candidates() for entry in one.declaration.expected_failures}
    assert expected == {entry for entries in _named().values() for entry in entries}


@pytest.mark.parametrize("name", sorted(_named()))
def test_every_defect_is_documented(name: str) -> None:
    """It has a row with its clauses in the table, and lines that show it."""
    (row,) = [
        line for line in DOCUMENT.splitlines() if line.startswith("|") and f"`{name}`" in line
    ]
    for entry in _named()[name]:
        assert entry.clause == "*" or f"`{entry.clause}`" in row
    assert f"`{name}`" in REPROS


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # the NaN shown
def test_the_repros_show_what_they_say() -> None:
    """The lines of the document run in order, and their assertions hold."""
    blocks = re.findall(r"```python\n(.*?)```", REPROS, flags=re.DOTALL)
    space: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/onnx-operators.md", "exec"), space)  # noqa: S102 (our own page)
    assert len(blocks) > 10


def test_a_run_over_everything_has_one_of_each_operator() -> None:
    """The short list holds candidates of the long one, an operator each."""
    everything = {candidate.name for candidate in _candidates()}
    listed = [candidate.name for candidate in resolve_one(str(CHECKOUT / "candidates"))]
    chosen = [name for name in listed if name in everything]
    assert [name.split("_attention")[0].split("_")[0] for name in chosen] == [
        "attention",
        "multi",
        "group",
    ]
