"""What remembers, forgets or draws at random."""

from __future__ import annotations

from typing import Final

from .consequences import ANYTHING, ANYWHERE, NOTHING_ELSE, Specific, also

STATE: Final[Specific] = {
    "state.answer-is-fresh": ("AnswerIsTheValues", also("gradients.alone numerics.nan-shows")),
    "state.answer-kept": (
        "AnswerBufferReused",
        NOTHING_ELSE,
    ),
    "state.bitwise-repeatable": (
        "SummedInRandomOrder",
        also("mixed.undeclared-inputs"),
    ),
    "state.call-order": ("MaskKeptForLater", ANYTHING),
    "state.dropout": ("DropoutIgnored", NOTHING_ELSE),
    "state.eval-deterministic": ("NoiseInEval", ANYTHING),
    "state.follows-to": ("ScaleLeftBehind", NOTHING_ELSE),
    "state.grad-mode": ("UnscaledWhileRecording", ANYWHERE),
    "state.inputs-unchanged": ("BiasFilledInPlace", NOTHING_ELSE),
    "state.no-memory": ("AnswersCachedByAddress", ANYTHING),
    "state.repeatable": ("ScaleDrifts", ANYTHING),
    "state.settings": ("SeedsEverybody", also("state.dropout")),
    "state.state-dict": ("BiasesNotLoaded", NOTHING_ELSE),
    "state.threads": ("LastRowsLeftByThreads", NOTHING_ELSE),
    "state.train-agrees": ("UnscaledInTraining", NOTHING_ELSE),
    "state.unseen": ("GoldenLookedUp", ANYTHING),
    "state.untampered": ("TraceLeftOn", NOTHING_ELSE),
}
