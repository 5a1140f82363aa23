"""What breaks in an export."""

from __future__ import annotations

from typing import Final

from .consequences import NOTHING_ELSE, Specific, also

# A graph that ignores its mask ignores it whatever a clause does with it.
_MASKS: Final = (
    "mask.golden mask.no-leak mask.no-leak-nonfinite mask.padding-is-absence "
    "mask.single-key mask.strided numerics.any-length numerics.options shape.rejects-mismatch "
    "shape.rejects-others"
)
_NUMBERS: Final = (
    "numerics.any-length numerics.golden numerics.large-logits numerics.near-ties numerics.options "
    "numerics.scale numerics.scale-error numerics.typical-error"
)

EXPORT: Final[Specific] = {
    "export.deterministic": ("DropoutLeftIn", NOTHING_ELSE),
    "export.dynamic-batch": ("BatchOfTheTrace", NOTHING_ELSE),
    "export.dynamic-length": ("LengthOfTheTrace", NOTHING_ELSE),
    "export.inputs-matter": ("MaskWithoutEffect", also(_MASKS)),
    "export.matches-source": ("ScaleLostInExport", also(_NUMBERS)),
    "export.names": ("NamesOfTheTracer", NOTHING_ELSE),
    "export.one-file": ("WeightsBeside", NOTHING_ELSE),
    "export.optimisation-levels": ("WrongUnlessOptimised", NOTHING_ELSE),
    "export.providers": ("WrongOnTheAccelerator", NOTHING_ELSE),
    "export.self-contained": ("WeightsOfAnotherExportBeside", NOTHING_ELSE),
    "export.valid": ("DeclaresAnotherShape", NOTHING_ELSE),
}
