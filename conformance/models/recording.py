"""A torch module's forward pass recorded as calls of torch that can be replayed.

A function mode sees each call of a public function or method of torch with its operands. Sizes read
off tensors stay tied to them, so calls can be replayed on tensors of other sizes.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode

_NOT_THE_USERS: Final = tuple(
    str(Path(file).resolve().parent) for file in (torch.__file__, Path(__file__).parent)
)
_IN_PLACE: Final = frozenset(
    "__setitem__ __iadd__ __isub__ __imul__ __itruediv__ __ipow__ __iand__ __ior__ __ixor__".split()
)
RESHAPES: Final = frozenset("view reshape flatten unflatten unsafe_view".split())
# Calls whose line in the user's code is kept: those of attentions, and what may mix heads.
_LOCATED: Final = RESHAPES | frozenset(
    "scaled_dot_product_attention softmax matmul __matmul__ __rmatmul__ bmm baddbmm einsum".split()
)


class Size(int):
    """A size read off a tensor, or computed from such sizes.

    ``parts``: the number of the value and the axis, or a function and its two operands.
    """

    parts: tuple[Any, ...]


def _sized(number: int, *parts: Any) -> Size:
    size = Size(number)
    size.parts = parts
    return size


def _tied(function: Callable[[Any, Any], Any], *, turned: bool = False) -> Callable[..., Any]:
    """Make an operator of sizes whose result remembers its operands."""

    def apply(one: int, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        pair = (other, one) if turned else (one, other)
        return _sized(function(int(pair[0]), int(pair[1])), function, *pair)

    return apply


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _function = getattr(operator, _name)
    setattr(Size, f"__{_name}__", _tied(_function))
    setattr(Size, f"__r{_name}__", _tied(_function, turned=True))


@dataclass(frozen=True)
class Ref:
    """Stands for a tensor among the arguments of a recorded call."""

    number: int


@dataclass(kw_only=True, eq=False)
class Value:
    """A tensor at one time of the forward pass.

    above: the module inputs it was computed from; includes ``None`` for an unseen origin.
    made_by: the call that made it; None for inputs, weights and unseen origins.
    kind: ``input``, ``weight``, ``unseen`` or ``made``.
    """

    number: int
    tensor: Tensor
    kind: str
    above: frozenset[str | None]
    made_by: Call | None = None


@dataclass(kw_only=True, eq=False)
class Call:
    """One call of a function of torch.

    arguments, keywords: the call's arguments, with a :class:`Ref` in place of each tensor.
    results: the returned values, in their order in the answer.
    renewed: for in-place calls: pairs of a changed value and its successor.
    scope, line: the path of the module whose forward was running, and the user's line, "" where not
        kept.
    """

    place: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    scope: str
    line: str
    results: tuple[int, ...] = ()
    renewed: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """The name of the function without underscores, such as ``add`` for ``+=``."""
        return named(self.function)

    @property
    def reads(self) -> list[int]:
        """The numbers of the values among the arguments."""
        return list(references((self.arguments, self.keywords)))

    def argument(self, place: int, *names: str) -> Any:
        """Return a positional or keyword argument, None if absent."""
        if place < len(self.arguments):
            return self.arguments[place]
        return next((self.keywords[name] for name in names if name in self.keywords), None)


def named(function: Callable[..., Any]) -> str:
    """``matmul`` for ``a @ b``, ``torch.matmul`` and ``Tensor.matmul`` alike."""
    name = str(getattr(function, "__name__", ""))
    if name == "__get__":
        return str(getattr(getattr(function, "__self__", None), "__name__", ""))
    bare = name.strip("_")
    if name.startswith("__") and bare[:1] in ("r", "i") and bare[1:] in _OPERATORS:
        bare = bare[1:]
    return _SAME.get(bare, bare)


_OPERATORS: Final = frozenset("add sub mul truediv matmul and or".split())
_SAME: Final = {"truediv": "div", "multiply": "mul", "divide": "div"}


def references(value: Any) -> Iterator[int]:
    """The numbers of the tensors in nested arguments."""
    if isinstance(value, Ref):
        yield value.number
    elif isinstance(value, slice):
        yield from references((value.start, value.stop, value.step))
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from references(entry)
    elif isinstance(value, dict):
        yield from references(list(value.values()))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested arguments with each leaf changed."""
    if isinstance(value, torch.Size):
        return tuple(change(entry) for entry in value)
    if isinstance(value, slice):
        return slice(*(mapped(part, change) for part in (value.start, value.stop, value.step)))
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(mapped(entry, change) for entry in value)
    if isinstance(value, list):
        return [mapped(entry, change) for entry in value]
    if isinstance(value, dict):
        return {name: mapped(entry, change) for name, entry in value.items()}
    return change(value)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a nested answer, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from tensors_in(entry)


