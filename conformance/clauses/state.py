"""state.*: a call leaves no trace, and an equal call gives the same answer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from ..base.results import RACE, THREADS, Violation
from ..calls.calling import Arguments, CandidateFailure, Forward, arguments
from ..calls.devices import CPU, kind_of, whole_storage
from ..calls.threads import threads, why_one_thread
from ..declare.candidate import Candidate
from ..declare.declaration import SEQUENCES
from ..oracle.comparison import View
from ..problems.caching import CACHED, cached_length, draws_cache
from ..problems.fitting import causal_flag, one_at_a_time
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import MaskPlan, Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION, Space, admits_lengths, can_cross
from .device import in_this_process
from .judging import identical, relate, same_unless_identical, still_holds
from .rearranging import permutation, reordered_items, reordered_queries, unchanged
from .registry import Finding, clause, violated
from .subject import Subject, unwritten

ANY = Space(mask="maybe", causal="maybe", share=0.5)
# What changes in the second of two calls: mostly everything.
CHANGES = ("all", "query", "key", "value", "mask", "last token", "tokens")
ANY_KIND = ("core", "layer", "positions")


def _twice(subject: Subject, problem: Problem) -> tuple[Inputs, Tensor, Tensor]:
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    return inputs, subject.call(forward, inputs).output, subject.call(forward, inputs).output


@clause(
    "state.repeatable",
    sentence="The same call made twice gives the same answer, within the bound.",
    source="flash-attention#359: races; pytorch#124464, torchtune#1791: dropout left on",
    space=ANY,
    explained=False,
    of_repetition=True,
)
def repeatable(subject: Subject, problem: Problem) -> Finding:
    """Two calls of one forward with equal inputs."""
    inputs, first, second = _twice(subject, problem)
    wording = "the same call made twice gives two answers"
    return same_unless_identical(subject, (inputs, first), (inputs, second), wording)


@clause(
    "state.bitwise-repeatable",
    level="SHOULD",
    sentence="The same call made twice gives the same bits.",
    source="flash-attention#359: races; a SHOULD: sums may be taken in any order",
    space=ANY,
    explained=False,
    of_repetition=True,
)
def bitwise_repeatable(subject: Subject, problem: Problem) -> Finding:
    """Two calls of one forward, compared bit for bit (NaN equal to NaN)."""
    _, first, second = _twice(subject, problem)
    if identical(first, second):
        return Finding()
    largest = float((first.double() - second.double()).abs().nan_to_num().max())
    message = f"two equal calls differ in bits (by up to {largest:.3g})"
    return violated("value", message, got=largest, expected=0.0)


@clause(
    "state.no-memory",
    sentence="An answer depends on the values of this call alone, not on earlier calls.",
    source="by definition of a function; docs/judge.md: answers kept by address or shape",
    space=Space(mask="maybe", values=LIVELY, share=0.5),
    counterfactual="the answer to the call before",
    explained=False,
)
def no_memory(subject: Subject, problem: Problem) -> Finding:
    """New values in the storage of an earlier call are answered as in storage of their own."""
    earlier = subject.inputs(problem)
    later = _changed(earlier, subject.inputs(problem.replace(seed=problem.seed + 1)), problem.seed)
    forward = subject.forward(earlier)
    call_arguments = arguments(earlier)
    first = subject.call_with(forward, call_arguments, earlier).output.clone()
    overwrite(call_arguments, arguments(later))
    again = subject.call_with(forward, call_arguments, later).output
    fresh, view = reordered(subject, later, problem)
    answer = subject.answer(fresh)
    finding = relate(
        subject,
        (later, again),
        (fresh, answer),
        "after an earlier call in the same storage the answer is another than in fresh tensors, "
        "with the items in another order",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(earlier)),
    )
    if finding.violation is not None and only_order_counts(subject, later, (again, answer), first):
        return Finding(binding=False)
    return finding


def only_order_counts(
    subject: Subject, later: Inputs, answers: tuple[Tensor, Tensor], first: Tensor
) -> bool:
    """Whether the order of the items alone explains two different answers, without any memory.

    A candidate without memory repeats its answer in fresh tensors. A candidate that looks answers
    up by shape does so, too, but then repeats an answer given earlier.
    """
    again, reordered_answer = answers
    fresh_answer = subject.answer(later)
    steady = same_unless_identical(subject, (later, again), (later, fresh_answer), "")
    repeated = identical(again, reordered_answer) or identical(again, first)
    return steady.violation is None and not repeated


def _changed(earlier: Inputs, other: Inputs, seed: int) -> Inputs:
    """The inputs of the next call: all new, some new, or only the last token new.

    An answer looked up by part of the inputs shows when the rest changes.
    """
    change = CHANGES[seed % len(CHANGES)]
    later = earlier.replace(generic=False)
    if earlier.masked and change in ("all", "mask", "last token"):
        later = later.replace(keep=_other_keep(earlier, other), bias=other.bias)
        if change == "mask":
            return later
    tokens = {"query": other.query, "key": other.key, "value": other.value}
    if change in tokens and earlier.mode == "separate":
        return later.with_tokens(**{change: tokens[change]})
    if change == "last token":
        tokens = {n: _with_last_token_of(getattr(earlier, n), t) for n, t in tokens.items()}
    return later.with_tokens(**tokens)


def _other_keep(earlier: Inputs, other: Inputs) -> Tensor | None:
    """Another mask; sequences are rotated, since the storage must hold as many tokens."""
    if earlier.mask_form != SEQUENCES or earlier.keep is None:
        return other.keep
    return earlier.keep.roll(1, dims=0)


def _with_last_token_of(earlier: Tensor, other: Tensor) -> Tensor:
    return torch.cat([earlier[..., :-1, :], other[..., -1:, :]], dim=-2)


def overwrite(call_arguments: Arguments, values: Arguments) -> None:
    """Put other values into the tensors of a call, mask included."""
    for storage, fresh in zip(call_arguments[0], values[0], strict=True):
        storage.copy_(fresh)
    for name, fresh in values[1].items():
        if isinstance(fresh, Tensor):
            call_arguments[1][name].copy_(fresh)


def reordered(subject: Subject, inputs: Inputs, problem: Problem) -> tuple[Inputs, View]:
    """Inputs with their items in another order, whose answer none remembered by shape fits."""
    generator = generator_for(problem, 12)
    if inputs.geometry.batch == 1:
        declared = subject.declaration
        if declared.position is not None or declared.always_causal:  # order matters there
            return inputs, unchanged
        return _reordered_rows(inputs, generator)
    order = permutation(inputs.geometry.batch, generator)
    return reordered_items(inputs, order), lambda answer: answer[order]


def _reordered_rows(inputs: Inputs, generator: torch.Generator) -> tuple[Inputs, View]:
    """One item with its queries in another order; in self mode only without a mask."""
    order = permutation(inputs.geometry.query_length, generator)
    if inputs.mode == "self" and inputs.masked:
        return inputs, unchanged
    return reordered_queries(inputs, order), lambda answer: answer.index_select(-2, order)


@clause(
    "state.answer-kept",
    sentence="An answer stays what it was when the next call is made.",
    source="by definition: an answer belongs to its caller; docs/judge.md: buffers used again",
    space=Space(values=LIVELY, kinds=ANY_KIND, share=0.5),
    explained=False,
)
def answer_kept(subject: Subject, problem: Problem) -> Finding:
    """The returned tensor of a call, read again after a call with new values."""
    inputs = subject.inputs(problem)
    other = subject.inputs(problem.replace(seed=problem.seed + 1)).replace(weights=inputs.weights)
    forward = subject.forward(inputs)
    answer = subject.call(forward, inputs)
    subject.call(forward, other)
    if still_holds(answer):
        return Finding()
    message = "a later call overwrote an earlier answer: the output buffer is used again"
    return violated("mutated", message)


@clause(
    "state.grad-mode",
    sentence="The answer is the same whether or not gradients are recorded.",
    source="pytorch#97128, PR#190486: a fast path that is taken without gradients only",
    space=Space(mask="maybe", causal="maybe", extras="maybe", share=0.5),
    explained=False,
)
def grad_mode(subject: Subject, problem: Problem) -> Finding:
    """Three calls: under no_grad, with gradients recorded, with inputs that require gradients."""
    inputs = subject.inputs(problem)
    plain, recording = subject.answer(inputs), inputs.replace(grad_mode=True)
    answers = [subject.answer(recording), _with_leaves(subject, recording)]
    wording = "with gradients recorded the answer is another"
    findings = [
        same_unless_identical(subject, (inputs, plain), (inputs, answer), wording)
        for answer in answers
        if answer is not None
    ]
    return next((finding for finding in findings if finding.violation is not None), findings[0])


def _with_leaves(subject: Subject, inputs: Inputs) -> Tensor | None:
    """The answer for inputs that require gradients; None where the candidate refuses them.

    Other clauses judge whether gradients can be computed.
    """
    tensors, keywords = arguments(inputs)
    leaves = tuple(tensor.requires_grad_(tensor.itemsize > 1) for tensor in tensors)
    try:
        return subject.call_with(subject.forward(inputs), (leaves, keywords), inputs).output
    except CandidateFailure as failure:
        if failure.violation.kind != "raised":
            raise
        return None


# Contiguous layouts are among them: other layouts may be copied before they are edited in place.
UNCHANGED_LAYOUTS = ("contiguous", "between-canaries")


@clause(
    "state.inputs-unchanged",
    sentence="A call changes none of the tensors it is given.",
    source="by definition: inputs belong to their caller; docs/judge.md: inputs that are edited",
    space=EVERY_OPTION.replace(
        patterns=("random", "empty-rows", "padding"),
        kinds=("core", "layer", "positions"),
        share=0.5,
    ),
    explained=False,
)
def inputs_unchanged(subject: Subject, problem: Problem) -> Finding:
    """Compare every tensor and the memory around it with a copy bit for bit; NaN equals NaN.

    The first call of another clause that wrote into its arguments is repeated here.
    """
    with_weights = "weights" in subject.declaration.features and problem.seed % 2 == 1
    layout = UNCHANGED_LAYOUTS[problem.seed % len(UNCHANGED_LAYOUTS)]
    inputs = subject.inputs(problem)
    earlier = subject.edited.copy()
    drawn = inputs.replace(return_weights=with_weights, layout=layout, mask_layout=layout)
    violations = (_changed_in_place(subject, call) for call in (drawn, *earlier))
    violation = next(filter(None, violations), None)
    subject.edited.clear()
    return Finding(violation=violation)


def _changed_in_place(subject: Subject, inputs: Inputs) -> Violation | None:
    """The violation of a call that changes its tensors or surrounding memory; None if neither."""
    forward = subject.forward(inputs)
    positional, keywords = arguments(inputs)
    kept, _ = unwritten((positional, keywords), inputs)
    tensors = dict(zip(subject.declaration.positional, kept, strict=False))
    tensors |= {name: value for name, value in keywords.items() if isinstance(value, Tensor)}
    before = {name: whole_storage(tensor).clone() for name, tensor in tensors.items()}
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    subject.call_with(forward, (positional, keywords), inputs)
    changed = [name for name, tensor in tensors.items() if not identical(tensor, copies[name])]
    surroundings = [
        name
        for name, tensor in tensors.items()
        if name not in changed and not identical(whole_storage(tensor), before[name])
    ]
    if not changed and not surroundings:
        return None
    message = f"the call changed its {' and '.join(changed)} in place"
    if not changed:
        message = f"the call wrote into memory beside its {' and '.join(surroundings)}"
    return Violation(kind="mutated", message=message, got=changed or surroundings)


@clause(
    "state.answer-is-fresh",
    sentence=(
        "The answer is a tensor of its own: changing the inputs does not change it, and changing "
        "it changes no later answer."
    ),
    source=(
        "torch.library: the result of an operator is no view of its inputs; "
        "docs/judge.md: an input or an earlier answer handed back"
    ),
    space=Space(values=LIVELY, mask="maybe", share=0.5, kinds=("core", "layer", "positions")),
    explained=False,
)
def answer_is_fresh(subject: Subject, problem: Problem) -> Finding:
    """Inputs overwritten after the call; then the answer overwritten, and the call made again."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    call_arguments = arguments(inputs)
    answer = subject.call_with(forward, call_arguments, inputs)
    for tensor in (*call_arguments[0], *call_arguments[1].values()):
        if isinstance(tensor, Tensor):
            tensor.fill_(1)
    if not still_holds(answer):
        message = "the answer shares memory with an input: changing one changes the other"
        return violated("mutated", message)
    if answer.returned is None or answer.returned.is_inference() or _repeats(answer.returned):
        return Finding()  # it cannot be written to
    kept = answer.output if answer.kept is None else answer.kept
    returned = answer.returned.detach()
    returned.fill_(1)
    again = subject.call(forward, inputs).output
    returned.copy_(kept.reshape(returned.shape))
    wording = "changing an answer changes the answer to the next call"
    return same_unless_identical(subject, (inputs, answer.output), (inputs, again), wording)


