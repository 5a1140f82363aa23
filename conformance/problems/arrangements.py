"""How a core takes its heads, and gives its answer: the declared ``layout``.

Heads are ``[B, H, L, D]`` everywhere else. This module turns them into the arguments of a kernel,
and turns the kernel's answer (or its gradients) back into heads;
:mod:`conformance.declare.head_layouts` lists the layouts.

The sequences of a batch have different lengths where a mask of the form "sequences" hides absent
keys, and hides all keys from absent queries. Absent tokens lie where they disturb no alignment:
before a sequence whose causal diagonal ends at the last query and key, after a sequence whose
diagonal starts at the first query and key.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor

from ..declare.declaration import SEQUENCES
from ..declare.head_layouts import OWN_AXES, HeadLayout
from .inputs import Inputs
from .mask_patterns import NO_KEYS, NO_QUERIES, OF_SEQUENCES
from .memory_layouts import CANARIES, MEMORY_LAYOUTS, MIXED, arrange_mask
from .paging import (
    Slots,
    by_rank,
    equal_beginnings,
    in_slots,
    new_tokens,
    packed_slots,
    page_keywords,
    slots,
)
from .structured_items import AXES, NONE, arguments_of_items
from .structured_masks import STRUCTURED_MASKS, Structure

Tensors = tuple[Tensor, ...]
# How many of the sequences have no token, no key or no query where some lack them.
_EMPTY_SHARE: Final = 0.35


def arranged_tokens(inputs: Inputs) -> Tensors:
    """Copies of query, key and value as the candidate takes them, in the problem's memory layout.

    With ``shared``, inputs that are one tensor object stay one object. Raises RuntimeError for
    tensors that one packed tensor cannot hold: see :func:`expressible`.
    """
    whole = present_tokens((inputs.query, inputs.key, inputs.value), inputs)
    names = MIXED[: len(whole)] if inputs.layout == "mixed" else (inputs.layout,) * len(whole)
    of_keys = inputs.head_layout.cache_axes or inputs.head_layout.axes
    axes = (inputs.head_layout.axes, *[of_keys] * (len(whole) - 1))
    placed = [
        in_memory(tensor, name, letters, written=inputs.writes)
        for tensor, name, letters in zip(whole, names, axes, strict=True)
    ]
    separate = not (inputs.head_layout.is_packed or inputs.head_layout.cache_axes)
    return _shared(placed, inputs) if inputs.shared and separate else tuple(placed)


def _shared(placed: list[Tensor], inputs: Inputs) -> Tensors:
    """One object for inputs that are one object and hold equal tokens."""
    query, key, value = placed
    if inputs.key is inputs.query and torch.equal(
        there(inputs, "query", inputs.query), there(inputs, "key", inputs.key)
    ):
        key = query
    return query, key, key if inputs.value is inputs.key else value


def with_equal_sequences(inputs: Inputs) -> Inputs:
    """The inputs with as many queries in each sequence as keys; unchanged without sequences."""
    if inputs.mask_form != SEQUENCES or inputs.keep is None:
        return inputs
    keys = there(inputs, "key", inputs.key)
    return inputs.replace(keep=(keys[:, :, None] & keys[:, None, :]).unsqueeze(1), present=None)


# The memory layouts that hold an axis of equal entries once, and the index where they expect it.
_EXPANDED_AXES: Final = {"expanded": ("B", 0), "expanded-heads": ("H", 1)}


def in_memory(tensor: Tensor, name: str, axes: str, *, written: bool = False) -> Tensor:
    """Lay a tensor out in memory; ``axes`` are the letters of its head layout, packed or not.

    What is ``written``, and pages of equal items, hold every entry.
    """
    letter, expected = _EXPANDED_AXES.get(name, ("", 0))
    holds_all = written or (letter == "B" and "P" in axes)
    of_all_heads = "H" not in axes or tensor.dim() < len(axes)
    if letter and (holds_all or (letter == "H" and of_all_heads)):
        return MEMORY_LAYOUTS["contiguous"](tensor)
    if not letter or letter not in axes:
        return MEMORY_LAYOUTS[name](tensor)
    # A packed tensor has an axis for its parts in front of the heads.
    packed = tensor.dim() > len(axes) and axes.index(letter) >= axes.index("H")
    actual = axes.index(letter) + packed
    return MEMORY_LAYOUTS[name](tensor.transpose(expected, actual)).transpose(expected, actual)


def present_tokens(tokens: Tensors, inputs: Inputs) -> Tensors:
    """Query, key and value ``[B, H, L, D]`` in the axes of the candidate, not copied."""
    layout, names = inputs.head_layout, ("query", "key", "value")
    if layout.cache_axes:
        return present_output(tokens[0], inputs), *caches(inputs)
    if layout.has_sequences:
        return tuple(
            _joined(tensor, places(inputs, name, tensor), between=_no_number(tensor))
            for name, tensor in zip(names, tokens, strict=True)
        )
    if layout.value_in_key:
        return tokens[0], tokens[1][:, 0]
    own = {name: layout.arranged(tensor) for name, tensor in zip(names, tokens, strict=True)}
    packed_axis = layout.axes.index("H")
    return tuple(
        own[parts[0]]
        if len(parts) == 1
        else torch.stack([own[part] for part in parts], dim=packed_axis)
        for parts in layout.inputs.values()
    )


def canonical_tokens(tensors: Tensors, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of :func:`present_tokens`, for the tensors of a call or their gradients.

    Differentiable. Tokens that no sequence has are zero. No gradient flows into caches.
    """
    layout = inputs.head_layout
    packed_axis = layout.axes.index("H")
    parts: dict[str, Tensor] = {}
    for tensor, names in zip(tensors, layout.inputs.values(), strict=True):
        single = [tensor] if len(names) == 1 else tensor.unbind(packed_axis)
        parts |= dict(zip(names, single, strict=True))
    query, key, value = (
        _apart(parts[name], places(inputs, name, getattr(inputs, name)).rows)
        if layout.has_sequences
        else layout.restored(parts[name])
        for name in ("query", "key", "value")
    )
    return query, key, value


