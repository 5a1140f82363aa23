"""The rules by which answers are judged: ours and three in common use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from conformance.tolerance import Contract

from .exact import Exact

OURS: Final = "derived"
FLASH: Final = "2x torch"
DEFAULTS: Final = "assert_close"
HUNDREDTH: Final = "1e-2"
RULES: Final = (OURS, FLASH, DEFAULTS, HUNDREDTH)
EXPLAINED: Final = {
    OURS: "this project: worst case; on independent tokens also statistical bound, RMS, scale",
    FLASH: "FlashAttention's tests: error at most twice that of plain torch in the dtype, + 1e-5",
    DEFAULTS: "torch.testing.assert_close with its default tolerances of the dtype",
    HUNDREDTH: "atol = rtol = 1e-2",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """What the rules need to know about one problem; ``plain`` is plain torch's own answer."""

    exact: Exact
    plain: Tensor

    def flagged(self, answer: Tensor, contract: Contract) -> frozenset[str]:
        """The rules that reject an answer."""
        verdicts = {
            OURS: not self.exact.margins(answer, contract).failed,
            FLASH: self._within_twice(answer),
            DEFAULTS: is_close(answer, self.exact.output),
            HUNDREDTH: is_close(answer, self.exact.output, 1e-2),
        }
        return frozenset(rule for rule, passed in verdicts.items() if not passed)

    def _within_twice(self, answer: Tensor) -> bool:
        """The rule of ``tests/test_flash_attn.py`` of FlashAttention."""
        allowed = 2.0 * self.exact.error(self.plain).abs().max() + 1e-5
        return bool(self.exact.error(answer).abs().max() <= allowed)


def is_close(answer: Tensor, expected: Tensor, tolerance: float | None = None) -> bool:
    """``assert_close`` with a tolerance that is both, or the defaults of the answer's dtype."""
    try:
        torch.testing.assert_close(
            answer, expected.to(answer.dtype), rtol=tolerance, atol=tolerance
        )
    except AssertionError:
        return False
    return True
