"""Generated problems for the golden: geometry and choices are drawn, values come from a seed."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final, get_args

import second_formulation as second
import torch
from hypothesis import strategies as st
from torch import Generator, Tensor

from reference import ProjectionWeights, Semantics, attend, multi_head_attention
from reference import semantics as choices

CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "scale": (*get_args(choices.ScaleRule), 0.3, -1.0, 0.0),
    "scale_factor": (1.0, 1.01, -0.5),
    "softmax_axis": get_args(choices.SoftmaxAxis),
    "null_key": (False, True),
    "mask_polarity": get_args(choices.MaskPolarity),
    "mask_operation": get_args(choices.MaskOperation),
    "mask_fill": (-math.inf, -1e9, -1e4, -5.0, 0.0),
    "causal_alignment": get_args(choices.Alignment),
    "causal_offset": (0, -1, 1, 2),
    "causal_by": get_args(choices.CausalBy),
    "causal_combination": get_args(choices.CausalCombination),
    "one_query_causal": (True, False),
    "empty_rows": get_args(choices.EmptyRows),
    "bias_order": get_args(choices.BiasOrder),
    "softcap_order": get_args(choices.SoftcapOrder),
    "window_offset": (0, -1, 1),
    "head_split": get_args(choices.HeadSplit),
    "head_merge": get_args(choices.HeadMerge),
    "group_order": get_args(choices.GroupOrder),
    "qk_norm": get_args(choices.QueryKeyNorm),
    "qk_norm_epsilon": (1e-6, 0.5),
    "qk_norm_over": get_args(choices.QueryKeyNormOver),
    "norm_order": get_args(choices.NormOrder),
    "rotary": get_args(choices.Rotary),
    "rotary_base": (10000.0, 50.0),
    "rotary_scaling": (
        None,
        ("linear", 4.0),
        ("ntk", 3.0),
        ("yarn", 4.0, 8.0, 1.0, 64),
        ("llama3", 8.0, 1.0, 4.0, 20),
    ),
    "rotary_amplitude": (1.0, 1.2),
    "rotary_fraction": (1.0, 0.5),
    "alibi": (False, True),
    "relative": get_args(choices.Relative),
    "relative_distance": (128, 5),
    "score_mod": (None, second.relative_positions, second.leaning),
    "query_bias": (True, False),
    "key_bias": (True, False),
    "value_bias": (True, False),
    "output_bias": (True, False),
}


# Choices beside which a key that every query attends has no meaning, or is not compared.
MEMORY_FREE: Final = frozenset(
    (
        "rotary qk_norm alibi relative score_mod softmax_axis "
        "mask_operation mask_fill softcap_order"
    ).split()
)


def points() -> st.SearchStrategy[Semantics]:
    """Points of Semantics that shrink to the standard one.

    Half of them differ from it in few fields: with many changes hardly any point still leaves
    ignored keys out exactly, and the rules for empty rows would hardly ever be met.
    """
    one_change = st.sampled_from([(n, value) for n, values in CHOICES.items() for value in values])
    few = st.lists(one_change, max_size=3).map(dict)
    fields = {name: st.sampled_from(values) for name, values in CHOICES.items()}
    many = st.fixed_dictionaries({}, optional=fields)
    return st.one_of(few, many).map(_point)


def _point(changes: dict[str, Any]) -> Semantics:
    """Norms over all heads stand before the rotation."""
    if changes.get("qk_norm_over") == "all-heads":
        changes = {**changes, "norm_order": "before-rotary"}
    return Semantics(**changes)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is drawn: sizes, which masks there are, along which axes they broadcast, and a seed."""

    seed: int = 0
    magnitude: float = 1.0
    batch: int = 2
    kv_heads: int = 2
    group: int = 2
    query_length: int = 3
    key_length: int = 4
    head_size: int = 3
    value_head_size: int = 2
    query_size: int = 3
    key_size: int = 4
    value_size: int = 5
    output_size: int | None = 2
    projection_biases: bool = True
    keep_axes: tuple[bool, bool, bool, bool] | None = None
    bias_axes: tuple[bool, bool, bool, bool] | None = None
    length_form: str | None = None
    causal: bool = False
    window: tuple[int, int] | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    learned: str = ""
    positions: bool = False

    @property
    def num_heads(self) -> int:
        """The number of query heads."""
        return self.kv_heads * self.group

    @property
    def sizes(self) -> second.Sizes:
        """The sizes of the core, for the second formulation."""
        return second.Sizes(
            batch=self.batch,
            num_heads=self.num_heads,
            num_kv_heads=self.kv_heads,
            query_length=self.query_length,
            key_length=self.key_length,
            head_size=self.head_size,
            value_head_size=self.value_head_size,
        )

    def changed(self, **changes: Any) -> Shape:
        """The same with some choices changed."""
        return dataclasses.replace(self, **changes)


