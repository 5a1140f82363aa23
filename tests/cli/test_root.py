from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import FEW, record
from workspaces import KERNEL, UNSCALED, write

from conformance import __main__ as command
from conformance.__main__ import run
from conformance.base.selection import selected
from conformance.errors import UsageError
from conformance.session import checking
from conformance.session.order import check_selection

pytestmark = pytest.mark.usefixtures("warm_workers")


def test_check_of_a_conforming_candidate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A candidate that conforms exits with 0, and the record says what was done."""
    write(folder, {"attn.py": KERNEL})
    assert run(["check", "attn.py", *FEW, "--seed", "5", "--json", "out.json"]) == 0
    out, err = capsys.readouterr()
    assert "my_kernel (core, attn.py:my_kernel): conforms" in out
    assert not err
    report = record(folder)
    assert (report["schema"], report["profile"], report["seed"]) == (1, "quick", 5)
    (candidate,) = report["candidates"]
    assert candidate["verdict"] == "conforms"
    assert [clause["id"] for clause in candidate["clauses"]] == ["shape.output", "numerics.golden"]
    assert all(clause["examples"] >= 40 for clause in candidate["clauses"])


def test_check_of_a_failing_candidate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One failing candidate among good ones exits with 1, and only it is explained."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    assert run(["check", "attn.py", *FEW]) == 1
    out = capsys.readouterr().out
    assert (
        "unscaled (core, attn.py:unscaled): fails, 1 of 2 MUST clauses failed, for 1 cause" in out
    )
    assert "attn.py:my_kernel" not in out


def test_verdicts_are_announced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of several candidates has its verdict on standard error as soon as it is known."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    run(["check", "attn.py", *FEW])
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("my_kernel: conforms, 2 clauses in ")
    assert second.startswith("unscaled: fails, 2 clauses in ")
    assert second.endswith("(MUST clauses failed: numerics.golden)")


def test_expected_failures_turn_green_and_red(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A known failure is green with its reason; one that passes, and one that is stale, are red."""
    entry = '[[expected]]\nclause = "numerics.golden"\nreason = "no scale"\n'
    write(folder, {"attn.py": KERNEL + UNSCALED, "known.toml": f'{entry}candidate = "unscaled"\n'})
    assert run(["check", "attn.py", *FEW, "--expected-failures", "known.toml"]) == 0
    assert "expected failure: numerics.golden (no scale)" in capsys.readouterr().out
    write(folder, {"known.toml": f'{entry}candidate = "my_kernel"\n'})
    arguments = ["check", "attn.py:my_kernel", *FEW, "--expected-failures", "known.toml"]
    assert run(arguments) == 1
    assert "unexpected-pass: numerics.golden" in capsys.readouterr().out
    write(folder, {"known.toml": f'{entry}candidate = "gone"\n'})
    assert run([*arguments, "--json", "out.json"]) == 1
    assert record(folder)["stale_expectations"][0]["why"] == "no candidate is called 'gone'"
    assert record(folder)["candidates"][0]["verdict"] == "conforms"


def test_declared_expected_failures(folder: Path) -> None:
    """A declaration's own expected failures count as well as a file's."""
    known = UNSCALED.replace("core()", "core(expected_failures={'numerics.golden': 'no scale'})")
    write(folder, {"attn.py": KERNEL + known})
    assert run(["check", "attn.py:unscaled", *FEW, "--json", "out.json"]) == 0
    assert record(folder)["candidates"][0]["verdict"] == "conforms-with-deviations"


