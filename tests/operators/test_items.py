"""What a call may read of its items otherwise: tables, first keys, lengths."""

from __future__ import annotations

import pytest
import torch

from conformance.operators import items
from conformance.problems.paging import KeyStore, packed_slots, slots

QUERIES, LENGTHS = torch.tensor([1, 2, 3]), torch.tensor([4, 0, 5])
PAGED = slots(KeyStore(page_size=2, seed=1), QUERIES, LENGTHS, 5, torch.zeros(3, 3).long())
DENSE = slots(KeyStore(page_size=0, seed=1), QUERIES, LENGTHS, 5, torch.zeros(3, 3).long())
PACKED = packed_slots(QUERIES, LENGTHS)


@pytest.mark.parametrize("at", [PAGED, DENSE, PACKED], ids=["pages", "caches", "sequences"])
def test_numbers_of_items_are_one_for_each(at: items.Items) -> None:
    """Each operator on numbers answers one whole number an item, wherever the keys lie."""
    for numbers in (items.LENGTHS, items.BY_SIZES, items.STARTS, items.STARTS_BY_SIZES):
        for words, change in numbers.items():
            changed = change(at)
            assert (changed.shape, changed.is_floating_point()) == (LENGTHS.shape, False), words
    for words, keys in {**items.KEYS, **items.KEYS_BY_SIZES}.items():
        assert keys(at).shape == (2, *LENGTHS.shape), words
    for words, kind in items.KINDS.items():
        assert (kind(at).shape, kind(at).dtype) == (LENGTHS.shape, torch.bool), words


def test_tables_have_the_shape_of_the_right_one() -> None:
    """Each operator on pages answers a table of as many pages an item."""
    for words, change in items.TABLES.items():
        assert change(PAGED).shape == PAGED.table.shape, words


def test_lengths_say_what_they_are() -> None:
    """A few lengths in numbers: of pages, of neighbours, of queries, and up to the table's end."""
    said = {
        "that of all items up to it": [4, 4, 9],
        "the number of its queries": [1, 2, 3],
        "that of the batch item after": [0, 5, 4],
        "one fewer, but at least one": [3, 0, 4],
    }
    assert {words: items.LENGTHS[words](PACKED).tolist() for words in said} == said
    assert items.LENGTHS["a page more"](PAGED).tolist() == [6, 2, 7]
    cut = items.LENGTHS["a page more, as far as the table names pages"](PAGED)
    assert cut.tolist() == [4, 0, 6]
    assert items.STARTS["where its queries begin"](PACKED).tolist() == [0, 1, 3]
