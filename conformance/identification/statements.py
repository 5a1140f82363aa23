"""State effects that no point of the semantics expresses, confirmed on unseen problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from .._golden import golden
from ..clauses.subject import Subject
from ..diagnosis import battery
from ..diagnosis.agreement import BatteryAnswer
from ..diagnosis.chance import random_entry
from ..diagnosis.diagnostician import Diagnostician
from ..diagnosis.dissection.changed_logits import pair_statements
from ..diagnosis.dissection.places import alignments, place_table
from ..diagnosis.dissection.reading import statement
from ..diagnosis.fitted_numbers import is_wrong_by_head
from ..diagnosis.mistaken_answer import Combination
from ..diagnosis.mistakes import named_mistakes
from ..diagnosis.statement_search import Explanation
from .agreement import PointJudge
from .behaviour import order_matters
from .caller import Caller, ProbeAnswer
from .plain_reading import PlainReading, Weights
from .points import (
    ALIGNMENTS,
    SCALES,
    Band,
    Proposal,
    against_proposal,
    bands,
    causal_everywhere,
    prepared_points,
)

# Larger logits overflow in careless code, without evidence about the intended computation.
_LARGEST_LOGIT: Final = 50.0
# Sizes of further problems to confirm statements, besides the probes.
_UNSEEN: Final[tuple[dict[str, int], ...]] = (
    {"query_length": 5, "key_length": 8},
    {"query_length": 7, "key_length": 7, "batch": 1},
    {"query_length": 2, "key_length": 6},
)
_UNSEEN_SEED: Final = 90
_FEWEST_PROBES: Final = 4
# The factor by which causality must be nearer if no weights could be read.
_MUCH: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Statement:
    """An effect of an implementation beyond a point of the semantics.

    ``made`` is the change to act out; empty if impossible, as for random answers. ``heads`` is the
    only confirmed number of heads, None for any.
    """

    text: str
    made: Combination = ()
    heads: int | None = None

    @property
    def sentence(self) -> str:
        """The statement with its condition."""
        return self.text if self.heads is None else f"with {self.heads} heads {self.text}"


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """The nearest point, and alternative statements of the effect beyond the point."""

    nearest: Proposal
    statements: tuple[Statement, ...] = ()

    @property
    def text(self) -> str:
        """The effect beyond the nearest point, in words; "" if no statement is confirmed."""
        said = [one.sentence for one in self.statements[:2]]
        return " (or, which gives the same answers: ".join(said) + ")" * (len(said) - 1)

    def as_json(self) -> list[dict[str, Any]]:
        """The statements as plain data."""
        return [{"text": one.sentence, "heads": one.heads} for one in self.statements]


def read_beyond(weights: Weights, observed: Sequence[ProbeAnswer], judge: PointJudge) -> Beyond:
    """The confirmed effects beyond the nearest point.

    Statements must explain every answer of the diagnosis' battery, answers to problems unseen by
    any search, and the plain probes.
    """
    caller = weights.caller
    if not caller.draws:
        return Beyond(nearest=next(_nearest(weights, observed, judge)))
    probes = [*observed, *_unseen(caller)]

    def confirmed(nearest: Proposal, statements: Sequence[Statement]) -> Beyond:
        kept = (one for one in statements if _holds(one, nearest, probes, judge))
        return Beyond(nearest=nearest, statements=tuple(kept))

    likely = list(_nearest(weights, observed, judge))
    for nearest in likely:
        beyond = confirmed(nearest, _statements(weights, nearest, None))
        if beyond.statements:
            return beyond
    if caller.heads_are_fixed:
        return Beyond(nearest=likely[-1])
    heads = caller.draw().geometry.num_heads
    return confirmed(likely[-1], _statements(weights, likely[-1], heads))


def read_places(
    weights: Weights, observed: Sequence[ProbeAnswer], judge: PointJudge
) -> Beyond | None:
    """The first window or bias by place that explains every probe, unseen probes included."""
    probes: list[ProbeAnswer] = []
    for nearest, said in _of_places(weights):
        probes = probes or [*observed, *_unseen(weights.caller)]
        if _holds(said, nearest, probes, judge):
            return Beyond(nearest=nearest, statements=(said,))
    return None


def _unseen(caller: Caller) -> list[ProbeAnswer]:
    """Answers to problems of other lengths that no reading has used."""
    answers = (
        caller.answer(caller.draw(sizes, seed=_UNSEEN_SEED + number))
        for number, sizes in enumerate(_UNSEEN)
    )
    return [answer for answer in answers if answer is not None]


def _of_places(weights: Weights) -> Iterator[tuple[Proposal, Statement]]:
    """Windows and biases by place, with the points that they extend."""
    caller = weights.caller
    heads = None if caller.heads_are_fixed else caller.draw().geometry.num_heads
    for reading, base in weights.readings[:1]:
        for band in bands(reading):
            proposal = band.proposal(base) if band.filled else None
            if band.least is not None and proposal is None and band.filled:
                yield _windowed(band, base)
            if proposal is None:
                continue
            for rule in SCALES:
                scaled = replace(proposal, point=proposal.point.replace(scale=rule))
                at = against_proposal(reading, scaled)
                if is_wrong_by_head(at):
                    continue  # a number for each head is the plainer explanation
                tables = (place_table(at, bottom_right=corner) for corner in alignments(at))
                biases = [table.statement(beyond=False) for table in tables if table is not None]
                for bias in biases or pair_statements(at):
                    yield scaled, Statement(text=bias.sentence, made=(bias,), heads=heads)


def _windowed(band: Band, base: golden.Semantics) -> tuple[Proposal, Statement]:
    """A window in every call, with queries counted from the first or the last key."""
    before, after = -int(band.least or 0), band.most
    point = base.replace(causal_alignment=band.alignment)
    always = band.alignment if after == 0 else None
    window = (before, -1 if after is None or always else after)
    behind = "" if window[1] < 0 else f" and more than {after} after it"
    text = (
        f"keys more than {before} before a query's own place{behind} are hidden in every call, "
        f"queries counted from the {'last' if band.alignment == 'bottom-right' else 'first'} key"
    )
    made = statement(
        f"band: {text}",
        text,
        "hide keys by a window only where the call has one",
        inputs=lambda call: call.inputs.replace(window=window),
    )
    return Proposal(point, always), Statement(text=text, made=(made,))


def _nearest(
    weights: Weights, observed: Sequence[ProbeAnswer], judge: PointJudge
) -> Iterator[Proposal]:
    """The points with logits as read, the specification's scale first.

    Without such points: a prepared point whose logits differ by a number for every head; else the
    point with the causality that was read; else the point at the smallest distance.
    """
    if weights.proposed:
        first = weights.proposed[0]
        usual = first.point.replace(scale=golden.STANDARD.scale, scale_factor=1.0)
        yield from dict.fromkeys((Proposal(usual, first.always), first))
        return
    ordered = order_matters(weights.caller) is not False
    for reading, base in weights.readings[:1]:
        causal = [band.proposal(base) for band in bands(reading) if band.filled]
        likely = [proposal for proposal in causal if proposal is not None]
        for one in (*likely, *prepared_points(likely, ordered=ordered)):
            if is_wrong_by_head(against_proposal(reading, one)):
                yield one
                return
        if likely:
            yield likely[0]
            return
    every = (Proposal(golden.STANDARD), *map(causal_everywhere, ALIGNMENTS))

    def distance(one: Proposal) -> float:
        samples = [observation.read_as(causal=one.always is not None) for observation in observed]
        # Other computations may come a little nearer to a triangle by chance.
        return judge.distance(one.point, samples) * (1.0 if one.always is None else _MUCH)

    yield min(every, key=distance)


def _statements(weights: Weights, nearest: Proposal, heads: int | None) -> list[Statement]:
    caller = weights.caller
    candidate = caller.candidate(nearest.point, nearest.always, heads=heads)
    subject = Subject(candidate, caller.dtype)
    plain = battery.plain_problem(subject)
    random = None if plain is None else random_entry(subject, plain)
    if random is not None:
        return [Statement(text=random["text"])]
    answers = [one for one in battery.Observation(subject).whole if _is_ordinary(subject, one)]
    mistakes = named_mistakes()
    if weights.made:  # no mistake in itself, and acted out besides all others
        mistakes = tuple(weights.made)
    explanations = Diagnostician(subject, mistakes, observed=answers).explanations
    named = [one for one in explanations if _is_named(one)]
    explanations = named or explanations[:1]  # the others say the same in longer words
    return [Statement(text=one.entry["text"], made=one.made, heads=heads) for one in explanations]


def _is_named(explanation: Explanation) -> bool:
    return all(mistake in named_mistakes() for mistake in explanation.made)


def _is_ordinary(subject: Subject, answer: BatteryAnswer) -> bool:
    scores = subject.golden(answer.inputs).core.scores
    return not scores.numel() or float(scores.abs().amax()) <= _LARGEST_LOGIT


def _holds(
    said: Statement, nearest: Proposal, observed: Sequence[ProbeAnswer], judge: PointJudge
) -> bool:
    """Whether a statement explains all applicable probes, at least ``_FEWEST_PROBES`` of them."""
    if not said.made:
        return True
    making = judge.making(said.made)
    samples = [
        one.read_as(causal=nearest.always is not None)
        for one in observed
        if said.heads in (None, one.inputs.geometry.num_heads)
    ]
    spoken = [sample for sample in samples if making.speaks_of(nearest.point, sample)]
    return len(spoken) >= _FEWEST_PROBES and making.fits(nearest.point, spoken)


def reading_of(
    beyond: Beyond, observed: Sequence[ProbeAnswer], judge: PointJudge
) -> PlainReading | None:
    """The nearest point with the first unconditional statement, as a reading of plain calls."""
    first = next((one for one in beyond.statements if one.made and one.heads is None), None)
    if first is None:
        return None
    nearest, making = beyond.nearest, judge.making(first.made)
    samples = [observation.read_as(causal=nearest.always is not None) for observation in observed]
    return PlainReading(
        point=nearest.point,
        always=nearest.always,
        margin=max(making.margin(nearest.point, sample) for sample in samples),
        was_read=True,
        made=first.made,
        words=beyond.text,
    )


def what_is_certain(weights: Weights) -> str:
    """Facts from the weights without a known cause; "" if no weights could be read."""
    if not weights.readings:
        return ""
    reading, _ = weights.readings[0]
    sums = reading.weights.sum(dim=-1)
    whole = bool(((sums - 1.0).abs() <= reading.same).all())
    seen, sizes = reading.visible, reading.sizes
    pairs = "every pair" if seen.all() else f"{int(seen.sum())} of {seen.numel()} pairs"
    return (
        f"each answer to {sizes.query_length} queries on {sizes.key_length} keys is a sum of the "
        f"values of its head, {pairs} of query and key with a weight, and the weights of a query "
        f"{'sum' if whole else 'do not all sum'} to one"
    )
