"""Acts a mistake out: the golden answer of a mistaken candidate.

A mistake may change the inputs, the point of the semantics, and stages of the program. Mistakes
that are made together change each of them one after another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._golden import golden
from ..clauses.subject import Differentiator, Subject
from ..declare.candidate import like_nobody
from ..declare.declaration import Declaration
from ..oracle import headroom
from ..oracle.oracle import Golden, Oracle, core_of, evaluate
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..tolerance import largest_size, model
from .mistakes import DeclaredCall, NamedMistake, NotExpressible, named_mistakes, touches
from .mistakes.named_mistake import (
    EVERY_KEY,
    IMPOSSIBLE,
    answer_stage,
    asked_otherwise,
    is_of_call,
    read_every_key,
    run_of_call,
)

Combination = tuple[NamedMistake, ...]
Array = NDArray[Any]


def array_of(tensor: Tensor) -> Array:
    """Return a tensor on the CPU for numpy, sharing memory where possible."""
    array: Array = tensor.numpy(force=True)
    return array


@dataclass(frozen=True, kw_only=True, eq=False)
class MistakenAnswer:
    """The answer of a candidate that makes several mistakes.

    ``given`` are the inputs of the call, ``inputs`` and ``semantics`` those that the mistakes
    answer by. ``stepwise`` says that a later step differs as well, for which no bound was derived.
    ``core`` is the attention proper before a changed step, ``weights`` are those after it,
    ``largest`` is each row's largest logit where steps change the logits, ``evaluation`` is the
    golden evaluation if made.
    """

    given: Inputs
    inputs: Inputs
    semantics: golden.Semantics
    core: golden.Attention
    weights: Tensor
    output: Tensor
    stepwise: bool
    oracle: Oracle
    evaluation: golden.Attention | golden.MultiHeadAttention | None = None
    largest: Tensor | None = None

    @cached_property
    def bound(self) -> Tensor:
        """How far a candidate of the declared precision may be from this answer."""
        exact = self.exact or self._answer_before_steps()
        if not self.stepwise:
            return exact.bound
        largest, before = map(_largest_finite, (self.output, exact.output))
        grown = max(1.0, largest / before) if before > 0.0 else 1.0
        room = model.ACTED_ROOM * min(grown, model.MOST_GROWN) ** 2
        # A tiny right answer has a tiny bound, but the acted answer is rounded at its own size.
        rounded = max(model.ACTED_ROOM, self._logit_size) * largest
        rounded *= torch.finfo(self.inputs.query.dtype).eps
        if grown > model.MOST_GROWN:  # exponentials that no sum divides: a logit's error is theirs
            rounded *= max(1.0, largest_size(self.core.scores))
        return torch.full_like(self.output, max(room * _largest_finite(exact.bound), rounded))

    @cached_property
    def _logit_size(self) -> float:
        if self.largest is None:
            return 0.0
        return largest_size(self.largest[self.largest > torch.finfo(self.largest.dtype).min])

    @cached_property
    def exact(self) -> Golden | None:
        """The golden answer of the mistaken point or call; None where a later step differs."""
        if self.stepwise or self.evaluation is None:
            return None
        return self.oracle.answer_of(self.evaluation)

    def _answer_before_steps(self) -> Golden:
        if self.semantics == self.oracle.point(self.inputs):
            return self.oracle.answer(self.inputs)
        return self.oracle.answer_at(self.inputs, self.semantics)

    @cached_property
    def array(self) -> Array:
        """The output for numpy, whose calls on few numbers take a fifth of torch's time."""
        return array_of(self.output)

    @cached_property
    def all_finite(self) -> bool:
        """Whether every element is finite."""
        return math.isfinite(self._largest)

    @cached_property
    def has_empty_rows(self) -> bool:
        """Whether a row of the heads has no key."""
        return bool(array_of(self.core.empty).any())

    @cached_property
    def _largest(self) -> float:
        """The largest magnitude of the answer; not finite if the answer is not."""
        return largest_size(self.output)

    @cached_property
    def _is_small_before(self) -> bool:
        """Whether operands and scores of the attention proper stay far below the largest number.

        The square root leaves room for products; the test spares a search the exact check.
        """
        most = min(model.HEADROOM * self.limit**0.5, headroom.FAR_BELOW)
        tensors = (self.core.query, self.core.key, self.core.value, self.core.scores)
        return all(largest_size(tensor) <= most for tensor in tensors)

    @cached_property
    def limit(self) -> float:
        """The largest number that a candidate can compute with."""
        return headroom.finite_limit(self.oracle.declaration, self.oracle.dtype)

    def _answer_small(self) -> bool:
        most = model.HEADROOM * self.limit
        sizes = np.abs(self.array) if not self._largest <= most else None
        return sizes is None or bool((~np.isfinite(sizes) | (sizes <= most)).all())

    def unjudged(
        self, declaration: Declaration, right: Callable[[], Tensor | None]
    ) -> Tensor | None:
        """Return the rows whose answer is open, broadcastable to the answer; None for no row.

        Open are rows that may overflow or lie below any fill, rows without keys if nothing is
        promised about them, and rows that the mistake leaves without keys, except where ``right()``
        marks them as right (bool of the answer's shape without channels): these do have keys.
        ``right`` is slow.
        """
        rows = self._rows_without_keys(declaration, right)
        if not self._is_small_before:
            able = headroom.representable_rows(self.core, self.limit)
            unable = self._rows_of_answer(~able | headroom.is_below_fills(self.core))
            rows = unable if rows is None else rows | unable
        if rows is not None and rows.shape != self.output.shape[:-1]:
            rows = None
        if not self._answer_small():
            finite = torch.where(torch.isfinite(self.output), self.output, 0.0)
            overflows = ~headroom.representable_output(finite, self.limit)
            rows = overflows if rows is None else rows | overflows
        return None if rows is None else rows.unsqueeze(-1)

    def _rows_without_keys(
        self, declaration: Declaration, right: Callable[[], Tensor | None]
    ) -> Tensor | None:
        if not self.has_empty_rows:
            return None
        empty, had_keys = self.core.empty, self.given.allowed(declaration.semantics).any(dim=-1)
        emptied = empty & had_keys if had_keys.shape == empty.shape else torch.zeros_like(empty)
        rows = self._rows_of_answer(empty if declaration.empty_rows == "any" else emptied)
        if not bool(emptied.any()):
            return rows if bool(rows.any()) else None
        # With a single key the mean of all values is the right answer: a right row may be empty.
        spared = right() if self.given.geometry.key_length > 1 else None
        emptied = self._rows_of_answer(emptied)
        return rows if spared is None or spared.shape != rows.shape else rows & ~(emptied & spared)

    def empties_rows(self, declared: golden.Semantics) -> bool:
        """Whether the mistake takes all keys from rows that have keys: their answer is open."""
        had_keys = self.given.allowed(declared).any(dim=-1)
        empty = self.core.empty
        return had_keys.shape == empty.shape and bool((empty & had_keys).any())

    def _rows_of_answer(self, rows: Tensor) -> Tensor:
        return self.given.answer_rows(rows, self.core.semantics).squeeze(-1)


