"""A mistake that is a point is acted out: wrong as its name says, and in nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from examples import run_clause

import conformance
from conformance.base.profile import PROFILES
from conformance.diagnosis.mistakes import named_mistakes
from conformance.running.runner import CandidateRun
from conformance.tools.teeth.mistaken_candidates import (
    act_out,
    act_out_named,
    correct_candidates,
    read_masks,
)

FEW = dataclasses.replace(PROFILES["quick"], examples=2)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("candidate", correct_candidates(), ids=lambda candidate: candidate.name)
def test_the_standard_acted_out_conforms(candidate: conformance.Candidate) -> None:
    """Core and layer, at two points: no clause of any level fails."""
    run = CandidateRun(candidate, profile=FEW, explain=False)
    results = [run.run(planned) for planned in run.planned()]
    assert {result.status for result in results} <= {"passed", "not-applicable"}
    assert sum(result.status == "passed" for result in results) > len(results) / 2


@pytest.mark.parametrize(
    ("changes", "slug"),
    [
        ({"scale": "none"}, "numerics.scale"),
        ({"causal_alignment": "bottom-right"}, "mask.causal-alignment"),
        ({"empty_rows": "zeros"}, "mask.empty-row"),
        ({"head_merge": "interleaved"}, "numerics.golden"),
        ({"window_offset": 1}, "window.golden"),
    ],
    ids=str,
)
def test_an_acted_mistake_is_caught(changes: dict[str, Any], slug: str) -> None:
    """Where a mistake is the standard's choice another one is declared; layers where they must."""
    result = run_clause(act_out("wrong", changes), slug)
    assert result.status == "failed", result


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"scael": "none"}, "unexpected keyword argument 'scael'"),
        ({"scale": "no"}, "scale is 'no'"),
        ({"scale": "inverse-sqrt-head-size"}, "leave the standard as it is"),
    ],
    ids=str,
)
def test_changes_that_no_point_has(changes: dict[str, Any], why: str) -> None:
    """What cannot be acted out is refused by the mistake's name."""
    with pytest.raises(conformance.DeclarationError, match=f"the mistake 'wrong'.*{why}"):
        act_out("wrong", changes)


def test_every_form_of_mask_is_read_alike() -> None:
    """The same keys are kept whatever the form; only a bias has finite values, too."""
    keep = torch.tensor([True, True, False]).reshape(1, 1, 1, 3)
    bias = torch.tensor([0.5, 0.0, -torch.inf]).reshape(1, 1, 1, 3)
    forms = {
        "keep": keep,
        "drop": ~keep,
        "keep_int": keep.long(),
        "lengths": torch.tensor([2]),
        "bias": bias,
    }
    for form, mask in forms.items():
        masks = read_masks({form: mask}, 3)
        assert torch.equal(masks["keep"], keep)
        assert masks["mask_form"] == form
        assert ("bias" in masks) == (form == "bias")
    assert read_masks(dict.fromkeys(forms), 3) == {}


def test_sizes_that_do_not_fit_are_refused_each_time() -> None:
    """By a mistake in the heads, as by the golden, after right sizes too; other values are not."""
    (named, *_) = (one for one in named_mistakes() if one.name == "heads-averaged")
    averaged = act_out_named(named).function
    query, fitting, longer = (torch.randn(1, 2, length, 4) for length in (3, 5, 6))
    for _ in range(2):
        assert averaged(query, fitting, torch.randn_like(fitting)).shape == query.shape
        with pytest.raises(ValueError, match="value"):
            averaged(query, fitting, longer)
