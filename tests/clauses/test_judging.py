from __future__ import annotations

import torch

from conformance.clauses.judging import column


def test_column_takes_the_widest_row_of_each_channel() -> None:
    """The bound of a channel is the largest over items and rows; nothing stays nothing."""
    bound = torch.arange(12.0).reshape(2, 2, 3)
    assert torch.equal(column(bound), torch.tensor([9.0, 10.0, 11.0]).expand(2, 2, 3))
    assert column(torch.zeros(0, 2, 3)).shape == (0, 2, 3)
