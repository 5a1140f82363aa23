"""Suites for the user's own test files: a test a clause, under the user's names.

Not called ``suite``: importing a submodule of that name would hide the function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..base.expected import ExpectedFailure
from ..errors import UsageError
from . import MARKER

if TYPE_CHECKING:
    from .cases import ClauseCase

Expected = str | Path | Mapping[str, str | ExpectedFailure] | Iterable[ExpectedFailure]
Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """The targets and choices of a suite; None leaves one to the command line and the ini file."""

    targets: tuple[Any, ...]
    profile: str | None = None
    seed: int | None = None
    dtypes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    expected_failures: Expected | None = None


def parametrize(
    candidates: Any,
    *,
    profile: str | None = None,
    seed: int | None = None,
    dtypes: str | Iterable[str] | None = None,
    devices: str | Iterable[str] | None = None,
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    unchecked: str | Iterable[str] = (),
    expected_failures: Expected | None = None,
) -> Callable[[Test], Test]:
    """Decorate a test function that has an argument ``clause``: one test a clause and candidate.

    The test calls ``clause()``, which checks the clause and fails, skips or xfails the test; one
    that never calls it fails. ``clause.check()`` returns the result instead and leaves the verdict
    to the test. ``candidates`` is a target string, a candidate, a ``torch.nn.Module``, or a list of
    these; strings are loaded when the test is collected. ``expected_failures`` is a dict of slug to
    reason, a list of ``conformance.ExpectedFailure``, or the path of a TOML file. A parameter that
    looks like a mask and is not declared is a test that fails, unless ``unchecked`` names it.

    Raises UsageError for an option of the wrong type.
    """
    if inspect.isfunction(candidates) and "clause" in inspect.signature(candidates).parameters:
        msg = (
            f"{candidates.__name__} is given no candidates: write @conformance.parametrize(TARGET)"
        )
        raise UsageError(msg)
    if profile is not None and not isinstance(profile, str):
        msg = f"profile is {profile!r}: give a text, such as 'quick'"
        raise UsageError(msg)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        msg = f"seed is {seed!r}: give a whole number of at least 0"
        raise UsageError(msg)
    many = isinstance(candidates, (list, tuple))
    options = SuiteOptions(
        targets=tuple(candidates) if many else (candidates,),
        profile=profile,
        seed=seed,
        dtypes=None if dtypes is None else _texts("dtypes", dtypes),
        devices=None if devices is None else _texts("devices", devices),
        only=_texts("only", only),
        skip=_texts("skip", skip),
        unchecked=_texts("unchecked", unchecked),
        expected_failures=expected_failures,
    )
    if not options.targets:
        msg = "the list of candidates is empty: nothing would be checked"
        raise UsageError(msg)

    def decorate(test: Test) -> Test:
        setattr(test, MARKER, options)
        return test

    return decorate


def suite(
    target: Any,
    *,
    profile: str | None = None,
    seed: int | None = None,
    dtypes: str | Iterable[str] | None = None,
    devices: str | Iterable[str] | None = None,
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    unchecked: str | Iterable[str] = (),
    expected_failures: Expected | None = None,
) -> Callable[..., None]:
    """A test function for every clause of the target: ``test_attention = conformance.suite(…)``.

    Target and options are those of :func:`parametrize`. The ids of the tests are
    ``test_attention[candidate-clause]``.
    """

    def test(clause: ClauseCase) -> None:
        """The candidate keeps this clause."""
        clause()

    decorated = parametrize(
        target,
        profile=profile,
        seed=seed,
        dtypes=dtypes,
        devices=devices,
        only=only,
        skip=skip,
        unchecked=unchecked,
        expected_failures=expected_failures,
    )(test)
    caller = sys._getframe(1)  # noqa: SLF001 (reports name the user's file, not this one)
    decorated.__code__ = decorated.__code__.replace(
        co_filename=caller.f_code.co_filename, co_firstlineno=caller.f_lineno
    )
    decorated.__module__ = caller.f_globals.get("__name__", __name__)
    return decorated


def _texts(name: str, value: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        msg = f"{name} is {value!r}: give a text or a list of texts"
        raise UsageError(msg)
    texts = (value,) if isinstance(value, str) else tuple(value)
    if not texts and name in ("dtypes", "devices"):
        msg = f"{name} is empty: nothing would be checked; leave it out for all that are declared"
        raise UsageError(msg)
    for text in texts:
        if not isinstance(text, str):
            msg = f"{name} holds {text!r}: give texts"
            raise UsageError(msg)
    return texts
