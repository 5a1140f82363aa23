"""Find the mask parameters, the forms and shapes that they take, and the effects on logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from .._golden import golden
from ..problems.inputs import Inputs
from .agreement import Probed
from .caller import Caller, ProbeAnswer, masked, rows_with_keys
from .convention import MaskUse
from .signature import CallParameter

# (declared shape, expression for the implementation's shape, its words)
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
# Shapes with moved axes, for refused shapes.
_TURNED: Final = (
    ("BHQK", "{}.flatten(0, 1)", "[B*H, Lq, Lk]"),
    ("BQK", "{}.permute(1, 2, 0)", "[Lq, Lk, B]"),
    ("BK", "{}.T", "[Lk, B]"),
)
# Masks in four dimensions, for two parameters that differ by shape alone.
_AS_FOUR: Final = {
    "BK": ("B11K", "{0}[:, 0, 0]"),
    "QK": ("11QK", "{0}[0, 0]"),
    "BQK": ("B1QK", "{0}[:, 0]"),
}
_LENGTHS: Final = (
    ("B", "{}", "[B]"),
    ("BQ", "{}", "[B, Lq]"),
    ("Q", "{}", "[Lq]"),
    ("", "{}", "[]"),
)
# Masks of two values: (kind, form where True keeps, form where True drops, source)
_KINDS: Final = (
    ("bool", "keep", "drop", "{}"),
    ("int", "keep_int", "drop", "{}.to(torch.int64)"),
    ("0/1 float", "keep", "drop", "{}.to({query}.dtype)"),
)
# A float compared with a threshold to hide keys, not added.
_THRESHOLD: Final = (
    "compared float",
    "keep",
    "drop",
    "torch.where({}, 0.0, -1e9).to({query}.dtype)",
)
_OF_NUMBERS: Final = (_KINDS[-1], _THRESHOLD)
# An error, as a share of the largest answer, beyond every bound of drawn tokens.
_FAR: Final = 0.1
_REFUSED: Final = "no mask that is tried is taken"
_NOT_KNOWN: Final = "it changes the answer in no way that is known"
_OF_QUERIES: Final = (
    "it changes the answers of the tokens that it hides alone: it hides queries, and no key"
)
BIAS: Final = "additive float"
LENGTHS: Final = "lengths"


@dataclass(frozen=True, kw_only=True)
class MaskReading:
    """One form of a mask parameter: the way to pass a mask, and the effect on the logits.

    ``kind`` is bool, int, 0/1 float, additive float or lengths. ``ambiguous`` are shapes mistaken
    for others if sizes are equal; ``uses`` omits them. ``mixes_items``: the form was read in
    batches of a single item, because in larger batches the mask hides keys of other items.
    """

    parameter: CallParameter
    kind: str
    form: str
    uses: tuple[MaskUse, ...]
    point: golden.Semantics
    ambiguous: tuple[str, ...] = ()
    mixes_items: bool = False

    @property
    def exact(self) -> bool:
        """Whether hidden keys have no influence, as specified."""
        return self.point.mask_operation in ("replace", "add")


@dataclass(frozen=True, kw_only=True)
class UnreadMask:
    """An accepted but not understood parameter; ``why`` describes the behaviour.

    ``idle``: no answer depends on the parameter.
    """

    parameter: CallParameter
    kind: str
    why: str
    idle: bool = False


MaskResult = MaskReading | UnreadMask


def find_masks(case: Probed, parameters: Sequence[CallParameter]) -> list[MaskResult]:
    """Every mask parameter, in every accepted form."""
    results: list[MaskResult] = []
    for parameter in parameters:
        if not parameter.by_keyword or _is_swallowed(case.caller, parameter):
            continue
        found = [
            _unambiguous(case, result)
            if isinstance(result, MaskReading) and not result.mixes_items
            else result
            for result in _of_parameter(case, parameter)
        ]
        if not found and not parameter.guessed:
            found = [UnreadMask(parameter=parameter, kind="any", why=_REFUSED)]
        results.extend(found)
    return results


def _is_swallowed(caller: Caller, parameter: CallParameter) -> bool:
    """Whether a guessed keyword takes any object at all, and changes nothing."""
    if not parameter.guessed:
        return False
    inputs = caller.draw()
    given = (*caller.convention.options, (parameter.name, "object()"))
    answers = [one.answer(inputs) for one in (caller, caller.under(options=given))]
    free, other = answers
    return free is not None and other is not None and torch.equal(free.output, other.output)


def _unambiguous(case: Probed, reading: MaskReading) -> MaskResult:
    """A mask minus the shapes with other meanings at telling sizes: ``[B, Lk]`` if B = Lq.

    Telling sizes are equal sizes, and fewer tokens than items and heads.
    """
    ambiguous = [
        use
        for use in reading.uses
        if not all(_holds(case, use, reading, sizes) for sizes in _telling_sizes(case))
    ]
    kept = tuple(use for use in reading.uses if use not in ambiguous)
    natives = tuple(use.native for use in ambiguous)
    if not kept:
        why = f"{', '.join(natives)} is taken for another shape at some sizes"
        return UnreadMask(parameter=reading.parameter, kind=reading.kind, why=why)
    return dataclasses.replace(reading, uses=kept, ambiguous=natives) if ambiguous else reading


def _telling_sizes(case: Probed) -> Iterator[dict[str, int]]:
    """Batch, heads and queries of equal sizes; then two tokens with more items and heads."""
    count = case.caller.draw().geometry.num_heads
    for more_keys in (0, 1):
        sizes = {"batch": count, "query_length": count, "key_length": count + more_keys}
        if case.caller.convention.inputs == "self":
            sizes["query_length"] = sizes["batch"] = sizes["key_length"]
        yield sizes
    few = {"batch": 3, "query_length": 2, "key_length": 2}
    if case.caller.answer(case.caller.draw(few)) is not None:
        yield few


def _holds(case: Probed, use: MaskUse, reading: MaskReading, sizes: dict[str, int]) -> bool:
    inputs = case.caller.draw(sizes, seed=4)
    inputs = masked(inputs, reading.form, use.shape, 4)
    answer = _answer(case.caller, use, inputs)
    return answer is not None and _fits_with_keys(case, reading.point, answer)


def _fits_with_keys(case: Probed, point: golden.Semantics, answer: ProbeAnswer) -> bool:
    """Compare only rows with a key: the rule for empty rows is not known yet.

    Causality in every call leaves the first rows without keys if the mask hides the first keys.
    """
    rows = rows_with_keys(case.judge.read(answer.inputs), point)
    compared = answer.compared(rows)
    far = _FAR * float(answer.output.abs().nan_to_num(posinf=0.0).max())
    if not case.judge.made and case.judge.distance(point, [compared]) > far:
        return False  # a bound takes as long again
    return case.judge.fits(point, [compared])


def _of_parameter(case: Probed, parameter: CallParameter) -> Iterator[MaskResult]:
    additive = _additive(case, parameter)
    lengths = _lengths(case, parameter)
    understood = False
    for kind in (*_KINDS, _THRESHOLD):
        of_numbers = kind in _OF_NUMBERS
        if of_numbers and (additive is not None or (understood and kind is not _THRESHOLD)):
            continue  # tried only if neither a bias nor a mask of two values is accepted
        found = _boolean(case, parameter, kind)
        result, others = (found[0] if found else None), found[1:]
        if kind is _THRESHOLD:  # a test for 0 (a boolean in disguise) is no threshold
            read = [one for one in found if isinstance(one, MaskReading)]
            yield from (one for one in read if one.form == "keep" or not understood)
            continue
        if isinstance(result, MaskReading):
            added = additive is not None and result.point.mask_operation == "add-to-kept"
            if added and kind is not _KINDS[0]:
                continue  # a bias of 0 and 1
            understood = not added
        elif (
            result is not None
            and (additive is not None or lengths is not None or understood)
            and not (result.idle and kind is _KINDS[0])  # nobody expects a bool to be ignored
        ):
            continue  # the parameter is meant for another form
        yield from () if result is None else (result, *others)
    yield from (result for result in (additive, lengths) if result is not None)


def _shapes_of(caller: Caller) -> list[tuple[str, str, str]]:
    shapes = [*_SHAPES, *_TURNED, *_by_head(caller, _SHAPES)]
    if not caller.convention.layout.batched:
        shapes = [entry for entry in shapes if "B" not in entry[0]]
        shapes = [entry for entry in shapes if "1" not in entry[0]]
    return shapes


def _by_head(
    caller: Caller, shapes: Sequence[tuple[str, str, str]]
) -> Iterator[tuple[str, str, str]]:
    """The shapes of items where the heads of every item are items, too."""
    if not caller.convention.layout.folds_heads:
        return
    repeated = f"{{}}.repeat_interleave({caller.convention.inputs_names[0]}.shape[1], 0)"
    for letters, _, native in shapes:
        if letters[:1] == "B" and not {*"1H"} & {*letters}:
            yield letters, repeated, native.replace("B", "B*H")


def _use(parameter: CallParameter, form: str, shape: tuple[str, str, str], give: str) -> MaskUse:
    declared, turn, native = shape
    give = turn.replace("{}", give)
    return MaskUse(form=form, parameter=parameter.name, shape=declared, native=native, give=give)


def _answer(caller: Caller, use: MaskUse, inputs: Inputs) -> ProbeAnswer | None:
    return caller.under(masks=(use,)).answer(inputs)


def _probe(
    caller: Caller, form: str, shape: str, seed: int, sizes: Mapping[str, int] | None = None
) -> Inputs:
    return masked(caller.draw(sizes, seed=seed), form, shape, seed)


def _boolean(
    case: Probed, parameter: CallParameter, kind: tuple[str, str, str, str]
) -> list[MaskResult]:
    """A mask of two values: its polarity and effect, several if shapes differ.

    Forms with a batch axis that fit no reading are probed again with a single item, safe from
    mixing.
    """
    results, taken = _two_values(case, parameter, kind, None)
    natives = {use.native for use in taken if use.shape[:1] == "B" and "*" not in use.native}
    by_item = any("B" in use.shape for one in _read_ones(results) for use in one.uses)
    idle = any(isinstance(one, UnreadMask) and one.idle for one in results)
    if not natives or by_item or idle or not case.caller.convention.layout.batched:
        return results
    alone, _ = _two_values(case, parameter, kind, {"batch": 1})
    mixing = [
        dataclasses.replace(one, uses=uses, mixes_items=True)
        for one in _read_ones(alone)
        if one.exact and (uses := tuple(use for use in one.uses if use.native in natives))
    ]
    return [*mixing] or results


def _read_ones(results: Sequence[MaskResult]) -> list[MaskReading]:
    return [one for one in results if isinstance(one, MaskReading)]


def _two_values(
    case: Probed,
    parameter: CallParameter,
    kind: tuple[str, str, str, str],
    sizes: Mapping[str, int] | None,
) -> tuple[list[MaskResult], list[MaskUse]]:
    """The effects of a mask of two values at some sizes, and the accepted uses."""
    word, keep_form, drop_form, give = kind
    give = give.replace("{query}", case.caller.convention.inputs_names[0])
    taken: list[tuple[MaskUse, ProbeAnswer]] = []
    for shape in _shapes_of(case.caller):
        if shape not in _SHAPES and shape[0] in [use.shape for use, _ in taken]:
            continue
        use = _use(parameter, "keep", shape, give)
        answer = _answer(case.caller, use, _probe(case.caller, "keep", shape[0], 0, sizes))
        if answer is not None:
            taken.append((use, answer))
    if word != "bool":
        taken = [pair for pair in taken if not _means_additive(case, pair[1])]
    if not taken:
        return [], []
    every = [use for use, _ in taken]
    left = [pair for pair in taken if not _unmoved(case.caller, pair[1])]
    if not left:
        why = "it changes nothing"
        return [UnreadMask(parameter=parameter, kind=word, why=why, idle=True)], every
    results: list[MaskResult] = []
    for reading in _readings(case.point):
        fitting = [use for use, answer in left if _fits_with_keys(case, reading, answer)]
        # Further shapes are tried only with the other polarity, not with other operations.
        again = results and reading.mask_operation != "replace"
        if not fitting or again or reading.mask_operation == "ignore":
            continue
        drops = reading.mask_polarity == "drop"
        form = drop_form if drops else keep_form
        # A keeping mask of 0 and 1 arrives as integers already.
        cast = ".to(torch.int64)" if word == "int" and not drops else ""
        uses = [
            dataclasses.replace(
                use, form=form, give=use.give.replace(cast, "") if cast else use.give
            )
            for use in fitting
        ]
        read = _reading(parameter, word, form, uses, reading.replace(mask_polarity="keep"))
        results += [] if read is None else [read]
        left = [(use, answer) for use, answer in left if use not in fitting]
    if results:  # a declaration can express the reading of most shapes
        ordered = sorted(
            results, key=lambda one: -len(one.uses) if isinstance(one, MaskReading) else 0
        )
        return ordered, every
    own = _moves_own_rows(case.caller, taken)
    return [
        UnreadMask(parameter=parameter, kind=word, why=_OF_QUERIES if own else _NOT_KNOWN)
    ], every


def _means_additive(case: Probed, answer: ProbeAnswer) -> bool:
    """Whether a mask of 0 and 1 was simply added to the logits, and so is a bias."""
    keep = answer.inputs.keep
    if keep is None:
        return False
    bias = keep.to(answer.inputs.query.dtype)
    plain = dataclasses.replace(answer, inputs=answer.inputs.without_mask())
    return case.fits(plain.read_as(bias=bias))


def _unmoved(caller: Caller, answer: ProbeAnswer) -> bool:
    """Whether an answer is the answer without its mask, bit by bit."""
    free = caller.answer(answer.inputs.without_mask())
    return free is not None and torch.equal(free.output, answer.output)


def _moves_own_rows(caller: Caller, taken: Sequence[tuple[MaskUse, ProbeAnswer]]) -> bool:
    """Whether a mask of tokens changes exactly the rows of the hidden tokens."""
    own = [answer for use, answer in taken if use.shape in ("BK", "B11K")]
    for answer in own:
        keep, free = answer.inputs.keep, caller.answer(answer.inputs.without_mask())
        if keep is None or free is None or free.output.shape != answer.output.shape:
            return False
        moved = (free.output != answer.output).any(dim=-1).unflatten(0, (len(keep), -1))
        moved = moved.flatten(1, -2).any(dim=1) if moved.dim() > 2 else moved  # noqa: PLR2004 (items and rows)
        hidden = ~keep.flatten(1)
        if moved.shape != hidden.shape or not (moved == hidden).all():
            return False
    return bool(own)


def _readings(point: golden.Semantics) -> list[golden.Semantics]:
    """The possible effects of a mask of two values, the specification first, in both polarities."""
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


def _additive(case: Probed, parameter: CallParameter) -> MaskResult | None:
    """A mask that is added to the logits: finite numbers and minus infinity."""
    uses: list[MaskUse] = []
    last = case.point
    for shape in _shapes_of(case.caller):
        if shape not in _SHAPES and shape[0] in [use.shape for use in uses]:
            continue
        use = _use(parameter, "bias", shape, "{}")
        inputs = _probe(case.caller, "bias", shape[0], 2)
        bias = torch.randn(inputs.keep.shape, generator=torch.Generator().manual_seed(3))  # type: ignore[union-attr]  # a probe has a mask
        inputs = inputs.replace(bias=bias.to(inputs.query.dtype))
        finite = inputs.replace(keep=torch.ones_like(inputs.keep))  # type: ignore[arg-type]  # a probe has a mask
        plain, hidden = _answer(case.caller, use, finite), _answer(case.caller, use, inputs)
        if plain is None:
            continue
        samples = [plain.read_as(keep=None)]
        samples += [hidden] if hidden is not None else []
        orders = [case.point.replace(bias_order=name) for name in ("after-scale", "before-scale")]
        fits = (all(_fits_with_keys(case, order, one) for one in samples) for order in orders)
        reading = next((order for order, fit in zip(orders, fits, strict=True) if fit), None)
        if reading is not None:
            uses.append(use)
            last = reading
    return _reading(parameter, BIAS, "bias", uses, last)


def _lengths(case: Probed, parameter: CallParameter) -> MaskResult | None:
    """Numbers of valid keys, for items or for queries.

    Shapes with a batch axis that fit no reading are probed again with a single item.
    """
    taken = [
        _use(parameter, LENGTHS, shape, "{}")
        for shape in (*_LENGTHS, *_by_head(case.caller, _LENGTHS))
        if case.caller.convention.layout.batched == ("B" in shape[0])
    ]
    for sizes in (None, {"batch": 1}):
        asked = [
            (use, _answer(case.caller, use, _probe(case.caller, LENGTHS, use.shape, 0, sizes)))
            for use in taken
        ]
        uses = [use for use, answer in asked if answer is not None and case.fits(answer)]
        taken = [use for use, answer in asked if answer is not None and "B" in use.shape]
        read = _reading(parameter, LENGTHS, LENGTHS, uses, case.point)
        if read is not None:
            return dataclasses.replace(read, mixes_items=sizes is not None)
    return None


def _reading(
    parameter: CallParameter, kind: str, form: str, uses: list[MaskUse], point: golden.Semantics
) -> MaskReading | None:
    if not uses:
        return None
    return MaskReading(parameter=parameter, kind=kind, form=form, uses=tuple(uses), point=point)


def chosen_uses(results: Sequence[MaskResult]) -> tuple[MaskUse, ...]:
    """The use of a mask of each form: one parameter, or several parameters chosen by shape.

    If a bool mask offers a form, int and float masks do not supply the form.
    """
    every = [result for result in results if isinstance(result, MaskReading)]
    understood = [reading for reading in every if reading.kind != _THRESHOLD[0]] or every
    forms = dict.fromkeys(reading.form for reading in understood)
    uses: list[MaskUse] = []
    for form in forms:
        own = [reading for reading in understood if reading.form == form]
        own = [reading for reading in own if reading.exact] or own
        own = [reading for reading in own if reading.kind == own[0].kind]
        alone = next(
            (reading for reading in own if all(_covers(reading, other) for other in own)), None
        )
        if alone is not None:
            uses.extend(alone.uses)
        else:
            uses.extend(_by_shape([use for reading in own for use in reading.uses]))
    return tuple(uses)


def _covers(reading: MaskReading, other: MaskReading) -> bool:
    return {use.shape for use in other.uses} <= {use.shape for use in reading.uses}


def _by_shape(uses: Sequence[MaskUse]) -> Iterator[MaskUse]:
    taken: set[str] = set()
    for use in uses:
        shape, turn = _AS_FOUR.get(use.shape, (use.shape, "{0}"))
        if len(shape) != len("BHQK") or shape in taken:
            continue
        taken.add(shape)
        give = use.give.replace("{}", turn.replace("{0}", "{}"))
        yield dataclasses.replace(use, shape=shape, give=give)