class ActedAnswers:
    """The answers of single mistakes, remembered for the searches of one subject.

    Answers in ``common`` are shared with other subjects.
    """

    def __init__(
        self, oracle: Oracle, declared: golden.Semantics, common: CommonAnswers | None = None
    ) -> None:
        self._oracle = oracle
        self._declared = declared
        self._common = common
        # Mistakes and inputs are kept with the answers, so that no identity is reused.
        self._answers: dict[tuple[int, int], Acted] = {}
        self._counts: Counter[int] = Counter()

    def count(self, inputs: Inputs) -> int:
        """Return how many mistakes have been acted out on the inputs."""
        return self._counts[id(inputs)]

    def answer(self, mistake: NamedMistake, inputs: Inputs) -> MistakenAnswer:
        """Return the answer of a candidate that makes one mistake; NotExpressible if impossible."""
        key = id(mistake), id(inputs)
        if key not in self._answers:
            self._counts[id(inputs)] += 1
            known = None if self._common is None else self._common.acted.get(key)
            self._answers[key] = known or self._act(mistake, inputs)
            if self._common is not None:
                self._common.keep(self._answers[key])
        acted = self._answers[key][-1]
        if acted is None:
            raise NotExpressible
        return acted

    def touches(self, mistake: NamedMistake, inputs: Inputs) -> bool:
        """Whether a mistake may change the answer to the inputs at all."""
        touched: dict[int, bool] = {}
        if self._common is not None and self._common.is_of_catalogue(mistake):
            touched = self._common.touched.setdefault(inputs, touched)
        if id(mistake) not in touched:
            call = DeclaredCall(inputs=inputs, semantics=self._declared)
            touched[id(mistake)] = touches(mistake, call)
        return touched[id(mistake)]

    def _act(self, mistake: NamedMistake, inputs: Inputs) -> Acted:
        try:
            return mistake, inputs, act(self._oracle, self._declared, (mistake,), inputs)
        except NotExpressible:
            return mistake, inputs, None


