"""The core: a tutorial's printed figures, the paper's identities, empty rows, junk, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from golden_problems import Shape, core_case, shapes
from hypothesis import given
from refusals import refused
from torch import Tensor

from reference import (
    STANDARD,
    Attention,
    attend,
    repeat_heads,
    scaled_dot_product_attention,
    softmax,
)

UNIT_ROUNDOFF = 2.0**-53
# What document 001 prints for its first head, to four decimals; it does not scale.
PRINTED_QUERY = [[1.0277, 0.4852], [0.8772, 0.4506], [0.5097, 0.2065], [0.7879, 0.4787]]
PRINTED_KEY_TRANSPOSED = [[1.0057, 1.0469, 0.5064, 1.0779], [0.6135, 0.5327, 0.4113, 0.3430]]
PRINTED_SCORES = [
    [1.3312, 1.3344, 0.7200, 1.2741],
    [1.1587, 1.1584, 0.6296, 1.1001],
    [0.6392, 0.6435, 0.3430, 0.6201],
    [1.0861, 1.0799, 0.5959, 1.0134],
]
PRINTED_WEIGHTS = [
    [0.2865, 0.2874, 0.1555, 0.2706],
    [0.2831, 0.2831, 0.1668, 0.2670],
    [0.2682, 0.2693, 0.1994, 0.2631],
    [0.2828, 0.2810, 0.1732, 0.2630],
]


def head(rows: list[list[float]]) -> Tensor:
    """One head of one item, in float64."""
    return torch.tensor(rows, dtype=torch.float64)[None, None]


def printed_steps(computed: Tensor, printed: list[list[float]]) -> int:
    """The largest distance in units of the fourth decimal, after printing the computed figures."""
    return int(((computed * 1e4).round() - (head(printed) * 1e4).round()).abs().max())


def generated(seed: int = 0, **changes: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Query ``[2, 4, 3, 3]``, key ``[2, 2, 4, 3]`` and value ``[2, 2, 4, 2]`` unless changed."""
    return core_case(Shape(seed=seed, **changes)).inputs


def test_printed_figures() -> None:
    """Document 001's scores and weights come out within one unit of the fourth printed decimal."""
    query, key = head(PRINTED_QUERY), head(PRINTED_KEY_TRANSPOSED).transpose(-1, -2)
    unscaled = attend(query, key, key, semantics=STANDARD.replace(scale="none"))
    assert printed_steps(unscaled.scores, PRINTED_SCORES) <= 1
    assert printed_steps(unscaled.weights, PRINTED_WEIGHTS) <= 1


def test_printed_figures_tell_the_scale() -> None:
    """The same figures refuse the paper's scale: the comparison above can fail."""
    query, key = head(PRINTED_QUERY), head(PRINTED_KEY_TRANSPOSED).transpose(-1, -2)
    assert printed_steps(attend(query, key, key).scores, PRINTED_SCORES) > 1
    assert printed_steps(attend(query, key, key).weights, PRINTED_WEIGHTS) > 1


@given(shape=shapes())
def test_rows_sum_to_one(shape: Shape) -> None:
    """A row's weights are no less than 0 and sum to 1, or to 0 where the row has no key."""
    evaluation: Attention = core_case(shape.changed(sinks=False)).golden(STANDARD)
    steps = (shape.key_length + 1) * UNIT_ROUNDOFF  # the roundings of a sum and of a division
    assert bool((evaluation.weights >= 0).all())
    for weights, empty in zip(
        evaluation.weights.flatten(0, 2).tolist(), evaluation.empty.flatten().tolist(), strict=True
    ):
        assert abs(math.fsum(weights) - (not empty)) <= steps / (1 - steps)


