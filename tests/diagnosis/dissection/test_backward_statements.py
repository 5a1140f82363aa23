"""Which gradients are computed instead is read for each of them, and checked before it is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import core, problem
from torch import Tensor

import conformance
from candidates.broken._backward import HandWritten, Steps
from candidates.broken._prepared import Prepared
from candidates.broken.gradients import LargeTilesOverwrittenBackward
from candidates.broken.prepared_gradients import NormTakenForConstant, RotatedOnBackward
from candidates.broken.reported.training import BiasGradientIsZero
from conformance import Semantics
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis.backward import BackwardDiagnostician
from conformance.diagnosis.dissection import backward
from conformance.diagnosis.dissection.backward import _OF_CATALOGUE
from conformance.diagnosis.dissection.backward_variants import RIGHT, Variant
from conformance.diagnosis.dissection.read_gradients import read_variants
from conformance.diagnosis.mistakes import BACKWARD


class TwoAtOnce(HandWritten):
    """The value lacks the last query, and the additive mask gets twice its gradient."""

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        """Of the value."""
        return weights[:, :, :-1].mT @ steps.gradient[:, :, :-1]

    def bias_gradient(self, bias: Tensor, logits: Tensor) -> Tensor:
        """Of the additive mask."""
        return 2.0 * super().bias_gradient(bias, logits)


class QueryHalved(HandWritten):
    """The gradient of the query is halved."""

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        """Of the query."""
        return super().query_gradient(steps, scores) / 2.0


class RowTermAdded(HandWritten):
    """The row term of the softmax is added, and the query lacks the scale."""

    def row_term(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        """What is subtracted."""
        return -super().row_term(steps, weights, weight_gradient)

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        """Of the query."""
        return scores @ steps.key


class HalvedInGroups(HandWritten):
    """The gradient of values that heads share is divided by the number of queries."""

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        """Of the value, for each query head."""
        gradient = super().value_gradient(steps, weights)
        shared = steps.call.value.shape[1] < weights.shape[1]
        return gradient / weights.shape[2] if shared else gradient


class Clamped(HandWritten):
    """The gradients of the logits do not leave a range."""

    def logit_gradient(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        """Through the softmax."""
        return super().logit_gradient(steps, weights, weight_gradient).clamp(-0.25, 0.25)


class UpstreamClamped(HandWritten):
    """What flows back does not leave a range."""

    def backward(self, call: Any, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Every gradient."""
        return super().backward(call, output, gradient.clamp(-0.75, 0.75))


class QueryClamped(HandWritten):
    """The elements of the gradient of the query do not leave a range."""

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        """Of the query."""
        return super().query_gradient(steps, scores).clamp(-0.1, 0.1)


class HeadsOfKeysClamped(HandWritten):
    """The gradient of the key is clamped for each query head that shares it."""

    def key_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        """Of the key, for each query head."""
        return super().key_gradient(steps, scores).clamp(-0.1, 0.1)


class QueryCut(HandWritten):
    """The gradient of the query is no longer than one."""

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        """Of the query."""
        gradient = super().query_gradient(steps, scores)
        return gradient / gradient.norm().clamp_min(1.0)


class LaterHalved(HandWritten):
    """Values from the fourth on get half of their gradient."""

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        """Of the value, for each query head."""
        gradient = super().value_gradient(steps, weights)
        return torch.cat([gradient[:, :, :3], 0.5 * gradient[:, :, 3:]], dim=2)


class LaterLost(HandWritten):
    """Values from the fifth on get no gradient."""

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        """Of the value, for each query head."""
        gradient = super().value_gradient(steps, weights)
        return torch.cat([gradient[:, :, :4], torch.zeros_like(gradient[:, :, 4:])], dim=2)


class AveragedOverItems(HandWritten):
    """Every batch item gets the mean gradient of the value."""

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        """Of the value, for each query head."""
        gradient = super().value_gradient(steps, weights)
        return gradient.mean(0, keepdim=True).expand_as(gradient)


