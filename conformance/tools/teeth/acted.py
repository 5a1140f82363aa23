"""Acts mistakes out: a candidate that declares the standard and computes another point of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...declare.candidate import Candidate
from ...declare.decorators import core, layer
from ...errors import DeclarationError
from ...problems.inputs import Inputs


class Evaluation(Protocol):
    """What was evaluated: an attention of the golden, or one with a mistake made on the way."""

    @property
    def output(self) -> Tensor:
        """The answer in float64."""


Evaluate = Callable[[Inputs], Evaluation]

MASKS: Final = ("keep", "drop", "keep_int", "bias", "lengths")
FEATURES: Final = ("scale", "gqa", "softcap", "window", "weights")
# What only a layer has: projections with their biases, and heads to cut and to merge.
OF_LAYERS: Final = frozenset(
    {"head_split", "head_merge", "query_bias", "key_bias", "value_bias", "output_bias"}
)
# Where a mistake is the standard's own choice, the candidate has to declare another one.
_INSTEAD: Final = {"causal_alignment": "top-left", "empty_rows": "nan"}
OTHER_POINT: Final = golden.STANDARD.replace(causal_alignment="top-left", empty_rows="nan")


def act_out(name: str, changes: Mapping[str, Any]) -> Candidate:
    """A candidate that computes the standard with some fields of ``Semantics`` changed.

    It works in float64 and rounds its answer once. Raises DeclarationError for changes that no
    point has, or that change nothing.
    """
    try:
        wrong = golden.STANDARD.replace(**changes)
    except (TypeError, ValueError) as error:
        msg = f"changes= of the mistake {name!r}: {error}"
        raise DeclarationError(msg) from None
    declared = declared_for(changes)
    if wrong == declared:
        msg = f"changes= of the mistake {name!r} leave the standard as it is"
        raise DeclarationError(msg)
    kind = "layer" if OF_LAYERS & set(changes) else "core"
    return acted(name, kind, declared, partial(evaluate_at, point=wrong))


def declared_for(changes: Mapping[str, Any]) -> golden.Semantics:
    """The standard, moved away from what the mistake would do anyway."""
    standard = golden.STANDARD
    instead = {
        field: other
        for field, other in _INSTEAD.items()
        if changes.get(field) == getattr(standard, field)
    }
    return standard.replace(**instead)


def acted(
    name: str,
    kind: str,
    declared: golden.Semantics,
    evaluate: Evaluate,
    more: tuple[str, ...] = (),
) -> Candidate:
    """A core or a layer that promises all it can at a point, and answers with an evaluation.

    ``more`` are features beyond those that every such candidate has.
    """
    decorate = (core if kind == "core" else layer)(
        name=name,
        masks=MASKS,
        causal=declared.causal_alignment,
        empty_rows=declared.empty_rows,
        features=(*FEATURES, *more, *(() if kind == "layer" else ("kv_cache",))),
        semantics=declared,
    )
    return decorate(ActedCore(evaluate) if kind == "core" else ActedLayer.of(evaluate))


def correct_candidates() -> list[Candidate]:
    """The standard itself, acted out in the same way: what no clause may flag."""
    points = {"standard": golden.STANDARD, "standard_top_left": OTHER_POINT}
    return [
        acted(f"{name}_{kind}", kind, point, partial(evaluate_at, point=point))
        for name, point in points.items()
        for kind in ("core", "layer")
    ]


def evaluate_at(
    inputs: Inputs, point: golden.Semantics
) -> golden.Attention | golden.MultiHeadAttention:
    """The golden at any point, which refuses shapes that do not belong together."""
    common: dict[str, Any] = {
        "keep": inputs.keep,
        "bias": inputs.bias,
        "causal": inputs.causal,
        "scale": inputs.scale,
        "softcap": inputs.softcap,
        "window": inputs.window,
        "sinks": inputs.sinks,
        "semantics": point,
    }
    tokens = (inputs.query, inputs.key, inputs.value)
    if inputs.weights is None:
        return golden.attend(*tokens, **common)
    return golden.multi_head_attention(
        *tokens,
        inputs.weights,
        num_heads=inputs.geometry.num_heads,
        num_kv_heads=inputs.geometry.num_kv_heads,
        **common,
    )


class ActedCore:
    """A core ``[B, H, L, D]`` whose answer is an evaluation of what it was asked."""

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        drop: Tensor | None = None,
        keep_int: Tensor | None = None,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        return_weights: bool = False,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
        **options: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The evaluation's output in the query's dtype, with the weights where they are asked."""
        if past_key is not None and past_value is not None:
            options["past"] = past_key.shape[-2]
            key, value = torch.cat([past_key, key], dim=-2), torch.cat([past_value, value], dim=-2)
        forms = {"keep": keep, "drop": drop, "keep_int": keep_int, "lengths": lengths, "bias": bias}
        asked = Inputs(
            geometry=self.geometry(query, key, value),
            mode="separate",
            batched=True,
            query=query,
            key=key,
            value=value,
            weights=self.weights,
            **read_masks(forms, key.shape[-2]),
            **options,
        )
        output, weights = answer(self.evaluate, asked)
        if not return_weights:
            return output.to(query.dtype)
        return output.to(query.dtype), weights.to(query.dtype)

    weights: golden.ProjectionWeights | None = None

    def geometry(self, query: Tensor, key: Tensor, value: Tensor) -> Geometry:
        """The sizes that the heads have."""
        batch, num_heads, query_length, head_size = query.shape
        return Geometry(
            batch=batch,
            num_heads=num_heads,
            num_kv_heads=key.shape[1],
            query_length=query_length,
            key_length=key.shape[2],
            head_size=head_size,
            value_head_size=value.shape[3],
            query_size=num_heads * head_size,
            key_size=key.shape[1] * head_size,
            value_size=key.shape[1] * value.shape[3],
            output_size=num_heads * value.shape[3],
        )


