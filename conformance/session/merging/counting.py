"""Counts the examples of one clause in all shards as one machine would have counted them.

One machine ends a clause with the first example that fails, and asks further ones only where none
has shown anything. A shard does not know what the others find, so it may have asked more: what
comes behind the end in the order of one machine is left out. A single difference stays: where none
of a shard's examples shows anything it asks further ones, and a failure that these show counts,
though one machine might never have asked them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...base.limits import NOT_FINISHED, NOT_RUN
from ...base.results import ClauseResult, Status, Violation
from ...base.shard import Shard
from ...base.tally import BINDING, INAPPLICABLE, NOTHING, REFUSED, Tally, Terms

_FAILED: Final = ("failed", "expected-failure")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one shard says of a clause: its result, as found, and its trail."""

    shard: Shard
    result: ClauseResult

    @property
    def trail(self) -> Mapping[str, Any] | None:
        """The examples one by one; None of a clause that asked none."""
        return self.result.trail

    def position(self, number: int) -> int:
        """Where the number-th example stands; those of a database come before all others."""
        remembered = 0 if self.trail is None else int(self.trail["remembered"])
        if number < remembered:
            return number - remembered
        return self.shard.position(number - remembered)

    def examples(self) -> Iterator[tuple[int, str]]:
        """The position of each example, and what it showed."""
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
        """Whether it ended in an example that never ended: a hang, a crash, an exit."""
        return bool(self.trail and self.trail.get("lost"))

    @property
    def failed_at(self) -> int | None:
        """The position of the example that failed, None where none of them did."""
        if self.trail is None or not self.trail["failed"]:
            return None
        return max((position for position, _ in self.examples()), default=0)

    @property
    def explored(self) -> Mapping[str, Any]:
        """The sums of the rounds that only this shard has asked."""
        return {} if self.trail is None else self.trail.get("explored") or {}

    @property
    def is_missing(self) -> bool:
        """Whether it was not run, or not to its end."""
        cut = self.result.reason.startswith((NOT_RUN, NOT_FINISHED))
        return self.result.status == "untestable" and (cut or self.trail is None)


def merged_result(pieces: Sequence[Piece]) -> ClauseResult:
    """The result of a clause, from what every shard says of it."""
    seconds = sum(piece.result.seconds for piece in pieces)
    merged = _merged(pieces).replace(
        seconds=seconds, trail=None, planned=None, coverage=_covered(pieces)
    )
    return merged if merged.status in _FAILED else merged.replace(violation=None)


def _covered(pieces: Sequence[Piece]) -> dict[str, Any] | None:
    """The combinations that all shards covered: each counts those it is the first to cover."""
    told = [piece.result.coverage for piece in pieces if piece.result.coverage]
    if not told:
        return None
    return {**told[0], "covered": sum(int(one["covered"]) for one in told)}


def _merged(pieces: Sequence[Piece]) -> ClauseResult:
    for piece in pieces:
        if piece.result.status == "error":
            return piece.result.replace(reason=f"{piece.result.reason} (shard {piece.shard})")
    failed = [(at, piece) for piece in pieces if (at := piece.failed_at) is not None]
    if failed:
        return _failed(pieces, *min(failed, key=lambda one: one[0]))
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
    """The failure that one machine would have found, and what it would have counted before."""
    tally = _tally(pieces, at)
    if piece.is_lost:
        return piece.result.replace(examples=tally.examples, binding=0, margin=None)
    return _counted(piece.result, tally, ())


def _unfinished(missing: Piece, pieces: Sequence[Piece]) -> ClauseResult:
    many = sum(piece.is_missing for piece in pieces)
    others = f" (and {many - 1} other shards)" if many > 1 else ""
    reason = missing.result.reason.removeprefix(NOT_RUN).removeprefix(NOT_FINISHED)
    told = f"{NOT_RUN}in shard {missing.shard}{others}: {reason}"
    return missing.result.replace(status="untestable", reason=told)


def _counted(result: ClauseResult, tally: Tally, pieces: Sequence[Piece]) -> ClauseResult:
    """With what was counted, later rounds included."""
    explored = [piece.explored for piece in pieces if piece.explored]
    margins = [float(one["margin"]) for one in explored if one["margin"] is not None]
    margins += [] if tally.margin is None else [tally.margin]
    return result.replace(
        examples=tally.examples + sum(one["examples"] for one in explored),
        binding=tally.binding + sum(one["binding"] for one in explored),
        margin=max(margins) if margins else None,
    )


def _end(pieces: Sequence[Piece]) -> float:
    """The last position that one machine would have asked where nothing fails."""
    trails = [piece.trail for piece in pieces if piece.trail is not None]
    if not trails:
        return float("inf")
    main, terms = _main(pieces), _terms(pieces)
    examples = [one for piece in pieces for one in piece.examples()]
    if terms.subtle or any(at < main and sign != NOTHING for at, sign in examples):
        return main - 1
    return min((at for at, sign in examples if sign == BINDING), default=float("inf"))


def _tally(pieces: Sequence[Piece], end: float) -> Tally:
    """The examples up to a position, of all shards."""
    asked = [one for piece in pieces for one in piece.examples() if one[0] <= end]
    margins = [margin for piece in pieces for at, margin in piece.margins() if at <= end]
    signs = [sign for _, sign in asked]
    return Tally(
        terms=_terms(pieces),
        examples=len(asked),
        binding=signs.count(BINDING),
        refused=signs.count(REFUSED),
        inapplicable=signs.count(INAPPLICABLE),
        reason=_reason(pieces),
        margin=max(margins) if margins else None,
    )


def _main(pieces: Sequence[Piece]) -> int:
    return max((int(piece.trail["main"]) for piece in pieces if piece.trail), default=0)


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
    """Why the first example that could not be asked could not."""
    told = [
        (at, str(piece.trail["reason"]))
        for piece in pieces
        if piece.trail
        for at, sign in piece.examples()
        if sign == INAPPLICABLE
    ]
    return min(told)[1] if told else ""


def as_found(result: ClauseResult) -> ClauseResult:
    """A result before it was held against what is expected to fail."""
    violation: Violation | None = result.violation
    if result.status in _FAILED and violation is not None:
        failed: Status = "failed"
        return result.replace(status=failed, reason=violation.message)
    return result