def _repeats(tensor: Tensor) -> bool:
    """Whether one element in memory stands for several."""
    return any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


# Number of repeated calls at the end: a change after some calls has happened by then.
REPEATS = 8
ORDER = Space(mask="maybe", causal="maybe", extras="maybe", values=LIVELY, share=0.25)


@clause(
    "state.call-order",
    sentence=(
        "Earlier calls, of other sizes, masks and options, and their number change no answer."
    ),
    source="by definition of a function; docs/judge.md: first calls, masks kept by length",
    space=ORDER,
    explained=False,
)
def call_order(subject: Subject, problem: Problem) -> Finding:
    """Longer, shorter, more items, new masks: call them in order, and in reverse."""
    calls = list(_calls(subject, problem))
    forwards = subject.forward(calls[0]), subject.forward(calls[0])
    if subject.candidate.draws_weights:  # the layers that were built before keep their weights
        subject.answer(subject.inputs(problem.replace(seed=problem.seed + 1)))
    in_order = [subject.call(forwards[0], inputs).output for inputs in calls]
    in_reverse = [subject.call(forwards[1], inputs).output for inputs in reversed(calls)]
    for inputs, first, second in zip(calls, in_order, reversed(in_reverse), strict=True):
        wording = "an answer depends on which calls were made before"
        finding = same_unless_identical(subject, (inputs, first), (inputs, second), wording)
        if finding.violation is not None:
            return _after_one_call(subject, calls, inputs) or finding
    opening = _first_of_all(subject)
    if opening.violation is not None:
        return opening
    *_, last = (subject.call(forwards[0], calls[0]).output for _ in range(REPEATS))
    wording = f"after {len(calls) + REPEATS} calls the answer is another"
    return same_unless_identical(subject, (calls[0], in_order[0]), (calls[0], last), wording)


