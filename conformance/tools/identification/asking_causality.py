"""The facts about the causal flag, alone, beside a mask, and where it leaves a query no key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..._golden import golden
from ...declare.declaration import BY_CAUSALITY
from . import empty_rows
from .causality import Causality, find_causality, find_combination, find_single_query
from .deviations import Deviation
from .record import LIKELY
from .signature import Parameter
from .switches import is_flag
from .wording import empty_words, placed

if TYPE_CHECKING:
    from .investigation import Case

_OFFSETS: Final = {
    0: "",
    1: "; one too far: the next key is seen",
    -1: "; one short: a query does not see its own key",
}
_COMBINATIONS: Final = {
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
        f"{placed(found.parameter)}: {where}{_OFFSETS[first.causal_offset]}{_unless(case, found)}",
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
    text = {form: _COMBINATIONS.get(str(one), "in no known way") for form, one in words.items()}
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
        by_flag = empty_rows.by_causality(case.box, case.point, case.judge)
        if by_flag:
            by_way[BY_CAUSALITY] = set(by_flag)
            case.found.add(
                "empty rows by causality",
                empty_words(by_flag),
                "more queries than keys",
                by_flag[0],
            )
        if convention.masks and case.point.causal_combination == "both":
            both = empty_rows.by_both(case.box, convention.masks[0], case.point, case.judge)
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
    return next((rule for rule in empty_rows.RULES if rule in rules), "any")
