"""The clauses as plain data, for ``conformance list`` and ``conformance explain``."""

from __future__ import annotations

from typing import Any, Final

from ..clauses.registry import Clause, all_clauses
from ..errors import UsageError
from ..session.order import suggestion

_SIZES: Final = {
    "batch": "items",
    "num_heads": "heads",
    "num_kv_heads": "key/value heads",
    "query_length": "queries",
    "key_length": "keys",
    "head_size": "channels a head",
    "value_head_size": "value channels a head",
}
_KINDS: Final = {
    "core": "core",
    "layer": "layer",
    "positions": "position encoding",
    "model": "whole model",
}


def applies(clause: Clause) -> str:
    """When the clause applies, in words drawn from its space and its requirements."""
    space = clause.space
    parts = [" or ".join(f"to a {_KINDS[kind]}" for kind in _KINDS if kind in space.kinds)]
    if space.mask == "always":
        forms = "bias with finite values" if space.finite_bias == "always" else _or(space.forms)
        parts.append(f"that takes a mask as {forms}")
    if space.axes:
        parts.append(f"in a shape with the axes {', '.join(space.axes)}")
    if space.causal == "always":
        parts.append("that declares causal")
    if space.square == "never":
        parts.append("whose query and key lengths may differ")
    parts.extend(f"with at least {least} {_SIZES.get(name, name)}" for name, least in space.least)
    if clause.needs_golden:
        parts.append("whose golden answer is known")
    parts.extend(_documented(requirement) for requirement in clause.requirements)
    return ", ".join(part for part in parts if part)


def _or(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _documented(requirement: object) -> str:
    """The first line of a requirement's docstring, where it has one."""
    text = (requirement.__doc__ or "").strip()
    first = text.splitlines()[0].rstrip(".") if text else ""
    return first[:1].lower() + first[1:]


def clause_entries() -> list[dict[str, Any]]:
    """Every clause, in the order in which a run takes them."""
    return [_entry(clause) for clause in all_clauses()]


def clause_entry(slug: str) -> dict[str, Any]:
    """One clause; raises UsageError that suggests a near slug when there is none of that name."""
    clauses = {clause.id: clause for clause in all_clauses()}
    if slug not in clauses:
        msg = f"there is no clause {slug!r}{suggestion(slug, clauses)}"
        raise UsageError(msg)
    return _entry(clauses[slug])


def _entry(clause: Clause) -> dict[str, Any]:
    return {
        "id": clause.id,
        "family": clause.family,
        "level": clause.level_text,
        "sentence": clause.sentence,
        "source": clause.source,
        "applies": applies(clause),
        "origin": clause.origin,
        "counterfactual": clause.counterfactual,
    }
