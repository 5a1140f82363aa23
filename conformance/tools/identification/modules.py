"""A torch module as a box: projections found by the adapters, the call read from its forward."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from torch import nn

from ..._golden import golden
from ...adapters import multihead
from ...adapters.calling import Calling, second_input
from ...adapters.copying import duplicate, put_in_dtype
from ...adapters.finding import Finding
from ...adapters.understanding import calling_of, understand
from ...adapters.wish import Wish
from ...base.geometry import Geometry
from ...errors import DeclarationError
from ...problems.inputs import Inputs
from .box import Box, SizeRule
from .convention import LAYER_LAYOUTS, Convention, Layout
from .drawing import DTYPES, draw_weights
from .opening import OUTPUTS, absent, read_inputs
from .signature import read_parameters
from .switches import plain_options

# Deviations under which projections without telling names can still be found.
_POINTS: Final = (
    golden.STANDARD,
    golden.STANDARD.replace(scale="none"),
    golden.STANDARD.replace(head_merge="reinterpret"),
    golden.STANDARD.replace(head_split="reinterpret"),
    golden.STANDARD.replace(scale="inverse-sqrt-model-width"),
    golden.STANDARD.replace(scale="inverse-head-size"),
    golden.STANDARD.replace(softmax_axis="query"),
    golden.STANDARD.replace(head_split="interleaved", head_merge="interleaved"),
    golden.STANDARD.replace(group_order="tile"),
)


@dataclass(frozen=True)
class Understood:
    """A module's projections under one of the points, and whether its answer was golden there."""

    built: nn.Module
    calling: Calling
    finding: Finding
    batched: bool
    point: golden.Semantics


def understood(built: nn.Module, shown: str) -> Understood | DeclarationError:
    """The first reading under which the module is golden, else the likeliest, or why none."""
    likeliest: Understood | None = None
    why: DeclarationError | None = None
    for point in _POINTS:
        for batched in (True, False):
            wish = Wish(
                shown=shown,
                num_heads=None,
                num_kv_heads=None,
                call=None,
                projections=None,
                promises={"semantics": point, "batched": batched},
            )
            try:
                calling, finding, _ = understand(built, wish)
            except DeclarationError as error:
                why = why or error
                continue
            reading = Understood(built, calling, finding, batched, point)
            if finding.golden:
                return reading
            likeliest = likeliest or reading
    if likeliest is not None:
        return likeliest
    return why or DeclarationError(f"{shown} cannot be read")


def module_boxes(reading: Understood) -> Iterator[Box]:
    """The module called with batch or sequence first, or without a batch."""
    recipe, sizes = reading.finding.recipe, reading.finding.sizes
    own = recipe.read(reading.built, sizes)
    copies: dict[str, nn.Module] = {}
    widths = {
        "num_heads": sizes.num_heads,
        "num_kv_heads": sizes.num_kv_heads,
        "head_size": sizes.head_size,
        "value_head_size": sizes.value_head_size,
        "query_size": own.q.shape[1],
        "key_size": own.k.shape[1],
        "value_size": own.v.shape[1],
        "output_size": sizes.num_heads * sizes.value_head_size if own.o is None else own.o.shape[0],
    }
    biases = "".join(role for role in "qkvo" if recipe.has_bias(role))

    def prepare(inputs: Inputs) -> nn.Module:
        weights = inputs.weights
        if weights is None:
            return reading.built
        name = str(weights.q.dtype)
        if name not in copies:
            copies[name] = put_in_dtype(duplicate(reading.built).eval(), weights.q.dtype)
        module = duplicate(copies[name])
        recipe.write(module, sizes, weights)
        return module

    def weigh(geometry: Geometry, dtype: str, seed: int) -> golden.ProjectionWeights:
        drawn = draw_weights(geometry, biases, dtype=dtype, seed=seed)
        if recipe.has_output:
            return drawn
        return golden.ProjectionWeights(
            q=drawn.q,
            k=drawn.k,
            v=drawn.v,
            q_bias=drawn.q_bias,
            k_bias=drawn.k_bias,
            v_bias=drawn.v_bias,
        )

    parameters = read_parameters(reading.built)
    ways = plain_options(parameters, absent(parameters))
    called = [(reading.calling.inputs, reading.calling.names)]
    crossed = second_input(reading.built.forward)
    called += [("memory", crossed)] if crossed and called[0][0] == "self" else []
    for (mode, names), layout in itertools.product(called, _layouts(reading)):
        for output, way in itertools.product(OUTPUTS, ways):
            yield Box(
                prepare=prepare,
                convention=Convention(
                    kind="layer",
                    inputs=mode,
                    layout=layout,
                    names=names,
                    options=way,
                    output=output,
                ),
                sizes=SizeRule(changes=tuple((name, str(size)) for name, size in widths.items())),
                weigh=weigh,
                biases=biases,
            )


def _layouts(reading: Understood) -> list[Layout]:
    """The order that the adapters found first, then the others."""
    first = "LE" if not reading.batched else "LBE" if reading.calling.sequence_first else "BLE"
    return sorted(LAYER_LAYOUTS, key=lambda layout: layout.name != first)


def is_torch_multihead(built: object) -> bool:
    """Whether it is torch's own layer."""
    return multihead.is_multihead(built)


__all__ = [
    "DTYPES",
    "Understood",
    "calling_of",
    "is_torch_multihead",
    "module_boxes",
    "read_inputs",
    "understood",
]
