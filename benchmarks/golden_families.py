"""The problems of ``golden.py``: adversarial values under every structure, as float64 tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import torch
from torch import Generator, Tensor

from conformance._golden import golden

Heads = tuple[Tensor, Tensor, Tensor]


def _first(tokens: Tensor) -> Tensor:
    return tokens[..., :1, :].expand_as(tokens).clone()


def _lattice(tokens: Tensor, size: float) -> Tensor:
    """A point far from zero that all tokens share, and a thousandth part of their own."""
    signs = torch.where(tokens[..., :1, :] < 0, -1.0, 1.0)
    return size * signs + 1e-3 * tokens


def _alternating(tokens: Tensor, size: float) -> Tensor:
    signs = torch.ones(tokens.shape[-2], 1, dtype=tokens.dtype)
    signs[1::2] = -1.0
    return size * signs + tokens


def _dominant(tokens: Tensor) -> Tensor:
    enlarged = tokens.clone()
    enlarged[..., 0, :] *= 300.0
    return enlarged


def _mixed(tokens: Tensor) -> Tensor:
    return tokens * torch.exp(8.0 * tokens[..., :1]).clamp(1e-12, 1e12)


FAMILIES: dict[str, Callable[[Tensor, Tensor, Tensor], Heads]] = {
    "normal": lambda q, k, v: (q, k, v),
    "ties": lambda q, k, v: (q, _first(k), v),
    "nearly tied logits of 5e5": lambda q, k, v: (_lattice(q, 700.0), _lattice(k, 700.0), v),
    "logits to 1e3": lambda q, k, v: (30.0 * q, 30.0 * k, v),
    "logits to 1e8": lambda q, k, v: (1e4 * q, 1e4 * k, v),
    "one dominant key": lambda q, k, v: (q, _dominant(k), v),
    "nearly uniform": lambda q, k, v: (1e-9 * q, k, v),
    "offset keys": lambda q, k, v: (q, k + 1e6, v),
    "cancelling values, 1e8 + 1": lambda q, k, v: (0.05 * q, k, _alternating(v, 1e8)),
    "huge offset values": lambda q, k, v: (q, k, v + 1e12),
    "values over 24 decades": lambda q, k, v: (q, k, _mixed(v)),
    "tiny values": lambda q, k, v: (q, k, 1e-36 * v),
    "subnormal in float32": lambda q, k, v: (q, k, 1e-41 * v),
    "subnormal in float64": lambda q, k, v: (q, k, 1e-310 * v),
}
# (batch, query length, key length, head size, value head size)
SIZES = ((2, 3, 4, 3, 2), (1, 4, 9, 5, 3))
LONG = (1, 2, 65, 16, 2)


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Everything but the values: the masks, the numbers, the heads and the point of Semantics."""

    name: str
    masks: Callable[[tuple[int, ...], Generator], dict[str, Any]] = lambda _shape, _generator: {}
    numbers: dict[str, Any] = field(default_factory=dict)
    point: dict[str, Any] = field(default_factory=dict)
    heads: tuple[int, int] = (2, 2)

    @property
    def semantics(self) -> golden.Semantics:
        """The point at which both formulations are evaluated."""
        return golden.STANDARD.replace(**self.point)


def _keep(*axes: int) -> Callable[[tuple[int, ...], Generator], dict[str, Any]]:
    """A random table of kept keys along some axes, size 1 along the others."""

    def masks(shape: tuple[int, ...], generator: Generator) -> dict[str, Any]:
        sizes = [size if axis in axes else 1 for axis, size in enumerate(shape)]
        return {"keep": torch.rand(sizes, generator=generator) < 0.6}  # noqa: PLR2004

    return masks


def _nothing_kept(shape: tuple[int, ...], _generator: Generator) -> dict[str, Any]:
    keep = torch.ones(shape, dtype=torch.bool)
    keep[:, :, ::2] = False
    return {"keep": keep}


def _lengths(shape: tuple[int, ...], generator: Generator) -> dict[str, Any]:
    return {"lengths": torch.randint(0, shape[3] + 1, shape[:1], generator=generator)}


def _query_lengths(shape: tuple[int, ...], generator: Generator) -> dict[str, Any]:
    sizes = (shape[0], shape[2])
    return {"lengths": torch.randint(0, shape[3] + 1, sizes, generator=generator)}


def _bias(shape: tuple[int, ...], generator: Generator) -> dict[str, Any]:
    return {"bias": 3.0 * torch.randn(shape, generator=generator, dtype=torch.float64)}


def _bias_with_minus_infinity(shape: tuple[int, ...], generator: Generator) -> dict[str, Any]:
    bias = _bias(shape, generator)["bias"]
    return {"bias": bias.masked_fill(torch.rand(shape, generator=generator) < 0.3, -math.inf)}  # noqa: PLR2004


def _both(shape: tuple[int, ...], generator: Generator) -> dict[str, Any]:
    return _keep(0, 1, 2, 3)(shape, generator) | _bias_with_minus_infinity(shape, generator)