# A mistake, inputs and the answer; None where the mistake cannot be made on the inputs.
Acted = tuple[NamedMistake, Inputs, MistakenAnswer | None]
# How many declarations are remembered, problems and acted answers of each, and the most logits of
# a problem whose acted answers are remembered.
MOST_DECLARATIONS: Final = 3
MOST_PROBLEMS: Final = 1024
MOST_ACTED: Final = 4096
MOST_KEPT_LOGITS: Final = 2048


class _QuickOracle(Oracle):
    """An oracle whose answers nobody differentiates: operations are a third quicker."""

    def answer_at(self, inputs: Inputs, point: golden.Semantics) -> Golden:
        with torch.inference_mode():
            return super().answer_at(inputs, point)


class CommonAnswers:
    """Problems and answers that follow from a declaration, for all candidates with it.

    A diagnosis chooses problems by the declaration, so tensors, golden answers, bounds and the
    answers of catalogue mistakes are the same for the next candidate.
    """

    _latest: ClassVar[list[CommonAnswers]] = []

    def __init__(self, subject: Subject) -> None:
        self.place = subject.declaration, subject.dtype, subject.device
        self.oracle = _QuickOracle(subject.declaration, subject.dtype)
        # The candidate's own function plays no part, and must not be kept alive.
        like = dataclasses.replace(subject.candidate, function=like_nobody, eager=None, graph=None)
        other = subject.like(like)
        self.inputs = lru_cache(maxsize=MOST_PROBLEMS)(other.inputs.__wrapped__)
        self.acted: dict[tuple[int, int], Acted] = {}
        self.touched: WeakKeyDictionary[Inputs, dict[int, bool]] = WeakKeyDictionary()
        self.lists: dict[Any, list[Any]] = {}
        self._catalogue = frozenset(map(id, named_mistakes()))

    @classmethod
    def shared(cls, subject: Subject) -> CommonAnswers:
        """Return the common answers of a subject's declaration, dtype and device."""
        place = subject.declaration, subject.dtype, subject.device
        common = next((one for one in cls._latest if one.place == place), None)
        if common is not None:
            cls._latest.remove(common)
        cls._latest.append(common or cls(subject))
        del cls._latest[:-MOST_DECLARATIONS]
        return cls._latest[-1]

    def keep(self, acted: Acted) -> None:
        """Remember the answer of a catalogue mistake to a small problem."""
        mistake, inputs, _ = acted
        small = inputs.geometry.logits <= MOST_KEPT_LOGITS
        if small and self.is_of_catalogue(mistake) and len(self.acted) < MOST_ACTED:
            self.acted[id(mistake), id(inputs)] = acted

    def is_of_catalogue(self, mistake: NamedMistake) -> bool:
        """Whether a mistake belongs to the catalogue, which every search tries."""
        return id(mistake) in self._catalogue