class SumOfBaseTwo(HandWritten):
    """The saved logarithm of the sum of the exponentials is taken to be of base 2."""

    def recomputed(self, steps: Steps) -> Tensor:
        """The weights, once more."""
        logits = self.logits(steps.call, steps.key)
        if steps.allowed is not None:
            logits = logits.masked_fill(~steps.allowed, -math.inf)
        total = logits.logsumexp(dim=-1, keepdim=True)
        return torch.exp(logits - total.masked_fill(total.isinf(), 0.0) * math.log(2.0))

    def row_term(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        """As fused kernels make it: of the answer and what flows back."""
        del weights, weight_gradient
        return (steps.gradient * steps.output).sum(dim=-1, keepdim=True)


class LastTileLost(HandWritten):
    """A loop over the tiles of 4 keys that stops before the last one."""

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        """Of the query."""
        kept = (scores.shape[-1] - 1) // 4 * 4 or scores.shape[-1]
        return scores[..., :kept] @ steps.key[:, :, :kept] * steps.scale


class SoftcapSlope(HandWritten):
    """The derivative of the softcap is one less the size of the hyperbolic tangent."""

    def slope(self, steps: Steps) -> Tensor:
        """Of the capped scores."""
        right = torch.as_tensor(super().slope(steps))
        return 1.0 - (1.0 - right).clamp_min(0.0).sqrt()


class Shifted(HandWritten):
    """A hundredth is added to each weight of the values: no variant does so."""

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        """Of the value, for each query head."""
        return (weights + 0.01).mT @ steps.gradient


SAID = {
    TwoAtOnce: "in the gradient of the value what flows back is zero for the last query; "
    "the gradient of the additive mask is 2 times what it must be",
    RowTermAdded: "in the gradient of the scores the row term of the softmax, rowsum(P * dP), is "
    "negated; the gradient of the query is not multiplied by the scale",
    HalvedInGroups: "the gradient of the value is 1/the number of queries times what it must be "
    "(only where heads share keys and values)",
    Clamped: "in the gradient of the scores dS is clamped to the range from -0.25 to 0.25",
    UpstreamClamped: "in every gradient what flows back is clamped to the range from -0.75 to 0.75",
    QueryClamped: "in the gradient of the query each element is clamped to the range from -0.1 to "
    "0.1",
    HeadsOfKeysClamped: "in the gradient of the key each element is clamped to the range from -0.1 "
    "to 0.1 before those of a group are added up",
    QueryCut: "in the gradient of the query the whole gradient is cut to a length of 1",
    LaterHalved: "in the gradient of the value tokens from index 3 on are 0.5 times what they must "
    "be",
    LaterLost: "in the gradient of the value tokens from index 4 on are left out",
    SumOfBaseTwo: "in every gradient the saved logarithm of the sum of the exponentials is taken "
    "to be of base 2",
    LastTileLost: "in the gradient of the query dS is zero for the last tile of 4 keys, of several",
    SoftcapSlope: "in the gradients of the query and the key the derivative of the softcap is "
    "taken to be 1 - |tanh|",
    AveragedOverItems: "in the gradient of the value each element is averaged over the batch items",
}


def entry(candidate: Candidate) -> dict[str, Any]:
    """The only thing that is said of a candidate's gradients."""
    diagnostician = BackwardDiagnostician(Subject(candidate, "float32"))
    (only,) = diagnostician.explain("gradients.golden", problem())
    return only


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("wrong", "said"), SAID.items())
@pytest.mark.nightly
def test_a_wrong_gradient_is_stated(wrong: type[HandWritten], said: str) -> None:
    """Each gradient by itself, with its number and condition; one part for what is alike."""
    assert entry(core(wrong()))["text"] == said


@pytest.mark.one_in(2)
class _OtherCausality(torch.autograd.Function):
    """A pass back that recomputes the weights, each time under the causal rule or turned round."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, flags: Any) -> Tensor:
        causal, again, ctx.keeps_sums = flags
        scores = _causal(query @ key.mT * query.shape[-1] ** -0.5, causal)
        total = scores.logsumexp(-1, keepdim=True)
        answer = torch.exp(scores - total) @ value
        ctx.save_for_backward(query, key, value, answer, total)
        ctx.causal = again(causal)
        return answer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (upstream,), (query, key, value, answer, total) = gradients, ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        scores = _causal(query @ key.mT * scale, ctx.causal)
        if not ctx.keeps_sums:
            total = scores.logsumexp(-1, keepdim=True)
        weights = torch.exp(scores - total)
        answer = answer if ctx.keeps_sums else weights @ value
        term = (upstream * answer).sum(-1, keepdim=True)
        scores = weights * (upstream @ value.mT - term) * scale
        return scores @ key, scores.mT @ query, weights.mT @ upstream, None


def _causal(scores: Tensor, causal: bool) -> Tensor:  # noqa: FBT001
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~seen, -math.inf) if causal else scores


@pytest.mark.parametrize("keeps_sums", [True, False], ids=["saved sums", "its own sums"])
@pytest.mark.parametrize(
    ("again", "said"),
    [
        (lambda _causal: True, "under the causal rule, in calls without it too"),
        (lambda causal: not causal, "under the causal rule in calls without it alone"),
    ],
    ids=["always", "turned round"],
)
@pytest.mark.nightly
def test_other_causality_in_the_pass_back_alone_is_stated(
    again: Callable[[bool], bool], said: str, *, keeps_sums: bool
) -> None:
    """As of a kernel that forgets the flag, whether it saves the sums or makes them again."""

    @conformance.core(causal="top-left")
    def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
        answer: Tensor = _OtherCausality.apply(query, key, value, (causal, again, keeps_sums))
        return answer

    assert f"recomputed {said}" in entry(attend)["text"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (NormTakenForConstant, "the norm is taken for a constant"),
        (RotatedOnBackward, "heads are turned on by their angles instead of back"),
    ],
)
@pytest.mark.nightly
def test_ways_back_through_norm_and_rotation_are_stated(wrong: Candidate, said: str) -> None:
    """What becomes of the gradients of prepared heads is a step of the backward pass."""
    assert entry(wrong)["text"] == f"in the gradients of the query and the key {said}"


class KeyCut(Prepared):
    """Keys and queries are normalised, and no gradient flows back to the key."""

    norm = "layer"

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Normalised."""
        query, key = super().prepare(query, key, here, there)
        return query, key.detach() + 0.0 * key


