from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from examples import core, failing, layer, plan, problem, run_clause, try_on
from torch import Tensor

from candidates.broken.reported.layer_shapes import HeadsAreStretchesOfTokens
from conformance._golden import golden
from conformance.clauses.leaks import hidden_keys, rows_apart
from conformance.clauses.subject import Subject
from conformance.diagnosis.mistakes import mistaken_conventions


def test_junk_tokens_own_rows_are_left_out_in_self_attention() -> None:
    """A token that holds junk is a query too: its own row is not judged, the others are."""
    subject = Subject(layer(inputs="self"), "float32")
    example = problem(
        query_length=7, query_size=13, value_size=13, mask=plan("padding", "keep", "BK")
    )
    inputs = subject.inputs(example)
    junk = hidden_keys(subject, example, inputs)
    judged = rows_apart(subject, inputs, junk)
    assert inputs.keep is not None
    hidden = ~inputs.keep[:, 0, 0]
    assert torch.equal(junk, hidden)
    assert torch.equal(judged[..., 0], ~hidden)


def test_junk_rows_are_judged_where_queries_are_apart() -> None:
    """With queries of their own, every row that attends no junk is judged."""
    subject = Subject(core(), "float32")
    example = problem(mask=plan("padding", "keep", "BK"))
    inputs = subject.inputs(example)
    junk = hidden_keys(subject, example, inputs)
    assert bool(rows_apart(subject, inputs, junk).all())


def test_rows_that_attend_junk_are_not_judged() -> None:
    """With a mask for each query, the rows that may see a junk key are left out."""
    subject = Subject(core(), "float32")
    example = problem(mask=plan("random", "keep", "BHQK"))
    inputs = subject.inputs(example)
    junk = hidden_keys(subject, example, inputs)
    judged = rows_apart(subject, inputs, junk)
    assert bool(judged.any())
    assert not bool(judged.all())


@pytest.mark.parametrize("slug", ["mask.no-leak", "numerics.convex", "numerics.any-length"])
def test_a_mask_may_show_what_the_causal_rule_hides(slug: str) -> None:
    """A prefix-LM, declared as one whose keys flag or mask admits, is judged as that."""
    point = golden.STANDARD.replace(causal_combination="either")

    def prefix(query: Tensor, key: Tensor, value: Tensor, **keywords: Any) -> Tensor:
        answer = golden.attend(query, key, value, causal=True, semantics=point, **keywords).output
        return answer.to(query.dtype)

    promises: dict[str, Any] = {"masks": ["keep"], "causal": "bottom-right", "features": []}
    made = core(prefix, **promises, always_causal=True, empty_rows="any", semantics=point)
    assert run_clause(made, slug).status == "passed"


@pytest.mark.parametrize(
    "change",
    [
        {"mask_operation": "ignore"},
        {"mask_operation": "add-to-kept"},
        {"mask_operation": "multiply-logits"},
        {"mask_operation": "multiply-weights"},
        {"mask_fill": -3.0},
    ],
    ids=str,
)
def test_no_declared_point_lets_hidden_keys_through(change: dict[str, Any]) -> None:
    """What only mistakes do is no excuse where it is declared: hidden keys have no influence."""
    point = golden.STANDARD.replace(**change)

    def leaky(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return golden.attend(query, key, value, semantics=point, **options).output.to(query.dtype)

    promises: dict[str, Any] = {"masks": ["keep"], "causal": None, "features": []}
    made = core(leaky, semantics=point, empty_rows="any", **promises)
    assert mistaken_conventions(point)
    assert failing(made, "mask.no-leak")


@pytest.mark.parametrize("fill", [-10.0, -1e3])
def test_small_fill_leaks(fill: float) -> None:
    """Hidden keys with large logits come through a small fill that is added."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        if keep is not None:
            logits = logits + fill * ~keep
        return logits.softmax(-1) @ value

    made = core(kernel, masks=["keep"], causal=None, features=[], empty_rows="any")
    assert run_clause(made, "mask.no-leak").status == "failed"


def test_nan_in_hidden_values_is_distinguished() -> None:
    """Zero weights times NaN poison a plain kernel, which only the SHOULD clause says."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        if keep is not None:
            logits = logits.masked_fill(~keep, -math.inf)
        return logits.softmax(-1) @ value

    made = core(kernel, masks=["keep"], causal=None, features=[], empty_rows="any")
    assert run_clause(made, "mask.no-leak").status == "passed"
    assert run_clause(made, "mask.no-leak-nonfinite").status == "failed"


def test_exception_on_junk_fails() -> None:
    """A kernel that raises on NaN in hidden keys does not pass."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
        if not bool(value.isfinite().all()):
            raise FloatingPointError
        return torch.where(query.new_ones(()).bool(), value.new_zeros(1), 0.0) + (
            (query @ key.mT / math.sqrt(query.shape[-1]))
            .masked_fill(~keep if keep is not None else torch.zeros(1, dtype=torch.bool), -math.inf)
            .softmax(-1)
            @ value
        )

    made = core(kernel, masks=["keep"], causal=None, features=[], empty_rows="any")
    finding = try_on(made, "mask.no-leak-nonfinite", problem(mask=plan("padding", "keep", "BK")))
    assert finding.violation is not None
    assert finding.violation.kind == "raised"


@pytest.mark.parametrize(
    "slug",
    ["mask.no-leak", "mask.empty-row-isolated", "gradients.masked-zero", "gradients.causal"],
)
def test_heads_that_are_views_of_memory_leak_nothing(slug: str) -> None:
    """A layer whose rows of heads are no rows of the answer, as declared, is judged by its own."""
    point = golden.STANDARD.replace(head_split="reinterpret", head_merge="reinterpret")
    viewed = layer(HeadsAreStretchesOfTokens, semantics=point, empty_rows="any")
    assert run_clause(viewed, slug, examples=12).status == "passed"
