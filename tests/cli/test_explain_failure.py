from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import PROBLEM, result
from view_records import PICTURED, candidate, record
from workspaces import UNSCALED, write

from conformance.__main__ import run

pytestmark = pytest.mark.usefixtures("warm_workers")

LATE = """

@conformance.core(causal="top-left")
def late(query, key, value, *, causal=False):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(2).bool(), -torch.inf)
    return scores.softmax(-1) @ value
"""


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command prints, which ends with 0 and says nothing on standard error."""
    capsys.readouterr()
    assert run(["explain-failure", *arguments]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def refused(capsys: pytest.CaptureFixture[str], reference: str) -> str:
    """The sentence with which the command ends, and with 2."""
    capsys.readouterr()
    assert run(["explain-failure", reference]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    return err


def cells(line: str) -> list[float]:
    """The numbers of a line of tables, without the numbers of its queries; 0 for a bare sign."""
    return [float(cell.rstrip("#") or 0) for cell in line.split() if cell == "#" or "." in cell]


def rows(text: str) -> list[str]:
    """The lines of weights, one a query."""
    lines = text.splitlines()
    head = next(n for n, line in enumerate(lines) if "expected weights" in line) + 2
    return [line for line in lines[head:] if line.split() and line.split()[0].isdigit()]


@pytest.mark.parametrize(
    ("source", "name", "clause", "mistake"),
    [
        (UNSCALED, "unscaled", "numerics.golden", "scale-missing: the scores are not scaled"),
        (LATE, "late", "mask.causal", "causal-sees-next: the causal diagonal is one too far"),
    ],
)
def test_from_a_check_to_its_picture(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    name: str,
    clause: str,
    mistake: str,
) -> None:
    """A report says what is wrong, and both weights and their difference are in the picture."""
    write(folder, {"attn.py": f"import conformance\nimport torch\n{source}"})
    check = ["check", "attn.py", "--profile", "quick", "--only", clause, "--json", "out.json"]
    assert run(check) == 1
    text = explained(capsys, "out.json")
    assert text.startswith(
        f"{name} {clause} [MUST, float32, value]: failed\n  diagnosis: {mistake}"
    )
    (first, *_) = rows(text)
    expected, got, apart = (cells(first)[n : n + 2] for n in (0, 2, 4))
    assert sum(expected) == pytest.approx(1.0, abs=2e-3)
    assert sum(got) == pytest.approx(1.0, abs=2e-3)
    assert apart == pytest.approx([b - a for a, b in zip(expected, got, strict=True)], abs=2e-3)
    assert apart[0] != 0
    assert ("#" in first) == (name == "late")
    assert f"conformance replay 'out.json#{name}/{clause}'" in text


def saved(folder: Path, *candidates: dict[str, Any]) -> None:
    """A report in the file out.json."""
    (folder / "out.json").write_text(json.dumps(record(*candidates)), encoding="utf-8")


def test_the_first_failed_must_is_explained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed SHOULD and an expected failure before it are passed over, unless they are named."""
    known = result("expected-failure", "mask.bias", reason="known")
    saved(folder, candidate([known, result("failed", "mask.leak", "SHOULD"), *PICTURED]))
    assert explained(capsys, "out.json").startswith("mine mask.causal [MUST")
    assert explained(capsys, "out.json#mask.leak").startswith("mine mask.leak [SHOULD")
    assert explained(capsys, "out.json#mine/mask.bias").startswith("mine mask.bias [MUST")


def test_the_smallest_failure_of_a_cause_comes_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one mistake's failures that is explained which a report shows, with the picture of all."""
    first, second = PICTURED
    small = {**PROBLEM, "geometry": {**PROBLEM["geometry"], "key_length": 1}}
    saved(folder, candidate([first, second.replace(counterexample={"problem": small})]))
    text = explained(capsys, "out.json")
    assert text.startswith("mine mask.golden [MUST")
    assert "picture:   that of mask.causal, the same mistake" in text


def test_a_failure_in_another_dtype(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A clause that failed in several dtypes is explained in the one that is named."""
    saved(folder, candidate([*PICTURED, PICTURED[0].replace(dtype="bfloat16")]))
    assert "float32" in explained(capsys, "out.json#mask.causal").splitlines()[0]
    assert "bfloat16" in explained(capsys, "out.json", "--dtype", "bfloat16").splitlines()[0]


def test_one_of_several_candidates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which candidate is meant must be said where several failed, and need not be elsewhere."""
    good = candidate([result()], "good")
    saved(folder, good, candidate(PICTURED, "a"), candidate(PICTURED, "b"))
    said = refused(capsys, "out.json")
    assert "2 candidates failed: name one of a, b with --candidate" in said
    assert "no clause, but a candidate: give --candidate b" in refused(capsys, "out.json#b")
    assert explained(capsys, "out.json", "--candidate", "b").startswith("b mask.causal")
    assert explained(capsys, "out.json#a/mask.golden").startswith("a mask.golden")
    saved(folder, good, candidate(PICTURED, "a"))
    assert explained(capsys, "out.json").startswith("a mask.causal")


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("gone.json", "there is no report gone.json"),
        ("out.json#mask.gone", "the report has no clause 'mask.gone'"),
        ("out.json#shape.output", "shape.output has not failed, it is passed: nothing to explain"),
        ("out.json#", "names no clause behind its #"),
        ("good.json", "good.json holds no failure: there is nothing to explain"),
        ("bad.json", "bad.json is no JSON"),
    ],
)
def test_what_cannot_be_explained(
    folder: Path, capsys: pytest.CaptureFixture[str], reference: str, sentence: str
) -> None:
    """Anything else is refused in one sentence, and the exit code is 2."""
    saved(folder, candidate([result()]))
    (folder / "out.json").rename(folder / "good.json")
    saved(folder, candidate([*PICTURED, result(slug="shape.output")]))
    (folder / "bad.json").write_text("{")
    assert sentence in refused(capsys, reference)
