"""The battery: small problems that separate mistakes, and a candidate's answers to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain, product
from typing import Any, Final

import torch

from ..base.geometry import FIELDS, Geometry
from ..calls.calling import CandidateFailure, arguments, guarded, is_tensor, plainly
from ..calls.devices import taken
from ..clauses.caches import can_cache, with_cache
from ..clauses.numerics import largest_product
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..oracle.extreme_logits import lowered_key, single_key_inputs
from ..problems.arrangements import canonical_output, presented_shape
from ..problems.caching import draws_cache
from ..problems.combinations import options_together
from ..problems.fitting import causal_flag, draft_geometry, fitted_geometry
from ..problems.inputs import Inputs
from ..problems.pool import with_other_values
from ..problems.problem import MaskPlan, Problem
from ..problems.space import Space
from .agreement import BatteryAnswer
from .conditions import plainness
from .mistaken_answer import DiagnosedSubject, listed
from .neighbours import REACH, neighbours

# In the order of Geometry's fields: batch, heads, key/value heads, lengths of query and key, head
# size, value head size, widths of query, key, value and output.
_APART: Final = (2, 3, 3, 5, 7, 6, 4, 11, 13, 9, 10)
_ALIKE: Final = (3, 3, 3, 6, 6, 4, 4, 12, 12, 12, 12)
_GROUPED: Final = (2, 6, 2, 4, 5, 5, 3, 9, 8, 7, 30)
CUBE: Final = (4, 4, 4, 4, 4, 4, 4, 16, 16, 16, 16)
_MORE_QUERIES: Final = (2, 2, 2, 8, 5, 9, 3, 7, 8, 6, 18)
# Whole tiles of keys and channels: nothing of a short tile can be lost here.
_WHOLE: Final = (1, 2, 2, 3, 16, 8, 8, 16, 16, 16, 16)
_SHAPES: Final = (_APART, _ALIKE, _MORE_QUERIES)
_LONG: Final = (1, 2, 2, 3, 150, 72, 5, 8, 9, 7, 40)
# Logits of the only kept key that show fills of -1 .. -1e7; not near a multiple of a common fill.
_TARGETS: Final = (6e1, 7e2, 2.3e4, 2.3e5, 3.7e6, 4.1e7)
# Low targets that, with two thirds of them, separate fills of -3e4, -5e4, and -6e4 or -65504.
_LOW_TARGETS: Final = (5.95e4,)
# The lowest logit is two thirds of a target, to separate fills of -3e4, -5e4, -6e4 or -65504, -1e5.
_TARGETS_OF_THE_TRIANGLE: Final = (*_TARGETS, 6e4, 8.3e4, 1.2e5)
_NEAR_TARGET: Final = 1.5
_SCALES: Final = (0.3, 1.7, 0.0, -0.4)
_SOFTCAP: Final = 1.5
_PAST: Final = 3
# The most cached keys of a layer with self-attention.
_CACHED_IN_SELF: Final = 3
_WINDOWS: Final = ((1, 2), (2, -1), (-1, 1), (1, 0))
# A battery is long from this number of problems on, not counting the first.
MANY: Final = 100


@dataclass(frozen=True, kw_only=True)
class BatteryEntry:
    """A problem of the battery before its sizes are fitted to a candidate.

    ``first`` entries, with a single feature each, mostly suffice.
    """

    sizes: tuple[int, ...]
    form: str = ""
    pattern: str = "random"
    broad: bool = False
    finite_bias: bool = False
    causal: bool = False
    extras: dict[str, Any] = field(default_factory=dict)
    seed: int = 11
    first: bool = False


class Observation:
    """A candidate's answers to the battery, without impossible calls.

    Each problem is asked once, on demand. ``given`` answers replace those to the whole battery.
    """

    def __init__(self, subject: Subject, given: Sequence[BatteryAnswer] | None = None) -> None:
        self.subject = subject
        self._given = given
        self._answers: dict[Inputs, BatteryAnswer | None] = {}
        self._cached: dict[Problem, list[Inputs]] = {}

    @cached_property
    def _drawn(self) -> dict[Problem, bool]:
        return dict(listed(self.subject, "drawn", lambda: _drawn(self.subject).items()))

    @cached_property
    def _made(self) -> list[Inputs]:
        return listed(self.subject, "made", lambda: _made(self.subject))

    @cached_property
    def is_long(self) -> bool:
        """Whether the first answers are few enough to be tried alone."""
        return self._given is None and list(self._drawn.values()).count(False) >= MANY

    @cached_property
    def first(self) -> list[BatteryAnswer]:
        """The answers to problems with a single feature."""
        drawn = [problem for problem, first in self._drawn.items() if first]
        return [*self._answered(drawn), *self._answered_made]

    @property
    def others(self) -> Iterator[BatteryAnswer]:
        """The further answers, each asked for on demand."""
        drawn = (problem for problem, first in self._drawn.items() if not first)
        return chain.from_iterable(self._answered([problem]) for problem in drawn)

    @cached_property
    def whole(self) -> list[BatteryAnswer]:
        """All answers, plain ones first."""
        if self._given is not None:
            return list(self._given)
        return [*self._answered(list(self._drawn)), *self._answered_made]

    @property
    def _answered_made(self) -> list[BatteryAnswer]:
        return self._answers_to([(inputs, None) for inputs in self._made])

    def _answered(self, problems: Sequence[Problem]) -> list[BatteryAnswer]:
        for one in problems:
            if one not in self._cached:
                make = partial(cached_in_self, self.subject, [one])
                self._cached[one] = listed(self.subject, ("cached", one), make)
        cached = chain.from_iterable(self._cached[one] for one in problems)
        drawn = ((self.subject.inputs(one), one) for one in problems)
        return self._answers_to([*drawn, *((inputs, None) for inputs in cached)])

    def _answers_to(self, every: Sequence[tuple[Inputs, Problem | None]]) -> list[BatteryAnswer]:
        for inputs, problem in every:
            if inputs not in self._answers and _is_promised(self.subject, inputs):
                self._answers[inputs] = answer_to(self.subject, inputs, problem)
        answers = (self._answers.get(inputs) for inputs, _ in every)
        return [answer for answer in answers if answer is not None]


def answers_to(subject: Subject, problems: Sequence[Problem]) -> list[BatteryAnswer]:
    """Return the candidate's answers to problems, each asked once.

    Problems that it cannot be called with are left out.
    """
    answered = subject.answered if isinstance(subject, DiagnosedSubject) else {}
    for problem in problems:
        if problem not in answered:
            answered[problem] = answer_to(subject, subject.inputs(problem), problem)
    answers = (answered[problem] for problem in problems)
    return [answer for answer in answers if answer is not None]


def answers_near(
    subject: Subject, problem: Problem, reach: Sequence[str] = REACH
) -> list[BatteryAnswer]:
    """Return the answers to the neighbours of a problem, and to cached variants of them."""
    problems = neighbours(subject, problem, reach)
    cached = (answer_to(subject, inputs) for inputs in cached_in_self(subject, problems))
    answers = answers_to(subject, problems)
    return [*answers, *(answer for answer in cached if answer is not None)]


def answers_to_pairs(subject: Subject, seed: int) -> list[BatteryAnswer]:
    """Return the answers to problems with all pairs of options and sizes."""
    space = Space(mask="maybe", finite_bias="maybe", values=("normal",))
    together = partial(options_together, subject.candidate, space, dtype=subject.dtype)
    problems = listed(subject, "together", together)
    return answers_to(subject, [with_other_values(problem, seed) for problem in problems])


def answers_at_equal_sizes(subject: Subject) -> list[BatteryAnswer]:
    """Return the answers to the battery with all sizes equal."""
    plans = (replace(plan, sizes=CUBE) for plan in _plans(subject.candidate))
    problems = filter(None, (fitted_problem(subject, plan) for plan in plans))
    answers = answers_to(subject, list(dict.fromkeys(problems)))
    made = (answer_to(subject, inputs) for inputs in _stretched(subject, CUBE))
    return [*answers, *filter(None, made)]


def plainest_wrong(answers: Iterable[BatteryAnswer]) -> BatteryAnswer | None:
    """Return the plainest wrong answer to a drawn problem, or None."""
    wrong = (one for one in answers if one.problem is not None and one.margin > 1.0)
    return min(wrong, key=lambda one: plainness(one.inputs), default=None)


def answer_to(
    subject: Subject, inputs: Inputs, problem: Problem | None = None
) -> BatteryAnswer | None:
    """Return the answer as float64, of whatever shape; None if no floating tensor returns.

    ``problem`` is the unmodified problem behind ``inputs``, else None.
    """
    try:
        forward = subject.forward(inputs)
        positional, keywords = arguments(inputs)
        output = guarded(forward, positional, keywords)
    except CandidateFailure as failure:
        promised = _is_promised(subject, inputs) and can_be_asked(subject, inputs)
        if isinstance(subject, DiagnosedSubject) and promised:
            subject.calls[inputs] = failure.violation.message
        return None
    if isinstance(subject, DiagnosedSubject):
        subject.calls[inputs] = ""
    return answer_from(subject, inputs, output, problem)


def answer_from(
    subject: Subject, inputs: Inputs, output: Any, problem: Problem | None = None
) -> BatteryAnswer | None:
    """Return a candidate's returned value as a float64 answer; None if it is no such tensor."""
    if isinstance(output, tuple) and output:
        output = output[0]
    output = plainly(output) if is_tensor(output) else None  # no operator of a subclass runs here
    if output is None or not output.is_floating_point():
        return None
    fits = tuple(output.shape) == presented_shape(inputs)
    # With the axes of another layout an answer is wrong, though its shape may fit.
    in_axes = not inputs.head_layout.has_sequences and output.dim() == len(presented_shape(inputs))
    if inputs.batched and (fits or in_axes):
        output = canonical_output(output, inputs)
    batched = output if inputs.batched else output.unsqueeze(0)
    return BatteryAnswer(
        subject=subject, inputs=inputs, output=taken(batched).double(), problem=problem
    )


