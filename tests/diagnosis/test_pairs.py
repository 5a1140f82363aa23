"""Two mistakes at once are told as the two that are made, and no other pair is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import BARE_FLOAT32, CLAUSES, core, plan, problem
from torch import Tensor, nn

import conformance
from candidates.eager import EagerCore
from conformance import Candidate
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import Observation
from conformance.diagnosis.diagnostician import Diagnostician
from conformance.diagnosis.mistaken_answer import Combination, DiagnosedSubject, act
from conformance.diagnosis.mistakes import NotExpressible, named_mistakes
from conformance.diagnosis.search import MistakeSearch
from conformance.oracle.oracle import Oracle, evaluate
from conformance.problems.inputs import Inputs
from conformance.problems.problem import Overrides
from conformance.tools.teeth.mistaken_candidates import ActedCore, ActedLayer, Evaluation

RIGHT = EagerCore()


def making(*names: str) -> Combination:
    """The first way to make each of some mistakes."""
    return tuple(next(one for one in named_mistakes() if one.name == name) for name in names)


def acted(kind: str, made: Combination, **declared: Any) -> Candidate:
    """A candidate that makes some mistakes wherever they can be made."""

    def answer(inputs: Inputs) -> Evaluation:
        point = oracle.declaration.semantics
        try:
            return act(oracle, point, made, inputs)
        except NotExpressible:
            return evaluate(inputs, point)

    decorate = conformance.core if kind == "core" else conformance.layer
    of = ActedCore if kind == "core" else ActedLayer.of
    candidate = decorate(name="pair", empty_rows="zeros", **declared)(of(answer))
    oracle = Oracle(candidate.declaration, "float64")
    return candidate


def diagnosing(kind: str, *names: str, **declared: Any) -> tuple[Diagnostician, MistakeSearch]:
    """A diagnostician of what makes two mistakes, and its search among the whole battery."""
    subject = Subject(acted(kind, making(*names), **declared), "float32")
    diagnostician = Diagnostician(subject)
    return diagnostician, diagnostician.ways._search(diagnostician._observation.whole)


def names_of(explained: list[Any]) -> list[set[str]]:
    """The names of what explains answers."""
    return [{one.name for one in each.made} for each in explained]


def test_pairs_that_are_alike_at_most_sizes_are_told_apart_at_equal_ones() -> None:
    """The items are read as tokens where there are as many: beside it the triangle shows there."""
    both = "batch-taken-for-tokens", "causal-needs-mask"
    diagnostician, search = diagnosing(
        "core", *both, masks=["keep_int"], causal="bottom-right", features=["sinks", "window"]
    )
    pairs = search.pairs()
    assert len({frozenset(one.name for one in made) for made in pairs}) > 1
    assert search.told_apart(pairs) == []
    assert names_of(diagnostician.ways._pairs.confirmed(search, pairs)) == [set(both)]


def test_the_order_of_two_mistakes_may_count() -> None:
    """Weights that are averaged over the heads first are those of a softmax: the sum is later."""
    both = "weights-averaged-over-heads", "scores-over-their-sum"
    diagnostician, search = diagnosing(
        "core", *both, masks=["keep", "bias"], causal="bottom-right", features=["scale", "gqa"]
    )
    assert search.pairs() == []
    pairs = search.pairs(orders=True)
    assert names_of(diagnostician.ways._pairs.confirmed(search, pairs)) == [set(both)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kind", "both"),
    [
        ("core", ("values-normalised", "scale-of-query-length")),
        ("core", ("scale-of-half-head-size", "residual-added")),
        ("layer", ("projections-transposed", "weights-of-sigmoid")),
        ("layer", ("key-and-value-projections-swapped", "output-projection-transposed")),
    ],
)
def test_a_call_that_leaves_one_of_two_alone_tells_both(kind: str, both: tuple[str, str]) -> None:
    """No answer to the battery is explained by one of them, and none is left out by the two."""
    diagnostician, search = diagnosing(kind, *both, masks=["keep"], causal="bottom-right")
    assert search.partial == []
    assert names_of(diagnostician.ways._pairs._isolate_one(search)) == [set(both)]


def reversed_and_halved(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    """Values reversed, and half of an additive mask."""
    if options.get("bias") is not None:
        options["bias"] = 0.5 * options["bias"]
    return RIGHT(query, key, value.flip(-2), **options)


def test_what_leaves_no_row_that_is_judged_is_no_second_mistake() -> None:
    """An additive mask of which every number hides its key: rows without keys may be anything."""
    subject = DiagnosedSubject(Subject(core(reversed_and_halved), "float32"))
    search = MistakeSearch(subject, Observation(subject).whole, named_mistakes())
    every = {name: making(name)[0] for name in ("values-reversed", "bias-halved")}
    assert search.explains_every(tuple(every.values()))
    hidden = next(one for one in named_mistakes() if one.name == "bias-taken-for-boolean")
    assert not search.explains_every((every["values-reversed"], hidden))


def test_one_of_two_is_told_where_several_complete_it() -> None:
    """Rows without keys alone show the number that hides keys, and not which number that is."""
    promises = {"masks": ["lengths"], "causal": "bottom-right", "features": ["gqa"]}
    diagnostician, search = diagnosing("core", "mask-fill-1e5", "query-used-for-key", **promises)
    (one,), fills = making("query-used-for-key"), making("mask-fill-1e4", "mask-fill-1e5")
    pairs = [(one, fill) for fill in fills]
    (told,) = diagnostician.ways._pairs._name_common(search, pairs)
    assert told.entry["name"] == one.name
    assert told.entry["text"].endswith("besides that one of these: mask-fill-1e4, mask-fill-1e5")
    assert told.entry["confidence"] < 1.0


def exponentials(
    query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None
) -> Tensor:
    """Keys hidden by a large number, and exponentials of what the largest is not taken from."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.finfo(scores.dtype).max)
    weights = scores.exp()
    return weights / weights.sum(-1, keepdim=True) @ value


