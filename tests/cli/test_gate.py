"""A sample repository, gated from end to end: green, and red for each reason there is."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import action_running
import pytest
import yaml
from _paths import CHECKOUT
from action_running import Step
from sample_repository import (
    ASKED,
    DIFFERENT,
    EXPECTED,
    KNOWN,
    MENDED,
    REGRESSED,
    make,
    surroundings,
)

from conformance.__main__ import run

pytestmark = pytest.mark.usefixtures("warm_workers")

CHECK = ["check", "attention.py", *ASKED]
GATE = [*CHECK, "--expected-failures", "expected-failures.toml"]


def through_the_action(folder: Path) -> Step:
    """What the workflow of a repository does, with fewer clauses asked."""
    workflow = action_running.load(folder / ".github" / "workflows" / "attention.yml")
    steps = workflow["jobs"]["conformance"]["steps"]
    inputs = next(step["with"] for step in steps if "attention-conformance@" in step["uses"])
    quick = {**inputs, "profile": "quick", "args": shlex.join(ASKED[2:])}
    return action_running.run("check", quick, folder, folder / "runner")


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Step:
    """The action's run of a repository whose failures are known."""
    folder = tmp_path_factory.mktemp("green")
    make(folder)
    return through_the_action(folder)


def test_known_failures_are_green(green: Step) -> None:
    """The step succeeds, and its summary says what is known."""
    assert green.status == 0, green.log
    assert green.outputs["exit-code"] == "0"
    assert "my_kernel" in green.summary
    assert "mask.single-key" in green.summary


def test_reports_are_kept(green: Step) -> None:
    """Every report is in the folder that becomes the artifact, and is named by the outputs."""
    folder = Path(green.outputs["folder"])
    kept = {path.suffix: path for path in folder.iterdir()}
    assert set(kept) == {".json", ".html", ".markdown", ".sarif", ".junit"}
    assert green.outputs["report"] == str(kept[".json"])
    assert json.loads(kept[".json"].read_text(encoding="utf-8"))["fail_on"] == "must"
    assert json.loads(kept[".sarif"].read_text(encoding="utf-8"))["version"] == "2.1.0"
    assert green.outputs["html"].endswith(".html")
    assert green.outputs["sarif"].endswith(".sarif")


def test_a_regression_is_red(tmp_path: Path) -> None:
    """A clause that fails now fails the step, which keeps its reports all the same."""
    make(tmp_path, kernel=REGRESSED)
    red = through_the_action(tmp_path)
    assert (red.status, red.outputs["exit-code"]) == (1, "1")
    assert "mask.golden" in red.summary
    assert "::error" in red.log
    assert Path(red.outputs["report"]).is_file()


def test_a_stale_expectation_is_red(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failure that is mended, and an entry for nobody, are red and name their lines."""
    gone = '\n[[expected]]\nclause = "mask.*"\nreason = "left"\ncandidate = "gone"\n'
    make(folder, kernel=MENDED, expected=EXPECTED + gone)
    assert run(GATE) == 1
    out = capsys.readouterr().out
    assert "drop the expectation in line 4 of expected-failures.toml" in out
    assert "no candidate is called 'gone'; drop the expectation in line 11 of" in out


def test_an_expired_expectation_is_red(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the day after the last it is red, and names the day's line."""
    make(folder)
    monkeypatch.setenv("CONFORMANCE_TODAY", "2099-04-01")
    assert run([*GATE, "--json", "out.json"]) == 1
    assert "give it a later day in line 9 of expected-failures.toml" in capsys.readouterr().out
    (stale,) = json.loads(Path("out.json").read_text(encoding="utf-8"))["stale_expectations"]
    assert (stale["problem"], stale["line"]) == ("expired", 4)


def test_another_failure_is_red_until_it_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another diagnosis is red; renewing the file makes it green, the same the second time."""
    make(folder, kernel=DIFFERENT)
    assert run(GATE) == 1
    assert "it is diagnosed as mask-fill-1e6, not mask-fill-1e4" in capsys.readouterr().out
    path = folder / "expected-failures.toml"
    assert run([*CHECK, "--write-expected", path.name]) == 0
    assert "1 added, 0 kept, 1 dropped" in capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    (entry,) = tomllib.loads(text)["expected"]
    assert (entry["diagnosis"], entry["reason"]) == ("mask-fill-1e6", "TODO: say why")
    assert text.startswith("# Ours: ask the kernel team.\n")
    assert "# until now: hidden keys are filled with -1e4" in text
    assert run([*GATE, "--write-expected", path.name]) == 0
    assert path.read_text(encoding="utf-8") == text


def test_nothing_is_written_over_bad_input(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A target that cannot be loaded, or a file that is no TOML, leaves the file as it was."""
    make(folder, kernel="import nowhere\n")
    assert run([*GATE, "--write-expected", "expected-failures.toml"]) == 2
    path = folder / "expected-failures.toml"
    assert path.read_text(encoding="utf-8") == EXPECTED
    path.write_text("[[expected]\n", encoding="utf-8")
    assert run([*CHECK, "--write-expected", "expected-failures.toml"]) == 2
    assert path.read_text(encoding="utf-8") == "[[expected]\n"
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("git") is None, reason="pre-commit needs git")
def test_the_local_hook_gates_a_commit(tmp_path: Path) -> None:
    """pre-commit itself runs the local hook of the documentation, and refuses a regression."""
    config = yaml.safe_load((CHECKOUT / "docs" / "ci" / "pre-commit-local.yaml").read_text())
    config["repos"][0]["hooks"][0]["entry"] += f" {shlex.join(ASKED[2:])}"
    repository = tmp_path / "repository"
    make(repository, kernel=REGRESSED)
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    environment = {**surroundings(tmp_path / "bin"), "PRE_COMMIT_HOME": str(tmp_path / "cache")}
    for command in ("git init --quiet", "git add ."):
        subprocess.run(shlex.split(command), cwd=repository, env=environment, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color", "never"],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "attention conformance (quick)" in done.stdout
    assert "MUST clauses failed, for 1 cause" in done.stdout


def test_the_kernels_are_what_they_claim() -> None:
    """The sample's kernels differ in one place each."""
    assert len({KNOWN, MENDED, REGRESSED, DIFFERENT}) == 4
