"""The causal flag, alone and with a mask, and what a query without any key returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ..._golden import golden
from ...declare.declaration import BY_CAUSALITY
from ...problems.inputs import Inputs
from .agreement import Judge, Seen
from .box import Box, Observation, Refusal
from .convention import MaskUse
from .deviations import Causality, Deviation
from .drawing import masked, prefix_keep, random_keep
from .record import LIKELY, empty_words, placed
from .signature import Parameter
from .switches import is_flag

if TYPE_CHECKING:
    from .deviations import Case


# Where nothing tells them apart, the specification's own is taken.
_ALIGNMENTS: Final = ("bottom-right", "top-left")
_OFFSETS: Final = (0, -1, 1)
_COMBINATIONS: Final = ("both", "mask-only", "causal-only", "either")
_ONE_QUERY: Final = {"query_length": 1, "key_length": 6}
LONG_KEYS: Final = {"query_length": 4, "key_length": 6}
LONG_QUERIES: Final = {"query_length": 6, "key_length": 4}
# A flag that was turned off for plain calls is turned on by its other value.
_FLIPPED: Final = {"False": "True", "True": "False"}
_SQUARE: Final = {"query_length": 5, "key_length": 5}


def find_causality(
    box: Box, parameter: Parameter, points: Sequence[golden.Semantics], judge: Judge
) -> Causality:
    """Probe one flag, with more keys than queries and the reverse where both are taken.

    ``points`` are what hiding a key may mean for this thing, the likeliest first.
    """
    gives = _FLIPPED.get(dict(box.convention.options).get(parameter.name, ""), "True")
    flagged = box.under(causal=parameter.name, causal_gives=gives)
    answers = [_ask(flagged, sizes) for sizes in (LONG_KEYS, LONG_QUERIES)]
    observed = [one for one in answers if isinstance(one, Observation)]
    if not observed:
        answers = [_ask(flagged, _SQUARE)]
        observed = [one for one in answers if isinstance(one, Observation)]
    if not observed:
        refusal = answers[0]
        why = refusal.why if isinstance(refusal, Refusal) else "gives an answer of another shape"
        return Causality(
            parameter=parameter, gives=gives, readings=(), why=f"with it alone it {why}"
        )
    plain = [Seen(one.inputs.replace(causal=False), one.output) for one in observed]
    if judge.fits(points[0], plain):
        return Causality(
            parameter=parameter, gives=gives, readings=(), why="it changes nothing", idle=True
        )
    fits: list[golden.Semantics] = []
    for point in points:
        fits = fits or [one for one in _points(point) if _fits(one, observed, judge)]
    if not fits:
        return Causality(
            parameter=parameter,
            gives=gives,
            readings=(),
            why="it hides keys in no way that is known",
        )
    lengths = ", ".join(
        f"{one.inputs.geometry.query_length} x {one.inputs.geometry.key_length}" for one in observed
    )
    return Causality(
        parameter=parameter,
        gives=gives,
        readings=tuple(fits),
        evidence=f"{parameter.name}={gives} on queries x keys of {lengths}",
    )


def _points(point: golden.Semantics) -> list[golden.Semantics]:
    return [
        point.replace(causal_alignment=alignment, causal_offset=offset)
        for offset in _OFFSETS
        for alignment in _ALIGNMENTS
    ]


def _ask(box: Box, sizes: dict[str, int]) -> Observation | Refusal:
    inputs = box.draw(sizes, seed=0).replace(causal=True)
    answer = box.ask(inputs)
    if isinstance(answer, Observation) and tuple(answer.output.shape) != inputs.output_shape:
        return Refusal("shape", f"returned the shape {list(answer.output.shape)}")
    return answer


def _fits(point: golden.Semantics, observed: Sequence[Observation], judge: Judge) -> bool:
    return all(
        judge.fits(point, [Seen(one.inputs, one.output, rows_with_keys(one.inputs, point))])
        for one in observed
    )


def rows_with_keys(inputs: Inputs, point: golden.Semantics) -> Any:
    """The rows in which every head has a key, broadcastable to the answer."""
    some = inputs.allowed(point).any(dim=-1)
    return some.all(dim=1).unsqueeze(-1) if inputs.is_layer else some.unsqueeze(-1)


def find_combination(box: Box, use: MaskUse, point: golden.Semantics, judge: Judge) -> str | None:
    """How mask and causality act together: ``both``, … or ``refused``; None when unknown."""
    both = box.under(masks=(use,))
    inputs = box.draw(LONG_KEYS, seed=0)
    make = prefix_keep if use.form == "lengths" else random_keep
    keep = make(use.shape, inputs.geometry, seed=3)
    keep[..., 0] = True  # a key that causality shows to every query of top-left, too
    inputs = masked(inputs, use.form, use.shape, keep).replace(causal=True)
    answer = both.ask(inputs)
    if isinstance(answer, Refusal):
        return "refused"
    for combination in _COMBINATIONS:
        reading = point.replace(causal_combination=combination)
        seen = Seen(inputs, answer.output, rows_with_keys(inputs, reading))
        if judge.fits(reading, [seen]):
            return combination
    return None


def find_single_query(box: Box, point: golden.Semantics, judge: Judge) -> golden.Semantics | None:
    """The point at which a single query is never causal, where that alone explains the answer.

    Only an alignment at the first key can tell, with more keys than the one.
    """
    answer = _ask(box, _ONE_QUERY)
    if isinstance(answer, Refusal) or answer.inputs.geometry.query_length != 1:
        return None
    seen = Seen(answer.inputs, answer.output, rows_with_keys(answer.inputs, point))
    free = point.replace(one_query_causal=False)
    whole = Seen(answer.inputs, answer.output)
    return free if judge.fits(free, [whole]) and not judge.fits(point, [seen]) else None


RULES: Final = ("zeros", "nan", "mean-of-all", "mean-of-valid")
RAISES: Final = "raises"
OTHER: Final = "other"


def by_mask(box: Box, use: MaskUse, point: golden.Semantics, judge: Judge) -> tuple[str, ...]:
    """The rules that fit where a mask leaves the first row of each item (or an item) no key."""
    inputs = box.draw(seed=4)
    make = prefix_keep if use.form == "lengths" else random_keep
    keep = make(use.shape, inputs.geometry, seed=5).clone()
    keep[:1, :, :1] = False
    if keep.shape[2] > 1:
        keep[:, :, :1] = False
    return _rules(box.under(masks=(use,)), masked(inputs, use.form, use.shape, keep), point, judge)


def by_causality(box: Box, point: golden.Semantics, judge: Judge) -> tuple[str, ...]:
    """The rules that fit where more queries than keys leave the first ones none (bottom-right)."""
    inputs = box.draw(LONG_QUERIES, seed=4).replace(causal=True)
    if bool(inputs.allowed(point).any(dim=-1).all()):
        return ()
    return _rules(box, inputs, point, judge)


def by_both(box: Box, use: MaskUse, point: golden.Semantics, judge: Judge) -> tuple[str, ...]:
    """The same where mask and causality together leave none: tells the two means apart."""
    inputs = box.draw(seed=4).replace(causal=True)
    make = prefix_keep if use.form == "lengths" else random_keep
    keep = make(use.shape, inputs.geometry, seed=5).clone()
    keep[:1, :, :1] = False
    return _rules(box.under(masks=(use,)), masked(inputs, use.form, use.shape, keep), point, judge)


def _rules(box: Box, inputs: Inputs, point: golden.Semantics, judge: Judge) -> tuple[str, ...]:
    answer = box.ask(inputs)
    if isinstance(answer, Refusal):
        return (RAISES,)
    rows = ~inputs.allowed(point).any(dim=-1)
    empty = rows.any(dim=1).unsqueeze(-1) if inputs.is_layer else rows.unsqueeze(-1)
    if tuple(answer.output.shape) != inputs.output_shape:
        return (OTHER,)
    found = tuple(
        rule
        for rule in RULES
        if judge.fits(point.replace(empty_rows=rule), [Seen(inputs, answer.output, empty)])
    )
    if not found and bool(torch.isnan(answer.output[empty.expand(answer.output.shape)]).all()):
        return ("nan",)
    return found or (OTHER,)


_OFFSET_WORDS: Final = {
    0: "",
    1: "; one too far: the next key is seen",
    -1: "; one short: a query does not see its own key",
}
_COMBINATION_WORDS: Final = {
    "both": "a key must be admitted by both",
    "causal-only": "the mask is dropped when the flag is set",
    "mask-only": "the flag is dropped when a mask is given",
    "either": "a key admitted by either is attended",
    "refused": "refused",
}


def ask(case: Case) -> None:
    """Find the flag that works; then its company."""
    parameters = _flags(case)
    points = [case.point, *case.other_readings]
    tried = [find_causality(case.box, one, points, case.judge) for one in parameters]
    working = next((one for one in tried if one.works), None)
    tried = [
        one for one in tried if one.parameter.meaning == "causal" and not one.parameter.guessed
    ]
    if working is None:
        words = "; ".join(f"{placed(one.parameter)}: {one.why}" for one in tried)
        case.found.add(
            "causal",
            words or "no flag",
            "calls with the flag alone" if tried else "no parameter sounds like one",
            {"flag": None, "alignment": None},
        )
        idle = [one for one in tried if _is_idle(one) and not case.judge.always_causal]
        case.idle_flag = idle[0] if idle else None
    else:
        _take(case, working)
    _settle_empty_rows(case)


def _is_idle(found: Causality) -> bool:
    """Whether a flag, and no mask of that name, changes nothing."""
    one = found.parameter
    return found.idle and "mask" not in one.name and one.default in ("True", "False", "None")


def promise_idle(case: Case) -> None:
    """Promise the flag that hides nothing, called last, as for masks."""
    one = case.idle_flag
    if one is None:
        return
    name = one.parameter.name
    case.observed.append(
        Deviation(
            observed=f"{name} changes nothing",
            text=f"`{name}` looks like a causal flag and hides no key",
            fix="give keys after a query's own minus infinity before the softmax",
            mistaken=True,
        )
    )
    if not case.as_observed:
        case.box = case.box.under(causal=name, causal_gives=one.gives)
        case.promises["causal"] = golden.STANDARD.causal_alignment


def _flags(case: Case) -> list[Parameter]:
    """What sounds causal, and the flags that plain calls turn off."""
    off = {name for name, value in case.box.convention.options if value in ("True", "False")}
    return [
        one
        for one in case.parameters.entries
        if one.by_keyword and (one.meaning == "causal" or (is_flag(one) and one.name in off))
    ]


def _unless(case: Case, found: Causality) -> str:
    """What is said of a flag that has to be turned off."""
    plain = dict(case.box.convention.options).get(found.parameter.name)
    required = found.parameter.required
    return "" if plain is None or required else f"; on unless {found.parameter.name}={plain}"


def _take(case: Case, found: Causality) -> None:
    first = found.readings[0]
    alignments = list(dict.fromkeys(one.causal_alignment for one in found.readings))
    known = len(alignments) == 1
    where = alignments[0] if known else "top-left or bottom-right: lengths are always equal"
    case.found.add(
        "causal",
        f"{placed(found.parameter)}: {where}{_OFFSET_WORDS[first.causal_offset]}"
        f"{_unless(case, found)}",
        found.evidence,
        {
            "flag": found.parameter.name,
            "alignment": found.alignment if known else None,
            "offset": first.causal_offset,
        },
        *(() if known else (LIKELY,)),
    )
    if first.mask_operation != case.point.mask_operation:
        case.found.add(
            "causal hiding",
            f"as by the masks that are not declared ({first.mask_operation})",
            found.evidence,
            first.mask_operation,
        )
        return
    case.point = case.point.replace(
        causal_alignment=found.alignment, causal_offset=first.causal_offset
    )
    case.promises["causal"] = found.alignment
    case.box = case.box.under(causal=found.parameter.name, causal_gives=found.gives)
    _combine(case)


def _combine(case: Case) -> None:
    """How flag and mask act together; the flag is left out where no declaration can say it."""
    single = find_single_query(case.box, case.point, case.judge)
    if single is not None:
        case.point = single
        case.found.add(
            "causal, one query",
            "a single query is never causal: it sees every key",
            "the flag with one query on six keys",
            {"one_query_causal": False},
        )
    words = {}
    for use in {use.form: use for use in reversed(case.box.convention.masks)}.values():
        words[use.form] = find_combination(case.box, use, case.point, case.judge)
    if not words:
        return
    text = {
        form: _COMBINATION_WORDS.get(str(one), "in no known way") for form, one in words.items()
    }
    same = len(set(words.values())) == 1
    case.found.add(
        "causal and mask",
        next(iter(text.values())) if same else "; ".join(f"{f}: {t}" for f, t in text.items()),
        f"both at once ({', '.join(words)})",
        next(iter(words.values())) if same else words,
    )
    one = next(iter(words.values()))
    if same and one is not None:
        case.point = case.point.replace(causal_combination=one)
        return
    case.found.add(
        "flags left out",
        str(case.box.convention.causal),
        "a declaration has one rule for the flag beside a mask of any form",
        [case.box.convention.causal],
    )
    case.box = case.box.under(causal=None)
    case.promises.pop("causal", None)
    case.point = case.point.replace(
        causal_alignment=golden.STANDARD.causal_alignment, causal_offset=0, one_query_causal=True
    )


def _settle_empty_rows(case: Case) -> None:
    """The rule for rows that a mask, causality or both leave empty: one, or one a way."""
    by_way: dict[str, set[str]] = {}
    for form, *rules in case.promises.pop("empty_by_mask", []):
        by_way[form] = by_way.get(form, set(rules)) & set(rules)
    convention = case.box.convention
    if convention.causal and case.point.mask_operation in ("replace", "add"):
        by_flag = by_causality(case.box, case.point, case.judge)
        if by_flag:
            by_way[BY_CAUSALITY] = set(by_flag)
            case.found.add(
                "empty rows by causality",
                empty_words(by_flag),
                "more queries than keys",
                by_flag[0],
            )
        if convention.masks and case.point.causal_combination == "both":
            both = by_both(case.box, convention.masks[0], case.point, case.judge)
            by_way[BY_CAUSALITY] = by_way.get(BY_CAUSALITY, set(both)) & set(both)
    if not by_way:
        return
    common = _declarable(set.intersection(*by_way.values()))
    if common != "any":
        case.promises["empty_rows"] = common
        case.point = case.point.replace(empty_rows=common)
        return
    each = {way: _declarable(rules) for way, rules in by_way.items()}
    case.promises["empty_rows"] = each if set(each.values()) != {"any"} else "any"


def _declarable(rules: set[str]) -> str:
    """The first rule that can be promised, "any" without one."""
    return next((rule for rule in RULES if rule in rules), "any")
