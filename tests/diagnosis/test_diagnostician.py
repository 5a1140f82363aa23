"""What else a mistake makes fail than the clause whose failure gave it its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from examples import BARE_FLOAT32, CLAUSES, core, problem
from torch import Tensor
from torch.nn.functional import elu, scaled_dot_product_attention

import conformance
from candidates.broken import MISTAKES
from conformance.base.mistake import UNKNOWN
from conformance.base.profile import PROFILES
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import diagnose
from conformance.diagnosis.agreement import fails_alike
from conformance.diagnosis.diagnostician import Diagnostician
from conformance.problems.problem import Problem
from conformance.running.runner import CandidateRun

SLUG = "equivariance.keys"
# Where the value head has so many channels, one of the candidates makes a mistake of its own.
OWN = 29


def tiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Key/value heads are repeated in blocks: most query heads read another one than theirs."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1)
    return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value


def tiled_and_more(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same, and the first key counts for more where there are many channels."""
    answer = tiled(query, key, value)
    return answer + value[:, :1, :1] if value.shape[-1] == OWN else answer


def failing(subject: Subject, channels: int) -> Problem:
    """A problem on which the clause fails."""
    drawn = (
        problem(
            num_heads=6,
            num_kv_heads=3,
            query_length=3,
            key_length=5,
            head_size=1,
            value_head_size=channels,
            values="mixed-scales",
            seed=seed,
        )
        for seed in range(400)
    )
    return next(one for one in drawn if CLAUSES[SLUG].check(subject, one).violation is not None)


@pytest.mark.parametrize(("function", "name"), [(tiled, "groups-tiled"), (tiled_and_more, "")])
def test_a_law_that_breaks_by_rounding_has_the_cause_of_the_wrong_answers(
    function: object, name: str
) -> None:
    """Where every answer is that of the mistake; a second mistake there is not covered by it.

    The bound of a law is that of right answers: a mistake that reads a larger head rounds more.
    """
    promises = {"masks": [], "causal": None, "features": ["gqa"], "empty_rows": "any"}
    subject = Subject(core(function, **promises), "float32")  # type: ignore[arg-type]  # by name
    diagnostician = Diagnostician(subject)
    shown = failing(subject, OWN)
    (explanation,) = diagnostician.explanations
    assert explanation.entry["name"] == "groups-tiled"
    assert fails_alike(subject, explanation.made, CLAUSES[SLUG], shown) is False
    assert diagnostician.explained_by(CLAUSES[SLUG], shown) == name
    diagnostician.explanations.clear()
    assert diagnostician.explained_by(CLAUSES[SLUG], shown) == UNKNOWN


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("mistake", "clause", "name"),
    [
        ("ValuesClippedToHalf", "numerics.golden", "values-clipped-to-half"),
        ("MaskOfTheGroup", "mask.golden", "mask-of-first-head-of-group"),
        ("GroupsStartOneLate", "groups.golden", "groups-start-late"),
        ("SequencesCausalFromTheTop", "varlen.golden", "causal-top-left"),
        ("PackedByHead", "numerics.golden", "packed-by-head"),
        ("CausalByLongest", "varlen.causal", "causal-of-the-longest"),
        ("OffsetsOffByOne", "varlen.golden", "sequences-lose-their-first-key"),
        ("NeighbourAttended", "varlen.golden", "sequences-see-the-key-before"),
        ("AllSequencesAttended", "varlen.golden", "sequences-not-separated"),
        ("SequencesOfEqualLength", "varlen.golden", "sequences-of-equal-length"),
        ("SingleQueryBroadcast", "varlen.golden", "sequences-read-the-first"),
        ("PaddedRowsTakenForPacked", "numerics.options", "sequences-answered-padded"),
        ("PaddingIgnored", "varlen.causal", "sequences-cut-without-rows-between"),
        ("PaddingAttended", "varlen.golden", "rows-between-attended"),
        ("AnswersMovedUp", "varlen.golden", "answers-without-rows-between"),
        ("TableOfTheNextItem", "paged.golden", "pages-of-another-item"),
        ("LastPageReadWhole", "paged.unused-unseen", "last-page-read-whole"),
        ("PageSizeSixteen", "paged.golden", "page-size-assumed"),
    ],
)
def test_mistakes_of_the_catalogue_have_names(mistake: str, clause: str, name: str) -> None:
    """What a broken candidate does is named, as what it is and not as a special case of another."""
    (candidate,) = [one.candidate for one in MISTAKES if one.name == mistake]
    assert isinstance(candidate, Candidate)
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=(clause,), dtypes=("float32",))
    (result,) = [run.run(planned) for planned in run.planned()]
    assert [entry["name"] for entry in result.diagnosis] == [name]


