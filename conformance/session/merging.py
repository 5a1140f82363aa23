"""One record of the records of all shards: clauses counted together, verdicts judged again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..base import limits
from ..base.expected import ExpectedFailure, Place
from ..base.limits import NOT_FINISHED, NOT_RUN, spoken
from ..base.parameter_names import OptionParameter
from ..base.profile import Shard
from ..base.record import CandidateEntry, Reading, Record
from ..base.results import ClauseResult, Status, Violation, plain, result_from_json
from ..base.selection import selected
from ..errors import DeclarationError, UsageError
from ..running.tally import BINDING, INAPPLICABLE, NOTHING, REFUSED, Tally, Terms
from ..running.workers.messages import Loaded
from .expectations import Selection, Stale, by_candidate, judge
from .report import candidate_entry, joined_causes
from .shards import ShardRecord

_FAILED: Final = ("failed", "expected-failure")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The result and the trail of a clause in one shard, before any expectation."""

    shard: Shard
    result: ClauseResult

    @property
    def trail(self) -> Mapping[str, Any] | None:
        """The trail of examples; None for a clause without examples."""
        return self.result.trail

    def position(self, number: int) -> int:
        """Return an example's position in the whole run; a database's examples come first."""
        remembered = 0 if self.trail is None else int(self.trail["remembered"])
        if number < remembered:
            return number - remembered
        return self.shard.position(number - remembered)

    def examples(self) -> Iterator[tuple[int, str]]:
        """Yield the position of each example, and its outcome."""
        signs = "" if self.trail is None else self.trail["signs"]
        for number, sign in enumerate(signs):
            yield self.position(number), sign
        if self.is_lost:
            yield self.position(len(signs)), NOTHING

    def margins(self) -> Iterator[tuple[int, float]]:
        """The rising margins, with the position of their example."""
        for number, margin in () if self.trail is None else self.trail["margins"]:
            yield self.position(int(number)), float(margin)

    @property
    def is_lost(self) -> bool:
        """Whether the shard ended within an example: by a hang, a crash, an exit."""
        return bool(self.trail and self.trail.get("lost"))

    @property
    def failed_at(self) -> int | None:
        """The position of the failed example, None without a failure."""
        if self.trail is None or not self.trail["failed"]:
            return None
        return max((position for position, _ in self.examples()), default=0)

    @property
    def explored(self) -> Mapping[str, Any]:
        """The sums of the rounds that only this shard has run."""
        return {} if self.trail is None else self.trail.get("explored") or {}

    @property
    def is_missing(self) -> bool:
        """Whether the clause was not run, or not to its end."""
        cut = self.result.reason.startswith((NOT_RUN, NOT_FINISHED))
        return self.result.status == "untestable" and (cut or self.trail is None)


def merged_result(pieces: Sequence[Piece]) -> ClauseResult:
    """Return the result of a clause, merged from all shards."""
    seconds = sum(piece.result.seconds for piece in pieces)
    merged = _merged(pieces).replace(
        seconds=seconds, trail=None, planned=None, coverage=_covered(pieces)
    )
    return merged if merged.status in _FAILED else merged.replace(violation=None)


def _covered(pieces: Sequence[Piece]) -> dict[str, Any] | None:
    """Sum the combinations covered by all shards: each counts those it covers first."""
    coverages = [piece.result.coverage for piece in pieces if piece.result.coverage]
    if not coverages:
        return None
    return {**coverages[0], "covered": sum(int(coverage["covered"]) for coverage in coverages)}


def _merged(pieces: Sequence[Piece]) -> ClauseResult:
    for piece in pieces:
        if piece.result.status == "error":
            return piece.result.replace(reason=f"{piece.result.reason} (shard {piece.shard})")
    failed = [(at, piece) for piece in pieces if (at := piece.failed_at) is not None]
    if failed:
        return _failed(pieces, *min(failed, key=lambda failure: failure[0]))
    for piece in pieces:
        if piece.result.status in _FAILED:  # in a later round, or before any example
            return _counted(piece.result, _tally(pieces, _end(pieces)), pieces)
    for piece in pieces:
        if piece.result.status == "not-applicable" and piece.trail is None:
            return piece.result
    tally = _tally(pieces, _end(pieces))
    missing = next((piece for piece in pieces if piece.is_missing), None)
    if missing is not None:
        return _counted(_unfinished(missing, pieces), tally, pieces)
    status, reason = tally.outcome()
    if status == "untestable" and any(piece.explored.get("binding") for piece in pieces):
        status, reason = "passed", ""
    return _counted(pieces[0].result.replace(status=status, reason=reason), tally, pieces)


