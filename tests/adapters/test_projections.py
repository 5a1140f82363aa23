"""Which parameters of a module are read as projections, and what is said where none are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from wrapped import is_golden

import conformance


class OverOneToken(nn.Module):
    """Projections that are convolutions over one token."""

    def __init__(self, kernel: int = 1) -> None:
        super().__init__()
        self.heads = 3
        self.q, self.k, self.v, self.o = (nn.Conv1d(12, 12, kernel) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens are the last axis of a convolution."""
        q, k, v = (one(x.mT).unflatten(1, (self.heads, -1)).mT for one in (self.q, self.k, self.v))
        mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        answer: Tensor = self.o(mixed.mT.flatten(1, 2)).mT
        return answer


class ByHead(nn.Module):
    """A matrix for each head in one parameter, as in JAX."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(3, 12, 4)) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(3, 4, 12))

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens."""
        q, k, v = (torch.einsum("ble,hed->bhld", x, w) for w in (self.wq, self.wk, self.wv))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhld,hde->ble", weights @ v, self.wo)


def test_convolutions_over_one_token_are_matrices() -> None:
    """Their weights are read and drawn like those of linear layers."""
    candidate = conformance.module(OverOneToken(), inputs="self")
    assert is_golden(candidate)


def test_weights_with_an_axis_of_heads_are_matrices() -> None:
    """Parameters [H, E, D], and [H, D, E] of the output, are read and drawn."""
    candidate = conformance.module(ByHead())
    assert is_golden(candidate)


