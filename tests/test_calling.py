from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import bare, core, layer, plan, problem, sizes
from torch import Tensor, nn

import conformance
from conformance.calling import CandidateFailure, arguments, build_forward, call_forward
from conformance.candidate import Candidate
from conformance.inputs import Inputs
from conformance.materialise import materialise
from conformance.problem import Problem
from conformance.results import Violation

SIZES = {"B": 2, "H": 4, "Q": 5, "K": 7, "1": 1}
SHAPES = ["BHQK", "B1QK", "1HQK", "B11K", "11QK", "111K", "BQK", "BHK", "BK", "QK", "HQK", "K"]
LENGTH_SHAPES = ["B", "BQ", "BH", "B1", "B11", "BHQ", "Q", "1", ""]
DTYPES = {
    "keep": torch.bool,
    "drop": torch.bool,
    "keep_int": torch.int64,
    "bias": torch.float32,
    "lengths": torch.int64,
}


def presented(form: str, shape: str, pattern: str = "random", **more: Any) -> tuple[Tensor, Inputs]:
    """A mask as the candidate gets it, and the inputs it was made from."""
    example = problem(mask=plan(pattern, form, shape, **more))
    inputs = materialise(example, core())
    (positional, keywords) = arguments(inputs)
    assert len(positional) == 3
    assert list(keywords) == [form]
    return keywords[form], inputs


def wide(mask: Tensor, shape: str) -> Tensor:
    """A mask in letters as four axes."""
    letters = dict(zip(shape, mask.shape, strict=True))
    return mask.reshape([letters.get(axis, 1) for axis in "BHQK"])


@pytest.mark.parametrize("form", ["keep", "drop", "keep_int", "bias"])
@pytest.mark.parametrize("shape", SHAPES)
def test_mask_has_exactly_the_declared_shape_and_dtype(form: str, shape: str) -> None:
    """Every form arrives in its letters, in its dtype and with its polarity."""
    mask, inputs = presented(form, shape)
    assert list(mask.shape) == [SIZES[letter] for letter in shape]
    assert mask.dtype == DTYPES[form]
    kept = {
        "keep": lambda: mask,
        "drop": lambda: ~mask,
        "keep_int": lambda: mask == 1,
        "bias": lambda: mask == 0,
    }[form]()
    assert inputs.keep is not None
    letters = shape.replace("1", "")
    table = inputs.keep.reshape([SIZES[axis] for axis in letters])
    assert torch.equal(kept.reshape(table.shape), table)


def test_integer_masks_hold_zeros_and_ones() -> None:
    """``keep_int`` holds 1 for attend and 0 for ignore, nothing else."""
    mask, _ = presented("keep_int", "BHQK")
    assert set(mask.flatten().tolist()) == {0, 1}


def test_plain_bias_is_zero_or_minus_infinity() -> None:
    """A bias without finite values only hides."""
    mask, _ = presented("bias", "BHQK")
    assert set(mask.flatten().tolist()) == {0.0, -torch.inf}


def test_finite_bias_hides_too() -> None:
    """A finite bias arrives in the query's dtype, minus infinity where keys are hidden."""
    mask, inputs = presented("bias", "B1QK", finite_bias=True)
    assert inputs.keep is not None
    assert inputs.bias is not None
    kept = inputs.keep
    assert bool((mask[~kept] == -torch.inf).all())
    assert torch.equal(mask[kept], inputs.bias[kept])


def test_bias_follows_the_dtype() -> None:
    """In float64 the bias is float64."""
    example = problem(mask=plan("random", "bias"), dtype="float64")
    _, keywords = arguments(materialise(example, core()))
    assert keywords["bias"].dtype == torch.float64


@pytest.mark.parametrize("shape", LENGTH_SHAPES)
@pytest.mark.parametrize("pattern", ["random", "empty-rows", "full"])
def test_lengths_count_the_kept_keys(shape: str, pattern: str) -> None:
    """Lengths are int64 in 0..Lk, and the keys before them are the kept ones."""
    lengths, inputs = presented("lengths", shape, pattern)
    assert list(lengths.shape) == [SIZES[letter] for letter in shape]
    assert lengths.dtype == torch.int64
    assert inputs.keep is not None
    counts = wide(lengths, shape)
    assert torch.equal((torch.arange(7) < counts).expand(inputs.keep.shape), inputs.keep)
    assert int(lengths.min()) == 0 if pattern == "empty-rows" else int(lengths.min()) >= 1


def test_mask_is_a_copy() -> None:
    """Writing into a mask never reaches the inputs."""
    mask, inputs = presented("keep", "BHQK")
    before = inputs.keep.clone()  # type: ignore[union-attr]  # it has a mask
    mask.fill_(False)  # noqa: FBT003 (torch's own)
    assert torch.equal(before, inputs.keep)  # type: ignore[arg-type]  # it has a mask


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
    seen: list[bool] = []
    weight = torch.ones(1, requires_grad=True)

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        with torch.enable_grad():
            return bare(query, key, value) * weight

    answer = call_forward(kernel, materialise(problem(), core()))
    assert seen == [False]
    assert not answer.output.requires_grad


def failure(function: Callable[..., object], **changes: Any) -> Violation:
    """The violation of one call."""
    inputs = materialise(problem(), core()).replace(**changes)
    with pytest.raises(CandidateFailure) as caught:
        call_forward(function, inputs)
    return caught.value.violation


