"""What a layer may do with its values at each step from tokens to answer, right or wrong.

Tokens, matrix, cut into heads, heads for every query head, turn, merge of heads, output matrix:
each step has alternatives, and a path takes one of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, normalize, silu

from ..._golden import golden
from ...base.geometry import PROBE
from ...oracle.oracle import known_weights
from ..mistakes import DeclaredCall, NotExpressible
from ..mistakes._steps import require
from .reading import Number

STEPS: Final = ("tokens", "matrix", "cut", "group", "turn", "merge", "output")


@dataclass(frozen=True, eq=False)
class Alternative:
    """One way to take a step; ``words`` and ``fix`` are clauses, ``change`` depends on the step."""

    step: str
    words: str
    fix: str
    change: Callable[..., Any]


# Some models have one table of weights, and the mean of the heads (Lim et al. 2019).
_AVERAGED: Final = "averaged, and their mean stands for each"
_REARRANGING: Final = frozenset("matrix cut group merge".split())


def misplaces(taken: Alternative) -> bool:
    """Whether a step puts something in another's place, or loses it, and nobody means that."""
    return taken.step in _REARRANGING and not taken.words.endswith(_AVERAGED)


def projected_widths(call: DeclaredCall) -> tuple[int, int]:
    """The width of all value heads as projected, and as merged."""
    sizes = call.inputs.geometry
    return sizes.num_kv_heads * sizes.value_head_size, sizes.num_heads * sizes.value_head_size


def fused_cut(
    packed: Tensor, heads: int, *, by_channel: bool, parts: int = 3
) -> tuple[Tensor, ...]:
    """The rows of each part of a fused matrix ``[parts H D, ..]`` that is read in another order.

    As ``[H, parts, D]``, or ``by_channel`` as ``[H, D, parts]``, where it is ``[parts, H, D]``.
    """
    require(packed.shape[0] % (parts * heads) == 0)
    if by_channel:
        return tuple(packed[part::parts] for part in range(parts))
    split = packed.reshape(heads, parts, -1, *packed.shape[1:])
    return tuple(split[:, part].flatten(0, 1) for part in range(parts))


def _of_layer(call: DeclaredCall, role: str) -> Tensor:
    """A matrix of the layer; NotExpressible where it has none."""
    matrix = getattr(known_weights(call.inputs), role)
    require(matrix is not None)
    return cast("Tensor", matrix)


def _other(role: str) -> Callable[[DeclaredCall], Tensor]:
    return lambda call: _of_layer(call, role)


def _transposed(role: str) -> Callable[[DeclaredCall], Tensor]:
    return lambda call: _of_layer(call, role).T


def identity_of(role: str) -> Callable[[DeclaredCall], Tensor]:
    """The identity in place of a square matrix."""

    def matrix(call: DeclaredCall) -> Tensor:
        own = _of_layer(call, role)
        require(own.shape[0] == own.shape[1])
        return torch.eye(own.shape[0], dtype=own.dtype)

    return matrix


def fused(part: int, *, by_channel: bool) -> Callable[[DeclaredCall], Tensor]:
    """The rows that a part of a fused matrix is made of where it is read in another order."""

    def matrix(call: DeclaredCall) -> Tensor:
        weights = known_weights(call.inputs)
        require(weights.q.shape == weights.k.shape == weights.v.shape)
        packed = torch.cat([weights.q, weights.k, weights.v])
        return fused_cut(packed, call.inputs.geometry.num_heads, by_channel=by_channel)[part]

    return matrix


def other_matrices(role: str) -> Iterator[tuple[str, Callable[[DeclaredCall], Tensor]]]:
    """What may stand for the matrix of a projection, each with a noun phrase."""
    names = {"q": "query", "k": "key", "v": "value", "o": "output"}
    yield "its own matrix transposed", _transposed(role)
    for other, name in names.items():
        if other != role:
            yield f"the matrix of the {name} projection", _other(other)
            yield f"the matrix of the {name} projection transposed", _transposed(other)
    yield "no matrix", identity_of(role)


def cuts() -> Iterator[tuple[str, Callable[[Tensor, int], Tensor]]]:
    """Ways to cut ``[B, L, H * D]`` into ``[B, H, L, D]``, each with what a head is made of."""

    def at(kind: Any) -> Callable[[Tensor, int], Tensor]:
        point = golden.STANDARD.replace(head_split=kind)
        return lambda tokens, heads: golden.split_heads(tokens, heads, point)

    blocks = at("blocks")
    yield "cut so that head h takes every H-th channel from the h-th on", at("interleaved")
    yield "read in memory as [B, H, L, D], without moving an axis", at("reinterpret")
    yield "cut into heads in reversed order", lambda t, heads: blocks(t, heads).flip(1)
    yield "cut into heads that are moved by one", lambda t, heads: blocks(t, heads).roll(1, 1)
    yield "cut into heads with their channels reversed", lambda t, n: blocks(t, n).flip(-1)


