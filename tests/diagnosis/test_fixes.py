"""Whatever is named comes with a sentence of what to change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from _paths import CHECKOUT

from conformance._golden import golden
from conformance.diagnosis.fitted_numbers import families
from conformance.diagnosis.mistakes import BACKWARD, MISTAKES
from conformance.diagnosis.precision_losses import EIGHT_BITS, LOSSES, SUMS
from conformance.diagnosis.stage_edits import stage_edits

PACKAGE = CHECKOUT / "conformance" / "diagnosis"
SOURCES = sorted(PACKAGE.rglob("*.py"))
# Which argument of these is the fix.
MAKERS = {"statement": 2, "Part": 2}


def test_every_mistake_of_the_catalogue_has_a_fix() -> None:
    """Of answers, of gradients, and of precision."""
    for mistake in (*MISTAKES, *BACKWARD):
        assert mistake.fix.strip(), mistake.name
    for loss in (*LOSSES, *EIGHT_BITS, *SUMS):
        assert loss.fix.strip(), loss.name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_statement_that_is_composed_has_a_fix(path: Path) -> None:
    """No statement, part of one, or entry of a report is made with an empty fix, or without."""
    for line, fix in fixes(ast.parse(path.read_text(encoding="utf-8"))):
        assert fix is not None, f"line {line} gives no fix"
        assert not (isinstance(fix, ast.Constant) and not fix.value), f"line {line}: an empty fix"


def fixes(tree: ast.Module) -> Iterator[tuple[int, ast.expr | None]]:
    """The fix of each statement and of each entry that a file makes, but of unknown mistakes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            place = MAKERS.get(node.func.id)
            if place is not None:
                named = [word.value for word in node.keywords if word.arg == "fix"]
                yield (
                    node.lineno,
                    node.args[place] if len(node.args) > place else (named or [None])[0],
                )
        elif isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            entry = dict(zip(keys, node.values, strict=True))
            if {"name", "confidence"} <= set(keys):
                name = entry["name"]
                if not (isinstance(name, ast.Name) and name.id == "UNKNOWN"):
                    yield node.lineno, entry.get("fix")


def test_remedies_of_linear_biases_fit_the_mistake() -> None:
    """Wrong slopes and wrong distances are not told to subtract what they subtract already."""
    remedies = {one.name: one.fix for one in MISTAKES if one.name.startswith("alibi-")}
    assert "every second slope" in remedies["alibi-one-sequence"]
    assert "from the last key" in remedies["alibi-offset"]


def test_later_keys_that_are_lost_may_be_a_wrong_causal_mask() -> None:
    """Of a triangle that begins too late, letting more keys in alone would be the opposite."""
    (fix,) = of_lost_keys("more than 1 after the query")
    assert "hide every key after the query: triu(1)" in fix


def of_lost_keys(kind: str) -> list[str]:
    """What to do where a kind of keys is lost before the softmax."""
    name = f"exponentials: zero for keys {kind}"
    return [one.fix for one in stage_edits("core") if one.name == name]


def test_what_can_be_declared_is_shown_as_its_declaration() -> None:
    """The fix of a feature that is there undeclared holds the declaration with the right value."""
    undeclared = [
        one for one in MISTAKES if one.name in ("qk-norm-undeclared", "rotary-undeclared")
    ]
    for one in undeclared:
        point = golden.Semantics(**one.changes)
        values = re.findall(r"conformance\.(Semantics\([^)]*\))", one.fix)
        assert [eval(value, vars(golden)) for value in values] == [point], one.fix  # noqa: S307
    (of_last,) = of_lost_keys("after the query")
    (of_first,) = of_lost_keys("after the query, counted from the first key")
    assert 'declare it: causal="bottom-right", always_causal=True' in of_last
    assert 'declare it: causal="top-left", always_causal=True' in of_first
    (capped,) = (one for one in families() if one.words == "the scores are under a softcap of {}")
    fix = capped.mistake("30", lambda _sizes: 30.0).fix
    assert "score_mod=lambda score, *_: 30 * torch.tanh(score / 30)" in fix