@given(shape=shapes())
def test_ignored_keys_weigh_nothing(shape: Shape) -> None:
    """A key that is not attended has weight zero, exactly."""
    evaluation: Attention = core_case(shape).golden(STANDARD)
    assert not evaluation.weights[~evaluation.allowed].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_inputs_are_widened_first(dtype: torch.dtype) -> None:
    """Inputs of a narrower dtype give the bits of the same inputs in float64: no other rounding."""
    narrow = [tensor.to(dtype) for tensor in generated()]
    bias = torch.randn(2, 1, 3, 4).to(dtype)
    wide = scaled_dot_product_attention(*[one.double() for one in narrow], bias=bias.double())
    answer = scaled_dot_product_attention(*narrow, bias=bias)
    assert answer.dtype == torch.float64
    assert torch.equal(answer, wide)


@pytest.mark.parametrize("rule", ["zeros", "nan", "mean-of-all", "mean-of-valid"])
@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e300])
def test_junk_in_dead_keys(rule: Any, junk: float) -> None:
    """Junk in keys and values that nobody attends does not reach any row that has a key."""
    query, key, value = generated()
    keep = torch.tensor([True, False, True, False]).repeat(1, 1, 3, 1)
    keep[:, :, 0] = False  # one row without any key, whose rule may read junk: it is not judged
    point = STANDARD.replace(empty_rows=rule)
    clean = attend(query, key, value, keep=keep, semantics=point)
    key[:, :, [1, 3]], value[:, :, [1, 3]] = junk, junk
    dirty = attend(query, key, value, keep=keep, semantics=point)
    assert torch.equal(dirty.output[:, :, 1:], clean.output[:, :, 1:])
    assert torch.equal(dirty.weights[:, :, 1:], clean.weights[:, :, 1:])


def test_junk_is_gone_from_the_intermediate_values() -> None:
    """The recorded key and value are zero where no query reads them, so bounds can use them."""
    query, key, value = generated()
    keep = torch.tensor([True, False, True, False]).repeat(1, 1, 3, 1)
    key[:, :, [1, 3]], value[:, :, [1, 3]] = math.nan, 7.0
    evaluation = attend(query, key, value, keep=keep)
    for tokens in (evaluation.key, evaluation.value):
        assert tokens[:, :, [0, 2]].all()
        assert not tokens[:, :, [1, 3]].any()
    assert not evaluation.scores.isnan().any()
    keep[:, :, 0] = False  # a row without keys that averages all values reads them
    point = STANDARD.replace(empty_rows="mean-of-all")
    evaluation = attend(query, key, value, keep=keep, semantics=point)
    assert bool((evaluation.value[:, :, [1, 3]] == 7.0).all())


def test_junk_beside_zero_rows() -> None:
    """With zeros for empty rows, junk that nobody attends reaches no row at all."""
    query, key, value = generated()
    keep = torch.zeros(1, 1, 1, 4, dtype=torch.bool)
    key[:], value[:] = math.nan, math.nan
    assert torch.equal(
        scaled_dot_product_attention(query, key, value, keep=keep),
        torch.zeros(2, 4, 3, 2, dtype=torch.float64),
    )


def test_nan_that_is_attended_shows() -> None:
    """A NaN in an attended key is not hidden: exactly the rows that attend it are NaN."""
    query, key, value = generated()
    key[:, :, 3] = math.nan
    answer = scaled_dot_product_attention(query, key, value, causal=True)
    assert torch.equal(answer.isnan().any(-1), torch.tensor([False, False, True]).expand(2, 4, 3))


def one_empty_row(rule: Any, **masks: Any) -> list[float]:
    """The first row's answer over the values 1, 2, 4 and 8."""
    value = head([[1.0], [2.0], [4.0], [8.0]])
    query, key = torch.randn(1, 1, 2, 3), torch.randn(1, 1, 4, 3)
    point = STANDARD.replace(empty_rows=rule)
    answer = scaled_dot_product_attention(query, key, value, semantics=point, **masks)
    return [float(entry) for entry in answer[0, 0, 0]]