class SharedByHeads(nn.Module):
    """Every head projects its own part of the tokens by one small matrix."""

    def __init__(self, embed_size: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        small = embed_size // heads
        self.queries, self.keys, self.values = (
            nn.Linear(small, small, bias=False) for _ in range(3)
        )
        self.fc_out: nn.Module = nn.Linear(embed_size, embed_size)

    def forward(self, values: Tensor, keys: Tensor, query: Tensor, mask: Any) -> Tensor:
        """Attention of ``query [B, L, 12]``; without a mask for None."""
        q, k, v = (
            project(tokens.unflatten(-1, (self.heads, -1))).transpose(1, 2)
            for project, tokens in (
                (self.queries, query),
                (self.keys, keys),
                (self.values, values),
            )
        )
        logits = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            logits = logits.masked_fill(mask == 0, -torch.inf)
        answer: Tensor = self.fc_out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return answer


class SharedWithoutOutput(SharedByHeads):
    """The same without a matrix behind it, which alone would say how wide its tokens are."""

    def __init__(self, embed_size: int = 12, heads: int = 3) -> None:
        super().__init__(embed_size, heads)
        self.fc_out = nn.Identity()


@pytest.mark.parametrize("kind", [SharedByHeads, SharedWithoutOutput])
def test_one_small_matrix_for_all_heads_keeps_its_weights(kind: type[SharedByHeads]) -> None:
    """No other weights can be loaded into it: it is judged with its own, block by block."""
    candidate = conformance.module(kind())
    weights = candidate.fixed_weights
    assert weights is not None
    assert weights.q.shape == (12, 12)
    assert not bool(weights.q[:4, 4:].any())
    assert torch.equal(weights.q[:4, :4], weights.q[4:8, 4:8])
    assert candidate.warnings == ()


class OneForAllRoles(nn.Module):
    """Query, key and value are one projection of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.proj, self.out = 3, nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention."""
        heads = self.proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        mixed = (heads @ heads.mT / heads.shape[-1] ** 0.5).softmax(-1) @ heads
        answer: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return answer


def test_where_no_number_of_heads_fits_none_is_asked_for() -> None:
    """The refusal names what judges the module, and that does."""
    module = OneForAllRoles()
    with pytest.raises(conformance.DeclarationError) as caught:
        conformance.module(module)
    assert "pass num_heads=" not in str(caught.value)
    assert "conformance.fixed_layer(module, conformance.ProjectionWeights(" in str(caught.value)
    one = {role: module.proj.weight.detach() for role in "qkv"}
    biases = {f"{role}_bias": module.proj.bias.detach() for role in "qkv"}
    weights = conformance.ProjectionWeights(
        **one, **biases, o=module.out.weight.detach(), o_bias=module.out.bias.detach()
    )
    declared = conformance.fixed_layer(module, weights, num_heads=3, inputs="self", name="one")
    assert conformance.check(declared, profile="smoke", only="numerics.golden").conforms


class MatricesOfParts(nn.Module):
    """Every head projects its own part of the tokens by matrices of its own, as in ViTs by hand."""

    def __init__(self, width: int = 12, heads: int = 3, *, swapped: bool = False) -> None:
        super().__init__()
        small, self.swapped = width // heads, swapped
        self.q_mappings, self.k_mappings, self.v_mappings = (
            nn.ModuleList(nn.Linear(small, small) for _ in range(heads)) for _ in range(3)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Attention of each head on its part, side by side."""
        parts, answers = tokens.chunk(len(self.q_mappings), -1), []
        for head, part in enumerate(parts):
            by_key = self.k_mappings[head - self.swapped](part)
            scores = self.q_mappings[head](part) @ by_key.mT / part.shape[-1] ** 0.5
            answers.append(scores.softmax(-1) @ self.v_mappings[head](part))
        return torch.cat(answers, -1)


def test_matrices_of_parts_of_the_tokens_are_blocks() -> None:
    """A list of small matrices, one a head, is judged with its own weights, and its mistakes are.

    Neither an output projection nor a name for the number of heads is there.
    """
    candidate = conformance.module(MatricesOfParts())
    weights = candidate.fixed_weights
    assert weights is not None
    assert (weights.q.shape, weights.o) == ((12, 12), None)
    assert not bool(weights.q[:4, 4:].any())
    assert not torch.equal(weights.q[:4, :4], weights.q[4:8, 4:8])
    assert candidate.warnings == ()
    assert conformance.module(MatricesOfParts(swapped=True)).warnings != ()


def test_convolutions_over_several_tokens_are_none() -> None:
    """A kernel of three mixes tokens before the attention."""
    with pytest.raises(conformance.DeclarationError, match=r"q.weight \[12, 12, 3\]"):
        conformance.module(OverOneToken(3), inputs="self")


class Packed(nn.Module):
    """One matrix that is cut by heads first, as many libraries do, with a mistake or without."""

    def __init__(
        self, *, causal: bool = False, scale: float = 4**-0.5, merged: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.scale, self.merged = 3, causal, scale, merged
        self.qkv_proj, self.o_proj = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention."""
        q, k, v = self.qkv_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2).chunk(3, -1)
        scores = q @ k.mT * self.scale
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        mixed = scores.softmax(-1) @ v
        mixed = mixed.transpose(1, 2) if self.merged else mixed
        answer: Tensor = self.o_proj(mixed.reshape(x.shape))
        return answer


@pytest.mark.parametrize(
    ("mistaken", "what"),
    [
        (Packed(merged=False), "how it merges its heads"),
        (Packed(scale=12**-0.5), "its scale"),
        (Packed(causal=True, scale=12**-0.5), "its scale"),
    ],
)
def test_the_weights_of_a_wrong_module_are_read_as_it_is_right_otherwise(
    mistaken: Packed, what: str
) -> None:
    """How it cuts one matrix, and that it is always causal, is then no second mistake."""
    declaration = conformance.module(mistaken, inputs="self").declaration
    assert any(note.endswith(f"but for {what}") for note in declaration.assumptions)
    assert any("fused as grouped" in note for note in declaration.assumptions)
    assert declaration.always_causal == mistaken.causal
    assert declaration.semantics.scale == conformance.Semantics().scale
    assert declaration.semantics.head_merge == "blocks"


def test_two_mistakes_leave_it_open() -> None:
    """Nothing is assumed where no way to read them explains the answers but for one mistake."""
    mistaken = Packed(scale=0.7, merged=False)
    declaration = conformance.module(mistaken, inputs="self").declaration
    assert not any("but for" in note for note in declaration.assumptions)
