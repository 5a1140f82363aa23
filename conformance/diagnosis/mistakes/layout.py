"""Heads, items, tokens, and queries, keys and values, taken for one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import require, weighing, with_output
from .named import Asked, Heads, HeadsChange, NamedMistake, Question, mistakes

_GOLDEN: Final = "numerics.golden"


_OWN_HEAD: Final = "let head h read its own query, key and value"


_OWN_ITEM: Final = "let each batch item read its own query, key and value"


def _on(change: Callable[[Tensor], Tensor], *roles: str) -> HeadsChange:
    """The same change to the heads of some roles."""

    def heads(_asked: Asked, given: Heads) -> Heads:
        query, key, value = (
            change(tensor) if role in roles else tensor
            for role, tensor in zip(("query", "key", "value"), given, strict=True)
        )
        return query, key, value

    return heads


def _first_head(heads: Tensor) -> Tensor:
    return heads[:, :1].expand_as(heads)


def _first_item(heads: Tensor) -> Tensor:
    return heads[:1].expand_as(heads)


def _flipped(axis: int) -> Callable[[Tensor], Tensor]:
    return lambda heads: heads.flip(axis)


def _rolled(shift: int, axis: int) -> Callable[[Tensor], Tensor]:
    return lambda heads: heads.roll(shift, axis)


def _averaged(_asked: Asked, attention: golden.Attention) -> golden.Attention:
    weights = attention.weights.mean(dim=1, keepdim=True).expand_as(attention.weights)
    return weighing(attention, weights)


def _heads_for_tokens(_asked: Asked, given: Heads) -> Heads:
    """Tokens take the place of heads and heads that of tokens."""
    query, key, value = given
    require(query.shape[2] == key.shape[2])
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def _items_for_tokens(_asked: Asked, given: Heads) -> Heads:
    query, key, value = given
    require(query.shape[2] == key.shape[2])
    return query.transpose(0, 2), key.transpose(0, 2), value.transpose(0, 2)


def _turned_back(*axes: int) -> Callable[[Asked, golden.Attention], golden.Attention]:
    return lambda _asked, attention: dataclasses.replace(
        attention, output=attention.output.transpose(*axes)
    )


def _summed_heads(attention: golden.Attention) -> Tensor:
    return attention.output.sum(dim=1, keepdim=True).expand_as(attention.output)


def _mean_heads(attention: golden.Attention) -> Tensor:
    return attention.output.mean(dim=1, keepdim=True).expand_as(attention.output)


LAYOUT: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "heads-reversed",
        _GOLDEN,
        "the heads are in reverse order",
        "keep the order of the heads",
        {"core": with_output(lambda attention: attention.output.flip(1))},
        {"heads": _on(_flipped(1), "query")},
        {"heads": _on(_flipped(1), "key", "value")},
    ),
    *mistakes(
        "queries-of-first-head",
        "equivariance.heads",
        "all heads use the queries of the first one",
        _OWN_HEAD,
        {"heads": _on(_first_head, "query")},
    ),
    *mistakes(
        "keys-of-first-head",
        "equivariance.heads",
        "all heads use the keys of the first one",
        _OWN_HEAD,
        {"heads": _on(_first_head, "key")},
    ),
    *mistakes(
        "values-of-first-head",
        "equivariance.heads",
        "all heads use the values of the first one",
        _OWN_HEAD,
        {"heads": _on(_first_head, "value")},
    ),
    *mistakes(
        "keys-and-values-of-first-head",
        "equivariance.heads",
        "all heads use the keys and values of the first one",
        _OWN_HEAD,
        {"heads": _on(_first_head, "key", "value")},
    ),
    *mistakes(
        "values-of-another-head",
        "equivariance.heads",
        "each head reads the values of another one",
        _OWN_HEAD,
        {"heads": _on(_rolled(-1, 1), "value")},
        {"heads": _on(_rolled(1, 1), "value")},
        {"heads": _on(_flipped(1), "value")},
    ),
    *mistakes(
        "keys-of-another-head",
        "equivariance.heads",
        "each head reads the keys of another one",
        _OWN_HEAD,
        {"heads": _on(_rolled(-1, 1), "key")},
        {"heads": _on(_rolled(1, 1), "key")},
        {"heads": _on(_flipped(1), "key")},
    ),
    *mistakes(
        "one-projection-for-all-heads",
        "equivariance.heads",
        "all heads use queries, keys and values of the first one",
        "give each head its own rows of the projections",
        {"heads": _on(_first_head, "query", "key", "value")},
        {"core": with_output(lambda attention: _first_head(attention.output))},
    ),
    *mistakes(
        "weights-averaged-over-heads",
        _GOLDEN,
        "all heads use the average of their weights",
        "let each head use its own weights",
        {"core": _averaged},
    ),
    *mistakes(
        "heads-summed",
        _GOLDEN,
        "the heads are added up where they should stand side by side",
        "concatenate them along the channels",
        {"core": with_output(_summed_heads)},
    ),
    *mistakes(
        "heads-averaged",
        _GOLDEN,
        "the heads are averaged where they should stand side by side",
        "concatenate them along the channels",
        {"core": with_output(_mean_heads)},
    ),
    *mistakes(
        "heads-taken-for-tokens",
        _GOLDEN,
        "the heads of one token attend to each other, not the tokens of one head",
        "transpose to (batch, heads, length, head size) before the scores",
        {"heads": _heads_for_tokens, "core": _turned_back(1, 2)},
    ),
    *mistakes(
        "batch-taken-for-tokens",
        "equivariance.batch-independent",
        "batch and tokens are mixed up: each place attends over the items of the batch",
        "put the batch first, or declare what the first axis is",
        {"heads": _items_for_tokens, "core": _turned_back(0, 2)},
    ),
    *mistakes(
        "keys-of-first-item",
        "equivariance.batch-independent",
        "all batch items attend to the keys of the first one",
        _OWN_ITEM,
        {"heads": _on(_first_item, "key")},
    ),
    *mistakes(
        "values-of-first-item",
        "equivariance.batch-independent",
        "all batch items read the values of the first one",
        _OWN_ITEM,
        {"heads": _on(_first_item, "value")},
    ),
    *mistakes(
        "keys-and-values-of-first-item",
        "equivariance.batch-independent",
        "all batch items read keys and values of the first one",
        _OWN_ITEM,
        {"heads": _on(_first_item, "key", "value")},
    ),
    *mistakes(
        "queries-of-first-item",
        "equivariance.batch-independent",
        "all batch items use the queries of the first one",
        _OWN_ITEM,
        {"heads": _on(_first_item, "query")},
    ),
    *mistakes(
        "answer-of-first-item",
        "equivariance.batch-independent",
        "all batch items get the answer of the first one",
        _OWN_ITEM,
        {"core": with_output(lambda attention: _first_item(attention.output))},
    ),
    *mistakes(
        "items-reversed",
        "equivariance.batch",
        "the batch items are read in another order",
        _OWN_ITEM,
        {"heads": _on(_flipped(0), "value")},
        {"heads": _on(_flipped(0), "key")},
        {"heads": _on(_flipped(0), "key", "value")},
        {"heads": _on(_rolled(1, 0), "value")},
        {"heads": _on(_rolled(1, 0), "key", "value")},
    ),
    *mistakes(
        "answer-for-reversed-queries",
        "equivariance.queries",
        "the answers of the queries are in reverse order",
        "keep the order of the queries",
        {"core": with_output(lambda attention: attention.output.flip(2))},
    ),
    *mistakes(
        "values-reversed",
        "equivariance.keys",
        "the values are in another order than their keys",
        "let value j belong to key j",
        {"heads": _on(_flipped(2), "value")},
        {"heads": _on(_rolled(1, 2), "value")},
        {"heads": _on(_rolled(-1, 2), "value")},
    ),
)


def _regrouped(order: Callable[[int, int], Tensor]) -> HeadsChange:
    """Key/value heads that the query heads read, each by a number of its own."""

    def heads(asked: Asked, given: Heads) -> Heads | None:
        sizes = asked.inputs.geometry
        if sizes.num_heads == sizes.num_kv_heads:
            return None
        read = order(sizes.num_heads, sizes.num_kv_heads)
        return given[0], given[1][:, read], given[2][:, read]

    return heads


def _values_tiled(asked: Asked, given: Heads) -> Heads | None:
    sizes = asked.inputs.geometry
    if sizes.num_heads == sizes.num_kv_heads:
        return None
    group = sizes.num_heads // sizes.num_kv_heads
    return given[0], given[1].repeat_interleave(group, dim=1), given[2].repeat(1, group, 1, 1)


def _keys_tiled(asked: Asked, given: Heads) -> Heads | None:
    sizes = asked.inputs.geometry
    if sizes.num_heads == sizes.num_kv_heads:
        return None
    group = sizes.num_heads // sizes.num_kv_heads
    return given[0], given[1].repeat(1, group, 1, 1), given[2].repeat_interleave(group, dim=1)


GROUPS: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "groups-of-first-head",
        _GOLDEN,
        "all query heads read the first key/value head",
        "query head h reads key/value head h // group",
        {"heads": _regrouped(lambda heads, _kv_heads: torch.zeros(heads, dtype=torch.long))},
    ),
    *mistakes(
        "groups-clamped",
        _GOLDEN,
        "query head h reads key/value head h, and the last one where there is none",
        "query head h reads key/value head h // group",
        {"heads": _regrouped(lambda heads, kv: torch.arange(heads).clamp_max(kv - 1))},
    ),
    *mistakes(
        "groups-reversed",
        _GOLDEN,
        "the key/value heads are dealt out from the last to the first",
        "query head h reads key/value head h // group",
        {"heads": _regrouped(lambda heads, kv: kv - 1 - torch.arange(heads) // (heads // kv))},
    ),
    *mistakes(
        "groups-of-values-tiled",
        _GOLDEN,
        "query head h reads values of head h modulo their number, and keys of h // group",
        "repeat keys and values in the same order: repeat_interleave",
        {"heads": _values_tiled},
    ),
    *mistakes(
        "groups-of-keys-tiled",
        _GOLDEN,
        "query head h reads keys of head h modulo their number, and values of h // group",
        "repeat keys and values in the same order: repeat_interleave",
        {"heads": _keys_tiled},
    ),
)


def _exchanged(query: str = "query", key: str = "key", value: str = "value") -> Question:
    """One input used for another: as tokens of a layer, or as heads of a core."""

    def question(asked: Asked) -> Inputs:
        inputs = asked.inputs
        require(inputs.mode != "self")
        given = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        read = (given[query], given[key], given[value])
        require(read[1].shape[:-1] == read[2].shape[:-1])
        fits = inputs.is_layer or read[0].shape[-1] == read[1].shape[-1]
        require(fits and read[0].shape[-2] == inputs.query.shape[-2])
        if inputs.is_layer:
            widths = zip(read, (inputs.query, inputs.key, inputs.value), strict=True)
            require(all(one.shape[-1] == other.shape[-1] for one, other in widths))
        geometry = inputs.geometry.replace(key_length=read[1].shape[-2])
        require(geometry.key_length == inputs.geometry.key_length or not inputs.masked)
        return inputs.replace(query=read[0], key=read[1], value=read[2], geometry=geometry)

    return question


def _with_query(asked: Asked, output: Tensor) -> Tensor:
    query = asked.inputs.query.double()
    require(query.shape == output.shape)
    return output + query


def _with_value(asked: Asked, output: Tensor) -> Tensor:
    value = asked.inputs.value.double()
    require(value.shape == output.shape)
    return output + value


EXCHANGES: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "key-and-value-swapped",
        _GOLDEN,
        "key and value are swapped",
        "multiply queries by keys, and weights by values",
        {"question": _exchanged(key="value", value="key")},
    ),
    *mistakes(
        "key-used-for-value",
        _GOLDEN,
        "the keys are averaged instead of the values",
        "multiply the weights by the values",
        {"question": _exchanged(value="key")},
    ),
    *mistakes(
        "value-used-for-key",
        _GOLDEN,
        "the queries meet the values instead of the keys",
        "multiply the queries by the keys",
        {"question": _exchanged(key="value")},
    ),
    *mistakes(
        "query-used-for-key",
        _GOLDEN,
        "the queries meet themselves instead of the keys",
        "multiply the queries by the keys",
        {"question": _exchanged(key="query")},
    ),
    *mistakes(
        "query-used-for-value",
        _GOLDEN,
        "the queries are averaged instead of the values",
        "multiply the weights by the values",
        {"question": _exchanged(value="query")},
    ),
    *mistakes(
        "query-used-for-key-and-value",
        _GOLDEN,
        "the query attends to itself: key and value inputs have no influence",
        "take keys and values from their own inputs",
        {"question": _exchanged(key="query", value="query")},
    ),
    *mistakes(
        "key-used-for-query",
        _GOLDEN,
        "the keys meet themselves instead of the queries",
        "multiply the queries by the keys",
        {"question": _exchanged(query="key")},
    ),
    *mistakes(
        "query-and-key-swapped",
        _GOLDEN,
        "query and key are swapped",
        "the softmax runs over the keys of each query",
        {"question": _exchanged(query="key", key="query")},
    ),
    *mistakes(
        "query-and-value-swapped",
        _GOLDEN,
        "query and value are swapped",
        "multiply queries by keys, and weights by values",
        {"question": _exchanged(query="value", value="query")},
    ),
    *mistakes(
        "residual-added",
        _GOLDEN,
        "the query is added to the answer: the residual connection belongs outside",
        "leave it out",
        {"output": _with_query},
    ),
    *mistakes(
        "value-added",
        _GOLDEN,
        "the value is added to the answer",
        "leave it out",
        {"output": _with_value},
    ),
)
