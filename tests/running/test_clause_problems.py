from __future__ import annotations

from declared import CANDIDATES
from hypothesis.database import InMemoryExampleDatabase

from conformance.base.geometry import PROBE, Geometry
from conformance.problems.problem import MaskPlan, Overrides, Problem
from conformance.running.clause_problems import MOST, FailureMemory

CORE = CANDIDATES["core"]
MASK = MaskPlan(pattern="padding", form="keep", shape="B11K")


def problem(size: int = 4, **more: object) -> Problem:
    """A problem of one length."""
    geometry: Geometry = PROBE.replace(key_length=size)
    return Problem(geometry=geometry, dtype="float32", seed=7).replace(**more)


def test_problems_come_back_as_they_were_the_smallest_first() -> None:
    """Masks, windows and plainer values survive; what is easiest to read comes first."""
    memory = FailureMemory(InMemoryExampleDatabase(), "spec")
    odd = problem(
        9, mask=MASK, window=(1, -1), overrides=Overrides(seed=7, tensors=(("query", (0.1, 3.0)),))
    )
    for kept in (odd, problem(5), problem(5), problem(1)):
        memory.keep(CORE, "mask.golden", kept)
    assert memory.problems(CORE, "mask.golden", "float32", "cpu") == [problem(1), problem(5), odd]
    assert not memory.trouble


def test_a_failure_is_of_one_candidate_clause_dtype_and_specification() -> None:
    """No other clause runs what failed there."""
    database = InMemoryExampleDatabase()
    memory = FailureMemory(database, "spec")
    memory.keep(CORE, "mask.golden", problem())
    assert not memory.problems(CANDIDATES["layer"], "mask.golden", "float32", "cpu")
    assert not memory.problems(CORE, "mask.no-leak", "float32", "cpu")
    assert not memory.problems(CORE, "mask.golden", "float16", "cpu")
    assert not memory.problems(CORE, "mask.golden", "float32", "cuda")
    assert not FailureMemory(database, "later").problems(CORE, "mask.golden", "float32", "cpu")


def test_what_passes_is_forgotten() -> None:
    """A problem that fails no more is let go of, the others stay."""
    memory = FailureMemory(InMemoryExampleDatabase(), "spec")
    memory.keep(CORE, "mask.golden", problem(2))
    memory.keep(CORE, "mask.golden", problem(3))
    memory.forget(CORE, "mask.golden", problem(2))
    assert memory.problems(CORE, "mask.golden", "float32", "cpu") == [problem(3)]


def test_a_few_are_read() -> None:
    """However many failed over the years."""
    memory = FailureMemory(InMemoryExampleDatabase(), "spec")
    for size in range(1, 3 * MOST):
        memory.keep(CORE, "mask.golden", problem(size))
    assert len(memory.problems(CORE, "mask.golden", "float32", "cpu")) == MOST


def test_what_others_wrote_there_is_passed_over() -> None:
    """Garbage in a shared database, and problems of another version, disturb nothing."""
    database = InMemoryExampleDatabase()
    memory = FailureMemory(database, "spec")
    memory.keep(CORE, "mask.golden", problem())
    (key,) = database.data
    for garbage in (b"", b"\xff", b"[1]", b'{"seed": 1}', b"null", b'{"geometry": {}}'):
        database.save(key, garbage)
    assert memory.problems(CORE, "mask.golden", "float32", "cpu") == [problem()]


def test_a_database_that_goes_away_disturbs_no_run() -> None:
    """A server that dies during the run costs the memory and not the verdict; a warning says so."""

    class Gone(InMemoryExampleDatabase):
        def fetch(self, key: bytes) -> object:  # type: ignore[override]
            raise ConnectionError(key.decode()[:4])

        save = delete = fetch  # type: ignore[assignment]

    memory = FailureMemory(Gone(), "spec")
    assert memory.problems(CORE, "mask.golden", "float32", "cpu") == []
    assert memory.trouble.startswith("ConnectionError: spec")
    memory.keep(CORE, "mask.golden", problem())
    memory.forget(CORE, "mask.golden", problem())
