"""Read from whole answers the numbers by which a stage of the program is changed.

A family changes one stage by one number, for example the scores times a number. A grid of numbers
is run together, and Newton's steps refine the best number: per head where an answer keeps the heads
apart. The number is reported in closed form where a closed form is near.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, product
from typing import Any, Final

import torch
from torch import Tensor

from .._golden import golden
from ..base.geometry import Geometry
from ..operators.keys import distances_from_first_key, distances_from_last_key
from ..operators.moves import ORDERS, moves, sums
from ..operators.operator import Operator
from ..oracle.comparison import GROSS
from ..problems.inputs import Inputs
from ..tolerance import model
from .agreement import BatteryAnswer, within
from .dissection.reading import HeadNumbers, Number, Reading, head_numbers, numbers, roundest
from .mistaken_answer import Combination
from .mistakes import NamedMistake, NotExpressible, everywhere
from .mistakes._steps import (
    EMPTY_WITHOUT_LOGITS,
    has_bias,
    has_sinks,
    has_softcap,
    hides_keys,
)
from .mistakes.named_mistake import IMPOSSIBLE, answer_stage, read_every_key
from .stage_edits import answers_of, run_besides
from .turned_edits import is_turned

_PRIMARY: Final = "numerics.golden"
# The most logits of an answer that is read, and the fewest tokens and channels that tell enough.
_MOST_LOGITS: Final = 1 << 14
_ENOUGH: Final = 3
# Answers to extreme values that are tried for each number, where no other answer determines it.
_ODD: Final = 3
_STEPS: Final = 14
_STEP: Final = 1e-5
# After _EARLY steps the error of a fitting family is below this part of its error on the grid.
_EARLY, _PROMISING = 3, 0.25
_FAR: Final = 1e30
_TINY: Final = torch.finfo(torch.float64).tiny
# The largest part of the squared errors that a number may leave for its closed forms to be tried.
_LEFT: Final = model.LARGEST_UNEXPLAINED**3
# A scale this near the right one is a loss of precision, which is measured elsewhere.
_NEARLY_RIGHT: Final = 0.1
# Limits that are tried together, and the most answers that narrow a limit.
_LIMITS: Final = 96
_MOST_LIMITED: Final = 12


# Verbs that a mistake's name replaces by a colon.
_VERB: Final = re.compile(" (?:are|is|have|count as) ")
NumberOf = Callable[[Geometry], float | Tensor]
_POSITIVE: Final = torch.logspace(-3, 3, 31, dtype=torch.float64)
# Numbers that are tried first: of both signs, positive ones, and close ones for angles.
_GRID: Final = torch.cat([-_POSITIVE.flip(0), _POSITIVE])
# Two numbers determine a linear family.
_ENDS: Final = torch.tensor([0.0, 1.0], dtype=torch.float64)
_CLOSE: Final = torch.linspace(-4, 4, 321, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Family:
    """A stage changed by a number: ``change(result, number, **others)``, results by their names.

    ``words`` hold ``{}`` for the number; ``grid`` holds the numbers to try first, per head or for
    all heads. ``linear`` families have answers linear in the number. ``right`` gives the number
    without effect, near which precision is measured elsewhere. ``limited`` gives the numbers of a
    result that count from a limit on: the limit lies between two of them.
    """

    words: str
    stage: str
    change: Callable[..., Tensor]
    where: Callable[[Inputs], bool] = everywhere
    grid: Tensor | Callable[[golden.Run], Tensor] = _GRID
    by_head: bool = True
    fix: str = "take it as it is"
    more: tuple[golden.Edit, ...] = ()
    linear: bool = False
    right: Callable[[golden.Run], float] | None = None
    limited: Callable[[golden.Run], Tensor] | None = None

    def edit(self, number: NumberOf) -> golden.Edit:
        """Return the edit whose number follows from the sizes."""

        def change(result: Tensor, inputs: Inputs, *others: Any) -> Tensor:
            return self.change(result, number(inputs.geometry), *others)

        reads = golden.reads(self.change)[2:]
        return golden.Edit(self.stage, change=golden.Rewired(change, ("", "inputs", *reads)))

    def mistake(self, words: str, number: NumberOf) -> NamedMistake:
        """Return the mistake whose text shows ``words`` for the number."""
        said = self.words.format(words)
        return NamedMistake(
            name=_VERB.sub(": ", said.removeprefix("the "), count=1),
            primary=_PRIMARY,
            sentence=said,
            fix=self.fix.replace("{}", words),
            edits=(self.edit(number), *self.more),
            where=self.where,
        )


def _times(result: Tensor, number: Any) -> Tensor:
    made: Tensor = result * number
    return made


def _plus(result: Tensor, number: Any) -> Tensor:
    made: Tensor = result + number
    return made


def _capped(capped: Tensor, number: Any) -> Tensor:
    made: Tensor = number * torch.tanh(capped / number)
    return made


def _capped_by(capped: Tensor, number: Any, scores: Tensor, softcap: float | None) -> Tensor:
    return capped if softcap is None else _capped(scores, softcap * number)


def _capped_at(capped: Tensor, number: Any, scores: Tensor, softcap: float | None) -> Tensor:
    return capped if softcap is None else _capped(scores, number)


def _has_no_cap(inputs: Inputs) -> bool:
    return inputs.softcap is None


def _has_slopes(inputs: Inputs) -> bool:
    return bool(inputs.point.alibi)


# Terms of which a multiple may be added to the logits, from other results.
_ADDED: Final[tuple[tuple[str, Callable[..., Tensor]], ...]] = (
    ("the distance from query to key", lambda ahead: ahead.abs()),
    (
        "the distance from query to key, queries counted from the first key",
        lambda ahead: distances_from_first_key(ahead).abs(),
    ),
    (
        "the distance from query to key, queries counted from the last key",
        lambda ahead: distances_from_last_key(ahead).abs(),
    ),
    ("the logarithm of one and the distance", lambda ahead: ahead.abs().log1p()),
    ("the square of the distance", lambda ahead: ahead.square()),
    ("the index of the key", lambda ahead: torch.arange(ahead.shape[-1])),
    ("one for the first key", lambda ahead: torch.arange(ahead.shape[-1]) == 0),
    ("one for the last key", lambda ahead: torch.arange(ahead.shape[-1]) == ahead.shape[-1] - 1),
    ("one for every second key", lambda ahead: torch.arange(ahead.shape[-1]) % 2 == 0),
    ("one for the query's own place", lambda ahead: ahead == 0),
    ("one for the keys after the query", lambda ahead: ahead > 0),
    ("one for each key that the mask keeps", lambda by_mask: by_mask),
    (
        "the square of the key's length",
        lambda shared_key: shared_key.square().sum(-1)[..., None, :],
    ),
    ("the sum of the key's channels", lambda shared_key: shared_key.sum(-1)[..., None, :]),
)


def _add_term(biased: Tensor, number: Any, other: Tensor, *, of: Callable[..., Tensor]) -> Tensor:
    made: Tensor = biased + number * of(other).double()
    return made


def _blended(result: Tensor, number: Any, *, move: Operator) -> Tensor:
    made: Tensor = (1.0 - number) * result + number * move.change(result)
    return made


def _mixed_in(result: Tensor, number: Any, *, move: Operator) -> Tensor:
    made: Tensor = result + number * move.change(result)
    return made


def _scaled(_scores: Tensor, number: Any, products: Tensor) -> Tensor:
    made: Tensor = number * products
    return made


def _cap(result: Tensor, number: Any) -> Tensor:
    return torch.minimum(result, torch.as_tensor(number, dtype=result.dtype))


def _floor(result: Tensor, number: Any) -> Tensor:
    return torch.maximum(result, torch.as_tensor(number, dtype=result.dtype))


def _within(result: Tensor, number: Any) -> Tensor:
    return _floor(_cap(result, number), -1.0 * number)


_CLAMPS: Final = (
    ("no larger than {}", _cap),
    ("no smaller than {}", _floor),
    ("clamped to {} of either sign", _within),
)


def _finite(bias: Tensor, number: Any, *, change: Callable[[Tensor, Any], Tensor]) -> Tensor:
    made = change(bias.masked_fill(bias.isneginf(), 0.0), number)
    return made.masked_fill(bias.isneginf(), -torch.inf)


def _whole(
    bias: Tensor, number: Any, kept: Tensor | None, *, change: Callable[[Tensor, Any], Tensor]
) -> Tensor:
    return change(bias if kept is None else bias.masked_fill(~kept, -torch.inf), number)


_NO_TABLE: Final = (golden.Edit("by_mask", change=torch.ones_like),)


# Terms of which a multiple is added to the sums of exponentials, or replaces them.
_OF_TOTALS: Final[tuple[tuple[str, Callable[..., Tensor]], ...]] = (
    ("", lambda largest: (-largest).exp()),
    (" times the exponential of the row's largest logit", torch.ones_like),
    (
        " times the number of keys that are hidden",
        lambda largest, attended: (-largest).exp() * (~attended).sum(-1, keepdim=True),
    ),
    (
        " times the number of keys that are attended",
        lambda largest, attended: (-largest).exp() * attended.sum(-1, keepdim=True),
    ),
)


def _total_and(total: Tensor, number: Any, *others: Tensor, of: Callable[..., Tensor]) -> Tensor:
    made: Tensor = total + number * of(*others)
    return made


def _total_is(total: Tensor, number: Any, *others: Tensor, of: Callable[..., Tensor]) -> Tensor:
    made: Tensor = number * of(*others) + torch.zeros_like(total)
    return made


def families() -> Iterator[Family]:
    """Yield every family, the plainest first."""
    yield Family(_TIMES_SCORES, "scores", _times, fix=_SCALE, right=lambda _run: 1.0)
    said = "the dot products are multiplied by {}"
    yield Family(said, "scores", _scaled, fix=_SCALE, right=lambda run: float(run["scale"]))
    said, fix = "the scores are under a softcap of {}", _UNCAPPED
    yield Family(said, "capped", _capped, _has_no_cap, _POSITIVE, fix=fix)
    times = "the softcap is {} times what it should be"
    yield Family(times, "capped", _capped_by, has_softcap, _POSITIVE)
    yield Family("the softcap is {}", "capped", _capped_at, has_softcap, _POSITIVE)
    finite = partial(_finite, change=_times)
    yield Family("the additive mask is {} times what it should be", "bias", finite, has_bias)
    for words, clamp in _CLAMPS:
        finite = partial(_finite, change=clamp)
        yield Family(f"the additive mask is {words}", "bias", finite, has_bias)
        said = f"the additive mask is {words}, minus infinity too"
        whole = partial(_whole, change=clamp)
        yield Family(said, "bias", whole, has_bias, more=_NO_TABLE)
        yield Family(f"the scores are {words}", "scores", clamp)
        yield Family(f"the logits are {words}", "biased", clamp, has_bias)
    times = "the bias by distance is {} times what it should be"
    yield Family(times, "distance_bias", _times, _has_slopes)
    yield Family("the sinks are {} times what they should be", "sinks", _times, has_sinks)
    yield Family("the sinks have {} added", "sinks", _plus, has_sinks)
    yield Family(
        "the outputs of the heads are {} times what they should be", "output", _times, linear=True
    )
    for words, of in _OF_TOTALS:
        reads = ("", "", *_names(of))
        more, instead = (golden.Rewired(partial(f, of=of), reads) for f in (_total_and, _total_is))
        yield Family(f"the sums of the exponentials have {{}}{words} added", "total", more)
        said = f"the exponentials are divided by {{}}{words}, not by their sum"
        yield Family(said, "total", instead)
    yield from _rotary_families()
    for words, of in _ADDED:
        change = golden.Rewired(partial(_add_term, of=of), ("", "", *golden.reads(of)))
        yield Family(f"the logits have {{}} times {words} added", "biased", change)
    yield from fills()
    yield from _limits()
    for heads, holds in _SOME_HEADS:
        in_heads = partial(_change_heads, change=_times, holds=holds)
        said = f"the scores of {heads} are {{}} times what they should be"
        yield Family(said, "scores", in_heads, _is_layer, by_head=False)


def _limits() -> Iterator[Family]:
    fix = "let every key that is not hidden have its weight, however small"
    for words, stage, change in (
        ("weights below {} count as zero", "weights", _zero_small),
        ("weights below {} count as zero, and the others sum to one", "weights", _renormalised),
        (
            "exponentials below {} times the row's largest count as zero",
            "exponentials",
            _zero_small,
        ),
    ):
        limited = partial(_positive, stage=stage)
        yield Family(words, stage, change, by_head=False, fix=fix, limited=limited)


def _positive(run: golden.Run, *, stage: str) -> Tensor:
    result: Tensor = run[stage]
    return result[result > 0.0]


def _zero_small(result: Tensor, number: Any) -> Tensor:
    return result.where(result >= number, 0.0)


def _renormalised(result: Tensor, number: Any) -> Tensor:
    left = _zero_small(result, number)
    total = left.sum(-1, keepdim=True)
    return left * result.sum(-1, keepdim=True) / total.where(total != 0.0, 1.0)


def _near_kept(run: golden.Run) -> Tensor:
    kept = run["logits"]
    return float(kept[torch.isfinite(kept)].amax()) + torch.linspace(-25.0, 10.0, 141).double()


def _up_to_kept(run: golden.Run) -> Tensor:
    hidden = run["modified"][run["logits"].isneginf()]
    return _near_kept(run) - (float(hidden.amax()) if hidden.numel() else 0.0)


def _filled(
    masked: Tensor,
    number: Any,
    biased: Tensor,
    modified: Tensor,
    distance_bias: Tensor | None,
    by_mask: Tensor,
    structure: Tensor,
    *,
    added: bool,
    by_all: bool,
    empty_too: bool,
) -> Tensor:
    """Give hidden keys a number as their logit, or add it to their logits.

    Hidden are keys that the mask hides, with ``by_all`` all hidden keys.
    """
    plain = modified if distance_bias is None else modified + distance_bias
    plain = torch.where(biased.isneginf(), plain, biased)
    hidden = biased.isneginf() | ~by_mask
    hidden = hidden | ~structure if by_all else hidden
    made = torch.where(hidden, plain + number if added else 0.0 * plain + number, plain)
    made = made if by_all else made.masked_fill(~structure, -torch.inf)
    kept = ~masked.isneginf().all(-1, keepdim=True)
    return made if empty_too else torch.where(kept, made, masked)


def fills() -> Iterator[Family]:
    """Yield families in which hidden keys have a finite logit, visible among low logits."""
    fix = "give keys that are hidden a logit of minus infinity"
    for by_all, empty_too, added in product((True, False), (False, True), (False, True)):
        keys = "hidden keys" if by_all else "keys that the mask hides"
        have = "have {} added to their logits" if added else "have a logit of {}"
        rows = ", in rows without other keys, too" if empty_too else ""
        change = partial(_filled, added=added, by_all=by_all, empty_too=empty_too)
        more = (EMPTY_WITHOUT_LOGITS,) if empty_too else ()
        said = f"{keys} {have}{rows}"
        near = _up_to_kept if added else _near_kept
        yield Family(said, "masked", change, hides_keys, near, fix=fix, more=more)
    for words, clamp in _CLAMPS[1:]:
        said = f"the additive mask is {words}, minus infinity too"
        whole = partial(_whole, change=clamp)
        yield Family(said, "bias", whole, has_bias, _near_kept, more=_NO_TABLE)


_UNCAPPED: Final = (
    "leave the scores as they are, or declare the cap: semantics=conformance.Semantics("
    "score_mod=lambda score, *_: {} * torch.tanh(score / {}))"
)
_TIMES_SCORES: Final = "the scores are {} times what they should be"
_BY_HEAD: Final = (
    _TIMES_SCORES,
    *(f"the logits have {{}} times {words} added" for words, _ in _ADDED[:3]),
)
_SCALE: Final = (
    "multiply the dot products by the scale of the call; where it has none, by the declared one, "
    "1/√(the head size) unless another is"
)


def _names(of: Callable[..., Tensor]) -> tuple[str, ...]:
    return ("largest",) if of is torch.ones_like else golden.reads(of)


def _is_layer(inputs: Inputs) -> bool:
    return inputs.is_layer


# Heads of a layer that alone may have a wrong number: their answers cannot be told apart.
_SOME_HEADS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("the first head", lambda head: head == 0),
    ("the last head", lambda head: head == len(head) - 1),
    ("all heads but the first", lambda head: head > 0),
    ("all heads but the last", lambda head: head < len(head) - 1),
    ("every second head", lambda head: head % 2 == 1),
    ("every second head from the first on", lambda head: head % 2 == 0),
)


def _change_heads(
    result: Tensor,
    number: Any,
    *,
    change: Callable[[Tensor, Any], Tensor],
    holds: Callable[[Tensor], Tensor],
) -> Tensor:
    chosen = holds(torch.arange(result.shape[-3]))[:, None, None]
    return torch.where(chosen, change(result, number), result)


def _change_base(frequencies: Tensor, number: Any, point: golden.Semantics) -> Tensor:
    power = torch.as_tensor(number).double().log() / math.log(point.rotary_base or 1.0)
    made: Tensor = frequencies**power
    return made


def _stretched(frequencies: Tensor, number: Any) -> Tensor:
    pairs = frequencies.shape[-1]
    exponents = torch.arange(pairs).double() / max(pairs - 1, 1)
    made: Tensor = frequencies * torch.as_tensor(number).double() ** -exponents
    return made


def _rotary_families() -> Iterator[Family]:
    """Yield rotary families, bases first: a base tells head sizes apart."""
    bases = torch.logspace(-5, 9, 281, dtype=torch.float64)
    for words, stage, change, grid in (
        ("the base of the rotary positions is {}", "frequencies", _change_base, bases),
        (
            "the slowest rotary frequency is divided by {}, others by powers of it",
            "frequencies",
            _stretched,
            _POSITIVE,
        ),
        (
            "the angles of the rotary positions are {} times what they should be",
            "frequencies",
            _times,
            _CLOSE,
        ),
        (
            "the angles of the queries are {} times what they should be",
            "query_angles",
            _times,
            _CLOSE,
        ),
        ("the angles of the keys are {} times what they should be", "key_angles", _times, _CLOSE),
    ):
        fix = "turn queries and keys by position * base ** (-2 i / R), in the declared pairs"
        yield Family(words, stage, change, is_turned, grid, by_head=False, fix=fix)


def blends() -> Iterator[Family]:
    """Yield families that mix results of different heads, items, tokens or channels."""
    for stage, noun, axes in (
        ("weights", "the weights", "BHQK"),
        ("value_heads", "the values", "BGKV"),
        ("output", "the outputs of the heads", "BHQV"),
    ):
        others = [*islice(moves(axes), len(axes) * ORDERS), *sums(axes)]
        for move in (one for one in others if _may_be_mixed_in(one)):
            mixed = move.words.replace("averaged", "their mean")
            for words, change in (
                (f"a part of {{}} of {noun} is replaced by {mixed}", _blended),
                (f"{noun} have {{}} times {mixed} added", _mixed_in),
            ):
                yield Family(words, stage, partial(change, move=move), linear=True)


def _may_be_mixed_in(move: Operator) -> bool:
    return move.words.startswith(("those of the", "averaged over")) and "tile" not in move.words


class NumberFit:
    """Fits numbers of families to a stage read from a run: the answer or the weights.

    ``told`` marks the elements that count.
    """

    def __init__(self, run: golden.Run, stage: str, read: Tensor, told: Tensor) -> None:
        self.run, self.stage = run, stage
        self._told, self._read = told, read.where(told, 0.0)
        self.count = told.numel()  # how many elements tell numbers

    @classmethod
    def fit(cls, answer: BatteryAnswer, known: Combination = ()) -> NumberFit | None:
        """Fit an answer besides known mistakes, without rows that have no keys.

        None if no other row is wrong or the known mistakes give an answer of another shape.
        """
        run, inputs = run_besides(answer, known), answer.inputs
        if run is None or run[stage := answer_stage(run)].shape != answer.output.shape:
            return None
        told = torch.isfinite(answer.output) & torch.isfinite(run[stage])
        told = told & ~inputs.answer_rows(run["empty"], run["point"])
        wrong = ~within(answer.output, run[stage], answer.exact.bound) & told
        return cls(run, stage, answer.output, told) if bool(wrong.any()) else None

    def _summed(self, squares: Tensor) -> Tensor:
        """Sum over all axes but heads: ``[.., H]``; ``[.., 1]`` for layers, whose heads merge."""
        if self.stage == "answer":
            return squares.flatten(-3).sum(-1, keepdim=True)
        return squares.sum(-1).sum(-1).sum(-2)

    def _made(self, family: Family, tried: Tensor) -> Tensor:
        run = self.run.edited(*family.more) if family.more else self.run
        result = run[family.stage]
        if result is None:
            raise NotExpressible
        of_sinks = family.stage == "sinks"
        numbers = tried if of_sinks else tried[:, None, :, None, None]
        others = [run[name] for name in golden.reads(family.change)[2:]]
        made = family.change(result, numbers, *others)
        made = made[:, None] if of_sinks else made
        shape = (len(tried), *run["scores_shape"])
        if self.stage == "weights":
            weights: Tensor = run.edited(**{family.stage: made}, scores_shape=shape)["weights"]
            return weights
        return answers_of(run, {family.stage: made}, shape)[0]

    def _apart(self, family: Family, tried: Tensor) -> Tensor:
        apart = (self._made(family, tried) - self._read).where(self._told, 0.0)
        return apart.nan_to_num(_FAR, _FAR, _FAR)

    def numbers(self, family: Family) -> list[float]:
        """Return the number of all heads, or a number per head; empty if none makes what was read.

        A head may not determine its number, for example where all its scores lie below a limit.
        """
        with torch.inference_mode(), suppress(NotExpressible, *IMPOSSIBLE):
            grid = family.grid(self.run) if callable(family.grid) else family.grid
            grid = _ENDS if family.linear else grid
            tried = self._apart(family, grid[:, None])
            apart = family.by_head and self.stage != "answer"
            read = self._numbers(family, grid, tried)
            return read or (self._numbers(family, grid, tried, by_head=True) if apart else [])
        return []

    def _numbers(
        self, family: Family, grid: Tensor, tried: Tensor, *, by_head: bool = False
    ) -> list[float]:
        def summed(squares: Tensor) -> Tensor:
            sums = self._summed(squares)
            return sums if by_head else sums.sum(-1, keepdim=True)

        if family.linear:
            none, one = tried
            slope = one - none
            best = -summed(none * slope) / summed(slope.square()).clamp_min(_TINY)
            return self._checked(best, summed(self._apart(family, best[None]).square())[0], summed)
        errors = summed(tried.square())
        best, left = grid[errors.argmin(0)], errors.amin(0)
        far = _PROMISING * left
        halves = 0.5 ** torch.arange(4.0, dtype=torch.float64)[:, None]
        for count in range(_STEPS):
            step = _STEP * best.abs()
            here, there = self._apart(family, torch.stack([best, best + step]))
            slope = there - here
            along = summed(here * slope) / summed(slope.square()).clamp_min(_TINY)
            nearer = best - halves * step * along
            errors = summed(self._apart(family, nearer).square())
            better = errors.amin(0) < left
            best = torch.where(better, nearer.gather(0, errors.argmin(0)[None])[0], best)
            left = torch.minimum(left, errors.amin(0))
            if not bool(better.any()) or (count == _EARLY and bool((left > far).all())):
                break
        return self._checked(best, left, summed)

    def limits(self, family: Family) -> tuple[float, float] | None:
        """Return two numbers of a result between which a fitting limit lies, or None."""
        with torch.inference_mode(), suppress(NotExpressible, *IMPOSSIBLE):
            return self._limits(family) if family.limited else None
        return None

    def _limits(self, family: Family) -> tuple[float, float] | None:
        ends = torch.tensor([0.0, torch.inf], dtype=torch.float64)
        numbers = torch.cat([ends, family.limited(self.run).flatten()]).unique()  # type: ignore[misc]
        first, last, unlimited = 0, len(numbers) - 1, None
        while True:
            places = torch.linspace(first, last, _LIMITS).round().long().unique()
            errors = self._apart(family, numbers[places][:, None]).square().flatten(1).sum(-1)
            unlimited = errors[0] if unlimited is None else unlimited
            best = int(errors.argmin())
            if last - first < _LIMITS:
                break
            first = int(places[max(best - 1, 0)])
            last = int(places[min(best + 1, len(places) - 1)])
        place = int(places[best])
        fits = bool(errors[best] <= model.LARGEST_UNEXPLAINED * unlimited)
        return (float(numbers[place - 1]), float(numbers[place])) if fits and place else None

    def _checked(
        self, best: Tensor, left: Tensor, summed: Callable[[Tensor], Tensor]
    ) -> list[float]:
        fits = bool((left <= _LEFT * summed(self._read.square())).all())
        return best.tolist() if fits else []


def _limit_in_words(family: Family, fits: Iterator[NumberFit]) -> Iterator[NamedMistake]:
    first = next(fits, None)
    least, most = (first and first.limits(family)) or (math.inf, 0.0)
    others = sorted(fits, key=lambda one: -one.count) if least < most else []
    for read in filter(None, (one.limits(family) for one in others[:_MOST_LIMITED])):
        least, most = max(least, read[0]), min(most, read[1])
    if least < most < math.inf:
        limit = roundest(least, most)
        yield family.mistake(f"{limit:g}", partial(_constant, limit))


def _word_numbers(
    family: Family, read: list[float], sizes: Geometry, run: golden.Run
) -> Iterator[NamedMistake]:
    same = model.SAME_READ
    if max(read) - min(read) <= 2.0 * same * max(map(abs, read)):
        mean = sum(read) / len(read)
        right = family.right(run) if family.right else 0.0
        closed = abs(mean - right) >= _NEARLY_RIGHT * abs(right)
        for one in _closed(mean, sizes, same) if closed else ():
            yield family.mistake(one.words, one.value)
        for one in _growths(mean, sizes, same) if family.words == _TIMES_SCORES else ():
            yield family.mistake(one.words, one.value)
        return
    for each in head_numbers(read, sizes, same):
        yield family.mistake(each.words, partial(_shape_for_stage, each, family.stage))


def _closed(read: float, sizes: Geometry, same: float) -> Iterator[Number]:
    """Yield candidates for a number, each worded once: closed forms, then more and more digits."""
    *forms, exact = numbers(read, sizes, same)
    rounded = (float(f"{read:.{digits}g}") for digits in range(1, 7))
    digits = [Number(f"{each:g}", partial(_constant, each)) for each in rounded]
    said: dict[str, Number] = {}
    for one in (*forms, *digits, exact):
        said.setdefault(one.words, one)
    yield from said.values()


# Logits are multiplied by the logarithm of a length (Su, 2021) to a base: a training length or a
# small whole number. YaRN multiplies them by 1 + 0.1 ln(length / base).
_LENGTHS: Final[tuple[tuple[str, Callable[[Geometry], int]], ...]] = (
    ("the number of keys", lambda sizes: sizes.key_length),
    ("the number of queries", lambda sizes: sizes.query_length),
)
_BASES: Final = (*range(2, 33), *(2**n for n in range(6, 18)), *(10**n for n in range(2, 6)))
_YARN: Final = 0.1


def _growths(read: float, sizes: Geometry, same: float) -> Iterator[Number]:
    """Yield numbers that grow with the logarithm of a length: to a base, floored, or multiples."""
    for words, size in _LENGTHS:
        own = math.log(max(size(sizes), 1))
        forms: list[tuple[str, float, float, float]] = []
        for base in _BASES:
            over = math.log(base)
            if read > 1.0:  # max(1, ..) hides smaller values
                forms.append((f"max(1, ln({words})/ln({base}))", 0.0, 1.0 / over, 1.0))
                stretched = f"max(1, 1 + {_YARN:g} ln({words}/{base}))"
                forms.append((stretched, 1.0 - _YARN * over, _YARN, 1.0))
            forms.append((f"ln({words})/ln({base})", 0.0, 1.0 / over, -math.inf))
        if own:
            step = float(f"{(read - 1.0) / own:.2g}")
            forms.append((f"(1 + {step:g} ln({words}))", 1.0, step, -math.inf))
            forms.append((f"{read / own:.6g} ln({words})", 0.0, read / own, -math.inf))
        for text, start, step, least in forms:
            grown = partial(_grown, size, (start, step, least))
            if abs(grown(sizes) - read) <= 2.0 * same * abs(read):
                yield Number(text, grown)


def _grown(
    size: Callable[[Geometry], int], form: tuple[float, float, float], sizes: Geometry
) -> float:
    start, step, least = form
    return max(least, start + step * math.log(max(size(sizes), 1)))


def _constant(number: float, _sizes: Geometry) -> float:
    return number


def _shape_for_stage(read: HeadNumbers, stage: str, sizes: Geometry) -> Tensor:
    made = read.tensor_of_heads(sizes)
    return made.flatten() if stage == "sinks" else made


def fitted_mistakes(
    observed: Sequence[BatteryAnswer], some: Iterable[Family], known: Combination = ()
) -> Iterator[NamedMistake]:
    """Yield changes by numbers that make the plainest gross error with an effect."""
    gross = [one for one in observed if one.fits and (known or one.margin > GROSS)]
    few = [one for one in gross if one.inputs.geometry.logits <= _MOST_LOGITS]
    plainest = sorted(few, key=lambda one: (not one.inputs.generic, *_plainness(one)))
    yield from numbers_making(plainest, some, known)


def numbers_making(
    plainest: Sequence[BatteryAnswer], some: Iterable[Family], known: Combination = ()
) -> Iterator[NamedMistake]:
    """Yield changes by numbers that make the first of the answers with an effect.

    Several answers to values that are not generic are tried, since a number may not show in the
    first.
    """
    fitted = cache(partial(NumberFit.fit, known=known))
    for family in some:
        left, possible = _ODD, [one for one in plainest if family.where(one.inputs)]
        if family.limited:
            yield from _limit_in_words(family, filter(None, map(fitted, possible)))
            continue
        for answer in possible:
            fit = fitted(answer)
            if fit is None:
                continue
            read = fit.numbers(family)
            yield from _word_numbers(family, read, answer.inputs.geometry, fit.run) if read else ()
            left = 0 if read or answer.inputs.generic else left - 1
            if not left:
                break


def is_wrong_by_head(reading: Reading) -> bool:
    """Whether different numbers in different heads make the weights that were read.

    The numbers multiply the scores or the distances that are added to the scores.
    """
    run, told = read_every_key(reading.attention.run), torch.isfinite(reading.weights)
    fit = NumberFit(run, "weights", reading.weights, told)
    some = (one for one in families() if one.words in _BY_HEAD)
    read = filter(None, map(fit.numbers, some))
    return any(max(each) - min(each) > model.SAME_READ * max(map(abs, each)) for each in read)


def bases_read(reading: Reading) -> Iterator[float]:
    """Yield bases of the rotary positions that make the read weights, the plainest first."""
    told = torch.isfinite(reading.weights)
    run = reading.attention.run.edited(point=reading.call.semantics)
    for read in NumberFit(run, "weights", reading.weights, told).numbers(next(_rotary_families())):
        yield from dict.fromkeys(float(f"{read:.{digits}g}") for digits in range(1, 7))


def _plainness(answer: BatteryAnswer) -> tuple[bool, int]:
    """Order answers: few channels or tokens, or a single head, tell little; many cost time."""
    sizes = answer.inputs.geometry
    least = min(sizes.query_length, sizes.key_length, sizes.head_size, sizes.value_head_size)
    return least < _ENOUGH or sizes.num_heads == 1, sizes.logits
