"""Probe the causal flag, alone and with a mask, and the answers to queries without keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from .._golden import golden
from ..declare.declaration import BY_CAUSALITY
from .agreement import PointJudge, Probed
from .caller import Caller, ProbeAnswer, Refusal, draw_keep, masked
from .convention import MaskUse
from .deviations import Causality, without_effect
from .record import LIKELY, empty_words, placed
from .signature import CallParameter
from .switches import FLIPPED, is_flag

if TYPE_CHECKING:
    from .deviations import Investigation


# If both fit, the specification's alignment wins.
_ALIGNMENTS: Final = ("bottom-right", "top-left")
_OFFSETS: Final = (0, -1, 1)
_COMBINATIONS: Final = ("both", "mask-only", "causal-only", "either")
_UNREAD: Final = "it hides keys in no way that is known"
_ONE_QUERY: Final = {"query_length": 1, "key_length": 6}
LONG_KEYS: Final = {"query_length": 4, "key_length": 6}
LONG_QUERIES: Final = {"query_length": 6, "key_length": 4}
_SQUARE: Final = {"query_length": 5, "key_length": 5}


def find_causality(case: Investigation, parameter: CallParameter) -> Causality:
    """Probe a flag with more keys than queries and the reverse, else with equal lengths."""
    caller, judge = case.caller, case.judge
    # The possible ways to hide a key, the likeliest first.
    points = [case.point, *case.other_readings]
    # If plain calls turn the flag off, the opposite value turns it on.
    gives = FLIPPED.get(dict(caller.convention.options).get(parameter.name, ""), "True")
    flagged = caller.under(causal=parameter.name, causal_gives=gives)
    answers = [_call(flagged, sizes) for sizes in (LONG_KEYS, LONG_QUERIES)]
    if all(isinstance(answer, Refusal) for answer in answers):
        answers = [_call(flagged, _SQUARE)]
    observed = [answer for answer in answers if isinstance(answer, ProbeAnswer)]
    readings: list[golden.Semantics] = []
    why, idle = "", False
    if not observed:
        why = f"with it alone it {answers[0].why}" if isinstance(answers[0], Refusal) else ""
    else:
        idle = judge.fits(points[0], [answer.read_as(causal=False) for answer in observed])
        for point in () if idle else points:
            readings = readings or [
                reading for reading in _points(point) if _fits(reading, observed, judge)
            ]
        if not readings:
            why = "it changes nothing" if idle else _UNREAD
    geometries = (observation.inputs.geometry for observation in observed)
    lengths = ", ".join(f"{sizes.query_length} x {sizes.key_length}" for sizes in geometries)
    return Causality(
        parameter=parameter,
        gives=gives,
        readings=tuple(readings),
        why=why,
        evidence=f"{parameter.name}={gives} on queries x keys of {lengths}",
        idle=idle,
    )


def _points(point: golden.Semantics) -> list[golden.Semantics]:
    return [
        point.replace(causal_alignment=alignment, causal_offset=offset)
        for offset in _OFFSETS
        for alignment in _ALIGNMENTS
    ]


def _call(caller: Caller, sizes: dict[str, int]) -> ProbeAnswer | Refusal:
    inputs = caller.draw(sizes, seed=0).replace(causal=True)
    answer = caller.call(inputs)
    if isinstance(answer, ProbeAnswer) and tuple(answer.output.shape) != inputs.output_shape:
        return Refusal("shape", f"returned the shape {list(answer.output.shape)}")
    return answer


def _fits(point: golden.Semantics, observed: Sequence[ProbeAnswer], judge: PointJudge) -> bool:
    return judge.fits(point, (answer.live(point) for answer in observed))


def find_combination(case: Probed, use: MaskUse) -> str | None:
    """How mask and causality combine: ``both``, … or ``refused``; None if no rule fits."""
    inputs = case.caller.draw(LONG_KEYS, seed=0)
    keep = draw_keep(use.form, use.shape, inputs.geometry, seed=3)
    keep[..., 0] = True  # top-left causality shows this key to every query, too
    inputs = masked(inputs, use.form, use.shape, keep).replace(causal=True)
    answer = case.caller.under(masks=(use,)).call(inputs)
    if isinstance(answer, Refusal):
        return "refused"
    for combination in _COMBINATIONS:
        reading = case.point.replace(causal_combination=combination)
        if case.judge.fits(reading, [answer.live(reading)]):
            return combination
    return None


def find_single_query(case: Probed) -> golden.Semantics | None:
    """The point without causality for a single query, if only that exemption explains the answer.

    Only a top-left alignment with several keys shows a difference.
    """
    answer = _call(case.caller, _ONE_QUERY)
    if isinstance(answer, Refusal) or answer.inputs.geometry.query_length != 1:
        return None
    free = case.point.replace(one_query_causal=False)
    return (
        free
        if case.fits(answer, one_query_causal=False) and not case.fits(answer.live(case.point))
        else None
    )


# The factor of tokens to make logits differ by more than the float32 rounding of 1e9.
_LOUD: Final = 32.0
RULES: Final = ("zeros", "nan", "mean-of-all", "mean-of-valid")
_RAISES: Final = ("raises",)
_OTHER: Final = ("other",)


def empty_row_rules(
    case: Probed, use: MaskUse | None = None, *, causal: bool = False
) -> tuple[str, ...]:
    """The rules that fit rows left without a key by a mask, by causality or by both.

    A mask hides all keys from the first row of each item (or from an item); without a mask, queries
    outnumber keys. The result is empty if every row has a key.
    """
    inputs = case.caller.draw({} if use else LONG_QUERIES, seed=4).replace(causal=causal)
    if use is not None:
        keep = draw_keep(use.form, use.shape, inputs.geometry, seed=5).clone()
        by_both = case.judge.always_causal and use.form != "lengths"
        if by_both:  # the first rows keep later keys alone, hidden by causality
            keep[..., :2] = False
        if not by_both or keep.shape[2] > 1:
            keep[:1, :, :1] = False
        if not causal and not by_both and keep.shape[2] > 1:
            keep[:, :, :1] = False
        case = case.under(masks=(use,))
        inputs = masked(inputs, use.form, use.shape, keep)
    rows = ~case.judge.read(inputs).allowed(case.point).any(dim=-1)
    if use is None and not bool(rows.any()):
        return ()
    answer = case.caller.call(inputs)
    if isinstance(answer, Refusal):
        return _RAISES
    if tuple(answer.output.shape) != inputs.output_shape:
        return _OTHER
    empty = inputs.answer_rows(rows, case.point)
    sample = answer.compared(empty)
    rules = tuple(rule for rule in RULES if case.fits(sample, empty_rows=rule))
    if rules:  # a large negative number added to hidden logits swallows only small logits
        loud = case.caller.answer(inputs.map_tokens(lambda tokens: _LOUD * tokens))
        same = loud is not None and loud.compared(empty)
        rules = tuple(one for one in rules if same and case.fits(same, empty_rows=one)) or _OTHER
    if not rules and bool(torch.isnan(answer.output[empty.expand(answer.output.shape)]).all()):
        return ("nan",)
    return rules or _OTHER


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


def add_facts(case: Investigation) -> None:
    """Find the working flag, its combination with masks, and the answers of empty rows."""
    tried = [find_causality(case, flag) for flag in _flags(case)]
    working = next((causality for causality in tried if causality.readings), None)
    if working is None:
        named = [
            causality
            for causality in tried
            if causality.parameter.meaning == "causal" and not causality.parameter.guessed
        ]
        words = "; ".join(f"{placed(flag.parameter)}: {flag.why}" for flag in named)
        case.findings.add(
            "causal",
            words or "no flag",
            "calls with the flag alone" if named else "no parameter sounds like one",
            {"flag": None, "alignment": None},
        )
        idle = [flag for flag in named if _is_idle(flag) and not case.judge.always_causal]
        case.idle_flag = idle[0] if idle else None
    else:
        _add_flag(case, working)
    _add_empty_rows(case)


def _is_idle(causality: Causality) -> bool:
    """Whether a flag (no optional mask) changes nothing, or a switch hides keys unreadably."""
    parameter = causality.parameter
    left_out = "mask" not in parameter.name and parameter.default in ("True", "False", "None")
    if not causality.idle:
        switched = left_out or parameter.default in ("True", "False")
        return causality.why == _UNREAD and switched
    return left_out


def promise_idle_flag(case: Investigation) -> None:
    """Promise the flag without effect after all other probes, as for masks."""
    flag = case.idle_flag
    if flag is None:
        return
    name = flag.parameter.name
    case.observed.append(
        without_effect(
            name,
            f"`{name}` looks like a causal flag and hides {'no key' if flag.idle else 'others'}",
            "give keys after a query's own minus infinity before the softmax",
        )
    )
    if not case.as_observed and (case.promises_idle or not flag.idle):
        case.caller = case.caller.under(causal=name, causal_gives=flag.gives)
        case.promises["causal"] = golden.STANDARD.causal_alignment


def _flags(case: Investigation) -> list[CallParameter]:
    off = {name for name, value in case.caller.convention.options if value in ("True", "False")}
    return [
        parameter
        for parameter in case.parameters.entries
        if parameter.by_keyword
        and (parameter.meaning == "causal" or (is_flag(parameter) and parameter.name in off))
    ]


def _add_flag(case: Investigation, causality: Causality) -> None:
    first, parameter = causality.readings[0], causality.parameter
    alignments = list(dict.fromkeys(reading.causal_alignment for reading in causality.readings))
    certain = len(alignments) == 1
    where = alignments[0] if certain else "top-left or bottom-right: lengths are always equal"
    plain = dict(case.caller.convention.options).get(parameter.name)
    always = "" if plain is None or parameter.required else f"; on unless {parameter.name}={plain}"
    case.findings.add(
        "causal",
        f"{placed(parameter)}: {where}{_OFFSET_WORDS[first.causal_offset]}{always}",
        causality.evidence,
        {
            "flag": parameter.name,
            "alignment": first.causal_alignment if certain else None,
            "offset": first.causal_offset,
        },
        *(() if certain else (LIKELY,)),
    )
    if first.mask_operation != case.point.mask_operation:
        case.findings.add(
            "causal hiding",
            f"as by the masks that are not declared ({first.mask_operation})",
            causality.evidence,
            first.mask_operation,
        )
        return
    case.point = case.point.replace(
        causal_alignment=first.causal_alignment, causal_offset=first.causal_offset
    )
    case.promises["causal"] = first.causal_alignment
    case.caller = case.caller.under(causal=parameter.name, causal_gives=causality.gives)
    single = find_single_query(case)
    if single is not None:
        case.point = single
        case.findings.add(
            "causal, one query",
            "a single query is never causal: it sees every key",
            "the flag with one query on six keys",
            {"one_query_causal": False},
        )
    _add_combination(case)


def _add_combination(case: Investigation) -> None:
    """Add how flag and mask combine; drop the flag if no declaration can express the rule."""
    by_use = {use: find_combination(case, use) for use in case.caller.convention.masks}
    by_use = _without_refused_shapes(case, by_use)
    every: dict[str, set[str | None]] = {}
    for use, rule in by_use.items():
        every.setdefault(use.form, set()).add(rule)
    rules = {form: own.pop() if len(own) == 1 else None for form, own in every.items()}
    if not rules:
        return
    words = {
        form: _COMBINATION_WORDS.get(str(rule), "in no known way") for form, rule in rules.items()
    }
    first, *others = dict.fromkeys(rules.values())
    case.findings.add(
        "causal and mask",
        "; ".join(f"{form}: {text}" for form, text in words.items())
        if others
        else next(iter(words.values())),
        f"both at once ({', '.join(rules)})",
        rules if others else first,
    )
    if not others and first is not None:
        case.point = case.point.replace(causal_combination=first)
        return
    case.findings.add(
        "flags left out",
        str(case.caller.convention.causal),
        "a declaration has one rule for a flag together with a mask of any form",
        [case.caller.convention.causal],
    )
    case.caller = case.caller.under(causal=None)
    case.promises.pop("causal", None)
    case.point = case.point.replace(
        causal_alignment=golden.STANDARD.causal_alignment, causal_offset=0, one_query_causal=True
    )


def _without_refused_shapes(
    case: Investigation, by_use: dict[MaskUse, str | None]
) -> dict[MaskUse, str | None]:
    """Leave out mask shapes refused together with the flag, unless a whole form would vanish.

    A declaration promises equal shapes with and without the flag.
    """
    refused = dict.fromkeys(use.shape for use, rule in by_use.items() if rule == "refused")
    kept = {use: rule for use, rule in by_use.items() if use.shape not in refused}
    if not refused or {use.form for use in kept} != {use.form for use in by_use}:
        return by_use
    native = dict.fromkeys(use.native for use in by_use if use.shape in refused)
    case.findings.add(
        "mask shapes left out",
        f"{', '.join(native)}: refused together with {case.caller.convention.causal}",
        "both at once, in each shape",
        list(refused),
    )
    case.caller = case.caller.under(masks=tuple(kept))
    return kept


def _add_empty_rows(case: Investigation) -> None:
    """Promise one rule for rows left empty by masks and by causality, or a rule for each."""
    by_way: dict[str, set[str]] = {}
    for form, *rules in case.promises.pop("empty_by_mask", []):
        by_way[form] = by_way.get(form, set(rules)) & set(rules)
    point, convention = case.point, case.caller.convention
    if convention.causal and point.mask_operation in ("replace", "add"):
        by_flag = empty_row_rules(case, causal=True)
        if by_flag:
            by_way[BY_CAUSALITY] = set(by_flag)
            words = empty_words(by_flag)
            evidence = "more queries than keys"
            case.findings.add("empty rows by causality", words, evidence, by_flag[0])
        if convention.masks and point.causal_combination == "both":
            both = set(empty_row_rules(case, convention.masks[0], causal=True))
            by_way[BY_CAUSALITY] = by_way.get(BY_CAUSALITY, both) & both
    if not by_way:
        return
    common = _declarable(set.intersection(*by_way.values()))
    if common != "any":
        case.promises["empty_rows"] = common
        case.point = point.replace(empty_rows=common)
        return
    each = {way: _declarable(rules) for way, rules in by_way.items()}
    case.promises["empty_rows"] = each if set(each.values()) != {"any"} else "any"


def _declarable(rules: set[str]) -> str:
    return next((rule for rule in RULES if rule in rules), "any")