def test_rows_without_keys_that_no_maximum_is_taken_from_are_no_second_mistake() -> None:
    """Their exponentials are all zero where a finite number hides keys: the sum is zero, too."""
    candidate = conformance.core(masks=["keep"], empty_rows="mean-of-all")(exponentials)
    names = [entry["name"] for entry in Diagnostician(Subject(candidate, "float32")).explain()]
    assert names == ["maximum-not-subtracted"]


def hiding_before_scaling(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Causality from the first query and key on, by an infinity that is scaled: by zero, too.

    From the last ones on where a mask is given.
    """
    scores = query @ key.mT
    ahead = 1 if keep is None else 1 + key.shape[2] - query.shape[2]
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(ahead) & causal
    hidden = hidden if keep is None else hidden | ~keep
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return (scores.masked_fill(hidden, -torch.inf) * scale).softmax(-1) @ value


PROMISED = {"causal": "bottom-right", "empty_rows": "any", "features": ["scale"]}


def beside_nan(**promises: Any) -> list[Any]:
    """What explains the answers without NaN of what hides before it scales."""
    candidate = conformance.core(**{**PROMISED, **promises})(hiding_before_scaling)
    diagnostician = Diagnostician(Subject(candidate, "float32"))
    search = diagnostician.ways._search(diagnostician._observation.whole)
    assert any(one.output.isnan().any() for one in search.observed)
    return diagnostician.ways._pairs.besides_nan(search)


@pytest.mark.parametrize(("masks", "limited"), [([], False), (["keep"], True)])
def test_answers_that_have_nan_hide_no_name_of_the_others(
    masks: list[str],
    limited: bool,  # noqa: FBT001
) -> None:
    """They are of a scale of zero or less, which hidden logits must not be multiplied by."""
    (explained,) = beside_nan(masks=masks)
    assert names_of([explained]) == [{"causal-top-left"}]
    assert ("only without a mask" in explained.entry["text"]) == limited


def test_right_answers_beside_some_that_have_nan_have_no_name() -> None:
    """Nothing is wrong but those."""
    assert beside_nan(masks=[], causal="top-left") == []


@pytest.mark.parametrize("causal", [None, "bottom-right"])
def test_rows_that_a_mistake_makes_nan_and_that_are_set_to_zero_hide_no_name(
    causal: str | None,
) -> None:
    """A bias that is subtracted makes NaN of rows with a hidden key: nobody sees them as NaN."""

    def subtracting(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        bias: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        logits = query @ key.mT * query.shape[-1] ** -0.5
        if causal:
            future = torch.ones(logits.shape[-2:], dtype=torch.bool)
            future = future.triu(1 + key.shape[2] - query.shape[2])
            logits = logits.masked_fill(future, -torch.inf)
        logits = logits if bias is None else logits - bias
        weights: Tensor = torch.softmax(logits, dim=-1).nan_to_num(0.0)
        return weights @ value

    declared = {**BARE_FLOAT32, "masks": ["bias"], "causal": causal, "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(subtracting, **declared), "float32"))
    assert entry["name"] == "bias-subtracted"
    assert "rows that it makes NaN are set to zero" in entry["text"]


def test_a_wider_bound_is_no_second_mistake() -> None:
    """What changes nothing where the first mistake alone is refuted completes no pair."""

    @conformance.core(masks=["lengths"], dtypes=["bfloat16"], empty_rows="any")
    def attend(q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
        if lengths is not None:  # one key more, but for lengths that end a tile of eight
            ends, places = lengths[:, None, None, None], torch.arange(k.shape[2])
            shown = (places < ends) | ((places == ends) & (ends % 8 != 0))
            scores = scores.masked_fill(~shown, -torch.inf)
        return (scores.softmax(-1) @ v.float()).to(q.dtype)

    (cause,) = conformance.check(attend, only=["mask.golden"]).causes
    assert "+" not in cause.name
    assert "starts-at-zero" not in cause.text


def test_a_cap_that_is_not_multiplied_is_made_beside_a_mask_after_the_softmax() -> None:
    """Both change the scores' way to the weights: neither undoes the other."""
    made = making("softcap-not-multiplied", "mask-multiplies-weights")
    declared = {**BARE_FLOAT32, "masks": ["keep"], "features": ["softcap"], "empty_rows": "any"}
    subject = Subject(core(**declared), "float32")
    inputs = subject.inputs(problem(mask=plan(), softcap=1.5))
    assert inputs.keep is not None
    query, key, value = (one.double() for one in (inputs.query, inputs.key, inputs.value))
    weights = torch.softmax(torch.tanh(query @ key.mT * query.shape[-1] ** -0.5 / 1.5), dim=-1)
    expected = (weights * inputs.keep) @ value
    answer = act(subject.oracle, subject.declaration.semantics, made, inputs)
    torch.testing.assert_close(answer.output, expected)


def test_rows_of_zeros_are_not_told_as_what_becomes_nan_and_zero() -> None:
    """Any mistake would do that makes nothing but NaN of them."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        answer = weights @ v
        if keep is None:
            return answer
        return torch.where(keep.all(dim=-1, keepdim=True), answer, 0.0)

    promises = {**BARE_FLOAT32, "masks": ["keep"], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, **promises), "float32"))
    assert entry["name"] == "answer-zero"


@conformance.core(causal="bottom-right", empty_rows="any")
def unscaled_and_ahead(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False
) -> Tensor:
    """Two mistakes, each on a line of its own."""
    scores = query @ key.mT
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
        seen = seen.tril(key.shape[2] - query.shape[2] + 1)
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ value


def test_each_of_two_mistakes_is_told_by_itself() -> None:
    """Which of them makes a clause fail, with the fix and, where it is known, the line of each."""
    diagnostician = Diagnostician(Subject(unscaled_and_ahead, "float32"))
    asked = problem(query_length=3, key_length=3, head_size=4, value_head_size=4)
    (entry,) = diagnostician.explain(CLAUSES["numerics.golden"], asked)
    parts = {str(part["name"]): part for part in entry["parts"]}
    assert set(parts) == {"scale-missing", "causal-sees-next"}
    assert parts["scale-missing"]["alone"]
    assert not parts["causal-sees-next"]["alone"]
    assert all(part["fix"] for part in parts.values())
    assert "seen" in parts["causal-sees-next"]["line"]["text"]


@conformance.core(causal="bottom-right", masks=["keep"])
def inverted_and_top_left(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Two mistakes, both of which leave queries without keys."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(keep, -torch.inf)
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -torch.inf)
    return scores.softmax(-1) @ value


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", ["shape.strided", "gradients.repeated"])
def test_two_mistakes_are_two_whichever_clause_fails_first(first: str) -> None:
    """Rows that one of them leaves without keys, NaN, and what compares those, hide neither."""
    sizes = dict.fromkeys(("query_length", "key_length", "head_size", "value_head_size"), 1)
    hidden = problem(**sizes, mask=plan("full", shape="B11K"))
    zeros = (("key", (0.0,)), ("value", (0.0,)))
    hidden = hidden.replace(values="integers", overrides=Overrides(seed=hidden.seed, tensors=zeros))
    diagnostician = Diagnostician(Subject(inverted_and_top_left, "float32"))
    (entry,) = diagnostician.explain(CLAUSES[first], hidden)
    assert {part["name"]: part["alone"] for part in entry["parts"]} == {
        "causal-top-left": False,
        "mask-inverted": True,
    }


class UnscaledAndUnmerged(nn.Module):
    """Heads that are not moved back, and no scale."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.num_heads = 4

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[B, L, E]``."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT).softmax(-1)
        answer: Tensor = self.out((weights @ v).reshape(x.shape))
        return answer


def test_two_mistakes_of_a_layer_are_both_parts() -> None:
    """Those of the scores and of the merged heads are two, each with its fix and line."""
    torch.manual_seed(0)
    subject = Subject(conformance.module(UnscaledAndUnmerged()), "float32")
    (entry,) = Diagnostician(subject).explain()
    scores, merged = entry["parts"]
    assert (scores["name"], merged["name"]) == ("scale-missing", "heads-merged-without-transpose")
    assert "softmax" in scores["line"]["text"]
    assert "reshape(x.shape)" in merged["line"]["text"]
    assert scores["fix"] != merged["fix"]