def inverted(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """What the mask hides is attended."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores if keep is None else scores.masked_fill(keep, -torch.inf)
    return scores.softmax(-1) @ value


def test_rows_that_a_mistake_leaves_without_keys_speak_against_no_name() -> None:
    """An inverted mask is named where it hides all that is kept, by rows of no numbers.

    What the mistake answers there is open: acted out, it may be right by chance.
    """
    candidate = core(inverted, masks=["keep"], causal=None, features=[], empty_rows="any")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=("numerics.options",))
    (planned,) = (one for one in run.planned() if one.dtype == "float32")
    result = run.run(planned)
    assert result.violation is not None
    assert math.isnan(float(result.violation.got))
    assert [entry["name"] for entry in result.diagnosis] == ["mask-inverted"]


def test_what_has_no_golden_answer_is_not_searched() -> None:
    """A wrong position encoding fails without a diagnosis, and without an error of ours."""
    (candidate,) = [mistake.candidate for mistake in MISTAKES if mistake.name == "WidthMinusTwo"]
    assert isinstance(candidate, Candidate)
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=("position.relative-shift",))
    (result,) = [run.run(planned) for planned in run.planned()]
    assert result.status == "failed"
    assert list(result.diagnosis) == []


def test_law_that_fails_alone_is_named() -> None:
    """A clause that compares answers with each other names what breaks it where no other failed."""

    def one_key_more(
        query: Tensor, key: Tensor, value: Tensor, *, lengths: Tensor | None = None
    ) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if lengths is not None:
            hidden = torch.arange(key.shape[2]) > lengths[:, None]
            scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        return scores.softmax(-1) @ value

    law = "cache.untouched-tail"
    candidate = conformance.core(masks=["lengths"], mask_shapes=["B"])(one_key_more)
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=(law,), dtypes=("float32",))
    (planned,) = run.planned()
    result = run.run(planned)
    assert result.status == "failed"
    assert [entry["name"] for entry in result.diagnosis] == ["lengths-inclusive"]


def through_float32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention in float32, whatever it is given."""
    q, k, v = query.float(), key.float(), value.float()
    return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).to(query.dtype)


def linear(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Linear attention, whose products all round to zero where logits are far below zero."""
    products = (elu(query) + 1.0) @ (elu(key) + 1.0).mT
    return products / products.sum(-1, keepdim=True) @ value


@pytest.mark.parametrize(
    ("function", "dtype", "shown", "law"),
    [
        (through_float32, "float64", "numerics.golden", "equivariance.keys"),
        (linear, "float32", "numerics.golden", "numerics.convex"),
    ],
)
def test_what_a_rounding_breaks_is_no_second_cause(
    function: Callable[..., Tensor], dtype: str, shown: str, law: str
) -> None:
    """Where all wrong answers of a law are those of a loss of precision that has been named."""
    candidate = conformance.core(dtypes=[dtype])(function)
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=(shown, law), dtypes=(dtype,))
    golden, other = sorted((run.run(one) for one in run.planned()), key=lambda one: one.id != shown)
    assert other.status == "failed"
    (name,) = (entry["name"] for entry in golden.diagnosis)
    (own,) = [entry["name"] for entry in other.diagnosis] or [run.explained_by(other)]
    assert own == name != "unknown-mistake"


def as_long(geometry: conformance.Geometry) -> conformance.Geometry:
    """As many queries as keys."""
    return geometry.replace(key_length=geometry.query_length)


def test_rows_that_a_mistake_leaves_without_keys_are_no_second_cause() -> None:
    """Answers that are not finite there fail laws between answers, which the mistake explains."""

    def hides_queries(
        query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None
    ) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, :, None], -torch.inf)
        return scores.softmax(-1) @ value

    only = ("mask.golden", "state.repeatable")
    declared = conformance.core(masks=["keep"], mask_shapes=["BK"], geometry=as_long)
    candidate = declared(hides_queries)
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    golden, law = sorted((run.run(one) for one in run.planned()), key=lambda one: one.id)
    assert law.status == "failed"
    assert not law.diagnosis
    names = [entry["name"] for entry in golden.diagnosis]
    assert run.explained_by(law) in names


def banded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """The left end of the window is exclusive: with none before it a query loses its own key."""
    behind = query.shape[2] - key.shape[2]
    ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None] + behind
    left, right = (-1, -1) if window is None else window
    kept = (ahead <= 0) | (not causal)
    kept &= ((ahead > -left) | (left < 0)) & ((ahead <= right) | (right < 0))
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~kept, -torch.inf)
    return scores.softmax(-1).nan_to_num() @ value


def test_a_mistake_that_empties_rows_has_one_name_in_every_call() -> None:
    """A row that loses its last key is open, so that no second name is made for calls with such."""
    promises = {"masks": [], "causal": "bottom-right", "features": ["window"]}
    candidate = core(banded, empty_rows="zeros", **promises)  # type: ignore[arg-type]  # by name
    only = ("mask.causal-combined", "window.golden", "window.causal")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    named = {entry["name"] for one in run.planned() for entry in run.run(one).diagnosis}
    assert named == {"window-one-narrower"}


def test_what_is_named_elsewhere_is_not_told_of_another_mistake() -> None:
    """What has no name beside a mistake that has one says nothing of the answers of that one."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = (query @ key.mT).softmax(-1)
        return weights @ (value + 0.1 * value.sin() if value.shape[-1] == OWN else value)

    candidate = core(attend, **BARE_FLOAT32)
    subject = Subject(candidate, "float32")
    diagnostician = Diagnostician(subject)
    (named,) = diagnostician.explain(CLAUSES["numerics.golden"], problem(query_length=3))
    wide = problem(query_length=2, key_length=3, value_head_size=OWN)
    (unnamed,) = diagnostician.explain(CLAUSES["numerics.golden"], wide)
    assert (named["name"], unnamed["name"]) == ("scale-missing", "unknown-mistake")
    assert "(scale-missing explains other wrong answers, not this): " in unnamed["text"]
    assert "problems go wrong" not in unnamed["text"]


def _normalised(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key = (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() for x in (query, key))
    return scaled_dot_product_attention(query, key, value)


def _linearly_biased(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    heads, places = query.shape[1], torch.arange(key.shape[2])
    own = torch.arange(query.shape[2]) + key.shape[2] - query.shape[2]
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
    bias = -slopes[:, None, None] * (places - own[:, None]).abs()
    return scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))


def _turned(tokens: Tensor, first: int) -> Tensor:
    length, size = tokens.shape[-2:]
    frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
    angles = (torch.arange(length) + first)[:, None] * frequencies
    low, high = tokens.chunk(2, -1)
    sine, cosine = angles.sin(), angles.cos()
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)


