"""Reads the weights of a layer's attention through its projections.

The answer of a layer is linear in its values, and these are linear in the matrix of their
projection, which queries and keys do not depend on. Answers for several such matrices are equations
for the weights, given the path of the values. A layer with fixed matrices is asked with different
value tokens, if value tokens are a separate input. Otherwise each answer is read alone: it has
enough channels for the weights of few tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...clauses.subject import Subject
from ...oracle.oracle import known_weights
from ...problems.fitting import fitted_geometry
from ...problems.inputs import Inputs
from ...problems.problem import Problem
from ...problems.space import Space
from ...tolerance import model
from ..battery import answer_to, can_be_asked
from ..mistaken_answer import (
    Combination,
    made_on,
    mistaken_attention,
    mistaken_call,
    mistaken_run,
)
from ..mistakes import IMPOSSIBLE, DeclaredCall, NotExpressible
from .reading import ROOM, Reading

# The most keys of a layer whose weights are read: the time grows with their cube. The larger limit
# is for layers that take no fewer.
MOST_KEYS_OF_LAYERS: Final = 40
MOST_KEYS_ASKED: Final = 64
# Equations for each unknown weight.
TIMES: Final = 2.0
# The most weights of an item that are read together, and the most calls.
MOST_UNKNOWN: Final = 400
MOST_CALLS: Final = 16
# The most numbers of the map from heads' answers to the layer's: 8 bytes each.
MOST_NUMBERS: Final = 24_000_000
# Widths of tokens that leave the values of all keys independent.
WIDER: Final = 1.25
# The fewest tokens of a comparison.
FEWEST_TOKENS: Final = 3
_SEED: Final = 17


def few_tokens(subject: Subject, inputs: Inputs) -> Inputs | None:
    """Return inputs, cut to the first tokens if too long; None if they cannot be cut."""
    keys = inputs.geometry.key_length
    if keys <= MOST_KEYS_OF_LAYERS:
        return inputs
    if inputs.masked or inputs.mode != "self" or inputs.past:
        return None
    cut = inputs.map_tokens(lambda tokens: tokens[:, :MOST_KEYS_OF_LAYERS].contiguous())
    if can_be_asked(subject, cut):
        return cut
    return inputs if keys <= MOST_KEYS_ASKED else None


class LayerCalls:
    """The answers of a layer for several matrices of its value projection, or value tokens.

    They are equations for its weights. ``inputs`` are the given inputs or wider ones of equal
    lengths; None if the layer takes none that suffice. A layer too wide for its tokens is not read.
    """

    def __init__(self, subject: Subject, inputs: Inputs) -> None:
        self.subject = subject
        self.inputs = _wide_enough(subject, inputs)
        self._answers: list[tuple[Inputs, Tensor]] = []
        if self.inputs is None or _is_too_wide(self.inputs.geometry):
            return
        for one in _variants(subject, self.inputs):
            answer = answer_to(subject, one)
            output = None if answer is None else _fill_lost_rows(answer.output, one)
            if output is None or not bool(torch.isfinite(output).all()):
                self._answers = []
                return
            self._answers.append((one, output))

    def reading(
        self,
        known: Combination = (),
        point: golden.Semantics | None = None,
        *,
        explained: bool = False,
    ) -> Reading | None:
        """Return the weights besides known mistakes; None if they cannot be read.

        ``point`` replaces the declared one. With ``explained``, None for other answers as well.
        """
        inputs, declared = self.inputs, point or self.subject.declaration.semantics
        if inputs is None or not self._answers:
            return None
        made = made_on(declared, known, inputs)
        try:
            equations = [
                _Equations(mistaken_call(declared, made, one), made, answer)
                for one, answer in self._answers
            ]
            if any(one.left is None for one in equations):
                return None
            solved = _solve(equations, inputs.geometry)
        except (NotExpressible, *IMPOSSIBLE):
            return None
        if solved is None:
            return None
        weights, left, spread = solved
        size = max(float(one.left.abs().amax()) for one in equations if one.left is not None)
        rounding = ROOM * torch.finfo(inputs.query.dtype).eps * size
        fits = left <= ROOM**2 * rounding
        if explained and not fits:
            return None
        call = mistaken_call(declared, made, inputs)
        _, attention = mistaken_attention(call, made)
        return Reading(
            call=call,
            attention=attention,
            weights=weights,
            answer=attention.output,
            explained=fits,
            error=self.subject.oracle.weights_bound(inputs) + rounding * spread,
            given=inputs,
        )


def read_layer(subject: Subject, inputs: Inputs, known: Combination = ()) -> Reading | None:
    """Return the weights of a layer besides known mistakes; None if they cannot be read."""
    return LayerCalls(subject, inputs).reading(known)


def _fill_lost_rows(output: Tensor, inputs: Inputs) -> Tensor:
    """Replace all-NaN rows by the answer without values."""
    bias = known_weights(inputs).o_bias
    nothing = torch.zeros_like(output) if bias is None else bias.to(output).expand_as(output)
    return torch.where(output.isnan().all(dim=-1, keepdim=True), nothing, output)


def most_tokens(sizes: Geometry) -> int:
    """Return how many queries of a layer may be read at once, given its widths."""
    numbers = sizes.num_heads * sizes.value_head_size * sizes.output_size
    return math.isqrt(MOST_NUMBERS // max(numbers, 1))


def _is_too_wide(sizes: Geometry) -> bool:
    return sizes.query_length > most_tokens(sizes)


def _count(sizes: Geometry) -> int:
    unknown = sizes.num_heads * sizes.key_length
    return min(MOST_CALLS, math.ceil(TIMES * unknown / max(sizes.output_size, 1)) + 1)


def _variants(subject: Subject, inputs: Inputs) -> list[Inputs]:
    count = _count(inputs.geometry)
    if subject.candidate.draws_weights:
        return _draw_other_matrices(inputs, count)
    return _draw_other_values(inputs, count) if inputs.mode == "separate" else [inputs]


def _draw_other_matrices(inputs: Inputs, count: int) -> list[Inputs]:
    generator = torch.Generator().manual_seed(_SEED)
    weights = known_weights(inputs)

    def drawn() -> Tensor:
        matrix = torch.randn(weights.v.shape, generator=generator, dtype=torch.float64)
        return (matrix / math.sqrt(weights.v.shape[1])).to(weights.v.dtype)

    return [
        inputs.replace(weights=dataclasses.replace(weights, v=drawn()), generic=False)
        for _ in range(count)
    ]


def _draw_other_values(inputs: Inputs, count: int) -> list[Inputs]:
    generator = torch.Generator().manual_seed(_SEED)
    shape, dtype = inputs.value.shape, inputs.value.dtype
    drawn = (torch.randn(shape, generator=generator).to(dtype) for _ in range(count))
    return [inputs.with_tokens(value=value) for value in drawn]


def set_values_to_one(subject: Subject, inputs: Inputs) -> Inputs | None:
    """Return inputs with values of one; a layer then averages the answers of its heads.

    None if a layer has weights of its own, no output matrix, or no value bias.
    """
    if not inputs.is_layer:
        return inputs.with_tokens(value=torch.ones_like(inputs.value))
    weights = known_weights(inputs)
    if not subject.candidate.draws_weights or weights.v_bias is None or weights.o is None:
        return None
    made = dataclasses.replace(
        weights,
        v=torch.zeros_like(weights.v),
        v_bias=torch.ones_like(weights.v_bias),
        o=torch.full_like(weights.o, 1.0 / weights.o.shape[-1]),
        o_bias=None if weights.o_bias is None else torch.zeros_like(weights.o_bias),
    )
    return inputs.replace(weights=made, generic=False)


def _wide_enough(subject: Subject, inputs: Inputs) -> Inputs | None:
    """Return inputs, or wider ones of the same lengths, whose values tell tokens apart."""
    if inputs.past:
        return None
    if not subject.candidate.draws_weights:
        return inputs if inputs.mode == "separate" else _few_enough(inputs)
    if inputs.geometry.value_size >= WIDER * inputs.geometry.key_length:
        return inputs
    width = math.ceil(WIDER * inputs.geometry.key_length)
    heads = inputs.geometry.num_heads
    size = 2 * math.ceil(width / heads / 2)
    wanted = inputs.geometry.replace(
        head_size=max(size, inputs.geometry.head_size),
        value_head_size=max(size, inputs.geometry.value_head_size),
        query_size=width,
        key_size=width,
        value_size=width,
        output_size=heads * size,
    )
    geometry = fitted_geometry(wanted, subject.candidate, Space(values=("normal",)))
    same = ("batch", "num_heads", "query_length", "key_length")
    if any(getattr(geometry, name) != getattr(inputs.geometry, name) for name in same):
        return None
    if geometry.value_size < geometry.key_length:
        return None
    causal = inputs.causal
    problem = Problem(
        geometry=geometry, dtype=subject.dtype, seed=_SEED, values="normal", causal=causal
    )
    drawn = subject.inputs(problem)
    return inputs.replace(
        geometry=geometry,
        query=drawn.query,
        key=drawn.key,
        value=drawn.value,
        weights=drawn.weights,
        generic=False,
    )


def _few_enough(inputs: Inputs) -> Inputs | None:
    """Return the first tokens of inputs, fewer than a value head has channels.

    One answer then gives more equations than weights. None if fewer than three tokens are left, or
    for a mask, which cannot be cut.
    """
    count = inputs.geometry.value_head_size - 1
    if inputs.geometry.key_length <= count:
        return inputs
    if count < FEWEST_TOKENS or inputs.masked:
        return None
    return inputs.map_tokens(lambda tokens: tokens[:, :count].contiguous())


class _Equations:
    """The equations of one answer for the weights.

    ``values [B, H, Lk, Dv]`` meet the weights, ``out [H, Lq, Dv, L, Eo]`` maps each head's answer
    to the layer's, ``left [B, L, Eo]`` is the answer without constant terms.
    """

    def __init__(self, call: DeclaredCall, made: Combination, answer: Tensor) -> None:
        self._run, sizes = mistaken_run(call, made), call.inputs.geometry
        self.values: Tensor = self._run["shared_value"]
        self._shape = sizes.num_heads, sizes.query_length, self.values.shape[-1]
        offset = self._answer(torch.zeros(sizes.batch, *self._shape))
        self.left = answer - offset if answer.shape == offset.shape else None

    def _answer(self, output: Tensor) -> Tensor:
        answer: Tensor = self._run.edited(output=output.double())["answer"]
        return answer

    def out(self) -> Tensor:
        """Return the map from each head's answer to the layer's, by unit answers."""
        count = math.prod(self._shape)
        units = torch.eye(count, dtype=torch.float64).reshape(count, *self._shape)
        answers = self._answer(units) - self._answer(torch.zeros(1, *self._shape))
        return answers.reshape(*self._shape, *answers.shape[1:])


def _left_inverse(tables: Tensor) -> Tensor | None:
    """Return the pseudoinverses of tables with independent columns; None for other tables.

    By an orthogonal basis: several times as quick as by singular values.
    """
    rows, columns = tables.shape[-2:]
    if not 0 < columns <= rows:
        return None
    basis, triangle = torch.linalg.qr(tables)
    values = torch.linalg.svdvals(triangle)
    if bool((values[..., -1] <= values[..., 0] * model.NO_EQUATION).any()):
        return None
    inverse: Tensor = torch.linalg.solve_triangular(triangle, basis.mT, upper=True)
    return inverse


def _solve(equations: Sequence[_Equations], sizes: Geometry) -> tuple[Tensor, float, Tensor] | None:
    """Return the weights, the largest residual, and the spread of an equation's error.

    None if the equations do not determine the weights.
    """
    out = equations[0].out()
    heads, queries = out.shape[:2]
    keys = sizes.key_length
    own = torch.diagonal(out, dim1=1, dim2=3)  # [H, D, Eo, Lq]
    mixed = bool((out.abs().sum() - own.abs().sum()).abs() > own.abs().sum() * model.NO_EQUATION)
    left = torch.stack([one.left for one in equations if one.left is not None])  # [C, B, Lq, Eo]
    values = torch.stack([one.values for one in equations])  # [C, B, H, Lk, Dv]
    count, batch, rows, width = left.shape
    if mixed:
        unknown = heads * queries * keys
        if unknown > MOST_UNKNOWN:
            return None
        table = torch.einsum("hqdpe,cbhkd->bcpehqk", out, values)
        table = table.reshape(batch, count * rows * width, unknown)
        target = left.transpose(0, 1).reshape(batch, count * rows * width, 1)
    else:
        unknown = heads * keys
        table = torch.einsum("hde,cbhkd->bcehk", own[..., 0], values)
        table = table.reshape(batch, count * width, unknown)
        target = left.permute(1, 0, 3, 2).reshape(batch, count * width, queries)
    inverse = _left_inverse(table)
    if inverse is None:
        return None
    solved = inverse @ target
    rest = float((target - table @ solved).abs().amax())
    spread = torch.linalg.vector_norm(inverse, dim=-1)
    shape = (batch, heads, queries, keys)
    if mixed:
        return solved.reshape(shape), rest, spread.reshape(shape)
    weights = solved.reshape(batch, heads, keys, queries).transpose(-1, -2)
    return weights, rest, spread.reshape(batch, heads, 1, keys).expand(shape)