_SLOTS: Final[WeakKeyDictionary[Inputs, Slots]] = WeakKeyDictionary()


def slots_of(inputs: Inputs) -> Slots:
    """Where the keys of items lie, in caches or one after another; remembered for more calls."""
    made = _SLOTS.get(inputs)
    if made is None:
        made = _SLOTS[inputs] = _slots_of(inputs)
    return made


def _slots_of(inputs: Inputs) -> Slots:
    store = inputs.store
    present = there(inputs, "key", inputs.key)
    queries = there(inputs, "query", inputs.query).sum(dim=-1)
    lengths = present.sum(dim=-1)
    if store is None:
        return packed_slots(queries, lengths)
    alike = torch.zeros(len(lengths), len(lengths), dtype=torch.int64)
    if store.page_size and store.shares:
        alike = equal_beginnings((*inputs.exact[1:], *scales_of_tokens(inputs).values()), present)
    return slots(store, queries, lengths, present.shape[1], alike)


def caches(inputs: Inputs, *, after: bool = False) -> Tensors:
    """The caches of keys and values, in the candidate's axes, before a call or ``after`` it.

    Codes are bytes.
    """
    whole = _pools(inputs, after=after)
    if inputs.head_layout.value_in_key:
        return (whole[0].squeeze(2),)
    by_slot = inputs.head_layout.cache_axes.endswith("SHD")
    return tuple(cache if by_slot else cache.transpose(1, 2) for cache in whole)


def _pools(inputs: Inputs, *, after: bool, exact: bool = False) -> Tensors:
    """What the slots of keys and of values hold: ``[N, slots, H, D]``, codes or what they mean."""
    at, present = slots_of(inputs), there(inputs, "key", inputs.key)
    pools, scales = [], scales_of_tokens(inputs)
    for name, heads, junk in zip(("key", "value"), inputs.exact[1:], at.store.junk, strict=True):
        pool = in_slots(heads, at, present, junk, after=after)
        if (made := inputs.quantised) is not None:
            if name in scales:
                lying = in_slots(scales[name], at, present, 1.0, after=after)
                made = made.replace(**{f"{name}_scale": lying.transpose(1, 2)})
            coded = made.exact if exact else made.bytes
            pool = coded(name, pool.transpose(1, 2)).transpose(1, 2)
        pools.append(pool)
    if inputs.head_layout.value_in_key:
        pools[1] = pools[0][..., : pools[1].shape[-1]]
    return tuple(pools)