def _rotary(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    first = key.shape[2] - query.shape[2]
    return scaled_dot_product_attention(_turned(query, first), _turned(key, 0), value)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (_normalised, "qk-norm-undeclared"),
        (_linearly_biased, "alibi-undeclared"),
        (_rotary, "rotary-undeclared"),
    ],
)
def test_what_is_not_declared_is_told_with_what_to_declare(
    function: Callable[..., Tensor], name: str
) -> None:
    """Normalised heads, biases by distance, and rotary positions are no mistakes where meant."""
    sizes = {"head_size": [2, 4, 8, 16], "value_head_size": "head_size"}
    promises = {**BARE_FLOAT32, "empty_rows": "any", "geometry": sizes}
    (entry,) = diagnose(Subject(core(function, **promises), "float32"))
    assert entry["name"] == name
    assert "semantics=conformance.Semantics(" in entry["fix"]


def _by_sums(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key = (each * torch.rsqrt(each.square().sum(-1, keepdim=True)) for each in (query, key))
    return scaled_dot_product_attention(query, key, value)


def test_by_which_rule_heads_are_normalised_is_said_with_what_to_change() -> None:
    """A sum of squares that stands for their mean is told to be a mean."""
    promises = {**BARE_FLOAT32, "semantics": conformance.Semantics(qk_norm="rms")}
    (entry,) = diagnose(Subject(core(_by_sums, **promises), "float32"))
    assert entry["name"] == "qk-norm-other"
    assert entry["text"].endswith(
        "the root of the sum of its squares, not by the root of the mean of its squares"
    )
    assert entry["fix"].endswith("by the root of the mean of its squares")


def test_small_errors_are_not_looked_into_where_nobody_asks() -> None:
    """A scale that is slightly off takes long to tell: calls that raise have no such cause."""

    def scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer: Tensor = (query @ key.mT * query.shape[-1] ** -0.5 * 1.00001).softmax(-1) @ value
        return answer

    known = Diagnostician(Subject(core(scaled, **BARE_FLOAT32), "float32"))
    known.ways.small_errors = False
    with patch("conformance.diagnosis.ways.scale_entry", side_effect=AssertionError):
        assert known.explanations == []
    asked = Diagnostician(Subject(core(scaled, **BARE_FLOAT32), "float32"))
    assert [one.entry["name"] for one in asked.explanations] == ["scale-off"]


def test_a_mask_that_is_repeated_along_an_axis_is_one_that_has_it() -> None:
    """What transposes square masks does so to one of padding where it is handed over as square."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        if keep is not None and keep.shape[-1] == keep.shape[-2]:
            keep = keep.mT
        return scaled_dot_product_attention(query, key, value, attn_mask=keep)

    candidate = core(attend, masks=["keep"], features=[], causal=None, empty_rows="any")
    only = ("mask.golden", "mask.broadcast")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    names = [[one["name"] for one in run.run(planned).diagnosis] for planned in run.planned()]
    assert names == [["mask-transposed"]] * len(only)
