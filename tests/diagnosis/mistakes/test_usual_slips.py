"""Slips of a line or two, as people make them, are explained by the mistake that is named after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import problem
from torch import Tensor

import conformance
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import answer_to
from conformance.diagnosis.mistaken_answer import act
from conformance.diagnosis.mistakes import NotExpressible, named_mistakes

SIZES = {"batch": 2, "num_heads": 4, "num_kv_heads": 4, "query_length": 5, "key_length": 5}


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    """Scaled products."""
    scores: Tensor = query @ key.mT / query.shape[-1] ** 0.5
    return scores


def limited(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Exponentials without the largest logit, which are kept small by a clamp."""
    weights = scores_of(query, key).clamp(max=5.0).exp()
    return weights / weights.sum(-1, keepdim=True) @ value


def of_other_sums(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The axis of the sums is lost."""
    scores = scores_of(query, key)
    each = (scores - scores.amax(-1, keepdim=True)).exp()
    return each / each.sum(-1)[..., None, :] @ value


def exchanged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Two halves, each with the share of the other."""
    parts = []
    for keys, values in zip(key.split([2, 3], 2), value.split([2, 3], 2), strict=True):
        scores = scores_of(query, keys)
        parts.append((scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True)))
    (one, first), (other, second) = parts
    share = torch.sigmoid(second - first)
    return share * one + (1 - share) * other


