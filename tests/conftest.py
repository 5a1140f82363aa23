"""Settings of every test: hypothesis profiles, one torch thread, where `candidates` comes from."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from _paths import append_checkout
from hypothesis import HealthCheck, settings
from opened_pages import chromium, opener  # noqa: F401 (fixtures of the tests of pages)
from workspaces import forget_modules, working_in

# No deadlines: a first call into torch takes as long as a hundred others.
settings.register_profile("local", deadline=None, max_examples=30)
settings.register_profile(
    "gate",
    deadline=None,
    max_examples=30,
    derandomize=True,
    database=None,
    print_blob=True,
)
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=2000,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
# A gate must give the same answer twice; HYPOTHESIS_PROFILE=nightly explores.
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "gate" if "CI" in os.environ else "local")
)

torch.set_num_threads(1)  # the problems are tiny, and workers share the cores

append_checkout()

# What runs in the background of a script ignores Ctrl-C, and so would every process of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# How many tests of each file run at night alone.
NIGHTLY = pytest.StashKey[Counter[Path]]()


@pytest.hookimpl(tryfirst=True)  # before the nightly ones are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave cases to the nightly run as ``one_in`` says, count the nightly tests; ids are fixed."""
    cases = Counter[str]()
    for item in items:
        if " at 0x" in item.nodeid:  # xdist refuses them all where two processes name one otherwise
            msg = f"{item.nodeid} holds an address: give the test ids= of its own"
            raise pytest.UsageError(msg)
        sampled = item.get_closest_marker("one_in")
        test = item.nodeid.partition("[")[0]
        if sampled is not None and cases[test] % sampled.args[0]:
            item.add_marker("nightly")
        cases[test] += 1
    counted = Counter({item.path: 0 for item in items})
    counted.update(item.path for item in items if item.get_closest_marker("nightly"))
    config.stash[NIGHTLY] = counted


@pytest.fixture
def nightly_tests(pytestconfig: pytest.Config) -> Counter[Path]:
    """How many tests of each collected file run at night alone."""
    return pytestconfig.stash[NIGHTLY]


@pytest.fixture(scope="session", autouse=True)
def broken_graphs() -> Iterator[None]:
    """Remove their files with the session: xdist kills a worker that takes long to exit."""
    yield
    if "candidates.broken._graphs" in sys.modules:
        sys.modules["candidates.broken._graphs"].remove_folders()


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep a user's `attn` of one test, or of a fixture that several share, out of the others."""
    forget_modules(tmp_path_factory.getbasetemp())
    yield
    forget_modules(tmp_path_factory.getbasetemp())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of the user's, whose worker computes on one thread."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is printed independent of the width that tox writes, of CI and of its wishes."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder of the user's; what is imported from there is forgotten."""
    with working_in(tmp_path, monkeypatch):
        yield tmp_path


@pytest.fixture(scope="module")
def warm_workers() -> Iterator[None]:
    """Fork workers from a process that has imported torch: a start takes no seconds.

    For tests of what a run answers. How a worker starts, and in which environment, is not theirs.
    """
    from conformance.running.workers.pool import WARM  # noqa: PLC0415 (pytest's own runs load nothing of it)

    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload([WARM])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda _method=None: forking)
        yield
