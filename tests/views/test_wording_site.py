"""Where in a model an attention lies is shown by the views in one line."""

from __future__ import annotations

import html
from typing import Any

import pytest
from records import loaded, result
from view_records import OPTIONS

from conformance.base.results import Status
from conformance.running.workers.messages import Ready
from conformance.session.report import build_report, candidate_entry
from conformance.views import TERMINAL, VIEWS, wording

SITE: dict[str, Any] = {
    "index": 2,
    "nodes": ["MatMul", "Softmax", "MatMul_1"],
    "scope": "encoder.layer.2",
    "same_as": [3, 4],
    "heads": 8,
    "kv_heads": 2,
    "head_size": 64,
    "mask": [{"role": "keep", "axes": "B1QK", "tensor": "mask"}],
    "mask_inputs": ["attention_mask"],
    "causal": True,
    "scale": 0.125,
}
LINE = (
    "attention 2, encoder.layer.2, 8 heads of 64 (2 key/value heads), keep mask of attention_mask, "
    "causal, the same as 3, 4"
)


def record(count: int, status: Status) -> dict[str, Any]:
    """A run with attentions of a model."""
    ready = Ready(environment={"python": "3.11"}, specification="0", sentences={})
    entries = [
        candidate_entry(loaded(f"model#{number}", site=SITE), [result(status)], {})
        for number in range(count)
    ]
    report: dict[str, Any] = dict(build_report(ready, OPTIONS, entries, stale=[], seconds=1.0))
    return report


def test_the_line_says_where_and_what() -> None:
    """Place, heads, masks, causality, and which are the same."""
    assert wording.site({"site": SITE}) == LINE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": None, "kv_heads": None, "head_size": None}, "heads, keep mask"),
        ({"kv_heads": 8}, "8 heads of 64, keep"),
        ({"mask": [], "mask_inputs": []}, "no mask, causal"),
        ({"mask_inputs": []}, "keep mask of no input"),
        ({"causal": None}, "causality unknown"),
        (
            {"causal": None, "misplaced": "keys after its own alone"},
            "a query sees keys after its own",
        ),
        ({"causal": False, "same_as": []}, "not causal"),
        ({"scope": ""}, "attention 2, 8 heads"),
        (
            {"otherwise": [{"index": 4, "causal": True, "window": 3}]},
            "the same as 3, 4 (but 4 causal in a window of 3 keys)",
        ),
    ],
)
def test_what_is_not_known_is_left_out(changes: dict[str, Any], words: str) -> None:
    """Or said to be unknown."""
    assert words in wording.site({"site": SITE | changes})


def test_other_candidates_have_no_line() -> None:
    """Only attentions of a model lie somewhere in it."""
    assert not wording.site({})


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("terminal", "passed"),
        ("terminal", "failed"),
        ("html", "passed"),
        ("html", "failed"),
        ("markdown", "failed"),
    ],
)
def test_views_show_the_line(name: str, status: Status, count: int) -> None:
    """Once for each of some candidates."""
    (view,) = [view for view in (TERMINAL, *VIEWS) if view.name == name]
    shown = " ".join(html.unescape(view.render(record(count, status))).split())
    line = LINE.replace("_", "\\_") if name == "markdown" else LINE
    assert shown.count(line) >= count
