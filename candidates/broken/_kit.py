"""How a mistake is declared: one overridden step of a correct attention, and what sees it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

import conformance
from conformance import Mistake

from ..eager import EagerCore
from ..module_caches import seeded

CORE: Final[dict[str, Any]] = {
    "masks": ["keep", "drop", "keep_int", "bias", "lengths"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale", "gqa", "weights", "dropout"],
}
LAYER: Final[dict[str, Any]] = {
    "masks": ["keep", "bias", "lengths"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["gqa", "weights"],
}
MAX_LENGTH: Final = 512


DECLARED: Final[list[Mistake]] = []
# What no clause sees in quick: classes whose ``escapes`` says why. Their primary clause ought to.
# By name: a list would be taken for a catalogue of what must be caught, wherever it is imported.
ESCAPED: Final[dict[str, Mistake]] = {}

Maker = Callable[..., Any]


def core(primary: str, *also: str, **promises: Any) -> Callable[[type], Any]:
    """Declare a class whose instance is a broken core; the class becomes the candidate."""
    declare = _declared(conformance.core, {**CORE, **promises})
    return _recorder(primary, also, lambda made: declare(made.__name__)(made()))


def layer(primary: str, *also: str, **promises: Any) -> Callable[[type], Any]:
    """Declare a class ``(geometry, weights) -> forward`` as a broken layer."""
    declare = _declared(conformance.layer, {**LAYER, **promises})
    return _recorder(primary, also, lambda made: declare(made.__name__)(made))


def module(primary: str, *also: str, **promises: Any) -> Callable[[type], Any]:
    """Declare a torch module as a broken layer; the class becomes the candidate."""
    return _recorder(
        primary,
        also,
        lambda made: conformance.module(seeded(made), name=made.__name__, **promises),
    )


def positions(primary: str, *also: str) -> Callable[[type], Any]:
    """Declare a class whose instance is a broken position encoding."""
    declare = _declared(conformance.positions, {"max_length": MAX_LENGTH})
    return _recorder(primary, also, lambda made: declare(made.__name__)(made()))


def _declared(decorator: Maker, promises: dict[str, Any]) -> Callable[[str], Callable[[Any], Any]]:
    return lambda name: decorator(name=name, **promises)


def _recorder(
    primary: str, also: tuple[str, ...], declare: Callable[[type], Any]
) -> Callable[[type], Any]:
    def record(made: type) -> Any:
        candidate = declare(made)
        mistake = Mistake(
            name=made.__name__,
            sentence=_sentence(made),
            primary=primary,
            also=also,
            candidate=candidate,
            link=made.__dict__.get("link", ""),
        )
        if "escapes" in made.__dict__:
            ESCAPED[mistake.name] = mistake
        else:
            DECLARED.append(mistake)
        return candidate

    return record


def _sentence(made: type) -> str:
    """The first paragraph of the class's own docstring (an inherited one says what is correct)."""
    first, *_more = inspect.cleandoc(made.__dict__.get("__doc__") or "").split("\n\n")
    return " ".join(first.split())


class InexactCore(EagerCore):
    """A core that multiplies all values by their weights, as nearly everybody does."""

    def mix_allowed(self, weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        """The plain weighted sum."""
        del allowed
        return self.mix(weights, value)


class Sinusoids:
    """The sinusoidal position encoding, step by step; a mistake replaces a step."""

    base = 10000.0

    def __call__(self, x: Tensor) -> Tensor:
        """Add the encoding of positions 0, 1, … to ``x [B, L, E]``; E is even."""
        return x + self.table(x.shape[1], x.shape[2]).to(x)

    def table(self, length: int, width: int) -> Tensor:
        """The encoding ``[L, E]`` in float64."""
        angles = self.positions(length)[:, None] * self.frequencies(width)
        return self.channels(angles.sin(), angles.cos())

    def positions(self, length: int) -> Tensor:
        """The position of each token."""
        return torch.arange(length, dtype=torch.float64)

    def frequencies(self, width: int) -> Tensor:
        """The angle of one step, for each pair of channels."""
        return self.base ** -(torch.arange(0, width, 2, dtype=torch.float64) / max(width, 1))

    def channels(self, sines: Tensor, cosines: Tensor) -> Tensor:
        """Sines in the even channels, cosines in the odd ones."""
        return torch.stack([sines, cosines], dim=-1).flatten(-2)


CORRECT: Final[tuple[Any, ...]] = (
    conformance.core(name="correct_core", **CORE)(EagerCore()),
    conformance.positions(name="correct_positions", max_length=MAX_LENGTH)(Sinusoids()),
)
