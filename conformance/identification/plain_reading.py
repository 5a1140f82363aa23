"""Read the computation without a mask from the weights, with the means of diagnosis."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch

from .._golden import golden
from ..base.mistake import CHOSEN_UNDECLARED
from ..clauses.subject import Subject
from ..diagnosis.dissection.layer_weights import WIDER, LayerCalls, most_tokens
from ..diagnosis.dissection.logits import LogitFit
from ..diagnosis.dissection.reading import Reading, read
from ..diagnosis.layer_edits import NORMS, normed_tokens
from ..diagnosis.mistaken_answer import Combination
from ..diagnosis.mistakes import named_mistakes
from ..problems.inputs import Inputs
from .agreement import PointJudge
from .behaviour import order_matters
from .caller import Caller, ProbeAnswer, Refusal
from .points import (
    ALIGNMENTS,
    EPSILONS,
    SCALES,
    Proposal,
    bands,
    causal_everywhere,
    further_points,
    prepared_points,
    simple_points,
)

# The head size: no power of two, no square, another integer root than the plain probe's 5.
OTHER_SIZES: Final[dict[str, int]] = {
    "head_size": 24,
    "num_heads": 2,
    "num_kv_heads": 2,
    "batch": 3,
}
# Lengths beyond tiles and windows: if accepted, a point must hold here, too.
LONG: Final[dict[str, int]] = {"batch": 1, "query_length": 33, "key_length": 70}
_PROBES: Final[tuple[dict[str, int], ...]] = ({}, OTHER_SIZES)
# The lengths to read the weights of cores, and the largest number of tokens for layers.
_READ: Final[dict[str, int]] = {"query_length": 17, "key_length": 24}
_MOST_TOKENS: Final = 12
# The least factor of queries in a reading for caps.
_STRETCHED: Final = 4.0
# The standard deviation of the stretched logits: caps of 50 show there.
_SPREAD: Final = 4.0
_READ_SEED: Final = 31
_SPLITS: Final = ("blocks", "interleaved", "reinterpret")
_MERGES: Final = ("blocks", "interleaved", "reinterpret", "tokens")
_BIASES: Final = {"v": "value_bias", "o": "output_bias"}
# The largest number of simultaneous changes to the steps of a layer.
_MOST_STEPS: Final = 3
# Processor seconds for points with positions, norms, caps, windows or biases, proposed one by one,
# the likeliest first.
_SECONDS_FURTHER: Final = 3.0
# The clauses of mistakes in the preparation of heads.
_OF_PREPARING: Final = frozenset({"position.rotary", "qk-norm.golden"})
# Processor seconds for the possible steps of a layer, the fewest changes first.
_SECONDS_READING: Final = 3.0


@dataclass(frozen=True, kw_only=True)
class PlainReading:
    """The reading that fits every plain probe.

    ``always`` is the alignment of causality without a flag. ``others`` are further points that fit
    every probe; ``was_read``: the point was read off the weights. ``made`` are changes beyond any
    point in every call (a norm of the projected tokens, for example), and ``words`` a description.
    """

    point: golden.Semantics
    always: str | None
    margin: float
    others: tuple[golden.Semantics, ...] = ()
    was_read: bool = False
    made: Combination = ()
    words: str = ""


def observe(caller: Caller, dtype: str = "float32") -> list[ProbeAnswer] | Refusal:
    """Answers to probes of different sizes, and to longer lengths if these are accepted."""
    observed = []
    for seed, sizes in enumerate(_PROBES):
        answer = caller.call(caller.draw(sizes, seed=seed, dtype=dtype))
        if isinstance(answer, Refusal):
            return answer
        observed.append(answer)
    long = caller.answer(caller.draw(LONG, seed=len(_PROBES), dtype=dtype))
    return observed if long is None else [*observed, long]


def read_plain(
    weights: Weights, observed: Sequence[ProbeAnswer], judge: PointJudge
) -> PlainReading | None:
    """The simplest point within bound of every probe; None if no point fits.

    Tried first: the specification; then causality, axis and scale as read off the weights.
    """
    hint = weights.caller.hint
    hinted = () if hint is None else (Proposal(*hint),)
    right = (Proposal(golden.STANDARD), *map(causal_everywhere, ALIGNMENTS), *hinted)
    fixed = not weights.caller.draws
    standard = first_fitting(right, observed, judge)
    if standard is not None:
        return _with_epsilon(standard, weights.caller, judge)
    read = _tried(weights.caller) if fixed else _read(weights)
    judge = weights.judge(judge)
    return weights.behind(first_fitting(read, observed, judge, weights, was_read=not fixed))


def _read(weights: Weights) -> Iterator[Proposal]:
    for reading, base in weights.readings:
        yield from simple_points(reading, base)


def _tried(caller: Caller) -> Iterator[Proposal]:
    """The possible steps of a layer with its own projections, at every scale rule.

    The weights of a fixed layer could only be read through other projections.
    """
    for rule, steps in itertools.product(SCALES, _steps(caller)):
        yield Proposal(steps.replace(scale=rule))


def first_fitting(
    proposals: Iterable[Proposal],
    observed: Sequence[ProbeAnswer],
    judge: PointJudge,
    weights: Weights | None = None,
    *,
    was_read: bool = False,
) -> PlainReading | None:
    """The first proposal that fits every probe; scales without a rule must also fit larger logits.

    An effect on large logits alone, for example a cap, looks like another scale on small logits.
    Fits with other scale rules are added: few sizes tell all rules apart.
    """
    fits: list[Proposal] = []
    tried: set[Proposal] = set()
    for proposal in proposals:
        if proposal in tried:
            continue
        tried.add(proposal)
        if fits and not _are_alike(fits[0], proposal):
            break
        point = proposal.point
        by_rule = isinstance(point.scale, str) and point.scale_factor == 1.0
        large = None if weights is None or by_rule else weights.large
        samples = [
            observation.read_as(causal=proposal.always is not None)
            for observation in (*observed, *([] if large is None else [large]))
        ]
        if judge.fits(proposal.point, samples):
            fits.append(proposal)
            if not isinstance(proposal.point.scale, str) or proposal.point == golden.STANDARD:
                break
    if not fits:
        return None
    first = fits[0]
    return PlainReading(
        point=first.point,
        always=first.always,
        margin=max(
            judge.margin(first.point, observation.read_as(causal=first.always is not None))
            for observation in observed
        ),
        others=tuple(other.point for other in fits[1:]),
        was_read=was_read,
    )


def _are_alike(one: Proposal, other: Proposal) -> bool:
    """Whether two proposals differ only in the rule of the scale."""
    rules = isinstance(one.point.scale, str) and isinstance(other.point.scale, str)
    same = replace(other, point=other.point.replace(scale=one.point.scale))
    return rules and same == one and one.point.scale_factor == 1.0


class Weights:
    """The weights that an implementation gives to the values, read on demand."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        # Points that explain the logits, whether or not they explain the answers.
        self.proposed: list[Proposal] = []
        # Changes to the tokens before the projections: no point expresses them.
        self.made: Combination = ()

    def judge(self, judge: PointJudge) -> PointJudge:
        """A judge who applies the changes to the tokens before the projections."""
        return judge.making(self.made) if self.made and self.readings else judge

    def behind(self, plain: PlainReading | None) -> PlainReading | None:
        """A reading that also reports the changes to the tokens before the projections."""
        if plain is None or not self.made:
            return plain
        return replace(plain, made=self.made, words=self.made[0].sentence)

    @cached_property
    def readings(self) -> list[tuple[Reading, golden.Semantics]]:
        """Readings that explain an answer, with the steps of the layer."""
        return list(self._readings(self._inputs))

    @cached_property
    def stretched(self) -> Reading | None:
        """A reading of larger logits, or None."""
        return next((reading for reading, _ in self._readings(self._larger)), None)

    @cached_property
    def large(self) -> ProbeAnswer | None:
        """The answer behind the reading of larger logits, or None."""
        return self.caller.answer(self._larger) if self.readings else None

    @cached_property
    def _larger(self) -> Inputs:
        """The inputs for reading weights, with queries scaled up for larger logits."""
        inputs, weights = self._inputs, self._inputs.weights
        fits = (LogitFit(one, right_rows=True).logits for one, _ in self.readings[:1])
        spread = [float(logits.std(correction=0)) for logits in fits if logits.numel()]
        factor = max([_STRETCHED, *(_SPREAD / own for own in spread if own > 0.0)])
        if weights is None:
            return inputs.with_tokens(query=factor * inputs.query)
        bias = None if weights.q_bias is None else factor * weights.q_bias
        changed = replace(weights, q=factor * weights.q, q_bias=bias)
        return inputs.replace(weights=changed, generic=False)

    @cached_property
    def _inputs(self) -> Inputs:
        caller = self.caller
        if caller.kind == "core":
            return caller.draw(_READ, seed=_READ_SEED)
        first = caller.draw().geometry
        count = max(1, min(_MOST_TOKENS, int(first.value_size / WIDER), most_tokens(first)))
        sizes = {"query_length": max(1, count - 2), "key_length": count}
        return caller.draw(sizes, seed=_READ_SEED)

    def _readings(self, inputs: Inputs) -> Iterator[tuple[Reading, golden.Semantics]]:
        caller = self.caller
        if not caller.draws:
            return
        subject = Subject(caller.candidate(golden.STANDARD), caller.dtype)
        if caller.kind == "core":
            reading = read(subject, inputs)
            if reading is not None and reading.explained:
                yield reading, golden.STANDARD
            return
        calls = LayerCalls(subject, inputs)
        ends = time.process_time() + _SECONDS_READING
        for made, steps in itertools.product(_MADE, _steps(caller)):
            if time.process_time() > ends:
                return
            if made and _changes(steps) > _BEHIND_A_NORM:
                continue
            reading = calls.reading(made, point=steps, explained=True)
            if reading is not None:
                if made:  # the reading is of the tokens behind the norm
                    self.made = made
                    reading = replace(reading, given=reading.call.inputs)
                yield reading, steps
                if "q" in caller.biases:
                    yield reading, steps.replace(query_bias=False)
                return


