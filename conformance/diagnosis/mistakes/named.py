"""What a named mistake is: changes to the point, to the question, or to a step of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs

Heads = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """What a candidate was asked: its inputs, and the point of the semantics they are read by."""

    inputs: Inputs
    semantics: golden.Semantics

    @property
    def default_scale(self) -> float:
        """The scale where the call gives none."""
        sizes = self.inputs.geometry
        return golden.scale_value(
            self.semantics,
            head_size=sizes.head_size,
            value_head_size=sizes.value_head_size,
            num_heads=sizes.num_heads,
        )

    @property
    def scale(self) -> float:
        """The scale that the dot products meet."""
        given = self.inputs.scale
        return self.default_scale if given is None else given


class NotExpressible(Exception):  # noqa: N818 (no error: the mistake cannot be made on such inputs)
    """A mistake that cannot be made on some inputs: a transpose of what is not square."""


Question = Callable[[Asked], Inputs | None]
HeadsChange = Callable[[Asked, Heads], Heads | None]
CoreChange = Callable[[Asked, golden.Attention], golden.Attention | None]
OutputChange = Callable[[Asked, Tensor], Tensor | None]
Where = Callable[[Inputs], bool]


def everywhere(_inputs: Inputs) -> bool:
    """A mistake that any inputs may show."""
    return True


@dataclass(frozen=True, kw_only=True)
class NamedMistake:
    """A mistake as what differs from the attention that is declared.

    name
        A stable slug. Entries of one name are several ways to make one mistake.
    text, fix
        What the candidate does, and what to do instead, in the user's terms.
    clause
        The slug of the clause that names it best.
    changes
        Fields of ``Semantics`` that differ from the declared point.
    question
        Other inputs that the candidate answers instead.
    heads
        Other heads ``[B, H, L, D]`` of query, key and value that meet in the attention proper.
    core
        Another outcome of the attention proper: other weights, another output. Its ``key`` and
        ``value`` are those of every key, ignored ones too.
    output
        Another answer, after the output projection.
    where
        The inputs that can show it, beyond what ``changes`` and ``question`` tell by themselves.
    base, fits
        Fields of the declared point at which alone it can be made, such as rotary positions; or a
        function that knows such points, ``base`` then being one of them.
    point
        A further change to the declared point that depends on it.
    special_of
        A mistake of which this is a special case: not reported where that one explains as much.

    Each function returns None where the mistake changes nothing, and raises ``NotExpressible``
    where it cannot be made.
    """

    name: str
    text: str
    fix: str
    clause: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    question: Question | None = None
    heads: HeadsChange | None = None
    core: CoreChange | None = None
    output: OutputChange | None = None
    where: Where = everywhere
    base: Mapping[str, Any] = field(default_factory=dict)
    fits: Callable[[golden.Semantics], bool] | None = None
    point: Callable[[golden.Semantics], golden.Semantics] | None = None
    special_of: str = ""

    def speaks_at(self, point: golden.Semantics) -> bool:
        """Whether it can be made where a point is declared."""
        if self.fits is not None:
            return self.fits(point)
        return all(getattr(point, name) == value for name, value in self.base.items())

    def at(self, point: golden.Semantics) -> golden.Semantics:
        """The declared point with this mistake made, as it is where it cannot be made."""
        if not self.speaks_at(point):
            return point
        changed = point if self.point is None else self.point(point)
        return changed.replace(**self.changes)

    @property
    def only_a_point(self) -> bool:
        """Whether it is nothing but another point of the semantics, wherever it is made."""
        return not any((self.base, self.question, self.heads, self.core, self.output))


def mistakes(
    name: str,
    clause: str,
    text: str,
    fix: str,
    *ways: Mapping[str, Any],
    where: Where = everywhere,
    special_of: str = "",
) -> list[NamedMistake]:
    """One mistake, an entry for each way to make it: the fields that differ."""
    shared = {"name": name, "text": text, "fix": fix, "clause": clause, "special_of": special_of}
    return [NamedMistake(**{"where": where, **shared, **way}) for way in ways]
