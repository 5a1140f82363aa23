"""Which parameter is a mask, in which forms and shapes it is taken, and what it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from ..._golden import golden
from ...problems.inputs import Inputs
from .agreement import Judge, Seen
from .box import Box, Observation
from .convention import MaskUse
from .drawing import masked, prefix_keep, random_keep
from .signature import Parameter

# (declared shape, expression that makes it theirs, theirs in words)
_SHAPES: Final = (
    ("BHQK", "{}", "[B, H, Lq, Lk]"),
    ("B1QK", "{}", "[B, 1, Lq, Lk]"),
    ("B11K", "{}", "[B, 1, 1, Lk]"),
    ("11QK", "{}", "[1, 1, Lq, Lk]"),
    ("HQK", "{}", "[H, Lq, Lk]"),
    ("BQK", "{}", "[B, Lq, Lk]"),
    ("QK", "{}", "[Lq, Lk]"),
    ("BK", "{}", "[B, Lk]"),
    ("K", "{}", "[Lk]"),
)
# Shapes that ours become by moving axes; tried where none is taken as it is.
_TURNED: Final = (
    ("BHQK", "{}.flatten(0, 1)", "[B*H, Lq, Lk]"),
    ("BQK", "{}.permute(1, 2, 0)", "[Lq, Lk, B]"),
    ("BK", "{}.T", "[Lk, B]"),
)
# The same masks in four dimensions, for two parameters that must be told apart by shape alone.
_AS_FOUR: Final = {
    "BK": ("B11K", "{0}[:, 0, 0]"),
    "QK": ("11QK", "{0}[0, 0]"),
    "BQK": ("B1QK", "{0}[:, 0]"),
}
_LENGTHS: Final = (("B", "[B]"), ("BQ", "[B, Lq]"), ("Q", "[Lq]"), ("", "[]"))
# What a mask of our form is turned into for them: (form when it keeps, form when it drops, source)
_KINDS: Final = (
    ("bool", "keep", "drop", "{}"),
    ("int", "keep_int", "drop", "{}.to(torch.int64)"),
    ("0/1 float", "keep", "drop", "{}.to({query}.dtype)"),
)
BIAS: Final = "additive float"
LENGTHS: Final = "lengths"


@dataclass(frozen=True, kw_only=True)
class MaskFound:
    """A parameter in one form: how it is handed over, and what it does to the logits.

    ``kind`` is what is handed over: bool, int, 0/1 float, additive float, lengths. ``ambiguous``
    are shapes that are taken for others where sizes are equal, and so are no part of ``uses``.
    """

    parameter: Parameter
    kind: str
    form: str
    uses: tuple[MaskUse, ...]
    point: golden.Semantics
    margin: float
    ambiguous: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether hidden keys are gone, as specified."""
        return self.point.mask_operation in ("replace", "add")


@dataclass(frozen=True, kw_only=True)
class MaskUnread:
    """A parameter that is taken but not understood; ``why`` says how it behaves.

    ``idle`` says that no answer depends on it.
    """

    parameter: Parameter
    kind: str
    why: str
    idle: bool = False


Found = MaskFound | MaskUnread


def find_masks(
    box: Box, parameters: Sequence[Parameter], point: golden.Semantics, judge: Judge
) -> list[Found]:
    """Every parameter that is a mask, in every form that it is taken in."""
    found: list[Found] = []
    for parameter in parameters:
        if parameter.by_keyword:
            every = _of_parameter(box, parameter, point, judge)
            found.extend(
                _told_by_size(box, one, judge) if isinstance(one, MaskFound) else one
                for one in every
            )
    return found


def _told_by_size(box: Box, found: MaskFound, judge: Judge) -> Found:
    """Without the shapes that are another one's where sizes are equal: ``[B, Lk]`` of B = Lq."""
    ambiguous = [
        use for use in found.uses if not all(_holds(box, use, found, judge, n) for n in (0, 1))
    ]
    kept = tuple(use for use in found.uses if use not in ambiguous)
    natives = tuple(use.native for use in ambiguous)
    if not kept:
        why = f"{', '.join(natives)} is taken for another shape where sizes are equal"
        return MaskUnread(parameter=found.parameter, kind=found.kind, why=why)
    return dataclasses.replace(found, uses=kept, ambiguous=natives) if ambiguous else found


def _holds(box: Box, use: MaskUse, found: MaskFound, judge: Judge, more_keys: int) -> bool:
    """Whether a mask is read the same where batch, heads and queries are as many."""
    count = box.draw().geometry.num_heads
    sizes = {"batch": count, "query_length": count, "key_length": count + more_keys}
    if box.convention.inputs == "self":
        sizes["query_length"] = sizes["key_length"]
        sizes["batch"] = sizes["key_length"]
    inputs = box.draw(sizes, seed=4)
    make = prefix_keep if found.form == LENGTHS else random_keep
    inputs = masked(inputs, found.form, use.shape, make(use.shape, inputs.geometry, seed=4))
    answer = _ask(box, use, inputs)
    return answer is not None and judge.fits(found.point, [Seen(inputs, answer.output)])


