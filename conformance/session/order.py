"""The selection and the order of a run's clauses.

First come clauses that find mistakes soonest, and clauses that failed last time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ..base.files import write_text
from ..base.selection import selected, selects
from ..errors import UsageError, did_you_mean
from ..running.workers.messages import Loaded
from ..targets.loading import closest

# Made by `python benchmarks/first_failure.py --order` from mistakes of the catalogue: per second,
# each clause finds the most mistakes beyond earlier clauses. Clauses without diagnoses come later,
# such as clauses on memory layouts, which fail for the NaN rows of wrong masks. A run that stops at
# its first failure runs the first three clauses whole; clauses of all options together follow, the
# soonest to show mistakes invisible in every first example.
SOONEST: Final = (
    "mask.causal-combined",
    "mask.empty-row-weights",
    "groups.golden",
    "numerics.options",
    "numerics.golden",
    "gradients.empty-row-finite",
    "state.inputs-unchanged",
    "numerics.scale",
    "position.relative-shift",
    "gradients.inputs-unchanged",
    "gradients.sinks",
    "gradients.bias",
    "cache.untouched-tail",
    "softcap.after-scale",
    "state.dropout",
    "shape.strided",
    "gradients.options",
    "export.providers",
    "mixed.inputs",
    "position.formula",
    "window.golden",
    "numerics.convex",
    "gradients.causal",
    "mask.empty-row",
    "mask.bias-counts",
    "gradients.golden",
    "shape.expanded",
    "softcap.golden",
    "gradients.strided",
    "gradients.masked-zero",
    "state.call-order",
    "mask.golden",
    "mask.empty-row-options",
    "mask.bias",
    "cache.golden",
    "state.answer-kept",
    "equivariance.keys",
    "mask.causal-alignment",
    "numerics.constant-value",
    "export.matches-source",
)
# Made by `python benchmarks/order_by_calls.py --write`: clauses, each with the number of examples
# after which the next step finds more mistakes for a call of the candidate.
_STEPS: Final = Path(__file__).with_name("steps.json")
_FILE: Final = "failed.json"
# Targets remembered; the oldest are forgotten.
_MOST: Final = 500


def steps() -> list[tuple[str, int]]:
    """Clauses and numbers of examples, in the order that finds mistakes in the fewest calls."""
    return [(slug, most) for slug, most in json.loads(_STEPS.read_text(encoding="utf-8"))]


def last_failed(targets: Sequence[str]) -> tuple[str, ...]:
    """Return the clauses that failed in the last check of these targets, in order.

    Empty without an earlier check, or where the user's cache cannot be read.
    """
    slugs = _remembered().get(_key(targets))
    if not isinstance(slugs, list):
        return ()
    return tuple(slug for slug in slugs if isinstance(slug, str))


def remember_failed(targets: Sequence[str], record: Mapping[str, Any]) -> None:
    """Keep the failed clauses in the user's cache, for the next run on these targets.

    Nothing is kept of an interrupted run, nor in an unwritable cache: no verdict depends on it.
    """
    if record.get("interrupted"):
        return
    clauses = [clause for entry in record["candidates"] for clause in entry["clauses"]]
    failed = [clause["id"] for clause in clauses if clause["status"] == "failed"]
    before = {key: slugs for key, slugs in _remembered().items() if key != _key(targets)}
    kept = {**before, **({_key(targets): list(dict.fromkeys(failed))} if failed else {})}
    if kept == before and len(before) == len(_remembered()):
        return
    newest = dict(list(kept.items())[-_MOST:])
    with contextlib.suppress(OSError, UsageError):
        _folder().mkdir(parents=True, exist_ok=True)
        write_text(json.dumps(newest), _folder() / _FILE)


def _remembered() -> dict[str, Any]:
    """Read the kept clauses by target; empty if the file is missing or foreign."""
    try:
        data = json.loads((_folder() / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _folder() -> Path:
    """Return our folder in the user's cache: XDG_CACHE_HOME, by default ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(cache) if cache else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        home = Path(tempfile.gettempdir())
    return home / "attention-conformance"


def _key(targets: Sequence[str]) -> str:
    """Return a key for targets, relative to the working folder."""
    text = "\0".join([str(Path.cwd()), *targets])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def matching(globs: Iterable[str], slugs: Iterable[str]) -> list[str]:
    """Return the slugs matched by at least one glob."""
    globs = list(globs)
    return [slug for slug in slugs if any(fnmatchcase(slug, glob) for glob in globs)]


def check_globs(option: str, globs: Iterable[str], slugs: Collection[str]) -> None:
    """Require that each glob matches a clause; raises UsageError suggesting a near slug."""
    for glob in globs:
        if not any(selects(glob, slug) for slug in slugs):
            msg = f"{option} {glob!r} matches no clause{suggestion(glob, slugs)}"
            raise UsageError(msg)


def check_selection(slugs: Collection[str], only: Collection[str], skip: Collection[str]) -> None:
    """Require that ``--only`` and ``--skip`` name clauses and leave a clause to run."""
    check_globs("--only", only, slugs)
    check_globs("--skip", skip, slugs)
    if not selected(slugs, only, skip):
        msg = "--only and --skip leave no clause to run: nothing would be checked"
        raise UsageError(msg)


def check_unchecked(names: Iterable[str], candidates: Iterable[Loaded]) -> None:
    """Require that the names of ``--unchecked`` are unchecked parameters of a candidate.

    A glob may match nothing: globs are written once for many runs.
    """
    left = {parameter.name for candidate in candidates for parameter in candidate.unchecked}
    for name in names:
        if not _GLOB & set(name) and name not in left:
            msg = (
                f"--unchecked {name} names no parameter that looks like an option and is not "
                f"declared{did_you_mean(name, left) if left else ''}"
            )
            raise UsageError(msg)


_GLOB: Final = frozenset("*?[")


def suggestion(word: str, slugs: Iterable[str]) -> str:
    """A near slug, or where to see them all."""
    return closest(word, sorted(slugs)) or "; 'conformance list' shows the clauses"