def _after_one_call(subject: Subject, calls: list[Inputs], inputs: Inputs) -> Finding | None:
    """The violation shown by a single earlier call, with the sizes of both calls; else None."""
    for before in calls:
        alone = subject.call(subject.forward(calls[0]), inputs).output
        forward = subject.forward(calls[0])
        subject.call(forward, before)
        after = subject.call(forward, inputs).output
        wording = f"after a call of {_sizes(before)} the answer to {_sizes(inputs)} is another"
        finding = same_unless_identical(subject, (inputs, alone), (inputs, after), wording)
        if finding.violation is not None:
            return finding
    return None


def _sizes(inputs: Inputs) -> str:
    sizes = inputs.geometry
    return f"batch {sizes.batch}, queries {sizes.query_length}, keys {sizes.key_length}"


def _first_of_all(subject: Subject) -> Finding:
    """The candidate's very first call, repeated."""
    if subject.first_answer is None:
        return Finding()
    inputs, first = subject.first_answer
    again = subject.answer(inputs)
    wording = "the first call of all was answered otherwise"
    return same_unless_identical(subject, (inputs, first), (inputs, again), wording)


def _calls(subject: Subject, problem: Problem) -> Iterator[Inputs]:
    """The inputs of a problem, and of further problems within reach of the same built layer."""
    plain = subject.inputs(problem)
    yield plain
    for drawn in _others(subject, problem):
        other = one_at_a_time(drawn, subject.candidate)
        if admits_lengths(subject.candidate, other.geometry):
            yield subject.inputs(other).replace(weights=plain.weights)


