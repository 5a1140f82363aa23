"""Masks, lengths and windows lost, inverted, misread, misplaced or of another width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import has_window, places_ahead, require
from .named_mistake import Edits, Entries, NamedMistake, Where, changed, edits_by, named

Edit = golden.Edit
_FORMS: Final = ("keep", "drop", "keep_int", "lengths")
_BOOLEAN: Final = ("keep", "drop", "keep_int")


def _has_form(*forms: str) -> Where:
    return lambda inputs: inputs.mask_form in forms


def _tables(change: Callable[..., Tensor]) -> Edits:
    """Change kept keys and a finite bias alike, each a table ``[b, h, q, Lk]``."""
    return changed(change, "keep", "given_bias")


def _kept(change: Callable[..., Tensor]) -> golden.Edit:
    return Edit("keep", change=change)


def _first_kept_of(axis: int) -> golden.Edit:
    """Use the first table along an axis; an additive mask keeps its minus infinities as well."""

    def change(keep: Tensor, inputs: Inputs) -> Tensor:
        first = keep.narrow(axis, 0, 1)
        return keep & first if inputs.mask_form == "bias" else first

    return _kept(change)


def _use_first(place: str, axis: int, clause: str) -> Entries:
    """Use the first mask along an axis for all, for a bias the whole mask or its table alone."""
    head = named(f"mask-of-first-{place.removeprefix('batch ')}", clause)
    ways = edits_by(f"those of the first {place}", "keep", "given_bias"), _first_kept_of(axis)
    return lambda sentence, fix: head(sentence, fix, *ways)


def _turned(table: Tensor) -> Tensor:
    require(table.shape[-2] in (1, table.shape[-1]))
    return table.transpose(-1, -2)


def _square(inputs: Inputs) -> bool:
    return inputs.geometry.query_length == inputs.geometry.key_length


def _turn_to_queries(keep: Tensor) -> Tensor:
    return keep.transpose(-1, -2) if keep.shape[-2] == 1 else keep


def _hide_queries_too(keep: Tensor) -> Tensor:
    return keep & _turn_to_queries(keep)


def _has_several(inputs: Inputs) -> bool:
    return inputs.geometry.batch > 1 and inputs.geometry.num_heads > 1


def _folded(order: Callable[[Tensor, int, int], Tensor]) -> Edits:
    """Misalign the batch axis of a table with heads that are folded into the batch.

    ``order`` gives the item whose table each of ``B * H`` entries reads.
    """

    def change(table: Tensor, inputs: Inputs) -> Tensor:
        if table.shape[0] == 1:
            return table
        batch, count = inputs.geometry.batch, inputs.geometry.num_heads
        items = order(torch.arange(batch * count), batch, count).reshape(batch, count)
        heads = torch.arange(count) if table.shape[1] > 1 else torch.zeros_like(items[0])
        return table[items, heads.expand_as(items)]

    return _tables(change)


def _batch_on_heads(table: Tensor, inputs: Inputs) -> Tensor:
    if table.shape[0] == 1 or table.shape[1] != 1:
        return table
    heads = torch.arange(inputs.geometry.num_heads)
    return table.transpose(0, 1)[:, heads % table.shape[0]]


def _first_head_only(*, headless: bool) -> Edits:
    def change(table: Tensor, inputs: Inputs) -> Tensor:
        nothing = 1.0 if table.dtype == torch.bool else 0.0
        others = torch.arange(inputs.geometry.num_heads) > 0
        return table.masked_fill(others.reshape(1, -1, 1, 1), nothing)

    def is_made(inputs: Inputs) -> bool:
        keep = inputs.keep
        return not (headless and keep is not None and keep.shape[1] > 1)

    return changed(change, "keep", "given_bias", when=is_made)


def _share_in_group(table: Tensor, inputs: Inputs, point: golden.Semantics) -> Tensor:
    read = inputs.read_heads(point)
    return table[:, (read == read[:, None]).int().argmax(dim=-1)] if table.shape[1] > 1 else table


def _rows_refilled(keep: Tensor) -> Tensor:
    return keep | ~keep.any(dim=-1, keepdim=True)


def _all_if_any_empty(keep: Tensor) -> Tensor:
    return torch.ones_like(keep) if bool((~keep.any(dim=-1)).any()) else keep


_NO_TABLE: Final = Edit("keep", lambda: None)
_NO_BIAS: Final = Edit("given_bias", lambda: None)


MASKING: Final[tuple[NamedMistake, ...]] = (
    *named("mask-ignored", "mask.no-leak")(
        "the mask is ignored",
        "apply it before the softmax, and keep what masked_fill returns",
        {"edits": (_NO_TABLE,), "where": _has_form(*_FORMS, "bias")},
        {"edits": (_NO_TABLE, _NO_BIAS), "where": _has_form(*_FORMS, "bias")},
        {"edits": (_NO_TABLE,), "where": _has_form(*_FORMS)},
    ),
    *(
        mistake
        for form, words in (
            ("keep", "the boolean mask"),
            ("drop", "the mask of what to drop"),
            ("keep_int", "the integer mask"),
            ("lengths", "the lengths"),
        )
        for mistake in named(
            f"{form.replace('_', '-')}-ignored",
            "mask.forms-agree",
            special_of="mask-ignored",
            where=_has_form(form),
        )(
            f"{words} (`{form}`) has no effect" if form != "lengths" else f"{words} are ignored",
            "apply it before the softmax",
            _NO_TABLE,
        )
    ),
    *named("mask-inverted", "mask.golden")(
        "the mask is read with the opposite polarity: what it hides is attended",
        "invert the mask where it is applied",
        *(
            {"edits": (_kept(torch.logical_not),), "where": _has_form(*forms)}
            for forms in (_BOOLEAN, _FORMS)
        ),
    ),
    *(
        mistake
        for form, words in (
            ("keep", "True in `keep` is taken for ignore"),
            ("drop", "True in `drop` is taken for attend"),
            ("keep_int", "ones in `keep_int` are taken for ignore"),
            ("lengths", "keys before the length are ignored and those past it attended"),
        )
        for mistake in named(
            f"{form.replace('_', '-')}-inverted",
            "mask.forms-agree",
            special_of="mask-inverted",
            where=_has_form(form),
        )(
            f"{words}; the other forms are read rightly",
            "invert the mask where it is applied",
            _kept(torch.logical_not),
        )
    ),
    *_use_first("batch item", 0, "mask.per-item")(
        "the mask of the first batch item is used for all",
        "broadcast the mask along its own batch axis",
    ),
    *_use_first("head", 1, "mask.per-head")(
        "the mask of the first head is used for all",
        "broadcast the mask along its own head axis",
    ),
    *named("mask-of-first-head-of-group", "mask.golden", special_of="mask-of-first-head")(
        "query heads that share a key/value head obey the mask of the first of them",
        "let each query head obey its own mask",
        _tables(_share_in_group),
    ),
    *_use_first("query", 2, "mask.golden")(
        "the mask of the first query is used for all, as if it were a padding mask",
        "keep the query axis of the mask",
    ),
    *named("mask-batch-on-heads", "mask.per-item")(
        "the batch axis of the mask is broadcast over the heads",
        "insert the head axis: mask[:, None]",
        _tables(_batch_on_heads),
    ),
    *named(
        "mask-repeated-for-heads",
        "mask.per-item",
        special_of="mask-batch-on-heads",
        where=_has_several,
    )(
        "with heads folded into the batch, the mask is repeated in the wrong order",
        "use repeat_interleave(heads, dim=0) where the heads of an item follow each other",
        _folded(lambda index, batch, _heads: index % batch),
        _folded(lambda index, batch, heads: (index % heads * batch + index // heads) // heads),
    ),
    *named("mask-only-for-first-head", "mask.golden")(
        "the mask is applied to the first head only",
        "broadcast it over all heads",
        _first_head_only(headless=True),
        _first_head_only(headless=False),
    ),
    *named("mask-transposed", "mask.golden", where=_square)(
        "queries and keys of the mask are swapped",
        "the last axis of a mask is that of the keys",
        _tables(_turned),
    ),
    *named("mask-hides-queries", "mask.broadcast", where=_square)(
        "a mask of keys is applied to the queries where there are as many",
        "put it along the last axis of the scores: mask[:, None, None, :]",
        _kept(_turn_to_queries),
        _kept(_hide_queries_too),
    ),
    *(
        mistake
        for number, state, reduce in (
            ("all-items", "hidden", torch.all),
            ("any-item", "kept", torch.any),
        )
        for mistake in named(f"mask-of-{number}", "equivariance.batch-independent")(
            f"a key that is {state} in one batch item is {state} in all",
            "let each item have its own mask",
            _kept(partial(reduce, dim=0, keepdim=True)),
        )
    ),
    *named("mask-flipped", "mask.golden", where=_has_form(*_BOOLEAN, "bias"))(
        "the mask is read from the last key to the first",
        "leave the order of the keys as it is",
        edits_by("those of the key counted from the end", "keep", "given_bias"),
    ),
    *named("mask-shifted", "mask.golden")(
        "the mask is applied one key beside its own",
        "entry j of the mask belongs to key j",
        edits_by("those of the key before", "keep", "given_bias"),
        edits_by("those of the key after", "keep", "given_bias"),
    ),
    *named("mask-ignored-when-a-row-is-empty", "mask.empty-row")(
        "a mask that leaves some row without keys is ignored as a whole",
        "apply it, and answer such rows by their rule",
        _kept(_all_if_any_empty),
    ),
    *named("empty-rows-unmasked", "mask.empty-row")(
        "a row whose keys are all hidden attends all of them",
        "fill with minus infinity and set the weights of such a row to zero",
        _kept(_rows_refilled),
    ),
)


def _lengths(name: str, clause: str, **shared: Any) -> Entries:
    """Head an entry with changed lengths ``[b, 1, q, 1]``."""

    def kept(change: Callable[[Tensor], Tensor]) -> golden.Edit:
        return _kept(lambda keep: torch.arange(keep.shape[-1]) < change(_number(keep)))

    head = named(name, clause, where=_has_form("lengths"), **shared)
    return lambda sentence, fix, *changes: head(sentence, fix, *map(kept, changes))


def _number(keep: Tensor) -> Tensor:
    return keep.sum(dim=-1, keepdim=True)


def _rounded_up(lengths: Tensor, tile: int) -> Tensor:
    return (lengths + tile - 1) // tile * tile


def _choose_one(lengths: Tensor, chosen: Callable[..., Tensor]) -> Tensor:
    return chosen(lengths).expand_as(lengths)


LENGTHS: Final[tuple[NamedMistake, ...]] = (
    *_lengths("lengths-inclusive", "mask.forms-agree")(
        "the key at the length itself is still attended",
        "compare with <, not with <=",
        lambda lengths: lengths + 1,
    ),
    *_lengths("lengths-one-short", "mask.forms-agree")(
        "the last key before the length is hidden",
        "keys 0 to length - 1 are attended",
        lambda lengths: lengths - 1,
    ),
    *_lengths("lengths-at-least-one", "mask.empty-row", special_of="empty-rows-first-value")(
        "an item of length 0 attends its first key",
        "take lengths as they are, and write zeros for queries without keys",
        lambda lengths: lengths.clamp_min(1),
    ),
    *_lengths("lengths-rounded-up", "mask.forms-agree")(
        "lengths are rounded up to a whole tile of 8, 16 or 32 keys",
        "mask the rest of the last tile, too",
        *(partial(_rounded_up, tile=tile) for tile in (8, 16, 32)),
    ),
    *named("lengths-from-the-end", "mask.forms-agree", where=_has_form("lengths"))(
        "lengths are counted from the last key, as if the padding came first",
        "keep the first keys",
        edits_by("those of the key counted from the end", "keep"),
    ),
    *(
        mistake
        for name, chosen in (("longest", torch.amax), ("shortest", torch.amin))
        for mistake in _lengths(f"lengths-of-the-{name}", "mask.per-item")(
            f"the {name} of the lengths is used for all",
            "compare each item with its own length",
            partial(_choose_one, chosen=chosen),
        )
    ),
)
_window: Final = partial(named, primary="mask.golden", where=has_window)


def _rewindowed(change: Callable[[int, int], tuple[int, int]]) -> golden.Edit:
    return Edit("window", change=lambda window: change(*window))


def _window_at(side: str, *, bottom_right: bool) -> golden.Edit:
    def admitted(window: tuple[int, int], ahead: Tensor, sizes: golden.Sizes) -> Tensor:
        (left, right), moved = window, places_ahead(sizes, bottom_right=bottom_right)
        first = ahead if side == "right" else moved
        last = ahead if side == "left" else moved
        return ((first >= -left) | (left < 0)) & ((last <= right) | (right < 0))

    return Edit("by_window", admitted)


def _placed_elsewhere(
    name: str, place: str, special_of: str, *, bottom_right: bool
) -> list[NamedMistake]:
    words = {"": "the window", "left": "the left side of the window"}
    words["right"] = "the right side of the window"
    return _window(name, special_of=special_of)(
        "",
        "align the diagonal as declared",
        *(
            {
                "sentence": f"{said} is placed as if {place}",
                "edits": (_window_at(side, bottom_right=bottom_right),),
            }
            for side, said in words.items()
        ),
    )


def _narrower(*, right: bool) -> golden.Edit:
    """Show one key fewer on a side, as if a window of n keys included the query's own."""

    def change(by_window: Tensor, ahead: Tensor, window: tuple[int, int]) -> Tensor:
        return by_window & ((ahead < window[1]) if right else (ahead > -window[0]))

    return Edit("by_window", change=change, when=lambda window: window[right] >= 0)