def answering(make: Callable[[Tensor], object]) -> Callable[..., object]:
    """A kernel whose right answer is changed."""
    return lambda query, key, value: make(bare(query, key, value))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda _: None,
            "type",
            "the output is None, not a torch.Tensor: does the function end with a return?",
        ),
        (
            lambda output: (output, output),
            "type",
            (
                "the output is a tuple of 2, not a torch.Tensor: return the output alone (declare "
                "features=['weights'] to be asked for both)"
            ),
        ),
        (
            lambda output: output.numpy(),
            "type",
            "the output is a numpy.ndarray, not a torch.Tensor",
        ),
        (lambda output: output.tolist(), "type", "the output is a list, not a torch.Tensor"),
        (lambda _: 3.0, "type", "the output is a float, not a torch.Tensor"),
        (
            lambda output: output.to(torch.int32),
            "dtype",
            "the output has dtype torch.int32, not a floating-point one",
        ),
        (
            lambda output: output.to(torch.complex64),
            "dtype",
            "the output has dtype torch.complex64, not a floating-point one",
        ),
        (
            lambda output: output[:, :1],
            "shape",
            "the output has shape [2, 1, 5, 6] where [2, 4, 5, 6] is expected",
        ),
        (
            lambda output: output.mean(),
            "shape",
            "the output has shape [] where [2, 4, 5, 6] is expected",
        ),
        (
            lambda output: output.to_sparse(),
            "type",
            "the output is a torch.sparse_coo tensor, not a dense one",
        ),
        (
            lambda output: output.to("meta"),
            "type",
            "the output is on the device meta where the inputs are on cpu",
        ),
        (
            lambda output: torch.nested.nested_tensor([output[0], output[1]]),
            "type",
            "the output is a nested tensor, not a dense one",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_answers_that_cannot_be_judged(
    make: Callable[[Tensor], object], kind: str, message: str
) -> None:
    """Every answer of a wrong type, shape or dtype is the candidate's fault, in one sentence."""
    violation = failure(answering(make))
    assert (violation.kind, violation.message) == (kind, message)


def test_wrong_shape_says_both() -> None:
    """A wrong shape is given as data too."""
    violation = failure(answering(lambda output: output.transpose(1, 2)))
    assert violation.expected == [2, 4, 5, 6]
    assert violation.got == [2, 5, 4, 6]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda output: output,
            "returned a torch.Tensor for return_weights=True, not a pair (output, weights)",
        ),
        (
            lambda output: (output,),
            "returned a tuple of 1 for return_weights=True, not a pair (output, weights)",
        ),
        (
            lambda output: (output, None),
            "the weights is None, not a torch.Tensor: does the function end with a return?",
        ),
        (
            lambda output: (output, output.new_zeros(2, 5, 7)),
            "the weights has shape [2, 5, 7] where [2, 4, 5, 7] is expected",
        ),
    ],
)
def test_weights_that_cannot_be_judged(make: Callable[[Tensor], object], message: str) -> None:
    """Asked for weights, a candidate returns a pair of the right shapes."""
    function = answering(make)

    def kernel(query: Tensor, key: Tensor, value: Tensor, **_: object) -> object:
        return function(query, key, value)

    assert failure(kernel, return_weights=True).message == message


def raising(error: BaseException) -> Callable[..., object]:
    """A kernel that raises."""

    def kernel(*_: Tensor) -> object:
        raise error

    return kernel


class Unprintable(Exception):  # noqa: N818
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such head\nand more"), "raised ValueError: no such head"),
        (ValueError(), "raised ValueError"),
        (RuntimeError("size mismatch:"), "raised RuntimeError: size mismatch"),
        (SystemExit(3), "raised SystemExit: 3"),
        (MemoryError(), "raised MemoryError"),
        (GeneratorExit(), "raised GeneratorExit"),
        (AssertionError(), "raised AssertionError"),
        (StopIteration("x"), "raised StopIteration: x"),
        (Unprintable(), "raised Unprintable"),
    ],
)
def test_exceptions_are_violations_with_file_and_line(error: BaseException, text: str) -> None:
    """Whatever a candidate raises is one line with the candidate's own place."""
    violation = failure(raising(error))
    line = raising.__code__.co_firstlineno + 4
    assert violation.message == f"{text} (test_calling.py:{line})"
    assert (violation.kind, violation.got) == ("raised", type(error).__name__)


def test_place_is_the_candidates_own_line() -> None:
    """An exception out of torch points at the line that called it."""

    def kernel(query: Tensor, key: Tensor, _value: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", query[..., :2], key)

    violation = failure(kernel)
    assert f"(test_calling.py:{kernel.__code__.co_firstlineno + 1})" in violation.message
    assert "\n" not in violation.message


def test_interrupts_propagate() -> None:
    """Ctrl-C is not the candidate's answer."""
    with pytest.raises(KeyboardInterrupt):
        call_forward(raising(KeyboardInterrupt()), materialise(problem(), core()))


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
        f"raised ValueError: heads must be even (test_calling.py:{line}) while building the layer"
    )


@pytest.mark.parametrize(("made", "told"), [(None, "None"), (3, "a int")])
def test_builder_must_return_something_callable(made: object, told: str) -> None:
    """A builder that forgets its return is told so."""
    candidate = layer(lambda _geometry, _weights: made)
    with pytest.raises(CandidateFailure) as caught:
        build_forward(candidate, materialise(problem(), candidate))
    violation = caught.value.violation
    assert violation.kind == "type"
    assert violation.message == f"the builder returned {told}, not a forward function"


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
