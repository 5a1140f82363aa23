"""Masks, lengths and windows lost, inverted, misread, placed elsewhere, or of another width."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import changed, has_window, keys_ahead, rekept, relogited, remasked, require
from .named_mistake import DeclaredCall, InputsChange, NamedMistake, named

_FORMS: Final = ("keep", "drop", "keep_int", "lengths")
_BOOLEAN: Final = ("keep", "drop", "keep_int")


def _first_of(axis: int) -> Callable[[Tensor], Tensor | None]:
    return lambda table: table.narrow(axis, 0, 1) if table.shape[axis] > 1 else None


def _first_kept_of(axis: int) -> Callable[[Inputs, Tensor], Tensor | None]:
    """The minus infinities of an additive mask are added as well, each where it belongs."""

    def change(inputs: Inputs, keep: Tensor) -> Tensor | None:
        first = _first_of(axis)(keep)
        return keep & first if inputs.mask_form == "bias" and first is not None else first

    return change


def _turned(table: Tensor) -> Tensor:
    """Queries and keys of a table swapped."""
    require(table.shape[-2] in (1, table.shape[-1]))
    return table.transpose(-1, -2)


def _square(inputs: Inputs) -> bool:
    return inputs.geometry.query_length == inputs.geometry.key_length


def _on_queries(inputs: Inputs, keep: Tensor) -> Tensor | None:
    return keep.transpose(-1, -2) if keep.shape[-2] == 1 and _square(inputs) else None


def _on_queries_too(inputs: Inputs, keep: Tensor) -> Tensor | None:
    turned = _on_queries(inputs, keep)
    return None if turned is None else keep & turned


def _folded(order: Callable[[Tensor, int, int], Tensor]) -> InputsChange:
    """The batch axis of a table meets the heads wrongly, as when heads are folded into the batch.

    ``order`` gives the item whose table each of ``B * H`` entries reads.
    """

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        sizes = call.inputs.geometry
        batch, heads = sizes.batch, sizes.num_heads
        if batch == 1 or heads == 1:
            return None
        items = order(torch.arange(batch * heads), batch, heads).reshape(batch, heads)
        return remasked(lambda table: _reread(table, items))(call)

    return inputs_for


def _reread(table: Tensor, items: Tensor) -> Tensor | None:
    if table.shape[0] == 1:
        return None
    heads = torch.arange(items.shape[1]) if table.shape[1] > 1 else torch.zeros_like(items[0])
    return table[items, heads.expand_as(items)]


def _batch_on_heads(table: Tensor, heads: int) -> Tensor | None:
    if table.shape[0] == 1 or table.shape[1] != 1:
        return None
    return table.transpose(0, 1)[:, torch.arange(heads) % table.shape[0]]


def _on_heads(call: DeclaredCall) -> Inputs | None:
    heads = call.inputs.geometry.num_heads
    return remasked(lambda table: _batch_on_heads(table, heads))(call)


def _first_head_only(*, headless: bool) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        heads = inputs.geometry.num_heads
        if not inputs.masked or heads == 1:
            return None
        if headless and inputs.keep is not None and inputs.keep.shape[1] > 1:
            return None
        others = (torch.arange(heads) > 0).reshape(1, -1, 1, 1)
        keep = None if inputs.keep is None else inputs.keep | others
        bias = None if inputs.bias is None else inputs.bias.masked_fill(others, 0.0)
        return inputs.replace(keep=keep, bias=bias)

    return inputs_for


def _of_the_group(call: DeclaredCall) -> Inputs | None:
    """Query heads that share a key/value head obey the mask of the first of them."""
    sizes = call.inputs.geometry
    if sizes.num_heads == sizes.num_kv_heads:
        return None
    read = call.inputs.read_heads(call.semantics)
    first = (read == read[:, None]).int().argmax(dim=-1)
    return remasked(lambda table: table[:, first] if table.shape[1] > 1 else None)(call)


def _rows_refilled(inputs: Inputs, keep: Tensor) -> Tensor | None:
    """Rows without any key of the mask see all."""
    del inputs
    empty = ~keep.any(dim=-1, keepdim=True)
    return keep | empty if bool(empty.any()) else None


def _all_if_any_empty(_inputs: Inputs, keep: Tensor) -> Tensor | None:
    return torch.ones_like(keep) if bool((~keep.any(dim=-1)).any()) else None


def _flipped(table: Tensor) -> Tensor:
    return table.flip(-1)


def _inverted(_inputs: Inputs, keep: Tensor) -> Tensor:
    return ~keep


def _without_mask(forms: tuple[str, ...], *, bias_too: bool = False) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.mask_form not in forms:
            return None
        return inputs.replace(keep=None, bias=None if bias_too else inputs.bias)

    return inputs_for


def _shared(reduce: Callable[..., Tensor]) -> Callable[[Tensor], Tensor | None]:
    """One table for all batch items; a bias has none that they could share."""

    def change(table: Tensor) -> Tensor | None:
        return (
            reduce(table, dim=0, keepdim=True)
            if table.dtype == torch.bool and table.shape[0] > 1
            else None
        )

    return change


MASKING: Final[tuple[NamedMistake, ...]] = (
    *named("mask-ignored", "mask.no-leak")(
        "the mask is ignored",
        "apply it before the softmax, and keep what masked_fill returns",
        {"inputs": _without_mask((*_FORMS, "bias"))},
        {"inputs": _without_mask((*_FORMS, "bias"), bias_too=True)},
        {"inputs": _without_mask(_FORMS)},
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
            f"{form.replace('_', '-')}-ignored", "mask.forms-agree", special_of="mask-ignored"
        )(
            f"{words} (`{form}`) has no effect" if form != "lengths" else f"{words} are ignored",
            "apply it before the softmax",
            {"inputs": _without_mask((form,))},
        )
    ),
    *named("mask-inverted", "mask.golden")(
        "the mask is read with the opposite polarity: what it hides is attended",
        "invert the mask where it is applied",
        {"inputs": rekept(_inverted, forms=_BOOLEAN)},
        {"inputs": rekept(_inverted, forms=_FORMS)},
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
            f"{form.replace('_', '-')}-inverted", "mask.forms-agree", special_of="mask-inverted"
        )(
            f"{words}; the other forms are read rightly",
            "invert the mask where it is applied",
            {"inputs": rekept(_inverted, forms=(form,))},
        )
    ),
    *named("mask-of-first-item", "mask.per-item")(
        "the mask of the first batch item is used for all",
        "broadcast the mask along its own batch axis",
        {"inputs": remasked(_first_of(0))},
        {"inputs": rekept(_first_kept_of(0))},
    ),
    *named("mask-of-first-head", "mask.per-head")(
        "the mask of the first head is used for all",
        "broadcast the mask along its own head axis",
        {"inputs": remasked(_first_of(1))},
        {"inputs": rekept(_first_kept_of(1))},
    ),
    *named("mask-of-first-head-of-group", "mask.golden", special_of="mask-of-first-head")(
        "query heads that share a key/value head obey the mask of the first of them",
        "let each query head obey its own mask",
        {"inputs": _of_the_group},
    ),
    *named("mask-of-first-query", "mask.golden")(
        "the mask of the first query is used for all, as if it were a padding mask",
        "keep the query axis of the mask",
        {"inputs": remasked(_first_of(2))},
        {"inputs": rekept(_first_kept_of(2))},
    ),
    *named("mask-batch-on-heads", "mask.per-item")(
        "the batch axis of the mask is broadcast over the heads",
        "insert the head axis: mask[:, None]",
        {"inputs": _on_heads},
    ),
    *named("mask-repeated-for-heads", "mask.per-item", special_of="mask-batch-on-heads")(
        "with heads folded into the batch, the mask is repeated in the wrong order",
        "use repeat_interleave(heads, dim=0) where the heads of an item follow each other",
        {"inputs": _folded(lambda index, batch, _heads: index % batch)},
        {
            "inputs": _folded(
                lambda index, batch, heads: (index % heads * batch + index // heads) // heads
            )
        },
    ),
    *named("mask-only-for-first-head", "mask.golden")(
        "the mask is applied to the first head only",
        "broadcast it over all heads",
        {"inputs": _first_head_only(headless=True)},
        {"inputs": _first_head_only(headless=False)},
    ),
    *named("mask-transposed", "mask.golden")(
        "queries and keys of the mask are swapped",
        "the last axis of a mask is that of the keys",
        {"inputs": remasked(_turned, where=_square)},
    ),
    *named("mask-hides-queries", "mask.broadcast")(
        "a mask of keys is applied to the queries where there are as many",
        "put it along the last axis of the scores: mask[:, None, None, :]",
        {"inputs": rekept(_on_queries)},
        {"inputs": rekept(_on_queries_too)},
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
            {"inputs": remasked(_shared(reduce))},
        )
    ),
    *named("mask-flipped", "mask.golden")(
        "the mask is read from the last key to the first",
        "leave the order of the keys as it is",
        {"inputs": remasked(_flipped, forms=(*_BOOLEAN, "bias"))},
    ),
    *named("mask-shifted", "mask.golden")(
        "the mask is applied one key beside its own",
        "entry j of the mask belongs to key j",
        {"inputs": remasked(lambda table: table.roll(1, -1))},
        {"inputs": remasked(lambda table: table.roll(-1, -1))},
    ),
    *named("mask-ignored-when-a-row-is-empty", "mask.empty-row")(
        "a mask that leaves some row without keys is ignored as a whole",
        "apply it, and answer such rows by their rule",
        {"inputs": rekept(_all_if_any_empty)},
    ),
    *named("empty-rows-unmasked", "mask.empty-row")(
        "a row whose keys are all hidden attends all of them",
        "fill with minus infinity and set the weights of such a row to zero",
        {"inputs": rekept(_rows_refilled)},
    ),
)


def _lengths(change: Callable[[Tensor], Tensor]) -> InputsChange:
    """Other lengths ``[b, 1, q, 1]`` than those that are given."""

    def keep_of(_inputs: Inputs, keep: Tensor) -> Tensor:
        return torch.arange(keep.shape[-1]) < change(keep.sum(dim=-1, keepdim=True))

    return rekept(keep_of, forms=("lengths",))


def _rounded_up(lengths: Tensor, tile: int) -> Tensor:
    return (lengths + tile - 1) // tile * tile


def _of_one(lengths: Tensor, chosen: Callable[..., Tensor]) -> Tensor:
    return chosen(lengths).expand_as(lengths)


LENGTHS: Final[tuple[NamedMistake, ...]] = (
    *named("lengths-inclusive", "mask.forms-agree")(
        "the key at the length itself is still attended",
        "compare with <, not with <=",
        {"inputs": _lengths(lambda lengths: lengths + 1)},
    ),
    *named("lengths-one-short", "mask.forms-agree")(
        "the last key before the length is hidden",
        "keys 0 to length - 1 are attended",
        {"inputs": _lengths(lambda lengths: lengths - 1)},
    ),
    *named("lengths-at-least-one", "mask.empty-row", special_of="empty-rows-first-value")(
        "an item of length 0 attends its first key",
        "take lengths as they are, and write zeros for queries without keys",
        {"inputs": _lengths(lambda lengths: lengths.clamp_min(1))},
    ),
    *named("lengths-rounded-up", "mask.forms-agree")(
        "lengths are rounded up to a whole tile of 8, 16 or 32 keys",
        "mask the rest of the last tile, too",
        *({"inputs": _lengths(partial(_rounded_up, tile=tile))} for tile in (8, 16, 32)),
    ),
    *named("lengths-from-the-end", "mask.forms-agree")(
        "lengths are counted from the last key, as if the padding came first",
        "keep the first keys",
        {"inputs": rekept(lambda _inputs, keep: keep.flip(-1), forms=("lengths",))},
    ),
    *(
        mistake
        for name, chosen in (("longest", torch.amax), ("shortest", torch.amin))
        for mistake in named(f"lengths-of-the-{name}", "mask.per-item")(
            f"the {name} of the lengths is used for all",
            "compare each item with its own length",
            {"inputs": _lengths(partial(_of_one, chosen=chosen))},
        )
    ),
)


_ALIGN: Final = "align the diagonal as declared"


def _rewindowed(change: Callable[[int, int], tuple[int, int] | None]) -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs | None:
        window = call.inputs.window
        return None if window is None else call.inputs.replace(window=change(*window))

    return inputs_for


def _window_at(*, bottom_right: bool, side: str = "") -> InputsChange:
    """The window, or a side of it, is placed by an alignment; causality stays as declared."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.window is None:
            return None
        left, right = inputs.window
        moved, own = keys_ahead(call, bottom_right=bottom_right), keys_ahead(call)
        first = own if side == "right" else moved
        last = own if side == "left" else moved
        admitted = ((first >= -left) | (left < 0)) & ((last <= right) | (right < 0))
        keep = admitted[None, None] if inputs.keep is None else inputs.keep & admitted
        return inputs.replace(window=None, keep=keep)

    return inputs_for


