from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from workspaces import write

from conformance.errors import UsageError
from conformance.targets.notebooks import cells_of
from conformance.targets.partial_import import Part, import_for
from conformance.targets.resolving import Undeclared, find
from conformance.targets.target_strings import why_foreign


def notebook(*cells: str | tuple[str, str]) -> str:
    """A notebook of code cells; a pair is a cell of another kind."""
    entries = [("code", cell) if isinstance(cell, str) else cell for cell in cells]
    listed = [{"cell_type": kind, "metadata": {}, "source": [text]} for kind, text in entries]
    return json.dumps({"cells": listed, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


STUDY = notebook(
    ("markdown", "# attention"),
    "%pip install nothing\n!ls\nimport math, no_such_package\nfrom json import loads\nsize = 24",
    "open('ran', 'w').close()\ndata = open('ran', 'w').close()",
    "class Plain:\n    pi = math.pi * size\n\n\ndef late():\n    return data",
    "%%bash\necho it is no Python",
    "class Optional:\n    kind: no_such_package.Kind = None",
    "class Based(no_such_package.Base): ...",
    "made = late()\nshort = lambda x: x + size",
    "if loads:\n    def branch(): ...\ndef worse(x=1 / 0): ...",
    "this is no Python",
    "def into(kind):\n    return lambda one: setattr(kind, one.__name__, one)",
    "@into(Plain)\ndef added(self): ...",
    "class Broken:\n    size = (1",
)


def part_of(folder: Path, name: str | None, file: str = "study.ipynb") -> Part:
    """The module that has a name, with what is said of it."""
    return import_for(folder / file, name)


def refused(folder: Path, name: str | None, file: str = "study.ipynb") -> str:
    """The sentence with which a name is refused."""
    with pytest.raises(UsageError) as caught:
        part_of(folder, name, file)
    return str(caught.value)


def test_definitions_of_a_notebook(folder: Path) -> None:
    """Imports, definitions and plain values are there; nothing else has been run."""
    write(folder, {"study.ipynb": STUDY})
    assert part_of(folder, "Plain").module.Plain.pi > 75
    assert part_of(folder, "short").module.short(1) == 25
    assert part_of(folder, "branch").notes == ()
    assert part_of(folder, "Plain").module.Plain.added  # by a decorator, in a later cell
    assert not (folder / "ran").exists()


def test_what_a_definition_lacks(folder: Path) -> None:
    """What is missing is told of whom it concerns, by cell and line, and of nobody else."""
    write(folder, {"study.ipynb": STUDY})
    assert part_of(folder, "Plain").notes == ()
    (said,) = part_of(folder, "late").notes
    assert said.startswith("data cannot be defined: EffectError: it writes ran, which is not done")
    assert said.endswith("(study.ipynb, cell 3, line 2)")
    (said,) = part_of(folder, "Optional").notes
    assert said.startswith("no_such_package cannot be imported: ModuleNotFoundError")
    assert said.endswith(
        "(study.ipynb, cell 2, line 3); install what has it (often pip install no_such_package, "
        "with --no-deps if it asks for older packages)"
    )
    assert any("cell 10, line 1 is not run" in said for said in part_of(folder, None).notes)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("worse", "ZeroDivisionError: division by zero (study.ipynb, cell 9, line 3)"),
        ("Based", "No module named 'no_such_package' (study.ipynb, cell 2, line 3)"),
        ("Plane", "study.ipynb has no attribute 'Plane'; did you mean 'Plain'?"),
        ("Broken", "Broken cannot be defined: study.ipynb, cell 13, line 2 is not run, being no"),
    ],
)
def test_a_name_that_is_not_there(folder: Path, name: str, sentence: str) -> None:
    """It is refused with the cell and the line where it fails."""
    write(folder, {"study.ipynb": STUDY})
    assert sentence in refused(folder, name)


VALUES = notebook(
    "import json, math, os\nfrom dataclasses import dataclass",
    "heads = 4\nwidth = heads * int(math.sqrt(64))\nmath.seed(heads)",
    "@dataclass\nclass Config:\n    width: int = width\n\nconfig = Config()\nconfig.heads = 2",
    "sizes = dict(one=1)\nsizes.update(two=2)\nwith open('in.json') as file:\n"
    "    read = json.load(file)",
    "if os.environ.get('NEVER'):\n    device = 'cuda'\nelse:\n    device = str('cpu')",
    "made = [json.loads(str(n)) for n in range(3)]\nlate = list()",
    "for n in range(3):\n    late.append(n)",
    "x = open('ran', 'w').close()\nout = os.system('touch ran')\nfolder = os.mkdir('ran')",
    "def forward(x):\n    out = x\n    return out, config, sizes, read, device, made",
    "class Above:\n    heads = heads",
)


def test_values_that_definitions_need(folder: Path) -> None:
    """What gives a value to a name that the target uses is run in order, however it makes it.

    A parameter of the target is no name of the notebook's.
    """
    write(folder, {"study.ipynb": VALUES, "in.json": "[7]"})
    part = part_of(folder, "forward")
    _, config, sizes, read, device, made = part.module.forward(1)
    assert (config.width, config.heads, sizes, read) == (32, 2, {"one": 1, "two": 2}, [7])
    assert (device, made, part.notes) == ("cpu", [0, 1, 2], ())
    assert part_of(folder, "Above").module.Above.heads == 4
    assert not (folder / "ran").exists()