def battery(subject: Subject) -> Iterator[Inputs]:
    """Yield the possible problems of a candidate, plain problems first.

    Rows without keys are left out if nothing is promised about them: no answer is a mistake there,
    and a layer that mixes tokens spreads the answer everywhere.
    """
    drawn = _drawn(subject)
    every = chain(map(subject.inputs, drawn), cached_in_self(subject, drawn), _made(subject))
    return (inputs for inputs in every if _is_promised(subject, inputs))


def can_be_asked(subject: Subject, inputs: Inputs) -> bool:
    """Whether the declaration allows the number of keys, which a window may limit."""
    fitted = fitted_geometry(inputs.geometry, subject.candidate, Space())
    return fitted.key_length == inputs.geometry.key_length


def _is_promised(subject: Subject, inputs: Inputs) -> bool:
    declared = subject.declaration
    return declared.empty_rows != "any" or bool(
        inputs.allowed(declared.semantics).any(dim=-1).all()
    )


def cached_in_self(subject: Subject, problems: Iterable[Problem]) -> Iterator[Inputs]:
    """Yield problems with a part of the keys cached, for a layer with self-attention alone.

    Other candidates draw caches like any other option.
    """
    if can_cache(subject.candidate) or draws_cache(subject.candidate):
        return
    for problem in problems:
        if problem.geometry.key_length > _CACHED_IN_SELF:
            yield with_cache(subject, problem, problem.seed % _CACHED_IN_SELF + 1)


