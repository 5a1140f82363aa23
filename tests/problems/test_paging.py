"""Caches with lengths and pages hold the keys of a problem, and nothing else of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import conformance
from conformance import Geometry
from conformance.calls.calling import arguments
from conformance.clauses.subject import Subject
from conformance.problems.arrangements import slots_of, there
from conformance.problems.inputs import Inputs
from conformance.problems.misreading import misread, read_whole_pages
from conformance.problems.paging import TAILS
from conformance.problems.problem import MaskPlan, Problem

SIZES = Geometry(
    batch=3,
    num_heads=2,
    num_kv_heads=2,
    query_length=2,
    key_length=11,
    head_size=3,
    value_head_size=3,
    query_size=1,
    key_size=1,
    value_size=1,
    output_size=1,
)
RAGGED = MaskPlan(pattern="random", form="sequences", shape="B")


def subject(**promises: Any) -> Subject:
    """A core that is never called, with caches."""

    def never(*_tensors: torch.Tensor, **_options: object) -> torch.Tensor:
        raise AssertionError

    declared = {"layout": "paged", "page_sizes": [4], **promises}
    if declared["layout"] != "paged":
        declared.pop("page_sizes")
    return Subject(conformance.core(**declared)(never), "float32")


def inputs_of(seed: int = 3, pattern: str = "random", **promises: Any) -> Inputs:
    """Some inputs of such a core."""
    mask = RAGGED.replace(pattern=pattern)
    sizes = SIZES.replace(query_length=1) if promises.get("queries") == "single" else SIZES
    return subject(**promises).inputs(
        Problem(geometry=sizes, dtype="float32", seed=seed, mask=mask)
    )


def held(inputs: Inputs, item: int) -> torch.Tensor:
    """The keys of an item ``[n, H, D]``."""
    return inputs.key.transpose(1, 2)[item][there(inputs, "key", inputs.key)[item]]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("axes", ["NHD", "HND"])
def test_a_table_finds_every_key(seed: int, axes: str) -> None:
    """Page after page of an item's row holds its keys in order, and junk fills the other slots."""
    inputs = inputs_of(seed, page_axes=axes)
    (_, keys, values), keywords = arguments(inputs)
    keys = keys if axes == "NHD" else keys.transpose(1, 2)
    table, lengths = keywords["block_table"], keywords["cache_lengths"]
    assert table.dtype == lengths.dtype == torch.int32
    used = torch.zeros(keys.shape[:2], dtype=torch.bool)
    for item, length in enumerate(lengths.tolist()):
        pages = table[item, : -(-length // 4)].long()
        assert torch.equal(keys[pages].flatten(0, 1)[:length], held(inputs, item))
        for place in range(length):
            used[pages[place // 4], place % 4] = True
    assert not bool(keys[~used].any())
    assert bool(used.any())
    assert values.shape[0] == keys.shape[0] <= 64


def test_compressed_rows_say_what_a_table_says() -> None:
    """The same pages, and the length of the last of them; an item without keys has no page."""
    inputs = inputs_of(5, pattern="no-keys", page_index="csr")
    keywords = arguments(inputs)[1]
    counts, last = keywords["kv_indptr"].diff(), keywords["last_page_lengths"]
    at = slots_of(inputs)
    assert torch.equal((counts - 1) * 4 + last, at.lengths.to(torch.int32))
    assert 0 in counts
    rows = [row[:count] for row, count in zip(at.table, counts.tolist(), strict=True)]
    assert torch.equal(keywords["kv_indices"].long(), torch.cat(rows))


def test_items_that_begin_alike_share_pages() -> None:
    """Whole pages only, none that a call writes; other tokens in one of them end the sharing."""
    drawn = [inputs_of(seed, pattern="full") for seed in range(12)]
    tables = [arguments(inputs)[1]["block_table"] for inputs in drawn]
    shared = [len(set(table.flatten().tolist())) < table.numel() for table in tables]
    assert 0 < sum(shared) < len(shared)
    alike = drawn[shared.index(True)]
    other = alike.with_tokens(key=torch.randn(alike.key.shape))
    assert len(set(arguments(other)[1]["block_table"].flatten().tolist())) == 9
    written = [inputs_of(seed, pattern="full", features=["cache_write"]) for seed in range(12)]
    for inputs in written:
        last = arguments(inputs)[1]["block_table"][:, -1]
        assert len(set(last.tolist())) == 3


def test_new_keys_are_apart_from_those_held() -> None:
    """The caches hold all keys but the last, one for each query; the call gets those."""
    inputs = inputs_of(features=["cache_write"])
    (_, keys, _), keywords = arguments(inputs)
    for item, length in enumerate(keywords["cache_lengths"].tolist()):
        pages = keywords["block_table"][item, : -(-length // 4)].long()
        own = torch.cat([keys[pages].flatten(0, 1)[:length], keywords["key"][item]])
        assert torch.equal(own, held(inputs, item))


@pytest.mark.parametrize("promises", [{}, {"queries": "varlen"}, {"queries": "single"}])
def test_reading_by_the_table_changes_nothing(promises: dict[str, Any]) -> None:
    """Misread as they should be read, the keys give the golden answer; read otherwise, another."""
    inputs = inputs_of(**promises)
    oracle = subject(**promises).oracle
    right = oracle.output(inputs)
    torch.testing.assert_close(oracle.output(misread(inputs)), right)
    assert not torch.allclose(oracle.output(read_whole_pages(inputs)), right)


def test_entries_behind_an_item_are_of_several_kinds() -> None:
    """None, a page of nobody and a page of another item."""
    stores = [inputs_of(seed).store for seed in range(20)]
    assert {store.tail for store in stores if store is not None} == {*TAILS}


def test_dense_caches_have_room_behind_their_keys() -> None:
    """The first slots of an item hold its keys; what is behind them is junk."""
    inputs = inputs_of(layout="BSHD", features=["cache_lengths"])
    (_, keys, _), keywords = arguments(inputs)
    for item, length in enumerate(keywords["cache_lengths"].tolist()):
        assert torch.equal(keys[item, :length], held(inputs, item))
        assert not bool(keys[item, length:].any())
        assert keys.shape[1] > length
