"""Where a mistake is made: under which conditions of a call, and for which rows of the answer.

A mistake that explains every wrong row leaves other rows right that it would have spoilt. What the
former have in common and the latter lack is the condition that the statement names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Final

import torch
from torch import Tensor

from ..clauses.subject import Subject
from ..problems.inputs import Inputs
from ..tolerance import model
from .agreement import within
from .battery import BatteryAnswer
from .conditions import FINER, Condition
from .mistaken_answer import ActedAnswers, MistakenAnswer, touches
from .mistakes import DeclaredCall, NamedMistake, NotExpressible
from .telling_apart import fewest

# Conditions that a mistake may have together.
MOST_TOGETHER: Final = 3


@dataclass(frozen=True)
class Part:
    """Some rows of an answer: ``holds`` gets batch, head and query of each row, and the inputs.

    ``head`` is None for a layer, whose rows are made of all heads.
    """

    name: str
    words: str
    holds: Callable[[Inputs, Tensor, Tensor | None, Tensor], Tensor | None]


def _index(name: str, words: str, holds: Callable[[Tensor, int], Tensor], axis: str) -> Part:
    def of_rows(inputs: Inputs, item: Tensor, head: Tensor | None, query: Tensor) -> Tensor | None:
        index = {"item": item, "head": head, "query": query}[axis]
        sizes = inputs.geometry
        count = {"item": sizes.batch, "head": sizes.num_heads, "query": sizes.query_length}[axis]
        return None if index is None else holds(index, count)

    return Part(name, words, of_rows)


def _without_keys(
    inputs: Inputs, item: Tensor, head: Tensor | None, query: Tensor
) -> Tensor | None:
    """Rows that may attend no key."""
    empty = ~inputs.allowed(inputs.point).any(dim=-1)
    if head is None:
        return empty.any(dim=1)[item, query]
    return empty[item, head, query]


def _with_hidden_keys(
    inputs: Inputs, item: Tensor, head: Tensor | None, query: Tensor
) -> Tensor | None:
    """Rows from which some key is hidden."""
    hidden = ~inputs.allowed(inputs.point).all(dim=-1)
    if head is None:
        return hidden.any(dim=1)[item, query]
    return hidden[item, head, query]


def _past_the_keys(
    inputs: Inputs, _item: Tensor, _head: Tensor | None, query: Tensor
) -> Tensor | None:
    return query >= inputs.geometry.key_length


def _from_query(number: int) -> Part:
    words = f"for queries from index {number} on"
    return _index(f"query {number} on", words, lambda index, _n: index >= number, "query")


def _in_a_short_tile(size: int) -> Part:
    words = f"for queries past the last whole tile of {size}"
    return _index(f"short tile of {size}", words, lambda i, n: i >= n // size * size, "query")


PARTS: Final[tuple[Part, ...]] = (
    Part("rows without keys", "in rows without keys", _without_keys),
    Part("rows with hidden keys", "in rows from which some key is hidden", _with_hidden_keys),
    *(
        part
        for axis, one, several in (
            ("item", "batch item", "batch items"),
            ("head", "head", "heads"),
            ("query", "query", "queries"),
        )
        for part in (
            _index(f"first {axis}", f"for the first {one}", lambda i, _n: i == 0, axis),
            _index(
                f"not first {axis}", f"for {several} after the first", lambda i, _n: i > 0, axis
            ),
            _index(f"last {axis}", f"for the last {one}", lambda i, n: i == n - 1, axis),
            _index(
                f"not last {axis}", f"for {several} before the last", lambda i, n: i < n - 1, axis
            ),
            _index(f"odd {axis}", f"for {several} of odd index", lambda i, _n: i % 2 == 1, axis),
            _index(f"even {axis}", f"for {several} of even index", lambda i, _n: i % 2 == 0, axis),
        )
    ),
    Part("past the keys", "for queries past the number of keys", _past_the_keys),
    *(_from_query(number) for number in (2, 4, 8, 16, 32, 64, 128)),
    *(_in_a_short_tile(size) for size in (2, 4, 8, 16, 32)),
)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of an answer by what they agree with; bool ``[B, H, Lq]``, of a layer ``[B, L]``."""

    made: Tensor
    spared: Tensor
    unexplained: Tensor


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """A mistake under as many conditions as it is made under.

    ``spared`` counts the rows that it would have spoilt without them.
    """

    mistake: NamedMistake
    conditions: int
    spared: int


