"""What one reading proposes names what the weights are made of: sinks, masks, biases, tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch
from examples import BARE_FLOAT32, core, plan, problem
from torch import Tensor

from conformance import Semantics
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import answer_to
from conformance.diagnosis.dissection.denominators import sink_statements, sum_statements
from conformance.diagnosis.dissection.logits import logit_statements
from conformance.diagnosis.dissection.reading import Reading, in_digits, read
from conformance.diagnosis.dissection.tiles import tile_statements
from conformance.diagnosis.mistakes import NamedMistake
from conformance.diagnosis.stage_edits import fitting, stage_edits
from conformance.problems.problem import Problem

Proposer = Callable[[Reading], Iterator[NamedMistake]]
OF_EVERY_KEY = "divided by the number of keys, for each key"
PLAIN: Final[dict[str, Any]] = {
    "masks": [],
    "causal": None,
    "features": [],
    "empty_rows": "any",
    "dtypes": ["float32"],
}


def softmaxed(query: Tensor, key: Tensor) -> Tensor:
    """The right weights without any option."""
    return torch.softmax(scores(query, key), dim=-1)


def scores(query: Tensor, key: Tensor) -> Tensor:
    """The scaled dot products."""
    return query @ key.mT * query.shape[-1] ** -0.5


def proposed(
    function: Callable[..., Tensor], proposer: Proposer, drawn: Problem, **promises: Any
) -> list[str]:
    """The names that a proposer gives to what a core computes on one problem."""
    subject = Subject(core(function, **{**PLAIN, **promises}), "float32")
    reading = read(subject, subject.inputs(drawn))
    assert reading is not None
    return [one.name for one in proposer(reading)]


def fitted(function: Callable[..., Tensor], drawn: Problem, **promises: Any) -> list[str]:
    """The names of the stages with operators that make what a core answers on one problem."""
    subject = Subject(core(function, **{**PLAIN, **promises}), "float32")
    answer = answer_to(subject, subject.inputs(drawn), drawn)
    assert answer is not None
    return [one.name for one in fitting(stage_edits("core"), answer)]


def sunk(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A core with other sinks than those of the call."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, sinks: Any = None) -> Tensor:
        logits = scores(query, key)
        if sinks is not None:
            column = change(sinks).view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
            logits = torch.cat([logits, column], dim=-1)
        return torch.softmax(logits, dim=-1)[..., : key.shape[2]] @ value

    return attend


def test_a_temperature_by_length_is_read() -> None:
    """Logits times a multiple of the logarithm of the number of keys are stated for any number."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = scores(query, key) * math.log(key.shape[2]) / math.log(512)
        return logits.softmax(dim=-1) @ value

    names = proposed(attend, logit_statements, problem(key_length=9))
    assert "logits: 0.160299 ln(the number of keys) times the scores" in names
    assert "logits: ln(the number of keys)/ln(512) times the scores" in names


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (lambda keys: max(1.0, math.log(keys, 12)), "max(1, ln(the number of keys)/ln(12))"),
        (
            lambda keys: 1.0 + 0.1 * math.log(max(keys / 32, 1.0)),
            "max(1, 1 + 0.1 ln(the number of keys/32))",
        ),
        (lambda keys: 1.0 + 0.4 * math.log(keys), "(1 + 0.4 ln(the number of keys))"),
    ],
    ids=["base", "stretched", "multiple"],
)
@pytest.mark.one_in(2)
def test_scales_that_grow_with_the_keys_are_stated_before_a_softcap(
    factor: Callable[[int], float], said: str
) -> None:
    """To the base and from the length on that the factor was read to have."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, softcap: float | None = None) -> Tensor:
        logits = scores(q, k) * factor(k.shape[2])
        capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return capped.softmax(-1) @ v

    (entry,) = diagnose(
        Subject(core(attend, **{**BARE_FLOAT32, "features": ["softcap"]}), "float32")
    )
    assert entry["name"] == f"logits: scaled by the scale and {said}"


def test_a_changed_additive_mask_is_read() -> None:
    """An additive mask that is changed before it is added is stated as one term, not as two."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None) -> Tensor:
        logits = scores(query, key)
        logits = logits if bias is None else logits + torch.tanh(bias)
        return logits.softmax(dim=-1) @ value

    drawn = problem(query_length=6, key_length=7, mask=plan("full", form="bias", finite_bias=True))
    assert "additive mask: put through tanh" in fitted(attend, drawn, masks=["bias"])


