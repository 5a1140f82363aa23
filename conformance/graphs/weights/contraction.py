"""Products of two tensors over a common axis: MatMul and its kin, read as one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .unreadable import UnreadableError
from .wiring import Node, attributes

_FUSED: Final = frozenset({"FusedMatMul", "TransposeMatMul"})


@dataclass(frozen=True)
class Contraction:
    """A product of two tensors, its axes as letters: ``...qd,...dk->...qk``.

    letters
        Those of the two operands and of the output, without axes that lead in all of them.
    factor
        What the product is multiplied by.
    """

    operands: tuple[str, str]
    output: str
    letters: tuple[str, str, str]
    factor: float = 1.0

    def index_of(self, name: str) -> int:
        """Which operand a tensor is."""
        return self.operands.index(name)

    def shared_axis(self, index: int) -> int:
        """The axis of an operand that is summed over."""
        mine, other, output = self.letters[index], self.letters[1 - index], self.letters[2]
        return _only(mine, [x for x in mine if x in other and x not in output])

    def own_axis(self, index: int) -> int:
        """The axis of an operand that the other has not."""
        mine, other = self.letters[index], self.letters[1 - index]
        return _only(mine, [x for x in mine if x not in other])

    def place(self, index: int) -> int:
        """Where in the output the own axis of an operand is."""
        own = self.letters[index][self.own_axis(index)]
        return self.letters[2].index(own) - len(self.letters[2])


def contraction_of(node: Node) -> Contraction | None:
    """A node as a contraction of its first two inputs, None when it is none."""
    if node.op_type == "Einsum":
        return _einsum(node)
    letters = ""
    values = attributes(node)
    if node.op_type in ("MatMul", "MatMulInteger"):
        letters = "qd dk"
    elif node.op_type in _FUSED or node.op_type == "Gemm":
        left = "dq" if values.get("transA") else "qd"
        right = "kd" if values.get("transB") else "dk"
        letters = f"{left} {right}"
    if not letters:
        return None
    left, right = letters.split()
    return Contraction(
        (node.input[0], node.input[1]),
        node.output[0],
        (left, right, "qk"),
        values.get("alpha", 1.0),
    )


def _einsum(node: Node) -> Contraction | None:
    equation = attributes(node)["equation"].replace(" ", "").replace("...", "")
    if len(node.input) != len(("left", "right")) or "->" not in equation:
        return None
    inputs, output = equation.split("->")
    left, right = inputs.split(",")
    return Contraction((node.input[0], node.input[1]), node.output[0], (left, right, output))


def _only(letters: str, found: list[str]) -> int:
    """The position of one letter, counted from the end; an ellipsis may come before it."""
    if len(found) != 1:
        msg = f"{letters} has {len(found)} axes where one is needed"
        raise UnreadableError(msg)
    return letters.index(found[0]) - len(letters)
