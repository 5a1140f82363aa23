"""Which problems a clause is tried on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..base.geometry import COUNTED, FIELDS, LENGTHS, PROBE, Geometry, grouped
from ..base.results import Replaceable
from ..declare.candidate import Candidate
from ..declare.declaration import PADDED_QUERIES, SEQUENCES, STRUCTURED_FORMS
from .problem import Problem
from .recipes import HALF_PRECISION, ORDINARY

Often = Literal["never", "maybe", "always", "offered"]
Edges = Literal["sizes", "combinations", "lengths", "tiles"]
Purpose = Literal["answer", "gradients", "operator"]
# The recipe whose projections do not round.
EXACT = "plain-projections"
SPOKEN = {
    "core": "cores",
    "layer": "layers",
    "positions": "position encodings",
    "model": "whole models",
}
ANY_PATTERN = (
    "padding",
    "random",
    "sparse",
    "dense",
    "single",
    "full",
    "mixed",
    "one-hidden",
    "left-padding",
)
KEY_FORMS = ("keep", "drop", "keep_int", "bias")
# Every form that hides keys, for clauses that leave the table as it is drawn.
ANY_FORM = (
    *KEY_FORMS,
    "lengths",
    *(form for form in STRUCTURED_FORMS if form != PADDED_QUERIES),
)
WIDTHS = ("query_size", "key_size", "value_size", "output_size")
# The largest preferred length where queries and keys have one length.
LONGEST_SQUARE = 129


@dataclass(frozen=True, kw_only=True)
class Space(Replaceable):
    """A clause's problems, as constraints on the draw.

    mask, causal
        Whether a mask is handed over, whether the causal flag is set; "offered" means always when
        the candidate offers it and never otherwise. Candidates that are always causal get causal
        problems from every space.
    patterns, forms, axes
        The mask's patterns; its possible forms; letters its shape must contain.
    finite_bias
        Whether the mask is a bias with finite values.
    values
        The value recipes.
    extras
        Whether scale, softcap and window are drawn when they are declared.
    grouped
        Whether several heads share each key/value head.
    square
        Query and key length are equal ("always"), different ("never"), or either.
    equal
        Further pairs of geometry fields of equal size.
    least
        The smallest sizes, by geometry field; cores have no widths.
    preferred
        Sizes to reach where the declaration leaves room for them.
    share
        The drawn part of a profile's examples: less where they are large.
    edges
        The hand-picked problems: of all "sizes", "combinations" of all declared options of a
        candidate, long "lengths", or the edges of large "tiles" where gradients are judged.
    purpose
        The use of combinations: the "answer", "gradients", or the behaviour of an "operator" under
        each option.
    kinds
        The kinds of candidates in the space.
    """

    mask: Often = "never"
    causal: Often = "never"
    patterns: tuple[str, ...] = ANY_PATTERN
    forms: tuple[str, ...] = (*KEY_FORMS, "lengths")
    axes: str = ""
    finite_bias: Often = "never"
    values: tuple[str, ...] = ORDINARY
    extras: Literal["never", "maybe", "scale"] = "never"
    grouped: bool = False
    square: Often = "maybe"
    equal: tuple[tuple[str, str], ...] = ()
    least: tuple[tuple[str, int], ...] = ()
    preferred: tuple[tuple[str, int], ...] = ()
    share: float = 1.0
    edges: Edges = "sizes"
    purpose: Purpose = "answer"
    kinds: tuple[str, ...] = ("core", "layer")

    @property
    def gives_both(self) -> bool:
        """Whether the space is about the causal flag and a mask in one call."""
        return self.causal == "always" and self.mask == "always"

    def options(self, candidate: Candidate) -> list[tuple[str, str]]:
        """The (form, shape) pairs that the candidate accepts and the clause allows."""
        declared = candidate.declaration
        pairs: list[tuple[str, str]] = []
        for form in declared.masks:
            if not self._takes(form):
                continue
            shapes = declared.shapes_of(form)
            fits = [shape for shape in shapes if all(axis in shape for axis in self.axes)]
            pairs.extend((form, shape) for shape in fits)
        return pairs

    def _takes(self, form: str) -> bool:
        """Whether masks may have a form.

        Lengths of sequences come along wherever lengths may, but a clause about masks must name
        them: hidden places of a length are not even handed over.
        """
        if form == SEQUENCES and self.mask != "always":
            return "lengths" in self.forms and self.finite_bias != "always"
        return form in self.forms and (self.finite_bias != "always" or form == "bias")

    def recipes(self, dtype: str, candidate: Candidate | None = None) -> tuple[str, ...]:
        """The value recipes for a dtype.

        Half precision and 8-bit integers cannot represent the extreme ones. Where weights stay
        even, projections that do not round come first.
        """
        precise = candidate is None or not candidate.declaration.precision
        if dtype in ("float32", "float64") and precise:
            return self.values
        values = tuple(name for name in self.values if name in HALF_PRECISION) or ("normal",)
        if candidate is None or not stays_even(candidate) or "normal" not in values:
            return values
        return tuple(dict.fromkeys((EXACT, *values)))

    def not_applicable(self, candidate: Candidate) -> str:
        """Why a candidate cannot be called with any problem of this space, or ""."""
        declared = candidate.declaration
        if candidate.kind not in self.kinds:
            return f"it speaks of {' and '.join(SPOKEN[kind] for kind in self.kinds)}"
        if self.causal == "always" and declared.causal is None:
            return "no causal flag is declared"
        if self.mask == "always" and not self.options(candidate):
            return self._no_mask(candidate)
        return self._equal_sizes(candidate) or self._too_small(candidate)

    def _equal_sizes(self, candidate: Candidate) -> str:
        """The reason why sizes that must differ are always equal, or ""."""
        if self.square == "never" and not _can_differ(candidate):
            return "query and key have the same length"
        if self.grouped and not can_share(candidate):
            return "every head has keys and values of its own"
        return ""

    def _too_small(self, candidate: Candidate) -> str:
        """The pinned size that keeps the candidate out of the space, or ""."""
        declared = candidate.declaration
        for group in tied_fields(candidate, self):
            least, allowed = least_size(group, self), allowed_sizes(group, candidate)
            largest = allowed[-1:] if isinstance(allowed, range) else allowed
            if allowed is None or (largest and max(largest) >= least):
                continue
            if group == ("batch",) and not declared.batched:
                return "it takes one item without a batch axis"
            pinned = [name for name in group if name in declared.pins.sizes]
            if not allowed:
                lengths = "key_length" in group
                names = "query and key" if lengths else " and ".join(group)
                sizes = "lengths" if lengths else "sizes"
                return f"its geometry pins {names} to different {sizes}"
            limit = "its geometry pins " + pinned[0] if pinned else "its longest length is"
            return f"{limit} below {least}"
        return self._built_too_small(candidate)

    def _built_too_small(self, candidate: Candidate) -> str:
        """The size kept below the needed size by a geometry function, as a reason, or ""."""
        build = candidate.declaration.pins.build
        if build is None:
            return ""
        ample = 12 * max((least for _, least in self.least), default=1)
        large = PROBE.replace(**dict.fromkeys(FIELDS, ample))
        built = [build(probe) for probe in (PROBE, large)]
        absent = WIDTHS if candidate.kind == "core" else ()
        for name, least in self.least:
            if name not in absent and all(getattr(sizes, name) < least for sizes in built):
                return f"its geometry makes {name} smaller than {least}"
        return ""

    def _no_mask(self, candidate: Candidate) -> str:
        declared = candidate.declaration.masks
        if not declared or (declared == (SEQUENCES,) and SEQUENCES not in self.forms):
            return "no mask is declared"
        if self.finite_bias == "always" and "bias" not in declared:
            return "no additive bias is declared"
        if not any(form in self.forms for form in declared):
            return f"a mask handed over as {', '.join(declared)} cannot express it"
        return f"no declared mask shape has the axes {', '.join(self.axes)}"

    def _shows(self, problem: Problem) -> bool:
        """Whether a problem has the required mask, causality and groups of the space."""
        if self.grouped and problem.geometry.num_heads == problem.geometry.num_kv_heads:
            return False
        if self.causal == "always" and not problem.causal:
            return False
        if self.mask != "always":
            return True
        plan = problem.mask
        return plan is not None and (plan.finite_bias or self.finite_bias != "always")

    def _ties(self, candidate: Candidate) -> list[tuple[str, str]]:
        """The pairs of fields of equal size; a core has no widths."""
        absent = WIDTHS if candidate.kind == "core" else ()
        return [pair for pair in self.equal if not set(pair) & set(absent)]

    def admits(self, problem: Problem, candidate: Candidate) -> bool:
        """Whether a problem (a reduced one) still belongs to the space."""
        declared = candidate.declaration
        flagless = declared.always_causal and not problem.causal
        if flagless or problem.values not in self.recipes(problem.dtype, candidate):
            return False
        sizes = problem.geometry
        absent = WIDTHS if candidate.kind == "core" else ()
        small = any(
            getattr(sizes, name) < least for name, least in self.least if name not in absent
        )
        if small or not _obeys_pins(candidate, sizes):
            return False
        equal = sizes.query_length == sizes.key_length
        if (self.square == "always" and not equal) or (self.square == "never" and equal):
            return False
        if not self._shows(problem):
            return False
        if any(
            getattr(sizes, name) != getattr(sizes, other) for name, other in self._ties(candidate)
        ):
            return False
        return can_cross(candidate) or equal


def _obeys_pins(candidate: Candidate, sizes: Geometry) -> bool:
    """Whether a candidate takes sizes, as far as numbers say; its own function may make others."""
    declared = candidate.declaration
    if declared.pins.build is None:
        names = {"layer": FIELDS, "core": FIELDS[: -len(WIDTHS)]}.get(candidate.kind, COUNTED)
        if not declared.pins.obeyed(sizes, names):
            return False
    longest = max(sizes.query_length, sizes.key_length)
    return declared.max_length is None or longest <= declared.max_length


def tied_fields(candidate: Candidate, space: Space) -> tuple[tuple[str, ...], ...]:
    """Every field of a geometry, in groups of fields that must have equal sizes."""
    declared = candidate.declaration
    ties = list(declared.pins.ties)
    if not can_cross(candidate) or space.square == "always":
        ties.append(("key_length", "query_length"))
    if "gqa" not in declared.features and not _pins_groups(candidate):
        ties.append(("num_heads", "num_kv_heads"))
    if declared.inputs != "separate":
        ties.append(("key_size", "value_size"))
    if declared.inputs == "self":
        ties.append(("key_size", "query_size"))
    ties.extend(space.equal)
    if candidate.kind == "positions":
        ties.extend(("key_size", name) for name in WIDTHS)
    return grouped(tuple(ties))


def _pins_groups(candidate: Candidate) -> bool:
    pins = candidate.declaration.pins
    return "num_kv_heads" in pins.sizes or "num_kv_heads" in pins.equal_to


def stays_even(candidate: Candidate) -> bool:
    """Whether a layer normalises its heads: no values sharpen the decisions of its weights.

    In half precision the rounding of projections hides much of the effect of even weights.
    """
    return candidate.draws_weights and candidate.declaration.semantics.qk_norm != "none"


def can_share(candidate: Candidate) -> bool:
    """Whether there may be fewer key/value heads than heads."""
    groups = {name: group for group in tied_fields(candidate, Space()) for name in group}
    heads, kv_heads = groups["num_heads"], groups["num_kv_heads"]
    if heads == kv_heads:
        return False
    build = candidate.declaration.pins.build
    if build is not None:
        built = [build(PROBE.replace(num_heads=n, num_kv_heads=k)) for n, k in ((4, 2), (2, 1))]
        return any(sizes.num_kv_heads < sizes.num_heads for sizes in built)
    many, few = allowed_sizes(heads, candidate), allowed_sizes(kv_heads, candidate)
    if many is None:
        return True
    return any(n > k and n % k == 0 for n in many for k in few or range(1, n))


def least_size(group: tuple[str, ...], space: Space) -> int:
    """The smallest size that a space leaves to a group of equal fields."""
    return max((least for name, least in space.least if name in group), default=1)


def wanted_size(group: tuple[str, ...], space: Space) -> int:
    """The size that a group of equal fields should reach if possible."""
    preferred = max((size for name, size in space.preferred if name in group), default=1)
    if set(LENGTHS) <= set(group):  # thousands of keys of as many queries are for other clauses
        preferred = min(preferred, LONGEST_SQUARE)
    return max(preferred, least_size(group, space))


def allowed_sizes(group: tuple[str, ...], candidate: Candidate) -> Sequence[int] | None:
    """The sizes that a declaration leaves to a group of equal fields; None when none is pinned.

    All sizes up to a longest are a range from 1 on.
    """
    declared = candidate.declaration
    if "batch" in group and not declared.batched:
        return (1,)
    allowed, longest = declared.pins.allowed(group), declared.max_length
    if longest is None or not set(LENGTHS) & set(group):
        return allowed
    within = range(1, longest + 1)
    return within if allowed is None else tuple(size for size in allowed if size in within)


def can_cross(candidate: Candidate) -> bool:
    """Whether query and key may have different lengths."""
    declared = candidate.declaration
    if declared.inputs == "self" or declared.rotary_tables or declared.pins.ties_lengths:
        return False
    return candidate.kind == "core" or "cross" in declared.features


def _can_differ(candidate: Candidate) -> bool:
    """Whether a call can have queries and keys of different lengths."""
    lengths = [allowed_sizes((name,), candidate) or (1, 2) for name in LENGTHS]
    some = [sizes[:2] if isinstance(sizes, range) else sizes for sizes in lengths]
    return can_cross(candidate) and len({size for sizes in some for size in sizes}) > 1


def is_fixed(candidate: Candidate, name: str) -> bool:
    """Whether the declared geometry decides the batch or a length, beyond a tie of both lengths."""
    pins = candidate.declaration.pins
    together = LENGTHS if name in LENGTHS and not can_cross(candidate) else (name,)
    for field, other in pins.equal_to.items():
        if name in (field, other) and {field, other} != set(LENGTHS):
            return True
    if set(together) & set(pins.sizes):
        return True
    if pins.build is None:
        return False
    probes = [PROBE.replace(**dict.fromkeys(together, size)) for size in (2, 3, 5)]
    return len({getattr(pins.build(probe), name) for probe in probes}) == 1


def admits_lengths(candidate: Candidate, geometry: Geometry) -> bool:
    """Whether a candidate can be called with the batch and the lengths of a geometry."""
    declared = candidate.declaration
    longest = max(geometry.query_length, geometry.key_length)
    if declared.max_length is not None and longest > declared.max_length:
        return False
    return declared.pins.admit_lengths(geometry)


# Problems with every option that a candidate declares, without and with finite biases.
OPTIONS: Final = Space(
    mask="maybe", causal="maybe", extras="maybe", forms=(*ANY_FORM, PADDED_QUERIES)
)
EVERY_OPTION: Final = OPTIONS.replace(finite_bias="maybe")
