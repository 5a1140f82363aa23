"""Caches of keys and values: joined, in static buffers, in pages, or attended apart."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

import conformance

from ._kit import CORE, NAN_SPREADS, admitted, check, core, factor, soften

CACHED: Final[dict[str, Any]] = {"features": [*CORE["features"], "kv_cache"]}
PAGE: Final = 4
ROOM: Final = 5


def joined(past: Tensor | None, new: Tensor) -> Tensor:
    """The cached tokens before the new ones."""
    return new if past is None else torch.cat([past, new], dim=-2)


@core(**CACHED)
def joined_before_all(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """The plain way: concatenate, attend to everything."""
    key, value = joined(past_key, key), joined(past_value, value)
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    return soften(query @ key.mT * factor(query, scale), table) @ value


def _in_buffer(past: Tensor | None, new: Tensor) -> Tensor:
    """A buffer with room to spare that is full of junk behind what it holds."""
    start = 0 if past is None else past.shape[2]
    shape = (*new.shape[:2], start + new.shape[2] + ROOM, new.shape[3])
    buffer = torch.full(shape, 7.0, dtype=new.dtype)
    if past is not None:
        buffer[:, :, :start] = past
    return buffer.index_copy(2, start + torch.arange(new.shape[2]), new)


@core(**CACHED)
def in_a_static_buffer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """New tokens are copied behind the others; the slots that are left are masked."""
    check(query, key, value)
    keys, values = _in_buffer(past_key, key), _in_buffer(past_value, value)
    used = keys.shape[2] - ROOM
    table = admitted(query, keys[:, :, :used], keep, causal=causal)
    table = functional.pad(table, (0, ROOM), value=False)
    return soften(query @ keys.mT * factor(query, scale), table) @ values


@core(**CACHED)
def in_shuffled_pages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """Tokens lie in pages of four in any order; a table of pages brings them back."""
    check(query, key, value)
    key, value = _paged(joined(past_key, key)), _paged(joined(past_value, value))
    table = admitted(query, key, keep, causal=causal)
    return soften(query @ key.mT * factor(query, scale), table) @ value


def _paged(tokens: Tensor) -> Tensor:
    """The tokens written to pages that lie in reverse order, and gathered again."""
    length = tokens.shape[2]
    count = -(-length // PAGE)
    padded = functional.pad(tokens, (0, 0, 0, count * PAGE - length))
    pages = padded.unflatten(2, (count, PAGE)).flip(2)
    places = torch.arange(count).flip(0)
    gathered: Tensor = pages.index_select(2, places).flatten(2, 3)
    return gathered[:, :, :length]


@core(**CACHED)
def old_and_new_apart(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """Cached and new keys are attended one after the other; their sums meet at the end."""
    parts = [(key, value)]
    if past_key is not None and past_value is not None:
        parts.insert(0, (past_key, past_value))
    check(query, key, value)
    whole = torch.cat([part[0] for part in parts], dim=2)
    table = admitted(query, whole, keep, causal=causal).expand(*query.shape[:3], whole.shape[2])
    tables = table.split([part[0].shape[2] for part in parts], dim=-1)
    logits = [
        (query @ part[0].mT * factor(query, scale)).masked_fill(~seen, -torch.inf)
        for part, seen in zip(parts, tables, strict=True)
    ]
    largest = torch.stack(
        [part.amax(-1) if part.shape[-1] else part.sum(-1) - torch.inf for part in logits]
    )
    shift = largest.amax(0).nan_to_num(neginf=0.0).unsqueeze(-1)
    weights = [(part - shift).exp() for part in logits]
    total = torch.stack([part.sum(-1, keepdim=True) for part in weights]).sum(0)
    mixed = torch.stack([w @ part[1] for w, part in zip(weights, parts, strict=True)]).sum(0)
    answer: Tensor = mixed / torch.where(total == 0, 1.0, total)
    return answer


@core(features=["scale", "gqa", "kv_cache"])
def scores_joined(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """Scores with cached and new keys are joined, for groups of heads that share them."""
    check(query, key, value)
    grouped = query.unflatten(1, (key.shape[1], -1))
    scores = [
        torch.einsum("bgrqd,bgkd->bgrqk", grouped, part)
        for part in (past_key, key)
        if part is not None
    ]
    whole, values = joined(past_key, key), joined(past_value, value)
    table = admitted(query, whole, keep, causal=causal)
    table = table.expand(*query.shape[:3], whole.shape[2]).unflatten(1, (key.shape[1], -1))
    weights = soften(torch.cat(scores, dim=-1) * factor(query, scale), table)
    return torch.einsum("bgrqk,bgkv->bgrqv", weights, values).flatten(1, 2)


@core(masks=["lengths", "bias"], features=["kv_cache"])
def slots_by_length(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """How many slots of each item are in use is given as lengths, or in a bias."""
    key, value = joined(past_key, key), joined(past_value, value)
    check(query, key, value)
    keep = None
    if lengths is not None:
        keep = torch.arange(key.shape[2]) < lengths.reshape(-1, 1, 1, 1)
    logits = query @ key.mT / query.shape[-1] ** 0.5
    if bias is not None:
        keep, logits = bias > -torch.inf, logits + bias
        admitted(query, key, keep, causal=False)
    return soften(logits, admitted(query, key, keep, causal=causal)) @ value


@core(features=["window", "softcap", "gqa", "scale", "kv_cache", "weights"], masks=["keep", "bias"])
def everything_at_once(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    return_weights: bool = False,
) -> Any:
    """What a serving kernel has: groups, a window, a softcap, a bias and a cache."""
    key, value = joined(past_key, key), joined(past_value, value)
    check(query, key, value)
    repeated = [
        tensor.unsqueeze(2)
        .expand(-1, -1, query.shape[1] // tensor.shape[1], -1, -1)
        .reshape(query.shape[0], query.shape[1], *tensor.shape[2:])
        for tensor in (key, value)
    ]
    logits = query @ repeated[0].mT * factor(query, scale)
    logits = logits if softcap is None else (logits / softcap).tanh() * softcap
    table = admitted(query, key, keep, causal=causal)
    if bias is not None:
        table = table & admitted(query, key, bias > -torch.inf, causal=False)
        logits = logits + bias
    if window is not None:
        left, right = window
        places = torch.arange(query.shape[2]) + key.shape[2] - query.shape[2]
        ahead = torch.arange(key.shape[2]) - places.unsqueeze(-1)
        near = (ahead >= -left) if left >= 0 else torch.ones_like(ahead, dtype=torch.bool)
        table = table & (near & (ahead <= right) if right >= 0 else near)
    weights = soften(logits, table)
    answer = weights @ repeated[1]
    return (answer, weights) if return_weights else answer


@core(**CACHED, causal="top-left")
def first_new_key_first(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """The diagonal starts at the first new key, as ONNX's Attention has it."""
    held = 0 if past_key is None else past_key.shape[2]
    key, value = joined(past_key, key), joined(past_value, value)
    check(query, key, value)
    table = admitted(query, key, keep, causal=False)
    if causal:
        table = table & torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(held)
    return soften(query @ key.mT * factor(query, scale), table) @ value


