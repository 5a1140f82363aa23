"""What is assumed aloud of a module: causality, one sequence, a longest length, by agreement."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from wrapped import assumed

import conformance
from conformance.base.profile import PROFILES
from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician
from conformance.errors import OtherAttentionError
from conformance.running.runner import CandidateRun


class AlwaysCausal(nn.Module):
    """Three heads of four channels, fused head by head, none of whose queries sees ahead.

    ``stored``: the size of the triangle that is kept; None for one that is made for each call.
    """

    def __init__(self, stored: int | None = None) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(12, 36)
        self.dense = nn.Linear(12, 12)
        if stored is not None:
            self.register_buffer("ahead", torch.ones(stored, stored, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Attention of tokens ``[B, L, 12]`` to themselves."""
        batch, length, _ = tokens.shape
        packed = self.query_key_value(tokens).reshape(batch, length, 3, 3, 4)
        query, key, value = packed.permute(3, 0, 2, 1, 4)
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        if hasattr(self, "ahead"):
            ahead = self.ahead[:length, :length]
        weights = (query @ key.mT / 2.0).masked_fill(ahead, -torch.inf).softmax(-1)
        merged = (weights @ value).transpose(1, 2).reshape(batch, length, 12)
        answer: Tensor = self.dense(merged)
        return answer


@pytest.mark.parametrize("alignment", ["bottom-right", "top-left"])
def test_module_that_is_always_causal(alignment: str) -> None:
    """Layout and number of heads are found by agreement with the causal golden."""
    promises = {"inputs": "self", "causal": alignment, "always_causal": True}
    made = conformance.module(AlwaysCausal(), **promises)
    assert assumed(made, "fused as grouped")
    assert assumed(made, "3 heads: with these it agrees with the golden reference")


def test_module_of_which_nothing_is_declared_may_always_be_causal() -> None:
    """What is golden under causality alone is causal in every call, and that is assumed aloud."""
    made = conformance.module(AlwaysCausal())
    assert (made.declaration.causal, made.declaration.always_causal) == ("bottom-right", True)
    assert assumed(made, "every call is causal, bottom-right: so it agrees")


