"""The line that is blamed makes the mistake, or uses what is wrong; elsewhere there is none."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import BARE_FLOAT32, core, plan, problem
from torch import Tensor

from conformance.base.record import LineEntry
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import Diagnostician
from conformance.diagnosis.agreement import BatteryAnswer
from conformance.diagnosis.battery import answer_to
from conformance.diagnosis.lines.finder import LONGEST_LINE, LineFinder
from conformance.diagnosis.mistaken_answer import Combination, act
from conformance.diagnosis.mistakes import named_mistakes
from conformance.problems.problem import Overrides


def answered(made: Candidate, **asked: Any) -> BatteryAnswer:
    """What a candidate answers to one problem, which is wrong."""
    heads = {"batch": 2, "num_heads": 3, "num_kv_heads": 3, "head_size": 6}
    sizes = {**heads, "query_length": 4, "key_length": 5}
    example = problem(**{**sizes, "dtype": "float32", **asked})
    subject = Subject(made, "float32")
    answer = answer_to(subject, subject.inputs(example))
    assert answer is not None
    assert answer.margin > 1.0
    return answer


def explanation(answer: BatteryAnswer, name: str) -> list[Combination]:
    """The way to make a named mistake that explains an answer; none without a name."""
    point = answer.subject.declaration.semantics
    ways = [one for one in named_mistakes() if one.name == name]
    fits = [
        (one,)
        for one in ways
        if answer.agrees(act(answer.subject.oracle, point, (one,), answer.inputs))
    ]
    assert bool(fits) == bool(name)
    return fits[:1]


def blamed(
    candidate: Candidate | Callable[..., Tensor], name: str = "", **asked: Any
) -> LineEntry | None:
    """The line of a wrong answer, as a named mistake explains it or as nothing does."""
    promises = {"causal": "bottom-right", "empty_rows": "zeros"} if asked.get("causal") else {}
    made = (
        candidate
        if isinstance(candidate, Candidate)
        else core(candidate, **{**BARE_FLOAT32, **promises})
    )
    answer = answered(made, **asked)
    return LineFinder(answer.subject).line(explanation(answer, name), [answer])


def text_of(function: Callable[..., Tensor], name: str = "", **asked: Any) -> str:
    """The text of that line, which there is."""
    line = blamed(function, name, **asked)
    assert line is not None
    return line["text"]


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """No scale at all."""
    scores = query @ key.mT
    weights = torch.softmax(scores, dim=-1)
    return weights @ value


def test_what_is_missing_is_missing_before_the_softmax() -> None:
    """A line that is right by itself is not called wrong: something is missing in front of it."""
    line = blamed(unscaled, "scale-missing")
    assert line is not None
    assert line["text"] == "weights = torch.softmax(scores, dim=-1)"
    assert line.get("before") is True


def test_the_place_is_in_the_file_of_the_function() -> None:
    """The file is that of a repository's root, and the number that of the line with this text."""
    line = blamed(unscaled, "scale-missing")
    assert line is not None
    assert line["file"] == "tests/diagnosis/lines/test_finder.py"
    lines = inspect.getsource(inspect.getmodule(unscaled) or unscaled).splitlines()
    assert lines[line["number"] - 1].strip() == line["text"]


def test_a_wrong_number_is_blamed_where_it_is_used() -> None:
    """A scale is a number of Python: the product that it meets first is the line."""

    def other_scale(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scale = 1.0 / math.sqrt(key.shape[2])
        scores = query @ key.mT * scale
        weights = scores.softmax(dim=-1)
        return weights @ value

    assert text_of(other_scale, "scale-of-key-length") == "scores = query @ key.mT * scale"


def test_the_axis_of_a_softmax() -> None:
    """The inputs are right and the result is not: the softmax itself does it."""

    def over_queries(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        weights = scores.softmax(dim=-2)
        return weights @ value

    line = blamed(over_queries, "softmax-over-queries")
    assert line is not None
    assert line["text"] == "weights = scores.softmax(dim=-2)"
    assert "before" not in line


def test_a_mask_is_blamed_where_it_is_made() -> None:
    """The line that makes the wrong table, not the one that applies it."""

    def strict(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool)
            ahead = ahead.triu(key.shape[2] - query.shape[2])
            scores = scores.masked_fill(ahead, -torch.inf)
        return scores.softmax(dim=-1).nan_to_num(0.0) @ value

    said = text_of(strict, "causal-hides-own", causal=True)
    assert said == "ahead = ahead.triu(key.shape[2] - query.shape[2])"


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min])
def test_a_finite_number_that_hides_keys_is_not_blamed_for_another_mistake(fill: float) -> None:
    """It is as low as minus infinity for any softmax: what lacks the maximum comes after it."""

    def exponentials(
        query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None
    ) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if keep is not None:
            scores = scores.masked_fill(~keep, fill)
        weights = scores.exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return weights @ value

    made = core(exponentials, **{**BARE_FLOAT32, "masks": ["keep"]})
    (entry,) = Diagnostician(Subject(made, "float32")).explain()
    assert entry["name"] == "maximum-not-subtracted"
    assert entry["line"]["text"] == "weights = scores.exp()"
    assert entry["line"]["before"] is True


def test_one_line_that_does_it_all() -> None:
    """A mistake that nothing recognises stands on the only line there is."""

    def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=0.5)

    assert "scaled_dot_product_attention" in text_of(fused)


