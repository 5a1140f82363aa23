"""The shapes of a graph's inputs under a plan: the file's sizes where it fixes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..header import Port
from .sizes import Sizes

Known = Mapping[str, int]


class ContradictionError(Exception):
    """The file says otherwise than a plan."""


def known_letters(tensors: Sequence[Port], layout: str, lead: int, sizes: Sizes) -> Known:
    """The size of each letter; raises ContradictionError."""
    others = [port for at, port in enumerate(tensors) if at != lead]
    batch = _common("B", tensors, layout, sizes.batch)
    query = _common("L", tensors[lead : lead + 1], layout, sizes.query_length)
    key = _common("L", others, layout, sizes.key_length) if others else query
    heads = _first("H", tensors, layout, sizes.heads)
    known = {"B": batch, "Q": query, "K": key, "H": heads, "F": batch * heads, "1": 1}
    return known | {letter: _first(letter, tensors, layout, sizes.width) for letter in "DE"}


def admits(port: Port, axes: str, known: Known) -> bool:
    """Whether the sizes that the file fixes can be those of a mask's letters."""
    try:
        fitted(port, axes, known, {}, strict=True)
    except ContradictionError:
        return False
    return True


def fitted(
    port: Port, axes: str, known: Known, symbols: dict[str, int], *, strict: bool = False
) -> tuple[int, ...]:
    """The shape of one input; raises ContradictionError.

    symbols
        The sizes that names of axes have been given; extended.
    strict
        Sizes that the file fixes must be those of the letters, but for heads.
    """
    shape: list[int] = []
    for at, letter in enumerate(axes):
        size, wanted = _axis(port, at), known[letter]
        if isinstance(size, int):
            free = letter == "H" or (letter == "F" and size % known["B"] == 0)
            if strict and size != wanted and not (free and size > 1):
                raise ContradictionError
        elif isinstance(size, str) and symbols.setdefault(size, wanted) != wanted:
            raise ContradictionError
        shape.append(size if isinstance(size, int) else wanted)
    return tuple(shape)


def filled(port: Port, known: Mapping[int, int]) -> tuple[int, ...]:
    """The shape of an input of which some axes are known, the other open ones being 1."""
    return tuple(
        size if isinstance(size, int) else known.get(at, 1)
        for at, size in enumerate(port.shape or ())
    )


def _common(letter: str, ports: Sequence[Port], layout: str, usual: int) -> int:
    """The one size of an axis of several inputs; raises ContradictionError for several."""
    fixed = set(_fixed(letter, ports, layout))
    if len(fixed) > 1:
        raise ContradictionError
    return fixed.pop() if fixed else usual


def _first(letter: str, ports: Sequence[Port], layout: str, usual: int) -> int:
    """A size for axes of heads or channels that the file leaves open: that of another input."""
    fixed = _fixed(letter, ports, layout)
    return fixed[0] if fixed else usual


def _fixed(letter: str, ports: Sequence[Port], layout: str) -> list[int]:
    if letter not in layout:
        return []
    at = layout.index(letter)
    return [size for port in ports if isinstance(size := _axis(port, at), int)]


def _axis(port: Port, at: int) -> int | str | None:
    return None if port.shape is None else port.shape[at]
