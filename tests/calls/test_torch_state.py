from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import conformance
from conformance.base.profile import PROFILES
from conformance.calls.calling import CandidateFailure, guarded
from conformance.calls.torch_state import kept, product_precision
from conformance.running.runner import CandidateRun

CHANGES: dict[str, Callable[[], object]] = {
    "default dtype": lambda: torch.set_default_dtype(torch.float16),
    "default device": lambda: torch.set_default_device("meta"),
    "determinism": lambda: torch.use_deterministic_algorithms(True),  # noqa: FBT003
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),  # noqa: FBT003
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "products": lambda: torch.set_float32_matmul_precision("medium"),
    "products of one backend": lambda: setattr(
        torch.backends.mkldnn.matmul, "fp32_precision", "bf16"
    ),
}


def state() -> tuple[object, ...]:
    """What a candidate may change for everybody."""
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_anomaly_enabled(),
        product_precision(),
    )


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_candidate_sets_is_put_back(change: Callable[[], object]) -> None:
    """After a call, and after one that raises, torch's settings are as before."""

    def fails() -> None:
        change()
        raise ValueError

    before = state()
    with kept():
        change()
        assert state() != before
    assert state() == before
    with pytest.raises(CandidateFailure):
        guarded(fails, (), {})
    assert state() == before


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_candidate_that_sets_them_is_judged_by_its_answers(
    change: Callable[[], object],
) -> None:
    """A correct answer stays correct, and the harness does not fail on the settings."""

    @conformance.core(masks=["keep"])
    def kernel(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if keep is not None:
            scores = scores.masked_fill(~keep, -torch.inf)
        answer = scores.softmax(-1) @ value
        change()
        return answer

    chosen = ("numerics.golden", "mask.single-key", "mask.golden")
    run = CandidateRun(kernel, profile=PROFILES["quick"], only=chosen)
    assert [run.run(planned).status for planned in run.planned()] == ["passed"] * 3


def test_what_a_module_sets_on_import_is_the_candidates_alone() -> None:
    """Defaults set before a run reach the calls of the candidate, and not the golden."""
    settings: list[torch.dtype] = []

    @conformance.core()
    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        settings.append(torch.get_default_dtype())
        return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1) @ value

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        run = CandidateRun(kernel, profile=PROFILES["quick"], only=("numerics.golden", "mask.*"))
        results = [run.run(planned) for planned in run.planned()]
        assert torch.get_default_dtype() is torch.float16
    finally:
        torch.set_default_dtype(before)
    assert {result.status for result in results} == {"passed", "not-applicable"}
    assert set(settings) == {torch.float16}
