from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import conformance
from conformance.base.files import SCRATCH
from conformance.diagnosis.diagnostician import Diagnostician
from conformance.running import explainer
from conformance.session.checking import check as check_targets
from conformance.session.order import SOONEST
from conformance.tools import judge as tools_judge

UNSCALED = """
import torch


def attend(query, key, value, *, keep=None):
    scores = query @ key.mT
    return (scores if keep is None else scores.masked_fill(~keep, -torch.inf)).softmax(-1) @ value
"""
PROMISES = {"masks": ["keep"]}
FEW = ("shape.output", "numerics.golden", "numerics.scale")


@conformance.core()
def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Forgets the scale."""
    answer: Tensor = (query @ key.mT).softmax(-1) @ value
    return answer


@conformance.core()
def scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as it is specified."""
    answer: Tensor = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
    return answer


def test_sources_lie_where_a_worker_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge in a worker that is killed leaves nothing: whoever has started it removes them."""
    monkeypatch.setenv(SCRATCH, str(tmp_path))
    with conformance.Judge():
        assert [each.name[:18] for each in tmp_path.iterdir()] == ["conformance-judge-"]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def judge() -> Iterator[conformance.Judge]:
    """A warm judge, which these tests share."""
    with conformance.Judge(timeout=20.0) as made:
        yield made


def test_an_object_is_checked_where_it_is() -> None:
    """The report names the cause once, with its fix, its clauses and its smallest input."""
    report = conformance.check(unscaled, only=FEW)
    (cause,) = report.causes
    assert (report.verdict, report.conforms) == ("fails", False)
    assert (cause.name, cause.level) == ("scale-missing", "MUST")
    assert cause.clauses == ("numerics.golden", "numerics.scale")
    assert cause.counterexample is not None
    assert cause.counterexample["problem"]["geometry"]["batch"] == 1
    assert [clause.status for clause in report.clauses] == ["passed", "failed", "failed"]
    with pytest.raises(conformance.NonconformanceError, match=r"(?s)fails, .*scale-missing"):
        report.raise_for_verdict()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Diagnostician, "explain"),
        (Diagnostician, "explained_by"),
        (explainer, "smallest_failure"),
        (explainer, "describe"),
    ],
)
def test_an_error_while_naming_costs_no_report(
    owner: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks in the search for a cause, what failed stays failed and is reported."""

    def breaks(*_arguments: object, **_options: object) -> None:
        msg = "sizes do not fit"
        raise RuntimeError(msg)

    monkeypatch.setattr(owner, name, breaks)
    report = conformance.check(unscaled, only=(*FEW, "numerics.accumulation"))
    assert report.verdict == "fails"
    assert {"numerics.golden", "numerics.scale"} <= set(report.causes[0].clauses)


