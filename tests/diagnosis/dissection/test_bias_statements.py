"""What becomes of an additive mask is stated: clamped, or joined with the weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from examples import BARE_FLOAT32, core
from torch import Tensor

import conformance
from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose

Logits = Callable[[Tensor, Tensor], Tensor]


def added(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A core that adds a changed additive mask."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        logits = logits if bias is None else logits + change(bias)
        return logits.softmax(-1).nan_to_num(0.0) @ v

    return attend


def joined(join: Logits) -> Callable[..., Tensor]:
    """A core whose additive mask meets the weights, in rows with a key."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        if bias is None:
            return logits.softmax(-1) @ v
        hidden = bias.isneginf()
        weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
        weights = join(weights, bias.masked_fill(hidden, 0.0))
        return weights.masked_fill(hidden.all(-1, keepdim=True), 0.0) @ v

    return attend


STATED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "below": (
        added(lambda bias: bias.clamp(min=-1.0).masked_fill(bias.isneginf(), -math.inf)),
        "bias: clamped to at least -1",
    ),
    "both sides, all": (
        added(lambda bias: bias.clamp(-5.0, 2.0)),
        "bias: clamped to at least -5 and at most 2, minus infinity too",
    ),
    "far below, all": (  # of biases that are never as low only minus infinities show it
        added(lambda bias: bias.clamp(min=-7e3)),
        "visibility: hidden keys with -7000 added to their logits, in rows without other keys, too",
    ),
    "averaged": (
        added(lambda bias: bias.mean(1, keepdim=True)),
        "mask: averaged over the heads",
    ),
    "times": (joined(torch.mul), "bias: multiplied with the weights"),
    "renormalised": (
        joined(lambda weights, bias: (weights + bias) / (weights + bias).sum(-1, keepdim=True)),
        "bias: added to the weights, which are divided by their sum then",
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wrong", STATED)
def test_what_becomes_of_an_additive_mask_is_stated(wrong: str) -> None:
    """The limits of a clamp with few digits, minus infinities too; what weights are joined with."""
    function, name = STATED[wrong]
    candidate = core(function, **{**BARE_FLOAT32, "masks": ["bias"], "empty_rows": "zeros"})
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"] == name
    assert entry["fix"]


def test_a_bias_that_only_the_weights_get_is_stated() -> None:
    """The softmax knows nothing of it, and keys behind the diagonal get its numbers as well."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        behind = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        weights = (logits.masked_fill(behind, -math.inf) if causal else logits).softmax(-1)
        return (weights if bias is None else weights + bias) @ v

    promises = {**BARE_FLOAT32, "masks": ["bias"], "causal": "top-left", "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, **promises), "float32"))
    words = "added to the weights with its minus infinities, and hides no key from the softmax"
    assert entry["name"] == f"bias: {words}"


def test_distances_that_are_one_too_large_are_stated() -> None:
    """A declared bias by distance in which a neighbour counts as two places away."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ahead = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        ahead = ahead + q.shape[2] - k.shape[2]
        slopes = golden.alibi_slopes(q.shape[1])[:, None, None]
        taken = (slopes * (ahead.abs() + (ahead != 0))).to(q.dtype)
        return (q @ k.mT * q.shape[-1] ** -0.5 - taken).softmax(-1) @ v

    declared = core(attend, **BARE_FLOAT32, semantics=conformance.Semantics(alibi=True))
    (entry,) = diagnose(Subject(declared, "float32"))
    assert "distances one too large but for the query's own place" in entry["name"]


def test_one_form_of_a_mask_that_adds_a_number_is_told_with_the_form() -> None:
    """The number is read where hidden keys win, for each form of the mask."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        logits = logits if bias is None else logits + bias
        logits = logits if keep is None else logits + torch.where(keep, 0.0, -50.0)
        return logits.softmax(-1).nan_to_num(0.0) @ v

    promises = {**BARE_FLOAT32, "masks": ["keep", "bias"], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, **promises), "float32"))
    assert "have -50 added to their logits" in entry["text"]
    assert entry["text"].endswith("(only with a mask of what to keep)")


@pytest.mark.nightly  # a core is asked in each run
def test_a_number_added_by_a_layer_is_read_from_its_answer() -> None:
    """Where hidden keys win over the only kept one, their share of the answer says the number."""

    def build(
        geometry: conformance.Geometry, weights: conformance.ProjectionWeights
    ) -> Callable[..., Tensor]:
        heads, point = geometry.num_heads, golden.STANDARD

        def forward(query: Tensor, context: Tensor, *, keep: Tensor | None = None) -> Tensor:
            tokens = (query, context, context)
            projected = golden.project_tokens(tokens, weights, point)
            cut = golden.cut_heads(projected, heads, heads, point)
            bias = None if keep is None else torch.where(keep, 0.0, -70.0).double()
            output = golden.attend(*cut, bias=bias, semantics=point).output
            merged = golden.merge_heads(output, point)
            return golden.project_output(merged, weights, point).to(query.dtype)

        return forward

    declared = conformance.layer(
        name="layer", inputs="memory", masks=["keep"], empty_rows="zeros", dtypes=["float32"]
    )
    (entry,) = diagnose(Subject(declared(build), "float32"))
    assert "have -70 added to their logits" in entry["text"]


def test_keys_that_a_mask_shows_stay_hidden_by_minus_infinities_that_are_added() -> None:
    """What makes rows NaN whose keys an additive mask hides is no second mistake."""

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        logits = logits if bias is None else logits + bias
        hidden = torch.zeros(logits.shape, dtype=torch.bool)
        hidden = hidden if keep is None else hidden | ~keep
        hidden = hidden if bias is None else hidden | bias.isneginf()
        if causal:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            hidden = later.expand_as(hidden)
        weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
        return weights.masked_fill(hidden, 0.0) @ v

    promises = {"masks": ["keep", "bias"], "causal": "top-left", "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, **{**BARE_FLOAT32, **promises}), "float32"))
    assert entry["name"] == "mask-lost-to-causal"
