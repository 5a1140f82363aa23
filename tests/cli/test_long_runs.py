"""Runs that are limited, spread or split: real ones, of few clauses."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from _paths import CHECKOUT
from command_line import COMMAND
from workspaces import KERNEL, write

from conformance.__main__ import run
from conformance.base import limits
from conformance.base.files import write_text
from conformance.base.limits import Deadline
from conformance.base.profile import Shard
from conformance.base.record import exit_code, record_text
from conformance.running.workers.messages import RunOptions
from conformance.running.workers.supervisor import Supervisor
from conformance.session.checking import check
from conformance.session.merging import merge_shards
from conformance.session.shards import read_shards

pytestmark = pytest.mark.usefixtures("warm_workers")

Capture = pytest.CaptureFixture[str]

# A right one, one that is wrong wherever keys are many, and one that dies.
CANDIDATES = (
    KERNEL
    + """

@conformance.core()
def rarely_wrong(query, key, value):
    return attend(query, key, value) + (key.shape[2] > 8)


@conformance.core()
def dies(query, key, value):
    if query.shape[2] > 6:
        import os
        os._exit(3)
    return attend(query, key, value)
"""
)
CLAUSES = ("shape.output", "shape.dtype", "shape.strided", "numerics.golden")
OPTIONS = RunOptions(targets=("attn.py",), profile="quick", only=CLAUSES)
UNLIKE = ("seconds", "started")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with the candidates, for all tests here."""
    folder = tmp_path_factory.mktemp("home")
    write(folder, {"attn.py": CANDIDATES})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        yield folder


@pytest.fixture(scope="module")
def whole(home: Path) -> dict[str, Any]:
    """The run of one worker on one machine."""
    assert home.is_dir()
    return check(OPTIONS)


@pytest.fixture(scope="module")
def shards(home: Path) -> list[Path]:
    """The same in three shards."""
    paths = []
    for index in (1, 2, 3):
        record = check(replace(OPTIONS, shard=Shard(index=index, count=3)))
        paths.append(home / f"shard-{index}.json")
        write_text(record_text(record), paths[-1])
    return paths


def alike(value: Any) -> Any:
    """A record without what two runs never share."""
    if isinstance(value, dict):
        return {key: alike(entry) for key, entry in value.items() if key not in UNLIKE}
    return [alike(entry) for entry in value] if isinstance(value, list) else value


def test_several_workers_make_the_same_record(whole: dict[str, Any]) -> None:
    """Also where a candidate fails, whose counterexamples are made small, and where one dies."""
    verdicts = {entry["name"]: entry["verdict"] for entry in whole["candidates"]}
    assert verdicts == {"my_kernel": "conforms", "rarely_wrong": "fails", "dies": "fails"}
    assert alike(check(OPTIONS, jobs=2)) == alike(whole)


def test_shards_merged_are_the_whole_run(whole: dict[str, Any], shards: list[Path]) -> None:
    """Clauses, levels, statuses, examples, binding ones and margins are those of one run."""
    merged = merge_shards(read_shards(list(reversed(shards))))
    same = ("id", "level", "status", "reason", "dtype", "device", "requirement")
    counts = ("examples", "binding", "margin")
    for entry, other in zip(whole["candidates"], merged["candidates"], strict=True):
        assert (entry["name"], entry["verdict"]) == (other["name"], other["verdict"])
        names = same if entry["name"] == "my_kernel" else ("id", "level", "status")
        # Each machine gives what dies up by itself, after three clauses in a row.
        names = ("id", "level") if entry["name"] == "dies" else (*names, *counts)
        for mine, theirs in zip(entry["clauses"], other["clauses"], strict=True):
            assert [mine[name] for name in names] == [theirs[name] for name in names]
            assert "trail" not in theirs
            if entry["name"] != "dies":
                assert (theirs["counterexample"] is None) == (mine["counterexample"] is None)
    assert merged["merged"] == {"shards": 3}
    assert "shard" not in merged
    assert exit_code(merged) == exit_code(whole) == 1


def test_every_example_is_in_one_shard(whole: dict[str, Any], shards: list[Path]) -> None:
    """Of a candidate without failures the shards' examples add up to those of the whole run."""
    records = [json.loads(path.read_text()) for path in shards]
    for number, clause in enumerate(whole["candidates"][0]["clauses"]):
        parts = [record["candidates"][0]["clauses"][number]["examples"] for record in records]
        assert sum(parts) == clause["examples"]
        assert max(parts) - min(parts) <= 1


