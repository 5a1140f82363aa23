"""What the exporters must be told of each module: its inputs and outputs, axis by axis."""

from __future__ import annotations

from typing import Final

from torch import nn

from . import sources
from ._describing import Input, Source

WIDTH: Final = sources.WIDTH
HEADS: Final = sources.NUM_HEADS


def _source(
    name: str,
    module: nn.Module,
    *inputs: Input,
    output: tuple[str | int, ...],
    weights: tuple[str | int, ...] = (),
) -> Source:
    outputs = {"output": output, **({"weights": weights} if weights else {})}
    return Source(name=name, module=module, inputs=inputs, outputs=outputs)


def _tokens(query: int = WIDTH, key: int = WIDTH, value: int = WIDTH) -> tuple[Input, ...]:
    return (
        Input(name="query", axes=("batch", "queries", query)),
        Input(name="key", axes=("batch", "keys", key)),
        Input(name="value", axes=("batch", "keys", value)),
    )


LENGTH_FIRST: Final = tuple(
    Input(name=name, axes=(length, "batch", WIDTH))
    for name, length in (("query", "queries"), ("key", "keys"), ("value", "keys"))
)
ONE: Final = Input(name="x", axes=("batch", "tokens", WIDTH))
PADDING: Final = Input(name="padding", axes=("batch", "keys"), kind="drop")
OWN_PADDING: Final = Input(name="padding", axes=("batch", "tokens"), kind="drop")
OUTPUT: Final = ("batch", "queries", WIDTH)
OWN_OUTPUT: Final = ("batch", "tokens", WIDTH)
AVERAGED: Final = ("batch", "queries", "keys")

VARIANTS: Final = (
    _source(
        "token_attention",
        sources.token_attention,
        Input(name="x", axes=("batch", "tokens", 10)),
        output=("batch", "tokens", 10),
    ),
    _source(
        "per_head_matrices",
        sources.per_head_matrices,
        Input(name="x", axes=("tokens", 3)),
        output=("rows", 2),
    ),
    _source(
        "unbatched_attention",
        sources.unbatched_attention,
        Input(name="x", axes=("tokens", 6)),
        output=("tokens", 6),
    ),
    _source(
        "valid_length_attention",
        sources.valid_length_attention,
        *_tokens(6, 7, 9),
        Input(name="lengths", axes=("batch",), kind="lengths"),
        output=OUTPUT,
    ),
    _source(
        "wide_head_attention",
        sources.wide_head_attention,
        *_tokens(6, 7, 9),
        output=("batch", "queries", 8),
    ),
    _source(
        "masked_attention",
        sources.masked_attention,
        *_tokens(),
        Input(name="mask", axes=("batch", 1, 1, "keys"), kind="keep"),
        output=OUTPUT,
    ),
)
# The same modules called another way: each query its own length, or no mask at all.
VARIANTS_OTHERWISE: Final = (
    _source(
        "valid_length_attention",
        sources.valid_length_attention,
        *_tokens(6, 7, 9),
        Input(name="lengths", axes=("batch", "queries"), kind="lengths"),
        output=OUTPUT,
    ),
    _source("masked_attention", sources.masked_attention, *_tokens(), output=OUTPUT),
)

OWN: Final = (
    _source("own", sources.own, ONE, output=OWN_OUTPUT),
    _source(
        "own_weights",
        sources.own_weights,
        ONE,
        output=OWN_OUTPUT,
        weights=("batch", "tokens", "tokens"),
    ),
    _source("own_padding", sources.own_padding, ONE, OWN_PADDING, output=OWN_OUTPUT),
    _source(
        "own_bias",
        sources.own_bias,
        ONE,
        Input(name="bias", axes=("tokens", "tokens"), kind="bias"),
        output=OWN_OUTPUT,
    ),
    _source(
        "own_length_first",
        sources.own_length_first,
        Input(name="x", axes=("tokens", "batch", WIDTH)),
        output=("tokens", "batch", WIDTH),
    ),
    _source("own_no_bias", sources.own_no_bias, ONE, output=OWN_OUTPUT),
)
CROSS: Final = (
    _source("cross", sources.cross, *_tokens(), output=OUTPUT),
    _source("cross_weights", sources.cross_weights, *_tokens(), output=OUTPUT, weights=AVERAGED),
    _source("cross_padding", sources.cross_padding, *_tokens(), PADDING, output=OUTPUT),
    _source(
        "cross_padding_weights",
        sources.cross_padding_weights,
        *_tokens(),
        PADDING,
        output=OUTPUT,
        weights=AVERAGED,
    ),
    _source(
        "cross_bias",
        sources.cross_bias,
        *_tokens(),
        Input(name="bias", axes=("queries", "keys"), kind="bias"),
        output=OUTPUT,
    ),
    _source(
        "cross_drop",
        sources.cross_drop,
        *_tokens(),
        Input(name="drop", axes=("queries", "keys"), kind="drop"),
        output=OUTPUT,
    ),
    _source("cross_widths", sources.cross_widths, *_tokens(WIDTH, 7, 5), output=OUTPUT),
    _source(
        "cross_length_first",
        sources.cross_length_first,
        *LENGTH_FIRST,
        output=("queries", "batch", WIDTH),
    ),
    _source(
        "cross_length_first_padding",
        sources.cross_length_first_padding,
        *LENGTH_FIRST,
        PADDING,
        output=("queries", "batch", WIDTH),
        weights=AVERAGED,
    ),
)
SOURCES: Final = (*VARIANTS, *VARIANTS_OTHERWISE, *OWN, *CROSS)