class CausalWithoutMask(AlwaysCausal):
    """Causal where no mask is given, and by the mask alone where one is."""

    def forward(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        """Take the triangle, or what the mask hides in its place."""
        self.ahead = torch.ones(16, 16, dtype=torch.bool).triu(1)
        if keep is not None:
            self.ahead = ~keep[0, 0]
        return super().forward(tokens)


def test_calls_with_a_mask_tell_whether_every_call_is_causal() -> None:
    """Causality that only calls without a mask have is a mistake of these: none is promised."""
    made = conformance.module(CausalWithoutMask(), masks=["keep"], mask_shapes=["11QK"])
    assert (made.declaration.causal, made.declaration.always_causal) == (None, False)
    assert assumed(made, "every call is causal, bottom-right, but for those with a mask")
    (entry, *_) = Diagnostician(Subject(made, "float32")).explain()
    assert "keys after the query" in entry["text"]
    assert "only without a mask" in entry["text"]


def test_causality_that_is_declared_is_not_assumed_otherwise() -> None:
    """A module that promises to be causal on request only is not taken for one that always is."""
    made = conformance.module(AlwaysCausal(), causal=None, num_heads=3)
    assert not made.declaration.always_causal
    assert assumed(made, "no layout of the weights agrees with the golden reference")
    assert "'conformance identify' declares it" in made.warnings[0]


class Mistaken(nn.Module):
    """Three heads of four channels, queries, keys and values one behind the other.

    ``hidden`` is the logit of later tokens, ``residual`` adds its tokens to the answer.
    """

    def __init__(self, *, hidden: float = -torch.inf, residual: bool = False) -> None:
        super().__init__()
        self.qkv, self.dense = nn.Linear(12, 36), nn.Linear(12, 12)
        self.hidden, self.residual = hidden, residual
        if not residual:
            self.register_buffer("ahead", torch.ones(16, 16, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Attention of tokens ``[B, L, 12]`` to themselves."""
        batch, length, _ = tokens.shape
        parts = self.qkv(tokens).chunk(3, -1)
        query, key, value = (part.view(batch, length, 3, 4).transpose(1, 2) for part in parts)
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        ahead = ahead if self.residual else self.ahead[:length, :length]
        weights = (query @ key.mT / 2.0).masked_fill(ahead, self.hidden).softmax(-1)
        merged = (weights @ value).transpose(1, 2).reshape(batch, length, 12)
        return self.dense(merged) + (tokens if self.residual else 0.0)


@pytest.mark.parametrize(
    ("built", "why", "name"),
    [
        (Mistaken(residual=True), "no answer changes with a later token", "residual-added"),
        (Mistaken(hidden=0.0), "its buffer ahead is a triangle", "causal-multiplies-logits"),
    ],
    ids=["answers", "buffer"],
)
def test_a_wrong_module_that_is_meant_causal_is_judged_so(
    built: Mistaken, why: str, name: str
) -> None:
    """That its causality is not declared is no second mistake, which would hide the name."""
    made = conformance.module(built, num_heads=3)
    assert (made.declaration.causal, made.declaration.always_causal) == ("bottom-right", True)
    assert assumed(made, f"every call is causal, bottom-right: {why}")
    assert name in [entry["name"] for entry in Diagnostician(Subject(made, "float32")).explain()]


def test_a_wrong_module_that_sees_every_token_is_not_taken_for_a_causal_one() -> None:
    """A table of earlier tokens hides no later ones, and answers that change with these say so."""
    mistaken = Mistaken(hidden=0.0)
    mistaken.ahead = torch.ones(16, 16, dtype=torch.bool).tril(-1)
    assert not conformance.module(mistaken, num_heads=3).declaration.always_causal


class WithoutTokens(Mistaken):
    """Mixes the heads of each token, or answers with one row or one number in all."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__(residual=True)
        self.answer = answer

    def forward(self, tokens: Tensor) -> Tensor:
        """What no reading of the weights gives."""
        return self.answer(self.dense(self.qkv(tokens)[..., :12].tanh()))


@pytest.mark.parametrize(
    "answer",
    [lambda mixed: mixed, lambda mixed: mixed[:, -1:], lambda mixed: mixed.sum()],
    ids=["each alone", "one row", "a number"],
)
def test_a_module_that_mixes_no_tokens_is_not_taken_for_a_causal_one(
    answer: Callable[[Tensor], Tensor],
) -> None:
    """No answer of it changes with a later token, nor with an earlier one."""
    assert not conformance.module(WithoutTokens(answer), num_heads=3).declaration.always_causal


@pytest.mark.parametrize("stored", [None, 9, 64])
def test_module_takes_as_many_tokens_as_its_buffer_has(stored: int | None) -> None:
    """A right module with a triangle of a fixed size failed where more tokens were asked."""
    made = conformance.module(AlwaysCausal(stored))
    assert made.declaration.max_length == stored
    assert made.warnings == ()
    if stored is not None:
        assert assumed(made, f"it takes at most {stored} tokens, a size of its buffer ahead")
        declared = conformance.module(AlwaysCausal(stored), max_length=8)
        assert declared.declaration.max_length == 8
        wrong = conformance.module(AlwaysCausal(stored), causal=None, num_heads=3)
        assert wrong.warnings
        assert wrong.declaration.max_length == stored


class OneSequence(nn.Module):
    """One head on one sequence ``[L, E]``; ``of_batches`` answers several, mixing their items."""

    def __init__(self, *, of_batches: bool = False) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in "qkv")
        self.num_heads, self.of_batches = 1, of_batches

    def forward(self, x: Tensor) -> Tensor:
        """Attention of tokens to themselves."""
        if self.of_batches and x.dim() > 2:
            return self.forward(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return (self.query(x) @ self.key(x).T / 8**0.5).softmax(-1) @ self.value(x)


def test_module_of_which_nothing_is_declared_may_take_one_sequence() -> None:
    """What refuses a batch, and is golden without, takes none: it was refused as no attention."""
    made = conformance.module(OneSequence())
    assert not made.declaration.batched
    assert assumed(made, "it takes one sequence, [L, E]: so it agrees")
    run = CandidateRun(made, profile=PROFILES["quick"], only=("numerics.golden",))
    assert [run.run(planned).status for planned in run.planned()] == ["passed"]


def test_module_that_mixes_items_is_not_taken_for_one_without() -> None:
    """A batch that is answered wrongly is a mistake, whatever one sequence is answered."""
    made = conformance.module(OneSequence(of_batches=True))
    assert made.declaration.batched
    assert made.warnings


class Added(nn.Module):
    """Additive attention: a tanh of the sum of query and key, with names that say roles or not."""

    def __init__(self, *, named: bool) -> None:
        super().__init__()
        self.named = named
        first, second = ("W_q", "W_k") if named else ("w", "u")
        self.first, self.second = first, second
        self.add_module(first, nn.Linear(16, 16))
        self.add_module(second, nn.Linear(16, 16))
        self.add_module("w_v" if named else "v", nn.Linear(16, 1))

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Of tokens [B, L, 16]."""
        own = self.get_submodule(self.first)(query).unsqueeze(2)
        sums = own + self.get_submodule(self.second)(keys).unsqueeze(1)
        scores = self.get_submodule("w_v" if self.named else "v")(sums.tanh()).squeeze(-1)
        answer: Tensor = scores.softmax(-1) @ values
        return answer


@pytest.mark.parametrize("named", [True, False])
def test_additive_attention_is_refused_without_lines_that_lead_nowhere(named: bool) -> None:  # noqa: FBT001
    """A large query changes nothing behind a tanh: no projections are asked for."""
    with pytest.raises(OtherAttentionError, match="nothing to declare") as raised:
        conformance.module(Added(named=named))
    assert "fixed_layer" not in str(raised.value)
    assert "projections=" not in str(raised.value)


class Sharp(nn.Module):
    """Attention of products whose scores a tanh caps."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, nn.Linear(12, 12))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Of tokens [B, L, 12], three heads."""
        parts = zip("qkv", (query, key, value), strict=True)
        q, k, v = (
            self.get_submodule(f"{role}_proj")(one).unflatten(-1, (3, 4)).transpose(1, 2)
            for role, one in parts
        )
        weights = (5 * (q @ k.mT).tanh()).softmax(-1)
        answer: Tensor = self.get_submodule("o_proj")((weights @ v).transpose(1, 2).flatten(2))
        return answer


def test_a_tanh_of_products_is_no_additive_attention() -> None:
    """Caps end large scores, whose sign still follows the query: the module is judged."""
    made = conformance.module(Sharp(), num_heads=3)
    assert any("by no reading" in warning for warning in made.warnings)
