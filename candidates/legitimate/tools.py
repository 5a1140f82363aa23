"""Cores that are written with torch's tools for functions, graphs and memory."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.func import vmap

from ._kit import admitted, check, core, factor, soften


def _one_query(query: Tensor, row: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """One query ``[D]`` with its row ``[Lk]`` of the table: a plain function of vectors."""
    return soften(key @ query * scale, row) @ value


@core()
def mapped_over_queries_heads_and_items(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A function of one query, mapped three times by ``torch.func.vmap``."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    table = table.expand(*query.shape[:3], key.shape[2])
    scaled = factor(query, scale)

    def of_one(query: Tensor, row: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _one_query(query, row, key, value, scaled)

    of_head = vmap(of_one, in_dims=(0, 0, None, None))
    answer: Tensor = vmap(vmap(of_head))(query, table, key, value)
    return answer


@core()
def activations_saved_elsewhere(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """What the backward pass needs is kept in host memory, as when memory is short."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    with save_on_cpu():
        return soften(query @ key.mT * factor(query, scale), table) @ value


@core()
def activations_packed_as_bytes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Saved tensors are packed into copies by hooks of the graph, and unpacked when asked for."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    with saved_tensors_hooks(lambda saved: (saved.clone(),), lambda packed: packed[0]):
        return soften(query @ key.mT * factor(query, scale), table) @ value


@core(without=["gradients"])
def overwritten_step_by_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """One buffer of its own is scores, logits, exponentials and weights in turn."""
    check(query, key, value)
    with torch.no_grad():
        table = admitted(query, key, keep, causal=causal)
        buffer = (query @ key.mT).mul_(factor(query, scale))
        buffer.masked_fill_(~table, -torch.inf)
        buffer.sub_(buffer.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)).exp_()
        total = buffer.sum(-1, keepdim=True)
        return buffer.div_(total.masked_fill_(total == 0, 1.0)) @ value


class _KeepsTriangles:
    """Tables of the causal flag are made once for each pair of lengths, which is no memory."""

    def __init__(self) -> None:
        self.known: Final[dict[tuple[int, int], Tensor]] = {}

    def triangle(self, queries: int, keys: int) -> Tensor:
        """Which keys lie no later than a query; nobody writes into it."""
        if (queries, keys) not in self.known:
            table = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            self.known[queries, keys] = table
        return self.known[queries, keys]

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        check(query, key, value)
        table = admitted(query, key, keep, causal=False)
        if causal:
            table = table & self.triangle(query.shape[2], key.shape[2])
        return soften(query @ key.mT * factor(query, scale), table) @ value


triangles_kept_by_length = core(name="triangles_kept_by_length")(_KeepsTriangles())


@core()
def chosen_by_where(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Rows without keys take another branch of ``where``, made so that neither has a NaN."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    some = table.any(-1, keepdim=True)
    logits = torch.where(table, query @ key.mT * factor(query, scale), -torch.inf)
    weights = torch.where(some, logits, 0.0).softmax(-1)
    return torch.where(some, weights, 0.0) @ value
