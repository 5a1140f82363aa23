"""A scale that is off is named with its error, and with the head sizes at which it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from examples import BARE_FLOAT32, core, problem
from torch import Tensor

from candidates.eager import Call, EagerCore
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose, scale_diagnosis
from conformance.diagnosis.precision_diagnosis import precision_entry
from conformance.diagnosis.scale_diagnosis import add_numbers, scale_entry
from conformance.oracle.oracle import Oracle
from conformance.oracle.yardstick import fitted_scale_error
from conformance.problems.inputs import Inputs


def two_answers(factors: tuple[float, float]) -> tuple[Subject, list[tuple[Inputs, Tensor]]]:
    """Two answers of a core whose scale is off by a factor, one for each number of keys."""

    class Scaled(EagerCore):
        def scale(self, call: Call) -> float:
            return super().scale(call) * factors[call.key_length - 12]

    subject = Subject(core(Scaled()), "float32")
    observed = []
    for seed in range(len(factors)):
        example = problem(seed=seed, query_length=9, key_length=12 + seed)
        inputs = subject.inputs(example)
        observed.append((inputs, subject.answer(inputs).double()))
    return subject, observed


def test_scales_that_differ_are_given_as_a_range() -> None:
    """The least and the largest error are told, and the larger in size is the number."""
    subject, observed = two_answers((1.25, 0.9))
    entry = scale_entry(subject, observed)
    assert entry is not None
    assert entry["scale_error"] == pytest.approx(0.25, rel=1e-3)
    assert "between -0.1 and +0.25" in entry["text"]


def test_no_scale_is_fitted_to_the_rest_where_one_answer_has_another_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first wrong answer is no other scale's: the second is not looked at."""
    subject, observed = two_answers((1.1, 1.1))
    (inputs, output), last = observed
    fitted: list[Inputs] = []

    def fit(oracle: Oracle, inputs: Inputs, output: Tensor) -> float | None:
        fitted.append(inputs)
        return fitted_scale_error(oracle, inputs, output)

    monkeypatch.setattr(scale_diagnosis, "fitted_scale_error", fit)
    assert scale_entry(subject, [(inputs, output.roll(1, dims=-2)), last]) is None
    assert fitted == [inputs]


def test_scale_is_not_blamed_for_half_of_the_answers() -> None:
    """One answer of the same head size that no such scale explains, and it is not the mistake."""
    subject, observed = two_answers((1.1, 1.1))
    (inputs, output) = observed[1]
    assert scale_entry(subject, observed) is not None
    assert scale_entry(subject, [observed[0], (inputs, output.roll(1, dims=-2))]) is None
    assert scale_entry(*two_answers((1.1, 1.0))) is None


def test_answers_of_another_shape_get_no_name() -> None:
    """A loss of precision does not change shapes."""
    subject, observed = two_answers((1.1, 1.1))
    cut = [(inputs, output[..., :-1]) for inputs, output in observed]
    assert precision_entry(subject, cut) is None
    assert scale_entry(subject, cut) is None


@pytest.mark.parametrize(
    ("multiplied", "name"),
    [
        (lambda products, scale: products / scale, "scale-inverted"),
        (lambda products, scale: products * scale**0.5, "scale-fourth-root"),
    ],
)
@pytest.mark.parametrize("zeros", [True, False])
def test_a_mistake_of_every_scale_is_one(
    multiplied: Callable[[Tensor, float], Tensor], name: str, *, zeros: bool
) -> None:
    """Of the default and of one that a call gives; by zero it may make NaN or a row of zeros."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        logits = multiplied(q @ k.mT, q.shape[-1] ** -0.5 if scale is None else scale)
        weights = logits.softmax(-1)
        return (weights.nan_to_num(0.0) if zeros else weights) @ v

    (entry,) = diagnose(Subject(core(attend, **{**BARE_FLOAT32, "features": ["scale"]}), "float32"))
    assert entry["name"] == name


def test_rules_of_a_scale_that_fit_alike_come_with_their_number() -> None:
    """At one head size several rules give it: the number is what can be known, and mended."""
    subject, _ = two_answers((2.0, 2.0))
    example = problem(seed=0, query_length=9, key_length=12, head_size=4)
    names = ("scale-missing", "scale-hard-coded-eighth")
    rules = [{"name": name, "text": "a rule", "fix": "another"} for name in names]
    told = add_numbers(subject, rules, example)
    assert [one["text"] for one in told] == [
        "the scores are multiplied by 1, not by 0.5, as where a rule"
    ] * 2
    assert {one["fix"] for one in told} == {"multiply them by 0.5: another"}
    assert add_numbers(subject, rules[:1], example) == rules[:1]
    pairs = [{**one, "name": f"{one['name']}+mask-ignored"} for one in rules]
    assert add_numbers(subject, pairs, example) == pairs
