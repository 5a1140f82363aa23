"""The pages of the survey, in Markdown and in HTML: functions of the records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.views import html_words
from conformance.views.markdown import code, escaped, row, table

from .records import WITHOUT_VERDICT, Record, undecided

_FOLDER: Final = Path(__file__).parent
_DEVIATIONS: Final = 90
_REASON: Final = 160


@dataclass(frozen=True, kw_only=True)
class Line:
    """One candidate as a line of the tables: every text as it is shown."""

    library: str
    name: str
    kind: str
    verdict: str
    style: str
    margin: float | None
    masks: tuple[str, ...]
    causal: str
    empty_rows: str
    scale: str
    fill: str
    others: str
    failures: tuple[Record, ...]
    why: str

    @property
    def shown_margin(self) -> str:
        """The margin with two digits, "" where there is none."""
        return "" if self.margin is None else html_words.margin(self.margin)


def lines(records: Mapping[str, Record]) -> list[Line]:
    """A line for every candidate of every library, those that fail first."""
    every = [_line(record, own) for record in records.values() for own in record["candidates"]]
    return sorted(every, key=lambda line: (_FAILURES_FIRST.index(line.style), line.verdict))


# What needs a look first; of a kind by the verdict, and then by the library.
_FAILURES_FIRST: Final = ("fail", "error", "untestable", "pass")


def _line(record: Record, own: Record) -> Line:
    facts, declared = own.get("facts") or {}, own.get("declared") or {}
    semantics = declared.get("semantics") or {}
    worst = (own.get("worst") or {}).get("margin")
    clauses = [one for one in own.get("clauses") or () if one["level"] == "MUST"]
    style = (
        "untestable" if own["verdict"] in WITHOUT_VERDICT else html_words.verdict(own["verdict"])[0]
    )
    return Line(
        library=record["library"],
        name=own["name"],
        kind=own.get("kind") or (facts.get("kind") or {}).get("kind") or "",
        verdict=own["verdict"],
        style=style,
        margin=None if worst is None or float(worst) < 0 else float(worst),
        masks=tuple(declared.get("masks") or ()),
        causal=_causal(facts, declared),
        empty_rows=_empty_rows(declared) if declared.get("masks") else "",
        scale=_scale(facts, semantics),
        fill=_fill(facts),
        others="; ".join([*_older(record, own), *_others(own, semantics)]),
        failures=tuple(one for one in clauses if one["status"] != "untestable"),
        why=own["reason"] if style == "untestable" else "",
    )


def _empty_rows(declared: Record) -> str:
    """What a row without keys returns; where that differs by what hides them, each once."""
    rule = declared.get("empty_rows") or ""
    if not isinstance(rule, Mapping):
        return str(rule)
    return " or ".join(sorted({str(value) for value in rule.values()}))


def _causal(facts: Record, declared: Record) -> str:
    """How a causal flag aligns, "" where there is none."""
    fact = facts.get("causal") or {}
    if fact.get("flag") or not facts:
        return str(declared.get("causal") or "")
    return "always" if declared.get("causal") else ""


_SCALES: Final[Mapping[str, str]] = {
    "inverse-sqrt-head-size": "1/√d",
    "inverse-head-size": "1/d",
    "none": "1",
}


def _scale(facts: Record, semantics: Record) -> str:
    """What logits are multiplied by, d the size of a head; "" where nobody said."""
    rule = semantics.get("scale") or (facts.get("scale") or {}).get("rule") or ""
    return _SCALES.get(str(rule)) or (f"{rule:.3g}" if isinstance(rule, float) else str(rule))


def _fill(facts: Record) -> str:
    """What hidden keys are filled with: "-inf" where they never win."""
    if "hidden keys" not in facts:
        return ""
    hidden = facts["hidden keys"]
    if hidden is None:
        return "-inf"
    return (
        f"{hidden['fill']:g}"
        if hidden.get("fill") is not None
        else f"above {hidden['threshold']:.0e}"
    )


_IN_COLUMNS: Final = ("scale", "empty_rows", "causal_alignment")


def _older(record: Record, own: Record) -> list[str]:
    """The day of a row that was not judged with the rest of its record."""
    day = own.get("date", record["date"])
    return [] if day == record["date"] else [f"judged {day}"]


def _others(own: Record, semantics: Record) -> list[str]:
    """What is not as the standard has it, besides what has a column of its own."""
    named = [
        f"{name}={value}"
        for name, value in semantics.items()
        if name not in _IN_COLUMNS and not name.endswith("_bias")
    ]
    return [*named, *(own.get("beyond") or ())]


def _total(shown: Sequence[Line]) -> list[tuple[str, int]]:
    return Counter(line.verdict for line in shown).most_common()


def _failures(records: Mapping[str, Record]) -> Iterator[tuple[str, Record, Record]]:
    """Library, candidate and clause of each failure of a clause that must hold."""
    for record in records.values():
        for own in record["candidates"]:
            for clause in own.get("clauses") or ():
                if clause["level"] == "MUST" and clause["status"] != "untestable":
                    yield record["library"], own, clause


_COLUMNS: Final = tuple(
    "candidate,verdict,margin,masks,causal,empty rows,scale,fill,others".split(",")
)
_HOW: Final = (
    "Made by `python -m survey --pages` from the records in `survey/records` and the decisions in "
    "`survey/libraries`; [how a library is added](survey-howto.md). *Margin* is the largest error "
    "over its bound among the clauses that passed. A *fill* that is a number is what hidden logits "
    "are replaced by: a key whose own logit is lower loses to a hidden one; *above* a number, "
    "hidden keys win only among logits of that size, by a fill that is not known. A candidate "
    "`model#0` is one attention of a whole model."
)


def markdown(records: Mapping[str, Record], changed: Sequence[str] | None) -> str:
    """``docs/survey.md``: the table of the field, failures and what was decided, promises."""
    shown = lines(records)
    judged = [record for record in records.values() if record["status"] == "judged"]
    verdicts = ", ".join(f"{number} {escaped(word)}" for word, number in _total(shown))
    blocks = [
        "# The field, surveyed",
        (
            f"Libraries: {len(records)}, of which {len(judged)} could be run. Candidates: "
            f"{len(shown)}, of which {verdicts}. Each was reached as its users reach it, in an "
            "environment of its own, in float32 and in the profile quick."
        ),
        _HOW,
        *_decided_blocks(records),
        "## Candidates",
        table(_COLUMNS, (_markdown_row(line) for line in shown)),
        *_promise_blocks(records),
        "## Libraries",
        table(
            ("library", "version", "surveyed", "candidates", "what is judged, or why nothing is"),
            (_library_row(record) for record in records.values()),
        ),
        *_change_blocks(changed),
    ]
    return "\n\n".join(blocks) + "\n"


def _library_row(record: Record) -> str:
    about = record["about"].partition(": ")[2]
    why = about if record["status"] == "judged" else f"{record['status']}: {record['reason']}"
    number = str(len(record["candidates"]))
    return row(
        code(record["library"], in_table=True),
        escaped(record["version"]),
        _days([record]),
        number,
        escaped(why),
    )


def _markdown_row(line: Line) -> str:
    return row(
        code(f"{line.library}.{line.name}", in_table=True),
        escaped(line.verdict),
        line.shown_margin,
        *map(escaped, (", ".join(line.masks), line.causal, line.empty_rows, line.scale, line.fill)),
        escaped(html_words.short(line.others or line.why, _DEVIATIONS)),
    )


def _decided_blocks(records: Mapping[str, Record]) -> Iterator[str]:
    """The failures, those of one reason as one row, and what is still open."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for library, own, clause in _failures(records):
        key = (
            library,
            clause.get("decided", "open"),
            clause.get("why", ""),
            clause.get("finding", ""),
        )
        groups.setdefault(key, []).append(f"{own['name']} {clause['id']}")
    if not groups:
        return
    yield "## What fails, and what that is"
    open_ones = sum(1 for record in records.values() for _ in undecided(record))
    yield (
        f"{open_ones} failures of clauses that must hold are not decided yet."
        if open_ones
        else "Every failure is decided."
    )
    yield table(
        ("library", "what", "why", "finding", "failures"),
        (
            row(
                code(library, in_table=True),
                escaped(decided),
                escaped(why),
                f"[{finding[:3]}](findings/{finding}.md)" if finding else "",
                _few(every),
            )
            for (library, decided, why, finding), every in sorted(groups.items())
        ),
    )


