"""Candidates with every kind of promise that problems must obey; none of them is ever called."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

import conformance
from conformance.base.geometry import Geometry
from conformance.declare.candidate import Candidate

MASKS: Final = ["keep", "bias", "lengths"]
WIDTHS: Final = {"query_size": 8, "key_size": 8, "value_size": 8, "output_size": 8}


def never(*_arguments: object, **_keywords: object) -> Tensor:
    """What none of these tests calls."""
    raise AssertionError


def square_heads(geometry: Geometry) -> Geometry:
    """As a module that splits its width among the heads."""
    width = geometry.num_heads * geometry.head_size
    return geometry.replace(
        num_kv_heads=geometry.num_heads,
        value_head_size=geometry.head_size,
        query_size=width,
        key_size=width,
        value_size=width,
        output_size=width,
    )


def core(**promises: Any) -> Candidate:
    """A core with masks."""
    made: Candidate = conformance.core(**{"masks": MASKS, **promises})(never)
    return made


def layer(**promises: Any) -> Candidate:
    """A layer with masks."""
    made: Candidate = conformance.layer(**{"masks": MASKS, **promises})(never)
    return made


def weights(heads: int, kv_heads: int) -> conformance.ProjectionWeights:
    """Weights of heads of sizes 3 and 2."""
    return conformance.ProjectionWeights(
        q=torch.ones(3 * heads, 5),
        k=torch.ones(3 * kv_heads, 6),
        v=torch.ones(2 * kv_heads, 7),
        o=torch.ones(4, 2 * heads),
    )


EVERYTHING: Final = ["gqa", "scale", "softcap", "window", "dropout", "weights"]
CANDIDATES: Final[dict[str, Candidate]] = {
    "core": core(),
    "core with everything": core(causal="bottom-right", features=EVERYTHING),
    "core without masks": core(masks=[]),
    "core of few shapes": core(masks=["lengths", "drop"], mask_shapes=["BQ", "11QK"]),
    "core of one head size": core(geometry={"head_size": 64, "value_head_size": "head_size"}),
    "core of listed heads": core(features=["gqa"], geometry={"num_heads": [1, 8]}),
    "core of two kv heads": core(geometry={"num_kv_heads": 2}),
    "core of two kv heads with gqa": core(features=["gqa"], geometry={"num_kv_heads": 2}),
    "core of listed lengths": core(geometry={"key_length": [1, 16, 32], "batch": [1, 5]}),
    "core of one query length": core(causal="top-left", geometry={"query_length": 4}),
    "core of two lengths": core(causal="top-left", geometry={"query_length": 4, "key_length": 7}),
    "core of twice the same lengths": core(
        features=["window"], geometry={"query_length": [4, 8], "key_length": [4, 8]}
    ),
    "core of short lengths": core(features=["window"], max_length=5),
    "core of equal lengths": core(causal="top-left", geometry={"key_length": "query_length"}),
    "unbatched core": core(batched=False),
    "layer": layer(causal="bottom-right"),
    "layer with gqa": layer(features=["gqa", "scale"]),
    "layer of square heads": layer(geometry=square_heads),
    "layer without cross": layer(without=["cross"], causal="top-left"),
    "layer of itself": layer(inputs="self"),
    "layer of itself, query width pinned": layer(inputs="self", geometry={"query_size": 12}),
    "layer of itself, value width pinned": layer(inputs="self", geometry={"value_size": 10}),
    "layer of itself, query length pinned": layer(inputs="self", geometry={"query_length": 6}),
    "layer of a memory": layer(inputs="memory"),
    "layer of a memory, value width pinned": layer(inputs="memory", geometry={"value_size": 10}),
    "unbatched layer": layer(inputs="self", batched=False),
    "positioned layer": layer(inputs="self", position="sinusoidal"),
    "positions": conformance.positions(max_length=9)(lambda x: x),
    "positions of one width": conformance.positions(max_length=5, geometry={"key_size": 16})(
        lambda x: x
    ),
    "fixed layer": conformance.fixed_layer(never, weights(4, 4), num_heads=4, masks=MASKS),
    "fixed layer with groups": conformance.fixed_layer(
        never, weights(4, 2), num_heads=4, masks=MASKS, without=["cross"]
    ),
    "fixed layer of unknown weights": conformance.fixed_layer(
        never, None, num_heads=2, masks=MASKS, inputs="self", geometry=WIDTHS
    ),
}
