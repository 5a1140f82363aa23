"""Problems near a failing one: the same call with one feature changed, so that conditions show.

Of a call that raises the sizes are changed, to say which of them it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from math import gcd
from typing import Any, Final

from ..base.geometry import Geometry
from ..base.results import Violation
from ..calls.calling import CandidateFailure
from ..calls.devices import CPU, kind_of
from ..clauses.subject import Subject
from ..problems.caching import draws_cache
from ..problems.combinations import HARDLY
from ..problems.fitting import causal_flag, fitted_geometry, one_at_a_time
from ..problems.problem import MaskPlan, Problem
from ..problems.space import Space
from .mistakes.named_mistake import SizeRule

# Larger sizes, at which few mistakes look alike; no two are equal, so that axes are told apart.
_ENLARGED: Final = {
    "batch": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "query_length": 5,
    "key_length": 7,
    "head_size": 6,
    "value_head_size": 5,
}
_CHANGED: Final = (
    {"batch": 1},
    {"batch": 3},
    {"num_heads": 1, "num_kv_heads": 1},
    {"num_heads": 2, "num_kv_heads": 2},
    {"num_heads": 8, "num_kv_heads": 4},
    {"num_heads": 6, "num_kv_heads": 2},
    {"query_length": 1},
    {"query_length": 2},
    {"query_length": 3},
    {"query_length": 4},
    {"query_length": 6},
    {"query_length": 8},
    {"query_length": 9},
    {"query_length": 11},
    {"query_length": 6, "key_length": 6},
    {"query_length": 5, "key_length": 3},
    {"key_length": 1},
    {"key_length": 4},
    {"key_length": 8},
    {"key_length": 9},
    {"key_length": 16},
    {"key_length": 17},
    {"key_length": 32},
    {"key_length": 40},
    {"key_length": 70},
    {"key_length": 130},
    {"key_length": 300},  # a tile of 128 is no longer the last one
    {"query_length": 33, "key_length": 33},
    {"head_size": 4},
    {"head_size": 7},
    {"head_size": 8},
    {"head_size": 72},
    {"value_head_size": 3},
    {"value_head_size": 72},
)
_NEW_VALUES: Final = 1009
OWN, ENLARGED, RESIZED = REACH = ("own", "enlarged", "resized")
# A failing problem with more scores has no neighbours of its own size: each would cost as much.
MOST_SCORES: Final = 20_000
_PAST: Final = 2
# Sizes that nobody has looked at, for each that a condition is about, and those that are tried.
_UNSEEN: Final = 2
_TRIED: Final = 6
# They are looked for up to so many past twice the largest size that was looked at.
_FURTHER: Final = 64
# Keywords of a call: what they are where they are left out, and a value that shows.
_KEYWORDS: Final = (
    ("scale", None, 0.3),
    ("scale", None, 0.7),
    ("softcap", None, 1.5),
    ("window", None, (1, 1)),
    ("window", None, (4, 3)),
    ("sinks", False, True),
    ("dropout", None, HARDLY),
)


def neighbours(subject: Subject, problem: Problem, reach: Sequence[str] = REACH) -> list[Problem]:
    """A problem, one with larger sizes, and each of both with one feature changed.

    ``reach`` says which: ``"own"`` those of its own sizes, ``"enlarged"`` those with larger sizes
    and other options, ``"resized"`` those with each of the larger sizes changed. Their values are
    drawn with another seed, so that what was made of the failing problem alone must hold for values
    that were not looked at.
    """
    own = _anew(problem)
    large = _resized(subject, own.replace(values="normal"), _ENLARGED)
    near: list[Problem] = []
    if own.geometry.logits > MOST_SCORES:
        own, reach = large, [part for part in reach if part == OWN]
    if OWN in reach:
        near += [own, *_other_sizes(subject, own), *_other_options(subject, own)]
    if ENLARGED in reach:
        near += [large, *_other_options(subject, large)]
    if RESIZED in reach:
        near += _other_sizes(subject, large)
    return list(dict.fromkeys(one_at_a_time(changed, subject.candidate) for changed in near))


def with_size(subject: Subject, problem: Problem, field: str, size: int) -> Problem | None:
    """A problem with other values and one size, a field of ``Geometry``, at exactly a number.

    None where the candidate cannot be called with that size. Of other heads as many share keys and
    values as can.
    """
    sizes = {field: size}
    if field == "num_heads":
        heads, shared = problem.geometry.num_heads, problem.geometry.num_kv_heads
        sizes["num_kv_heads"] = size if shared == heads else gcd(size, shared)
    resized = one_at_a_time(_resized(subject, _anew(problem), sizes), subject.candidate)
    return resized if getattr(resized.geometry, field) == size else None


def at_unseen_sizes(
    subject: Subject, problem: Problem, rules: Sequence[SizeRule], seen: Collection[Geometry]
) -> Iterator[Problem]:
    """A problem at sizes that none of ``seen`` has, the next at which conditions on sizes hold.

    What is true of the sizes that were looked at need not be true of others. What is said of three
    alone may be true of multiples of three: each size is doubled as well.
    """

    def hold(sizes: Geometry) -> bool:
        return all(rule.holds(sizes) for rule in rules)

    for field in dict.fromkeys(field for rule in rules for field in rule.fields):
        known = {getattr(sizes, field) for sizes in seen}
        most = 2 * max(known, default=1) + _FURTHER
        sizes = (
            size
            for size in range(1, most)
            if size not in known and hold(problem.geometry.replace(**{field: size}))
        )
        resized = (with_size(subject, problem, field, size) for size in islice(sizes, _TRIED))
        yield from islice((one for one in resized if one and hold(one.geometry)), _UNSEEN)
        twice = 2 * getattr(problem.geometry, field)
        doubled = with_size(subject, problem, field, twice) if twice not in known else None
        if doubled is not None:
            yield doubled
    for rule in rules:
        if len(rule.fields) > 1:  # what holds of several may hold only where both change
            yield from _with_new_sizes(subject, problem, rule, seen)


def _with_new_sizes(
    subject: Subject, problem: Problem, rule: SizeRule, seen: Collection[Geometry]
) -> Iterator[Problem]:
    """A problem at which all sizes of a rule are one number, which none of them was before."""
    known = {getattr(sizes, field) for sizes in seen for field in rule.fields}
    for size in islice((size for size in count(2) if size not in known), _UNSEEN):
        resized: Problem | None = problem
        for field in rule.fields:
            resized = resized and with_size(subject, resized, field, size)
        if resized is not None and rule.holds(resized.geometry):
            yield resized


def _anew(problem: Problem) -> Problem:
    return problem.replace(overrides=None, seed=problem.seed + _NEW_VALUES)


def _resized(subject: Subject, problem: Problem, sizes: dict[str, int]) -> Problem:
    """The nearest problem of other sizes that the candidate can be called with."""
    space = Space(values=(problem.values,))
    geometry = fitted_geometry(problem.geometry.replace(**sizes), subject.candidate, space)
    past = min(problem.past, max(geometry.key_length - 1, 0))
    return problem.replace(geometry=geometry, past=past)


def _other_sizes(subject: Subject, problem: Problem) -> Iterator[Problem]:
    return (_resized(subject, problem, sizes) for sizes in _CHANGED)


def _other_options(subject: Subject, problem: Problem) -> Iterator[Problem]:
    return (problem.replace(**changes) for changes in _options(subject, problem))


def _options(subject: Subject, problem: Problem) -> Iterator[dict[str, Any]]:
    """Other options of the call: without each that is set, with each that is not."""
    candidate = subject.candidate
    declared = candidate.declaration
    yield from _masks(subject, problem)
    if declared.causal is not None and not declared.always_causal:
        yield {"causal": causal_flag(candidate, flagged=not problem.causal)}
    for name, absent, value in _KEYWORDS:
        given = getattr(problem, name)
        if given != absent:
            yield {name: absent}
        if given != value and name in declared.features:
            yield {name: value}
    if problem.past:
        yield from ({"past": 0}, {"past": 1})
    elif draws_cache(candidate):
        yield {"past": _PAST}
    if problem.return_weights:
        yield {"return_weights": False}
    if problem.values != "normal":
        yield {"values": "normal"}


def _masks(subject: Subject, problem: Problem) -> Iterator[dict[str, Any]]:
    """No mask, and one of each declared form with the most axes and with the fewest."""
    if problem.mask is not None:
        yield {"mask": None}
    forms = tuple(subject.declaration.masks)
    options = Space(forms=forms, mask="always").options(subject.candidate)
    shapes = dict.fromkeys([*dict(options).items(), *dict(reversed(options)).items()])
    for form, shape in shapes:
        for pattern in ("random", "dense"):
            plan = MaskPlan(pattern=pattern, form=form, shape=shape, finite_bias=form == "bias")
            yield {"mask": plan}


# Sizes that a call is asked at which raises at one of them.
_ASKED: Final = (1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class _Sizes:
    """Fields of a geometry that may be refused, in words; all get the same size.

    ``equal`` is the field that the one of ``fields`` may have to be equal to, also in words.
    """

    words: str
    fields: tuple[str, ...]
    equal: str = ""
    equal_words: str = ""


_REFUSED: Final = (
    _Sizes("the value head size", ("value_head_size",), "head_size", "the head size"),
    _Sizes("the head size", ("head_size",)),
    _Sizes("the number of keys", ("key_length",), "query_length", "that of queries"),
    _Sizes("the number of queries", ("query_length",)),
    _Sizes("the number of heads", ("num_heads",)),
    _Sizes("the batch size", ("batch",)),
    _Sizes("the head size of keys and values", ("head_size", "value_head_size")),
    _Sizes("the number of queries and keys", ("query_length", "key_length")),
)


# What torch says of a number that is to be written into a tensor whose dtype cannot hold it.
_DOES_NOT_FIT: Final = "without overflow"
_TOO_LARGE: Final[dict[str, Any]] = {
    "name": "number-beyond-dtype",
    "text": "a number is written into a tensor whose dtype cannot hold it, such as -1e9 in float16",
    "fix": "take a number of the tensor's own dtype: to hide keys torch.finfo(scores.dtype).min, "
    "or -torch.inf",
    "confidence": 1.0,
}


class RefusedSizes:
    """Says at which sizes a call raises that answers at others, once for each exception's line.

    Of a number that does not fit into a dtype it says that.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[Subject, str], dict[str, Any] | None] = {}

    def entry(
        self,
        subject: Subject,
        problem: Problem,
        raised: Violation,
        raises: Callable[[Problem], bool | None],
    ) -> dict[str, Any] | None:
        """The report's entry; None where a call raises at all sizes.

        ``raises`` asks another problem, and gives None for one that cannot be asked.
        """
        if _DOES_NOT_FIT in raised.message:
            return {**_TOO_LARGE, "text": f"{raised.message}: {_TOO_LARGE['text']}"}
        if subject.candidate.kind not in ("core", "layer"):  # others declare no such sizes
            return None
        key = subject, f"{raised.got} {raised.message.rpartition('(')[2]}"
        if key not in self._said:
            if _answered_on_the_cpu(subject, problem):
                return None
            told = (_of_sizes(subject, problem, sizes, raises) for sizes in _REFUSED)
            found = next(filter(None, told), None)
            self._said[key] = found and {**found, "text": f"{raised.message}, {found['text']}"}
        return self._said[key]


