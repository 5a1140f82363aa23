"""Rotary positions in the styles of LLaMA, GPT-NeoX, GPT-J and others; with groups and masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import conformance
from conformance import Geometry, ProjectionWeights, Semantics

from ._kit import NAN_HIDDEN, NAN_SPREADS, admitted, core, heads_of, joined, soften

HALVES = Semantics(rotary="halves")
INTERLEAVED = Semantics(rotary="interleaved")
Turn = Callable[[Tensor, Tensor], Tensor]


def places(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Where queries and keys stand: the last query at the last key."""
    length = key.shape[-2]
    return torch.arange(length - query.shape[-2], length), torch.arange(length)


def frequencies(size: int, base: float = 10000.0) -> Tensor:
    """The usual ``inv_freq`` in float32."""
    return 1.0 / base ** (torch.arange(0, size, 2).float() / max(size, 1))


def attention(query: Tensor, key: Tensor, value: Tensor, table: Tensor, scale: float) -> Tensor:
    """Eager attention whose groups share keys and values."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    return soften(query @ key.mT * scale, table) @ value


def rotate_half(x: Tensor) -> Tensor:
    """GPT-NeoX: the halves exchanged, the second one negated."""
    one, two = x.chunk(2, dim=-1)
    return torch.cat((-two, one), dim=-1)


def by_halves(x: Tensor, place: Tensor) -> Tensor:
    """Tables in float32, stored in the dtype of the heads."""
    whole = x.shape[-1] // 2 * 2
    angles = torch.outer(place.float(), frequencies(whole))
    cosine, sine = (torch.cat((t, t), -1).to(x.dtype) for t in (angles.cos(), angles.sin()))
    head = x[..., :whole]
    return torch.cat((head * cosine + rotate_half(head) * sine, x[..., whole:]), dim=-1)


@core(semantics=HALVES, features=["scale", "gqa"])
def by_rotating_halves(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The tables of LLaMA in transformers."""
    table = admitted(query, key, keep, causal=causal)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    here, there = places(query, key)
    return attention(by_halves(query, here), by_halves(key, there), value, table, factor)


