"""Which worker runs which clause, with workers that answer at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from records import loaded, result

from conformance.base.results import ClauseResult, Violation
from conformance.running.clause_run import PlannedClause
from conformance.running.workers.messages import Loaded, Order
from conformance.session.schedule import CONTRADICTIONS, EXPLAINED, TAMPERED, Chunk, Schedule

pytestmark = pytest.mark.usefixtures("warm_workers")

SLUGS = ("mask.golden", "mask.no-leak", "shape.output")
TASKS = tuple(
    PlannedClause(
        id=slug, family=slug.partition(".")[0], level="MUST", dtype="float32", device="cpu"
    )
    for slug in SLUGS
)


class Worker:
    """Answers with what ``says`` returns, and records its calls."""

    is_over = False

    def __init__(self, says: Callable[[str, Order], ClauseResult]) -> None:
        self.says = says
        self.calls: list[tuple[str, str]] = []
        self.on_failure: Callable[[Loaded, str], None] = lambda _loaded, _slug: None

    deadline = None

    def run_candidate(
        self, index: int, numbers: Sequence[int], order: Order
    ) -> Iterator[ClauseResult]:
        """Record the clauses and answer."""
        return self.run_each(index, ((number, order) for number in numbers))

    def run_each(self, _index: int, asked: Iterable[tuple[int, Order]]) -> Iterator[ClauseResult]:
        """Record each clause and answer."""
        for number, order in asked:
            kind = (
                f"round {order.round}" if order.round else "deferred" if order.deferred else "run"
            )
            self.calls.append((kind, SLUGS[number]))
            yield self.says(SLUGS[number], order)

    def explain(self, _index: int, number: int, clause_result: ClauseResult) -> ClauseResult:
        """Record the call and answer."""
        self.calls.append(("explain", SLUGS[number]))
        return clause_result.replace(reason="explained")

    def perform(self, _index: int, job: str) -> list[str]:
        """Answer with the name of the job."""
        return [job]


class Pool:
    """One worker that does every part in turn."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def announce_failures(self, on_failure: Any) -> None:
        """Have the worker tell what fails."""
        self.worker.on_failure = on_failure

    def work(self, parts: list[Chunk], do: Any, receive: Any, *, admits: Any) -> None:
        """Do every part in this thread."""
        for part in parts:
            if not admits(part, None):
                continue
            for report in do(self.worker, part, lambda: False):
                if not admits(part, report):
                    break
                receive(part, report)


class Rounds:
    """A deadline with time for some questions of how much of it is left."""

    def __init__(self, times: int) -> None:
        self.times = times

    def left(self) -> float:
        """One less than before."""
        self.times -= 1
        return max(0.0, float(self.times))


def passes(slug: str, _order: Order) -> ClauseResult:
    """A worker on whose candidate nothing is wrong."""
    return result("passed", slug, examples=4, binding=4)


def spread(worker: Worker, **more: Any) -> Schedule:
    """A run of one candidate."""
    candidates: list[Loaded] = more.pop("loaded", [loaded(planned=TASKS)])
    return Schedule(
        pool=Pool(worker),  # type: ignore[arg-type]
        loaded=candidates,
        judge=lambda _loaded, clause_result: clause_result,
        progress=more.pop("progress", lambda _activity, _done, _total, _left=None: None),
        **more,
    )


def test_one_worker_asks_in_the_order_of_the_plan() -> None:
    """Nothing waits, nothing is run twice."""
    worker = Worker(passes)
    run = spread(worker)
    run.run()
    assert worker.calls == [("run", slug) for slug in SLUGS]
    assert [clause_result.id for clause_result in run.results_of(0)] == list(SLUGS)
    assert run.warnings == {0: [TAMPERED]}


def test_what_fails_is_shown_before_its_result() -> None:
    """The search for its cause may take seconds, in which nothing else would move."""
    shown: list[str] = []

    def says(slug: str, _order: Order) -> ClauseResult:
        worker.on_failure(loaded(planned=TASKS), slug)
        return result("failed", slug, examples=1)

    worker = Worker(says)
    spread(worker, progress=lambda activity, *_: shown.append(activity)).run()
    name = loaded().name
    assert shown[:2] == [f"{name} fails {SLUGS[0]}: looking for the cause", f"{name} {SLUGS[0]}"]


