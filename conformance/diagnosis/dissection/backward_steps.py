"""A right backward pass with its parts at hand, and with an operand changed or numbers read."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...clauses.judging_gradients import described
from ...tolerance import model
from ...tolerance.backward_pass import BackwardPass
from ..mistakes._steps import BLOCKS
from ..mistakes.backward_pass import gradient_of_mask, gradients_with, sum_of_groups, unprepared
from ..mistakes.named_mistake import BackwardCall, BackwardSteps, Gradients, NamedMistake
from ..observed_gradients import ObservedGradients, near, room
from .reading import Number, numbers, roundest

ROLES: Final = ("query", "key", "value", "bias")
TOKENS: Final = ("query", "key", "value")
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Backward:
    """A call with the right backward pass and its parts under their usual names.

    ``weights`` P, ``of_weights`` dP, ``row_term`` D are ``[B, H, Lq, Lk]`` and ``[B, H, Lq, 1]``.
    """

    call: BackwardCall

    @property
    def right(self) -> BackwardPass:
        """The right pass with every intermediate value."""
        return self.call.right

    @property
    def weights(self) -> Tensor:
        """P."""
        return self.right.weights

    @cached_property
    def of_weights(self) -> Tensor:
        """The gradient of P, that of keys which nobody attends as well: dP."""
        return self.call.upstream @ self.value.mT

    @property
    def row_term(self) -> Tensor:
        """The sum of P * dP over the keys: D."""
        return self.right.row_sum

    @property
    def allowed(self) -> Tensor:
        """The pairs that are attended, as numbers."""
        return self.call.attention.allowed.expand(self.weights.shape).double()

    @cached_property
    def key(self) -> Tensor:
        """The keys of every query head as they meet, those that nobody attends as well."""
        call = self.call
        _, key = golden.position_heads(*call.heads[:2], call.semantics)
        return golden.repeat_heads(key, call.heads[0].shape[1], call.semantics)

    @cached_property
    def value(self) -> Tensor:
        """The values of every query head, those that nobody attends as well."""
        call = self.call
        return golden.repeat_heads(call.heads[2], call.heads[0].shape[1], call.semantics)

    def of_logits(self, logits: Tensor, slope: Tensor | None = None) -> Gradients:
        """Every gradient that follows from that of the logits, with another slope of the scores."""
        slope = self.right.slope if slope is None else slope
        scores, scale = logits * slope, self.call.attention.scale
        return {
            "query": scale * (scores @ self.key),
            "key": sum_of_groups(self.call, scale * (scores.mT @ self.call.attention.query)),
            **gradient_of_mask(self.call, self.right, logits),
        }

    def of_weight_gradient(self, of_weights: Tensor) -> Gradients:
        """Every gradient that follows from that of the weights."""
        row_term = (self.weights * of_weights).sum(dim=-1, keepdim=True)
        return self.of_logits(self.weights * (of_weights - row_term))

    def of_value(self, weights: Tensor, upstream: Tensor | None = None) -> Gradients:
        """The gradient of the value from some weights."""
        upstream = self.call.upstream if upstream is None else upstream
        return {"value": sum_of_groups(self.call, weights.mT @ upstream)}

    @cached_property
    def exact(self) -> Gradients:
        """The right gradients."""
        return {**self.of_logits(self.right.logit_gradient), **self.of_value(self.weights)}


Values = Callable[[Backward], Gradients]


@dataclass(frozen=True, kw_only=True, eq=False)
class Variant:
    """One way to compute some gradients; ``words`` follow "in the gradient of the query".

    ``roles`` are those that it may concern. ``name`` is that of the catalogue's entry, where it is
    one: then ``words`` are a sentence of their own. ``values`` are gradients of heads as they meet;
    ``unprepared`` gives those of the heads before they were normalised and turned.
    """

    words: str
    fix: str
    values: Values
    roles: tuple[str, ...] = ROLES
    name: str = ""
    unprepared: Callable[[BackwardCall, str, Tensor], Tensor] = unprepared


def with_key(change: Change) -> Values:
    """Another key in dQ."""

    def values(b: Backward) -> Gradients:
        return {"query": b.call.attention.scale * (b.right.score_gradient @ change(b.key))}

    return values


def with_query(change: Change) -> Values:
    """Another query in dK."""

    def values(b: Backward) -> Gradients:
        queries, scale = change(b.call.attention.query), b.call.attention.scale
        return {"key": sum_of_groups(b.call, scale * (b.right.score_gradient.mT @ queries))}

    return values


def with_value(change: Change) -> Values:
    """Another value in dP."""
    return lambda b: b.of_weight_gradient(b.call.upstream @ change(b.value).mT)


def scores_with_upstream(change: Change) -> Values:
    """Another gradient of the output in dP."""
    return lambda b: b.of_weight_gradient(change(b.call.upstream) @ b.value.mT)


def value_with_upstream(change: Change) -> Values:
    """Another gradient of the output in dV."""
    return lambda b: b.of_value(b.weights, change(b.call.upstream))


def with_upstream(change: Change) -> Values:
    """Another gradient of the output, everywhere."""
    return lambda b: {**scores_with_upstream(change)(b), **value_with_upstream(change)(b)}


def each_of_tokens(change: Change) -> Values:
    """The right gradients of query, key and value, changed."""
    return lambda b: {role: change(b.exact[role]) for role in TOKENS}


_NO_LIMIT: Final = "return the gradients as they are: whoever trains clips them"
# Problems that a length must be the same in to be one that gradients are cut to.
_TWICE: Final = 2
# The part of a number that is rounded away where it is said with few digits.
_SAME: Final = model.SAME_READ

# What a candidate computes in problems where it is wrong, and what it should.
Observed = Sequence[tuple[Tensor, Tensor]]


def read_variants(role: str, observed: Observed) -> Iterator[Variant]:
    """What a wrong gradient of one role may be, with numbers read from what was observed."""
    yield from _clamped(role, observed)
    yield from _cut_to_length(role, observed)
    yield from _tokens_from(role, observed)
    yield from _not_numbers(role, observed)


def _variants(role: str, words: str, fix: str, change: Change) -> Iterator[Variant]:
    """A change to the gradient of a role, as a whole, and of each query head that shares it."""

    def whole(call: BackwardCall, of: str, gradient: Tensor) -> Tensor:
        return change(unprepared(call, of, gradient))

    def of_each_head(b: Backward) -> Gradients:
        return {role: sum_of_groups(b.call, change(getattr(b.right, role)))}

    yield Variant(words=words, fix=fix, values=lambda b: b.exact, roles=(role,), unprepared=whole)
    if role != "query":
        more = f"{words} before those of a group are added up"
        yield Variant(words=more, fix=fix, values=of_each_head, roles=(role,))


def _said(read: float) -> float:
    """A number with as few digits as are read of it."""
    return roundest(read * (1.0 - _SAME), read * (1.0 + _SAME))


def _clamped(role: str, observed: Observed) -> Iterator[Variant]:
    """Elements clamped to a limit, which then is the size of the largest, of several of them."""
    for actual, exact in observed:
        sizes = actual.abs()
        limit = float(sizes.amax()) if sizes.numel() else 0.0
        at_limit = sizes >= (1.0 - torch.finfo(torch.float32).eps) * limit
        if limit and bool(torch.isfinite(actual).all()) and int(at_limit.sum()) > 1:
            if bool((exact.abs()[at_limit] < (1.0 - _SAME) * limit).any()):
                continue
            said = _said(limit)
            words = f"each element is clamped to the range from {-said:g} to {said:g}"
            yield from _variants(role, words, _NO_LIMIT, _clamp_to(said))
            return


def _clamp_to(limit: float) -> Change:
    return lambda gradient: gradient.clamp(-limit, limit)


def _cut_to_length(role: str, observed: Observed) -> Iterator[Variant]:
    """All gradients of a call, or each one's channels, cut to a length where they are longer."""
    for words, length in (
        ("the whole gradient is cut to a length of {:g}", _whole_length),
        ("each token's gradient is cut to a length of {:g}", _length_of_tokens),
    ):
        cut = [float(length(actual).amax()) for actual, _ in observed if actual.numel()]
        if len(cut) < _TWICE or not all(0.0 < one < math.inf for one in cut):
            continue
        if max(cut) - min(cut) > 2.0 * _SAME * max(cut):
            continue
        said = _said(cut[0])
        yield from _variants(role, words.format(said), _NO_LIMIT, _cut(said, length))


