from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from examples import bare, core, layer, plan, problem, run_clause, try_on
from torch import Tensor, nn

import conformance

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}


@pytest.mark.parametrize("candidate", [core, layer])
@pytest.mark.parametrize("slug", ["state.call-order", "state.settings", "state.grad-mode"])
def test_honest_candidates_pass(candidate: Any, slug: str) -> None:
    """A correct core and a correct layer pass, and their examples count."""
    finding = try_on(candidate(), slug, problem(mask=plan()))
    assert finding.violation is None
    assert finding.binding


@pytest.mark.parametrize("wrong", [0, 12])
def test_number_of_the_call_is_detected(wrong: int) -> None:
    """A first call that is wrong, and a thirteenth, fail."""
    calls: list[int] = []

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(1)
        return bare(query, key, value) * (2.0 if len(calls) == wrong + 1 else 1.0)

    assert try_on(core(kernel, **PROMISES), "state.call-order", problem()).violation is not None


class FirstMaskKept(nn.Module):
    """Causal attention to itself that keeps the mask of its first call: later keys are visible."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))
        self.hidden: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Two heads of four channels."""
        length = tokens.shape[1]
        if self.hidden is None:
            self.hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        grown = max(length - len(self.hidden), 0)
        self.hidden = nn.functional.pad(self.hidden, (0, grown, 0, grown))
        projected = (part(tokens) for part in (self.q_proj, self.k_proj, self.v_proj))
        query, key, value = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in projected)
        logits = (query @ key.mT / 2.0).masked_fill(self.hidden[:length, :length], -torch.inf)
        merged: Tensor = (logits.softmax(-1) @ value).transpose(1, 2).flatten(2)
        return self.out_proj(merged)


def test_a_smaller_call_that_is_remembered_is_detected() -> None:
    """What only a shorter call before spoils fails, and the sizes of both calls are said."""
    promises = {"inputs": "self", "causal": "top-left", "always_causal": True}
    made = conformance.module(FirstMaskKept(), **promises)
    result = run_clause(made, "state.call-order")
    assert result.violation is not None
    said = result.violation.message
    assert re.match(r"after a call of batch \d, queries \d, keys \d the answer to", said)


def test_path_while_recording_gradients_is_detected() -> None:
    """Another answer where gradients are recorded fails, although nobody asks for them."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return bare(query, key, value) * (2.0 if torch.is_grad_enabled() else 1.0)

    assert try_on(core(kernel, **PROMISES), "state.grad-mode", problem()).violation is not None


def test_settings_of_torch_are_watched() -> None:
    """Seeding everybody's random numbers fails."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        torch.manual_seed(3)
        return bare(query, key, value)

    finding = try_on(core(kernel, **PROMISES), "state.settings", problem())
    assert finding.violation is not None
    assert "seed" in finding.violation.message


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="since torch 2.9")
def test_settings_by_their_newer_names_can_be_read() -> None:
    """Once one of them is set, torch refuses to say the older word: that is nobody's mistake."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        assert try_on(core(bare, **PROMISES), "state.settings", problem()).violation is None
    finally:
        matmul.fp32_precision = before


def test_autocast_that_is_left_on_is_told_and_taken_back() -> None:
    """The next candidate would answer in lower precision."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer = bare(query, key, value)
        torch.set_autocast_enabled("cpu", True)  # noqa: FBT003 (torch's own)
        return answer

    violation = try_on(core(kernel, **PROMISES), "state.settings", problem()).violation
    assert violation is not None
    assert "the use of autocast" in violation.message
    assert not torch.is_autocast_enabled("cpu")


def test_nan_that_is_hidden_is_detected() -> None:
    """A NaN query answered with zeros fails, one answered with NaN passes."""

    def cleaned(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return bare(query, key, value).nan_to_num()

    finding = try_on(core(cleaned, **PROMISES), "numerics.nan-shows", problem())
    assert finding.violation is not None
    assert try_on(core(bare, **PROMISES), "numerics.nan-shows", problem()).violation is None


def test_inputs_that_want_gradients_are_tried() -> None:
    """A function of its own for inputs that want gradients shows; one that refuses them passes."""

    def doubled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return bare(query, key, value) * (2.0 if query.requires_grad else 1.0)

    def refused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.from_numpy(bare(query, key, value).numpy())

    assert try_on(core(doubled, **PROMISES), "state.grad-mode", problem()).violation is not None
    assert try_on(core(refused, **PROMISES), "state.grad-mode", problem()).violation is None
