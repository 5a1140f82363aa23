"""Exceptions in words: the whole message, the line of the library, the way there."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conformance.base.printable_text import LONGEST, raised_text, traceback_text

HERE = Path(__file__).name
LIBRARY = Path(sysconfig.get_path("purelib")) / "some_library" / "kernels.py"


def caught(action: Callable[[], Any]) -> Exception:
    """What an action raises."""
    with pytest.raises(Exception) as caught_error:  # noqa: PT011 (any)
        action()
    return caught_error.value


def of_library(text: str) -> Callable[[], Any]:
    """A function whose code lies, as far as tracebacks tell, in an installed library."""
    made: dict[str, Any] = {}
    exec(compile(f"def attend():\n    {text}", str(LIBRARY), "exec"), made)  # noqa: S102 (a test)
    function: Callable[[], Any] = made["attend"]
    return function


def test_the_place_is_the_library_line() -> None:
    """An exception of a library names its line, and the line of the user's that led there."""
    attend = of_library("raise ValueError('head size 5 is not supported')")

    def adapter() -> None:
        attend()

    error = caught(adapter)
    line = adapter.__code__.co_firstlineno + 1
    assert raised_text(error) == (
        "raised ValueError: head size 5 is not supported "
        f"(some_library/kernels.py:2, called at {HERE}:{line})"
    )
    way = traceback_text(error).splitlines()
    assert way[-2:] == [
        f"{HERE}:{line} in adapter: attend()",
        "some_library/kernels.py:2 in attend",
    ]


def test_what_torch_itself_says_has_its_place() -> None:
    """Its Python counts where it raises by itself, not where it passes a call on to C++."""
    tokens = torch.ones(2, 2, 2, 2)
    text = raised_text(caught(lambda: nn.MultiheadAttention(2, 1)(tokens, tokens, tokens)))
    assert "(torch/nn/functional.py:" in text
    text = raised_text(caught(lambda: nn.Linear(3, 3)(tokens)))
    assert f" ({HERE}:" in text
    assert "torch/" not in text


def test_whole_messages_up_to_four_kilobytes() -> None:
    """Every line of a message is shown, with what caused it and what was noted, then cut."""
    error = ValueError("first\n  second")
    error.add_note("noted")
    error.__cause__ = KeyError("x")
    assert raised_text(error) == "raised ValueError: first second noted, caused by KeyError: 'x'"
    assert len(raised_text(ValueError("x" * 10_000))) == LONGEST + 1


def test_names_of_any_length() -> None:
    """The name of an exception's class is cut, too, wherever it is shown."""
    error = type("N" * 1_000_000, (Exception,), {})("x")
    assert raised_text(error) == f"raised {'N' * 200}: x"
    error.__cause__ = error
    assert len(raised_text(error)) < LONGEST


def test_long_ways_end_with_the_last_calls() -> None:
    """Of a deep recursion the innermost calls are kept."""

    def deeper(left: int) -> None:
        if left == 0:
            raise ValueError
        deeper(left - 1)

    way = traceback_text(caught(lambda: deeper(400)))
    assert way.splitlines()[-1].endswith("in deeper: raise ValueError")
    assert way.splitlines()[-2].endswith("in deeper: deeper(left - 1) (400 times)")

    def recurse(left: int) -> None:
        if left == 0:
            raise ValueError
        other(left - 1)

    def other(left: int) -> None:
        recurse(left)

    way = traceback_text(caught(lambda: recurse(200)))
    assert len(way) <= LONGEST
    assert way.splitlines()[-1].endswith("in recurse: raise ValueError")


def test_of_an_error_of_cuda_the_first_sentence_is_said() -> None:
    """Torch adds the same advice to each: where to search, and how to compile torch."""

    def fail() -> None:
        said = "CUDA error: misaligned address\nSearch for `cudaErrorMisalignedAddress' in https://"
        raise RuntimeError(said)

    words = raised_text(caught(fail))
    assert words.startswith("raised RuntimeError: CUDA error: misaligned address (")
    assert "Search" not in words
