"""The torch operation at which a call raises, with words for the axes of its tensors."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch.overrides import TorchFunctionMode

from ...base.geometry import Geometry
from .recording import SourceLine, places_of, tensors_of

HEADS, SHARED_HEADS = "heads", "key/value heads"
REPEAT: Final = (
    "repeat each key/value head for its group before the product: "
    "key.repeat_interleave(num_heads // num_kv_heads, dim=…), and value as well"
)
GENERAL: Final = "let the shapes at this line fit each other at every size"
SHAPING: Final = "read each size of the new shape from its own axis of the tensor"
CONTIGUOUS: Final = "call .reshape in place of .view, or .contiguous() before it"
TAKE_EVERY_SIZE: Final = "take every size"
_PRODUCTS: Final = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm", "mm"})
_SHAPING: Final = frozenset({"view", "reshape", "expand", "_reshape", "unflatten"})
_ATTENTION: Final = "scaled_dot_product_attention"
_MOST_SHAPES: Final = 3
_TWO: Final = 2
_WIDTHS: Final = ("query", "key", "value", "output")
# Names of axes that are one longer or shorter.
_ONE_OFF: Final = ((-1, "{} - 1"), (1, "{} + 1"))

Shape = tuple[int, ...]
Axes = tuple[str, ...]


@dataclass(frozen=True)
class RaisingOperation:
    """A torch operation that raised: the shapes of its tensors, and a shape argument.

    ``text`` is the equation of an einsum.
    """

    name: str
    place: SourceLine
    tensors: tuple[Shape, ...]
    shape: Shape = ()
    text: str = ""


class RaisingRecorder(TorchFunctionMode):
    """Notes, while entered, the last operation that raised on a line of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.last: RaisingOperation | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call an operation, and note it if it raises."""
        del types
        try:
            return func(*args, **(kwargs or {}))
        except Exception:  # any exception goes on to the caller
            places = places_of(sys._getframe(1))  # noqa: SLF001 (the only way to the caller's line)
            if places:
                given = (args, kwargs or {})
                self.last = RaisingOperation(
                    name=str(getattr(func, "__name__", "")),
                    place=places[-1],
                    tensors=tuple(tuple(one.shape) for one in tensors_of(given)),
                    shape=tuple(_numbers(args[1:])),
                    text=next((one for one in args if isinstance(one, str)), ""),
                )
            raise


def _numbers(value: Any) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from _numbers(entry)


class AxisNames:
    """The words for axes at sizes that tell them apart."""

    def __init__(self, sizes: Geometry, past: int = 0, *, layer: bool = False) -> None:
        heads = {HEADS: sizes.num_heads, SHARED_HEADS: sizes.num_kv_heads}
        self.grouped = sizes.num_heads != sizes.num_kv_heads
        if not self.grouped:
            del heads[SHARED_HEADS]
        own = {"queries": sizes.query_length, "keys": sizes.key_length}
        if len(set(own.values())) == 1:
            own = {"tokens": sizes.query_length}
        widths = {"head size": sizes.head_size}
        if sizes.head_size != sizes.value_head_size:
            widths["value head size"] = sizes.value_head_size
        plain = {"batch": sizes.batch, **heads, **own, **widths}
        if layer:
            plain |= {f"width of {word}": getattr(sizes, f"{word}_size") for word in _WIDTHS}
        made = {f"{h} x {w}": heads[h] * widths[w] for h in heads for w in widths}
        group = sizes.num_heads // sizes.num_kv_heads
        made |= {f"batch x {name}": sizes.batch * size for name, size in {**heads, **own}.items()}
        made |= {f"{name} x group": size * group for name, size in own.items()}
        made |= {"group": group}
        made |= {f"half of the {name}": size // 2 for name, size in widths.items()}
        made |= {"new keys": sizes.key_length - past}
        for step, words in _ONE_OFF:
            made |= {words.format(name): size + step for name, size in {**own, **widths}.items()}
        self._words: dict[int, str] = {}
        for name, size in {**plain, **made}.items():
            if size > 1:
                self._words.setdefault(size, name)

    def axes(self, shape: Shape) -> Axes:
        """Return the names of a shape's axes; a number for an axis without a name."""
        return tuple(self._words.get(size, str(size)) for size in shape)

    def within(self, message: str) -> str:
        """Replace sizes in parentheses, brackets or after "size" by words."""

        def worded(found: re.Match[str]) -> str:
            return re.sub(r"\d+", lambda number: self.axes((int(number[0]),))[0], found[0])

        return re.sub(r"\([\d, ]+\)|\[[\d, ]+\]|\bsize \d+|\bfrom \d+", worded, message)