class DiagnosedSubject(Subject):
    """A subject that shares problems, golden and acted answers with its declaration's subjects."""

    def __init__(self, subject: Subject) -> None:
        vars(self).update(vars(subject))
        shares = subject.candidate.fixed_weights is None and subject.candidate.weights_known
        self._common = CommonAnswers.shared(subject) if shares else None
        if self._common is not None:
            self.oracle, self.inputs = self._common.oracle, self._common.inputs
        self.gradients = Differentiator(self)
        self.acted = ActedAnswers(self.oracle, self.declaration.semantics, self._common)
        self.answered: dict[Problem, Any] = {}  # what the candidate has answered already
        self.calls: dict[
            Inputs, str
        ] = {}  # the message of each raising call, "" of an answered call

    def forward(self, inputs: Inputs) -> Any:
        """Return the forward for inputs with their own weights: a layer may change its weights."""
        return super().forward(inputs.with_own_weights())

    def listed(self, key: Any, make: Callable[[], Iterable[Any]]) -> list[Any]:
        """Return a list that follows from the declaration; made once."""
        lists = {} if self._common is None else self._common.lists
        if key not in lists:
            lists[key] = list(make())
        return lists[key]


def acted_answers(subject: Subject) -> ActedAnswers:
    """Return the acted answers that a diagnosed subject shares; new ones for any other subject."""
    own = subject.acted if isinstance(subject, DiagnosedSubject) else None
    return own or ActedAnswers(subject.oracle, subject.declaration.semantics)


def listed(subject: Subject, key: Any, make: Callable[[], Iterable[Any]]) -> list[Any]:
    """Return a list that follows from the declaration, made once per declaration."""
    return subject.listed(key, make) if isinstance(subject, DiagnosedSubject) else list(make())


_TIME_CHECKS: Final[list[Callable[[], None]]] = []


@contextlib.contextmanager
def limited_by(check: Callable[[], None]) -> Iterator[None]:
    """Run a search until ``check`` raises; it is called before each acted mistake."""
    _TIME_CHECKS.append(check)
    try:
        yield
    finally:
        _TIME_CHECKS.remove(check)


def check_time() -> None:
    """Raise the exception that ends a search out of time; for long steps that act nothing out."""
    for check in tuple(_TIME_CHECKS):
        check()


def act(
    oracle: Oracle, declared: golden.Semantics, made: Sequence[NamedMistake], inputs: Inputs
) -> MistakenAnswer:
    """Return the answer of a candidate that makes the mistakes; NotExpressible if impossible."""
    check_time()
    if inputs.point is not declared and inputs.point != declared:
        inputs = inputs.replace(point=declared)
    made = made_on(declared, made, inputs)
    try:
        with torch.inference_mode():  # nothing is differentiated: operations are a fifth quicker
            answer = _answer(oracle, inputs, _asked(declared, made, inputs), made)
    except IMPOSSIBLE as error:
        raise NotExpressible from error
    for mistake in made:
        if mistake.rows is not None:
            others = [other for other in made if other is not mistake]
            without = act(oracle, declared, others, inputs)
            answer = _limit_to_rows(mistake, inputs, answer, without)
    return answer


def made_on(
    declared: golden.Semantics, made: Sequence[NamedMistake], inputs: Inputs
) -> Combination:
    """Return the mistakes that can be made on the inputs."""
    return tuple(one for one in made if one.where(inputs) and one.speaks_at(declared))


def mistaken_call(declared: golden.Semantics, made: Combination, inputs: Inputs) -> DeclaredCall:
    """Return the inputs and the point of the semantics that the mistakes answer by."""
    call = _asked(declared, made, inputs)
    return asked_otherwise(call, _edits_of(made))


def _asked(declared: golden.Semantics, made: Combination, inputs: Inputs) -> DeclaredCall:
    """Return the call as mistakes understand it, without their edits.

    A mask read with the opposite polarity is inverted before further mistakes change it.
    """
    point = declared
    for mistake in made:
        point = mistake.changed_point(point)
    if point.mask_polarity == "drop":
        inputs = inputs if inputs.keep is None else inputs.replace(keep=~inputs.keep)
        point = point.replace(mask_polarity="keep")
    for mistake in made:
        if mistake.inputs is not None:
            inputs = mistake.inputs(DeclaredCall(inputs=inputs, semantics=point)) or inputs
    return DeclaredCall(inputs=inputs, semantics=point)


def _edits_of(made: Combination) -> list[golden.Edit]:
    return [edit for mistake in made for edit in mistake.edits]


