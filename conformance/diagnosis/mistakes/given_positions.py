"""Positions of the caller that are ignored, misread, or taken where places in memory count."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...declare.declaration import mixed_in
from ...problems.inputs import Inputs
from ._steps import has_cache
from .named_mistake import Edits, NamedMistake, fixing, named

Edit = golden.Edit
# The stages of positions, and the places in memory in front of them.
_QUERIES: Final = "query_places"
_KEYS: Final = "key_places"
# The numbers of rows of tables that positions may lie beyond.
_ROWS: Final = (1024, 512, 256, 128, 64, 32, 16, 8, 2048)


def is_placed(inputs: Inputs) -> bool:
    """Whether a call gives the positions of its tokens."""
    return inputs.positions is not None


def _caches_placed_keys(inputs: Inputs) -> bool:
    return is_placed(inputs) and has_cache(inputs)


def _goes_by_positions(point: golden.Semantics) -> bool:
    return mixed_in(point) is not None or point.causal_by == "positions"


def _changed(stage: str, change: Callable[..., Tensor], *more: str) -> golden.Edit:
    """A side whose positions are changed, with more that is read."""
    return Edit(stage, change=golden.Rewired(change, ("", *more)))


def _each(change: Callable[[Tensor], Tensor]) -> tuple[Edits, ...]:
    """Both sides changed, or one of them."""
    both = (_changed(_QUERIES, change), _changed(_KEYS, change))
    return both, both[:1], both[1:]


def _like(at: Tensor, positions: Tensor) -> Tensor:
    return positions.expand_as(at)


def _count_from_zero(at: Tensor) -> Tensor:
    return torch.arange(at.shape[-1]).expand_as(at)


def _sorted(at: Tensor) -> Tensor:
    return at.sort(dim=-1).values


def _close_gaps(at: Tensor) -> Tensor:
    back = torch.arange(at.shape[-1]) - at.shape[-1] + 1
    return (at[..., -1:] + back).clamp_min(0)


_QUERIES_IN_MEMORY: Final = _changed(_QUERIES, _like, "positions")
_KEYS_IN_MEMORY: Final = _changed(_KEYS, _count_from_zero)


def _angles_in_memory(at: Tensor, frequencies: Tensor) -> Tensor:
    return at.double()[..., None] * frequencies


# The angles alone, where causality goes by positions as well.
_TURNED_IN_MEMORY: Final = (
    Edit("query_angles", golden.Rewired(_angles_in_memory, ("positions", "frequencies"))),
    Edit(
        "key_angles",
        lambda key_places, frequencies: _angles_in_memory(
            _count_from_zero(key_places), frequencies
        ),
    ),
)


def _last_at(at: Tensor, others: Tensor) -> Tensor:
    """The last tokens at the positions of the last of the other side."""
    count = min(at.shape[-1], others.shape[-1])
    return torch.cat([at[..., : at.shape[-1] - count], others[..., others.shape[-1] - count :]], -1)


def _first_at(at: Tensor, others: Tensor) -> Tensor:
    """The first tokens at the positions of the first of the other side."""
    count = min(at.shape[-1], others.shape[-1])
    return torch.cat([others[..., :count], at[..., count:]], dim=-1)


def _more_keys_added(at: Tensor, sizes: golden.Sizes) -> Tensor:
    return at + (sizes.key_length - sizes.query_length)


def _cached_added(at: Tensor, past: int) -> Tensor:
    return at + past


def _new_again(at: Tensor, past: int) -> Tensor:
    new = at[..., past:]
    return torch.cat([new[..., torch.arange(past) % new.shape[-1]], new], dim=-1)


def _padding_added(at: Tensor, keys: Tensor) -> Tensor:
    """Positions behind the keys at position 0, of which the last is the first token."""
    return at + ((keys == 0).sum(dim=-1, keepdim=True) - 1).clamp_min(0)


def _no_further(at: Tensor, *, rows: int) -> Tensor:
    return at.clamp_max(rows - 1)


_FOLLOW: Final = "place each query and key by the positions of its own item that the call gives"
_ONCE: Final = "the positions of a call include every offset: add none to them, and take none off"
_COUNTED: Final = {"base": {"rotary": "halves"}, "fits": _goes_by_positions, "where": is_placed}
_placed: Final = fixing(_FOLLOW, primary="position.given", **_COUNTED)


def _sees_by(name: str, sentence: str, fix: str, **ways: Any) -> list[NamedMistake]:
    return named(name, "position.given", where=is_placed)(sentence, fix, ways)


GIVEN_POSITIONS: Final[tuple[NamedMistake, ...]] = (
    *fixing(
        _FOLLOW,
        primary="position.given",
        base={"rotary": "halves"},
        fits=lambda point: mixed_in(point) is not None,
        where=is_placed,
    )("positions-ignored")(
        "the positions of the call are ignored: tokens are counted in memory",
        (_QUERIES_IN_MEMORY, _KEYS_IN_MEMORY),
        (_changed(_QUERIES, _count_from_zero), _KEYS_IN_MEMORY),
        _TURNED_IN_MEMORY,
    ),
    *_placed("positions-of-queries-ignored")(
        "queries are counted in memory: their positions are ignored",
        _QUERIES_IN_MEMORY,
        _changed(_QUERIES, _count_from_zero),
    ),
    *_placed("positions-of-keys-ignored")(
        "keys are counted in memory: their positions are ignored",
        _KEYS_IN_MEMORY,
    ),
    *_placed("positions-of-first-item")(
        "the positions of the first item are those of all",
        *_each(lambda at: at[:1].expand_as(at)),
    ),
    *_placed("positions-of-queries-for-keys")(
        "keys stand at the positions of the queries",
        _changed(_KEYS, _last_at, _QUERIES),
        _changed(_KEYS, _first_at, _QUERIES),
    ),
    *_placed("positions-of-keys-for-queries")(
        "queries stand at the positions of the keys",
        _changed(_QUERIES, _last_at, _KEYS),
        _changed(_QUERIES, _first_at, _KEYS),
    ),
    *_placed("positions-offset-twice", fix=_ONCE)(
        "an offset is added to positions that include it",
        *_each(lambda at: at + at[..., :1]),
    ),
    *_placed("positions-from-the-first", fix=_ONCE)(
        "positions are counted from that of the first token of their side",
        *_each(lambda at: at - at[..., :1]),
    ),
    *_placed("positions-behind-the-cache", fix=_ONCE)(
        "the number of earlier keys is added to positions of queries that include it",
        _changed(_QUERIES, _more_keys_added, "sizes"),
        _changed(_QUERIES, _cached_added, "past"),
    ),
    *fixing(
        "place cached keys by their own positions, which come before those of the new keys",
        primary="position.given",
        base={"rotary": "halves"},
        fits=_goes_by_positions,
        where=_caches_placed_keys,
    )("positions-of-new-keys-for-cached")(
        "cached keys stand at the positions of the new ones",
        _changed(_KEYS, _new_again, "past"),
    ),
    *fixing(
        "make the table of positions as long as the largest position, or refuse what lies beyond",
        primary="position.offset-invariant",
        **_COUNTED,
    )("positions-clipped")(
        "positions past the end of a table are taken for its last",
        *(edits for rows in _ROWS for edits in _each(partial(_no_further, rows=rows))),
    ),
    *fixing(
        "place the key of each slot by its own position, whatever the order of the slots",
        primary="position.ring",
        **_COUNTED,
    )("positions-of-a-ring-in-order")(
        "the positions of the keys are put in order, though the keys are those of a ring",
        _changed(_KEYS, _sorted),
    ),
    *fixing(
        "keep the positions of the call: keys that were evicted leave a gap",
        primary="position.evicted",
        **_COUNTED,
    )("positions-without-gaps")(
        "positions of keys are counted back from the last, without the gaps of evicted keys",
        _changed(_KEYS, _close_gaps),
    ),
    *fixing(
        "count positions from the first token of an item, not from its padding",
        primary="position.left-padding",
        **_COUNTED,
    )("positions-count-padding")(
        "the padding in front of an item is counted in the positions of its queries",
        _changed(_QUERIES, _padding_added, _KEYS),
    ),
    *_sees_by(
        "causal-by-positions",
        "causality and window compare positions, though places in memory are declared",
        "compare places in memory: the last query stands at the last key; or declare "
        "causal_by='positions'",
        base={"rotary": "halves"},
        fits=lambda point: point.causal_by == "places" and mixed_in(point) is not None,
        changes={"causal_by": "positions"},
    ),
    *_sees_by(
        "causal-by-places",
        "causality and window compare places in memory, though positions are declared",
        "compare the positions of the call: a key is seen up to the query's own",
        base={"causal_by": "positions"},
        changes={"causal_by": "places"},
    ),
)
