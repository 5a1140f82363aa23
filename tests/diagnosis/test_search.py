"""The search among mistakes: what was judged once is not judged again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from examples import core
from torch import Tensor
from torch.nn.functional import linear

import conformance
from candidates.eager import EagerCore
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import Observation
from conformance.diagnosis.mistaken_answer import Combination, DiagnosedSubject, act
from conformance.diagnosis.mistakes import NamedMistake, named_mistakes
from conformance.diagnosis.search import MOST_PARTIAL, MistakeSearch

RIGHT = EagerCore()


def reversed_and_doubled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    """Values reversed, and a scale of the call that counts twice."""
    if options.get("scale") is not None:
        options["scale"] *= 2.0
    return RIGHT(query, key, value.flip(-2), **options)


class Searches:
    """Searches among the first answers and all answers of a wrong core."""

    def __init__(self) -> None:
        self.subject = DiagnosedSubject(Subject(core(reversed_and_doubled), "float32"))
        self.observation = Observation(self.subject)
        self.first = MistakeSearch(self.subject, self.observation.first, named_mistakes())

    def whole(self, earlier: MistakeSearch | None) -> MistakeSearch:
        """A search among all answers."""
        mistakes = named_mistakes()
        return MistakeSearch(self.subject, self.observation.whole, mistakes, earlier=earlier)


def names(made: list[Combination]) -> list[tuple[str, ...]]:
    """The names of some mistakes made together."""
    return [tuple(one.name for one in each) for each in made]


def test_verdicts_of_an_earlier_search_are_taken_over() -> None:
    """What the first answers speak against is not acted out on all of them again."""
    searches = Searches()
    searches.first.singles()
    after, alone = searches.whole(searches.first), searches.whole(None)
    assert names(after.singles()) == names(alone.singles())
    assert after._logits < alone._logits / 2


def test_pairs_left_by_one_look_are_those_that_all_problems_leave() -> None:
    """Both mistakes of a pair change what speaks against the other: no pair is lost by that."""
    searches = Searches()
    search = searches.whole(None)
    search.mistakes = search.mistakes[:60]
    search.singles()

    def promising(one: NamedMistake, two: NamedMistake) -> bool:
        first, second = search._touches(one), search._touches(two)
        return (
            one.name != two.name
            and one.changes.keys().isdisjoint(two.changes)
            and bool(first & search.wrong and second & search.wrong)
            and not search.wrong & ~(first | second)
            and not search._fails(one, first & ~second)
            and not search._fails(two, second & ~first)
        )

    usual = search._usual_ways()
    every = [pair for pair in combinations(usual, 2) if promising(*pair)]
    left = search._promising(10**9)
    assert every
    assert sorted(map(_numbers, left)) == sorted(map(_numbers, every))


def _numbers(pair: tuple[NamedMistake, ...]) -> list[int]:
    return [id(one) for one in pair]


def test_a_point_is_changed_once_for_a_search() -> None:
    """A mistake's point is remembered for the point that it was made of last, and no other."""
    mistake = next(one for one in named_mistakes() if "causal_offset" in one.changes)
    subject = Subject(core(), "float32")
    point = subject.declaration.semantics
    assert mistake.at(point) is mistake.at(point)
    other = point.replace(scale="none")
    assert mistake.at(other).scale == "none"
    assert mistake.at(point).scale == point.scale


def unscaled_or_reversed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    """A scale of the call is ignored; items are reversed where there is a softcap."""
    if options.get("softcap") is not None:
        key, value = key.flip(0), value.flip(0)
    return RIGHT(query, key, value, **{**options, "scale": None})


def test_the_other_of_two_mistakes_is_judged_once_where_it_is_alone() -> None:
    """What the first of two cannot change the other explains: for each first one the same."""
    subject = DiagnosedSubject(Subject(core(unscaled_or_reversed), "float32"))
    search = MistakeSearch(subject, Observation(subject).first, named_mistakes())
    first = next(one for one in search.mistakes if one.name == "scale-argument-ignored")
    pairs = list(search.completing(first, search.mistakes))
    apart = next(
        index
        for index in range(len(search.observed))
        if not search._explains(first, index) and not search._may_change(first, index)
    )
    assert "items-reversed" in {two.name for _, two in pairs}
    assert all(search._judge(pair, apart) for pair in pairs)
    judged = search._logits
    assert list(search.completing(first, search.mistakes)) == pairs
    assert search._logits == judged


