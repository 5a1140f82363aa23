"""What goes wrong with packed sequences, buffers, operators and compilers."""

from __future__ import annotations

from typing import Final

from .consequences import ANYTHING, NOTHING_ELSE, Specific, also

_SEQUENCES: Final = (
    "equivariance.batch-independent gradients.golden gradients.options mask.empty-row "
    "numerics.golden state.unseen varlen.causal varlen.empty-sequence varlen.golden "
    "varlen.no-keys varlen.no-keys-gradients varlen.no-keys-neighbours varlen.no-queries "
    "varlen.no-queries-gradients"
)

LAYOUTS: Final[Specific] = {
    "varlen.golden": (
        "SequencesOfEqualLength",
        also(
            f"{_SEQUENCES} equivariance.batch equivariance.queries numerics.convex "
            "state.no-memory varlen.independent"
        ),
    ),
    "varlen.causal": ("CausalByLongest", also(_SEQUENCES)),
    # Who attends its neighbours is wrong wherever there are several items.
    "varlen.independent": ("NeighbourAttended", ANYTHING),
    "varlen.empty-sequence": (
        "EmptySequencesShiftOthers",
        also(
            "cache.decode-equals-full gradients.empty-row-finite mask.empty-row varlen.no-keys "
            "varlen.no-keys-gradients varlen.no-keys-neighbours"
        ),
    ),
    "varlen.no-queries": (
        "QuerylessSequencesShiftOthers",
        also(
            "gradients.options mask.empty-row-options numerics.options varlen.empty-sequence "
            "varlen.no-queries-gradients"
        ),
    ),
    "varlen.no-keys": (
        "RowsWithoutKeysUnwritten",
        also("varlen.no-keys-gradients varlen.empty-sequence"),
    ),
    "varlen.no-queries-gradients": (
        "KeysWithoutQueriesKeepOldGradients",
        also("gradients.options"),
    ),
    "varlen.no-keys-gradients": ("QueriesWithoutKeysGetNaN", NOTHING_ELSE),
    "varlen.no-keys-neighbours": (
        "GradientsEndWithSequenceWithoutKeys",
        also("varlen.no-keys-gradients gradients.empty-row-finite"),
    ),
    "paged.golden": ("PartsMergedByTheirMean", ANYTHING),
    "paged.order": ("TableIgnored", ANYTHING),
    "paged.unused-unseen": ("OneKeyTooMany", ANYTHING),
    "paged.unused-unseen-nonfinite": ("UnusedSlotsTimesZero", also("numerics.nan-shows")),
    "paged.shared": ("SharedPagesReadOnce", ANYTHING),
    "paged.page-edges": ("FullLastPageLost", ANYTHING),
    "paged.empty-sequence": ("EmptyItemsLeftOut", also("lse.empty-row shape.empty-key")),
    "paged.written": ("NewKeysNotWritten", NOTHING_ELSE),
    "paged.others-untouched": ("RestOfThePageCleared", NOTHING_ELSE),
    "paged.any-batch": ("TableOfTheFirstItem", ANYTHING),
    "out.written": ("LastRowUnwritten", also("out.strided")),
    "out.bounds": ("WrittenPastTheBuffer", also("out.strided")),
    "out.strided": ("BufferTakenAsContiguous", NOTHING_ELSE),
    "out.kept": ("BufferUsedAgain", NOTHING_ELSE),
    "operator.opcheck": ("MutationUndeclared", NOTHING_ELSE),
    "compile.agrees": ("ScaleLostWhenCompiled", also("numerics.golden")),
}