def _whole_length(gradient: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(gradient)
    return length


def _length_of_tokens(gradient: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return length


def _cut(limit: float, length: Callable[[Tensor], Tensor]) -> Change:
    return lambda gradient: gradient * (limit / length(gradient).clamp_min(limit))


def _tokens_from(role: str, observed: Observed) -> Iterator[Variant]:
    """Tokens from an index on whose gradients are a number times what they must be."""
    for actual, exact in observed:
        by_token = (actual * exact).sum((0, 1, 3)), exact.square().sum((0, 1, 3))
        if not bool((by_token[1] > 0.0).all()) or not bool(torch.isfinite(actual).all()):
            continue
        factors = by_token[0] / by_token[1]
        wrong = ((factors - 1.0).abs() > _SAME).nonzero().flatten()
        if not wrong.numel() or int(wrong[0]) == 0:
            continue
        first, factor = int(wrong[0]), float(factors[wrong].mean())
        alike = (factors[first:] - factor).abs() <= 2.0 * _SAME * max(abs(factor), _SAME)
        if bool(alike.all()):
            said = 0.0 if abs(factor) <= _SAME else float(f"{factor:.3g}")
            words = f"tokens from index {first} on are {said:g} times what they must be"
            if not said:
                words = f"tokens from index {first} on are left out"
            yield from _variants(role, words, "treat every token alike", _times_from(first, said))
            return


def _times_from(first: int, factor: float) -> Change:
    def change(gradient: Tensor) -> Tensor:
        behind = torch.arange(gradient.shape[2]) >= first
        return gradient * torch.where(behind, factor, 1.0)[:, None]

    return change


def _not_numbers(role: str, observed: Observed) -> Iterator[Variant]:
    """Tokens behind the last whole tile whose gradients are NaN, by the sizes that a tile may have.

    Where there is no whole tile another loop may do the work.
    """
    ends: set[tuple[int, int]] = set()
    for actual, _ in observed:
        lost = actual.isnan().transpose(2, 0).flatten(1)
        if bool(lost.any()):
            ends.add((int((~lost.any(dim=-1)).sum()), len(lost)))
            if not bool(lost[-1].all()) or bool((lost.any(-1) != lost.all(-1)).any()):
                return
    for size in BLOCKS[1:] if ends else ():
        if all(0 < start == count // size * size for start, count in ends):
            words = f"tokens behind the last whole tile of {size} are NaN"
            fix = "set what a tile lacks to zero: what lies past the end may be anything"
            yield from _variants(role, words, fix, _nan_behind_tiles(size))


def _nan_behind_tiles(size: int) -> Change:
    def change(gradient: Tensor) -> Tensor:
        count = gradient.shape[2]
        whole = count // size * size
        behind = torch.arange(count) >= (whole or count)
        return gradient.masked_fill(behind[:, None], math.nan)

    return change


# Places behind which tiled loops forget what is left over.
EDGES: Final = (8, 16, 32, 64, 128, 256)


def without(axis: int, part: slice) -> Change:
    """Zeros in a part of an axis."""

    def changed(pairs: Tensor) -> Tensor:
        left = pairs.clone()
        left.transpose(axis, 0)[part] = 0.0
        return left

    return changed


LEFT_OUT: Final[tuple[tuple[str, Change], ...]] = tuple(
    (words.format(one), without(axis, part))
    for one, axis in (("query", 2), ("key", 3), ("head", 1), ("batch item", 0))
    for words, part in (
        ("the first {} is missing", slice(0, 1)),
        ("the last {} is missing", slice(-1, None)),
        ("all but the first {} is missing", slice(1, None)),
        ("every second {} is missing", slice(1, None, 2)),
    )
) + tuple(
    (f"{several} from index {edge} on are missing", without(axis, slice(edge, None)))
    for several, axis in (("keys", 3), ("queries", 2))
    for edge in EDGES
)


def tiles() -> Iterator[tuple[str, Change]]:
    """Pairs that loops over tiles lose: a tile of several, or what does not fill a tile."""
    for several, axis in (("queries", 2), ("keys", 3)):
        for size in BLOCKS[1:]:

            def last(pairs: Tensor, axis: int = axis, size: int = size) -> Tensor:
                start = (pairs.shape[axis] - 1) // size * size
                return without(axis, slice(0, start))(pairs)

            def rest(pairs: Tensor, axis: int = axis, size: int = size) -> Tensor:
                start = pairs.shape[axis] // size * size
                return without(axis, slice(start, None))(pairs)

            def all_but_last(pairs: Tensor, axis: int = axis, size: int = size) -> Tensor:
                start = (pairs.shape[axis] - 1) // size * size
                return without(axis, slice(start, None))(pairs) if start > 0 else pairs

            def all_but_first(pairs: Tensor, axis: int = axis, size: int = size) -> Tensor:
                several = pairs.shape[axis] > size
                return without(axis, slice(0, size))(pairs) if several else pairs

            yield f"of several tiles of {size} {several} the last is missing", all_but_last
            yield f"of several tiles of {size} {several} the first is missing", all_but_first
            yield f"all {several} but those of the last tile of {size} are missing", last
            yield f"{several} that do not fill a tile of {size} are missing", rest


def clamped(limit: float) -> Variant:
    """The gradients of the logits clamped to a limit that was read."""
    return Variant(
        words=f"dS is clamped to the range from {-limit:.4g} to {limit:.4g}",
        fix="do not clamp within the backward pass",
        values=lambda b: b.of_logits(b.right.logit_gradient.clamp(-limit, limit)),
        roles=("query", "key", "bias"),
    )


def clamped_upstream(limit: float) -> Variant:
    """What flows back clamped to a limit that was read."""
    return Variant(
        words=f"what flows back is clamped to the range from {-limit:.4g} to {limit:.4g}",
        fix="do not clamp within the backward pass: whoever trains clips gradients",
        values=with_upstream(lambda upstream: upstream.clamp(-limit, limit)),
    )


_RIGHT: Final = "1"
_FIX_FACTORS: Final = (
    "detach nothing and multiply nothing on the way back: autograd passes a linear layer as it is"
)


def factor_statements(observed: Sequence[ObservedGradients]) -> Iterator[NamedMistake]:
    """Gradients of a layer's tokens, matrices and biases that are numbers times the right ones.

    Where those of an operand are all times the same number its heads say so.
    """
    layers = [each for each in observed if each.inputs.is_layer and each.wrong]
    if not layers:
        return
    telling = max(layers, key=lambda each: (len(each.wrong), len(each.actual.by_name)))
    read = _factors(telling)
    said = {name: numbers_of[0].words for name, numbers_of in read.items()}
    operands = [{said[n] for n in (r, r[0], f"{r[0]}_bias") if n in said} for r in TOKENS]
    behind = {said.get(name, _RIGHT) for name in ("o", "o_bias")} - {_RIGHT}
    alike = len(set().union(*operands)) == 1 and not behind
    if not behind and not alike and all(len(words) <= 1 for words in operands):
        return
    wrong = {name: each for name, each in read.items() if each[0].words != _RIGHT}
    for choice in range(max(map(len, wrong.values()), default=0)):
        yield _multiplied({n: each[min(choice, len(each) - 1)] for n, each in wrong.items()}, read)


def _factors(observed: ObservedGradients) -> dict[str, list[Number]]:
    """What the number may be that each gradient is multiplied by; {} where one is no multiple.

    Tokens that are read for several operands get a sum, with a number for each.
    """
    parts: Gradients = {}

    def keep(_call: BackwardCall, gradients: Gradients) -> Gradients:
        parts.update(gradients)
        return dict(gradients)

    gradients_with(lambda: observed.beginning, observed.upstream, BackwardSteps(final=keep))
    same = model.SAME_READ + torch.finfo(observed.inputs.query.dtype).eps
    at, read = observed.inputs.geometry, list[tuple[float, str, float]]()
    for name, exact in observed.expected.gradients.items():
        roles = {"x": TOKENS, "context": TOKENS[1:]}.get(name, (name,))
        if name not in observed.actual.by_name or not set(roles) <= parts.keys():
            continue
        actual, worst = observed.actual.by_name[name].double(), float(exact.worst.amax())
        columns = torch.stack([parts[role].flatten() for role in roles], dim=-1)
        sizes = columns.abs().amax(dim=0)
        if bool((sizes <= worst).any()):
            continue  # too small for its number to be read
        solved = torch.linalg.lstsq(columns, actual.flatten()[:, None]).solution[:, 0]
        made = (columns @ solved).reshape(exact.value.shape)
        if not near(actual, made, room(made, exact.value, exact.worst)):
            return {}
        read += zip((same + worst / sizes).tolist(), roles, solved.tolist(), strict=True)
    factors: dict[str, list[Number]] = {}
    for apart, role, factor in sorted(read):  # what is read best tells what others may be
        known = next((e for e in factors.values() if _is_near(factor, e[0], apart, at)), None)
        zero = [Number("0", lambda _sizes: 0.0)] if abs(factor) <= apart else []
        factors[role] = known or zero or list(numbers(factor, at, apart))
    return factors


def _is_near(factor: float, number: Number, apart: float, at: Geometry) -> bool:
    return abs(factor - number.value(at)) <= 2.0 * apart * max(abs(factor), 1.0)


_ORDER: Final = (*TOKENS, *(name for role in "qkvo" for name in (role, f"{role}_bias")))


def _listed(some: Sequence[str], read: Collection[str]) -> str:
    """Some of the gradients that were read, in words."""
    if len(some) == len(read):
        return "all gradients"
    if {*some, "o", "o_bias"} == set(read):
        return "the gradients of all but the output projection"
    words = [f"the {name}'s tokens" if name in TOKENS else described(name) for name in some]
    listed = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return f"the gradient{'s' * (len(some) > 1)} of {listed}"


def _multiplied(wrong: Mapping[str, Number], read: Collection[str]) -> NamedMistake:
    by_words: dict[str, list[str]] = {}
    for name in sorted(wrong, key=_ORDER.index):
        by_words.setdefault(wrong[name].words, []).append(name)
    names, texts = [], []
    for words, some in by_words.items():
        of, (verb, it) = _listed(some, read), ("are", "they") if len(some) > 1 else ("is", "it")
        made = "zero" if words == "0" else f"{words} times what {it} must be"
        names.append(f"{of.removeprefix('the ').replace('of the ', 'of ')}: {made}")
        texts.append(f"{of} {verb} {made}")

    def final(call: BackwardCall, gradients: Gradients) -> Gradients:
        sizes = call.inputs.geometry
        return {
            name: gradient * (wrong[name].value(sizes) if name in wrong else 1.0)
            for name, gradient in gradients.items()
        }

    return NamedMistake(
        name="+".join(names),
        primary="gradients.golden",
        sentence="; ".join(texts),
        fix=_FIX_FACTORS,
        backward=BackwardSteps(final=final),
    )
