"""position.given, .offset-invariant, .left-padding, .ring, .evicted: positions of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..declare.declaration import GIVEN_POSITIONS, mixed_in
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.positions import Positions, evicted, from_zero, in_a_ring
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION, KEY_FORMS, Space, admits_lengths
from .judging import Counterfactual, measures_golden, same_answer
from .position import MOST_BEFORE, goes_by_distance, moved_behind
from .registry import Finding, clause, requires
from .subject import Subject

_is_given_positions = requires(
    lambda c: GIVEN_POSITIONS in c.declaration.features, "its calls give no positions"
)
Made = Callable[..., tuple[Positions, Positions]]
_SOURCE = "transformers: position_ids, cache_position; vLLM: positions; gpt-fast: input_pos"


_mixes_in = requires(
    lambda c: mixed_in(c.declaration.semantics) is not None,
    "neither rotary positions nor linear biases go by its positions",
)


@clause(
    "position.given",
    sentence=(
        "Each query and key stands at the position that the call gives: it is turned, distances "
        "are counted and, where declared, causality goes by them, whatever its place in memory."
    ),
    source=_SOURCE,
    space=EVERY_OPTION.replace(
        values=("normal", "decisive"),
        least=(("key_length", 2), ("head_size", 2)),
        preferred=(("batch", 2), ("key_length", 4), ("query_length", 3), ("head_size", 4)),
    ),
    needs_golden=True,
    counterfactual=(
        "positions from zero on, of the first item, or of queries for keys; causality by the other "
        "of places and positions"
    ),
    applies=(_is_given_positions,),
    subtle=True,
)
def given(subject: Subject, problem: Problem) -> Finding:
    """Offsets, padding, gaps, restarts and rings against the golden."""
    inputs = subject.inputs(problem)
    if inputs.positions is None:
        return Finding(binding=False)
    wording = "the answer does not follow the positions of the call"
    other = _otherwise(inputs, inputs.positions, problem.seed)
    return measures_golden(subject, inputs, wording, counterfactual=other, signal=False)


def _otherwise(inputs: Inputs, positions: Positions, seed: int) -> Counterfactual:
    """A wrong way to read the positions of a call, by the seed."""
    point = inputs.point
    if inputs.causal and seed % 2:
        by = "places" if point.causal_by == "positions" else "positions"
        return point.replace(causal_by=by)
    sizes = inputs.geometry
    wrong = [from_zero(sizes, same=positions.queries is None)]
    if sizes.batch > 1:
        wrong.append(positions.of_items(torch.zeros(sizes.batch, dtype=torch.int64)))
    if positions.queries is not None:
        wrong.append(positions.replace(keys=positions.queries))
    return inputs.replace(positions=wrong[seed // 2 % len(wrong)])


# Offsets of the positions of an item, as far as no table of positions ends.
_OFFSETS = (1, 3000)


@clause(
    "position.offset-invariant",
    sentence=(
        "The same offset on all positions of an item changes nothing but rounding: distances alone "
        "count."
    ),
    source="Su et al. 2021 (RoFormer), equation 16; Press et al. 2022 (ALiBi)",
    space=Space(
        mask="maybe",
        causal="maybe",
        extras="maybe",
        values=LIVELY,
        least=(("key_length", 2), ("head_size", 2)),
        preferred=(("key_length", 4),),
        share=0.5,
    ),
    counterfactual="keys that stay where they were",
    applies=(_is_given_positions, _mixes_in, goes_by_distance),
    subtle=True,
)
def offset_invariant(subject: Subject, problem: Problem) -> Finding:
    """Every item by an offset of its own, near or far."""
    inputs = subject.inputs(problem.replace(past=0))
    least, most = _OFFSETS
    if inputs.positions is None:
        return Finding(binding=False)
    longest = subject.declaration.max_length
    if longest is not None:
        most = min(
            most, longest - 1 - max(int(each.max()) for each in inputs.given_positions or ())
        )
    if most < least:
        return Finding(binding=False)
    generator = generator_for(problem, 23)
    by = torch.randint(least, most + 1, (inputs.geometry.batch,), generator=generator)
    moved = inputs.positions.later(by)
    apart = inputs.positions.replace(queries=_of_queries(moved, inputs))
    return same_answer(
        subject,
        inputs,
        inputs.replace(positions=moved),
        "an offset of all positions changes the answer, though no distance changes",
        counterfactual=inputs.replace(positions=apart),
    )


def _of_queries(positions: Positions, inputs: Inputs) -> Tensor:
    return positions.of(inputs.geometry)[0]


@clause(
    "position.left-padding",
    sentence=(
        "An item that is padded on the left, with positions that start at its first token, answers "
        "as it does without the padding."
    ),
    source="transformers: position_ids of left-padded batches; transformers#25420",
    space=Space(
        mask="always",
        forms=KEY_FORMS,
        causal="maybe",
        values=LIVELY,
        least=(("key_length", 2), ("head_size", 2)),
        share=0.5,
    ),
    counterfactual="padding that is counted for the keys alone",
    applies=(_is_given_positions,),
    subtle=True,
)
def left_padding(subject: Subject, problem: Problem) -> Finding:
    """Hidden tokens in front at position 0, before tokens at positions from 0 on."""
    drawn = subject.inputs(problem.replace(past=0))
    if drawn.positions is None:
        return Finding(binding=False)
    start = from_zero(drawn.geometry, same=drawn.positions.queries is None)
    inputs = drawn.replace(positions=start)
    count = 1 + problem.seed % MOST_BEFORE
    moved, first = moved_behind(subject, inputs, count, generator_for(problem, 24))
    if not admits_lengths(subject.candidate, moved.geometry):
        return Finding(binding=False)
    queries = start.queries
    behind = Positions(
        queries=queries if queries is None or not first else _behind(queries, count),
        keys=_behind(start.keys, count),
    )
    counted = behind.replace(keys=from_zero(moved.geometry, same=True).keys)
    padded = moved.replace(positions=behind)
    return same_answer(
        subject,
        padded,
        inputs,
        f"{count} hidden tokens in front change the answer of tokens at positions from 0 on",
        view=lambda answer: answer[..., first:, :],
        counterfactual=lambda: subject.oracle.output(
            moved.replace(positions=_with_queries(counted, padded))
        )[..., first:, :],
    )


def _by_cache(subject: Subject, problem: Problem, made: Made, wording: str) -> Finding:
    """Positions that a cache leaves, against the golden; the other ones must show."""
    drawn = subject.inputs(problem.replace(past=0))
    if drawn.positions is None:
        return Finding(binding=False)
    right, wrong = made(drawn.geometry, same=drawn.positions.queries is None)
    longest = subject.declaration.max_length
    inputs = drawn.replace(positions=right)
    reach = max(int(each.max()) for each in inputs.given_positions or () if each.numel())
    if longest is not None and reach >= longest:
        return Finding(binding=False)
    other = drawn.replace(positions=wrong)
    return measures_golden(subject, inputs, wording, counterfactual=other, signal=False)


_CACHED: Final = EVERY_OPTION.replace(
    values=("normal", "decisive"),
    least=(("key_length", 3), ("head_size", 2)),
    preferred=(("batch", 2), ("key_length", 6), ("head_size", 4)),
    share=0.5,
)


@clause(
    "position.ring",
    sentence=(
        "Keys of a ring, the newest written over the oldest, stand at the positions that the call "
        "gives to their slots, each item's ring turned by its own number of slots."
    ),
    source="Jiang et al. 2023 (Mistral 7B), section 2: rolling buffers; mlx-lm: RotatingKVCache",
    space=_CACHED,
    needs_golden=True,
    counterfactual="the positions of the keys in the order of their slots",
    applies=(_is_given_positions,),
    subtle=True,
)
def ring(subject: Subject, problem: Problem) -> Finding:
    """Consecutive positions, written round, with all other options."""
    wording = "the keys of a ring do not stand where the call says"
    return _by_cache(subject, problem, in_a_ring, wording)


@clause(
    "position.evicted",
    sentence=(
        "Where keys between the first and the newest were evicted, those that stay keep the "
        "positions that the call gives: the gap counts."
    ),
    source="Zhang et al. 2023 (H2O); otherwise: Xiao et al. 2023 (StreamingLLM), section 3.2",
    space=_CACHED,
    needs_golden=True,
    counterfactual="positions without the gap",
    applies=(_is_given_positions,),
    subtle=True,
)
def of_evicted(subject: Subject, problem: Problem) -> Finding:
    """A gap of its own for each item, with all other options."""
    wording = "beside evicted keys the others do not stand where the call says"
    return _by_cache(subject, problem, evicted, wording)


def _behind(table: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(table, (count, 0))


def _with_queries(counted: Positions, padded: Inputs) -> Positions:
    """Counted keys, and the queries of padded inputs as they are."""
    own = padded.given_positions
    return counted if own is None else counted.replace(queries=own[0])
