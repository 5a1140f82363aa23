"""What is true of answers that no named mistake explains: where they go wrong, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..calls.calling import CandidateFailure
from ..clauses.subject import Subject
from ..oracle.comparison import AXES
from ..tolerance import model
from .agreement import margin, wrong_elements
from .battery import Seen, ask
from .conditions import CONDITIONS, never_with, only_with

UNKNOWN: Final = "unknown-mistake"
_SPOKEN_AXES: Final = {
    "batch": "batch items",
    "head": "heads",
    "query": "queries",
    "channel": "channels",
}
# Beyond so many bounds the number says nothing more to a person.
MOST_BOUNDS: Final = 1e6


def unknown_entry(
    subject: Subject, observed: Sequence[Seen], shown: Seen | None, *, said_at: str = ""
) -> dict[str, Any]:
    """The report's entry for a mistake without a name, with every fact that was found.

    ``shown`` is the failing problem that is to be explained, if there is one. ``said_at`` is the
    clause whose entry has said what all wrong answers have in common: it is not said again.
    """
    facts, told = gather(subject, observed, shown, only_shown=bool(said_at))
    sentence = "no known mistake explains it"
    if said_at:
        sentence += f" ({said_at} says what the wrong answers have in common)"
    return {
        "name": UNKNOWN,
        "text": f"{sentence}: {'; '.join(told)}" if told else sentence,
        "fix": "",
        "confidence": 0.0,
        "facts": facts,
    }


def gather(
    subject: Subject, observed: Sequence[Seen], shown: Seen | None, *, only_shown: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The facts as data and as sentences; with ``only_shown`` those of one problem alone."""
    wrong = [seen for seen in observed if margin(subject, seen) > 1.0]
    facts: dict[str, Any] = {"asked": len(observed), "wrong": len(wrong)}
    told: list[str] = []
    one = shown if shown is not None else _plainest(wrong)
    if shown is not None and margin(subject, shown) <= 1.0:
        told.append("the plain answer to this problem is right: only what the clause changes shows")
        facts["plain_answer"] = "right"
        one = None if only_shown else _plainest(wrong)
    if wrong and not only_shown:
        told.append(_conditions(facts, observed, wrong))
    if one is not None:
        told += _of_answer(subject, facts, one)
    if not only_shown:
        told += _unsteady(subject, facts, one)
        told += _values_of_one(subject, facts, wrong)
    return facts, told


def _plainest(wrong: Sequence[Seen]) -> Seen | None:
    """The wrong answer to the problem with the least in it."""

    def features(seen: Seen) -> int:
        return sum(one.holds(seen.inputs) for one in CONDITIONS)

    return min(wrong, key=features, default=None)


def _conditions(facts: dict[str, Any], observed: Sequence[Seen], wrong: Sequence[Seen]) -> str:
    """Which problems go wrong, if they have something in common that right ones lack."""
    bad = {id(seen) for seen in wrong}
    fine = [seen for seen in observed if id(seen) not in bad]
    only, never = only_with(wrong, fine), never_with(wrong, fine)
    facts["only_with"] = [one.name for one in only]
    facts["never_with"] = [one.name for one in never]
    text = f"{len(wrong)} of {len(observed)} problems go wrong"
    if only:
        text += f", only those {' and '.join(one.words for one in only)}"
    if never:
        text += f", none {' or '.join(one.words for one in never)}"
    return text


def _of_answer(subject: Subject, facts: dict[str, Any], seen: Seen) -> list[str]:
    """Where one answer is wrong, and by how much."""
    known = subject.golden(seen.inputs)
    wrong = wrong_elements(subject, seen)
    if wrong is None:
        facts["shape"] = list(seen.output.shape)
        facts["expected_shape"] = list(known.output.shape)
        return [f"its shape is {facts['shape']} where {facts['expected_shape']} is expected"]
    if not bool(wrong.any()):
        return []
    told = _where(facts, wrong)
    rows = known.empty_rows.expand(wrong.shape)
    if bool((wrong & rows).any()) and not bool((wrong & ~rows).any()):
        facts["rows"] = "without keys"
        told.append("only rows without keys are wrong")
    broken = int((wrong & ~torch.isfinite(seen.output)).sum())
    facts["not_finite"] = broken
    if broken:
        told.append(f"{broken} of {wrong.numel()} elements are not finite")
    finite = wrong & torch.isfinite(seen.output) & torch.isfinite(known.output)
    if bool(finite.any()):
        told += _sizes(facts, seen.output[finite], known.output[finite], known.bound[finite])
    return told


