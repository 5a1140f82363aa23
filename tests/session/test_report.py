from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from records import PROBLEM, READY, expected, loaded, result

from conformance.base.parameter_names import OptionParameter
from conformance.base.record import ClauseEntry, Reading, SiteEntry, exit_code, record_text
from conformance.base.results import EXCLUDE_GRADIENTS, ClauseResult, Violation
from conformance.running.workers.messages import RunOptions
from conformance.session.expectations import Stale
from conformance.session.report import (
    build_report,
    candidate_entry,
    causes_of,
    certain_results,
    joined_causes,
    verdict,
)

PASSED = result()
SHOULD_FAILED = result("failed", "mask.no-leak", "SHOULD")
MUST_FAILED = result("failed", "shape.output")
MASK = OptionParameter(name="attn_mask", option="mask")
ACCEPTED = OptionParameter(name="attn_mask", option="mask", accepted=True)
SCALE = OptionParameter(name="scale", option="scale")
NO_GRADIENT = result("not-applicable", "gradients.golden").replace(
    reason=f"its answer carries no gradient: {EXCLUDE_GRADIENTS}"
)
STALE = Stale(expectation=expected(), why="nothing that it covers failed")

VERDICTS: dict[str, tuple[str, list[ClauseResult], dict[str, Any]]] = {
    "all passed": ("conforms", [PASSED, result("not-applicable", "shape.output")], {}),
    "a SHOULD failed": ("conforms", [PASSED, SHOULD_FAILED], {}),
    "a SHOULD untestable": ("conforms", [PASSED, result("untestable", level="SHOULD")], {}),
    "an expected failure": ("conforms-with-deviations", [PASSED, result("expected-failure")], {}),
    "a declared deviation": ("conforms-with-deviations", [PASSED], {"deviations": ("scale",)}),
    "unknown weights": ("conforms-up-to-gauge", [PASSED], {"gauge": "its weights are unknown"}),
    "a MUST untestable": ("inconclusive", [PASSED, result("untestable")], {}),
    "a mask unchecked": ("inconclusive", [PASSED], {"unchecked": (MASK,)}),
    "a mask unchecked on purpose": ("conforms", [PASSED], {"unchecked": (ACCEPTED,)}),
    "a scale unchecked": ("conforms", [PASSED], {"unchecked": (SCALE,)}),
    "no clause of masks selected": (
        "conforms",
        [result(slug="shape.output")],
        {"unchecked": (MASK,)},
    ),
    "gradients that nobody excluded": ("inconclusive", [PASSED, NO_GRADIENT], {}),
    "an option without gradients": (
        "conforms",
        [result(slug="gradients.golden"), NO_GRADIENT.replace(id="gradients.dropout")],
        {},
    ),
    "gradients excluded": ("conforms", [PASSED, NO_GRADIENT.replace(reason="it has none")], {}),
    "nothing run": ("inconclusive", [], {}),
    "nothing applicable": ("inconclusive", [result("not-applicable")], {}),
    "a MUST failed": ("fails", [PASSED, MUST_FAILED, result("untestable")], {}),
    "an unexpected pass": ("fails", [PASSED, result("unexpected-pass")], {}),
    "the harness failed": ("error", [MUST_FAILED, result("error")], {}),
}


@pytest.mark.parametrize(("word", "results", "more"), VERDICTS.values(), ids=VERDICTS.keys())
def test_verdicts(word: str, results: list[ClauseResult], more: dict[str, Any]) -> None:
    """The gravest result decides the verdict."""
    assert verdict(loaded(**more), results)[0] == word


