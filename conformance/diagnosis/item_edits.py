"""Edited stages of each item alone, as kernels make them that go over an item's own keys.

Tiles and parts of keys begin with the first key of an item; in the golden of sequences and caches
the keys of an item stand among others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from .._golden import golden
from ..clauses.rearranging import reordered_items, reordered_keys, reordered_queries
from ..declare.head_layouts import HEAD_LAYOUTS
from ..problems.arrangements import there
from ..problems.inputs import Inputs
from ..problems.structured_masks import STRUCTURED_MASKS
from .agreement import BatteryAnswer
from .mistakes import NamedMistake
from .mistakes.named_mistake import IMPOSSIBLE, DeclaredCall, read_every_key, run_of_call
from .stage_edits import edits_making


def item_edits(wrong: Sequence[BatteryAnswer]) -> list[NamedMistake]:
    """Return the edits that make a few errors of items, for all items of a call."""
    return [_edit_each_item(one) for one in edits_making([*_answers(wrong)])]


def _answers(answers: Iterable[BatteryAnswer]) -> Iterator[BatteryAnswer]:
    for answer in answers:
        for item, rows, alone in _alone(answer.inputs) if answer.fits else ():
            output = answer.output[item : item + 1, :, rows]
            yield BatteryAnswer(subject=answer.subject, inputs=alone, output=output)


def _alone(inputs: Inputs) -> Iterator[tuple[int, Tensor, Inputs]]:
    """Yield each item with its rows of queries, and the inputs of its own queries and keys."""
    queries, keys = there(inputs, "query", inputs.query), there(inputs, "key", inputs.key)
    for item in range(inputs.geometry.batch):
        rows, places = (one[item].nonzero().flatten() for one in (queries, keys))
        if not len(rows) or not len(places):
            continue
        sizes = {"batch": 1, "query_length": len(rows), "key_length": len(places)}
        alone = reordered_items(inputs, torch.tensor([item]))
        alone = reordered_keys(reordered_queries(alone, rows), places)
        structured = inputs.mask_form in STRUCTURED_MASKS
        yield (
            item,
            rows,
            alone.replace(
                geometry=inputs.geometry.replace(**sizes),
                keep=alone.keep if structured else None,
                mask_form=inputs.mask_form if structured else None,
                present=None,
                head_layout=HEAD_LAYOUTS["BHSD"],
            ),
        )


def _edit_each_item(edit: NamedMistake) -> NamedMistake:
    def change(output: Tensor, inputs: Inputs, point: golden.Semantics) -> Tensor:
        changed = output.clone()
        for item, rows, alone in _alone(inputs):
            call = DeclaredCall(inputs=alone, semantics=point)
            with suppress(*IMPOSSIBLE):  # such as parts of a single key: the item stays right
                run = read_every_key(run_of_call(call)).edited(*edit.edits)
                changed[item, :, rows] = run["output"][0]
        return changed

    return replace(edit, edits=(golden.Edit("output", change=change),))