class Narrowing:
    """The rows of some observed answers, and the conditions that each of them meets."""

    def __init__(
        self, subject: Subject, observed: Sequence[BatteryAnswer], acted: ActedAnswers
    ) -> None:
        self.subject = subject
        self.acted = acted
        self.observed = observed
        self._traits: dict[int, Tensor] = {}

    def explains_first(self, mistake: NamedMistake, count: int) -> bool:
        """Whether a mistake explains every wrong row of the first answers."""
        for answer in self.observed[:count]:
            rows = self._rows(mistake, answer)
            if rows is None or bool(rows.unexplained.any()):
                return False
        return True

    def narrowed(self, mistake: NamedMistake) -> Narrowed | None:
        """The mistake where alone it is made; None where it does not explain the wrong rows.

        Answers are looked at in their order: the sooner one comes that the mistake does not
        explain, the less is computed.
        """
        made, spared = [], []
        for index, answer in enumerate(self.observed):
            rows = self._rows(mistake, answer)
            if rows is None or bool(rows.unexplained.any()):
                return None
            traits = self._traits_of(index)
            made.append(traits[rows.made.flatten()])
            spared.append(traits[rows.spared.flatten()])
        made_rows, spared_rows = torch.cat(made).unique(dim=0), torch.cat(spared).unique(dim=0)
        chosen = _telling_apart(made_rows, spared_rows) if len(made_rows) else None
        if chosen is None:
            return None
        return Narrowed(
            mistake=made_under(mistake, chosen),
            conditions=len(chosen),
            spared=sum(len(rows) for rows in spared),
        )

    def _rows(self, mistake: NamedMistake, answer: BatteryAnswer) -> Rows | None:
        """What each row agrees with; None for an answer of another shape."""
        exact = self.subject.golden(answer.inputs)
        if exact.output.shape != answer.output.shape:
            return None
        right = within(answer.output, exact.output, exact.bound).all(dim=-1)
        judged = exact.representable.expand(answer.output.shape).all(dim=-1)
        if self.subject.declaration.empty_rows == "any":
            judged = judged & ~exact.empty_rows.expand(answer.output.shape).all(dim=-1)
        none = torch.zeros_like(right)
        without = Rows(made=none, spared=none, unexplained=judged & ~right)
        call = DeclaredCall(inputs=answer.inputs, semantics=self.subject.declaration.semantics)
        if not touches(mistake, call):
            return without
        try:
            acted = self.acted.of(mistake, answer.inputs)
        except NotExpressible:
            return without
        if acted.output.shape != answer.output.shape:
            return None
        if torch.equal(acted.output, exact.output):  # spares the bound, which costs the most
            return without
        judged = judged & ~acted.unjudged(self.subject.declaration).expand(answer.output.shape).any(
            dim=-1
        )
        mistaken = within(answer.output, acted.output, acted.bound).all(dim=-1)
        closer = _much_closer(answer.output, acted, exact.output, exact.bound)
        return Rows(
            made=judged & mistaken & ~right,
            spared=judged & right & ~mistaken,
            unexplained=judged & ~right & ~(mistaken & closer),
        )

    def _traits_of(self, index: int) -> Tensor:
        """Which of ``LITERALS`` each row of an answer meets: bool ``[rows, literals]``."""
        if index not in self._traits:
            self._traits[index] = _traits(self.observed[index])
        return self._traits[index]


def _much_closer(output: Tensor, acted: MistakenAnswer, expected: Tensor, bound: Tensor) -> Tensor:
    """Rows that are much closer to the mistake than to the golden, or as close as rounding lets.

    Those that are not finite are both.
    """
    left = torch.nan_to_num((output - acted.output).abs()).amax(dim=-1)
    before = (output - expected).abs().amax(dim=-1)
    rounding = torch.nan_to_num(bound.expand_as(output)).amax(dim=-1)
    return ~((left > model.MUCH_CLOSER * before) & (left > model.AS_CLOSE * rounding))


def _traits(answer: BatteryAnswer) -> Tensor:
    inputs, shape = answer.inputs, answer.output.shape[:-1]
    axes = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
    flat = [axis.flatten() for axis in axes]
    item, query, head = flat[0], flat[-1], flat[1] if len(flat) == len("BHL") else None
    columns = []
    for literal in LITERALS:
        if isinstance(literal, Condition):
            columns.append(torch.full(item.shape, literal.holds(inputs)))
        else:
            part = literal.holds(inputs, item, head, query)
            columns.append(torch.zeros_like(item, dtype=torch.bool) if part is None else part)
    return torch.stack(columns, dim=-1)


LITERALS: Final[tuple[Condition | Part, ...]] = (
    *(
        literal
        for condition in FINER
        for literal in (condition, condition.negated)
        if literal.words
    ),
    *PARTS,
)


def _telling_apart(made: Tensor, spared: Tensor) -> tuple[Condition | Part, ...] | None:
    """The fewest literals that all rows of ``made`` meet and none of ``spared`` does together.

    None where no three tell them apart. Of equally many the plainest are taken.
    """
    common = made.all(dim=0).nonzero().flatten().tolist()
    left = [
        sum(1 << row for row in spared[:, index].nonzero().flatten().tolist()) for index in common
    ]
    chosen = fewest(left, len(spared), MOST_TOGETHER)
    return None if chosen is None else tuple(LITERALS[common[index]] for index in chosen)


def made_under(mistake: NamedMistake, literals: Sequence[Condition | Part]) -> NamedMistake:
    """A mistake that is made under conditions and in some rows alone, and its text says so."""
    if not literals:
        return mistake
    conditions = [one for one in literals if isinstance(one, Condition)]
    parts = [one for one in literals if isinstance(one, Part)]
    words = " and ".join(one.words for one in literals)
    return dataclasses.replace(
        mistake,
        sentence=f"{mistake.sentence} (only {words})",
        where=lambda inputs: (
            mistake.where(inputs) and all(condition.holds(inputs) for condition in conditions)
        ),
        rows=_rows_of(parts) if parts else mistake.rows,
    )


def _rows_of(parts: Sequence[Part]) -> Callable[[Inputs, Tensor], Tensor]:
    """Which rows of an answer lie in every part: bool of the answer's shape but for channels."""

    def rows(inputs: Inputs, output: Tensor) -> Tensor:
        shape = output.shape[:-1]
        axes = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
        head = axes[1] if len(shape) == len("BHL") else None
        held = [part.holds(inputs, axes[0], head, axes[-1]) for part in parts]
        no_rows = torch.zeros(shape, dtype=torch.bool)
        return reduce(and_, (no_rows if one is None else one for one in held))

    return rows
