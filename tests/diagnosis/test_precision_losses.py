"""Losses of precision, acted out on golden evaluations."""

from __future__ import annotations

import math

import pytest
import torch
from examples import core, plan, problem
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conformance._golden import golden
from conformance.diagnosis.precision_losses import (
    LOSSES,
    SUMS,
    PrecisionLoss,
    added_up,
)
from conformance.operators.roundings import ROUNDINGS, to_cut_tf32, to_format, to_tf32
from conformance.oracle.oracle import evaluate
from conformance.problems.materialise import TORCH_DTYPES, materialise
from conformance.tolerance.model import TENSOR_FLOAT_32

EIGHT = ("float8_e4m3fn", "float8_e5m2")
each_loss = pytest.mark.parametrize(
    "loss", LOSSES, ids=lambda loss: f"{loss.name}: {loss.text[:40]}"
)
HALVES = ("float16", "bfloat16")


def attention(values: str = "normal", **changes: object) -> golden.Attention:
    """A golden evaluation of a core."""
    candidate = core()
    inputs = materialise(problem(values=values, dtype="float64", **changes), candidate)
    found = evaluate(inputs, candidate.declaration.semantics)
    assert isinstance(found, golden.Attention)
    return found


def number(value: float) -> Tensor:
    """A float64 tensor of one number."""
    return torch.tensor([value], dtype=torch.float64)


@pytest.mark.parametrize("order", ["before-mask", "after-mask"])
def test_a_softcap_passes_on_what_its_slope_allows(order: str) -> None:
    """A query that is rounded before a cap answers as golden does with a rounded query.

    Behind biases the cap is acted out by its slope: to a hundredth of what is lost.
    """
    candidate = core()
    semantics = candidate.declaration.semantics.replace(softcap_order=order)
    inputs = materialise(problem(dtype="float64", softcap=1.5), candidate)
    exact = evaluate(inputs, semantics)
    rounded = inputs.replace(query=ROUNDINGS["bfloat16"](inputs.query))
    assert isinstance(exact, golden.Attention)
    expected = evaluate(rounded, semantics).output
    (loss,) = (one for one in LOSSES if one.name == "query-in-bfloat16")
    left = float((loss.output(exact) - expected).abs().max())
    lost = float((exact.output - expected).abs().max())
    assert left <= (1e-12 if order == "before-mask" else 0.01) * lost


@pytest.mark.parametrize("name", TORCH_DTYPES)
@given(value=st.floats(-1e3, 1e3))
def test_formats_round_as_torch_does(name: str, value: float) -> None:
    """A rounding is the conversion and back, in float64."""
    once = to_format(name)(number(value))
    assert once.dtype == torch.float64
    assert torch.equal(once, number(value).to(TORCH_DTYPES[name]).double())
    assert torch.equal(to_format(name)(once), once)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_what_is_too_large_becomes_the_largest(name: str) -> None:
    """Finite numbers stay finite, so that an acted loss never overflows; infinities stay."""
    largest = torch.finfo(TORCH_DTYPES[name]).max
    assert float(to_format(name)(number(1e300))) == largest
    assert float(to_format(name)(number(-1e300))) == -largest
    assert float(to_format(name)(number(-math.inf))) == -math.inf
    assert math.isnan(float(to_format(name)(number(math.nan))))


@given(value=st.floats(1e-20, 1e20))
def test_tensor_float_32_keeps_ten_bits(value: float) -> None:
    """Rounding errs by half of a unit at most, cutting by one; both keep ten bits."""
    single = number(value).float().double()
    for rounding, units in ((to_tf32, 1.0), (to_cut_tf32, 2.0)):
        found = rounding(single)
        assert abs(float(found - single)) <= units * TENSOR_FLOAT_32 * float(found.abs())
        assert torch.equal(rounding(found), found)
        mantissa = torch.frexp(found).mantissa * 2.0**11
        assert torch.equal(mantissa, mantissa.round())
    assert float(to_cut_tf32(single)) <= float(single)


