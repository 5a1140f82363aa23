"""What is no attention, or misbehaves, is answered with one sentence and the right exit code."""

from __future__ import annotations

import pytest
from _paths import CHECKOUT

from conformance.__main__ import run

pytestmark = pytest.mark.usefixtures("warm_workers")

HOSTILE = CHECKOUT / "tests" / "support" / "hostile_functions.py"


def identified(name: str, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """The exit code and all that was printed."""
    code = run(["identify", f"{HOSTILE}:{name}", *options])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert "\x1b" not in out + err
    return code, out + err


@pytest.mark.one_in(11)
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("not_callable", 2, "is 7, which is not callable"),
        ("nothing_of_the_kind", 2, "has no attribute 'nothing_of_the_kind'"),
        ("NeedsArguments", 2, "needs flavour to be constructed"),
        ("five_arguments", 1, "needs 5 arguments (a, b, c, d, e)"),
        ("one_argument", 1, "takes one input"),
        ("returns_none", 1, "returned None, not a tensor"),
        ("returns_text", 1, "returned a str, not a tensor"),
        ("returns_integers", 1, "returned a tuple of 2, not a tensor"),
        ("returns_nan", 1, "its answer holds NaN"),
        ("always_raises", 1, "raised RuntimeError: not today"),
        ("exits", 1, "raised SystemExit: 3"),
        ("broken_inside", 1, "raised AttributeError: module 'math' has no attribute 'debug'"),
        ("Lazy", 1, "q_proj has no weights yet (it is lazy): call the module once"),
    ],
)
def test_one_sentence(name: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing can be identified: the reason is said, with 2 where the target itself is wrong."""
    exit_status, text = identified(name, capsys)
    assert (exit_status, said in text) == (code, True), text


def test_a_path_that_is_too_long_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """What no file can be called is not there, as everywhere else."""
    assert run(["identify", f"{'x' * 300}.py:attend"]) == 2
    assert "there is no file or folder xxx" in capsys.readouterr().err


def test_a_hang_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """What gives no answer is stopped, and the report says while doing what."""
    code, text = identified("hangs", capsys, "--timeout", "2")
    assert code == 1
    assert "gave no answer within 2 s and was stopped (while probing how it is called)" in text


def test_what_is_printed_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A correct function that talks is identified as any other."""
    code, text = identified("prints", capsys)
    assert code == 0
    assert "attending" not in text


def test_changed_inputs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A function that scales the caller's queries is found out, and read by copies."""
    code, text = identified("modifies", capsys)
    assert code == 0
    assert "changes query in place" in text


def test_a_module_without_projections_is_a_core(capsys: pytest.CaptureFixture[str]) -> None:
    """A module that has no matrices is attention proper."""
    code, text = identified("NoProjections", capsys)
    assert code == 0
    assert "core (attention proper, no projections)" in text