def shapes() -> st.SearchStrategy[Shape]:
    """Tiny geometries with any combination of masks."""
    small, side = st.integers(1, 4), st.integers(-1, 4)
    axes = st.none() | st.tuples(*[st.booleans()] * 4)
    return st.builds(
        Shape,
        seed=st.integers(0, 2**32 - 1),
        magnitude=st.sampled_from([1.0, 0.01, 10.0]),
        batch=st.integers(1, 3),
        kv_heads=st.integers(1, 2),
        group=st.integers(1, 3),
        query_length=st.integers(1, 5),
        key_length=st.integers(1, 5),
        head_size=small,
        value_head_size=small,
        query_size=small,
        key_size=small,
        value_size=small,
        output_size=st.none() | small,
        projection_biases=st.booleans(),
        keep_axes=axes,
        bias_axes=axes,
        length_form=st.sampled_from([None, "B", "BQ"]),
        causal=st.booleans(),
        window=st.none() | st.tuples(side, side),
        scale=st.sampled_from([None, None, 0.7, -0.2, 0.0]),
        softcap=st.sampled_from([None, None, 0.5, 30.0]),
        sinks=st.booleans(),
        learned=st.sampled_from(["", "by head", "by all heads", "memory"]),
        positions=st.booleans(),
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """The tensors of one problem."""

    shape: Shape
    inputs: tuple[Tensor, Tensor, Tensor]
    weights: ProjectionWeights | None
    tensors: dict[str, Tensor]  # keep, bias, lengths and sinks, as far as the problem has them
    learned: dict[str, Tensor] | None = None

    @property
    def keywords(self) -> dict[str, Any]:
        """Everything but query, key, value and weights, for the golden."""
        return self.keywords_at(Semantics())

    def keywords_at(self, point: Semantics) -> dict[str, Any]:
        """The keywords without learned arguments that a point does not define."""
        shape = self.shape
        numbers = {"window": shape.window, "scale": shape.scale, "softcap": shape.softcap}
        learned = self.learned_at(point)
        return {**self.tensors, **numbers, "causal": shape.causal, "learned": learned}

    def learned_at(self, point: Semantics) -> dict[str, Tensor]:
        """The learned arguments that a point defines."""
        learned = self.learned or {}
        if "bias_k" in learned:
            return learned if MEMORY_FREE.isdisjoint(Semantics().differences(point)) else {}
        by_distance = {"alibi_slopes", "relative_table"}
        defined = by_distance if point.normalises_late else {*learned}
        made = {name: value for name, value in learned.items() if name in defined}
        table = made.pop("relative_table", None)
        if table is not None and point.relative != "none":
            # An odd number of rows, or half of an even number a side.
            made["relative_table"] = table[: 5 if point.relative == "clipped" else 4]
        return made

    def golden(self, point: Semantics) -> Any:
        """The golden's evaluation, with its intermediate values."""
        if self.weights is None:
            return attend(*self.inputs, **self.keywords_at(point), semantics=point)
        return multi_head_attention(
            *self.inputs,
            self.weights,
            num_heads=self.shape.num_heads,
            num_kv_heads=self.shape.kv_heads,
            semantics=point,
            **self.keywords_at(point),
        )

    def second(self, point: Semantics, *, input_rounding: float = 0.0) -> Any:
        """The second formulation's evaluation; its inputs may carry a relative rounding error."""
        plain: dict[str, Any] = {name: each.tolist() for name, each in self.tensors.items()}
        learned = self.learned_at(point)
        plain["learned"] = {name: tensor.tolist() for name, tensor in learned.items()}
        names = ("query", "key", "value")
        read = [_with_rounding(tensor.tolist(), input_rounding) for tensor in self.inputs]
        core = second.Problem(
            sizes=self.shape.sizes,
            **dict(zip(names, read, strict=True)),
            **(self.keywords_at(point) | plain),
        )
        if self.weights is None:
            return second.attention(core, point)
        return second.layer(second.LayerProblem(core=core, matrices=_plain(self.weights)), point)


def _with_rounding(nested: Any, relative: float) -> Any:
    if isinstance(nested, list):
        return [_with_rounding(entry, relative) for entry in nested]
    return second.perturbed(nested, relative)


def _plain(weights: ProjectionWeights) -> second.Matrices:
    fields = [field.name for field in dataclasses.fields(second.Matrices)]
    tensors = {name: getattr(weights, name) for name in fields}
    plain: dict[str, Any] = {n: None if t is None else t.tolist() for n, t in tensors.items()}
    return second.Matrices(**plain)


def core_case(shape: Shape) -> Case:
    """A problem of the core."""
    generator = torch.Generator().manual_seed(shape.seed)
    kv = (shape.batch, shape.kv_heads, shape.key_length)
    inputs = (
        _normal(
            shape, generator, shape.batch, shape.num_heads, shape.query_length, shape.head_size
        ),
        _normal(shape, generator, *kv, shape.head_size),
        _normal(shape, generator, *kv, shape.value_head_size),
    )
    tensors = _masks(shape, generator)
    learned = _learned(shape, generator)
    return Case(shape=shape, inputs=inputs, weights=None, tensors=tensors, learned=learned)


def layer_case(shape: Shape) -> Case:
    """A problem of the layer, with matrices and biases."""
    generator = torch.Generator().manual_seed(shape.seed)
    inputs = (
        _normal(shape, generator, shape.batch, shape.query_length, shape.query_size),
        _normal(shape, generator, shape.batch, shape.key_length, shape.key_size),
        _normal(shape, generator, shape.batch, shape.key_length, shape.value_size),
    )
    weights = _weights(shape, generator)
    tensors = _masks(shape, generator)
    learned = _learned(shape, generator)
    return Case(shape=shape, inputs=inputs, weights=weights, tensors=tensors, learned=learned)


def _normal(shape: Shape, generator: Generator, *axes: int) -> Tensor:
    return shape.magnitude * torch.randn(axes, generator=generator, dtype=torch.float64)


def _weights(shape: Shape, generator: Generator) -> ProjectionWeights:
    rows = {
        "q": (shape.num_heads * shape.head_size, shape.query_size),
        "k": (shape.kv_heads * shape.head_size, shape.key_size),
        "v": (shape.kv_heads * shape.value_head_size, shape.value_size),
    }
    if shape.output_size is not None:
        rows["o"] = (shape.output_size, shape.num_heads * shape.value_head_size)
    unit = shape.changed(magnitude=1.0)
    tensors = {name: _normal(unit, generator, *axes) for name, axes in rows.items()}
    if shape.projection_biases:
        for name, (out, _) in rows.items():
            tensors[f"{name}_bias"] = _normal(unit, generator, out)
    return ProjectionWeights(**tensors)


def _masks(shape: Shape, generator: Generator) -> dict[str, Tensor]:
    full = (shape.batch, shape.num_heads, shape.query_length, shape.key_length)
    tensors = {}
    if shape.keep_axes is not None:
        axes = _broadcast(full, shape.keep_axes)
        tensors["keep"] = torch.rand(axes, generator=generator) < 0.6
    if shape.bias_axes is not None:
        axes = _broadcast(full, shape.bias_axes)
        ruled_out = torch.rand(axes, generator=generator) < 0.2
        tensors["bias"] = _normal(shape, generator, *axes).masked_fill(ruled_out, -math.inf)
    if shape.length_form is not None:
        axes = full[:1] if shape.length_form == "B" else (full[0], full[2])
        tensors["lengths"] = torch.randint(0, shape.key_length + 1, axes, generator=generator)
    if shape.sinks:
        tensors["sinks"] = _normal(shape, generator, shape.num_heads)
    if shape.positions:
        lengths = {"query_positions": shape.query_length, "key_positions": shape.key_length}
        for name, length in lengths.items():
            tensors[name] = torch.randint(0, 9, (shape.batch, length), generator=generator)
    return tensors


def _learned(shape: Shape, generator: Generator) -> dict[str, Tensor] | None:
    """Learned arguments; factors and slopes of one, or of every head, and every item."""
    if not shape.learned:
        return None
    unit, apart = shape.changed(magnitude=1.0), shape.learned == "by all heads"
    if shape.learned == "memory":
        return {
            "bias_k": _normal(unit, generator, shape.kv_heads, shape.head_size),
            "bias_v": _normal(unit, generator, shape.kv_heads, shape.value_head_size),
        }
    counts = (shape.num_heads, shape.kv_heads) if apart else (1, 1)
    query, key = (_normal(unit, generator, count * shape.head_size) for count in counts)
    items = (shape.batch,) if apart else ()
    return {
        "query_norm_weight": query,
        "key_norm_weight": key,
        "temperature": _normal(unit, generator, shape.num_heads),
        "relative_table": _normal(unit, generator, 5, shape.num_heads),
        "alibi_slopes": _normal(unit, generator, *items, shape.num_heads),
    }


def _broadcast(full: tuple[int, ...], kept: tuple[bool, ...]) -> tuple[int, ...]:
    return tuple(size if keep else 1 for size, keep in zip(full, kept, strict=True))
