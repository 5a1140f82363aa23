"""Names of mistakes of precision: only where one explains everything, never to the innocent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import BARE_FLOAT32, core, layer, problem
from torch import Tensor

import conformance
from candidates.broken import MISTAKES
from candidates.broken.precision import rounded_bits
from candidates.eager import Call, EagerCore, EagerLayer
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import diagnose, names
from conformance.diagnosis.precision_diagnosis import COARSER, agrees, precision_entry
from conformance.diagnosis.scale_diagnosis import scale_entry
from conformance.operators.roundings import ROUNDINGS
from conformance.tolerance.attention_bound import core_bound
from conformance.tolerance.model import TENSOR_FLOAT_32, UNIT_ROUNDOFF

BY_NAME = {mistake.name: mistake for mistake in MISTAKES}
# What each mistake of the catalogue is called.
NAMED = {
    ("WeightsInBfloat16", "float32"): "weights-in-bfloat16",
    ("ExponentialsInBfloat16", "float32"): "weights-in-bfloat16",
    ("ScoresInFloat16", "float32"): "scores-in-float16",
    ("ScoresOfElevenBits", "float32"): "scores-in-tf32",
    ("ScoresFromShortOperands", "float32"): "scores-from-tf32",
    ("ProductsInTensorFloat32", "float32"): "products-in-tf32",
    ("SoftmaxInBfloat16", "float32"): "softmax-in-bfloat16",
    ("SoftmaxInFloat16", "float32"): "softmax-in-float16",
    ("AnswerThroughBfloat16", "float32"): "computed-in-bfloat16",
    ("Float32InTheMiddle", "float64"): "computed-in-float32",
    ("LayerWithFloat32Core", "float64"): "computed-in-float32",
}
SCALES = {
    ("ScaleOnePercentOff", "float32"): 0.01,
    ("ScaleFromFastInverseRoot", "float32"): 0.001,
    ("ScaleTenThousandthOff", "float32"): 1e-4,
    ("ScaleOfTwentyBits", "float32"): 2.0**-20,
    ("ScaleTrillionthOff", "float64"): 1e-12,
    ("HalfScaleOnePercentOff", "bfloat16"): 0.01,
    ("HalfScaleOnePercentOff", "float16"): 0.01,
    ("FusedScaleOnePercentOff", "bfloat16"): 0.01,
    ("FusedScaleOnePercentOff", "float16"): 0.01,
    ("LayerScaleOnePercentOff", "bfloat16"): 0.01,
    ("LayerScaleOnePercentOff", "float16"): 0.01,
}


def subject_of(name: str, dtype: str) -> Subject:
    """A mistake of the catalogue under test."""
    return Subject(BY_NAME[name].candidate, dtype)


def unnamed(subject: Subject) -> bool:
    """Whether a candidate gets no name, only the facts if it is wrong at all."""
    return all(name == "unknown-mistake" for name in names(diagnose(subject)))


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "dtype"), NAMED, ids="-".join)
def test_loss_is_named(name: str, dtype: str) -> None:
    """Each loss of precision has one name, the only one that is given."""
    (entry,) = diagnose(subject_of(name, dtype))
    assert entry["name"] == NAMED[name, dtype]
    # To weights of half precision, rounding the weights once more is next to nothing.
    doubtful = dtype in {"float16", "bfloat16"}
    assert (0.4 if doubtful else 0.9) <= entry["confidence"] <= (0.5 if doubtful else 1.0)
    assert entry["text"]


@pytest.mark.one_in(11)
@pytest.mark.parametrize(("name", "dtype"), SCALES, ids="-".join)
def test_scale_is_named_with_its_error(name: str, dtype: str) -> None:
    """A scale that is off is named together with its relative error as a number."""
    (entry,) = diagnose(subject_of(name, dtype))
    assert entry["name"] == "scale-off"
    assert entry["scale_error"] == pytest.approx(SCALES[name, dtype], rel=0.1)
    assert "relative error" in entry["text"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_in_the_dtype_of_the_inputs_have_one_name(dtype: str) -> None:
    """They are one mistake, whichever dtype the inputs have."""

    def adds_up_in_it(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query.float() @ key.float().mT * query.shape[-1] ** -0.5
        weights = scores.softmax(-1).to(query.dtype)
        total = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
        for place in range(key.shape[2]):
            total = total + weights[..., place, None] * value[..., None, place, :]
        return total

    candidate = conformance.core(dtypes=[dtype], scores="fused")(adds_up_in_it)
    (entry,) = diagnose(Subject(candidate, dtype))
    assert entry["name"] == "sum-in-input-dtype"
    assert f"added up in {dtype}" in entry["text"]


def test_exponentials_of_a_fused_kernel_are_named() -> None:
    """They are rounded relative to the largest logit so far, and rescaled afterwards."""

    def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        ends = ((torch.arange(scores.shape[-1]) // 32 + 1) * 32 - 1).clamp_max(scores.shape[-1] - 1)
        largest = scores.cummax(-1).values[..., ends]
        grown = (largest - largest[..., -1:]).exp()
        powers = (scores - largest).exp()
        return (powers.bfloat16().float() * grown) @ value / (powers * grown).sum(-1, keepdim=True)

    plain = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
    (entry,) = diagnose(Subject(core(fused, **plain), "float32"))
    assert entry["name"] == "weights-in-bfloat16"
    assert "in tiles of 32 keys" in entry["text"]


def test_numbers_of_few_bits_are_told() -> None:
    """Wrong answers that all end in zeros are rounded, in whichever format and wherever it is."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
        return rounded_bits(output, 7) if query.shape[2] > 1 else output

    plain = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
    (entry,) = diagnose(Subject(core(attend, **plain), "float32"))
    assert entry["name"] == "rounded-to-17-bits"


