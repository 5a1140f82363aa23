"""Trial calls: what a module answers on a small problem, with its matrices drawn anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from .calling import Calling
from .construct import duplicate, put_in_dtype

Inputs = tuple[Tensor, Tensor, Tensor]
_LENGTHS: Final = ((5, 7), (6, 6))
_BATCH: Final = 2
_DTYPES: Final = {torch.float64: ("float64", "float32"), torch.float32: ("float32",)}


@dataclass(frozen=True)
class Answer:
    """One answered trial: query, key and value, the output, and the dtypes to judge it by.

    A module may keep parts in float32 (a scale, a softmax): then only that much can be asked.
    """

    inputs: Inputs
    output: Tensor
    dtypes: tuple[str, ...]


@dataclass
class Trial:
    """A module under trial: a copy in eval mode with drawn matrices, in float64 where it can be.

    ``names`` are the parameters to draw. ``failure`` holds the exception of the latest call that
    raised, ``returned`` the type of what the module itself returned.
    """

    module: nn.Module
    calling: Calling
    batched: bool
    names: Iterable[str]
    failure: Exception | None = None
    returned: type | None = None
    _answers: dict[tuple[int, ...], Answer | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.module = duplicate(self.module).eval()
        self.module.register_forward_hook(self._remember)
        generator = torch.Generator().manual_seed(0)
        known = dict(self.module.named_parameters(remove_duplicate=False))
        for name in self.names:
            parameter = known[name]
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            # Unit-sized answers: each output sums over one axis of the matrix.
            terms = parameter.shape[-1] if parameter.dim() > 1 else 1
            parameter.data.copy_(drawn / terms**0.5)

    @property
    def answered(self) -> bool:
        """Whether any call so far gave an answer."""
        return any(answer is not None for answer in self._answers.values())

    def answer(self, widths: tuple[int, int, int]) -> Answer | None:
        """What the module says to inputs of these widths; None when it cannot take them."""
        if self.calling.inputs == "self" and len(set(widths)) > 1:
            return None
        if self.calling.inputs == "memory" and widths[1] != widths[2]:
            return None
        if widths not in self._answers:
            self._answers[widths] = self._try(widths)
        return self._answers[widths]

    def _remember(self, _module: nn.Module, _inputs: Any, returned: Any) -> None:
        self.returned = type(returned)

    def _try(self, widths: tuple[int, int, int]) -> Answer | None:
        for dtype in _DTYPES:
            for lengths in _LENGTHS:
                answer = self._call(widths, lengths, dtype)
                if answer is not None:
                    return answer
        return None

    def _call(
        self, widths: tuple[int, int, int], lengths: tuple[int, int], dtype: torch.dtype
    ) -> Answer | None:
        batch = _BATCH if self.batched else 1
        inputs = draw(widths, lengths, self.calling.inputs, batch, dtype)
        given = inputs[: {"self": 1, "memory": 2}.get(self.calling.inputs, 3)]
        if not self.batched:
            given = tuple(tokens[0] for tokens in given)
        try:
            with torch.no_grad():
                output = self.calling(put_in_dtype(self.module.cpu(), dtype), given, {})
        except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
            self.failure = error
            return None
        if not isinstance(output, Tensor):
            return None
        output = output if self.batched else output.unsqueeze(0)
        return Answer(inputs, output, _DTYPES[dtype])


def draw(
    widths: tuple[int, int, int],
    lengths: tuple[int, int],
    inputs: str,
    batch: int,
    dtype: torch.dtype,
) -> Inputs:
    """Normal query, key and value; the same tensor where a module takes one for several."""
    generator = torch.Generator().manual_seed(1)
    query_length, key_length = lengths

    def tokens(length: int, width: int) -> Tensor:
        drawn = torch.randn(batch, length, width, generator=generator, dtype=torch.float64)
        return drawn.to(dtype)

    query = tokens(query_length, widths[0])
    if inputs == "self":
        return query, query, query
    key = tokens(key_length, widths[1])
    return query, key, key if inputs == "memory" else tokens(key_length, widths[2])