def mistaken_attention(
    call: DeclaredCall, made: Combination
) -> tuple[golden.Attention, golden.Attention]:
    """Return the attention proper before and after the edits by mistakes.

    The latter has keys and values that no query reads. ``call`` comes from :func:`mistaken_call`.
    """
    before = core_of(evaluate(call.inputs, call.semantics))
    if all(map(is_of_call, _edits_of(made))):
        return before, _include_every_key(before)
    return before, golden.evaluation_of(mistaken_run(call, made), call.semantics)


def mistaken_run(call: DeclaredCall, made: Combination) -> golden.Run:
    """Return the run with the edits by mistakes, with keys and values that no query reads.

    ``call`` comes from :func:`mistaken_call`.
    """
    later = (edit for edit in _edits_of(made) if not is_of_call(edit))
    return read_every_key(run_of_call(call)).edited(*later)


def _limit_to_rows(
    mistake: NamedMistake, inputs: Inputs, answer: MistakenAnswer, without: MistakenAnswer
) -> MistakenAnswer:
    if mistake.rows is None or without.output.shape != answer.output.shape:
        raise NotExpressible
    rows = mistake.rows(inputs, answer.output).unsqueeze(-1)
    output = torch.where(rows, answer.output, without.output)
    weights = answer.weights
    if weights.shape == without.weights.shape and rows.shape[:-1] == weights.shape[:-1]:
        weights = torch.where(rows, weights, without.weights)
    return dataclasses.replace(answer, output=output, weights=weights, stepwise=True)


def _answer(oracle: Oracle, given: Inputs, call: DeclaredCall, made: Combination) -> MistakenAnswer:
    evaluation = None
    if edits := _edits_of(made):
        run = run_of_call(call)
        edits = [edit for edit in edits if edit.stage in run and run.holds(edit)]
        if not all(map(is_of_call, edits)):
            return _edited_answer(oracle, given, call, run, edits)
        evaluation = golden.evaluated(run.complete().edited(*edits), call.semantics)
    elif declared := _declared_answer(oracle, given, call):
        evaluation = declared.evaluation
    evaluation = evaluation or evaluate(call.inputs, call.semantics)
    return MistakenAnswer(
        given=given,
        inputs=call.inputs,
        semantics=call.semantics,
        core=core_of(evaluation),
        weights=core_of(evaluation).weights,
        output=evaluation.output,
        stepwise=False,
        oracle=oracle,
        evaluation=evaluation,
    )


def _edited_answer(
    oracle: Oracle,
    given: Inputs,
    call: DeclaredCall,
    right: golden.Run,
    edits: Sequence[golden.Edit],
) -> MistakenAnswer:
    run = read_every_key(right).edited(*edits)
    declared = _declared_answer(oracle, given, call)
    before = declared.core if declared else core_of(evaluate(call.inputs, call.semantics))
    return MistakenAnswer(
        given=given,
        inputs=call.inputs,
        semantics=call.semantics,
        core=_emptied(before, run["empty"]),
        weights=run["weights"],
        output=run[answer_stage(run)],
        stepwise=True,
        oracle=oracle,
        largest=run["largest"],
    )


def _emptied(core: golden.Attention, empty: Tensor) -> golden.Attention:
    if empty.shape != core.empty.shape or not bool((empty & ~core.empty).any()):
        return core
    return dataclasses.replace(core, empty=core.empty | empty)


def _declared_answer(oracle: Oracle, given: Inputs, call: DeclaredCall) -> Golden | None:
    """Return the golden answer to the given inputs if the call equals them; remembered."""
    if call.inputs is not given:
        return None
    point = oracle.point(given)
    unchanged = call.semantics is point or call.semantics == point
    return oracle.answer(given) if unchanged else None


def _include_every_key(attention: golden.Attention) -> golden.Attention:
    """Include keys and values that no query reads: a mistake may read them."""
    run = attention.run.edited(*EVERY_KEY)
    return dataclasses.replace(attention, key=run["key"], value=run["shared_value"])


def _largest_finite(tensor: Tensor) -> float:
    return largest_size(tensor.nan_to_num(0.0, 0.0, 0.0))
