"""The house keeps to its budgets: a package shrinks, or says why it grew."""

from __future__ import annotations

import tomllib
from collections import Counter

from _paths import CHECKOUT

BUDGETS = tomllib.loads((CHECKOUT / "budgets.toml").read_text(encoding="utf-8"))["lines"]


def lines() -> Counter[str]:
    """The lines of each package of ``conformance/``, of its own files, and of ``reference/``."""
    sizes: Counter[str] = Counter()
    for path in (*CHECKOUT.glob("conformance/**/*.py"), *CHECKOUT.glob("reference/*.py")):
        first, *rest = path.relative_to(CHECKOUT).parts
        package = first if first == "reference" else (rest[0] if len(rest) > 1 else ".")
        sizes[package] += len(path.read_text(encoding="utf-8").splitlines())
    return sizes


def test_every_package_has_a_budget() -> None:
    """A new package says how long it may be, and one that is gone leaves the table."""
    assert set(lines()) == set(BUDGETS)


def test_no_package_is_longer_than_its_budget() -> None:
    """Where a package grows, its entry is raised in the same commit, with a reason."""
    over = {name: (size, BUDGETS[name]) for name, size in lines().items() if size > BUDGETS[name]}
    assert over == {}