STRUCTURES = (
    Structure(name="no mask"),
    Structure(name="mask, one for each item, head, query", masks=_keep(0, 1, 2, 3)),
    Structure(name="mask of keys", masks=_keep(0, 3)),
    Structure(name="mask of queries and keys", masks=_keep(2, 3)),
    Structure(name="lengths", masks=_lengths),
    Structure(name="lengths for each query", masks=_query_lengths),
    Structure(name="causal, bottom-right", numbers={"causal": True}),
    Structure(
        name="causal, top-left",
        numbers={"causal": True},
        point={"causal_alignment": "top-left"},
    ),
    Structure(name="window", numbers={"window": (1, 0)}),
    Structure(name="window and causal", numbers={"window": (2, -1), "causal": True}),
    Structure(name="bias", masks=_bias),
    Structure(name="bias with minus infinity", masks=_bias_with_minus_infinity),
    Structure(name="bias before the scale", masks=_bias, point={"bias_order": "before-scale"}),
    Structure(name="mask and bias", masks=_both),
    Structure(name="softcap 0.5", numbers={"softcap": 0.5}, masks=_keep(0, 1, 2, 3)),
    Structure(name="softcap 30, bias", numbers={"softcap": 30.0}, masks=_bias),
    Structure(
        name="softcap after the mask",
        numbers={"softcap": 30.0},
        masks=_both,
        point={"softcap_order": "after-mask"},
    ),
    Structure(name="scale 0", numbers={"scale": 0.0}),
    Structure(name="scale -0.7", numbers={"scale": -0.7}),
    Structure(name="groups, repeat", heads=(4, 2)),
    Structure(name="groups, tile", heads=(4, 2), point={"group_order": "tile"}),
)


def choices(*fields: str) -> Iterator[tuple[str, Any]]:
    """Every value of the fields of Semantics that are a choice among words."""
    hints = get_type_hints(golden.Semantics)
    for name in fields:
        for value in _words(hints[name]):
            yield name, value


def _words(hint: Any) -> list[str]:
    options = itertools.chain.from_iterable(_words(one) for one in get_args(hint))
    return [hint] if isinstance(hint, str) else list(options)


CORE_FIELDS = (
    "scale",
    "softmax_axis",
    "mask_polarity",
    "mask_operation",
    "causal_combination",
)
LAYER_FIELDS = ("head_split", "head_merge", "group_order")
BIAS_FIELDS = ("query_bias", "key_bias", "value_bias", "output_bias")


def core_structures() -> list[Structure]:
    """The structures above, rows without keys under every rule, and each choice of a core."""
    empty = [
        Structure(
            name=f"rows without keys: {rule}",
            masks=_nothing_kept,
            numbers={"causal": True},
            point={"empty_rows": rule},
        )
        for _, rule in choices("empty_rows")
    ]
    chosen = [
        Structure(
            name=f"{name}: {value}",
            masks=_keep(0, 1, 2, 3),
            numbers={"causal": True},
            point={name: value, "mask_fill": -5.0 if name == "mask_operation" else -math.inf},
        )
        for name, value in choices(*CORE_FIELDS)
    ]
    return [*STRUCTURES, *empty, *chosen]


def layer_structures() -> list[Structure]:
    """The plain layer, each way to cut and merge heads, each bias left out, rows without keys."""
    cuts = [
        Structure(name=f"{name}: {value}", heads=(4, 2), masks=_bias, point={name: value})
        for name, value in choices(*LAYER_FIELDS)
    ]
    unbiased = [Structure(name=f"no {name}", point={name: False}) for name in BIAS_FIELDS]
    empty = Structure(name="rows without keys", masks=_nothing_kept)
    return [Structure(name="layer"), *cuts, *unbiased, empty]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem for both formulations; the tensors are float64."""

    family: str
    structure: Structure
    sizes: tuple[int, int, int, int, int]
    inputs: Heads
    weights: golden.ProjectionWeights | None
    keywords: dict[str, Any]


def normal(generator: Generator, *shape: int) -> Tensor:
    """Independent normal numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def core_problem(
    family: str, structure: Structure, sizes: tuple[int, int, int, int, int], seed: int
) -> Problem:
    """Heads of a family under a structure."""
    batch, queries, keys, size, value_size = sizes
    heads, kv_heads = structure.heads
    generator = Generator().manual_seed(seed)
    drawn = (
        normal(generator, batch, heads, queries, size),
        normal(generator, batch, kv_heads, keys, size),
        normal(generator, batch, kv_heads, keys, value_size),
    )
    masks = structure.masks((batch, heads, queries, keys), generator)
    return Problem(
        family=family,
        structure=structure,
        sizes=sizes,
        inputs=FAMILIES[family](*drawn),
        weights=None,
        keywords=masks | structure.numbers,
    )


WIDTHS = {"q": 6, "k": 7, "v": 5}
OUTPUT_WIDTH = 4


def layer_problem(
    family: str, structure: Structure, sizes: tuple[int, int, int, int, int], seed: int
) -> Problem:
    """Tokens of a family, each input of another width, and matrices with biases."""
    batch, queries, keys, size, value_size = sizes
    heads, kv_heads = structure.heads
    generator = Generator().manual_seed(seed)
    drawn = (
        normal(generator, batch, queries, WIDTHS["q"]),
        normal(generator, batch, keys, WIDTHS["k"]),
        normal(generator, batch, keys, WIDTHS["v"]),
    )
    rows = {"q": heads * size, "k": kv_heads * size, "v": kv_heads * value_size, "o": OUTPUT_WIDTH}
    columns = WIDTHS | {"o": heads * value_size}
    matrices = {name: normal(generator, rows[name], columns[name]) for name in rows}
    biases = {f"{name}_bias": normal(generator, count) for name, count in rows.items()}
    masks = structure.masks((batch, heads, queries, keys), generator)
    return Problem(
        family=family,
        structure=structure,
        sizes=sizes,
        inputs=FAMILIES[family](*drawn),
        weights=golden.ProjectionWeights(**matrices, **biases),
        keywords=masks | structure.numbers,
    )
