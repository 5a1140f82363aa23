"""The inputs of a recorded attention: its products and the heads behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor

from ..graphs.weights.wiring import UnreadableError
from .recording import RESHAPES, Call, Ref, Value, references

# Calls that change a tensor's format or its place in memory, and nothing else.
CASTS: Final = frozenset(
    "to float double half bfloat16 type_as contiguous clone dropout detach".split()
)
# Calls that move, select or average numbers: a factor passes through them.
_LAYS: Final = (
    CASTS
    | RESHAPES
    | frozenset("transpose permute mT chunk split unbind getitem stack narrow squeeze".split())
    | frozenset("unsqueeze expand movedim select tensor_split mean".split())
)
# The axis of blocks, such as windows, that the tokens of an item are cut into: its heads attend in
# each block alone, as in an item.
PARTED: Final = "I"
# How many axes tensors of heads have: with items and heads as one, as two, and with blocks.
RANKS: Final = (3, 4, 5)
_FULL: Final = (set("BHLD"), set("FLD"), set("BIHLD"))


def shown_call(call: Call) -> str:
    """``matmul (modeling_bert.py:125)``."""
    return f"{call.name} ({call.line})" if call.line else call.name


@dataclass(frozen=True, kw_only=True)
class TorchEdge:
    """A tensor of heads where it enters an attention: its value and one letter an axis.

    heads: the number of heads, 0 where items and heads are one axis.
    scaled: it is multiplied by a number on the way.
    heads_lead: heads come before items where both become one axis.
    """

    number: int
    letters: str
    heads: int = 0
    scaled: bool = False
    heads_lead: bool = False


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of two tensors, with a letter for each axis of both and of the result."""

    call: Call
    operands: tuple[int, int]
    letters: tuple[str, str, str]


