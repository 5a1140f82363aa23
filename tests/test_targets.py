from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from workspaces import KERNEL, UNSCALED, working_in, write

from conformance import targets
from conformance.adapters import module as adapter
from conformance.errors import UsageError
from conformance.targets import resolve


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder of the user's."""
    with working_in(tmp_path, monkeypatch):
        yield tmp_path


def names(*given: str) -> list[str]:
    """The names of what the targets resolve to."""
    return [candidate.name for candidate in resolve(given)]


def refusal(target: str) -> str:
    """The sentence with which a target is refused."""
    with pytest.raises(UsageError) as caught:
        resolve([target])
    return str(caught.value)


@pytest.mark.parametrize(
    "target", ["attn.py:my_kernel", "./attn.py:my_kernel", "attn:my_kernel", "attn.py", "attn"]
)
def test_names_of_a_lone_file(folder: Path, target: str) -> None:
    """A file outside any package is found by path and by name, with and without the object."""
    write(folder, {"attn.py": KERNEL})
    assert names(target) == ["my_kernel"]


@pytest.mark.parametrize(
    "target", ["pkg.attn:my_kernel", "pkg/attn.py:my_kernel", "pkg/attn.py", "pkg.attn", "pkg"]
)
def test_names_of_a_packaged_file(folder: Path, target: str) -> None:
    """A file in a package is imported by its dotted name, so that its own imports work."""
    write(
        folder,
        {
            "pkg/__init__.py": "",
            "pkg/parts.py": "SCALE = 1",
            "pkg/attn.py": f"from .parts import SCALE\n{KERNEL}",
        },
    )
    assert names(target) == ["my_kernel"]
    assert resolve([target])[0].function.__module__ == "pkg.attn"


def test_each_candidate_knows_its_own_target(folder: Path) -> None:
    """What a whole package yields can be asked for again, one by one."""
    write(
        folder, {"pkg/__init__.py": "", "pkg/a.py": KERNEL, "pkg/sub/__init__.py": UNSCALED_ALONE}
    )
    assert [candidate.target for candidate in resolve(["pkg"])] == [
        "pkg/a.py:my_kernel",
        "pkg/sub:unscaled",
    ]
    assert [candidate.target for candidate in resolve(["pkg.a"])] == ["pkg.a:my_kernel"]


UNSCALED_ALONE = f"import conformance\n{UNSCALED}"


def test_listed_names_restrict_a_package(folder: Path) -> None:
    """``__conformance__`` decides what a package offers: names of objects and of submodules."""
    write(
        folder,
        {
            "pkg/__init__.py": '__conformance__ = ["chosen"]',
            "pkg/chosen.py": KERNEL,
            "pkg/other.py": UNSCALED_ALONE,
        },
    )
    assert names("pkg") == ["my_kernel"]
    assert names("pkg.other") == ["unscaled"]


def test_listed_objects(folder: Path) -> None:
    """``__conformance__`` may hold the candidates themselves."""
    write(folder, {"attn.py": f"{KERNEL}{UNSCALED}\n__conformance__ = [unscaled]"})
    assert names("attn.py") == ["unscaled"]


def test_subpackage_with_an_empty_list_is_passed_over(folder: Path) -> None:
    """An empty ``__conformance__`` keeps broken candidates out of a run over everything."""
    write(
        folder,
        {
            "pkg/__init__.py": "",
            "pkg/attn.py": KERNEL,
            "pkg/broken/__init__.py": "__conformance__ = []",
            "pkg/broken/bad.py": UNSCALED_ALONE,
        },
    )
    assert names("pkg") == ["my_kernel"]
    assert names("pkg/broken/bad.py") == ["unscaled"]
    assert "declares no candidate" in refusal("pkg/broken")


def test_plain_folder(folder: Path) -> None:
    """A folder without __init__ gives what its files and packages declare, its tests left out."""
    write(
        folder,
        {
            "stuff/b.py": UNSCALED_ALONE,
            "stuff/a.py": KERNEL,
            "stuff/test_a.py": "raise RuntimeError",
            "stuff/pkg/__init__.py": KERNEL,
        },
    )
    assert names("stuff") == ["my_kernel", "unscaled", "my_kernel-2"]


def test_names_are_unique_over_all_targets(folder: Path) -> None:
    """Two candidates of one name are told apart by a number."""
    write(folder, {"a.py": KERNEL, "b.py": KERNEL})
    assert names("a.py", "b.py") == ["my_kernel", "my_kernel-2"]


def test_a_target_given_twice_is_checked_once(folder: Path) -> None:
    """Targets that overlap name each candidate once; another one of the same name is numbered."""
    write(folder, {"attn.py": KERNEL, "pkg/__init__.py": KERNEL})
    assert names("attn.py", "attn.py:my_kernel", "attn") == ["my_kernel"]
    assert names("attn.py", "pkg", ".") == ["my_kernel", "my_kernel-2"]


def test_a_file_name_that_is_no_text(folder: Path) -> None:
    """A file whose name is not valid UTF-8 is loaded like any other."""
    name = os.fsdecode(b"caf\xe9.py")
    try:
        write(folder, {name: KERNEL})
    except (OSError, UnicodeError):
        pytest.skip("this system has no such names")
    assert names(name) == ["my_kernel"]


