"""What the operators are known to fail, with versions seen: onnx 1.23.2, onnxruntime 1.31.1.

Each entry has a row and a minimal repro in ``docs/onnx-operators.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from conformance import ExpectedFailure


def _raised(clause: str, reason: str) -> ExpectedFailure:
    return ExpectedFailure(clause=clause, kind="raised", reason=reason)


NO_BATCH: Final = _raised("shape.empty-batch", "the kernel checks that the batch has an item")
NO_QUERY: Final = _raised("shape.empty-query", "the kernel checks that there is a query")
SCALE_REFUSED: Final = _raised(
    "numerics.odd-scale",
    "the operator multiplies by the root of the scale; the kernel refuses one that is not positive",
)
SCALE_WITHOUT_ROOT: Final = ExpectedFailure(
    clause="numerics.odd-scale",
    kind="finite",
    reason="the operator multiplies by the root of the scale, which is NaN below 0",
)
SCALE_OF_ZERO: Final = ExpectedFailure(
    clause="numerics.odd-scale",
    kind="value",
    reason="the operator takes a scale of 0 for one that is not given",
)
MASKS_IN_FULL: Final = _raised(
    "*",  # whichever clause hands over a mask
    "the kernel refuses masks that broadcast over the queries, which the operator allows",
)
SHORT_MASKS_PADDED_EARLY: Final = ExpectedFailure(
    clause="shape.rejects-mismatch",
    kind="not-raised",
    reason="opset 23 has no short masks, but onnx.reference pads them as opset 24 would",
)
SHORT_MASKS_PADDED: Final = ExpectedFailure(
    clause="shape.rejects-mismatch",
    kind="not-raised",
    reason="from opset 24 a mask may be shorter than the keys: the rest is minus infinity",
)
LONG_MASKS_CROPPED: Final = ExpectedFailure(
    clause="shape.rejects-others",
    kind="not-raised",
    reason="the function pads masks by a negative number of keys: it crops those that are too long",
)
ONE_KEY_MASK: Final = _raised(
    "*",  # whichever clause hands over a mask beside the causal flag
    "onnx.reference unpacks the last two axes of a mask that has one when is_causal is set",
)
PACKED_EMPTY_BATCH: Final = _raised(
    "shape.empty-batch", "heads of an empty tensor are reshaped with an axis to be inferred"
)
PACKED_EMPTY_QUERY: Final = _raised(
    "shape.empty-query", "heads of an empty tensor are reshaped with an axis to be inferred"
)
SCALE_IN_FLOAT: Final = ExpectedFailure(
    clause="*",  # every clause that compares with the golden at double precision
    kind="value",
    reason="the function computes its default scale in float, whatever the type of the inputs",
)


def values(clauses: Iterable[str], reason: str) -> list[ExpectedFailure]:
    """Wrong values in several clauses for one reason."""
    return [ExpectedFailure(clause=clause, kind="value", reason=reason) for clause in clauses]


FIRST_ROW_FOR_ALL: Final = values(
    ("shape.weights", "mask.causal-combined", "numerics.options", "numerics.any-length"),
    "onnx.reference makes the causal mask as long as the given one: one row, which all queries get",
)
FILL_OF_TEN_THOUSAND: Final = values(
    ("mask.single-key", "mask.no-leak", "cache.untouched-tail"),
    "ignored keys get the default mask_filter_value, -10000, added and not minus infinity",
)
LAST_QUERY_SEES_ALL: Final = values(
    ("mask.causal-alignment", "numerics.options", "numerics.any-length"),
    "the kernel aligns the causal mask at neither end when queries and keys differ in number",
)