def _drawn(subject: Subject) -> dict[Problem, bool]:
    drawn: dict[Problem, bool] = {}
    fitted = cache(partial(_fitted, subject.candidate))  # many plans have the same sizes
    for plan in _plans(subject.candidate):
        problem = fitted_problem(subject, plan, fitted(plan.sizes))
        if problem is not None:
            drawn[problem] = drawn.get(problem, False) or plan.first
    return drawn


def _made(subject: Subject) -> Iterator[Inputs]:
    yield from chain(_large(subject), _stretched(subject), _lowered(subject))


def _plans(candidate: Candidate) -> Iterator[BatteryEntry]:
    declared = candidate.declaration
    for sizes in (_APART, _ALIKE, _GROUPED, CUBE, _MORE_QUERIES, _LONG, _WHOLE):
        yield BatteryEntry(sizes=sizes, first=True)
    for form in declared.masks:
        for broad in (False, True):
            yield BatteryEntry(sizes=_APART, form=form, broad=broad, first=not broad)
            yield BatteryEntry(sizes=_ALIKE, form=form, broad=broad, seed=12, first=broad)
        yield BatteryEntry(sizes=_GROUPED, form=form, pattern="dense")
        yield BatteryEntry(sizes=_LONG, form=form, pattern="single")
        yield BatteryEntry(sizes=_APART, form=form, pattern="empty-rows", seed=13, first=True)
        yield BatteryEntry(sizes=_ALIKE, form=form, pattern="empty-rows", seed=14, broad=True)
    yield from _structured(candidate)