@pytest.mark.parametrize(
    "masks",
    [
        {"keep": torch.zeros(1, 1, 1, 4, dtype=torch.bool)},
        {"keep": torch.tensor([[False] * 4, [True] * 4])[None, None]},
        {"lengths": torch.tensor([0])},
        {"lengths": torch.tensor([[0, 3]])},
        {"bias": torch.full((1, 1, 1, 4), -math.inf)},
    ],
    ids=["keep", "keep-one-row", "lengths", "lengths-one-row", "bias"],
)
@pytest.mark.parametrize("causal", [False, True])
def test_empty_rows(masks: dict[str, Any], *, causal: bool) -> None:
    """Each rule gives its answer for each way in which a row can lose its keys."""
    assert one_empty_row("zeros", causal=causal, **masks) == [0.0]
    assert math.isnan(one_empty_row("nan", causal=causal, **masks)[0])
    assert one_empty_row("mean-of-all", causal=causal, **masks) == [3.75]
    [mean_of_valid] = one_empty_row("mean-of-valid", causal=causal, **masks)
    # Of four keys the first of two queries may see three; three thirds are rounded, and two sums.
    exact = 7 / 3 if causal else 3.75
    assert abs(mean_of_valid - exact) <= 5 * UNIT_ROUNDOFF * exact


def test_structurally_empty_rows() -> None:
    """More queries than keys under bottom-right alignment: the first rows have no valid key."""
    inputs = torch.randn(1, 1, 4, 3), torch.randn(1, 1, 2, 3), head([[1.0], [3.0]])
    wanted = {"zeros": 0.0, "mean-of-all": 2.0, "mean-of-valid": 0.0}
    for rule, first in wanted.items():
        point = STANDARD.replace(empty_rows=rule)
        evaluation = attend(*inputs, causal=True, semantics=point)
        assert evaluation.empty.tolist() == [[[True, True, False, False]]]
        assert evaluation.output[0, 0, :3, 0].tolist() == [first, first, 1.0]


def test_mean_of_one_valid_key() -> None:
    """Where causality admits one key, and the mask hides it, the mean of the valid is its value."""
    inputs = torch.randn(1, 1, 2, 3), torch.randn(1, 1, 2, 3), head([[5.0], [3.0]])
    keep = torch.tensor([[False, True], [True, True]])[None, None]
    point = STANDARD.replace(empty_rows="mean-of-valid")
    answer = scaled_dot_product_attention(*inputs, causal=True, keep=keep, semantics=point)
    assert answer[0, 0, 0].tolist() == [5.0]


def test_rules_leave_other_rows_alone() -> None:
    """The rule for empty rows changes nothing in rows that have a key."""
    case = core_case(Shape(keep_axes=(True, True, True, True), seed=1))
    zeros = case.golden(STANDARD)
    assert bool(zeros.empty.any())
    for rule in ("nan", "mean-of-all", "mean-of-valid"):
        other = case.golden(STANDARD.replace(empty_rows=rule))
        assert torch.equal(other.output[~zeros.empty], zeros.output[~zeros.empty])


def test_adding_minus_infinity_is_replacing_by_it() -> None:
    """Both ways of excluding a key exactly share every bit, the rule for empty rows included."""
    case = core_case(Shape(keep_axes=(True, True, True, True), seed=1))
    for rule in ("zeros", "mean-of-all"):
        point = STANDARD.replace(empty_rows=rule)
        added = case.golden(point.replace(mask_operation="add")).output
        assert torch.equal(added, case.golden(point).output)


def test_late_softcap_without_softcap_changes_nothing() -> None:
    """The order of a cap that is not there does not touch the rule for empty rows."""
    case = core_case(Shape(keep_axes=(True, True, True, True), seed=1))
    point = STANDARD.replace(empty_rows="mean-of-all")
    late = case.golden(point.replace(softcap_order="after-mask"))
    assert torch.equal(late.output, case.golden(point).output)