def test_a_shard_is_no_verdict(shards: list[Path]) -> None:
    """Its record and the reason of its verdict say what it is; only a failure makes it red."""
    record = json.loads(shards[1].read_text())
    assert (record["shard"]["index"], record["shard"]["count"]) == (2, 3)
    right = record["candidates"][0]
    assert right["verdict"] == "inconclusive"
    assert right["verdict_reason"].startswith("shard 2 of 3 found no failure")
    assert exit_code(record) == 1
    assert exit_code({**record, "candidates": [right]}) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda record: record.update(seed=1), "the seed is 0 in one and 1 in the other"),
        (lambda record: record.update(profile="default"), "the profile is 'quick' in one"),
        (lambda record: record["tool"].update(specification="x"), "the specification is"),
        (lambda record: record["environment"].update(torch="1.0"), "the version of torch is"),
        (lambda record: record["options"].update(targets=["x.py"]), "the option for targets is"),
        (lambda record: record["shard"].update(count=5), "the number of shards is 3"),
        (lambda record: record["shard"].update(index=1), "are both shard 1/3"),
        (lambda record: record["shard"].update(index=9), "which is none: was it edited?"),
        (lambda record: record["shard"].update(index="2"), "which is none: was it edited?"),
        (lambda record: record.pop("shard"), "is no shard of a run"),
        (lambda record: record.update(interrupted=True), "was interrupted"),
        (lambda record: record["candidates"][0].update(name="other"), "they list other candidates"),
        (lambda record: record["candidates"][0]["clauses"].pop(), "lists other clauses"),
        (lambda record: record["candidates"][0].pop("shard"), "cannot be merged"),
    ],
)
def test_shards_of_different_runs_are_refused(
    shards: list[Path], tmp_path: Path, change: Any, sentence: str
) -> None:
    """One sentence names the files and what differs; no half-right record is made."""
    from conformance.errors import UsageError  # noqa: PLC0415 (the name is used here alone)

    record = json.loads(shards[1].read_text())
    if "cannot be merged" in sentence:
        record = json.loads(shards[0].read_text())
    change(record)
    changed = tmp_path / "changed.json"
    write_text(record_text(record), changed)
    paths = [*shards[:1], changed, *shards[2:]]
    if "cannot be merged" in sentence:
        paths = [changed, *shards[1:]]
    with pytest.raises(UsageError) as refused:
        merge_shards(read_shards(paths))
    assert sentence in str(refused.value)


def test_a_missing_shard_is_named(shards: list[Path], capsys: Capture) -> None:
    """Two of three are no run."""
    assert run(["merge", *map(str, shards[:2])]) == 2
    sentence = "conformance: shard 3 of 3 missing: give the records of all 3\n"
    assert capsys.readouterr().err == sentence


