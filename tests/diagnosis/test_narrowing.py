"""Under which conditions a mistake is made, learnt from as few answers as tell."""

from __future__ import annotations

import torch
from examples import BARE_FLOAT32, core, problem
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis.agreement import RowComparison
from conformance.diagnosis.battery import Observation, answers_to
from conformance.diagnosis.conditions import FINER, size_limit
from conformance.diagnosis.mistaken_answer import DiagnosedSubject, acted_answers
from conformance.diagnosis.mistakes import named_mistakes
from conformance.diagnosis.narrowing import Narrowing, say_limits, telling_apart


def odd_unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Heads of odd index lose their scale."""
    odd = torch.arange(query.shape[1]) % 2 == 1
    scale = torch.where(odd, 1.0, query.shape[-1] ** -0.5)
    return torch.softmax(query @ key.mT * scale[:, None, None], dim=-1) @ value


def test_what_takes_more_conditions_than_asked_for_ends_early() -> None:
    """The same is learnt where as many are asked for; of fewer none, and the rest is not read."""
    subject = DiagnosedSubject(Subject(core(odd_unscaled, **BARE_FLOAT32), "float32"))
    observed = sorted(Observation(subject, None).whole, key=lambda one: one.margin <= 1.0)
    unscaled = next(one for one in named_mistakes() if one.name == "scale-missing")

    def learnt(most: int) -> tuple[tuple[str, ...] | None, int]:
        compared = RowComparison(subject, acted_answers(subject))
        narrowed = Narrowing(observed, compared).narrowed(unscaled, most)
        read = len(compared._agreeing)
        return (None if narrowed is None else tuple(one.words for one in narrowed.literals)), read

    whole = ("for heads of odd index",), len(observed)
    assert learnt(3) == learnt(1) == whole
    nothing, read = learnt(0)
    assert nothing is None
    assert read < len(observed)


def unscaled_for_one_query_of_one_item(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The scale is lost, but only where two conditions hold together."""
    lost = query.shape[0] == query.shape[-2] == 1
    scale = 1.0 if lost else query.shape[-1] ** -0.5
    return torch.softmax(query @ key.mT * scale, dim=-1) @ value


def test_right_calls_that_are_most_alike_wrong_ones_are_read_first() -> None:
    """Where no single condition tells them apart, few right calls suffice to see that."""
    candidate = core(unscaled_for_one_query_of_one_item, **BARE_FLOAT32)
    subject = DiagnosedSubject(Subject(candidate, "float32"))
    sizes = ((1, 1), (2, 1), (1, 2), (2, 2))
    near = [problem(batch=batch, query_length=queries) for batch, queries in sizes]
    observed = [*Observation(subject, None).whole, *answers_to(subject, near)]
    unscaled = next(one for one in named_mistakes() if one.name == "scale-missing")
    compared = RowComparison(subject, acted_answers(subject))
    assert Narrowing(observed, compared).narrowed(unscaled, 1) is None
    assert len(compared._agreeing) <= len(observed) / 2


def test_the_fewest_conditions_tell_inputs_apart() -> None:
    """One condition where one is enough; none where nothing is spared; None where none fit."""
    subject = Subject(core(), "float32")
    plain = subject.inputs(problem(causal=False))
    causal = subject.inputs(problem(causal=True))
    assert telling_apart([plain], []) == ()
    (only,) = telling_apart([causal], [plain]) or ()
    assert only.name == "causal"
    assert telling_apart([plain], [plain]) is None


def test_sizes_that_are_next_to_each_other_are_said_as_such() -> None:
    """Conditions on one size are said in one where they leave a range; others as they are."""
    above, most = size_limit("key_length", 6, above=True), size_limit("key_length", 7, above=False)
    heads = size_limit("num_heads", 2, above=True)
    assert say_limits([above, most]) == "with exactly 7 keys"
    wider = [above, heads, size_limit("key_length", 9, above=False)]
    assert say_limits(wider) == "with 7 to 9 keys and with more than 2 heads"
    odd = next(one for one in FINER if one.name == "key_length % 2")
    assert say_limits([odd, most]) == f"{odd.words} and {most.words}"
    widths = [one.negated for one in FINER if one.name in ("wider values", "narrower values")]
    assert say_limits([*widths, most]) == f"where values are as wide as keys and {most.words}"
    assert say_limits(widths[:1]) == "where values are no wider than keys"
    assert say_limits([above]) == above.words
