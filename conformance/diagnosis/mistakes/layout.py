"""Heads, items, tokens, and queries, keys and values, taken for one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.arrangements import there
from ...problems.inputs import Inputs
from ._steps import require, weighing, with_output
from .named_mistake import (
    CoreChange,
    DeclaredCall,
    Heads,
    HeadsChange,
    InputsChange,
    NamedMistake,
    OutputChange,
    named,
)

_GOLDEN: Final = "numerics.golden"
_OWN_HEAD: Final = "let head h read its own query, key and value"
_OWN_ITEM: Final = "let each batch item read its own query, key and value"


def _on(change: Callable[[Tensor], Tensor], *roles: str) -> HeadsChange:
    """The same change to the heads of some roles."""

    def heads(_call: DeclaredCall, before: Heads) -> Heads:
        query, key, value = (
            change(tensor) if role in roles else tensor
            for role, tensor in zip(("query", "key", "value"), before, strict=True)
        )
        return query, key, value

    return heads


def _first_of(axis: int) -> Callable[[Tensor], Tensor]:
    return lambda heads: heads.narrow(axis, 0, 1).expand_as(heads)


def _flipped(axis: int) -> Callable[[Tensor], Tensor]:
    return lambda heads: heads.flip(axis)


def _rolled(shift: int, axis: int) -> Callable[[Tensor], Tensor]:
    return lambda heads: heads.roll(shift, axis)


def _averaged(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
    weights = attention.weights.mean(dim=1, keepdim=True).expand_as(attention.weights)
    return weighing(attention, weights)


def _plural(roles: Sequence[str], space: str) -> str:
    return f"{space}and{space}".join({"query": "queries"}.get(role, f"{role}s") for role in roles)


def _exchanged_axis(axis: int) -> HeadsChange:
    """Tokens take the place of heads or items, and those that of tokens."""

    def heads(_call: DeclaredCall, before: Heads) -> Heads:
        query, key, value = before
        require(query.shape[2] == key.shape[2])
        return query.transpose(axis, 2), key.transpose(axis, 2), value.transpose(axis, 2)

    return heads


def _turned_back(*axes: int) -> Callable[[DeclaredCall, golden.Attention], golden.Attention]:
    return lambda _call, attention: dataclasses.replace(
        attention, output=attention.output.transpose(*axes)
    )


def _tokens_before_heads(
    call: DeclaredCall, attention: golden.Attention
) -> golden.Attention | None:
    if call.inputs.is_layer:  # its answer has no axis of heads
        return None
    return _turned_back(1, 2)(call, attention)


def _merged_heads(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
    behind = _tokens_before_heads(call, attention)
    return behind and dataclasses.replace(behind, output=behind.output.flatten(2))


def _for_every_head(total: Callable[..., Tensor]) -> CoreChange:
    return with_output(
        lambda attention: total(attention.output, dim=1, keepdim=True).expand_as(attention.output)
    )


def _padded_for_packed(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
    inputs = call.inputs
    if not inputs.head_layout.has_sequences:
        return None
    rows, answers = there(inputs, "query", inputs.query), attention.output.transpose(1, 2)
    counts = rows.sum(dim=-1)
    padded = answers.new_zeros(len(counts), int(counts.max()), *answers.shape[2:])
    padded[torch.arange(padded.shape[1]) < counts[:, None]] = answers[rows]
    output = torch.zeros_like(answers)
    output[rows] = padded.flatten(0, 1)[: int(counts.sum())]
    return dataclasses.replace(attention, output=output.transpose(1, 2))


LAYOUT: Final[tuple[NamedMistake, ...]] = (
    *named("heads-reversed", _GOLDEN)(
        "the heads are in reverse order",
        "keep the order of the heads",
        {"core": with_output(lambda attention: attention.output.flip(1))},
        {"heads": _on(_flipped(1), "query")},
        {"heads": _on(_flipped(1), "key", "value")},
    ),
    *(
        mistake
        for roles in (("query",), ("key",), ("value",), ("key", "value"))
        for mistake in named(f"{_plural(roles, '-')}-of-first-head", "equivariance.heads")(
            f"all heads use the {_plural(roles, ' ')} of the first one",
            _OWN_HEAD,
            {"heads": _on(_first_of(1), *roles)},
        )
    ),
    *(
        mistake
        for role in ("value", "key")
        for mistake in named(f"{role}s-of-another-head", "equivariance.heads")(
            f"each head reads the {role}s of another one",
            _OWN_HEAD,
            {"heads": _on(_rolled(-1, 1), role)},
            {"heads": _on(_rolled(1, 1), role)},
            {"heads": _on(_flipped(1), role)},
        )
    ),
    *named("one-projection-for-all-heads", "equivariance.heads")(
        "all heads use queries, keys and values of the first one",
        "give each head its own rows of the projections",
        {"heads": _on(_first_of(1), "query", "key", "value")},
        {"core": with_output(lambda attention: _first_of(1)(attention.output))},
    ),
    *named("weights-averaged-over-heads", _GOLDEN)(
        "all heads use the average of their weights",
        "let each head use its own weights",
        {"core": _averaged},
    ),
    *named("heads-summed", _GOLDEN)(
        "the heads are added up where they should stand side by side",
        "concatenate them along the channels",
        {"core": _for_every_head(torch.sum)},
    ),
    *named("heads-averaged", _GOLDEN)(
        "the heads are averaged where they should stand side by side",
        "concatenate them along the channels",
        {"core": _for_every_head(torch.mean)},
    ),
    *named("heads-taken-for-tokens", _GOLDEN)(
        "the heads of one token attend to each other, not the tokens of one head",
        "transpose to (batch, heads, length, head size) before the scores",
        {"heads": _exchanged_axis(1), "core": _turned_back(1, 2)},
    ),
    *named("answer-with-tokens-before-heads", "shape.output")(
        "the axes of heads and tokens of the answer have changed places",
        "return the axes as the inputs have them: transpose(1, 2) once more, or once less",
        {"core": _tokens_before_heads},
    ),
    *named("answer-with-heads-merged", "shape.output")(
        "the answer has the heads of a token side by side, in one axis",
        "return an axis of heads, as the queries have one",
        {"core": _merged_heads},
    ),
    *named("batch-taken-for-tokens", "equivariance.batch-independent")(
        "batch and tokens are mixed up: each place attends over the items of the batch",
        "put the batch first, or declare what the first axis is",
        {"heads": _exchanged_axis(0), "core": _turned_back(0, 2)},
    ),
    *(
        mistake
        for roles, read in (
            (("key",), "attend to the keys"),
            (("value",), "read the values"),
            (("key", "value"), "read keys and values"),
            (("query",), "use the queries"),
        )
        for mistake in named(
            f"{_plural(roles, '-')}-of-first-item", "equivariance.batch-independent"
        )(
            f"all batch items {read} of the first one",
            _OWN_ITEM,
            {"heads": _on(_first_of(0), *roles)},
        )
    ),
    *named("answer-of-first-item", "equivariance.batch-independent")(
        "all batch items get the answer of the first one",
        _OWN_ITEM,
        {"core": with_output(lambda attention: _first_of(0)(attention.output))},
    ),
    *named("items-reversed", "equivariance.batch")(
        "the batch items are read in another order",
        _OWN_ITEM,
        {"heads": _on(_flipped(0), "value")},
        {"heads": _on(_flipped(0), "key")},
        {"heads": _on(_flipped(0), "key", "value")},
        {"heads": _on(_rolled(1, 0), "value")},
        {"heads": _on(_rolled(1, 0), "key", "value")},
    ),
    *named("answer-for-reversed-queries", "equivariance.queries")(
        "the answers of the queries are in reverse order",
        "keep the order of the queries",
        {"core": with_output(lambda attention: attention.output.flip(2))},
    ),
    *named("values-reversed", "equivariance.keys")(
        "the values are in the reverse order of their keys",
        "let value j belong to key j",
        {"heads": _on(_flipped(2), "value")},
    ),
    *named("values-rolled", "equivariance.keys")(
        "each key's weight meets the value of the key before or after it",
        "let value j belong to key j",
        {"heads": _on(_rolled(1, 2), "value")},
        {"heads": _on(_rolled(-1, 2), "value")},
    ),
    *named("sequences-answered-padded", "varlen.golden", needs="sequences")(
        "answers that are padded to the longest sequence are returned as if they were packed",
        "take each sequence's own rows out of the padded answer before they are joined",
        {"core": _padded_for_packed},
    ),
)


def _regrouped(order: Callable[[int, int], Tensor]) -> HeadsChange:
    """Key/value heads that the query heads read, each by a number of its own."""

    def heads(call: DeclaredCall, before: Heads) -> Heads | None:
        sizes = call.inputs.geometry
        if sizes.num_heads == sizes.num_kv_heads:
            return None
        read = order(sizes.num_heads, sizes.num_kv_heads)
        return before[0], before[1][:, read], before[2][:, read]

    return heads


def _tiled(tiled: str) -> HeadsChange:
    """Keys or values are dealt out in turns, the others to neighbours."""

    def heads(call: DeclaredCall, before: Heads) -> Heads | None:
        sizes = call.inputs.geometry
        if sizes.num_heads == sizes.num_kv_heads:
            return None
        group = sizes.num_heads // sizes.num_kv_heads
        query, key, value = before
        if tiled == "key":
            return query, key.repeat(1, group, 1, 1), value.repeat_interleave(group, dim=1)
        return query, key.repeat_interleave(group, dim=1), value.repeat(1, group, 1, 1)

    return heads


def _merged_across(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
    """The answers of a group lie as many heads apart as there are groups, not side by side."""
    heads, groups = attention.output.shape[1], call.inputs.geometry.num_kv_heads
    if call.semantics.group_order != "repeat" or groups in (1, heads):
        return None
    of_groups = attention.output.unflatten(1, (groups, heads // groups))
    return dataclasses.replace(attention, output=of_groups.transpose(1, 2).flatten(1, 2))


GROUPS: Final[tuple[NamedMistake, ...]] = (
    *named("groups-of-first-head", _GOLDEN)(
        "all query heads read the first key/value head",
        "query head h reads key/value head h // group",
        {"heads": _regrouped(lambda heads, _kv_heads: torch.zeros(heads, dtype=torch.long))},
    ),
    *named("groups-clamped", _GOLDEN)(
        "query head h reads key/value head h, and the last one where there is none",
        "query head h reads key/value head h // group",
        {"heads": _regrouped(lambda heads, kv: torch.arange(heads).clamp_max(kv - 1))},
    ),
    *named("groups-reversed", _GOLDEN)(
        "the key/value heads are dealt out from the last to the first",
        "query head h reads key/value head h // group",
        {"heads": _regrouped(lambda heads, kv: kv - 1 - torch.arange(heads) // (heads // kv))},
    ),
    *named("groups-merged-across", _GOLDEN)(
        "the answers of heads are ordered by their place in the group first, then by key/value "
        "head",
        "flatten [key/value head, head of its group] in this order",
        {"core": _merged_across},
    ),
    *named("groups-start-late", _GOLDEN)(
        "groups begin one query head late: the first of each reads the one before",
        "query head h reads key/value head h // group",
        {
            "heads": _regrouped(
                lambda heads, kv: (torch.arange(heads) - 1).clamp_min(0) // (heads // kv)
            )
        },
    ),
    *named("groups-start-early", _GOLDEN)(
        "groups begin one query head early: the last of each reads the next one",
        "query head h reads key/value head h // group",
        {
            "heads": _regrouped(
                lambda heads, kv: (torch.arange(heads) + 1).clamp_max(heads - 1) // (heads // kv)
            )
        },
    ),
    *named("groups-of-values-tiled", _GOLDEN)(
        "query head h reads values of head h modulo their number, and keys of h // group",
        "repeat keys and values in the same order: repeat_interleave",
        {"heads": _tiled("value")},
    ),
    *named("groups-of-keys-tiled", _GOLDEN)(
        "query head h reads keys of head h modulo their number, and values of h // group",
        "repeat keys and values in the same order: repeat_interleave",
        {"heads": _tiled("key")},
    ),
)


def _of_length(inputs: Inputs, count: int) -> Tensor | None:
    """What lengths keep of another number of keys: no other mask can be read for that."""
    require(not inputs.masked or inputs.mask_form == "lengths")
    if inputs.keep is None:
        return None
    return torch.arange(count) < inputs.keep.sum(-1, keepdim=True)


def _exchanged(query: str = "query", key: str = "key", value: str = "value") -> InputsChange:
    """One input used for another: as tokens of a layer, or as heads of a core."""

    def inputs_for(call: DeclaredCall) -> Inputs:
        inputs = call.inputs
        require(inputs.mode != "self")
        by_role = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        # One token meets each mask of many keys, where shapes are broadcast.
        many = max(by_role[key].shape[-2], by_role[value].shape[-2])
        keys, values = (
            one.expand(*one.shape[:-2], many, one.shape[-1])
            for one in (by_role[key], by_role[value])
        )
        read = (by_role[query], keys, values)
        require(read[1].shape[:-1] == read[2].shape[:-1])
        require(inputs.is_layer or read[0].shape[-1] == read[1].shape[-1])
        if inputs.is_layer:
            widths = zip(read, (inputs.query, inputs.key, inputs.value), strict=True)
            require(all(one.shape[-1] == other.shape[-1] for one, other in widths))
        geometry = inputs.geometry.replace(
            query_length=read[0].shape[-2], key_length=read[1].shape[-2]
        )
        if geometry.key_length != inputs.geometry.key_length:
            inputs = inputs.replace(keep=_of_length(inputs, geometry.key_length))
        return inputs.replace(query=read[0], key=read[1], value=read[2], geometry=geometry)

    return inputs_for


def _plus(role: str) -> OutputChange:
    def output(call: DeclaredCall, before: Tensor) -> Tensor:
        more: Tensor = getattr(call.inputs, role).double()
        require(more.shape == before.shape)
        return before + more

    return output


def _packed_by(*axes: int) -> HeadsChange:
    """Operands of one tensor ``[B, S, parts, H, D]``, read with its last axes in another order."""

    def heads(call: DeclaredCall, before: Heads) -> Heads:
        read = dict(zip(("query", "key", "value"), before, strict=True))
        for parts in call.inputs.head_layout.inputs.values():
            packed = torch.stack([read[part] for part in parts]).permute(1, 3, 0, 2, 4)
            last = [packed.shape[2:][axis] for axis in axes]
            viewed = packed.reshape(*packed.shape[:2], *last).movedim(2 + axes.index(0), 0)
            read |= zip(parts, viewed.transpose(2, 3), strict=True)
        return read["query"], read["key"], read["value"]

    return heads


_BY_KEYS: Final = "multiply the queries by the keys"
_BY_VALUES: Final = "multiply the weights by the values"
_BOTH: Final = "multiply queries by keys, and weights by values"

EXCHANGES: Final[tuple[NamedMistake, ...]] = (
    *named("key-and-value-swapped", _GOLDEN)(
        "key and value are swapped", _BOTH, {"inputs": _exchanged(key="value", value="key")}
    ),
    *named("key-used-for-value", _GOLDEN)(
        "the keys are averaged instead of the values",
        _BY_VALUES,
        {"inputs": _exchanged(value="key")},
    ),
    *named("value-used-for-key", _GOLDEN)(
        "the queries meet the values instead of the keys",
        _BY_KEYS,
        {"inputs": _exchanged(key="value")},
    ),
    *named("query-used-for-key", _GOLDEN)(
        "the queries meet themselves instead of the keys",
        _BY_KEYS,
        {"inputs": _exchanged(key="query")},
    ),
    *named("query-used-for-value", _GOLDEN)(
        "the queries are averaged instead of the values",
        _BY_VALUES,
        {"inputs": _exchanged(value="query")},
    ),
    *named("query-used-for-key-and-value", _GOLDEN)(
        "the query attends to itself: key and value inputs have no influence",
        "take keys and values from their own inputs",
        {"inputs": _exchanged(key="query", value="query")},
    ),
    *named("key-used-for-query", _GOLDEN)(
        "the keys meet themselves instead of the queries",
        _BY_KEYS,
        {"inputs": _exchanged(query="key")},
    ),
    *named("value-used-for-query", _GOLDEN)(
        "the values meet the keys instead of the queries",
        _BY_KEYS,
        {"inputs": _exchanged(query="value")},
    ),
    *named("query-and-key-swapped", _GOLDEN)(
        "query and key are swapped",
        "multiply the queries by the transposed keys: each row of scores is of one query",
        {"inputs": _exchanged(query="key", key="query")},
    ),
    *named("query-and-value-swapped", _GOLDEN)(
        "query and value are swapped", _BOTH, {"inputs": _exchanged(query="value", value="query")}
    ),
    *named("packed-by-head", _GOLDEN, needs="packed")(
        "the packed tensor is read as [B, S, H, 3, D], each head with its own three",
        "read it as [B, S, 3, H, D]: the three lie in front of the heads",
        {"heads": _packed_by(1, 0, 2)},
        {
            "sentence": "the packed tensor is read as [B, S, H, D, 3], each channel with its three",
            "heads": _packed_by(1, 2, 0),
        },
    ),
    *named("residual-added", _GOLDEN)(
        "the query is added to the answer: the residual connection belongs outside",
        "leave it out",
        {"output": _plus("query")},
    ),
    *named("value-added", _GOLDEN)(
        "the value is added to the answer",
        "leave it out",
        {"output": _plus("value")},
    ),
)
