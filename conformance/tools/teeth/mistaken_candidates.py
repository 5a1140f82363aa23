"""Candidates that make the mistakes: other points, inputs, heads, weights, answers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import combinations
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import FIELDS, Geometry
from ...declare.candidate import Candidate
from ...declare.declaration import GIVEN_POSITIONS
from ...declare.decorators import core, layer
from ...diagnosis.mistaken_answer import act
from ...diagnosis.mistakes import DeclaredCall, NamedMistake, NotExpressible, touches
from ...errors import DeclarationError
from ...oracle.oracle import Oracle
from ...oracle.oracle import evaluate as evaluate_golden
from ...problems.inputs import Inputs
from ...problems.learned import LearnedArguments
from ...problems.materialise import projection_shapes, token_shapes
from ...problems.positions import Positions


class Evaluation(Protocol):
    """A golden evaluation, or an evaluation with a mistake in it."""

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
# Where a mistake is the standard's own choice, the candidate declares another choice.
_INSTEAD: Final = {"causal_alignment": "top-left", "empty_rows": "nan"}
OTHER_POINT: Final = golden.STANDARD.replace(causal_alignment="top-left", empty_rows="nan")


def act_out(name: str, changes: Mapping[str, Any]) -> Candidate:
    """A candidate that computes the standard with some fields of ``Semantics`` changed.

    The candidate works in float64 and rounds its answer once. Raises DeclarationError for changes
    that no point has, or that change nothing.
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
    """A core or a layer with all promises possible at a point, whose answers are an evaluation.

    ``more`` are features beyond the common ones of acted candidates.
    """
    if declared.relative != "none":  # which goes by a table alone
        more = (*more, "relative_table")
    remembers = "bias_kv" in more  # every row has a key, and weights have one more column
    decorate = (core if kind == "core" else layer)(
        name=name,
        masks=MASKS,
        causal=declared.causal_alignment,
        empty_rows="any" if remembers else declared.empty_rows,
        without=["weights"] if remembers else [],
        features=(*FEATURES, *more, *(() if kind == "layer" else ("kv_cache",))),
        semantics=declared,
    )
    return decorate(ActedCore(evaluate) if kind == "core" else ActedLayer.of(evaluate))


def correct_candidates() -> list[Candidate]:
    """The standard itself, acted out in the same way: no clause may flag these candidates."""
    points = {"standard": golden.STANDARD, "standard_top_left": OTHER_POINT}
    return [
        acted(f"{name}_{kind}", kind, point, partial(evaluate_at, point=point))
        for name, point in points.items()
        for kind in ("core", "layer")
    ]


def evaluate_at(
    inputs: Inputs, point: golden.Semantics
) -> golden.Attention | golden.MultiHeadAttention:
    """The golden's evaluation at any point; raises ValueError for inconsistent shapes."""
    return evaluate_golden(inputs, point, recorded=torch.is_grad_enabled())


class ActedCore:
    """A core ``[B, H, L, D]`` whose answer is an evaluation of its inputs."""

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
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        **options: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The evaluation's output in the query's dtype, with the weights if requested.

        It is evaluated on the CPU, wherever the inputs are.
        """
        device = query.device
        masks = {"keep": keep, "drop": drop, "keep_int": keep_int, "lengths": lengths, "bias": bias}
        forms = {form: _on_the_cpu(mask) for form, mask in masks.items()}
        query, key, value = query.cpu(), key.cpu(), value.cpu()
        past_key, past_value = _on_the_cpu(past_key), _on_the_cpu(past_value)
        if query_positions is not None and key_positions is not None:
            given = query_positions.cpu(), key_positions.cpu()
            options["positions"] = Positions(queries=given[0], keys=given[1])
        if past_key is not None and past_value is not None:
            options["past"] = past_key.shape[-2]
            key, value = torch.cat([past_key, key], dim=-2), torch.cat([past_value, value], dim=-2)
        sizes = self.geometry(query, key, value)
        learned = {name: options.pop(name).cpu() for name in golden.LEARNED if name in options}
        inputs = Inputs(
            geometry=sizes,
            learned=LearnedArguments.given(learned, sizes),
            mode="separate",
            batched=True,
            query=query,
            key=key,
            value=value,
            weights=self.weights,
            **read_masks(forms, key.shape[-2]),
            **options,
        )
        output, weights = (part.to(device, query.dtype) for part in answer(self.evaluate, inputs))
        return (output, weights) if return_weights else output

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
    """A mistaken core between the projections of a problem, on tokens ``[B, L, width]``."""

    def __init__(
        self,
        evaluate: Evaluate,
        sizes: Geometry,
        weights: golden.ProjectionWeights,
    ) -> None:
        super().__init__(evaluate)
        self.sizes = sizes
        roles = (field.name for field in dataclasses.fields(weights))
        on_the_cpu: dict[str, Any] = {role: _on_the_cpu(getattr(weights, role)) for role in roles}
        self.weights = golden.ProjectionWeights(**on_the_cpu)

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


def _on_the_cpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cpu()


def answer(evaluate: Evaluate, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Output and weights of an evaluation in which values of weight zero have no effect.

    The golden multiplies whole matrices, and 0 * NaN is NaN. A row that attends no broken value
    takes its answer from an evaluation without the broken values: otherwise every mistake would
    fail the clause about broken values.
    """
    answered = evaluate(inputs)
    core = _core_of(answered)
    weights = core.weights
    broken = ~torch.isfinite(inputs.value).all(dim=-1)
    if not bool(broken.any()):
        return answered.output, weights
    without = inputs.replace(value=inputs.value.masked_fill(broken.unsqueeze(-1), 0.0))
    broken = broken.unsqueeze(1) if inputs.is_layer else broken.any(dim=1)[:, None, None]
    reached = inputs.reached(core.semantics, weights != 0.0)
    rows = (reached & broken).any(dim=-1, keepdim=True)
    return torch.where(rows, answered.output, evaluate(without).output), weights


