from __future__ import annotations

import math

import pytest
import torch
from examples import bare, core, layer, problem, try_on
from torch import Tensor
from torch.nn import functional

from candidates.eager import EagerLayer
from conformance.base.results import Violation
from conformance.clauses import modules
from conformance.clauses.modules import _judge, _solved_shares, _tail
from conformance.clauses.subject import Subject
from conformance.tolerance import model

EXAMPLE = problem(query_length=24, key_length=16, seed=0)
PROMISES = {"masks": [], "causal": None, "features": ["dropout"], "empty_rows": "any"}


def judged(function: object) -> Violation | None:
    """What the clause says of a core with a dropout keyword."""
    return try_on(core(function, **PROMISES), "state.dropout", EXAMPLE).violation  # type: ignore[arg-type]


def weights_of(query: Tensor, key: Tensor) -> Tensor:
    """Softmax weights."""
    return torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), -1)


def correct(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """Weights are dropped and rescaled."""
    return functional.dropout(weights_of(query, key), dropout) @ value


def never(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """Nothing is dropped."""
    del dropout
    return bare(query, key, value)


def not_rescaled(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """What is left keeps its size."""
    return correct(query, key, value, dropout) * (1.0 - dropout)


def on_the_output(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """Channels of the output are dropped."""
    return functional.dropout(bare(query, key, value), dropout)


def keeps_too_few(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """The probability is taken as that of keeping, for odd probabilities."""
    kept = (torch.rand_like(weights_of(query, key)) < dropout / 2) / (1.0 - dropout)
    return (weights_of(query, key) * kept) @ value


def test_dropped_weights_pass() -> None:
    """Dropping single weights and rescaling the rest passes."""
    assert judged(correct) is None


@pytest.mark.parametrize("broken", [never, not_rescaled, on_the_output, keeps_too_few])
def test_other_dropouts_fail(broken: object) -> None:
    """No dropout, no rescaling, dropped channels and a wrong probability fail."""
    assert judged(broken) is not None


def on_the_scores(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """Scores are dropped, before the softmax."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return functional.dropout(scores, dropout).softmax(-1) @ value


def on_the_query(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """Channels of the query are dropped."""
    return bare(functional.dropout(query, dropout), key, value)


def renormalised(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """What is left is divided by its sum."""
    weights = functional.dropout(weights_of(query, key), dropout)
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30) @ value


def by_the_probability(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """What is left is divided by the probability of being dropped."""
    return correct(query, key, value, dropout) * (1.0 - dropout) / dropout


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("broken", [on_the_scores, on_the_query, renormalised])
def test_rows_that_still_sum_to_one_are_told(broken: object, seed: int) -> None:
    """Whatever is dropped before the softmax, or renormalised, is told by its sums of one."""
    example = EXAMPLE.replace(seed=seed)
    violation = try_on(core(broken, **PROMISES), "state.dropout", example).violation  # type: ignore[arg-type]
    assert violation is not None
    assert "before the softmax, or the weights are divided by their sum" in violation.message
    assert "one minus the probability" not in violation.message


def shared(axes: tuple[int, ...]) -> object:
    """Weights are dropped alike along some axes."""

    def attend(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
        weights = weights_of(query, key)
        sizes = [1 if axis in axes else size for axis, size in enumerate(weights.shape)]
        kept = (torch.rand(sizes) >= dropout) / (1.0 - dropout)
        return (weights * kept) @ value

    return attend


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("axes", [(2,), (1, 2), (0, 1, 2)])
def test_a_row_that_all_queries_share_is_told(axes: tuple[int, ...], seed: int) -> None:
    """One row that is drawn for all queries is no dropout, and not one that draws nothing anew."""
    example = EXAMPLE.replace(seed=seed, geometry=EXAMPLE.geometry.replace(query_length=40))
    violation = try_on(core(shared(axes), **PROMISES), "state.dropout", example).violation  # type: ignore[arg-type]
    assert violation is not None
    assert violation.message.endswith("one row of weights to drop is drawn for all of them")


@pytest.mark.parametrize("seed", range(6))
def test_weights_that_heads_and_items_drop_alike_pass(seed: int) -> None:
    """Flax draws for all heads and items at once by default."""
    example = EXAMPLE.replace(seed=seed)
    assert try_on(core(shared((0, 1)), **PROMISES), "state.dropout", example).violation is None  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_that_nothing_is_dropped_is_told(seed: int) -> None:
    """An ignored keyword is told as such, whatever its probability."""
    example = EXAMPLE.replace(seed=seed)
    violation = try_on(core(never, **PROMISES), "state.dropout", example).violation
    assert violation is not None
    assert violation.message.endswith("as without: nothing is dropped")


def test_a_factor_is_named_only_where_it_makes_every_count_whole() -> None:
    """What kept weights are multiplied by is told where it explains every row, else not."""
    unscaled = try_on(core(not_rescaled, **PROMISES), "state.dropout", EXAMPLE.replace(seed=2))
    assert unscaled.violation is not None
    assert "not divided by one minus the probability" in unscaled.violation.message
    other = try_on(core(by_the_probability, **PROMISES), "state.dropout", EXAMPLE.replace(seed=2))
    assert other.violation is not None
    assert "divided by the probability, not by one minus it" in other.violation.message
    neither = _judge(torch.full((2, 4, 5, 6), 7.5), torch.full((2, 4, 5, 6), 0.01), 16, 0.1)
    assert neither is not None
    assert neither.message.endswith("not a whole number")


@pytest.mark.parametrize("chance", [0.5, 0.75, 0.9])
@pytest.mark.parametrize("total", [64, 500, 4000])
def test_tail_bounds_the_exact_probability(total: int, chance: float) -> None:
    """Chernoff's bound is never below the exact two-sided probability of a count so far off."""
    probabilities = [
        math.exp(
            math.lgamma(total + 1)
            - math.lgamma(k + 1)
            - math.lgamma(total - k + 1)
            + k * math.log(chance)
            + (total - k) * math.log(1.0 - chance)
        )
        for k in range(total + 1)
    ]
    for kept in range(0, total + 1, max(total // 16, 1)):
        if kept <= chance * total:
            exact = sum(probabilities[: kept + 1])
        else:
            exact = sum(probabilities[kept:])
        assert _tail(kept, total, chance) >= exact * (1.0 - 1e-9)


def test_tail_is_certain_at_the_mean() -> None:
    """A count at its mean is never suspicious, all or nothing always is."""
    assert _tail(500, 1000, 0.5) == pytest.approx(2.0)
    assert _tail(1000, 1000, 0.5) < model.DROPOUT_FALSE_ALARM
    assert _tail(0, 1000, 0.5) < model.DROPOUT_FALSE_ALARM


def test_tail_survives_counts_beyond_the_total() -> None:
    """A wrong scale can count more keys than there are: that is suspicious, not a crash."""
    assert _tail(2000, 1000, 0.5) < model.DROPOUT_FALSE_ALARM


def test_counts_must_be_whole() -> None:
    """Half a key cannot be kept."""
    counts, slack = torch.full((2, 4, 5, 6), 7.5), torch.full((2, 4, 5, 6), 0.01)
    violation = _judge(counts, slack, 16, 0.5)
    assert violation is not None
    assert "not a whole number" in violation.message


def solved(mix: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """What is solved for when each head's share of the common value is known."""
    subject = Subject(layer(), "float64")
    inputs = subject.inputs(problem(dtype="float64", num_heads=3, num_kv_heads=3))
    same = modules.equal_tokens(inputs)
    expected = subject.golden(same)
    heads = expected.core.value * mix.reshape(1, 3, 1, 1)
    merged = heads[:, :, :1].expand(2, 3, 5, 6).transpose(1, 2).flatten(2)
    assert same.weights is not None
    answer = functional.linear(merged, same.weights.o, same.weights.o_bias)  # type: ignore[arg-type]
    shares, slack = _solved_shares(same, expected.core.value, expected.bound, answer)
    return shares, slack, mix


def test_shares_of_several_heads_are_solved_for() -> None:
    """Through the output projection each head's own share comes back."""
    shares, slack, mix = solved(torch.tensor([0.25, 1.0, 1.75], dtype=torch.float64))
    assert shares is not None
    assert torch.allclose(shares, mix.reshape(1, 3, 1).expand(shares.shape), rtol=0, atol=1e-9)
    assert float(slack.max()) < 0.25


def test_shares_need_an_output_wider_than_the_heads() -> None:
    """With fewer outputs than heads nothing can be solved for, and nothing is claimed."""
    subject = Subject(layer(), "float32")
    inputs = modules.equal_tokens(subject.inputs(problem(output_size=2)))
    expected = subject.golden(inputs)
    shares, _ = _solved_shares(inputs, expected.core.value, expected.bound, expected.output)
    assert shares is None


def test_dropout_of_layers() -> None:
    """A layer that drops weights passes, one that drops its merged channels fails."""

    class OnMerged(EagerLayer):
        def __call__(self, *tensors: Tensor, dropout: float = 0.0, **more: object) -> Tensor:
            heads = self.core(*self.heads(*tensors), **more)
            assert isinstance(heads, Tensor)
            return self.project_output(functional.dropout(self.merge(heads), dropout))

    promises = {"masks": [], "causal": None, "features": ["dropout"], "empty_rows": "any"}
    example = EXAMPLE.replace(geometry=EXAMPLE.geometry.replace(num_heads=2, num_kv_heads=2))
    assert try_on(layer(**promises), "state.dropout", example).violation is None
    assert try_on(layer(OnMerged, **promises), "state.dropout", example).violation is not None
