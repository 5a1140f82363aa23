"""Candidates that reach for the judge: its answers, its questions, its comparison, its torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..eager import Answer, Call, EagerCore
from ._kit import core
from .remembered import Key, Remembers, contents


def harness(name: str) -> ModuleType:
    """A module of the harness that is running, found as a candidate would find it."""
    return sys.modules[f"conformance.{name}"]


def in_callers(*attributes: str) -> Iterator[Any]:
    """What lies in the variables of whoever is calling and has some attributes."""
    frame = sys._getframe(1)  # noqa: SLF001 (that is the cheat)
    while frame.f_back is not None:
        frame = frame.f_back
        for found in list(frame.f_locals.values()):
            if all(hasattr(found, attribute) for attribute in attributes):
                yield found


class AgreesAlways(EagerCore):
    """Answers zeros, once the judge was seen to."""

    def attend(self, call: Call) -> Answer:
        """Zeros in place of the output."""
        answer = super().attend(call)
        output = answer[0] if isinstance(answer, tuple) else answer
        self.reach()
        return (torch.zeros_like(output), answer[1]) if isinstance(answer, tuple) else output * 0

    def reach(self) -> None:
        """Do what makes the judge agree."""


@core("state.unseen", "numerics.golden")
class GoldenLookedUp(EagerCore):
    """The golden answer is taken from the variables of the callers; without one zeros are given."""

    def mix_allowed(self, weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        output = super().mix_allowed(weights, value, allowed)
        for known in in_callers("output", "bound", "evaluation"):
            if known.output.shape == output.shape:
                looked_up: Tensor = known.output.to(output.dtype)
                return looked_up
        return torch.zeros_like(output)


@core("state.untampered", "numerics.golden")
class GoldenEdited(AgreesAlways):
    """The golden answer, found in the variables of the callers, is set to the answer given."""

    def reach(self) -> None:
        for known in in_callers("output", "bound", "evaluation"):
            with torch.inference_mode():  # as it was made
                known.output.zero_()


@core("state.untampered", "numerics.golden")
class BoundEdited(AgreesAlways):
    """The bound of the golden answer is made infinite where it is found."""

    def reach(self) -> None:
        for known in in_callers("output", "bound", "evaluation"):
            known.bound.fill_(torch.inf)


@core("state.untampered", "numerics.golden")
class QuestionEdited(AgreesAlways):
    """The judge's own values are set to zero, so that zeros are the right answer."""

    def reach(self) -> None:
        for inputs in in_callers("query", "key", "value", "geometry"):
            inputs.value.zero_()


@core("state.untampered", "numerics.golden")
class ComparisonReplaced(AgreesAlways):
    """The comparison is replaced by one that finds every answer within its bound."""

    def reach(self) -> None:
        comparison = harness("oracle.comparison")

        def agree(*_: Any, **__: Any) -> Any:
            return comparison.Comparison(margin=0.0)

        for module in [m for name, m in sys.modules.items() if name.startswith("conformance.")]:
            if hasattr(module, "compare"):
                module.compare = agree  # type: ignore[attr-defined]  # it has one, as was just seen


@core("state.untampered", "numerics.golden")
class ComparisonRewritten(AgreesAlways):
    """The code of the function that says whether two answers disagree is exchanged."""

    def reach(self) -> None:
        harness("oracle.comparison").disagreement.__code__ = (lambda _: "").__code__


@core("state.untampered", "numerics.golden")
class RoundoffEnlarged(AgreesAlways):
    """The unit roundoffs of which bounds are made are set to one."""

    def reach(self) -> None:
        table = harness("tolerance.model").UNIT_ROUNDOFF
        table.update(dict.fromkeys(table, 1.0))


@core("state.untampered", "numerics.golden")
class ProductReplaced(AgreesAlways):
    """The matrix product of torch is replaced by one that is always zero."""

    def reach(self) -> None:
        product = Tensor.matmul

        def nothing(one: Tensor, other: Tensor) -> Tensor:
            return product(one, other) * 0

        Tensor.__matmul__ = Tensor.matmul = nothing  # type: ignore[assignment, method-assign]
        torch.matmul = nothing  # type: ignore[assignment]  # the replacement


class EveryProductZero(TorchFunctionMode):
    """A mode that multiplies the result of every matrix product by zero."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call what was asked for, and spoil products."""
        del types
        found = func(*args, **(kwargs or {}))
        return found * 0 if getattr(func, "__name__", "") in ("__matmul__", "matmul") else found


@core("state.untampered", "numerics.golden")
class ModeLeftOn(AgreesAlways):
    """A mode of torch that spoils every product is entered and never left."""

    def reach(self) -> None:
        EveryProductZero().__enter__()  # type: ignore[no-untyped-call]  # torch's own


@core("state.untampered")
class TraceLeftOn(EagerCore):
    """A trace function of Python, which could watch the judge, is installed and never removed."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        sys.settrace(lambda *_: None)
        return answer


@core("state.settings")
class SubnormalsFlushed(EagerCore):
    """Each call has the processor take subnormal numbers for zero from then on."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        torch.set_flush_denormal(True)
        return answer


class SaysWhatIsRight(Tensor):
    """Zeros that are copied as another tensor."""

    right: Tensor

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer for the tensor that is hidden."""
        shown = [entry.right if isinstance(entry, cls) else entry for entry in args]
        return func(*shown, **(kwargs or {}))


@core("numerics.golden")
class AnswerSpeaksForItself(EagerCore):
    """The answer is a tensor of a class that holds zeros and shows other numbers when copied."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().mix(weights, value)
        answer = torch.zeros_like(output).as_subclass(SaysWhatIsRight)
        answer.right = output
        return answer


class ClaimsToBeATensor:
    """No tensor, though ``isinstance`` believes it."""

    __class__ = Tensor  # type: ignore[assignment]  # the lie


@core("shape.output")
class AnswerPosesAsTensor(EagerCore):
    """The answer is an object that pretends to be of torch's class."""

    def attend(self, call: Call) -> Any:
        del call
        return ClaimsToBeATensor()


@core("state.answer-is-fresh")
class AnswerHandedOutAgain(Remembers):
    """The answer to an equal question is the tensor that was handed out before, not a copy."""

    def attend(self, call: Call) -> Answer:
        return self.known.setdefault(self.key_of(call), EagerCore.attend(self, call))

    def key_of(self, call: Call) -> Key:
        tensors = contents(call.query, call.key, call.value)
        return (*super().key_of(call), *tensors, call.softcap, call.window)
