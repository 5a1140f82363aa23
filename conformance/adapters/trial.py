"""Trial calls: what a module answers on a small problem, with random matrices."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..base.geometry import Geometry
from ..errors import DeclarationError
from ..tolerance import model
from .calling import Calling
from .filling import fillings, holds_masks, moved, takes_items

# The methods that users call, and libraries override. ``Module.to(dtype)`` would also make complex
# buffers (rotary positions kept as complex numbers) real, and lose their imaginary part.
_METHODS: Final = {
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
}
_CONTAINERS: Final = (OrderedDict, dict, set)


def duplicate(module: nn.Module) -> nn.Module:
    """A deep copy; raises DeclarationError where the module cannot be copied."""
    held = [value for part in module.modules() for value in vars(part).values()]
    # Each part has a dozen containers of hooks, and copying an empty one takes long.
    own = {id(one): type(one)() for one in held if type(one) in _CONTAINERS and not one}
    # torch refuses to copy tensors made by a call, such as stored attention weights.
    made = (value for value in held if isinstance(value, Tensor) and not value.is_leaf)
    own |= {id(value): value.detach().clone() for value in made}
    try:
        return copy.deepcopy(module, own)
    except Exception as error:  # a module's own __deepcopy__ may raise anything
        msg = (
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {error}), and an "
            "instance is never changed: pass its class and construct="
        )
        raise DeclarationError(msg) from error


def with_plain_weights(module: nn.Module) -> nn.Module:
    """The module itself, or a copy in which computed weights are plain parameters.

    Replaces torch's parametrizations, and the hooks of weight_norm, spectral_norm and pruning,
    which compute a weight before each call and can be removed with the weight kept.
    """
    if not any(_computes_weights(part) for part in module.modules()):
        return module
    copied = duplicate(module).eval()
    part: Any
    for part in list(copied.modules()):
        if parametrize.is_parametrized(part):  # copies share a class, which torch would change
            values = {name: getattr(part, name).detach() for name in part.parametrizations}
            part.__class__ = parametrize.type_before_parametrizations(part)
            del part.parametrizations
            for name, value in values.items():
                part.register_parameter(name, nn.Parameter(value.clone()))
        for key, hook in _computing_hooks(part):
            hook.remove(part)
            del part._forward_pre_hooks[key]  # noqa: SLF001 (as below)
    return copied


def _computes_weights(part: nn.Module) -> bool:
    return parametrize.is_parametrized(part) or bool(_computing_hooks(part))


def _computing_hooks(part: nn.Module) -> list[tuple[int, Any]]:
    hooks = part._forward_pre_hooks.items()  # noqa: SLF001 (torch's own functions look there, too)
    return [(key, hook) for key, hook in hooks if callable(getattr(hook, "remove", None))]


def put_in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a module's floating-point parameters and buffers in place, and return the module.

    Complex and integer tensors keep their dtypes.
    """
    cast: nn.Module = getattr(module, _METHODS[dtype])()
    return cast


