"""Calls a candidate with one example's inputs and checks its answer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn

from .._golden import golden
from ..base.printable_text import capped, name_of, printable, raised_text, traceback_text
from ..base.results import Violation
from ..declare.candidate import Candidate
from ..declare.declaration import NEW_KEYS, POSITION_KEYWORDS, SEQUENCES
from ..errors import UsageError
from ..graphs.protocol import GraphLost, GraphRefused
from ..problems.arrangements import (
    arranged_tokens,
    canonical_log_sum_exp,
    canonical_output,
    in_memory,
    log_sum_exp_shape,
    presented_shape,
    scale_keywords,
    sequence_keywords,
    structured_keywords,
)
from ..problems.caching import cached_heads, handed_over
from ..problems.inputs import Inputs
from ..problems.memory_layouts import MEMORY_LAYOUTS, MIXED, arrange_mask
from ..problems.quantised import FORMATS, Quantised
from ..problems.structured_masks import STRUCTURED_MASKS
from . import integrity, torch_state
from .arrays import Stranger, builder_of_tensors, of_tensors
from .devices import module_in_dtype, module_on, placed, taken, weights_on


class CandidateLost(Exception):  # noqa: N818 (the candidate's fault: it hung, or ended its process)
    """The candidate's process is gone; ``kind`` is ``hung`` or ``crashed``."""

    def __init__(self, message: str, *, kind: str = "crashed") -> None:
        super().__init__(message)
        self.kind = kind


class RaisedElsewhere(Exception):  # noqa: N818 (it is the candidate that raised)
    """The candidate raised in its own process."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


class RanksUnusableError(UsageError):
    """The ranks of a candidate cannot be started, or do not load it: nothing can be judged."""


# Looking at a tensor of these classes runs no code of the candidate's.
PLAIN = (Tensor, nn.Parameter)
_BASE: Any = torch._C.TensorBase  # noqa: SLF001 (immutable, unlike torch.Tensor: nobody replaces its methods)


def is_tensor(value: Any) -> bool:
    """Whether something is a tensor by its type; ``isinstance`` believes a false ``__class__``."""
    return issubclass(type(value), Tensor)


def plainly(value: Tensor) -> Tensor | None:
    """Return the tensor itself, or for a subclass a plain tensor in the same memory.

    None for a wrapper without numbers in memory of its own.
    """
    if type(value) in PLAIN:
        return value
    with _without_overrides():
        if _BASE.device.__get__(value).type != "cpu":  # its numbers are fetched from there
            return value
        return _BASE.as_subclass(value, Tensor) if _in_memory(value) else None


def _in_memory(value: Tensor) -> bool:
    if _BASE.layout.__get__(value) != torch.strided:
        return False
    return bool(_BASE.numel(value) == 0 or _BASE.data_ptr(value) != 0)


@contextlib.contextmanager
def _without_overrides() -> Iterator[None]:
    """Bypass ``__torch_function__`` and ``__torch_dispatch__`` of subclasses."""
    python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)  # noqa: SLF001 (no public way)
    python = python.add(torch._C.DispatchKey.PythonTLSSnapshot)  # noqa: SLF001
    with torch._C._ExcludeDispatchKeyGuard(python), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        yield


Forward = Callable[..., Any]
Arguments = tuple[tuple[Tensor, ...], dict[str, Any]]


class CandidateFailure(Exception):  # noqa: N818 (it is the candidate that fails, not the harness)
    """The candidate raised, or returned something that cannot be judged."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


class RowWithoutKeysRefused(CandidateFailure):
    """The candidate raised for a query without keys, and promises nothing about empty rows."""


class StridesRefused(CandidateFailure):
    """The candidate raised for a tensor that is not contiguous, as declared."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A candidate's answer, with the batch axis restored for unbatched candidates.

    ``output`` and ``weights`` are copies, since a kernel may write its next answer into the same
    storage; ``returned`` is the output object of the candidate, None for an answer no candidate
    returned, and ``kept`` a copy of it in the same axes. ``returned_weights`` is the weights
    object. ``lse`` are the returned log-sum-exps ``[B, H, Lq]``, ``returned_lse`` their object.
    """

    output: Tensor
    weights: Tensor | None = None
    lse: Tensor | None = None
    returned_lse: Tensor | None = None
    returned: Tensor | None = None
    returned_weights: Tensor | None = None
    kept: Tensor | None = None