# The tokens unchanged, then normalised before the projections.
_MADE: Final[tuple[Combination, ...]] = (
    (),
    *((one,) for one in itertools.islice(normed_tokens(), len(NORMS))),
)
# The largest number of further changes to the steps if tokens are normalised.
_BEHIND_A_NORM: Final = 1


def _changes(steps: golden.Semantics) -> int:
    return len(golden.STANDARD.differences(steps))


def _steps(caller: Caller) -> Iterator[golden.Semantics]:
    """The ways for a layer to take its steps, the fewest changes first."""
    choices: dict[str, Sequence[Any]] = {"head_split": _SPLITS[1:], "head_merge": _MERGES[1:]}
    choices |= {name: (False,) for role, name in _BIASES.items() if role in caller.biases}
    sizes = caller.draw().geometry
    if sizes.num_kv_heads != sizes.num_heads:
        choices["group_order"] = ("tile",)
    for count in range(_MOST_STEPS + 1):
        for names in itertools.combinations(choices, count):
            for values in itertools.product(*(choices[name] for name in names)):
                changes = dict(zip(names, values, strict=True))
                yield golden.STANDARD.replace(**changes)


def read_further(
    weights: Weights,
    observed: Sequence[ProbeAnswer],
    judge: PointJudge,
    explained: Callable[[], bool] = lambda: False,
) -> PlainReading | None:
    """The first point with positions, norms, caps, windows or biases that fits every probe.

    Points with fitted numbers count only if nothing else has ``explained`` the answers.
    """
    ordered = order_matters(weights.caller) is not False
    by_head = weights.caller.heads_are_fixed
    ends = time.process_time() + _SECONDS_FURTHER

    def proposals() -> Iterator[Proposal]:
        for reading, base in weights.readings:
            for one in further_points(
                reading,
                weights.stretched,
                base,
                ordered=ordered,
                by_head=by_head,
                ends=ends,
                explained=explained,
            ):
                weights.proposed.append(one)
                yield one
                if time.process_time() > ends:
                    return

    judge = weights.judge(judge)
    first = first_fitting(proposals(), observed, judge, weights, was_read=True)
    return weights.behind(_with_epsilon(first, weights.caller, judge))


