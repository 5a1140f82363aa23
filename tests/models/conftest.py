"""Whole models that several tests read: exported once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from whole_models import exported


@pytest.fixture(scope="session")
def export_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The file of a model by its name and its exporter."""
    made: dict[tuple[str, str], Path] = {}

    def find(name: str, exporter: str = "traced") -> Path:
        if (name, exporter) not in made:
            folder = tmp_path_factory.mktemp("models")
            made[name, exporter] = exported(name, folder, exporter)
        return made[name, exporter]

    return find