def test_the_first_cause_is_told(folder: Path) -> None:
    """Of a value made of one that is not there the sentence says why that is not."""
    cells = ["data = open('missing.txt')", "size = len(data)", "half = size // 2"]
    write(folder, {"study.ipynb": notebook(*cells)})
    assert "missing.txt" in refused(folder, "half")
    assert refused(folder, "half").endswith("(study.ipynb, cell 1, line 1)")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x", "it writes ran, which is not done for a value of a notebook"),
        ("out", "it starts a process, which is not done for a value of a notebook"),
        ("folder", "it changes ran, which is not done for a value of a notebook"),
        ("late", "late is made in study.ipynb, cell 7, line 1 by a loop, which is not run"),
    ],
)
def test_values_that_are_not_made(folder: Path, name: str, why: str) -> None:
    """What leaves something behind, or may be a training, is not done: the builder shown does."""
    write(folder, {"study.ipynb": VALUES})
    sentence, _, *pasted, last = refused(folder, name).splitlines()
    assert why in sentence
    assert "study.ipynb, cell " in sentence
    assert not (folder / "ran").exists()
    assert last == f"  and run: conformance check study.ipynb:make_{name}"
    cells = [cell.text for cell in cells_of(folder / "study.ipynb")]
    cells.append("\n".join(line[6:] for line in pasted))
    write(folder, {"more.ipynb": notebook(*cells)})
    made = getattr(part_of(folder, f"make_{name}", "more.ipynb").module, f"make_{name}")()
    assert made == [0, 1, 2] if name == "late" else (folder / "ran").exists()


def test_a_library_that_is_set(folder: Path) -> None:
    """A seed that plain values say is set where the target uses the library, before it does."""
    cells = ["import random\nseed = 7", "random.seed(seed)", "drawn = random.random()"]
    write(folder, {"study.ipynb": notebook(*cells)})
    first = part_of(folder, "drawn").module.drawn
    random.seed(7)
    assert first == random.random()  # noqa: S311


def test_what_a_declaration_needs(folder: Path) -> None:
    """A notebook alone gives its declared candidates, made with values that calls give."""
    cells = [
        "import conformance\nfrom conformance import core as promised",
        "names = list(['scale'])\nother = open('ran', 'w').close()",
        "@promised(features=names)\ndef one(q, k, v, *, scale=None): ...",
        "two = promised()(lambda q, k, v: v)",
    ]
    write(folder, {"study.ipynb": notebook(*cells)})
    assert [getattr(entry, "name", "") for entry in find("study.ipynb")] == ["one", "<lambda>"]
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}', "\x00"]
)
def test_what_is_no_notebook(folder: Path, text: str) -> None:
    """A file that cannot be read as a notebook is refused in one sentence."""
    write(folder, {"study.ipynb": text})
    assert refused(folder, "x") == (
        "study.ipynb is no notebook that can be read: save it again with Jupyter"
    )


def test_another_language(folder: Path) -> None:
    """A notebook in another language is refused."""
    data = json.loads(notebook("x <- 3"))
    data["metadata"] = {"kernelspec": {"language": "R"}}
    write(folder, {"study.ipynb": json.dumps(data)})
    assert refused(folder, "x") == "study.ipynb is a notebook in R, not in Python"


def test_an_old_notebook(folder: Path) -> None:
    """The cells of format 3 are found."""
    cells = [{"cell_type": "code", "input": ["three = 3\n"]}]
    write(folder, {"study.ipynb": json.dumps({"worksheets": [{"cells": cells}]})})
    assert part_of(folder, "three").module.three == 3


BROKEN = """
import math
import no_such_package
from no_such_package.deep import Base

data = open("missing.txt")


class Good:
    pi = math.pi


class Bad(Base): ...


@no_such_package.jit
def kernel(): ...
"""


def test_what_imports_alone_in_a_file(folder: Path) -> None:
    """A class whose imports are there is taken although another import fails, and that is said."""
    write(folder, {"model.py": BROKEN})
    part = part_of(folder, "Good", "model.py")
    assert part.module.Good.pi > 3
    (said,) = part.notes
    assert "No module named 'no_such_package' (model.py:3)" in said
    assert said.endswith("; Good is judged without what failed")


ITSELF = """
import sys
import no_such_package
book = sys.modules[__name__]
class Inner:
    width = 3
class Outer:
    def width(self):
        return book.Inner.width
"""


def test_attributes_of_the_module_itself_are_needed(folder: Path) -> None:
    """A file that calls itself d2l reads its names as attributes."""
    write(folder, {"book.py": ITSELF})
    assert part_of(folder, "Outer", "book.py").module.Outer().width() == 3


TRAINS = """\
size = 3
class Loss:
    def backward(self): raise SystemExit
class Small:
    width = size
def train():
    while True:
        Loss().backward()
"""


