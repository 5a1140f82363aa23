"""The benchmark of the tolerance: legitimate is legitimate, a mistake a mistake, repeatable."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from benchmarks.numerics.gradients import gradient_problems, judged
from benchmarks.numerics.implementations import IMPLEMENTATIONS
from benchmarks.numerics.inputs import Heads
from benchmarks.numerics.legitimate import runs
from benchmarks.numerics.mistakes import MISTAKES, Steps
from benchmarks.numerics.power import LEGITIMATE, verdicts
from benchmarks.numerics.problems import DTYPES, Problem, problems
from benchmarks.numerics.rules import OURS, RULES

# torch's advice to compile flex_attention; what runs here is its formula.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

TF32 = "tf32 operands"
PLAIN = "core/normal/causal/1,2,2,33,33,16,16/None/{}/0"


def heads(text: str) -> Heads:
    made = Problem.parse(text).make()
    assert isinstance(made, Heads)
    return made


def test_a_problem_is_made_again_from_its_text() -> None:
    """What an accusation prints is enough to repeat it, number by number."""
    for problem in islice(problems(3, list(DTYPES)), 60):
        again = Problem.parse(str(problem))
        assert again == problem
        first, second = problem.make(), again.make()
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert torch.equal(first.value, second.value)


def test_every_row_of_every_mask_keeps_a_key() -> None:
    """No problem asks what the answer of a row without keys is."""
    for problem in islice(problems(4, ["float32"]), 80):
        made = problem.make()
        if made is not None and made.keep is not None:
            assert bool(made.keep.any(dim=-1).all()), problem


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_implementations_are_legitimate_on_an_ordinary_problem(dtype: str) -> None:
    """At least twenty ways to compute attention run on a plain problem, none of them accused."""
    found = [run for run in runs(Problem.parse(PLAIN.format(dtype))) if run.implementation != TF32]
    assert len(found) >= 20
    assert not [str(run) for run in found if run.margins.failed]


def test_tensor_float_operands_are_legitimate_where_declared() -> None:
    """With ``tf32=True`` both matrix products may round their operands to ten bits."""
    found = {run.implementation: run for run in runs(Problem.parse(PLAIN.format("float32")))}
    assert not found[TF32].margins.failed


def test_implementations_round_differently() -> None:
    """At least ten of them disagree in some bit: they are no copies of each other."""
    given = heads(PLAIN.format("float32"))
    answers = {core.compute(given).numpy().tobytes() for core in IMPLEMENTATIONS.values()}
    assert len(answers) >= 10


def test_a_mistake_is_one_step_away_from_a_legitimate_core() -> None:
    """Without a changed step the mistaken computation is within the bound, with one it is not."""
    found = {v.subject: v for v in verdicts(Problem.parse(PLAIN.format("float32")))}
    ours = RULES.index(OURS)
    assert found[LEGITIMATE].flagged[ours] == 0
    for name in ("scale x 1.01", "scale x 1.001", "weights in bfloat16", "softmax in float16"):
        assert found[name].flagged[ours] == 1, name
    given = heads(PLAIN.format("float32"))
    plain = IMPLEMENTATIONS["upcast"].compute(given)
    assert float((Steps()(given) - plain).abs().max()) < 1e-5


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_changes_the_answer(name: str) -> None:
    """Every mistake, where it can show, is a mistake: some bit of the answer is another."""
    mistake = MISTAKES[name]
    mask = "deeper" if name.startswith("hidden keys") else "causal"
    given = heads(f"core/normal/{mask}/1,2,2,33,33,16,16/None/{mistake.dtypes[0]}/0")
    assert mistake.shows(given)
    assert not torch.equal(mistake.compute(given), Steps()(given))


def test_gradients_of_an_ordinary_problem() -> None:
    """Legitimate backward passes are within the bound; a forgotten scale or row sum is not."""
    judgement = judged(next(gradient_problems("float32", 0)))
    assert len(judgement.runs) >= 10
    assert not [str(run) for run in judgement.runs if run.margins.failed]
    flagged = {v.subject: v.flagged[RULES.index(OURS)] for v in judgement.verdicts}
    assert flagged["D left out"] == flagged["dQ without the scale"] == 1