@pytest.mark.parametrize("name", ["unknown-mistake", "scale-missing"])
def test_only_what_nobody_has_looked_into_follows_from_the_unknown(name: str) -> None:
    """A failure that is unknown itself follows from a named one at most."""
    told = {"name": "unknown-mistake", "text": "", "fix": "", "confidence": 0.0}
    violation = Violation(kind="value", message="off")
    diagnoses = dict(zip(SLUGS, ([told], [], [{**told, "name": "scale-missing"}]), strict=True))

    class Naming(Worker):
        def perform(self, _index: int, job: str, failures: Sequence[Any] = ()) -> list[str]:
            return [name] * len(failures) if job == EXPLAINED else [job]

    def says(slug: str, _order: Order) -> ClauseResult:
        return result("failed", slug, violation=violation, diagnosis=diagnoses[slug])

    run = spread(Naming(says))
    run.run()
    named = name != "unknown-mistake"
    assert [one.explained_by for one in run.results_of(0)] == [name if named else None, name, None]


def test_failures_of_a_spread_candidate_are_explained_in_order() -> None:
    """Which failures were made small before decides how small the next gets."""

    def says(slug: str, _order: Order) -> ClauseResult:
        return result("passed" if slug == "mask.no-leak" else "failed", slug, examples=1)

    worker = Worker(says)
    run = spread(worker, jobs=4)
    run.run()
    assert worker.calls == [
        *(("deferred", slug) for slug in SLUGS),
        ("explain", "mask.golden"),
        ("explain", "shape.output"),
    ]
    assert [clause_result.reason for clause_result in run.results_of(0)] == [
        "explained",
        "",
        "explained",
    ]
    assert run.warnings[0] == [CONTRADICTIONS, TAMPERED]


@pytest.mark.parametrize("kind", ["hung", "crashed"])
def test_a_spread_candidate_that_is_lost_is_run_again_in_order(kind: str) -> None:
    """It is given up after some clauses in a row: only one worker can count them."""

    def says(slug: str, order: Order) -> ClauseResult:
        clause_result = result("failed", slug, examples=1, reason="in order")
        assert clause_result.violation is not None
        if order.deferred:
            clause_result = clause_result.replace(reason="spread")
        return clause_result.replace(
            violation=type(clause_result.violation)(kind=kind, message="lost")
        )

    worker = Worker(says)
    run = spread(worker, jobs=2)
    run.run()
    assert worker.calls[-3:] == [("run", slug) for slug in SLUGS]
    assert {clause_result.reason for clause_result in run.results_of(0)} == {"in order"}


def test_many_candidates_are_not_split() -> None:
    """Their clauses share goldens with each other."""
    worker = Worker(passes)
    run = spread(worker, jobs=2, loaded=[loaded(str(n), planned=TASKS) for n in range(4)])
    run.run()
    assert {kind for kind, _ in worker.calls} == {"run"}


@pytest.mark.parametrize("jobs", [1, 4])
def test_a_profile_explores_until_the_time_is_up(jobs: int) -> None:
    """Rounds behind the first add examples to the clauses that have not failed."""

    def says(slug: str, order: Order) -> ClauseResult:
        if slug == "shape.output" and order.round == 2:
            return result("failed", slug, examples=1, binding=1)
        return passes(slug, order)

    worker = Worker(says)
    run = spread(worker, jobs=jobs, deadline=Rounds(60), explores=True)
    run.run()
    assert run.rounds > 3
    first, _, last = run.results_of(0)
    assert (first.status, last.status) == ("passed", "failed")
    assert first.examples == 4 + 4 * run.rounds
    assert last.examples == 4 + 4 + 1
    assert ("round 3", "shape.output") not in worker.calls
    assert (
        run.explored == sum(clause_result.examples for clause_result in run.results_of(0)) - 3 * 4
    )


def test_other_profiles_do_not() -> None:
    """Time that is left is left."""
    worker = Worker(passes)
    run = spread(worker, deadline=Rounds(60))
    run.run()
    assert run.rounds == 0
    assert len(worker.calls) == len(SLUGS)


def test_what_was_found_is_not_taken_back_when_the_time_is_up() -> None:
    """A candidate that is run again keeps the results of clauses that are not reached again."""

    def says(slug: str, order: Order) -> ClauseResult:
        if not order.deferred:
            return result("untestable", slug, reason="not run: the limit of 60 s was reached")
        clause_result = result("failed", slug, examples=3)
        assert clause_result.violation is not None
        return clause_result.replace(
            violation=type(clause_result.violation)(kind="hung", message="hung")
        )

    run = spread(Worker(says), jobs=2, deadline=Rounds(2))
    run.run()
    assert [clause_result.status for clause_result in run.results_of(0)] == [
        "failed",
        "untestable",
        "untestable",
    ]


def test_nothing_is_explored_after_the_first_failure() -> None:
    """A run of any profile that ends with its first failure asks no further examples."""

    def says(slug: str, _order: Order) -> ClauseResult:
        return result("failed" if slug == "mask.no-leak" else "passed", slug, examples=4)

    worker = Worker(says)
    run = spread(worker, exitfirst=True, explores=True, deadline=Rounds(9))
    run.run()
    assert worker.calls == [("run", "mask.golden"), ("run", "mask.no-leak")]
    assert run.rounds == 0


