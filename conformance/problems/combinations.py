"""Problems in which the options, sizes and memory layouts of a candidate meet, two or three each.

Random problems rarely show a mistake that needs several options at once. Nearly every mistake of
this kind needs two or three options (Kuhn, Wallace & Gallo 2004), few enough to try all. The
parameters, their values and the impossible combinations follow from the declaration; the rows
are a covering array of the parameters, and each row is one problem.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..base.geometry import Geometry
from ..declare.candidate import Candidate
from ..declare.declaration import SEQUENCES
from .caching import CACHED, NO_CACHE, counts_from_first, draws_cache
from .covering import Covering, CoveringParameter, Model, Rule, alone, cover, first_row
from .fitting import causal_flag, either_or, fitted_geometry
from .mask_patterns import NO_QUERIES
from .materialise import structure
from .problem import MaskPlan, Problem
from .space import WIDTHS, Space
from .structured_masks import STRUCTURED_MASKS

Fields = dict[str, Any]
NONE: Final = "none"
# Sizes that differ from each other, so that none stands in for another.
BASE: Final = Geometry(
    batch=2,
    num_heads=4,
    num_kv_heads=4,
    query_length=5,
    key_length=7,
    head_size=3,
    value_head_size=6,
    query_size=11,
    key_size=13,
    value_size=9,
    output_size=10,
)
HEADS: Final = ("num_heads", "num_kv_heads")
CHANNELS: Final = ("head_size", "value_head_size")
# Sizes that are special: one of each, all alike (as many items, heads, queries and keys), past the
# edges of tiles and of vector units, in groups. The first is the plainest.
SIZES: Final[dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]]] = {
    "batch": (("batch",), ((2,), (1,), (4,))),
    "heads": (HEADS, ((4, 4), (1, 1), (4, 2), (4, 1), (6, 2))),
    "queries": (("query_length",), ((5,), (1,), (4,), (17,))),
    "keys": (("key_length",), ((7,), (1,), (4,), (33,))),
    "head size": (CHANNELS, ((3, 6), (1, 1), (4, 4), (59, 20))),
    "widths": (WIDTHS, ((11, 13, 9, 10), (12, 12, 12, 12))),
}
# The kinds with two sizes where each new size is compiled; all other kinds have one.
_FEW: Final = ("heads", "queries", "keys")
SCALES: Final = (None, 0.3, 1.0)
SOFTCAPS: Final = (None, 1.5, 30.0)
WINDOWS: Final = (None, (2, 1), (1, -1), (-1, 1), (0, 0), (3, 0))
# How much of the keys is cached: see caching.CACHED.
CACHES: Final = (NO_CACHE, "one key", "half of the keys", "all keys but one")
EMPTY: Final = "empty-rows"
PATTERNS: Final = ("random", "dense", "padding", "left-padding", "full", EMPTY)
# The patterns that lengths, and sequences, can express.
OF_LENGTHS: Final = ("padding", "full", EMPTY)
OF_SEQUENCES: Final = ("padding", "full", NO_QUERIES)
MEMORY: Final = (
    *("contiguous", "channels-first", "tokens-first", "every-other", "sliced-tokens"),
    *("odd-rows", "mixed", "expanded", "expanded-heads"),
)
MASK_MEMORY: Final = ("contiguous", "every-other", "channels-first", "expanded")
APART, KEY_IS_VALUE, ALL_ONE = "three", "key is value", "one"
# A probability too small to drop a weight, or to change a weight by the factor that makes up for
# it.
HARDLY: Final = 2.0**-60
FINITE_BIAS: Final = "finite bias"
# Options that often send a call down another path, where mistakes of the usual path hide.
OTHER_PATHS: Final = ("weights returned", "dropout", "memory", "mask memory", "tensors")


@dataclass(frozen=True, kw_only=True)
class Combinations:
    """The problems of a model, one per row, and the number of combinations in them.

    ``model`` has the parameters with two values or more.
    """

    problems: tuple[Problem, ...]
    model: Model
    covering: Covering
    strength: int

    def coverage(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The coverage of the rows with the given numbers, as plain data."""
        rows = self.covering
        never = rows.impossible.items()
        return {
            "strength": self.strength,
            "parameters": {one.name: list(one.values) for one in self.model.parameters},
            "combinations": rows.combinations,
            "covered": sum(rows.fresh[number] for number in numbers if number < len(rows.fresh)),
            "impossible": [{"reason": why, "combinations": count} for why, count in never],
        }


