"""The evidence of a clause as two tables: what a query may see, and what would move."""

from __future__ import annotations

from torch import Tensor

from .evidence import Evidence
from .svg import Panel, draw


def described(found: Evidence) -> str:
    """The picture of one item and head of an example, the first that shows both kinds of cells."""
    item, head = _shown(found)
    seen = _of(found.seen, item, head)
    instead = seen if found.instead is None else _of(found.instead, item, head)
    sight, motion = (
        _sight(seen, instead),
        _motion(found.moved[item, head], found.judged[item, head]),
    )
    count = f"{int(found.moved.sum())} of {int(found.judged.sum())} judged elements move"
    told = f"{_example(found)}; item {item}, head {head}; {count} in all"
    return draw(
        f"What binds {found.clause.id}",
        f"{found.clause.sentence} Counterfactual: {found.clause.counterfactual}. Example: {told}.",
        [
            Panel(title="What a query may see", rows="query", columns="key", cells=sight),
            Panel(
                title="What the counterfactual moves", rows="row", columns="channel", cells=motion
            ),
        ],
        note=told,
    )


def _of(table: Tensor, item: int, head: int) -> Tensor:
    """One item and head of a table, which may have fewer of them than the answer."""
    return table[min(item, table.shape[0] - 1), min(head, table.shape[1] - 1)]


def _shown(found: Evidence) -> tuple[int, int]:
    """The item and the head to show: where some judged elements move and others stay, if any."""
    items, heads = found.moved.shape[:2]
    places = [(item, head) for item in range(items) for head in range(heads)]

    def told(place: tuple[int, int]) -> int:
        moved, judged = found.moved[place], found.judged[place]
        return int(bool(moved.any())) + int(bool((judged & ~moved).any()) and bool(moved.any()))

    return max(places, key=told)


def _sight(seen: Tensor, instead: Tensor) -> list[str]:
    kinds = {(True, True): "b", (True, False): "r", (False, True): "c", (False, False): "."}
    return [
        "".join(kinds[bool(one), bool(two)] for one, two in zip(*row, strict=True))
        for row in zip(seen.tolist(), instead.tolist(), strict=True)
    ]


def _motion(moved: Tensor, judged: Tensor) -> list[str]:
    return [
        "".join(
            "-" if not looked else "m" if moves else "s" for moves, looked in zip(*row, strict=True)
        )
        for row in zip(moved.tolist(), judged.tolist(), strict=True)
    ]


def _example(found: Evidence) -> str:
    """The problem in a few words."""
    problem = found.problem
    parts = [f"values {problem.values}", f"seed {problem.seed}"]
    if problem.mask is not None:
        parts.insert(0, f"mask {problem.mask.pattern} as {problem.mask.form}")
    if problem.causal:
        parts.insert(0, "causal")
    if problem.window is not None:
        parts.insert(0, f"window {problem.window}")
    return ", ".join(parts)