def test_what_was_not_checked_is_said() -> None:
    """A mask that nobody declared is why, with what to do; other options are named."""
    reason = verdict(loaded(unchecked=(MASK, SCALE)), [PASSED])[1]
    assert reason == (
        "conforms, but `attn_mask` was not checked: declare what it means with masks= "
        "('conformance identify attn.py:mine' says what is known of it), or let it stay so "
        "with unchecked=['attn_mask'] or --unchecked attn_mask"
    )
    reason = verdict(loaded(unchecked=(ACCEPTED, SCALE)), [PASSED])[1]
    assert reason == "every applicable MUST clause passed; not checked: attn_mask, scale"
    assert verdict(loaded(unchecked=(MASK,)), [MUST_FAILED])[0] == "fails"


def test_a_scale_of_what_nobody_declared_is_open_unless_something_shows_it_meant() -> None:
    """A norm of queries and keys does, read or found; what was not checked hides no deviation."""
    one = loaded(deviations=("scale",), reading=Reading())
    assert verdict(one, [PASSED])[0] == "inconclusive"
    reason = verdict(replace(one, unchecked=(MASK,)), [PASSED])[1]
    assert "T5 means it" in reason
    assert "but `attn_mask` was not checked" in reason
    for other in (
        replace(one, reading=Reading(meant=("scale",))),
        replace(one, deviations=("qk_norm", "scale")),
    ):
        assert verdict(other, [PASSED])[0] == "conforms-with-deviations"


def test_a_declared_mistake_is_said_in_words() -> None:
    """A convention that only mistakes have is never a quiet deviation, not behind others either."""
    more = {"deviations": ("head_merge",), "mistaken": ("the heads are mixed (heads-merged)",)}
    for results in ([PASSED], [PASSED, result("expected-failure")]):
        word, reason = verdict(loaded(**more), results)
        assert word == "conforms-with-deviations"
        assert "only mistakes do: the heads are mixed" in reason
        word, reason = verdict(loaded(gauge="its weights are unknown", **more), results)
        assert word == "conforms-up-to-gauge"
        assert reason.startswith("its weights are unknown; ")
        assert "only mistakes do: the heads are mixed" in reason


def test_unknown_weights_hide_no_deviation() -> None:
    """What is expected to fail, or declared otherwise, is said beside what cannot be verified."""
    gauge = "its weights are unknown"
    reason = verdict(loaded(gauge=gauge), [PASSED, result("expected-failure")])[1]
    assert reason == f"{gauge}; expected failures: mask.golden"
    reason = verdict(loaded(gauge=gauge, deviations=("scale",)), [PASSED])[1]
    assert reason == f"{gauge}; it declares scale, other than the standard"


def test_what_differs_from_the_standard_is_said_with_its_value() -> None:
    """What is declared, shortly; of an attention in a model, what its scale is and mostly is."""
    changed = {"scale": "0.1767766952966369", "empty_rows": "nan"}
    one = loaded(deviations=("scale", "empty_rows"), declaration={"semantics": changed})
    assert (
        one.deviations_said == "it declares scale=0.1768, empty_rows=nan, other than the standard"
    )
    site: SiteEntry = {"index": 0, "nodes": [], "scope": "", "same_as": [], "head_size": 8}
    alone = replace(one, deviations=("scale",), site={**site, "heads": 4, "scale": 32**-0.5})
    said = "it computes with scale=0.1768, other than the standard"
    assert alone.deviations_said == (
        f"{said} (1/sqrt of the head size 8 is 0.3536; its scale is that of the width of all "
        "heads, 32)"
    )
    other = replace(alone, site={**site, "heads": 4, "scale": 0.17})
    assert other.deviations_said == f"{said} (1/sqrt of the head size 8 is 0.3536)"
    assert replace(alone, site={**site, "head_size": None}).deviations_said == said