@dataclass(frozen=True)
class RaisingLine:
    """An operation that raises, with its axes in words.

    ``named`` says that the names are known, ``grouped`` that heads share keys and values.
    """

    operation: RaisingOperation
    tensors: tuple[Axes, ...]
    shape: Axes = ()
    named: bool = True
    grouped: bool = False

    @classmethod
    def named_by(cls, operation: RaisingOperation, names: AxisNames | None) -> RaisingLine:
        """Return an operation with the names of its axes; without names, with their sizes."""
        words = (lambda shape: tuple(map(str, shape))) if names is None else names.axes
        return cls(
            operation,
            tuple(map(words, operation.tensors)),
            words(operation.shape),
            named=names is not None,
            grouped=names is not None and names.grouped,
        )

    @property
    def text(self) -> str:
        """The operands in words; "" for an operation without tensors."""
        operation, shown = self.operation, self.tensors[:_MOST_SHAPES]
        if not shown:
            return ""
        name = operation.name.strip("_")
        given = " and ".join(map(_listed, shown))
        if operation.name in _SHAPING and self.shape:
            given += f", and is to be {_listed(self.shape)}"
        return f"{name} is given {given}"

    @property
    def mixes_heads(self) -> bool:
        """Whether query heads meet the fewer heads of keys and values, or another number."""
        if not self.grouped:
            return False
        others = {other for pair in self._meeting() if HEADS in pair for other in pair} - {HEADS}
        return any(re.match(rf"\d|.* [x+-] |{SHARED_HEADS}", other) for other in others)

    @property
    def fix(self) -> str:
        """The change to make at the line."""
        name = self.operation.name
        if not self.named:
            return GENERAL
        if self.mixes_heads:
            return f"enable_gqa=True, or {REPEAT}" if name == _ATTENTION else REPEAT
        if name in _PRODUCTS and len(self.tensors) == _TWO and min(map(len, self.tensors)) > 1:
            return _fix_product(*self.tensors)
        if name == "einsum":
            return self._fix_letters()
        if name in _SHAPING:
            return SHAPING
        first, second = self._unlike()
        return _fix_elements(first, second) if len(self.tensors) > 1 else GENERAL

    def _unlike(self) -> tuple[Axes, Axes]:
        """Return the operands whose shapes do not fit: the first unequal of query, key, value."""
        first, second, *others = (*self.tensors, (), ())
        if self.operation.name == _ATTENTION and first[:-2] == second[:-2]:
            return second, others[0]
        return first, second

    def _meeting(self) -> Iterator[tuple[str, str]]:
        operation = self.operation
        if operation.name == "einsum":
            pairs = [(one, other) for _, one, other in self._letters()]
        elif len(self.tensors) < _TWO:
            pairs = []
        else:
            first, second = self.tensors[:2]
            product = operation.name in (*_PRODUCTS, _ATTENTION)
            kept = slice(0, -2) if product else slice(None)
            pairs = list(zip(reversed(first[kept]), reversed(second[kept]), strict=False))
        yield from (
            (one, other) for one, other in pairs if one != other and "1" not in (one, other)
        )

    def _letters(self) -> Iterator[tuple[str, str, str]]:
        """Yield each letter of an equation that stands for two axes, and both axes."""
        inputs = self.operation.text.replace(" ", "").partition("->")[0].split(",")
        known: dict[str, str] = {}
        for letters, axes in zip(inputs, self.tensors, strict=False):
            if len(letters) != len(axes):
                return
            for letter, axis in zip(letters, axes, strict=True):
                if known.setdefault(letter, axis) != axis:
                    yield letter, known[letter], axis

    def _fix_letters(self) -> str:
        for letter, one, other in self._letters():
            return (
                f"name the axes of each operand in its own order: {letter!r} stands for {one} in "
                f"one and for {other} in another"
            )
        return GENERAL


def _fix_product(first: Axes, second: Axes) -> str:
    if first[-1] != second[-2]:
        if second[-1] == first[-2] and second[-2] != first[-1] and first[-1] != second[-1]:
            return "exchange the two operands of the product"
        if first[-1] == second[-1]:
            return "transpose the last two axes of the second operand: .transpose(-2, -1)"
        if first[-2] == second[-2]:
            return "transpose the last two axes of the first operand: .transpose(-2, -1)"
    return "bring the axes of both operands into the same order before the product"


def _fix_elements(first: Axes, second: Axes) -> str:
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    if len(longer) == len(shorter) + 1:
        lost = [i for i in range(len(longer)) if _fits(longer[:i] + longer[i + 1 :], shorter)]
        if lost and lost[-1] > 0:
            axis = longer[lost[-1]]
            named = f"of {axis}" if not axis.isdigit() else f"at {lost[-1]}"
            return (
                f"the smaller tensor lacks the axis {named}: keepdim=True where it is reduced, or "
                "give it that axis"
            )
    tail = longer[-len(shorter) :]
    if tail != shorter and sorted(tail) == sorted(shorter):
        return "bring the axes of both into the same order: transpose one of them"
    if len(first) == len(second):
        for one, other in zip(first, second, strict=True):
            pair = sorted((one, other), key=len)
            if re.fullmatch(rf"{re.escape(pair[0])} [+-] 1", pair[1]):
                more = "more" if "+" in pair[1] else "fewer"
                return f"one of both has one {more} of the {pair[0]}: see the slice or the range"
    return GENERAL


def _fits(one: Axes, other: Axes) -> bool:
    return all(a == b or "1" in (a, b) for a, b in zip(one, other, strict=True))


def _listed(axes: Axes) -> str:
    return f"[{', '.join(axes)}]"