def _structured(candidate: Candidate) -> Iterator[BatteryEntry]:
    declared, extras = candidate.declaration, _extras(candidate)
    if "bias" in declared.masks:
        for sizes in _SHAPES:
            plan = BatteryEntry(sizes=sizes, form="bias", pattern="dense", finite_bias=True)
            yield replace(plan, first=sizes == _APART)
        plan = BatteryEntry(sizes=_ALIKE, form="bias", finite_bias=True, broad=True, pattern="full")
        yield replace(plan, first=True)
    for more in extras:
        yield BatteryEntry(sizes=_APART, extras=more, first=True)
        yield BatteryEntry(sizes=_LONG, extras=more)
        if "window" in more:
            yield BatteryEntry(sizes=_MORE_QUERIES, extras=more, first=True)
        if "past" in more:
            yield BatteryEntry(sizes=_GROUPED, extras=more, first=True)
    yield from _masked(candidate, extras, causal=False)
    if declared.causal:
        for sizes in (*_SHAPES, _LONG):
            yield BatteryEntry(sizes=sizes, causal=True, first=True)
        yield from (BatteryEntry(sizes=_ALIKE, causal=True, extras=more) for more in extras)
        yield from _masked(candidate, [{}, *extras], causal=True)
        for sizes in (_APART, _MORE_QUERIES):  # a form that alone is wrong needs several witnesses
            yield from _masked(candidate, [{}], causal=True, sizes=sizes)


def _extras(candidate: Candidate) -> list[dict[str, Any]]:
    features = candidate.declaration.features
    extras: list[dict[str, Any]] = []
    if "scale" in features:
        extras += [{"scale": scale} for scale in _SCALES]
    if "softcap" in features:
        extras.append({"softcap": _SOFTCAP})
    if "window" in features:
        extras += [{"window": window} for window in _WINDOWS]
    if "sinks" in features:
        extras.append({"sinks": True})
    if {"softcap", "window"} <= features:
        extras.append({"softcap": _SOFTCAP, "window": (1, 1)})
    return extras + _caches(candidate)


def _caches(candidate: Candidate) -> list[dict[str, Any]]:
    if not draws_cache(candidate):
        return []
    given = {"scale": 0.3, "softcap": _SOFTCAP, "window": (1, 1)}
    others = [{name: given[name]} for name in given if name in candidate.declaration.features]
    return [{"past": _PAST}, *({"past": _PAST, **other} for other in others)]


def _masked(
    candidate: Candidate,
    extras: list[dict[str, Any]],
    *,
    causal: bool,
    sizes: tuple[int, ...] | None = None,
) -> Iterator[BatteryEntry]:
    for form in candidate.declaration.masks:
        for more in extras:
            yield BatteryEntry(
                sizes=sizes or (_ALIKE if causal else _APART),
                form=form,
                pattern="dense",
                finite_bias=form == "bias",
                causal=causal,
                extras=more,
                first=causal and not more and sizes is None,
            )


def plain_problem(subject: Subject) -> Problem | None:
    """Return the plainest problem that a candidate can be called with."""
    return fitted_problem(subject, BatteryEntry(sizes=_APART))


def _fitted(candidate: Candidate, sizes: tuple[int, ...]) -> Geometry:
    drawn = Geometry(**dict(zip(FIELDS, sizes, strict=True)))
    return draft_geometry(drawn, candidate, Space(values=("normal",)))