def test_behind_norm_and_rotation_mistakes_have_their_usual_names() -> None:
    """Preparation is passed by every backward pass that is acted out."""
    point = Semantics(qk_norm="layer")
    wrong = core(KeyCut(), semantics=point, features=["scale"], masks=[])
    assert entry(wrong)["name"] == "gradient-of-key-cut"


@pytest.mark.nightly
def test_more_problems_tell_alike_statements_apart() -> None:
    """Tiles of 64 and of 128 lose the same of 130 keys: other lengths decide which it is."""
    assert entry(LargeTilesOverwrittenBackward)["text"].endswith("tile of 128")


def test_what_fits_no_variant_stays_unknown() -> None:
    """No statement is made that does not hold in all problems."""
    unknown = entry(core(Shifted()))
    assert unknown["name"] == "unknown-mistake"
    assert unknown["facts"]["gradients"] == ["value"]


def test_of_zeros_no_variant_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any variant times 0 is zero: the right pass says as much."""
    tried: list[Any] = []
    multiples = backward._multiples

    def counted(variant: Variant, role: str, wrong: Any) -> Any:
        tried.append(variant)
        return multiples(variant, role, wrong)

    monkeypatch.setattr(backward, "_multiples", counted)
    assert entry(BiasGradientIsZero)["name"] == "gradient of additive mask: zero"
    assert set(tried) == {RIGHT}


def test_one_number_is_said_before_variants_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right gradients times a number are simpler than any variant: they are checked first."""

    def read(_readings: Any) -> Any:
        pytest.fail("variants are read")

    monkeypatch.setattr(backward, "_of_what_was_read", read)
    assert entry(core(QueryHalved()))["name"] == "gradient of query: 1/2 times what it must be"


def test_names_of_numbers_are_in_the_catalogue() -> None:
    """A number that has a name in the catalogue takes sentence and fix from there."""
    assert set(_OF_CATALOGUE.values()) <= {mistake.name for mistake in BACKWARD}


@pytest.mark.nightly
def test_half_precision_gives_no_name_that_its_bounds_cannot_tell() -> None:
    """In bfloat16 a mean in place of the row term is near other mistakes: none of them is said."""

    class Mean(HandWritten):
        def row_term(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
            del steps
            return (weights * weight_gradient).mean(dim=-1, keepdim=True)

    subject = Subject(core(Mean(), dtypes=["bfloat16"]), "bfloat16")
    said = BackwardDiagnostician(subject).explain("gradients.golden", problem(dtype="bfloat16"))
    names = {each["name"] for each in said}
    mean = "gradient of scores: the row term of the softmax, rowsum(P * dP), is the mean of P * dP"
    assert all(name == "unknown-mistake" or name.startswith(mean) for name in names)


@pytest.mark.parametrize("number", [math.inf, math.nan, 0.0])
def test_no_length_is_read_of_gradients_that_have_none(number: float) -> None:
    """Infinite gradients, and none at all, are cut to no length; reading them raises nothing."""
    exact = torch.ones(1, 1, 2, 3).double()
    observed = [(number * exact, exact), (number * exact, 2.0 * exact)]
    assert not list(read_variants("query", observed))
