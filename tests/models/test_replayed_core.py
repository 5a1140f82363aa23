"""An attention of a module runs alone: the same answers, other sizes, and what is read off it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import wrap_torch_function

from conformance.graphs.weights.wiring import UnreadableError
from conformance.models.recording import ModuleRecording, record
from conformance.models.replayed_core import ReplayedCore, digest, runnable
from conformance.models.torch_sites import TorchSite, find_torch_sites

BATCH, LENGTH, HEADS, SIZE = 2, 5, 2, 4
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Projected(nn.Module):
    """Projections, and a function of heads ``[B, H, L, D]`` twice, one behind the other."""

    def __init__(self, *functions: Attend) -> None:
        super().__init__()
        self.functions = functions
        self.parts = nn.ModuleList(nn.Linear(8, 24) for _ in functions)

    def forward(self, x: Tensor) -> Tensor:
        """As a module is called."""
        for part, attend in zip(self.parts, self.functions, strict=True):
            heads = [each.unflatten(-1, (HEADS, SIZE)) for each in part(x).chunk(3, -1)]
            x = attend(*(each.transpose(1, 2) for each in heads)).transpose(1, 2).flatten(2)
        return x


def read(*functions: Attend) -> tuple[ModuleRecording, list[TorchSite]]:
    torch.manual_seed(0)
    made = record(Projected(*functions).eval(), {"x": torch.randn(BATCH, LENGTH, 8)})
    sites, _ = find_torch_sites(made)
    return made, sites


def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def capped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = 20.0 * torch.tanh(query @ key.mT * 0.3 / 20.0)
    return scores.softmax(-1) @ value


def sized(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Sizes are read off the query and used for the scores."""
    batch, heads, length, size = query.shape
    scores = torch.bmm(query.reshape(-1, length, size), key.mT.reshape(-1, size, key.shape[2]))
    weights = scores.view(batch, heads, length, -1).softmax(-1)
    return weights @ value / 1.0


def baked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query @ key.mT).reshape(BATCH, HEADS, LENGTH, LENGTH)
    return scores.softmax(-1) @ value


def test_the_cut_answers_as_the_module() -> None:
    """On the module's own activations, to the last bit."""
    made, (site,) = read(kernel)
    inputs = [made.values[site.edges[part].number].tensor for part in ("query", "key", "value")]
    ordered = [tensor.transpose(1, 2) for tensor in inputs]  # as they lie before the turn
    answer = ReplayedCore(made, runnable(made, site))(*ordered)
    assert torch.equal(answer, made.values[site.output_value].tensor)


@pytest.mark.parametrize(
    ("attend", "scale", "cap", "alignment"),
    [
        (kernel, 0.5, None, None),
        (causal, 0.5, None, "top-left"),
        (capped, 0.3, 20.0, None),
        (sized, 1.0, None, None),
    ],
)
def test_scale_cap_and_causal_rule_are_read_off_answers(
    attend: Attend, scale: float, cap: float | None, alignment: str | None
) -> None:
    """The numbers in the code, exactly."""
    made, (site,) = read(attend)
    known = runnable(made, site)
    assert known.scale is not None
    assert math.isclose(known.scale, scale, rel_tol=1e-12)
    assert (known.cap, known.alignment) == (cap, alignment)


def written(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT * 0.25).softmax(-1) @ value


def with_einsum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.einsum("bhkd,bhqd->bhqk", key, query) * 0.25
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), value)