def _answered_on_the_cpu(subject: Subject, problem: Problem) -> bool:
    """Whether a call that raises on a device answers on the CPU, so that no size is refused."""
    if kind_of(subject.device) == CPU:
        return False
    there = Subject(subject.candidate, subject.dtype)
    try:
        there.answer(there.inputs(problem.replace(device=CPU)))
    except CandidateFailure:
        return False
    return True


def _of_sizes(
    subject: Subject, problem: Problem, sizes: _Sizes, raises: Callable[[Problem], bool | None]
) -> dict[str, Any] | None:
    """What is said where other sizes of some fields are answered; None where they are not."""
    first = sizes.fields[0]
    own = getattr(problem.geometry, first)
    refused: list[int] = []
    answered: list[int] = []
    for size in dict.fromkeys((own, *_ASKED)):
        other = _at_size(subject, problem, sizes.fields, size)
        raised = None if other is None else raises(other)
        if raised is not None:
            (refused if raised else answered).append(size)
    # Where other values of its own size are answered, it is not the size that is refused.
    if own in answered or not answered:
        return None
    refused = sorted({own, *refused})
    if sizes.equal and answered == [getattr(problem.geometry, sizes.equal)]:
        where, declared = f"{sizes.words} is not {sizes.equal_words}", f'"{sizes.equal}"'
    else:
        some, others = (_either(each) for each in (refused, answered))
        where, declared = f"{sizes.words} is {some}; where it is {others} it answers", str(answered)
    geometry = {first: declared, **dict.fromkeys(sizes.fields[1:], f'"{first}"')}
    written = ", ".join(f'"{field}": {size}' for field, size in geometry.items())
    return {
        "name": f"sizes: {sizes.words}",
        "text": f"where {where}",
        "fix": f"take every size, or declare those that it takes: geometry={{{written}}}",
        "confidence": 1.0,
    }


def _at_size(
    subject: Subject, problem: Problem, fields: Sequence[str], size: int
) -> Problem | None:
    """The problem with all of some fields at a size; None where it cannot be called so."""
    resized: Problem | None = problem
    for field in fields:
        resized = None if resized is None else with_size(subject, resized, field, size)
    return resized


def _either(sizes: Sequence[int]) -> str:
    *first, last = map(str, sizes)
    return f"{', '.join(first)} or {last}" if first else last