_MOST: Final = 6


def _few(every: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    left = len(every) - _MOST
    more = [f"and {left} more"] if left > 0 else []
    return ", ".join([*(code(one, in_table=True) for one in every[:_MOST]), *more])


def _promise_blocks(records: Mapping[str, Record]) -> Iterator[str]:
    promises = [
        (record["library"], one) for record in records.values() for one in record["promises"]
    ]
    if promises:
        yield "## Promises of their own documentation"
        yield table(
            ("library", "what it says", "held", "broken by"),
            (
                row(
                    code(library, in_table=True),
                    f"[{escaped(one['sentence'])}]({one['link']})",
                    one["held"],
                    _few(one["by"]),
                )
                for library, one in promises
            ),
        )


def _change_blocks(changed: Sequence[str] | None) -> Iterator[str]:
    if changed is not None:
        yield "## What changed since the last survey"
        yield "\n".join(f"- {escaped(sentence)}" for sentence in changed) or "Nothing."


def html(records: Mapping[str, Record], changed: Sequence[str] | None) -> str:
    """One page that filters and sorts the same, and fetches nothing."""
    shown = lines(records)
    script = html_words.resource("page.js") + (_FOLDER / "sorting.js").read_text(encoding="utf-8")
    template = (_FOLDER / "survey.html.jinja").read_text(encoding="utf-8")
    tool = {
        "name": "attention-conformance",
        "version": next((one["tool"] for one in records.values()), ""),
    }
    facts = {
        "tool": " ".join(tool.values()).strip(),
        "torch": ", ".join(sorted({one["torch"] for one in records.values()})),
        "python": ", ".join(sorted({one["python"] for one in records.values()})),
        "surveyed": _days(records.values()),
    }
    return (
        html_words.environment()
        .from_string(template)
        .render(
            record={"tool": tool},
            script=script,
            policy=html_words.policy(script),
            lines=shown,
            days=_days,
            libraries=list(records.values()),
            total=_total(shown),
            filters=_filters(shown),
            facts=list(facts.items()),
            changed=changed,
            promises=[
                (record["library"], one)
                for record in records.values()
                for one in record["promises"]
            ],
            sortable=_sortable,
            reason=_REASON,
        )
    )


def _days(records: Iterable[Record]) -> str:
    """When records were made, from the first of their rows to the last."""
    days = sorted(
        {
            own.get("date", record["date"])
            for record in records
            for own in (*record["candidates"], record)
        }
    )
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""


def _sortable(margin: float | None) -> str:
    """A margin that sorts as a number: none below all others."""
    return "-1" if margin is None else str(margin if math.isfinite(margin) else 1e300)


def _filters(shown: Sequence[Line]) -> list[tuple[str, str, list[tuple[str, str, int]]]]:
    """What can be chosen: the group's name in the script, its legend and its choices."""
    groups: dict[tuple[str, str], Counter[tuple[str, str]]] = {
        ("status", "verdict"): Counter(
            (line.style, _STYLES.get(line.style, line.style)) for line in shown
        ),
        ("level", "kind"): Counter((line.kind, line.kind) for line in shown if line.kind),
        ("dtype", "masks"): Counter((form, form) for line in shown for form in line.masks),
        ("family", "library"): Counter((line.library, line.library) for line in shown),
    }
    return [
        (name, legend, [(value, label, number) for (value, label), number in sorted(count.items())])
        for (name, legend), count in groups.items()
        if len(count) > 1
    ]


_STYLES: Final[Mapping[str, str]] = {
    "pass": "conforms",
    "fail": "fails",
    "untestable": "not judged",
}
