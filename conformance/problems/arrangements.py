"""How a core takes its heads, and gives its answer: the declared ``layout``.

Everywhere else heads are ``[B, H, L, D]``. Here they become what a kernel is called with, and what
it returns (or its gradients) becomes heads again:

========== ==========================================================================
BHSD       query ``[B, H, S, D]``, key, value; output ``[B, H, S, Dv]``
BSHD       query ``[B, S, H, D]``, key, value; output ``[B, S, H, Dv]``
packed-qkv one tensor ``[B, S, 3, H, D]``; output ``[B, S, H, D]``
packed-kv  query ``[B, S, H, D]`` and one tensor ``[B, S, 2, Hkv, D]``; output as BSHD
varlen     the tokens of all sequences one after another, ``[total, H, D]``, with
           cu_seqlens_q, cu_seqlens_k (int32, B + 1) and max_seqlen_q, max_seqlen_k
           (FlashAttention); output ``[total_q, H, Dv]``
========== ==========================================================================

The sequences of a batch have different lengths where a mask of the form "sequences" hides the keys
that a sequence does not have, and all keys from the queries that it does not have. Tokens that are
not there lie where they disturb no alignment: before a sequence whose causal diagonal ends at the
last query and key, after it where the diagonal starts at the first of both.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Generator, Tensor

from ..declare.declaration import SEQUENCES
from .inputs import Inputs
from .layouts import CANARIES, LAYOUTS, MIXED, arrange_mask
from .mask_patterns import NO_KEYS, NO_QUERIES, OF_SEQUENCES

Tensors = tuple[Tensor, ...]
# Which axis holds the heads of one input; memory layouts that speak of heads need to know.
_HEADS: Final = {"BHSD": 1, "BSHD": 2, "packed-qkv": 3, "packed-kv": 2, "varlen": 1}
_PACKED_HEADS: Final = 3
_SEPARATE: Final = 3
# How many of the sequences have no token, no key or no query where some lack them.
_EMPTY_SHARE: Final = 0.35


def arranged_tokens(inputs: Inputs) -> Tensors:
    """Copies of query, key and value as the candidate takes them, lying in memory as asked.

    What is one tensor object in a call with ``shared`` is one object here, too. Raises RuntimeError
    for tensors that one packed tensor cannot hold: see :func:`expressible`.
    """
    whole = present_tokens((inputs.query, inputs.key, inputs.value), inputs)
    names = MIXED[: len(whole)] if inputs.layout == "mixed" else (inputs.layout,) * len(whole)
    heads = _HEADS[inputs.arrangement]
    placed = [
        _laid_out(tensor, name, heads if tensor.dim() < len("BSKHD") else _PACKED_HEADS)
        for tensor, name in zip(whole, names, strict=True)
    ]
    return _shared(placed, inputs) if inputs.shared and len(placed) == _SEPARATE else tuple(placed)


def _shared(placed: list[Tensor], inputs: Inputs) -> Tensors:
    """One object for what is one object in the inputs, and holds the same tokens of them."""
    query, key, value = placed
    if inputs.key is inputs.query and torch.equal(
        there(inputs, "query", inputs.query), there(inputs, "key", inputs.key)
    ):
        key = query
    return query, key, key if inputs.value is inputs.key else value


def with_equal_sequences(inputs: Inputs) -> Inputs:
    """The same inputs, with as many queries in each sequence as it has keys.

    They are as they were where no mask of the form "sequences" says how many there are.
    """
    if inputs.mask_form != SEQUENCES or inputs.keep is None:
        return inputs
    keys = there(inputs, "key", inputs.key)
    return inputs.replace(keep=(keys[:, :, None] & keys[:, None, :]).unsqueeze(1), present=None)


def _laid_out(tensor: Tensor, name: str, heads: int) -> Tensor:
    """One tensor in a memory layout; heads that are equal are looked for along their own axis."""
    if name != "expanded-heads" or heads == 1:
        return LAYOUTS[name](tensor)
    return LAYOUTS[name](tensor.transpose(1, heads)).transpose(1, heads)


def present_tokens(tokens: Tensors, inputs: Inputs) -> Tensors:
    """Query, key and value ``[B, H, L, D]`` in the axes of the candidate, not copied."""
    query, key, value = tokens
    arrangement = inputs.arrangement
    if arrangement == "BHSD":
        return query, key, value
    if arrangement == "varlen":
        keys = there(inputs, "key", key)
        rows = there(inputs, "query", query), keys, there(inputs, "value", value)
        return tuple(map(_joined, (query, key, value), rows))
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if arrangement == "packed-qkv":
        return (torch.stack([query, key, value], dim=2),)
    if arrangement == "packed-kv":
        return query, torch.stack([key, value], dim=2)
    return query, key, value


def canonical_tokens(given: Tensors, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of :func:`present_tokens`, for the tensors of a call or their gradients.

    Differentiable. Tokens that no sequence has are zero.
    """
    arrangement = inputs.arrangement
    if arrangement == "packed-qkv":
        query, key, value = (part.transpose(1, 2) for part in given[0].unbind(2))
    elif arrangement == "packed-kv":
        query = given[0].transpose(1, 2)
        key, value = (part.transpose(1, 2) for part in given[1].unbind(2))
    elif arrangement == "BSHD":
        query, key, value = (tensor.transpose(1, 2) for tensor in given)
    elif arrangement == "varlen":
        names = ("query", "key", "value")
        query, key, value = (
            _apart(tensor, there(inputs, name, getattr(inputs, name)))
            for tensor, name in zip(given, names, strict=True)
        )
    else:
        query, key, value = given
    return query, key, value


