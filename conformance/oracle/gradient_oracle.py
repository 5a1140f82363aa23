"""The golden gradients of an example with their bounds, by the names of the inputs."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._golden import golden
from ..calls.differentiating import CACHED_NAMES, INPUT_NAMES
from ..problems.inputs import Inputs
from ..tolerance import Gradient, add_gradients, core_gradients, layer_gradients, stack_gradients
from ..tolerance.backward_pass import has_gradient_bounds
from .headroom import core_fits, gradients_fit, layer_fits
from .oracle import Oracle, evaluate


def why_unknown(semantics: golden.Semantics, kind: str) -> str:
    """Why there are no golden gradients at a point for a "core" or a "layer", or ""."""
    if kind == "layer" and semantics.score_mod is not None:
        name = getattr(semantics.score_mod, "__name__", repr(semantics.score_mod))
        return f"no bound is derived for gradients with score_mod={name} behind projections"
    if kind == "layer" and semantics.null_key:
        return "no bound is derived for gradients beside a null key behind projections"
    met = semantics.replace(qk_norm="none", rotary="none")
    return "" if has_gradient_bounds(met) else "no bound is derived for gradients at its semantics"


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientAnswer:
    """The gradients for one output gradient by name, and whether a candidate can represent them.

    ``representable`` says that every intermediate value stays clear of the largest number, and
    ``without_slope`` that a function of scores has no finite slope for torch to find.
    """

    gradients: dict[str, Gradient]
    representable: bool
    without_slope: bool = False


def separate_cache(gradients: dict[str, Gradient], inputs: Inputs) -> dict[str, Gradient]:
    """The gradients, with those of cached keys and values under names of their own."""
    if not inputs.past:
        return gradients
    separated: dict[str, Gradient] = {}
    for name, each in gradients.items():
        if name in CACHED_NAMES.values():
            separated[f"past_{name}"] = each.of_tokens(slice(0, inputs.past))
            each = each.of_tokens(slice(inputs.past, None))  # noqa: PLW2901 (the part without the cache)
        separated[name] = each
    return separated


class GradientOracle:
    """Gradients of the declared point; remembered for each inputs and output gradient."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._answers: WeakKeyDictionary[Inputs, list[tuple[Tensor, GradientAnswer]]] = (
            WeakKeyDictionary()
        )

    def answer(self, inputs: Inputs, upstream: Tensor) -> GradientAnswer:
        """The gradients for an output gradient of the answer's shape, in the working dtype.

        Rows without a key are taken to answer with zeros. Raises LookupError for unknown weights,
        and at a point whose gradients have no bound.
        """
        remembered = self._answers.setdefault(inputs, [])
        for answered_upstream, answer in remembered:
            if answered_upstream is upstream or torch.equal(answered_upstream, upstream):
                return answer
        kind = "layer" if inputs.is_layer else "core"
        unknown = why_unknown(self._oracle.declaration.semantics, kind)
        if unknown:
            raise LookupError(unknown)
        start = time.perf_counter()
        answer = self._add_shared_inputs(self._answer(inputs, upstream), inputs)
        self._oracle.seconds += time.perf_counter() - start
        remembered.append((upstream, answer))
        return answer

    def answer_with_weights(
        self, inputs: Inputs, upstream: Tensor, of_weights: Tensor
    ) -> GradientAnswer:
        """The gradients of a core whose weights are returned and used, too.

        ``of_weights [B, H, Lq, Lk]`` is the gradient of the returned weights. The weights are the
        answer for values that are unit vectors: the units become further channels of the values
        here. A candidate adds both contributions to a weight's gradient, and may store one
        contribution and the sum.
        """
        length, width = inputs.geometry.key_length, inputs.geometry.value_head_size
        units = torch.eye(length, dtype=inputs.value.dtype)
        units = units.expand(*inputs.value.shape[:-2], length, length)
        extended = inputs.replace(
            value=torch.cat([inputs.value, units], dim=-1),
            geometry=inputs.geometry.replace(value_head_size=width + length),
            return_weights=False,
        )
        values = inputs.value.double()
        heads = inputs.read_heads(self._oracle.point(inputs))
        of_answer = upstream.double() @ values[:, heads].mT
        unit = torch.finfo(inputs.query.dtype).eps / 2.0
        stored = unit * (of_answer.abs() + of_weights.double().abs())
        answer = self._answer(
            extended,
            torch.cat([upstream, of_weights], dim=-1),
            torch.cat([torch.zeros_like(upstream.double()), stored], dim=-1),
        )
        gradients = dict(answer.gradients)
        gradients["value"] = gradients["value"].of_channels(slice(0, width))
        return self._add_shared_inputs(dataclasses.replace(answer, gradients=gradients), inputs)

    def answer_with_lse(self, inputs: Inputs, upstream: Tensor, of_lse: Tensor) -> GradientAnswer:
        """The gradients of a core whose log-sum-exps ``[B, H, Lq]`` are returned and used, too.

        ``of_lse`` is the gradient of those in the declared base.
        """
        natural = of_lse.double() * self._oracle.lse_factor
        return self._add_shared_inputs(self._answer(inputs, upstream, of_lse=natural), inputs)

    def dropped_gradients(
        self, inputs: Inputs, upstream: Tensor, factors: Tensor
    ) -> GradientAnswer:
        """The gradients of a core whose weights are multiplied by factors.

        ``factors [B, H, Lq, Lk]`` must be zeros and powers of two: no product is rounded. Every
        query becomes a batch item whose values are multiplied by the query's factors; the gradients
        of keys and values are sums over queries and heads.
        """
        sizes, point = inputs.geometry, self._oracle.point(inputs)
        heads, count = inputs.read_heads(point), sizes.query_length
        apart = _each_query_alone(inputs, point, factors, heads)
        rows = upstream.transpose(1, 2).flatten(0, 1).unsqueeze(2)
        answer = self._answer(apart, rows)
        contract = self._oracle.contract(self._oracle.answer(apart).core.scale)

        def join_queries(part: Tensor) -> Tensor:
            queries: Tensor = part.squeeze(2).unflatten(0, (sizes.batch, count)).transpose(1, 2)
            return queries

        def part_of_pair(part: Tensor, row: int, head: int) -> Tensor:
            pair: Tensor = part.unflatten(0, (sizes.batch, count))[:, row, head]
            return pair

        def added(gradient: Gradient) -> Gradient:
            """Over the queries, and the heads that read a key/value head."""
            by_head = []
            for kv_head in range(sizes.num_kv_heads):
                readers = (heads == kv_head).nonzero().flatten().tolist()
                parts = [
                    gradient.viewed(lambda part, row=row, head=head: part_of_pair(part, row, head))  # type: ignore[misc]  # bound at once
                    for row in range(count)
                    for head in readers
                ]
                by_head.append(add_gradients(parts, contract))
            return stack_gradients(by_head, dim=1)

        own = factors.transpose(1, 2).flatten(0, 1).unsqueeze(-1)
        gradients = {
            "query": answer.gradients["query"].viewed(join_queries),
            "key": added(answer.gradients["key"]),
            "value": added(answer.gradients["value"].viewed(lambda part: part * own)),
        }
        return self._add_shared_inputs(dataclasses.replace(answer, gradients=gradients), inputs)

    def _add_shared_inputs(self, answer: GradientAnswer, inputs: Inputs) -> GradientAnswer:
        """The gradients of query, key and value, added where they are one input."""
        if inputs.mode == "separate":
            return answer
        contract = self._oracle.contract(self._oracle.answer(inputs).core.scale)
        gradients = dict(answer.gradients)
        query, key, value = (gradients.pop(name) for name in INPUT_NAMES["separate"])
        if inputs.mode == "self":
            added = {"x": add_gradients([query, key, value], contract)}
        else:
            more = key.value.shape[-1] - value.value.shape[-1]
            value = value.viewed(lambda part: pad(part, (0, more))) if more else value
            added = {"query": query, "context": add_gradients([key, value], contract)}
        return dataclasses.replace(answer, gradients={**added, **gradients})

    def _answer(
        self,
        inputs: Inputs,
        upstream: Tensor,
        carried: Tensor | None = None,
        of_lse: Tensor | None = None,
    ) -> GradientAnswer:
        oracle, point = self._oracle, self._oracle.point(inputs)
        golden_answer = oracle.answer(inputs)
        evaluation = golden_answer.evaluation
        if point.empty_rows != "zeros" and bool(golden_answer.empty.any()):
            point = point.replace(empty_rows="zeros")
            evaluation = evaluate(inputs, point)
        contract = oracle.contract(golden_answer.core.scale)
        with torch.inference_mode():
            if isinstance(evaluation, golden.Attention):
                kv_heads = inputs.geometry.num_kv_heads
                gradients = core_gradients(
                    evaluation,
                    upstream,
                    contract,
                    num_kv_heads=kv_heads,
                    carried=carried,
                    of_lse=of_lse,
                )
                fits = core_fits(evaluation, upstream, golden_answer.limit)
                fits = fits and gradients_fit(gradients, golden_answer.limit)
                wild = any(not bool(each.worst.isfinite().all()) for each in gradients.values())
                without_slope = wild and point.score_mod is not None
                return GradientAnswer(
                    gradients=gradients, representable=fits, without_slope=without_slope
                )
            gradients = layer_gradients(evaluation, upstream, contract)
            fits = layer_fits(evaluation, upstream, contract, golden_answer.limit)
            fits = fits and gradients_fit(gradients, golden_answer.limit)
        return GradientAnswer(gradients=gradients, representable=fits)


