from __future__ import annotations

import pytest
from refusals import refused

from conformance.errors import DeclarationError
from conformance.expected import ExpectedFailure, read_expected


def test_dict_of_reasons() -> None:
    """A dict maps slugs to reasons, or to whole expectations."""
    whole = ExpectedFailure(clause="mask.*", reason="known", kind="raised")
    read = read_expected({"mask.golden": "upstream bug", "mask.*": whole})
    assert read == (ExpectedFailure(clause="mask.golden", reason="upstream bug"), whole)


def test_nothing_is_expected_by_default() -> None:
    """Without expectations none are read."""
    assert read_expected(None) == ()


@pytest.mark.parametrize("name", ["clause", "reason", "candidate", "dtype"])
@pytest.mark.parametrize("value", ["", "  ", None, 3])
def test_empty_texts_are_refused(name: str, value: object) -> None:
    """An expectation without a clause or a reason excuses nothing."""
    message = f"an expected failure's {name} is {value!r}: give a text that is not empty"
    with refused(message, DeclarationError):
        ExpectedFailure(**{"clause": "mask.golden", "reason": "known", name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("kind", "raise", "did you mean 'raised'?"),
        (
            "kind",
            "",
            "known: crashed, dtype, file, finite, hung, memory, mutated, not-called, not-raised, ",
        ),
        ("dtype", "bfloat", "did you mean 'bfloat16'?"),
        ("dtype", "int*", "known: bfloat16, float16, float32, float64"),
    ],
)
def test_unknown_words_are_refused(name: str, value: str, hint: str) -> None:
    """A kind that no violation has, or a dtype that none is judged in, could never be met."""
    with pytest.raises(DeclarationError) as caught:
        ExpectedFailure(**{"clause": "mask.golden", "reason": "known", name: value})
    assert f"an expected failure's {name} is {value!r}, which is unknown; {hint}" in str(
        caught.value
    )


@pytest.mark.parametrize(("kind", "covered"), [("value", True), ("raised", False), ("hung", False)])
def test_crashes_must_be_named(kind: str, covered: bool) -> None:  # noqa: FBT001 (a table)
    """An expectation without a kind does not excuse exceptions, crashes and hangs."""
    assert ExpectedFailure(clause="mask.golden", reason="known").covers(kind) is covered
    assert ExpectedFailure(clause="mask.golden", reason="known", kind=kind).covers(kind)


def test_globs_restrict() -> None:
    """Candidate, clause and dtype are globs, and all three must match."""
    entry = ExpectedFailure(clause="mask.*", reason="known", candidate="sd*", dtype="float16")
    assert entry.concerns("sdpa", "mask.golden", "float16")
    assert not entry.concerns("sdpa", "mask.golden", "float32")
    assert not entry.concerns("flash", "mask.golden", "float16")
    assert not entry.exact
