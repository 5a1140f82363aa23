"""``python -m survey NAME…``: judge libraries, keep their records and write the pages.

``all`` stands for every library, in turn, and goes on where it was stopped; ``--shard I/N`` takes a
part of them; ``--cluster`` judges them on the machines of a Ray cluster; ``--pages`` decides the
records that are there by today's files and writes the pages.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from conformance.base.record import EXIT_HARNESS, EXIT_USAGE
from conformance.errors import UsageError
from conformance.running.workers.supervisor import HarnessError

from . import library, pages, records, spreading, sweep

_ALL: Final = "all"
_CHECKOUT: Final = Path(__file__).resolve().parent.parent


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="survey", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"of libraries, or {_ALL}")
    add("--list", action="store_true", help="print the names of the libraries")
    add("--shard", metavar="I/N", help="of all libraries the part I of N")
    add("--only", action="append", default=[], metavar="CANDIDATE", help="of one library")
    add("--cluster", metavar="auto|HOST:PORT|local", help="a library a task of a Ray cluster")
    add("--per-worker", action="append", default=[], metavar="NAME=NUMBER", help="as for check")
    add("--keep", action="store_true", help="leave the environments where they are")
    add("--work", type=Path, default=_CHECKOUT / ".tox" / "surveyed", help="folder of environments")
    add("--records", type=Path, default=records.FOLDER, help="folder of the records")
    add("--pages", action="store_true", help="write the records' decisions anew, and the pages")
    add("--since", type=Path, metavar="FOLDER", help="records of the last survey: what changed")
    add("--markdown", type=Path, default=_CHECKOUT / "docs" / "survey.md")
    add("--html", type=Path, metavar="FILE", help="write the page in HTML, too")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; 2 with one sentence where that cannot be."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (library.SurveyError, UsageError) as error:
        sys.stderr.write(f"survey: {error}\n")
        return EXIT_USAGE
    except HarnessError as error:
        sys.stderr.write(f"survey: {error}\n")
        return EXIT_HARNESS


def _run(options: argparse.Namespace) -> int:
    if options.list:
        print("\n".join(library.names()))  # noqa: T201 (what is asked for)
        return 0
    every = options.names == [_ALL]
    chosen = _chosen(options, every=every)
    since = None if options.since is None else _kept("--since", options.since)
    journal = sweep.Journal(
        options.work / f"sweep-{(options.shard or '1/1').replace('/', '-of-')}.json"
    )
    progress = sys.stdout  # which a cluster hides meanwhile
    for one, record in _surveyed(options, journal.left(chosen) if every else chosen):
        said = " ".join(filter(None, (record["status"], record["reason"])))
        print(f"{one.name} {record['version']}: {said}", file=progress, flush=True)
        if every and record["status"] == "judged":  # else it is tried again
            journal.add(one)
    if every:
        journal.close()
    if options.pages:
        _write_pages(options, since)
    return 0


def _surveyed(
    options: argparse.Namespace, chosen: Sequence[library.Library]
) -> Iterator[tuple[library.Library, records.Record]]:
    """Each library with its record, in turn or as the machines of a cluster are done."""
    before = records.load(options.records)

    def save(one: library.Library, record: records.Record) -> None:
        _save(one, options.records, before.get(one.name), record)

    how = {"keep": options.keep, "only": options.only}
    if options.cluster is None:
        for one in chosen:
            kept = functools.partial(save, one)
            yield one, sweep.survey(one, options.work, **how, save=kept)
    else:
        how |= {"folder": options.work, "commit": sweep.commit()}
        yield from spreading.survey(chosen, options.cluster, options.per_worker, save, **how)


def _chosen(options: argparse.Namespace, *, every: bool) -> list[library.Library]:
    """The libraries that are judged; SurveyError where options do not go together."""
    if not options.names and not options.pages:
        msg = f"name libraries, or {_ALL}, or pass --pages; --list prints the names"
        raise library.SurveyError(msg)
    if (options.shard and not every) or (options.only and (every or len(options.names) != 1)):
        msg = f"--shard goes with {_ALL}, --only with the name of one library"
        raise library.SurveyError(msg)
    if options.per_worker and options.cluster is None:
        msg = "--per-worker says what a task takes of a cluster: give --cluster, too"
        raise library.SurveyError(msg)
    if not options.pages and (options.html is not None or options.since is not None):
        msg = "--html and --since are about the pages: pass --pages with them"
        raise library.SurveyError(msg)
    names = sweep.shard(library.names(), options.shard) if every else options.names
    chosen = [library.read(name) for name in names]
    for one, candidate in itertools.product(chosen, options.only):
        if candidate not in one.candidates:
            known = ", ".join(one.candidates)
            msg = f"{one.name} has no candidate {candidate!r}: those are {known}"
            raise library.SurveyError(msg)
    return chosen


def _save(
    one: library.Library, folder: Path, before: records.Record | None, record: records.Record
) -> None:
    """Keep a record, with the rows that an earlier one has of what was not judged this time."""
    if before is not None:
        record = records.completed(record, before, one)
    records.save(one.name, records.decided(record, one), folder)


def _kept(option: str, folder: Path) -> dict[str, records.Record]:
    """The records of a folder; SurveyError where it has none."""
    kept = records.load(folder)
    if not kept:
        msg = f"{option} {folder}: there is no record in that folder, name one that has some"
        raise library.SurveyError(msg)
    return kept


def _write_pages(options: argparse.Namespace, since: Mapping[str, records.Record] | None) -> None:
    """Decide the records anew by today's files and keep them so, then write the pages."""
    known = library.names()
    kept = _kept("--records", options.records)
    for name, record in kept.items():
        if name in known:
            kept[name] = records.decided(record, library.read(name))
            records.save(name, kept[name], options.records)
    changed = None if since is None else records.changes(since, kept)
    options.markdown.write_text(pages.markdown(kept, changed), encoding="utf-8")
    if options.html is not None:
        options.html.write_text(pages.html(kept, changed), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
