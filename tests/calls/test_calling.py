from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import bare, call_forward, core, layer, plan, problem, sizes
from torch import Tensor, nn

import conformance
from conformance.calls.calling import (
    CandidateFailure,
    build_forward,
)
from conformance.declare.candidate import Candidate
from conformance.problems.materialise import materialise
from conformance.problems.problem import Problem

HERE = Path(__file__).name


def recorded(candidate: Callable[..., Candidate], example: Problem, **promises: Any) -> Any:
    """Positional inputs and keywords of one call."""
    calls: list[tuple[tuple[Tensor, ...], dict[str, Any]]] = []

    def record(*positional: Tensor, **keywords: Any) -> Tensor:
        calls.append((positional, keywords))
        shape = inputs.output_shape if inputs.batched else inputs.output_shape[1:]
        output = torch.zeros(shape)
        return (output, torch.zeros(inputs.score_shape)) if inputs.return_weights else output  # type: ignore[return-value]

    builds = candidate is layer
    made = candidate((lambda _geometry, _weights: record) if builds else record, **promises)
    inputs = materialise(example, made)
    call_forward(build_forward(made, inputs), inputs)
    return calls[0]


def test_unused_keywords_are_not_passed() -> None:
    """A problem without mask and flags passes nothing but query, key and value."""
    positional, keywords = recorded(core, problem())
    assert len(positional) == 3
    assert keywords == {}


def test_used_keywords_are_passed_in_their_public_form() -> None:
    """Flags are True, numbers are floats, a window is a pair, and a mask is a tensor."""
    example = problem(
        causal=True, scale=0.5, softcap=30.0, window=(2, -1), mask=plan("random", "drop", "BHQK")
    )
    _, keywords = recorded(core, example)
    assert set(keywords) == {"drop", "causal", "scale", "softcap", "window"}
    assert keywords["causal"] is True
    assert keywords["scale"] == 0.5
    assert keywords["softcap"] == 30.0
    assert keywords["window"] == (2, -1)


def test_scale_of_zero_is_passed() -> None:
    """Zero is a scale like any other, not an absent one."""
    assert recorded(core, problem(scale=0.0))[1] == {"scale": 0.0}


def test_self_attention_gets_one_tensor() -> None:
    """``inputs="self"`` calls with one tensor of tokens."""
    example = problem(query_length=7, query_size=13, value_size=13)
    positional, _ = recorded(layer, example, inputs="self", masks=[])
    assert [tuple(tensor.shape) for tensor in positional] == [(2, 7, 13)]


def test_memory_gets_query_and_context() -> None:
    """``inputs="memory"`` calls with a query and one context."""
    positional, _ = recorded(layer, problem(value_size=13), inputs="memory", masks=[])
    assert [tuple(tensor.shape) for tensor in positional] == [(2, 5, 11), (2, 7, 13)]


@pytest.mark.parametrize(
    ("candidate", "shapes"),
    [
        (core, [(4, 5, 3), (4, 7, 3), (4, 7, 6)]),
        (layer, [(5, 11), (7, 13), (7, 9)]),
    ],
)
def test_unbatched_tensors_have_no_batch(
    candidate: Callable[..., Candidate], shapes: list[tuple[int, ...]]
) -> None:
    """``batched=False`` drops the batch axis of inputs, masks and answers."""
    example = problem(batch=1, mask=plan("random", "keep", "HQK"))
    positional, keywords = recorded(candidate, example, batched=False, mask_shapes=["HQK"])
    assert [tuple(tensor.shape) for tensor in positional] == shapes
    assert tuple(keywords["keep"].shape) == (4, 5, 7)


def test_self_tokens_are_one_object_everywhere() -> None:
    """Layers that take three inputs from one sequence see it once, changed or not."""
    example = problem(query_length=7, query_size=13, value_size=13)
    inputs = materialise(example, layer(inputs="self"))
    assert inputs.query is inputs.key is inputs.value
    moved = inputs.with_tokens(key=inputs.key + 1)
    assert moved.query is moved.key is moved.value


def test_edits_stay_with_the_candidate() -> None:
    """A candidate that overwrites everything it gets leaves the pool's tensors as they were."""

    def vandal(query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
        output = bare(query, key, value)
        for tensor in (query, key, value):
            tensor.fill_(torch.nan)
        keep.logical_not_()
        return output

    inputs = materialise(problem(mask=plan()), core())
    before = [t.clone() for t in (inputs.query, inputs.key, inputs.value, inputs.keep)]  # type: ignore[union-attr]
    call_forward(vandal, inputs)
    after = (inputs.query, inputs.key, inputs.value, inputs.keep)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))  # type: ignore[arg-type]


def test_calls_record_no_gradients() -> None:
    """A call runs without gradients, and an answer with a graph is cut off it."""
    grad_modes: list[bool] = []
    weight = torch.ones(1, requires_grad=True)

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        grad_modes.append(torch.is_grad_enabled())
        with torch.enable_grad():
            return bare(query, key, value) * weight

    answer = call_forward(kernel, materialise(problem(), core()))
    assert grad_modes == [False]
    assert not answer.output.requires_grad


def test_builder_that_raises_says_so() -> None:
    """A layer that cannot be built fails with what it was doing."""

    def build(_geometry: object, _weights: object) -> object:
        message = "heads must be even"
        raise ValueError(message)

    made = layer(build)
    with pytest.raises(CandidateFailure) as caught:
        build_forward(made, materialise(problem(), made))
    line = build.__code__.co_firstlineno + 2
    assert caught.value.violation.message == (
        f"raised ValueError: heads must be even ({HERE}:{line}) while building the layer"
    )


@pytest.mark.parametrize(("made", "described"), [(None, "None"), (3, "a int")])
def test_builder_must_return_something_callable(made: object, described: str) -> None:
    """A builder that forgets its return is told so."""
    candidate = layer(lambda _geometry, _weights: made)
    with pytest.raises(CandidateFailure) as caught:
        build_forward(candidate, materialise(problem(), candidate))
    violation = caught.value.violation
    assert violation.kind == "type"
    assert violation.message == f"the builder returned {described}, not a forward function"


def test_modules_are_put_in_eval_mode() -> None:
    """A built module answers in eval mode, whatever mode it came in."""

    class Module(nn.Module):
        def forward(self, query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
            return query

    module = Module().train()
    candidate = layer(lambda _geometry, _weights: module)
    assert build_forward(candidate, materialise(problem(), candidate)) is module
    assert not module.training


def test_unbatched_answers_get_their_batch_back() -> None:
    """The answer of an unbatched candidate is judged with a batch axis of one."""

    @conformance.core(batched=False)
    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return bare(query, key, value)

    inputs = materialise(problem(geometry=sizes(batch=1)), kernel)
    assert call_forward(kernel.function, inputs).output.shape == (1, 4, 5, 6)
    with pytest.raises(CandidateFailure, match=r"has shape \[1, 4, 5, 6\] where \[4, 5, 6\]"):
        call_forward(lambda *tensors: kernel.function(*tensors).unsqueeze(0), inputs)


def test_answer_is_kept_apart_from_a_reused_buffer() -> None:
    """An output buffer that the next call overwrites does not change what was answered before."""
    buffer = torch.zeros(2, 4, 5, 6)

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        buffer.copy_(bare(query, key, value))
        return buffer

    inputs = materialise(problem(), core())
    first = call_forward(kernel, inputs).output
    before = first.clone()
    call_forward(kernel, inputs.with_tokens(value=inputs.value + 1))
    assert torch.equal(first, before)
