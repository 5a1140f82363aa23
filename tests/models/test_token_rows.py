from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bare_modules import HEADS, WIDTH, Projected, attend
from torch import Tensor

from conformance.models.recording import record
from conformance.models.token_rows import mixed_part
from conformance.models.torch_sites import find_torch_sites

Split = Callable[[Tensor], Tensor]


def by_token(tokens: Tensor) -> Tensor:
    """``[B, L, E]`` as ``[B, H, L, D]``."""
    return tokens.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def reshaped(tokens: Tensor) -> Tensor:
    """The same without a transpose: rows of heads are of several tokens."""
    batch, length, width = tokens.shape
    return tokens.reshape(batch, HEADS, length, width // HEADS)


def merged(heads: Tensor) -> Tensor:
    """``[B, H, L, D]`` as ``[B, L, E]``."""
    return heads.transpose(1, 2).flatten(2)


def merged_as_is(heads: Tensor) -> Tensor:
    """The same without a transpose."""
    return heads.reshape(heads.shape[0], heads.shape[2], -1)


class Block(Projected):
    """An attention that splits its query and merges its heads in some way."""

    def __init__(self, split: Split, merge: Split) -> None:
        super().__init__(WIDTH, HEADS)
        self.split, self.merge = split, merge

    def forward(self, x: Tensor) -> Tensor:
        """Attention of tokens."""
        query, key, value = self.split(self.q(x)), by_token(self.k(x)), by_token(self.v(x))
        return self.o(self.merge(attend(query, key, value)))


@pytest.mark.parametrize(
    ("split", "merge", "said"),
    [
        (by_token, merged, ""),
        (reshaped, merged, "the heads of the query are split so that tokens are mixed"),
        (by_token, merged_as_is, "its heads are merged so that tokens are mixed"),
    ],
)
def test_where_tokens_are_mixed(split: Split, merge: Split, said: str) -> None:
    """Numbers are followed from the projection to the heads, and from the heads to the output."""
    torch.manual_seed(0)
    recording = record(Block(split, merge), {"x": torch.randn(2, 5, WIDTH)})
    (site,), _ = find_torch_sites(recording)
    assert mixed_part(recording, site) == said