def fitted_problem(
    subject: Subject, plan: BatteryEntry, fitted: Geometry | None = None
) -> Problem | None:
    """Return the nearest problem that the candidate can be asked; ``fitted`` are known sizes."""
    candidate = subject.candidate
    mask = _mask(candidate, plan)
    if plan.form and mask is None:
        return None
    return Problem(
        geometry=fitted or _fitted(candidate, plan.sizes),
        dtype=subject.dtype,
        seed=plan.seed,
        values="normal",
        mask=mask,
        causal=causal_flag(candidate, flagged=plan.causal),
        **plan.extras,
    )


def _mask(candidate: Candidate, plan: BatteryEntry) -> MaskPlan | None:
    """Return the mask in the shape with the most axes, or (``broad``) with few axes."""
    if not plan.form:
        return None
    options = Space(forms=(plan.form,), mask="always").options(candidate)
    shapes = sorted({shape for _, shape in options}, key=lambda shape: (_axes(shape), shape))
    if not shapes:
        return None
    shape = _broad(shapes) if plan.broad else shapes[-1]
    return MaskPlan(pattern=plan.pattern, form=plan.form, shape=shape, finite_bias=plan.finite_bias)


def _broad(shapes: list[str]) -> str:
    return next((shape for shape in shapes if "B" in shape and "H" not in shape), shapes[0])


def _axes(shape: str) -> int:
    return len(shape.replace("1", ""))


def _large(subject: Subject) -> Iterator[Inputs]:
    """Yield logits past the range of the exponential, high and low."""
    problem = fitted_problem(subject, BatteryEntry(sizes=_APART, seed=21))
    if problem is None or subject.candidate.declaration.inputs == "self":
        return
    for values in ("large-logits", "negative-logits"):
        drawn = subject.inputs(problem.replace(values=values))
        if largest_product(subject.golden(drawn).core) < torch.finfo(drawn.query.dtype).max:
            yield drawn


def _stretched(subject: Subject, sizes: tuple[int, ...] = _APART) -> Iterator[Inputs]:
    """Yield single kept keys with logits far below, or far above, hidden ones."""
    space = Space(values=("normal",), mask="always", least=(("key_length", 3),))
    options = space.options(subject.candidate)
    if not options:
        return
    form, shape = options[0]
    base = fitted_problem(subject, BatteryEntry(sizes=sizes, seed=31))
    if base is None or base.geometry.key_length < 2:  # noqa: PLR2004 (one must be hidden)
        return
    plan = MaskPlan(pattern="single", form=form, shape=shape)
    drawn = subject.inputs(base.replace(mask=plan))
    both = product(_TARGETS, (True, False))
    for target, low in (*both, *((target, True) for target in _LOW_TARGETS)):
        stretched = single_key_inputs(drawn, live=0, target=target, low=low)[0]
        if drawn.mode == "self":
            stretched = _limit_squares(subject, drawn, stretched, target, low=low)
        if largest_product(subject.golden(stretched).core) < torch.finfo(drawn.query.dtype).max:
            yield stretched  # what overflows in half precision would hide every mistake


def _limit_squares(
    subject: Subject, drawn: Inputs, stretched: Inputs, target: float, *, low: bool
) -> Inputs:
    """Return self-attention whose relevant logits stay near the target.

    The enlarged tokens are queries as well and would give squared logits, far past usual fills.
    """
    scores = subject.golden(stretched).core.scores
    about = scores[..., :1] if low else scores[..., 1:]
    largest = float((-about if low else about).max())
    if largest <= _NEAR_TARGET * target:
        return stretched
    return single_key_inputs(drawn, live=0, target=target * (target / largest) ** 0.5, low=low)[0]


def _lowered(subject: Subject) -> Iterator[Inputs]:
    """Yield inputs whose first key lies far below the keys that causality hides from query 0."""
    if subject.candidate.declaration.causal is None:
        return
    base = fitted_problem(subject, BatteryEntry(sizes=_ALIKE, seed=33, causal=True))
    if base is None:
        return
    drawn = subject.inputs(base)
    for target in _TARGETS_OF_THE_TRIANGLE:
        lowered = lowered_key(drawn, live=0, target=target)
        if largest_product(subject.golden(lowered).core) < torch.finfo(drawn.query.dtype).max:
            yield lowered