def test_one_object_under_two_names_is_one_candidate(folder: Path) -> None:
    """An alias, or a list that repeats declared candidates, adds nothing."""
    write(folder, {"attn.py": f"{KERNEL}\nalias = my_kernel\neverything = [my_kernel]"})
    assert names("attn.py") == ["my_kernel"]


def test_lists_and_makers(folder: Path) -> None:
    """An object may be a list of candidates, or a function that makes one."""
    text = f"{KERNEL}{UNSCALED}\nboth = [my_kernel, unscaled]\ndef make():\n    return both\n"
    write(folder, {"attn.py": text})
    assert names("attn.py:both") == ["my_kernel", "unscaled"]
    assert names("attn.py:make") == ["my_kernel", "unscaled"]


def test_entry_points(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name registered by an installed distribution is a target."""
    write(folder, {"attn.py": KERNEL})
    monkeypatch.syspath_prepend(str(folder))
    entry = targets.EntryPoint(name="theirs", value="attn:my_kernel", group=targets.ENTRY_POINTS)
    monkeypatch.setattr(targets, "entry_points", lambda **_: [entry])
    assert names("theirs") == ["my_kernel"]


def test_users_own_reference_package_wins(folder: Path) -> None:
    """A user's package called ``reference`` is the one that their files import."""
    write(
        folder,
        {
            "reference/__init__.py": "OWN = True",
            "attn.py": f"import reference\nassert reference.OWN\n{KERNEL}",
        },
    )
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if is_reference(name)}
    try:
        assert names("attn.py") == ["my_kernel"]
    finally:
        sys.modules.update(hidden)


def is_reference(name: str) -> bool:
    """Whether a module belongs to a package called reference."""
    return name == "reference" or name.startswith("reference.")


def test_file_named_like_a_module_of_the_standard_library(folder: Path) -> None:
    """``types.py`` of the user's is read from its file and shadows nothing."""
    write(folder, {"kernels/types.py": KERNEL})
    before = sys.modules["types"]
    assert names("kernels/types.py") == ["my_kernel"]
    assert sys.modules["types"] is before


REFUSED: dict[str, tuple[dict[str, str], str, str]] = {
    "no file": (
        {"attn.py": KERNEL},
        "atn.py",
        "there is no file or folder atn.py; did you mean 'attn.py'?",
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
    "exit": (
        {"attn.py": "import sys\nsys.exit('usage: attn')\n"},
        "attn.py",
        "attn.py cannot be imported: SystemExit: usage: attn (attn.py:2)",
    ),
    "not callable": ({"attn.py": "x = 3"}, "attn.py:x", "attn.py:x is 3, which is not callable"),
    "not declared": (
        {"attn.py": "def attend(query, key, value): ..."},
        "attn.py:attend",
        "attn.py:attend takes (query, key, value) and declares nothing: decorate it",
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
    "nothing declared": ({"attn.py": ""}, "attn.py", "attn.py declares no candidate: decorate one"),
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
    "a graph": ({"model.onnx": ""}, "model.onnx", "model.onnx is an ONNX graph"),
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
def test_refusals(folder: Path, files: dict[str, str], target: str, sentence: str) -> None:
    """Each bad target is refused in one sentence that names what and where."""
    write(folder, files)
    said = refusal(target)
    assert sentence in said
    assert "\n" not in said
    assert "Traceback" not in said


def test_a_name_that_another_package_took(folder: Path) -> None:
    """A package whose name is already imported from elsewhere is refused, not mixed up."""
    write(folder, {"one/pkg/__init__.py": KERNEL, "two/pkg/__init__.py": UNSCALED_ALONE})
    assert names("one/pkg") == ["my_kernel"]
    assert "check the two in separate runs" in refusal("two/pkg")


def test_a_builder_that_raises_is_left_to_the_run(folder: Path) -> None:
    """Only the run can say on which input a builder fails: loading lets it pass."""
    write(
        folder,
        {
            "attn.py": """
            import conformance
            @conformance.layer()
            def f(geometry, weights):
                raise ValueError("no")
            """
        },
    )
    assert names("attn.py") == ["f"]


def test_modules_are_wrapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare ``torch.nn.Module``, class or instance, goes through ``conformance.module``."""
    seen: list[object] = []
    made: Callable[..., object] = resolve_kernel(folder)

    def wrap(given: object) -> object:
        seen.append(given)
        return made

    monkeypatch.setattr(adapter, "module", wrap)
    write(folder, {"layers.py": "import torch\nclass L(torch.nn.Module): ...\nl = L()\n"})
    assert names("layers.py:L") == names("layers.py:l") == ["my_kernel"]
    assert [type(given).__name__ for given in seen] == ["type", "L"]


def resolve_kernel(folder: Path) -> Callable[..., object]:
    """Some candidate."""
    write(folder, {"kernel_for_module.py": KERNEL})
    return resolve(["kernel_for_module.py"])[0]
