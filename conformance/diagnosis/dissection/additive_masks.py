"""Additive masks that are read at another place: their numbers, what they hide, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from ...problems.inputs import Inputs
from ..mistakes import DeclaredCall, NamedMistake
from ..mistakes._steps import has_bias
from ..mistakes.named_mistake import InputsChange
from .cells import TABLE_MOVES
from .reading import Reading
from .statement import statement

_FIX: Final = "add the number of each query and key of each head and batch item to its own score"
# What is read at another place, and what follows the words for it.
_PARTS: Final = {
    "both": "",
    "numbers": ", of which the numbers count and its own minus infinities",
    "numbers, hides more": ", whose minus infinities count beside its own",
    "hides": ", of which the minus infinities count and its own numbers",
}


def additive_mask_statements(reading: Reading) -> Iterator[NamedMistake]:
    """The additive mask of another item, head, query or key in place of its own."""
    call = reading.call
    if not has_bias(call.inputs) or bool((~reading.wrong).all()):
        return
    heads = call.projected_heads()
    for words, move in TABLE_MOVES:
        for part, which in _PARTS.items():
            change = _moved(move, part)
            moved = change(call)
            if moved is None:
                continue
            other = DeclaredCall(inputs=moved, semantics=call.semantics)
            weights = other.attend(heads).weights
            if reading.agree(reading.weights, weights):
                yield statement(
                    f"bias: the additive mask {words}{which}",
                    f"the additive mask {words} is added in place of its own{which}",
                    _FIX,
                    inputs=change,
                )


def _moved(move: Callable[[Tensor], Tensor], part: str) -> InputsChange:
    """The inputs with numbers or table of an additive mask at another place; None if alike."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if not has_bias(inputs):
            return None
        shape = inputs.score_shape
        none = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
        bias = (none if inputs.bias is None else inputs.bias.double()).expand(shape)
        kept = torch.ones(shape, dtype=torch.bool) if inputs.keep is None else inputs.keep
        kept = kept.expand(shape) & ~torch.isneginf(bias)
        bias = bias.masked_fill(~kept, 0.0)
        moved, seen = move(bias), move(kept)
        if moved.shape != bias.shape:
            return None
        if part == "hides":
            moved = bias
        if part == "numbers":
            seen = kept
        elif part == "numbers, hides more":
            seen = seen & kept
        if torch.equal(moved, bias) and torch.equal(seen, kept):
            return None
        return inputs.replace(keep=seen, bias=moved)

    return inputs_for