def _of_parameter(
    box: Box, parameter: Parameter, point: golden.Semantics, judge: Judge
) -> Iterator[Found]:
    additive = _additive(box, parameter, point, judge)
    lengths = _lengths(box, parameter, point, judge)
    understood = False
    for kind in _KINDS:
        if kind is _KINDS[-1] and (understood or additive is not None):
            continue  # numbers are told from a mask of two values only where that is not taken
        one = _boolean(box, parameter, point, judge, kind)
        if isinstance(one, MaskFound):
            added = additive is not None and one.point.mask_operation == "add-to-kept"
            if added and kind is not _KINDS[0]:
                continue  # a bias of 0 and 1
            understood = not added
        elif one is not None and (additive is not None or lengths is not None or understood):
            continue  # another form is what the parameter is for
        if one is not None:
            yield one
    yield from (one for one in (additive, lengths) if one is not None)


def _shapes_of(box: Box) -> list[tuple[str, str, str]]:
    shapes = [*_SHAPES, *_TURNED]
    if not box.convention.layout.batched:
        shapes = [entry for entry in shapes if "B" not in entry[0]]
        shapes = [entry for entry in shapes if "1" not in entry[0]]
    return shapes


def _use(parameter: Parameter, form: str, shape: tuple[str, str, str], give: str) -> MaskUse:
    declared, turn, native = shape
    inner = give if turn == "{}" else turn.replace("{}", give)
    return MaskUse(form=form, parameter=parameter.name, shape=declared, native=native, give=inner)


def _ask(box: Box, use: MaskUse, inputs: Inputs) -> Observation | None:
    return box.under(masks=(use,)).answers(inputs)


def _probe(box: Box, form: str, shape: str, seed: int) -> Inputs:
    inputs = box.draw(seed=seed)
    keep = random_keep(shape, inputs.geometry, seed=seed)
    if form == "lengths":
        keep = prefix_keep(shape, inputs.geometry, seed=seed)
    return masked(inputs, form, shape, keep)


def _boolean(
    box: Box,
    parameter: Parameter,
    point: golden.Semantics,
    judge: Judge,
    kind: tuple[str, str, str, str],
) -> Found | None:
    """A mask of two values: its polarity, and what it does."""
    word, keep_form, drop_form, give = kind
    give = give.replace("{query}", box.convention.inputs_names[0])
    taken: list[tuple[MaskUse, Observation]] = []
    for shape in _shapes_of(box):
        if taken and shape in _TURNED and shape[0] in [use.shape for use, _ in taken]:
            continue
        use = _use(parameter, "keep", shape, give)
        answer = _ask(box, use, _probe(box, "keep", shape[0], 0))
        if answer is not None:
            taken.append((use, answer))
    taken = [
        (use, answer)
        for use, answer in taken
        if not _means_additive(use, answer, point, judge, word)
    ]
    if not taken:
        return None
    readings = _readings(point)
    best: tuple[float, golden.Semantics] | None = None
    fitting: list[MaskUse] = []
    for reading in readings:
        fitting = [
            use
            for use, answer in taken
            if judge.fits(reading, [Seen(answer.inputs, answer.output)])
        ]
        if fitting:
            seen = [Seen(a.inputs, a.output) for u, a in taken if u in fitting]
            best = (max(judge.margin(reading, one) for one in seen), reading)
            break
    if best is None:
        unmoved = _unmoved(box, taken)
        why = "it changes nothing" if unmoved else "it changes the answer in no way that is known"
        return MaskUnread(parameter=parameter, kind=word, why=why, idle=unmoved)
    margin, reading = best
    drops = reading.mask_polarity == "drop"
    if reading.mask_operation == "ignore":
        return MaskUnread(parameter=parameter, kind=word, why="it changes nothing", idle=True)
    form = drop_form if drops else keep_form
    if word == "int" and not drops:
        give = "{}"
    uses = tuple(
        MaskUse(
            form=form,
            parameter=use.parameter,
            shape=use.shape,
            native=use.native,
            give=_regive(use, give),
        )
        for use in fitting
    )
    found = reading.replace(mask_polarity="keep")
    return MaskFound(
        parameter=parameter, kind=word, form=form, uses=uses, point=found, margin=margin
    )


def _regive(use: MaskUse, give: str) -> str:
    return use.give if give != "{}" else use.give.replace(".to(torch.int64)", "")


def _means_additive(
    use: MaskUse, answer: Observation, point: golden.Semantics, judge: Judge, word: str
) -> bool:
    """Whether a mask of 0 and 1 was simply added to the logits: that is a bias."""
    if word == "bool":
        return False
    del use
    keep = answer.inputs.keep
    if keep is None:
        return False
    bias = keep.to(answer.inputs.query.dtype)
    return judge.fits(point, [Seen(answer.inputs.without_mask().replace(bias=bias), answer.output)])