@pytest.mark.parametrize(
    ("last", "trains"),
    [
        ("for step in range(9):\n    Loss().backward()", True),
        ("train()", True),
        ("if __name__ == '__main__':\n    train()", False),
    ],
)
def test_a_script_that_trains(folder: Path, last: str, *, trains: bool) -> None:
    """A class of one is taken without its training, which is said; a guarded one is imported."""
    write(folder, {"script.py": f"{TRAINS}{last}"})
    part = part_of(folder, "Small", "script.py")
    assert part.module.Small.width == 3
    assert part.notes == (
        ("script.py trains when it is imported; Small is judged without that",) * trains
    )


@pytest.mark.parametrize("name", ["Bad", "kernel", "absent", None])
def test_what_does_not_import_alone(folder: Path, name: str | None) -> None:
    """The missing package is named with its line, and the command that is shown works."""
    write(folder, {"model.py": BROKEN})
    said, *lines = refused(folder, name, "model.py").splitlines()
    assert "No module named 'no_such_package' (model.py:3)" in said
    assert lines == ["  without what fails: conformance check model.py:Good"]
    assert part_of(folder, "Good", "model.py").module.Good


def test_a_package_that_does_not_import(folder: Path) -> None:
    """A file is taken although the ``__init__`` of its package fails."""
    files = {
        "broken_pkg/__init__.py": "import no_such_package",
        "broken_pkg/two.py": "two = 2",
        "broken_pkg/sub/__init__.py": "",
        "broken_pkg/sub/mine.py": "from ..two import two\nfrom broken_pkg.two import two as also",
    }
    write(folder, files)
    part = part_of(folder, "also", "broken_pkg/sub/mine.py")
    assert part.module.also == 2
    assert "No module named 'no_such_package' (broken_pkg/__init__.py:1)" in part.notes[0]


def test_a_dotted_name_of_what_does_not_import(folder: Path) -> None:
    """What it needs is run as that of a file's name is, and what is missing is said."""
    lines = "import no_such_package\ndef attend(q, k, v): ..."
    write(folder, {"torn/__init__.py": "", "torn/mine.py": lines})
    (entry,) = find("torn.mine:attend")
    assert isinstance(entry, Undeclared)
    assert entry.notes[0].endswith("attend is judged without what failed")


def test_the_working_folder_is_on_the_path(folder: Path) -> None:
    """A file below it imports by the name that packages have there, relatively, too."""
    files = {
        "spaced/helper.py": "two = 2",
        "spaced/sub/mine.py": "from spaced.helper import two",
        "spaced/sub/relative.py": "from ..helper import two",
    }
    write(folder, files)
    assert part_of(folder, None, "spaced/sub/mine.py").module.two == 2
    assert part_of(folder, None, "spaced/sub/relative.py").module.two == 2


def test_whose_a_notebook_is(folder: Path) -> None:
    """A class of the user's own notebook may be replayed, what it imports may not."""
    write(folder, {"study.ipynb": notebook("import torch", "class Mine:\n    size = 3")})
    assert why_foreign("study.ipynb:Mine") == ""
    assert why_foreign("study.ipynb:torch") != ""


MAIN = """
def width():
    return size + more


def loops():
    return steps


def writes():
    return left


if __name__ == "__main__":
    size, more = 24, len("abc")
    left = open("ran", "w").close()
    for steps in range(3):
        print(size)
"""


@pytest.mark.parametrize("file", ["script.py", "study.ipynb"])
def test_values_that_only_the_main_file_sets(file: str, folder: Path) -> None:
    """What a name needs of the block of the main file is there, as it runs in a notebook."""
    write(folder, {file: notebook(MAIN) if file.endswith("ipynb") else MAIN})
    part = part_of(folder, "width", file)
    assert part.module.width() == 27
    assert "steps" not in vars(part.module)
    if file == "script.py":
        assert part.notes == ("set as script.py sets them where it is the main file: more, size",)
    with pytest.raises(NameError):
        part_of(folder, "loops", file).module.loops()
    with pytest.raises(NameError):
        part_of(folder, "writes", file).module.writes()
    assert not (folder / "ran").exists()


def test_a_folder_above_a_file_may_hold_what_it_imports(folder: Path) -> None:
    """A package below ``src`` names itself from its top, and the working folder is another."""
    files = {
        "clone/src/flow/__init__.py": "",
        "clone/src/flow/sizes.py": "width = 24",
        "clone/src/flow/parts/layers.py": "from flow.sizes import width",
    }
    write(folder, files)
    assert part_of(folder, None, "clone/src/flow/parts/layers.py").module.width == 24


def test_a_file_that_lacks_beside_another_is_no_package_to_install(folder: Path) -> None:
    """The folder is there, as is a package of another version: what it lacks is named."""
    write(folder, {"parts/mine.py": "from .lacking import x\n\n\ndef two(): return 2"})
    (said,) = part_of(folder, "two", "parts/mine.py").notes
    assert "parts is there without lacking: put that file beside it, or another version" in said
    assert "pip install" not in said