def read_mistaken(
    weights: Weights, observed: Sequence[ProbeAnswer], judge: PointJudge
) -> PlainReading | None:
    """The first reading of prepared heads with a catalogued mistake in the preparation.

    An example: rotary positions that turn queries alone. If the mistake keeps the weights from
    being read, as turned values do, the usual positions are tried.
    """
    mistakes = [
        one
        for one in named_mistakes()
        if one.primary in _OF_PREPARING and one.edits and one.name not in CHOSEN_UNDECLARED
    ]
    ordered = order_matters(weights.caller) is not False
    ends = time.process_time() + _SECONDS_FURTHER
    read_off = [
        prepared_points(
            [one for band in bands(reading) if (one := band.proposal(base))], ordered=ordered
        )
        for reading, base in weights.readings
    ]
    for prepared in read_off or ([_usual_positions()] if ordered else []):
        for mistake, proposal in itertools.product(mistakes, prepared):
            if time.process_time() > ends:
                return None
            if not mistake.speaks_at(proposal.point):
                continue
            plain = first_fitting((proposal,), observed, judge.making((mistake,)), was_read=True)
            if plain is not None:
                return replace(plain, made=(mistake,), words=mistake.sentence)
    return None


def _usual_positions() -> list[Proposal]:
    bases = (Proposal(golden.STANDARD), *map(causal_everywhere, ALIGNMENTS))
    return [
        replace(one, point=one.point.replace(rotary=rotary))
        for one, rotary in itertools.product(bases, ("halves", "interleaved"))
    ]


def _with_epsilon(
    plain: PlainReading | None, caller: Caller, judge: PointJudge
) -> PlainReading | None:
    """A reading with the epsilon of the norm corrected by a double-precision answer.

    In single precision ordinary tokens hide an epsilon that is too small.
    """
    if plain is None or plain.point.qk_norm not in ("rms", "layer"):
        return plain
    answer = caller.answer(caller.draw(seed=_READ_SEED, dtype="float64"))
    if answer is None or answer.dtype != torch.float64:
        return plain
    finer = judge.in_dtype(caller.kind, "float64")
    sample = answer.read_as(causal=plain.always is not None)
    own = plain.point.qk_norm_epsilon
    for epsilon in (own, *EPSILONS):
        if finer.fits(plain.point.replace(qk_norm_epsilon=epsilon), [sample]):
            points = (plain.point, *plain.others)
            first, *others = (point.replace(qk_norm_epsilon=epsilon) for point in points)
            return replace(plain, point=first, others=tuple(others))
    return plain