def test_a_failed_should_counts_under_strict(folder: Path) -> None:
    """--strict makes a failed SHOULD clause red."""
    write(folder, {"attn.py": KERNEL.replace("core()", "core(masks=['keep'])").replace(
        "def my_kernel(query, key, value):\n    return attend(query, key, value)",
        "def my_kernel(query, key, value, keep=None):\n"
        "    s = query @ key.mT * query.shape[-1] ** -0.5\n"
        "    s = s if keep is None else s.masked_fill(~keep, -torch.inf)\n"
        "    return s.softmax(-1) @ value",
    )})  # fmt: skip
    arguments = ["check", "attn.py", "--profile", "quick", "--only", "mask.no-leak*"]
    assert run(arguments) == 0
    assert run([*arguments, "--strict"]) == 1


def test_nothing_applicable_is_not_green(folder: Path) -> None:
    """A selection of clauses none of which applies is inconclusive."""
    write(folder, {"attn.py": KERNEL})
    assert run(["check", "attn.py", "--only", "mask.causal", "--json", "out.json"]) == 1
    assert record(folder)["candidates"][0]["verdict"] == "inconclusive"


USAGE: dict[str, tuple[list[str], str]] = {
    "no command": (
        [],
        "name a command: ",
    ),
    "unknown command": (["chek"], "No such command 'chek'. Did you mean 'check'?"),
    "no target": (["check"], "Missing argument 'TARGET...'."),
    "unknown option": (
        ["check", "x", "--profil", "f"],
        "No such option '--profil'. Did you mean '--profile'?",
    ),
    "an option that would clear the screen": (["check", "x", "--\x1b[2J"], r"--\x1b[2J"),
    "unknown profile": (["check", "x", "--profile", "fast"], "'fast' is not one of 'smoke'"),
    "unknown dtype": (["check", "x", "--dtype", "float31"], "'float31' is not one of 'float32'"),
    "no seed": (
        ["check", "x", "--seed", "-1"],
        "Invalid value for '--seed': -1 is not in the range",
    ),
    "no time": (["check", "x", "--timeout", "0"], "Invalid value for '--timeout'"),
    "a time that is no number": (["check", "x", "--timeout", "nan"], "'nan' is no number"),
    "json into a folder": (["check", "x", "--json", "."], "is a folder: name a file"),
    "json nowhere": (["check", "x", "--json", "a/b.json"], "cannot be written: there is no folder"),
}


