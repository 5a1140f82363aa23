"""What a run with isolated candidates cannot be combined with, and the seed it begins from."""

from __future__ import annotations

import secrets
from typing import Final

from ...errors import UsageError
from .zygote import why_impossible

# The seeds of problems are multiples of it below 2**43; to try them all takes days.
_SEEDS: Final = 1 << 30


def check_isolated(
    *, compiled: bool = False, devices: tuple[str, ...] = (), seedless_shard: bool = False
) -> None:
    """Require that candidates can be isolated as they are to be run; raises UsageError."""
    reason = why_impossible()
    if reason:
        msg = f"candidates cannot be isolated here: {reason}; run without --isolated"
        raise UsageError(msg)
    if compiled:
        msg = "--compile compiles in the judge's process, which --isolated keeps free: drop one"
        raise UsageError(msg)
    if seedless_shard:
        msg = "--isolated draws a seed for each shard, and they would not fit together: give --seed"
        raise UsageError(msg)
    elsewhere = [device for device in devices if device.partition(":")[0] != "cpu"]
    if elsewhere:
        msg = f"--isolated hands tensors over on the CPU, not on {elsewhere[0]}: drop one"
        raise UsageError(msg)


def unforeseen_seed() -> int:
    """A seed that no candidate can know before it is asked; the record says it afterwards."""
    return secrets.randbelow(_SEEDS)