def test_merge_writes_every_view(shards: list[Path], tmp_path: Path, capsys: Capture) -> None:
    """The command ends with the exit code of the whole run, and writes what is asked for."""
    files = [tmp_path / name for name in ("report.json", "page.html", "badge.json")]
    options = ["--json", files[0], "--html", files[1], "--badge", files[2]]
    assert run(["merge", *map(str, [*shards, *options])]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert "merged from 3 shards" in said.out
    assert all(path.stat().st_size for path in files)


def test_a_hanging_candidate_is_cut_off_at_the_limit(folder: Path) -> None:
    """The clause it hangs in says so, and those behind it were not run; nothing is lost."""
    body = "    import time\n    if query.shape[2] > 4:\n        time.sleep(600)\n    return attend"
    write(folder, {"attn.py": KERNEL.replace("    return attend", body)})
    # A trial call would hang, too, and no limit of a run counts while its targets are loaded.
    options = RunOptions(targets=("attn.py",), profile="quick", only=CLAUSES[:3], preflight=False)
    with Supervisor(options, timeout=500.0) as supervisor:
        supervisor.start()
        supervisor.load()
        supervisor._deadline = Deadline(limit=2.0)
        cut, *others = supervisor.run_candidate(0)
    assert cut.status == "untestable"
    assert cut.reason.startswith("not run to its end: the limit of 2 s was reached after ")
    assert cut.reason.endswith("none of which failed; the next one had not been answered")
    assert cut.planned is not None
    assert cut.examples < cut.planned
    outcomes = {(result.status, result.reason) for result in others}
    assert outcomes == {("untestable", "not run: the limit of 2 s was reached")}


def test_time_counts_from_when_the_command_began(tmp_path: Path) -> None:
    """What was spent before, importing say, is taken from the limit: nothing is begun after it."""
    write(tmp_path, {"attn.py": KERNEL})
    began = time.monotonic() - 3600.0
    options = RunOptions(targets=(str(tmp_path / "attn.py"),), profile="quick")
    report = check(options, max_time=3500.0, began=began)
    assert report["limit"]["reached"] is True
    assert report["limit"]["loaded"] is False


def test_a_clause_is_cut_off_between_examples(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ends a clause by itself, so that what it counted is known."""
    # Time enough to do so where the processors are busy.
    monkeypatch.setattr(limits, "_GRACE_PARTS", 1)
    monkeypatch.setattr(limits, "_MOST_GRACE", 30.0)
    slow = "    import time\n    time.sleep(0.2)\n    return attend"
    write(folder, {"attn.py": KERNEL.replace("    return attend", slow)})
    options = RunOptions(targets=("attn.py",), profile="quick", only=CLAUSES[:2])
    with Supervisor(options) as supervisor:
        supervisor.start()
        supervisor.load()
        supervisor._deadline = Deadline(limit=3.0)
        cut, other = supervisor.run_candidate(0)
        assert supervisor._process is not None
    assert 0 < cut.binding <= cut.examples < (cut.planned or 0)
    assert (
        f"after {cut.examples} of about {cut.planned} examples, none of which failed" in cut.reason
    )
    assert other.reason == "not run: the limit of 3 s was reached"


def test_a_limit_before_anything_is_loaded_leaves_a_valid_report(folder: Path) -> None:
    """Nobody imports torch in ten milliseconds: the report says that nothing was loaded.

    The target has a verdict all the same, and the record can be shown again.
    """
    write(folder, {"attn.py": KERNEL})
    done = subprocess.run(
        [*COMMAND, "check", "attn.py", "--max-time", "0.01", "--json", "out.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the limit of 0.01 s was reached before attn.py was loaded" in done.stdout
    record = json.loads((folder / "out.json").read_text())
    assert record["limit"] == {
        "seconds": 0.01, "reached": True, "not_run": 0, "not_finished": 0, "loaded": False,
    }  # fmt: skip
    (entry,) = record["candidates"]
    assert (entry["name"], entry["verdict"]) == ("attn.py", "inconclusive")
    reason = "the limit of 0.01 s was reached before attn.py was loaded; no clause was run"
    assert entry["verdict_reason"] == reason
    shown = subprocess.run(
        [*COMMAND, "render", "out.json", "--html", "out.html"], capture_output=True, check=False
    )
    page = (folder / "out.html").read_text().replace("<wbr>", "")
    assert (shown.returncode, reason in page) == (0, True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--max-time", "soon"), "--max-time 'soon' is no duration"),
        (("--jobs", "0"), "--jobs '0' is no number of workers"),
        (("-n", "many"), "--jobs 'many' is no number of workers"),
        (("--shard", "3/2"), "--shard 3/2: the shards of 2 are 1/2 to 2/2"),
        (("--database", "ftp://x"), "no database is reached by ftp://"),
        (("--shard", "1/2", "--write-expected", "known.toml"), "--write-expected needs the whole"),
    ],
)
def test_bad_options(
    folder: Path, options: tuple[str, ...], sentence: str, capsys: Capture
) -> None:
    """One sentence and exit code 2, before any worker is started."""
    write(folder, {"attn.py": KERNEL})
    assert run(["check", "attn.py", *options]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_an_interrupt_ends_all_workers(folder: Path) -> None:
    """Ctrl-C leaves a report of what was done, and no process behind."""
    body = "    open(f'started-{os.getpid()}', 'w').close()\n    time.sleep(0.2)\n    return attend"
    text = f"import os, time\n{KERNEL.replace('    return attend', body)}"
    write(folder, {"attn.py": text})
    process = subprocess.Popen(
        [*COMMAND, "check", "attn.py", "--profile", "quick", "-n", "2", "--json", "out.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(folder.glob("started-*"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "")
    assert json.loads((folder / "out.json").read_text())["interrupted"] is True
    for path in folder.glob("started-*"):
        assert not Path("/proc", path.name.partition("-")[2]).exists()


def test_what_failed_is_asked_first_the_next_time(folder: Path) -> None:
    """The database makes the next run red at its first example, until the candidate is right."""
    write(folder, {"attn.py": CANDIDATES})
    only = replace(OPTIONS, targets=("attn.py:rarely_wrong",), only=("numerics.golden",))
    options = replace(only, databases=("failures",), explain=False)

    def clause() -> Any:
        return check(options)["candidates"][0]["clauses"][0]

    first, second = clause(), clause()
    assert (first["status"], second["status"]) == ("failed", "failed")
    assert first["examples"] > second["examples"] == 1
    write(folder, {"attn.py": CANDIDATES.replace("> 8", "> 8000")})
    third, fourth = clause(), clause()
    assert (third["status"], fourth["status"]) == ("passed", "passed")
    assert third["examples"] > fourth["examples"]


def test_the_page_about_long_runs_shows_a_workflow_that_merges_what_it_splits() -> None:
    """The YAML of the page is whole: as many machines as its command divides by, then a merge."""
    page = (CHECKOUT / "docs" / "long-runs.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    shard, verdict = workflow["jobs"]["shard"], workflow["jobs"]["verdict"]
    machines = shard["strategy"]["matrix"]["shard"]
    assert machines == [1, 2, 3, 4]
    commands = [step.get("run", "") for step in shard["steps"]]
    assert any(
        f"--shard ${{{{ matrix.shard }}}}/{len(machines)}" in command for command in commands
    )
    assert verdict["needs"] == "shard"
    assert any("conformance merge shard-*.json" in step.get("run", "") for step in verdict["steps"])
