"""Reads wrong computations from a candidate's answers, and states them.

The answers to unit values are the weights that a candidate gives to each value. They tell what no
operator or number at a stage makes: biases by place, and partly lost caches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Final

import torch

from ..clauses.subject import Subject
from ..oracle.extreme_logits import single_key_inputs
from ..problems.inputs import Inputs
from ..problems.problem import MaskPlan
from ..problems.space import Space
from ..tolerance import model
from .agreement import BatteryAnswer
from .battery import BatteryEntry, answer_to, fitted_problem
from .conditions import CONDITIONS
from .dissection.changed_logits import (
    lost_row_statements,
    pair_statements,
    shift_statements,
)
from .dissection.influence import lost_cache_statements
from .dissection.layer_weights import few_tokens, read_layer
from .dissection.places import PlaceTable, alignments, place_table
from .dissection.reading import MOST_KEYS, Reading, read, readable
from .dissection.whole_answers import alike_row_statements, answer_order_statements
from .fitted_numbers import fills, numbers_making
from .mistaken_answer import Combination
from .mistakes import NamedMistake

# Ranges of numbers of keys, to tell tiles apart: an answer of each range is read.
RANGES: Final = (8, 16, 32, 64, 160)
# With fewer tokens or channels of a head, many statements fit a layer.
ENOUGH: Final = 4
# Keys of a layer whose weights are read.
FEW_KEYS: Final = 12
# One query and one head, whose only kept key is lowered until hidden keys take part in the answer.
_ONE_QUERY: Final = (1, 1, 1, 1, 7, 6, 4, 6, 6, 4, 4)
# Sizes at which a bias by place is read.
_MANY_PLACES: Final = (1, 8, 8, MOST_KEYS, MOST_KEYS, 6, 32, 6, 6, 4, 4)
_PLACES_OF_LAYERS: Final = (1, 2, 2, 48, 48, 6, 32, 6, 6, 4, 4)
_SEVERAL_ITEMS: Final = (8, 2, 2, 9, 9, 6, 32, 6, 6, 4, 4)
_FAR_PLACES_OF_LAYERS: Final = (1, 2, 2, 5, 320, 6, 32, 6, 6, 4, 4)
_HIGHEST_TURN: Final = 2.0**17


class StatementReader:
    """Reads what a candidate may compute instead from wrong answers, each once.

    Mistakes that are ``known`` are acted out first. Statements are proposals for the read answer,
    to be checked on others.
    """

    def __init__(self, subject: Subject, known: Combination = ()) -> None:
        self.subject = subject
        self.known = known
        self._said: dict[Inputs, list[NamedMistake]] = {}
        self._turned: list[NamedMistake] | None = None
        self._far: list[NamedMistake] = []
        self._placed: set[bool] = set()

    def statements(self, observed: Sequence[BatteryAnswer]) -> Iterator[list[NamedMistake]]:
        """Yield the statements of each answer worth reading, the plainest answer first.

        Right answers are skipped, and names of earlier answers are not repeated. Answers are read
        on demand: the plainest may explain all.
        """
        names: set[str] = set()
        wrong = [one for one in observed if one.margin > 1.0]
        of_layers = _plainest([one for one in wrong if _readable_layer(one.inputs)])
        of_cores = _plainest([one for one in wrong if readable(one.inputs)])
        for answer in (*sorted(of_layers, key=lambda one: _is_tiny(one.inputs)), *of_cores):
            if answer.inputs not in self._said:
                self._said[answer.inputs] = self._read(answer)
            new: dict[str, NamedMistake] = {}
            for one in self._said[answer.inputs]:
                if one.name not in names:
                    new.setdefault(one.name, one)
            names.update(new)
            yield list(new.values())
        few = list(map(_keeps_few, wrong))  # the known mistakes may explain the rest
        if self._turned is None and any(few) and (all(few) or not self.known):
            self._turned = self._where_hidden_keys_win()
        yield self._turned or []
        lost = lost_row_statements(wrong)
        self._far += lost  # searches know a statement by its identity, so it must outlive them
        yield lost

    def _where_hidden_keys_win(self) -> list[NamedMistake]:
        answers = (answer_to(self.subject, one) for one in _where_hidden_keys_win(self.subject))
        each = (numbers_making([one], fills(), self.known) for one in answers if one is not None)
        return list(chain.from_iterable(each))

    def _read(self, answer: BatteryAnswer) -> list[NamedMistake]:
        if ordered := list(answer_order_statements(answer)):
            return ordered
        said: list[NamedMistake] = []
        reading = self._weights(answer.inputs)
        if reading is not None and _is_legible(reading):
            said += lost_cache_statements(reading)
            said += self._place_statements(reading)
        return [*said, *shift_statements(answer), *alike_row_statements(answer)]

    def _weights(self, inputs: Inputs) -> Reading | None:
        if not inputs.is_layer:
            return read(self.subject, inputs, self.known, finite=False)
        few = few_tokens(self.subject, inputs) if inputs.geometry.key_length <= FEW_KEYS else None
        reading = None if few is None else read_layer(self.subject, few, self.known)
        return reading if reading is not None and reading.explained else None

    def _place_statements(self, reading: Reading) -> Iterator[NamedMistake]:
        """Yield a bias by place, read again at many heads and lengths to fill its table.

        Places are counted from both corners, if both fit.
        """
        for corner in alignments(reading):
            if corner in self._placed or place_table(reading, bottom_right=corner) is None:
                continue
            self._placed.add(corner)
            of_layers = (_PLACES_OF_LAYERS, _FAR_PLACES_OF_LAYERS)
            several = of_layers if reading.call.inputs.is_layer else (_MANY_PLACES,)
            tables = [self._placed_at(sizes, bottom_right=corner) for sizes in several]
            if tables[0] is not None:
                yield tables[0].extended(tables[-1]).statement()
        if self._has_fixed_lengths and (of_items := self._read_at(_SEVERAL_ITEMS)):
            yield from pair_statements(of_items)

    @cached_property
    def _has_fixed_lengths(self) -> bool:
        sizes = (_PLACES_OF_LAYERS, _FAR_PLACES_OF_LAYERS)
        asked = (fitted_problem(self.subject, BatteryEntry(sizes=each, seed=67)) for each in sizes)
        lengths = {one.geometry.key_length for one in asked if one is not None}
        return len(lengths) == 1

    def _placed_at(self, sizes: tuple[int, ...], *, bottom_right: bool) -> PlaceTable | None:
        long = self._read_at(sizes)
        return None if long is None else place_table(long, bottom_right=bottom_right)

    def _read_at(self, sizes: tuple[int, ...]) -> Reading | None:
        problem = fitted_problem(self.subject, BatteryEntry(sizes=sizes, seed=67))
        if problem is None:
            return None
        inputs = self.subject.inputs(problem)
        again = read_layer if inputs.is_layer else read
        return again(self.subject, inputs, self.known)


def _where_hidden_keys_win(subject: Subject) -> Iterator[Inputs]:
    """Yield queries whose only kept key is so low that hidden keys weigh about as much.

    One query per mask form that gives hidden keys weight.
    """
    options = Space(values=("normal",), mask="always").options(subject.candidate)
    base = fitted_problem(subject, BatteryEntry(sizes=_ONE_QUERY, seed=41))
    if base is None or base.geometry.key_length < 2:  # noqa: PLR2004 (one is hidden)
        return
    for form, shape in dict(reversed(options)).items():
        plan = MaskPlan(pattern="single", form=form, shape=shape)
        inputs = _find_turn(subject, subject.inputs(base.replace(mask=plan)))
        if inputs is not None:
            yield inputs


def _find_turn(subject: Subject, drawn: Inputs) -> Inputs | None:
    """Lower the only kept key, by bisection, until hidden keys weigh about as much."""
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
    """Return all that a :class:`StatementReader` reads from answers."""
    return list(chain.from_iterable(StatementReader(subject, known).statements(observed)))


def _is_legible(reading: Reading) -> bool:
    return bool(torch.isfinite(reading.weights).all(dim=-1).any())


def _keeps_few(answer: BatteryAnswer) -> bool:
    inputs = answer.inputs
    few = not inputs.generic or bool(answer.exact.empty_rows.any())
    return inputs.masked and few and inputs.geometry.key_length > 1


def _readable_layer(inputs: Inputs) -> bool:
    return inputs.is_layer and 0 < inputs.geometry.key_length <= MOST_KEYS


def _is_tiny(inputs: Inputs) -> bool:
    sizes = inputs.geometry
    return min(sizes.query_length, sizes.key_length, sizes.head_size) < ENOUGH


def _plainest(answers: Sequence[BatteryAnswer]) -> list[BatteryAnswer]:
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
    inputs, sizes = answer.inputs, answer.inputs.geometry
    features = sum(condition.holds(inputs) for condition in CONDITIONS)
    return (
        not inputs.generic,
        not math.isfinite(float(answer.output.sum())),
        min(sizes.query_length, sizes.key_length) == 1,
        features,
        sizes.logits,
    )