def _failed(pieces: Sequence[Piece], at: int, piece: Piece) -> ClauseResult:
    """Return the failure of a run on one machine, with the examples run until then."""
    tally = _tally(pieces, at)
    if piece.is_lost:
        return piece.result.replace(examples=tally.examples, binding=0, margin=None)
    return _counted(piece.result, tally, ())


def _unfinished(missing: Piece, pieces: Sequence[Piece]) -> ClauseResult:
    more = sum(piece.is_missing for piece in pieces) - 1
    others = f" (and {more} other shard{'s' if more > 1 else ''})" if more else ""
    reason = missing.result.reason.removeprefix(NOT_RUN).removeprefix(NOT_FINISHED)
    reason_in_shard = f"{NOT_RUN}in shard {missing.shard}{others}: {reason}"
    return missing.result.replace(status="untestable", reason=reason_in_shard)


def _counted(result: ClauseResult, tally: Tally, pieces: Sequence[Piece]) -> ClauseResult:
    """Add the counts and the margin of all shards to a result, later rounds included."""
    explored = [piece.explored for piece in pieces if piece.explored]
    margins = [float(sums["margin"]) for sums in explored if sums["margin"] is not None]
    margins += [] if tally.margin is None else [tally.margin]
    return result.replace(
        examples=tally.examples + sum(sums["examples"] for sums in explored),
        binding=tally.binding + sum(sums["binding"] for sums in explored),
        margin=max(margins) if margins else None,
    )


def _end(pieces: Sequence[Piece]) -> float:
    """Return the position of the last example a single machine would run without failures."""
    trails = [piece.trail for piece in pieces if piece.trail is not None]
    if not trails:
        return float("inf")
    main, terms = max(int(trail["main"]) for trail in trails), _terms(pieces)
    examples = [example for piece in pieces for example in piece.examples()]
    if terms.subtle or any(at < main and sign != NOTHING for at, sign in examples):
        return main - 1
    return min((at for at, sign in examples if sign == BINDING), default=float("inf"))


def _tally(pieces: Sequence[Piece], end: float) -> Tally:
    examples = [example for piece in pieces for example in piece.examples() if example[0] <= end]
    margins = [margin for piece in pieces for at, margin in piece.margins() if at <= end]
    signs = [sign for _, sign in examples]
    return Tally(
        terms=_terms(pieces),
        examples=len(examples),
        binding=signs.count(BINDING),
        refused=signs.count(REFUSED),
        inapplicable=signs.count(INAPPLICABLE),
        reason=_reason(pieces),
        margin=max(margins) if margins else None,
    )


def _terms(pieces: Sequence[Piece]) -> Terms:
    trail = next((piece.trail for piece in pieces if piece.trail), None)
    if trail is None:
        return Terms()
    return Terms(
        counterfactual=str(trail["counterfactual"]),
        subtle=bool(trail["subtle"]),
        excused=bool(trail["excused"]),
    )


def _reason(pieces: Sequence[Piece]) -> str:
    """Return why the first inapplicable example could not be run."""
    reasons = [
        (at, str(piece.trail["reason"]))
        for piece in pieces
        if piece.trail
        for at, sign in piece.examples()
        if sign == INAPPLICABLE
    ]
    return min(reasons)[1] if reasons else ""


def unjudged(result: ClauseResult) -> ClauseResult:
    """A result as it was before expected failures were applied."""
    violation: Violation | None = result.violation
    if result.status in _FAILED and violation is not None:
        failed: Status = "failed"
        return result.replace(status=failed, reason=violation.message)
    return result


_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(ClauseResult))
_PLACE: Final = ("file", "line")


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """One candidate in every shard, and its merged results."""

    loaded: Loaded
    entry: CandidateEntry
    unjudged: tuple[ClauseResult, ...]
    sentences: Mapping[str, str]
    warnings: tuple[str, ...]