def _unmoved(box: Box, taken: Sequence[tuple[MaskUse, Observation]]) -> bool:
    """Whether the answers are those of a call without any mask."""
    for _, answer in taken:
        free = box.answers(answer.inputs.without_mask())
        if free is None or not torch.equal(free.output, answer.output):
            return False
    return True


def _readings(point: golden.Semantics) -> list[golden.Semantics]:
    """What a mask of two values may do, the specification's first, in either polarity."""
    operations: list[dict[str, Any]] = [
        {},
        {"mask_operation": "multiply-weights"},
        {"mask_operation": "multiply-logits"},
        {"mask_operation": "add-to-kept"},
        {"mask_fill": 0.0},
        {"mask_fill": -1.0},
        {"mask_operation": "add", "mask_fill": -1.0},
        {"mask_operation": "ignore"},
    ]
    return [
        point.replace(mask_polarity=polarity, **operation)
        for operation in operations
        for polarity in ("keep", "drop")
    ]


def _additive(
    box: Box, parameter: Parameter, point: golden.Semantics, judge: Judge
) -> Found | None:
    """A mask that is added to the logits: finite numbers and minus infinity."""
    fits = False
    uses: list[MaskUse] = []
    margin, reading_found = 0.0, point
    for shape in _shapes_of(box):
        if shape in _TURNED and shape[0] in [use.shape for use in uses]:
            continue
        use = _use(parameter, "bias", shape, "{}")
        inputs = _probe(box, "bias", shape[0], 2)
        bias = torch.randn(inputs.keep.shape, generator=torch.Generator().manual_seed(3))  # type: ignore[union-attr]
        inputs = inputs.replace(bias=bias.to(inputs.query.dtype))
        finite = inputs.replace(keep=torch.ones_like(inputs.keep))  # type: ignore[arg-type]
        plain, hidden = _ask(box, use, finite), _ask(box, use, inputs)
        if plain is None:
            continue
        for order in ("after-scale", "before-scale"):
            reading = point.replace(bias_order=order)
            one = Seen(_no_keep(plain.inputs), plain.output)
            fits = judge.fits(reading, [one])
            if fits and hidden is not None:
                fits = judge.fits(reading, [Seen(hidden.inputs, hidden.output)])
            if fits:
                uses.append(use)
                margin = max(margin, judge.margin(reading, one))
                reading_found = reading
                break
    if uses:
        return MaskFound(
            parameter=parameter,
            kind=BIAS,
            form="bias",
            uses=tuple(uses),
            point=reading_found,
            margin=margin,
        )
    return None


def _no_keep(inputs: Inputs) -> Inputs:
    return inputs.replace(keep=None)


def _lengths(box: Box, parameter: Parameter, point: golden.Semantics, judge: Judge) -> Found | None:
    """Numbers of valid keys, an item or a query each."""
    uses: list[MaskUse] = []
    margin = 0.0
    for shape, native in _LENGTHS:
        if box.convention.layout.batched != ("B" in shape):
            continue
        use = MaskUse(form=LENGTHS, parameter=parameter.name, shape=shape, native=native)
        answer = _ask(box, use, _probe(box, LENGTHS, shape, 0))
        if answer is None:
            continue
        one = Seen(answer.inputs, answer.output)
        if judge.fits(point, [one]):
            uses.append(use)
            margin = max(margin, judge.margin(point, one))
    if not uses:
        return None
    return MaskFound(
        parameter=parameter,
        kind=LENGTHS,
        form=LENGTHS,
        uses=tuple(uses),
        point=point,
        margin=margin,
    )


def chosen_uses(found: Sequence[Found]) -> tuple[MaskUse, ...]:
    """How each form is handed over: one parameter, or several told apart by the shape.

    A form that a bool mask offers is not taken from an int or float one too.
    """
    understood = [one for one in found if isinstance(one, MaskFound)]
    forms = dict.fromkeys(one.form for one in understood)
    uses: list[MaskUse] = []
    for form in forms:
        own = [one for one in understood if one.form == form]
        own = [one for one in own if one.exact] or own
        own = [one for one in own if one.kind == own[0].kind]
        alone = next((one for one in own if all(_covers(one, other) for other in own)), None)
        if alone is not None:
            uses.extend(alone.uses)
        else:
            uses.extend(_told_apart([use for one in own for use in one.uses]))
    return tuple(uses)


def _covers(one: MaskFound, other: MaskFound) -> bool:
    """Whether a parameter takes every shape that another takes."""
    return {use.shape for use in other.uses} <= {use.shape for use in one.uses}


def _told_apart(uses: Sequence[MaskUse]) -> Iterator[MaskUse]:
    """Each four-dimensional shape by the first parameter that takes it."""
    taken: set[str] = set()
    for use in uses:
        shape, turn = _AS_FOUR.get(use.shape, (use.shape, "{0}"))
        if len(shape) != len("BHQK") or shape in taken:
            continue
        taken.add(shape)
        give = use.give.replace("{}", turn.replace("{0}", "{}"))
        yield MaskUse(
            form=use.form, parameter=use.parameter, shape=shape, native=use.native, give=give
        )
