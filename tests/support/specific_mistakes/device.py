"""What does with memory what a kernel must not, as far as a CPU shows it."""

from __future__ import annotations

from typing import Final

from .consequences import NOTHING_ELSE, Specific

DEVICE: Final[Specific] = {
    "device.batch-invariant": ("SplitsChosenByTheBatch", NOTHING_ELSE),
    "device.canaries": ("WholeTilesStored", NOTHING_ELSE),
    "device.fresh-memory": ("SumsIntoFreshMemory", NOTHING_ELSE),
    "device.memory": ("AllScoresAtOnce", NOTHING_ELSE),
}
# These speak of a device that is no CPU: tests/test_fake_device.py sees each of them fail.
ON_A_DEVICE: Final = frozenset(
    {"device.matches-cpu", "device.deterministic", "device.stream", "device.graph-capture"}
)
