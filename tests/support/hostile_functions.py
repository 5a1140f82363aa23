"""What is no attention, or does not behave while it is called."""

from __future__ import annotations

import math
import time
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

not_callable = 7


def five_arguments(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> Tensor:
    """Nobody knows what for."""
    return a + b + c + d + e


def one_argument(x: Tensor) -> Tensor:
    """No attention at all."""
    return x.relu()


def returns_none(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Forgets to return."""
    del q, k, v


def returns_text(q: Tensor, k: Tensor, v: Tensor) -> str:
    """A text."""
    return f"{q.shape}{k.shape}{v.shape}"


def returns_integers(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int]:
    """A pair of numbers."""
    return q.dim(), k.dim() + v.dim()


def returns_nan(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """NaN of the right shape."""
    return (q @ k.mT).softmax(-1) @ v * torch.nan


def always_raises(q: Tensor, k: Tensor, v: Tensor) -> NoReturn:
    """Raises whatever its arguments are."""
    del q, k, v
    msg = "not today"
    raise RuntimeError(msg)


def exits(q: Tensor, k: Tensor, v: Tensor) -> NoReturn:
    """Ends the process the polite way."""
    del q, k, v
    raise SystemExit(3)


def prints(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Correct, but talks all the time."""
    print("\x1b[31mattending", q.shape)  # noqa: T201 (that is the point)
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def hangs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Never comes back."""
    del k, v
    time.sleep(1000)
    return q


def modifies(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Correct, but scales the caller's queries in place."""
    q.mul_(q.shape[-1] ** -0.5)
    return (q @ k.mT).softmax(-1) @ v


class NeedsArguments(nn.Module):
    """Cannot be made without knowing what ``flavour`` is."""

    def __init__(self, flavour: Any) -> None:
        super().__init__()
        self.flavour = flavour

    def forward(self, x: Tensor) -> Tensor:
        """Nothing."""
        return x


def broken_inside(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Needs positions before heads, and something that its module math has not."""
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key)
    return torch.einsum("bhqk,bkhd->bqhd", math.debug(scores), value)  # type: ignore[attr-defined]


class Lazy(nn.Module):
    """Learns how wide tokens are when it is called first, of a width that nobody would try."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.LazyLinear(4) for _ in range(3))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As a layer is called."""
        if query.shape[-1] != 7:
            msg = "tokens have 7 channels"
            raise ValueError(msg)
        scores = self.q_proj(query) @ self.k_proj(key).mT / 2.0
        answer: Tensor = scores.softmax(-1) @ self.v_proj(value)
        return answer


class NoProjections(nn.Module):
    """A module without any matrix."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention proper."""
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
