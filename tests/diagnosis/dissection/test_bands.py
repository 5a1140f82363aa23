"""Wrong triangles and windows are read, and stated by the place that they are counted from."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from examples import BARE_FLOAT32, core
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose

Window = tuple[int, int] | None


def banded(
    shift: Callable[[int], int] = lambda more: more,
    distance: Callable[[Tensor, int], Tensor] = lambda distance, _keys: distance,
    hidden: float = -math.inf,
) -> Callable[..., Tensor]:
    """A core whose query i stands at ``i + shift(keys - queries)``."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        window: Window = None,
    ) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        places = torch.arange(queries)[:, None] + shift(keys - queries)
        before = distance(places - torch.arange(keys), keys)
        left, right = (-1, -1) if window is None else window
        seen = torch.ones_like(before, dtype=torch.bool)
        if left >= 0:
            seen &= before <= left
        if causal or right >= 0:
            seen &= before >= (0 if causal else -right)
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~seen, hidden).softmax(dim=-1)
        return weights.masked_fill(~seen.any(dim=-1, keepdim=True), 0.0) @ value

    return attend


STATED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "a reversed shift": (
        banded(lambda more: -more),
        "counted from the first key, less the number by which keys are more than queries",
    ),
    "a clipped shift": (
        banded(lambda more: min(more, 3)),
        "counted from the last key, but from no more than 3 keys after the first",
    ),
    "a shift clipped at the front": (
        banded(lambda more: max(more, -2)),
        "counted from the last key, but from no more than 2 keys before the first",
    ),
    "the middle": (banded(lambda more: more // 2), "counted from the middle of the keys"),
    "a ring": (
        banded(distance=lambda before, keys: before % keys),
        "distances from query to key: taken modulo the number of keys",
    ),
    "a finite logit": (banded(hidden=-10.0), "hidden keys: a logit of -10"),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("wrong", STATED, ids=str)
def test_what_a_window_shows_instead_is_stated(wrong: str) -> None:
    """Where queries stand, how distances are counted, and a logit of hidden keys are stated."""
    function, name = STATED[wrong]
    candidate = core(
        function,
        masks=[],
        causal="bottom-right",
        features=["window"],
        empty_rows="zeros",
        dtypes=["float32"],
    )
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert name in entry["name"]
    assert entry["fix"]


def literal(*, before: bool, after: bool) -> Callable[..., Tensor]:
    """A core that takes -1 for a number of keys, on one side or both, where it is not causal."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, window: Window = None
    ) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
        seen = (ahead <= 0) | (not causal)
        if window is not None:
            left, right = window
            seen = seen & ((ahead >= -left) | (left < 0 and not before))
            seen = seen & ((ahead <= right) | (right < 0 and (causal or not after)))
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
        return weights.masked_fill(~seen.any(dim=-1, keepdim=True), 0.0) @ value

    return attend


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (True, False, "-1 before the query as a number of keys"),
        (
            False,
            True,
            "-1 after the query as a number of keys where the call is not causal",
        ),
    ],
)
def test_a_window_without_a_limit_that_is_taken_for_a_number_is_told(
    *, before: bool, after: bool, words: str
) -> None:
    """On one side alone, and in calls that are not causal, where causality limits that side."""
    candidate = core(
        literal(before=before, after=after),
        masks=[],
        causal="bottom-right",
        features=["window"],
        empty_rows="zeros",
        dtypes=["float32"],
    )
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["text"].endswith(words)


def showing_more(more: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A core whose window shows more: of its own keys ``[Lq, Lk]``, the places, and the mask."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
        window: Window = None,
    ) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
        seen = torch.ones(1, 1, queries, keys, dtype=torch.bool) if keep is None else keep
        if window is not None:
            seen = more(ahead, window, seen, keep is not None)
        seen = seen & ((ahead <= 0) | (not causal))
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
        return weights.masked_fill(~seen, 0.0) @ value

    return attend


def within(ahead: Tensor, window: tuple[int, int]) -> Tensor:
    """The keys that a window shows."""
    left, right = window
    return ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))


def _symmetric(ahead: Tensor, window: tuple[int, int], seen: Tensor, _masked: object) -> Tensor:
    return seen & within(ahead, (max(window),) * 2)


def _front(ahead: Tensor, window: tuple[int, int], seen: Tensor, _masked: object) -> Tensor:
    return seen & (within(ahead, window) | (torch.arange(ahead.shape[1]) < 2))


def _either(ahead: Tensor, window: tuple[int, int], seen: Tensor, masked: bool) -> Tensor:  # noqa: FBT001
    return seen | within(ahead, window) if masked else seen & within(ahead, window)


@pytest.mark.parametrize(
    ("more", "name"),
    [
        (_symmetric, "table of the window: made with the larger side on both"),
        (_front, "table of the window: true for the first 2 keys"),
        (
            _either,
            (
                "table of all that may be attended: true where causality and the mask or the "
                "window admit a key"
            ),
        ),
    ],
    ids=["symmetric", "front", "either"],
)
def test_what_a_window_shows_besides_is_stated(more: Callable[..., Tensor], name: str) -> None:
    """The larger side on both, the first keys whatever it hides, and what a mask keeps."""
    promises = {"causal": "bottom-right", "features": ["window"], "empty_rows": "zeros"}
    candidate = core(showing_more(more), masks=["keep"], dtypes=["float32"], **promises)
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"] == name


def without_the_past(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """Places are made of the new keys alone, and the cached ones lie before them."""
    more = key.shape[2] - query.shape[2]
    if past_key is not None and past_value is not None:
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(more + 1)
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1).nan_to_num() @ value


def test_places_that_forget_the_cache_are_said() -> None:
    """Queries counted from the last key as if none were cached: only calls with a cache show it."""
    promises = {"masks": [], "causal": "bottom-right", "features": ["kv_cache"]}
    subject = Subject(core(without_the_past, empty_rows="zeros", **promises), "float32")
    (entry,) = diagnose(subject)
    assert (
        entry["name"]
        == "distances from query to key: counted from the last key, less the number of cached keys"
    )


def test_keys_cut_at_the_size_of_another_axis_are_told() -> None:
    """A loop over the wrong axis loses the keys past that axis's size."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        size = v.shape[-1]
        logits = q @ k[:, :, :size].mT * q.shape[-1] ** -0.5
        return logits.softmax(-1) @ v[:, :, :size]

    (entry,) = diagnose(Subject(core(attend, **BARE_FLOAT32), "float32"))
    lost = "table of all that may be attended: false for keys past as many as there are channels"
    assert entry["name"] == f"{lost} of a value head"


@pytest.mark.parametrize("fill", [-math.inf, -1e9])
def test_hidden_and_seen_keys_exchanged_are_one_mistake(fill: float) -> None:
    """Of the triangle and where there is none: a finite fill makes no second one of it."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool)
        seen = seen.tril() if causal else seen
        return logits.masked_fill(seen, fill).softmax(-1) @ v

    promises = {**BARE_FLOAT32, "causal": "top-left"}
    (entry,) = diagnose(Subject(core(attend, **promises), "float32"))
    assert entry["name"] == "hidden-and-seen-exchanged"


@pytest.mark.parametrize("words", ["batch item", "head"])
def test_the_mask_of_the_one_before_is_told(words: str) -> None:
    """Three items and heads tell it from that of the opposite one."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        if keep is not None:
            moved = keep.expand(*q.shape[:2], -1, -1).roll(1, 0 if words == "batch item" else 1)
            logits = logits.masked_fill(~moved, -math.inf)
        return logits.softmax(-1).nan_to_num(0.0) @ v

    promises = {**BARE_FLOAT32, "masks": ["keep"], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, **promises), "float32"))
    assert entry["name"] == f"mask: those of the {words} before"


@pytest.mark.parametrize("zeros", [True, False])
def test_a_softmax_over_another_axis_may_be_nan(*, zeros: bool) -> None:
    """Where all heads hide a key its weights are NaN, and answers with them, or zero at last."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        if keep is not None:
            logits = logits.masked_fill(~keep, -math.inf)
        answer = logits.softmax(1) @ v
        return answer.nan_to_num(0.0) if zeros else answer

    promises = {**BARE_FLOAT32, "masks": ["keep"], "empty_rows": "zeros" if zeros else "nan"}
    (entry,) = diagnose(Subject(core(attend, **promises), "float32"))
    assert entry["name"] == "softmax-over-heads"