def test_a_row_that_finite_numbers_hide_whole_has_lost_its_keys() -> None:
    """Equal weights are no sign that its keys are seen: a softmax of equal fills makes them."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = scores(query, key)
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu()
        return logits.masked_fill(hidden, -1e9).softmax(dim=-1) @ value

    (entry,) = diagnose(Subject(core(attend, **BARE_FLOAT32), "float32"))
    said = "table of all that may be attended: false for keys at or after the query"
    assert entry["name"].startswith(said)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda sinks: 2.0 * sinks, "sinks: 2 times the sink"),
        (lambda sinks: sinks + 0.25, "sinks: the sink and 1/4"),
    ],
)
def test_the_logit_of_a_sink_is_read(change: Callable[[Tensor], Tensor], name: str) -> None:
    """The sums of the weights say which logit joins them: the sink and a number, or times one."""
    drawn = problem(sinks=True, num_heads=3, num_kv_heads=3, query_length=5, key_length=7)
    assert name in proposed(sunk(change), sink_statements, drawn, features=["sinks"])


def test_a_sink_without_its_exponential_is_read() -> None:
    """The sink itself joins the sum of the exponentials."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, sinks: Tensor | None = None) -> Tensor:
        powers = scores(query, key).exp()
        total = powers.sum(-1, keepdim=True)
        return (powers / (total if sinks is None else total + sinks[:, None, None])) @ value

    drawn = problem(sinks=True, num_heads=3, num_kv_heads=3, query_length=5, key_length=7)
    name = "sinks: the sink itself, not its exponential, joins the sum of the exponentials"
    assert name in proposed(attend, sink_statements, drawn, features=["sinks"])


def test_a_query_that_a_group_shares_is_read() -> None:
    """Heads that share keys share their query, too: its mean."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mean = query.unflatten(1, (key.shape[1], -1)).mean(2).repeat_interleave(2, 1)
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        return softmaxed(mean, key) @ value

    names = fitted(attend, problem(num_heads=4, num_kv_heads=2), features=["gqa"])
    assert "queries: averaged over the heads of each group" in names


def test_a_rounded_scale_is_read() -> None:
    """One digit after the point is what is left of 1/sqrt(18)."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT * round(query.shape[-1] ** -0.5, 1)).softmax(-1) @ value

    names = proposed(attend, logit_statements, problem(head_size=18))
    assert "logits: scaled by the scale rounded to one digit after the point" in names


def test_an_additive_mask_of_another_place_is_read() -> None:
    """The numbers of the first head with every minus infinity of its own and of that."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, bias: Any = None) -> Tensor:
        logits = scores(query, key)
        if bias is not None:
            logits = (logits + bias[:, :1]).masked_fill(bias.isneginf(), -torch.inf)
        return torch.softmax(logits, dim=-1) @ value

    drawn = problem(
        mask=plan(pattern="dense", form="bias", finite_bias=True),
        num_heads=3,
        num_kv_heads=3,
        query_length=5,
        key_length=9,
    )
    names = fitted(attend, drawn, masks=["bias"])
    assert "mask: those of the first head, and its own hides keys as well" in names


def test_a_linear_bias_with_other_slopes_is_read() -> None:
    """Slopes and distances of a declared linear bias are told from others."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places = torch.arange(query.shape[2])[:, None] + key.shape[2] - query.shape[2]
        distance = (places - torch.arange(key.shape[2])).square()
        slopes = 2.0 ** (-4.0 * torch.arange(1, 3)).view(-1, 1, 1)
        return torch.softmax(scores(query, key) - slopes * distance, dim=-1) @ value

    drawn = problem(num_heads=2, num_kv_heads=2, query_length=5, key_length=7)
    names = fitted(attend, drawn, semantics=Semantics(alibi=True))
    assert "bias by distance: made of squares of distances" in names


def capped_twice(
    query: Tensor, key: Tensor, value: Tensor, *, softcap: float | None = None
) -> Tensor:
    """The softcap is applied twice."""
    logits = scores(query, key)
    for _ in range(0 if softcap is None else 2):
        logits = softcap * torch.tanh(logits / softcap)
    return torch.softmax(logits, dim=-1) @ value


def capped_behind_log2e(
    query: Tensor, key: Tensor, value: Tensor, *, softcap: float | None = None
) -> Tensor:
    """Exponentials to the base 2 of scores that meet the softcap in its units."""
    logits = scores(query, key) / math.log(2.0)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    return torch.softmax(logits * math.log(2.0), dim=-1) @ value