def combinations(
    candidate: Candidate, space: Space, *, dtype: str, strength: int = 2
) -> Combinations:
    """Every problem in which values of as many parameters meet as the strength says."""
    made = _Parameters(candidate, space)
    strength = 1 if space.purpose == "operator" else strength
    covering = cover(made.model, strength, OTHER_PATHS)
    problems = tuple(made.problems(covering.rows, dtype=dtype))
    return Combinations(problems=problems, model=made.model, covering=covering, strength=strength)


def combinations_in_turn(
    candidate: Candidate, space: Space, *, dtype: str, strength: int = 2
) -> Iterator[Problem]:
    """The problems of :func:`combinations`: the first is known before the others are sought."""
    made = _Parameters(candidate, space)
    strength = 1 if space.purpose == "operator" else strength
    first = first_row(made.model, strength, OTHER_PATHS)
    yield from made.problems([] if first is None else [first], dtype=dtype)
    every = made.problems(cover(made.model, strength, OTHER_PATHS).rows, dtype=dtype)
    yield from itertools.islice(every, int(first is not None), None)


def options_alone(candidate: Candidate, space: Space, *, dtype: str) -> list[Problem]:
    """Each option alone at plain sizes, then a few problems that combine the options."""
    space = dataclasses.replace(space, purpose="operator")
    made = _Parameters(candidate, space)
    rows = alone(made.model)
    sizes = [place for place, name in enumerate(made.model.names) if name in SIZES]
    options = (row for row in rows if all(row[place] == rows[0][place] for place in sizes))
    plain = made.problems(options, dtype=dtype)
    return [*plain, *combinations(candidate, space, dtype=dtype).problems]


def options_together(candidate: Candidate, space: Space, *, dtype: str) -> list[Problem]:
    """Problems in plain memory that cover every pair of options and sizes of a candidate."""
    made = _Parameters(candidate, dataclasses.replace(space, purpose="operator"))
    return list(made.problems(cover(made.model, 2).rows, dtype=dtype))