def test_values_of_another_size_end_no_search() -> None:
    """Where a known mistake takes keys for values, values of another size are no such case."""

    @conformance.core()
    def fast(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        if value.shape == key.shape:
            return weights @ key
        return weights @ value * (1.1 if value.shape[-1] % 2 else 1.0)

    report = conformance.check(fast, only=("numerics.golden", "numerics.key-shift"))
    assert report.verdict == "fails"
    assert not [cause for cause in report.causes if "an error of ours" in cause.text]


def test_the_record_is_that_of_the_command() -> None:
    """The text reads back as a record of schema 1 with the causes."""
    record = json.loads(conformance.check(scaled, only="shape.output").to_json())
    assert (record["schema"], record["candidates"][0]["verdict"]) == (1, "conforms")
    assert record["candidates"][0]["causes"] == []


def test_a_notebook_shows_the_cause() -> None:
    """The fragment has the verdict, the cause and its fix, escaped, no style sheet or script."""
    fragment = conformance.check(unscaled, only=FEW)._repr_html_()
    assert "<strong>fails</strong>" in fragment
    assert fragment.count("the scores are not scaled") == 1
    assert "<style" not in fragment
    assert "<script" not in fragment


def test_the_first_failure_ends_it() -> None:
    """What finds mistakes soonest is asked first, and nothing after the first failing MUST."""
    report = conformance.check([unscaled, scaled], exitfirst=True)
    first, second = report.candidates
    asked = [clause.id for clause in first.clauses if clause.status != "not-applicable"]
    assert [clause.status for clause in first.clauses].count("failed") == 1
    assert len(asked) <= SOONEST.index(first.causes[0].clauses[0]) + 1
    assert [cause.name for cause in first.causes] == ["scale-missing"]
    assert (second.verdict, second.clauses) == ("inconclusive", ())
    assert second.reason == "the run ended with its first failure"
    assert conformance.check(scaled, exitfirst=True, only=FEW).conforms


def test_a_verdict_without_a_name() -> None:
    """The first failure has the problem that it failed on, as it was drawn, and no mistake."""
    report = conformance.check(unscaled, exitfirst=True, explain=False)
    (cause,) = report.causes
    assert (report.verdict, cause.name) == ("fails", cause.clauses[0])
    assert cause.counterexample is not None
    assert cause.counterexample["problem"]["seed"] >= 0
    assert not any(clause.diagnosis for clause in report.clauses)
    assert cause.name in str(report)
    assert cause.name in report._repr_html_()


def test_no_time_left_is_no_verdict() -> None:
    """After the time limit no example is begun: the report says that it is inconclusive."""
    report = conformance.check(scaled, only="numerics.golden", time_limit=1e-6)
    assert report.verdict == "inconclusive"
    assert not report.conforms


def test_generated_source(judge: conformance.Judge) -> None:
    """A function in a text is judged in a process of its own, by what is promised of it."""
    report = judge.check_source(UNSCALED, "attend", promises=PROMISES, exitfirst=True)
    assert [cause.name for cause in report.causes] == ["scale-missing"]
    mended = UNSCALED.replace("key.mT", "key.mT / query.shape[-1] ** 0.5")
    assert judge.check_source(mended, "attend", promises=PROMISES, only="*.golden").conforms


def test_the_start_of_the_first_process_is_nobodys_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a first candidate's time begins, processes can be forked: that takes seconds."""
    warm: list[bool] = []

    def check(*positional: Any, **keywords: Any) -> Any:
        warm.append(judge._is_warm)
        return check_targets(*positional, **keywords)

    monkeypatch.setattr(tools_judge, "check_targets", check)
    with conformance.Judge() as judge:
        for limit in (None, 60.0):
            judge.check_source(UNSCALED, "attend", time_limit=limit, only="shape.output")
    assert warm == [False, True]


@pytest.mark.parametrize("name", ["min", "all"])
def test_builtins_that_a_source_replaces_are_its_own(judge: conformance.Judge, name: str) -> None:
    """The harness has its own again before it looks at what was imported."""
    text = f"import builtins\nbuiltins.{name} = lambda *_, **__: 0\n{UNSCALED}"
    report = judge.check_source(text, "attend", promises=PROMISES, exitfirst=True)
    assert [cause.name for cause in report.causes] == ["scale-missing"]


@pytest.mark.parametrize(
    ("hangs", "step"),
    [
        ("def attend(query, key, value):\n    while True: pass\n", "trying attend"),
        ("import time\ntime.sleep(600)\nattend = None\n", "loading "),
    ],
)
def test_what_no_time_is_left_for_has_a_verdict(
    judge: conformance.Judge, hangs: str, step: str
) -> None:
    """A text that hangs until its time is up is inconclusive, and the reason says in what."""
    report = judge.check_source(hangs, "attend", promises={}, time_limit=4.0)
    (candidate,) = report.candidates
    assert (report.verdict, candidate.verdict, candidate.name) == (
        "inconclusive", "inconclusive", "attend",
    )  # fmt: skip
    assert candidate.reason.startswith(f"the limit of 4 s was reached: {step}")
    assert candidate.reason.endswith(" s; no clause was run")
    assert candidate.reason.replace(" ", "") in "".join(str(report).split())


def test_the_reason_is_what_to_mend_first() -> None:
    """A failed MUST with its fix; never a recommendation, and nothing where all conforms."""
    report = conformance.check(unscaled, only=["numerics.golden", "mask"])
    assert report.reason == (
        "scale-missing: the scores are not scaled; divide them by the square root of the head size"
    )
    assert conformance.check(scaled, only="numerics.golden").reason == ""
    advice = tools_judge.Cause(
        name="s", text="t", fix="f", confidence=1.0, level="SHOULD", clauses=("a.b",)
    )
    record = {**report.record, "candidates": [{
        **report.record["candidates"][0],
        "verdict": "inconclusive",
        "verdict_reason": "the time was up",
    }]}  # fmt: skip
    candidate = dataclasses.replace(report.candidates[0], causes=(advice,))
    late = tools_judge.Report(record=record, verdict="inconclusive", candidates=(candidate,))  # type: ignore[arg-type]
    assert late.reason == "the time was up"


def test_what_dies_takes_nothing_along(judge: conformance.Judge) -> None:
    """A candidate that ends its process fails; the next one is judged as ever."""
    deadly = UNSCALED.replace("    scores =", "    import os; os._exit(3)\n    scores =")
    report = judge.check_source(deadly, "attend", promises=PROMISES, only="numerics.golden")
    assert [clause.violation and clause.violation.kind for clause in report.clauses] == ["crashed"]
    after = judge.check_source(UNSCALED, "attend", promises=PROMISES, only="shape.output")
    assert after.conforms


@pytest.mark.parametrize(
    ("text", "entry", "promises", "says"),
    [
        ("def attend(:", "attend", None, "generated.py"),
        ("raise ValueError('no')", "attend", None, "ValueError: no"),
        (UNSCALED, "other", None, "other"),
        (UNSCALED, "not a name", None, "entry='not a name' is no name"),
        (UNSCALED, "class", None, "entry='class' is no name"),
        (UNSCALED, "attend", {"masks": object()}, "no dict of literals"),
        (UNSCALED, "attend", {1: 2}, "no dict of literals"),
        (UNSCALED, "attend", {"semantics": "none"}, "no dict of literals"),
        (UNSCALED, "attend", {"semantics": {"scales": "none"}}, "scales"),
        (UNSCALED, "attend", {"masks": ["keeps"]}, "keeps"),
    ],
)
def test_source_that_cannot_be_used(
    judge: conformance.Judge, text: str, entry: str, promises: dict[str, object] | None, says: str
) -> None:
    """One sentence says what is wrong with a text, its entry or what it promises."""
    with pytest.raises(conformance.UsageError, match=says) as refused:
        judge.check_source(text, entry, promises=promises)
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("line", ["# -*- coding: latin-1 -*-", "# vim: set fileencoding=ascii :"])
def test_a_text_is_read_as_it_is(judge: conformance.Judge, line: str) -> None:
    """A line about the encoding of the file that a text came from says nothing of the text."""
    text = f"{line}\nassert ord('\u00e9') == 233\n{UNSCALED}"
    report = judge.check_source(text, "attend", promises=PROMISES, only="shape.output")
    assert report.conforms


def test_targets_that_cannot_be_used(tmp_path: Path) -> None:
    """As on the command line, in one sentence."""
    for target in (str(tmp_path / "none.py"), 3, torch.zeros(2), None):
        with pytest.raises(conformance.UsageError):
            conformance.check(target)
    with pytest.raises(conformance.UsageError, match=r"there is no profile 'quik'.*quick"):
        conformance.check(scaled, profile="quik")
    with pytest.raises(conformance.UsageError, match=r"@conformance\.layer$"):
        conformance.check(lambda q, k, v: q.sum() + k.sum() + v.sum())
    with pytest.raises(conformance.UsageError, match="seed=True is no seed"):
        conformance.check(scaled, seed=True)
    with pytest.raises(conformance.UsageError, match="is a context manager"):
        conformance.Judge().check_source(UNSCALED, "attend")


@pytest.mark.parametrize(
    "options",
    [
        {"only": 5},
        {"only": ["shape.output", 5]},
        {"skip": 5},
        {"dtypes": "int8"},
        {"dtypes": 3},
        {"seed": -1},
        {"seed": "0"},
        {"time_limit": -1},
        {"time_limit": math.nan},
        {"time_limit": "5"},
    ],
    ids=str,
)
def test_options_that_cannot_be_used(options: dict[str, Any]) -> None:
    """An option of the wrong kind is refused by its name, not ignored or met by a traceback."""
    with pytest.raises(conformance.UsageError, match=f"{next(iter(options)).removesuffix('s')}"):
        conformance.check(scaled, **options)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, "5", None, True])
