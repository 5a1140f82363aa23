"""Numbers by which a stage is changed are read from one answer, in closed form if one is near."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final

import pytest
import torch
from examples import core, plan, problem
from torch import Tensor

from conformance import Semantics
from conformance.clauses.subject import Subject
from conformance.diagnosis.battery import answer_to
from conformance.diagnosis.fitted_numbers import Family, blends, families, fitted_mistakes
from conformance.problems.problem import Problem

PLAIN: Final[dict[str, Any]] = {
    "masks": [],
    "causal": None,
    "features": [],
    "empty_rows": "any",
    "dtypes": ["float32"],
}
DRAWN: Final = problem(num_heads=3, num_kv_heads=3, query_length=5, key_length=7)


def said(
    function: Callable[..., Tensor],
    drawn: Problem = DRAWN,
    some: Iterable[Family] | None = None,
    **promises: Any,
) -> list[str]:
    """What numbers that make the answer of a core to one problem are said to be."""
    subject = Subject(core(function, **{**PLAIN, **promises}), "float32")
    answer = answer_to(subject, subject.inputs(drawn), drawn)
    assert answer is not None
    every = chain(families(), blends()) if some is None else some
    return [one.sentence for one in fitted_mistakes([answer], every)]


def scores(query: Tensor, key: Tensor) -> Tensor:
    """The scaled dot products."""
    return query @ key.mT * query.shape[-1] ** -0.5


def of_logits(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A core with other logits than the scores."""
    return lambda q, k, v: change(scores(q, k)).softmax(-1) @ v