def test_one_exception_of_many_clauses_is_reported_once() -> None:
    """Clauses that fail with an exception from one line have one cause."""
    lines = ("kernel.py:3", "kernel.py:3", "kernel.py:3", "kernel.py:9")
    raised = [
        result(
            "failed",
            slug,
            reason=f"raised ValueError: {slug} ({line})",
            violation=Violation(kind="raised", message=f"raised ValueError: {slug} ({line})"),
        )
        for slug, line in zip(("a.b", "a.c", "a.d", "a.e"), lines, strict=True)
    ]
    one, other = candidate_entry(loaded(), raised, {})["causes"]
    assert (one["name"], one["clauses"]) == ("exception", ["a.b", "a.c", "a.d"])
    assert one["text"] == "raised ValueError: a.b (kernel.py:3)"
    assert (other["name"], other["clauses"]) == ("a.e", ["a.e"])


@pytest.mark.parametrize(
    ("kind", "status"), [("value", "failed"), ("shape", "untestable"), ("raised", "untestable")]
)
def test_what_a_wrong_reading_explains_is_no_failure_of_a_law(kind: str, status: str) -> None:
    """Of code that nobody declared; an exception or another shape may be a guess of the harness."""
    wrong = Violation(kind=kind, message="something else")
    law = result("failed", "state.repeatable", violation=wrong)
    (read,) = certain_results(loaded(reading=Reading()), [law])
    (declared,) = certain_results(loaded(), [law])
    assert (read.status, declared.status) == (status, "failed")


def test_what_is_not_finite_breaks_a_law_of_what_was_read_alone() -> None:
    """Around an attention that was not read a norm may overflow where attention does not."""
    wrong = Violation(kind="finite", message="neither of two answers is finite")
    law = result("failed", "state.repeatable", violation=wrong)
    (read,) = certain_results(loaded(reading=Reading()), [law])
    (unread,) = certain_results(loaded(reading=Reading(unread="it is none that is known")), [law])
    assert (read.status, unread.status) == ("failed", "untestable")


@pytest.mark.parametrize(("kept", "status"), [("passed", "failed"), ("failed", "untestable")])
def test_an_argument_that_acts_where_it_keeps_every_key_is_no_mask(kept: str, status: str) -> None:
    """Leaks through it say nothing, as in Whisper's attention, which takes its mask for a flag."""
    results = [result(kept, "mask.all-keep"), result("failed", "mask.no-leak")]
    *_, leak = certain_results(loaded(reading=Reading()), results)
    assert leak.status == status


@pytest.mark.parametrize("slug", ["shape.strided", "gradients.interleaved"])
def test_what_raises_answers_nothing_wrongly(slug: str) -> None:
    """Tensors that lie otherwise, and calls that share a cache, were promised by nobody."""
    raised = Violation(kind="raised", message="raised RuntimeError")
    (read,) = certain_results(loaded(reading=Reading()), [result("failed", slug, violation=raised)])
    assert (read.status, "nobody said that it takes" in read.reason) == ("not-applicable", True)


def test_what_answers_sizes_that_do_not_fit_fails_where_it_is_declared_alone() -> None:
    """Of code that was only read nobody said that it refuses any: its right answers stand."""
    violation = Violation(kind="not-raised", message="4 keys with a mask for 3: an answer")
    failed = result("failed", "shape.rejects-mismatch").replace(violation=violation)
    (declared,) = certain_results(loaded(), [failed])
    (read,) = certain_results(loaded(reading=Reading()), [failed])
    assert (declared.status, read.status) == ("failed", "not-applicable")


def test_stale_expectation_fails() -> None:
    """An expectation that nothing answers to reddens its candidate."""
    assert verdict(loaded(), [PASSED], [STALE]) == (
        "fails",
        "stale expected failures: mask.golden",
    )


def test_each_problem_of_an_expectation_is_named() -> None:
    """Expired expectations and other failures redden their candidate, each under its own name."""
    expired = Stale(expectation=expected(), why="its day is over", problem="expired")
    different = Stale(expectation=expected("shape.*"), why="kind", problem="different")
    assert verdict(loaded(), [PASSED, SHOULD_FAILED], [different, expired]) == (
        "fails",
        "expired expected failures: mask.golden; not the expected failures: shape.*",
    )