class Edges:
    """Reads products and edges in a recording."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = values
        inputs = (value.tensor.shape for value in values if value.kind == "input")
        self._of_inputs = {size for shape in inputs for size in shape[:2]}

    def product(self, call: Call) -> Product:
        """The operands and axes of a product; raises UnreadableError."""
        if call.name == "einsum":
            equation, *rest = call.arguments or ("",)
            operands = list(rest[0]) if rest and isinstance(rest[0], (list, tuple)) else rest
            numbers = tuple(operand.number for operand in operands)
            written = str(equation).replace(" ", "")
            # An ellipsis stands for equal leading axes in both.
            more = {
                self._tensor(n).dim() - len(side.replace("...", ""))
                for n, side in zip(numbers, written.partition("->")[0].split(","), strict=False)
            }
            free = [letter for letter in "uvwxyz" if letter not in written]
            lead = "".join(free[: more.pop()]) if len(more) == 1 else "..."
            sides, arrow, result = written.replace("...", lead).partition("->")
            letters = (*sides.split(","), result)
            if not arrow or len(operands) != 2 or "." in sides:  # noqa: PLR2004 (two operands)
                msg = f"its product is einsum({equation!r})"
                raise UnreadableError(msg)
            return Product(call=call, operands=numbers, letters=letters)  # type: ignore[arg-type]  # two and three
        first = 1 if call.name == "baddbmm" else 0
        arguments = [
            call.argument(first, "input", "batch1"),
            call.argument(first + 1, "other", "mat2", "batch2"),
        ]
        if getattr(call.function, "__name__", "") == "__rmatmul__":
            arguments.reverse()
        one, other = (argument.number for argument in arguments)
        rank = self._tensor(call.results[0]).dim()
        if {self._tensor(one).dim(), self._tensor(other).dim()} != {rank}:
            msg = f"the operands of its product have not as many axes as the result, {rank}"
            raise UnreadableError(msg)
        lead = "uvwxyz"[: rank - 2]
        return Product(
            call=call, operands=(one, other), letters=(f"{lead}qd", f"{lead}dk", f"{lead}qk")
        )

    def edges(self, operands: Mapping[str, tuple[int, str]]) -> dict[str, TorchEdge]:
        """Find the heads behind each operand; where keys and values differ, repeated ones stay."""
        edges = {
            part: self._edge(*operand, grouped=part != "query")
            for part, operand in operands.items()
        }
        if edges["key"].heads != edges["value"].heads:
            edges = {
                part: self._edge(*operand, grouped=False) for part, operand in operands.items()
            }
        return edges

    def size(self, edge: TorchEdge) -> int:
        """The size of a head."""
        shape = self._tensor(edge.number).shape
        if "M" in edge.letters:
            return int(shape[-1]) // edge.heads
        return int(shape[edge.letters.index("D")])

    def _edge(self, number: int, letters: str, *, grouped: bool) -> TorchEdge:
        """Find the heads behind an operand: above turns, casts, factors and group repetitions."""
        here = best = self.counted(TorchEdge(number=number, letters=letters))
        while True:
            call = self._values[here.number].made_by
            above = None if call is None else self._above(call, here, grouped=grouped)
            if above is None:
                return best
            here = self.counted(above)
            packed = "M" in here.letters and here.scaled and not best.scaled
            if packed or set(here.letters) in _FULL:
                best = here

    def counted(self, edge: TorchEdge) -> TorchEdge:
        """Add the number of heads to the edge, if it has an axis of heads."""
        at = edge.letters.find("H")
        if at < 0:
            return edge
        return replace(edge, heads=int(self._tensor(edge.number).shape[at]))

    def _above(self, call: Call, here: TorchEdge, *, grouped: bool) -> TorchEdge | None:
        """Return the edge above a call that only moves, repeats or scales; else None."""
        source = _first_tensor(call)
        if source is None:
            return None
        before, after = self._tensor(source).shape, self._tensor(here.number).shape
        name, letters = call.name, here.letters
        if name in CASTS:
            return replace(here, number=source)
        if name in ("mul", "div"):
            return self._unscaled(call, here)
        order = _order(call, len(letters))
        if order is not None:
            turned = [""] * len(letters)
            for at, place in enumerate(order):
                turned[place] = letters[at]
            return replace(here, number=source, letters="".join(turned))
        read = _reshaped if name in RESHAPES else _STEPS.get(name)
        found = None if read is None else read(call, letters, list(before), list(after))
        unfolded = found is not None and letters[0] == "F" and found[:2] == "BH"
        # No input has as many items as this first axis.
        leads = unfolded and not {before[0]} & self._of_inputs and before[1] in self._of_inputs
        repeats = found is not None and (
            len(found) > len("BHLD") or ("H" in found and name in ("expand", "repeat_interleave"))
        )
        if found is None or (repeats and not grouped):
            return None
        letters = f"HB{found[2:]}" if leads else found
        return replace(here, number=source, letters=letters, heads_lead=here.heads_lead or leads)

    def _unscaled(self, call: Call, here: TorchEdge) -> TorchEdge | None:
        """Return the edge above a product with one number, or a division by it."""
        factors = [at for at, entry in enumerate(call.arguments) if self._is_number(entry)]
        operands = [entry for entry in call.arguments if not self._is_number(entry)]
        fits = len(factors) == 1 and (call.name == "mul" or factors == [1]) and len(operands) == 1
        return replace(here, number=operands[0].number, scaled=True) if fits else None

    def factor_above(self, number: int) -> float:
        """Return the factor applied to a tensor before slicing and moving."""
        result = 1.0
        while True:
            call = self._values[number].made_by
            source = None if call is None else _first_tensor(call)
            if call is None or source is None:
                return result
            if call.name in ("mul", "div"):
                factors = [entry for entry in call.arguments if self._is_number(entry)]
                above = self._unscaled(call, TorchEdge(number=number, letters=""))
                if above is None or len(factors) != 1:
                    return result
                own = factors[0]
                own = float(self._tensor(own.number) if isinstance(own, Ref) else own)
                result = result * own if call.name == "mul" else result / (own or math.inf)
                source = above.number
            elif call.name not in _LAYS:
                return result
            number = source

    def _is_number(self, entry: Any) -> bool:
        """Tell whether an argument is one number that no input of the module changes."""
        if isinstance(entry, Ref):
            value = self._values[entry.number]
            return value.tensor.numel() == 1 and not value.above
        return isinstance(entry, (int, float))

    def _tensor(self, number: int) -> Tensor:
        return self._values[number].tensor


def leading(rank: int) -> str:
    """The letters of the axes before queries and keys, in scores of so many axes."""
    return {4: "BH", 5: "BIH"}.get(rank, "F")


def kinds_of(product: Product, weights: int) -> str:
    """Return the axes of the weights: ``BHQK``, ``FQK`` or ``BIHQK`` in some order."""
    own, other = product.letters[weights], product.letters[1 - weights]
    result = product.letters[2]
    summed = [axis for axis in own if axis not in result]
    queries = [axis for axis in own if axis in result and axis not in other]
    lead = [axis for axis in own if axis in result and axis in other]
    if len(summed) != 1 or len(queries) != 1 or len(own) not in RANKS:
        msg = f"the axes of its product {shown_call(product.call)} cannot be told"
        raise UnreadableError(msg)
    names = {summed[0]: "K", queries[0]: "Q", **dict(zip(lead, leading(len(own)), strict=True))}
    return "".join(names[axis] for axis in own)


def _first_tensor(call: Call) -> int | None:
    return next(references((call.arguments, call.keywords)), None)


def _numbers(call: Call) -> list[int]:
    """Return the integers given to a method after its tensor."""
    rest = call.arguments[1:]
    if len(rest) == 1 and isinstance(rest[0], (tuple, list)):
        rest = tuple(rest[0])
    return [int(entry) for entry in rest if isinstance(entry, int)]


def _order(call: Call, rank: int) -> list[int] | None:
    """Return the permutation of axes by a call, as operand axes; None for other calls."""
    numbers = _numbers(call) or [
        call.keywords[name] for name in ("dim0", "dim1") if name in call.keywords
    ]
    order = list(range(rank))
    if call.name in ("transpose", "swapaxes", "swapdims") and len(numbers) == len("ab"):
        one, other = (number % rank for number in numbers)
        order[one], order[other] = other, one
        return order
    if call.name in ("mT", "adjoint", "mH"):
        return [*order[:-2], order[-1], order[-2]]
    if call.name == "permute":
        numbers = numbers or list(call.keywords.get("dims", ()))
        return [number % rank for number in numbers] if len(numbers) == rank else None
    return None


def swaps_last(call: Call, rank: int) -> bool:
    """Whether a call makes the last two axes of a tensor change places, and no others."""
    return rank > 1 and _order(call, rank) == [*range(rank - 2), rank - 1, rank - 2]


def _reshaped(_call: Call, letters: str, before: list[int], after: list[int]) -> str | None:
    """Return the letters above a call that joins or splits axes."""
    if before == after:
        return letters
    at = letters.find("H")
    packed = len(before) == len("BLM") and letters in ("BLHD", "LBHD")
    if packed and [*before[:2], after[2] * after[3]] == [*after[:2], before[2]]:
        return f"{letters[:2]}M"
    if len(before) == len("BHLD") and letters[0] == "F" and before[2:] == after[1:]:
        return f"BH{letters[1:]}"
    if len(before) == len("FLD") and letters[:2] == "BH" and before[1:] == after[2:]:
        return f"F{letters[2:]}"
    if len(before) == len(after) + 1 and at >= 0 and len(after) == len("BHLD"):
        joined = [*before[:at], before[at] * before[at + 1], *before[at + 2 :]]
        return f"{letters[:at]}xy{letters[at + 1 :]}" if joined == after else None
    return None


def _expanded(_call: Call, letters: str, before: list[int], after: list[int]) -> str | None:
    """Return the letters above a call that repeats heads for their group."""
    if len(before) != len(after):
        return None
    grown = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    if not grown and "x" not in letters:
        return letters
    if len(grown) > 1 or (grown and before[grown[0]] != 1):
        return None
    if "x" in letters:
        at = (
            grown[0]
            if grown
            else next(
                (place for place in (letters.find("x"), letters.find("y")) if before[place] == 1),
                -1,
            )
        )
        if at < 0 or letters[at] not in "xy":
            return None
        other = "y" if letters[at] == "x" else "x"
        return letters.replace(letters[at], "G").replace(other, "H")
    return letters if letters[grown[0]] == "H" else None


def _repeated(_call: Call, letters: str, before: list[int], after: list[int]) -> str | None:
    if len(before) != len(after):
        return None
    grown = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    return letters if [letters[at] for at in grown] in ([], ["H"]) else None


def _without_group(call: Call, letters: str, before: list[int], after: list[int]) -> str | None:
    """Return the letters above a call that inserts an axis of size 1 for a group's heads."""
    at = letters.find("G")
    if at < 0 or after[at] != 1 or [*after[:at], *after[at + 1 :]] != before:
        return None
    if call.name == "getitem":
        index = call.arguments[1]
        entries = index if isinstance(index, (tuple, list)) else [index]
        plain = [None, Ellipsis, slice(None), slice(None, None, None)]
        if any(not (entry is None or entry is Ellipsis or entry in plain) for entry in entries):
            return None
    return letters.replace("G", "")


_STEPS: Final = {
    "expand": _expanded,
    "broadcast_to": _expanded,
    "repeat": _repeated,
    "repeat_interleave": _repeated,
    "getitem": _without_group,
    "unsqueeze": _without_group,
}