def test_weights_that_are_cut_off_are_told_from_what_is_rounded() -> None:
    """The limit is read off: exp(-9.2) is 0.000101."""
    (name,) = names(diagnose(subject_of("SmallWeightsCutOff", "float32")))
    assert name == "weights below 0.000101: zero"


@pytest.mark.one_in(9)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("candidate", [core(), layer()], ids=["core", "layer"])
def test_the_innocent_are_not_named(candidate: Candidate, dtype: str) -> None:
    """A correct candidate has neither a wrong scale nor a loss of precision."""
    subject = Subject(candidate, dtype)
    assert diagnose(subject) == []
    assert scale_entry(subject, []) is None
    assert precision_entry(subject, []) is None


def test_exact_numbers_do_not_look_coarse() -> None:
    """Correct answers that are small integers or powers of two are no sign of a coarse format."""

    def constant(query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
        shape = (*query.shape[:-1], value.shape[-1])
        return torch.full(shape, 0.5, dtype=query.dtype)

    plain = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
    (name,) = names(diagnose(Subject(core(constant, **plain), "float32")))
    assert name == "answer: 0.5 in rows that have a key"


def rounded(tensor: Tensor, name: str) -> Tensor:
    """Rounded to a format and back."""
    return ROUNDINGS[name](tensor).to(tensor.dtype)


def core_with(*, name: str, query: bool = False, key: bool = False, **stages: bool) -> EagerCore:
    """A core that rounds some of its stages to a format."""

    class Rounds(EagerCore):
        def scores(self, call: Call, key_heads: Tensor) -> Tensor:
            if query:
                call = call.replace(query=rounded(call.query, name))
            return super().scores(call, rounded(key_heads, name) if key else key_heads)

        def mix(self, weights: Tensor, value: Tensor) -> Tensor:
            if stages.get("weights"):
                weights = rounded(weights, name)
            if stages.get("exponentials"):  # as a fused kernel has them, not divided by their sum
                largest = weights.amax(dim=-1, keepdim=True).clamp_min(1e-30)
                weights = rounded(weights / largest, name) * largest
            if stages.get("value"):
                value = rounded(value, name)
            output = super().mix(weights, value)
            return rounded(output, name) if stages.get("output") else output

    return Rounds()


ROUNDED_STAGES = {
    ("query",): "query-in",
    ("key",): "key-in",
    ("query", "key"): "scores-from",
    ("value",): "values-in",
    ("weights", "value"): "weights-and-values-in",
    ("exponentials", "value"): "weights-and-values-in",
    ("query", "key", "weights", "value"): "products-in",
    ("query", "key", "exponentials", "value"): "products-in",
    ("output",): "computed-in",
}


def entry_of(candidate: Candidate, dtype: str = "float32") -> dict[str, Any]:
    """The only entry of a candidate's diagnosis."""
    (entry,) = diagnose(Subject(candidate, dtype))
    return entry


@pytest.mark.one_in(11)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "tf32"])
@pytest.mark.parametrize("stages", ROUNDED_STAGES, ids="+".join)
def test_rounded_stage_is_named_with_its_format(stages: tuple[str, ...], name: str) -> None:
    """Formats of ten bits are told apart; only a real tf32 product is told to declare it."""
    entry = entry_of(core(core_with(name=name, **dict.fromkeys(stages, True))))
    assert entry["name"] == f"{ROUNDED_STAGES[stages]}-{name}"
    assert entry["confidence"] > 0.9
    product = ROUNDED_STAGES[stages] in {"scores-from", "products-in"}
    assert ("declare tf32" in entry["fix"]) == (product and name == "tf32")
    assert "ten bits" not in entry["text"]


