"""A module for one process, shared among ranks by ``parallelize_module`` of torch.

Each rank gets the rows of the query, key and value projections that belong to its heads, and the
columns of the output projection.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import conformance


def mesh() -> DeviceMesh:
    """All ranks, in a row."""
    return init_device_mesh("cpu", (dist.get_world_size(),))


class Projected(nn.Module):
    """Multi-head attention in four projections, as it is written for one process."""

    def __init__(self, geometry: conformance.Geometry, matrices: dict[str, Tensor | None]) -> None:
        super().__init__()
        self.head_size = geometry.head_size
        projections: dict[str, nn.Linear] = {}
        for role in "qkvo":
            matrix, bias = matrices[role], matrices[f"{role}_bias"]
            if matrix is None:
                msg = f"the projection {role} has no weights"
                raise ValueError(msg)
            linear = nn.Linear(
                matrix.shape[1], matrix.shape[0], bias=bias is not None, dtype=matrix.dtype
            )
            with torch.no_grad():
                linear.weight.copy_(matrix)
                if bias is not None:
                    linear.bias.copy_(bias)
            projections[role] = linear
        self.q, self.k, self.v, self.o = (projections[role] for role in "qkvo")

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend ``query [B, Lq, Eq]`` to ``key [B, Lk, Ek]``, ``value [B, Lk, Ev]``."""
        heads = [self.q(query), self.k(key), self.v(value)]
        count = heads[0].shape[-1] // self.head_size
        split = [each.unflatten(-1, (count, -1)).transpose(1, 2) for each in heads]
        logits = split[0] @ split[1].mT * self.head_size**-0.5
        mixed = (logits.softmax(-1) @ split[2]).transpose(1, 2).flatten(2)
        answer: Tensor = self.o(mixed)
        return answer


# Without items or queries a linear layer of DTensors raises on some ranks, and the others wait
# (torch 2.13): the geometry has none.
@conformance.layer(
    ranks=conformance.Ranks(2, weights="heads"),
    geometry={"batch": [1, 2, 3], "query_length": [1, 2, 3, 5, 8]},
)
def parallelized_module(
    geometry: conformance.Geometry, weights: conformance.ProjectionWeights
) -> Callable[..., Tensor]:
    """A module for one process, and torch's plan for how the ranks share it."""
    ranks = mesh()
    matrices = {
        role: None
        if part is None
        else part
        if role == "o_bias"
        else DTensor.from_local(
            part.detach(), ranks, [Shard(1 if role == "o" else 0)]
        ).full_tensor()
        for role, part in vars(weights).items()
    }
    module = Projected(geometry, matrices)
    plan = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel()}
    return parallelize_module(module, ranks, {**plan, "o": RowwiseParallel()})