def token_names(inputs: Inputs) -> tuple[tuple[str, ...], ...]:
    """Which of query, key and value lie in each positional input of a core."""
    packed = {
        "packed-qkv": (("query", "key", "value"),),
        "packed-kv": (("query",), ("key", "value")),
    }
    return packed.get(inputs.arrangement, (("query",), ("key",), ("value",)))


def present_output(output: Tensor, inputs: Inputs) -> Tensor:
    """A tensor like the answer, ``[B, H, Lq, Dv]``, in the axes of the candidate's answer."""
    if inputs.is_layer or inputs.arrangement == "BHSD":
        return output
    if inputs.arrangement == "varlen":
        return _joined(output, there(inputs, "query", output))
    return output.transpose(1, 2)


def canonical_output(output: Tensor, inputs: Inputs) -> Tensor:
    """The inverse of :func:`present_output`, differentiable; rows that are not there are zero."""
    if inputs.is_layer or inputs.arrangement == "BHSD":
        return output
    if inputs.arrangement == "varlen":
        return _apart(output, there(inputs, "query", inputs.query))
    return output.transpose(1, 2)


def presented_shape(inputs: Inputs) -> tuple[int, ...]:
    """The shape of the answer in the candidate's own axes."""
    shape = inputs.output_shape
    if inputs.is_layer or inputs.arrangement == "BHSD":
        return shape
    batch, heads, length, size = shape
    if inputs.arrangement == "varlen":
        return (int(there(inputs, "query", inputs.query).sum()), heads, size)
    return (batch, length, heads, size)


def expressible(inputs: Inputs) -> bool:
    """Whether sizes that do not belong together can be handed over in the candidate's axes."""
    query, key, value = inputs.query, inputs.key, inputs.value
    if inputs.arrangement == "packed-qkv":
        return query.shape == key.shape == value.shape
    return inputs.arrangement != "packed-kv" or key.shape == value.shape


def _joined(heads: Tensor, rows: Tensor) -> Tensor:
    """The tokens that are there, one after another: ``[B, H, L, D]`` to ``[total, H, D]``."""
    return heads.transpose(1, 2)[rows]


def _apart(tokens: Tensor, rows: Tensor) -> Tensor:
    """The inverse of :func:`_joined`."""
    whole = tokens.new_zeros((*rows.shape, *tokens.shape[1:]))
    return whole.index_put(rows.nonzero(as_tuple=True), tokens).transpose(1, 2)


def there(inputs: Inputs, name: str, heads: Tensor) -> Tensor:
    """Which tokens of query, key or value a sequence has: bool ``[B, L]``."""
    shape = (heads.shape[0], heads.shape[2])
    if inputs.mask_form != SEQUENCES or inputs.keep is None:
        return torch.ones(shape, dtype=torch.bool)
    if inputs.present is not None:
        return inputs.present[0 if name == "query" else 1]
    keep = inputs.keep.expand(inputs.geometry.batch, 1, *inputs.score_shape[2:])
    return keep.any(dim=-1 if name == "query" else -2).squeeze(1)


def sequence_keywords(inputs: Inputs) -> dict[str, Any]:
    """What says where sequences begin and how long the longest is; nothing for other layouts."""
    if inputs.arrangement != "varlen":
        return {}
    keywords: dict[str, Any] = {}
    longest: dict[str, Any] = {}
    # Offsets that do not lie next to each other are refused by every kernel that reads them.
    layout = inputs.mask_layout if inputs.mask_layout in CANARIES else ""
    for letter, name in (("q", "query"), ("k", "key")):
        counts = there(inputs, name, getattr(inputs, name)).sum(dim=-1)
        keywords[f"cu_seqlens_{letter}"] = _offsets(counts, layout)
        longest[f"max_seqlen_{letter}"] = max([0, *counts.tolist()])
    return keywords | longest


def _offsets(counts: Tensor, layout: str) -> Tensor:
    """Where each sequence begins, and where the last ends: int32 ``[B + 1]``."""
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)
    return arrange_mask(starts, layout) if layout else starts


def sequences(
    pattern: str, sizes: tuple[int, int, int], alignment: str, generator: Generator
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Which key each query of its sequence may attend, ``[B, 1, Lq, Lk]``, for random lengths.

    And which queries and keys there are, where that does not say. One sequence at least is as long
    as the batch is made for. "full" makes them equal, "single" gives each one query;
    "empty-lengths" leaves about a third of them without any token, "no-keys" without keys and
    "no-queries" without queries: the first, the one in the middle or the last among them.
    """
    batch, query_length, key_length = sizes
    queries = _lengths(batch, query_length, generator)
    keys = _lengths(batch, key_length, generator)
    if pattern == "full":
        queries, keys = torch.full_like(queries, query_length), torch.full_like(keys, key_length)
    if pattern == "single":
        queries = queries.clamp(max=1)
    if pattern in OF_SEQUENCES:
        gone = _gone(batch, generator)
        queries = queries if pattern == NO_KEYS else queries.masked_fill(gone, 0)
        keys = keys if pattern == NO_QUERIES else keys.masked_fill(gone, 0)
    place = _from_the_end if alignment == "bottom-right" else _from_the_start
    rows, columns = place(queries, query_length), place(keys, key_length)
    keep = (rows[:, :, None] & columns[:, None, :]).unsqueeze(1)
    return keep, (rows, columns) if pattern in (NO_KEYS, NO_QUERIES) else None


def _gone(batch: int, generator: Generator) -> Tensor:
    """Which sequences lack something: about a third, an end or the middle among them, not all."""
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
