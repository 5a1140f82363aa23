"""``--device`` on a device that is none: everything but the hardware is as with CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import fake_device
import pytest

from conformance.__main__ import run

TARGET: Final = str(fake_device.HERE / "candidates.py")
ACTED: Final = str(fake_device.HERE / "acted.py")
ONLY: Final = (
    *("--only", "device.*", "--only", "shape.output", "--only", "numerics.golden"),
    *("--only", "mask.single-key"),
)
BROKEN: Final = ("--only", "shape.output", "--only", "shape.strided", "--only", "numerics.golden")
# A part of the examples: what only a device shows does not lie in one of them alone.
QUICK: Final = ("--profile", "quick", "--shard", "1/5", *ONLY)
NOTHING: Final[frozenset[str]] = frozenset()
UNUSABLE: Final = frozenset(
    {
        "shape.output",
        "numerics.golden",
        "mask.single-key",
        "device.matches-cpu",
        "device.deterministic",
        "device.stream",
        "device.canaries",
    }
)
FAILED: Final = {
    "right": NOTHING,
    "right_module": NOTHING,
    "right_layer": NOTHING,
    "answers_on_the_cpu": UNUSABLE,
    "forgets_a_constant": {"shape.output"},  # it answers no call there: one clause tells
    "other_on_the_device": {"numerics.golden", "device.matches-cpu"},
    "mask-fill-1e4": {"mask.single-key"},
    "on_the_default_stream": {"device.stream"},
    "other_bits_each_time": {"device.deterministic"},
    "decided_at_capture": {"device.graph-capture"},
    "all_scores": {"device.memory"},
}

Report = dict[str, Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device, compiled once."""
    assert fake_device.compiler(), "these tests compile a device: install g++ or clang++"
    return fake_device.built(tmp_path_factory.mktemp("device"))


@pytest.fixture(scope="module")
def checked(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report of every candidate on the device."""
    folder = tmp_path_factory.mktemp("checked")
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch, folder, library)
        targets = [ACTED, *(f"{TARGET}:{name}" for name in FAILED if name != "mask-fill-1e4")]
        words = [*targets, "--device", "fake", *QUICK, "--json", "out.json"]
        assert run(["check", *words]) == 1
    return folder


@pytest.fixture
def there(checked: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the working folder of a process that finds the device."""
    prepare(monkeypatch, checked, library)
    return checked


def prepare(patch: pytest.MonkeyPatch, folder: Path, library: Path) -> None:
    """Let processes that are started find the device."""
    patch.chdir(folder)
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setenv(fake_device.LIBRARY, str(library))


def candidates(path: Path) -> dict[str, Report]:
    """The candidates of a report by name."""
    entries = json.loads(path.read_text(encoding="utf-8"))["candidates"]
    return {entry["name"]: entry for entry in entries}


@pytest.mark.parametrize("name", list(FAILED))
def test_what_fails_on_the_device(checked: Path, name: str) -> None:
    """Right candidates pass, modules made on the CPU are moved; each mistake fails its clauses."""
    clauses = candidates(checked / "out.json")[name]["clauses"]
    assert {clause["device"] for clause in clauses} == {"fake:0"}
    assert {c["id"] for c in clauses if c["status"] == "failed"} - {
        "device.fresh-memory"
    } == FAILED[name]
    assert {c["status"] for c in clauses} <= {"passed", "failed", "not-applicable"}


def test_every_clause_about_devices_is_asked(checked: Path) -> None:
    """Somebody passes each, and somebody fails each but those that a CPU can show as well."""
    every = [c for entry in candidates(checked / "out.json").values() for c in entry["clauses"]]
    slugs = {c["id"] for c in every if c["id"].startswith("device.")}
    passed = {c["id"] for c in every if c["status"] == "passed"}
    declared = {"device.batch-invariant", "device.fresh-memory"}  # nobody here promises or does it
    assert slugs - passed == declared


@pytest.mark.parametrize(
    ("name", "slug", "message"),
    [
        (
            "answers_on_the_cpu",
            "numerics.golden",
            "the output is on the device cpu where the inputs are on fake:0",
        ),
        ("forgets_a_constant", "shape.output", "Expected all tensors to be on the same device"),
    ],
)
def test_a_misplaced_tensor_is_told(checked: Path, name: str, slug: str, message: str) -> None:
    """Where the answer or a constant lies is what the report says."""
    clauses = candidates(checked / "out.json")[name]["clauses"]
    assert message in next(c["reason"] for c in clauses if c["id"] == slug)


def causes(path: Path, name: str) -> dict[str, Report]:
    """The causes of a candidate by name."""
    return {cause["name"]: cause for cause in candidates(path)[name]["causes"]}


def test_work_that_does_not_wait_is_told(checked: Path) -> None:
    """What waiting for the device mends is put down to streams, with what orders them."""
    (cause,) = causes(checked / "out.json", "on_the_default_stream").values()
    assert cause["name"] == "streams-not-ordered"
    assert cause["text"].startswith("its work starts before its inputs are there")
    assert "torch.fake.current_stream()" in cause["fix"]
    assert "streams-not-ordered" not in causes(checked / "out.json", "other_bits_each_time")


def test_what_is_wrong_on_the_device_alone_is_told(checked: Path) -> None:
    """One cause, which the difference from the CPU joins; what errs on both is no device's."""
    (cause,) = causes(checked / "out.json", "other_on_the_device").values()
    alone = "; on fake:0 alone: on the CPU this call is answered rightly"
    assert cause["text"].endswith(alone)
    assert cause["name"] == "scale-off"
    assert "device.matches-cpu" in cause["clauses"]
    (cause,) = causes(checked / "out.json", "mask-fill-1e4").values()
    assert cause["name"] == "mask-fill-1e4"
    assert alone not in cause["text"]


def test_a_misplaced_tensor_has_a_fix(checked: Path) -> None:
    """What to change where a tensor lies on another device."""
    (answer,) = causes(checked / "out.json", "answers_on_the_cpu").values()
    assert answer["fix"] == "return the answer on the device of the query"
    (constant,) = causes(checked / "out.json", "forgets_a_constant").values()
    assert "device=query.device" in constant["fix"]


NO_MISTAKES: Final = """
from fake_device import candidates
from conformance.base.results import Violation
from conformance.clauses.device import stream
from conformance.clauses.subject import Subject
from conformance.diagnosis.battery import plain_problem
from conformance.diagnosis.chance import unordered_entry
from conformance.diagnosis.earlier_calls import keeps_state
from conformance.diagnosis.refused_sizes import RAISES, RIGHT, RefusedSizes

def on_device(candidate):
    subject = Subject(candidate, "float32", "fake:0")
    return subject, plain_problem(subject)

subject, plain = on_device(candidates.right)
print("a last bit is no state:", keeps_state(subject, plain))
print("nor is it:", keeps_state(*on_device(candidates.other_bits_each_time)))
filled = stream(subject, plain).violation
print("what fills inputs late is no change by a candidate:", filled, subject.edited)
failures = iter([True])
entry = unordered_entry(subject, lambda subject: next(failures, False), proven=False)
print("what is right later on waits for no stream:", entry)
subject, plain = on_device(candidates.forgets_a_constant)
violation = Violation(kind="raised", message="raised RuntimeError: devices (k.py:1)")
some = lambda problem: (RAISES if problem.geometry.key_length == 7 else RIGHT, "")
entry = RefusedSizes().call(subject, plain, violation, some)
print("what the CPU answers is refused for no size:", entry)
"""
NOTHING_BLAMED: Final = """
a last bit is no state: False
nor is it: False
what fills inputs late is no change by a candidate: None []
what is right later on waits for no stream: None
what the CPU answers is refused for no size: None
"""


@pytest.mark.usefixtures("there")
def test_what_is_no_mistake_on_a_device() -> None:
    """Neither state, nor changed inputs, streams or sizes are blamed for what something else is."""
    start = f"import sys; sys.path.insert(0, {str(fake_device.HERE.parent)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", start + NO_MISTAKES], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == NOTHING_BLAMED.strip(), done.stderr