def test_losses_tell_what_to_do() -> None:
    """Names are slugs, texts are distinct; a name that occurs twice is one loss in two ways."""
    assert len({loss.text for loss in LOSSES}) == len(LOSSES)
    for loss in LOSSES:
        assert loss.name == loss.name.lower().replace(" ", "-")
        assert loss.number_format in ("float32", "float16", "bfloat16", "tf32")
        assert "{" not in loss.text + loss.in_ten_bits()
        assert "ten bits (float16 or TensorFloat-32)" in loss.in_ten_bits()
        advised = loss.number_format == "tf32" and loss.stage in {"scores-from", "products-in"}
        assert ("declare tf32" in loss.fix) == advised
        assert "declare" not in loss.text + loss.in_ten_bits()


@pytest.mark.one_in(6)
@each_loss
@pytest.mark.parametrize(
    "changes",
    [{}, {"mask": plan()}, {"causal": True}, {"softcap": 2.0}, {"num_kv_heads": 2}],
    ids=str,
)
def test_loss_moves_the_answer_a_little(loss: PrecisionLoss, changes: dict[str, object]) -> None:
    """An acted loss has the answer's shape, differs from it, and by rounding only.

    A mask that is not there has nothing to lose.
    """
    exact = attention(**changes)
    acted = loss.output(exact)
    assert acted.shape == exact.output.shape
    assert acted.dtype == torch.float64
    alive = ~exact.empty
    apart = float((acted - exact.output)[alive].abs().max())
    assert apart == 0.0 if loss.stage == "additive-mask-in" else 0.0 < apart < 0.1
    assert bool(torch.isfinite(acted).all())


@each_loss
def test_scores_of_small_integers_are_exact(loss: PrecisionLoss) -> None:
    """Integers are exact in every format: only weights, and what is computed of them, are not.

    A mask that is not there has nothing to lose.
    """
    exact = attention("integers", head_size=16)
    apart = float((loss.output(exact) - exact.output).abs().max())
    of_integers = {"scores-in", "scores-from", "query-in", "key-in", "values-in", "exponents-in"}
    if loss.stage in {*of_integers, "additive-mask-in"}:
        assert apart < 1e-12
    else:
        assert apart > 0


@pytest.mark.parametrize("stage", ["weights-in", "scores-in", "softmax-in", "scores-from"])
def test_coarser_formats_lose_more(stage: str) -> None:
    """bfloat16 loses more than float16, and that more than float32."""
    exact = attention(query_length=20, key_length=20)
    lost = {}
    for name in ("bfloat16", "float16", "float32"):
        (loss, *_) = (loss for loss in LOSSES if loss.name == f"{stage}-{name}")
        error = loss.output(exact) - exact.output
        lost[name] = float(error.square().mean().sqrt())
    assert lost["bfloat16"] > 4 * lost["float16"] > 100 * lost["float32"] > 0


@each_loss
def test_masked_keys_stay_without_weight(loss: PrecisionLoss) -> None:
    """A loss does not let ignored keys in: their values never reach the answer."""
    candidate = core()
    inputs = materialise(problem(dtype="float64", mask=plan("single")), candidate)
    hidden = ~inputs.allowed(candidate.declaration.semantics)
    never = hidden.all(dim=(1, 2))
    assert bool(never.any())
    changed = inputs.value.clone()
    changed[never[:, None, :].expand(changed.shape[:3])] = 1e6
    answers = []
    for value in (inputs.value, changed):
        found = evaluate(inputs.with_tokens(value=value), candidate.declaration.semantics)
        assert isinstance(found, golden.Attention)
        answers.append(loss.output(found)[~found.empty])
    assert torch.equal(answers[0], answers[1])


def test_sums_are_rounded_after_each_part() -> None:
    """Of 1 and many small terms float16 keeps the 1 alone, unless they are added up together."""
    left, right = torch.ones(1, 9).double(), torch.full((9, 1), 2.0**-12).double()
    right[0] = 1.0
    half = to_format("float16")
    assert added_up(left, right, half, 1).item() == 1.0
    assert added_up(left, right, half, 9).item() == 1.0 + 2.0**-9
    assert added_up(left, right, to_format("float32"), 1).item() == 1.0 + 2.0**-9


def test_sums_are_told_apart_by_what_is_added_up_and_how() -> None:
    """Each stage, format and number of terms has a text of its own, with a remedy."""
    assert {loss.stage for loss in SUMS} == {"sum-in", "denominator-in", "products-added-up-in"}
    assert all("add up in float32" in loss.fix for loss in SUMS)
    assert len({loss.text for loss in SUMS}) == len(SUMS) * 3 // 4  # two ways to sum values
