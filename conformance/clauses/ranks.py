"""ranks.*: several ranks give the answer of one rank, however many, however uneven or late."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch
from torch import Tensor

from ..calls.calling import CandidateFailure, build_forward
from ..calls.differentiating import Gradients, NotDifferentiable
from ..calls.rank_processes import RankResult
from ..calls.ranks import Calls, Spanning
from ..declare.candidate import Candidate
from ..declare.ranks import Ranks
from ..oracle.comparison import compare
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space, can_cross
from .judging import all_of, matches_golden, order_is_free, relate
from .judging_gradients import (
    GradientRun,
    cannot_be_judged,
    output_gradient,
    promised_gradients,
    records_gradients,
    same_gradients,
    with_full_rows,
)
from .leaks import unaffected
from .rearranging import reordered_keys, reordered_queries
from .registry import Finding, clause, requires, violated
from .subject import Subject

COUNTS: Final = (1, 2, 3, 4)
# Before each message: longer than the ranks' own waits, and short beside the limit.
LATE: Final = 0.15
# The limit of a call without one of its ranks: all other ranks wait this long for it.
ABSENT: Final = 2.0
_FEW: Final = 0.1
_NEVER_LATE: Final = "none of its messages can be delayed: they are functional collectives"
_SOURCE: Final = "docs/start-ranks.md; torch.distributed: every rank calls every collective"

spans_ranks = requires(lambda c: c.declaration.ranks is not None, "it runs in one process")
_several = requires(
    lambda c: c.declaration.ranks is None or c.declaration.ranks.count > 1, "it has one rank"
)
_divides = requires(
    lambda c: (
        c.declaration.ranks is None
        or c.declaration.ranks.divides_keys
        or c.declaration.ranks.divides_queries
    ),
    "no rank has its own part of the sequence",
)
_divides_keys = requires(
    lambda c: c.declaration.ranks is None or c.declaration.ranks.divides_keys,
    "every rank has all keys",
)
_repeats = requires(
    lambda c: c.declaration.ranks is None or bool(_replicated(c)),
    "each rank has its own part of the answer and of what has a gradient",
)
_free = requires(
    lambda c: not c.declaration.position and not order_is_free(c), "the order of its tokens matters"
)


def _ranks(candidate: Candidate) -> Ranks:
    ranks = candidate.declaration.ranks
    if ranks is None:
        msg = f"{candidate.name} declares no ranks, so no clause about them applies"
        raise LookupError(msg)
    return ranks


def _replicated(candidate: Candidate) -> set[str]:
    """The names of the tensors held whole by every rank: the answer and the gradients."""
    ranks, is_core = _ranks(candidate), candidate.kind == "core"
    axes = "heads" if is_core else "tokens"
    names = ["output"]
    if not records_gradients(candidate):
        names += ["query", "key", "value"] if is_core else ["query", "context", "x"]
        names += ["mask"] if candidate.declaration.masks else []
    whole = {name for name in names if ranks.places(name, axes).whole}
    # A layer's output bias is, wherever its heads are.
    return whole | ({"weights"} if not is_core and len(names) > 1 else set())


class _Run:
    """A call with the given ``Calls``: its answer, and the result of each rank.

    ``results`` is empty where the golden answers in the candidate's place.
    """

    def __init__(self, subject: Subject, inputs: Inputs, calls: Calls) -> None:
        self._subject, self._inputs = subject, inputs
        function = subject.candidate.function
        self._spanning = function.under(calls) if isinstance(function, Spanning) else None

    def answer(self) -> Tensor:
        """The whole answer; raises CandidateFailure."""
        if self._spanning is None:
            return self._subject.answer(self._inputs)
        candidate = dataclasses.replace(self._subject.candidate, function=self._spanning)
        forward = build_forward(candidate, self._inputs)
        return self._subject.call(forward, self._inputs).output

    @property
    def results(self) -> list[RankResult]:
        """The result of the last call on each rank."""
        return [] if self._spanning is None else self._spanning.results


@clause(
    "ranks.agree",
    sentence="What is replicated is the same on every rank: the answer, and gradients.",
    source=f"{_SOURCE}; a reduce to one rank where all need the sum",
    space=Space(mask="maybe", causal="maybe", share=0.5),
    applies=(spans_ranks, _several, _repeats),
    explained=False,
)
def agree(subject: Subject, problem: Problem) -> Finding:
    """Compare each rank's answer and gradients with the first rank's, within both bounds."""
    whole = _replicated(subject.candidate)
    findings = []
    if "output" in whole:
        findings.append(_answers_agree(subject, subject.inputs(problem)))
    if whole - {"output"} and not records_gradients(subject.candidate):
        findings.append(_gradients_agree(subject, problem))
    return all_of(findings)


def _gradients_agree(subject: Subject, problem: Problem) -> Finding:
    function, inputs = subject.candidate.function, with_full_rows(subject, problem, whole=True)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)

    def gradients() -> Gradients:
        return promised_gradients(subject, subject.gradients.of(inputs, upstream))

    try:
        first = GradientRun(inputs=inputs, upstream=upstream, gradients=gradients())
    except NotDifferentiable:  # no promise by itself; the answers are judged
        return Finding(binding=False)
    if not isinstance(function, Spanning):  # the golden answers in the candidate's place
        return Finding(margin=0.0)
    findings = []
    for rank in range(1, _ranks(subject.candidate).count):
        wording = f"the gradient of {{}} on rank {rank} is another than on rank 0"
        with function.taking(rank):
            findings.append(same_gradients(subject, first, gradients(), wording))
    return all_of(findings)


def _answers_agree(subject: Subject, inputs: Inputs) -> Finding:
    run = _Run(subject, inputs, Calls(_ranks(subject.candidate)))
    first = run.answer()
    _, bound, judged = subject.frame(inputs)
    margin = 0.0
    for rank, each in enumerate(run.results):
        other = None if each.reply is None else each.reply.returned
        if other is None:
            continue
        wording = f"rank {rank} answers otherwise than rank 0"
        comparison = compare(
            other.reshape(first.shape),
            first,
            2 * bound,
            judged=judged,
            wording=wording,
            both_answers=True,
        )
        if comparison.violation is not None:
            return Finding.of(comparison)
        margin = max(margin, comparison.margin or 0.0)
    return Finding(binding=bool(judged.any()), margin=margin)


@clause(
    "ranks.any-count",
    sentence="One, two, three and four ranks give the same answer, where they divide its sizes.",
    source=f"{_SOURCE}; a number of ranks that is written down in the code",
    space=Space(
        mask="maybe",
        causal="maybe",
        preferred=(("num_heads", 12), ("num_kv_heads", 12)),
        least=(("query_length", 3), ("key_length", 5)),
        share=0.2,
    ),
    applies=(spans_ranks,),
    explained=False,
)
def any_count(subject: Subject, problem: Problem) -> Finding:
    """Compare the declared number of ranks with all further numbers that divide the sizes."""
    inputs = subject.inputs(problem)
    ranks = _ranks(subject.candidate)
    usual = subject.answer(inputs)
    findings = []
    for count in COUNTS:
        other = ranks.for_count(count)
        if count == ranks.count or other.fitted(inputs.geometry) != inputs.geometry:
            continue
        words = "1 rank answers" if count == 1 else f"{count} ranks answer"
        answer = _Run(subject, inputs, Calls(other)).answer()
        wording = f"{words} otherwise than {ranks.count}"
        findings.append(relate(subject, (inputs, usual), (inputs, answer), wording))
    return all_of(findings) if findings else Finding(binding=False)


def _cut(inputs: Inputs, queries: int, keys: int) -> Inputs:
    def kept(mask: Tensor | None) -> Tensor | None:
        if mask is None:
            return None
        return (mask if mask.shape[2] == 1 else mask[:, :, :queries])[..., :keys]

    return inputs.with_tokens(
        query=inputs.query[..., :queries, :],
        key=inputs.key[..., :keys, :],
        value=inputs.value[..., :keys, :],
    ).replace(keep=kept(inputs.keep), bias=kept(inputs.bias))


def _right_or_refused(subject: Subject, inputs: Inputs, words: str) -> Finding:
    """Require the golden answer, or an exception on all ranks: none may be left waiting."""
    run = _Run(subject, inputs, Calls(_ranks(subject.candidate)))
    try:
        answer = run.answer()
    except CandidateFailure as failure:
        if failure.violation.kind != "raised" or not all(
            each.reply is not None and each.reply.violation is not None for each in run.results
        ):
            return Finding(violation=failure.violation)
        return Finding()
    wording = f"the answer is wrong where {words}"
    counterfactual = None if inputs.causal else _padded(inputs)
    finding = matches_golden(subject, inputs, wording, answer=answer, counterfactual=counterfactual)
    return dataclasses.replace(finding, binding=True) if inputs.causal else finding


def _padded(inputs: Inputs) -> Inputs:
    """A problem with one more key of zeros, visible under the mask."""

    def longer(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, torch.zeros_like(tensor[..., :1, :])], dim=-2)

    keep, bias = (
        None if mask is None else torch.cat([mask, torch.full_like(mask[..., :1], filler)], dim=-1)
        for mask, filler in ((inputs.keep, True), (inputs.bias, 0.0))
    )
    longer_inputs = inputs.with_tokens(
        query=longer(inputs.query) if inputs.mode == "self" else inputs.query,
        key=longer(inputs.key),
        value=longer(inputs.value),
    )
    return longer_inputs.replace(keep=keep, bias=bias)


@clause(
    "ranks.uneven",
    sentence=("Where the ranks do not divide a length, the answer is right, or every rank raises."),
    source=f"{_SOURCE}; a short part that is padded and not masked",
    space=Space(values=LIVELY, least=(("query_length", 3), ("key_length", 3)), share=_FEW * 2),
    counterfactual="one key of zeros more",
    applies=(spans_ranks, _several, _divides),
    needs_golden=True,
)
def uneven(subject: Subject, problem: Problem) -> Finding:
    """Lengths that leave the last rank a shorter part."""
    inputs = subject.inputs(problem)
    count = _ranks(subject.candidate).count
    queries, keys = (
        length - (length % count == 0)
        for length in (inputs.geometry.query_length, inputs.geometry.key_length)
    )
    if not can_cross(subject.candidate):
        queries = keys = min(queries, keys)
    return _right_or_refused(subject, _cut(inputs, queries, keys), "parts are of unequal lengths")


@clause(
    "ranks.empty-part",
    sentence="Where a rank has no token, the answer is right, or every rank raises.",
    source=f"{_SOURCE}; fewer tokens than ranks, as when one token is decoded",
    space=Space(values=LIVELY, share=_FEW),
    applies=(spans_ranks, _several, _divides),
    needs_golden=True,
    explained=False,
)
def empty_part(subject: Subject, problem: Problem) -> Finding:
    """Fewer keys or queries than ranks, as far as they are divided."""
    inputs = subject.inputs(problem)
    ranks = _ranks(subject.candidate)
    few = 1 + problem.seed % (ranks.count - 1)
    queries, keys = (
        min(length, few) if divided else length
        for length, divided in (
            (inputs.geometry.query_length, ranks.divides_queries),
            (inputs.geometry.key_length, ranks.divides_keys),
        )
    )
    if not can_cross(subject.candidate):
        queries = keys = min(queries, keys)
    finding = _right_or_refused(subject, _cut(inputs, queries, keys), "a rank has no token")
    return dataclasses.replace(finding, binding=True)


@clause(
    "ranks.order",
    sentence="Parts that change places among the ranks change the places of rows alone.",
    source="Liu et al. 2023 (ring attention): the order in which parts of the keys meet is free",
    space=Space(values=LIVELY, least=(("query_length", 4), ("key_length", 4)), share=_FEW * 2),
    applies=(spans_ranks, _several, _divides, _free),
    explained=False,
)
def order(subject: Subject, problem: Problem) -> Finding:
    """Move each part to the next rank, query parts and key parts independently."""
    inputs = subject.inputs(problem)
    ranks = _ranks(subject.candidate)
    pieces = 2 * ranks.count  # zigzag parts; other parts count as two pieces
    sizes = inputs.geometry
    queries, keys = sizes.query_length // pieces * pieces, sizes.key_length // pieces * pieces
    if not can_cross(subject.candidate):
        queries = keys = min(queries, keys)
    if not queries or not keys:
        return Finding(binding=False)
    inputs = _cut(inputs, queries, keys)
    moved, view = inputs, torch.arange(queries)
    if ranks.divides_keys:
        moved = reordered_keys(moved, torch.arange(keys).roll(keys // ranks.count))
    if ranks.divides_queries:
        view = view.roll(queries // ranks.count)
        moved = reordered_queries(moved, view)
    return relate(
        subject,
        (inputs, subject.answer(inputs)),
        (moved, subject.answer(moved)),
        "parts that change places among the ranks change the answer",
        view=lambda answer: answer.index_select(-2, view),
    )


@clause(
    "ranks.no-leak",
    sentence="The part of a rank that a query may not attend never changes its answer.",
    source=f"{_SOURCE}; later parts of a causal ring that are computed and weighed with zero",
    space=Space(
        causal="always", square="always", values=LIVELY, least=(("key_length", 4),), share=_FEW * 2
    ),
    counterfactual="no causality",
    applies=(spans_ranks, _several, _divides_keys),
)
def no_leak(subject: Subject, problem: Problem) -> Finding:
    """Put junk into the whole last part of the keys; earlier rows are judged."""
    inputs = subject.inputs(problem)
    count, length = _ranks(subject.candidate).count, inputs.geometry.key_length
    last = torch.arange(length) >= (count - 1) * -(-length // count)
    if not bool(last.any()):
        return Finding(binding=False)
    junk = last.expand(inputs.geometry.batch, length)
    return unaffected(subject, problem, inputs, junk, counterfactual=inputs.replace(causal=False))


@clause(
    "ranks.waits",
    sentence="A rank that is late changes nothing.",
    source=f"{_SOURCE}; a message that is read before it has arrived",
    space=Space(causal="maybe", values=LIVELY, least=(("key_length", 2),), share=_FEW),
    applies=(spans_ranks, _several),
    explained=False,
)
def waits(subject: Subject, problem: Problem) -> Finding:
    """One rank sends later than the others, each in turn.

    Functional collectives cannot be delayed: a candidate without other messages is inapplicable.
    """
    inputs = subject.inputs(problem)
    ranks = _ranks(subject.candidate)
    usual = subject.answer(inputs)
    late = {problem.seed % ranks.count: LATE}
    run = _Run(subject, inputs, Calls(ranks, late=late))
    other = run.answer()
    delayed = [each.reply.delayed for each in run.results if each.reply is not None]
    wording = "the answer is another one where a rank is late"
    finding = relate(subject, (inputs, usual), (inputs, other), wording)
    if not delayed or any(delayed):
        return finding
    return dataclasses.replace(finding, inapplicable=_NEVER_LATE)


@clause(
    "ranks.dies",
    sentence=(
        "Where a rank dies or never sends, the others raise in the time limit, or give their part "
        "of the right answer."
    ),
    source=f"{_SOURCE}; an exception of a collective that is swallowed",
    space=Space(values=LIVELY, least=(("key_length", 2),), share=_FEW / 2),
    applies=(spans_ranks, _several),
    needs_golden=True,
    explained=False,
)
def dies(subject: Subject, problem: Problem) -> Finding:
    """The last rank ends its process, or does not call; the remaining ranks are watched."""
    inputs = subject.inputs(problem)
    ranks = dataclasses.replace(_ranks(subject.candidate), seconds=ABSENT)
    absent = {ranks.count - 1: ("die", "rest")[problem.seed % 2]}
    run = _Run(subject, inputs, Calls(ranks, absent=absent))
    try:
        run.answer()
    except CandidateFailure as failure:
        if not run.results:
            return Finding(violation=failure.violation)
    others = run.results[: ranks.count - 1]
    silent = [rank for rank, each in enumerate(others) if each.lost == "silent"]
    if silent:
        words = "dies" if absent[ranks.count - 1] == "die" else "never sends"
        message = (
            f"rank {silent[0]} waits for ever where rank {ranks.count - 1} {words}: neither an "
            f"answer nor an exception within {ABSENT:g} s"
        )
        return violated("hung", message)
    return _right_parts(subject, inputs, ranks, others)


def _right_parts(
    subject: Subject, inputs: Inputs, ranks: Ranks, others: list[RankResult]
) -> Finding:
    expected = subject.golden(inputs)
    place = ranks.places("output", "tokens" if inputs.is_layer else "heads")
    margin = 0.0
    for rank, each in enumerate(others):
        part = None if each.reply is None else each.reply.returned
        if part is None or place.summed:
            continue
        whole = expected.output.clone()
        if part.shape != place.part_shape(whole.shape, rank, ranks.count):
            return violated("shape", f"rank {rank} answers {list(part.shape)} without the others")
        place.put(whole, part.to(whole.dtype), rank, ranks.count)
        wording = f"rank {rank} answers wrongly, and does not raise, where another rank is lost"
        comparison = compare(
            whole, expected.output, expected.bound, judged=expected.judged, wording=wording
        )
        if comparison.violation is not None:
            return Finding.of(comparison)
        margin = max(margin, comparison.margin or 0.0)
    return Finding(margin=margin)