def _narrower(
    call: DeclaredCall, attention: golden.Attention, *, right: bool = False
) -> golden.Attention | None:
    """One key fewer on a side: a window of n shows n keys, the query's own among them."""
    window = call.inputs.window
    if window is None or window[right] < 0:
        return None
    ahead = keys_ahead(call)
    hidden = ahead >= window[1] if right else ahead <= -window[0]
    return relogited(attention, attention.logits.masked_fill(hidden, -math.inf))


WINDOWS: Final[tuple[NamedMistake, ...]] = (
    *named("window-ignored", "mask.golden")(
        "the window is ignored",
        "hide the keys outside of it",
        {"inputs": changed(has_window, window=None)},
    ),
    *named("window-one-wider", "mask.golden")(
        "the window shows one key more before the query than asked for",
        "a window of n shows n keys before the query's own place and n after",
        {"inputs": _rewindowed(lambda left, right: (left + (left >= 0), right))},
        {
            "sentence": "the window shows one key more after the query than asked for",
            "inputs": _rewindowed(lambda left, right: (left, right + (right >= 0))),
        },
        {
            "sentence": "the window shows one key more than asked for on both sides of the query",
            "changes": {"window_offset": 1},
        },
    ),
    *named("window-one-narrower", "mask.golden", where=has_window)(
        "the window shows one key fewer before the query than asked for",
        "a window of n shows n keys beside the query's own",
        {"core": _narrower},
        {"inputs": _rewindowed(lambda left, right: (left - (left > 0), right))},
        {
            "sentence": "the window shows one key fewer after the query than asked for",
            "core": partial(_narrower, right=True),
        },
        {
            "sentence": "the window shows one key fewer than asked for on both sides of the query",
            "changes": {"window_offset": -1},
        },
    ),
    *named("window-sides-swapped", "mask.golden")(
        "the left and right sides of the window are swapped",
        "window=(left, right): keys before the query's place, and after",
        {"inputs": _rewindowed(lambda left, right: (right, left))},
    ),
    *named("window-left-ignored", "mask.golden", special_of="window-ignored")(
        "the left side of the window is ignored",
        "hide the keys outside of it",
        {"inputs": _rewindowed(lambda _left, right: (-1, right))},
    ),
    *named("window-right-ignored", "mask.golden", special_of="window-ignored")(
        "the right side of the window is ignored",
        "hide the keys outside of it",
        {"inputs": _rewindowed(lambda left, _right: (left, -1))},
    ),
    *named("window-top-left", "mask.golden", special_of="causal-top-left")(
        "the window is placed as if the first query stood at the first key",
        _ALIGN,
        {"inputs": _window_at(bottom_right=False)},
        {
            "sentence": "the left side of the window is placed as if the first query stood at "
            "the first key",
            "inputs": _window_at(bottom_right=False, side="left"),
        },
        {
            "sentence": "the right side of the window is placed as if the first query stood at "
            "the first key",
            "inputs": _window_at(bottom_right=False, side="right"),
        },
    ),
    *named("window-bottom-right", "mask.golden", special_of="causal-bottom-right")(
        "the window is placed as if the last query stood at the last key",
        _ALIGN,
        {"inputs": _window_at(bottom_right=True)},
        {
            "sentence": "the left side of the window is placed as if the last query stood at "
            "the last key",
            "inputs": _window_at(bottom_right=True, side="left"),
        },
        {
            "sentence": "the right side of the window is placed as if the last query stood at "
            "the last key",
            "inputs": _window_at(bottom_right=True, side="right"),
        },
    ),
)