def test_interrupted_is_inconclusive() -> None:
    """What was not finished is no pass, but a failure stays a failure."""
    assert verdict(loaded(), [PASSED], interrupted=True)[0] == "inconclusive"
    assert verdict(loaded(), [MUST_FAILED], interrupted=True)[0] == "fails"


def report(*results: ClauseResult, interrupted: bool = False, **more: Any) -> dict[str, Any]:
    """The record of a run over one candidate."""
    entry = candidate_entry(loaded(), results, READY.sentences, interrupted=interrupted)
    options = RunOptions(targets=("attn.py",), profile="quick", seed=3)
    return build_report(READY, options, [entry], interrupted=interrupted, seconds=1.25, **more)


def test_record_is_schema_1() -> None:
    """The record has the fields of the public contract."""
    record = report(PASSED, result("failed", counterexample={"problem": PROBLEM}))
    assert record["schema"] == 1
    assert record["tool"]["name"] == "attention-conformance"
    assert set(record["tool"]) - {"documentation"} == {"name", "version", "specification"}
    assert record["environment"]["device"] == "cpu"
    assert (record["profile"], record["seed"], record["seconds"]) == ("quick", 3, 1.25)
    (candidate,) = record["candidates"]
    assert {"target", "name", "kind", "declaration", "verdict", "seconds", "clauses"} <= set(
        candidate
    )
    assert {
        "id", "family", "level", "status", "reason", "examples", "binding", "seconds", "dtype",
        "device", "margin", "violation", "counterexample", "diagnosis", "requirement",
    } == set(candidate["clauses"][1])  # fmt: skip
    assert candidate["clauses"][1]["requirement"] == "A masked key is absent."


def test_numbers_that_are_not_finite_are_texts() -> None:
    """The document is strict JSON, which knows neither NaN nor infinity."""
    text = record_text(report(result(margin=math.inf)))
    record = json.loads(text, parse_constant=pytest.fail)
    assert record["candidates"][0]["clauses"][0]["margin"] == "inf"


EXITS: dict[str, tuple[int, list[ClauseResult], bool]] = {
    "conforms": (0, [PASSED], False),
    "expected": (0, [PASSED, result("expected-failure")], False),
    "fails": (1, [MUST_FAILED], False),
    "inconclusive": (1, [result("untestable")], False),
    "SHOULD": (0, [PASSED, SHOULD_FAILED], False),
    "SHOULD, strict": (1, [PASSED, SHOULD_FAILED], True),
    "harness": (3, [MUST_FAILED, result("error")], False),
}


@pytest.mark.parametrize(("code", "results", "strict"), EXITS.values(), ids=EXITS.keys())
def test_exit_codes(code: int, results: list[ClauseResult], *, strict: bool) -> None:
    """The exit code follows from the record."""
    assert exit_code(report(*results), strict=strict) == code


def test_exit_code_of_an_interrupted_run() -> None:
    """A run that was interrupted exits as the shell expects, whatever its results."""
    assert exit_code(report(PASSED, interrupted=True)) == 130


def test_exit_code_with_a_stale_expectation() -> None:
    """A stale entry of a file is red, even when it belongs to no candidate."""
    assert exit_code(report(PASSED, stale=[STALE])) == 1


def test_no_candidate_is_never_green() -> None:
    """A record without candidates is no success."""
    assert exit_code({**report(), "candidates": []}) == 1


def named(name: str, confidence: float = 1.0) -> dict[str, Any]:
    """One entry of a diagnosis."""
    return {"name": name, "text": f"it is {name}", "fix": f"not {name}", "confidence": confidence}


def failed(slug: str, *diagnosis: dict[str, Any], keys: int = 4, **more: Any) -> ClauseEntry:
    """A failed MUST on a problem of some keys."""
    problem = {**PROBLEM, "geometry": {**PROBLEM["geometry"], "key_length": keys}}
    clause: dict[str, Any] = {
        "id": slug,
        "level": "MUST",
        "status": "failed",
        "dtype": "float32",
        "device": "cpu",
        "diagnosis": list(diagnosis),
        "counterexample": {"problem": problem},
        "violation": {"kind": "value", "message": f"{slug} is wrong"},
        **more,
    }
    return clause  # type: ignore[return-value]