def build_forward(
    candidate: Candidate, inputs: Inputs, *, leaves: golden.ProjectionWeights | None = None
) -> Forward:
    """Return the function to call: the core, or the layer built for geometry and weights.

    With ``leaves``, weights on the inputs' device that require gradients, the layer is built from
    these, and the builder's operations are recorded.
    """
    if candidate.kind != "layer":
        core = in_eval(_judged(candidate.function, inputs, rounds=False))
        return of_tensors(core, candidate.arrays)
    weights = weights_on(inputs.weights, inputs.device) if leaves is None else leaves
    forward = guarded(
        builder_of_tensors(candidate.function, candidate.arrays),
        (inputs.geometry, weights),
        {},
        "building the layer",
        grad_mode=leaves is not None,
    )
    if not callable(forward):
        _refuse("type", f"the builder returned {_describe(forward)}, not a forward function")
    if candidate.draws_weights:
        return in_eval(module_on(forward, inputs.device, fresh=True))
    return in_eval(_judged(forward, inputs, rounds=candidate.weights_known))


def in_eval(forward: Forward) -> Forward:
    """Return a module in eval mode; other functions as is."""
    return forward.eval() if isinstance(forward, nn.Module) else forward


def _judged(own: Forward, inputs: Inputs, *, rounds: bool) -> Forward:
    """Return a user's module in the dtype and on the device of the inputs."""
    if not isinstance(own, nn.Module):
        return own

    def answers(module: nn.Module) -> bool:
        try:
            positional, keywords = _cpu_arguments(inputs, copy=True)
            guarded(in_eval(module_on(module, "cpu", fresh=False)), positional, keywords)
        except CandidateFailure:
            return False
        return True

    in_dtype = module_in_dtype(own, inputs.query.dtype, answers, rounds=rounds)
    return module_on(in_dtype, inputs.device, fresh=False)  # type: ignore[no-any-return]  # a module


def arguments(inputs: Inputs, *, copy: bool = True) -> Arguments:
    """Return a call's positional tensors and keywords, copied so that edits stay invisible.

    They lie on the device of the inputs, with the memory layout they would have on the CPU.
    """
    return placed(_cpu_arguments(inputs, copy=copy), inputs.device)


def _cpu_arguments(inputs: Inputs, *, copy: bool) -> Arguments:
    fresh = handed_over(inputs)
    if inputs.quantised is not None:
        return _quantised_arguments(fresh, inputs.quantised, copy=copy)
    return _arguments_of(inputs, fresh, copy=copy)


def _arguments_of(inputs: Inputs, fresh: Inputs, *, copy: bool) -> Arguments:
    if not inputs.head_layout.is_own:
        return arranged_tokens(fresh), keyword_arguments(inputs)
    query, key, value = _arranged(fresh) if copy else (fresh.query, fresh.key, fresh.value)
    tensors = {"self": (query,), "memory": (query, key), "separate": (query, key, value)}[
        inputs.mode
    ]
    if not inputs.batched:
        tensors = tuple(tensor.squeeze(0) for tensor in tensors)
    return tensors, keyword_arguments(inputs)


def _quantised_arguments(inputs: Inputs, quantised: Quantised, *, copy: bool) -> Arguments:
    """The arguments of a call with codes for keys and values, placed in memory as bytes."""
    coded = inputs
    if not inputs.head_layout.cache_axes:
        codes = {name: quantised.bytes(name, getattr(inputs, name)) for name in ("key", "value")}
        coded = inputs.replace(quantised=None, **codes)
    tensors, keywords = _arguments_of(coded, coded, copy=copy)
    scales = scale_keywords(inputs)
    written = {name: _as_codes(keywords[name], quantised) for name in NEW_KEYS if name in keywords}
    return tuple(_as_codes(tensor, quantised) for tensor in tensors), keywords | written | scales


def _as_codes(tensor: Tensor, quantised: Quantised) -> Tensor:
    """Bytes as codes of the format; the query unchanged."""
    is_bytes = tensor.dtype == torch.uint8
    return tensor.view(FORMATS[quantised.format].dtype) if is_bytes else tensor