@pytest.mark.parametrize(("arguments", "sentence"), USAGE.values(), ids=USAGE.keys())
def test_bad_usage(
    folder: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad usage is answered in one line on standard error, with 2, before anything runs."""
    assert folder.is_dir()
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("conformance: ")
    assert err.count("\n") == 1
    assert sentence in err


BAD_INPUT: dict[str, tuple[list[str], str]] = {
    "own error": (
        ["broken.py"],
        "broken.py cannot be imported: NameError: name 'x' is not defined",
    ),
    "glob": (["attn.py", "--only", "shape.outptu"], "did you mean 'shape.output'?"),
    "device": (["attn.py", "--device", "nowhere"], "the device 'nowhere' cannot be used here"),
    "declared expectation": (
        ["stale.py"],
        "stale.py:my_kernel): the expected failure 'mask.goldn' matches no clause; did you mean",
    ),
}


@pytest.mark.parametrize(("arguments", "sentence"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input(
    folder: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only the worker can see is refused in the same way."""
    stale = KERNEL.replace("core()", "core(expected_failures={'mask.goldn': 'known'})")
    write(folder, {"attn.py": KERNEL, "broken.py": "x\n", "stale.py": stale})
    assert run(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert sentence in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("set_before", [None, "active"])
def test_idle_threads_of_a_command_wait_passively(
    set_before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads without work leave the processor to others, unless the user says how they wait."""
    monkeypatch.setenv("OMP_WAIT_POLICY", set_before or "")
    if set_before is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(command, "run", lambda _arguments: 0)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 0
    assert os.environ["OMP_WAIT_POLICY"] == (set_before or "passive")


def test_help_imports_nothing_heavy() -> None:
    """``--help`` answers without torch, hypothesis, onnx, numpy, pytest and rich."""
    code = (
        "import sys; from conformance.__main__ import run; code = run(['--help']); "
        "heavy = {'torch', 'hypothesis', 'onnx', 'onnxruntime', 'numpy', 'pytest', 'rich'}; "
        "sys.exit(code or ','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-Ic", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: conformance" in done.stdout


def test_check_keeps_torch_out_of_its_own_process(folder: Path) -> None:
    """Only the worker imports torch: a crash or a hang there cannot take the verdict along.

    Nor does the command's own process need numpy, which takes longer to import than all of its own.
    """
    write(folder, {"attn.py": KERNEL})
    code = (
        "import sys; from conformance.__main__ import run; "
        "run(['check', 'attn.py', '--only', 'shape.output', '--profile', 'quick']); "
        "sys.exit(', '.join({'torch', 'hypothesis', 'numpy'} & set(sys.modules)) or 0)"
    )
    write(folder, {"program.py": f"if __name__ == '__main__':\n    {code}\n"})
    done = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_users_file_named_as_a_standard_module(folder: Path) -> None:
    """Files of the working folder do not shadow what the worker imports while it starts."""
    shadow = "raise SystemExit('shadowed')\n"
    command = "from conformance.__main__ import main\nif __name__ == '__main__':\n    main()\n"
    own = "import os\nassert 'PYTHONSAFEPATH' not in os.environ\n"
    files = {"signal.py": shadow, "pickle.py": shadow, "bin/command.py": command}
    write(folder, {**files, "attn.py": own + KERNEL})
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, "bin/command.py", "check", "attn.py", *FEW],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_list_shows_every_clause(capsys: pytest.CaptureFixture[str]) -> None:
    """``list`` has one line a clause: slug, level, sentence."""
    assert run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["clause", "level", "requirement"]
    assert any(line.split()[:3] == ["shape.output", "MUST", "The"] for line in lines)
    assert run(["list", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert len(entries) == len(lines) - 1
    assert all(entry["sentence"] and entry["source"] and entry["applies"] for entry in entries)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    """``explain`` tells a clause's requirement, level, source and when it applies."""
    assert run(["explain", "mask.causal"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "mask.causal"
    for label in ("requires: ", "level: MUST", "source: ", "applies: to a core or to a layer"):
        assert label in out
    assert run(["explain", "mask.casual"]) == 2
    assert (
        "there is no clause, family or mistake 'mask.casual'; did you mean 'mask.causal'?"
        in capsys.readouterr().err
    )


def test_explain_of_families_and_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    """A family is the table of its clauses; a mistake has its fix, and what catches it."""
    assert run(["explain", "softcap"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["clause", "level", "requirement"]
    assert {row.split(".")[0] for row in rows} == {"softcap"}
    assert run(["explain", "scale-missing+causal-sees-next"]) == 0
    out = capsys.readouterr().out
    assert "divide them by the square root of the head size" in out
    assert "shift it back by one" in out
    assert "caught first by: numerics." in out
    assert run(["explain", "scale-mising"]) == 2
    assert "did you mean 'scale-missing'?" in capsys.readouterr().err


def test_a_family_selects_what_its_glob_selects() -> None:
    """``--only mask`` is ``--only 'mask.*'``, and no clause of another family."""
    slugs = ["mask.causal", "masked.other", "shape.output"]
    assert selected(slugs, ["mask"], []) == selected(slugs, ["mask.*"], []) == ["mask.causal"]
    assert selected(slugs, [], ["mask"]) == ["masked.other", "shape.output"]
    check_selection(slugs, only=["mask"], skip=[])


def test_a_mistake_of_the_harness_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception of our own exits with 3 and says where, without a traceback."""

    def fail() -> None:
        msg = "broken\npromise"
        raise RuntimeError(msg)

    monkeypatch.setattr("conformance.tools.specification.clause_entries", fail)
    assert run(["list"]) == 3
    err = capsys.readouterr().err
    assert err.startswith(
        "conformance: the harness failed with RuntimeError: broken promise (test_root"
    )
    assert err.count("\n") == 1


def test_a_machine_that_has_too_little_left_is_no_mistake_of_the_harness(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Open files, disk and the like: what to raise or free, with exit code 2."""

    def fail() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("conformance.tools.specification.clause_entries", fail)
    assert run(["list"]) == 2
    said = "too little left: Too many open files: raise the limit of this shell (ulimit -n)"
    assert said in capsys.readouterr().err


def test_selection_that_leaves_nothing() -> None:
    """Selecting every clause away is refused: nothing would be checked."""
    with pytest.raises(UsageError, match="leave no clause to run"):
        check_selection(["shape.output"], only=[], skip=["*"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--dtype", "float32,float31"], "'float31' is not one of"),
        (["--dtype", " , "], "names nothing"),
        (["--device", "cpu,warp"], "the device 'warp' cannot be used here"),
    ],
)
def test_words_of_an_option_are_checked_one_by_one(
    folder: Path, capsys: pytest.CaptureFixture[str], option: list[str], said: str
) -> None:
    """Dtypes and devices come separated by commas; one that is unknown ends with exit code 2."""
    write(folder, {"attn.py": KERNEL})
    assert run(["check", "attn.py", *option]) == 2
    assert said in capsys.readouterr().err


def test_dtypes_come_separated_by_commas(folder: Path) -> None:
    """``--dtype float32,bfloat16 --dtype float32`` judges in both, once each."""
    write(folder, {"attn.py": KERNEL})
    options = ["--dtype", "float32,bfloat16", "--dtype", "float32", "--only", "shape.dtype"]
    assert run(["check", "attn.py", "--profile", "quick", "--json", "r.json", *options]) == 0
    (candidate,) = json.loads(Path("r.json").read_text())["candidates"]
    assert [clause["dtype"] for clause in candidate["clauses"]] == ["float32", "bfloat16"]


def test_the_first_failure_ends_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -x one MUST fails, named with its smallest input, and the rest is not asked."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    file = folder / "expected.toml"
    more = ["--json", "out.json", "--write-expected", str(file), "--strict"]
    assert run(["check", "attn.py:unscaled", "--profile", "quick", "-x", *more]) == 1
    assert not file.exists()
    assert record(folder)["written_expectations"]["refused"].endswith(checking.STOPPED)
    (candidate,) = record(folder)["candidates"]
    failed = [clause for clause in candidate["clauses"] if clause["status"] == "failed"]
    assert [clause["diagnosis"][0]["name"] for clause in failed] == ["scale-missing"]
    out = capsys.readouterr().out
    assert "the run ended with its first failure: " in out
    stopped = record(folder)["stopped"]
    assert stopped["asked"] < stopped["planned"] / 2


def test_who_was_judged_before_the_first_failure_has_a_verdict(folder: Path) -> None:
    """Of several candidates the one that failed ends the run; those before it keep theirs."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    only = ("--only", "shape.output", "--only", "numerics.golden")
    assert run(["check", "attn.py", "--profile", "quick", "-x", *only, "--json", "out.json"]) == 1
    verdicts = {entry["name"]: entry["verdict"] for entry in record(folder)["candidates"]}
    assert verdicts == {"my_kernel": "conforms", "unscaled": "fails"}


def test_what_failed_last_is_asked_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a run in which a late clause failed, -x --lf asks that clause alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    write(folder, {"attn.py": KERNEL + UNSCALED})
    target = ["check", "attn.py:unscaled", "--profile", "quick"]
    run([*target, "--only", "numerics.scale"])
    assert run([*target, "-x", "--lf", "--json", "out.json"]) == 1
    (candidate,) = record(folder)["candidates"]
    asked = [one["id"] for one in candidate["clauses"] if one["status"] != "not-applicable"]
    assert asked == ["numerics.scale"]
    capsys.readouterr()


PATCHING = """

import conformance.oracle.comparison


@conformance.core()
def patching(query, key, value):
    conformance.oracle.comparison.compare = None
    return my_kernel(query, key, value)
"""


@pytest.mark.parametrize("asked", [False, True])
def test_a_patched_judge_is_told_whatever_is_asked(
    asked: bool,  # noqa: FBT001 (a case)
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where ``--only`` leaves ``state.untampered`` out, a warning says what a call changed."""
    write(folder, {"attn.py": KERNEL + PATCHING})
    also = ["--only", "state.untampered"] if asked else []
    command = ["check", "attn.py:patching", "--profile", "quick", "--only", "shape.output", *also]
    assert run(command) == int(asked)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("a call changed what judges it") == 1
    assert ("which was not among the clauses" in printed) == (not asked)


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_done_is_kept_while_a_run_goes_on(
    kept: bool,  # noqa: FBT001 (a case)
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever kills a run finds the record of what was done, which says that it is not all."""
    if kept:
        monkeypatch.setattr(checking, "JOURNAL_SECONDS", 0.0)
    looking = "    os.path.exists('out.json') and shutil.copy('out.json', 'seen.json')\n"
    body = KERNEL.replace("    return attend", looking + "    return attend")
    write(folder, {"attn.py": f"import os, shutil\n{body}"})
    assert run(["check", "attn.py", *FEW, "--json", "out.json"]) == 0
    assert (folder / "seen.json").exists() == kept
    assert not record(folder)["interrupted"]
    if kept:
        assert run(["render", "seen.json", "--markdown", "seen.md"]) == 0
        seen = json.loads((folder / "seen.json").read_text(encoding="utf-8"))
        assert seen["interrupted"]
        (candidate,) = seen["candidates"]
        assert [clause["id"] for clause in candidate["clauses"]] == ["shape.output"]
        assert candidate["verdict"] == "inconclusive"


def test_an_isolated_candidate_cannot_read_its_seed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record is kept while it runs, as it holds the seed and a candidate may read files."""
    monkeypatch.setattr(checking, "JOURNAL_SECONDS", 0.0)
    looking = "    assert not os.path.exists('out.json')\n"
    body = KERNEL.replace("    return attend", looking + "    return attend")
    write(folder, {"attn.py": f"import os\n{body}"})
    assert run(["check", "attn.py", *FEW, "--isolated", "--json", "out.json"]) == 0
    assert record(folder)["seed"] > 0


def test_no_working_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was removed is told in a sentence, before anything is loaded."""
    (tmp_path / "gone").mkdir()
    before = Path.cwd()
    os.chdir(tmp_path / "gone")
    try:
        (tmp_path / "gone").rmdir()
        assert run(["check", "attn.py"]) == 2
    finally:
        os.chdir(before)
    assert "the working folder is not there any more" in capsys.readouterr().err


def test_standard_input_that_is_closed(tmp_path: Path) -> None:
    """A report that is to be read from there is none."""
    command = [sys.executable, "-m", "conformance", "render", "-"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" "$@" <&-', *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "- is no JSON" in done.stderr


NAMED = """
import conformance

first = conformance.core(name="x\\n::error::forged")(lambda query, key, value: query)
second = conformance.core(name="y")(lambda query, key, value: query)
"""


def test_no_name_commands_a_workflow(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is announced stands between marks at which GitHub's log stops to obey."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    write(folder, {"attn.py": NAMED})
    run(["check", "attn.py", "--only", "shape.output", "--profile", "quick", "--no-explain"])
    lines = capsys.readouterr().err.splitlines()
    forged = lines.index(next(line for line in lines if line.startswith("::error::forged")))
    begin, end = lines[forged - 2], lines[forged + 1]
    assert begin.startswith("::stop-commands::")
    assert end == f"::{begin.removeprefix('::stop-commands::')}::"