def _each_query_alone(
    inputs: Inputs, point: golden.Semantics, factors: Tensor, heads: Tensor
) -> Inputs:
    """The queries of a core as items ``[B * Lq, H, 1, D]``, with their factors in the values."""
    sizes = inputs.geometry
    count, items = sizes.query_length, sizes.batch * sizes.query_length

    def rows(pairs: Tensor) -> Tensor:
        """Values of pairs ``[B, H, Lq, Lk]``, by item ``[B * Lq, H, 1, Lk]``."""
        return pairs.expand(inputs.score_shape).transpose(1, 2).flatten(0, 1).unsqueeze(2)

    def repeat_heads(tensor: Tensor) -> Tensor:
        return tensor[:, heads].repeat_interleave(count, dim=0)

    scaled = repeat_heads(inputs.value).double() * rows(factors).squeeze(2).unsqueeze(-1)
    shown = inputs.attending(inputs.allowed(point), point)
    return shown.replace(
        geometry=sizes.replace(batch=items, query_length=1, num_kv_heads=sizes.num_heads),
        query=inputs.query.transpose(1, 2).flatten(0, 1).unsqueeze(2),
        key=repeat_heads(inputs.key),
        value=scaled.to(inputs.value.dtype),
        keep=None if shown.keep is None else rows(shown.keep),
        bias=None if shown.bias is None else rows(shown.bias),
        dropout=None,
        generic=False,
    )


