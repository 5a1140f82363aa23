"""Acts a mistake out: the golden answer of a candidate that makes it, step by step.

Question, point of the semantics, heads, attention proper, answer: each step may be another one.
Several mistakes made together change one step after another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .._golden import golden
from ..declare.declaration import Declaration
from ..oracle.headroom import finite_limit, representable_output, representable_rows
from ..oracle.oracle import Oracle, known_weights
from ..problems.inputs import Inputs
from ..tolerance import model
from .mistakes import Asked, NamedMistake, NotExpressible

Made = Sequence[NamedMistake]


@dataclass(frozen=True, kw_only=True, eq=False)
class Acted:
    """The answer of a candidate that makes some mistakes.

    ``inputs`` and ``semantics`` are those that it answers by; ``stepwise`` says that a later step
    differs too, so that no bound was derived for this answer. ``core`` is the attention proper
    before such a step.
    """

    inputs: Inputs
    semantics: golden.Semantics
    core: golden.Attention
    output: Tensor
    stepwise: bool
    oracle: Oracle

    @cached_property
    def bound(self) -> Tensor:
        """How far a candidate of the declared precision may be from this answer."""
        known = self.oracle.at(self.inputs, self.semantics)
        if not self.stepwise:
            return known.bound
        largest, before = (float(_finite(t).abs().max()) for t in (self.output, known.output))
        grown = max(1.0, largest / before) if before > 0.0 else 1.0
        room = model.ACTED_ROOM * min(grown, model.MOST_GROWN) ** 2
        return torch.full_like(self.output, room * float(_finite(known.bound).max()))

    def _small(self, limit: float) -> bool:
        """Whether nothing comes near the largest number: the root of it leaves room for products.

        The quick way round, for searching.
        """
        core, root = self.core, model.HEADROOM * limit**0.5
        tensors = (core.query, core.key, core.value, core.scores)
        return all(float(t.abs().max()) <= root for t in tensors if t.numel())

    def unjudged(self, declaration: Declaration) -> Tensor:
        """Rows that nothing is known about, broadcastable to the answer.

        Those that may overflow, and those without keys if nothing is promised about them.
        """
        limit = finite_limit(declaration, self.oracle.dtype)
        if self._small(limit):
            rows = torch.zeros_like(self.core.empty)
        else:
            rows = ~representable_rows(self.core, limit)
        if declaration.empty_rows == "any":
            rows = rows | self.core.empty
        if self.inputs.is_layer:
            rows = rows.any(dim=1)
        fits = rows.shape == self.output.shape[:-1]
        finite = torch.where(torch.isfinite(self.output), self.output, 0.0)
        overflows = ~representable_output(finite, limit)
        return (rows | overflows if fits else overflows).unsqueeze(-1)


def act(oracle: Oracle, declared: golden.Semantics, made: Made, inputs: Inputs) -> Acted:
    """What a candidate answers that makes some mistakes; NotExpressible where it cannot."""
    point = declared
    if inputs.point != declared:
        inputs = inputs.replace(point=declared)
    made = [mistake for mistake in made if mistake.where(inputs) and mistake.speaks_at(declared)]
    for mistake in made:
        point = mistake.at(point)
    for mistake in made:
        if mistake.question is not None:
            inputs = mistake.question(Asked(inputs=inputs, semantics=point)) or inputs
    asked = Asked(inputs=inputs, semantics=point)
    try:
        with torch.no_grad():
            return _acted(oracle, asked, made)
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        # The golden refuses, or shapes do not meet: nobody can compute this.
        raise NotExpressible from error


def _acted(oracle: Oracle, asked: Asked, made: Made) -> Acted:
    inputs, point = asked.inputs, asked.semantics
    heads = _heads_of(asked)
    for mistake in made:
        if mistake.heads is not None:
            heads = mistake.heads(asked, heads) or heads
    before = _attend(asked, heads)
    core = _with_every_key(before, heads, point) if any(m.core for m in made) else before
    for mistake in made:
        if mistake.core is not None:
            core = mistake.core(asked, core) or core
    output = core.output
    if inputs.is_layer:
        output = _behind_heads(asked, output)
    for mistake in made:
        if mistake.output is not None:
            changed = mistake.output(asked, output)
            output = output if changed is None else changed
    stepwise = any(m.heads or m.core or m.output for m in made)
    return Acted(
        inputs=inputs, semantics=point, core=before, output=output, stepwise=stepwise, oracle=oracle
    )


def _heads_of(asked: Asked) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value behind their projections, cut into heads."""
    inputs, point = asked.inputs, asked.semantics
    if not inputs.is_layer:
        return inputs.query.double(), inputs.key.double(), inputs.value.double()
    tokens, sizes = (inputs.query, inputs.key, inputs.value), inputs.geometry
    projected = golden.project_tokens(tokens, known_weights(inputs), point)
    return golden.cut_heads(projected, sizes.num_heads, sizes.num_kv_heads, point)


def _attend(asked: Asked, heads: tuple[Tensor, Tensor, Tensor]) -> golden.Attention:
    inputs = asked.inputs
    if inputs.scale is None:  # heads that have changed places do not change the scale
        inputs = inputs.replace(scale=asked.default_scale)
    return golden.attend(*heads, semantics=asked.semantics, **inputs.options)


def _with_every_key(
    attention: golden.Attention, heads: tuple[Tensor, Tensor, Tensor], point: golden.Semantics
) -> golden.Attention:
    """The same with keys and values that no query reads: a mistake may read them."""
    query, key, value = heads
    count = query.shape[1]
    return dataclasses.replace(
        attention,
        key=golden.repeat_heads(golden.position_heads(query, key, point)[1], count, point),
        value=golden.repeat_heads(value, count, point),
    )


def _behind_heads(asked: Asked, output: Tensor) -> Tensor:
    """The heads merged and projected."""
    point = asked.semantics
    return golden.project_output(
        golden.merge_heads(output, point), known_weights(asked.inputs), point
    )


def _finite(tensor: Tensor) -> Tensor:
    finite = tensor[torch.isfinite(tensor)]
    return finite if finite.numel() else torch.zeros(1, dtype=torch.float64)