@pytest.mark.parametrize(
    ("empty", "shape"),
    [
        ("batch", (0, 4, 3, 2)),
        ("query_length", (2, 4, 0, 2)),
        ("key_length", (2, 4, 3, 2)),
        ("value_head_size", (2, 4, 3, 0)),
        ("head_size", (2, 4, 3, 2)),
    ],
)
def test_empty_axes(empty: str, shape: tuple[int, ...]) -> None:
    """An axis of size 0 gives an answer of the right shape, and zeros where there are no keys."""
    answer = scaled_dot_product_attention(*generated(**{empty: 0}), causal=True)
    assert answer.shape == shape
    assert empty != "key_length" or not answer.any()


def test_explicit_scale() -> None:
    """A scale that the call gives replaces the rule and its factor."""
    inputs = generated()
    other = STANDARD.replace(scale="none", scale_factor=7.0)
    assert torch.equal(
        scaled_dot_product_attention(*inputs, scale=0.5),
        scaled_dot_product_attention(*inputs, scale=0.5, semantics=other),
    )
    assert attend(*inputs, scale=0.5).scale == 0.5
    assert attend(*inputs).scale == 3.0**-0.5


def test_mask_forms_agree() -> None:
    """A boolean mask, its opposite under "drop", and a bias of 0 and -inf give the same bits."""
    inputs = generated()
    keep = torch.rand(2, 4, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    bias = torch.zeros(2, 4, 3, 4).masked_fill(~keep, -math.inf)
    answer = scaled_dot_product_attention(*inputs, keep=keep)
    drop = STANDARD.replace(mask_polarity="drop")
    assert torch.equal(answer, scaled_dot_product_attention(*inputs, keep=~keep, semantics=drop))
    assert torch.equal(answer, scaled_dot_product_attention(*inputs, bias=bias))


def test_softcap_bounds_the_logits() -> None:
    """Capped scores stay within the cap however large the products are."""
    query, key, value = generated(magnitude=1e3)
    evaluation = attend(query, key, value, softcap=5.0)
    assert bool((evaluation.scores.abs() > 5).any())
    assert bool((evaluation.capped.abs() <= 5).all())


def test_inputs_are_left_alone() -> None:
    """No input is changed in place, whatever the masks."""
    case = core_case(Shape(keep_axes=(True,) * 4, bias_axes=(True,) * 4, length_form="BQ"))
    tensors = [*case.inputs, *case.tensors.values()]
    before = [tensor.clone() for tensor in tensors]
    case.golden(STANDARD)
    assert all(torch.equal(one, two) for one, two in zip(tensors, before, strict=True))


@pytest.mark.parametrize(("axis", "dim"), [("batch", 0), ("head", 1), ("query", 2), ("key", 3)])
def test_softmax_axes(axis: str, dim: int) -> None:
    """Along its axis, and along no other, a softmax over n equal logits is 1/n."""
    logits = torch.zeros(2, 4, 5, 8, dtype=torch.float64)
    assert bool((softmax(logits, axis) == 1.0 / logits.shape[dim]).all())


def test_softmax_extremes() -> None:
    """Huge logits do not overflow, and a slice of nothing but minus infinity is zeros."""
    rows = head([[1e308, -1e308, 0.0], [-math.inf, 7.0, -math.inf], [-math.inf] * 3])
    assert softmax(rows)[0, 0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert softmax(rows, "none")[0, 0, 1].tolist() == [0.0, 7.0, 0.0]
    assert softmax(torch.zeros(1, 1, 2, 0)).shape == (1, 1, 2, 0)
    with refused("axis is 'row', not one of batch, head, query, key, none"):
        softmax(rows, "row")
    with refused("logits has shape [3]: it needs 4 axes [B, H, Lq, Lk]"):
        softmax(torch.zeros(3))


def test_repeat_heads() -> None:
    """Heads share key/value heads in runs, or in turns under "tile"."""
    heads = torch.arange(2.0).reshape(1, 2, 1, 1)
    assert repeat_heads(heads, 4).flatten().tolist() == [0, 0, 1, 1]
    tile = STANDARD.replace(group_order="tile")
    assert repeat_heads(heads, 4, tile).flatten().tolist() == [0, 1, 0, 1]
    with refused("heads has 2 heads, which does not divide 3"):
        repeat_heads(heads, 3)
    with refused("heads has shape [2]: it needs 4 axes [B, Hkv, L, D]"):
        repeat_heads(torch.zeros(2), 4)


def zeros(*axes: int) -> Tensor:
    """A tensor of zeros."""
    return torch.zeros(axes)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": zeros(2, 3, 3)}, "query has shape [2, 3, 3]: it needs 4 axes [B, H, Lq, D]"),
        ({"key": zeros(4, 3)}, "key has shape [4, 3]: it needs 4 axes [B, Hkv, Lk, D]"),
        ({"value": zeros(4)}, "value has shape [4]: it needs 4 axes [B, Hkv, Lk, Dv]"),
        (
            {"key": zeros(1, 2, 4, 3)},
            "key has shape [1, 2, 4, 3]: axis 0 must be 2, the batch size of query",
        ),
        (
            {"key": zeros(2, 2, 4, 5)},
            "key has shape [2, 2, 4, 5]: axis 3 must be 3, the head size of query",
        ),
        (
            {"value": zeros(1, 2, 4, 2)},
            "value has shape [1, 2, 4, 2]: axis 0 must be 2, the batch size of query",
        ),
        (
            {"value": zeros(2, 1, 4, 2)},
            "value has shape [2, 1, 4, 2]: axis 1 must be 2, the number of heads of key",
        ),
        (
            {"value": zeros(2, 2, 5, 2)},
            "value has shape [2, 2, 5, 2]: axis 2 must be 4, the length of key",
        ),
        (
            {"key": zeros(2, 3, 4, 3), "value": zeros(2, 3, 4, 2)},
            "key has 3 heads, which does not divide the 4 heads of query",
        ),
        (
            {"key": zeros(2, 0, 4, 3), "value": zeros(2, 0, 4, 2)},
            "key has 0 heads, which does not divide the 4 heads of query",
        ),
        ({"keep": zeros(1, 1, 3, 4)}, "keep has dtype torch.float32, not torch.bool"),
        ({"keep": zeros(3, 4).bool()}, "keep has shape [3, 4]: it needs 4 axes [B, H, Lq, Lk]"),
        (
            {"keep": zeros(1, 1, 3, 5).bool()},
            "keep has shape [1, 1, 3, 5], which does not broadcast to [2, 4, 3, 4] [B, H, Lq, Lk]",
        ),
        (
            {"bias": zeros(1, 3, 3, 4)},
            "bias has shape [1, 3, 3, 4], which does not broadcast to [2, 4, 3, 4] [B, H, Lq, Lk]",
        ),
        (
            {"bias": zeros(1, 1, 3, 4).bool()},
            "bias has dtype torch.bool, not a floating-point one",
        ),
        ({"lengths": torch.tensor([1, 5])}, "lengths has entries outside 0..4"),
        ({"lengths": torch.tensor([1])}, "lengths has shape [1], not [2] or [2, 3]"),
        ({"scale": math.nan}, "scale is nan, not finite"),
        ({"softcap": 0.0}, "softcap is 0.0, not positive and finite"),
        ({"softcap": math.inf}, "softcap is inf, not positive and finite"),
        ({"window": (1, -2)}, "window is (1, -2), not (left, right) with integers from -1"),
    ],
)
def test_wrong_arguments_are_refused(changed: dict[str, Any], message: str) -> None:
    """A wrong shape or value is refused in a sentence that starts with the argument's name."""
    query, key, value = generated()
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
    for function in (attend, scaled_dot_product_attention):
        with refused(message):
            function(**(arguments | changed))


@pytest.mark.parametrize("name", ["query", "key", "value", "keep", "bias", "lengths"])
def test_other_types_are_refused(name: str) -> None:
    """A list in place of a tensor is a TypeError that names the argument."""
    query, key, value = generated()
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value, name: [1.0]}
    with refused(f"{name} is a list, not a torch.Tensor", TypeError):
        attend(**arguments)
