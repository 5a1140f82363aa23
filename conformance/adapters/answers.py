"""Finds the output in a call's result: a tensor, or a tensor within tuples, dicts and objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import Tensor

from ..tolerance.model import SAME_READ

_DEEPEST: Final = 4


def parts_of(
    answer: Any, shown: str = "answer", depth: int = _DEEPEST
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a result, in order, with the expression that selects the tensor."""
    if isinstance(answer, Tensor):
        yield shown, answer
    elif depth > 0:
        for step, part in _entries(answer):
            yield from parts_of(part, f"{shown}{step}", depth - 1)


def _entries(answer: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(answer, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in answer.items())
    elif isinstance(answer, (tuple, list)):
        yield from ((f"[{index}]", part) for index, part in enumerate(answer))
    elif hasattr(answer, "__dict__") and not callable(answer):
        yield from ((f".{name}", part) for name, part in vars(answer).items() if _is_public(name))
    elif hasattr(answer, "__slots__") and not callable(answer):
        names = [name for name in answer.__slots__ if _is_public(name) and hasattr(answer, name)]
        yield from ((f".{name}", getattr(answer, name)) for name in names)


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def outputs_in(answer: Any, leading: tuple[int, ...]) -> list[tuple[str, Tensor]]:
    """Possible outputs among a result's tensors, likeliest first, with their expressions.

    An output has the ``leading`` sizes and one further axis. Possible weights come last.
    """
    fitting = [
        (shown, part)
        for shown, part in parts_of(answer)
        if part.is_floating_point() and tuple(part.shape[:-1]) == leading
    ]
    return sorted(fitting, key=lambda entry: may_be_weights(entry[1]))


def output_of(answer: Any, tokens: Tensor) -> Any:
    """The output in a layer's result: the likeliest tensor with the axes of the queries ``tokens``.

    Without a fitting tensor, the first tensor; without any tensor, the result itself.
    """
    if isinstance(answer, Tensor):
        return answer
    fitting = outputs_in(answer, tuple(tokens.shape[:-1]))
    others = (part for _, part in parts_of(answer))
    return fitting[0][1] if fitting else next(others, answer)


def may_be_weights(part: Tensor) -> bool:
    """Whether no entry is negative and every row sums to one or zero, not all to zero."""
    if not part.numel() or not part.is_floating_point():
        return False
    rows = part.detach().double().sum(-1)
    sums = ((rows - 1.0).abs() <= SAME_READ) | (rows == 0.0)
    return bool((part >= 0.0).all() and sums.all() and (rows > 0.0).any())


def weights_in(answer: Any, output: Any) -> Tensor | None:
    """The weights in a result: a tensor with rows of sum one, else the first besides the output."""
    others = [part for _, part in parts_of(answer) if part is not output]
    looking = [part for part in others if part.dim() > 1 and may_be_weights(part)]
    return next(iter(looking or others), None)
