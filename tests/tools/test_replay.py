from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from workspaces import KERNEL, UNSCALED, write

from conformance.__main__ import run
from conformance.base.record import read_record
from conformance.errors import UsageError
from conformance.tools.replay import cases
from conformance.tools.scripts.writing import single
from conformance.views.verdict_marks import replay_command

pytestmark = pytest.mark.usefixtures("warm_workers")

ONLY = ("--profile", "quick", "--only", "numerics.scale", "--only", "shape.output")


@pytest.fixture(scope="module")
def report_of_unscaled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a candidate that lacks the scale, made once."""
    folder = tmp_path_factory.mktemp("unscaled")
    write(folder, {"attn.py": KERNEL + UNSCALED})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        assert run(["check", "attn.py:unscaled", *ONLY, "--json", "out.json"]) == 1
    return (folder / "out.json").read_text(encoding="utf-8")


@pytest.fixture
def failed(folder: Path, report_of_unscaled: str) -> Path:
    """A folder with a candidate that lacks the scale, and the report that says so."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    (folder / "out.json").write_text(report_of_unscaled, encoding="utf-8")
    return folder


def clause(slug: str, status: str = "failed", **more: Any) -> dict[str, Any]:
    """An entry of a report."""
    entry = {"id": slug, "status": status, "dtype": "float32", "device": "cpu", **more}
    if status == "failed":
        entry.setdefault("counterexample", {"problem": {}})
    return entry


def report(folder: Path, *candidates: dict[str, Any], **more: Any) -> str:
    """Write a report and return its path."""
    path = folder / "out.json"
    path.write_text(json.dumps({"schema": 1, "candidates": list(candidates), **more}))
    return str(path)


def entry(name: str, *clauses: dict[str, Any]) -> dict[str, Any]:
    """A candidate of a report."""
    entry = {"name": name, "target": f"attn.py:{name}", "verdict": "fails"}
    return {**entry, "clauses": list(clauses)}


def refusal(reference: str, candidate: str | None = None) -> str:
    """The sentence with which a reference is refused."""
    with pytest.raises(UsageError) as caught:
        cases(reference, candidate)
    return str(caught.value)