def is_in_dtype(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether every floating-point parameter and buffer has a dtype."""
    tensors = (*module.parameters(), *module.buffers())
    return all(tensor.dtype == dtype for tensor in tensors if tensor.is_floating_point())


# Sizes all differ, to reveal a class that cannot have different sizes.
PROBES: Final = (
    Geometry(
        batch=2,
        num_heads=3,
        num_kv_heads=3,
        query_length=5,
        key_length=7,
        head_size=4,
        value_head_size=6,
        query_size=10,
        key_size=14,
        value_size=11,
        output_size=9,
    ),
    Geometry(
        batch=1,
        num_heads=2,
        num_kv_heads=2,
        query_length=3,
        key_length=4,
        head_size=6,
        value_head_size=5,
        query_size=7,
        key_size=9,
        value_size=13,
        output_size=8,
    ),
)

# The longest length tried on a module; clauses use slightly shorter sequences.
_ASKED: Final = 1100
Inputs = tuple[Tensor, Tensor, Tensor]
_Widths = tuple[int, int, int]
_T = TypeVar("_T")
LENGTHS: Final = ((5, 7), (6, 6))
_BATCH: Final = 2
# More items than clauses ask.
_MOST_ITEMS: Final = 33
# Fewer tokens than the items of a batch.
_FEW: Final = 2
# How many tensors of tokens a call is given; elsewhere three.
_GIVEN: Final = {"self": 1, "memory": 2}
# Lengths tried when LENGTHS are refused, and fillings tried at each.
_MOST_LENGTHS: Final = 24
_MOST_AT_A_LENGTH: Final = 12
_NUMBER: Final = re.compile(r"\d+")
_DTYPES: Final = {torch.float64: ("float64", "float32"), torch.float32: ("float32",)}


@dataclass(frozen=True)
class TrialAnswer:
    """One answered trial: query, key and value, the output, and the dtypes to judge the output by.

    The float32 entry is for modules that compute a part (a scale, a softmax) in float32.
    """

    inputs: Inputs
    output: Tensor
    dtypes: tuple[str, ...]


def _once(ask: Callable[[Trial, _Widths], _T]) -> Callable[[Trial, _Widths], _T]:
    """A method of a trial that asks once for each width."""

    @functools.wraps(ask)
    def asked(trial: Trial, widths: _Widths) -> _T:
        key = (ask.__name__, widths)
        if key not in trial.known:
            trial.known[key] = ask(trial, widths)
        found: _T = trial.known[key]
        return found

    return asked


@dataclass
class Trial:
    """A module under trial: a copy in eval mode with drawn matrices, in float64 where possible.

    ``names`` are the parameters to draw, ``lengths`` the pairs of query and key lengths to try, and
    ``only`` the single length that a module takes if it refuses them. ``seconds`` of processor time
    limit the search for values of further parameters. ``failure`` holds the exception of the latest
    failed call, ``returned`` the type of the module's latest result, ``known`` what was asked once.
    """

    module: nn.Module
    calling: Calling
    batched: bool
    names: Iterable[str]
    lengths: tuple[tuple[int, int], ...] = LENGTHS
    failure: Exception | None = None
    returned: type | None = None
    only: int | None = None
    seconds: float = 3.0
    known: dict[tuple[str, _Widths], Any] = field(default_factory=dict)
    _ends_at: float = 0.0

    def __post_init__(self) -> None:
        self.module = duplicate(self.module).eval()
        self.module.register_forward_hook(self._remember)
        generator = torch.Generator().manual_seed(0)
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        for name in self.names:
            parameter = parameters[name]
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            # Unit-sized answers: each output sums over one axis of the matrix.
            terms = parameter.shape[-1] if parameter.dim() > 1 else 1
            parameter.data.copy_(drawn / terms**0.5)

    @property
    def answered(self) -> bool:
        """Whether any call so far returned a tensor."""
        return any(answer is not None for answer in self._answers())

    @property
    def plausible(self) -> bool:
        """Whether an earlier call returned an output with a row for each query."""
        return any(answer is not None and _has_rows(answer) for answer in self._answers())

    def _answers(self) -> list[TrialAnswer | None]:
        return [value for (name, _), value in self.known.items() if name == "answer"]

    @_once
    def keeps_items_apart(self, widths: _Widths) -> bool:
        """Whether changed tokens of the first batch item leave the answers to later items alone.

        A module that expects tokens before batch mixes items. Lengths that a batch of one cannot
        have prove nothing: windows of tokens are then filled up from other items.
        """
        if not self.batched:
            return True
        answer = self.answer(widths)
        if answer is None:
            return False
        query, key, _ = answer.inputs
        lengths, dtype = (query.shape[1], key.shape[1]), query.dtype
        other = self._call(widths, lengths, dtype, turned=slice(None))
        apart = other is not None and is_same(answer.output[1:], other.output[1:])
        return apart or self._call(widths, lengths, dtype, batch=1) is None

    def repeats(self, widths: _Widths) -> bool:
        """Whether two equal calls get equal answers, up to rounding."""
        answer = self.answer(widths)
        if answer is None:
            return True
        query, key, _ = answer.inputs
        again = self._call(widths, (query.shape[1], key.shape[1]), query.dtype)
        return again is None or is_same(answer.output, again.output)

    @_once
    def heeds_every_input(self, widths: _Widths) -> bool:
        """Whether negating each further input changes the answer, as it must for a true input."""
        answer = self.answer(widths)
        if answer is None:
            return False
        lengths = answer.inputs[0].shape[1], answer.inputs[1].shape[1]
        places = range(1, _GIVEN.get(self.calling.inputs, 3))
        others = (
            self._call(widths, lengths, answer.inputs[0].dtype, negated=place) for place in places
        )
        return all(other is None or not is_same(answer.output, other.output) for other in others)

    def settle(self, widths: Iterable[_Widths], head_sizes: Sequence[int]) -> bool:
        """Fill the parameters besides tokens with the first values that the module takes.

        Equal rows in an answer reveal a made mask that hides every key. Returns whether any call
        answers.
        """
        widths = tuple(widths)
        if self.calling.function is not None:
            return any(self._fresh(each) is not None for each in widths)
        self._ends_at = time.process_time() + self.seconds
        if self._settled(widths, head_sizes):
            return True
        lengths, calling = self.lengths, self.calling
        for length in self._own_lengths():
            self.lengths = ((length, length),)
            if self._settled(widths, head_sizes, most=_MOST_AT_A_LENGTH):
                self.only = length
                return True
        self.lengths, self.calling = lengths, calling
        return False

    def _settled(
        self,
        widths: tuple[_Widths, ...],
        head_sizes: Sequence[int],
        most: int | None = None,
    ) -> bool:
        """Choose the fillings of the likeliest answer; False if no call answers."""
        calling = self.calling
        first: Calling | None = None
        for wanted in dict.fromkeys((calling.wanted, (*calling.wanted, *calling.spare))):
            ways = fillings(wanted, head_sizes, guessed=calling.guessed)
            usable = (fills for fills in ways if self.batched or not takes_items(fills))
            for fills in itertools.islice(usable, most):
                if time.process_time() > self._ends_at:
                    break
                self.calling = dataclasses.replace(calling, fills=fills)
                made = any(source != "None" for _, source in fills)
                answer = next((one for one in map(self._fresh, widths) if one is not None), None)
                if answer is None:
                    continue
                likely = _has_rows(answer) and not (made and _says_nothing(answer))
                fits = likely and self._turns_by_distance(answer)
                if fits and (not holds_masks(fills) or self._takes_few_tokens(answer)):
                    return True
                first = first or dataclasses.replace(calling, fills=fills)
        self.calling = first or calling
        return first is not None

    def _turns_by_distance(self, answer: TrialAnswer) -> bool:
        """Whether an answer stays with moved angles, as that of rotary positions does."""
        own, others = self.calling, moved(self.calling.fills)
        if others == own.fills:
            return True
        self.calling = dataclasses.replace(own, fills=others)
        widths = tuple(tokens.shape[-1] for tokens in answer.inputs)
        query, key, _ = answer.inputs
        other = self._call(widths, (query.shape[1], key.shape[1]), query.dtype)  # type: ignore[arg-type]  # of three tensors
        self.calling = own
        return other is not None and is_same(answer.output, other.output)

    def _takes_few_tokens(self, answer: TrialAnswer) -> bool:
        """Whether a call with fewer tokens than items succeeds: another shape would be cut there.

        True where the module insists on a length.
        """
        if len(self.lengths) == 1 or not self.batched:
            return True
        widths = tuple(tokens.shape[-1] for tokens in answer.inputs)
        few = self._call(widths, (_FEW, _FEW), answer.inputs[0].dtype, batch=_FEW + 1)  # type: ignore[arg-type]  # of three tensors
        return few is not None

    def _own_lengths(self) -> list[int]:
        """Sizes of a module's tensors and attributes, as lengths that the module may insist on."""
        numbers = dict.fromkeys(map(int, _NUMBER.findall(str(self.failure))))
        for part in self.module.modules():
            tensors = (*part.parameters(recurse=False), *part.buffers(recurse=False))
            made = (tensor for tensor in tensors if not torch.nn.parameter.is_lazy(tensor))
            numbers |= dict.fromkeys(size for tensor in made for size in tensor.shape)
            own = [value for value in vars(part).values() if _is_size(value)]
            numbers |= dict.fromkeys(own)
        given = {length for pair in self.lengths for length in pair}
        sizes = [size for size in numbers if 1 < size <= _ASKED and size not in given]
        return sizes[:_MOST_LENGTHS]

    def _fresh(self, widths: _Widths) -> TrialAnswer | None:
        """The answer to a new call in float32, kept out of the cache."""
        calls = (self._call(widths, sizes, torch.float32) for sizes in self.lengths)
        return next((answer for answer in calls if answer is not None), None)

    @_once
    def answer(self, widths: _Widths) -> TrialAnswer | None:
        """The module's answer to inputs of these widths, or None if every call fails."""
        if self.calling.inputs == "self" and len(set(widths)) > 1:
            return None
        if self.calling.inputs == "memory" and widths[1] != widths[2]:
            return None
        asked = itertools.product(_DTYPES, self.lengths)
        calls = (self._call(widths, sizes, dtype) for dtype, sizes in asked)
        return next((answer for answer in calls if answer is not None), None)

    @_once
    def answer_to_equal_tokens(self, widths: _Widths) -> TrialAnswer | None:
        """The answer when all tokens of a sequence are equal, at the lengths of ``answer``."""
        answer = self.answer(widths)
        if answer is None:
            return None
        query, key, _ = answer.inputs
        return self._call(widths, (query.shape[1], key.shape[1]), query.dtype, equal=True)

    @_once
    def longest(self, widths: _Widths) -> tuple[int, str] | None:
        """The largest number of tokens, if limited, and the tensor with this size (or "").

        Stored causal masks and learned position tables limit the number.
        """
        least = max(map(max, self.lengths))
        if self.only is not None or self._takes(widths, _ASKED) or not self._takes(widths, least):
            return None
        refused = _ASKED
        while refused - least > 1:
            middle = (least + refused) // 2
            least, refused = (middle, refused) if self._takes(widths, middle) else (least, middle)
        own: list[tuple[str, str, Tensor]]
        own = [("parameter", *entry) for entry in self.module.named_parameters()]
        own += [("buffer", *entry) for entry in self.module.named_buffers()]
        named = {size: f"{kind} {name}" for kind, name, tensor in own for size in tensor.shape}
        return least, named.get(least, "")

    def _takes(self, widths: _Widths, length: int) -> bool:
        return self._call(widths, (length, length), torch.float32) is not None

    @_once
    def most_items(self, widths: _Widths) -> int | None:
        """The most items that a module's buffers hold; None for any number that is tried."""
        answer = self.answer(widths)
        if answer is None or not self.batched:
            return None
        lengths = answer.inputs[0].shape[1], answer.inputs[1].shape[1]

        def takes(count: int) -> bool:
            return self._call(widths, lengths, answer.inputs[0].dtype, batch=count) is not None

        if takes(_MOST_ITEMS):
            return None
        return next((count - 1 for count in range(2, _MOST_ITEMS + 1) if not takes(count)), None)

    def why_causal(self, widths: _Widths) -> str:
        """Evidence that a self-attention module is meant to be causal; "" without evidence.

        The evidence is an answer that ignores later tokens, or a stored triangular buffer. The
        answers themselves may be wrong.
        """
        length, _ = self.lengths[-1]
        for dtype in _DTYPES:
            turned = (None, length - 1, length - 2)
            calls = [self._call(widths, self.lengths[-1], dtype, turned=at) for at in turned]
            outputs = [one.output.nan_to_num() for one in calls if one is not None]
            if len(outputs) < len(calls):
                continue  # it does not take this dtype
            plain, last, before = outputs
            shapes = {one.shape for one in outputs}
            if len(shapes) > 1 or plain.dim() != 3 or plain.shape[1] != length:  # noqa: PLR2004
                break
            # A module without mixing of tokens is not causal: every row depends on its own token.
            mixes = not is_same(plain[:, -1], before[:, -1])
            if mixes and is_same(plain[:, :-1], last[:, :-1]):
                return "no answer changes with a later token"
            break
        stored = (name for name, own in self.module.named_buffers() if _is_triangle(own))
        return next((f"its buffer {name} is a triangle" for name in stored), "")

    def is_causal_with(self, widths: _Widths, num_heads: int, form: str, shape: str) -> bool:
        """Whether a causal module stays causal when given a mask that hides the last key.

        Earlier queries do not see the last key anyway. A refused call counts as True.
        """
        queries, keys = lengths = self.lengths[-1]
        sizes = {"B": _BATCH, "H": num_heads, "Q": queries, "K": keys}
        seen = torch.ones([sizes.get(axis, 1) for axis in shape], dtype=torch.bool)
        seen[..., -1] = False
        mask = {
            "keep": seen,
            "drop": ~seen,
            "keep_int": seen.long(),
            "bias": torch.where(seen, 0.0, -torch.inf).double(),
        }[form]
        plain = self._call(widths, lengths, torch.float64)
        masked = self._call(widths, lengths, torch.float64, {form: mask})
        if plain is None or masked is None or plain.output.shape != masked.output.shape:
            return True
        return is_same(plain.output[:, :-1], masked.output[:, :-1])

    def _remember(self, _module: nn.Module, _inputs: Any, returned: Any) -> None:
        self.returned = type(returned)

    def _call(
        self,
        widths: _Widths,
        lengths: tuple[int, int],
        dtype: torch.dtype,
        options: Mapping[str, Tensor] | None = None,
        *,
        turned: int | slice | None = None,
        negated: int | None = None,
        equal: bool = False,
        batch: int = _BATCH,
    ) -> TrialAnswer | None:
        """The answer to drawn tokens, or None where the call fails.

        ``turned`` negates the tokens at a place in every item, or, as a slice, the whole first
        item; ``negated`` negates an input; ``equal`` repeats the first token of each sequence.
        """
        batch = batch if self.batched else 1
        inputs = draw(widths, lengths, self.calling.inputs, batch, dtype)
        for tokens in {id(tokens): tokens for tokens in inputs}.values():
            if equal:
                tokens.copy_(tokens[:, :1].expand_as(tokens).clone())
            if turned is not None:
                (tokens[0] if isinstance(turned, slice) else tokens[:, turned]).neg_()
        used = inputs[: _GIVEN.get(self.calling.inputs, 3)]
        used = tuple(-one if place == negated else one for place, one in enumerate(used))
        if not self.batched:
            used = tuple(tokens[0] for tokens in used)
        try:
            with torch.no_grad():
                output = self.calling(
                    put_in_dtype(self.module.cpu(), dtype), used, dict(options or {})
                )
        except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
            self.failure = error
            return None
        if not isinstance(output, Tensor):
            return None
        output = output if self.batched else output.unsqueeze(0)
        return TrialAnswer(inputs, output, _DTYPES[dtype])


def _is_size(value: Any) -> bool:
    return type(value) is int


def _has_rows(answer: TrialAnswer) -> bool:
    shape = answer.output.shape
    return len(shape) == len("BLE") and shape[:2] == answer.inputs[0].shape[:2]


def _says_nothing(answer: TrialAnswer) -> bool:
    """Whether all rows of each item are equal, or the output holds NaN."""
    output = answer.output
    return bool(output.isnan().any()) or is_same(output, output[:, :1].expand_as(output))


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are equal up to rounding."""
    return bool(((other - one).abs() <= model.SAME_READ * one.abs().max()).all())


def _is_triangle(buffer: Tensor) -> bool:
    """Whether a buffer separates later tokens from earlier ones, like a stored causal mask."""
    count = buffer.shape[-1] if buffer.dim() > 1 else 0
    if count < 2 or buffer.shape[-2] != count or buffer.numel() != count**2:  # noqa: PLR2004
        return False
    square = buffer.reshape(count, count)
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    expected = torch.where(later, square[0, -1], square[0, 0])
    return bool(square[0, -1] != square[0, 0]) and torch.equal(square, expected)


def draw(
    widths: _Widths,
    lengths: tuple[int, int],
    inputs: str,
    batch: int,
    dtype: torch.dtype,
) -> Inputs:
    """Normal query, key and value; one tensor serves for several in ``self`` and ``memory``."""
    generator = torch.Generator().manual_seed(1)
    query_length, key_length = lengths

    def tokens(length: int, width: int) -> Tensor:
        drawn = torch.randn(batch, length, width, generator=generator, dtype=torch.float64)
        return drawn.to(dtype)

    query = tokens(query_length, widths[0])
    if inputs == "self":
        return query, query, query
    key = tokens(key_length, widths[1])
    return query, key, key if inputs == "memory" else tokens(key_length, widths[2])
