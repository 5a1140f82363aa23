"""Tensors inside a graph are seen as heads, however their axes lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from conformance.diagnosis.exports.stages import views

SHAPE = (2, 3, 5, 4)
HEADS = torch.arange(120).reshape(SHAPE)


@pytest.mark.parametrize(
    "lay",
    [
        lambda heads: heads,
        lambda heads: heads.transpose(1, 2),
        lambda heads: heads.transpose(2, 3),
        lambda heads: heads.permute(2, 0, 1, 3),
        lambda heads: heads.flatten(0, 1),
        lambda heads: heads.flatten(0, 1).transpose(0, 1),
        lambda heads: heads.transpose(1, 2).flatten(2),
        lambda heads: heads.permute(2, 0, 1, 3).flatten(2),
        lambda heads: heads.unsqueeze(2),
    ],
)
def test_any_layout_is_seen(lay: Callable[[Tensor], Tensor]) -> None:
    """Some view of a tensor is the heads that it was made of."""
    assert any(torch.equal(view, HEADS) for view in views(lay(HEADS), SHAPE))


@pytest.mark.parametrize("packed", [True, False])
def test_one_item_without_an_axis(*, packed: bool) -> None:
    """Unbatched heads are those of one item."""
    first = HEADS[:1]
    bare = first[0].transpose(0, 1).flatten(1) if packed else first[0]
    assert any(torch.equal(view, first) for view in views(bare, (1, 3, 5, 4)))


def test_another_size_has_no_view() -> None:
    """What cannot be these heads is seen as nothing."""
    assert list(views(HEADS[..., :3], SHAPE)) == []
