"""Expected failures: a clause, a reason, and what kind of failure is expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from .dtypes import DTYPES
from .errors import DeclarationError, did_you_mean
from .results import KINDS

UNEXPECTED_UNLESS_NAMED: Final = ("raised", "crashed", "hung")


@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """A known failure. It goes red when it passes, or when it fails in another way.

    clause
        The slug of the clause, or a glob such as ``"mask.*"``. An exact slug must fail; a glob is
        stale when nothing it covers fails.
    reason
        Why this is known and accepted: one sentence.
    kind
        The violation's kind, one of ``results.KINDS`` (``value``, ``shape``, ``raised`` …). Without
        it any kind is covered except an exception, a crash or a hang: those must be named.
    candidate, dtype
        Globs that restrict the expectation to some candidates or dtypes.
    """

    clause: str
    reason: str
    kind: str | None = None
    candidate: str = "*"
    dtype: str = "*"

    def __post_init__(self) -> None:
        for name in ("clause", "reason", "candidate", "dtype"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                msg = f"an expected failure's {name} is {value!r}: give a text that is not empty"
                raise DeclarationError(msg)
        self._check_words()

    def _check_words(self) -> None:
        """Require a kind that violations have and a dtype that candidates are judged in."""
        if self.kind is not None and self.kind not in KINDS:
            hint = did_you_mean(str(self.kind), KINDS)
            msg = f"an expected failure's kind is {self.kind!r}, which is unknown{hint}"
            raise DeclarationError(msg)
        if not any(fnmatchcase(name, self.dtype) for name in DTYPES):
            hint = did_you_mean(self.dtype, DTYPES)
            msg = f"an expected failure's dtype is {self.dtype!r}, which is unknown{hint}"
            raise DeclarationError(msg)

    def concerns(self, candidate: str, clause: str, dtype: str) -> bool:
        """Whether this expectation speaks of a clause of a candidate in a dtype."""
        return (
            fnmatchcase(candidate, self.candidate)
            and fnmatchcase(clause, self.clause)
            and fnmatchcase(dtype, self.dtype)
        )

    def covers(self, kind: str) -> bool:
        """Whether a failure of this kind is the expected one."""
        if self.kind is None:
            return kind not in UNEXPECTED_UNLESS_NAMED
        return kind == self.kind

    @property
    def exact(self) -> bool:
        """Whether the clause is one slug and not a glob."""
        return not any(sign in self.clause for sign in "*?[")


GivenExpectations = Mapping[str, str | ExpectedFailure] | Iterable[ExpectedFailure] | None


def read_expected(given: GivenExpectations) -> tuple[ExpectedFailure, ...]:
    """Read a declaration's ``expected_failures=``: a dict of slug to reason, or a list."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return tuple(
            reason
            if isinstance(reason, ExpectedFailure)
            else ExpectedFailure(clause=clause, reason=reason)
            for clause, reason in given.items()
        )
    entries = tuple(given)
    for entry in entries:
        if not isinstance(entry, ExpectedFailure):
            msg = f"expected_failures holds {entry!r}: give an ExpectedFailure(…) or a dict"
            raise DeclarationError(msg)
    return entries
