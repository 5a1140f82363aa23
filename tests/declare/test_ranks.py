"""What of each tensor a rank has, and what can be declared of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn.functional import scaled_dot_product_attention

import conformance
from conformance.base.geometry import FIELDS
from conformance.declare.promises import declare
from conformance.declare.ranks import Placed, Ranks

PLACES = [
    Placed(2),
    Placed(2, halves=2),
    Placed(1),
    Placed(0),
    Placed(),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_parts_make_up_the_whole(place: Placed, count: int, length: int) -> None:
    """Parts of any length, empty ones included, are of the shape that is said, and join again."""
    whole = torch.randn(2, 4, length, 3)
    parts = [place.part(whole, rank, count) for rank in range(count)]
    shapes = [place.part_shape(whole.shape, rank, count) for rank in range(count)]
    assert [tuple(part.shape) for part in parts] == shapes
    assert torch.equal(place.joined(parts, whole.shape), whole)


def test_parts_are_those_of_torch_chunk() -> None:
    """The last part is the short one, as ``torch.chunk`` and DTensor divide."""
    whole = torch.arange(10.0).reshape(1, 1, 10, 1)
    parts = [Placed(2).part(whole, rank, 4) for rank in range(4)]
    chunks = whole.chunk(4, dim=2)
    assert all(torch.equal(part, chunk) for part, chunk in zip(parts, chunks, strict=True))


def test_zigzag_pairs_the_front_with_the_end() -> None:
    """Of eight tokens the first of two ranks has the first two and the last two."""
    whole = torch.arange(8).reshape(1, 1, 8, 1)
    parts = [Placed(2, halves=2).part(whole, rank, 2).flatten().tolist() for rank in range(2)]
    assert parts == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_placements_of_torch_are_places() -> None:
    """``Shard`` divides its axis, ``Replicate`` nothing, and ``Partial`` answers are added up."""
    ranks = Ranks(2, query=Shard(1), key=Replicate(), output=Partial())
    assert ranks.places("query", "heads") == Placed(1)
    assert ranks.places("key", "heads") == Placed()
    parts = [torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)]
    assert ranks.places("output", "heads").joined(parts, (1, 1, 2, 2)).tolist() == [
        [[[2.0] * 2] * 2]
    ]


def test_a_broadcast_axis_of_a_mask_is_not_divided() -> None:
    """Rows of a mask go with their queries; a mask that has one row for all goes everywhere."""
    place = Ranks(2, mask="sequence").places("keep", "heads")
    assert place.part(torch.ones(1, 1, 4, 6), 1, 2).shape == (1, 1, 2, 6)
    assert place.part(torch.ones(1, 1, 1, 6), 1, 2).shape == (1, 1, 1, 6)


def test_heads_are_drawn_so_that_ranks_can_divide_them() -> None:
    """Numbers of heads are multiples of the ranks; other sizes only where that is declared."""
    sizes = conformance.Geometry(**dict.fromkeys(FIELDS, 3)).replace(num_heads=6)
    heads = Ranks(2, query="heads", key="heads", value="heads", output="heads").fitted(sizes)
    assert (heads.num_heads, heads.num_kv_heads, heads.query_length) == (8, 4, 3)
    shared = Ranks(4, query="heads", output="heads").fitted(sizes)
    assert (shared.num_heads, shared.num_kv_heads) == (8, 4)
    even = Ranks(2, query="zigzag", key="zigzag", even=True).fitted(sizes)
    assert (even.query_length, even.key_length, even.num_heads) == (4, 4, 6)


@pytest.mark.parametrize(
    ("pinned", "drawn", "heads"),
    [
        ({"num_heads": 4}, (4, 1), (4, 2)),
        ({"num_heads": 4, "num_kv_heads": [1, 2, 4]}, (4, 4), (4, 4)),
        ({"num_kv_heads": 2}, (6, 2), (6, 2)),
        ({"num_heads": [3, 6]}, (6, 3), (6, 6)),
    ],
)
def test_pinned_heads_stay_where_ranks_divide_them(
    pinned: dict[str, Any], drawn: tuple[int, int], heads: tuple[int, int]
) -> None:
    """A candidate that takes four heads is called with four, whatever the groups become."""
    places = dict.fromkeys(("query", "key", "value", "output"), "heads")
    pins = declare("core", features=["gqa"], geometry=pinned, ranks=Ranks(2, **places)).pins
    sizes = conformance.Geometry(**dict.fromkeys(FIELDS, 1))
    fitted = pins.apply(sizes.replace(num_heads=drawn[0], num_kv_heads=drawn[1]))
    assert (fitted.num_heads, fitted.num_kv_heads) == heads


@pytest.mark.parametrize(
    ("geometry", "places", "sentence"),
    [
        ({"num_heads": 3}, {"query": "heads"}, "pins num_heads to [3], but ranks divides it"),
        ({"num_kv_heads": [1, 3]}, {"key": "heads"}, "give a multiple of 2"),
        ({"query_length": 5}, {"query": "sequence", "even": True}, "pins query_length to [5]"),
    ],
)
def test_pins_that_ranks_cannot_divide_are_refused(
    geometry: dict[str, Any], places: dict[str, Any], sentence: str
) -> None:
    """They were called with other sizes than they pin."""
    with pytest.raises(conformance.DeclarationError) as refusal:
        declare("core", geometry=geometry, ranks=Ranks(2, **places))
    assert sentence in str(refusal.value)


def declared(**places: Any) -> Any:
    """The declaration of a core on two ranks."""
    return conformance.core(ranks=Ranks(2, **places))(scaled_dot_product_attention).declaration


@pytest.mark.parametrize("axis", [2, -2])
def test_a_placement_of_the_sequence_is_judged_as_its_word_is(axis: int) -> None:
    """``Shard(2)`` of a core is "sequence": the clauses about its parts apply, as for the word."""
    place = Shard(axis)
    ranks = declared(query=place, key=place, value=place, output=place).ranks
    assert ranks.divides_keys
    assert ranks.divides_queries
    assert (ranks.query, ranks.key, ranks.value, ranks.output) == ("sequence",) * 4
    assert not declared(query=Replicate(), output=Partial()).ranks.divides_queries


def test_a_placement_of_the_heads_is_given_heads_that_divide() -> None:
    """``Shard(1)`` of a core is "heads": their number is drawn as a multiple of the ranks'."""
    heads = declared(query=Shard(1), key=Shard(1), value=Shard(1), output=Shard(1))
    one = conformance.Geometry(**dict.fromkeys(FIELDS, 1))
    assert heads.pins.build(one).num_heads == heads.pins.build(one).num_kv_heads == 2
    tokens = Ranks(2, x=Shard(1)).in_words("tokens")
    assert tokens.divides_keys
    assert tokens.x == "sequence"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"count": 0}, "Ranks is given 0 ranks"),
        ({"count": 2, "query": "sequences"}, "did you mean 'sequence'?"),
        ({"count": 2, "query": Partial()}, "Partial() for the output alone"),
        ({"count": 2, "weights": "batch"}, "give 'replicated' or 'heads'"),
        ({"count": 2, "seconds": 0.0}, "the seconds that a call may take"),
        ({"count": 2, "seconds": True}, "the seconds that a call may take"),
        ({"count": 2, "even": "no"}, "even of Ranks is 'no': give True or False"),
        ({"count": 2, "mask": Shard(7)}, "but has 4 axes"),
    ],
)
def test_what_is_no_place_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    """A wrong place is one sentence that names it."""
    with pytest.raises(conformance.DeclarationError) as refusal:
        Ranks(**arguments)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("promises", "sentence"),
    [
        ({"ranks": 2}, "give a conformance.Ranks"),
        ({"ranks": Ranks(2), "features": ["dropout"]}, "the feature 'dropout' is judged in one"),
        ({"kind": "layer", "ranks": Ranks(2, x=Shard(3))}, "but has 3 axes"),
        ({"ranks": Ranks(2), "layout": "BSHD"}, "drop ranks, or the layout"),
        (
            {"ranks": Ranks(2, mask="sequence"), "masks": ["lengths"]},
            "place the mask by 'replicated' or 'batch', or drop 'lengths'",
        ),
    ],
)
def test_what_ranks_cannot_promise_is_refused(promises: dict[str, Any], sentence: str) -> None:
    """What only one process can show is refused where it is declared with ranks."""
    with pytest.raises(conformance.DeclarationError) as refusal:
        declare(**{"kind": "core", **promises})
    assert sentence in str(refusal.value)