def test_one_mistake_is_one_cause_with_its_smallest_input() -> None:
    """Failures of one name are told once, on the smallest problem among them."""
    clauses = [failed("a.one", named("x"), keys=9), failed("a.two", named("x"), keys=2)]
    (cause,) = causes_of([*clauses, failed("a.one", named("x"), keys=9, dtype="float64")])
    assert (cause["name"], cause["text"], cause["fix"]) == ("x", "it is x", "not x")
    assert cause["clauses"] == ["a.one", "a.two"]
    assert cause["failure"] == {"id": "a.two", "dtype": "float32", "device": "cpu"}
    assert cause["counterexample"] == clauses[1]["counterexample"]


def test_an_input_without_elements_shows_nothing() -> None:
    """It is the smallest of all: a cause is shown on one that has numbers, if there is one."""
    clauses = [failed("a.one", named("x"), keys=0), failed("a.two", named("x"), keys=9)]
    assert causes_of(clauses)[0]["failure"]["id"] == "a.two"
    assert causes_of(clauses[:1])[0]["failure"]["id"] == "a.one"


def test_an_input_whose_answer_is_no_number_says_less() -> None:
    """One more key that shows numbers is worth more; many more are not."""
    nan = {"kind": "finite", "message": "nan", "got": "nan"}
    clauses = [failed("a.one", named("x"), keys=1, violation=nan), failed("a.two", named("x"))]
    assert causes_of(clauses)[0]["failure"]["id"] == "a.two"
    clauses[1] = failed("a.two", named("x"), keys=99)
    assert causes_of(clauses)[0]["failure"]["id"] == "a.one"


def test_a_picture_stays_at_its_failure() -> None:
    """A cause names the failure that it shows; what was read there is not written twice."""
    drawn = {**named("x"), "picture": {"text": "a weight is wrong"}}
    (cause,) = causes_of([failed("a.one", drawn, {**drawn, "name": "y"})])
    assert "picture" not in cause
    assert "picture" not in cause["alternatives"][0]


def test_as_few_causes_as_explain_everything() -> None:
    """A failure that two mistakes explain goes to the one that is needed anyway."""
    both = failed("a.both", named("y", 0.5), named("x", 0.5))
    clauses = [both, failed("a.x", named("x")), failed("a.z", named("z"))]
    first, second = causes_of(clauses)
    assert (first["name"], first["clauses"]) == ("x", ["a.both", "a.x"])
    assert "alternatives" not in first
    assert (second["name"], second["clauses"]) == ("z", ["a.z"])


def test_mistakes_that_explain_as_much_are_alternatives() -> None:
    """Where nothing tells two mistakes apart, both are named."""
    (cause,) = causes_of([failed("a.one", named("x", 0.5), named("y", 0.5))])
    assert [other["name"] for other in cause["alternatives"]] == ["y"]


def together(*alone: str, line: str = "") -> dict[str, Any]:
    """A diagnosis of two mistakes that are made together, x and y; ``alone`` break the clause."""
    parts = [
        {
            **named(name),
            "alone": name in alone,
            **({"line": {"file": f"{name}.py", "number": 1, "text": name}} if line == name else {}),
        }
        for name in ("x", "y")
    ]
    return {**named("x+y"), "text": "it is x; it is y", "fix": "not x; not y", "parts": parts}