def _where(facts: dict[str, Any], wrong: Tensor) -> list[str]:
    """The indices along each axis that hold anything wrong."""
    facts["affected"], told = {}, []
    for number, axis in enumerate(AXES.get(wrong.dim(), ())):
        others = [other for other in range(wrong.dim()) if other != number]
        hit = wrong.sum(dim=others) > 0
        indices = [int(index) for index in hit.nonzero().flatten()]
        count = wrong.shape[number]
        facts["affected"][axis] = "all" if len(indices) == count else indices
        if len(indices) < count:
            told.append(f"{_SPOKEN_AXES[axis]} {_listed(indices)} of {count}")
    place = " and ".join(told)
    return [f"only {place} are affected" if told else "no batch item, head or row is spared"]


def _listed(indices: list[int]) -> str:
    few = 8
    shown = ", ".join(str(index) for index in indices[:few])
    return f"{shown}, …" if len(indices) > few else shown


def _sizes(facts: dict[str, Any], got: Tensor, expected: Tensor, bound: Tensor) -> list[str]:
    """Magnitudes: the largest error, a constant ratio, a constant difference."""
    error = (got - expected).abs()
    facts["largest_error"] = float(error.max())
    told = [f"the largest error is {facts['largest_error']:.3g}{_in_bounds(facts, error, bound)}"]
    if not bool(got.any()):
        facts["answer"] = "zero"
        return [*told, "the answer is zero there"]
    if got.numel() < model.FEWEST_FITTED:
        return told
    factor = float((got * expected).sum() / expected.square().sum().clamp_min(model.LOST_WEIGHT))
    if _nothing_left(got - factor * expected, error):
        facts["ratio"] = factor
        told.append(f"it is {factor:.6g} times what is expected")
    shift = float((got - expected).mean())
    if _nothing_left(got - expected - shift, error):
        facts["difference"] = shift
        told.append(f"it differs by {shift:+.6g} throughout")
    return told


def _in_bounds(facts: dict[str, Any], error: Tensor, bound: Tensor) -> str:
    """The largest error as a multiple of what is allowed, where anything is."""
    allowed = bound > 0.0
    if not bool(allowed.any()):
        return " where the answer must be exact"
    times = float((error[allowed] / bound[allowed]).max())
    facts["largest_error_in_bounds"] = times
    if times > MOST_BOUNDS:
        return ", more than a million times what is allowed"
    return f", up to {times:.3g} times what is allowed"


def _nothing_left(left: Tensor, error: Tensor) -> bool:
    return float(left.square().sum()) <= model.NEARLY_NOTHING * float(error.square().sum())


def _unsteady(subject: Subject, facts: dict[str, Any], seen: Seen | None) -> list[str]:
    """Whether a second call with the same inputs gives another answer."""
    if seen is None:
        return []
    facts["repeats"] = repeats(subject, seen)
    return [] if facts["repeats"] else ["a second call with the same inputs gives another answer"]


def repeats(subject: Subject, seen: Seen) -> bool:
    """Whether a second call with the same inputs gives the same answer, to within its bound."""
    again = ask(subject, seen.inputs)
    if again is None or again.output.shape != seen.output.shape:
        return False
    known = subject.golden(seen.inputs)
    fits = known.output.shape == seen.output.shape
    bound = known.bound if fits else torch.zeros_like(seen.output)
    apart = (again.output - seen.output).abs() > bound
    return not bool((apart & torch.isfinite(again.output)).any())


def _values_of_one(subject: Subject, facts: dict[str, Any], wrong: Sequence[Seen]) -> list[str]:
    """A core's answer to values that are all one, which must stay so."""
    plain = next((seen for seen in wrong if not seen.inputs.masked), None)
    if plain is None or plain.inputs.is_layer or facts.get("repeats") is False:
        return []
    ones = plain.inputs.with_tokens(value=torch.ones_like(plain.inputs.value))
    try:
        sums = subject.answer(ones).double()
    except CandidateFailure:
        return []
    known = subject.golden(ones)
    least, most = float(sums.min()), float(sums.max())
    right = bool(((sums - known.output).abs() <= known.bound).all())
    facts["ones_stay"] = right
    if right:
        return ["values that are all one stay so"]
    facts["ones_become"] = [least, most]
    return [f"values that are all one become {least:.4g} to {most:.4g}"]
