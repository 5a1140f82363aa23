"""The intermediate values of a computation, to be recognised among tensors.

The computation is the golden's or a mistake's. The axes of a tensor may be permuted or joined.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import within
from ..mistaken_answer import (
    Array,
    Combination,
    array_of,
    mistaken_attention,
    mistaken_call,
)
from ..mistakes import DeclaredCall
from ..mistakes.named_mistake import read_every_key

# exp(x) is 2 to the power of x times this.
_LOG2_E: Final = 1.4426950408889634


@dataclass(frozen=True, eq=False)
class Step:
    """An intermediate value: float64 or bool, with a letter for each axis.

    B: items; H: heads; N: key/value heads; G: heads that share a key/value head; Q, K: queries,
    keys; D: channels of a head; E: channels of tokens; P: parts of a packed projection.
    ``partial``: NaN marks unknown elements. ``ordered``: queries come before keys, and the
    transpose is another table. ``inner``: inside a softmax, where an error stems from the softmax's
    input; also tables that lack a part of the masks. ``filled``: any number low enough for a
    softmax may stand for minus infinity.
    """

    axes: str
    value: Tensor
    partial: bool = False
    ordered: bool = False
    inner: bool = False
    filled: bool = False


def right_steps(declared: golden.Semantics, inputs: Inputs, answer: Tensor) -> list[Step]:
    """Return the values that a right computation of an answer may pass through."""
    call = DeclaredCall(inputs=inputs.replace(point=declared), semantics=declared)
    _, attention = mistaken_attention(call, ())
    return [
        *_head_steps(call, attention.run),
        *_attention_steps(call, attention),
        *_place_steps(call),
        *_mask_steps(call, parts_are_known=True),
        *_output_steps(call, attention.output),
        _final(inputs, answer),
    ]


def mistaken_steps(
    declared: golden.Semantics, made: Combination, inputs: Inputs, answer: Tensor
) -> list[Step]:
    """Return the values that a mistaken answer passes through, as the mistakes are acted out.

    Raises the exceptions of acting out.
    """
    call = mistaken_call(declared, made, inputs.replace(point=declared))
    before, core = mistaken_attention(call, made)
    seen = torch.where(torch.isneginf(core.logits), torch.nan, core.logits)
    return [
        *_head_steps(call, core.run),
        *_attention_steps(call, before),
        *_place_steps(call),
        *_mask_steps(call),
        *_table_steps(~torch.isneginf(core.logits)),
        Step("BHQK", torch.exp(core.logits.to(inputs.query.dtype)).double(), inner=True),
        Step("BHQK", core.logits),
        Step("BHQK", seen, partial=True),
        Step("BHQK", core.weights),
        *_output_steps(call, core.output),
        _final(inputs, answer),
    ]


def _head_steps(call: DeclaredCall, run: golden.Run) -> Iterator[Step]:
    point = call.semantics
    if call.inputs.is_layer:
        yield from (Step("BQE", tokens.double()) for tokens in _tokens(call))
    given = run["given_query"], run["given_key"], run["given_value"]
    count = given[0].shape[1]
    yield from (Step("BHQD", each) for each in (given[0], run["normalised_query"], run["query"]))
    for each in (given[1], run["normalised_key"], run["turned_key"], given[2], run["value_heads"]):
        yield Step("BHQD", each)
        if each.shape[1] != count:
            yield Step("BHQD", golden.repeat_heads(each, count, point))
    yield from (Step("BHQD", run[name]) for name in ("shared_key", "shared_value"))
    for factor in (run["scale"], abs(run["scale"]) ** 0.5):
        yield Step("BHQD", factor * run["query"])
        yield Step("BHQD", factor * run["turned_key"])
    for some in (given, given[1:]):
        if len({tuple(each.shape) for each in some}) == 1:
            yield Step("PBHQD", torch.stack(some))


def _tokens(call: DeclaredCall) -> tuple[Tensor, ...]:
    inputs = call.inputs
    tokens, weights = (inputs.query, inputs.key, inputs.value), inputs.weights
    if weights is None:
        return tokens
    matrices = (weights.q, weights.k, weights.v)
    products = (golden.project(*pair, None) for pair in zip(tokens, matrices, strict=True))
    return (*tokens, *products)


# Stages of tables of all queries and keys, in front of the softmax.
_BEFORE_SOFTMAX: Final = ("products", "scores", "squashed", "capped", "modified", "biased")


def _attention_steps(call: DeclaredCall, attention: golden.Attention) -> Iterator[Step]:
    point, run = call.semantics, read_every_key(attention.run)
    tables = list({id(run[name]): run[name] for name in _BEFORE_SOFTMAX}.values())
    if attention.softcap is not None:
        tables.append(run["scores"] / attention.softcap)
    if attention.alibi is not None:
        tables += [attention.alibi, run["modified"] + attention.alibi]
    logits, weights = attention.logits, attention.weights
    largest = logits.amax(dim=-1, keepdim=True)
    largest = torch.where(torch.isneginf(largest), 0.0, largest)
    exponentials = torch.exp(logits - largest)
    total = exponentials.sum(dim=-1, keepdim=True)
    empty = torch.isneginf(logits).all(dim=-1, keepdim=True)
    of_fill = point.empty_rows == "mean-of-all"  # an empty row has the softmax of its fill
    others = () if of_fill else (0.0, torch.nan)
    tables += [weights, *(torch.where(empty, other, weights) for other in others)]
    yield from (Step("BHQK", table) for table in tables)
    filled = of_fill or not bool(empty.any())
    for table in (logits, _LOG2_E * logits):
        yield Step("BHQK", table, filled=filled)
    # Exponentials of plain logits are right unless they overflow or all vanish.
    plain = torch.exp(logits.to(call.inputs.query.dtype)).double()
    vanish = (plain.sum(dim=-1, keepdim=True) == 0.0) & (~empty | of_fill)
    plain = plain.masked_fill(plain.isinf() | vanish, torch.nan)
    for table in (logits - largest, exponentials, plain):
        yield Step("BHQK", table, inner=True)
    for row in (logits.amax(dim=-1, keepdim=True), largest, total, torch.log(total) + largest):
        yield Step("BHQ", row.squeeze(-1), inner=True)
    yield Step("BHQD", exponentials @ attention.value)


def _mask_steps(call: DeclaredCall, *, parts_are_known: bool = False) -> Iterator[Step]:
    """Yield tables of the keys that mask, causality and window keep, alone and combined.

    Incomplete combinations are inner steps if ``parts_are_known`` to be incomplete.
    """
    inputs, point = call.inputs, call.semantics
    given = [table for table in (_keep(call), _kept_by_bias(inputs)) if table is not None]
    options: list[tuple[bool, tuple[int, int] | None]] = []
    causal, window = inputs.causal, inputs.window
    if causal:
        options.append((True, None))
    if window is not None:
        before, after = window
        options += [(False, one) for one in ((before, -1), (-1, after), window)]
        options += [(True, one) for one in ((before, -1), window)] if causal else []
    sizes = inputs.geometry
    structures = [
        golden.structural_mask(
            sizes.query_length,
            sizes.key_length,
            causal=flag,
            window=pair,
            semantics=point,
            positions=inputs.given_positions,
        )
        for flag, pair in options
    ]
    wanted: list[Tensor] = []
    for some in _subsets(given):
        for structure in (None, *structures):
            parts = [*some, *([] if structure is None else [structure])]
            if parts:
                table = parts[0]
                for part in parts[1:]:
                    table = table & part
                wanted.append(table)
    for table in wanted:
        # The last table combines all masks.
        incomplete = parts_are_known and table is not wanted[-1]
        yield from _table_steps(table.expand(inputs.score_shape), part=incomplete)
    if inputs.bias is not None:
        yield Step("BHQK", inputs.bias.double().expand(inputs.score_shape))


def _place_steps(call: DeclaredCall) -> Iterator[Step]:
    sizes, point = call.inputs.geometry, call.semantics
    places = golden.query_positions(sizes.query_length, sizes.key_length, point).double()
    ahead = torch.arange(sizes.key_length) - places[:, None]
    yield Step("Q", places)
    for table in (ahead, -ahead, ahead.abs(), -ahead.abs()):
        yield Step("QK", table, ordered=True)


def _table_steps(seen: Tensor, *, part: bool = False) -> Iterator[Step]:
    for table in (seen, ~seen, torch.where(seen, 0.0, -torch.inf).double()):
        yield Step("BHQK", table, ordered=True, inner=part)


def _subsets(tables: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    for count in range(len(tables) + 1):
        yield from itertools.combinations(tables, count)


def _keep(call: DeclaredCall) -> Tensor | None:
    keep = call.inputs.keep
    return ~keep if keep is not None and call.semantics.mask_polarity == "drop" else keep


def _kept_by_bias(inputs: Inputs) -> Tensor | None:
    return None if inputs.bias is None else ~torch.isneginf(inputs.bias)


def _output_steps(call: DeclaredCall, output: Tensor) -> Iterator[Step]:
    yield Step("BHQD", output)
    weights = call.inputs.weights
    if call.inputs.is_layer and weights is not None and weights.o is not None:
        merged = golden.merge_heads(output, call.semantics)
        yield Step("BQE", merged)
        yield Step("BQE", golden.project(merged, weights.o[:, : merged.shape[-1]], None))


def _final(inputs: Inputs, answer: Tensor) -> Step:
    return Step("BQE" if inputs.is_layer else "BHQD", answer.double())


# Axes that may be joined, slow before fast: heads of one token, tokens of all items. With channels
# or positions slower than heads another layer would be computed.
_JOINED: Final = frozenset({"BN", "BG", "BQ", "NG", "ND", "GD", "GQ", "PN", "PG", "PD"})
# Axes that stand in this order in most values, and are often of one size.
_ALIKE: Final = ("QK", "BN", "BG")


@dataclass(frozen=True, eq=False)
class _Known:
    """A value without constant axes, with the tolerance of its comparison."""

    letters: str
    value: Tensor
    partial: bool
    ordered: bool
    inner: bool
    room: float
    lowest: float

    @cached_property
    def sums(self) -> tuple[float, float]:
        """The sum of the finite elements and their number: a cheap first comparison."""
        return _sums(array_of(self.value.double()))


class KnownValues:
    """The possible values of a tensor in a computation of a dtype."""

    def __init__(
        self, steps: Sequence[Step], sizes: Geometry, dtype: torch.dtype, *, tiled: bool
    ) -> None:
        self._sizes = sizes
        self._tiled = tiled
        kind = torch.finfo(dtype)
        self._vanishing = -math.log(kind.tiny * kind.eps)  # exponentials below are zero
        self._unit = model.STEP_ROOM * torch.finfo(dtype).eps * _steepness(steps)
        self._known = [known for step in steps if (known := self._reduced(step)) is not None]

    @property
    def telling(self) -> bool:
        """Whether rounding leaves enough digits to tell values apart."""
        return self._unit <= model.STEP_UNKNOWN

    def kind(self, value: Tensor) -> str:
        """Return "step" or "inner" (inside a softmax) if a tensor is a known value, else "".

        Constant tensors match nothing.
        """
        if value.is_complex() or value.numel() < 2:  # noqa: PLR2004 (a number may be anything)
            return ""
        reduced, _ = _drop_repeats(value, "." * value.dim())
        if not reduced.dim():
            return ""
        fitting = [
            known
            for known in self._known
            if known.value.numel() == reduced.numel()
            and (known.value.dtype == torch.bool) == (value.dtype == torch.bool)
        ]
        if not fitting:
            return ""
        number = reduced.double()
        sums = _sums(array_of(number))
        kinds = [
            "inner" if known.inner else "step"
            for known in fitting
            if known.partial
            or known.lowest > -math.inf
            or _close(sums, known.sums, known.room * number.numel())
            if self._is(number.masked_fill(number < known.lowest, -math.inf), known)
        ]
        return max(kinds, default="")

    def _is(self, number: Tensor, known: _Known) -> bool:
        shape = tuple(number.shape)
        expected = known.value.double()
        for order in arrangements(known.letters, tuple(expected.shape), shape):
            if known.ordered and _is_transposed(known.letters, order):
                continue
            if _is_exchanged(known.letters, tuple(expected.shape), order):
                continue
            arranged = expected.permute(order).reshape(shape)
            same = within(number, arranged, torch.full_like(arranged, known.room))
            if known.partial:
                same = same | arranged.isnan()
            if bool(same.all()):
                return True
        return False

    def _reduced(self, step: Step) -> _Known | None:
        """Prepare a step for comparison; None for a constant."""
        heads, groups = self._sizes.num_heads, self._sizes.num_kv_heads
        letters, value = step.axes, step.value
        if "H" in letters:
            axis = letters.index("H")
            whole = value.shape[axis] == heads
            pair = (heads // groups, groups) if self._tiled else (groups, heads // groups)
            named = ("GN" if self._tiled else "NG") if whole else "N"
            value = value.unflatten(axis, pair) if whole else value
            letters = letters.replace("H", named)
        if not value.numel() or (step.partial and bool(value.isnan().all())):
            return None
        if step.partial:  # where nothing is known nothing repeats
            kept = [axis for axis, size in enumerate(value.shape) if size > 1]
            letters = "".join(letters[axis] for axis in kept)
            value = value.squeeze()
        else:
            value, letters = _drop_repeats(value, letters)
        if not letters:
            return None
        number = array_of(value.double())
        largest = float(np.abs(number[np.isfinite(number)]).max(initial=0.0))
        exact = value.dtype == torch.bool
        room = 0.0 if exact else self._unit * largest
        flags = (step.partial, step.ordered, step.inner)
        finite = number[np.isfinite(number)].min(initial=0.0) if step.filled else -math.inf
        return _Known(letters, value, *flags, room, float(finite) - self._vanishing)


def _is_transposed(letters: str, order: tuple[int, ...]) -> bool:
    placed = "".join(letters[axis] for axis in order)
    return -1 < placed.find("K") < placed.find("Q")


def _is_exchanged(letters: str, sizes: tuple[int, ...], order: tuple[int, ...]) -> bool:
    """Whether axes of equal size are exchanged, which the shape does not show.

    Scores with keys before queries, or heads before items, may be another value: nobody could tell.
    """
    for pair in _ALIKE:
        axes = [letters.find(letter) for letter in pair]
        if min(axes) >= 0 and sizes[axes[0]] == sizes[axes[1]]:
            first, second = (order.index(axis) for axis in axes)
            if first > second:
                return True
    return False


def _steepness(steps: Sequence[Step]) -> float:
    """Return one plus the largest finite logit, which scales the errors of weights."""
    numbers = [step.value for step in steps if step.axes == "BHQK" and not step.inner]
    sizes = [torch.where(torch.isfinite(one), one, 0.0).abs() for one in numbers]
    return 1.0 + max((float(size.max()) for size in sizes if size.numel()), default=0.0)


def _drop_repeats(value: Tensor, letters: str) -> tuple[Tensor, str]:
    # Numpy's calls on few numbers take a fifth of torch's time; it does not know short formats.
    short = value.is_floating_point() and value.dtype.itemsize < torch.float32.itemsize
    array = array_of(value.float() if short else value)
    kept = ""
    for letter in letters:
        axis = len(kept)
        if array.shape[axis] == 1 or _repeats(array, axis):
            value, array = value.select(axis, 0), array.take(0, axis)
        else:
            kept += letter
    return value, kept


def _repeats(array: Array, axis: int) -> bool:
    first = array.take([0], axis)
    one, other = first.flat[0], array.take(1, axis).flat[0]
    if one != other and one == one and other == other:  # noqa: PLR0124 (neither is NaN)
        return False  # mostly one look tells
    same = array == first
    if bool(same.all()):
        return True
    if array.dtype.kind != "f" or not bool(np.isnan(first).any()):
        return False
    return bool((same | (np.isnan(array) & np.isnan(first))).all())


def _sums(number: Array) -> tuple[float, float]:
    """Return the sum of the finite elements, which no permutation changes, and their number."""
    finite = number[np.isfinite(number)]
    return float(finite.sum()), float(finite.size)


def _close(one: tuple[float, float], other: tuple[float, float], room: float) -> bool:
    return one[1] == other[1] and abs(one[0] - other[0]) <= room


@lru_cache(maxsize=4096)
def arrangements(
    letters: str, sizes: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return the permutations of axes that, with the usual axes joined, have a shape."""
    if math.prod(sizes) != math.prod(shape):
        return ()
    return tuple(_orders(letters, sizes, shape, ()))


def _orders(
    letters: str, sizes: tuple[int, ...], shape: tuple[int, ...], chosen: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Yield ways to fill the first axis of a shape with one or several axes, then the others."""
    if not shape:
        if len(chosen) == len(letters):
            yield chosen
        return

    def joined(own: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
        if size == shape[0]:
            yield own
        for axis in range(len(letters)):
            if axis in chosen or axis in own or size * sizes[axis] > shape[0]:
                continue
            if not own or letters[own[-1]] + letters[axis] in _JOINED:
                yield from joined((*own, axis), size * sizes[axis])

    for own in joined((), 1):
        yield from _orders(letters, sizes, shape[1:], (*chosen, *own))