def merge_shards(shards: Sequence[ShardRecord]) -> Record:
    """Return the record of the run divided into these shards, complete and in order.

    Raises UsageError for a record lacking a shard's data.
    """
    try:
        return _merge(shards)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, DeclarationError) as error:
        files = ", ".join(str(shard.path) for shard in shards)
        msg = f"the shards {files} cannot be merged: one of them lacks or garbles {error}"
        raise UsageError(msg) from None


def _merge(shards: Sequence[ShardRecord]) -> Record:
    first = next((shard for shard in shards if shard.record["candidates"]), shards[0])
    many = len(first.record["candidates"])
    candidates = [_candidate(shards, first, index) for index in range(many)]
    from_file = tuple(_expectation(entry) for entry in first.record["shard"].get("expected", []))
    today = limits.today()
    results = {
        candidate.loaded.name: [
            judge(
                result,
                candidate.loaded.name,
                (*candidate.loaded.expected, *from_file),
                today=today,
            )
            for result in candidate.unjudged
        ]
        for candidate in candidates
    }
    selection = _selection(first.record, candidates)
    declared = {candidate.loaded.name: candidate.loaded.expected for candidate in candidates}
    by_name, stale = by_candidate(from_file, declared, results, selection, today=today)
    entries = [
        _entry(candidate, results[candidate.loaded.name], by_name[candidate.loaded.name])
        for candidate in candidates
    ]
    return _record(shards, first, entries, stale)