def held_exactly(inputs: Inputs) -> Tensors:
    """What the slots hold after a call, as numbers: ``[N, slots, H, D]`` of keys, of values."""
    if inputs.store is not None:
        return _pools(inputs, after=True, exact=True)
    present = there(inputs, "key", inputs.key)
    return tuple(heads.transpose(1, 2)[present][None] for heads in inputs.exact[1:])


def scales_of_tokens(inputs: Inputs) -> dict[str, Tensor]:
    """The scales ``[B, Hkv, Lk, 1]`` of keys and of values where each token has its own."""
    made = inputs.quantised
    if made is None or not made.by_token:
        return {}
    return {name: made.scale_of(name, getattr(inputs, name)) for name in ("key", "value")}


def scale_keywords(inputs: Inputs) -> dict[str, Tensor]:
    """The scales of a call: those of tokens lie as the declaration says."""
    made, scales = inputs.quantised, scales_of_tokens(inputs)
    if made is None:
        return {}
    if not scales or not inputs.head_layout.has_lengths:
        return made.keywords(inputs.key, inputs.value, batched=inputs.batched)
    given = {}
    for name, scale in scales.items():
        present = there(inputs, "key", scale)
        if made.by == "slot":
            lying = in_slots(scale, slots_of(inputs), present, 1.0, after=True)
        elif inputs.head_layout.cache_axes:
            lying = by_rank(scale, present, 1.0)
        else:
            lying = _joined(scale, places(inputs, "key", scale), between=1.0)
        given[f"{name}_scale"] = lying.squeeze(-1).float().contiguous()
    return given


def cache_keywords_of(inputs: Inputs) -> dict[str, Any]:
    """What says where the keys of each item lie, and the new ones that the call writes."""
    at, layout = slots_of(inputs), inputs.head_layout
    rows = there(inputs, "query", inputs.query)
    every = page_keywords(at, rows.sum(dim=-1))
    canaries = inputs.mask_layout == "between-canaries"
    given = {
        word: MEMORY_LAYOUTS["between-canaries"](every[word]) if canaries else every[word]
        for word in layout.sequence_keywords
    }
    if not at.store.writes:
        return given
    present = there(inputs, "key", inputs.key)
    for name in ("key", "value"):
        heads: Tensor = getattr(inputs, name)
        heads = heads if inputs.quantised is None else inputs.quantised.bytes(name, heads)
        new = new_tokens(heads, at, present, inputs.query.shape[2])
        if layout.has_sequences:  # the last rows of an item's queries, or the first
            own = torch.arange(new.shape[1]) < rows.sum(dim=-1)[:, None]
            given[name] = new[own]
        else:
            given[name] = layout.arranged(new.transpose(1, 2)).contiguous()
    return given


def token_names(inputs: Inputs) -> tuple[tuple[str, ...], ...]:
    """The names (query, key, value) in each positional input of a core."""
    return tuple(inputs.head_layout.inputs.values())


def present_output(output: Tensor, inputs: Inputs) -> Tensor:
    """A tensor like the answer, ``[B, H, Lq, Dv]``, in the axes of the candidate's answer."""
    if inputs.is_layer:
        return output
    if inputs.head_layout.has_sequences:
        return _joined(output, places(inputs, "query", output), between=0.0)
    return inputs.head_layout.arranged(output)


def canonical_output(output: Tensor, inputs: Inputs) -> Tensor:
    """The inverse of :func:`present_output`, differentiable; absent rows are zero."""
    if inputs.is_layer:
        return output
    if inputs.head_layout.has_sequences:
        return _apart(output, rows_of_queries(inputs))
    return inputs.head_layout.restored(output)


def presented_shape(inputs: Inputs) -> tuple[int, ...]:
    """The shape of the answer in the candidate's own axes."""
    shape = inputs.output_shape
    if inputs.is_layer:
        return shape
    sizes = dict(zip(OWN_AXES, shape, strict=False))
    if inputs.head_layout.has_sequences:
        sizes["T"] = places(inputs, "query", inputs.query).total
    return tuple(sizes[letter] for letter in inputs.head_layout.axes)


