"""Finds the first stage inside a graph outside its bound, by tapped tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...calls.calling import arguments, guarded
from ...clauses.subject import Subject
from ...graphs.opened import OpenedGraph, Stages
from ...graphs.process import Setting
from ...problems.inputs import Inputs
from ...tolerance.attention_bound import one_sided_bound
from ...tolerance.layer import head_errors
from ...tolerance.spread import EXACT, Carried
from ..lines.steps import arrangements

Shape = tuple[int, ...]


def views(tensor: Tensor, shape: Shape) -> Iterator[Tensor]:
    """Yield every view of a tensor as ``[B, H, L, D]`` of a shape.

    Axes may be permuted; items and heads folded (items first); heads and head size packed (heads
    first); heads cut into groups; the axis of a single item missing.
    """
    if tensor.dim() > len(shape) and tensor.numel() == math.prod(shape):
        yield tensor.reshape(shape)
    for order in arrangements("BNQD", shape, tuple(tensor.shape)):
        places = sorted(range(len(order)), key=order.__getitem__)
        yield tensor.reshape([shape[axis] for axis in order]).permute(places)


# In the order of the computation; after the heads comes the output.
NAMES: Final = tuple(stage.name for stage in dataclasses.fields(Stages))
OUTPUT: Final = "output"
SPOKEN: Final = {
    "query": "the projected queries",
    "key": "the projected keys",
    "value": "the projected values",
    "scores": "the scores",
    "weights": "the attention weights",
    "heads": "the weighted values",
    "output": "the output projection",
}


def first_stage(subject: Subject, graph: OpenedGraph, inputs: Inputs, setting: Setting) -> str:
    """Return the first stage outside its bound, "" if every known stage is within.

    Raises CandidateFailure if the graph does not run with its stages tapped.
    """
    taps = {name: getattr(graph.projections.stages, name) for name in NAMES}
    taps = {name: tensor for name, tensor in taps.items() if tensor}
    if not taps:
        return ""
    forward: Any = graph.forward(setting)
    feeds = forward.feeds(*arguments(inputs))
    found = guarded(
        lambda: graph.process.run(feeds, setting=setting, taps=tuple(taps.values())), (), {}
    )
    tapped = {name: torch.from_numpy(found[tensor]).double() for name, tensor in taps.items()}
    held = Held(subject, inputs, tapped)
    return next((name for name in taps if not held.is_right(name)), "")


class Held:
    """Tapped tensors of a graph, compared with the golden's stages.

    The order of axes is undeclared: a stage is right if one order makes it right. Queries and keys
    may be scaled on their way to the scores, where a wrong scale shows.
    """

    def __init__(self, subject: Subject, inputs: Inputs, tapped: Mapping[str, Tensor]) -> None:
        self.subject = subject
        self.inputs = inputs
        self.tapped = tapped
        known = subject.golden(inputs)
        self.core = known.core
        self.rows = ~known.empty & known.representable_core
        self.contract = subject.oracle.contract(known.core.scale)

    def is_right(self, name: str) -> bool:
        """Whether a stage is within its bound."""
        if name in ("query", "key", "value"):
            return self._projected_right(name)
        if name == "scores":
            return self._scores_right()
        if name == "weights":
            return self._weights_right()
        bound = one_sided_bound(self.core, self.contract, self._errors) * self.contract.sides
        return self._within("heads", self.core.output, bound, self.rows.unsqueeze(-1))

    @cached_property
    def _errors(self) -> Carried:
        evaluation = self.subject.golden(self.inputs).evaluation
        if isinstance(evaluation, golden.Attention):
            return EXACT
        return head_errors(evaluation, self.contract)

    def _projected_right(self, name: str) -> bool:
        error, sizes = getattr(self._errors, name), self.inputs.geometry
        point = self.subject.declaration.semantics
        repeated = golden.repeat_heads(self.core.run[f"given_{name}"], sizes.num_heads, point)
        bound = torch.zeros_like(repeated) if error is None else error
        count = sizes.num_heads if name == "query" else sizes.num_kv_heads
        for wanted, allowed in self._choose_heads(repeated, bound, count):
            for seen in views(self.tapped[name], tuple(wanted.shape)):
                if _within(seen, wanted, allowed) or (
                    name != "value" and self._scaled(seen, wanted, allowed)
                ):
                    return True
        return False

    def _choose_heads(
        self, repeated: Tensor, bound: Tensor, count: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        yield repeated, bound
        if count != repeated.shape[1]:
            tile = self.subject.declaration.semantics.group_order == "tile"
            step = 1 if tile else repeated.shape[1] // count
            chosen = torch.arange(count) * step
            yield repeated[:, chosen], bound[:, chosen]

    def _scaled(self, seen: Tensor, wanted: Tensor, bound: Tensor) -> bool:
        """Whether a tensor is a multiple of the wanted one, rounded once or twice.

        The factor is fitted and carries the errors of all elements.
        """
        size = float(wanted.square().sum())
        if size == 0.0 or not bool(torch.isfinite(seen).all()):
            return False
        factor = float((seen * wanted).sum()) / size
        fitted = wanted.abs() * (float((bound * wanted.abs()).sum()) / size)
        rounding = self.contract.pre_scaling_roundings * self.contract.unit_roundoff
        allowed = abs(factor) * (bound + fitted + 2.0 * rounding * wanted.abs())
        return factor != 0.0 and _within(seen, factor * wanted, allowed)

    def _scores_right(self) -> bool:
        """Whether softmax of the scores gives the golden weights, up to a constant per row.

        Scores that lack only the mask are right if the mask follows.
        """
        if self._softmax_right(masked=False):
            return True
        after = self._softmax_right(masked=True)
        return after and ("weights" not in self.tapped or self._weights_right())

    def _softmax_right(self, *, masked: bool) -> bool:
        core = self.core
        for scores in views(self.tapped["scores"], tuple(core.weights.shape)):
            logits = scores
            if masked:
                bias = 0.0 if core.bias is None else core.bias.nan_to_num(neginf=0.0)
                logits = (scores + bias).masked_fill(~core.allowed, float("-inf"))
            if self._are_weights(golden.softmax(logits.nan_to_num(nan=float("inf")))):
                return True
        return False

    def _weights_right(self) -> bool:
        for weights in views(self.tapped["weights"], tuple(self.core.weights.shape)):
            total = weights.sum(dim=-1, keepdim=True)
            if self._are_weights(weights) or self._are_weights(weights / total):
                return True
        return False

    def _are_weights(self, weights: Tensor) -> bool:
        bound = self.subject.oracle.weights_bound(self.inputs)
        return _within(weights, self.core.weights, bound, self.rows.unsqueeze(-1))

    def _within(self, name: str, wanted: Tensor, bound: Tensor, rows: Tensor) -> bool:
        seen = views(self.tapped[name], tuple(wanted.shape))
        return any(_within(view, wanted, bound, rows) for view in seen)


def _within(seen: Tensor, wanted: Tensor, bound: Tensor, rows: Tensor | None = None) -> bool:
    """Whether a tensor is within its bound in the judged rows.

    Elements that are not finite in both tensors do not count.
    """
    close = ((seen - wanted).abs() <= bound) | ~(torch.isfinite(seen) | torch.isfinite(wanted))
    if rows is not None:
        close = close | ~rows
    return bool(close.all())