def _candidate(shards: Sequence[ShardRecord], first: ShardRecord, index: int) -> _Candidate:
    entry = first.record["candidates"][index]
    judging = entry["shard"]
    own = [_results(shard, index) for shard in shards]
    plan = [_key(result) for result in _results(first, index)]
    for shard, results in zip(shards, own, strict=True):
        if results and [_key(result) for result in results] != plan:
            msg = f"{shard.path} lists other clauses of {entry['name']} than {first.path}"
            raise UsageError(msg)
    pieces = [
        [
            Piece(
                shard=shard.shard, result=results[n] if results else _not_run_result(shard, own, n)
            )
            for shard, results in zip(shards, own, strict=True)
        ]
        for n in range(len(plan))
    ]
    entries = filter(None, (_entry_of(shard, index) for shard in shards))
    warnings = [warning for each in entries for warning in each.get("warnings", ())]
    return _Candidate(
        loaded=Loaded(
            name=entry["name"],
            target=entry["target"],
            kind=entry["kind"],
            declaration=entry["declaration"],
            gauge=judging["gauge"],
            deviations=tuple(judging["deviations"]),
            mistaken=tuple(judging.get("mistaken", ())),
            unjudged=judging.get("unjudged", ""),
            expected=tuple(_expectation(expected_entry) for expected_entry in judging["expected"]),
            location=entry.get("location"),
            reading=_reading(entry),
            unchecked=tuple(
                OptionParameter(**parameter) for parameter in entry.get("unchecked", ())
            ),
        ),
        entry=entry,
        unjudged=tuple(merged_result(clause_pieces) for clause_pieces in pieces),
        sentences={clause["id"]: clause.get("requirement", "") for clause in entry["clauses"]},
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _reading(entry: CandidateEntry) -> Reading | None:
    own = entry.get("reading")
    return None if own is None else Reading(unread=own["unread"], mistakes=tuple(own["mistakes"]))


def _entry_of(shard: ShardRecord, index: int) -> CandidateEntry | None:
    candidates = shard.record["candidates"]
    return candidates[index] if candidates else None


def _results(shard: ShardRecord, index: int) -> list[ClauseResult]:
    """Return a candidate's results in one shard, before expected failures are applied."""
    entry = _entry_of(shard, index)
    clauses: Sequence[Mapping[str, Any]] = () if entry is None else entry["clauses"]
    return [
        unjudged(result_from_json({name: clause[name] for name in clause if name in _FIELDS}))
        for clause in clauses
    ]


def _key(result: ClauseResult) -> tuple[str, str, str]:
    return result.id, result.dtype, result.device


def _not_run_result(
    shard: ShardRecord, own: Sequence[Sequence[ClauseResult]], number: int
) -> ClauseResult:
    """Return the result of a clause in a shard whose time was up before loading."""
    other = next(results[number] for results in own if results)
    if other.status == "not-applicable" and other.trail is None:
        return other.replace(seconds=0.0)
    limit = shard.record.get("limit", {}).get("seconds", 0.0)
    reason = f"{NOT_RUN}the limit of {spoken(float(limit))} was reached"
    return ClauseResult(
        id=other.id,
        family=other.family,
        level=other.level,
        dtype=other.dtype,
        device=other.device,
        status="untestable",
        reason=reason,
    )


def _expectation(data: Mapping[str, Any]) -> ExpectedFailure:
    place = Place(file=data["file"], line=data.get("line")) if data.get("file") else None
    fields = {name: value for name, value in data.items() if name not in _PLACE}
    return ExpectedFailure(**fields, place=place)


def _selection(record: Record, candidates: Sequence[_Candidate]) -> Selection:
    options = record["options"]
    slugs = dict.fromkeys(slug for candidate in candidates for slug in candidate.sentences)
    return Selection(
        slugs=selected(slugs, options["only"], options["skip"]),
        dtypes=None if options["dtypes"] is None else tuple(options["dtypes"]),
        devices=None if options["devices"] is None else tuple(options["devices"]),
    )


def _entry(
    candidate: _Candidate, results: Sequence[ClauseResult], stale: Sequence[Stale]
) -> CandidateEntry:
    made = candidate_entry(
        candidate.loaded,
        results,
        candidate.sentences,
        stale,
        missing=_missing(results),
        warnings=candidate.warnings,
    )
    kept = {key: value for key, value in candidate.entry.items() if key != "shard"}
    merged: Any = {**kept, **made, **({"beside": kept["beside"]} if "beside" in kept else {})}
    entry: CandidateEntry = merged
    return entry


def _missing(results: Sequence[ClauseResult]) -> str:
    """Return why a reached limit leaves the verdict open, or ""."""
    cut = [result for result in results if result.reason.startswith(f"{NOT_RUN}in shard ")]
    if not cut:
        return ""
    clauses = "1 clause was" if len(cut) == 1 else f"{len(cut)} clauses were"
    return f"in some shards {clauses} not run, or not to the end: {cut[0].reason}"


def _record(
    shards: Sequence[ShardRecord],
    first: ShardRecord,
    entries: Sequence[CandidateEntry],
    stale: Sequence[Stale],
) -> Record:
    records = [shard.record for shard in shards]
    changed: dict[str, Any] = {
        "seconds": round(sum(float(record.get("seconds", 0.0)) for record in records), 4),
        "interrupted": False,
        "merged": {"shards": len(shards)},
        "stale_expectations": [entry.as_json() for entry in stale],
        "clauses": {
            slug: facts for record in records for slug, facts in record.get("clauses", {}).items()
        },
        "candidates": joined_causes(entries),
    }
    begun = [record["started"] for record in records if record.get("started")]
    if begun:
        changed["started"] = min(begun)
    explored = [record["explored"] for record in records if record.get("explored")]
    if explored:
        changed["explored"] = {
            name: sum(int(entry[name]) for entry in explored) for name in ("rounds", "examples")
        }
    if any(record.get("limit") for record in records):
        changed["limit"] = _limit(records, entries)
    whole = {key: value for key, value in first.record.items() if key != "shard"}
    merged: Record = plain({**whole, **changed})
    return merged


def _limit(records: Sequence[Record], entries: Sequence[CandidateEntry]) -> dict[str, Any]:
    """Return the longest limit of a shard, and the clauses left over in all shards together."""
    clauses = [clause for entry in entries for clause in entry["clauses"]]
    cut = [clause for clause in clauses if clause["reason"].startswith(f"{NOT_RUN}in shard ")]
    limits = [record["limit"] for record in records if record.get("limit")]
    not_run = sum(not clause["examples"] for clause in cut)
    return {
        "seconds": max(float(limit["seconds"]) for limit in limits),
        "reached": bool(cut) or any(not limit["loaded"] for limit in limits),
        "not_run": not_run,
        "not_finished": len(cut) - not_run,
        "loaded": any(limit["loaded"] for limit in limits),
    }
