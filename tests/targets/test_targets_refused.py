from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import FEW
from workspaces import KERNEL, write

from conformance.__main__ import run
from conformance.errors import TO_CHECK, UsageError
from conformance.identification.opening import resolve
from conformance.targets.resolving import load, object_of

pytestmark = pytest.mark.usefixtures("warm_workers")


def refusal(target: str) -> str:
    """The sentence with which a target is refused."""
    with pytest.raises(UsageError) as caught:
        resolve([target])
    return str(caught.value)


REFUSED: dict[str, tuple[dict[str, str], str, str]] = {
    "no file": (
        {"attn.py": KERNEL},
        "atn.py",
        "there is no file or folder atn.py; did you mean 'attn.py'?",
    ),
    "no file with an attention": (
        {},
        "nowhere.py:model#1",
        "there is no file or folder nowhere.py",
    ),
    "no module": ({}, "nowhere.attn", "there is no module 'nowhere'"),
    "no submodule": (
        {"pkg/__init__.py": "", "pkg/attn.py": KERNEL},
        "pkg.atn:my_kernel",
        "there is no module 'pkg.atn'; did you mean 'attn'?",
    ),
    "a file's name taken for a module": (
        {"attn.py": KERNEL},
        "attn.p",
        "there is no module 'attn.p'",
    ),
    "no object": (
        {"attn.py": KERNEL},
        "attn.py:my_kernl",
        "attn.py has no attribute 'my_kernl'; did you mean 'my_kernel'?",
    ),
    "missing import": (
        {"attn.py": "import torch\n\nimport torhc\n"},
        "attn.py",
        "attn.py cannot be imported: ModuleNotFoundError: No module named 'torhc' (attn.py:3)",
    ),
    "error in a submodule": (
        {"pkg/__init__.py": "", "pkg/attn.py": "\n\n1 / 0\n"},
        "pkg",
        "pkg.attn cannot be imported: ZeroDivisionError: division by zero (pkg/attn.py:3)",
    ),
    "error in a library": (
        {"attn.py": "import torch\ntorch.nn.Linear('x', 2)\n"},
        "attn.py",
        "(attn.py:2)",
    ),
    "syntax": (
        {"attn.py": "def f(:\n"},
        "attn.py",
        "attn.py cannot be imported: SyntaxError: invalid syntax (attn.py:1)",
    ),
    "relative import outside a package": (
        {"my-kernels/parts.py": "", "my-kernels/attn.py": "from . import parts\n"},
        "my-kernels/attn.py",
        "parent package (my-kernels/attn.py:1); add an __init__.py to its folder, or name it",
    ),
    "exit": (
        {"attn.py": "import sys\nsys.exit('usage: attn')\n"},
        "attn.py",
        "attn.py cannot be imported: SystemExit: usage: attn (attn.py:2)",
    ),
    "a message that would clear the screen": (
        {"attn.py": "raise OSError('\x1b[2Jgone\x9b')"},
        "attn.py",
        r"attn.py cannot be imported: OSError: \x1b[2Jgone\x9b (attn.py:1)",
    ),
    "not callable": ({"attn.py": "x = 3"}, "attn.py:x", "attn.py:x is 3, which is not callable"),
    "not declared": (
        {"attn.py": "def attend(query, key, value): ..."},
        "attn.py:attend",
        "attn.py:attend declares nothing, and what it computes cannot be read: ",
    ),
    "makes something else": (
        {"attn.py": "def make(): return 7"},
        "attn.py:make",
        "attn.py:make gives 7, which is not a declared candidate",
    ),
    "maker raises": (
        {"attn.py": "def make():\n    raise OSError('no disk')"},
        "attn.py:make",
        "attn.py:make() raised: OSError: no disk (attn.py:2)",
    ),
    "maker of a part raises": (
        {"attn.py": "def make():\n    raise OSError('no disk')"},
        "attn.py:make.layers.0",
        "attn.py:make.layers.0 cannot be read: OSError: no disk (attn.py:2)",
    ),
    "maker of the part of one attention raises": (
        {"attn.py": "def make():\n    raise OSError('no disk')"},
        "attn.py:make.layers.0#1",
        "attn.py:make.layers.0 cannot be read: OSError: no disk (attn.py:2)",
    ),
    "nothing declared": (
        {"attn.py": ""},
        "attn.py",
        "attn.py declares no candidate and defines nothing that",
    ),
    "unknown mask form": (
        {"attn.py": "import conformance\nconformance.core(masks=['kep'])\n"},
        "attn.py",
        "attn.py:2: an entry of masks is 'kep', which is unknown; did you mean 'keep'?",
    ),
    "unknown promise": (
        {"attn.py": "import conformance\nconformance.core(feature=['scale'])\n"},
        "attn.py",
        "attn.py:2: conformance.core got an unknown argument 'feature'; did you mean 'features'?",
    ),
    "missing keyword": (
        {
            "attn.py": """
            import conformance
            @conformance.core(masks=['keep'])
            def f(query, key, value): ...
            """
        },
        "attn.py",
        "does not take the keyword 'keep' that its declaration promises",
    ),
    "a forward without a promised keyword": (
        {
            "attn.py": """
            import conformance
            @conformance.layer(masks=['keep'])
            def f(geometry, weights):
                return lambda query, key, value: value
            """
        },
        "attn.py",
        "does not take the keyword 'keep' that its declaration promises",
    ),
    "a forward of two inputs": (
        {
            "attn.py": """
            import conformance
            @conformance.layer()
            def f(geometry, weights):
                def forward(x, context): ...
                return forward
            """
        },
        "attn.py",
        "is called with 3 positional inputs (query, key, value)",
    ),
    "a builder that makes nothing": (
        {
            "attn.py": """
            import conformance
            @conformance.layer()
            def f(geometry, weights): ...
            """
        },
        "attn.py",
        "f (attn.py:f) made a NoneType instead of a forward function",
    ),
    "a builder without arguments": (
        {
            "attn.py": """
            import conformance
            @conformance.layer()
            def f(): ...
            """
        },
        "attn.py",
        "f() is declared as a layer and must take (geometry, weights)",
    ),
    "a bad list": (
        {"attn.py": "__conformance__ = 'my_kernel'"},
        "attn.py",
        "__conformance__ of attn.py is 'my_kernel': give a list of names or candidates",
    ),
    "a listed name that is not there": (
        {"attn.py": f"{KERNEL}\n__conformance__ = ['my_kernl']"},
        "attn.py",
        "attn.py has no attribute 'my_kernl'; did you mean 'my_kernel'?",
    ),
    "an empty graph": (
        {"model.onnx": ""},
        "model.onnx",
        "model.onnx is empty: export the graph again",
    ),
    "a device": ({"zero.py": KERNEL}, "/dev/zero", "/dev/zero is not a Python file"),
    "a number that is none": (
        {"attn.py": "import conformance\nconformance.Semantics(scale=float('nan'))\n"},
        "attn.py",
        "scale is nan, not a finite number or a rule (attn.py:2)",
    ),
    "another file": ({"notes.txt": ""}, "notes.txt", "notes.txt is not a Python file"),
    "nothing": ({}, "", "'' is not a target"),
    "no object after the colon": ({"attn.py": KERNEL}, "attn.py:", "'attn.py:' is not a target"),
    "no name": (
        {},
        "my-attention",
        "there is no file, module or registered candidate 'my-attention'",
    ),
}


