"""Names of mistakes of precision: only where one explains everything, never to the innocent."""

from __future__ import annotations

import pytest
import torch
from examples import core, layer, problem
from torch import Tensor

from candidates.broken import MISTAKES
from conformance.candidate import Candidate
from conformance.diagnosis import diagnose
from conformance.inputs import Inputs
from conformance.precision_diagnosis import precision_entry, scale_entry
from conformance.subject import Subject

BY_NAME = {mistake.name: mistake for mistake in MISTAKES}
# What each mistake of the catalogue is called.
NAMED = {
    ("WeightsInBfloat16", "float32"): "weights-in-bfloat16",
    ("ExponentialsInBfloat16", "float32"): "weights-in-bfloat16",
    ("ScoresInFloat16", "float32"): "scores-in-float16",
    ("ScoresFromShortOperands", "float32"): "scores-from-tf32",
    ("ProductsInTensorFloat32", "float32"): "products-in-tf32",
    ("SoftmaxInBfloat16", "float32"): "softmax-in-bfloat16",
    ("SoftmaxInFloat16", "float32"): "softmax-in-float16",
    ("AnswerThroughBfloat16", "float32"): "computed-in-bfloat16",
    ("Float32InTheMiddle", "float64"): "computed-in-float32",
    ("LayerWithFloat32Core", "float64"): "computed-in-float32",
    ("ScoresStoredThoughFused", "bfloat16"): "scores-in-bfloat16",
    ("ScoresStoredThoughFused", "float16"): "scores-in-float16",
    ("LayerScoresStoredThoughFused", "bfloat16"): "scores-in-bfloat16",
    ("LayerScoresStoredThoughFused", "float16"): "scores-in-float16",
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
# Mistakes of precision that are neither a scale nor a rounding to some format.
NAMELESS = ["RoughExponentials", "SmallWeightsCutOff", "LargeEpsilonInTheDenominator"]


def subject_of(name: str, dtype: str) -> Subject:
    """A mistake of the catalogue under test."""
    return Subject(BY_NAME[name].candidate, dtype)


@pytest.mark.parametrize(("name", "dtype"), NAMED, ids="-".join)
def test_loss_is_named(name: str, dtype: str) -> None:
    """Each loss of precision has one name, the only one that is given."""
    (entry,) = diagnose(subject_of(name, dtype))
    assert entry["name"] == NAMED[name, dtype]
    assert 0.9 <= entry["confidence"] <= 1.0
    assert entry["text"]


@pytest.mark.parametrize(("name", "dtype"), SCALES, ids="-".join)
def test_scale_is_named_with_its_error(name: str, dtype: str) -> None:
    """A scale that is off is named together with its relative error as a number."""
    (entry,) = diagnose(subject_of(name, dtype))
    assert entry["name"] == "scale-off"
    assert entry["scale_error"] == pytest.approx(SCALES[name, dtype], rel=0.1)
    assert "relative error" in entry["text"]


@pytest.mark.parametrize("name", NAMELESS)
def test_other_mistakes_of_precision_get_no_name(name: str) -> None:
    """None is named rather than the nearest."""
    assert diagnose(subject_of(name, "float32")) == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("candidate", [core(), layer()], ids=["core", "layer"])
def test_the_innocent_are_not_named(candidate: Candidate, dtype: str) -> None:
    """A correct candidate has neither a wrong scale nor a loss of precision."""
    subject = Subject(candidate, dtype)
    assert diagnose(subject) == []
    assert scale_entry(subject, []) is None
    assert precision_entry(subject, []) is None


def two_answers(factors: tuple[float, float]) -> tuple[Subject, list[tuple[Inputs, Tensor]]]:
    """Golden answers to two problems, each at its own multiple of the scale."""
    subject = Subject(core(), "float32")
    observed = []
    for seed, factor in enumerate(factors):
        inputs = subject.inputs(problem(seed=seed, query_length=9, key_length=12))
        scale = subject.golden(inputs).core.scale * factor
        observed.append((inputs, subject.oracle.output(inputs.replace(scale=scale))))
    return subject, observed


def test_scales_that_differ_are_given_as_a_range() -> None:
    """The least and the largest error are told, and the larger in size is the number."""
    subject, observed = two_answers((1.25, 0.9))
    entry = scale_entry(subject, observed)
    assert entry is not None
    assert entry["scale_error"] == pytest.approx(0.25, rel=1e-3)
    assert "between -0.1 and +0.25" in entry["text"]


def test_scale_is_not_blamed_for_half_of_the_answers() -> None:
    """One wrong answer that no scale explains, and the scale is not the mistake."""
    subject, observed = two_answers((1.1, 1.0))
    (inputs, output) = observed[1]
    assert scale_entry(subject, observed) is not None
    assert scale_entry(subject, [observed[0], (inputs, output.roll(1, dims=-2))]) is None


def test_answers_of_another_shape_get_no_name() -> None:
    """A loss of precision does not change shapes."""
    subject, observed = two_answers((1.1, 1.1))
    cut = [(inputs, output[..., :-1]) for inputs, output in observed]
    assert precision_entry(subject, cut) is None
    assert scale_entry(subject, cut) is None


def test_exact_numbers_do_not_look_coarse() -> None:
    """Correct answers that are small integers or powers of two are no sign of a coarse format."""

    def constant(query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
        shape = (*query.shape[:-1], value.shape[-1])
        return torch.full(shape, 0.5, dtype=query.dtype)

    plain = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
    assert diagnose(Subject(core(constant, **plain), "float32")) == []