def test_a_helper_that_is_right_elsewhere_is_not_blamed() -> None:
    """The line that calls it wrongly is, and not the line inside it."""

    def scaled(heads: Tensor, by: float) -> Tensor:
        return heads * by

    def doubled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = scaled(query, query.shape[-1] ** -0.5)
        weights = (query @ key.mT).softmax(dim=-1)
        output = weights @ value
        return scaled(output, 2.0)

    assert text_of(doubled) == "return scaled(output, 2.0)"


@pytest.mark.parametrize("way", ["python", "numpy"])
def test_what_leaves_torch_has_no_line(way: str) -> None:
    """Numbers that come back without a history could be made anywhere."""

    def leaves(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT
        given = scores.numpy() if way == "numpy" else scores.tolist()
        return torch.as_tensor(given).softmax(dim=-1) @ value

    assert blamed(leaves) is None


def test_a_tensor_class_of_its_own_has_no_line() -> None:
    """What a class of tensors does by itself is not followed."""

    class Own(Tensor):
        pass

    def own(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = (query @ key.mT).as_subclass(Own)
        return (scores.softmax(dim=-1) @ value).as_subclass(Tensor)

    assert blamed(own) is None


def test_a_graph_of_torch_jit_has_no_line() -> None:
    """Its operations are not called from Python; the call is the user's only one, or none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(unscaled, tuple(torch.randn(1, 1, 2, 4) for _ in range(3)))

    def through(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer: Tensor = traced(query, key, value)
        return answer

    assert blamed(through) is None


def test_what_is_compiled_is_recorded_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's compiler is loaded it is told to leave things as they are, and only then."""
    stances: list[str] = []
    compiled = torch.compiler.set_stance

    def noticed(stance: str) -> Any:
        stances.append(stance)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.compiler, "set_stance", noticed)
    monkeypatch.setitem(sys.modules, "torch._dynamo", sys.modules[compiled.__module__])
    assert blamed(unscaled, "scale-missing") is not None
    assert stances == ["force_eager"]


def test_a_candidate_that_notices_is_not_blamed() -> None:
    """An answer that is another one while it is recorded proves nothing."""

    def notices(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        watched = torch._C._len_torch_function_stack() > 0
        scores = query @ key.mT * (0.1 if watched else 1.0)
        return scores.softmax(dim=-1) @ value

    assert blamed(notices) is None


def test_a_candidate_that_raises_while_it_is_watched() -> None:
    """An exception means that there is no line, and no error."""

    def refuses(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if torch._C._len_torch_function_stack():
            msg = "watched"
            raise SystemExit(msg)
        return unscaled(query, key, value)

    assert blamed(refuses) is None


def test_a_long_line_is_cut() -> None:
    """A line of many characters is shown as far as a report has room."""

    def long(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(query @ key.mT * (0.25 + 0.25 + 0.25 + 0.25 + 0.25 + 0.25 + 0.25 + 0.25 + 0.25 + 0.25 + 0.25 + 0.25), dim=-1) @ value  # noqa: E501 (what is asked)  # fmt: skip

    assert len(text_of(long)) == LONGEST_LINE + 1


def test_answers_that_blame_different_lines() -> None:
    """What is not the same for all of them is not certain."""

    def two_ways(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if key.shape[2] > 5:
            scores = scores + 0.0
            weights = scores.softmax(dim=-2)
        else:
            weights = scores.softmax(dim=2)
        return weights @ value

    made = core(two_ways, **BARE_FLOAT32)
    short, long = answered(made), answered(made, key_length=7)
    made_mistakes = explanation(short, "softmax-over-queries")
    finder = LineFinder(short.subject)
    assert finder.line(made_mistakes, [short]) is not None
    assert finder.line(made_mistakes, [short, long]) is None


def test_it_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagnosis has the line, and a second one of the same mistake without another call."""
    made = Diagnostician(Subject(core(unscaled, **BARE_FLOAT32), "float32"))
    (first,) = made.explain()
    monkeypatch.setattr(LineFinder, "line", None)
    (second,) = made.explain()
    assert first["line"] == second["line"]
    assert first["line"]["before"] is True


def test_axes_of_one_size_make_no_line_certain() -> None:
    """With as many items as heads a mask of the wrong ones looks like the right one."""

    def mixed(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + bias.expand(scores.shape).transpose(0, 1)
        return scores.softmax(-1) @ value

    made = core(mixed, **{**BARE_FLOAT32, "masks": ["bias"], "mask_shapes": ["B11K"]})
    sizes = {"batch": 2, "num_heads": 2, "num_kv_heads": 2, "query_length": 1, "key_length": 2}
    zeros = Overrides(seed=3, tensors=(("query", (0.0,) * 24), ("key", (0.0,) * 48)))
    mask = plan(form="bias", shape="B11K")
    assert blamed(made, mask=mask, overrides=zeros, **sizes) is None


def test_the_line_that_leaves_keys_out_is_blamed() -> None:
    """Not the one that uses what is left of them."""

    def cut(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = key[:, :, :4], value[:, :, :4]
        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value

    (entry,) = Diagnostician(Subject(core(cut, **BARE_FLOAT32), "float32")).explain()
    assert entry["line"]["text"].startswith("key, value = key[")


KEPT: dict[str, Tensor] = {}


def test_the_line_at_which_something_kept_enters_is_blamed() -> None:
    """Where no call made it, and it is no argument; not the line that returns the answer."""

    def keeping(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        scores = scores + KEPT["bias"]
        return scores.softmax(-1) @ value

    KEPT["bias"] = torch.arange(5.0)
    answer = answered(core(keeping, **BARE_FLOAT32))
    line = LineFinder(answer.subject).line_of_kept([answer])
    assert line is not None
    assert line["text"] == 'scores = scores + KEPT["bias"]'