@pytest.mark.parametrize(
    ("operands", "said"),
    [(False, "the dot products are rounded to"), (True, "query, key and their dot products are")],
)
def test_dot_products_that_are_rounded_before_the_scale_are_named(
    operands: bool,  # noqa: FBT001
    said: str,
) -> None:
    """A product in half precision rounds its operands and what comes of them."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        products = query.half() @ key.half().mT if operands else (query @ key.mT).half()
        return (products.to(query.dtype) * query.shape[-1] ** -0.5).softmax(-1) @ value

    entry = entry_of(core(attend, masks=[], causal=None, features=[]))
    assert entry["name"] == "scores-in-float16"
    assert said in entry["text"]


def test_what_overflows_says_nothing() -> None:
    """Operands in float16 are named, though some problems lead past its largest number."""

    class Overflows(EagerCore):
        def scores(self, call: Call, key_heads: Tensor) -> Tensor:
            call = call.replace(query=call.query.half().to(call.query.dtype))
            return super().scores(call, key_heads.half().to(key_heads.dtype))

    assert entry_of(core(Overflows()))["name"] == "scores-from-float16"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stages", [("query", "key"), ("query", "key", "weights", "value")])
def test_float16_under_float64_is_not_called_tf32(stages: tuple[str, ...]) -> None:
    """Nor is the advice to declare tf32 given."""
    rounds = core_with(name="float16", **dict.fromkeys(stages, True))
    entry = entry_of(core(rounds), "float64")
    assert entry["name"].endswith("-float16")
    assert "tf32" not in entry["text"] + entry["fix"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["float16", "tf32"])
def test_ten_bits_that_could_be_either_are_half_certain(name: str) -> None:
    """Weights of both formats are the same numbers: the text says so, and advises nothing."""
    entry = entry_of(core(core_with(name=name, weights=True)))
    assert entry["name"] == "weights-in-float16"
    assert "ten bits (float16 or TensorFloat-32)" in entry["text"]
    assert "declare" not in entry["text"] + entry["fix"]
    assert 0.4 < entry["confidence"] <= 0.5


def test_answers_of_ten_bits_are_half_certain() -> None:
    """A layer's answers are too large to tell float16 from tf32."""

    class Short(EagerLayer):
        def project(self, tokens: Tensor, name: str) -> Tensor:
            projected = super().project(tokens, name)
            return rounded(projected, "float16") if name == "o" else projected

    entry = entry_of(layer(Short))
    assert entry["name"] == "computed-in-float16"
    assert "ten bits" in entry["text"]
    assert entry["confidence"] == 0.5


def test_text_of_a_rounded_answer_is_true() -> None:
    """Whether only the answer is rounded cannot be seen from it, and is not claimed."""
    entry = entry_of(core(core_with(name="bfloat16", output=True)))
    assert "numbers of bfloat16" in entry["text"]
    assert "or rounds its answer to it" in entry["text"]


