from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from conformance.clauses.subject import snapshot, was_written

EDITS: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda tensor: tensor.mul_(2),
    "behind torch's back": lambda tensor: tensor.numpy().fill(3),
    "of the data": lambda tensor: tensor.data.zero_(),
    "of a sign": lambda tensor: tensor[0].neg_(),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.mT,
    "every other": lambda tensor: tensor[:, ::2],
    "expanded": lambda tensor: tensor[:1].expand(3, -1),
    "empty": lambda tensor: tensor[:0],
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
@pytest.mark.parametrize("where", ["positional", "by keyword"])
def test_every_way_to_write_is_detected(edit: Callable[[Tensor], object], where: str) -> None:
    """However a call writes into one of its tensors, the bits show it."""
    tensor = torch.tensor([[0.0, 1.0], [math.nan, -2.0]])
    before = snapshot(((tensor,), {}) if where == "positional" else ((), {"keep": tensor}))
    assert not was_written(before)
    edit(tensor)
    assert was_written(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bool, torch.int64])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_what_stays_is_not_taken_for_an_edit(
    view: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    """Any dtype in any memory layout equals itself; what is no tensor is left out."""
    tensor = view(torch.tensor([[0.0, 1.0], [math.inf, -2.0]]).nan_to_num(posinf=7.0).to(dtype))
    assert not was_written(snapshot(((tensor,), {"causal": True})))


def test_inputs_that_want_gradients_are_compared_too() -> None:
    """A leaf is looked at without recording anything."""
    leaf = torch.ones(2, requires_grad=True)
    before = snapshot(((leaf,), {}))
    with torch.no_grad():
        leaf.add_(1)
    assert was_written(before)
