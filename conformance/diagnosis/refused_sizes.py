"""Finds the sizes at which a call raises, and the raising operation.

A condition is reported only if it separates all calls, including unseen ones. Sizes are proposed
for a declaration only if the answers at them are right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from math import gcd
from pathlib import Path
from random import Random
from typing import Any, Final

from ..base.geometry import Geometry
from ..base.mistake import UNKNOWN
from ..base.results import Violation
from ..calls.calling import CandidateFailure, within_each_call
from ..calls.devices import CPU, kind_of
from ..clauses.registry import all_clauses
from ..clauses.subject import Subject
from ..problems.problem import Problem
from .answer_facts import beyond_dtype
from .battery import answer_to
from .entries import named_entry
from .lines.raising import (
    CONTIGUOUS,
    GENERAL,
    REPEAT,
    SHAPING,
    TAKE_EVERY_SIZE,
    AxisNames,
    RaisingLine,
    RaisingOperation,
    RaisingRecorder,
)
from .neighbours import resize

# The outcome of another problem's call ("raises", "right" or "wrong") and its message; None for a
# problem that cannot be asked.
Asks = Callable[[Problem], tuple[str, str] | None]
RAISES, RIGHT, WRONG = "raises", "right", "wrong"

# Part of torch's message about an impossible view of memory.
_NO_VIEW: Final = "view size is not compatible"
_OF_GRADIENTS: Final = "while computing the gradients"
# Sizes to ask for a single field, and sizes that two fields share.
_ASKED: Final = (1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 128)
_COMMON: Final = (3, 6)
# Sizes that tell all axes apart: none equals another, its half, or its neighbour; none is a usual
# tile.
_APART: Final = {
    "batch": 9,
    "num_heads": 42,
    "num_kv_heads": 7,
    "query_length": 13,
    "key_length": 23,
    "head_size": 34,
    "value_head_size": 19,
    "query_size": 41,
    "key_size": 43,
    "value_size": 47,
    "output_size": 53,
}
# Small sizes, within the range of conditions; combined with sizes of one.
_MIDDLE: Final = {
    "batch": 2,
    "num_heads": 6,
    "num_kv_heads": 3,
    "query_length": 5,
    "key_length": 7,
    "head_size": 8,
    "value_head_size": 4,
}
_SMALL: Final = (1, 1, 2, 3, 4, 5, 6)
_DRAWN: Final = 24
# Sizes that must be answered rightly before a declaration is proposed.
_JUDGED: Final = 3
_MOST_JUDGED: Final = 12

_WORDS: Final = {
    "num_heads": "the number of heads",
    "num_kv_heads": "the number of key/value heads",
    "query_length": "the number of queries",
    "key_length": "the number of keys",
    "head_size": "the head size",
    "value_head_size": "the value head size",
    "batch": "the batch size",
}
_SEVERAL: Final = {
    "num_heads": "there are several heads",
    "num_kv_heads": "there are several key/value heads",
    "query_length": "there are several queries",
    "key_length": "there are several keys",
    "head_size": "the head size is more than 1",
    "value_head_size": "the value head size is more than 1",
    "batch": "there are several batch items",
}
_GROUPED: Final = "queries share key/value heads"
# Pairs of sizes that kernels may rightly require to be equal.
_DECLARABLE: Final = {("value_head_size", "head_size"), ("key_length", "query_length")}


@dataclass(frozen=True)
class Condition:
    """A condition under which a call raises, in words, with the fields it is about.

    ``equal`` are pairs of fields that are equal where the call answers; ``allowed`` are the sizes
    of the single field.
    """

    words: str
    fields: tuple[str, ...]
    holds: Callable[[Geometry], bool]
    equal: tuple[tuple[str, str], ...] = ()
    allowed: tuple[int, ...] = ()

    @property
    def pins(self) -> dict[str, str | tuple[int, ...]]:
        """The declaration of the sizes that are answered."""
        if self.allowed:
            return {self.fields[0]: self.allowed}
        first, second = zip(*self.equal, strict=True) if self.equal else ((), ())
        return dict(zip(second, first, strict=True))


@dataclass(frozen=True)
class RefusedCall:
    """The report's entry about a raising call, and the condition of raising.

    ``wrong`` says that the other calls are answered wrongly.
    """

    entry: dict[str, Any]
    condition: Condition | None
    wrong: bool

    def answering(self, subject: Subject) -> Subject:
        """Return the subject restricted to sizes that it answers."""
        candidate, declared = subject.candidate, subject.declaration
        equal = self.condition.equal if self.condition else ()
        ties = {**declared.pins.equal_to, **{second: first for first, second in equal}}
        declared = replace(declared, pins=replace(declared.pins, equal_to=ties))
        return Subject(replace(candidate, declaration=declared), subject.dtype, subject.device)

    def combine_with(self, named: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Combine entries of wrong answers with the raising operation and sizes."""
        first, *others = [entry for entry in named if entry["name"] != UNKNOWN] or [self.entry]
        if first is self.entry:
            return [first]
        own = self.entry["fix"]
        fix = first["fix"] if own in (GENERAL, TAKE_EVERY_SIZE) else own
        return [{**first, "text": f"{first['text']}; {self.entry['text']}", "fix": fix}, *others]