def _core_of(answered: Evaluation) -> golden.Attention:
    """The attention proper, which is a part of a layer's evaluation."""
    core: Any = answered
    return getattr(core, "core", core)  # type: ignore[no-any-return]  # every evaluation has it


def read_masks(forms: Mapping[str, Tensor | None], key_length: int) -> dict[str, Any]:
    """A mask of any form in the harness' own form: a table of kept keys and a finite bias."""
    present = {form: mask for form, mask in forms.items() if mask is not None}
    if not present:
        return {}
    ((form, mask),) = present.items()
    masks: dict[str, Any] = {"mask_form": form}
    if form == "lengths":
        keys = torch.arange(key_length, device=mask.device)
        return {**masks, "keep": keys < mask.reshape(mask.shape[0], 1, -1, 1)}
    if form == "bias":
        hidden = mask == -math.inf
        return {**masks, "keep": ~hidden, "bias": mask.masked_fill(hidden, 0.0)}
    return {**masks, "keep": {"keep": mask, "drop": ~mask, "keep_int": mask != 0}[form]}


# The last is for a mistake that takes the standard's epsilon in place of another.
_POINTS: Final = (
    golden.STANDARD,
    OTHER_POINT,
    golden.STANDARD.replace(qk_norm_epsilon=1e-3),
)
# Features that only some mistakes need, by their clause or its family.
_MORE: Final[dict[str, tuple[str, ...]]] = {
    "sinks": ("sinks",),
    "sinks.null-key": (),  # a sink of its own
    "learned.norm-weight": ("norm_weight",),
    "learned.temperature": ("temperature",),
    "learned.slopes": ("alibi_slopes",),
    "learned.memory": ("bias_kv",),
    "learned.relative-table": (),  # of their points
    **dict.fromkeys(
        (
            *("position.given", "position.offset-invariant", "position.left-padding"),
            *("position.ring", "position.evicted"),
        ),
        (GIVEN_POSITIONS,),
    ),
}
# Sizes in the order of Geometry's fields, all different.
_MIXED: Final = Geometry(**dict(zip(FIELDS, (2, 4, 2, 3, 5, 3, 2, 6, 7, 5, 9), strict=True)))
_WIDTH: Final = {"query_size": 12, "key_size": 12, "value_size": 12, "output_size": 12}
_ALIKE: Final = _MIXED.replace(num_kv_heads=4, query_length=5, value_head_size=3, **_WIDTH)
# Longer than a tile, wider than a padded head.
_LARGE: Final = _MIXED.replace(query_length=2, key_length=300, head_size=17)


def act_out_named(named: NamedMistake) -> Candidate:
    """A candidate that makes a named mistake wherever the mistake can be made.

    It is a core at the standard if the standard can show the mistake, else a core at another point,
    else a layer. A mistake that shows on none of the samples stays a core: the clauses decide.
    """
    points = [point.replace(**named.base) for point in _POINTS]
    family = named.primary.partition(".")[0]
    more = _MORE.get(named.primary, _MORE.get(family, ()))
    for kind in ("core", "layer"):
        for declared in points:
            if any(_shows(named, call, right) for call, right in _samples(kind, declared)):
                return acted(named.name, kind, declared, _evaluation(named, kind, declared), more)
    return acted(named.name, "core", points[0], _evaluation(named, "core", points[0]), more)


