"""What differs from head to head: mixed heads, scales, biases by distance, sinks, wrong heads.

Numbers are those of so many heads as were read: with other numbers of heads nothing is said. A
table of biases by place may be that of all heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...tolerance import model
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import keys_ahead, weighing
from ..mistakes.named_mistake import CoreChange
from .denominators import sum_ratio
from .logits import FEWEST_LEFT, LogitFit, as_mistake
from .reading import ONE, HeadNumbers, Number, Reading, head_numbers, in_digits, numbers, statement
from .terms import ADDED, SCORES, Term, TermValues

# Heads whose mixture is read: the equations grow with their square.
MOST_HEADS: Final = 16
# Heads of which every number is said.
MOST_HEADS_SAID: Final = 4


def head_statements(reading: Reading) -> Iterator[NamedMistake]:
    """What is made with a number for each head, where these differ."""
    if not 1 < reading.sizes.num_heads <= MOST_HEADS:
        return
    yield from _of_logits(reading)
    yield from _sinks(reading)
    yield from _of_other_heads(reading)
    yield from _mixed_weights(reading)


def _of_logits(reading: Reading) -> Iterator[NamedMistake]:
    """Scores times a number of each head, with a bias by distance, or mixed over the heads."""
    fit = LogitFit(reading)
    scores, bias = fit.column(SCORES), fit.column(ADDED[0])
    fixed = [] if bias is None else [bias]
    if scores is None or not fit.count or fit.solve(fixed, [scores]) is not None:
        return
    heads = range(reading.sizes.num_heads)
    values = SCORES.values(reading.call, reading.attention)
    if values is None:
        return
    wrong = [head for head in heads if bool(fit.used[:, head].any())]
    factors = fit.solve(fixed, [_in_head(fit, values, head, head) for head in wrong])
    if factors is not None:
        yield from _scaled(reading, _every(heads, wrong, factors, 1.0))
        return
    for bottom_right in alignments(reading):
        apart = _distances(reading.call, bottom_right=bottom_right)
        sloped = fit.solve([scores, *fixed], [_in_head(fit, apart, head, head) for head in wrong])
        if sloped is not None:
            slopes = _every(heads, wrong, sloped, 0.0)
            yield from _sloped(reading, slopes, bottom_right=bottom_right)
            return
    pairs = [(head, other) for head in wrong for other in heads]
    table = fit.solve(fixed, [_in_head(fit, values, *pair) for pair in pairs])
    if table is not None:
        mixture = torch.eye(len(heads), dtype=torch.float64)
        mixture[wrong] = torch.tensor(table, dtype=torch.float64).reshape(len(wrong), len(heads))
        yield _mixed_scores(mixture)


def _every(
    heads: Iterable[int], wrong: Sequence[int], read: Sequence[float], right: float
) -> list[float]:
    """A number for each head: that which was read of a wrong one, and of others the right one."""
    numbers = dict(zip(wrong, read, strict=True))
    return [numbers.get(head, right) for head in heads]


def _in_head(fit: LogitFit, values: Tensor, head: int, of: int) -> Tensor:
    """The column of what one head has, in the logits of another; zero in all others."""
    table = torch.zeros_like(values)
    table[:, head] = values[:, of]
    return fit.centred(table)


def alignments(reading: Reading) -> list[bool]:
    """Whether queries may be counted from the last key, the declared answer first."""
    sizes = reading.sizes
    declared = bool(reading.call.semantics.causal_alignment == "bottom-right")
    return [declared] if sizes.query_length == sizes.key_length else [declared, not declared]


def _distances(call: DeclaredCall, *, bottom_right: bool) -> Tensor:
    apart = keys_ahead(call, bottom_right=bottom_right).abs().double()
    return apart.expand(call.inputs.score_shape)


def _scaled(reading: Reading, factors: Sequence[float]) -> Iterator[NamedMistake]:
    if _differ(reading, factors):
        for read in head_numbers(factors, reading.sizes, reading.same):
            words = f"the scores times {read.words}"
            yield as_mistake([Term(words, words, _times(read, SCORES), operand=True)], [ONE])


def _sloped(
    reading: Reading, slopes: Sequence[float], *, bottom_right: bool
) -> Iterator[NamedMistake]:
    if not _differ(reading, slopes):
        return

    def apart(call: DeclaredCall, _attention: golden.Attention) -> Tensor:
        return _distances(call, bottom_right=bottom_right)

    distance = Term("distance", "the distance", apart)
    sizes = reading.sizes
    if reading.attention.alibi is not None and bottom_right == alignments(reading)[0]:
        right = golden.alibi_slopes(sizes.num_heads).tolist()
        total = [own - more for own, more in zip(right, slopes, strict=True)]
        for read in head_numbers(total, sizes, reading.same):
            yield _with_slopes(read)
    counted = f", queries counted from the {'last' if bottom_right else 'first'} key"
    where = counted if sizes.query_length != sizes.key_length else ""
    for read in head_numbers(slopes, sizes, reading.same):
        words = f"the distance from query to key times {read.words}{where}"
        yield as_mistake([SCORES, Term(words, words, _times(read, distance))], [ONE, ONE])


def _with_slopes(read: HeadNumbers) -> NamedMistake:
    """Other slopes of the declared bias by distance."""

    def more(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        of_last = call.semantics.causal_alignment == "bottom-right"
        of_heads = read.of_heads(call.inputs.geometry)
        apart = _distances(call, bottom_right=of_last)
        return None if attention.alibi is None else -of_heads * apart - attention.alibi

    words = f"a bias by distance whose slope is {read.words}"
    text = f"the slope of the bias by distance is {read.words}"
    fix = "give each head its slope: 2^(-8 (h + 1)/H) where H is a power of two"
    return as_mistake([SCORES, Term(words, words, more, fix=fix, text=text)], [ONE, ONE])


def slopes_of(reading: Reading) -> list[float] | None:
    """The slope of each head's bias by distance, where one is declared and nothing else is wrong.

    It may be the declared one.
    """
    if reading.attention.alibi is None:
        return None
    fit = LogitFit(reading, right_rows=True)
    scores, bias = fit.column(SCORES), fit.column(ADDED[0])
    if scores is None or not fit.count:
        return None
    apart = _distances(reading.call, bottom_right=alignments(reading)[0])
    heads = range(reading.sizes.num_heads)
    columns = [_in_head(fit, apart, head, head) for head in heads]
    more = fit.solve([scores, *([] if bias is None else [bias])], columns)
    right = golden.alibi_slopes(len(heads)).tolist()
    return more and [own - extra for own, extra in zip(right, more, strict=True)]


def tabulated_slopes(tables: Mapping[int, Sequence[float]], same: float) -> NamedMistake:
    """Slopes that are known of some numbers of heads, in words wrong ones of a few heads.

    The part of a slope by which one that was read twice differs is ``same``.
    """
    wrong = [count for count, read in tables.items() if not _are_right(read, same)] or list(tables)
    count = max((count for count in wrong if count <= MOST_HEADS_SAID), default=min(wrong))

    def of(sizes: Geometry) -> list[float]:
        if sizes.num_heads not in tables:
            raise NotExpressible
        return list(tables[sizes.num_heads])

    listed = ", ".join(f"{in_digits(one)} in head {h}" for h, one in enumerate(tables[count]))
    heads = "1 head" if count == 1 else f"{count} heads"
    others = ", and others of other numbers" if len(wrong) > 1 else ""
    return _with_slopes(HeadNumbers(f"{listed} of {heads}{others}", of))


def _are_right(slopes: Sequence[float], same: float) -> bool:
    """Whether slopes that were read are the declared ones."""
    right = golden.alibi_slopes(len(slopes)).tolist()
    pairs = zip(slopes, right, strict=True)
    return all(abs(one - other) <= same * other for one, other in pairs)


def _differ(reading: Reading, read: Sequence[float]) -> bool:
    """Whether numbers of heads differ: what is the same for all is told without heads."""
    return max(read) - min(read) > reading.same * max(map(abs, read))


def _times(read: HeadNumbers, term: Term) -> TermValues:
    """A term times a number for each head."""

    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        of_heads = read.of_heads(call.inputs.geometry)
        table = term.values(call, attention)
        return None if table is None else table * of_heads

    return values


def _mixture_words(mixture: Tensor) -> str:
    rounded = torch.where(mixture.abs() > model.SAME_READ * mixture.abs().amax(), mixture, 0.0)
    rows = (", ".join(map(in_digits, row)) for row in rounded.tolist())
    return "; ".join(f"head {head}: {row}" for head, row in enumerate(rows))


def _mixed(values: Tensor, mixture: Tensor) -> Tensor:
    """A sum over heads for each head ``[B, H, Lq, Lk]``; NotExpressible for other numbers."""
    if values.shape[1] != len(mixture):
        raise NotExpressible
    return torch.einsum("gh,bhqk->bgqk", mixture, values)


def _mixed_scores(mixture: Tensor) -> NamedMistake:
    words = f"sums of the scores of all heads, times a number of each ({_mixture_words(mixture)})"

    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        own = SCORES.values(call, attention)
        return None if own is None else _mixed(own, mixture)

    return as_mistake([Term(words, words, values, operand=True)], [ONE])


def _mixed_weights(reading: Reading) -> Iterator[NamedMistake]:
    """Weights that are sums of those of all heads."""
    exact = reading.attention.weights.transpose(0, 1).flatten(1).mT
    read = reading.weights.transpose(0, 1).flatten(1).mT
    finite = torch.isfinite(exact).all(dim=-1) & torch.isfinite(read).all(dim=-1)
    exact, read = exact[finite], read[finite]
    if len(exact) <= 2 * exact.shape[1] or reading.agree(read, exact):
        return
    mixture = torch.linalg.lstsq(exact, read).solution.mT
    if not reading.agree(read, exact @ mixture.mT):
        return
    if bool((mixture - torch.diag(mixture.diagonal())).abs().amax() <= reading.same):
        return  # no head reads another
    yield from _shared_weights(mixture, reading)

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        return weighing(attention, _mixed(attention.weights, mixture))

    yield statement(
        "weights: summed over the heads",
        "the weights of each head are a sum of those of all heads, times a number of each "
        f"({_mixture_words(mixture)})",
        "let each head use its own weights",
        core=core,
    )


def _shared_weights(mixture: Tensor, reading: Reading) -> Iterator[NamedMistake]:
    """Own weights and their mean over the heads, each times a number: for any number of heads."""
    count = len(mixture)
    others = mixture[~torch.eye(count, dtype=torch.bool)]
    if not reading.agree(others, others.mean().expand_as(others)):
        return
    if not reading.agree(mixture.diagonal(), mixture.diagonal().mean().expand(count)):
        return
    of_mean = float(others.mean()) * count
    of_own = float(mixture.diagonal().mean() - others.mean())

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        mean = attention.weights.mean(dim=1, keepdim=True)
        return weighing(attention, of_own * attention.weights + of_mean * mean)

    yield statement(
        "weights: mixed with their mean over the heads",
        f"the weights of each head are {in_digits(of_own)} times its own and {in_digits(of_mean)} "
        "times the mean of those of all heads",
        "let each head use its own weights",
        core=core,
    )


def _sinks(reading: Reading) -> Iterator[NamedMistake]:
    """One more term in the denominator of each head."""
    found = sum_ratio(reading)
    if found is None:
        return
    rows, sums = found
    total = torch.logsumexp(reading.attention.logits, dim=-1, keepdim=True)
    terms = total.exp() * (1.0 / sums - 1.0)
    read: list[float] = []
    for head in range(reading.sizes.num_heads):
        own = terms[:, head][rows[:, head]]
        if not own.numel() or not bool(torch.isfinite(own).all()):
            return
        middle = float(own.mean())
        if not bool(((own - middle).abs() <= reading.same * abs(middle)).all()):
            return
        read.append(middle)
    if not _differ(reading, read) or min(read) <= 0.0:
        return
    sinks = torch.tensor(read, dtype=torch.float64).log()

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        if call.inputs.geometry.num_heads != len(sinks):
            raise NotExpressible
        own_total = torch.logsumexp(attention.logits, dim=-1, keepdim=True)
        factor = torch.sigmoid(own_total - sinks[:, None, None])
        weights = attention.weights * torch.where(attention.empty[..., None], 1.0, factor)
        return weighing(attention, weights)

    named = ", ".join(f"exp({sink:.4g}) in head {head}" for head, sink in enumerate(sinks.tolist()))
    yield statement(
        "sum: a number of each head added",
        f"the softmax divides by the sum of the exponentials and {named}",
        "divide the exponentials by their own sum over the keys that the query attends",
        core=core,
    )


_MOST_SAID: Final = 7  # places of which the number is said, the query's own in the middle


@dataclass(frozen=True, eq=False)
class PlaceTable:
    """Numbers by how far a key lies ahead of its query, counted from the first ones or the last.

    ``values`` are ``[H, places]``, or ``[1, places]`` where all heads have the same: those of the
    place ``first``, and of the following ones.
    """

    values: Tensor
    first: int
    bottom_right: bool

    def added(self, call: DeclaredCall, *, beyond: bool) -> Tensor:
        """What it adds to the logits ``[B, H, Lq, Lk]``.

        What lies farther than it was read has the number of its end where that holds ``beyond``.
        Raises NotExpressible for other heads, and for such a place where nothing is known of it.
        """
        heads, count = call.inputs.geometry.num_heads, self.values.shape[-1]
        ahead = keys_ahead(call, bottom_right=self.bottom_right) - self.first
        outside = not beyond and bool(((ahead < 0) | (ahead >= count)).any())
        if 1 < len(self.values) < heads or outside:
            raise NotExpressible
        return self.values[:heads, ahead.clamp(0, count - 1)].expand(call.inputs.score_shape)

    def with_more(self, far: PlaceTable | None) -> PlaceTable:
        """It with the places of another one that lie before its first and behind its last."""
        if far is None or len(far.values) not in (1, len(self.values)):
            return self
        before = max(self.first - far.first, 0)
        more = far.values.expand(len(self.values), -1)
        behind = more[:, self.first + self.values.shape[-1] - far.first :]
        values = torch.cat([more[:, :before], self.values, behind], dim=-1)
        return PlaceTable(values, self.first - before, self.bottom_right)

    def statement(self, *, beyond: bool = True) -> NamedMistake:
        """The scores with what it adds."""
        head = int(self.values.abs().amax(-1).argmax())
        clear = self.values[head] * (self.values[head].abs() > model.LOGIT_READ_TO)
        read = dict(enumerate(clear.tolist(), start=self.first))
        said = sorted(sorted(read, key=abs)[:_MOST_SAID])
        listed = ", ".join(f"{in_digits(read[place])} at {place}" for place in said)
        of_head = f" in head {head}, in others other numbers" if len(self.values) > 1 else ""
        corner = "last" if self.bottom_right else "first"
        words = f"a bias by how far the key lies ahead of the query, {listed}{of_head} (places "
        words += f"from {min(read)} to {max(read)}, counted from the {corner} query and key)"
        text = f"the logits have one more term, {words}"
        fix = "add nothing to the scaled scores, or take it as the additive mask"
        added = partial(self.added, beyond=beyond)
        term = Term(words, words, lambda call, _attention: added(call), fix=fix, text=text)
        return as_mistake([SCORES, term], [ONE, ONE])


def place_table(reading: Reading, *, bottom_right: bool) -> PlaceTable | None:
    """What is added to the logits by the place of the key alone, if that explains all of them."""
    attention, call = reading.attention, reading.call
    scores, bias = (term.values(call, attention) for term in (SCORES, ADDED[0]))
    shown = reading.legible & attention.allowed
    if scores is None or attention.alibi is not None or not bool((shown & reading.wrong).any()):
        return None  # of slopes of a declared bias more is said elsewhere
    more = torch.where(shown, reading.logits - scores - (0.0 if bias is None else bias), 0.0)
    both = shown[..., 1:] & shown[..., :-1]
    off = torch.where(shown, model.LOGIT_READ_TO + reading.logit_error, 0.0)
    room = 3.0 * (off[..., 1:] + off[..., :-1])[both]
    ahead = keys_ahead(call, bottom_right=bottom_right)
    first, count = int(ahead.amin()), int(ahead.amax() - ahead.amin())
    for heads in (1, both.shape[1]):  # a row tells how much more a key has than the one before
        head = torch.arange(both.shape[1]) % heads
        places = (head[:, None, None] * count + ahead[:, :-1] - first).expand(both.shape)[both]
        weight, steps = room.square().reciprocal(), more.diff(dim=-1)[both]
        none = torch.zeros(heads * count, dtype=torch.float64)
        sums, weights = (none.index_add(0, places, each) for each in (steps * weight, weight))
        read = torch.where(weights > 0.0, sums / weights, 0.0)
        known = (weights > 0.0).unflatten(0, (heads, count))
        fits = len(steps) >= int(known.sum()) + FEWEST_LEFT
        if fits and bool(((steps - read[places]).abs() <= room).all()) and bool(known.any()):
            return _from_steps(read.unflatten(0, (heads, count)), known, first, bottom_right)
    return None


def _from_steps(steps: Tensor, known: Tensor, first: int, bottom_right: bool) -> PlaceTable | None:  # noqa: FBT001
    """The table whose neighbours differ by steps; None where it is not known in one piece."""
    every = known.all(dim=0).nonzero().flatten().tolist()
    if not every or every[-1] - every[0] + 1 != len(every):
        return None
    values = torch.nn.functional.pad(steps[:, every].cumsum(-1), (1, 0))
    own = min(max(-first - every[0], 0), len(every))
    values = values - values[:, own : own + 1]
    some = bool((values.abs() > model.LOGIT_READ_TO).any())
    return PlaceTable(values, first + every[0], bottom_right) if some else None


def _of_other_heads(reading: Reading) -> Iterator[NamedMistake]:
    """A multiple of the weights of each head and one of those of others."""
    read, exact = reading.weights, reading.attention.weights
    if not bool(torch.isfinite(read).all() & torch.isfinite(exact).all()):
        return
    for words, move in _MIXED:
        columns = torch.stack([exact.flatten(), move(exact).flatten()], dim=-1)
        solved = torch.linalg.lstsq(columns, read.flatten()[:, None]).solution[:, 0]
        own, other = (float(factor) for factor in solved)
        if abs(other) <= reading.same or not reading.agree(read, own * exact + other * move(exact)):
            continue
        for of_own, of_other in product(
            *(numbers(factor, reading.sizes, reading.same) for factor in (own, other))
        ):
            own_words = "" if of_own.words == "1" else f"{of_own.words} times "
            made = f"{own_words}those of the head and {of_other.words} times {words}"
            yield statement(
                f"weights: {made}",
                f"the weights are {made}",
                "weigh the values of each head by its own weights alone",
                core=_mixing(move, of_own, of_other),
            )


def _mixing(move: Callable[[Tensor], Tensor], of_own: Number, of_other: Number) -> CoreChange:
    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        sizes, exact = call.inputs.geometry, attention.weights
        mixed = of_own.value(sizes) * exact + of_other.value(sizes) * move(exact)
        return weighing(attention, mixed)

    return core


_MIXED: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("those of the head before", lambda w: w.roll(1, 1)),
    ("those of the head after", lambda w: w.roll(-1, 1)),
    ("those of the opposite head", lambda w: w.flip(1)),
    ("those of the first head", lambda w: w[:, :1].expand_as(w)),
)