class RefusedSizes:
    """Reports the sizes at which a call raises, once per raising line.

    A number that does not fit into a dtype has an entry of its own.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[Subject, str], RefusedCall | None] = {}

    def call(
        self, subject: Subject, problem: Problem, raised: Violation, asks: Asks
    ) -> RefusedCall | None:
        """Return the entry of a call that raises; None if it raises at all sizes."""
        too_large = beyond_dtype(raised)
        if too_large is not None:
            return RefusedCall(too_large, None, wrong=False)
        if subject.candidate.kind not in ("core", "layer"):  # other kinds declare no sizes
            return None
        key = subject, f"{raised.got} {raised.message.rpartition('(')[2]}"
        if key not in self._said:
            if _answered_on_the_cpu(subject, problem):
                return None
            self._said[key] = _RefusedCalls(subject, problem, raised, asks).told()
        return self._said[key]


def _answered_on_the_cpu(subject: Subject, problem: Problem) -> bool:
    if kind_of(subject.device) == CPU:
        return False
    there = Subject(subject.candidate, subject.dtype)
    try:
        there.answer(there.inputs(problem.replace(device=CPU)))
    except CandidateFailure:
        return False
    return True


class _RefusedCalls:
    def __init__(self, subject: Subject, problem: Problem, raised: Violation, asks: Asks) -> None:
        self._subject, self._problem, self._raised, self._asks = subject, problem, raised, asks
        self._answers: dict[Geometry, tuple[Problem, str]] = {}

    def told(self) -> RefusedCall | None:
        """Return the entry; None if no size is answered, or if its own size now answers."""
        for sizes in self._sizes():
            self._ask(sizes)
        own = self._answers.get(self._problem.geometry)
        answers = [told for _, told in self._answers.values()]
        if set(answers) == {RAISES} or (own is not None and own[1] != RAISES):
            return None
        condition = next(self._conditions(), None)
        grouped = condition is not None and _GROUPED in condition.words
        right = condition is not None and self._are_right(condition)
        raising = [told for _, told in self._answers.values()].count(RAISES)
        count = f"{raising} of {len(self._answers)} calls"
        given, fix = self._line()
        code = f"`{self._code}`" if self._code else ""
        which = f"{count} of other sizes raise" + (
            f": where {condition.words}" if condition else ""
        )
        name = ", ".join(_WORDS[name] for name in condition.fields) if condition else ""
        fix = REPEAT if grouped and fix != SHAPING else fix
        entry = named_entry(
            f"sizes: {_GROUPED if grouped else name or f'{count} raise'}",
            "; ".join(filter(None, (self._raised.message, code, given, which))),
            fix + (_declaring(condition) if condition is not None and right else ""),
        )
        wrong = condition is not None and bool(condition.equal) and not grouped and not right
        return RefusedCall(entry, condition, wrong=wrong)

    def _sizes(self) -> Iterator[dict[str, int]]:
        yield {}
        for name in _WORDS:
            yield from ({name: size} for size in _ASKED)
        for first, second in combinations(_WORDS, 2):
            yield from ({first: size, second: size} for size in _COMMON)
            yield {**_MIDDLE, first: _MIDDLE[second]}
            yield {**_MIDDLE, second: _MIDDLE[first]}
        yield from ({**_MIDDLE, name: 1} for name in _WORDS)
        yield from (dict.fromkeys(_WORDS, size) for size in _COMMON)
        yield _MIDDLE
        yield from (_drawn(number) for number in range(_DRAWN))

    def _ask(self, sizes: dict[str, int]) -> tuple[Problem, str] | None:
        sizes = dict(sizes)
        heads = sizes.get("num_heads", self._problem.geometry.num_heads)
        shared = sizes.get("num_kv_heads")
        if shared is None:
            own = self._problem.geometry
            same = own.num_heads == own.num_kv_heads
            sizes["num_kv_heads"] = heads if same else gcd(heads, own.num_kv_heads)
        elif heads % shared:
            sizes["num_heads"] = shared if "num_heads" not in sizes else shared * heads
        problem = resize(self._subject, self._problem, sizes)
        if problem.geometry not in self._answers:
            told = self._asks(problem)
            if told is None:
                return None
            self._answers[problem.geometry] = problem, told[0]
        return self._answers[problem.geometry]

    def _conditions(self) -> Iterator[Condition]:
        """Yield the conditions that separate all calls and confirming calls, simplest first."""
        sizes = list(self._answers)
        raising = sum(1 << at for at, one in enumerate(sizes) if self._answers[one][1] == RAISES)

        def met(condition: Condition) -> int:
            return sum(1 << at for at, one in enumerate(sizes) if condition.holds(one))

        fields = [
            name
            for at, name in enumerate(_WORDS)
            if not any(_are_one(sizes, name, other) for other in list(_WORDS)[:at])
        ]
        single = [(one, met(one)) for one in _single(fields)]
        yield from (one for one, rows in single if rows == raising and self._confirmed(one))
        listed = filter(None, (self._listed(name) for name in fields))
        yield from (one for one in listed if self._confirmed(one))
        for (one, rows), (other, more) in combinations(single, 2):
            if raising not in (rows | more, rows & more) or not _is_plain(one, other):
                continue
            both = _either(one, other) if rows | more == raising else _and(one, other)
            if self._confirmed(both):
                yield both

    def _listed(self, name: str) -> Condition | None:
        told: dict[int, set[bool]] = {}
        for sizes, (_, answer) in self._answers.items():
            told.setdefault(getattr(sizes, name), set()).add(answer == RAISES)
        if any(len(each) > 1 for each in told.values()):
            return None
        refused, answered = (
            [size for size in sorted(told) if raises in told[size] and size in _ASKED]
            for raises in (True, False)
        )
        if not refused or not answered:
            return None
        one = f"not {answered[0]}" if len(answered) == 1 else ""
        words = f"{_WORDS[name]} is {one or f'{_or(refused)}, not {_or(answered)}'}"
        raising = frozenset(size for size, each in told.items() if True in each)
        return Condition(
            words, (name,), lambda sizes: getattr(sizes, name) in raising, allowed=tuple(answered)
        )

    def _confirmed(self, condition: Condition) -> bool:
        known = set(self._answers)
        for number in range(_DRAWN, 2 * _DRAWN):
            sizes = _drawn(number)
            if number % 2:
                sizes |= {second: sizes[first] for first, second in condition.equal}
            told = self._ask(sizes)
            if told is None or told[0].geometry in known:
                continue
            asked = told[0].geometry
            if condition.allowed and getattr(asked, condition.fields[0]) not in _ASKED:
                continue
            if condition.holds(asked) != (told[1] == RAISES):
                return False
        return True

    def _are_right(self, condition: Condition) -> bool:
        if not set(condition.pins.items()) <= _DECLARABLE and not (
            condition.allowed and self._may_be_listed(condition.fields[0])
        ):
            return False
        answered = [
            (problem, told)
            for sizes, (problem, told) in self._answers.items()
            if told != RAISES
            and all(getattr(sizes, one) == getattr(sizes, other) for one, other in condition.equal)
        ]
        values = {getattr(one.geometry, name) for name in condition.pins for one, _ in answered}
        if len(values) < _JUDGED or any(told == WRONG for _, told in answered):
            return False
        judged = answered[:: max(1, len(answered) // _MOST_JUDGED)]
        return all(self._is_right(problem) for problem, _ in judged)

    def _may_be_listed(self, name: str) -> bool:
        """Whether declaring a size hides no grouped heads, which are a separate promise."""
        grouped = "gqa" in self._subject.declaration.features
        return name != "num_kv_heads" and not (grouped and name == "num_heads")

    def _is_right(self, problem: Problem) -> bool:
        shown = answer_to(self._subject, self._subject.inputs(problem))
        if shown is None or shown.margin > 1.0:
            return False
        if _OF_GRADIENTS not in self._raised.message:
            return True
        clause = next(one for one in all_clauses() if one.id == "gradients.golden")
        try:
            return clause.check(self._subject, problem).violation is None
        except CandidateFailure:
            return False

    @cached_property
    def _place(self) -> str:
        places = re.findall(r"[^\s(]+\.py:\d+", self._raised.message)
        return places[-1] if places else ""

    @cached_property
    def _code(self) -> str:
        lines = self._raised.traceback.splitlines() if self._place else []
        told = [line for line in lines if line.startswith(f"{self._place} in ")]
        return told[-1].partition(": ")[2] if told else ""

    def _line(self) -> tuple[str, str]:
        """Return the operands of the raising operation, and the fix.

        Axes are named if the line raises at sizes that tell them apart.
        """
        apart = dict(_APART)
        own = self._problem.geometry
        if own.num_heads == own.num_kv_heads:
            apart["num_kv_heads"] = apart["num_heads"]
        largest = resize(self._subject, self._problem, apart)
        names = AxisNames(
            largest.geometry, largest.past, layer=self._subject.candidate.kind == "layer"
        )
        message, operation = self._operation(largest)
        if operation is not None:
            line = RaisingLine.named_by(operation, names)
            return line.text, CONTIGUOUS if _NO_VIEW in message else line.fix
        if message:
            said = names.within(message)
            given = "" if said == message else f"in words {said.partition(': ')[2].rstrip('.')}"
            return given, GENERAL
        seen = self._operation(self._problem)[1]
        if seen is not None:
            line = RaisingLine.named_by(seen, None)
            return line.text, line.fix
        return "", GENERAL if self._code else TAKE_EVERY_SIZE

    def _operation(self, problem: Problem) -> tuple[str, RaisingOperation | None]:
        """Return the message of a call that raises in the known line, and torch's operation."""
        recorder = RaisingRecorder()
        with within_each_call(recorder) if self._subject.candidate.eager is None else nullcontext():
            status, message = self._asks(problem) or ("", "")
        if status != RAISES or not self._place or f"{self._place})" not in message:
            return "", None
        last = recorder.last
        at = last and f"{Path(last.place.file).name}:{last.place.number}"
        return message.partition(" (" + self._place)[0], last if at == self._place else None


