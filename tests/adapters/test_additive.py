"""Modules that add queries to keys are found by what they answer, whatever they take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import conformance
from conformance.errors import OtherAttentionError


class SideBySide(nn.Module):
    """A tanh of a matrix of query and key side by side, as seq2seq tutorials write it.

    ``hidden`` [B, 12] and ``encoder_outputs`` [L, B, 20] -> weights [B, L].
    """

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(32, 12)
        self.v = nn.Linear(12, 1, bias=False)

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        """One query an item, tokens before batch."""
        keys = encoder_outputs.permute(1, 0, 2)
        queries = hidden.unsqueeze(1).repeat(1, keys.shape[1], 1)
        energy = torch.tanh(self.attn(torch.cat((queries, keys), dim=2)))
        weights: Tensor = self.v(energy).squeeze(2).softmax(dim=1)
        return weights


class SideBySideMasked(nn.Module):
    """The same with a mask [B, L] that it needs."""

    def __init__(self) -> None:
        super().__init__()
        self.unmasked = SideBySide()

    def forward(self, hidden: Tensor, encoder_outputs: Tensor, mask: Tensor) -> Tensor:
        """Where the mask is 0 a key is hidden."""
        weights: Tensor = self.unmasked(hidden, encoder_outputs)
        return weights.masked_fill(mask == 0, 0.0)


class Summed(nn.Module):
    """Bahdanau's sum of two projections: hidden [1, B, E], outputs [B, L, E] -> [B, E], weights."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.theirs = nn.Linear(12, 12), nn.Linear(12, 12)
        self.v = nn.Parameter(torch.zeros(12))

    def forward(self, hidden: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The state of a recurrent decoder asks."""
        energy = torch.tanh(self.own(hidden.transpose(0, 1)) + self.theirs(outputs))
        weights = (energy @ self.v).softmax(-1)
        return (weights.unsqueeze(1) @ outputs).squeeze(1), weights


@pytest.mark.parametrize("kind", [SideBySide, SideBySideMasked, Summed])
def test_sums_of_query_and_key_are_refused_in_one_sentence(kind: type[nn.Module]) -> None:
    """No lines of weights that no such module has: what is added is found by behaviour."""
    with pytest.raises(OtherAttentionError, match="nothing to declare") as raised:
        conformance.module(kind())
    assert "fixed_layer" not in str(raised.value)


class OfScores(nn.Module):
    """Attention of products with something done to them."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of = of
        self.q, self.k, self.v = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Query, key and value [B, L, 12], one head."""
        q, k = self.q(query), self.k(key)
        if self.of == "norms":
            q, k = (nn.functional.normalize(one, dim=-1) for one in (q, k))
        scores = 4 * (q @ k.mT)
        if self.of == "abs":
            scores = scores.abs()
        no_softmax = {"sigmoid": scores.sigmoid(), "tanh": scores.tanh()}
        weights = no_softmax.get(self.of, scores.softmax(-1))
        answer: Tensor = weights @ self.v(value)
        return answer


@pytest.mark.parametrize("of", ["norms", "sigmoid", "abs", "tanh"])
def test_products_are_no_sums_whatever_is_done_to_them(of: str) -> None:
    """The direction of a large query still tells: an even function of scores, norms, no softmax."""
    made = conformance.module(OfScores(of), num_heads=1)
    assert made.declaration.kind == "layer"
