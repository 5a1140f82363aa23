"""The golden gradients of an example with their bounds, by the names of what is given."""

from __future__ import annotations

import time
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ._golden import golden
from .differentiating import CACHED_NAMES, INPUT_NAMES
from .gradient_headroom import core_fits, found_fits, layer_fits
from .inputs import Inputs
from .oracle import Oracle, evaluate, known_weights
from .tolerance import Gradient, add_gradients, core_gradients, layer_gradients
from .tolerance.gradients import supports

# Points whose gradients have no bound; each field with what it is elsewhere.
_PLAIN: dict[str, object] = {}
# The same where projections come first.
_PLAIN_LAYER: dict[str, object] = {**_PLAIN, "score_mod": None}


def why_unknown(semantics: golden.Semantics, kind: str) -> str:
    """Why there are no golden gradients at a point for a "core" or a "layer", or ""."""
    behind = " behind projections" if kind == "layer" else ""
    for name, plain in (_PLAIN_LAYER if kind == "layer" else _PLAIN).items():
        found = getattr(semantics, name)
        if found != plain:
            after = "" if name in _PLAIN else behind
            spoken = getattr(found, "__name__", repr(found))
            return f"no bound is derived for gradients with {name}={spoken}{after}"
    met = semantics.replace(qk_norm="none", rotary="none")
    return "" if supports(met) else "no bound is derived for gradients at its semantics"


@dataclass(frozen=True, kw_only=True, eq=False)
class GoldenGradients:
    """The gradients for one output gradient by name, and whether a candidate can represent them.

    ``representable`` says that every intermediate value stays clear of the largest number, and
    ``without_slope`` that a function of scores has no finite slope that torch could find.
    """

    gradients: dict[str, Gradient]
    representable: bool
    without_slope: bool = False


def as_given(gradients: dict[str, Gradient], inputs: Inputs) -> dict[str, Gradient]:
    """Those of keys and values apart from those of the first ones that are handed over cached."""
    if not inputs.past:
        return gradients
    found: dict[str, Gradient] = {}
    for name, each in gradients.items():
        if name in CACHED_NAMES.values():
            found[f"past_{name}"] = each.of_tokens(slice(0, inputs.past))
            each = each.of_tokens(slice(inputs.past, None))  # noqa: PLW2901 (what is left of it)
        found[name] = each
    return found


class GradientOracle:
    """Gradients of the declared point; remembered for each inputs and output gradient."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._known: WeakKeyDictionary[Inputs, list[tuple[Tensor, GoldenGradients]]] = (
            WeakKeyDictionary()
        )

    def answer(self, inputs: Inputs, upstream: Tensor) -> GoldenGradients:
        """The gradients for an output gradient of the answer's shape, in the working dtype.

        Rows without a key are taken to answer with zeros. Raises LookupError where nothing is
        known of the weights or of the point.
        """
        remembered = self._known.setdefault(inputs, [])
        for known, found in remembered:
            if known is upstream or torch.equal(known, upstream):
                return found
        kind = "layer" if inputs.is_layer else "core"
        unknown = why_unknown(self._oracle.declaration.semantics, kind)
        if unknown:
            raise LookupError(unknown)
        start = time.perf_counter()
        found = self._answer(inputs, upstream)
        self._oracle.seconds += time.perf_counter() - start
        remembered.append((upstream, found))
        return found

    def _answer(self, inputs: Inputs, upstream: Tensor) -> GoldenGradients:
        oracle, point = self._oracle, self._oracle.point(inputs)
        known = oracle.answer(inputs)
        evaluation = known.evaluation
        if point.empty_rows != "zeros" and bool(known.empty.any()):
            point = point.replace(empty_rows="zeros")
            evaluation = evaluate(inputs, point)
        contract = oracle.contract(known.core.scale)
        with torch.no_grad():
            if isinstance(evaluation, golden.Attention):
                kv_heads = inputs.geometry.num_kv_heads
                found = core_gradients(evaluation, upstream, contract, num_kv_heads=kv_heads)
                fits = core_fits(evaluation, upstream, known.limit)
                fits = fits and found_fits(found, known.limit)
                wild = any(not bool(each.worst.isfinite().all()) for each in found.values())
                without_slope = wild and point.score_mod is not None
                return GoldenGradients(
                    gradients=found, representable=fits, without_slope=without_slope
                )
            found = layer_gradients(
                evaluation,
                inputs.query,
                inputs.key,
                inputs.value,
                known_weights(inputs),
                point,
                output_gradient=upstream,
                contract=contract,
            )
            fits = layer_fits(evaluation, inputs, upstream, contract, known.limit)
            fits = fits and found_fits(found, known.limit)
            by_input = {name: found.pop(name) for name in INPUT_NAMES["separate"]}
            if inputs.mode == "self":
                added = {"x": add_gradients(list(by_input.values()), contract)}
            elif inputs.mode == "memory":
                both = add_gradients([by_input["key"], by_input["value"]], contract)
                added = {"query": by_input["query"], "context": both}
            else:
                added = by_input
        return GoldenGradients(gradients={**added, **found}, representable=fits)


def second_gradients(
    oracle: Oracle, inputs: Inputs, upstream: Tensor, line: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients of ``<gradients, line>`` by every input, float64: torch's own of the golden."""
    leaves = {name: _source(inputs, name).double().requires_grad_() for name in line}
    if inputs.mode == "self":
        named = dict.fromkeys(("query", "key", "value"), leaves["x"])
    elif inputs.mode == "memory":
        named = {"query": leaves["query"], "key": leaves["context"], "value": leaves["context"]}
    else:
        named = leaves
    point = oracle.point(inputs)
    output = evaluate(inputs.replace(**named), point, recorded=True).output
    every = tuple(leaves.values())
    with torch.enable_grad():
        first = torch.autograd.grad(output, every, upstream.double(), create_graph=True)
        parts = zip(line.values(), first, strict=True)
        total = torch.stack([(each * way).sum() for way, each in parts]).sum()
    second = torch.autograd.grad(total, every)
    return dict(zip(leaves, second, strict=True))


def _source(inputs: Inputs, name: str) -> Tensor:
    """A copy of the tensor that a gradient by name belongs to."""
    tensor: Tensor = getattr(inputs, "key" if name in ("x", "context") else name)
    return tensor.detach().clone()
