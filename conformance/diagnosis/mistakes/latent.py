"""Mistakes of a key that holds the value: its first channels, with others behind them."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from .named_mistake import NamedMistake, fixing

Edit = golden.Edit
_PRIMARY: Final = "numerics.golden"


def _has_more_channels(inputs: Inputs) -> bool:
    """Whether keys hold the values and further channels."""
    sizes = inputs.geometry
    held = not inputs.is_layer and inputs.mode == "memory"
    return held and sizes.head_size > sizes.value_head_size


def _last_channels(value: Tensor, given_key: Tensor) -> Tensor:
    return given_key[..., given_key.shape[-1] - value.shape[-1] :]


def _first_query(query: Tensor, sizes: golden.Sizes) -> Tensor:
    first = query[..., :1, :, sizes.value_head_size :].expand_as(
        query[..., sizes.value_head_size :]
    )
    return torch.cat([query[..., : sizes.value_head_size], first], dim=-1)


def _products(query: Tensor, key: Tensor, part: slice) -> Tensor:
    return query[..., part] @ key[..., part].mT


def _value_products(query: Tensor, key: Tensor, sizes: golden.Sizes) -> Tensor:
    return _products(query, key, slice(0, sizes.value_head_size))


def _further_products(query: Tensor, key: Tensor, sizes: golden.Sizes) -> Tensor:
    return _products(query, key, slice(sizes.value_head_size, None))


def _scaled_once(
    scores: Tensor, query: Tensor, key: Tensor, sizes: golden.Sizes, scale: float
) -> Tensor:
    behind = _products(query, key, slice(sizes.value_head_size, None))
    return scores + (1.0 - scale) * behind


_named = fixing(
    "multiply all channels of the query with all channels of the latent, and scale the sum",
    primary=_PRIMARY,
    needs="latent",
    where=_has_more_channels,
)
_HEADS: Final = ("query", "key", "sizes")
LATENT: Final[tuple[NamedMistake, ...]] = (
    *_named("value-of-last-channels", fix="take the first channels of the latent for the value")(
        "the value is the last channels of the latent",
        Edit("value_heads", change=golden.Rewired(_last_channels, ("", "given_key"))),
    ),
    *_named("products-of-value-channels")(
        "the products leave out the channels of the latent behind the value",
        Edit("products", golden.Rewired(_value_products, _HEADS)),
    ),
    *_named("products-behind-value")(
        "the products leave out the channels of the latent that are the value",
        Edit("products", golden.Rewired(_further_products, _HEADS)),
    ),
    *_named("products-behind-value-unscaled")(
        "the products of the channels behind the value are not scaled",
        Edit("scores", change=golden.Rewired(_scaled_once, ("", *_HEADS, "scale"))),
    ),
    *_named("products-behind-value-of-first-head")(
        "the channels behind the value meet those of the first head's query in all heads",
        Edit("query", change=golden.Rewired(_first_query, ("", "sizes"))),
    ),
)
