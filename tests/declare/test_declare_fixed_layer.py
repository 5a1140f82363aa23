"""A layer that brings its weights is pinned by them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fixed_layers import forward, weights
from refusals import refused
from torch import Tensor

import conformance
from conformance.errors import DeclarationError


def test_fixed_layer_is_pinned_by_its_weights() -> None:
    """Widths and heads of a layer that brings weights are those of the weights."""
    made = conformance.fixed_layer(forward, weights(), num_heads=4)
    pinned = {name: found[0] for name, found in made.declaration.pins.sizes.items()}
    assert pinned == {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_size": 3,
        "value_head_size": 5,
        "query_size": 7,
        "key_size": 8,
        "value_size": 9,
        "output_size": 11,
    }
    assert made.golden_known
    assert not made.draws_weights
    assert made.function(None, None) is forward
    assert made.name == "forward"


def test_fixed_layer_without_output_projection() -> None:
    """Without an output matrix the output is as wide as all heads together."""
    made = conformance.fixed_layer(forward, weights(o=None), num_heads=4)
    assert made.declaration.pins.sizes["output_size"] == (20,)


def test_fixed_layer_keeps_further_pins() -> None:
    """A pin that the weights do not decide stays beside theirs."""
    made = conformance.fixed_layer(forward, weights(), num_heads=4, geometry={"batch": 1})
    assert made.declaration.pins.sizes["batch"] == (1,)


@pytest.mark.parametrize(
    ("changes", "heads", "message"),
    [
        ({}, {}, "num_heads is None: it must divide the 12 rows of weights.q"),
        ({}, {"num_heads": 5}, "num_heads is 5: it must divide the 12 rows of weights.q"),
        ({}, {"num_heads": 0}, "num_heads is 0: it must divide the 12 rows of weights.q"),
        ({}, {"num_heads": "4"}, "num_heads is '4': it must divide the 12 rows of weights.q"),
        (
            {"k": torch.zeros(7, 8)},
            {"num_heads": 4},
            "weights.k has 7 rows, which the head size 3 does not divide",
        ),
        (
            {},
            {"num_heads": 4, "num_kv_heads": 4},
            "num_kv_heads is 4, but the key rows make 2 heads",
        ),
        (
            {"v": torch.zeros(9, 9)},
            {"num_heads": 4},
            "weights.v has 9 rows, which the 2 key/value heads do not divide",
        ),
        (
            {"k": torch.zeros(9, 8)},
            {"num_heads": 4},
            "the key rows make 3 heads, which do not divide the 4 heads of weights.q",
        ),
        (
            {"o": torch.zeros(11, 12)},
            {"num_heads": 4},
            "weights.o has 12 columns where 4 heads of size 5 make 20",
        ),
        (
            {"q_bias": torch.zeros(3)},
            {"num_heads": 4},
            "weights.q_bias has shape [3] where weights.q has 12 rows",
        ),
        (
            {"q": torch.zeros(0, 7)},
            {"num_heads": 4},
            "weights.q has shape [0, 7]: give a layer of at least one row and one column",
        ),
        (
            {"k": torch.zeros(0, 8), "v": torch.zeros(0, 9)},
            {"num_heads": 4},
            "weights.k has shape [0, 8]: give a layer of at least one row and one column",
        ),
        (
            {"v": torch.zeros(10, 0)},
            {"num_heads": 4},
            "weights.v has shape [10, 0]: give a layer of at least one row and one column",
        ),
        (
            {"k": torch.full((6, 8), math.nan)},
            {"num_heads": 4},
            "weights.k holds nan at [0, 0]: no answer could be right; give finite weights",
        ),
        (
            {"o_bias": torch.tensor([0.0] * 10 + [-math.inf])},
            {"num_heads": 4},
            "weights.o_bias holds -inf at [10]: no answer could be right; give finite weights",
        ),
        (
            {"q": None},
            {"num_heads": 4},
            "weights.q is None: give a tensor of floating-point numbers",
        ),
        (
            {"o": [[1.0]]},
            {"num_heads": 4},
            "weights.o is [[1.0]]: give a tensor of floating-point numbers",
        ),
        (
            {"v": torch.zeros(10, 9, dtype=torch.int64)},
            {"num_heads": 4},
            "weights.v is torch.int64: give a tensor of floating-point numbers",
        ),
        (
            {"k": torch.zeros(6)},
            {"num_heads": 4},
            "weights.k has shape [6]: give a matrix (out, in), and one number a row as a bias",
        ),
        (
            {},
            {"num_heads": 4, "geometry": 5},
            "geometry is 5: give a dict of field to size, or a callable",
        ),
        (
            {},
            {"num_heads": 4, "geometry": "ab"},
            "geometry is 'ab': give a dict of field to size, or a callable",
        ),
        (
            {},
            {"num_heads": 4, "geometry": {"head_size": [2, 4]}},
            "geometry pins head_size to [2, 4], but the weights make it 3: drop it there",
        ),
        (
            {},
            {"num_heads": 4, "geometry": {"query_size": "key_size"}},
            "geometry pins query_size to key_size, but the weights make it 7: drop it there",
        ),
        ({}, {"num_heads": 4, "name": 5}, "name is 5: give a text"),
        ({}, {"num_heads": 4, "name": ""}, "name is '': give a text that is not empty"),
    ],
)
def test_fixed_layer_whose_weights_contradict_its_heads(
    changes: dict[str, Tensor], heads: dict[str, Any], message: str
) -> None:
    """Weights and heads that do not belong together are refused when they are declared."""
    with refused(message, DeclarationError):
        conformance.fixed_layer(forward, weights(**changes), **heads)


def test_fixed_layer_takes_projection_weights() -> None:
    """A dict or a module is no ProjectionWeights."""
    message = "weights is a dict: give a conformance.ProjectionWeights, or None"
    with refused(message, DeclarationError):
        conformance.fixed_layer(forward, {"q": 1}, num_heads=4)  # type: ignore[arg-type]


def test_fixed_layer_needs_a_callable() -> None:
    """The forward must be callable."""
    message = "conformance.fixed_layer takes a forward function or module, not 3"
    with refused(message, DeclarationError):
        conformance.fixed_layer(3, weights(), num_heads=4)  # type: ignore[arg-type]


def test_fixed_layer_weights_beat_a_callable_geometry() -> None:
    """A geometry rule that is a function cannot be put together with the pins of the weights."""
    message = "geometry is a function, but the weights pin the sizes: give a dict for the others"
    with refused(message, DeclarationError):
        conformance.fixed_layer(forward, weights(), num_heads=4, geometry=lambda sizes: sizes)


def test_unknown_weights_are_pinned_by_the_geometry() -> None:
    """Without weights the widths come from ``geometry=``, the heads from ``num_heads`` as well."""
    made = conformance.fixed_layer(
        forward,
        None,
        num_heads=2,
        geometry={"query_size": 8, "key_size": 8, "value_size": 8, "output_size": 8},
    )
    assert not made.golden_known
    assert not made.draws_weights
    assert made.declaration.pins.sizes["num_heads"] == (2,)
    assert made.declaration.pins.sizes["num_kv_heads"] == (2,)


def test_unknown_weights_need_their_widths() -> None:
    """Without weights and without widths no input would fit."""
    message = (
        "without weights, geometry= must pin query_size, key_size, value_size, output_size: "
        "key_size, output_size missing"
    )
    with refused(message, DeclarationError):
        conformance.fixed_layer(forward, None, geometry={"query_size": 8, "value_size": 8})
