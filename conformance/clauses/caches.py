"""cache.*: keys and values in a cache act as if they were passed with the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from ..base.geometry import LENGTHS
from ..calls.calling import Arguments, arguments
from ..declare.candidate import Candidate
from ..problems.caching import (
    cached,
    first_keys,
    no_cache,
    query_rows,
    without_cache,
    without_key_bias,
)
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION, Space, admits_lengths, can_cross, is_fixed
from .judging import (
    all_of,
    identical,
    matches_golden,
    places_matter,
    relate,
    same_answer,
    same_unless_identical,
    sees_by_place,
)
from .leaks import unaffected
from .rearranging import one_item, unchanged
from .registry import Finding, clause, requires, violated
from .state import only_order_counts, overwrite, reordered
from .subject import Subject

CONTRACT = "ONNX Attention-23: past_key, past_value are concatenated before the new ones"
# Unused slots at the end of a cache, and their contents.
SPARE: Final = 3
JUNK: Final = (float("nan"), 1e4)


def can_cache(candidate: Candidate) -> str:
    """Why the right answer with a cache is not defined, or ""."""
    declared = candidate.declaration
    placed = declared.always_causal or declared.position is not None
    if placed and declared.semantics.causal_alignment == "top-left":
        return "places are counted from the first key, which may be the first new one"
    return no_cache(candidate)


def with_cache(subject: Subject, problem: Problem, past: int | None = None) -> Inputs:
    """The inputs of a problem with its first keys in a cache: ``past`` of them, by seed if None.

    Causal flag and window are left out under top-left alignment: the diagonal could start at the
    first cached key or at the first new key.
    """
    if subject.declaration.semantics.causal_alignment == "top-left":
        problem = problem.replace(causal=False, window=None)
    whole = without_key_bias(subject.inputs(problem.replace(past=0)), subject.candidate)
    chosen = 1 + problem.seed % (whole.geometry.key_length - 1) if past is None else past
    inputs = cached(whole, chosen, subject.candidate)
    return inputs.replace(past_calls=_past_calls(problem, chosen))


def _past_calls(problem: Problem, past: int) -> int:
    """In how many calls a module gets the first tokens: in one, in two, or one by one."""
    return min((1, 2, past)[problem.seed // len(MODES) % len(MODES)], past)


def last_queries(subject: Subject, inputs: Inputs) -> Inputs:
    """Cut the queries to the new keys, so that no query stands before the end of the cache."""
    sizes, pinned = inputs.geometry, subject.declaration.pins.sizes
    new = sizes.key_length - inputs.past
    if "query_length" in pinned or not can_cross(subject.candidate) or sizes.query_length <= new:
        return inputs
    return query_rows(inputs, sizes.query_length - new, sizes.query_length)


@clause(
    "cache.golden",
    sentence=(
        "Cached keys and values come before the new ones: the answer is that of all of them, with "
        "masks for all."
    ),
    source=CONTRACT,
    space=EVERY_OPTION.replace(least=(("key_length", 2),), share=0.5),
    needs_golden=True,
    counterfactual="the cached keys lost",
    applies=(can_cache,),
)
def cache_golden(subject: Subject, problem: Problem) -> Finding:
    """Caches of random length under all declared options, against the golden over all keys."""
    inputs = with_cache(subject, problem)
    wording = f"with {inputs.past} cached keys the answer is wrong"
    return matches_golden(subject, inputs, wording, counterfactual=without_cache(inputs))


def _places(candidate: Candidate) -> str:
    """Why the place of a new token changes no answer, or ""."""
    declared = candidate.declaration
    if declared.position is None and declared.causal != "bottom-right":
        return "neither a causal diagonal at the last key nor positions are declared"
    return ""


@clause(
    "cache.position-offset",
    sentence=(
        "New tokens stand behind the cached ones: causal diagonal, windows and positions are "
        "counted on from there."
    ),
    source="executorch#2010, onnx#8054: the diagonal counted from the first cached key",
    space=Space(
        causal="offered",
        values=LIVELY,
        least=(("key_length", 3),),
        preferred=(("query_length", 2), ("key_length", 5)),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="places counted from the first cached key, or no positions at all",
    applies=(can_cache, _places, sees_by_place),
)
def position_offset(subject: Subject, problem: Problem) -> Finding:
    """Every query is a new token, where the cache can hold the tokens before them."""
    sizes, point = problem.geometry, subject.declaration.semantics
    before = sizes.key_length - sizes.query_length
    inputs = with_cache(subject, problem, before if before > 0 else None)
    other = point.replace(rotary="none", alibi=False, relative="none")
    if inputs.causal and other == point:
        other = point.replace(causal_alignment="top-left")
    wording = f"new tokens do not stand behind the {inputs.past} cached ones"
    return matches_golden(subject, inputs, wording, counterfactual=other)


def _keeps_slots(candidate: Candidate) -> str:
    if "lengths" in candidate.declaration.masks:
        return ""
    if candidate.declaration.cache is not None:
        return "its cache is of its own making: no call sees its slots"
    return can_cache(candidate)


@clause(
    "cache.untouched-tail",
    sentence=(
        "What lies in slots of a cache that are not in use is never seen, and nothing is written "
        "into the cache that a call is given."
    ),
    source="preallocated caches: slots past the length hold what was there; vllm and others",
    space=Space(
        mask="maybe", forms=("lengths",), values=LIVELY, least=(("key_length", 3),), share=0.5
    ),
    applies=(_keeps_slots,),
    explained=False,
    subtle=True,  # behind a causal diagonal few rows see the last slots
)
def untouched_tail(subject: Subject, problem: Problem) -> Finding:
    """Caches in larger buffers full of NaN or junk, or junk in slots past the lengths."""
    declared = can_cache(subject.candidate) == ""
    drawn = subject.inputs(problem.replace(past=0))
    if drawn.masked and (not declared or problem.seed % 2 == 0):
        return _past_lengths(subject, problem, with_cache(subject, problem) if declared else drawn)
    if not declared or drawn.own_cache:
        return Finding(binding=False)
    inputs = with_cache(subject, problem)
    call_arguments, buffers = _in_buffers(inputs, JUNK[problem.seed % len(JUNK)])
    before = [buffer.clone() for buffer in buffers]
    answer = subject.call_with(subject.forward(inputs), call_arguments, inputs).output
    if not all(identical(*pair) for pair in zip(buffers, before, strict=True)):
        return violated("mutated", "the call wrote into the cache that it was given, or behind it")
    wording = "unused slots behind the cache change the answer"
    return same_unless_identical(
        subject, (inputs, subject.answer(inputs)), (inputs, answer), wording
    )


def _past_lengths(subject: Subject, problem: Problem, inputs: Inputs) -> Finding:
    """Put finite junk into the slots past the largest length of each item."""
    if inputs.keep is None:
        return Finding(binding=False)
    unused = ~inputs.keep.any(dim=2).any(dim=1)
    junk = unused.expand(inputs.geometry.batch, -1)
    return unaffected(subject, problem, inputs, junk, counterfactual=inputs.without_mask())


def _in_buffers(inputs: Inputs, filler: float) -> tuple[Arguments, list[Tensor]]:
    """A call whose cache is the first slots of larger buffers, and these buffers."""
    positional, keywords = arguments(inputs)
    axis = inputs.head_layout.axes.index("S") - len("BHSD")
    buffers = []
    for name in ("past_key", "past_value"):
        cached_tensor = keywords[name]
        shape = list(cached_tensor.shape)
        shape[axis] += SPARE
        buffer = torch.full(shape, filler, dtype=cached_tensor.dtype, device=cached_tensor.device)
        keywords[name] = buffer.narrow(axis, 0, cached_tensor.shape[axis])
        keywords[name].copy_(cached_tensor)
        buffers.append(buffer)
    return (positional, keywords), buffers


@clause(
    "cache.no-memory",
    sentence=(
        "The cache of a call is the one that it is given: no earlier one, none that a call before "
        "has grown."
    ),
    source="by definition: past_key and past_value are inputs; docs/judge.md: answers of before",
    space=Space(mask="maybe", values=LIVELY, least=(("key_length", 3),), share=0.25),
    counterfactual="the answer with the cache of the call before",
    applies=(can_cache,),
    explained=False,
)
def cache_no_memory(subject: Subject, problem: Problem) -> Finding:
    """Write a second cache into the storage of the first; compare with a call on fresh tensors.

    The items of the fresh call are reordered, unless a single item attends itself.
    """
    earlier = with_cache(subject, problem)
    later = _with_other_cache(earlier, subject.inputs(problem.replace(seed=problem.seed + 1)))
    forward = subject.forward(earlier)
    call_arguments = arguments(earlier)
    first = subject.call_with(forward, call_arguments, earlier).output.clone()
    overwrite(call_arguments, arguments(later))
    again = subject.call_with(forward, call_arguments, later).output
    is_single_item = earlier.mode == "self" and earlier.geometry.batch == 1
    fresh, view = (later, unchanged) if is_single_item else reordered(subject, later, problem)
    answer = subject.answer(fresh)
    finding = relate(
        subject,
        (later, again),
        (fresh, answer),
        "with another cache in the same storage the answer is another than in fresh tensors",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(earlier)),
    )
    is_reordered = fresh is not later and finding.violation is not None
    if is_reordered and only_order_counts(subject, later, (again, answer), first):
        return Finding(binding=False)
    return finding


def _with_other_cache(inputs: Inputs, other: Inputs) -> Inputs:
    def changed(tokens: Tensor, others: Tensor) -> Tensor:
        return torch.cat([others[..., : inputs.past, :], tokens[..., inputs.past :, :]], dim=-2)

    return inputs.replace(
        key=changed(inputs.key, other.key), value=changed(inputs.value, other.value), generic=False
    )


@clause(
    "cache.empty-past",
    level="SHOULD",
    sentence="A cache that holds no token yet gives the answer of a call without one.",
    source="the first step of a loop over tokens; onnxruntime feeds caches of length zero",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, share=0.25),
    applies=(no_cache,),
    explained=False,
)
def empty_past(subject: Subject, problem: Problem) -> Finding:
    """``past_key [B, Hkv, 0, D]`` against no cache."""
    inputs = subject.inputs(problem.replace(past=0))
    empty = inputs.replace(empty_cache=True)
    answers = subject.answer(inputs), subject.answer(empty)
    wording = "a cache without tokens changes the answer"
    return same_unless_identical(subject, (inputs, answers[0]), (empty, answers[1]), wording)


_has_own: Final = requires(
    lambda c: c.declaration.cache is not None, "no cache of a module's own is declared"
)


@clause(
    "cache.in-turn",
    sentence=(
        "Each cache is its own: a sequence is continued as if no other had begun in between, with "
        "another cache."
    ),
    source="by definition of a cache; caches in defaults of parameters, and on classes",
    space=Space(causal="offered", values=LIVELY, least=(("key_length", 3),), share=0.25),
    counterfactual="the answer behind the tokens of the other sequence",
    applies=(_has_own,),
    explained=False,
)
def in_turn(subject: Subject, problem: Problem) -> Finding:
    """A first call for other tokens in between; of a copy of a module that holds its cache."""
    inputs = with_cache(subject, problem)
    other = _with_other_cache(inputs, subject.inputs(problem.replace(seed=problem.seed + 1)))
    positional, keywords = arguments(inputs)
    keywords["other_past"] = arguments(other)[1]["past"]
    forward = subject.forward(inputs)
    answer = subject.call_with(forward, (positional, keywords), inputs).output
    return relate(
        subject,
        (inputs, subject.answer(inputs)),
        (inputs, answer),
        "after a first call with another cache, for another sequence, the answer is another",
        counterfactual=lambda: subject.oracle.output(other),
    )


# Tokens decoded one by one at the end; all tokens before them are one chunk.
SINGLES = 4
MODES = ("tokens", "chunks", "ragged")


def _can_decode(candidate: Candidate) -> str:
    """Why tokens cannot be decoded in several calls, or ""."""
    declared = candidate.declaration
    if any(is_fixed(candidate, name) for name in LENGTHS):
        return "its geometry pins the lengths"
    if declared.head_layout.has_sequences:  # the first steps would leave some without any token
        return "its sequences lie in one tensor"
    if not can_cache(candidate):
        return ""
    if not declared.positions_known:
        return f"nobody knows where its {declared.position} positions are counted from"
    if declared.causal != "bottom-right" or not can_cross(candidate):
        return f"{can_cache(candidate)}, nor a causal diagonal that ends at the last of all keys"
    return ""


@clause(
    "cache.decode-equals-full",
    sentence=(
        "Tokens asked one by one, in chunks, or together with items of other lengths give the rows "
        "of one call for all of them."
    ),
    source="autoregressive decoding; flash-attention: flash_attn_with_kvcache, cache_seqlens",
    space=Space(
        causal="offered",
        mask="maybe",
        finite_bias="maybe",
        values=LIVELY,
        patterns=("random", "dense", "padding", "full"),
        square="always",
        least=(("key_length", 4),),
        share=0.4,
    ),
    counterfactual="the cached tokens lost, or the diagonal at the first key",
    applies=(_can_decode, places_matter, sees_by_place),
    explained=False,
)
def decode_equals_full(subject: Subject, problem: Problem) -> Finding:
    """One of three ways, by the seed; without a cache the last queries against all keys so far."""
    mode = MODES[problem.seed % len(MODES)]
    finding = ragged(subject, problem) if mode == "ragged" else None
    return _stepwise(subject, problem, singly=mode == "tokens") if finding is None else finding


def _stepwise(subject: Subject, problem: Problem, *, singly: bool) -> Finding:
    """The answer of each decoding step against its rows of one call for all tokens."""
    if subject.declaration.semantics.causal_alignment == "top-left":
        problem = problem.replace(causal=False)
    whole = without_key_bias(subject.inputs(problem.replace(past=0)), subject.candidate)
    full = (whole, subject.answer(whole))
    steps = _steps(subject, whole, _single_bounds if singly else _chunk_bounds)
    return all_of([_as_in_full(subject, full, start, step) for start, step in steps])


def _steps(
    subject: Subject, whole: Inputs, bounds_of: Callable[[int], list[int]]
) -> Iterator[tuple[int, Inputs]]:
    """The first row and the inputs of each step.

    With a causal flag a step gets no later token; without the flag every step gets all tokens.
    """
    length, caches = whole.geometry.key_length, not can_cache(subject.candidate)
    for start, end in pairwise(bounds_of(length)):
        stop = end if whole.causal else length
        if start == 0 and not whole.causal:
            continue
        step = query_rows(first_keys(whole, stop), start, stop)
        step = step.replace(past=start if caches else 0)
        if admits_lengths(subject.candidate, step.geometry):
            yield start, step


def _single_bounds(length: int) -> list[int]:
    """One chunk, then up to ``SINGLES`` of the last tokens one by one."""
    return list(dict.fromkeys((0, *range(max(length - SINGLES, 1), length + 1))))


def _chunk_bounds(length: int) -> list[int]:
    return sorted({0, length // 4 + 1, length // 2 + 1, length})


def _as_in_full(subject: Subject, full: tuple[Inputs, Tensor], start: int, step: Inputs) -> Finding:
    stop = start + step.geometry.query_length
    past = f"behind {step.past} cached ones" if step.past else "without a cache"
    return relate(
        subject,
        full,
        (step, subject.answer(step)),
        f"tokens {start} to {stop - 1}, asked {past}, are not answered as in one call for all",
        view=lambda answer: answer[..., start:stop, :],
        counterfactual=lambda: _lost(subject, step),
    )


def _lost(subject: Subject, step: Inputs) -> Tensor:
    """The golden answer without the cached tokens, or with the diagonal at the first key."""
    if step.past:
        return subject.oracle.output(without_cache(step))
    point = subject.declaration.semantics.replace(causal_alignment="top-left")
    return subject.oracle.output(step, point)


def ragged(subject: Subject, problem: Problem) -> Finding | None:
    """Items with caches of different lengths in one call; one item against itself alone.

    None where no declared mask can hide different keys from different items.
    """
    options = [pair for pair in RAGGED.options(subject.candidate) if "B" in pair[1]]
    if can_cache(subject.candidate) or subject.declaration.position is not None or not options:
        return None
    form, shape = options[problem.seed // len(MODES) % len(options)]
    # A window counts slots, of which one item alone has fewer; and a query that stands before the
    # end of the cache would see other tokens where slots are left out.
    flagless = problem.replace(mask=None, window=None, causal=problem.causal and form != "lengths")
    whole = with_cache(subject, flagless)
    if whole.causal:
        whole = last_queries(subject, whole)
    if whole.geometry.batch == 1 or (whole.causal and form == "lengths"):
        return None
    held = _held(whole, problem, by_length=form == "lengths")
    together = whole.replace(keep=held[:, None, None], mask_form=form, mask_shape=shape)
    item = problem.seed % whole.geometry.batch
    apart, view = one_item(subject, together, item)
    alone = _with_held_keys(apart.without_mask(), held[item])
    if not admits_lengths(subject.candidate, alone.geometry):
        return None
    return same_answer(
        subject,
        together,
        alone,
        f"item {item} with {alone.past} cached tokens answers otherwise next to longer ones",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(whole)),
    )


def _held(inputs: Inputs, problem: Problem, *, by_length: bool) -> Tensor:
    """Which slots of each item hold a token: bool ``[B, Lk]``; ``by_length`` counts new ones, too.

    Caches are filled from the first slot on, or up to the last slot.
    """
    batch, count = inputs.geometry.batch, inputs.geometry.key_length
    slots = torch.arange(count)
    most = count if by_length else inputs.past
    lengths = torch.randint(1, most + 1, (batch, 1), generator=generator_for(problem, 20))
    if by_length:
        return slots < lengths
    filled = slots < lengths if problem.seed % 2 else slots >= inputs.past - lengths
    return filled | (slots >= inputs.past)


def _with_held_keys(inputs: Inputs, held: Tensor) -> Inputs:
    """The held tokens of an item alone; the number of cached tokens stays."""
    index = held.nonzero().flatten()
    past = min(int(held[: inputs.past].sum()), len(index) - 1)
    return inputs.replace(past=past).with_tokens(
        query=inputs.query,
        key=inputs.key.index_select(-2, index),
        value=inputs.value.index_select(-2, index),
    )


RAGGED = Space(mask="always")