def _arranged(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Copy query, key and value; shared inputs stay one object."""
    mixed = inputs.layout == "mixed"
    query_layout, key_layout, value_layout = MIXED if mixed else (inputs.layout,) * 3
    query = MEMORY_LAYOUTS[query_layout](inputs.query)
    same = inputs.mode == "self" or (inputs.shared and inputs.key is inputs.query)
    key = query if same else MEMORY_LAYOUTS[key_layout](inputs.key)
    same = inputs.mode != "separate" or (inputs.shared and inputs.value is inputs.key)
    return query, key, key if same else MEMORY_LAYOUTS[value_layout](inputs.value)


def keyword_arguments(inputs: Inputs) -> dict[str, Any]:
    """Return the keywords used by the problem: never ``keep=None`` or ``causal=False``."""
    keywords = sequence_keywords(inputs)
    if inputs.mask_form in STRUCTURED_MASKS:
        keywords |= structured_keywords(inputs)
    elif inputs.mask_form not in (None, SEQUENCES):
        keywords[inputs.mask_form] = present_mask(inputs)
    if inputs.causal and not inputs.always_causal:
        keywords["causal"] = True
    for name in ("scale", "softcap", "window", "dropout"):
        value = getattr(inputs, name)
        if value is not None:
            keywords[name] = value
    if (tables := inputs.rotary_tables) is not None and inputs.tables is not None:
        first = 0 if inputs.own_cache else inputs.past
        keywords |= inputs.tables.keywords(tables[:, first:], inputs.query.dtype)
    keywords |= position_keywords(inputs)
    if inputs.sinks is not None:
        keywords["sinks"] = inputs.sinks.clone()
    keywords |= {name: value.clone() for name, value in inputs.learned_arguments.items()}
    if inputs.return_weights:
        keywords["return_weights"] = True
    if inputs.return_lse:
        keywords["return_lse"] = True
    return keywords | cache_keywords(inputs)


def position_keywords(inputs: Inputs) -> dict[str, Tensor]:
    """The positions of a call; a call on one input has those of its own tokens."""
    given = inputs.given_positions
    if given is None:
        return {}
    own = given if inputs.mode != "self" else (given[1][:, inputs.past :],)
    values = (each.contiguous() if inputs.batched else each[0].clone() for each in own)
    return dict(zip(POSITION_KEYWORDS[inputs.mode], values, strict=True))


def cache_keywords(inputs: Inputs) -> dict[str, Any]:
    """The cached keys and values of a call, in the axes and the memory layout of the others.

    A module with a cache of its own gets the tokens, for calls beforehand.
    """
    if not inputs.past and not inputs.empty_cache:
        return {}
    if inputs.own_cache:
        tokens = inputs.key[:, : inputs.past].clone()
        axes = {"past_axes": inputs.mask_shape} if inputs.masked else {}
        return {"past": tokens, "past_calls": inputs.past_calls, **axes}
    heads = dict(zip(("past_key", "past_value"), cached_heads(inputs), strict=True))
    layout = "contiguous" if inputs.layout == "mixed" else inputs.layout
    order = inputs.head_layout
    placed = {
        name: in_memory(order.arranged(tensor), layout, order.axes)
        for name, tensor in heads.items()
    }
    if inputs.batched:
        return placed
    return {name: tensor.squeeze(0) for name, tensor in placed.items()}


def present_mask(inputs: Inputs) -> Tensor:
    """Return the mask in its declared form and shape: a lettered axis has its full size."""
    keep = inputs.keep
    if keep is None:
        keep = torch.ones(1, 1, 1, inputs.geometry.key_length, dtype=torch.bool)
        keep = keep.expand(_mask_extent(inputs))
    form = inputs.mask_form
    if form == "lengths":
        lengths = keep.sum(dim=-1, keepdim=True).to(torch.int64).expand(_mask_extent(inputs))
        shaped = lengths.reshape(_letter_sizes(inputs.mask_shape, lengths))
        return arrange_mask(shaped, inputs.mask_layout)
    if form == "bias":
        mask = torch.zeros(keep.shape, dtype=inputs.query.dtype)
        if inputs.bias is not None:
            # torch.broadcast_shapes would import half of torch's compiler: half a second.
            pairs = zip(inputs.bias.shape, keep.shape, strict=True)
            mask = inputs.bias.expand([b if a == 1 else a for a, b in pairs])
        mask = mask.masked_fill(~keep, float("-inf"))
    else:
        mask = {"keep": keep, "drop": ~keep, "keep_int": keep.to(torch.int64)}[str(form)]
    mask = mask.expand(_mask_extent(inputs))
    return arrange_mask(mask.reshape(_letter_sizes(inputs.mask_shape, mask)), inputs.mask_layout)


def _mask_extent(inputs: Inputs) -> tuple[int, ...]:
    sizes = inputs.geometry
    full = {"B": sizes.batch, "H": sizes.num_heads, "Q": sizes.query_length, "K": sizes.key_length}
    return tuple(full[axis] if axis in inputs.mask_shape else 1 for axis in "BHQK")


def _letter_sizes(letters: str, mask: Tensor) -> list[int]:
    axes = dict(zip("BHQK", mask.shape, strict=True))
    return [1 if letter == "1" else axes[letter] for letter in letters]


def is_contiguous(call_arguments: Arguments) -> bool:
    """Whether every tensor of a call lies row after row, from the start of its storage on."""
    positional, keywords = call_arguments
    tensors = [each for each in (*positional, *keywords.values()) if isinstance(each, Tensor)]
    return all(each.is_contiguous() and each.storage_offset() == 0 for each in tensors)


_BEFORE_CALLS: Final[list[Callable[[], None]]] = []


@contextlib.contextmanager
def before_each_call(act: Callable[[], None]) -> Iterator[None]:
    """Run ``act`` before each call of a candidate's code made meanwhile.

    Exceptions of ``act`` reach the caller.
    """
    _BEFORE_CALLS.append(act)
    try:
        yield
    finally:
        _BEFORE_CALLS.remove(act)


# Contexts entered around a candidate's code, within its own settings of torch.
_WITHIN_CALLS: Final[list[contextlib.AbstractContextManager[Any]]] = []


@contextlib.contextmanager
def within_each_call(context: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Enter a context, for example a mode of torch, around each call made meanwhile."""
    _WITHIN_CALLS.append(context)
    try:
        yield
    finally:
        _WITHIN_CALLS.remove(context)


def guarded(
    function: Forward,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
    action: str = "",
    *,
    grad_mode: bool = False,
) -> Any:
    """Call the candidate's code; exceptions become CandidateFailure of kind ``raised``."""
    for act in _BEFORE_CALLS:
        act()
    try:
        return _watched(function, positional, keywords, grad_mode=grad_mode)
    except (KeyboardInterrupt, CandidateFailure, RanksUnusableError):
        raise
    except GraphLost as lost:
        message = printable(f"the graph {lost}")
        raise CandidateFailure(Violation(kind=lost.kind, message=message)) from lost
    except CandidateLost as lost:
        message = printable(f"the candidate {lost}")
        raise CandidateFailure(Violation(kind=lost.kind, message=message)) from lost
    except RaisedElsewhere as error:
        more = f" while {action}" if action else ""
        advised = dataclasses.replace(error.violation, message=f"{error.violation.message}{more}")
        raise CandidateFailure(advised) from error
    except GraphRefused as refused:  # by the runtime: no line of a program raised it
        reason = capped(str(refused))
        message = printable(f"the graph is refused: {reason}") + (
            f" while {action}" if action else ""
        )
        violation = Violation(kind="raised", message=message, got=reason.partition(":")[0])
        raise CandidateFailure(violation) from refused
    except BaseException as error:  # a candidate may raise anything, SystemExit included
        raise CandidateFailure(raised(error, action)) from error


def _watched(
    function: Forward, positional: tuple[Any, ...], keywords: dict[str, Any], *, grad_mode: bool
) -> Any:
    """Call the candidate's code, then restore the judge's changed parts."""
    prepared = integrity.before_call(_BEFORE_CALLS, _WITHIN_CALLS)
    restore = integrity.after_call
    code = restore.__code__
    try:
        with torch.set_grad_enabled(grad_mode), torch_state.kept():
            if not _WITHIN_CALLS:
                return function(*positional, **keywords)
            with contextlib.ExitStack() as within:
                for context in _WITHIN_CALLS:
                    within.enter_context(context)
                return function(*positional, **keywords)
    finally:
        if restore.__code__ is not code:  # what runs already, as this does, cannot be exchanged
            restore.__code__ = code
        restore(*prepared)


def raised(error: BaseException, action: str = "") -> Violation:
    """What an exception of the candidate means: its whole message, and the way to the line."""
    return Violation(
        kind="raised",
        message=raised_text(error) + (f" while {action}" if action else ""),
        got=name_of(error),
        traceback=traceback_text(error),
    )


def read_answer(returned: Any, inputs: Inputs) -> Answer:
    """Check type and shape of what was returned; raises CandidateFailure."""
    weights = returned_weights = lse = returned_lse = None
    if inputs.return_weights:
        returned, answer_weights = _pair(returned, "return_weights", "weights")
        weights = _tensor(answer_weights, "weights", inputs.score_shape, inputs)
        returned_weights = plainly(answer_weights)
    elif inputs.return_lse:
        returned, answer_lse = _pair(returned, "return_lse", "lse")
        lse, returned_lse = _log_sum_exp(answer_lse, inputs), plainly(answer_lse)
    kept = _tensor(returned, "output", presented_shape(inputs), inputs)
    output = canonical_output(kept, inputs)
    return Answer(
        output=output,
        weights=weights,
        returned=plainly(returned),
        returned_weights=returned_weights,
        lse=lse,
        returned_lse=returned_lse,
        kept=kept,
    )


def _pair(returned: Any, keyword: str, second: str) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:  # noqa: PLR2004 (a pair)
        said = f"returned {_describe(returned)} for {keyword}=True, not a pair (output, {second})"
        _refuse("type", said)
    return returned[0], returned[1]


def _log_sum_exp(value: Any, inputs: Inputs) -> Tensor:
    """Check returned log-sum-exps, in float32 or the inputs' wider dtype: ``[B, H, Lq]``."""
    lse = _tensor(value, "log-sum-exp", log_sum_exp_shape(inputs), inputs)
    least = torch.promote_types(inputs.query.dtype, torch.float32)
    if lse.element_size() < least.itemsize:
        _refuse(
            "dtype",
            f"the log-sum-exp has dtype {lse.dtype}, in which merged parts lose digits: {least} is "
            "expected",
            expected=str(least),
            got=str(lse.dtype),
        )
    return canonical_log_sum_exp(lse, inputs)


# The verb for weights, a plural.
_HAVE: Final = {"weights": "have"}


def _tensor(value: Any, what: str, shape: tuple[int, ...], inputs: Inputs) -> Tensor:
    if isinstance(value, Stranger):
        message = f"the {what} is {_describe(value.value)}, not {value.wanted}"
        _refuse("type", f"{message}{_advice(value.value)}")
    if isinstance(value, UnreadableElsewhere):
        _refuse("type", f"the {what} is {value.described}")
    if not is_tensor(value):
        _refuse("type", f"the {what} is {_describe(value)}, not a torch.Tensor{_advice(value)}")
    place, held = unreadable(value, inputs.device), plainly(value)
    if place or held is None:
        _refuse("type", f"the {what} is {place}")
    try:
        tensor = taken(held)  # a copy on the CPU, which waits for whatever still computes it
    except RuntimeError as error:  # what a kernel did wrong is reported when it is waited for
        failure = raised(error, f"its answer was fetched from {held.device}")
        raise CandidateFailure(failure) from error
    shown = shape if inputs.batched else shape[1:]
    has = f"the {what} {_HAVE.get(what, 'has')}"
    if tuple(tensor.shape) != tuple(shown):
        _refuse(
            "shape",
            f"{has} shape {list(tensor.shape)} where {list(shown)} is expected",
            expected=list(shown),
            got=list(tensor.shape),
        )
    # Eight-bit formats are for storage: torch compares and adds none of them.
    if not tensor.is_floating_point() or tensor.element_size() == 1:
        _refuse(
            "dtype",
            f"{has} dtype {tensor.dtype}, not a floating-point one of 16 bits or more",
            expected=str(inputs.query.dtype),
            got=str(tensor.dtype),
        )
    return tensor if inputs.batched else tensor.unsqueeze(0)


@dataclass(frozen=True, kw_only=True)
class UnreadableElsewhere:
    """In the place of a tensor whose elements the candidate's process could not read, and why."""

    described: str


def unreadable(value: Tensor, device: str) -> str:
    """Why the elements of a tensor cannot be looked at, or ""."""
    # A tensor of no subclass overrides nothing, as most answers.
    with contextlib.nullcontext() if type(value) in PLAIN else _without_overrides():
        nested = _BASE.is_nested.__get__(value)
        layout, place = _BASE.layout.__get__(value), _BASE.device.__get__(value)
    if nested or layout == torch.jagged:
        return "a nested tensor, not a dense one"
    if layout != torch.strided:
        return f"a {layout} tensor, not a dense one"
    if plainly(value) is None:
        return f"{_describe(value)}, whose numbers lie elsewhere"
    if place != torch.device(device):
        return f"on the device {place} where the inputs are on {device}"
    return ""


def _refuse(kind: str, message: str, expected: Any = None, got: Any = None) -> NoReturn:
    raise CandidateFailure(Violation(kind=kind, message=message, expected=expected, got=got))


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"a {module}{kind.__qualname__}"


def _advice(value: Any) -> str:
    if isinstance(value, tuple):
        return ": return the output alone (declare features=['weights'] to be asked for both)"
    if value is None:
        return ": does the function end with a return?"
    return ""
