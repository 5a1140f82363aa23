"""What the command line gives beside a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What is said of the graphs among the targets.

    source
        The target of the module that they were exported from.
    state_dict, declaration
        Paths of the file with its weights, and of the file that declares roles and promises.
    """

    source: str | None = None
    state_dict: str | None = None
    declaration: str | None = None

    def given(self) -> list[str]:
        """The options that were used, as they are spelled."""
        options = {
            "--source": self.source,
            "--state-dict": self.state_dict,
            "--declaration": self.declaration,
        }
        return [option for option, value in options.items() if value is not None]


NOTHING = Beside()
