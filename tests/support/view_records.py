"""Records of runs with every status and verdict, and texts that upset the formats they enter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft4Validator, Draft7Validator, FormatChecker
from records import PROBLEM, READY, loaded, result

from conformance.base.expected import ExpectedFailure
from conformance.base.results import ClauseResult, Violation
from conformance.running.workers.messages import RunOptions
from conformance.session.expectations import Stale
from conformance.session.report import build_report, candidate_entry

LIMIT: Final = {
    "limit": {"seconds": 60.0, "reached": True, "not_run": 7, "not_finished": 1, "loaded": True}
}
SCHEMAS: Final = Path(__file__).resolve().parent.parent / "schemas"
OPTIONS: Final = RunOptions(targets=("attn.py",), profile="quick", seed=3)
STARTED: Final = "2026-11-21T23:34:30Z"

# Pipes, markup, links, mentions, commands, quotes, ends of sections, and what no format can hold.
NASTY: Final = (
    "a|b \\| <script>alert(1)</script> <!--c--> `x` ```y``` **b** _c_ ~~d~~ ![i](u) [l](u)(v)\n"
    "\r\n::error::x\n::stop-commands::y\n@octocat a@b.example https://evil.example www.x.example "
    '#12 GH-3 x[0:100:2] :tada: $z$ 100% ]]> "q" & &amp; \\ '
    "\x1b[2J \x00 \x0b \ud800 \ufffe \u202e"
)
FAILED: Final = result(
    "failed",
    violation=Violation(kind="value", message="off by 1 at [0, 0]"),
    counterexample={"problem": PROBLEM},
    diagnosis=[
        {"name": "scale-missing", "text": "no scale", "fix": "divide by it", "confidence": 1.0}
    ],
)
# A window of a head: a hidden key with a weight, a row that is right, and what is no number.
PICTURE: Final = {
    "text": "query 4 gives the hidden key 8 the weight 0.5 instead of 0",
    "item": 0,
    "items": 1,
    "head": 1,
    "heads": 2,
    "first": [4, 7],
    "sizes": [7, 9],
    "worst": [4, 8],
    "expected": [[1.0, 0.0], [0.25, 0.75], [1e-5, 0.0]],
    "got": [[0.5, 0.5], [0.25, 0.75], [0.0, "nan"]],
    "hidden": [[False, True], [False, False], [False, True]],
    "wrong": [[True, True], [False, False], [True, True]],
    "logits": {
        "expected": [[0.0, None], [-1.0, 0.0], [0.0, None]],
        "got": [[0.0, None], [-1.0, 0.0], ["-inf", None]],
    },
}
NAMED: Final = {"name": "causal-sees-next", "text": "the next key is seen", "fix": "shift it back"}
PICTURED: Final = tuple(
    result(
        "failed",
        slug,
        counterexample={"problem": PROBLEM},
        diagnosis=[{**NAMED, "confidence": 1.0, **more}],
    )
    for slug, more in (("mask.causal", {"picture": PICTURE}), ("mask.golden", {}))
)
SHOULD_FAILED: Final = result("failed", "mask.no-leak", "SHOULD")
EVERY: Final[tuple[ClauseResult, ...]] = (
    FAILED,
    result(slug="shape.output", margin=0.25),
    result("not-applicable", "mask.bias", reason="it takes no bias"),
    result("expected-failure", "mask.strided", reason="known", counterexample={"problem": PROBLEM}),
    result("untestable", "mask.causal", reason="no example bound"),
    result("unexpected-pass", "mask.window", reason="it passed, but was expected to fail"),
    result("error", "numerics.golden", reason="the golden is ill"),
    SHOULD_FAILED,
    result("untestable", "mask.leak", "SHOULD", reason="no example bound"),
    result("failed", dtype="bfloat16", device="cuda:0"),
)
STALE: Final = Stale(
    expectation=ExpectedFailure(clause="mask.golden", reason="known", candidate="gone"),
    why="no candidate is called 'gone'",
)
NASTY_RESULT: Final = result(
    "failed",
    violation=Violation(kind="raised", message=NASTY),
    counterexample={"problem": {**PROBLEM, "values": NASTY}},
    diagnosis=[{"name": NASTY, "text": NASTY, "fix": NASTY, "confidence": 0.5}],
)


def candidate(
    results: Sequence[ClauseResult], name: str = "mine", *, kind: str = "core", **more: Any
) -> dict[str, Any]:
    """The entry of one candidate."""
    warnings = more.pop("warnings", ())
    loaded_candidate = loaded(name, kind=kind, **more)
    return candidate_entry(loaded_candidate, results, READY.sentences, warnings=warnings)


def record(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The record of a run, as its file holds it."""
    report = build_report(READY, OPTIONS, entries, **{"seconds": 1.5, "started": STARTED, **more})
    copy: dict[str, Any] = json.loads(json.dumps(report))
    return copy