def _others(subject: Subject, problem: Problem) -> Iterator[Problem]:
    geometry, declared = problem.geometry, subject.declaration
    causal = causal_flag(subject.candidate, flagged=True)
    other = causal_flag(subject.candidate, flagged=not problem.causal)
    masks = ORDER.options(subject.candidate)
    form, shape = masks[problem.seed % len(masks)] if masks else ("", "")
    mask = MaskPlan(pattern="random", form=form, shape=shape) if masks else None
    other_mask = mask if problem.mask is None else None
    longer, fewer = geometry.key_length + 3, (geometry.key_length + 1) // 2
    queries = geometry.query_length + 2 if can_cross(subject.candidate) else longer
    short = (geometry.query_length + 1) // 2 if can_cross(subject.candidate) else fewer
    longer_sizes = geometry.replace(key_length=longer, query_length=queries)
    yield problem.replace(seed=problem.seed + 1, mask=mask)
    yield problem.replace(geometry=longer_sizes, causal=causal)
    yield problem.replace(geometry=geometry.replace(key_length=fewer, query_length=short))
    yield problem.replace(causal=other)
    # A call without options, and one with a cache: traces of the calls before show in both.
    plain = problem.replace(past=0, scale=None, softcap=None, window=None, causal=causal)
    yield plain
    if draws_cache(subject.candidate):
        half = plain.replace(past=CACHED["the larger half of the keys"](geometry))
        yield half.replace(past=cached_length(half, subject.candidate))
    # The largest comes last: in the reverse order nothing smaller is remembered before it.
    items = geometry.batch + 1 if declared.batched else 1
    yield problem.replace(geometry=longer_sizes.replace(batch=items), mask=other_mask)