def across(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Heads of the answer by their place in the group first."""
    grouped = query.unflatten(1, (key.shape[1], -1))
    answer = scores_of(grouped, key[:, :, None]).softmax(-1) @ value[:, :, None]
    return answer.transpose(1, 2).flatten(1, 2)


def dropped(query: Tensor, key: Tensor, value: Tensor, *, sinks: Tensor | None = None) -> Tensor:
    """The first column is dropped, though the sink is in the last."""
    scores = scores_of(query, key)
    if sinks is None:
        return scores.softmax(-1) @ value
    column = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., 1:] @ value


def beside_the_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: tuple[int, int] | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """The window is that of the new keys; cached ones are all seen."""
    cached = 0
    if past_key is not None and past_value is not None:
        cached = past_key.shape[2]
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
    scores = scores_of(query, key)
    if window is not None:
        places = torch.arange(key.shape[2])
        ahead = places - places[-query.shape[2] :, None]
        hidden = (ahead < -window[0]) & (places >= cached)
        scores = scores.masked_fill(hidden | (ahead > window[1]), -torch.inf)
    return scores.softmax(-1) @ value


@pytest.mark.parametrize(
    ("function", "name", "features", "asked"),
    [
        (limited, "logits-clamped", [], {"values": "large-logits"}),
        (of_other_sums, "divided-by-the-sums-of-other-queries", [], {}),
        (exchanged, "halves-merged-with-exchanged-shares", [], {}),
        (across, "groups-merged-across", ["gqa"], {"num_kv_heads": 2}),
        (
            beside_the_cache,
            "window-of-new-keys-alone",
            ["kv_cache", "window"],
            {"past": 2, "query_length": 3, "window": (1, 1)},
        ),
        (dropped, "sink-dropped-at-the-wrong-end", ["sinks"], {"sinks": True}),
    ],
)
def test_one_way_to_make_the_mistake_answers_alike(
    function: Callable[..., Tensor], name: str, features: list[str], asked: dict[str, Any]
) -> None:
    """And no right answer does."""
    subject = Subject(conformance.core(features=features)(function), "float32")
    answer = answer_to(subject, subject.inputs(problem(**{**SIZES, "dtype": "float32", **asked})))
    assert answer is not None
    assert answer.margin > 1.0
    ways = [(one,) for one in named_mistakes() if one.name == name]
    point = subject.declaration.semantics

    def alike(made: Any) -> bool:
        try:
            return answer.agrees(act(subject.oracle, point, made, answer.inputs))
        except NotExpressible:
            return False

    assert any(map(alike, ways))


@conformance.core(layout="varlen")
def searched(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,  # noqa: ARG001 (the layout's)
    max_seqlen_k: int,  # noqa: ARG001
) -> Tensor:
    """``searchsorted`` from the left: the first token of a sequence is in the one before."""
    sequences = (
        torch.searchsorted(ends, torch.arange(len(tokens), dtype=torch.int32))
        for ends, tokens in ((cu_seqlens_q, query), (cu_seqlens_k, key))
    )
    queries, keys = sequences
    query, key, value = (each.transpose(0, 1) for each in (query, key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores.masked_fill(queries[:, None] != keys, -torch.inf)
    return (scores.softmax(-1).nan_to_num(0.0) @ value).transpose(0, 1)


def test_sequences_that_are_searched_from_the_left() -> None:
    """Their first tokens are counted to the sequence before."""
    (entry,) = diagnose(Subject(searched, "float32"))
    assert entry["name"] == "sequences-begin-late"


@pytest.mark.parametrize("ruled", [False, True], ids=["behind causality", "rows without keys kept"])
def test_a_fill_of_plus_infinity_is_one_mistake(ruled: bool) -> None:  # noqa: FBT001
    """Over what causality hides already, and where rows without keys are zeros by themselves."""

    @conformance.core(masks=["keep"], causal="bottom-right", empty_rows="zeros" if ruled else "any")
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        scores = scores_of(query, key)
        seen = torch.ones_like(scores, dtype=torch.bool)
        if causal:
            seen = seen.tril(scores.shape[-1] - scores.shape[-2])
            scores = scores.masked_fill(~seen, -torch.inf)
        if keep is not None:
            scores, seen = scores.masked_fill(~keep, torch.inf), seen & keep
        weights = scores.softmax(-1)
        return (weights.masked_fill(~seen.any(-1, keepdim=True), 0.0) if ruled else weights) @ value

    names = [entry["name"] for entry in diagnose(Subject(attend, "float32"))]
    assert names == ["mask-fill-plus-infinity"]


@pytest.mark.parametrize(("fewer", "name"), [(1, "narrower"), (-1, "wider")])
def test_a_window_that_is_one_off_after_the_query(fewer: int, name: str) -> None:
    """Fewer or more keys on that side alone: one mistake, whose sentence says the side."""

    @conformance.core(features=["window"])
    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, window: tuple[int, int] | None = None
    ) -> Tensor:
        scores = scores_of(query, key)
        if window is not None:
            left, right = window
            ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None]
            ahead -= key.shape[2] - query.shape[2]
            hidden = (ahead < -left) & (left >= 0) | (ahead > right - fewer) & (right >= 0)
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(-1).nan_to_num(0.0) @ value

    (entry,) = diagnose(Subject(attend, "float32"))
    assert entry["name"] == f"window-one-{name}"
    assert "after the query than asked for" in entry["text"]


@pytest.mark.parametrize("promises", [{}, {"masks": ["keep"], "causal": "bottom-right"}], ids=str)
def test_an_answer_that_is_nan_everywhere_is_called_so(promises: dict[str, Any]) -> None:
    """Nothing is said of masks, though a row that has lost all keys would be NaN as well."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        del keep, causal
        return (scores_of(query, key) / 0.0).softmax(-1) @ value

    (entry,) = diagnose(Subject(conformance.core(**promises)(attend), "float32"))
    assert entry["name"] == "answer-nan"


@pytest.mark.parametrize("role", ["key", "query"])
def test_an_index_of_a_score_function_that_is_counted_from_the_end(role: str) -> None:
    """A table of biases by place whose axis is flipped: no token stands elsewhere."""

    def slanted(score: Tensor, _b: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + torch.sin(1.3 * (query - 2 * key) + head)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = scores_of(query, key)
        heads, queries, keys = map(torch.arange, scores.shape[1:])
        queries = queries.flip(0) if role == "query" else queries
        keys = keys.flip(0) if role == "key" else keys
        none, heads, queries = torch.zeros(1), heads[:, None, None], queries[:, None]
        return slanted(scores, none, heads, queries, keys).to(query.dtype).softmax(-1) @ value

    point = conformance.Semantics(score_mod=slanted)
    (entry,) = diagnose(Subject(conformance.core(attend, semantics=point), "float32"))
    assert entry["name"] == "score-mod-indices"
    assert f"the index of each {role} counted from the last one" in entry["text"]
