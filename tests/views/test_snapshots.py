"""What each view shows of each kind of record, to the letter.

Where a change is meant, ``RENEW=1 pytest tests/views/test_snapshots.py`` writes it; read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import pytest
from records import PROBLEM, result
from view_records import NAMED, PICTURE, RECORDS, candidate, of, record

from conformance.base.results import ClauseResult, Violation
from conformance.views import TERMINAL, VIEWS
from conformance.views.complete import complete
from conformance.views.github import render_annotations

FOLDER: Final = Path(__file__).parent / "snapshots"
# Parts of a page that are the same for every record.
STATIC: Final = re.compile(r"(<(style|script)>).*?(?=</\2>)", re.DOTALL)


def tensor(values: list[Any], *shape: int, dtype: str = "float32") -> dict[str, Any]:
    """A tensor as records hold it."""
    return {"dtype": dtype, "shape": list(shape), "values": values}


def call(query: float = 1.0, **more: Any) -> dict[str, Any]:
    """A call of a core with a query of one number."""
    return {"arguments": {"query": tensor([[[[query]]]], 1, 1, 1, 1)}, "keywords": {}, **more}


def given(query: dict[str, Any]) -> dict[str, Any]:
    """A call of a core with a query."""
    return call(arguments={"query": query})


def failed(slug: str = "mask.golden", **more: Any) -> ClauseResult:
    """A failure whose counterexample has what is given besides the problem."""
    data = {"problem": PROBLEM, "calls": [call()], **more.pop("data", {})}
    return result("failed", slug, counterexample=data, **more)


def diagnosed(slug: str, *, dtype: str = "float32", **entry: Any) -> ClauseResult:
    """A failure with a diagnosis."""
    return result("failed", slug, dtype=dtype, diagnosis=[{"confidence": 1.0, **NAMED, **entry}])


ANSWER: Final = tensor([[[[2.0]]]], 1, 1, 1, 1)
WEIGHTS: Final = tensor([[[[0.25, 0.75]]]], 1, 1, 1, 2)
HEADS: Final = tensor([[[[1.0, -2e-9]], [[3.0, 4e30]]]], 1, 2, 1, 2)
MEASURED: Final = {
    "margin": 2.5,
    "error": 1.0,
    "bound": 0.4,
    "parts": {"scores": 0.75, "sum": 0.25},
}
COMPARED: Final = {
    "expected": tensor([1.0, 2.0, "inf", "nan", 1.0, -4.0], 1, 1, 1, 6),
    "got": tensor([1.5, "nan", "inf", "nan", 3.0, 0.0], 1, 1, 1, 6),
    "bound": tensor([0.25, 1.0, 1.0, 1.0, 0.0, 1.0], 1, 1, 1, 6),
    "judged": tensor([True, True, True, True, True, False], 1, 1, 1, 6, dtype="bool"),
}
for part in COMPARED.values():
    part["values"] = [[[part["values"]]]]
SHARED: Final = [
    result("not-applicable", slug, reason=reason, dtype=dtype)
    for slug, reason, dtype in (
        ("mask.bias", "no bias", "float32"),
        ("mask.bias", "no bias", "float16"),
        ("mask.drop", "no bias", "float32"),
        ("cache.golden", "", "float32"),
    )
]
MORE: Final[dict[str, dict[str, Any]]] = {
    "dtypes": of(
        result(examples=10, binding=4, margin=0.1),
        result(examples=20, binding=5, margin=0.3, dtype="float64"),
        result("failed", dtype="float16"),
        result(slug="shape.output", margin=1e36, dtype="float16"),
        result(slug="mask.window", margin=0.0),
        *SHARED,
    ),
    "unlike candidates": record(
        candidate([result(), result("untestable", "a.x", "SHOULD", reason="no example bound")]),
        candidate([result(slug="shape.output"), *SHARED], "b; rm -rf 'x'"),
        candidate(
            [failed(), result("untestable", "a.x", "SHOULD", reason="no example bound")], "c"
        ),
    ),
    "calls": of(
        failed(data={"calls": [call(output=ANSWER), call(output=ANSWER, right=ANSWER)]}),
        failed("mask.a", data={"calls": [call(), call(), call(5.0)]}),
        failed("mask.b", data={"calls": [call(refused={"kind": "raised", "message": "no <b>"})]}),
        failed("mask.c", data={"calls": [{"arguments": {}, "keywords": {"scale": 0.5}}]}),
        failed(
            "mask.d",
            data={
                "calls": [{**call(), "arguments": {"query": {"shape": [9], "dtype": "float32"}}}]
            },
        ),
    ),
    "layers": of(
        failed(data={"layers": [{"weights": {"q": WEIGHTS}}], "calls": [call(layer=0)] * 2}),
        failed(
            "mask.a",
            data={
                "layers": [{"weights": {"q": WEIGHTS}}, {"weights": {"q": ANSWER}}],
                "calls": [call(layer=0), call(layer=1)],
            },
        ),
        failed("mask.b", data={"calls": [call(), given({**ANSWER, "same_as": [0, "query"]})]}),
        failed(
            "mask.c",
            data={
                "calls": [given({**ANSWER, "stride": [4, 2, 2, 1], "offset": 1, "after": ANSWER})]
            },
        ),
        failed(
            "mask.d",
            data={
                "calls": [call(output=ANSWER, right=None), call(5.0, output=ANSWER)],
                "relation": {
                    "expected": [{"call": 0, "elements": [0]}],
                    "got": [{"call": 1}],
                },
                "expected": tensor([-0.266261160373], 1),
                "got": tensor([-0.266260892152], 1),
                "bound": tensor([2.5e-7], 1),
            },
        ),
    ),
    "compared": of(
        failed(violation=Violation(kind="value", message="off", measured=MEASURED), data=COMPARED),
        failed("mask.law", data={"expected": HEADS, "got": HEADS, "bound": HEADS}),
        failed(
            "mask.weights",
            violation=Violation(kind="value", message="off", measured={"key": 0}),
            data={"expected": WEIGHTS, "got": WEIGHTS},
        ),
        failed("mask.empty", data={"expected": tensor([], 0, 3), "got": tensor([1.0], 2)}),
        failed("mask.again", reason="not the expected failure", data={"repeated": False}),
    ),
    "pictures": of(
        diagnosed("mask.causal", picture=PICTURE),
        diagnosed("mask.golden"),
        diagnosed("mask.bias", name="another", fix=""),
        diagnosed("mask.window", dtype="bfloat16"),
        diagnosed("mask.leak", name="unknown-mistake", confidence=0.0, picture=PICTURE),
        diagnosed("mask.drop", name="unknown-mistake", confidence=0.0),
        diagnosed("a.b", name="odd", picture={**PICTURE, "got": [[0.5]]}),
        diagnosed("a.c", name="plain", picture={**PICTURE, "logits": {"expected": [[0.0]]}}),
    ),
}
EVERY: Final = {**RECORDS, **MORE}


def shown(report: dict[str, Any]) -> str:
    """What every view shows of a record."""
    texts = {view.name: view.render(report) for view in (*VIEWS, TERMINAL)}
    texts["annotations"] = render_annotations(complete(report))
    parts = (f"==== {name}\n{STATIC.sub('<>', text)}\n" for name, text in texts.items())
    return "".join(parts).encode("utf-8", "backslashreplace").decode()


@pytest.mark.parametrize("name", EVERY)
def test_views_show_what_they_showed(name: str) -> None:
    """A change of any view is seen in what it makes of some record."""
    file = FOLDER / f"{name.replace(' ', '-').replace(',', '')}.txt"
    text = shown(EVERY[name])
    if "RENEW" in os.environ:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
