"""What ``conformance identify`` says of things whose truth is known, as the table of its docs page.

``python benchmarks/identification.py`` prints the rows that docs/identification.md holds; a test
compares them, so that the page cannot go stale. ``--seconds`` adds how long each took.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from torch import nn

import candidates.broken
from candidates.broken import _kit
from conformance.identification.implementation import implementation_at, implementation_of
from conformance.identification.job import identify

COLUMNS: Final = (
    "kind, inputs, axes",
    "masks",
    "empty rows",
    "hidden keys win",
    "causal",
    "scale",
    "heads",
)
VARIANTS: Final = {
    "document A": "candidates.token_attention:TokenAttention",
    "document B1": "candidates.per_head_matrices:per_head_matrices",
    "document B2": "candidates.unbatched_attention:UnbatchedAttention",
    "document C": "candidates.valid_length_attention:ValidLengthAttention",
    "document C, positions": "candidates.sinusoidal_positions:sinusoidal_positions",
    "document D": "candidates.wide_head_attention:WideHeadAttention",
    "document E": "candidates.masked_attention:MaskedAttention",
    "F.scaled_dot_product_attention": "torch.nn.functional:scaled_dot_product_attention",
}
MODULES: Final = {
    "nn.MultiheadAttention": lambda: nn.MultiheadAttention(12, 3),
    "nn.MultiheadAttention, batch_first": lambda: nn.MultiheadAttention(12, 3, batch_first=True),
}
MISTAKES: Final = (
    "Unscaled",
    "DividedByHeadSize",
    "SoftmaxOverQueries",
    "PolarityInverted",
    "LogitsMultiplied",
    "MinusTenThousandAdded",
    "FillMinusMillion",
    "CausalIgnored",
    "TopLeftForBottomRight",
    "MaskOrCausal",
    "EmptyRowIsNan",
    "GroupsTiled",
)


def names() -> list[str]:
    """The rows of the table."""
    return [*VARIANTS, *MODULES, *MISTAKES]


def record_of(name: str) -> dict[str, Any]:
    """The record of one row, made in this process."""
    if name in VARIANTS:
        thing = implementation_at(VARIANTS[name])
    else:
        value = MODULES[name]() if name in MODULES else _mistake(name)
        thing = implementation_of(value, target=name, name="it", imports=(), expression="it")
    return identify(thing, None, lambda _step, _what: None)


def _mistake(name: str) -> Any:
    for found in pkgutil.iter_modules(candidates.broken.__path__):
        importlib.import_module(f"{candidates.broken.__name__}.{found.name}")
    return next(one.candidate for one in _kit.DECLARED if one.name == name)


def row(name: str, record: dict[str, Any]) -> str:
    """One line of the table, in the words of a declaration."""
    values = {fact["fact"]: fact["value"] for fact in record["facts"]}
    cells = [name, _kind(values), _masks(record), _empty_rows(values), _leak(values)]
    cells += [_causal(values), _scale(values), _heads(values)]
    return f"| {' | '.join(cells)} |"


def _kind(values: dict[str, Any]) -> str:
    kind = values["kind"]
    if kind["kind"] == "positions":
        return f"{kind['position']} positions up to {values['sizes']['max_length']}"
    return f"{kind['kind']}, {kind['inputs']}, {values['axes']}"


def _masks(record: dict[str, Any]) -> str:
    """Each parameter with its forms, and what it does where that is not to hide."""
    forms: dict[str, list[str]] = {}
    told = [
        fact["value"]
        for fact in record["facts"]
        if fact["fact"].startswith("mask ") and isinstance(fact["value"], dict)
    ]
    biases = [value["parameter"] for value in told if value["form"] == "bias"]
    for value in told:
        # What is added is a bias: that a boolean one is added, too, says nothing new.
        if value.get("operation") != "add-to-kept" or value["parameter"] not in biases:
            exact = value.get("operation") in ("replace", "add")
            does = value["form"] if exact else f"{value['form']}: {value.get('operation')}"
            said = "changes nothing" if value["form"] is None else does
            forms.setdefault(value["parameter"], []).append(said)
    return "; ".join(f"{name} ({', '.join(dict.fromkeys(said))})" for name, said in forms.items())


def _empty_rows(values: dict[str, Any]) -> str:
    return str(values.get("empty rows") or "")


def _leak(values: dict[str, Any]) -> str:
    """From which magnitude on hidden keys win, and by which fill."""
    leak = values.get("hidden keys")
    if leak is None:
        return "never" if "hidden keys" in values else ""
    return f"{leak['operation']} {leak['fill']:g}"


def _causal(values: dict[str, Any]) -> str:
    flag = values.get("causal") or {}
    if not flag.get("alignment"):
        return ""
    offset = f", offset {flag['offset']}" if flag.get("offset") else ""
    both = values.get("causal and mask")
    together = "" if both in (None, "both") else f"; with a mask: {_combined(both)}"
    return f"{flag['flag']}: {flag['alignment']}{offset}{together}"


def _combined(both: Any) -> str:
    if isinstance(both, str):
        return both
    return ", ".join(f"{form} {how}" for form, how in both.items())


def _scale(values: dict[str, Any]) -> str:
    if "scale" not in values:
        return ""
    axis = values["softmax"]
    return f"{values['scale']['rule']}{'' if axis == 'key' else f', softmax over {axis}'}"


def _heads(values: dict[str, Any]) -> str:
    heads, groups = values.get("heads"), values.get("groups")
    said = [] if heads is None else [f"split {heads['split']}, merge {heads['merge']}"]
    return "; ".join([*said, *([f"groups: {groups}"] if groups else [])])


def table() -> Iterator[str]:
    """The whole table, line by line."""
    yield f"| | {' | '.join(COLUMNS)} |"
    yield f"|---{'|---' * len(COLUMNS)}|"
    for name in names():
        yield row(name, record_of(name))


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", action="store_true", help="how long each row took")
    timed = parser.parse_args(arguments).seconds
    if not timed:
        print("\n".join(table()))
        return 0
    for name in names():
        started = time.perf_counter()
        record_of(name)
        print(f"{name}: {time.perf_counter() - started:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
