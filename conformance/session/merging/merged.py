"""One record of the records of all shards: clauses counted together, verdicts judged again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...base import clock
from ...base.expected import ExpectedFailure, Place
from ...base.limits import NOT_RUN, spoken
from ...base.parameter_names import OptionParameter
from ...base.results import ClauseResult, plain, result_from_json
from ...errors import DeclarationError, UsageError
from ...running.workers.messages import Loaded
from .. import expectations
from ..expectations import Selection, Stale
from ..judging import judge
from ..report import candidate_entry
from ..selection import selected
from .counting import Piece, as_found, merged_result
from .shards import Record, ShardRecord

_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(ClauseResult))
_PLACE: Final = ("file", "line")


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """One candidate in every shard, and its results in all of them together."""

    loaded: Loaded
    entry: Record
    found: tuple[ClauseResult, ...]
    sentences: Mapping[str, str]
    warnings: tuple[str, ...]


def merge_shards(shards: Sequence[ShardRecord]) -> dict[str, Any]:
    """The record of the run whose shards these are, all of them and in order.

    Raises UsageError for a record that does not say what a shard's says.
    """
    try:
        return _merge(shards)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, DeclarationError) as error:
        files = ", ".join(str(shard.path) for shard in shards)
        msg = f"the shards {files} cannot be merged: one of them lacks or garbles {error}"
        raise UsageError(msg) from None


def _merge(shards: Sequence[ShardRecord]) -> dict[str, Any]:
    first = next((shard for shard in shards if shard.record["candidates"]), shards[0])
    many = len(first.record["candidates"])
    candidates = [_candidate(shards, first, index) for index in range(many)]
    from_file = tuple(_expectation(one) for one in first.record["shard"].get("expected", []))
    today = clock.today()
    results = {
        one.loaded.name: [
            judge(found, one.loaded.name, (*one.loaded.expected, *from_file), today=today)
            for found in one.found
        ]
        for one in candidates
    }
    selection = _selection(first.record, candidates)
    by_name, stale = _stale(candidates, from_file, results, selection)
    entries = [
        _entry(one, results[one.loaded.name], by_name[one.loaded.name]) for one in candidates
    ]
    return _record(shards, first, entries, stale)


def _candidate(shards: Sequence[ShardRecord], first: ShardRecord, index: int) -> _Candidate:
    entry = first.record["candidates"][index]
    judging = entry["shard"]
    own = [_results(shard, index) for shard in shards]
    plan = [_key(one) for one in _results(first, index)]
    for shard, results in zip(shards, own, strict=True):
        if results and [_key(one) for one in results] != plan:
            msg = f"{shard.path} lists other clauses of {entry['name']} than {first.path}"
            raise UsageError(msg)
    pieces = [
        [
            Piece(shard=shard.shard, result=results[n] if results else _unasked(shard, own, n))
            for shard, results in zip(shards, own, strict=True)
        ]
        for n in range(len(plan))
    ]
    warnings = [said for shard in shards for said in _entry_of(shard, index).get("warnings", ())]
    return _Candidate(
        loaded=Loaded(
            name=entry["name"],
            target=entry["target"],
            kind=entry["kind"],
            declaration=entry["declaration"],
            gauge=judging["gauge"],
            deviations=tuple(judging["deviations"]),
            mistaken=tuple(judging.get("mistaken", ())),
            expected=tuple(_expectation(one) for one in judging["expected"]),
            tasks=(),
            location=entry.get("location"),
            unchecked=tuple(OptionParameter(**one) for one in entry.get("unchecked", ())),
        ),
        entry=entry,
        found=tuple(merged_result(one) for one in pieces),
        sentences={clause["id"]: clause.get("requirement", "") for clause in entry["clauses"]},
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _entry_of(shard: ShardRecord, index: int) -> Record:
    candidates = shard.record["candidates"]
    return candidates[index] if candidates else {"clauses": []}


def _results(shard: ShardRecord, index: int) -> list[ClauseResult]:
    """The results of a candidate in one shard, as they were found."""
    return [
        as_found(result_from_json({name: one[name] for name in one if name in _FIELDS}))
        for one in _entry_of(shard, index)["clauses"]
    ]


def _key(result: ClauseResult) -> tuple[str, str, str]:
    return result.id, result.dtype, result.device


def _unasked(
    shard: ShardRecord, own: Sequence[Sequence[ClauseResult]], number: int
) -> ClauseResult:
    """What a shard whose time was up before anything was loaded says of a clause."""
    known = next(results[number] for results in own if results)
    if known.status == "not-applicable" and known.trail is None:
        return known.replace(seconds=0.0)
    limit = shard.record.get("limit", {}).get("seconds", 0.0)
    reason = f"{NOT_RUN}the limit of {spoken(float(limit))} was reached"
    return ClauseResult(
        id=known.id,
        family=known.family,
        level=known.level,
        dtype=known.dtype,
        device=known.device,
        status="untestable",
        reason=reason,
    )


def _expectation(data: Record) -> ExpectedFailure:
    place = Place(file=data["file"], line=data.get("line")) if data.get("file") else None
    given = {name: value for name, value in data.items() if name not in _PLACE}
    return ExpectedFailure(**given, place=place)


def _selection(record: Record, candidates: Sequence[_Candidate]) -> Selection:
    options = record["options"]
    slugs = dict.fromkeys(slug for one in candidates for slug in one.sentences)
    return Selection(
        slugs=selected(slugs, options["only"], options["skip"]),
        dtypes=None if options["dtypes"] is None else tuple(options["dtypes"]),
        devices=None if options["devices"] is None else tuple(options["devices"]),
    )


def _stale(
    candidates: Sequence[_Candidate],
    from_file: Sequence[ExpectedFailure],
    results: Mapping[str, Sequence[ClauseResult]],
    selection: Selection,
) -> tuple[dict[str, list[Stale]], list[Stale]]:
    """Expectations that do not hold, by the candidate they redden, and all of them."""
    today = clock.today()
    every = list(expectations.not_holding(from_file, results, selection, today=today))
    by_name = {name: [entry for entry in every if entry.names(name)] for name in results}
    for one in candidates:
        name = one.loaded.name
        own = {name: results[name]}
        declared = expectations.not_holding(one.loaded.expected, own, selection, today=today)
        by_name[name].extend(declared)
        every += [entry.of(name) for entry in declared]
    return by_name, every


def _entry(
    candidate: _Candidate, results: Sequence[ClauseResult], stale: Sequence[Stale]
) -> dict[str, Any]:
    made = candidate_entry(
        candidate.loaded,
        results,
        candidate.sentences,
        stale,
        missing=_missing(results),
        warnings=candidate.warnings,
    )
    kept = {key: value for key, value in candidate.entry.items() if key != "shard"}
    return {**kept, **made, **({"beside": kept["beside"]} if "beside" in kept else {})}


def _missing(results: Sequence[ClauseResult]) -> str:
    """Why there is no verdict where a shard reached its limit, or ""."""
    cut = [one for one in results if one.reason.startswith(f"{NOT_RUN}in shard ")]
    if not cut:
        return ""
    return f"in some shards {len(cut)} clauses were not run, or not to the end: {cut[0].reason}"


def _record(
    shards: Sequence[ShardRecord],
    first: ShardRecord,
    entries: Sequence[dict[str, Any]],
    stale: Sequence[Stale],
) -> dict[str, Any]:
    records = [shard.record for shard in shards]
    changed: dict[str, Any] = {
        "seconds": round(sum(float(record.get("seconds", 0.0)) for record in records), 4),
        "interrupted": False,
        "merged": {"shards": len(shards)},
        "stale_expectations": [entry.as_json() for entry in stale],
        "clauses": {slug: said for one in records for slug, said in one.get("clauses", {}).items()},
        "candidates": list(entries),
    }
    begun = [record["started"] for record in records if record.get("started")]
    if begun:
        changed["started"] = min(begun)
    explored = [record["explored"] for record in records if record.get("explored")]
    if explored:
        changed["explored"] = {
            name: sum(int(one[name]) for one in explored) for name in ("rounds", "examples")
        }
    if any(record.get("limit") for record in records):
        changed["limit"] = _limit(records, entries)
    whole = {key: value for key, value in first.record.items() if key != "shard"}
    merged: dict[str, Any] = plain({**whole, **changed})
    return merged


def _limit(records: Sequence[Record], entries: Sequence[Record]) -> dict[str, Any]:
    """The longest limit of a shard, and what was left over in all of them together."""
    clauses = [clause for entry in entries for clause in entry["clauses"]]
    cut = [one for one in clauses if one["reason"].startswith(f"{NOT_RUN}in shard ")]
    limits = [record["limit"] for record in records if record.get("limit")]
    not_run = sum(not one["examples"] for one in cut)
    return {
        "seconds": max(float(limit["seconds"]) for limit in limits),
        "reached": bool(cut) or any(not limit["loaded"] for limit in limits),
        "not_run": not_run,
        "not_finished": len(cut) - not_run,
        "loaded": any(limit["loaded"] for limit in limits),
    }
