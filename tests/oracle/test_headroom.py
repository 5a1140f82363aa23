"""Which rows are judged: those that a correct candidate can represent throughout."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from examples import SMALL, core, layer, plan, problem, run_clause
from torch import Tensor, nn

import conformance
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.oracle.headroom import finite_limit
from conformance.oracle.oracle import Golden
from conformance.problems.inputs import Inputs
from conformance.running.runner import CandidateRun
from conformance.tolerance.model import HEADROOM

HALF, SINGLE = torch.finfo(torch.float16).max, torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("dtype", "accumulate", "limit"),
    [
        ("float32", None, SINGLE),
        ("float32", "float16", HALF),
        ("float32", "bfloat16", torch.finfo(torch.bfloat16).max),
        ("float32", "float64", SINGLE),
        ("float16", None, HALF),
        ("float16", "native", HALF),
        ("float16", "float32", HALF),
        ("float64", "float32", SINGLE),
    ],
)
def test_limit_is_that_of_the_narrower_format(
    dtype: str, accumulate: str | None, limit: float
) -> None:
    """Tensors and accumulator must both hold a number; "native" is the tensors' own dtype."""
    assert finite_limit(core(accumulate=accumulate).declaration, dtype) == limit


def golden_of(candidate: Candidate, dtype: str, **tokens: float) -> Golden:
    """The golden of an example in which some tokens are multiplied: query, key or value."""
    subject = Subject(candidate, dtype)
    inputs: Inputs = subject.inputs(problem(dtype=dtype, mask=plan("full")))
    factors = {"query": 1.0, "key": 1.0, "value": 1.0, **tokens}
    changed = {name: getattr(inputs, name) * factor for name, factor in factors.items()}
    return subject.golden(inputs.with_tokens(**changed))


ROOM_32 = HEADROOM * SINGLE


@pytest.mark.parametrize("made", [core, layer])
@pytest.mark.parametrize(
    ("tokens", "judged"),
    [
        ({}, True),
        ({"query": 1e15, "key": 1e15}, True),
        ({"query": 1e20, "key": 1e20}, False),
        ({"value": 1e34}, True),
        ({"value": 1e38}, False),
        ({"key": 1e38}, False),
    ],
)
def test_rows_beyond_the_headroom_are_not_judged(
    made: Any,
    tokens: dict[str, float],
    judged: bool,  # noqa: FBT001
) -> None:
    """Products, values and results above a sixteenth of the largest number are not judged."""
    assert bool(golden_of(made(), "float32", **tokens).judged.all()) is judged


def test_scale_does_not_hide_an_overflow() -> None:
    """A tiny scale makes small logits of products that overflow before it, and zero makes none."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem())
    large = inputs.with_tokens(query=inputs.query * 1e20, key=inputs.key * 1e20)
    for scale in (1e-35, 0.0):
        assert not bool(subject.golden(large.replace(scale=scale)).judged.any())
        assert bool(subject.golden(inputs.replace(scale=scale)).judged.all())


def test_only_the_row_concerned_is_left_out() -> None:
    """One large query takes no other row along; in a core, no other head."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem())
    query = inputs.query.clone()
    query[0, 1, 2] *= 1e38
    judged = subject.golden(inputs.with_tokens(query=query)).judged.squeeze(-1)
    assert (~judged).nonzero().tolist() == [[0, 1, 2]]