class _Parameters:
    """The parameters of a candidate in a space, and the meaning of their values."""

    def __init__(self, candidate: Candidate, space: Space) -> None:
        self.candidate = candidate
        self.declared = candidate.declaration
        self.space = space
        self.plain = fitted_geometry(BASE, candidate, space)
        self.meant: dict[str, dict[str, Any]] = {}
        for name, values in self._every():
            if len(values) > 1:
                self.meant[name] = values
        self.model = Model(
            tuple(CoveringParameter(name, tuple(values)) for name, values in self.meant.items()),
            tuple(self._spoken_of(self._rules())),
        )

    def _every(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each parameter with its values: from their names to their meaning."""
        yield from self._masks()
        yield from self._options()
        for name in SIZES:
            yield name, self._sizes(name)
        copied = self.declared.strides == "contiguous" or self.declared.arrays == "jax"
        if self.space.purpose != "operator" and not copied:
            yield from self._memory()

    # -- values ------------------------------------------------------------------------------

    def _masks(self) -> Iterator[tuple[str, dict[str, Any]]]:
        offered = self.space.options(self.candidate) if self.space.mask != "never" else []
        forms: dict[str, Any] = {NONE: None}
        for form in dict.fromkeys(form for form, _ in offered):
            forms[form] = (form, False)
            if form == "bias" and self.space.finite_bias != "never":
                forms[FINITE_BIAS] = (form, True)
        shapes = dict.fromkeys(shape for _, shape in offered)
        yield "mask", forms
        yield "mask shape", {NONE: None, **{shape: shape for shape in shapes}}
        if offered:
            yield "mask pattern", {NONE: None, **{name: name for name in self._patterns(offered)}}

    def _patterns(self, offered: list[tuple[str, str]]) -> list[str]:
        forms = {form for form, _ in offered}
        some = {name for form in forms for name in _EXPRESSED.get(form, PATTERNS)}
        ways = itertools.product(forms, (False, True), (False, True))
        if not any(self._judges(form, causal=flag, weights=too) for form, flag, too in ways):
            some.discard(EMPTY)
        if self.declared.pins.ties_lengths:
            some.discard(NO_QUERIES)
        return [name for name in (*PATTERNS, NO_QUERIES) if name in some]

    def _judges(self, form: str | None, *, causal: bool, weights: bool) -> bool:
        """Whether the answer of a row without keys is declared for the call."""
        if self.space.purpose == "gradients":
            return False  # gradients.empty-row-finite judges the gradients
        return self.declared.empty_rule(form=form, causal=causal, weights=weights) != "any"

    def _options(self) -> Iterator[tuple[str, dict[str, Any]]]:
        declared, features = self.declared, self.declared.features
        if declared.causal is not None and not declared.always_causal:
            yield "causal", {"no": False, "yes": True}
        for name, values in (("scale", SCALES), ("softcap", SOFTCAPS), ("window", WINDOWS)):
            if name in features:
                yield name, {_spelled(value): value for value in values}
        if "sinks" in features and self._takes_sinks():
            yield "sinks", {"no": False, "yes": True}
        if draws_cache(self.candidate) and self._takes_cache():
            yield "cache", {name: name for name in CACHES}
        if "weights" in features and self.space.purpose != "operator":
            yield "weights returned", {"no": False, "yes": True}
        if "dropout" in features and self.space.purpose != "operator":
            yield "dropout", {NONE: None, "hardly any": HARDLY}
        if self.candidate.kind == "layer" and self.candidate.draws_weights:
            yield "projection biases", {"yes": True, "no": False}

    def _takes_sinks(self) -> bool:
        return self.candidate.kind == "core" or self.space.purpose != "gradients"

    def _takes_cache(self) -> bool:
        """Whether the golden answer with a cache is known: not for top-left places."""
        if self.space.purpose == "gradients" and self.candidate.kind != "core":
            return False  # a layer caches heads, which the golden does not project
        placed = self.declared.always_causal or self.declared.position is not None
        return not (placed and counts_from_first(self.candidate))

    def _sizes(self, name: str) -> dict[str, Any]:
        """The distinct sizes of a kind that the declaration leaves, the plainest first."""
        fields, values = SIZES[name]
        if self.declared.compiles_sizes:
            values = values[:3:2] if name in _FEW else values[:1]
        distinct: dict[str, Any] = {}
        for sizes in values:
            chosen = dict(zip(fields, sizes, strict=True))
            settled = fitted_geometry(self.plain.replace(**chosen), self.candidate, self.space)
            own = {field: getattr(settled, field) for field in fields}
            distinct.setdefault("/".join(map(str, own.values())), own)
        return distinct

    def _memory(self) -> Iterator[tuple[str, dict[str, Any]]]:
        declared, layer = self.declared, self.candidate.kind != "core"
        some = [
            name for name in MEMORY if not (layer and name in ("tokens-first", "expanded-heads"))
        ]
        if declared.head_layout.has_lengths:
            some.remove("expanded")  # no axis holds the items, or their keys
        yield "memory", {name: name for name in some}
        if declared.masks and declared.masks != (SEQUENCES,):
            yield "mask memory", {name: name for name in MASK_MEMORY}
        apart = not (declared.head_layout.is_packed or declared.head_layout.has_lengths)
        if declared.inputs == "separate" and apart and self.space.purpose == "answer":
            yield "tensors", self._objects(layer=layer)

    def _objects(self, *, layer: bool) -> dict[str, Any]:
        """The ways in which query, key and value are one tensor, as far as shapes allow."""
        objects = {APART: ""}
        kind, key, value = (
            ("widths", "key_size", "value_size") if layer else ("head size", *CHANNELS)
        )
        shapes = [own for own in self._sizes(kind).values() if own[key] == own[value]]
        if not shapes:
            return objects
        objects[KEY_IS_VALUE] = "key-value"
        lengths = any(
            queries["query_length"] == keys["key_length"]
            for queries in self._sizes("queries").values()
            for keys in self._sizes("keys").values()
        )
        rest = shapes if layer else self._sizes("heads").values()
        first, second = ("query_size", "key_size") if layer else HEADS
        if lengths and any(own[first] == own[second] for own in rest):
            objects[ALL_ONE] = "all"
        return objects

    # -- what never meets ---------------------------------------------------------------------

    def _rules(self) -> Iterator[Rule]:
        yield from self._rules_of_masks()
        yield from self._rules_of_sizes()
        yield from self._rules_of_caches()
        yield from self._rules_of_empty_rows()
        yield from self._rules_of_memory()

    def _spoken_of(self, rules: Iterator[Rule]) -> Iterator[Rule]:
        """Restrict rules to existing values; drop rules about absent parameters."""
        for rule in rules:
            sides = []
            for name, values in rule.sides:
                present = tuple(value for value in values if value in self.meant.get(name, {}))
                sides.append((name, present))
            if all(values for _, values in sides):
                yield Rule(rule.reason, tuple(sides))

    def _values(self, name: str, *, but: Sequence[str] = ()) -> tuple[str, ...]:
        return tuple(value for value in self.meant.get(name, {}) if value not in but)

    def _rules_of_masks(self) -> Iterator[Rule]:
        reason = "without a mask it has no shape, no pattern and no place in memory"
        for name, plain in (("mask shape", NONE), ("mask pattern", NONE)):
            yield Rule(reason, (("mask", (NONE,)), (name, self._values(name, but=(plain,)))))
            yield Rule(reason, (("mask", self._values("mask", but=(NONE,))), (name, (plain,))))
        memory = self._values("mask memory", but=("contiguous",))
        yield Rule(reason, (("mask", (NONE,)), ("mask memory", memory)))
        yield Rule(
            "the lengths of sequences come as they are",
            (("mask", (SEQUENCES,)), ("mask memory", memory)),
        )
        for label, value in self.meant.get("mask", {}).items():
            if value is None:
                continue
            own = {shape for form, shape in self.space.options(self.candidate) if form == value[0]}
            others = self._values("mask shape", but=(NONE, *own))
            yield Rule(
                "each form of mask has shapes of its own",
                (("mask", (label,)), ("mask shape", others)),
            )
            possible = _EXPRESSED.get(value[0], PATTERNS)
            cannot = self._values("mask pattern", but=(NONE, *possible))
            reason = "lengths only say how many of the first keys there are"
            yield Rule(reason, (("mask", (label,)), ("mask pattern", cannot)))
        lone = "a sequence that lacks queries is one of several"
        yield Rule(lone, (("mask pattern", (NO_QUERIES,)), ("batch", self._single_item())))
        if either_or(self.candidate):
            reason = "flag and mask are asked for one at a time where not both count"
            masks = self._values("mask", but=(NONE,))
            yield Rule(reason, (("mask", masks), ("causal", ("yes",))))

    def _rules_of_sizes(self) -> Iterator[Rule]:
        """Sizes that a declaration does not leave together."""
        for name, other_name in itertools.combinations(
            [name for name in SIZES if name in self.meant], 2
        ):
            for first, sizes in self.meant[name].items():
                apart = [
                    second
                    for second, others in self.meant[other_name].items()
                    if not self._leaves({**sizes, **others})
                ]
                reason = "the declared geometry has no such sizes together"
                yield Rule(reason, ((name, (first,)), (other_name, tuple(apart))))

    def _leaves(self, sizes: Fields) -> bool:
        """Whether the declaration leaves room for the sizes."""
        settled = fitted_geometry(self.plain.replace(**sizes), self.candidate, self.space)
        return all(getattr(settled, name) == size for name, size in sizes.items())

    def _rules_of_caches(self) -> Iterator[Rule]:
        cached = self._values("cache", but=(NONE,))
        yield Rule("one key at least is new", (("cache", cached), ("keys", ("1",))))
        if counts_from_first(self.candidate):
            reason = "nobody says whether places are counted from the first cached key"
            yield Rule(reason, (("cache", cached), ("causal", ("yes",))))
            yield Rule(reason, (("cache", cached), ("window", self._values("window", but=(NONE,)))))

    def _rules_of_empty_rows(self) -> Iterator[Rule]:
        """Forbid rows without keys by mask, causal rule or window, where no rule is declared.

        Parameters that do not exist have a single value, and rules do not name it.
        """
        reason = "nothing is known of the queries that would have no key"
        returned = self._values("weights returned") or ("",)
        for flag in self._values("causal") or ("",):
            unknown = {too: self._unjudged(flag, too) for too in returned}
            alike = len(set(unknown.values())) == 1
            for too in returned[:1] if alike else returned:
                # A statement for all values of a parameter leaves the parameter out.
                sides = (
                    ("causal", (flag,)),
                    ("weights returned", () if alike else (too,)),
                    ("mask", unknown[too]),
                )
                every = set(unknown[too]) == set(self.meant.get("mask", {NONE: None}))
                call = [
                    (name, values)
                    for name, values in sides
                    if name in self.meant and values and not (name == "mask" and every)
                ]
                if unknown[too]:
                    yield Rule(reason, (*call, ("mask pattern", (EMPTY,))))
                    for sizes in self._leaving_none(flag):
                        yield Rule(reason, (*call, *sizes))

    def _unjudged(self, flag: str, too: str) -> tuple[str, ...]:
        """The masks without a declared rule for rows without keys in the call."""
        causal, weights = flag == "yes" or self.declared.always_causal, too == "yes"
        return tuple(
            label
            for label, form in self.meant.get("mask", {NONE: None}).items()
            if not self._judges(form and form[0], causal=causal, weights=weights)
        )

    def _leaving_none(self, flag: str) -> Iterator[tuple[tuple[str, tuple[str, ...]], ...]]:
        """Lengths and windows that leave a query without keys, whatever the mask."""
        every: tuple[str, ...] = ("queries", "keys", "window")
        names = [name for name in every if name in self.meant]
        for values in itertools.product(*(self.meant[name] for name in names)):
            row = dict(zip(names, values, strict=True))
            values_by_name: dict[str, str] = {
                **row,
                **({"causal": flag} if "causal" in self.meant else {}),
            }
            problem = self.problem(values_by_name, dtype="float32", seed=0)
            if not bool(structure(problem, self.candidate).any(dim=-1).all()):
                yield tuple((name, (value,)) for name, value in row.items())

    def _rules_of_memory(self) -> Iterator[Rule]:
        reason = "one item, or one head, is repeated by no stride"
        yield Rule(reason, (("memory", ("expanded",)), ("batch", self._single_item())))
        single_head = [value for value, own in self._meanings("heads") if own["num_kv_heads"] == 1]
        yield Rule(reason, (("memory", ("expanded-heads",)), ("heads", tuple(single_head))))
        reason = "tensors of different shapes cannot be one"
        shared, all_same = (KEY_IS_VALUE, ALL_ONE), (ALL_ONE,)
        layer = self.candidate.kind == "layer"
        name, key, value = (
            ("widths", "key_size", "value_size") if layer else ("head size", *CHANNELS)
        )
        apart = [label for label, own in self._meanings(name) if own[key] != own[value]]
        yield Rule(reason, (("tensors", shared), (name, tuple(apart))))
        kind, first, second = ("widths", "query_size", "key_size") if layer else ("heads", *HEADS)
        unlike = [label for label, own in self._meanings(kind) if own[first] != own[second]]
        yield Rule(reason, (("tensors", all_same), (kind, tuple(unlike))))
        for (queries, query_sizes), (keys, key_sizes) in itertools.product(
            self._sizes("queries").items(), self._sizes("keys").items()
        ):
            lengths = (("queries", (queries,)), ("keys", (keys,)))
            sides = [side for side in lengths if side[0] in self.meant]
            if query_sizes["query_length"] != key_sizes["key_length"] and sides:
                yield Rule(reason, (("tensors", all_same), *sides))
        cached = self._values("cache", but=(NONE,))
        yield Rule("queries are more than new keys", (("tensors", all_same), ("cache", cached)))

    def _single_item(self) -> tuple[str, ...]:
        return tuple(value for value, own in self._meanings("batch") if own["batch"] == 1)

    def _meanings(self, name: str) -> list[tuple[str, Fields]]:
        return list(self.meant.get(name, {}).items())

    # -- problems -----------------------------------------------------------------------------

    def problems(self, rows: Iterable[Sequence[str]], *, dtype: str) -> Iterator[Problem]:
        """The problem of each row of the model; the row's number is the seed."""
        for seed, values in enumerate(rows):
            row = dict(zip(self.model.names, values, strict=True))
            yield self.problem(row, dtype=dtype, seed=seed)

    def problem(self, row: dict[str, str], *, dtype: str, seed: int) -> Problem:
        """The problem of one row; parameters outside of the row are plain."""
        chosen = {name: self.meant[name][value] for name, value in row.items()}
        sizes: Fields = {}
        for name in SIZES:
            sizes |= chosen.get(name, {})
        geometry = fitted_geometry(self.plain.replace(**sizes), self.candidate, self.space)
        causal = causal_flag(self.candidate, flagged=chosen.get("causal", False))
        window = chosen.get("window")
        mask = chosen.get("mask")
        plan = None
        if mask is not None:
            plan = MaskPlan(
                pattern=chosen["mask pattern"],
                form=mask[0],
                shape=chosen["mask shape"],
                finite_bias=mask[1],
                visible=(causal or window is not None)
                and mask[0] != SEQUENCES
                and chosen["mask pattern"] != EMPTY,
            )
        return Problem(
            geometry=geometry,
            dtype=dtype,
            seed=seed,
            values="normal",
            mask=plan,
            causal=causal,
            scale=chosen.get("scale"),
            softcap=chosen.get("softcap"),
            window=window,
            biases=chosen.get("projection biases", True),
            past=CACHED[chosen.get("cache", NO_CACHE)](geometry),
            sinks=chosen.get("sinks", False),
            layout=chosen.get("memory", "contiguous"),
            mask_layout=chosen.get("mask memory", "contiguous"),
            shared=chosen.get("tensors", ""),
            return_weights=chosen.get("weights returned", False),
            dropout=chosen.get("dropout"),
        )


# The patterns of the forms that cannot express all.
_EXPRESSED: Final = {
    "lengths": OF_LENGTHS,
    SEQUENCES: OF_SEQUENCES,
    **{form: mask.patterns for form, mask in STRUCTURED_MASKS.items()},
}


def _spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return " to ".join(map(str, value))
    return NONE if value is None else f"{value:g}"
