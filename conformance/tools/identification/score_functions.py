"""Functions of the scores that an implementation applies in every call, as a declaration says them.

What is compiled here is the text that a declaration prints, so results hold for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import CodeType

import torch
from torch import Tensor


@dataclass(frozen=True)
class ScoreFunction:
    """A function of scaled scores and of the indices of item, head, query and key.

    ``expression`` is its Python, ``words`` say what it does. ``cap`` is the number of a cap.
    """

    expression: str
    words: str
    cap: float | None = None

    def __call__(
        self, score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
    ) -> Tensor:
        """The scores ``[B, H, Lq, Lk]`` after the function, in their dtype."""
        places = {"score": score, "batch": batch, "head": head, "query": query, "key": key}
        changed: Tensor = eval(self._code, {"torch": torch}, places)  # noqa: S307 (text of this module)
        return changed

    @cached_property
    def _code(self) -> CodeType:
        return compile(self.expression, "<score_mod>", "eval")

    def __str__(self) -> str:
        """The Python text of the score function, which a record keeps."""
        return self.expression

    def source(self) -> list[str]:
        """The definition of a function ``score_mod``, line by line."""
        words = self.words[0].upper() + self.words[1:]
        return [
            "def score_mod(score, batch, head, query, key):",
            f'    """{words}."""',
            f"    return {self.expression}",
        ]


def capped(cap: float) -> ScoreFunction:
    """A cap on the logits."""
    number = written(cap)
    return ScoreFunction(
        f"{number} * torch.tanh(score / {number})",
        f"logits become {number} * tanh(logits / {number})",
        cap,
    )


def windowed(before: int, after: int | None) -> ScoreFunction:
    """A window of so many keys before a query's own index and after it; None for no end."""
    hidden = f"query - key > {before}"
    words = f"keys more than {before} places before a query are hidden"
    if after is not None:
        hidden = f"({hidden}) | (key - query > {after})"
        words += f", and those more than {after} behind it"
    return ScoreFunction(f"score.masked_fill({hidden}, -torch.inf)", words)


def sloped(slopes: Sequence[float]) -> ScoreFunction:
    """A bias by the distance from query to key, with a slope for each head or one for all."""
    numbers = [written(slope) for slope in slopes]
    if len(numbers) == 1:
        slope, each = numbers[0], f"{numbers[0]} for each key of distance"
    else:
        slope = f"torch.tensor([{', '.join(numbers)}], dtype=score.dtype)[head]"
        named = ", ".join(f"{number} in head {index}" for index, number in enumerate(numbers))
        each = f"for each key of distance {named}"
    return ScoreFunction(
        f"score + {slope} * (query - key).abs()", f"logits get a bias by distance: {each}"
    )


def written(number: float) -> str:
    """A number as Python."""
    return f"{number:.9g}"