def _merges() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    def at(kind: Any) -> Callable[[Tensor], Tensor]:
        point = golden.STANDARD.replace(head_merge=kind)
        return lambda heads: golden.merge_heads(heads, point)

    blocks = at("blocks")
    yield (
        "put together channel by channel: channel d of head h goes to d * H + h",
        at("interleaved"),
    )
    yield "read in memory as [B, L, H * D], without moving the heads back", at("reinterpret")
    yield "put together in reversed order", lambda heads: blocks(heads.flip(1))
    yield "put together moved by one head", lambda heads: blocks(heads.roll(1, 1))
    for words, step in (("behind", 1), ("ahead of", -1)):
        yield (
            f"put together with each channel one place {words} its own",
            _rolled(step),
        )
    yield "put together with the channels of each reversed", lambda heads: blocks(heads.flip(-1))
    yield "put together as if [B, H, L, D] were [H, B, L, D]", _merged_as_items
    for words, lost in (("first", slice(0, 1)), ("last", slice(-1, None))):
        yield f"put together with zeros in place of the {words} one", _without_head(lost)
    yield (
        "the first one, which stands for each",
        lambda heads: blocks(heads[:, :1].expand_as(heads)),
    )
    yield (
        _AVERAGED,
        lambda heads: blocks(heads.mean(1, keepdim=True).expand_as(heads)),
    )
    yield (
        "summed, and their sum stands for each",
        lambda heads: blocks(heads.sum(1, keepdim=True).expand_as(heads)),
    )


def _rolled(step: int) -> Callable[[Tensor], Tensor]:
    return lambda heads: golden.merge_heads(heads, golden.STANDARD).roll(step, -1)


def _merged_as_items(heads: Tensor) -> Tensor:
    batch, count, length, size = heads.shape
    return heads.permute(1, 2, 0, 3).reshape(batch, length, count * size)


def _without_head(lost: slice) -> Callable[[Tensor], Tensor]:
    def merge(heads: Tensor) -> Tensor:
        kept = heads.clone()
        kept[:, lost] = 0.0
        return golden.merge_heads(kept, golden.STANDARD)

    return merge


# Heads ``[B, H, L, D]`` of an answer that may be mixed with those of another item or head.
MIXED: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("their mean over the batch items", lambda heads: heads.mean(0, keepdim=True)),
    ("those of the first batch item", lambda heads: heads[:1]),
    ("those of the batch item before", lambda heads: heads.roll(1, 0)),
    ("those of the batch item after", lambda heads: heads.roll(-1, 0)),
    ("their mean over the heads", lambda heads: heads.mean(1, keepdim=True)),
    ("the first head", lambda heads: heads[:, :1]),
    ("the head before", lambda heads: heads.roll(1, 1)),
    ("the head after", lambda heads: heads.roll(-1, 1)),
)


def mixed(
    words: str, change: Callable[[Tensor], Tensor], own: Number, other: Number
) -> Alternative:
    """Heads of the answer that are mixed with those of another item or head."""

    def merge(heads: Tensor) -> Tensor:
        sizes = PROBE.replace(batch=heads.shape[0], num_heads=heads.shape[1])
        both = own.value(sizes) * heads + other.value(sizes) * change(heads)
        return golden.merge_heads(both, golden.STANDARD)

    return Alternative(
        "merge",
        f"the heads of the answer are {own.words} times themselves and {other.words} times {words}",
        "return the answer of each head and batch item as it is",
        merge,
    )


def reading_from(sources: Mapping[int, int]) -> Alternative:
    """Query heads that read the values of another key/value head; negative ones from the end."""

    def group(value: Tensor, heads: int) -> Tensor:
        grouped = golden.repeat_heads(value, heads, golden.STANDARD).clone()
        for reader, source in sources.items():
            if max(reader, ~reader) < heads and max(source, ~source) < value.shape[1]:
                grouped[:, reader] = value[:, source]
        return grouped

    words = ", ".join(
        f"query head {one} meets the values of key/value head {other}"
        for one, other in sources.items()
    )
    if min(*sources, *sources.values()) < 0:
        words += ", counted from the end where negative"
    return Alternative(
        "group",
        words,
        "let head h read the values of key/value head h // group",
        group,
    )


def from_one_head(reader: int, source: int) -> Alternative:
    """The values of one key/value head for one query head, and zeros for all others."""

    def group(value: Tensor, heads: int) -> Tensor:
        grouped = value.new_zeros(value.shape[0], heads, *value.shape[2:])
        grouped[:, reader] = value[:, source]
        return grouped

    return Alternative("group", "", "", group)