def test_two_mistakes_that_are_made_together_are_two_causes() -> None:
    """Each has its own fix, its own line, the failures it makes, and an input that shows it."""
    clauses = [
        failed("a.both", together("x", "y"), keys=1),
        failed("a.x", together("x", line="x"), keys=5),
        failed("a.y", together("y"), keys=7),
        failed("a.law", explained_by="x+y"),
    ]
    first, second = causes_of(clauses)
    assert (first["name"], first["text"], first["fix"]) == ("x", "it is x", "not x")
    assert (second["name"], second["text"], second["fix"]) == ("y", "it is y", "not y")
    assert first["clauses"] == ["a.both", "a.x", "a.law"]
    assert second["clauses"] == ["a.both", "a.y", "a.law"]
    assert [cause["failure"]["id"] for cause in (first, second)] == ["a.x", "a.y"]
    assert first["line"]["file"] == "x.py"
    assert "line" not in second
    assert not any("alternatives" in cause for cause in (first, second))


def test_a_mistake_that_another_hides_is_a_cause_as_well() -> None:
    """One of two that makes no clause fail alone is to be mended, too: it has all their clauses."""
    first, second = causes_of([failed("a.one", together("x"))])
    assert [(cause["name"], cause["clauses"]) for cause in (first, second)] == [
        ("x", ["a.one"]),
        ("y", ["a.one"]),
    ]


def test_one_mistake_joins_itself_where_it_is_made_with_another() -> None:
    """What has its name alone, and what has it beside another's, is one cause."""
    causes = causes_of([failed("a.one", named("x")), failed("a.two", together("x"))])
    assert {cause["name"]: cause["clauses"] for cause in causes}["x"] == ["a.one", "a.two"]


def test_an_accepted_mistake_is_no_cause_of_new_failures() -> None:
    """What an expected failure is for is not mended anew; a failure of nothing else keeps it."""
    accepted = failed("a.known", together("x"), status="expected-failure")
    both = failed("a.both", together("x", "y"))
    (cause,) = causes_of([accepted, both, failed("a.y", together("y"))])
    assert (cause["name"], cause["clauses"]) == ("y", ["a.both", "a.y"])
    (cause,) = causes_of([accepted, failed("a.x", named("x"))])
    assert cause["name"] == "x"


def test_pairs_that_explain_as_much_have_alternatives_where_they_differ() -> None:
    """Of x with y or x with z, x is certain, and y or z."""
    other = {**together("z"), "name": "x+z"}
    other["parts"] = [{**named(name), "alone": True} for name in ("x", "z")]
    first, second = causes_of([failed("a.one", together("x", "y"), other)])
    assert (first["name"], "alternatives" in first) == ("x", False)
    assert second["name"] == "y"
    assert [one["name"] for one in second["alternatives"]] == ["z"]


def test_what_a_mistake_explains_without_a_name_joins_it() -> None:
    """A failure that was acted out belongs to that mistake, not to the unknown ones."""
    facts = named("unknown-mistake", 0.0)
    joined = failed("a.two", facts, explained_by="x")
    first, second = causes_of([failed("a.one", named("x")), joined, failed("a.three", facts)])
    assert (first["name"], first["clauses"]) == ("x", ["a.one", "a.two"])
    assert (second["name"], second["clauses"]) == ("unknown-mistake", ["a.three"])


def test_what_compares_wrong_answers_without_a_name_joins_them() -> None:
    """A law that such answers break is no cause of its own."""
    facts = named("unknown-mistake", 0.0)
    (cause,) = causes_of([failed("a.one", facts), failed("a.two", explained_by="unknown-mistake")])
    assert (cause["name"], cause["clauses"]) == ("unknown-mistake", ["a.one", "a.two"])


def test_what_is_left_stands_alone() -> None:
    """A failure without any diagnosis is called after its clause; what passed has no cause."""
    causes = causes_of(
        [failed("a.one"), failed("a.two", level="SHOULD"), failed("a.three", status="passed")]
    )
    assert [(cause["name"], cause["level"]) for cause in causes] == [
        ("a.one", "MUST"),
        ("a.two", "SHOULD"),
    ]
    assert causes[0]["text"] == "a.one is wrong"
    assert causes_of([]) == []