def _evaluation(named: NamedMistake, kind: str, declared: golden.Semantics) -> Evaluate:
    oracle = _oracle(kind, declared)

    def evaluate(inputs: Inputs) -> Evaluation:
        inputs = inputs if inputs.point == declared else inputs.replace(point=declared)
        if named.inputs or named.rows:
            # The golden refuses shapes that do not belong together, at any point.
            _require_fitting(oracle, inputs)
        try:
            return act(oracle, declared, (named,), inputs)
        except NotExpressible:
            return evaluate_at(inputs, declared)

    return evaluate


# The sizes already answered, by oracle.
_FITTING: Final[WeakKeyDictionary[Oracle, set[tuple[Any, ...]]]] = WeakKeyDictionary()


def _require_fitting(oracle: Oracle, inputs: Inputs) -> None:
    """Raise the golden's error for inconsistent sizes.

    The golden is asked once for every combination of sizes: its answer takes as long as a
    candidate's.
    """
    fitting = _FITTING.setdefault(oracle, set())
    sizes = _sizes(inputs)
    if sizes not in fitting:
        oracle.answer(inputs)
        fitting.add(sizes)


def _sizes(inputs: Inputs) -> tuple[Any, ...]:
    """All that the golden may refuse inputs for: shapes, dtypes and options."""
    weights = inputs.weights
    projections = () if weights is None else vars(weights).values()
    tokens = (inputs.query, inputs.key, inputs.value)
    given = (*tokens, inputs.keep, inputs.bias, inputs.sinks, *projections)
    shapes = tuple(None if one is None else (one.shape, one.dtype) for one in given)
    options = (inputs.causal, inputs.scale, inputs.softcap, inputs.window)
    return (*shapes, inputs.geometry, *options)


@cache
def _oracle(kind: str, declared: golden.Semantics) -> Oracle:
    more = (GIVEN_POSITIONS,) if declared.causal_by == "positions" else ()
    candidate = acted("standard", kind, declared, partial(evaluate_at, point=declared), more)
    return Oracle(candidate.declaration, "float64")


def _shows(named: NamedMistake, call: DeclaredCall, right: Tensor) -> bool:
    """Whether the answer to a sample differs from the golden's."""
    if not touches(named, call):
        return False
    kind = "layer" if call.inputs.is_layer else "core"
    try:
        oracle = _oracle(kind, call.semantics)
        got = act(oracle, call.semantics, (named,), call.inputs).output
    except NotExpressible:
        return False
    if got.shape != right.shape:
        return True
    room = torch.finfo(torch.float32).eps * right.abs().clamp_min(1.0)
    alike = ((got - right).abs() <= room) | (got.isnan() & right.isnan())
    return not bool(alike.all())


@cache
def _samples(kind: str, declared: golden.Semantics) -> tuple[tuple[DeclaredCall, Tensor], ...]:
    """Calls that use every option that a point defines, with their answers."""
    return tuple(
        (DeclaredCall(inputs=inputs, semantics=declared), evaluate_at(inputs, declared).output)
        for inputs in _calls(kind)
        if _defines(declared, inputs.learned)
    )


def _defines(point: golden.Semantics, learned: LearnedArguments | None) -> bool:
    """Whether a point defines learned arguments: a memory has no positions and no norm."""
    if learned is None:
        return True
    free = point.rotary == "none" == point.qk_norm and not point.alibi and point.score_mod is None
    if (table := learned.values.get("relative_table")) is not None:
        kinds = ("clipped",) if len(table) % 2 else ("t5", "t5-causal")
        return free and point.relative in kinds
    if "bias_k" in learned.values:
        return free and point.relative == "none"
    return not point.normalises_late


def _calls(kind: str) -> tuple[Inputs, ...]:
    """Calls at sizes that all differ, at equal sizes, and one call at large sizes."""
    generator = torch.Generator().manual_seed(0)
    calls = [
        _sample(kind, generator, sizes, options)
        for sizes in (_MIXED, _ALIKE)
        for options in _options(generator, sizes)
    ]
    return (*calls, _sample(kind, generator, _LARGE, {}))