def of_exponentials(divisor: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A core that divides the exponentials of its logits by something else than their sum."""
    return lambda q, k, v: scores(q, k).exp() / divisor(scores(q, k).exp()) @ v


def distances(logits: Tensor) -> Tensor:
    """How far each key lies from its query, the last ones of both at one place."""
    queries, keys = logits.shape[-2:]
    return (torch.arange(keys) - torch.arange(queries)[:, None] - keys + queries).abs()


PER_HEAD: Final = torch.tensor([0.5, 0.25, 0.125])[:, None, None]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (of_logits(lambda s: 0.37 * s), "the scores are 0.37 times what they should be"),
        (
            lambda q, k, v: (0.37 * q @ k.mT).softmax(-1) @ v,
            "the dot products are multiplied by 0.37",
        ),
        (
            of_logits(lambda s: s * s.shape[-1] ** 0.5),
            "the scores are √(the number of keys) times what they should be",
        ),
        (
            of_logits(lambda s: s * PER_HEAD),
            "the scores are 1/2 times (1/2)^h in head h times what they should be",
        ),
        (of_logits(lambda s: 3.7 * torch.tanh(s / 3.7)), "the scores are under a softcap of 3.7"),
        (of_logits(lambda s: s.clamp_max(0.4)), "the scores are no larger than 0.4"),
        (of_logits(lambda s: s.clamp(-0.3, 0.3)), "the scores are clamped to 0.3 of either sign"),
        (
            of_logits(lambda s: s + 0.25 * torch.arange(s.shape[-1])),
            "the logits have 1/4 times the index of the key added",
        ),
        (
            of_logits(lambda s: s - 0.3 * distances(s)),
            "the logits have -0.3 times the distance from query to key added",
        ),
        (
            of_exponentials(lambda e: e.sum(-1, keepdim=True) + 2.0),
            "the sums of the exponentials have 2 added",
        ),
        (
            of_exponentials(lambda e: torch.full_like(e[..., :1], e.shape[-1])),
            (
                "the exponentials are divided by 1 times the number of keys that are attended, not "
                "by their sum"
            ),
        ),
        (
            lambda q, k, v: 0.75 * (scores(q, k).softmax(-1) @ v),
            "the outputs of the heads are 0.75 times what they should be",
        ),
        (
            lambda q, k, v: scores(q, k).softmax(-1) @ (0.75 * v + 0.25 * v.roll(1, 1)),
            "a part of 1/4 of the values is replaced by those of the key/value head before",
        ),
        (
            lambda q, k, v: (
                (scores(q, k).softmax(-1) + 0.1 * scores(q, k).softmax(-1).roll(1, 1)) @ v
            ),
            "the weights have 0.1 times those of the head before added",
        ),
    ],
    ids=range(14),
)
def test_a_number_is_read_of_one_answer(function: Callable[..., Tensor], words: str) -> None:
    """At whatever stage it is, of each head by itself, and in closed form."""
    assert words in said(function)


@pytest.mark.parametrize(
    ("factor", "number"),
    [
        (lambda keys: max(1.0, math.log(keys, 5)), "max(1, ln(the number of keys)/ln(5))"),
        (lambda keys: 1.0 + 0.4 * math.log(keys), "(1 + 0.4 ln(the number of keys))"),
    ],
    ids=["base", "multiple"],
)
def test_scores_that_grow_with_the_keys_are_read(
    factor: Callable[[int], float], number: str
) -> None:
    """By the logarithm of their number, to the base that it was made to."""
    words = said(of_logits(lambda s: s * factor(s.shape[-1])))
    assert f"the scores are {number} times what they should be" in words


def test_numbers_of_options_are_read() -> None:
    """A factor of an additive mask, a limit of it, and what a mask's hidden keys have."""

    def biased(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> Tensor:
            logits = scores(q, k) if bias is None else scores(q, k) + change(bias)
            return logits.softmax(-1) @ v

        return attend

    mask = plan("dense", form="bias", finite_bias=True)
    drawn = problem(num_heads=2, num_kv_heads=2, query_length=6, key_length=7, mask=mask)
    of_mask = {"masks": ["bias"]}
    assert "the additive mask is 3 times what it should be" in said(
        biased(lambda b: 3.0 * b), drawn, **of_mask
    )
    assert "the additive mask is no smaller than -1, minus infinity too" in said(
        biased(lambda b: b.clamp_min(-1.0)), drawn, **of_mask
    )

    def filled(q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = scores(q, k) if keep is None else scores(q, k).masked_fill(~keep, -4.5)
        return logits.softmax(-1) @ v

    drawn = problem(query_length=6, key_length=7, mask=plan("dense", form="keep"))
    assert "hidden keys have a logit of -4.5" in said(filled, drawn, masks=["keep"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda sinks: 2.0 * sinks, "the sinks are 2 times what they should be"),
        (lambda sinks: sinks + 0.25, "the sinks have 1/4 added"),
    ],
)
def test_the_logit_of_a_sink_is_read(change: Callable[[Tensor], Tensor], words: str) -> None:
    """The sink and a number, or times one."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor | None = None) -> Tensor:
        logits = scores(q, k)
        if sinks is not None:
            column = change(sinks).view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
            logits = torch.cat([logits, column], dim=-1)
        return logits.softmax(-1)[..., : k.shape[2]] @ v

    drawn = problem(sinks=True, num_heads=3, num_kv_heads=3, query_length=5, key_length=7)
    assert words in said(attend, drawn, features=["sinks"])


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (lambda _size: 7300.0, "the base of the rotary positions is 7300"),
        (
            lambda size: 10000.0 * 2.0 ** (size / (size - 2)),
            "the slowest rotary frequency is divided by 2, others by powers of it",
        ),
    ],
    ids=["base", "stretched"],
)
def test_numbers_of_rotary_positions_are_read(base: Callable[[int], float], words: str) -> None:
    """Another base, or one that grows with the head size as where contexts are stretched."""

    def turned(heads: Tensor, start: int) -> Tensor:
        size = heads.shape[-1]
        one, two = heads.chunk(2, -1)
        at = torch.arange(start, start + heads.shape[-2])[:, None]
        angles = at * base(size) ** -(torch.arange(0, size, 2) / size)
        both = (one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin())
        return torch.cat(both, -1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scores(turned(q, k.shape[2] - q.shape[2]), turned(k, 0)).softmax(-1) @ v

    drawn = problem(query_length=5, key_length=9, head_size=8, value_head_size=8)
    texts = said(attend, drawn, semantics=Semantics(rotary="halves"))
    assert any(text.startswith(words) for text in texts), texts


def test_right_answers_have_no_number() -> None:
    """Nothing is read where nothing is wrong."""
    assert said(of_logits(lambda s: s)) == []