def test_answers_that_are_not_finite_are_one_cause() -> None:
    """Ten clauses that meet the same NaN are one thing to mend."""
    violation = {"kind": "finite", "message": "nan at batch 0"}
    (cause,) = causes_of([failed(f"a.{n}", violation=violation) for n in range(10)])
    assert (cause["name"], len(cause["clauses"])) == ("not-finite", 10)
    assert causes_of([failed("a.b", violation=violation)])[0]["name"] == "a.b"


@pytest.mark.parametrize(
    ("clause", "fix"),
    [
        ("shape.rejects-mismatch", "compare sizes and dtypes before they are used"),
        ("mask.causal-and-mask", "raise where a mask is given beside the causal flag"),
    ],
)
def test_what_is_to_be_refused_says_how(clause: str, fix: str) -> None:
    """An answer in place of an exception has no other name than its clause, but it has a fix."""
    violation = {"kind": "not-raised", "message": "an answer instead of an exception"}
    (cause,) = causes_of([failed(clause, violation=violation)])
    assert cause["name"] == clause
    assert cause["fix"].startswith(fix)


def test_what_blames_one_attention_is_one_cause() -> None:
    """One wrong layer of a model is one thing to mend, another layer another."""
    blamed = [
        failed(f"model.{n}", violation={"kind": "value", "message": "", "measured": {"site": at}})
        for n, at in enumerate([1, 1, 0, 1])
    ]
    first, second = causes_of(blamed)
    assert (first["name"], first["clauses"]) == ("one-attention", ["model.0", "model.1", "model.3"])
    assert (second["name"], second["clauses"]) == ("model.2", ["model.2"])


def test_a_mask_the_wrong_way_round_is_one_cause() -> None:
    """It is named in one clause, too, whichever attention it shows in first, and has a fix."""
    message = "attention_mask works the wrong way round: other tokens change the answer"
    measured = {"inverted": ["attention_mask"]}
    violations = [
        {"kind": "value", "message": message, "measured": {**measured, "site": 1}},
        {"kind": "value", "message": message, "measured": measured},
    ]
    shown = [failed(f"model.{n}", violation=one) for n, one in enumerate(violations)]
    for some in (shown, shown[:1]):
        (cause,) = causes_of(some)
        assert cause["name"] == "attention-mask-inverted"
        assert "subtract it nowhere" in cause["fix"]


def test_a_mask_that_does_not_reach_has_a_fix() -> None:
    """Whichever clause shows the attention that it is missing in."""
    messages = ("padding changes the answer", "the mask does not reach attention #1")
    blamed = [
        failed(name, violation={"kind": "value", "message": said, "measured": {"site": 1}})
        for name, said in zip(("model.a", "model.b"), messages, strict=True)
    ]
    assert causes_of(blamed)[0]["fix"].startswith("hand the mask")


@pytest.mark.parametrize(
    ("kind", "message", "name"),
    [
        ("shape", "the output has shape [1] where [2] is expected", "wrong-shape"),
        ("dtype", "the output has dtype torch.float64 for inputs of dtype float32", "wrong-dtype"),
        ("type", "the output is None, not a torch.Tensor", "wrong-type"),
        ("mutated", "the call changed its query in place", "inputs-changed"),
        ("crashed", "the candidate killed its process (SIGSEGV)", "crash"),
        ("hung", "the candidate gave no answer within 5 s and was stopped", "no-answer"),
    ],
)
def test_what_shows_by_itself_that_it_is_one_thing(kind: str, message: str, name: str) -> None:
    """A wrong shape, a crash or a hang in many clauses is one cause, not one a clause."""
    violation = {"kind": kind, "message": message}
    (cause,) = causes_of([failed(f"a.{n}", violation=violation) for n in range(10)])
    assert (cause["name"], cause["text"], len(cause["clauses"])) == (name, message, 10)
    assert causes_of([failed("a.b", violation=violation)])[0]["name"] == "a.b"


