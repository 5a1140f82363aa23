"""Problems near a failing one: the same call with one feature changed, to show conditions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count, islice
from math import gcd
from typing import Any, Final

from ..base.geometry import Geometry
from ..clauses.subject import Subject
from ..problems.caching import draws_cache
from ..problems.combinations import HARDLY
from ..problems.fitting import causal_flag, fitted_geometry, one_at_a_time
from ..problems.inputs import Inputs
from ..problems.problem import MaskPlan, Problem
from ..problems.space import Space
from .agreement import BatteryAnswer
from .conditions import SIZES
from .mistakes.named_mistake import SizeRule

# Larger sizes, at which few mistakes look alike; all different, to tell axes apart.
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
# The larger ones of its own sizes: only these separate mistakes that differ in the length of a tile
# or the order of a group.
GROWN: Final = "grown"
_MANY: Final = 6
# Sizes that may have a threshold, and the size that most problems have.
_LONG: Final = ("key_length", "query_length", "head_size", "batch", "num_heads")
_FEW: Final = 16
# Larger failing problems have no neighbours of their own size, which would cost as much.
MOST_SCORES: Final = 20_000
_PAST: Final = 2
# Unseen sizes for each field of a condition, and candidates tried for them.
_UNSEEN: Final = 2
_TRIED: Final = 6
# The search ends this far past twice the largest observed size.
_FURTHER: Final = 64
# Keywords of a call: the default, and a value with an effect.
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
    """Return a problem, a larger one, and variants of both with a single feature changed.

    ``reach`` selects them: ``"own"``: its own sizes; ``"enlarged"``: larger sizes and other
    options; ``"resized"``: each of the larger sizes changed; ``"grown"``: the larger ones of its
    own sizes. Another seed draws the values, so that conclusions from the failing problem are
    tested on new values.
    """
    own = _anew(problem)
    large = _resized(subject, own.replace(values="normal"), _ENLARGED)
    near: list[Problem] = []
    if own.geometry.logits > MOST_SCORES:
        own, reach = large, [part for part in reach if part in (OWN, GROWN)]
    if OWN in reach:
        near += [own, *_other_sizes(subject, own), *_other_options(subject, own)]
    if GROWN in reach:
        long = [sizes for sizes in _CHANGED if max(sizes.values()) >= _MANY]
        near += [own, *(_resized(subject, own, sizes) for sizes in long)]
    if ENLARGED in reach:
        near += [large, *_other_options(subject, large)]
    if RESIZED in reach:
        near += _other_sizes(subject, large)
    return list(dict.fromkeys(one_at_a_time(changed, subject.candidate) for changed in near))


def resize_field(subject: Subject, problem: Problem, field: str, size: int) -> Problem | None:
    """Return a problem with new values and one field of ``Geometry`` at an exact size.

    None if the candidate cannot be called with this size. As many heads as possible share keys and
    values.
    """
    sizes = {field: size}
    if field == "num_heads":
        heads, shared = problem.geometry.num_heads, problem.geometry.num_kv_heads
        sizes["num_kv_heads"] = size if shared == heads else gcd(size, shared)
    resized = resize(subject, problem, sizes)
    return resized if getattr(resized.geometry, field) == size else None


def right_with_fewer(
    subject: Subject,
    wrong: BatteryAnswer | None,
    ask: Callable[[Subject, Inputs], BatteryAnswer | None],
) -> Iterator[str]:
    """Yield sentences about the size from which a wrong problem goes wrong, found by bisection.

    Sizes up to ``_FEW``, which most problems have, are skipped: other properties decide there.
    """
    problem = None if wrong is None else wrong.problem
    if problem is None:
        return

    def is_right(field: str, size: int) -> bool | None:
        other = resize_field(subject, problem, field, size)
        answer = None if other is None else ask(subject, subject.inputs(other))
        return None if answer is None else answer.margin <= 1.0

    for field in _LONG:
        right, many = _FEW, int(getattr(problem.geometry, field))
        if many <= right or not is_right(field, right) or is_right(field, many) is not False:
            continue
        said = True
        while said and many - right > 1:
            middle = (right + many) // 2
            answered = is_right(field, middle)
            right, many = (middle, many) if answered else (right, middle)
            said = answered is not None
        if said:
            yield f"the plainest goes right with {right} {SIZES[field][0]}, and wrong with {many}"


def resize(subject: Subject, problem: Problem, sizes: dict[str, int]) -> Problem:
    """Return a problem with new values at the nearest possible sizes."""
    return one_at_a_time(_resized(subject, _anew(problem), sizes), subject.candidate)


def draw_unseen_sizes(
    subject: Subject, problem: Problem, rules: Sequence[SizeRule], seen: Collection[Geometry]
) -> Iterator[Problem]:
    """Yield a problem at unseen sizes, the next ones at which the conditions on sizes hold.

    A condition on the observed sizes need not hold for others. Each size is also doubled: a
    statement about three may be about multiples of three.
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
        resized = (resize_field(subject, problem, field, size) for size in islice(sizes, _TRIED))
        yield from islice((one for one in resized if one and hold(one.geometry)), _UNSEEN)
        twice = 2 * getattr(problem.geometry, field)
        doubled = resize_field(subject, problem, field, twice) if twice not in known else None
        if doubled is not None:
            yield doubled
    for rule in rules:
        if len(rule.fields) > 1:  # a rule on several sizes may need all of them to change
            yield from _draw_new_sizes(subject, problem, rule, seen)


def _draw_new_sizes(
    subject: Subject, problem: Problem, rule: SizeRule, seen: Collection[Geometry]
) -> Iterator[Problem]:
    """Yield problems with all sizes of a rule at one new number."""
    known = {getattr(sizes, field) for sizes in seen for field in rule.fields}
    for size in islice((size for size in count(2) if size not in known), _UNSEEN):
        resized: Problem | None = problem
        for field in rule.fields:
            resized = resized and resize_field(subject, resized, field, size)
        if resized is not None and rule.holds(resized.geometry):
            yield resized


def _anew(problem: Problem) -> Problem:
    return problem.replace(overrides=None, seed=problem.seed + _NEW_VALUES)


def _resized(subject: Subject, problem: Problem, sizes: dict[str, int]) -> Problem:
    space = Space(values=(problem.values,))
    geometry = fitted_geometry(problem.geometry.replace(**sizes), subject.candidate, space)
    past = min(problem.past, max(geometry.key_length - 1, 0))
    return problem.replace(geometry=geometry, past=past)


def _other_sizes(subject: Subject, problem: Problem) -> Iterator[Problem]:
    return (_resized(subject, problem, sizes) for sizes in _CHANGED)


def _other_options(subject: Subject, problem: Problem) -> Iterator[Problem]:
    return (problem.replace(**changes) for changes in _options(subject, problem))


def _options(subject: Subject, problem: Problem) -> Iterator[dict[str, Any]]:
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
    """Yield no mask, and each declared form with the most and the fewest axes."""
    if problem.mask is not None:
        yield {"mask": None}
    forms = tuple(subject.declaration.masks)
    options = Space(forms=forms, mask="always").options(subject.candidate)
    shapes = dict.fromkeys([*dict(options).items(), *dict(reversed(options)).items()])
    for form, shape in shapes:
        for pattern in ("random", "dense"):
            plan = MaskPlan(pattern=pattern, form=form, shape=shape, finite_bias=form == "bias")
            yield {"mask": plan}
