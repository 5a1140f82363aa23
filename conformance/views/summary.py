"""The verdict at a glance: each cause once, with fix and smallest input, on forty lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from ..base.line_breaking import broken_into_lines
from ..base.mistake import UNKNOWN
from ..base.printable_text import few
from . import counterexample, wording
from .complete import Record
from .wording import (
    cause_title,
    causes,
    count_by_family,
    counted,
    cut,
    failure_of,
    new_words,
    said_line,
    site,
    verdict_reason,
)

# The width of lines: a log is read like a terminal.
WIDTH: Final = 100
# Lines of one candidate, without the run's own last lines.
MOST_LINES: Final = 34
# Lines shown of the smallest input; above this there are only numbers.
MOST_OF_INPUT: Final = 12
_LONGEST: Final = 420
# Lines of warnings, further failures and untested clauses; the rest is counted.
_MOST_WARNED: Final = 6
_MOST_BESIDES: Final = 8
_MOST_UNTESTED: Final = 4
_LABEL: Final = 9
# The grounds of an assumption, which the full report gives.
# What of assumptions is about behaviour, and how those on construction begin.
_TOLD_FIRST: Final = ("mask", "causal", "kind")
_CONSTRUCTED: Final = ("constructed as", "taken as")
_GROUNDS: Final = re.compile(r" \(by [^()]*\)")
_NOTHING: Final = Text("")
_INDENT: Final = 3

VERDICT_STYLES: Final = {
    "conforms": "bold green",
    "conforms-with-deviations": "bold green",
    "conforms-up-to-gauge": "bold green",
    "inconclusive": "bold yellow",
    "fails": "bold red",
}


@dataclass(frozen=True, kw_only=True)
class _Block:
    """A cause in versions of decreasing length."""

    versions: tuple[list[Text], ...]

    def longest_version(self, lines: int) -> list[Text]:
        """Return the longest version that fits, else the shortest."""
        fitting = (version for version in self.versions if len(version) <= lines)
        return next(fitting, self.versions[-1])


def summary(
    candidate: Record, width: int = WIDTH, *, alone: bool = True, advised: bool = False
) -> list[Text]:
    """Return a candidate's verdict, causes, and a line for each kind of further result.

    With ``alone`` False (several candidates) the summary is shorter. Unfollowed recommendations are
    counted, or with ``advised`` listed.
    """
    width = min(width, WIDTH)
    place = _labelled("site", cut(site(candidate), _LONGEST), width)
    warned = _first_blocks(_MOST_WARNED, _warnings(candidate, width), "more warning")
    before = [*_heading(candidate, width), *place, *warned]
    after = [
        *_first_blocks(_MOST_BESIDES, _findings(candidate, width, advised=advised), "more failure"),
        *_first_blocks(_MOST_UNTESTED, _untested(candidate, width), "more reason"),
        *(_left_over(candidate, width) if alone else ()),
        *(_recommended(candidate, width) if alone and not advised else ()),
    ]
    failing = [cause for cause in causes(candidate) if cause["level"] == "MUST"]
    numbered = len(failing) > 1
    blocks = [
        _block(candidate, cause, number if numbered else 0, width, alone=alone)
        for number, cause in enumerate(failing, start=1)
    ]
    return [*before, *_fitted(blocks, MOST_LINES - len(before) - len(after)), *after]


def _first_blocks(most: int, blocks: Iterable[list[Text]], noun: str) -> list[Text]:
    """Return the first blocks within ``most`` lines, and the number of further blocks."""
    every, shown = list(blocks), list[Text]()
    for number, block in enumerate(every):
        later = number + 1 < len(every)
        if shown and len(shown) + len(block) + later > most:
            more = f"{counted(len(every) - number, noun)} (-vv lists all)"
            return [*shown, Text(more, style="yellow")]
        shown += block
    return shown


def _fitted(blocks: Sequence[_Block], room: int) -> list[Text]:
    """Return the blocks in order, the first ones as long as room allows."""
    shown: list[Text] = []
    least = [len(block.versions[-1]) for block in blocks]
    for number, block in enumerate(blocks):
        left = room - len(shown)
        later = sum(least[number + 1 :])
        if left < least[number] + bool(later) and number:
            more = counted(len(blocks) - number, "more cause")
            return [*shown, Text(f"{more} (-vv lists all)", style="bold red")]
        shown += block.longest_version(left - later)
    return shown


def _heading(candidate: Record, width: int) -> list[Text]:
    verdict, name = str(candidate["verdict"]), str(candidate["name"])
    known = ", ".join(filter(None, (str(candidate[key]) for key in ("kind", "target"))))
    before = f"{name} ({known}): "
    lines = _wrapped(Text(f"{before}{verdict}, {verdict_reason(candidate)}"), width)
    lines[0].stylize("bold", 0, len(name))
    style = VERDICT_STYLES.get(verdict, "bold magenta")
    for number, line in enumerate(lines):
        place = line.plain.find(f"{verdict},", 0 if number else len(name))
        if place >= 0:
            line.stylize(style, place, place + len(verdict))
            break
    return lines


def _warnings(candidate: Record, width: int) -> Iterator[list[Text]]:
    for sentence in candidate.get("warnings", ()):
        text = Text(cut(f"warning: {sentence}", _LONGEST), style="bold yellow")
        yield _wrapped(text, width)


def _block(candidate: Record, cause: Record, number: int, width: int, *, alone: bool) -> _Block:
    title = cut(cause_title(cause), _LONGEST)
    head = Text(f"{number}. " if number else "", style="bold red")
    name = _wrapped(Text(" ".join(title.split()), style="bold red"), width, head)
    place = _labelled("site", cut(wording.blamed_site(candidate, cause), _LONGEST), width)
    fix = [*place, *_labelled("fix", cut(str(cause.get("fix") or ""), _LONGEST), width)]
    fix += _labelled("line", said_line(cause), width)
    clauses = list(cause["clauses"])
    listed = count_by_family(clauses) or ", ".join(clauses)
    every = f"{listed} ({counted(len(clauses), 'clause')}{_alone(candidate, cause)})"
    clause = failure_of(candidate, cause)
    # The line of the input or the title names it.
    said = clauses == [cause["name"]] or (len(clauses) == 1 and bool(clause) and alone)
    explains = [] if said else _labelled("explains", every, width)
    short = [] if said else _labelled("explains", few(clauses), width)
    shown = _labelled("input", _input(clause), width)
    numbers = [*shown, *_labelled("found", cut(new_words(cause, clause), _LONGEST), width)]
    data = clause.get("counterexample") or {}
    room = width - 1 - _INDENT - _LABEL
    lines = counterexample.put_notes_below(counterexample.block(data), room)
    if len(shown) + len(lines) > MOST_OF_INPUT:
        lines = counterexample.block({**data, "upstream": None})
        lines = counterexample.put_notes_below(lines, room)
    tensors = [row for line in lines for row in _row(line, width)]
    least = [[*name, *fix, *short], _one_line(head.plain + title, width, "bold red")]
    if not alone:
        return _Block(versions=tuple(least))
    versions = [[*name, *fix, *numbers, *explains], [*name, *fix, *numbers, *short], *least]
    if tensors and len(shown) + len(tensors) <= MOST_OF_INPUT:
        versions.insert(0, [*name, *fix, *shown, *tensors, *explains])
    return _Block(versions=tuple(versions))


def _row(line: str, width: int) -> list[Text]:
    """A line of a counterexample: a call is broken into lines, rows of numbers are cut."""
    label, gap, rest = line.partition("  ")
    if label != "call":
        return [Text(cut(f"{'':{_INDENT + _LABEL}}{line}", width - 1))]
    text = rest.lstrip()
    head = Text(f"{'':{_INDENT + _LABEL}}{label}{gap}{' ' * (len(rest) - len(text))}")
    return _wrapped(Text(text), width, head)


def _alone(candidate: Record, cause: Record) -> str:
    """Return ``, in bfloat16 alone`` if a cause's clauses failed in a part of the dtypes."""
    ran = [one for one in candidate["clauses"] if one["status"] != "not-applicable"]
    failed = [one for one in ran if one["status"] == "failed" and one["id"] in cause["clauses"]]
    places = dict.fromkeys(map(wording.where, failed))
    several = len(set(map(wording.where, ran))) > len(places)
    return f", in {' and '.join(places)} alone" if places and several else ""


