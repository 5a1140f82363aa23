"""Attentions that are unlike their siblings, those of the other layers in equal places."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..base.record import SiteEntry
from ..graphs.weights.attention_core import contraction_of
from ..graphs.weights.wiring import SHAPE_OPERATORS, Node, Wiring, attributes
from .operator_site import WINDOW
from .sites import Sites

# The fewest siblings among which one can be odd; the period of attentions without rotary positions
# in models that leave them out anywhere.
_FEWEST: Final = 3
_WITHOUT_ROTARY: Final = 4
# What changes the numbers of heads; optimisers move and round them as they like.
_CHANGING: Final = frozenset(
    "Add Cos Div LayerNormalization Mul Neg RMSNormalization RotaryEmbedding Sin Sub Tanh".split()
)
# The most nodes between a projection and an attention.
_MOST: Final = 60
_PARTS: Final = ("query", "key", "value", "answer")
# What models have in some layers of a period alone, beside positions.
_MIXED: Final = ("window", "sinks")

Ways = Mapping[int, Mapping[str, str]]


def ways_of(sites: Sites) -> dict[int, dict[str, str]]:
    """How query, key and value come from their projections, and how heads are merged, by index.

    A part is left out where no projection was found near it.
    """
    result: dict[int, dict[str, str]] = {}
    for site in sites.sites:
        wiring = (site.graph or sites.graph).wiring
        parts = {part: _before(wiring, edge.operand) for part, edge in site.edges.items()}
        parts["answer"] = _behind(wiring, site.output)
        result[site.index] = {part: said for part, said in parts.items() if said}
    return result


def _is_product(operator: str) -> bool:
    return any(word in operator for word in ("MatMul", "Gemm", "Conv"))


def _before(wiring: Wiring, name: str) -> str:
    """Return the operators between the nearest products and a tensor in words, "" if unknown."""
    waiting, visited, found = [name], {name}, Counter[str]()
    projected = False
    while waiting:
        node = wiring.producer.get(waiting.pop())
        if node is None or node.op_type in SHAPE_OPERATORS or node.op_type == "Constant":
            continue
        if contraction_of(node) is not None or _is_product(node.op_type):
            projected = True
            continue
        found.update({node.op_type} & _CHANGING)
        fresh = {own for own in node.input if own} - visited
        visited |= fresh
        waiting += fresh
        if len(visited) > _MOST:
            return ""
    counted = [f"{count} {own}" for own, count in sorted(found.items())]
    said = f"from a projection by {', '.join(counted)}" if counted else "as they were projected"
    return said if projected else ""


def _behind(wiring: Wiring, name: str) -> str:
    """Return how heads are turned before the next product, "" if unknown."""
    turns: list[str] = []
    for _ in range(_MOST):
        below = [node for node in wiring.consumers[name] if not _is_of_sizes(wiring, node)]
        if len(below) != 1:
            return ""
        (node,) = below
        if contraction_of(node) is not None or _is_product(node.op_type):
            return f"turned by {' and '.join(turns)}" if turns else "with its heads not turned"
        if node.op_type == "Transpose":
            turns.append(str(list(attributes(node).get("perm", ()))))
        name = node.output[0]
    return ""


def _is_of_sizes(wiring: Wiring, node: Node) -> bool:
    """Whether only the size of a node's result is read."""
    readers = [reader for name in node.output for reader in wiring.consumers[name]]
    return node.op_type in SHAPE_OPERATORS or (
        bool(readers) and all(reader.op_type in SHAPE_OPERATORS for reader in readers)
    )


def unlike_siblings(described: Sequence[SiteEntry], ways: Ways) -> Iterator[str]:
    """Yield a sentence for an attention with what each of its siblings has otherwise.

    Siblings are those whose names differ in numbers alone, as those of layers do.
    """
    families: dict[str, list[SiteEntry]] = {}
    for entry in described:
        place = re.sub(r"[0-9]+", "#", entry["scope"] or entry["nodes"][0])
        families.setdefault(place, []).append(entry)
    for family in families.values():
        odd: dict[tuple[int, str, str], list[str]] = {}
        for what in ("heads", "rule", *_MIXED, *_PARTS):
            said = [_said(entry, what, ways) for entry in family]
            at = odd_one(said)
            if at is not None and all(said) and not _is_usual(what, said, at):
                odd.setdefault((at, said[at], said[1 - min(at, 1)]), []).append(what)
        for (at, own, other), whats in odd.items():
            yield (
                f"attention #{family[at]['index']} is unlike the {len(family) - 1} others of its "
                f"kind in its {' and '.join(whats)}: {own}; there {other}; unless that is meant, "
                "it is a mistake"
            )


def odd_one(values: Sequence[object]) -> int | None:
    """Return the place of the only value unlike all others, which are equal; else None."""
    odd = [at for at, value in enumerate(values) if values.count(value) == 1]
    two = len(set(values)) == len(("one", "others"))
    return odd[0] if len(values) >= _FEWEST and two and len(odd) == 1 else None


def _is_usual(what: str, values: Sequence[object], at: int) -> bool:
    """Whether models are built with such an exception: the last of a period, or a first layer."""
    last = 2 * at + 1 >= len(values) and at + 1 >= _WITHOUT_ROTARY
    return (last and what in (*_MIXED, *_PARTS)) or (at == 0 and what in _MIXED)


def _said(entry: SiteEntry, what: str, ways: Ways) -> str:
    if what in _PARTS:
        return ways.get(entry["index"], {}).get(what, "")
    if what == "sinks":
        return "with sinks" if entry.get("sinks") else "without sinks"
    if what == "window":
        window = (entry.get("options") or {}).get(WINDOW, entry.get("window") or 0)
        return f"a window of {window} keys" if window and window > 0 else "no window"
    if what == "heads":
        heads, groups, size = (entry.get(name) for name in ("heads", "kv_heads", "head_size"))
        return f"{heads} of {size} for {groups} of keys" if heads and size else ""
    known = entry["causal"] is not None and not entry["misplaced"]
    return ("causal" if entry["causal"] else "not causal") if known else ""