def test_until_a_first_failure_every_clause_is_asked_one_example_soon() -> None:
    """After three clauses each other one gets one example, before any of them gets all of its own.

    Then the next of them gets some dozens and each that finds most a few. A clause is given once,
    with all its examples and the seconds of all parts.
    """
    slugs = ("mask.golden", "shape.output", "numerics.scale", "gradients.golden", "mask.bias")
    tasks = [replace(TASKS[0], id=slug, family=slug.partition(".")[0]) for slug in slugs]
    tasks.append(replace(TASKS[0], id="shape.dtype", level="SHOULD"))
    calls: list[tuple[str, int | None]] = []

    class Slow(Worker):
        def run_each(
            self, _index: int, asked: Iterable[tuple[int, Order]]
        ) -> Iterator[ClauseResult]:
            for number, order in asked:
                slug = tasks[number].id
                calls.append((slug, order.most))
                if order.most:
                    yield result("untestable", slug, examples=1, planned=4)
                else:
                    yield result("passed", slug, examples=4, binding=4)

    run = spread(Slow(passes), exitfirst=True, loaded=[loaded(planned=tuple(tasks))])
    run.run()
    first, others = slugs[:3], slugs[3:]
    assert calls[:5] == [*((slug, None) for slug in first), *((slug, 1) for slug in others)]
    assert calls[5:7] == [(others[0], 48), (others[1], 8)]
    assert calls[7:] == [(slug, None) for slug in (*others, "shape.dtype")]
    results = run.results_of(0)
    assert [(one.id, one.status, one.examples) for one in results] == [
        (task.id, "passed", 4) for task in tasks
    ]
    assert [one.seconds for one in results] == [0.5, 0.5, 0.5, 1.5, 1.5, 0.5]


def test_a_clause_whose_time_is_up_after_one_example_says_so() -> None:
    """What was asked before it was laid aside is not forgotten."""
    tasks = tuple(replace(TASKS[0], id=f"mask.{number}") for number in range(4))

    class Slow(Worker):
        def run_each(
            self, _index: int, asked: Iterable[tuple[int, Order]]
        ) -> Iterator[ClauseResult]:
            for number, order in asked:
                if number < 3:
                    yield result("passed", tasks[number].id, examples=4, binding=4)
                else:
                    examples = 1 if order.most else 0
                    yield result("untestable", tasks[number].id, examples=examples, planned=4)

    run = spread(Slow(passes), exitfirst=True, loaded=[loaded(planned=tasks)])
    run.run()
    assert [one.examples for one in run.results_of(0)] == [4, 4, 4, 1]


def test_clauses_of_a_slow_candidate_take_turns() -> None:
    """Each has one example before any has three; those laid aside say how far they came."""
    tasks = tuple(
        replace(TASKS[0], id=slug, family=slug.partition(".")[0])
        for slug in ("mask.unheard-of", "shape.unheard-of")
    )
    calls: list[tuple[str, int | None]] = []
    reasons: list[str] = []

    class Slow(Worker):
        def run_each(
            self, _index: int, asked: Iterable[tuple[int, Order]]
        ) -> Iterator[ClauseResult]:
            for number, order in asked:
                slug = tasks[number].id
                calls.append((slug, order.most))
                if order.most is not None and order.most < 8:
                    yield result("untestable", slug, examples=order.most, planned=5)
                else:
                    yield result("passed", slug, examples=5, binding=5)

    slow = replace(loaded(planned=tasks), call_seconds=0.5)
    run = spread(Slow(passes), loaded=[slow])
    receive = run._receive

    def kept(chunk: Chunk, report: Any) -> None:
        if isinstance(report, tuple):
            reasons.append(report[1].reason)
        receive(chunk, report)

    run._receive = kept  # type: ignore[method-assign]
    run.run()
    assert calls == [(task.id, most) for most in (1, 3, 8) for task in tasks]
    assert reasons[0] == "not run to its end: after 1 of about 5 examples, none of which failed"
    assert [(one.status, one.examples) for one in run.results_of(0)] == [("passed", 5)] * 2


def test_candidates_share_a_limit_by_what_they_need() -> None:
    """The quick one comes first, and leaves most of the time to the slow one behind it."""
    slow = replace(loaded("slow", planned=TASKS), call_seconds=0.495)
    quick = replace(loaded("quick", planned=TASKS), call_seconds=0.0)
    run = spread(Worker(passes), loaded=[slow, quick], deadline=Rounds(60))
    parts = run._sharing([run._whole(0), run._whole(1)])
    assert [part.index for part in parts] == [1, 0]
    assert parts[0].share == pytest.approx(0.01, rel=0.02)
    assert parts[1].share == 1.0