def _input(clause: Record) -> str:
    if not clause:
        return ""
    data = clause.get("counterexample")
    sizes = wording.counterexample(data) if data else ""
    return f"{clause['id']}: {sizes or wording.where(clause)}"


def _labelled(label: str, text: str, width: int) -> list[Text]:
    """Return a label with a text whose further lines are indented like its first."""
    if not text:
        return []
    head = Text.assemble(" " * _INDENT, (f"{label:<{_LABEL}}", "dim"))
    return _wrapped(Text(" ".join(text.split())), width, head)


def _wrapped(text: Text, width: int, head: Text = _NOTHING) -> list[Text]:
    lines = broken_into_lines(text.plain, width - len(head))
    heads = [head, *[Text(" " * len(head))] * len(lines)]
    return [
        Text.assemble(before, (line, text.style))
        for before, line in zip(heads, lines, strict=False)
    ]


def _findings(candidate: Record, width: int, *, advised: bool) -> Iterator[list[Text]]:
    """Yield errors and unexpected passes, and with ``advised`` causes that fail no MUST."""
    for clause in candidate["clauses"]:
        if clause["status"] in ("error", "unexpected-pass"):
            line = f"{clause['status']}: {clause['id']}: {wording.message(clause)}"
            yield _wrapped(Text(cut(line, _LONGEST), style="bold magenta"), width)
    for cause in causes(candidate) if advised else ():
        if cause["level"] != "MUST":
            slugs = few(cause["clauses"], 2)
            title = "" if cause["name"] in cause["clauses"] else f" {cause['name']}:"
            text = str(cause["text"])
            if cause["name"] == UNKNOWN:  # one line has room for what the clause itself says
                title, text = "", wording.message(failure_of(candidate, cause)) or text
            line = f"{cause['level']} failed: {slugs}:{title} {text}"
            yield _one_line(line, width, "yellow")