def reversed_alone(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    """Values reversed, and nothing else."""
    return RIGHT(query, key, value.flip(-2), **options)


def test_what_changes_nothing_is_no_second_mistake() -> None:
    """A pair with a mistake that no wrong answer shows is refused, though both explain it."""
    subject = DiagnosedSubject(Subject(core(reversed_alone), "float32"))
    search = MistakeSearch(subject, Observation(subject).whole, named_mistakes())
    named = {one.name: one for one in named_mistakes()}
    reversed_values, silent = named["values-reversed"], named["values-clipped-to-half"]
    assert search.explains_every((reversed_values,))
    assert not search.explains_every((reversed_values, silent))


def test_where_two_give_another_shape_the_one_that_is_made_alone_decides() -> None:
    """A pair that has no answer of the candidate's shape is judged as one that cannot be made."""
    subject = DiagnosedSubject(Subject(core(reversed_alone), "float32"))
    search = MistakeSearch(subject, Observation(subject).whole, named_mistakes())
    named = {one.name: one for one in named_mistakes()}
    alone, reshaping = named["values-reversed"], named["key-used-for-value"]
    sizes = [answer.inputs.geometry for answer in search.observed]
    place = next(i for i, size in enumerate(sizes) if size.head_size != size.value_head_size)
    assert search._matters(alone, (alone, reshaping), place)
    assert not search._matters(reshaping, (alone, reshaping), place)


def reversed_and_unscaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    """Values reversed, and a scale of the call is ignored."""
    return RIGHT(query, key, value.flip(-2), **{**options, "scale": None})


def test_a_pair_is_acted_out_once_on_each_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the errors, and whether both matter, is asked of the same answers."""
    subject = DiagnosedSubject(Subject(core(reversed_and_unscaled), "float32"))
    search = MistakeSearch(subject, Observation(subject).first, named_mistakes())
    named = {one.name: one for one in named_mistakes()}
    acted: list[int] = []

    def counted(oracle: Any, declared: Any, made: Any, inputs: Any) -> Any:
        acted.append(id(inputs))
        return act(oracle, declared, made, inputs)

    monkeypatch.setattr("conformance.diagnosis.search.act", counted)
    assert search.explains_every((named["values-reversed"], named["scale-argument-ignored"]))
    assert acted
    assert len(acted) == len(set(acted))


def test_the_cheapest_answer_says_what_completes_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that the mistake alone does not explain: most pairs are tried on no other."""
    search = Searches().whole(None)
    first = next(one for one in search.mistakes if one.name == "values-reversed")
    left = [i for i in range(len(search.observed)) if not search._explains(first, i)]
    cheapest = min(search._cost(index) for index in left)
    assert max(search._cost(index) for index in left) > cheapest
    left.sort(key=lambda index: -search._cost(index))
    dearest = [search.observed[index] for index in left]
    rest = [one for one in search.observed if one not in dearest]
    search = MistakeSearch(search.subject, [*dearest, *rest], named_mistakes())
    monkeypatch.setattr(search, "observed", [*dearest, *rest])
    judged: list[int] = []
    monkeypatch.setattr(search, "_judge", lambda _made, index: judged.append(index))
    monkeypatch.setattr(search, "_explains", lambda _one, index: index >= len(dearest))
    assert list(search.completing(first, search.mistakes)) == []
    assert {search._cost(index) for index in judged} <= {cheapest}


def test_pairs_are_given_up_after_so_many_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for what completes a mistake ends, whatever mistakes there are."""
    monkeypatch.setattr("conformance.diagnosis.search.MOST_LOGITS_OF_COMPLETED", 20_000)
    search = Searches().whole(None)
    assert search.partial
    before = search._logits
    search.pairs()
    each = len(search.observed) * max(search._cost(i) for i in range(len(search.observed)))
    assert search._logits - before <= 20_000 + MOST_PARTIAL * each


@conformance.layer(inputs="self", masks=["keep"], mask_shapes=["B11K"])
def viewed(geometry: Any, weights: Any) -> Callable[..., Tensor]:
    """Heads are cut by a view alone, and hidden keys get a usual finite number."""

    def forward(x: Tensor, *, keep: Tensor | None = None) -> Tensor:
        shape = (len(x), geometry.num_heads, x.shape[1], -1)
        pairs = ((weights.q, weights.q_bias), (weights.k, weights.k_bias))
        query, key = (linear(x, *pair).view(shape) for pair in pairs)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if keep is not None:
            scores = scores.masked_fill(~keep, -1e9)
        output = scores.softmax(-1) @ linear(x, weights.v, weights.v_bias).view(shape)
        return linear(output.transpose(1, 2).flatten(2), weights.o, weights.o_bias)

    return forward


def test_a_usual_fill_beside_a_mistake_hides_no_name() -> None:
    """By the mistake logits may lie below -1e9 where right ones do not: that is left open."""
    (entry,) = diagnose(Subject(viewed, "float32"))
    assert entry["name"] == "heads-split-without-transpose"
