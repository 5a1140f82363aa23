"""Reads what a candidate computes, and states it.

The answers to unit values are the weights that a candidate gives to each value. Weights say which
keys it attends, what its logits are made of and what it divides by: each is put together of the
fewest terms that give what was read, as a mistake that can be acted out and so checked on problems
that were not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...clauses.subject import Subject
from ...oracle.extreme_logits import single_key_inputs
from ...problems.inputs import Inputs
from ...problems.problem import MaskPlan
from ...problems.space import Space
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..battery import BatteryEntry, answer_to, fitted_problem
from ..conditions import CONDITIONS
from ..mistaken_answer import Combination
from ..mistakes import NamedMistake
from .bias_statements import (
    clamped_bias_statements,
    fill_of_layer_statements,
    misplaced_bias_statements,
)
from .by_head import (
    PlaceTable,
    alignments,
    head_statements,
    place_table,
    slopes_of,
    tabulated_slopes,
)
from .changed_logits import (
    added_number_statements,
    clamped_logit_statements,
    lost_row_statements,
    pair_statements,
    shift_statements,
)
from .denominators import sink_statements, sum_statements
from .dropped_weights import dropped_weight_statements
from .fills import fill_statements, zeroed_token_statements
from .influence import (
    lost_cache_statements,
)
from .layer_weights import MOST_KEYS_OF_LAYERS, read_layer
from .layers import (
    MOST_REMEMBERED,
    LayerReader,
    alike_row_statements,
    answer_order_statements,
    far_position_statements,
    head_answer_statements,
    query_and_key_statements,
    with_mistake,
)
from .logits import fitted_scales, logit_statements, two_softmax_statements
from .loops import loop_statements
from .operands import source_statements
from .projections import ValuePath
from .reading import MOST_KEYS, Reading, read, readable, together
from .tiles import tile_statements

# Numbers of keys that tell tiles apart: an answer of each range is read.
RANGES: Final = (8, 16, 32, 64, 160)
# Tokens and channels of a head from which on few statements fit the same layer.
ENOUGH: Final = 4
# One query and one head, whose only kept key is lowered to a logit of minus this at the most, until
# a part of the answer is of hidden keys.
_ONE_QUERY: Final = (1, 1, 1, 1, 7, 6, 4, 6, 6, 4, 4)
# Numbers of heads up to which slopes are read, and the other sizes.
MOST_SLOPES: Final = 8
_FEW_TOKENS: Final = (5, 7, 6, 4, 6, 6, 4, 4)
# Sizes at which a bias by place is read.
_MANY_PLACES: Final = (1, MOST_SLOPES, MOST_SLOPES, MOST_KEYS, MOST_KEYS, 6, 32, 6, 6, 4, 4)
_PLACES_OF_LAYERS: Final = (1, 2, 2, 48, 48, 6, 32, 6, 6, 4, 4)
_SEVERAL_ITEMS: Final = (8, 2, 2, 9, 9, 6, 32, 6, 6, 4, 4)
_FAR_PLACES_OF_LAYERS: Final = (1, 2, 2, 5, 320, 6, 32, 6, 6, 4, 4)
_HIGHEST_TURN: Final = 2.0**17
OF_WEIGHTS: Final = (
    fill_statements,
    lost_cache_statements,
    clamped_bias_statements,
    misplaced_bias_statements,
    sink_statements,
    dropped_weight_statements,
    clamped_logit_statements,
    sum_statements,
    tile_statements,
    loop_statements,
    logit_statements,
    head_statements,
    two_softmax_statements,
)
# Cores whose heads are turned, too: of a layer another says it.
OF_CORES: Final = (*OF_WEIGHTS, query_and_key_statements)


class StatementReader:
    """Reads what a candidate may compute instead from its wrong answers, each answer once.

    With mistakes that are ``known``: what it does besides them. Each statement is a proposal that
    holds for the answer that was read, and is to be checked on others.
    """

    def __init__(self, subject: Subject, known: Combination = ()) -> None:
        self.subject = subject
        self.known = known
        self._layers = LayerReader(subject, OF_WEIGHTS, known)
        self._said: dict[Inputs, list[NamedMistake]] = {}
        self._fitted: dict[Inputs, list[NamedMistake]] = {}
        self._first_statements: list[NamedMistake] = []
        self._at_the_turn: list[NamedMistake] | None = None
        self._far: list[NamedMistake] = []
        self._sources_read = self._slopes_read = False
        self._placed: set[bool] = set()

    def statements(self, observed: Sequence[BatteryAnswer]) -> Iterator[list[NamedMistake]]:
        """What each answer that is worth reading says, the plainest first.

        Right answers are passed over, and so are names that an earlier answer gave. An answer is
        read when what it says is asked for: what the plainest says may explain all of them.
        """
        names: set[str] = set()
        wrong = [one for one in observed if one.margin > 1.0]
        of_layers = _plainest([one for one in wrong if _readable_layer(one.inputs)])
        of_cores = _plainest([one for one in wrong if readable(one.inputs)])
        for answer in (*sorted(of_layers, key=lambda one: _is_tiny(one.inputs)), *of_cores):
            if answer.inputs not in self._said:
                self._said[answer.inputs] = self._read(answer)
            # Numbers of an answer as a whole are more exact than those that were read before.
            new = {one.name: one for one in self._fitted.get(answer.inputs, ())}
            for one in self._said[answer.inputs]:
                if one.name not in names:
                    new.setdefault(one.name, one)
            names.update(new)
            yield list(new.values())
        few = list(map(_keeps_few, wrong))  # besides what is known nothing else may be left
        if self._at_the_turn is None and any(few) and (all(few) or not self.known):
            self._at_the_turn = self._where_hidden_keys_win()
        yield self._at_the_turn or []
        far = [*far_position_statements(wrong)]
        far += lost_row_statements(wrong)
        self._far += far  # searches know a statement by its identity: it must outlive them
        yield far

    def _where_hidden_keys_win(self) -> list[NamedMistake]:
        """What is read where hidden keys weigh as much as the only one that is kept."""
        said: list[NamedMistake] = []
        for inputs in _where_hidden_keys_win(self.subject):
            if inputs.is_layer:
                answer = None if self.known else answer_to(self.subject, inputs)
                said += [] if answer is None else fill_of_layer_statements(answer)
                continue
            reading = read(self.subject, inputs, self.known) if readable(inputs) else None
            if reading is not None:
                said += [*fill_statements(reading), *clamped_bias_statements(reading)]
        return said

    def _read(self, answer: BatteryAnswer) -> list[NamedMistake]:
        inputs = answer.inputs
        if ordered := list(answer_order_statements(answer)):
            return ordered
        if not inputs.is_layer:
            reading = read(self.subject, inputs, self.known, finite=False)
            said = []
            if reading is not None and _is_legible(reading):
                said += self._of(reading)
                said += [] if self._slopes_read else _slopes(self.subject, reading, self.known)
                self._slopes_read = True
                said += self._by_place(reading)
            said += head_answer_statements(answer)
            said += [*shift_statements(answer), *alike_row_statements(answer)]
            said += added_number_statements(answer)
            return [*said, *zeroed_token_statements(inputs)]
        said = list(self._layers.statements(inputs))
        said += self._by_place(*self._layers.last) if self._layers.last else ()
        said += head_answer_statements(answer)
        said += shift_statements(answer)
        said += zeroed_token_statements(inputs)
        if not (self._sources_read or inputs.past):  # the plainest is made of them if any is
            self._sources_read = True
            said += source_statements(answer)
        if inputs.geometry.key_length > MOST_KEYS_OF_LAYERS and not self.known:
            self._fitted[inputs] = list(fitted_scales(self.subject, answer))
        return said

    def _by_place(self, reading: Reading, path: ValuePath | None = None) -> Iterator[NamedMistake]:
        """A bias by place, read again at many heads and lengths: no table tells more than it has.

        Places are counted from either corner, where both fit. ``path`` is that of a layer's values.
        """
        for corner in alignments(reading):
            if corner in self._placed or place_table(reading, bottom_right=corner) is None:
                continue
            self._placed.add(corner)
            of_layers = (_PLACES_OF_LAYERS, _FAR_PLACES_OF_LAYERS)
            tables = [
                self._placed_at(sizes, path, bottom_right=corner)
                for sizes in ((_MANY_PLACES,) if path is None else of_layers)
            ]
            if tables[0] is not None:
                yield tables[0].with_more(tables[-1]).statement()
        if self._has_fixed_lengths and (several := self._read_at(_SEVERAL_ITEMS, path)):
            yield from pair_statements(several)

    @cached_property
    def _has_fixed_lengths(self) -> bool:
        """Whether the candidate takes one number of keys alone: a window of so many places."""
        sizes = (_PLACES_OF_LAYERS, _FAR_PLACES_OF_LAYERS)
        asked = (fitted_problem(self.subject, BatteryEntry(sizes=each, seed=67)) for each in sizes)
        lengths = {one.geometry.key_length for one in asked if one is not None}
        return len(lengths) == 1

    def _placed_at(
        self, sizes: tuple[int, ...], path: ValuePath | None, *, bottom_right: bool
    ) -> PlaceTable | None:
        long = self._read_at(sizes, path)
        return None if long is None else place_table(long, bottom_right=bottom_right)

    def _read_at(self, sizes: tuple[int, ...], path: ValuePath | None) -> Reading | None:
        problem = fitted_problem(self.subject, BatteryEntry(sizes=sizes, seed=67))
        if problem is None:
            return None
        again = read if path is None else partial(read_layer, path=path)
        return again(self.subject, self.subject.inputs(problem), known=self.known)

    @torch.inference_mode()
    def _of(self, reading: Reading) -> list[NamedMistake]:
        """What a reading says alone, and besides what the plainest says."""
        of_weights = [one for proposer in OF_CORES for one in proposer(reading)]
        said = of_weights if reading.explained else []
        if reading.explained:
            shortest = sorted(of_weights, key=lambda one: len(one.sentence))[:MOST_REMEMBERED]
            first = {one.name: one for one in (*self._first_statements, *shortest)}
            said += _besides(self.subject, reading, self.known, list(first.values()))
            self._first_statements = self._first_statements or shortest
        return said


def _slopes(subject: Subject, reading: Reading, known: Combination) -> Iterator[NamedMistake]:
    """Slopes of a declared bias by distance, read at each number of heads that may be asked.

    By a rule where one gives them all, else one after another.
    """
    slopes, tables = slopes_of(reading), {}
    right = golden.alibi_slopes(reading.sizes.num_heads)
    if slopes is None or reading.agree(torch.tensor(slopes), right):
        return
    others: list[Reading] = []
    for count in range(1, MOST_SLOPES + 1):
        entry = BatteryEntry(sizes=(1, count, count, *_FEW_TOKENS), seed=61)
        problem = fitted_problem(subject, entry)
        if problem is None or problem.geometry.num_heads in tables:
            continue
        other = read(subject, subject.inputs(problem), known)
        if other is not None and (read_slopes := slopes_of(other)):
            tables[len(read_slopes)] = read_slopes
            others.append(other)
    rules = [
        rule
        for rule in (head_statements(others[-1]) if others else ())
        if all(_is_explained(with_mistake(subject, other, (*known, rule))) for other in others)
    ]
    yield from rules
    if tables and not rules:
        yield tabulated_slopes(tables, reading.same)


def _where_hidden_keys_win(subject: Subject) -> Iterator[Inputs]:
    """Queries whose only kept key is so low that hidden ones weigh about as much, if they do.

    One for each form of a mask that gives hidden keys a weight, however low the kept one must be.
    """
    options = Space(values=("normal",), mask="always").options(subject.candidate)
    base = fitted_problem(subject, BatteryEntry(sizes=_ONE_QUERY, seed=41))
    if base is None or base.geometry.key_length < 2:  # noqa: PLR2004 (one is hidden)
        return
    for form, shape in dict(reversed(options)).items():
        plan = MaskPlan(pattern="single", form=form, shape=shape)
        inputs = _at_the_turn(subject, subject.inputs(base.replace(mask=plan)))
        if inputs is not None:
            yield inputs


def _at_the_turn(subject: Subject, drawn: Inputs) -> Inputs | None:
    """How low the only kept key is where hidden ones weigh about as much; found by halving."""
    least, most, target = 0.0, 0.0, 1.0
    while target < _HIGHEST_TURN:
        inputs = single_key_inputs(drawn, live=0, target=target, low=True)[0]
        answer, exact = answer_to(subject, inputs), subject.golden(inputs)
        if answer is None or not answer.fits:
            return None
        apart = float((answer.output - exact.output).abs().max())
        whole = exact.output if inputs.is_layer else inputs.value
        share = apart / float(2.0 * whole.abs().max())
        if model.LEAST_PART < share < model.MOST_PART:
            return inputs
        least, most = (target, most) if share <= model.LEAST_PART else (least, target)
        if most and most - least < 1.0:
            return None
        target = (least + most) / 2.0 if most else 2.0 * target
    return None


def statements(
    subject: Subject, observed: Sequence[BatteryAnswer], known: Combination = ()
) -> list[NamedMistake]:
    """All that a :class:`StatementReader` reads from some answers."""
    return list(chain.from_iterable(StatementReader(subject, known).statements(observed)))


def _besides(
    subject: Subject, reading: Reading, known: Combination, first: Sequence[NamedMistake]
) -> Iterator[NamedMistake]:
    """What the weights say besides some statements, where none of these explains them alone."""
    left = [(one, with_mistake(subject, reading, (*known, one))) for one in first]
    made = [(one, other) for one, other in left if other is not None]
    if any(_is_explained(other) for _, other in made):
        return
    said: list[tuple[Reading, list[NamedMistake]]] = []  # of several alike it is read once
    for one, other in made:
        if other.distance > reading.distance:
            continue  # it is not one of two mistakes that are made here
        seconds = next((seconds for seen, seconds in said if _are_alike(seen, other)), None)
        if seconds is None:
            seconds = [two for proposer in OF_WEIGHTS for two in proposer(other)]
            said.append((other, seconds))
        for two in seconds:
            yield together(one, two)
            yield together(two, one)


def _are_alike(one: Reading, other: Reading) -> bool:
    """Whether two readings of the same weights are compared with equal calls."""
    same = one.call.semantics == other.call.semantics
    return same and all(
        _are_equal(getattr(first, field.name), getattr(second, field.name))
        for first, second in (
            (one.attention, other.attention),
            (one.call.inputs, other.call.inputs),
        )
        for field in fields(first)
        if field.compare
    )


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _is_explained(reading: Reading | None) -> bool:
    """Whether weights are what they should be, as far as it can be read."""
    return reading is not None and (reading.nearly_right or not bool(reading.wrong.any()))


def readings(
    subject: Subject, wrong: Sequence[BatteryAnswer], known: Combination = ()
) -> Iterator[Reading]:
    """Readings of wrong answers: the plainest of each range of key lengths and each condition."""
    for answer in _plainest([answer for answer in wrong if readable(answer.inputs)]):
        reading = read(subject, answer.inputs, known, finite=False)
        if reading is not None and _is_legible(reading):
            yield reading


def _is_legible(reading: Reading) -> bool:
    """Whether some query has weights that are all numbers."""
    return bool(torch.isfinite(reading.weights).all(dim=-1).any())


def _keeps_few(answer: BatteryAnswer) -> bool:
    """Whether a mask keeps the same single key for all queries, or none for some."""
    inputs = answer.inputs
    few = not inputs.generic or bool(answer.exact.empty_rows.any())
    return inputs.masked and few and inputs.geometry.key_length > 1


def _readable_layer(inputs: Inputs) -> bool:
    return inputs.is_layer and 0 < inputs.geometry.key_length <= MOST_KEYS


def _is_tiny(inputs: Inputs) -> bool:
    """Whether sizes are so small that many statements fit what is read."""
    sizes = inputs.geometry
    return min(sizes.query_length, sizes.key_length, sizes.head_size) < ENOUGH


def _plainest(answers: Sequence[BatteryAnswer]) -> list[BatteryAnswer]:
    """Of some answers the plainest of each range of key lengths and each condition."""
    ordered = sorted(answers, key=_size)
    chosen: dict[str, BatteryAnswer] = {}
    for answer in ordered:
        keys = answer.inputs.geometry.key_length
        chosen.setdefault(f"up to {next(limit for limit in RANGES if keys <= limit)}", answer)
        for condition in CONDITIONS:
            if condition.holds(answer.inputs):
                chosen.setdefault(condition.name, answer)
    return list(dict.fromkeys(chosen.values()))


def _size(answer: BatteryAnswer) -> tuple[bool, bool, bool, int, int]:
    """How hard an answer is to read: unusual values, no numbers, one query or key, features."""
    inputs, sizes = answer.inputs, answer.inputs.geometry
    features = sum(condition.holds(inputs) for condition in CONDITIONS)
    return (
        not inputs.generic,
        not math.isfinite(float(answer.output.sum())),
        min(sizes.query_length, sizes.key_length) == 1,
        features,
        sizes.logits,
    )


__all__ = ["Reading", "StatementReader", "read", "readable", "readings", "statements"]
