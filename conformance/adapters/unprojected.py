"""Attention between tokens themselves: a module without matrices as a layer of identity ones."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from .._golden import golden
from ..base.parameter_names import undeclared_options
from ..base.printable_text import few
from ..declare.candidate import Candidate
from ..declare.decorators import fixed_layer
from .answers import output_of
from .construction import WIDTH
from .module import assuming
from .packing import HeadSizes
from .projection_search import agrees
from .trial import duplicate

_SIZES = HeadSizes(num_heads=1, num_kv_heads=1, head_size=WIDTH, value_head_size=WIDTH)
_Attend = Callable[[Tensor, Tensor], Any]


def unprojected(built: nn.Module, shown: str) -> Candidate | None:
    """A layer whose queries, keys and values are the tokens of a module's two inputs.

    Its answers are golden, with or without a scale; None for another module.
    """
    if any(parameter.dim() > 1 for parameter in built.parameters()):
        return None
    same = torch.eye(WIDTH)
    weights = golden.ProjectionWeights(q=same, k=same, v=same)
    generator = torch.Generator().manual_seed(0)
    query, context = (torch.randn(2, size, WIDTH, generator=generator) for size in (5, 7))
    for (attend, words), scale in product(_ways(built), (golden.STANDARD.scale, "none")):
        point = golden.STANDARD.replace(scale=scale)
        with contextlib.suppress(Exception), torch.no_grad():  # the user's module may raise any
            answer = attend(query, context)
            if agrees(answer, (query, context, context), weights, _SIZES, point, "float32"):
                made = fixed_layer(
                    attend, weights, num_heads=1, name=shown, inputs="memory", semantics=point
                )
                return _with_open_options(assuming(made, *words), built)
    return None


def _ways(built: nn.Module) -> Iterator[tuple[_Attend, tuple[str, ...]]]:
    module = duplicate(built).eval()
    note = "it has no projections: its tokens are queries, keys and values"
    for turned, order in ((False, ""), (True, "its memory comes before its query")):
        yield partial(_whole, module, turned), (note, *filter(None, [order]))
        single = "it takes a query [B, E]: it is called with a query at a time"
        yield partial(_by_query, module, turned), (note, single, *filter(None, [order]))
        weighs = "it returns weights of keys for a query at a time: the keys are weighted by them"
        for axes in product((0, 1), repeat=2):
            yield partial(_by_weights, module, turned, axes), (note, weighs, *filter(None, [order]))


def _whole(module: nn.Module, turned: bool, query: Tensor, context: Tensor) -> Any:  # noqa: FBT001 (bound by partial)
    return output_of(module(*((context, query) if turned else (query, context))), query)


def _by_query(module: nn.Module, turned: bool, query: Tensor, context: Tensor) -> Any:  # noqa: FBT001 (bound by partial)
    return torch.stack([_whole(module, turned, one, context) for one in query.unbind(1)], dim=1)


def _by_weights(
    module: nn.Module,
    turned: bool,  # noqa: FBT001 (bound by partial)
    axes: tuple[int, ...],
    query: Tensor,
    context: Tensor,
) -> Any:
    """The context weighted for a query at a time.

    ``axes``: of length one in the query that is given, and of the items in the weights.
    """
    rows = []
    single, items = axes
    sizes = context.shape[:2]
    for one in query.unbind(1):
        given = (one.unsqueeze(single), context if single else context.transpose(0, 1))
        weights = module(*(given[::-1] if turned else given))
        weights = weights.reshape(sizes[::-1]).T if items else weights.reshape(sizes)
        rows.append((weights[:, :, None] * context).sum(1))
    return torch.stack(rows, dim=1)


def _with_open_options(candidate: Candidate, built: nn.Module) -> Candidate:
    """A candidate whose verdict is open where its module has masks that no call gives."""
    names = [one.name for one in undeclared_options(inspect.signature(built.forward), set())]
    if not names:
        return candidate
    return dataclasses.replace(candidate, unjudged=f"{few(names, 3)} was not checked")