def groups(name: str) -> Iterator[tuple[str, Callable[[Tensor, int], Tensor]]]:
    """Ways to give each query head its values or keys, the plural of which is ``name``."""
    tiled = golden.STANDARD.replace(group_order="tile")
    yield (
        f"{name} of key/value head h modulo their number in head h",
        lambda value, heads: golden.repeat_heads(value, heads, tiled),
    )
    yield (
        f"{name} of the first key/value head in all heads",
        lambda value, heads: value[:, :1].expand(-1, heads, -1, -1),
    )
    yield (
        f"{name} of the last key/value head in all heads",
        lambda value, heads: value[:, -1:].expand(-1, heads, -1, -1),
    )
    yield (
        f"{name} averaged over all key/value heads in all heads",
        lambda value, heads: value.mean(1, keepdim=True).expand(-1, heads, -1, -1),
    )


def _turned_by(factor: float, **point_changes: Any) -> Callable[[Tensor, DeclaredCall], Tensor]:
    def turned(value: Tensor, call: DeclaredCall) -> Tensor:
        point = call.semantics.replace(**point_changes)
        require(call.semantics.rotary != "none")
        require(golden.rotary_size(value.shape[-1], point) > 0)
        return golden.rotate_heads(value, factor * torch.arange(value.shape[-2]), point)

    return turned


def _normed(kind: str) -> Callable[[Tensor], Tensor]:
    def norm(tokens: Tensor) -> Tensor:
        tokens = tokens.double()
        if kind == "layer":
            return layer_norm(tokens, tokens.shape[-1:])
        if kind == "rms":
            return tokens / (tokens.square().mean(-1, keepdim=True) + _EPSILON).sqrt()
        if kind == "softmax":
            return tokens.softmax(-1)
        return normalize(tokens, dim=-1)

    return norm


def _activated(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, DeclaredCall], Tensor]:
    return lambda value, _call: function(value)


# What norms are usually kept from dividing by zero with.
_EPSILON: Final = 1e-6


# What tokens may be before they are projected.
_NORMS: Final = (
    ("layer", "normalised to mean 0 and variance 1"),
    ("rms", "divided by the root of its mean square"),
    ("length", "divided by its length"),
    ("softmax", "replaced by its softmax"),
)
# No declaration holds a norm of the tokens: it belongs to the block around the attention.
_AS_GIVEN: Final = (
    "project the tokens as they are given; if the norm is meant, it cannot be declared: check the "
    "attention without it, as with module.norm = torch.nn.Identity()"
)
NORMS: Final = tuple((words.replace("its", "their"), _normed(kind)) for kind, words in _NORMS)


def _alternatives() -> Iterator[Alternative]:
    for kind, words in _NORMS:
        yield Alternative(
            "tokens",
            f"each token of the input is {words} before it is projected",
            _AS_GIVEN,
            _normed(kind),
        )
    for words, matrix in (*other_matrices("v"), *_fused_of_value()):
        yield Alternative(
            "matrix",
            f"values are projected by {words}",
            "multiply values by the matrix of the value projection, (out, in), as nn.Linear does",
            matrix,
        )
    for words, cut in cuts():
        yield Alternative(
            "cut",
            f"projected values are {words}",
            "view the projected values as [B, L, H, D], then exchange L and H",
            cut,
        )
    for words, group in groups("values"):
        yield Alternative(
            "group",
            f"the weights meet the {words}",
            "let head h read the values of key/value head h // group",
            group,
        )
    for words, turn in (
        ("", _turned_by(1.0)),
        (", backwards", _turned_by(-1.0)),
        (", doubled", _turned_by(2.0)),
        (", channels 2i and 2i + 1 together", _turned_by(1.0, rotary="interleaved")),
        (", channels i and i + R/2 together", _turned_by(1.0, rotary="halves")),
    ):
        yield Alternative(
            "turn",
            f"values are turned by the angles of their positions, too{words}",
            "turn queries and keys alone",
            turn,
        )
    for words, norm in NORMS:
        yield Alternative(
            "turn",
            f"the values of each head are {words}",
            "normalise queries and keys alone, if any",
            lambda value, _call, norm=norm: norm(value),
        )
    for words, activation in (
        ("the positive part", torch.relu),
        ("the GELU", gelu),
        ("the SiLU", silu),
        ("the hyperbolic tangent", torch.tanh),
    ):
        yield Alternative(
            "turn",
            f"the weights meet {words} of the values",
            "weigh the projected values as they are",
            _activated(activation),
        )
    for words, merge in _merges():
        yield Alternative(
            "merge",
            f"the heads of the answer are {words}",
            "exchange H and L of [B, H, L, D], then put the heads side by side",
            merge,
        )
    for words, matrix in other_matrices("o"):
        yield Alternative(
            "output",
            f"the merged heads are projected by {words}",
            "multiply the merged heads by the matrix of the output projection, (out, in)",
            matrix,
        )