def test_shapes_of_several_tensors_are_several_causes() -> None:
    """A wrong shape of the weights is not explained by one of the output."""
    violations = [
        {"kind": "shape", "message": f"the {what} has shape [1] where [2] is expected"}
        for what in ("output", "weights", "output")
    ]
    first, second = causes_of(
        [failed(f"a.{n}", violation=violation) for n, violation in enumerate(violations)]
    )
    assert (first["name"], first["clauses"]) == ("wrong-shape", ["a.0", "a.2"])
    assert (second["name"], second["clauses"]) == ("a.1", ["a.1"])


def test_alike_failures_share_the_facts_that_one_diagnosis_knows() -> None:
    """What is not finite in clauses that nobody diagnoses is what the diagnosed ones speak of."""
    violation = {"kind": "finite", "message": "nan at batch 0"}
    facts = named("unknown-mistake", 0.0)
    studied = failed("a.one", facts, violation=violation)
    (cause,) = causes_of([studied, failed("a.two", violation=violation), failed("a.three", facts)])
    assert (cause["name"], len(cause["clauses"])) == ("unknown-mistake", 3)
    first, second = causes_of([failed("a.three", facts), failed("a.two", violation=violation)])
    assert (first["name"], second["name"]) == ("unknown-mistake", "a.two")


def test_facts_are_those_of_the_failure_that_is_shown() -> None:
    """What is said of an example is true of the smallest input, which stands below it."""
    told = {**named("unknown-mistake", 0.0), "common": "2 of 3 go wrong", "example": "off by 9"}
    other = {**named("unknown-mistake", 0.0), "common": "", "example": "off by 1"}
    large = {"problem": {"geometry": {"batch": 9}}}
    small = {"problem": {"geometry": {"batch": 1}}}
    (cause,) = causes_of(
        [
            failed("a.one", told, counterexample=large),
            failed("a.two", other, counterexample=small),
        ]
    )
    assert cause["failure"]["id"] == "a.two"
    assert cause["text"] == "no known mistake explains it: 2 of 3 go wrong; off by 1"
    assert not {"common", "example"} & set(cause)


def test_every_failure_has_one_cause() -> None:
    """No failure is lost and none is told twice, whatever its diagnosis is."""
    diagnoses = [[], [named("x")], [named("x"), named("y")], [named("unknown-mistake", 0.0)]]
    clauses = [failed(f"a.{n}", *diagnoses[n % 4]) for n in range(12)]
    named_clauses = [slug for cause in causes_of(clauses) for slug in cause["clauses"]]
    assert sorted(named_clauses) == sorted(clause["id"] for clause in clauses)


def test_what_is_not_judged_is_not_green() -> None:
    """A failure is one all the same."""
    open_one = loaded(unjudged="its only attention is not judged")
    assert verdict(open_one, [PASSED]) == ("inconclusive", "its only attention is not judged")
    assert verdict(open_one, [PASSED, MUST_FAILED])[0] == "fails"


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_model_has_the_cause_of_the_attention_that_it_blames(index: int) -> None:
    """One wrong layer is one cause: of the layer, and of the model on its own input."""
    site: SiteEntry = {"index": 1, "nodes": [], "scope": "", "same_as": [2]}
    blamed = Violation(kind="value", message="attention is wrong", measured={"site": index})
    named = {"name": "scale-missing", "text": "not scaled", "fix": "divide", "confidence": 1.0}
    whole = result("failed", "model.causality", violation=blamed)
    alone = result("failed", "numerics.golden", diagnosis=[named])
    entries = [
        candidate_entry(loaded(target="m.onnx", kind="model"), [whole], {}),
        candidate_entry(loaded(target="m.onnx#1", site=site), [alone], {}),
    ]
    (cause,) = joined_causes(entries)[0]["causes"]
    assert cause["name"] == ("scale-missing" if index in (1, 2) else "model.causality")
    assert cause["clauses"] == ["model.causality"]