@dataclass(kw_only=True, eq=False)
class ModuleRecording:
    """The calls of one forward pass in order, with all tensors and the module's answer."""

    calls: list[Call] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    answer: Any = None

    def readers(self) -> dict[int, list[Call]]:
        """Map every value to the calls that read it."""
        found: dict[int, list[Call]] = {}
        for call in self.calls:
            for number in call.reads:
                found.setdefault(number, []).append(call)
        return found


def record(module: nn.Module, arguments: Mapping[str, Any]) -> ModuleRecording:
    """Run a module once with keywords, and record it; raises whatever the module raises."""
    recorder = _Recorder(module, arguments)
    with torch.no_grad(), recorder.watching_modules(module), recorder:
        answer = module(**arguments)
    recorder.recording.answer = answer
    return recorder.recording


class _Recorder(TorchFunctionMode):
    """Records every call while active."""

    def __init__(self, module: nn.Module, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.recording = ModuleRecording()
        self._known: dict[int, int] = {}
        self._stored: dict[int, set[int]] = {}
        self._kept: list[Tensor] = []
        self._scopes: list[str] = []
        for name, value in arguments.items():
            for tensor in tensors_in(value):
                self._value(tensor, "input", frozenset([name]))
        self._weights = {
            id(tensor) for tensor in (*module.parameters(), *module.buffers(recurse=True))
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        if torch.compiler.is_compiling():  # a compiler that traces it takes no notes
            return func(*args, **keywords)
        if func is functional.multi_head_attention_forward:
            with self:  # what it computes inside is seen, too
                return _INSIDE(*args, **keywords)
        name = str(getattr(func, "__name__", ""))
        if name == "__get__" and named(func) == "shape":
            return torch.Size(self._sizes(args[0]))
        if func is Tensor.size:
            sizes = self._sizes(args[0])
            axis = args[1] if len(args) > 1 else keywords.get("dim")
            return torch.Size(sizes) if axis is None else sizes[axis]
        changed = self._before(args, keywords) if _is_in_place(name, keywords) else []
        call = Call(
            place=len(self.recording.calls),
            function=func,
            arguments=mapped(args, self._referred),
            keywords=mapped(keywords, self._referred),
            scope=self._scopes[-1] if self._scopes else "",
            line=_line() if name in _LOCATED else "",
        )
        result = func(*args, **keywords)
        self._after(call, result, changed)
        return result

    @contextmanager
    def watching_modules(self, module: nn.Module) -> Iterator[None]:
        """Track which module's forward is running, by hooks."""
        names = {id(part): name for name, part in module.named_modules()}

        def enter(part: nn.Module, _arguments: Any) -> None:
            own = self._scopes[-1] if self._scopes else ""
            self._scopes.append(names.get(id(part), own))

        def leave(_part: nn.Module, _arguments: Any, _answer: Any) -> None:
            self._scopes.pop()

        with ExitStack() as stack:
            entering = torch_modules.register_module_forward_pre_hook(enter)
            stack.callback(entering.remove)
            leaving = torch_modules.register_module_forward_hook(leave, always_call=True)
            stack.callback(leaving.remove)
            yield

    def _sizes(self, tensor: Tensor) -> list[Size]:
        number = self._number(tensor)
        return [_sized(size, number, axis) for axis, size in enumerate(tensor.size())]

    def _value(self, tensor: Tensor, kind: str, above: frozenset[str | None]) -> Value:
        value = Value(number=len(self.recording.values), tensor=tensor, kind=kind, above=above)
        self.recording.values.append(value)
        self._known[id(tensor)] = value.number
        self._kept.append(tensor)  # so that no other tensor gets its id
        self._stored.setdefault(_storage(tensor), set()).add(id(tensor))
        return value

    def _number(self, tensor: Tensor) -> int:
        known = self._known.get(id(tensor))
        if known is not None:
            return known
        is_weight = id(tensor) in self._weights or isinstance(tensor, nn.Parameter)
        above: frozenset[str | None] = frozenset() if is_weight else frozenset([None])
        if not is_weight and tensor.numel() <= 1:
            above = frozenset()  # a number
        return self._value(tensor, "weight" if is_weight else "unseen", above).number

    def _referred(self, leaf: Any) -> Any:
        return Ref(self._number(leaf)) if isinstance(leaf, Tensor) else leaf

    def _before(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[Tensor]:
        """Return the tensors changed by an in-place call; copies of their old data are kept."""
        out = keywords.get("out")
        target = next(tensors_in(out if out is not None else args), None)
        if target is None:
            return []
        self._number(target)
        by_id = {id(tensor): tensor for tensor in self._kept}
        # ``tensor.data = …`` gives a tensor other memory, which no function mode sees.
        memory = _storage(target)
        ids = self._stored.get(memory, set()) | {id(target)}
        changed = [by_id[known] for known in sorted(ids) if _storage(by_id[known]) == memory]
        for tensor in changed:
            self.recording.values[self._known[id(tensor)]].tensor = tensor.clone()
        return changed

    def _after(self, call: Call, result: Any, changed: Sequence[Tensor]) -> None:
        above: frozenset[str | None] = frozenset()
        for number in () if call.name.endswith("_like") else call.reads:  # its shape alone
            above |= self.recording.values[number].above
        renewed = []
        for tensor in changed:
            before = self._known[id(tensor)]
            value = self._value(tensor, "made", above)
            value.made_by = call
            renewed.append((before, value.number))
        call.renewed = tuple(renewed)
        numbers = []
        for tensor in tensors_in(result):
            known = self._known.get(id(tensor))
            if known is None:
                value = self._value(tensor, "made", above)
                value.made_by, known = call, value.number
            numbers.append(known)
        call.results = tuple(numbers)
        if numbers or renewed:
            call.place = len(self.recording.calls)
            self.recording.calls.append(call)


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):  # no memory of its own: sparse, or of a subclass
        return id(tensor)


def _is_in_place(name: str, keywords: Mapping[str, Any]) -> bool:
    ends = name.endswith("_") and not name.startswith("_")
    return (
        name in _IN_PLACE
        or ends
        or keywords.get("out") is not None
        or (keywords.get("inplace") is True)
    )


def _line() -> str:
    """Return file and line of the first caller outside torch."""
    frame = sys._getframe(2)  # noqa: SLF001 (as inspect does, which is slow)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    if frame is None:
        return ""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _inside() -> Callable[..., Any]:
    """Return torch's multi-head attention as code whose inner calls the mode sees."""
    function: Any = functional.multi_head_attention_forward
    names = {**function.__globals__, "has_torch_function": lambda _tensors: False}
    made = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_INSIDE: Final = _inside()


def size_at(size: Any, sizes: Mapping[int, Sequence[int]], otherwise: Callable[[Size], int]) -> int:
    """Evaluate a recorded size for tensors of other sizes.

    ``sizes``: shapes of values by number; ``otherwise`` evaluates a size read off any other tensor.
    """
    if not isinstance(size, Size):
        return int(size)
    if len(size.parts) == len(("value", "axis")):
        number, axis = size.parts
        return int(sizes[number][axis]) if number in sizes else otherwise(size)
    function, one, other = size.parts
    return int(function(size_at(one, sizes, otherwise), size_at(other, sizes, otherwise)))