def _fused_of_value() -> Iterator[tuple[str, Callable[[DeclaredCall], Tensor]]]:
    yield "rows of a fused matrix that is read head by head", fused(2, by_channel=False)
    yield "rows of a fused matrix that is read channel by channel", fused(2, by_channel=True)


def biases() -> Iterator[tuple[str, Callable[[DeclaredCall], Tensor | None]]]:
    """What may be added in place of the bias of the value projection, its own first."""

    def of(role: str) -> Callable[[DeclaredCall], Tensor | None]:
        def bias(call: DeclaredCall) -> Tensor | None:
            weights = known_weights(call.inputs)
            given: Tensor | None = getattr(weights.taking_part(call.semantics), f"{role}_bias")
            require(given is None or given.shape[0] == weights.v.shape[0])
            return given

        return bias

    yield "", of("v")
    yield "the bias of the query projection", of("q")
    yield "the bias of the key projection", of("k")
    yield "rows of a fused bias that is read head by head", fused_bias(2, by_channel=False)
    yield "rows of a fused bias that is read channel by channel", fused_bias(2, by_channel=True)


def fused_bias(part: int, *, by_channel: bool) -> Callable[[DeclaredCall], Tensor | None]:
    """What a part of a fused bias is made of where it is read in another order."""

    def bias(call: DeclaredCall) -> Tensor | None:
        weights = known_weights(call.inputs)
        given = [one for one in (weights.q_bias, weights.k_bias, weights.v_bias) if one is not None]
        if not given:
            return None
        require(len({one.shape for one in given}) == 1 and len(given) == len("qkv"))
        packed = torch.cat(given).double()
        return fused_cut(packed, call.inputs.geometry.num_heads, by_channel=by_channel)[part]

    return bias


ALTERNATIVES: Final = tuple(_alternatives())
BIASES: Final = dict(biases())


@dataclass(frozen=True)
class Steps:
    """One way to take every step: the alternatives that are wrong, the rest as declared."""

    wrong: tuple[Alternative, ...] = ()

    def of(self, step: str) -> Alternative | None:
        """The alternative that is taken for a step; None where it is right."""
        return next((one for one in self.wrong if one.step == step), None)

    def changed(self, *steps: str) -> bool:
        """Whether any of some steps is wrong."""
        return any(self.of(step) for step in steps)

    def matrices(self, call: DeclaredCall) -> tuple[Tensor, Tensor | None]:
        """The matrices of the value and output projections; NotExpressible for other shapes."""
        weights = known_weights(call.inputs)
        own, out = self.of("matrix"), self.of("output")
        value = weights.v if own is None else own.change(call)
        require(value is not None and value.shape == weights.v.shape)
        if weights.o is None:
            require(out is None)
            return value, None
        output = weights.o if out is None else out.change(call)
        require(output is not None and output.shape == weights.o.shape)
        return value, output

    def tokens(self, call: DeclaredCall) -> Tensor:
        """The tokens of the values as they are projected."""
        norm = self.of("tokens")
        return call.inputs.value if norm is None else norm.change(call.inputs.value)

    def heads(self, call: DeclaredCall, projected: Tensor) -> Tensor:
        """Projected values ``[B, L, width]`` as the heads ``[B, H, L, D]`` that queries read."""
        sizes, point = call.inputs.geometry, call.semantics
        cut, group, turn = self.of("cut"), self.of("group"), self.of("turn")
        if cut is None:
            value = golden.split_heads(projected, sizes.num_kv_heads, point)
        else:
            value = cut.change(projected, sizes.num_kv_heads)
        if turn is not None:
            value = turn.change(value, call)
        if group is None:
            return golden.repeat_heads(value, sizes.num_heads, point)
        grouped: Tensor = group.change(value, sizes.num_heads)
        return grouped

    def merged(self, call: DeclaredCall, output: Tensor) -> Tensor:
        """Heads ``[B, H, L, D]`` of the answer side by side."""
        merge = self.of("merge")
        if merge is None:
            return golden.merge_heads(output, call.semantics)
        merged: Tensor = merge.change(output)
        return merged

    def answer(
        self, call: DeclaredCall, weights: Tensor, bias: Tensor | None = None, *, zero: bool = False
    ) -> Tensor:
        """The answer without the output bias where the values meet some weights.

        ``zero`` leaves the tokens out: what a bias of the value projection alone makes.
        """
        value, output = self.matrices(call)
        tokens = self.tokens(call)
        projected = golden.project(torch.zeros_like(tokens) if zero else tokens, value, bias)
        merged = self.merged(call, weights @ self.heads(call, projected))
        if merged.shape[-1] != projected_widths(call)[1]:
            raise NotExpressible
        return merged if output is None else golden.project(merged, output, None)
