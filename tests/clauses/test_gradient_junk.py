"""Junk that a backward pass can multiply in half precision."""

from __future__ import annotations

from collections.abc import Callable

import torch
from examples import plan, problem, run_clause
from torch import Tensor
from torch.nn.functional import linear

import conformance
from conformance._golden import golden
from conformance.base.geometry import Geometry
from conformance.clauses.gradients import with_junk_to_differentiate
from conformance.clauses.subject import Subject
from conformance.oracle.headroom import largest_weight_gradient
from conformance.oracle.oracle import evaluate
from conformance.tolerance import model


@conformance.layer(masks=["bias"], empty_rows="any", dtypes=["float16"])
def softmax_in_single(
    geometry: Geometry, weights: golden.ProjectionWeights
) -> Callable[..., Tensor]:
    """A layer that multiplies in its dtype, as many libraries do; only the softmax is wider."""

    def forward(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None) -> Tensor:
        inputs = zip("qkv", (query, key, value), strict=True)
        heads = [
            linear(tokens, getattr(weights, name), getattr(weights, f"{name}_bias"))
            .unflatten(-1, (geometry.num_heads, -1))
            .transpose(1, 2)
            for name, tokens in inputs
        ]
        scores = heads[0] @ heads[1].mT * geometry.head_size**-0.5
        scores = scores if bias is None else scores + bias
        shares = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
        merged = (shares @ heads[2]).transpose(1, 2).flatten(2)
        return merged if weights.o is None else linear(merged, weights.o, weights.o_bias)

    return forward


def test_a_layer_in_half_precision_is_not_accused() -> None:
    """Its gradient of a hidden weight stays finite, so that a weight of zero makes it zero."""
    result = run_clause(softmax_in_single, "gradients.masked-zero", examples=30, dtype="float16")
    assert result.status == "passed", result.reason


def test_products_with_junk_leave_headroom() -> None:
    """However large the values behind wide projections: a sixteenth of the largest float16."""
    drawn = problem(dtype="float16", values="integers", mask=plan("sparse", "bias", "B11K"), seed=5)
    subject = Subject(softmax_in_single, "float16")
    inputs = subject.inputs(drawn)
    hidden = ~inputs.allowed(golden.STANDARD).any(dim=(1, 2))
    upstream = torch.full(inputs.output_shape, 3.0, dtype=torch.float16)
    junked = with_junk_to_differentiate(subject, drawn, inputs, hidden, upstream)
    shown = junked.without_mask()
    largest = largest_weight_gradient(evaluate(shown, golden.STANDARD), upstream)
    room = model.HEADROOM * torch.finfo(torch.float16).max
    assert 0.5 * room < largest <= 1.1 * room
    assert float(junked.value.abs().max()) > 5 * float(inputs.value.abs().max())