def _options(generator: torch.Generator, sizes: Geometry) -> Iterator[dict[str, Any]]:
    """Masks in every form, the flags, and their combinations."""
    shape = (sizes.batch, sizes.num_heads, sizes.query_length, sizes.key_length)
    keep = torch.rand(shape, generator=generator) > 0.4  # noqa: PLR2004 (about half of them)
    keep[..., 0] = True
    emptied = keep.clone()
    emptied[0, :, 1] = False
    lengths = torch.tensor([2, sizes.key_length]).reshape(-1, 1, 1, 1)
    bias = {
        "bias": torch.randn(shape, generator=generator),
        "keep": keep,
        "mask_form": "bias",
        "mask_shape": "BHQK",
    }
    flags = {"causal": True, "window": (1, 1), "softcap": 1.5, "scale": 0.3}
    singles: list[dict[str, Any]] = [{name: value} for name, value in flags.items()]
    yield {}
    by_length = {"keep": torch.arange(sizes.key_length) < lengths, "mask_form": "lengths"}
    yield by_length
    for mask in (*(_table(keep, form) for form in ("keep", "drop", "keep_int")), bias):
        yield mask
        yield from ({**mask, **flag} for flag in singles)
    yield _table(emptied, "keep")
    yield from singles
    yield from ({**first, **second} for first, second in combinations(singles, 2))
    yield {"scale": 0.0}
    yield {"scale": -0.5}
    yield {"past": 2}
    for mask in (_table(keep, "keep"), bias, by_length):
        yield {**mask, "past": 2}
    yield from ({**flag, "past": 2} for flag in singles)
    yield {"sinks": torch.linspace(-1.0, 2.0, sizes.num_heads)}
    by_head = torch.linspace(0.5, 1.5, sizes.num_heads)
    learned = {
        "query_norm_weight": torch.linspace(0.5, 1.5, sizes.head_size),
        "key_norm_weight": torch.linspace(2.0, 0.5, sizes.head_size),
        "temperature": by_head,
        "alibi_slopes": torch.stack([(item + 1) * by_head for item in range(sizes.batch)]),
    }
    yield {"learned": LearnedArguments.given(learned, sizes)}
    of_each = {"query_norm_weight": sizes.num_heads, "key_norm_weight": sizes.num_kv_heads}
    learned |= {
        name: torch.linspace(0.5, 1.5, heads * sizes.head_size) for name, heads in of_each.items()
    }
    yield {"learned": LearnedArguments.given(learned, sizes), "softcap": 1.0}
    memory = {
        "bias_k": 2.0 * torch.randn(sizes.num_kv_heads, sizes.head_size, generator=generator),
        "bias_v": 2.0 * torch.randn(sizes.num_kv_heads, sizes.value_head_size, generator=generator),
    }
    beside = LearnedArguments.given(memory, sizes)
    by_distance = {"relative_table": torch.randn(8, sizes.num_heads, generator=generator)}
    yield {"learned": LearnedArguments.given(by_distance, sizes)}
    by_distance = {"relative_table": torch.randn(7, sizes.num_heads, generator=generator)}
    yield {"learned": LearnedArguments.given(by_distance, sizes)}
    yield from ({"learned": beside, **more} for more in ({}, by_length, {"causal": True}, bias))
    queries, keys = (
        torch.randint(9, (sizes.batch, length), generator=generator)
        for length in (sizes.query_length, sizes.key_length)
    )
    placed = {"positions": Positions(queries=queries, keys=keys)}
    yield placed
    yield {**placed, "causal": True}


def _table(keep: Tensor, form: str) -> dict[str, Any]:
    return {"keep": keep, "mask_form": form, "mask_shape": "BHQK"}


def _sample(
    kind: str, generator: torch.Generator, sizes: Geometry, options: dict[str, Any]
) -> Inputs:
    def drawn(*shape: int) -> Tensor:
        return 2.0 * torch.randn(*shape, generator=generator)

    tokens = [drawn(*shape) for shape in token_shapes(sizes, layer=False)]
    weights = None
    if kind == "layer":
        tokens = [drawn(*shape) for shape in token_shapes(sizes, layer=True)]
        shapes = projection_shapes(sizes)
        matrices = {role: drawn(*shape) for role, shape in shapes.items()}
        biases = {f"{role}_bias": drawn(rows) for role, (rows, _) in shapes.items()}
        weights = golden.ProjectionWeights(**matrices, **biases)
    query, key, value = tokens
    return Inputs(
        geometry=sizes,
        mode="separate",
        batched=True,
        query=query,
        key=key,
        value=value,
        weights=weights,
        **options,
    )