def of(*results: ClauseResult, **more: Any) -> dict[str, Any]:
    """The record of a run over one candidate."""
    return record(candidate(results), **more)


def cut(*results: ClauseResult) -> dict[str, Any]:
    """The record of a run over one candidate that reached its time limit."""
    return of(*results, more=LIMIT)


def bare(*clauses: dict[str, Any], verdict: str = "fails") -> dict[str, Any]:
    """The least that is a record of schema 1: what the first version wrote may lack much."""
    return {
        "schema": 1,
        "candidates": [{"name": "mine", "verdict": verdict, "clauses": list(clauses)}],
    }


LOCATED: Final = {"file": "src/my attn.py", "line": 12}


def site(index: int, *same: int, scope: str = "") -> dict[str, Any]:
    """What a record says of an attention of a whole model."""
    return {
        "index": index,
        "nodes": ["Softmax"],
        "scope": scope or f"encoder.layer.{index}.attention",
        "same_as": list(same),
        "heads": 4,
        "kv_heads": 4,
        "head_size": 8,
        "mask": [{"role": "keep", "axes": "B11K", "tensor": "mask"}],
        "mask_inputs": ["attention_mask"],
        "causal": False,
        "window": None,
        "scale": 0.5,
        "softcap": None,
        "sinks": False,
    }


def of_model() -> dict[str, Any]:
    """A model of four attentions: the third is wrong, and the last gets no mask."""
    sites = [site(0, 1, 3), site(1, 0, 3), site(2, scope=NASTY), site(3, 0, 1)]
    blamed = Violation(kind="value", message="no mask reaches attention #3", measured={"site": 3})
    wrong = Violation(kind="value", message="attention #2 answers wrongly", measured={"site": 2})
    return record(
        candidate(
            [
                result("failed", "model.mask-reaches-all", violation=blamed),
                result("failed", "model.sites-in-place", violation=wrong),
                result("passed", "model.any-size"),
            ],
            "bert",
            kind="model",
            target="bert.onnx",
            sites=tuple(sites),
        ),
        candidate([result()], "bert#0", target="bert.onnx#0", site=sites[0]),
        candidate(
            [result("failed", f"mask.wrong-{number}") for number in range(6)],
            "bert#2",
            target="bert.onnx#2",
            site=sites[2],
        ),
    )


RECORDS: Final[dict[str, dict[str, Any]]] = {
    "every status": of(*EVERY),
    "conforms": of(result()),
    "nasty": record(
        candidate(
            [NASTY_RESULT],
            NASTY,
            target=f"attn.py:{NASTY}",
            warnings=[NASTY],
            location={"file": NASTY.replace("\n", ""), "line": 1},
        ),
        stale=[Stale(expectation=ExpectedFailure(clause="x", reason=NASTY), why=NASTY)],
    ),
    "several": record(
        candidate(EVERY, location=LOCATED),
        candidate([result()], "yours", kind="graph", target="a/b.onnx"),
        candidate([], "theirs", kind="layer", target="/opt/x.py:theirs"),
        stale=[STALE],
    ),
    "nothing ran": of(),
    "no candidates": record(),
    "model": of_model(),
    "pictured": of(*PICTURED),
    "interrupted": of(result(), interrupted=True),
    "cut": cut(result(), result("untestable", reason="not run: the limit of 60 s was reached")),
    "cut, yet green": cut(result()),
    "bare": bare({"id": "mask.golden", "status": "failed"}),
    "bare without clauses": bare(verdict="conforms"),
}


def validator(name: str) -> Draft4Validator | Draft7Validator:
    """A validator of a published schema; formats such as uri-reference are looked at, too."""
    schema = json.loads((SCHEMAS / name).read_text(encoding="utf-8"))
    kind = Draft4Validator if "draft-04" in schema["$schema"] else Draft7Validator
    return kind(schema, format_checker=FormatChecker())