def test_failure_is_asked_again(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The counterexample fails again, is shown with its tensors, and the exit code is 1."""
    assert failed.is_dir()
    capsys.readouterr()
    assert run(["replay", "out.json#numerics.scale"]) == 1
    out, err = capsys.readouterr()
    assert "unscaled numerics.scale [float32]: still fails" in out
    assert "call      unscaled(query, key, value)" in out
    assert "expected  [[[[0." in out
    assert out.endswith("1 counterexample: 1 still fails\n")
    assert not err


REMEMBERS = """
SEEN = {}


@conformance.core()
def keeps_its_first_scale(query, key, value):
    scale = SEEN.setdefault("scale", query.shape[-1] ** -0.5)
    return (query @ key.mT * scale).softmax(-1) @ value
"""


def test_failure_that_needs_earlier_calls_is_asked_behind_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What passes alone, and fails once the run's earlier calls were made, is not called mended."""
    write(folder, {"attn.py": KERNEL + REMEMBERS})
    target = "attn.py:keeps_its_first_scale"
    assert run(["check", target, *ONLY, "--json", "out.json"]) == 1
    capsys.readouterr()
    assert run(["replay", "out.json#numerics.scale"]) == 1
    out, _ = capsys.readouterr()
    assert "still fails, but only after" in out
    assert "numerics.scale before it" in out


def test_corrected_candidate_passes(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once the file is mended nothing fails any more, and the exit code is 0."""
    mended = UNSCALED.replace("(query @ key.mT)", "(query @ key.mT * query.shape[-1] ** -0.5)")
    write(failed, {"attn.py": KERNEL + mended})
    capsys.readouterr()
    assert run(["replay", "out.json"]) == 0
    out, _ = capsys.readouterr()
    assert "unscaled numerics.scale [float32]: passes now" in out


def test_another_failure_is_told_apart(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A candidate that now raises fails differently; the exit code is still 1."""
    write(failed, {"attn.py": KERNEL + UNSCALED.replace("return (", "return None + (")})
    capsys.readouterr()
    assert run(["replay", "out.json#unscaled/numerics.scale"]) == 1
    assert "fails differently" in capsys.readouterr().out


def test_another_target_can_be_asked(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--target asks another candidate the same question."""
    assert failed.is_dir()
    assert run(["replay", "out.json", "--target", "attn.py:my_kernel"]) == 0
    assert "passes now" in capsys.readouterr().out


def test_target_that_is_gone_is_bad_input(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A candidate that cannot be found any more is told in one sentence, exit code 2."""
    (failed / "attn.py").unlink()
    capsys.readouterr()
    assert run(["replay", "out.json"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("conformance: there is no file or folder attn.py")
    assert "or give --target" in err
    assert err.count("\n") == 1


def test_target_of_another_kind_is_bad_input(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layer has no answer to the counterexample of a core, which is said."""
    write(
        failed,
        {
            "layer.py": """
            import conformance

            @conformance.layer()
            def mine(geometry, weights):
                return lambda query, key, value: query
            """
        },
    )
    capsys.readouterr()
    assert run(["replay", "out.json", "--target", "layer.py"]) == 2
    assert "mine is a layer, but unscaled of the report is a core" in capsys.readouterr().err


def test_crash_is_asked_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A counterexample that kills the worker kills it again: it still fails."""
    dies = UNSCALED.replace("return (", "import os; os._exit(3); return (")
    write(folder, {"attn.py": KERNEL + dies})
    slug = ("--profile", "quick", "--only", "shape.output")
    assert run(["check", "attn.py:unscaled", *slug, "--json", "out.json"]) == 1
    capsys.readouterr()
    assert run(["replay", "out.json"]) == 1
    assert "still fails" in capsys.readouterr().out


def test_missing_report_says_how_to_write_one(folder: Path) -> None:
    """A path that does not exist names the command that writes it."""
    assert refusal(str(folder / "no.json")).startswith("there is no report ")


def test_unknown_names_are_suggested(folder: Path) -> None:
    """A misspelt clause or candidate gets a suggestion."""
    path = report(folder, entry("mine", clause("mask.no-leak"), clause("shape.output", "passed")))
    assert "did you mean 'mask.no-leak'?" in refusal(f"{path}#mask.no-lek")
    assert "did you mean 'mine'?" in refusal(f"{path}#mime/mask.no-leak")
    assert "did you mean 'mine'?" in refusal(path, "minee")


def test_clause_that_has_not_failed_is_refused(folder: Path) -> None:
    """What passed cannot be replayed; the sentence names what failed."""
    path = report(folder, entry("mine", clause("mask.no-leak"), clause("shape.output", "passed")))
    sentence = refusal(f"{path}#shape.output")
    assert sentence.startswith("shape.output has not failed, it is passed")
    assert sentence.endswith("failed: mask.no-leak")


def test_nothing_to_replay_is_said(folder: Path) -> None:
    """A report without failures is bad input for a replay."""
    path = report(folder, entry("mine", clause("shape.output", "passed")))
    assert refusal(path).endswith("holds no failure: there is nothing to replay")


def test_failure_without_counterexample_is_refused(folder: Path) -> None:
    """A crash before the first example left nothing to replay."""
    path = report(folder, entry("mine", clause("mask.no-leak", counterexample=None)))
    assert refusal(path) == "mask.no-leak of mine has no counterexample in the report"


def test_candidates_and_clauses_select(folder: Path) -> None:
    """All failures, those of a clause, of a candidate, or of both; expected ones count."""
    expected = clause("mask.causal", "expected-failure", counterexample={"problem": {}})
    path = report(
        folder,
        entry("one", clause("mask.no-leak"), expected, clause("shape.output", "passed")),
        entry("two", clause("mask.no-leak")),
    )

    def names(reference: str, candidate: str | None = None) -> list[tuple[str, str]]:
        failures = cases(reference, candidate)
        return [(case.candidate["name"], case.clause["id"]) for case in failures]

    assert names(path) == [("one", "mask.no-leak"), ("one", "mask.causal"), ("two", "mask.no-leak")]
    assert names(f"{path}#mask.no-leak") == [("one", "mask.no-leak"), ("two", "mask.no-leak")]
    assert names(f"{path}#two/mask.no-leak") == names(path, "two") == [("two", "mask.no-leak")]


def test_one_dtype_of_a_clause_is_chosen(folder: Path) -> None:
    """Of a clause that failed in several dtypes one may be chosen; a script takes the first."""
    dtypes = ("float32", "bfloat16")
    path = report(folder, entry("one", *(clause("mask.no-leak", dtype=name) for name in dtypes)))
    (half,) = cases(path, dtype="bfloat16")
    assert half.clause["dtype"] == "bfloat16"
    assert [case.clause["dtype"] for case in single(cases(path), "-")] == ["float32"]
    with pytest.raises(UsageError, match="failed in float16, only in bfloat16, float32"):
        cases(path, dtype="float16")


def test_hash_in_a_file_name_is_no_fragment(folder: Path) -> None:
    """A file whose name has a # is found as it is."""
    path = report(folder, entry("one", clause("mask.no-leak")))
    Path(path).rename(folder / "a#b.json")
    assert len(cases(str(folder / "a#b.json"))) == 1
    assert refusal(f"{folder / 'a#b.json'}#").endswith("write REPORT.json#CLAUSE")


def test_the_command_of_an_attention_of_a_model_finds_its_failure(folder: Path) -> None:
    """A candidate may be called ``model#1``, and a clause may have failed in several dtypes."""
    halves = [clause("mask.no-leak", dtype=name) for name in ("float32", "bfloat16")]
    path = report(folder, entry("model#1", *halves), entry("model#2", clause("mask.no-leak")))
    candidate = read_record(Path(path))["candidates"][0]
    command = replay_command(candidate, candidate["clauses"][1], path)
    _, _, reference, option, dtype = shlex.split(command)
    assert option == "--dtype"
    (case,) = cases(reference, dtype=dtype)
    assert (case.candidate["name"], case.clause["dtype"]) == ("model#1", "bfloat16")
    assert f"no report {folder / 'gone.json'}:" in refusal(f"{folder / 'gone.json'}#m#1/a.b")


def test_problem_of_another_version_is_one_sentence(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A counterexample with unknown fields cannot be rebuilt, which is said."""
    data = json.loads((failed / "out.json").read_text())
    for entry in data["candidates"][0]["clauses"]:
        if entry["status"] == "failed":
            entry["counterexample"]["problem"]["colour"] = "blue"
    (failed / "out.json").write_text(json.dumps(data))
    capsys.readouterr()
    assert run(["replay", "out.json"]) == 2
    assert "the counterexample of numerics.scale cannot be rebuilt" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["replay"], ["bundle"]])
def test_code_of_others_is_not_run(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report names a function that would write a file: nothing of it runs without consent."""
    write(folder, {"wipe.py": "open('ran', 'w').close()\ndef main(): ...\n"})
    violation = {"kind": "value", "message": "x"}
    failed_entry = entry("mine", clause("shape.output", violation=violation))
    path = report(folder, {**failed_entry, "target": "wipe.py:main"})
    assert run([*command, path]) == 2
    said = capsys.readouterr().err
    assert "wipe.py:main is no candidate that its file declares; nothing was run" in said
    assert "or give --trust if you trust the report" in said
    assert not (folder / "ran").exists()
    source = {"source": "wipe.py:main", "state_dict": None, "declaration": None}
    path = report(folder, {**failed_entry, "target": "a.onnx", "beside": source})
    assert run([*command, path, "--target", "b.onnx"]) == 2
    assert "wipe.py:main is no candidate" in capsys.readouterr().err
    assert not (folder / "ran").exists()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"values": "nope"}, "this version knows no 'nope'"),
        ({"layout": "zigzag"}, "this version knows no 'zigzag'"),
        ({"seed": -(10**15)}, "cannot be rebuilt: its seed is -1000000000000000"),
        ({"target": f"{'k' * 5000}.py:unscaled"}, "there is no file or folder kkk"),
        ({"dtype": "float99"}, "the report does not say how numerics.scale of unscaled failed"),
        ({}, ""),
    ],
    ids=["values", "layout", "seed", "target", "dtype", "a further field"],
)
def test_an_edited_report(
    changes: dict[str, Any], said: str, failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no report holds is one sentence and exit code 2; a bundle is of the report at most."""
    edited = json.loads((failed / "out.json").read_text(encoding="utf-8"))
    candidate = edited["candidates"][0]
    case = next(entry for entry in candidate["clauses"] if entry["id"] == "numerics.scale")
    case["violation"] |= {"colour": "red"}  # what a later version may say
    for part in (candidate, case, case["counterexample"]["problem"]):
        part |= {name: value for name, value in changes.items() if name in part}
    (failed / "out.json").write_text(json.dumps(edited), encoding="utf-8")
    assert run(["replay", "out.json#numerics.scale"]) == (2 if said else 1)
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == bool(said)
    assert run(["bundle", "out.json#numerics.scale"]) in (0, 2)


def of_a_maker(failed: Path) -> None:
    """Let the report name a function that its file does not declare, and that makes the core."""
    text = (failed / "out.json").read_text(encoding="utf-8")
    write(failed, {"out.json": text.replace("attn.py:unscaled", "more.py:it")})
    write(failed, {"more.py": "import attn\n\ndef it():\n    return attn.unscaled\n"})


@pytest.mark.parametrize("consent", [["--trust"], ["--target", "more.py:it"]])
def test_consent(consent: list[str], failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --trust what a report names runs, and so does what --target names."""
    of_a_maker(failed)
    assert run(["replay", "out.json"]) == 2
    assert "nothing was run" in capsys.readouterr().err
    assert run(["replay", "out.json", *consent]) == 1
    assert "still fails" in capsys.readouterr().out


def test_a_terminal_is_asked(failed: Path) -> None:
    """At a terminal the command asks: no runs nothing, yes replays."""
    of_a_maker(failed)
    for answer, status, said in (("n", 2, "nothing was run"), ("y", 1, "still fail")):
        own, theirs = pty.openpty()
        command = [sys.executable, "-m", "conformance", "replay", "out.json"]
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.write(own, f"{answer}\n".encode())
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # the end of a terminal
                while chunk := os.read(own, 4096):
                    shown += chunk
            assert process.wait() == status
        os.close(own)
        assert b"Run it?" in shown
        assert said.encode() in shown
