"""The clauses that cannot be asked of a candidate in a process of its own, and why."""

from __future__ import annotations

from typing import Final

from ..declare.candidate import Candidate

_ONLY: Final = "only without --isolated"
# Why what is asked of a layer as a module does not apply: see ``modules``.
OF_MODULES: Final = f"{_ONLY}: it asks for the module itself, which is in another process"
_MEMORY: Final = "of an answer the judge has a copy, never the candidate's own memory"
_ALLOCATED: Final = "what it allocates is watched in the judge's process alone"
_MODES: Final = "modes and settings of torch act in one process"
_WRAPPED: Final = "torch would look into the call that is sent, not into the candidate"

_ASKED_THERE: Final[dict[str, str]] = {
    "compile.agrees": _WRAPPED,
    "device.canaries": _ALLOCATED,
    "device.fresh-memory": _ALLOCATED,
    "device.graph-capture": _WRAPPED,
    "device.memory": _ALLOCATED,
    "gradients.double-backward": "the way back is sent, and has no gradient of its own",
    "gradients.inputs-unchanged": "the way back is made with copies of the inputs",
    "mixed.autocast": _MODES,
    "operator.opcheck": _WRAPPED,
    "out.kept": _MEMORY,
    "state.answer-is-fresh": _MEMORY,
    "state.answer-kept": _MEMORY,
    "state.settings": _MODES,
}


def elsewhere(slug: str, candidate: Candidate) -> str:
    """Why a clause cannot be asked of a candidate that runs in another process, or ""."""
    if not candidate.isolated or slug not in _ASKED_THERE:
        return ""
    return f"{_ONLY}: {_ASKED_THERE[slug]}"
