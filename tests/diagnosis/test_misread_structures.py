from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import conformance
from candidates.structured_attention import StructuredCore, ancestors
from conformance.diagnosis.misread_structures import misread_structures


def parent_alone(_self: StructuredCore, parents: Tensor, columns: int) -> Tensor:
    """Each new token and its parent, and the cache."""
    items, rows = parents.shape
    seen = torch.eye(rows, dtype=torch.bool) | (torch.arange(rows) == parents[..., None])
    return torch.cat(
        (torch.ones(items, rows, columns - rows, dtype=torch.bool), seen), dim=-1
    ).unsqueeze(1)


def without_cache(_self: StructuredCore, parents: Tensor, columns: int) -> Tensor:
    """The new tokens alone."""
    hidden = torch.zeros(*parents.shape, columns - parents.shape[1], dtype=torch.bool)
    return torch.cat((hidden, ancestors(parents)), dim=-1).unsqueeze(1)


def sizes_exchanged(_self: StructuredCore, blocks: Tensor, rows: int, columns: int) -> Tensor:
    """Three queries and two keys a block, where it is the other way round."""
    table = blocks.repeat_interleave(3, dim=2).repeat_interleave(2, dim=3)[..., :rows, :columns]
    lacking = (columns - table.shape[-1], rows - table.shape[-2])
    return torch.nn.functional.pad(table, (0, lacking[0], 0, lacking[1]))


MISTAKES: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "made with segments of lower numbers, too": (
        "segments",
        lambda _self, queries, keys: (queries[:, :, None] >= keys[:, None, :]).unsqueeze(1),
    ),
    "the mask of the first batch item is used for all (only with a mask by prefix)": (
        "prefix",
        lambda self, lengths, ahead: StructuredCore.prefix(
            self, lengths[:1].expand_as(lengths), ahead
        ),
    ),
    "made with a prefix one key longer": (
        "prefix",
        lambda self, lengths, ahead: StructuredCore.prefix(self, lengths + 1, ahead),
    ),
    "the places of the queries counted from the other end": (
        "chunks",
        lambda _self, chunk, rows, columns: (
            torch.arange(columns) // chunk == (torch.arange(rows) // chunk)[:, None]
        )[None, None],
    ),
    "a window as long as a chunk, on both sides": (
        "chunks",
        lambda _self, chunk, rows, columns: (
            (torch.arange(columns) - torch.arange(rows)[:, None] - (columns - rows)).abs() < chunk
        )[None, None],
    ),
    "made with the parent alone": ("tree", parent_alone),
    "made without the cache": ("tree", without_cache),
    "the two sizes of a block exchanged": ("blocks", sizes_exchanged),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("said", MISTAKES)
def test_what_is_read_otherwise_is_named(said: str) -> None:
    """The sentence says which structure is read how, though five others are read rightly."""
    form, wrong = MISTAKES[said]
    core = type("Wrong", (StructuredCore,), {form: wrong})()
    promises = {"block_size": (2, 3)} if form == "blocks" else {}
    others = [one for one in ("segments", "indices") if one != form]
    made = conformance.core(masks=[form, *others], empty_rows="zeros", **promises)(core)
    report = conformance.check(made, only="mask.golden")
    assert report.verdict == "fails"
    assert said in str(report.record)


def test_each_misreading_has_a_text_and_a_fix() -> None:
    """No two say the same."""
    texts = [one.sentence for one in misread_structures()]
    assert len(set(texts)) == len(texts)
    assert all(one.fix for one in misread_structures())
