"""The gradient of sinks: what their logits get in each row, added up over rows and items."""

from __future__ import annotations

import torch
from torch import Tensor

from .block_stores import query_block_stores, worst_of_stores
from .contract import Contract
from .golden_gradients import GoldenGradients
from .gradient import Gradient
from .storing import Errors, stored
from .worst_gradients import WorstErrors
from .worst_pairs import sum_error


def sink_gradient(gradients: GoldenGradients, worst: WorstErrors, contract: Contract) -> Gradient:
    """The gradient ``[H]`` with its worst-case bound, which stands for the statistical one, too.

    A row gives ``p (dP - D)`` with dP = 0, as the value of a sink is zero. Rows and items may be
    added up in blocks, each of which may be stored.
    """
    rows = gradients.logit_gradient[..., -1:]
    error = torch.zeros_like(rows) if worst.sink is None else worst.sink
    items, length = rows.shape[0], rows.shape[-2]

    def total(each: Tensor) -> Tensor:
        return each.sum(dim=(0, 2, 3))

    sizes = total(rows.abs() + error)
    summed = total(error) + sum_error(items * length, contract) * sizes
    stores = items * (1 + max(query_block_stores(length, contract), 0))
    summed += worst_of_stores(sizes, stores, contract)
    summed += contract.accumulator_underflow * (items * length + 1)
    errors = Errors(value=total(rows), worst=summed, variance=torch.zeros_like(sizes))
    found = stored(errors, contract, 0.0)
    return Gradient(value=found.value, worst=found.worst, bound=found.worst, scale=found.worst)