def log_sum_exp_shape(inputs: Inputs) -> tuple[int, ...]:
    """The shape of log-sum-exps with the axes that a call asks for, such as "BHQ".

    Those of sequences have the axes of heads and of all tokens, ``[B, H]`` with one query an item.
    """
    sizes = dict(zip("BHQ", inputs.score_shape, strict=False))
    if not inputs.head_layout.has_sequences:
        return tuple(sizes[axis] for axis in inputs.return_lse)
    total = places(inputs, "query", inputs.query).total
    heads_first = inputs.return_lse == "BHQ" and not inputs.head_layout.has_all_queries
    return (sizes["H"], total) if heads_first else (total, sizes["H"])


def canonical_log_sum_exp(lse: Tensor, inputs: Inputs) -> Tensor:
    """Log-sum-exps of :func:`log_sum_exp_shape` as ``[B, H, Lq]``; absent rows are zero."""
    if not inputs.head_layout.has_sequences:
        return lse if inputs.return_lse == "BHQ" else lse.mT
    heads_last = inputs.return_lse == "BQH" or inputs.head_layout.has_all_queries
    rows = (lse if heads_last else lse.mT).unsqueeze(-1)
    return _apart(rows, rows_of_queries(inputs)).squeeze(-1)


def presented_log_sum_exp(lse: Tensor, inputs: Inputs) -> Tensor:
    """The inverse of :func:`canonical_log_sum_exp`, for a tensor ``[B, H, Lq]``."""
    if not inputs.head_layout.has_sequences:
        return lse if inputs.return_lse == "BHQ" else lse.mT
    rows = lse.unsqueeze(-1)
    joined = _joined(rows, places(inputs, "query", rows), between=0.0).squeeze(-1)
    heads_last = inputs.return_lse == "BQH" or inputs.head_layout.has_all_queries
    return joined if heads_last else joined.mT


def expressible(inputs: Inputs) -> bool:
    """Whether sizes that do not belong together can be handed over in the candidate's axes."""
    if inputs.head_layout.cache_axes:  # one table is for keys and values
        batch = inputs.query.shape[0]
        fits = batch == inputs.key.shape[0] and inputs.key.shape[:3] == inputs.value.shape[:3]
        return fits and (inputs.key.shape[1] == 1 or not inputs.head_layout.value_in_key)
    if inputs.head_layout.value_in_key:
        return inputs.key.shape[1] == 1
    return all(
        len({getattr(inputs, part).shape for part in parts}) == 1 for parts in token_names(inputs)
    )


def _joined(heads: Tensor, at: Places, between: float) -> Tensor:
    """Concatenate the existing tokens: ``[B, H, L, D]`` to ``[total, H, D]``.

    Rows outside of every sequence hold the number ``between``.
    """
    present = at.rows >= 0
    tokens = heads.transpose(1, 2)[present]
    if len(tokens) == at.total:
        return tokens
    whole = tokens.new_full((at.total, *tokens.shape[1:]), between)
    return whole.index_put((at.rows[present],), tokens)


def _no_number(tensor: Tensor) -> float:
    """What rows of no sequence hold: NaN, whose code is that of the largest integer, too."""
    return torch.iinfo(torch.int8).max if tensor.dtype == torch.uint8 else torch.nan


def _apart(tokens: Tensor, rows: Tensor) -> Tensor:
    """The inverse of :func:`_joined`."""
    present = rows >= 0
    whole = tokens.new_zeros((*rows.shape, *tokens.shape[1:]))
    return whole.index_put(present.nonzero(as_tuple=True), tokens[rows[present]]).transpose(1, 2)


class Places(NamedTuple):
    """Rows of tokens ``[B, L]`` in a tensor of all sequences, -1 for none, and its length."""

    rows: Tensor
    total: int


# The number of extra rows after each sequence, in turn.
_GAPS: Final = (1, 0, 2)


def places(inputs: Inputs, name: str, heads: Tensor, *, padded: bool | None = None) -> Places:
    """Where tokens lie, with rows between the sequences or without; None is as declared."""
    present = there(inputs, name, heads)
    has_gaps = inputs.head_layout.has_gaps if padded is None else padded
    starts = _starts(present.sum(dim=-1), padded=has_gaps)
    rows = starts[:-1, None] + present.cumsum(dim=-1) - 1
    return Places(rows.masked_fill(~present, -1), int(starts[-1]))