@pytest.mark.parametrize(
    ("attend", "said"),
    [
        (capped_twice, "capped twice"),
        (capped_behind_log2e, "the scores under ln(2) times the softcap"),
    ],
)
def test_a_softcap_that_is_applied_otherwise_is_read(
    attend: Callable[..., Tensor], said: str
) -> None:
    """What takes the place of the softcap is a stage with an operator."""
    drawn = problem(softcap=1.5, query_length=5, key_length=7)
    assert f"capped scores: {said}" in fitted(attend, drawn, features=["softcap"])


def causal_in_tiles(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """With the causal flag keys before the query's own tile of eight are lost."""
    logits = scores(query, key)
    if causal:
        places, keys = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
        logits = logits.masked_fill((keys > places) | (keys // 8 < places // 8), -torch.inf)
    return torch.softmax(logits, dim=-1) @ value


@pytest.mark.parametrize("proposer", [tile_statements, sum_statements])
def test_weights_that_are_right_to_the_digits_that_are_read_say_nothing(proposer: Proposer) -> None:
    """What makes them as well as the golden does is no mistake, and every call would refute it."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax((1.0 + 2.0**-13) * scores(query, key), dim=-1) @ value

    assert proposed(attend, proposer, problem(query_length=3, key_length=17)) == []


def test_what_loses_keys_is_not_said_to_replace_what_hides_others() -> None:
    """Keys that are lost beside those that the flag hides are described, and no mask is blamed."""
    drawn = problem(causal=True, query_length=12, key_length=12)
    lost = fitted(causal_in_tiles, drawn, causal="bottom-right")
    assert "exponentials: zero for keys in a tile of 8 before the query's own" in lost
    assert not any(name.startswith("mask: ") for name in lost)


def test_the_heads_of_a_cache_are_read() -> None:
    """Cached values of another key/value head are told from new ones."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, past_key: Any = None, past_value: Any = None
    ) -> Tensor:
        if past_key is not None:
            key = torch.cat([past_key, key], dim=2)
            value = torch.cat([past_value.flip(1), value], dim=2)
        group = query.shape[1] // key.shape[1]
        key, value = (heads.repeat_interleave(group, dim=1) for heads in (key, value))
        return softmaxed(query, key) @ value

    drawn = problem(past=3, num_heads=4, num_kv_heads=2, query_length=3, key_length=6)
    names = fitted(attend, drawn, features=["kv_cache", "gqa"])
    said = "those of the key/value head counted from the end, cached ones alone"
    assert f"values: {said}" in names


def test_cached_keys_are_changed_before_the_heads_of_a_group_share_them() -> None:
    """The key/value head before is another than the query head before."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, past_key: Any = None, past_value: Any = None
    ) -> Tensor:
        if past_key is not None:
            key = torch.cat([past_key.roll(1, 1), key], dim=2)
            value = torch.cat([past_value, value], dim=2)
        group = query.shape[1] // key.shape[1]
        key, value = (heads.repeat_interleave(group, dim=1) for heads in (key, value))
        return softmaxed(query, key) @ value

    drawn = problem(past=3, num_heads=6, num_kv_heads=3, query_length=3, key_length=6)
    names = fitted(attend, drawn, features=["kv_cache", "gqa"])
    assert "keys: those of the key/value head before, cached ones alone" in names


@pytest.mark.parametrize(
    ("number", "said"),
    [(0.53071, "0.5307"), (1.00140003, "1.0014"), (-0.99970001, "-0.9997"), (1.0 + 1e-8, "1")],
)
def test_numbers_near_one_are_said_to_more_digits(number: float, said: str) -> None:
    """What matters of a factor near one is how far from one it is, down to rounding."""
    assert in_digits(number) == said


@pytest.mark.parametrize("factor", [1.0003, 1.0014])
def test_factors_near_one_are_stated(factor: float) -> None:
    """A factor is told from one by the errors of what is read, and said to the digits it has."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return factor * (softmaxed(query, key) @ value)

    assert f"answer: times {factor}" in proposed(attend, sum_statements, problem())


def test_keys_of_the_opposite_batch_item_are_stated() -> None:
    """Of four items the first meets the last, the second the third."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return softmaxed(query, key.flip(0)) @ value

    names = fitted(attend, problem(batch=4))
    assert "keys: those of the batch item counted from the end" in names