@pytest.mark.parametrize(("files", "target", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(workspace: Path, files: dict[str, str], target: str, sentence: str) -> None:
    """Each bad target is refused in one sentence that names what and where."""
    write(workspace, files)
    said = refusal(target)
    assert sentence in said
    assert "\n" not in said.partition(TO_CHECK)[0]
    assert "Traceback" not in said


def test_a_name_that_another_package_took(workspace: Path) -> None:
    """A package whose name is already imported from elsewhere is refused, not mixed up."""
    write(workspace, {"one/pkg/__init__.py": KERNEL, "two/pkg/__init__.py": KERNEL})
    assert [candidate.name for candidate in resolve(["one/pkg"])] == ["my_kernel"]
    assert "check the two in separate runs" in refusal("two/pkg")


MISBEHAVED = {
    "an exception that does not print": (
        "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd\n",
        "attn.py",
        "attn.py cannot be imported: Odd (attn.py:3)",
    ),
    "an object that does not print": (
        "class Odd:\n    def __repr__(self): raise ValueError\nodd = Odd()\n",
        "attn.py:odd",
        "attn.py:odd is a Odd, which is not callable",
    ),
    "an answer that does not print": (
        "class Odd:\n    def __repr__(self): raise ValueError\ndef odd(): return Odd()\n",
        "attn.py:odd",
        "attn.py:odd gives a Odd, which is not",
    ),
    "a signature that is none": (
        "def odd(): return 3\nodd.__signature__ = 5\n",
        "attn.py:odd",
        "attn.py:odd gives 3, which is not",
    ),
    "a home of nobody": ("", "~nouser/x.py", "~nouser/x.py begins with the home of nobody"),
    "a graph in a home of nobody": ("", "~nouser/x.onnx", "~nouser/x.onnx begins with the home"),
    "an attention of no file": ("", "x.onnx#1", "there is no file or folder x.onnx"),
}


@pytest.mark.parametrize(("text", "target", "sentence"), MISBEHAVED.values(), ids=MISBEHAVED)
def test_whatever_a_users_code_does_is_a_sentence(
    text: str, target: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that misbehaves even where it is only read or printed is the user's, not a failure."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attn.py").write_text(text)
    assert refusal(target).startswith(sentence)


def test_a_module_that_refuses_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module whose ``__getattr__`` raises is the user's mistake."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unread").mkdir()
    text = "__conformance__ = ['sub']\ndef __getattr__(name):\n    raise ZeroDivisionError\n"
    (tmp_path / "unread" / "__init__.py").write_text(text)
    (tmp_path / "unread" / "sub.py").write_text("")
    assert "ZeroDivisionError" in refusal("unread")


def test_a_link_that_leads_nowhere_is_not_its_own_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name that was asked for is no suggestion."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").symlink_to("gone.py")
    assert refusal("loop.py") == "there is no file or folder loop.py"


UNMADE = """
from torch import nn


class Backed(nn.Module):
    def __init__(self, dim, num_heads, backend):
        super().__init__()
        self.attention = {7: nn.MultiheadAttention}[backend](dim, num_heads)


class Configured(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.kind = {"my-eager": nn.MultiheadAttention}[config.kind]
        self.attention = self.kind(config.n_embd, config.n_head)
"""


@pytest.mark.parametrize(
    ("name", "call", "guess", "right"),
    [
        ("Backed", "Backed(dim=24, num_heads=3, backend=24)", "backend=24", "backend=7"),
        (
            "Configured",
            "Configured(config=SimpleNamespace(kind=1))",
            "kind=1",
            "kind='my-eager', n_embd=24, n_head=3",
        ),
    ],
)
def test_a_class_that_cannot_be_constructed(
    folder: Path, name: str, call: str, guess: str, right: str
) -> None:
    """The refusal ends in a file that constructs it, once the value that was guessed is right."""
    write(folder, {"model.py": UNMADE})
    said, place, *lines, command = refusal(f"model.py:{name}").splitlines()
    assert said.startswith(name)
    assert place.startswith("  paste into a new file made.py, with the right ")
    assert command == "  and run: conformance check made.py:made"
    pasted = "\n".join(line.removeprefix("      ") for line in lines)
    assert f"return {call}" in pasted
    write(folder, {"made.py": pasted.replace(guess, right)})
    made = object_of("made.py:made")()
    assert type(made).__name__ == name


def test_a_part_of_a_class(folder: Path) -> None:
    """A class on the way to a part is constructed; what lacks a part is named whole."""
    layer = "self.inner = nn.ModuleList([nn.Linear(dim, dim)])"
    text = "from torch import nn\nclass Whole(nn.Module):\n    def __init__(self, dim):\n"
    forward = "    def forward(self, x): ...\n"
    write(folder, {"model.py": f"{text}        super().__init__()\n        {layer}\n{forward}"})
    part = object_of("model.py:Whole.inner.0")
    assert isinstance(part, torch.nn.Linear)
    said = refusal("model.py:Whole.iner.0")
    assert said == "model.py:Whole has no attribute 'iner'; did you mean 'inner'?"


ADDITIVE = """
import torch
from torch import nn


class Additive(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.wa, self.ua = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.va(torch.tanh(self.wa(query) + self.ua(keys))).squeeze(2).unsqueeze(1)
        weights = scores.softmax(-1)
        return torch.bmm(weights, keys), weights
"""


def test_additive_attention(folder: Path) -> None:
    """What no clause speaks of is refused in a sentence that says so, also where it is found."""
    write(folder, {"model.py": ADDITIVE})
    assert "is no dot-product attention: " in refusal("model.py:Additive")


ONE_QUERY = """
import torch
from torch import nn


class Luong(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.attn = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden, encoder_outputs):
        scores = (hidden.unsqueeze(1) * self.attn(encoder_outputs)).sum(2)
        return torch.bmm(scores.softmax(1).unsqueeze(1), encoder_outputs).squeeze(1)
"""


def test_a_query_without_an_axis_of_lengths(folder: Path) -> None:
    """A module that takes one query is told so, beside the error of the calls that it refused."""
    write(folder, {"model.py": ONE_QUERY})
    assert "it takes a query [B, E], of a single token" in refusal("model.py:Luong")


LACKING = """
from torch import nn
import no_such_package


class Unmade(nn.Module):
    def __init__(self, dim, num_heads, norm_shape):
        super().__init__()
        self.attention = no_such_package.Attention(dim, num_heads)


class Silent(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        return no_such_package.attend(self.q(x), self.k(x), self.v(x))
"""


def test_a_class_that_takes_nothing_and_raises(folder: Path) -> None:
    """No argument would mend it, so none is offered: the error and its line are all there is."""
    text = (
        "from torch import nn\nclass Raises(nn.Module):\n    def __init__(self):\n        1 / 0\n"
    )
    write(folder, {"model.py": text})
    said = refusal("model.py:Raises")
    assert said.endswith("Raises() raised ZeroDivisionError: division by zero (model.py:4)")


@pytest.mark.parametrize("name", ["Unmade", "Silent"])
def test_a_missing_package_is_what_to_mend(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No lines are offered where a package is missing, since no value in them would help."""
    write(folder, {"model.py": LACKING})
    assert run(["check", f"model.py:{name}", *FEW]) == 2
    said = capsys.readouterr().err
    assert "No module named 'no_such_package' (model.py:3)" in said
    assert "paste into" not in said
    assert "say no size" not in said


STREAMS = """
import torch
from torch import nn


class Streams(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, first, second, third, table):
        inputs = zip((self.q, self.k, self.v), (first, second, third))
        q, k, v = (p(t).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p, t in inputs)
        answer = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.out(answer.transpose(1, 2).flatten(2)) + table["offset"]
"""


def test_a_module_that_needs_a_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the command prints can be pasted into a file, once the value is right."""
    write(folder, {"model.py": STREAMS})
    assert run(["check", "model.py:Streams", *FEW]) == 2
    said, place, *lines, command = capsys.readouterr().err.splitlines()
    assert "needs 'table', which the harness knows nothing of" in said
    assert place == "  paste into a new file layer.py:"
    pasted = "\n".join(line.removeprefix("      ") for line in lines)
    write(folder, {"layer.py": pasted.replace("table=None", "table={'offset': 0.0}")})
    assert run([*command.removeprefix("  and run: conformance ").split(), *FEW]) == 0


OF_WINDOWS = """
from torch import nn


class Windows(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, batch):
        assert batch["x"].shape[1] == 9, "windows of nine"
        return self.attention(*[batch["x"]] * 3)[0]
"""


def test_a_module_that_answers_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The refusal ends in a file with the call and the sizes that it may lack."""
    write(folder, {"model.py": OF_WINDOWS})
    assert run(["check", "model.py:Windows", *FEW]) == 2
    said, _, place, *lines, command = capsys.readouterr().err.splitlines()
    assert said.startswith("conformance: no call of Windows (model.py:Windows) succeeds: each of ")
    assert place.startswith("  paste into a new file layer.py, with a call that it answers, and ")
    pasted = "\n".join(line.removeprefix("      ") for line in lines)
    right = pasted.replace("return module(x)", "return module({'x': x})")
    sizes = "geometry={'query_length': 9, 'key_length': 9}"
    write(folder, {"layer.py": right.replace("call=call", f"call=call, {sizes}")})
    assert run([*command.removeprefix("  and run: conformance ").split(), *FEW]) == 0


NO_PARAMETERS = """
from torch import nn


class Odd(nn.Module):
    def forward(self, q, v, k):
        return (q @ k.mT).sin().cumsum(-2).square() @ v.flip(-1)
"""


def test_a_module_of_heads_that_cannot_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One without parameters is judged by the lines that the refusal ends with."""
    write(folder, {"model.py": NO_PARAMETERS})
    assert run(["check", "model.py:Odd", *FEW]) == 2
    said, place, *lines, command = capsys.readouterr().err.splitlines()
    assert "has no matrices that could be query, key and value projections" in said
    assert place == "  paste into a new file core.py:"
    pasted = "\n".join(line.removeprefix("      ") for line in lines)
    assert "attention(query, value, key)" in pasted or "q=query" in pasted
    write(folder, {"core.py": pasted})
    assert command == "  and run: conformance check core.py:core"
    candidate = object_of("core.py:core")
    query, key, value = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 6)
    assert candidate.function(query, key, value).shape == (1, 2, 3, 6)


NO_MODULE = """
class Heads:
    def __init__(self, scale):
        self.scale = scale

    def forward(self, q, k, v):
        return (q @ k.mT * q.shape[-1] ** self.scale).softmax(-1) @ v
"""


def test_a_class_of_no_modules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A function that calls an instance is judged, once its arguments are right."""
    write(folder, {"plain.py": NO_MODULE})
    assert run(["check", "plain.py:Heads", *FEW]) == 2
    said, place, *lines, command = capsys.readouterr().err.splitlines()
    assert said == "conformance: plain.py:Heads is a class, but no torch.nn.Module"
    assert place == "  paste into a new file attend.py, with the right arguments:"
    pasted = "\n".join(line.removeprefix("      ") for line in lines)
    write(folder, {"attend.py": pasted.replace("scale=…", "scale=-0.5")})
    assert run([*command.removeprefix("  and run: conformance ").split(), *FEW]) == 0


OF_NUMPY = """
import numpy as np


class Heads:
    def __init__(self, width, heads):
        self.heads = heads
        self.q, self.k, self.v, self.o = np.random.default_rng(0).normal(size=(4, width, width))

    def __call__(self, x):
        rows = x.shape[:2]
        q, k, v = (
            (x @ one).reshape(*rows, self.heads, -1).transpose(0, 2, 1, 3)
            for one in (self.q, self.k, self.v)
        )
        scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return mixed.transpose(0, 2, 1, 3).reshape(*rows, -1) @ self.o
"""


def test_a_class_of_arrays_with_weights_of_its_own(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layer in NumPy is judged with its weights, by the lines that are printed for it."""
    write(folder, {"plain.py": OF_NUMPY})
    assert run(["check", "plain.py", *FEW]) == 2
    assert "Heads, a class: conformance check plain.py:Heads" in capsys.readouterr().err
    assert run(["check", "plain.py:Heads", *FEW]) == 2
    _, place, *lines, command = capsys.readouterr().err.splitlines()
    assert place.startswith("  paste into a new file layer.py, with the right q, k, v, o and")
    pasted = "\n".join(line.removeprefix("      ") for line in lines)
    own = "import torch\nnames = 'qkvo'\nq, k, v, o = ("
    own += "torch.from_numpy(vars(attention)[one].T.copy()) for one in names)"
    right = pasted.replace("q, k, v, o = …", own).replace("num_heads=…", "num_heads=3")
    write(folder, {"layer.py": right.replace("width=…, heads=…", "12, 3")})
    assert run([*command.removeprefix("  and run: conformance ").split(), *FEW]) == 0


ONE_CUBE = """
import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Parameter(torch.randn(4, 4, 4, 16) / 4)

    def forward(self, x):
        q, k, v, out = self.m.flatten(1, 2)
        q, k, v = ((x @ w.T).unflatten(-1, (4, 4)).transpose(1, 2) for w in (q, k, v))
        scores = (q[..., None, :] * k[..., None, :, :]).sum(-1) / 2
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights @ v).transpose(1, 2).flatten(2) @ out.T
"""


def test_a_module_whose_matrices_cannot_be_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is judged with its own weights by the lines below, once these say which they are."""
    write(folder, {"model.py": ONE_CUBE})
    assert run(["check", "model.py:Odd", *FEW]) == 2
    _, place, *lines, command = capsys.readouterr().err.splitlines()
    assert place == "  paste into a new file layer.py, with the right q, k, v, o and num_heads:"
    pasted = "\n".join(line.removeprefix("      ") for line in lines)
    right = pasted.replace("v, o = …", "v, o = attention.m.detach().flatten(1, 2)")
    write(folder, {"layer.py": right.replace("num_heads=…", "num_heads=4")})
    assert run([*command.removeprefix("  and run: conformance ").split(), *FEW]) == 0


def test_loading_what_a_target_names(folder: Path) -> None:
    """A path is looked for beside the file that calls first, then in the working folder."""
    write(
        folder,
        {
            "attn.py": "size = 1",
            "sub/attn.py": "size = 2",
            "other.py": "size = 3",
            "sub/caller.py": "import conformance\nnear = conformance.load('attn.py:size')\n"
            "far = conformance.load('other.py:size')\n",
        },
    )
    assert (object_of("sub/caller.py:near"), object_of("sub/caller.py:far")) == (2, 3)
    with pytest.raises(UsageError, match="names no object"):
        load("sub")


CHOOSER = """
from torch import nn


class Chooser(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50)

    def forward(self, input_ids, state):
        x = self.tokens(input_ids) + state["added"]
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(x).argmax(-1)
"""


def test_a_model_that_no_call_gets_an_answer_from(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody takes a model of token ids for a layer; its lines work with a forward that answers."""
    write(folder, {"chooser.py": CHOOSER})
    assert run(["check", "chooser.py:Chooser", *FEW]) == 2
    said, place, *lines = capsys.readouterr().err.splitlines()
    assert "cannot be judged as a whole model: no call of it is answered" in said
    assert place.startswith("  paste into a new file model.py, with a forward that takes tensors")
    pasted = "\n".join(line.removeprefix("      ") for line in lines[:-1])
    own = "x = self.model.tokens(input_ids)\n        return x + self.model.attention(x, x, x)[0]"
    right = pasted.replace("input_ids, state):", "input_ids):")
    write(folder, {"model.py": right.replace("return self.model(input_ids, state)", own)})
    command = lines[-1].removeprefix("  and run: conformance ").split()
    assert run([*command, "--only", "model.*", *FEW]) == 0