def in_one_batch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Items and heads are one axis."""
    query, key, value = (each.flatten(0, 1) for each in (query, key, value))
    scores = torch.bmm(query, key.transpose(1, 2)) * 0.25
    return torch.bmm(scores.softmax(-1), value).unflatten(0, (BATCH, HEADS))


def by_keyword(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(value=value, key=key, query=query, scale=0.25)


@pytest.mark.parametrize("attend", [written, with_einsum, in_one_batch, by_keyword])
@pytest.mark.parametrize("same", ["qkk", "qqv", "qkq", "qqq"])
def test_of_one_tensor_query_key_and_value_are_taken_apart(attend: Attend, same: str) -> None:
    """On three tensors the calls that took one several times compute attention."""

    def tied(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        own = {"q": query, "k": key, "v": value}
        return attend(*(own[part] for part in same))

    made, sites = read(tied)
    site = runnable(made, sites[0])
    assert (site.scale, site.alignment) == (pytest.approx(0.25), None)
    query, key, value = torch.randn(3, BATCH, HEADS, LENGTH, SIZE)
    expected = scaled_dot_product_attention(query, key, value, scale=0.25)
    torch.testing.assert_close(ReplayedCore(made, site)(query, key, value), expected)
    _, twice = read(tied, tied)
    assert len(twice) == 2


def test_it_runs_at_any_size() -> None:
    """Other batches, and other lengths of queries and keys, than were recorded."""
    made, (site,) = read(sized)
    core = ReplayedCore(made, runnable(made, site))
    query, key = torch.randn(3, HEADS, 6, SIZE), torch.randn(3, HEADS, 9, SIZE)
    torch.testing.assert_close(core(query, key, key), sized(query, key, key))


def test_sizes_that_are_baked_in_are_a_reason() -> None:
    """A shape of numbers fits no other call."""
    made, (site,) = read(baked)
    with pytest.raises(UnreadableError, match="do not run at other sizes"):
        runnable(made, site)


def test_equal_attentions_have_one_digest() -> None:
    """Whatever their weights; another function has another."""
    made, sites = read(kernel, kernel, causal)
    first, second, third = (digest(made, runnable(made, site)) for site in sites)
    assert first == second != third


@wrap_torch_function(lambda scores: (scores,))
def softmax(scores: Tensor) -> tuple[None, list[Tensor]]:
    """Weights as some libraries answer them: nested, beside something that is no tensor."""
    return None, [scores.softmax(-1)]


def nested(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return softmax(query @ key.mT)[1][0] @ value


def test_a_call_may_answer_more_than_tensors() -> None:
    """The tensors in its answer are taken in their order, when it is made again, too."""
    made, (site,) = read(nested)
    query, key = torch.randn(3, HEADS, 6, SIZE), torch.randn(3, HEADS, 9, SIZE)
    answer = ReplayedCore(made, runnable(made, site))(query, key, key)
    torch.testing.assert_close(answer, nested(query, key, key))


@pytest.mark.parametrize("factor", [1.0, 0.0, -2.0])
def test_sinks_are_handed_over_as_they_are_stored(factor: float) -> None:
    """A factor of what is spread already is inside; without sinks nothing joins, whatever it is."""
    stored = nn.Parameter(torch.randn(HEADS))

    def sunk(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT * 0.5
        beside = stored.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        beside = beside if factor == 1 else factor * beside
        return torch.cat([scores, beside], -1).softmax(-1)[..., :-1] @ value

    made, (site,) = read(sunk)
    replayed = ReplayedCore(made, site)
    heads = [torch.randn(BATCH, HEADS, 3, SIZE) for _ in range(3)]
    sinks = torch.randn(HEADS)
    for given, joined in ((sinks, factor * sinks), (None, torch.full((HEADS,), -math.inf))):
        scores = heads[0] @ heads[1].mT * 0.5
        beside = joined.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        expected = torch.cat([scores, beside], -1).softmax(-1)[..., :-1] @ heads[2]
        torch.testing.assert_close(replayed(*heads, sinks=given), expected)


def test_a_mask_that_is_subtracted_is_handed_over_as_one_that_is_added() -> None:
    """Its sign is the attention's own: alone it answers as one that adds what it is given."""
    own = torch.randn(1, 1, LENGTH, LENGTH)
    made, (site,) = read(lambda q, k, v: (q @ k.mT * 0.5 - own).softmax(-1) @ v)
    bias = torch.randn(1, 1, LENGTH, LENGTH)
    bias[..., 1] = -math.inf
    query, key, value = (torch.randn(BATCH, HEADS, LENGTH, SIZE) for _ in range(3))
    expected = (query @ key.mT * 0.5 + bias).softmax(-1) @ value
    answer = ReplayedCore(made, site)(query, key, value, bias=bias)
    torch.testing.assert_close(answer, expected)
