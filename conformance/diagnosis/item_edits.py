"""Edited stages of each item alone, as kernels make them that go over an item's own keys.

Tiles and parts of keys begin with the first key of an item; in the golden of sequences and caches
the keys of an item stand among others. A tile may be a page, which has another size in other calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .._golden import golden
from ..clauses.rearranging import reordered_items, reordered_keys, reordered_queries
from ..declare.head_layouts import HEAD_LAYOUTS
from ..problems.arrangements import there
from ..problems.inputs import Inputs
from ..problems.structured_masks import STRUCTURED_MASKS
from .agreement import BatteryAnswer
from .mistakes import NamedMistake, NotExpressible
from .mistakes.named_mistake import IMPOSSIBLE, DeclaredCall, read_every_key, run_of_call
from .stage_edits import edits_making

# The edit of a call by the size of its pages; under 0 that of calls with other pages, or none.
BySize = Mapping[int, NamedMistake]


def item_edits(wrong: Sequence[BatteryAnswer]) -> list[NamedMistake]:
    """Return the edits that make a few errors of items, for all items of a call."""
    alike = edits_making([*_answers(wrong)])
    return [
        *(_edit_each_item(one, {0: one}) for one in alike),
        *(_edit_each_item(own[min(own)], own) for own in _edits_of_pages(wrong)),
    ]


def _edits_of_pages(wrong: Sequence[BatteryAnswer]) -> list[BySize]:
    """Return the edits of tiles as large as a page, by the size of a page."""
    families: dict[str, dict[int, NamedMistake]] = {}
    sizes = {_page(one.inputs) for one in wrong} - {0}
    for size in sizes:
        in_pages = (one for one in wrong if _page(one.inputs) == size)
        of_tiles = re.compile(rf"\btiles? of {size}\b")
        said = partial(_say_page, size=size)
        for edit in edits_making([*_answers(in_pages)], said=of_tiles):
            of_pages = replace(edit, name=said(edit.name), sentence=said(edit.sentence))
            families.setdefault(of_pages.sentence, {})[size] = of_pages
    return [own for own in families.values() if own.keys() == sizes]


def _page(inputs: Inputs) -> int:
    return 0 if inputs.store is None else inputs.store.page_size


def _say_page(words: str, *, size: int) -> str:
    words = re.sub(rf"\btile(s?) of {size} (keys|queries)\b", r"page\1 of \2", words)
    return re.sub(rf"\btile(s?) of {size}\b", r"page\1", words)


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


def _edit_each_item(said: NamedMistake, edits: BySize) -> NamedMistake:
    def change(output: Tensor, inputs: Inputs, point: golden.Semantics) -> Tensor:
        changed = output.clone()
        edit = edits.get(_page(inputs), edits.get(0))
        if edit is None:
            raise NotExpressible
        for item, rows, alone in _alone(inputs):
            call = DeclaredCall(inputs=alone, semantics=point)
            with suppress(*IMPOSSIBLE):  # such as parts of a single key: the item stays right
                run = read_every_key(run_of_call(call)).edited(*edit.edits)
                changed[item, :, rows] = run["output"][0]
        return changed

    return replace(said, edits=(golden.Edit("output", change=change),))
