"""gradients.cache, .sinks and .any-length: where they apply, and right and wrong kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import CLAUSES, bare, core, run_clause, try_on
from torch import Tensor

import conformance
from candidates.broken._backward import HandWritten
from candidates.broken.cached_gradients import CacheDiagonalBackward
from candidates.broken.gradients import (
    KeyChannelsLostBackward,
    LargeTilesOverwrittenBackward,
    QueryChannelsLostBackward,
)
from candidates.broken.sink_gradients import SinkForgottenBackward, SinkGradientZero
from candidates.eager import Call
from candidates.legitimate.backward import backward_in_blocks
from candidates.legitimate.caches import (
    cross_layer_with_cache,
    joined,
)
from conformance.base.profile import PROFILES
from conformance.declare.candidate import Candidate
from conformance.problems.edges import edge_problems

QUICK = PROFILES["quick"].examples
NAMES = ("query", "key", "value", "bias")


def status(candidate: Candidate, slug: str, dtype: str = "float32") -> str:
    """The status of one clause, with its reason."""
    result = run_clause(candidate, slug, examples=QUICK, dtype=dtype)
    return f"{result.status}: {result.reason}".removesuffix(": ")


def test_a_diagonal_from_the_first_cached_key_is_detected() -> None:
    """Backward alone is wrong, with a cache and a causal rule alone."""
    assert "the gradient of" in status(CacheDiagonalBackward, "gradients.cache")


def detached(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """A correct core that learns nothing from its cache."""
    old_key = None if past_key is None else past_key.detach()
    old_value = None if past_value is None else past_value.detach()
    return bare(query, joined(old_key, key), joined(old_value, value))


def test_a_cache_may_be_constant_unless_gradients_are_promised() -> None:
    """No gradient of cached heads: fine by default, a failure where gradients are declared."""
    lenient = conformance.core(name="lenient", features=["kv_cache"])(detached)
    strict = conformance.core(name="strict", features=["kv_cache", "gradients"])(detached)
    assert status(lenient, "gradients.cache") == "passed"
    assert "no gradient reaches the cached keys" in status(strict, "gradients.cache")


def half(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """A core whose cached values get half of their gradient."""
    if past_value is not None:
        past_value = 0.5 * past_value + (0.5 * past_value).detach()
    return bare(query, joined(past_key, key), joined(past_value, value))


def test_half_a_gradient_of_cached_values_is_detected() -> None:
    """What flows to the cache is judged by itself."""
    wrong = conformance.core(name="half", features=["kv_cache"])(half)
    assert "the gradient of the cached values is wrong" in status(wrong, "gradients.cache")


def test_layers_are_left_out() -> None:
    """What it has cached are heads, while the golden knows the gradients of tokens."""
    assert status(cross_layer_with_cache, "gradients.cache").startswith("not-applicable")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_blocks_pass_at_any_length(dtype: str) -> None:
    """A kernel in tiles is right on both sides of their edges, in every precision."""
    assert status(backward_in_blocks, "gradients.any-length", dtype) == "passed"


def test_tiles_that_overwrite_each_other_are_detected() -> None:
    """The gradient of queries kept from the last of several tiles of 128 keys."""
    outcome = status(LargeTilesOverwrittenBackward, "gradients.any-length")
    assert "the gradient of query is wrong" in outcome


class _LastTile(torch.autograd.Function):
    """The key's gradient is that of the last tile of queries."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tile: int) -> Tensor:
        """The ordinary answer."""
        ctx.tile = tile
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        ctx.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The last tile replaces those before it."""
        (gradient,) = gradients
        query, key, value, weights = ctx.saved_tensors
        change = gradient @ value.mT
        scores = weights * (change - (weights * change).sum(-1, keepdim=True))
        scores = scores * query.shape[-1] ** -0.5
        start = (query.shape[2] - 1) // ctx.tile * ctx.tile
        last = scores[:, :, start:].mT @ query[:, :, start:]
        return scores @ key, last, weights.mT @ gradient, None


@pytest.mark.parametrize("tile", [64, 128, 512])
def test_lost_tiles_of_queries_are_detected(tile: int) -> None:
    """Tiles of 64, 128 and 512 queries, in the quick profile."""

    def wrong(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer: Tensor = _LastTile.apply(query, key, value, tile)  # type: ignore[no-untyped-call]  # torch's own
        return answer

    outcome = status(conformance.core(name="last")(wrong), "gradients.any-length")
    assert "the gradient of key is wrong" in outcome


def messages_of_edges(candidate: Candidate, dtype: str = "float32") -> str:
    """The messages of the clause on its edge problems, which every profile tries, not reduced."""
    slug = "gradients.any-length"
    edges = edge_problems(candidate, CLAUSES[slug].space, dtype=dtype)
    violations = [try_on(candidate, slug, violation).violation for violation in edges]
    return "\n".join(violation.message for violation in violations if violation is not None)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("candidate", "role"), [(KeyChannelsLostBackward, "key"), (QueryChannelsLostBackward, "query")]
)
def test_lost_channels_of_wide_heads_are_detected(
    candidate: Candidate, role: str, dtype: str
) -> None:
    """Keys past 128 channels and queries past 64 get no gradient."""
    assert f"the gradient of {role} is wrong" in messages_of_edges(candidate, dtype)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("tile", [32, 64, 128, 256])
@pytest.mark.parametrize("role", ["query", "key", "value"])
def test_channels_past_every_tile_are_judged(role: str, tile: int) -> None:
    """Query, key and value, each with the gradient of its first channels alone."""

    class Tiled(HandWritten):
        def backward(
            self, call: Call, output: Tensor, gradient: Tensor
        ) -> tuple[Tensor | None, ...]:
            gradients = dict(zip(NAMES, super().backward(call, output, gradient), strict=True))
            whole = gradients[role]
            assert whole is not None
            gradients[role] = whole * (torch.arange(whole.shape[-1]) < tile)
            return tuple(gradients.values())

    assert f"the gradient of {role} is wrong" in messages_of_edges(core(Tiled()))
    assert messages_of_edges(core(HandWritten())) == ""


def test_weights_recomputed_without_the_sink_are_detected() -> None:
    """The sink is missing in the denominator of the backward pass."""
    assert "the gradient of query is wrong" in status(SinkForgottenBackward, "gradients.sinks")


def test_a_gradient_of_zero_for_the_sinks_is_detected() -> None:
    """Query, key and value are right, the sinks learn nothing."""
    assert "the gradient of the sinks is wrong" in status(SinkGradientZero, "gradients.sinks")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mask_of_all_items_whose_gradient_is_that_of_the_first(dtype: str) -> None:
    """Quick asks for enough sums over items to see it, also where half precision hides most."""

    @conformance.core(masks=["bias"], empty_rows="any", dtypes=[dtype])
    def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> Tensor:
        logits = q.float() @ k.float().mT * q.shape[-1] ** -0.5
        if bias is not None and bias.shape[0] < q.shape[0]:
            others = bias.detach().expand(q.shape[0] - 1, *bias.shape[1:])
            bias = torch.cat([bias, others])
        logits = logits if bias is None else logits + bias.float()
        return (logits.softmax(-1) @ v.float()).to(q.dtype)

    report = conformance.check(attend, only=["gradients.bias"], explain=False)
    assert [clause.status for clause in report.clauses] == ["failed"]