LAYER: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "expected_failures": [NAN_SPREADS],
}


class _Decoder:
    """A layer that projects what is new and joins it to the heads that it is given."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        self.weights, self.heads = weights, (geometry.num_heads, geometry.num_kv_heads)

    def _split(self, tokens: Tensor, role: str, heads: int) -> Tensor:
        matrix, bias = getattr(self.weights, role), getattr(self.weights, f"{role}_bias")
        projected: Tensor = functional.linear(tokens, matrix, bias)
        split: Tensor = projected.unflatten(-1, (heads, -1))
        return split.transpose(1, 2)

    def __call__(
        self,
        query: Tensor,
        *context: Tensor,
        keep: Tensor | None = None,
        causal: bool = False,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
    ) -> Tensor:
        """Attend to what is cached and to the new tokens."""
        key_tokens, value_tokens = (
            (*context, query, query)[:2] if len(context) != 1 else context * 2
        )
        if key_tokens.shape[1] != value_tokens.shape[1]:
            msg = f"{key_tokens.shape[1]} keys, {value_tokens.shape[1]} values"
            raise ValueError(msg)
        heads, kv_heads = self.heads
        split_query = self._split(query, "q", heads)
        key = joined(past_key, self._split(key_tokens, "k", kv_heads))
        value = joined(past_value, self._split(value_tokens, "v", kv_heads))
        key, value = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (key, value))
        logits = split_query @ key.mT / split_query.shape[-1] ** 0.5
        mixed = soften(logits, admitted(split_query, key, keep, causal=causal)) @ value
        merged = mixed.transpose(1, 2).flatten(2)
        answer: Tensor = functional.linear(merged, self.weights.o, self.weights.o_bias)
        return answer


decoder_layer = conformance.layer(
    name="decoder_layer", features=["kv_cache", "gqa"], inputs="self", **LAYER
)(_Decoder)

cross_layer_with_cache = conformance.layer(
    name="cross_layer_with_cache", features=["kv_cache"], **LAYER
)(_Decoder)

memory_layer_with_cache = conformance.layer(
    name="memory_layer_with_cache", features=["kv_cache", "gqa"], inputs="memory", **LAYER
)(_Decoder)