def test_no_time_is_refused(timeout: Any) -> None:
    """A Judge waits for a number of seconds."""
    with pytest.raises(conformance.UsageError, match="is no time: give seconds above 0"):
        conformance.Judge(timeout=timeout)


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A right core."""
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


OF_STATE = ("numerics.golden", "gradients.golden", "state.*")


def test_checks_in_several_threads_wait_for_each_other() -> None:
    """What one of them sets up is not taken for what another's candidate has changed."""
    with ThreadPoolExecutor(2) as threads:
        candidates = [conformance.core()(fused) for _ in range(3)]
        checks = [threads.submit(conformance.check, one, only=OF_STATE) for one in candidates]
        assert all(check.result().conforms for check in checks)


def test_a_check_waits_no_longer_than_its_time_limit() -> None:
    """What another thread checks may take longer: the wait ends with a sentence."""
    entered, left = threading.Event(), threading.Event()

    def waits(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        entered.set()
        left.wait(60.0)
        return fused(query, key, value)

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(conformance.check, conformance.core()(waits), only="shape.output")
        assert entered.wait(60.0)
        with pytest.raises(conformance.UsageError, match="another thread checked objects"):
            conformance.check(conformance.core()(fused), only="shape.output", time_limit=0.5)
        left.set()
        assert first.result().conforms


@pytest.mark.parametrize(
    "mode",
    [
        torch.inference_mode,
        torch.no_grad,
        lambda: torch.autocast("cpu"),
        lambda: torch.device("meta"),
    ],
    ids=["inference", "no-grad", "autocast", "meta"],
)
def test_modes_of_the_caller_are_not_the_candidates(mode: Callable[[], Any]) -> None:
    """Inside of a mode that changes what torch computes the verdict is that of outside."""
    with mode():
        report = conformance.check(conformance.core()(fused), only=OF_STATE)
    assert report.conforms, report.candidates[0].reason


@pytest.mark.parametrize("semantics", [{"scale": "none"}, conformance.Semantics(scale="none")])
def test_promised_semantics(semantics: object) -> None:
    """Source may be declared to compute otherwise than the standard, by a point or its fields."""
    promises = {**PROMISES, "semantics": semantics}
    with conformance.Judge(promises=promises) as judge:
        assert judge.check_source(UNSCALED, "attend", only="numerics.golden").conforms


def test_promises_of_a_judge(judge: conformance.Judge) -> None:
    """Sources make the promises of their judge unless others are given; no promise is refused."""
    with conformance.Judge(promises=PROMISES) as promising:
        report = promising.check_source(UNSCALED, "attend", only="mask.golden")
        plain = promising.check_source(UNSCALED, "attend", promises={}, only="mask.golden")
    given = judge.check_source(UNSCALED, "attend", promises=PROMISES, only="mask.golden")
    assert report.causes[0].name == given.causes[0].name == "scale-missing"
    assert plain.clauses[0].status == "not-applicable"
    with pytest.raises(conformance.UsageError, match="no dict of literals"):
        conformance.Judge(promises={"masks": object()})


def test_source_that_declares_nothing_is_a_core(judge: conformance.Judge) -> None:
    """Generated code need not know this package: three arguments are query, key and value."""
    report = judge.check_source(UNSCALED, entry="attend", exitfirst=True)
    assert [cause.name for cause in report.causes] == ["scale-missing"]
    with pytest.raises(conformance.UsageError, match="the source is a bytes, no text"):
        judge.check_source(b"x = 1", "attend")  # type: ignore[arg-type]
