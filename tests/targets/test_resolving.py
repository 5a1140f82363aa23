from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from workspaces import KERNEL, UNSCALED, write

from conformance.errors import UsageError
from conformance.identification.opening import resolve
from conformance.targets import resolving as targets
from conformance.targets.target_strings import ENTRY_POINTS

UNSCALED_ALONE = f"import conformance\n{UNSCALED}"


def names(*wanted: str) -> list[str]:
    """The names of what the targets resolve to."""
    return [candidate.name for candidate in resolve(wanted)]


@pytest.mark.parametrize(
    "target", ["attn.py:my_kernel", "./attn.py:my_kernel", "attn:my_kernel", "attn.py", "attn"]
)
def test_names_of_a_lone_file(workspace: Path, target: str) -> None:
    """A file outside any package is found by path and by name, with and without the object."""
    write(workspace, {"attn.py": KERNEL})
    assert names(target) == ["my_kernel"]


@pytest.mark.parametrize(
    "target", ["pkg.attn:my_kernel", "pkg/attn.py:my_kernel", "pkg/attn.py", "pkg.attn", "pkg"]
)
def test_names_of_a_packaged_file(workspace: Path, target: str) -> None:
    """A file in a package is imported by its dotted name, so that its own imports work."""
    write(
        workspace,
        {
            "pkg/__init__.py": "",
            "pkg/parts.py": "SCALE = 1",
            "pkg/attn.py": f"from .parts import SCALE\n{KERNEL}",
        },
    )
    assert names(target) == ["my_kernel"]
    assert resolve([target])[0].function.__module__ == "pkg.attn"


def test_a_folder_without_init_is_a_package_by_name(workspace: Path) -> None:
    """Relative imports of a namespace package work where it is named as a module."""
    write(workspace, {"kernels/parts.py": "", "kernels/attn.py": f"from . import parts\n{KERNEL}"})
    assert names("kernels.attn:my_kernel") == ["my_kernel"]


def test_each_candidate_knows_its_own_target(workspace: Path) -> None:
    """What a whole package yields can be asked for again, one by one."""
    write(
        workspace,
        {"pkg/__init__.py": "", "pkg/a.py": KERNEL, "pkg/sub/__init__.py": UNSCALED_ALONE},
    )
    assert [candidate.target for candidate in resolve(["pkg"])] == [
        "pkg/a.py:my_kernel",
        "pkg/sub:unscaled",
    ]
    assert [candidate.target for candidate in resolve(["pkg.a"])] == ["pkg.a:my_kernel"]


@pytest.mark.parametrize("target", ["attns:kernel", "attns/__init__.py:kernel"])
def test_a_module_that_is_named_as_an_object_has_a_target_of_its_own(
    workspace: Path, target: str
) -> None:
    """What a record says of it can be given again, to a replay or a rank."""
    write(workspace, {"attns/__init__.py": "from . import kernel", "attns/kernel.py": KERNEL})
    (candidate,) = resolve([target])
    assert candidate.target == f"attns/kernel.py:{candidate.name}"
    assert [each.name for each in resolve([candidate.target])] == [candidate.name]


def test_listed_names_restrict_a_package(workspace: Path) -> None:
    """``__conformance__`` decides what a package offers: names of objects and of submodules."""
    write(
        workspace,
        {
            "pkg/__init__.py": '__conformance__ = ["chosen"]',
            "pkg/chosen.py": KERNEL,
            "pkg/other.py": UNSCALED_ALONE,
        },
    )
    assert names("pkg") == ["my_kernel"]
    assert names("pkg.other") == ["unscaled"]


def test_listed_objects(workspace: Path) -> None:
    """``__conformance__`` may hold the candidates themselves."""
    write(workspace, {"attn.py": f"{KERNEL}{UNSCALED}\n__conformance__ = [unscaled]"})
    assert names("attn.py") == ["unscaled"]


def test_subpackage_with_an_empty_list_is_passed_over(workspace: Path) -> None:
    """An empty ``__conformance__`` keeps broken candidates out of a run over everything."""
    write(
        workspace,
        {
            "pkg/__init__.py": "",
            "pkg/attn.py": KERNEL,
            "pkg/broken/__init__.py": "__conformance__ = []",
            "pkg/broken/bad.py": UNSCALED_ALONE,
        },
    )
    assert names("pkg") == ["my_kernel"]
    assert names("pkg/broken/bad.py") == ["unscaled"]
    with pytest.raises(UsageError, match="declares a candidate"):
        resolve(["pkg/broken"])


def test_plain_folder(workspace: Path) -> None:
    """A folder without __init__ gives what its files and packages declare, its tests left out."""
    write(
        workspace,
        {
            "stuff/b.py": UNSCALED_ALONE,
            "stuff/a.py": KERNEL,
            "stuff/test_a.py": "raise RuntimeError",
            "stuff/pkg/__init__.py": KERNEL,
        },
    )
    assert names("stuff") == ["my_kernel", "unscaled", "my_kernel-2"]