_IGNORED: Final = "hide the keys outside of it"
WINDOWS: Final[tuple[NamedMistake, ...]] = (
    *_window("window-ignored")(
        "the window is ignored",
        _IGNORED,
        Edit("window", lambda: None),
    ),
    *_window("window-one-wider")(
        "the window shows one key more before the query than asked for",
        "a window of n shows n keys before the query's own place and n after",
        _rewindowed(lambda left, right: (left + (left >= 0), right)),
        {
            "sentence": "the window shows one key more after the query than asked for",
            "edits": (_rewindowed(lambda left, right: (left, right + (right >= 0))),),
        },
        {
            "sentence": "the window shows one key more than asked for on both sides of the query",
            "changes": {"window_offset": 1},
        },
    ),
    *_window("window-one-narrower")(
        "the window shows one key fewer before the query than asked for",
        "a window of n shows n keys beside the query's own",
        _narrower(right=False),
        _rewindowed(lambda left, right: (left - (left > 0), right)),
        {
            "sentence": "the window shows one key fewer after the query than asked for",
            "edits": (_narrower(right=True),),
        },
        {
            "sentence": "the window shows one key fewer than asked for on both sides of the query",
            "changes": {"window_offset": -1},
        },
    ),
    *_window("window-sides-swapped")(
        "the left and right sides of the window are swapped",
        "window=(left, right): keys before the query's place, and after",
        _rewindowed(lambda left, right: (right, left)),
    ),
    *_window("window-left-ignored", special_of="window-ignored")(
        "the left side of the window is ignored",
        _IGNORED,
        _rewindowed(lambda _left, right: (-1, right)),
    ),
    *_window("window-right-ignored", special_of="window-ignored")(
        "the right side of the window is ignored",
        _IGNORED,
        _rewindowed(lambda left, _right: (left, -1)),
    ),
    *_placed_elsewhere(
        "window-top-left",
        "the first query stood at the first key",
        "causal-top-left",
        bottom_right=False,
    ),
    *_placed_elsewhere(
        "window-bottom-right",
        "the last query stood at the last key",
        "causal-bottom-right",
        bottom_right=True,
    ),
)