def test_keys_that_nobody_attends_do_not_count() -> None:
    """Junk in a key that no query reads leaves all rows to be judged."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem(mask=plan("full")))
    keep = torch.ones(1, 1, 1, inputs.geometry.key_length, dtype=torch.bool)
    keep[..., 3] = False
    key = inputs.key.clone()
    key[:, :, 3] = 3e38
    assert bool(subject.golden(inputs.replace(keep=keep).with_tokens(key=key)).judged.all())


def test_rows_that_are_nan_by_rule_stay_judged_by_it() -> None:
    """A row without keys that is declared NaN is no overflow."""
    subject = Subject(core(empty_rows="nan"), "float32")
    answer = subject.golden(subject.inputs(problem(mask=plan("empty-rows"))))
    assert bool(answer.empty.any())
    assert bool(answer.representable.all())
    assert torch.equal(answer.judged, ~answer.empty.unsqueeze(-1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("made", [core, layer])
def test_ordinary_rows_are_all_judged(made: Any, dtype: str) -> None:
    """Every value recipe of a dtype that draws ordinary logits leaves its rows to be judged."""
    subject = Subject(made(), dtype)
    for values in ("normal", "integers", "tied-keys", "nearly-uniform"):
        answer = subject.golden(subject.inputs(problem(dtype=dtype, values=values)))
        assert bool(answer.judged.all())


class Fixed(nn.Module):
    """A correct two-headed self-attention layer with projections of a given size."""

    def __init__(self, size: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        drawn = [torch.randn(8, 8, generator=generator) * size for _ in range(4)]
        self.weights = nn.ParameterList(nn.Parameter(matrix) for matrix in drawn)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        q, k, v = (
            (x @ matrix.to(x).T).unflatten(-1, (2, 4)).transpose(1, 2)
            for matrix in list(self.weights)[:3]
        )
        weights = torch.softmax(q @ k.mT / math.sqrt(4), -1)
        return (weights @ v).transpose(1, 2).flatten(2) @ self.weights[3].to(x).T


def fixed(size: float, dtype: str) -> Candidate:
    """The layer with the weights it brings."""
    forward = Fixed(size).to(getattr(torch, dtype))
    q, k, v, o = forward.weights
    return conformance.fixed_layer(
        forward,
        conformance.ProjectionWeights(q=q, k=k, v=v, o=o),
        num_heads=2,
        inputs="self",
        dtypes=[dtype],
    )


@pytest.mark.nightly  # every clause runs on it
@pytest.mark.parametrize(("size", "dtype"), [(1e3, "float16"), (1e30, "float32")])
def test_weights_too_large_for_the_dtype_fail_nothing(size: float, dtype: str) -> None:
    """A correct layer whose weights make everything overflow is never called wrong by a MUST."""
    profile = dataclasses.replace(SMALL, examples=3)
    run = CandidateRun(fixed(size, dtype), profile=profile)
    results = [run.run(planned) for planned in run.planned()]
    assert [(r.id, r.reason) for r in results if r.status in ("failed", "error")] == []
    golden = next(result for result in results if result.id == "numerics.golden")
    assert golden.status == "untestable"


def test_weights_of_ordinary_size_are_judged() -> None:
    """The same layer with small weights is judged, and passes."""
    result = run_clause(fixed(0.3, "float32"), "numerics.golden")
    assert (result.status, result.binding > 0) == ("passed", True)


def in_half(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """A core that computes in float16 what it is given in float32."""
    q, k, v = query.half(), key.half(), value.half()
    logits = (q @ k.mT) * q.shape[-1] ** -0.5
    if keep is not None:
        logits = logits.masked_fill(~keep, -math.inf)
    weights = torch.softmax(logits, -1)
    return (weights @ v).float()


@pytest.mark.parametrize("slug", ["numerics.large-logits", "mask.single-key", "mask.no-leak"])
def test_narrow_accumulator_sets_the_headroom(slug: str) -> None:
    """A core that is declared to accumulate in float16 is asked for nothing beyond float16."""
    candidate = core(
        in_half, masks=["keep"], causal=None, features=[], empty_rows="any", accumulate="float16"
    )
    assert run_clause(candidate, slug, examples=20).status == "passed"


def test_rows_whose_modified_scores_overflow_are_not_judged() -> None:
    """A function of scores may make numbers that the dtype does not hold; a hidden key is none."""
    large = conformance.Semantics(score_mod=lambda score, *_: score.abs() + HALF)
    hiding = conformance.Semantics(
        score_mod=lambda s, _b, _h, _q, k: torch.where(k > 0, -math.inf, s)
    )
    assert not bool(golden_of(core(semantics=large), "float16").judged.any())
    assert bool(golden_of(core(semantics=large), "float32").judged.all())
    assert bool(golden_of(core(semantics=hiding), "float16").judged.all())