def epsilon_core(epsilon: float) -> EagerCore:
    """A core with a number added to the sum of its exponentials."""

    class WithEpsilon(EagerCore):
        def softmax(self, logits: Tensor) -> Tensor:
            largest = logits.amax(dim=-1, keepdim=True)
            weights = torch.exp(logits - largest.where(largest.isfinite(), 0.0))
            return weights / (weights.sum(dim=-1, keepdim=True) + epsilon)

    return WithEpsilon()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("epsilon", "dtype"), [(1e-3, "float32"), (1e-5, "float32"), (1e-9, "float64")]
)
def test_epsilon_is_named_with_its_size(epsilon: float, dtype: str) -> None:
    """What is added to the sum of the exponentials is told."""
    entry = entry_of(core(epsilon_core(epsilon)), dtype)
    assert entry["name"] == "epsilon-in-the-denominator"
    assert entry["epsilon"] == pytest.approx(epsilon, rel=0.05)
    assert f"about {epsilon:.2g} is added" in entry["text"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("epsilon", [0.0, -1e-3])
def test_other_sums_are_no_epsilon(epsilon: float) -> None:
    """A right sum, and one that is too small, get no such name."""
    said = names(diagnose(Subject(core(epsilon_core(epsilon)), "float32")))
    less = "sums of the exponentials: -0.001 times the exponential of the row's largest logit added"
    assert said == ([less] if epsilon else [])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("factor", [1e-6, -1e-6, 3e-6])
def test_answers_off_by_a_tiny_factor_have_no_wrong_scale(factor: float) -> None:
    """A factor of every answer is not taken for one of the logits, with whatever confidence."""

    class Larger(EagerCore):
        def mix(self, weights: Tensor, value: Tensor) -> Tensor:
            return super().mix(weights, value) * (1.0 + factor)

    assert unnamed(Subject(core(Larger()), "float32"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [1e-2, 1e-3])
def test_random_scale_is_no_scale(size: float) -> None:
    """A scale that differs between two calls on the same inputs is not named with a number."""
    generator = torch.Generator().manual_seed(5)

    class Random(EagerCore):
        def scale(self, call: Call) -> float:
            drawn = float(torch.randn((), generator=generator))
            return super().scale(call) * (1.0 + size * drawn)

    assert unnamed(Subject(core(Random()), "float32"))


def test_the_bound_of_a_right_answer_is_not_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it that is soon derived suffices; for a wrong answer the whole is."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem())
    derived: list[object] = []

    def counted(evaluation: Any, contract: Any, attended: Any = None) -> Any:
        derived.append(evaluation)
        return core_bound(evaluation, contract, attended=attended)

    monkeypatch.setattr("conformance.oracle.oracle._bound", counted)
    right = subject.golden(inputs).output.float().double()
    assert agrees(subject, inputs, right)
    assert not derived
    assert not agrees(subject, inputs, 1.001 * right)
    assert derived


def test_coarser_formats_are_ordered() -> None:
    """A format is among the coarser ones of another exactly when its unit roundoff is larger."""
    assert set(COARSER) == set(UNIT_ROUNDOFF)
    eight_bits = {
        name: torch.finfo(getattr(torch, name)).eps / 2.0
        for name in ("float8_e4m3fn", "float8_e5m2")
    }
    known = {**UNIT_ROUNDOFF, "tf32": TENSOR_FLOAT_32 / 2.0, **eight_bits}
    for name, coarser in COARSER.items():
        roundoffs = [known[other] for other in coarser]
        assert roundoffs == sorted(roundoffs, reverse=True)
        assert all(roundoff > known[name] for roundoff in roundoffs)
        assert set(coarser) <= set(ROUNDINGS)
        assert name not in coarser


def test_an_additive_mask_of_fewer_digits_has_a_name() -> None:
    """A mask that is converted to half precision before it is added; other calls are right."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        logits = logits if bias is None else logits + bias.bfloat16().to(q.dtype)
        return logits.softmax(-1).nan_to_num(0.0) @ v

    promises = {**BARE_FLOAT32, "masks": ["bias"], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, **promises), "float32"))
    assert entry["name"] == "additive-mask-in-bfloat16"
    assert "rounded to bfloat16 before it is added" in entry["text"]


def test_two_losses_of_precision_are_told_together() -> None:
    """Nearly tied scores show one of them, many keys the other: neither explains all answers."""

    def adds_up(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = (query @ key.mT) * query.shape[-1] ** -0.5
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        total = torch.zeros_like(powers[..., :1])
        for place in range(powers.shape[-1]):
            total = total + powers[..., place, None]
        return powers / total @ value

    candidate = conformance.core(dtypes=["bfloat16"], scores="fused")(adds_up)
    subject = Subject(candidate, "bfloat16")
    asked = problem(dtype="bfloat16", query_length=5, key_length=104, values="normal")
    inputs = subject.inputs(asked)
    entry = precision_entry(subject, [(inputs, subject.answer(inputs).double())])
    assert entry is not None
    assert entry["text"] == (
        "the scores are rounded to bfloat16 before the softmax; "
        "the exponentials are added up in bfloat16 (one term after the other)"
    )