def test_what_a_folder_holds_besides_candidates_is_not_run(workspace: Path) -> None:
    """Files and packages that never mention us are left alone; the refusal names one of them."""
    script = "raise SystemExit('it ran')"
    write(workspace, {"stuff/run.py": script, "stuff/pkg/__init__.py": script})
    with pytest.raises(UsageError, match=r"not imported\n.*: conformance check stuff/run\.py"):
        resolve(["stuff"])
    write(workspace, {"stuff/a.py": KERNEL})
    assert names("stuff") == ["my_kernel"]


def test_names_are_unique_over_all_targets(workspace: Path) -> None:
    """Two candidates of one name are told apart by a number."""
    write(workspace, {"a.py": KERNEL, "b.py": KERNEL})
    assert names("a.py", "b.py") == ["my_kernel", "my_kernel-2"]


def test_a_target_given_twice_is_checked_once(workspace: Path) -> None:
    """Targets that overlap name each candidate once; another one of the same name is numbered."""
    write(workspace, {"attn.py": KERNEL, "pkg/__init__.py": KERNEL})
    assert names("attn.py", "attn.py:my_kernel", "attn") == ["my_kernel"]
    assert names("attn.py", "pkg", ".") == ["my_kernel", "my_kernel-2"]


def test_a_file_name_that_is_no_text(workspace: Path) -> None:
    """A file whose name is not valid UTF-8 is loaded like any other."""
    name = os.fsdecode(b"caf\xe9.py")
    try:
        write(workspace, {name: KERNEL})
    except (OSError, UnicodeError):
        pytest.skip("this system has no such names")
    assert names(name) == ["my_kernel"]


def test_one_object_under_two_names_is_one_candidate(workspace: Path) -> None:
    """An alias, or a list that repeats declared candidates, adds nothing."""
    write(workspace, {"attn.py": f"{KERNEL}\nalias = my_kernel\neverything = [my_kernel]"})
    assert names("attn.py") == ["my_kernel"]


def test_lists_and_makers(workspace: Path) -> None:
    """An object may be a list of candidates, or a function that makes one."""
    text = f"{KERNEL}{UNSCALED}\nboth = [my_kernel, unscaled]\ndef make():\n    return both\n"
    write(workspace, {"attn.py": text})
    assert names("attn.py:both") == ["my_kernel", "unscaled"]
    assert names("attn.py:make") == ["my_kernel", "unscaled"]


def test_entry_points(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name registered by an installed distribution is a target."""
    write(workspace, {"attn.py": KERNEL})
    monkeypatch.syspath_prepend(str(workspace))
    entry = targets.EntryPoint(name="theirs", value="attn:my_kernel", group=ENTRY_POINTS)
    monkeypatch.setattr(targets, "entry_points", lambda **_: [entry])
    assert names("theirs") == ["my_kernel"]


def test_users_own_reference_package_wins(workspace: Path) -> None:
    """A user's package called ``reference`` is the one that their files import."""
    write(
        workspace,
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


def test_file_named_like_a_module_of_the_standard_library(workspace: Path) -> None:
    """``types.py`` of the user's is read from its file and shadows nothing."""
    write(workspace, {"kernels/types.py": KERNEL})
    before = sys.modules["types"]
    assert names("kernels/types.py") == ["my_kernel"]
    assert sys.modules["types"] is before


def test_a_builder_that_raises_is_left_to_the_run(workspace: Path) -> None:
    """Only the run can say on which input a builder fails: loading lets it pass."""
    write(
        workspace,
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


def test_what_declares_nothing_is_left_to_be_read(workspace: Path) -> None:
    """A bare ``torch.nn.Module``, class or instance, and a function of inputs are no candidates."""
    text = "import torch\nclass L(torch.nn.Module): ...\nl = L()\ndef f(q, k, v): ...\n"
    write(workspace, {"layers.py": text})
    for name in "Llf":
        (entry,) = targets.find(f"layers.py:{name}")
        assert isinstance(entry, targets.Undeclared)
        assert entry.target == f"layers.py:{name}"


@pytest.mark.parametrize(
    "taken",
    [
        "import os, tempfile\nhome = tempfile.mkdtemp()\nos.chdir(home)\nos.rmdir(home)",
        "import sys\nsys.path.clear()\nsys.meta_path.clear()",
    ],
    ids=["working folder", "imports"],
)
def test_an_import_leaves_what_the_harness_stands_on(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """A module that removes the working folder, or all ways to import, is checked all the same."""
    for name in ("path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    write(workspace, {"attn.py": f"{taken}\n{KERNEL}", "later.py": UNSCALED_ALONE})
    assert names("attn.py") == ["my_kernel"]
    assert Path.cwd() == workspace
    assert names("later.py") == ["unscaled"]
