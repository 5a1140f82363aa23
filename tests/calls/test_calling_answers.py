from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import bare, call_forward, core, problem
from torch import Tensor

from conformance.base.results import Violation
from conformance.calls.calling import CandidateFailure
from conformance.problems.materialise import materialise

HERE = Path(__file__).name


def failure(function: Callable[..., object], **changes: Any) -> Violation:
    """The violation of one call."""
    inputs = materialise(problem(), core()).replace(**changes)
    with pytest.raises(CandidateFailure) as caught:
        call_forward(function, inputs)
    return caught.value.violation


def answering(make: Callable[[Tensor], object]) -> Callable[..., object]:
    """A kernel whose right answer is changed."""
    return lambda query, key, value: make(bare(query, key, value))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda _: None,
            "type",
            "the output is None, not a torch.Tensor: does the function end with a return?",
        ),
        (
            lambda output: (output, output),
            "type",
            (
                "the output is a tuple of 2, not a torch.Tensor: return the output alone (declare "
                "features=['weights'] to be asked for both)"
            ),
        ),
        (
            lambda output: output.numpy(),
            "type",
            "the output is a numpy.ndarray, not a torch.Tensor",
        ),
        (lambda output: output.tolist(), "type", "the output is a list, not a torch.Tensor"),
        (lambda _: 3.0, "type", "the output is a float, not a torch.Tensor"),
        (
            lambda output: output.to(torch.int32),
            "dtype",
            "the output has dtype torch.int32, not a floating-point one of 16 bits or more",
        ),
        (
            lambda output: output.to(torch.float8_e4m3fn),
            "dtype",
            "the output has dtype torch.float8_e4m3fn, not a floating-point one of 16 bits or more",
        ),
        (
            lambda output: output.to(torch.complex64),
            "dtype",
            "the output has dtype torch.complex64, not a floating-point one of 16 bits or more",
        ),
        (
            lambda output: output[:, :1],
            "shape",
            "the output has shape [2, 1, 5, 6] where [2, 4, 5, 6] is expected",
        ),
        (
            lambda output: output.mean(),
            "shape",
            "the output has shape [] where [2, 4, 5, 6] is expected",
        ),
        (
            lambda output: output.to_sparse(),
            "type",
            "the output is a torch.sparse_coo tensor, not a dense one",
        ),
        (
            lambda output: output.to("meta"),
            "type",
            "the output is on the device meta where the inputs are on cpu",
        ),
        (
            lambda output: torch.nested.nested_tensor([output[0], output[1]]),
            "type",
            "the output is a nested tensor, not a dense one",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_answers_that_cannot_be_judged(
    make: Callable[[Tensor], object], kind: str, message: str
) -> None:
    """Every answer of a wrong type, shape or dtype is the candidate's fault, in one sentence."""
    violation = failure(answering(make))
    assert (violation.kind, violation.message) == (kind, message)


def test_wrong_shape_says_both() -> None:
    """A wrong shape is given as data too."""
    violation = failure(answering(lambda output: output.transpose(1, 2)))
    assert violation.expected == [2, 4, 5, 6]
    assert violation.got == [2, 5, 4, 6]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda output: output,
            "returned a torch.Tensor for return_weights=True, not a pair (output, weights)",
        ),
        (
            lambda output: (output,),
            "returned a tuple of 1 for return_weights=True, not a pair (output, weights)",
        ),
        (
            lambda output: (output, None),
            "the weights is None, not a torch.Tensor: does the function end with a return?",
        ),
        (
            lambda output: (output, output.new_zeros(2, 5, 7)),
            "the weights have shape [2, 5, 7] where [2, 4, 5, 7] is expected",
        ),
    ],
)
def test_weights_that_cannot_be_judged(make: Callable[[Tensor], object], message: str) -> None:
    """Asked for weights, a candidate returns a pair of the right shapes."""
    function = answering(make)

    def kernel(query: Tensor, key: Tensor, value: Tensor, **_: object) -> object:
        return function(query, key, value)

    assert failure(kernel, return_weights=True).message == message


def raising(error: BaseException) -> Callable[..., object]:
    """A kernel that raises."""

    def kernel(*_: Tensor) -> object:
        raise error

    return kernel


class Unprintable(Exception):  # noqa: N818
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such head\nand  more"), "raised ValueError: no such head and more"),
        (ValueError(), "raised ValueError"),
        (RuntimeError("size mismatch:"), "raised RuntimeError: size mismatch"),
        (SystemExit(3), "raised SystemExit: 3"),
        (MemoryError(), "raised MemoryError"),
        (GeneratorExit(), "raised GeneratorExit"),
        (AssertionError(), "raised AssertionError"),
        (StopIteration("x"), "raised StopIteration: x"),
        (ValueError("\x1b[2J\x07gone"), r"raised ValueError: \x1b[2J\x07gone"),
        (Unprintable(), "raised Unprintable"),
    ],
)
def test_exceptions_are_violations_with_file_and_line(error: BaseException, text: str) -> None:
    """Whatever a candidate raises is one line with the candidate's own place."""
    violation = failure(raising(error))
    line = raising.__code__.co_firstlineno + 4
    assert violation.message == f"{text} ({HERE}:{line})"
    assert (violation.kind, violation.got) == ("raised", type(error).__name__)


def test_place_is_the_candidates_own_line() -> None:
    """An exception out of torch points at the line that called it."""

    def kernel(query: Tensor, key: Tensor, _value: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", query[..., :2], key)

    violation = failure(kernel)
    assert f"({HERE}:{kernel.__code__.co_firstlineno + 1})" in violation.message
    assert "\n" not in violation.message


def test_interrupts_propagate() -> None:
    """Ctrl-C is not the candidate's answer."""
    with pytest.raises(KeyboardInterrupt):
        call_forward(raising(KeyboardInterrupt()), materialise(problem(), core()))
