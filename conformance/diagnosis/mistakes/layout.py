"""Heads, batch items and tokens taken for one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from torch import Tensor

from ..._golden import golden
from ._steps import require, weighing, with_output
from .named import Asked, Heads, HeadsChange, NamedMistake, mistakes

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
