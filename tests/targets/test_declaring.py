from __future__ import annotations

from pathlib import Path

import public_functions
import pytest
from command_line import FEW
from workspaces import write

from conformance.__main__ import run
from conformance.targets.declaring import declaration_lines

STUDENT = """
import math
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, l, d = x.shape
        q, k, v = self.qkv(x).view(b, l, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, l, d))


def attend(q, k, v, mask=None):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def backwards(value, key, query, *, heads):
    assert heads == 4
    return attend(query, key, value)


def helper(x): ...


def _hidden(q, k, v): ...
"""
pytestmark = pytest.mark.usefixtures("warm_workers")


def said(target: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says of a target that declares nothing."""
    assert run(["check", target, *FEW]) == 2
    return capsys.readouterr().err


def test_a_file_without_candidates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its modules and functions are listed, and the command that is said works."""
    write(folder, {"student.py": STUDENT})
    text = said("student.py", capsys)
    assert text.startswith("conformance: student.py declares nothing: name what to check, or")
    _, layer, masked, swapped = text.split("  to check ")
    assert layer == "Attention, a torch.nn.Module: conformance check student.py:Attention\n"
    assert masked == "attend(q, k, v, mask): conformance check student.py:attend\n"
    assert swapped.endswith("(value, key, query, heads): conformance check student.py:backwards\n")
    assert run(["check", "student.py:Attention", *FEW]) == 0


def test_what_looks_like_an_attention_comes_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By names, inputs and code, whether the file imports or not; the rest is named."""
    helpers = "".join(
        f"class Part{i}(nn.Module):\n    def forward(self, x): ...\n" for i in range(6)
    )
    helpers += "def generate(model, tokens, count):\n    return model(tokens).softmax(-1)\n"
    text = STUDENT.replace("class Attention", f"{helpers}\n\nclass Attention")
    write(folder, {"whole.py": text, "lacking.py": f"import no_such_package\n{text}"})
    for file in ("whole.py", "lacking.py"):
        *lines, rest = said(file, capsys).splitlines()[1:]
        names = [line.rpartition(":")[2] for line in lines]
        assert set(names[:3]) == {"Attention", "attend", "backwards"}
        assert names[0] == "Attention"
        assert "more: Part3, Part4, Part5, generate" in rest


@pytest.mark.parametrize(
    ("target", "file"),
    [("student.py:backwards", "student.py"), ("student:backwards", "mine.py")],
)
def test_pasted_lines(
    target: str, file: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines that are printed for a function that cannot be read make it a candidate."""
    write(folder, {"student.py": STUDENT})
    text = said(target, capsys)
    assert " declares nothing, and what it computes cannot be read: " in text
    lines = [line.removeprefix(" " * 6) for line in text.split("\n") if line.startswith(" " * 6)]
    before = STUDENT if file == "student.py" else ""
    pasted = "\n".join(lines).replace("heads=…", "heads=4")
    write(folder, {file: f"{before}\n\n{pasted}\n"})
    assert run(["check", file, *FEW]) == 0
    assert "declared (core, " in capsys.readouterr().out


def test_modules_of_a_package(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a package it is the first module that defines anything."""
    write(folder, {"pkg/__init__.py": "", "pkg/a.py": "x = 3\n", "pkg/b.py": STUDENT})
    assert "conformance check pkg/b.py:Attention\n" in said("pkg", capsys)


@pytest.mark.parametrize("target", ["student.py:helper", "empty.py"])
def test_nothing_to_list(target: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A function of one argument, and a file of none, are refused in one line."""
    write(folder, {"student.py": STUDENT, "empty.py": "from math import hypot\n"})
    assert said(target, capsys).count("\n") == 1


PARTS = """
def rotate(xq, xk, freqs_cis): ...


def attend(x, w_q, w_k, w_v, w_o, heads): ...


def blocked(q, k, v, causal=False): ...
"""


def test_what_is_no_core_is_not_called_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables of positions are no values; what takes matrices can be checked."""
    write(folder, {"parts.py": PARTS})
    _, layer, core = said("parts.py", capsys).split("  to check ")
    assert layer.endswith("(x, w_q, w_k, w_v, w_o, heads): conformance check parts.py:attend\n")
    assert core == "blocked(q, k, v, causal): conformance check parts.py:blocked\n"


BUNDLE = """
from torch.nn.functional import linear


def attend(x, params, num_heads):
    q, k, v = (linear(x, params[name], params[f"{name}_bias"]) for name in "qkv")
    q, k, v = (one.unflatten(-1, (num_heads, -1)).transpose(1, 2) for one in (q, k, v))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return linear((weights @ v).transpose(1, 2).flatten(2), params["o"], params["o_bias"])
"""


def test_a_bundle_of_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines for a function whose weights nobody can guess work, once these are right."""
    write(folder, {"bundle.py": BUNDLE})
    text = said("bundle.py:attend", capsys)
    lines = [line.removeprefix(" " * 6) for line in text.split("\n") if line.startswith(" " * 6)]
    right = "\n".join(lines).replace("params=…", "params=vars(weights)")
    right = right.replace("num_heads=…", "num_heads=geometry.num_heads")
    write(folder, {"bundle.py": f"{BUNDLE}\n\n{right}\n"})
    command = text.splitlines()[-1].removeprefix("  and run: conformance ")
    assert run([*command.split(), "--only", "numerics.golden", *FEW]) == 0


SWITCHES = """
def attend(state, *, training, table):
    return (state @ state.mT / state.shape[-1] ** 0.5).softmax(-1) @ state


def kernel(query, key, value):
    return (query @ query.mT / query.shape[-1] ** 0.5).softmax(-1) @ query
"""


def test_switches_are_no_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs that act on nothing are not taken for keys and values, unless they have such names."""
    write(folder, {"idle.py": SWITCHES})
    assert "no answer changes with training and table" in said("idle.py:attend", capsys)
    assert run(["check", "idle.py:kernel", "--only", "numerics.golden", *FEW]) == 1
    assert "query-used-for-key-and-value" in capsys.readouterr().out


def test_a_function_of_a_package(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What returns its values attends to nothing; a package has a file for the lines."""
    write(folder, {"pack/__init__.py": "def attend(q, k, v):\n    return v\n"})
    text = said("pack:attend", capsys)
    assert "its answers depend on neither queries nor keys" in text
    assert "paste into pack/__init__.py:" in text


def test_a_function_in_c(capsys: pytest.CaptureFixture[str]) -> None:
    """Its docstring says what it takes: it is judged by the signature that it has."""
    assert run(["check", "torch.nn.functional:scaled_dot_product_attention", *FEW]) == 0
    assert "its parameters are those of torch_sdpa" in " ".join(capsys.readouterr().out.split())


def test_a_function_of_known_parameters_that_cannot_be_read() -> None:
    """The lines declare it by the signature that it has, and name the file to check."""
    lines = declaration_lines(public_functions.dot_product_attention, "kernels.py:attend")
    assert 'declared = conformance.core(attend, signature="jax")' in lines
    assert "conformance check kernels.py:declared" in lines


def test_learned_arguments_are_promised_by_their_names() -> None:
    """Calls give what has the name of a learned argument: no value is asked for."""
    words = "query key value query_norm_weight key_norm_weight temperature".split()
    normed = eval(f"lambda {', '.join(words)}: query")  # noqa: S307 (parameters without types)
    normed.__name__ = "normed"
    lines = declaration_lines(normed, "kernels.py:normed")
    assert 'features=["norm_weight", "temperature"], semantics=conformance.Semantics(' in lines
    assert "value, *, query_norm_weight, key_norm_weight, temperature):" in lines
    assert "…" not in lines