def second_gradients(
    oracle: Oracle, inputs: Inputs, upstream: Tensor, line: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients of ``<gradients, line>`` by every input, float64: torch's own of the golden."""
    leaves = {name: _source(inputs, name).double().requires_grad_() for name in line}
    if inputs.mode == "self":
        named = dict.fromkeys(("query", "key", "value"), leaves["x"])
    elif inputs.mode == "memory":
        memory = inputs.replace(query=leaves["query"]).with_tokens(key=leaves["context"])
        named = {name: getattr(memory, name) for name in INPUT_NAMES["separate"]}
    else:
        named = leaves
    point = oracle.point(inputs)
    output = evaluate(inputs.replace(**named), point, recorded=True).output
    every = tuple(leaves.values())
    with torch.enable_grad():
        first = torch.autograd.grad((output * upstream.double()).sum(), every, create_graph=True)
        parts = zip(line.values(), first, strict=True)
        total = torch.stack([(each * way).sum() for way, each in parts]).sum()
    second = torch.autograd.grad(total, every)
    return dict(zip(leaves, second, strict=True))


def _source(inputs: Inputs, name: str) -> Tensor:
    """A copy of the tensor that a gradient by name belongs to."""
    tensor: Tensor = getattr(inputs, "key" if name in ("x", "context") else name)
    return tensor.detach().clone()
