"""Inputs with items, tokens or heads in another order, and how that moves the answer."""

from __future__ import annotations

import torch
from torch import Tensor

from .._golden import golden
from ..oracle.comparison import View
from ..problems.inputs import Inputs
from ..problems.space import admits_lengths
from .subject import Subject


def unchanged(tensor: Tensor) -> Tensor:
    """The view that changes nothing."""
    return tensor


def permutation(size: int, generator: torch.Generator) -> Tensor:
    """A random permutation that is not the identity when the size allows another."""
    order = torch.randperm(size, generator=generator)
    identity = torch.arange(size)
    return order.roll(1) if size > 1 and torch.equal(order, identity) else order


def take(tensor: Tensor | None, axis: int, order: Tensor) -> Tensor | None:
    """Reorder an axis of a mask-like tensor; an axis of size 1 does not vary and stays."""
    if tensor is None or tensor.shape[axis] == 1:
        return tensor
    return tensor.index_select(axis, order)


def reordered_items(inputs: Inputs, order: Tensor) -> Inputs:
    """Batch items in another order, with their masks."""
    moved = inputs.map_tokens(lambda tokens: tokens[order])
    present = inputs.present
    return moved.replace(
        present=None if present is None else (present[0][order], present[1][order]),
        keep=take(inputs.keep, 0, order),
        bias=take(inputs.bias, 0, order),
        tables=inputs.tables and inputs.tables.of_items(order),
        learned=inputs.learned and inputs.learned.of_items(order),
        positions=inputs.positions and inputs.positions.of_items(order),
        quantised=inputs.quantised and inputs.quantised.taken(items=order),
    )


def reordered_queries(inputs: Inputs, order: Tensor) -> Inputs:
    """Queries in another order, with the rows of their masks."""
    of_keys = inputs.key.index_select(-2, order) if inputs.mode == "self" else None
    moved = inputs.with_tokens(query=inputs.query.index_select(-2, order), key=of_keys)
    present = inputs.present
    return moved.replace(
        present=None if present is None else (present[0][:, order], present[1]),
        keep=take(inputs.keep, 2, order),
        bias=take(inputs.bias, 2, order),
        positions=inputs.positions and inputs.positions.of_queries(order),
    )


def reordered_keys(inputs: Inputs, order: Tensor) -> Inputs:
    """Keys and values in another order, with the columns of their masks."""
    key, value = inputs.key.index_select(-2, order), inputs.value.index_select(-2, order)
    moved = inputs.with_tokens(key=key, value=value)
    present = inputs.present
    return moved.replace(
        present=None if present is None else (present[0], present[1][:, order]),
        keep=take(inputs.keep, 3, order),
        bias=take(inputs.bias, 3, order),
        positions=inputs.positions and inputs.positions.of_keys(order),
        quantised=inputs.quantised and inputs.quantised.taken(keys=order),
    )


def one_item(subject: Subject, inputs: Inputs, item: int) -> tuple[Inputs, View]:
    """One batch item alone with its mask, and the view of the batch's answer to compare.

    A candidate that cannot be called with one item gets a batch of copies of the item.
    """
    single = admits_lengths(subject.candidate, inputs.geometry.replace(batch=1))
    count = 1 if single else inputs.geometry.batch
    only = torch.full((count,), item)
    return reordered_items(inputs, only), lambda answer: answer[only]


def read_heads(subject: Subject, inputs: Inputs) -> Tensor:
    """The key/value head of each query head, in the declared order of groups."""
    return inputs.read_heads(subject.declaration.semantics)


def permute_heads(
    subject: Subject, inputs: Inputs, generator: torch.Generator
) -> tuple[Inputs, Tensor]:
    """Exchange key/value heads together with their query heads, weights and masks.

    Returns the inputs and the new order of the query heads.
    """
    sizes = inputs.geometry
    groups = permutation(sizes.num_kv_heads, generator)
    read = read_heads(subject, inputs)
    order = torch.empty_like(read)
    for new, old in enumerate(groups):
        order[read == new] = torch.arange(sizes.num_heads)[read == old]
    return reordered_heads(inputs, order, groups), order


def reordered_heads(inputs: Inputs, order: Tensor, groups: Tensor) -> Inputs:
    """Query heads in one order and key/value heads in another, with weights and masks."""
    moved = inputs.replace(
        keep=take(inputs.keep, 1, order),
        bias=take(inputs.bias, 1, order),
        sinks=None if inputs.sinks is None else inputs.sinks[order],
        learned=inputs.learned and inputs.learned.of_heads(order, groups),
        quantised=inputs.quantised and inputs.quantised.taken(heads=groups),
    )
    if not inputs.is_layer:
        return moved.with_tokens(
            query=inputs.query[:, order], key=inputs.key[:, groups], value=inputs.value[:, groups]
        )
    return moved.replace(weights=_permute_weights(inputs, order, groups))


def _permute_weights(inputs: Inputs, order: Tensor, groups: Tensor) -> golden.ProjectionWeights:
    weights, sizes = inputs.weights, inputs.geometry
    if weights is None or weights.o is None:
        msg = "heads of a layer can only be exchanged where its four projections are known"
        raise LookupError(msg)
    query_rows = head_blocks(order, sizes.head_size)
    key_rows = head_blocks(groups, sizes.head_size)
    value_rows = head_blocks(groups, sizes.value_head_size)
    output_columns = head_blocks(order, sizes.value_head_size)

    def rows(bias: Tensor | None, chosen: Tensor) -> Tensor | None:
        return None if bias is None else bias[chosen]

    return golden.ProjectionWeights(
        q=weights.q[query_rows],
        k=weights.k[key_rows],
        v=weights.v[value_rows],
        o=weights.o[:, output_columns],
        q_bias=rows(weights.q_bias, query_rows),
        k_bias=rows(weights.k_bias, key_rows),
        v_bias=rows(weights.v_bias, value_rows),
        o_bias=weights.o_bias,
    )


def head_blocks(order: Tensor, size: int) -> Tensor:
    """The channels of some heads, in their order."""
    return (order.reshape(-1, 1) * size + torch.arange(size)).reshape(-1)


def permuted_heads_view(inputs: Inputs, order: Tensor) -> View:
    """How exchanging heads moves the answer: a core's heads move, a layer's output does not."""
    return unchanged if inputs.is_layer else (lambda answer: answer[:, order])
