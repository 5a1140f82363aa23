"""A module's own cache, found by calls behind earlier tokens, and its line in a declaration."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..adapters.calling import Calling
from ..adapters.module_caches import CacheTrial, proposed
from ..declare.module_caches import Cache
from .convention import Convention, adapter_body, header
from .deviations import Investigation
from .implementation import LOAD, Implementation

_BASE: Final = 10000.0


def find_cache(implementation: Implementation, case: Investigation, convention: Convention) -> None:
    """Give the case the first cache with which a sequence in several calls is answered as whole."""
    built = implementation.value
    if convention.inputs != "self" or not convention.layout.batched:
        return
    sizes = case.caller.draw().geometry

    def keywords(count: int) -> dict[str, Any]:
        if not convention.angles:
            return {}
        turning = round(case.point.rotary_fraction * sizes.head_size)
        frequencies = _BASE ** -(torch.arange(0, turning, 2).double() / turning)
        return {"angles": torch.outer(torch.arange(count).double(), frequencies)}

    calling = Calling(inputs="self", function=_call_of(convention))
    trial = CacheTrial(built, calling, sizes.query_size, keywords)
    case.cache = next(proposed(trial), None)
    if case.cache is not None:
        case.findings.add(
            "cache",
            f"a cache of its own: {case.cache.in_words}",
            "a sequence that is given in several calls is answered as in one call, one by one and "
            "in turn with another",
            case.cache.as_json(),
        )


def _call_of(convention: Convention) -> Any:
    lines = [header("call", convention, "module"), *adapter_body(convention, "module")]
    scope: dict[str, Any] = {"torch": torch}
    exec("\n".join(lines), scope)  # noqa: S102 (the text is ours)
    return scope["call"]


def cache_source(cache: Cache, implementation: Implementation) -> tuple[str, list[str]]:
    """The argument of a declaration, and the lines that import what it names."""
    fields = {
        "parameter": cache.parameter,
        "returned": cache.returned,
        "positions": dict(cache.positions),
        "options": dict(cache.options),
        "slots": cache.slots,
    }
    given = [f"{name}={value!r}" for name, value in fields.items() if value not in (None, {})]
    lines: list[str] = []
    if cache.make is not None:
        given.insert(1, f"make={cache.make.__name__}")
        if cache.make is not dict:
            lines = [_import_like(implementation.imports, cache.make.__name__)]
    return f"conformance.Cache({', '.join(given)})", lines


def _import_like(imports: tuple[str, ...], name: str) -> str:
    """The line that imports a class from where the implementation is imported from."""
    line = imports[0]
    if LOAD in line:
        return f"{name} = {line.partition(' = ')[2].rpartition(':')[0]}:{name}')"
    return f"{line.rpartition(' ')[0]} {name}"