class ActedLayer(ActedCore):
    """The same with the projections of a problem, on tokens ``[B, L, width]``."""

    def __init__(
        self,
        evaluate: Evaluate,
        sizes: Geometry,
        weights: golden.ProjectionWeights,
    ) -> None:
        super().__init__(evaluate)
        self.sizes = sizes
        self.weights = weights

    @classmethod
    def of(cls, evaluate: Evaluate) -> Callable[[Geometry, golden.ProjectionWeights], ActedLayer]:
        """The builder of such layers."""
        return lambda geometry, weights: cls(evaluate, geometry, weights)

    def geometry(self, query: Tensor, key: Tensor, value: Tensor) -> Geometry:
        """The sizes of the problem, with the lengths of the call."""
        del value
        return self.sizes.replace(
            batch=query.shape[0], query_length=query.shape[1], key_length=key.shape[1]
        )


def answer(evaluate: Evaluate, asked: Inputs) -> tuple[Tensor, Tensor]:
    """Output and weights of an evaluation, in which a value of weight zero cannot hurt.

    The golden multiplies whole matrices, and 0 * NaN is NaN: a row that meets no broken value takes
    its answer from the evaluation without them, or each mistake would fail the clause about those.
    """
    answered = evaluate(asked)
    weights = _core_of(answered).weights
    broken = ~torch.isfinite(asked.value).all(dim=-1)
    if not bool(broken.any()):
        return answered.output, weights
    without = asked.replace(value=asked.value.masked_fill(broken.unsqueeze(-1), 0.0))
    shared = broken.unsqueeze(1) if asked.is_layer else broken.any(dim=1, keepdim=True)
    meets = ((weights != 0.0) & shared.unsqueeze(2)).any(dim=-1)
    rows = (meets.any(dim=1) if asked.is_layer else meets).unsqueeze(-1)
    if rows.shape[-2] != answered.output.shape[-2]:
        return answered.output, weights
    return torch.where(rows, answered.output, evaluate(without).output), weights


def _core_of(answered: Evaluation) -> golden.Attention:
    """The attention proper, of which a layer's evaluation has more around."""
    core: Any = answered
    return getattr(core, "core", core)  # type: ignore[no-any-return]  # as every evaluation has one


def read_masks(forms: Mapping[str, Tensor | None], key_length: int) -> dict[str, Any]:
    """Any form of mask as the harness itself holds it: a table of kept keys and a finite bias."""
    given = {form: mask for form, mask in forms.items() if mask is not None}
    if not given:
        return {}
    ((form, mask),) = given.items()
    found: dict[str, Any] = {"mask_form": form}
    if form == "lengths":
        keys = torch.arange(key_length, device=mask.device)
        return {**found, "keep": keys < mask.reshape(mask.shape[0], 1, -1, 1)}
    if form == "bias":
        hidden = mask == -math.inf
        return {**found, "keep": ~hidden, "bias": mask.masked_fill(hidden, 0.0)}
    return {**found, "keep": {"keep": mask, "drop": ~mask, "keep_int": mask != 0}[form]}