def _drawn(number: int) -> dict[str, int]:
    random = Random(number)  # noqa: S311 (no secret)
    sizes = {name: random.choice(_SMALL) for name in _WORDS}
    return {**sizes, "num_heads": sizes["num_kv_heads"] * random.choice((1, 1, 2, 3))}


def _are_one(sizes: Sequence[Geometry], one: str, other: str) -> bool:
    return all(getattr(each, one) == getattr(each, other) for each in sizes)


def _single(fields: Sequence[str]) -> Iterator[Condition]:
    pairs = list(combinations(fields, 2))
    for one, other in pairs:
        equal = ((one, other),)
        if {one, other} == {"num_heads", "num_kv_heads"}:
            yield Condition(_GROUPED, (one, other), partial(_differ, one, other), equal)
        else:
            words = f"{_WORDS[one]} is not {_WORDS[other]}"
            yield Condition(words, (one, other), partial(_differ, one, other), equal)
    for name in fields:
        yield Condition(_SEVERAL[name], (name,), partial(_above, name, 1))
    for one, other in pairs:
        for first, second in ((one, other), (other, one)):
            words = f"{_WORDS[first]} is neither 1 nor {_WORDS[second]}"
            if (first, second) == ("num_kv_heads", "num_heads"):
                words = f"{_GROUPED} of which there are several"
            yield Condition(
                words, (first, second), partial(_neither, first, second), ((one, other),)
            )
        words = f"{_WORDS[one]} is not {_WORDS[other]}, and neither is 1"
        yield Condition(words, (one, other), partial(_apart, one, other), ((one, other),))


