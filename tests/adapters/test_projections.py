"""Which parameters of a module are read as projections, and what is said where none are."""

from __future__ import annotations

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


@pytest.mark.parametrize("projections", [None, {"q": "wq", "k": "wk", "v": "wv", "o": "wo"}])
def test_parameters_that_are_no_matrices_lead_to_a_fixed_layer(
    projections: dict[str, str] | None,
) -> None:
    """With their shapes, and a declaration that works: names of layers would not help."""
    with pytest.raises(conformance.DeclarationError, match=r"fixed_layer.*Weights\(q=") as caught:
        conformance.module(ByHead(), inputs="self", projections=projections)
    said = str(caught.value)
    assert "projections={" not in said
    assert projections or "wq [3, 12, 4]" in said


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
