"""The logit scale that explains an answer, as a number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import core, layer, plan, problem
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.oracle.oracle import Oracle
from conformance.oracle.yardstick import fitted_scale_error
from conformance.problems.inputs import Inputs
from conformance.tolerance import model

ERRORS = [1e-12, -1e-12, 1e-9, 1e-6, 1e-3, -0.01, 0.01, 0.1, -0.3, -0.5, 1.0]
PLAIN: dict[str, Any] = {"query_length": 9, "key_length": 12, "head_size": 8}

both_kinds = pytest.mark.parametrize("candidate", [core(), layer()], ids=["core", "layer"])


def example(
    candidate: Candidate, dtype: str = "float64", **changes: Any
) -> tuple[Subject, Inputs, Tensor]:
    """A subject, some inputs and their golden answer."""
    subject = Subject(candidate, dtype)
    inputs = subject.inputs(problem(dtype=dtype, **{**PLAIN, **changes}))
    return subject, inputs, subject.golden(inputs).output


def at_scale(subject: Subject, inputs: Inputs, factor: float) -> Tensor:
    """The golden answer at a multiple of the scale."""
    scale = subject.golden(inputs).core.scale
    return subject.oracle.output(inputs.replace(scale=scale * factor))


@both_kinds
@pytest.mark.parametrize("error", ERRORS)
def test_scale_error_is_recovered(candidate: Candidate, error: float) -> None:
    """From a trillionth to a factor of two the error is found, up to float64's own rounding."""
    subject, inputs, _ = example(candidate)
    fitted = fitted_scale_error(subject.oracle, inputs, at_scale(subject, inputs, 1.0 + error))
    assert fitted == pytest.approx(error, rel=1e-6, abs=1e-14)


def test_a_fit_ends_when_it_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps find an error of a tenth to the last digit: no others are taken."""
    subject, inputs, _ = example(core())
    wrong, evaluated = at_scale(subject, inputs, 1.1), []
    output = Oracle.output

    def counted(oracle: Oracle, *given: Any) -> Tensor:
        evaluated.append(given)
        return output(oracle, *given)

    monkeypatch.setattr(Oracle, "output", counted)
    assert fitted_scale_error(subject.oracle, inputs, wrong) == pytest.approx(0.1, rel=1e-12)
    assert len(evaluated) <= 3 * (model.NEWTON_STEPS - 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": plan()},
        {"mask": plan("empty-rows")},
        {"causal": True},
        {"scale": 0.3},
        {"scale": -0.3},
        {"softcap": 2.0},
        {"num_kv_heads": 2},
        {"window": (2, 1)},
    ],
    ids=str,
)
def test_scale_error_is_recovered_anywhere(changes: dict[str, Any]) -> None:
    """Masks, rows without keys, given scales and caps do not hinder the fit."""
    subject, inputs, _ = example(core(), **changes)
    fitted = fitted_scale_error(subject.oracle, inputs, at_scale(subject, inputs, 1.01))
    assert fitted == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-4), ("float16", 0.3)])
def test_rounded_answers_are_explained_too(dtype: str, error: float) -> None:
    """An answer that is rounded besides is explained while the scale is most of its error."""
    subject, inputs, _ = example(core(), dtype)
    wrong = at_scale(subject, inputs, 1.0 + error).to(inputs.query.dtype)
    fitted = fitted_scale_error(subject.oracle, inputs, wrong)
    assert fitted == pytest.approx(error, rel=0.05)


def shuffled(output: Tensor) -> Tensor:
    """Another query's answer."""
    return output.roll(1, dims=-2)


def noisy(output: Tensor) -> Tensor:
    """Independent errors of a thousandth."""
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    return output * (1.0 + 1e-3 * noise.double())


MISTAKES = {
    "shuffled": shuffled,
    "noisy": noisy,
    "shrunk": lambda output: output * 0.999,
    "shifted": lambda output: output + 0.01,
    "coarse": lambda output: output.bfloat16().double(),
}


@both_kinds
@pytest.mark.parametrize("name", MISTAKES)
def test_other_mistakes_are_not_explained(candidate: Candidate, name: str) -> None:
    """No scale is blamed for what a scale cannot do."""
    subject, inputs, output = example(candidate)
    assert fitted_scale_error(subject.oracle, inputs, MISTAKES[name](output)) is None


def test_few_elements_say_nothing() -> None:
    """Any error of a single number is that of some scale: it is not reported."""
    sizes = {"batch": 1, "num_heads": 1, "num_kv_heads": 1, "query_length": 1}
    subject, inputs, output = example(core(), **sizes, value_head_size=1)
    assert fitted_scale_error(subject.oracle, inputs, output + 1e-3) is None


def test_scale_that_moves_nothing_is_not_blamed() -> None:
    """With a single key, or a scale of zero, no scale changes the answer."""
    subject, inputs, output = example(core(), key_length=1)
    assert fitted_scale_error(subject.oracle, inputs, output + 1e-3) is None
    subject, inputs, output = example(core(), scale=0.0)
    assert fitted_scale_error(subject.oracle, inputs, output + 1e-3) is None


def test_answer_of_another_shape_is_not_explained() -> None:
    """A scale does not change shapes."""
    subject, inputs, output = example(core())
    assert fitted_scale_error(subject.oracle, inputs, output[..., :-1]) is None


def test_rows_without_keys_do_not_count() -> None:
    """What is written into rows that are not judged neither hides nor feigns a scale."""
    subject, inputs, _ = example(core(), mask=plan("empty-rows"))
    wrong = at_scale(subject, inputs, 1.01)
    empty = subject.golden(inputs).empty
    assert bool(empty.any())
    wrong[empty] = 1e6
    assert fitted_scale_error(subject.oracle, inputs, wrong) == pytest.approx(0.01, rel=1e-6)