def rows_of_queries(inputs: Inputs) -> Tensor:
    """The row of the answer of each query: int64 ``[B, Lq]``, -1 for an absent query."""
    return places(inputs, "query", inputs.query).rows


def _starts(counts: Tensor, *, padded: bool) -> Tensor:
    """The first row of each sequence, and the total number of rows: ``[B + 1]``."""
    gaps = torch.tensor(_GAPS)[torch.arange(len(counts)) % len(_GAPS)] * padded
    return torch.cat([counts.new_zeros(1), (counts + gaps).cumsum(0)])


def there(inputs: Inputs, name: str, heads: Tensor) -> Tensor:
    """Which tokens of query, key or value a sequence has: bool ``[B, L]``."""
    shape = (heads.shape[0], heads.shape[2])
    dense = name == "query" and inputs.head_layout.has_all_queries
    if dense or inputs.keep is None or not inputs.has_own_lengths:
        return torch.ones(shape, dtype=torch.bool)
    if inputs.present is not None:
        return inputs.present[0 if name == "query" else 1]
    # An acted-out mistake may hide different keys in each head.
    keep = inputs.keep.any(dim=1).expand(inputs.geometry.batch, *inputs.score_shape[2:])
    return keep.any(dim=-1 if name == "query" else -2)


def sequence_keywords(inputs: Inputs) -> dict[str, Any]:
    """What says where sequences begin and how long the longest is; nothing for other layouts."""
    if inputs.head_layout.cache_axes:
        return cache_keywords_of(inputs)
    if not inputs.head_layout.has_sequences:
        return {}
    words = inputs.head_layout.sequence_keywords
    # Every kernel that reads offsets refuses offsets that do not lie next to each other.
    layout = inputs.mask_layout if inputs.mask_layout in CANARIES else ""
    has_gaps = inputs.head_layout.has_gaps
    names = ("query", "key")[: len(words) // (3 if has_gaps else 2)]
    counts = [there(inputs, name, getattr(inputs, name)).sum(dim=-1) for name in names]
    offsets = [_offsets(each, layout, padded=False) for each in counts]
    longest = [max([0, *each.tolist()]) for each in counts]
    padded = [_offsets(each, layout, padded=True) for each in counts if has_gaps]
    return dict(zip(words, (*offsets, *longest, *padded), strict=True))


def frame(inputs: Inputs) -> Structure:
    """What a table of a structured mask is for."""
    return Structure(
        geometry=inputs.geometry,
        alignment=inputs.point.causal_alignment,
        block_size=inputs.block_size,
        grid=inputs.grid,
    )


def structured_keywords(inputs: Inputs) -> dict[str, Any]:
    """The keywords of a structured mask; without a mask those of one that hides nothing.

    Where items have lengths, each argument lies as the tokens do that it speaks of.
    """
    form, layout = str(inputs.mask_form), inputs.head_layout
    made = frame(inputs)
    mask, table = STRUCTURED_MASKS[form], inputs.keep
    if table is None:
        table = mask.table("full", made, Generator())
    if not layout.has_lengths:
        given = mask.arguments(table, made)
        if inputs.grid is not None:
            given.pop("grid", None)
        if inputs.batched:
            return given
        return {
            name: value.squeeze(0) if isinstance(value, Tensor) else value
            for name, value in given.items()
        }
    there_are = there(inputs, "query", inputs.query), there(inputs, "key", inputs.key)
    table = table.expand(inputs.geometry.batch, *table.shape[1:])
    given = arguments_of_items(form, table, made, there_are)
    return {name: _as_tokens_lie(name, value, inputs) for name, value in given.items()}


def _as_tokens_lie(name: str, value: Any, inputs: Inputs) -> Any:
    """An argument ``[B, L, ..]`` by places of queries or keys as these tokens lie."""
    side, layout = AXES.get(name, ""), inputs.head_layout
    of_caches = side == "key" and bool(layout.cache_axes)
    if not side or not (of_caches or layout.has_sequences):
        return value
    by_place = value.reshape(*value.shape[:2], -1).unsqueeze(1)
    if of_caches:
        present = there(inputs, "key", by_place)
        return by_rank(by_place, present, NONE).reshape(value.shape)
    joined = _joined(by_place, places(inputs, side, by_place), between=NONE)
    return joined.reshape(-1, *value.shape[2:])


def _offsets(counts: Tensor, layout: str, *, padded: bool) -> Tensor:
    """The first row of each sequence and the end of the last: int32 ``[B + 1]``."""
    starts = _starts(counts, padded=padded).to(torch.int32)
    return arrange_mask(starts, layout) if layout else starts


def sequences(
    pattern: str,
    sizes: tuple[int, int, int],
    alignment: str,
    generator: Generator,
    *,
    tied: bool = False,
    layout: HeadLayout | None = None,
    writes: bool = False,
    least_keys: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """The keys that each query of a sequence may attend, ``[B, 1, Lq, Lk]``, for random lengths.

    Also the existing queries and keys, where the table does not tell. At least one sequence has the
    batch's full length. Pattern "full" makes all lengths full, "single" gives each sequence a
    single query; "empty-lengths" leaves about a third of the sequences without tokens, "no-keys"
    without keys, "no-queries" without queries: among these the first, the middle or the last
    sequence. ``tied`` sequences have as many keys as queries. In a ``layout`` with caches items
    have a key for each query where they can, and must where a call ``writes`` them; so they have
    with ``least_keys`` in every layout.
    """
    batch, query_length, key_length = sizes
    queries = _lengths(batch, query_length, generator)
    keys = _lengths(batch, key_length, generator)
    if pattern == "full":
        queries, keys = torch.full_like(queries, query_length), torch.full_like(keys, key_length)
    if pattern == "single":
        queries = queries.clamp(max=1)
    dense = layout is not None and layout.has_all_queries
    if dense:
        queries = torch.full_like(queries, query_length)
    if least_keys or (layout is not None and layout.cache_axes):
        keys = torch.maximum(keys, queries.clamp(max=key_length))
    if pattern in OF_SEQUENCES:
        gone = _gone(batch, generator)
        if writes and (dense or pattern == NO_KEYS):
            gone = torch.zeros_like(gone)
        kept = dense or (pattern == NO_KEYS and not tied)
        queries = queries if kept else queries.masked_fill(gone, 0)
        keys = keys if pattern == NO_QUERIES else keys.masked_fill(gone, 0)
    if tied:
        keys = queries
    place = _from_the_end if alignment == "bottom-right" else _from_the_start
    rows, columns = place(queries, query_length), place(keys, key_length)
    keep = (rows[:, :, None] & columns[:, None, :]).unsqueeze(1)
    told = tied or dense or pattern not in (NO_KEYS, NO_QUERIES)
    return keep, None if told else (rows, columns)


def with_lengths(inputs: Inputs, lengths: Tensor) -> Inputs:
    """The inputs whose items have so many keys, and at most as many queries: ``lengths [B]``."""
    columns = _from_the_end(lengths, inputs.key.shape[2])
    rows = there(inputs, "query", inputs.query)
    if not inputs.head_layout.has_all_queries:
        rows = _from_the_end(torch.minimum(rows.sum(dim=-1), lengths), rows.shape[1])
    return inputs.replace(
        keep=(rows[:, :, None] & columns[:, None, :]).unsqueeze(1),
        mask_form=SEQUENCES,
        present=None,
    )


def _gone(batch: int, generator: Generator) -> Tensor:
    """The sequences that lack tokens: about a third, among them an end or the middle, never all."""
    gone = torch.rand(batch, generator=generator) < _EMPTY_SHARE
    if batch > 1:
        places = sorted({0, batch // 2, batch - 1})
        chosen = places[int(torch.randint(len(places), (1,), generator=generator))]
        gone[chosen] = True
        gone[(chosen + 1) % batch] = False
    return gone if batch > 1 else torch.zeros_like(gone)


def _lengths(batch: int, longest: int, generator: Generator) -> Tensor:
    """Random lengths of at least one; the first that could be longest is."""
    drawn = torch.randint(1, max(longest, 1) + 1, (batch,), generator=generator)
    if batch:
        drawn[int(torch.randint(batch, (1,), generator=generator))] = longest
    return drawn


def _from_the_start(counts: Tensor, length: int) -> Tensor:
    return torch.arange(length) < counts[:, None]


def _from_the_end(counts: Tensor, length: int) -> Tensor:
    return torch.arange(length) >= length - counts[:, None]
