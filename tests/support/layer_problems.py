"""Small layer problems for the candidates' tests, judged by the golden within a derived slack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from conformance import Geometry, ProjectionWeights
from conformance._golden import golden
from conformance.declare.candidate import Candidate

# Every axis of another size, so that a confusion of axes cannot hide.
SIZES = Geometry(
    batch=2,
    num_heads=3,
    num_kv_heads=3,
    query_length=5,
    key_length=7,
    head_size=4,
    value_head_size=6,
    query_size=11,
    key_size=13,
    value_size=9,
    output_size=10,
)


@dataclass(frozen=True, kw_only=True)
class LayerProblem:
    """The tensors of one problem and the geometry they have."""

    geometry: Geometry
    weights: ProjectionWeights
    query: Tensor
    key: Tensor
    value: Tensor


def layer_problem(
    candidate: Candidate,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    biases: bool = True,
    **sizes: int,
) -> LayerProblem:
    """A problem of the sizes above, changed by ``sizes`` and by what the candidate pins."""
    geometry = candidate.declaration.pins.apply(SIZES.replace(**sizes))
    if candidate.declaration.inputs == "self":
        geometry = geometry.replace(query_length=geometry.key_length)
    generator = Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    key = normal(geometry.batch, geometry.key_length, geometry.key_size)
    alone = candidate.declaration.inputs == "self"
    return LayerProblem(
        geometry=geometry,
        weights=_weights(candidate, geometry, normal, biases=biases),
        query=key if alone else normal(geometry.batch, geometry.query_length, geometry.query_size),
        key=key,
        value=key if alone else normal(geometry.batch, geometry.key_length, geometry.value_size),
    )


def _weights(
    candidate: Candidate, geometry: Geometry, normal: Any, *, biases: bool
) -> ProjectionWeights:
    point = candidate.declaration.semantics
    query_width = geometry.num_heads * geometry.head_size
    value_width = geometry.num_heads * geometry.value_head_size
    shapes = {
        "q": (query_width, geometry.query_size, point.query_bias),
        "k": (query_width, geometry.key_size, point.key_bias),
        "v": (value_width, geometry.value_size, point.value_bias),
        "o": (geometry.output_size, value_width, point.output_bias),
    }
    tensors: dict[str, Tensor | None] = {}
    for name, (rows, columns, has_bias) in shapes.items():
        tensors[name] = normal(rows, columns) / columns**0.5
        tensors[f"{name}_bias"] = normal(rows) if biases and has_bias else None
    return ProjectionWeights(**tensors)


def forward_of(candidate: Candidate, problem: LayerProblem) -> Any:
    """The layer built for a problem, in eval mode."""
    forward = candidate(problem.geometry, problem.weights)
    return forward.eval() if isinstance(forward, nn.Module) else forward


def answer(candidate: Candidate, problem: LayerProblem, **keywords: Any) -> Tensor:
    """What the candidate returns for a problem, with a batch axis."""
    inputs = (problem.query, problem.key, problem.value)
    if candidate.declaration.inputs == "self":
        inputs = (problem.query,)
    if not candidate.declaration.batched:
        inputs = tuple(tensor.squeeze(0) for tensor in inputs)
    with torch.no_grad():
        output = forward_of(candidate, problem)(*inputs, **keywords)
    return output if candidate.declaration.batched else output.unsqueeze(0)


def expected(candidate: Candidate, problem: LayerProblem, **masks: Any) -> Tensor:
    """The golden answer at the candidate's declared point."""
    return golden.multi_head_attention(
        problem.query,
        problem.key,
        problem.value,
        problem.weights,
        num_heads=problem.geometry.num_heads,
        semantics=candidate.declaration.semantics,
        **masks,
    ).output


def slack(problem: LayerProblem) -> float:
    """A first-order worst case of the rounding errors, doubled for what is of higher order.

    Each value is a sum of at most ``terms`` products, so it is off by ``terms`` unit roundoffs of
    the same sum over magnitudes; a weight is off, relatively, by twice the error of the logits.
    """
    weights, sizes = problem.weights, problem.geometry
    widths = (sizes.query_size, sizes.key_size, sizes.value_size, sizes.key_length)
    terms = sum(widths) + sizes.head_size + sizes.num_heads * sizes.value_head_size + 16
    query = _magnitude(problem.query, weights.q, weights.q_bias)
    key = _magnitude(problem.key, weights.k, weights.k_bias)
    value = _magnitude(problem.value, weights.v, weights.v_bias)
    largest_logit = query.amax() * key.amax() * sizes.head_size**0.5
    merged = value.amax().expand(1, weights.v.shape[0])
    output = _magnitude(merged, weights.o, weights.o_bias).amax()
    unit = torch.finfo(problem.query.dtype).eps / 2
    return float(2 * unit * terms * (2 + 2 * largest_logit) * output)


def _magnitude(tokens: Tensor, matrix: Tensor | None, bias: Tensor | None) -> Tensor:
    assert matrix is not None
    return golden.project(tokens.abs(), matrix.abs(), None if bias is None else bias.abs())


def assert_agrees(
    candidate: Candidate,
    problem: LayerProblem,
    keywords: dict[str, Any] | None = None,
    masks: dict[str, Any] | None = None,
) -> None:
    """Require the golden answer; ``keywords`` go to the candidate, ``masks`` to the golden."""
    got = answer(candidate, problem, **(keywords or {}))
    wanted = expected(candidate, problem, **(masks or {}))
    assert got.dtype == problem.query.dtype
    assert got.shape == wanted.shape
    assert bool(torch.equal(torch.isnan(got), torch.isnan(wanted)))
    error = (got.double() - wanted).nan_to_num().abs()
    assert float(error.max()) <= slack(problem)
