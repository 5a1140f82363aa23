"""Torch modules by the adapter, layers with weights of their own, and position encodings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import conformance
from conformance import ProjectionWeights

from ._kit import NAN_HIDDEN, NAN_SPREADS

WIDTH = 12
HEADS = 3


class SeparateLinears(nn.Module):
    """Four linear maps with common names; a padding mask ``[B, Lk]`` is True at padding."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out_proj = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for linear, x in (
                (self.q_proj, query),
                (self.k_proj, key),
                (self.v_proj, value),
            )
        )
        keep = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        if key.shape[1] != value.shape[1]:  # torch reads past the values
            msg = f"{key.shape[1]} keys, {value.shape[1]} values"
            raise ValueError(msg)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        output: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return output


class PackedLinear(nn.Module):
    """One linear map for query, key and value of the same tokens, causal like a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, causal: bool = False) -> Tensor:
        batch, length, _ = x.shape
        parts = self.c_attn(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        logits = parts[0] @ parts[1].mT / parts[0].shape[-1] ** 0.5
        if causal:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            logits = logits.masked_fill(later, -torch.inf)
        mixed = logits.softmax(-1) @ parts[2]
        output: Tensor = self.c_proj(mixed.permute(0, 2, 1, 3).reshape(batch, length, WIDTH))
        return output


def _seeded(kind: type[nn.Module]) -> nn.Module:
    """A module with the same weights on every import; nobody else's random numbers are used."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return kind().eval()


adapted_linears = conformance.module(
    _seeded(SeparateLinears),
    name="adapted_linears",
    masks=["drop"],
    mask_shapes=["BK"],
    call={"drop": "key_padding_mask"},
    empty_rows="zeros",
    expected_failures=[NAN_SPREADS, NAN_HIDDEN],
)
adapted_packed_linear = conformance.module(
    _seeded(PackedLinear), name="adapted_packed_linear", inputs="self", causal="top-left"
)
adapted_multihead_attention = conformance.module(
    nn.MultiheadAttention,
    name="adapted_multihead_attention",
    expected_failures=[NAN_SPREADS, NAN_HIDDEN],
)


GENERATOR = torch.Generator().manual_seed(11)


def _drawn(rows: int, columns: int) -> Tensor:
    returned: Tensor = torch.randn(rows, columns, generator=GENERATOR) / columns**0.5
    return returned


# A model that is already trained: value heads of another size, no key bias.
OUT = _drawn(8, 15)
BROUGHT = ProjectionWeights(
    q=_drawn(12, 10),
    k=_drawn(12, 7),
    v=_drawn(15, 9),
    o=OUT,
    q_bias=_drawn(12, 1).squeeze(1),
    k_bias=None,
    v_bias=_drawn(15, 1).squeeze(1),
    o_bias=_drawn(8, 1).squeeze(1),
)


def _trained(query: Tensor, key: Tensor, value: Tensor, *, drop: Tensor | None = None) -> Tensor:
    """The layer that these weights belong to; a row without keys is NaN."""
    heads = [
        functional.linear(x, matrix, bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for x, matrix, bias in (
            (query, BROUGHT.q, BROUGHT.q_bias),
            (key, BROUGHT.k, BROUGHT.k_bias),
            (value, BROUGHT.v, BROUGHT.v_bias),
        )
    ]
    logits = heads[0] @ heads[1].mT / 2.0
    if drop is not None:
        logits = logits.masked_fill(drop, -torch.inf)
    merged = (logits.softmax(dim=-1) @ heads[2]).transpose(1, 2).flatten(2)
    return functional.linear(merged, OUT, BROUGHT.o_bias)


brings_its_weights = conformance.fixed_layer(
    _trained,
    BROUGHT,
    num_heads=HEADS,
    name="brings_its_weights",
    masks=["drop"],
    empty_rows="nan",
    expected_failures=[NAN_SPREADS],
)


def _secret(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same layer, which tells nobody its weights."""
    return _trained(query, key, value)


keeps_its_weights = conformance.fixed_layer(
    _secret,
    None,
    num_heads=HEADS,
    name="keeps_its_weights",
    geometry={"query_size": 10, "key_size": 7, "value_size": 9, "output_size": 8},
)


@conformance.positions(max_length=200)
def rotated_positions(x: Tensor) -> Tensor:
    """The sinusoidal encoding as the powers of complex numbers of size one, in float64."""
    width = x.shape[-1]
    rates = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * rates
    turned = torch.polar(torch.ones_like(angles), angles)
    table = torch.stack([turned.imag, turned.real], dim=-1).flatten(-2)
    return x + table.to(x.dtype)
