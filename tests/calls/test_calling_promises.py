"""Whatever is declared, each clause calls a candidate as was promised, and a correct one passes."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from promised_calls import Watched

from conformance.base.profile import PROFILES
from conformance.running.runner import CandidateRun

PROFILE: Final = dataclasses.replace(
    PROFILES["quick"], examples=3, edges=2, longest=9, reductions=0
)
# What these ask for is what must, or may, be refused.
REFUSED: Final = ("shape.rejects-*", "mixed.mask-dtype")
FORMS: Final = ("keep", "drop", "keep_int", "bias", "lengths")
FOUR_AXES: Final = ("BHQK", "B1QK", "1HQK", "B11K", "11QK", "1H1K", "111K", "BH1K")
# Of shapes of fewer axes one each: which of two sizes an axis has nobody could tell.
THREE: Final = ("BQK", "HQK", "B1K", "1QK", "11K")
TWO: Final = ("QK", "BK", "1K")
LENGTHS: Final = (("B",), ("B", "BQ"), ("BHQ", "BH"), ("B1", "B1Q"), ("1", "BQ"))
FEATURES: Final = ("scale", "gqa", "softcap", "window", "weights", "dropout", "kv_cache")
IMPOSSIBLE: Final = {
    "packed-qkv": {"gqa", "kv_cache"},
    "packed-kv": {"kv_cache"},
    "varlen": {"weights", "kv_cache"},
}


def some(words: tuple[str, ...], least: int = 0) -> st.SearchStrategy[list[str]]:
    """Some of the words."""
    return st.lists(st.sampled_from(words), unique=True, min_size=least)


@st.composite
def declared(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A kind and its promises."""
    kind = draw(st.sampled_from(["core", "core", "layer"]))
    promises: dict[str, Any] = {"empty_rows": "zeros"}
    layout, features = "BHSD", draw(some(FEATURES))
    if kind == "core":
        layout = draw(st.sampled_from(["BHSD", "BSHD", "packed-qkv", "packed-kv", "varlen"]))
    else:
        promises["inputs"] = draw(st.sampled_from(["separate", "self", "memory"]))
        if promises["inputs"] == "separate" and draw(st.booleans()):
            promises["without"] = ["cross"]
    promises["layout"] = layout
    promises["features"] = [word for word in features if word not in IMPOSSIBLE.get(layout, ())]
    batched = layout != "BHSD" or draw(st.booleans())
    if layout != "varlen":
        promises |= {"batched": batched, "masks": draw(some(FORMS, 1))}
        shapes = [*draw(some(FOUR_AXES)), *draw(some(THREE))[:1], *draw(some(TWO))[:1]]
        shapes = [*(shapes or ["BHQK"]), *draw(st.sampled_from(LENGTHS))]
        if not batched:
            shapes = list(dict.fromkeys(shape.replace("B", "1", 1)[1:] for shape in shapes))
        promises["mask_shapes"] = shapes
    causal = draw(st.sampled_from([None, "bottom-right", "top-left"]))
    promises["causal"] = causal
    if kind == "core" and draw(st.booleans()):
        promises["geometry"] = draw(
            st.sampled_from([{"num_heads": 4}, {"head_size": [4, 8]}, {"batch": [1, 3]}])
        )
    return kind, promises


@settings(
    max_examples=settings().max_examples // 10,  # more at night, where the profile has more
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(declared())
def test_each_call_is_what_was_promised(made: tuple[str, dict[str, Any]]) -> None:
    """No mask in another shape, no keyword, axis or dtype that the declaration does not name."""
    kind, promises = made
    watched = Watched(kind, **promises)
    run = CandidateRun(watched.candidate, profile=PROFILE, skip=REFUSED, explain=False)
    accused = []
    for planned in run.planned():
        if planned.reason:
            continue
        watched.clause = planned.id
        result = run.run(planned)
        if result.status in ("failed", "error"):
            accused.append(f"{planned.id}: {result.status} {result.violation or result.reason}")
    assert watched.broken == [], promises
    assert accused == [], promises
    assert watched.calls > 100
