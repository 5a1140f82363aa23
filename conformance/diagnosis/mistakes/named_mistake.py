"""Named mistakes: changes to the point, the inputs, or stages of either pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...base.mistake import Mistake
from ...declare.declaration import Declaration
from ...operators import operators
from ...oracle.oracle import run_of
from ...problems.inputs import Inputs

Gradients = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class DeclaredCall:
    """The inputs of a call, and the point of the semantics that they are read by."""

    inputs: Inputs
    semantics: golden.Semantics

    def answer_of(self, output: Tensor) -> Tensor:
        """Return the answer of a core or layer from the output of its heads."""
        run = run_of_call(self).edited(output=output)
        answer: Tensor = run[answer_stage(run)]
        return answer


# Exceptions of acting out an impossible mistake: the golden refuses, shapes do not meet, a number
# has no value at a size, or a call lacks a result, such as angles without rotation.
IMPOSSIBLE: Final = (
    ValueError,
    RuntimeError,
    TypeError,
    IndexError,
    ArithmeticError,
    AttributeError,
)


class NotExpressible(Exception):  # noqa: N818 (no error: the mistake cannot be made on such inputs)
    """A mistake that cannot be made on the inputs, such as transposing a non-square matrix."""


# Arguments of a call, with their fields of the inputs.
_FIELDS: Final = {
    "keep": "keep",
    "given_bias": "bias",
    "causal": "causal",
    "given_scale": "scale",
    "scale": "scale",
    "softcap": "softcap",
    "window": "window",
    "given_sinks": "sinks",
    **{f"given_{role}": role for role in ("query", "key", "value")},
    **{f"{role}_tokens": role for role in ("query", "key", "value")},
}
_MATRICES: Final = frozenset(f"{role}{bias}" for role in "qkvo" for bias in ("", "_bias"))
_TABLES: Final = frozenset({"by_mask", "by_causality", "by_window", "admitted"})
# An answer edited only here is the right answer to another call, which has a derived bound.
_OF_CALLS: Final = _MATRICES | _TABLES | _FIELDS.keys()
# Heads are given to cores, and are made of tokens in layers.
_HEADS: Final = frozenset({"given_query", "given_key", "given_value"})
# Read keys that no query attends, and values that have a weight.
EVERY_KEY: Final = (
    golden.Edit("unread_keys", lambda: None),
    golden.Edit("unread_values", lambda weights: golden.unread(weights != 0)),
    golden.Edit("output", lambda weights, value: weights @ value),
)
# The most logits of a call whose run is remembered.
_MOST_REMEMBERED: Final = 1 << 16


def is_core(inputs: Inputs) -> bool:
    """Whether a call gives heads, and not tokens of a layer."""
    return not inputs.is_layer


def is_of_call(edit: golden.Edit) -> bool:
    """Whether an edit changes an argument of a call, or a table made of arguments."""
    given = edit.stage not in _HEADS or edit.when is is_core
    return edit.stage in _OF_CALLS and given


def run_of_call(call: DeclaredCall) -> golden.Run:
    """Return the right run of a call at a point; remembered at the declared point.

    Besides the golden's own inputs the run has ``inputs``, ``point`` and the number of cached keys
    ``past``, which edits may read.
    """
    inputs, point = call.inputs, call.semantics
    declared = point is inputs.point or point == inputs.point
    run = _RUNS_OF_CALLS.get(inputs) if declared else None
    if run is None:
        run = run_of(inputs, point)
        given = {k: v.detach() if isinstance(v, Tensor) else v for k, v in run.given.items()}
        # The run holds a copy of its inputs, or the weak key would never be freed.
        given |= {"inputs": inputs.replace(), "point": point, "past": inputs.past}
        run = golden.Run(run.program, given)
        if declared and inputs.geometry.logits <= _MOST_REMEMBERED:
            _RUNS_OF_CALLS[inputs] = run
    return run


def answer_stage(run: golden.Run) -> str:
    """Return the stage of the answer: of a layer, or of a core."""
    return "answer" if "answer" in run else "output"


_RUNS_OF_CALLS: Final[WeakKeyDictionary[Inputs, golden.Run]] = WeakKeyDictionary()


def changes_run(run: golden.Run, edit: golden.Edit) -> bool:
    """Whether an edit changes an argument of a call, or may change a later result."""
    if edit.stage not in run or not run.holds(edit):
        return False
    return not (is_of_call(edit) and _is_same(run.remade(edit), run[edit.stage]))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return one is other or (not isinstance(one, Tensor) and one == other)


def asked_otherwise(call: DeclaredCall, edits: Sequence[golden.Edit]) -> DeclaredCall:
    """Return the call with its arguments changed by the edits of a call."""
    if not any(map(is_of_call, edits)):
        return call
    right, inputs = run_of_call(call), call.inputs
    made = [one for one in edits if is_of_call(one) and one.stage in right and right.holds(one)]
    run, stages = right.edited(*made), {one.stage for one in made}
    changes = {field: run[stage] for stage, field in _FIELDS.items() if stage in stages}
    for role in {"query", "key", "value"} & changes.keys():
        changes[role] = changes[role].to(inputs.query.dtype)
    if stages & _TABLES:
        own_keys = run["admitted"][..., : inputs.key.shape[-2]]  # without memories
        changes |= {"keep": own_keys, "causal": False, "window": None}
    if inputs.weights is not None and stages & _MATRICES:
        own = {name: run[name] for name in stages & _MATRICES}
        changes["weights"] = replace(inputs.weights, **own)
    return DeclaredCall(inputs=inputs.replace(**changes), semantics=call.semantics)


def read_every_key(run: golden.Run) -> golden.Run:
    """Return the run that reads every key, with all results; remembered for many edits."""
    remembered = _RUNS.get(run)
    if remembered is None:
        remembered = _RUNS[run] = run.edited(*EVERY_KEY).complete()
    return remembered


_RUNS: Final[WeakKeyDictionary[golden.Run, golden.Run]] = WeakKeyDictionary()


InputsChange = Callable[[DeclaredCall], Inputs | None]
Where = Callable[[Inputs], bool]


def everywhere(_inputs: Inputs) -> bool:
    """Whether a mistake may show on the inputs: always."""
    return True


@dataclass(frozen=True)
class SizeRule:
    """A condition on sizes: the fields of ``Geometry`` concerned, and where it holds."""

    fields: tuple[str, ...]
    holds: Callable[[Geometry], bool]


@dataclass(frozen=True, kw_only=True)
class NamedMistake(Mistake):
    """A mistake that a failure can be named after: how it is made, and where.

    The ``name`` is a stable slug; entries with the same name are ways to make one mistake.
    ``changes`` are the fields of ``Semantics`` that differ from the declared point.

    inputs
        Other inputs that the candidate answers instead.
    edits
        Edited stages of the program (attention and the layer around it) or arguments of the call.
        They may also read ``inputs``, ``past`` and ``point``.
    where
        The inputs that can show the mistake, beyond the effect of ``changes`` and ``inputs``.
    misplaces
        Whether a tensor or a part of it is lost or put in another's place, which nobody intends.
    needs
        What must be declared for the name to make sense: "mask", "causal", any way of "hiding"
        keys, "quantised" ones, a dtype of "half" precision, or a layout: "packed", a "latent",
        "sequences" of different lengths one after another, or "caches" with lengths.
    base, fits
        Fields of the only declared points where the mistake can be made, such as rotary positions;
        or a function that accepts such points, ``base`` then being an example.
    point
        A further change to the declared point, as a function of the point.
    special_of
        A more general mistake, reported instead if it explains as much.
    parts
        The mistakes that this one combines, if several were read.
    rows
        The only rows with the mistake: from inputs and answer, bool of the answer's shape without
        channels. None for all.
    sizes
        The conditions on sizes under which the mistake was seen.
    backward
        Stages of both passes edited in the backward pass; the answer stays right.
    right_without
        For a backward pass without edits: the option of a call ("past", "sinks") that makes
        gradients wrong. If empty as well, the failing clause alone decides.

    Each function returns None where the mistake changes nothing, and raises ``NotExpressible``
    where it cannot be made.
    """

    inputs: InputsChange | None = None
    edits: tuple[golden.Edit, ...] = ()
    where: Where = everywhere
    misplaces: bool = False
    needs: str = ""
    base: Mapping[str, Any] = field(default_factory=dict)
    fits: Callable[[golden.Semantics], bool] | None = None
    point: Callable[[golden.Semantics], golden.Semantics] | None = None
    special_of: str = ""
    parts: tuple[NamedMistake, ...] = ()
    rows: Callable[[Inputs, Tensor], Tensor] | None = None
    sizes: tuple[SizeRule, ...] = ()
    backward: tuple[golden.Edit, ...] = ()
    right_without: str = ""

    def __post_init__(self) -> None:
        """Accept the table as it is: a named mistake brings steps in place of a candidate."""

    def speaks_at(self, point: golden.Semantics) -> bool:
        """Whether the mistake can be made at a declared point."""
        if self.fits is not None:
            return self.fits(point)
        return all(getattr(point, name) == value for name, value in self.base.items())

    def is_about(self, declared: Declaration) -> bool:
        """Whether a declaration has the features that the mistake needs, such as a mask."""
        promised = {
            "": True,
            "mask": bool(declared.masks),
            "causal": declared.causal is not None,
            "hiding": bool(declared.masks)
            or declared.causal is not None
            or "window" in declared.features,
            "half": not {"float16", "bfloat16"}.isdisjoint(declared.dtypes),
            "packed": declared.head_layout.is_packed,
            "sequences": declared.head_layout.has_sequences and not declared.head_layout.cache_axes,
            "caches": bool(declared.head_layout.cache_axes),
            "latent": declared.head_layout.value_in_key,
            "quantised": declared.kv_format is not None,
        }
        return promised[self.needs]

    def changed_point(self, point: golden.Semantics) -> golden.Semantics:
        """Return the declared point with this mistake made, unchanged where impossible.

        The last result is remembered: a search asks for it on each of its problems.
        """
        last = self._last_points
        if not last or last[0] is not point:
            last[:] = point, self._changed(point)
        return last[1]

    @cached_property
    def _last_points(self) -> list[golden.Semantics]:
        return []

    def _changed(self, point: golden.Semantics) -> golden.Semantics:
        if not self.speaks_at(point):
            return point
        changed = point if self.point is None else self.point(point)
        return changed.replace(**self.changes) if self.changes else changed

    @property
    def is_everywhere(self) -> bool:
        """Whether the mistake may change every answer, wherever it can be made."""
        return self.where is everywhere and self.acts_on_every_call

    @cached_property
    def acts_on_every_call(self) -> bool:
        """Whether the mistake may change the answer to every call on which it is made."""
        later = any(one.when is golden.always and not is_of_call(one) for one in self.edits)
        return later or self.point is not None

    def changes_stage_of(self, other: NamedMistake) -> bool:
        """Whether both mistakes change the same stage, in which case their order may count."""
        stages = {edit.stage for edit in self.edits} & {edit.stage for edit in other.edits}
        return bool(stages) or (self.inputs is not None and other.inputs is not None)

    @property
    def only_a_point(self) -> bool:
        """Whether the mistake is nothing but another point of the semantics."""
        return not any((self.base, self.inputs, self.edits))


Edits = tuple[golden.Edit, ...]
# A way to make a mistake: its edits, or its fields by name.
Way = golden.Edit | Edits | Mapping[str, Any]


def changed(change: Callable[..., Any], *stages: str, **when: Any) -> Edits:
    """Return edits that change several results alike."""
    return tuple(golden.Edit(stage, change=change, **when) for stage in stages)


def edits_by(words: str, *stages: str, **when: Any) -> Edits:
    """Return edits by the operator with the given words, at stages or arguments."""
    return tuple(golden.Edit(stage, change=_operators(stage)[words], **when) for stage in stages)


@cache
def _operators(stage: str) -> dict[str, Callable[..., Any]]:
    return {one.words: one.change for one in operators(stage, _AXES[stage])}


_AXES: Final = {
    **{stage.name: stage.axes for stage in golden.LAYER.stages},
    "keep": "BHQK",
    "given_bias": "BHQK",
    "given_sinks": "H",
    "temperature": "H",
}


def answering(change: Callable[..., Any]) -> Edits:
    """Return edits that change the answer of a layer or a core, whose last stage is "output"."""
    of_core = golden.Edit("output", change=change, when=is_core)
    return of_core, golden.Edit("answer", change=change)


Entries = Callable[..., list[NamedMistake]]


def named(name: str, primary: str, **shared: Any) -> Entries:
    """Head an entry of the table with its name, its clause and the fields shared by all ways.

    The returned function takes the sentence, the fix, and the fields of each way to make the
    mistake.
    """

    def entries(sentence: str, fix: str, *ways: Way) -> list[NamedMistake]:
        texts = {"name": name, "primary": primary, "sentence": sentence, "fix": fix}
        return [NamedMistake(**{**texts, **shared, **_fields(way)}) for way in ways or ({},)]

    return entries


def fixing(fix: str, **shared: Any) -> Callable[..., Entries]:
    """Return a head of entries that share a fix, unless an entry has its own."""

    def head(name: str, fix: str = fix, **more: Any) -> Entries:
        return lambda sentence, *ways: named(name, **shared, **more)(sentence, fix, *ways)

    return head


def _fields(way: Way) -> Mapping[str, Any]:
    if isinstance(way, golden.Edit):
        return {"edits": (way,)}
    return {"edits": way} if isinstance(way, tuple) else way