def scaled_core(semantics: Semantics, scaled: Callable[[int], Tensor]) -> Any:
    """Halves that turn by other frequencies, whose tables are multiplied by an amplitude."""

    def turn(x: Tensor, place: Tensor) -> Tensor:
        angles = torch.outer(place.float(), scaled(x.shape[-1] // 2 * 2))
        tables = (torch.cat((t, t), -1) for t in (angles.cos(), angles.sin()))
        cosine, sine = ((semantics.rotary_amplitude * t).to(x.dtype) for t in tables)
        head, rest = x[..., : cosine.shape[-1]], x[..., cosine.shape[-1] :]
        return torch.cat((head * cosine + rotate_half(head) * sine, rest), dim=-1)

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        table = admitted(query, key, keep, causal=causal)
        here, there = places(query, key)
        scale = query.shape[-1] ** -0.5
        return attention(turn(query, here), turn(key, there), value, table, scale)

    word = str((semantics.rotary_scaling or ("unscaled",))[0])
    return core(semantics=semantics, features=["gqa"], name=f"scaled_by_{word}")(attend)


def by_ramp(size: int) -> Tensor:
    """YaRN's frequencies, as transformers computes them."""

    def pair(times: float) -> float:
        return size * math.log(64 / (times * 2 * math.pi)) / (2 * math.log(10000.0))

    low, high = max(math.floor(pair(8.0)), 0), min(math.ceil(pair(1.0)), size - 1)
    ramp = (torch.arange(size // 2).float() - low) / (high - low or 0.001)
    kept = 1.0 - ramp.clamp(0.0, 1.0)
    return frequencies(size) / 4.0 * (1.0 - kept) + frequencies(size) * kept


def by_wavelength(size: int) -> Tensor:
    """Llama 3's frequencies, as its own code computes them."""
    made = []
    for one in frequencies(size):
        length = 2 * math.pi / one
        smooth = (64 / length - 1.0) / (4.0 - 1.0)
        slow = one / 8.0 if length > 64 / 1.0 else (1.0 - smooth) * one / 8.0 + smooth * one
        made.append(one if length < 64 / 4.0 else slow)
    return torch.stack(made) if made else torch.zeros(0)


in_yarn = scaled_core(
    HALVES.replace(rotary_scaling=("yarn", 4.0, 8.0, 1.0, 64), rotary_amplitude=1.1386), by_ramp
)
in_llama3 = scaled_core(HALVES.replace(rotary_scaling=("llama3", 8.0, 1.0, 4.0, 64)), by_wavelength)
in_line = scaled_core(
    HALVES.replace(rotary_scaling=("linear", 4.0)), lambda size: frequencies(size) / 4.0
)
by_larger_base = scaled_core(
    HALVES.replace(rotary_scaling=("ntk", 4.0)),
    lambda size: frequencies(size, 10000.0 * 4.0 ** (size / max(size - 2, 1))),
)


def as_complex(x: Tensor, place: Tensor) -> Tensor:
    """Pairs of neighbours are complex numbers, multiplied by others of size one."""
    whole = x.shape[-1] // 2 * 2
    numbers = torch.view_as_complex(x[..., :whole].float().unflatten(-1, (-1, 2)).contiguous())
    angles = torch.outer(place.float(), frequencies(whole))
    turned = torch.view_as_real(numbers * torch.polar(torch.ones_like(angles), angles))
    return torch.cat((turned.flatten(-2).to(x.dtype), x[..., whole:]), dim=-1)


@core(semantics=INTERLEAVED, features=["gqa", "scale"], strides="contiguous")
def by_complex_numbers(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """LLaMA's own code; pairs at an odd offset are no complex numbers, which torch refuses."""
    table = admitted(query, key, keep, causal=causal)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    here, there = places(query, key)
    return attention(as_complex(query, here), as_complex(key, there), value, table, factor)


@core(
    semantics=Semantics(rotary="interleaved", rotary_fraction=0.5, rotary_base=500.0),
    masks=["bias", "lengths"],
    features=["scale", "softcap"],
)
def part_of_the_channels(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """GPT-J turns the first channels only, and duplicates its tables entry by entry."""
    turning = int(query.shape[-1] * 0.5) // 2 * 2

    def turn(x: Tensor, place: Tensor) -> Tensor:
        angles = torch.outer(place.float(), frequencies(turning, 500.0)).repeat_interleave(2, -1)
        head = x[..., :turning]
        other = torch.stack((-head[..., 1::2], head[..., ::2]), dim=-1).flatten(-2)
        turned = head * angles.cos().to(x.dtype) + other * angles.sin().to(x.dtype)
        return torch.cat((turned, x[..., turning:]), dim=-1)

    here, there = places(query, key)
    keep = None
    if lengths is not None:
        keep = there < lengths[:, None, None, None]
    table = admitted(query, key, keep, causal=causal)
    logits = turn(query, here) @ turn(key, there).mT
    logits = logits * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits, table = logits + bias, table & ~torch.isneginf(bias)
    return soften(logits, table) @ value


@core(semantics=HALVES, causal="top-left", features=[])
def by_distances(
    query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None, causal: bool = False
) -> Tensor:
    """No head is turned: each pair of tokens meets the sine and cosine of their distance."""
    whole = query.shape[-1] // 2 * 2
    half = whole // 2
    distance = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None]
    angles = distance[..., None].float() * frequencies(whole)
    cosine, sine = angles.cos().to(query.dtype), angles.sin().to(query.dtype)
    q1, q2, q3 = query[..., :half], query[..., half:whole], query[..., whole:]
    k1, k2, k3 = key[..., :half], key[..., half:whole], key[..., whole:]

    def products(one: Tensor, two: Tensor, by: Tensor) -> Tensor:
        return torch.einsum("bhqc,bhkc,qkc->bhqk", one, two, by)

    scores = products(q1, k1, cosine) + products(q2, k2, cosine) + q3 @ k3.mT
    scores = scores + products(q2, k1, sine) - products(q1, k2, sine)
    table = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    table = table.tril() if causal else table
    table = table if keep is None else table & keep
    return soften(scores / query.shape[-1] ** 0.5, table) @ value


@core(
    semantics=HALVES,
    always_causal=True,
    features=["gqa"],
    masks=[],
    expected_failures=[NAN_HIDDEN],
)
def by_torch_kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Turned heads in torch's own kernel."""
    here, there = places(query, key)
    table = admitted(query, key, None, causal=True)
    answer = functional.scaled_dot_product_attention(
        by_halves(query, here), by_halves(key, there), value, attn_mask=table, enable_gqa=True
    )
    return answer.nan_to_num(nan=0.0)


@conformance.layer(
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["gqa"],
    inputs="self",
    semantics=HALVES,
    expected_failures=[NAN_SPREADS],
)
def rotary_layer(geometry: Geometry, weights: ProjectionWeights) -> Callable[..., Tensor]:
    """Self-attention whose queries and keys are turned behind their projections."""

    def forward(x: Tensor, *, keep: Tensor | None = None, causal: bool = False) -> Tensor:
        query = heads_of(x, weights, "q", geometry.num_heads)
        key, value = (heads_of(x, weights, role, geometry.num_kv_heads) for role in "kv")
        place = torch.arange(x.shape[1])
        table = admitted(query, key, keep, causal=causal)
        turned = by_halves(query, place), by_halves(key, place)
        mixed = attention(*turned, value, table, geometry.head_size**-0.5)
        return joined(mixed, weights)

    return forward


@conformance.layer(
    masks=["bias"],
    causal="bottom-right",
    empty_rows="zeros",
    semantics=Semantics(rotary="interleaved", qk_norm="rms"),
    expected_failures=[NAN_SPREADS],
)
def normalised_rotary_layer(geometry: Geometry, weights: ProjectionWeights) -> Callable[..., Any]:
    """Heads are normalised, then turned, as in Qwen 3; queries may be fewer than keys."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        bias: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        given = zip("qkv", (query, key, value), strict=True)
        q, k, v = (heads_of(x, weights, role, geometry.num_heads) for role, x in given)
        size = (geometry.head_size,)
        q, k = functional.rms_norm(q, size, eps=1e-6), functional.rms_norm(k, size, eps=1e-6)
        here, there = places(q, k)
        logits = as_complex(q, here) @ as_complex(k, there).mT / geometry.head_size**0.5
        table = admitted(q, k, None, causal=causal)
        if bias is not None:
            logits, table = logits + bias, table & ~torch.isneginf(bias)
        mixed = soften(logits, table) @ v
        return joined(mixed, weights)

    return forward
