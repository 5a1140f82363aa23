from __future__ import annotations

from typing import Any

import pytest
from examples import bare, core, failing, layer, plan, problem, run_clause, try_on
from torch import Tensor

from candidates.eager import EagerCore

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}


def wide(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The answer in float64."""
    return bare(query, key, value).double()


def refuses_nothing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Mismatches are cut to fit."""
    size = min(query.shape[-1], key.shape[-1])
    length = min(key.shape[2], value.shape[2])
    return bare(query[..., :size], key[..., :length, :size], value[..., :length, :])


def refuses_empty(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """No items and no queries are refused."""
    if not query.numel():
        raise ValueError
    return bare(query, key, value)


def reads_memory(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Strides are ignored."""
    flat = value.as_strided(value.shape, value.contiguous().stride())
    return bare(query, key, flat)


@pytest.mark.parametrize(
    ("broken", "slug"),
    [
        (wide, "shape.dtype"),
        (lambda query, key, value: bare(query, key, value).mT, "shape.output"),
        (refuses_nothing, "shape.rejects-mismatch"),
        (refuses_empty, "shape.empty-batch"),
        (refuses_empty, "shape.empty-query"),
        (reads_memory, "shape.strided"),
    ],
)
def test_broken_shapes_fail(broken: Any, slug: str) -> None:
    """Each mistake of shape, dtype and stride fails its clause."""
    assert run_clause(core(broken, **PROMISES), slug, examples=12).status == "failed"


def test_head_size_mismatch_never_broadcasts() -> None:
    """With heads of size two the mismatch is three, since one would broadcast."""
    for seed in range(4):
        example = problem(head_size=2, seed=seed)
        assert try_on(core(**PROMISES), "shape.rejects-mismatch", example).violation is None
        finding = try_on(core(refuses_nothing, **PROMISES), "shape.rejects-mismatch", example)
        assert finding.violation is not None
        assert finding.violation.kind == "not-raised"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["keep", "bias", "drop", "keep_int"])
def test_mask_of_another_length_is_handed_over(seed: int, form: str) -> None:
    """A mask of one key too few reaches the candidate in each form, which must raise."""
    candidate = core(masks=[form])
    example = problem(seed=seed, mask=plan("random", form))
    finding = try_on(candidate, "shape.rejects-mismatch", example)
    assert finding.violation is None


def test_returned_weights_are_compared() -> None:
    """Weights averaged over heads are of the wrong shape, uniform ones of the wrong value."""

    def uniform(query: Tensor, key: Tensor, value: Tensor, return_weights: bool = False) -> Any:  # noqa: FBT001, FBT002
        output = bare(query, key, value)
        weights = (query @ key.mT) * 0.0 + 1.0 / key.shape[2]
        return (output, weights) if return_weights else output

    promises = {**PROMISES, "features": ["weights"]}
    result = run_clause(core(uniform, **promises), "shape.weights")
    assert result.status == "failed"
    assert ", query " in result.reason
    assert ", key " in result.reason
    assert run_clause(core(uniform, **promises), "shape.output").status == "passed"
    assert run_clause(layer(), "shape.weights").status == "passed"


@pytest.mark.parametrize(
    "slug", ["shape.strided", "shape.bounds", "shape.expanded", "mask.strided", "gradients.strided"]
)
def test_what_may_be_refused_is_refused_loudly(slug: str) -> None:
    """Who promises contiguous tensors alone may raise for others; undeclared it is a failure."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        for tensor in (query, key, value, *options.values()):
            if isinstance(tensor, Tensor) and not tensor.is_contiguous():
                raise ValueError
        return EagerCore()(query, key, value, **options)

    promises: dict[str, Any] = {"masks": ["keep"], "features": [], "causal": None}
    declared = run_clause(core(kernel, strides="contiguous", **promises), slug)
    assert declared.status == "passed"
    if slug not in ("shape.bounds", "gradients.strided"):  # contiguous ones; another's matter
        assert failing(core(kernel, **promises), slug)
