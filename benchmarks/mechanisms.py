"""What becomes of the mistakes that were reported elsewhere, as the table of docs/mechanisms.md.

``python benchmarks/mechanisms.py`` runs each in the profile quick and renews the page: what caught
it the first time (``candidates/broken/reported/first_time*.json``), what does now, and its name.
``--only GLOB`` renews some rows and keeps the others. A mistake ends at its third MUST failure.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from candidates.broken import ESCAPES, MISTAKES
from candidates.broken import reported as package
from conformance import Mistake
from conformance.base.profile import PROFILES
from conformance.running.clause_run import ClauseRun
from conformance.running.runner import CandidateRun

ENOUGH: Final = 3
PAGE: Final = Path(__file__).parents[1] / "docs" / "mechanisms.md"
NOT_CAUGHT: Final = "**not caught**"
# What was written with a mechanism in view, by its name.
STUDIED: Final = Path(__file__).with_name("studied_mechanisms.json")
# These were tried for the first time when what the others had escaped was mended.
LATER: Final = "first_time_c.json"
HEAD: Final = """\
# Mechanisms of reported bugs

Bugs of attentions that were reported somewhere, and mended there. Each is acted out on a correct
attention by a class under `candidates/broken/reported/`, whose declaration promises what that
library promised. They were collected from public issue trackers and written down before anyone
looked at what the clauses ask. *First time* is what the harness of that day said in the profile
`quick`, *now* what it says today: the first MUST clauses that fail, {enough} at most, or the SHOULD
that is for this mistake. *Named* is what the diagnosis of the first failure calls it. `python
benchmarks/mechanisms.py` renews this page.

A mechanism whose missing name was looked into is *seen*: something in the diagnosis was written
with it in view (`benchmarks/studied_mechanisms.json` says what). The others are *unseen*: how many
of them have a name says more.

{totals}

| mechanism | what happens | reported | first time | now | named |
| --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One mechanism: what caught it and what it was called, then and today."""

    name: str
    sentence: str
    link: str
    first: tuple[str, ...]
    now: tuple[str, ...]
    named: tuple[str, ...]

    def text(self) -> str:
        """The row as Markdown."""
        where = re.sub(r"https://github.com/([^/]+/[^/]+)/(?:issues|pull)/", r"\1#", self.link)
        sentence = self.sentence.replace("|", "\\|")
        cells = [f"`{self.name}`", sentence, f"[{where}]({self.link})"]
        cells += [_listed(self.first) or NOT_CAUGHT, _listed(self.now) or NOT_CAUGHT]
        return f"| {' | '.join([*cells, _listed(self.named)])} |"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def reported() -> list[Mistake]:
    """The mistakes of the files of reported ones, by name."""
    files = [vars(getattr(package, name)) for name in package.__all__]
    found = [
        one for one in (*MISTAKES, *ESCAPES.values()) if any(one.name in file for file in files)
    ]
    return sorted(found, key=lambda mistake: mistake.name)


def first_time(files: str = "first_time*.json") -> dict[str, tuple[str, ...]]:
    """Which MUST clauses failed when each was tried for the first time."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(Path(package.__path__[0]).glob(files)):
        for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
            found[name] = tuple(entry["must"])
    return found


def measured(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The first clauses that fail today, MUST or primary, and the names of the first failure."""
    mistake = next(one for one in reported() if one.name == name)
    run = CandidateRun(mistake.candidate, profile=PROFILES["quick"])
    failed: dict[str, tuple[Any, Any]] = {}
    for planned in run.planned():
        if planned.reason or (planned.level != "MUST" and planned.id != mistake.primary):
            continue
        result = run.run(planned, clause_run=ClauseRun(deferred=True))
        if result.status == "failed":
            failed.setdefault(planned.id, (planned, result))
        if len(failed) == ENOUGH:
            break
    if not failed:
        return (), ()
    explained = run.explain_failure(*next(iter(failed.values())))
    return tuple(failed), tuple(str(entry["name"]) for entry in explained.diagnosis)


def written(page: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """What a page says of today, by name."""
    found = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) == 8 and cells[1].startswith("`"):  # noqa: PLR2004 (six, and the margins)
            now, named = (tuple(re.findall(r"`([^`]+)`", cell)) for cell in cells[5:7])
            found[cells[1].strip("`")] = now, named
    return found


def render(today: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> str:
    """The page, from what was measured."""
    then = first_time()
    rows = [
        Row(
            name=mistake.name,
            sentence=mistake.sentence,
            link=mistake.link,
            first=then[mistake.name],
            now=today[mistake.name][0],
            named=today[mistake.name][1],
        )
        for mistake in reported()
    ]
    head = HEAD.format(enough=ENOUGH, totals=_totals(rows))
    return head + "".join(f"{row.text()}\n" for row in rows)


def _totals(rows: list[Row]) -> str:
    first, now = (sum(bool(getattr(row, when)) for row in rows) for when in ("first", "now"))
    studied = json.loads(STUDIED.read_text(encoding="utf-8"))
    seen, unseen = (
        [row for row in rows if row.now and (row.name in studied) == known]
        for known in (True, False)
    )
    later = first_time(LATER)
    return (
        f"{len(rows)} mechanisms: {first} caught the first time, {now} caught now.\n"
        f"Named, of those that are caught: {_named(seen)} of {len(seen)} seen, {_named(unseen)} of "
        f"{len(unseen)} unseen.\n"
        f"{len(later)} of them were collected later, when what the others had escaped was mended:\n"
        f"{sum(map(bool, later.values()))} of these were caught the first time."
    )


def _named(rows: list[Row]) -> int:
    return sum(bool(row.named) and "unknown-mistake" not in row.named for row in rows)


def main() -> int:
    """Renew the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="GLOB")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    kept = written(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    names = [mistake.name for mistake in reported()]
    globs = options.only or ["*"]
    asked = [
        name for name in names if name not in kept or any(fnmatchcase(name, glob) for glob in globs)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, found in zip(asked, pool.map(measured, asked), strict=True):
            kept[name] = found
            print(name, *found, file=sys.stderr, flush=True)
    PAGE.write_text(render(kept), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