# Thread counts of repeated calls, the number of repetitions, and the most seconds spent on them: a
# race shows in some calls only.
THREADS_ASKED: Final = (2, 4)
CALLS_ON_THREADS: Final = 24
SECONDS_ON_THREADS: Final = 0.2


def _can_have_threads(candidate: Candidate) -> str:
    """Why a candidate cannot be asked on several threads, or ""."""
    if kind_of(candidate.declaration.devices[0]) != CPU:
        return "it is judged on a device, whose threads are its own"
    return in_this_process(candidate) or why_one_thread()


@clause(
    "state.threads",
    sentence="An answer does not depend on how many threads the process has.",
    source="flash-attention#1374, pytorch#165712: races; rows beside those that a thread has",
    space=Space(
        mask="maybe",
        causal="maybe",
        values=LIVELY,
        preferred=(("batch", 2), ("num_heads", 4), ("query_length", 65), ("key_length", 65)),
        share=0.1,
    ),
    explained=False,
    applies=(_can_have_threads,),
)
def on_threads(subject: Subject, problem: Problem) -> Finding:
    """A call on one thread against repeated calls on two and on four threads."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    alone = subject.call(forward, inputs).output
    for count in THREADS_ASKED:
        with threads(count):
            answers = list(_repeated(subject, forward, inputs))
        wording = f"on {count} threads the answer is another than on one"
        for answer in answers:
            if torch.equal(alone, answer):
                continue
            # An answer that is finite on no number of threads is judged by other clauses.
            known = alone.isfinite() | answer.isfinite()
            one, other = (each.where(known, 0) for each in (alone, answer))
            finding = same_unless_identical(subject, (inputs, one), (inputs, other), wording)
            if finding.violation is not None:
                races = not all(identical(answers[0], each) for each in answers)
                return _of_threads(finding.violation, count, races=races)
    return Finding(margin=0.0)


def _repeated(subject: Subject, forward: Forward, inputs: Inputs) -> Iterator[Tensor]:
    """The answers of at least two repeated calls."""
    until = time.monotonic() + SECONDS_ON_THREADS
    for number in range(CALLS_ON_THREADS):
        if number > 1 and time.monotonic() > until:
            return
        yield subject.call(forward, inputs).output


def _of_threads(violation: Violation, count: int, *, races: bool) -> Finding:
    """The violation of an answer that changes with the number of threads.

    ``races``: the answers on one number of threads differ among themselves.
    """
    measured = {**violation.measured, THREADS: count, RACE: races}
    if not races:
        return Finding(violation=dataclasses.replace(violation, measured=measured))
    message = (
        f"on {count} threads equal calls have different answers, and are not right: "
        f"{violation.message}"
    )
    return Finding(violation=dataclasses.replace(violation, message=message, measured=measured))