def _recommended(candidate: Record, width: int) -> list[Text]:
    """Return the number of unfollowed recommendations: no verdict depends on them."""
    if not (number := wording.count(candidate, "SHOULD failed")):
        return []
    them = "it" if number == 1 else "them"
    line = f"{counted(number, 'recommendation')} not followed (-v shows {them})"
    return _one_line(line, width, "dim")


def _one_line(text: str, width: int, style: str = "") -> list[Text]:
    line = cut(" ".join(text.split()), WIDTH - 1)
    return _wrapped(Text(line, style=style), width)


def _named_or_counted(slugs: Sequence[str], reason: str) -> str:
    """Name the clauses, or count several that leave no room for their reason."""
    named = few(slugs)
    fits = len(slugs) == 1 or len(named) + len(reason) < WIDTH - 24
    return named if fits else counted(len(slugs), "clause")


def _untested(candidate: Record, width: int) -> Iterator[list[Text]]:
    for status, word in (("untestable", "untestable"), ("expected-failure", "expected failure")):
        reasons: dict[str, list[str]] = {}
        for clause in candidate["clauses"]:
            if clause["status"] == status:
                reasons.setdefault(str(clause["reason"]), []).append(clause["id"])
        for reason, slugs in reasons.items():
            line = f"{word}: {_named_or_counted(list(dict.fromkeys(slugs)), reason)} ({reason})"
            yield _one_line(line, width, "yellow")


def _left_over(candidate: Record, width: int) -> Iterator[Text]:
    """Yield a line each for assumptions, passed clauses, and inapplicable clauses."""
    if assumed := candidate["declaration"].get("assumptions") or ():
        said = sorted((_GROUNDS.sub("", str(one)) for one in assumed), key=_told_late)
        line = f"assumed: {'; '.join(said)}"
        more = " (-vv shows all)" * (len(line) >= WIDTH)
        yield from _one_line(f"{cut(line, WIDTH - 2 - len(more))}{more}", width, "dim")
    count = Counter(one["status"] for one in wording.worst_results(candidate["clauses"]))
    margin, slug = wording.worst_margin(candidate)
    worst = f"; the largest error is {margin} of its bound, in {slug}" if slug else ""
    if count["passed"]:
        yield from _one_line(f"passed: {counted(count['passed'], 'clause')}{worst}", width)
    if count["not-applicable"]:
        line = f"not applicable: {counted(count['not-applicable'], 'clause')} (-vv lists them)"
        yield from _one_line(line, width, "dim")


def _told_late(assumption: str) -> int:
    """The place of an assumption in a line that may be cut: behaviour first, construction last."""
    if assumption.startswith(_CONSTRUCTED):
        return len(_TOLD_FIRST) + 1
    places = enumerate(_TOLD_FIRST)
    return next((place for place, word in places if word in assumption), len(_TOLD_FIRST))
