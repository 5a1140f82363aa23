"""The pytest plugin: options, collection, and the display of results.

Every pytest run with this distribution installed imports this module, and no heavy ones with it:
modules that need torch are imported when a candidate is collected.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from .testing import MARKER, STATUS

HOME: Final = Path(__file__).resolve().parent
_PRECEDENCE: Final = (
    "Precedence: command line, environment ({variable}), the suite's own argument, ini ({ini}), "
    "[tool.conformance] of pyproject.toml."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; those of a suite have an environment variable and an ini name, too."""
    group = parser.getgroup("conformance", "attention conformance")
    group.addoption(
        "--candidate",
        action="append",
        default=[],
        metavar="TARGET",
        dest="conformance_candidates",
        help="With --pyargs conformance: check this target, one test a clause; may be repeated.",
    )
    for name, what in (
        ("profile", "How hard to try: smoke, quick, full, thorough or nightly (quick)."),
        ("seed", "Where the generated problems start (0)."),
        ("dtype", "Judge in this dtype, or some with commas, instead of the declared ones."),
        ("unchecked", "Parameters (or globs) that look like a mask and may stay unchecked."),
        ("expected-failures", "TOML file with [[expected]] tables of clause and reason."),
    ):
        ini = f"conformance_{name.replace('-', '_')}"
        precedence = _PRECEDENCE.format(variable=ini.upper(), ini=ini)
        group.addoption(
            f"--conformance-{name}",
            dest=ini,
            metavar=name.rpartition("-")[2].upper(),
            help=f"{what} {precedence}",
        )
        parser.addini(ini, f"{what} {precedence}")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse ``--pyargs conformance`` without a candidate: nothing would be checked."""
    if _checks_candidates(config) and not config.getoption("conformance_candidates"):
        msg = "pytest --pyargs conformance needs --candidate TARGET: it names what to check"
        raise pytest.UsageError(msg)


def _checks_candidates(config: pytest.Config) -> bool:
    modules = [argument.partition("::")[0] for argument in config.args]
    return bool(config.getoption("pyargs")) and "conformance" in modules


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Take this package's own folder over.

    pytest's package node would put the folder that holds it (site-packages) first on the path,
    before the packages of the user's repository.
    """
    if path.resolve() != HOME or not _checks_candidates(parent.config):
        return None
    from .testing.pytest_nodes import ConformanceDirectory  # noqa: PLC0415 (only when asked for)

    return ConformanceDirectory.from_parent(parent, path=path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a suite one test a clause."""
    options = getattr(metafunc.function, MARKER, None)
    if options is None:
        return
    from .testing.pytest_nodes import collect_suite  # noqa: PLC0415 (only when a suite is there)

    if "clause" not in metafunc.fixturenames:
        msg = (
            f"{metafunc.function.__name__} is parametrized by clauses: give it an argument 'clause'"
        )
        raise pytest.Collector.CollectError(msg)
    cases = collect_suite(metafunc.config, options)
    metafunc.parametrize("clause", cases, ids=[case.test_id for case in cases])


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Record the result of a clause, and fail a test that never called it."""
    case = _case_of(pyfuncitem)
    if case is None:
        return (yield)
    try:
        outcome = yield
    finally:
        pyfuncitem.user_properties.extend(case.properties())
    if case.result is None:
        pytest.fail(
            f"the test never called clause(): {case.test_id} was not checked", pytrace=False
        )
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a failed clause by its cause alone, without pytest's name of the exception.

    The short summary has one line a failure, with little room.
    """
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    ours = isinstance(item, pytest.Function) and _case_of(item) is not None
    if ours and report.failed and isinstance(error, pytest.fail.Exception) and not error.pytrace:
        report.longrepr = str(error)
    return report


def _case_of(item: pytest.Function) -> Any:
    if getattr(item.function, MARKER, None) is None:
        return None
    return item.callspec.params.get("clause") if hasattr(item, "callspec") else None


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Show a failure of the harness itself as an error, not as the candidate's failure."""
    if report.when == "call" and report.failed and (STATUS, "error") in report.user_properties:
        return "error", "E", "ERROR"
    return None
