"""cache.decode-equals-full: tokens asked one by one, in chunks, and beside longer items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ..declare.candidate import Candidate
from ..problems.caching import first_keys, query_rows, without_cache, without_key_bias
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import LENGTHS, Space, admits_lengths, can_cross, is_fixed
from ._alone import all_of
from ._vocabulary import one_item, places_matter, relate, same_answer
from .caches import can_cache, last_queries, with_cache
from .registry import Finding, clause
from .subject import Subject

# Tokens that are asked one by one at the end; what comes before them is one chunk.
SINGLES = 4
MODES = ("tokens", "chunks", "ragged")


def _can_decode(candidate: Candidate) -> str:
    """Why no part of the tokens can be asked behind the others, or ""."""
    declared = candidate.declaration
    if any(is_fixed(candidate, name) for name in LENGTHS):
        return "its geometry pins the lengths"
    if declared.layout == "varlen":  # the first steps would leave sequences without any token
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
    level="MUST",
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
    applies=(_can_decode, places_matter),
    explained=False,
)
def decode_equals_full(subject: Subject, problem: Problem) -> Finding:
    """By its seed one of three ways; without a cache the last queries against all keys so far."""
    mode = MODES[problem.seed % len(MODES)]
    found = ragged(subject, problem) if mode == "ragged" else None
    return _stepwise(subject, problem, singly=mode == "tokens") if found is None else found


def _stepwise(subject: Subject, problem: Problem, *, singly: bool) -> Finding:
    """Each step against its rows of the answer to everything."""
    if subject.declaration.semantics.causal_alignment == "top-left":
        problem = problem.replace(causal=False)
    whole = without_key_bias(subject.inputs(problem.replace(past=0)), subject.candidate)
    full = (whole, subject.answer(whole))
    steps = _steps(subject, whole, _single_bounds if singly else _chunk_bounds)
    return all_of([_as_in_full(subject, full, start, step) for start, step in steps])


def _steps(
    subject: Subject, whole: Inputs, bounds_of: Callable[[int], list[int]]
) -> Iterator[tuple[int, Inputs]]:
    """The first row of each step, and what is asked.

    With a causal flag a step knows of no later token. Without one every query sees all keys, so
    that the last of them are asked behind the others.
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
    """One chunk, then the last few tokens one by one; of few tokens the second one on its own."""
    return list(dict.fromkeys((0, *range(max(length - SINGLES, 1), length + 1))))


def _chunk_bounds(length: int) -> list[int]:
    """Three chunks of unlike sizes."""
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
    """Items with caches of several lengths in one call, one of them against itself alone.

    None where no declared mask can tell the items apart.
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
        f"item {item} with {alone.past} cached tokens answers otherwise beside longer ones",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(whole)),
    )


def _held(inputs: Inputs, problem: Problem, *, by_length: bool) -> Tensor:
    """Which slots of each item hold a token: bool ``[B, Lk]``; the new ones do, unless by length.

    Caches are filled from the first slot on, or up to the last one.
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
    """The tokens of one item alone: as many are cached as were before."""
    index = held.nonzero().flatten()
    past = min(int(held[: inputs.past].sum()), len(index) - 1)
    return inputs.replace(past=past).with_tokens(
        query=inputs.query,
        key=inputs.key.index_select(-2, index),
        value=inputs.value.index_select(-2, index),
    )


RAGGED = Space(mask="always")
