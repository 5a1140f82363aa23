"""Candidates for the device ``fake``: two that are right, and mistakes that only a device shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import conformance
from fake_device import installed  # noqa: F401 (the device)

PROMISES: dict[str, Any] = {
    "masks": ["keep"],
    "causal": "top-left",
    "empty_rows": "nan",
    "without": ["gradients"],
}
FAKE: Any = vars(torch)["fake"]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Plain attention on whatever device the tensors are."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device)
        scores = scores.masked_fill(~ones.tril(), -torch.inf)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    return scores.softmax(-1) @ value


@conformance.core(**PROMISES, features=["graph_capture"], memory="quadratic")
def right(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Nothing is wrong."""
    return attend(query, key, value, **options)


class WithConstant(nn.Module):
    """A core with a buffer, made on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.ones(1))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Multiply by one."""
        return attend(query, key, value, **options) * self.one


right_module = conformance.core(name="right_module", **PROMISES)(WithConstant())


class Projected(nn.Module):
    """A layer of one head whose parameters are made on the CPU."""

    def __init__(self, weights: Any) -> None:
        super().__init__()
        roles = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias")
        self.parts = nn.ParameterDict(
            {
                role: nn.Parameter(getattr(weights, role).detach().cpu().clone())
                for role in roles
                if getattr(weights, role) is not None
            }
        )

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Project, attend, project."""
        heads = self.project(query, "q"), self.project(key, "k"), self.project(value, "v")
        return self.project(attend(*heads), "o")

    def project(self, tokens: Tensor, role: str) -> Tensor:
        """One of the four projections."""
        return nn.functional.linear(tokens, self.parts[role], self.parts.get(f"{role}_bias"))


@conformance.layer(
    geometry={"num_heads": 1, "num_kv_heads": 1}, empty_rows="any", without=["gradients"]
)
def right_layer(geometry: Any, weights: Any) -> nn.Module:
    """The builder leaves its module on the CPU: whoever calls it moves it."""
    del geometry
    return Projected(weights)


@conformance.core(**PROMISES)
def answers_on_the_cpu(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The answer is brought to the CPU."""
    return attend(query, key, value, **options).cpu()


@conformance.core(**PROMISES)
def forgets_a_constant(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """A constant stays on the CPU."""
    return attend(query, key, value, **options) * torch.ones(value.shape[-1])


@conformance.core(**PROMISES)
def other_on_the_device(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Another scale on the device."""
    if query.device.type == "fake":
        query = query * 1.01
    return attend(query, key, value, **options)


@conformance.core(**PROMISES)
def on_the_default_stream(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Works on the default stream, which waits for nobody."""
    if query.device.type == "cpu":
        return attend(query, key, value, **options)
    with FAKE.stream(FAKE.default_stream()):
        return attend(query, key, value, **options)


CALLS = [0]


@conformance.core(**PROMISES)
def other_bits_each_time(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The last bit changes from call to call."""
    answer = attend(query, key, value, **options)
    CALLS[0] += 1
    return answer * (1.0 + 2.0**-23) if CALLS[0] % 2 else answer


@conformance.core(**PROMISES, features=["graph_capture"])
def decided_at_capture(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """A sign is looked at while the graph is captured, and stays what it was."""
    total = value.sum()
    sign = 1.0 if float(total) >= 0 else -1.0
    return attend(query, key, torch.where(total >= 0, value, -value), **options) * sign


@conformance.core(**PROMISES, memory="linear")
def all_scores(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Linear memory is promised, and all scores are held."""
    return attend(query, key, value, **options)


@conformance.core(**PROMISES)
def breaks_the_device(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Strided keys make it write where it must not, after which nothing works."""
    if query.device.type == "fake" and not key.is_contiguous():
        torch.ops.fake_device.break_down()
    return attend(query, key, value, **options)


@conformance.core(**PROMISES, devices=["cpu", "fake"])
def declared_for_both(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Two devices are declared."""
    return attend(query, key, value, **options)
