"""Heads, items, tokens, and queries, keys and values, taken for one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.arrangements import (
    canonical_output,
    places,
    present_output,
    sequence_keywords,
    there,
)
from ...problems.inputs import Inputs
from ._steps import require
from .named_mistake import (
    DeclaredCall,
    Edits,
    InputsChange,
    NamedMistake,
    answering,
    changed,
    edits_by,
    is_core,
    named,
)

Edit = golden.Edit
_GOLDEN: Final = "numerics.golden"
_OWN_HEAD: Final = "let head h read its own query, key and value"
_OWN_ITEM: Final = "let each batch item read its own query, key and value"
_STAGES: Final = {"query": "query", "key": "joined_key", "value": "value_heads"}
_HEADS: Final = {"query": "head", "key": "key/value head", "value": "key/value head"}
# Orders along an axis, in the words of the operators.
_REVERSED: Final = "those of the {} counted from the end"
_ITEM: Final = "batch item"


def _change_roles(words: str, *roles: str) -> Edits:
    """Apply an operator, by its words about a place along an axis, to the heads of roles."""
    return tuple(
        edit for role in roles for edit in edits_by(words.format(_HEADS[role]), _STAGES[role])
    )


def _plural(roles: Sequence[str], space: str) -> str:
    return f"{space}and{space}".join({"query": "queries"}.get(role, f"{role}s") for role in roles)


def _exchanged_axis(axis: int) -> Edits:
    def change(heads: Tensor, inputs: Inputs) -> Tensor:
        require(inputs.geometry.query_length == inputs.geometry.key_length)
        return heads.transpose(axis, 2)

    given = changed(change, "given_query", "given_key", "given_value")
    return *given, Edit("output", change=lambda output: output.transpose(axis, 2))


def _padded_for_packed(output: Tensor, inputs: Inputs) -> Tensor:
    rows, answers = there(inputs, "query", inputs.query), output.transpose(1, 2)
    counts = rows.sum(dim=-1)
    padded = answers.new_zeros(len(counts), int(counts.max()), *answers.shape[2:])
    padded[torch.arange(padded.shape[1]) < counts[:, None]] = answers[rows]
    packed = torch.zeros_like(answers)
    packed[rows] = padded.flatten(0, 1)[: int(counts.sum())]
    return packed.transpose(1, 2)


def _read_without_gaps(heads: Tensor, inputs: Inputs, name: str) -> Tensor:
    """Tokens of the rows where each would lie if no rows lay between the sequences."""
    rows = places(inputs, name, heads).rows
    read = places(inputs, name, heads, padded=False).rows
    tokens = heads.new_full((int(rows.max()) + 1, *heads.transpose(1, 2).shape[2:]), torch.nan)
    tokens[rows[rows >= 0]] = heads.transpose(1, 2)[rows >= 0]
    found = torch.zeros_like(heads).transpose(1, 2)
    found[rows >= 0] = tokens[read[rows >= 0]]
    return found.transpose(1, 2)


def _written_without_gaps(output: Tensor, inputs: Inputs) -> Tensor:
    written = places(inputs, "query", output, padded=False).rows
    answer = torch.zeros_like(present_output(output, inputs))
    answer[written[written >= 0]] = output.transpose(1, 2)[written >= 0]
    return canonical_output(answer, inputs)


def _spread_keys_between(output: Tensor, inputs: Inputs) -> Tensor:
    """NaN where rows lie behind the keys of a sequence: a weight of zero does not hide them."""
    *_, begins = sequence_keywords(inputs).values()
    has_more = begins.diff() > there(inputs, "key", inputs.key).sum(dim=-1)
    rows = there(inputs, "query", inputs.query) & has_more[:, None]
    return output.masked_fill(rows[:, None, :, None], torch.nan)


def _gap_mistakes(name: str) -> Callable[..., list[NamedMistake]]:
    return named(
        name,
        "varlen.golden",
        needs="sequences",
        where=lambda inputs: inputs.head_layout.has_gaps,
    )


LAYOUT: Final[tuple[NamedMistake, ...]] = (
    *named("heads-reversed", _GOLDEN)(
        "the heads are in reverse order",
        "keep the order of the heads",
        edits_by(_REVERSED.format("head"), "output"),
        _change_roles(_REVERSED, "query"),
        _change_roles(_REVERSED, "key", "value"),
    ),
    *(
        mistake
        for roles in (("query",), ("key",), ("value",), ("key", "value"))
        for mistake in named(f"{_plural(roles, '-')}-of-first-head", "equivariance.heads")(
            f"all heads use the {_plural(roles, ' ')} of the first one",
            _OWN_HEAD,
            _change_roles("those of the first {}", *roles),
        )
    ),
    *(
        mistake
        for role in ("value", "key")
        for mistake in named(f"{role}s-of-another-head", "equivariance.heads")(
            f"each head reads the {role}s of another one",
            _OWN_HEAD,
            _change_roles("those of the {} after", role),
            _change_roles("those of the {} before", role),
            _change_roles(_REVERSED, role),
        )
    ),
    *named("one-projection-for-all-heads", "equivariance.heads")(
        "all heads use queries, keys and values of the first one",
        "give each head its own rows of the projections",
        _change_roles("those of the first {}", "query", "key", "value"),
        edits_by("those of the first head", "output"),
    ),
    *named("weights-averaged-over-heads", _GOLDEN)(
        "all heads use the average of their weights",
        "let each head use its own weights",
        edits_by("averaged over the heads", "weights"),
    ),
    *named("heads-summed", _GOLDEN)(
        "the heads are added up where they should stand side by side",
        "concatenate them along the channels",
        edits_by("summed over the heads", "output"),
    ),
    *named("heads-averaged", _GOLDEN)(
        "the heads are averaged where they should stand side by side",
        "concatenate them along the channels",
        edits_by("averaged over the heads", "output"),
    ),
    *named("heads-taken-for-tokens", _GOLDEN)(
        "the heads of one token attend to each other, not the tokens of one head",
        "transpose to (batch, heads, length, head size) before the scores",
        _exchanged_axis(1),
    ),
    *named("answer-with-tokens-before-heads", "shape.output")(
        "the axes of heads and tokens of the answer have changed places",
        "return the axes as the inputs have them: transpose(1, 2) once more, or once less",
        Edit("output", change=lambda output: output.transpose(1, 2), when=is_core),
    ),
    *named("answer-with-heads-merged", "shape.output")(
        "the answer has the heads of a token side by side, in one axis",
        "return an axis of heads, as the queries have one",
        Edit("output", change=lambda output: output.transpose(1, 2).flatten(2), when=is_core),
    ),
    *named("batch-taken-for-tokens", "equivariance.batch-independent")(
        "batch and tokens are mixed up: each place attends over the items of the batch",
        "put the batch first, or declare what the first axis is",
        _exchanged_axis(0),
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
            _change_roles("those of the first batch item", *roles),
        )
    ),
    *named("answer-of-first-item", "equivariance.batch-independent")(
        "all batch items get the answer of the first one",
        _OWN_ITEM,
        edits_by("those of the first batch item", "output"),
    ),
    *named("items-reversed", "equivariance.batch")(
        "the batch items are read in another order",
        _OWN_ITEM,
        _change_roles(_REVERSED.format(_ITEM), "value"),
        _change_roles(_REVERSED.format(_ITEM), "key"),
        _change_roles(_REVERSED.format(_ITEM), "key", "value"),
        _change_roles("those of the batch item before", "value"),
        _change_roles("those of the batch item before", "key", "value"),
    ),
    *named("answer-for-reversed-queries", "equivariance.queries")(
        "the answers of the queries are in reverse order",
        "keep the order of the queries",
        edits_by(_REVERSED.format("query"), "output"),
    ),
    *named("values-reversed", "equivariance.keys")(
        "the values are in the reverse order of their keys",
        "let value j belong to key j",
        _change_roles(_REVERSED.format("key"), "value"),
    ),
    *named("values-rolled", "equivariance.keys")(
        "each key's weight meets the value of the key before or after it",
        "let value j belong to key j",
        _change_roles("those of the key before", "value"),
        _change_roles("those of the key after", "value"),
    ),
    *named(
        "sequences-answered-padded",
        "varlen.golden",
        needs="sequences",
        where=lambda inputs: inputs.head_layout.has_sequences,
    )(
        "answers that are padded to the longest sequence are returned as if they were packed",
        "take each sequence's own rows out of the padded answer before they are joined",
        Edit("output", change=_padded_for_packed),
    ),
    *_gap_mistakes("sequences-cut-without-rows-between")(
        "sequences are cut as if no rows lay between them",
        "sequence i begins at row cu_seqlens_padded[i], and is as long as cu_seqlens says",
        (
            *(
                Edit(f"given_{name}", change=partial(_read_without_gaps, name=name))
                for name in ("query", "key", "value")
            ),
            Edit("output", change=_written_without_gaps),
        ),
    ),
    *_gap_mistakes("answers-without-rows-between")(
        "answers are written as if no rows lay between the sequences",
        "write the answers of sequence i from row cu_seqlens_padded[i] on",
        Edit("output", change=_written_without_gaps),
    ),
    *_gap_mistakes("rows-between-attended")(
        "rows that belong to no sequence are attended, or multiplied by a weight of zero",
        "leave them out: sequence i has cu_seqlens[i + 1] - cu_seqlens[i] keys",
        Edit("output", change=_spread_keys_between),
    ),
)


def _shares(sizes: golden.Sizes) -> bool:
    return sizes.num_heads != sizes.num_kv_heads


def _shared(rule: Callable[[Tensor, golden.Sizes], Tensor], *roles: str) -> Edits:
    return tuple(
        Edit(f"shared_{role}", golden.Rewired(rule, (_STAGES[role], "sizes")), when=_shares)
        for role in roles
    )


def _regrouped(order: Callable[[Tensor, int, int], Tensor]) -> Edits:
    def heads(given: Tensor, sizes: golden.Sizes) -> Tensor:
        count = sizes.num_kv_heads
        return given[:, order(torch.arange(sizes.num_heads), sizes.num_heads // count, count - 1)]

    return _shared(heads, "key", "value")


def _tiled(heads: Tensor, sizes: golden.Sizes) -> Tensor:
    return heads.repeat(1, sizes.num_heads // sizes.num_kv_heads, 1, 1)


def _merged_across(output: Tensor, sizes: golden.Sizes) -> Tensor:
    groups: Tensor = output.unflatten(1, (sizes.num_kv_heads, -1))
    return groups.transpose(1, 2).flatten(1, 2)


def _repeats(point: golden.Semantics, sizes: golden.Sizes) -> bool:
    return point.group_order == "repeat" and sizes.num_kv_heads not in (1, sizes.num_heads)


GROUPS: Final[tuple[NamedMistake, ...]] = (
    *named("groups-of-first-head", _GOLDEN)(
        "all query heads read the first key/value head",
        "query head h reads key/value head h // group",
        _regrouped(lambda heads, _group, _last: torch.zeros_like(heads)),
    ),
    *named("groups-clamped", _GOLDEN)(
        "query head h reads key/value head h, and the last one where there is none",
        "query head h reads key/value head h // group",
        _regrouped(lambda heads, _group, last: heads.clamp_max(last)),
    ),
    *named("groups-reversed", _GOLDEN)(
        "the key/value heads are dealt out from the last to the first",
        "query head h reads key/value head h // group",
        _regrouped(lambda heads, group, last: last - heads // group),
    ),
    *named("groups-merged-across", _GOLDEN)(
        "the answers of heads are ordered by their place in the group first, then by key/value "
        "head",
        "flatten [key/value head, head of its group] in this order",
        Edit("output", change=_merged_across, when=_repeats),
    ),
    *named("groups-start-late", _GOLDEN)(
        "groups begin one query head late: the first of each reads the one before",
        "query head h reads key/value head h // group",
        _regrouped(lambda heads, group, _last: (heads - 1).clamp_min(0) // group),
    ),
    *named("groups-start-early", _GOLDEN)(
        "groups begin one query head early: the last of each reads the next one",
        "query head h reads key/value head h // group",
        _regrouped(lambda heads, group, _last: (heads + 1).clamp_max(len(heads) - 1) // group),
    ),
    *named("groups-of-values-tiled", _GOLDEN)(
        "query head h reads values of head h modulo their number, and keys of h // group",
        "repeat keys and values in the same order: repeat_interleave",
        _shared(_tiled, "value"),
    ),
    *named("groups-of-keys-tiled", _GOLDEN)(
        "query head h reads keys of head h modulo their number, and values of h // group",
        "repeat keys and values in the same order: repeat_interleave",
        _shared(_tiled, "key"),
    ),
)


def _limit_lengths(inputs: Inputs, count: int) -> Tensor | None:
    """Apply lengths to another number of keys: no other mask can be read for it."""
    require(not inputs.masked or inputs.mask_form == "lengths")
    if inputs.keep is None:
        return None
    return torch.arange(count) < inputs.keep.sum(-1, keepdim=True)


def _exchanged(query: str = "query", key: str = "key", value: str = "value") -> InputsChange:
    def inputs_for(call: DeclaredCall) -> Inputs:
        inputs = call.inputs
        require(inputs.mode != "self")
        by_role = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        # A single token is broadcast to the many keys of a mask.
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
            inputs = inputs.replace(keep=_limit_lengths(inputs, geometry.key_length))
        return inputs.replace(query=read[0], key=read[1], value=read[2], geometry=geometry)

    return inputs_for


def _plus(role: str) -> Edits:
    def change(answer: Tensor, inputs: Inputs) -> Tensor:
        more: Tensor = getattr(inputs, role).double()
        require(more.shape == answer.shape)
        return answer + more

    return answering(change)


def _is_packed(inputs: Inputs) -> bool:
    return inputs.head_layout.is_packed


def _packed_by(*axes: int) -> Edits:
    """Read operands packed as ``[B, S, parts, H, D]`` with the last axes in another order."""

    def heads(inputs: Inputs, *, role: str) -> Tensor:
        own: Tensor = getattr(inputs, role)
        for parts in inputs.head_layout.inputs.values():
            if role in parts:
                packed = torch.stack([getattr(inputs, part) for part in parts])
                packed = packed.permute(1, 3, 0, 2, 4)
                last = [packed.shape[2:][axis] for axis in axes]
                viewed = packed.reshape(*packed.shape[:2], *last).movedim(2 + axes.index(0), 0)
                own = viewed[parts.index(role)].transpose(1, 2)
        return own.double()

    return tuple(Edit(f"given_{role}", partial(heads, role=role)) for role in _STAGES)


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
    *named("packed-by-head", _GOLDEN, needs="packed", where=_is_packed)(
        "the packed tensor is read as [B, S, H, 3, D], each head with its own three",
        "read it as [B, S, 3, H, D]: the three lie in front of the heads",
        _packed_by(1, 0, 2),
        {
            "sentence": "the packed tensor is read as [B, S, H, D, 3], each channel with its three",
            "edits": _packed_by(1, 2, 0),
        },
    ),
    *named("residual-added", _GOLDEN)(
        "the query is added to the answer: the residual connection belongs outside",
        "leave it out",
        _plus("query"),
    ),
    *named("value-added", _GOLDEN)(
        "the value is added to the answer",
        "leave it out",
        _plus("value"),
    ),
)