def test_who_answers_no_call_on_the_device_is_told_once(checked: Path) -> None:
    """What raises in every call there fails one clause; the others name it, and the device."""
    clauses = candidates(checked / "out.json")["forgets_a_constant"]["clauses"]
    reasons = {c["id"]: c["reason"] for c in clauses if c["status"] == "not-applicable"}
    said = "not asked: every call in float32 on fake:0 raises, as shape.output tells"
    assert all(reasons[slug] == said for slug in UNUSABLE - {"shape.output"})


def test_declared_devices_are_both_judged(there: Path) -> None:
    """Without ``--device`` each declared device is judged; ``device.matches-cpu`` on the other."""
    path = there / "both.json"
    only = ("--only", "numerics.golden", "--only", "device.matches-cpu")
    words = [f"{TARGET}:declared_for_both", "--profile", "quick", *only, "--json", str(path)]
    assert run(["check", *words]) == 0
    entry = candidates(path)["declared_for_both"]
    clauses = {(c["id"], c["device"]): c for c in entry["clauses"]}
    assert clauses["numerics.golden", "cpu"]["status"] == "passed"
    assert clauses["numerics.golden", "fake:0"]["status"] == "passed"
    assert clauses["device.matches-cpu", "fake:0"]["status"] == "passed"
    refused = clauses["device.matches-cpu", "cpu"]["reason"]
    assert refused == "it is judged on the CPU, and torch sees the CPU and fake:0 here"
    assert set(entry["declaration"]["precision"]) == {"float32 on cpu", "float32 on fake:0"}


def test_a_failure_is_replayed_on_its_device(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is right on the CPU fails again where it failed, and in a script without us, too."""
    path = there / "again.py"
    words = ["out.json#other_on_the_device/numerics.golden", "--emit-script", str(path)]
    assert run(["replay", "--trust", *words]) == 1
    assert "still fails" in capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    assert "DEVICE = 'fake:0'" in text
    start = f"import sys; sys.path.insert(0, {str(fake_device.HERE.parent)!r})\n"
    code = start + f"exec(compile(open({str(path)!r}).read(), {str(path)!r}, 'exec'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert "IT STILL FAILS" in done.stdout, done.stderr


def test_a_broken_device_is_left(there: Path) -> None:
    """The clause that broke it says so; those that come later get a process where it works."""
    path = there / "broken.json"
    words = ["--device", "fake", "--profile", "quick", *BROKEN, "--json", str(path)]
    assert run(["check", f"{TARGET}:breaks_the_device", *words]) == 1
    (entry,) = candidates(path).values()
    clauses = {clause["id"]: clause for clause in entry["clauses"]}
    assert clauses["shape.strided"]["violation"]["kind"] == "crashed"
    said = "the candidate broke its device: fake:0 does not answer any more (fake error: "
    assert clauses["shape.strided"]["reason"].startswith(said)
    assert "compute-sanitizer" in entry["causes"][0]["fix"]
    assert clauses["shape.output"]["status"] == clauses["numerics.golden"]["status"] == "passed"
