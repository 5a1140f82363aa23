"""The weights that a state dict gives for a graph: found by value, else by its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ..._golden import golden
from ...base.parameter_names import role_of
from ...errors import UsageError
from ..weighing import Found
from .naming import named_projections
from .questions import Questions
from .recovering import Recovered
from .references import SPOKEN, Reference, beside, found_in
from .scaling import snapped
from .trying import head_counts


def from_state_dict(
    recovered: Recovered | None, tensors: Mapping[str, Tensor], questions: Questions
) -> Found | None:
    """What a state dict says of a graph; None where its names and the graph's answers say nothing.

    Raises UsageError for a state dict without the projections of the graph.
    """
    widths = {part[0]: questions.shape(questions.role_of(part))[-1] for part in _PARTS}
    named = named_projections(tensors, widths)
    if recovered is None:
        return _by_names(named, questions)
    reference = found_in(recovered.weights, tensors, coarse=questions.coarse)
    if reference.missing:
        reference = _completed(reference, recovered, named)
    return _judged(recovered, _by_role(reference))


def _by_role(reference: Reference) -> Reference:
    """The reference with tensors in the roles that their names say, where the graph swaps them."""
    named = {name: role_of(place) for name, place in reference.where.items()}
    crossed = {name: roles for name, (roles, clear) in named.items() if clear and roles != name}
    if not crossed or set(crossed) != set(crossed.values()):
        return reference
    raw, where = dict(reference.raw), dict(reference.where)
    for name, role in crossed.items():
        raw[role], where[role] = reference.raw[name], reference.where[name]
        raw[f"{role}_bias"] = reference.raw[f"{name}_bias"]
    told = [
        f"the graph projects its {SPOKEN[name]} by {reference.where[name]}, which is called the "
        f"{SPOKEN[role]}'s"
        for name, role in crossed.items()
    ]
    return replace(reference, raw=raw, where=where, differences=(*reference.differences, *told))


_PARTS = ("query", "key", "value")


def _judged(recovered: Recovered, reference: Reference) -> Found:
    weights = reference.weights
    scale = recovered.scale
    if scale is not None:
        scale *= reference.factors["q"] * reference.factors["k"]
        scale = snapped(scale, len(weights.q) // recovered.num_heads, recovered.roundoff)
    notes = [*recovered.assumptions, *reference.differences]
    factor = reference.factors["v"] * reference.factors["o"]
    if abs(factor - 1) > len(SPOKEN) * recovered.roundoff * len(weights.v):
        notes.append(f"the graph's values or answers are {factor:.4g} times the state dict's")
    where = ", ".join(f"{SPOKEN[name]} in {place}" for name, place in reference.where.items())
    return Found(
        weights=weights,
        num_heads=recovered.num_heads,
        num_kv_heads=recovered.num_kv_heads,
        how="state dict",
        scale=scale,
        gauge=recovered.layout,
        assumptions=(f"weights of the state dict: {where}", *notes),
    )


def _completed(
    reference: Reference, recovered: Recovered, named: Mapping[str, Mapping[str, Tensor]]
) -> Reference:
    """The reference with what is missing taken by name; raises UsageError where none fits."""
    prefixes = [prefix for prefix, parts in named.items() if _fits(parts, recovered, reference)]
    near = [
        prefix
        for prefix in prefixes
        if any(place.startswith(prefix) for place in reference.where.values())
    ]
    chosen = near or prefixes
    if len(chosen) != 1:
        missing = ", ".join(
            SPOKEN[name[0]] + name[1:].replace("_", " ") for name in reference.missing
        )
        why = (
            "none of its names says which it is" if not chosen else f"{len(chosen)} could be meant"
        )
        msg = (
            f"the state dict holds nothing equal to the graph's {missing} and {why}: give the "
            "state dict that the graph was exported with"
        )
        raise UsageError(msg)
    parts = named[chosen[0]]
    raw = dict(reference.raw)
    for name in reference.missing:
        own = raw[name]
        taken = parts.get(name)
        raw[name] = None if taken is None or own is None else taken.to(own.dtype).contiguous()
    whole = replace(reference, raw=raw, missing=())
    seen = beside(recovered.weights, whole.weights, "the state dict")
    places = {**{name: chosen[0] or name for name in SPOKEN if name in parts}, **reference.where}
    return replace(whole, where=places, differences=seen.differences)


def _fits(parts: Mapping[str, Tensor], recovered: Recovered, reference: Reference) -> bool:
    """Whether named tensors have the shapes of the graph's own that are missing."""
    own = recovered.weights
    return all(
        name in parts and parts[name].shape == getattr(own, name).shape
        for name in reference.missing
        if not name.endswith("bias")
    )


def _by_names(named: Mapping[str, Mapping[str, Tensor]], questions: Questions) -> Found | None:
    """The one attention that names speak of and that gives the graph's answers, with its heads."""
    fitting = []
    for prefix, parts in named.items():
        counts = head_counts(questions, parts, questions.num_heads)
        if counts is not None:
            fitting.append((prefix, parts, counts))
    if len(fitting) != 1:
        return None
    prefix, parts, (heads, kv_heads) = fitting[0]
    under = f" under {prefix}" if prefix else ""
    tried = f"{heads} heads: so the golden comes nearest to the graph's answers"
    return Found(
        weights=golden.ProjectionWeights(**parts),
        num_heads=heads,
        num_kv_heads=kv_heads,
        how="state dict",
        assumptions=(f"weights of the state dict by its names{under}", tried),
    )