def _differ(one: str, other: str, sizes: Geometry) -> bool:
    return bool(getattr(sizes, one) != getattr(sizes, other))


def _above(name: str, least: int, sizes: Geometry) -> bool:
    return bool(getattr(sizes, name) > least)


def _neither(one: str, other: str, sizes: Geometry) -> bool:
    return _differ(one, other, sizes) and _above(one, 1, sizes)


def _apart(one: str, other: str, sizes: Geometry) -> bool:
    return _neither(one, other, sizes) and _above(other, 1, sizes)


def _is_plain(one: Condition, other: Condition) -> bool:
    """Whether two conditions are about different fields, so that their conjunction is clear."""
    return set(one.fields) != set(other.fields) and _GROUPED not in (one.words, other.words)


def _either(one: Condition, other: Condition) -> Condition:
    return Condition(
        f"{one.words}, or {other.words}",
        tuple(dict.fromkeys((*one.fields, *other.fields))),
        lambda sizes: one.holds(sizes) or other.holds(sizes),
        (*one.equal, *other.equal),
    )


def _and(one: Condition, other: Condition) -> Condition:
    return Condition(
        f"{one.words} and {other.words}",
        tuple(dict.fromkeys((*one.fields, *other.fields))),
        lambda sizes: one.holds(sizes) and other.holds(sizes),
    )


def _declaring(condition: Condition) -> str:
    written = ", ".join(
        f'"{name}": ' + (f'"{pin}"' if isinstance(pin, str) else str(list(pin)))
        for name, pin in condition.pins.items()
    )
    return f", or declare those that it takes: geometry={{{written}}}"


def _or(sizes: Sequence[int]) -> str:
    *first, last = map(str, sizes)
    return f"{', '.join(first)} or {last}" if first else last
