"""Which problems a clause is tried on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .candidate import Candidate
from .problem import Problem
from .recipes import HALF_PRECISION, ORDINARY

Often = Literal["never", "maybe", "always", "offered"]
SPOKEN = {"core": "cores", "layer": "layers", "positions": "position encodings"}
KEY_FORMS = ("keep", "drop", "keep_int", "bias")


@dataclass(frozen=True, kw_only=True)
class Space:
    """A clause's problems, as constraints on what is drawn.

    mask, causal
        Whether a mask is handed over, whether the causal flag is set; "offered" means always when
        the candidate offers it and never otherwise.
    patterns, forms, axes
        The mask's patterns; the forms it may take; letters its shape must contain.
    finite_bias
        Whether the mask is a bias with finite values.
    values
        The value recipes.
    extras
        Whether scale, softcap and window are drawn when they are declared.
    square
        Query and key length are equal ("always"), different ("never"), or either.
    least
        The smallest sizes, by geometry field.
    kinds
        The kinds of candidates that it speaks of.
    """

    mask: Often = "never"
    causal: Often = "never"
    patterns: tuple[str, ...] = ("padding", "random", "sparse", "dense", "single", "full")
    forms: tuple[str, ...] = (*KEY_FORMS, "lengths")
    axes: str = ""
    finite_bias: Often = "never"
    values: tuple[str, ...] = ORDINARY
    extras: Literal["never", "maybe", "scale"] = "never"
    square: Often = "maybe"
    least: tuple[tuple[str, int], ...] = ()
    kinds: tuple[str, ...] = ("core", "layer")

    def options(self, candidate: Candidate) -> list[tuple[str, str]]:
        """The (form, shape) pairs that the candidate accepts and the clause allows."""
        declared = candidate.declaration
        pairs = []
        for form in declared.masks:
            if form not in self.forms or (self.finite_bias == "always" and form != "bias"):
                continue
            shapes = declared.length_shapes if form == "lengths" else declared.mask_shapes
            fits = [shape for shape in shapes if all(axis in shape for axis in self.axes)]
            pairs.extend((form, shape) for shape in fits)
        return pairs

    def recipes(self, dtype: str) -> tuple[str, ...]:
        """The value recipes for a dtype: half precision has no room for the extreme ones."""
        if dtype in ("float32", "float64"):
            return self.values
        return tuple(name for name in self.values if name in HALF_PRECISION) or ("normal",)

    def not_applicable(self, candidate: Candidate) -> str:
        """Why no problem of this space can be put to a candidate, or ""."""
        declared = candidate.declaration
        if candidate.kind not in self.kinds:
            return f"it speaks of {' and '.join(SPOKEN[kind] for kind in self.kinds)}"
        if self.causal == "always" and declared.causal is None:
            return "no causal flag is declared"
        if self.mask == "always" and not self.options(candidate):
            return self._no_mask(candidate)
        if self.square == "never" and not can_cross(candidate):
            return "query and key have the same length"
        sizes = declared.pins.sizes
        for name, least in self.least:
            if name == "batch" and least > 1 and not declared.batched:
                return "it takes one item without a batch axis"
            if name in sizes and max(sizes[name]) < least:
                return f"its geometry pins {name} below {least}"
        return ""

    def _no_mask(self, candidate: Candidate) -> str:
        declared = candidate.declaration.masks
        if not declared:
            return "no mask is declared"
        if self.finite_bias == "always" and "bias" not in declared:
            return "no additive bias is declared"
        if not any(form in self.forms for form in declared):
            return f"a mask handed over as {', '.join(declared)} cannot express it"
        return f"no declared mask shape has the axes {', '.join(self.axes)}"

    def admits(self, problem: Problem, candidate: Candidate) -> bool:
        """Whether a problem (a reduced one) still belongs to the space."""
        sizes = problem.geometry
        if any(getattr(sizes, name) < least for name, least in self.least):
            return False
        equal = sizes.query_length == sizes.key_length
        if (self.square == "always" and not equal) or (self.square == "never" and equal):
            return False
        if self.mask == "always" and problem.mask is None:
            return False
        return can_cross(candidate) or equal


def can_cross(candidate: Candidate) -> bool:
    """Whether query and key may have different lengths."""
    declared = candidate.declaration
    pinned = declared.pins.equal_to.get("key_length") or declared.pins.equal_to.get("query_length")
    if declared.inputs == "self" or pinned in ("query_length", "key_length"):
        return False
    return candidate.kind == "core" or "cross" in declared.features
