"""The golden answer and its bound for sequences too long for tables of all queries by all keys.

A row of attention needs its own query alone: a block of queries is taken at a time, against all
keys. The bound's facts about all keys, such as the keys attended by any query, are computed once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..declare.declaration import Declaration
from ..problems.inputs import Inputs, of_rows
from ..tolerance import Contract, contract_for
from ..tolerance.model import MOST_SATURATED
from ..tolerance.statistical import core_statistics, has_statistical_bound, sampled_rows
from .comparison import Comparison, compare
from .headroom import finite_limit
from .oracle import Golden

# The pairs of a block: a table of them takes 64 MiB in float64, and some twenty are held at once.
MOST_PAIRS: Final = 2**23
# Where a row of the answer needs its own query alone: the golden of some rows is that of all.
ROWWISE: Final = frozenset(
    {
        "scale",
        "scale_factor",
        "causal_alignment",
        "causal_offset",
        "empty_rows",
        "bias_order",
        "softcap_order",
        "window_offset",
        "group_order",
        "qk_norm",
        "qk_norm_epsilon",
        "query_bias",
        "key_bias",
        "value_bias",
        "output_bias",
    }
)


def rows_apart(semantics: golden.Semantics) -> bool:
    """Whether no row of the answer depends on another query, at a point."""
    return set(golden.STANDARD.differences(semantics)) <= ROWWISE


@dataclass(frozen=True, kw_only=True)
class JudgedRows:
    """Some rows ``rows`` (int64 ``[R]``) of a long answer: all else is ``[B, H, R, Dv]``."""

    rows: Tensor
    output: Tensor
    bound: Tensor
    judged: Tensor


class LongGolden:
    """The golden answer of a core for long inputs, evaluated a block of rows at a time.

    Raises ValueError for a layer, and at a point where rows depend on each other.
    """

    def __init__(
        self, inputs: Inputs, declaration: Declaration, dtype: str, *, most_pairs: int = MOST_PAIRS
    ) -> None:
        if inputs.is_layer or not rows_apart(declaration.semantics):
            msg = "a long sequence is judged in blocks of rows, which needs a core of separate rows"
            raise ValueError(msg)
        self.inputs = inputs
        self.declaration = declaration
        self.limit = finite_limit(declaration, dtype)
        self._dtype = dtype
        batch, heads, _, keys = inputs.score_shape
        self.block = max(1, most_pairs // max(1, batch * heads * keys))
        self._attended = self._attended_keys()

    def blocks(self, rows: Tensor | None = None) -> Iterator[JudgedRows]:
        """All rows (or ``rows``, int64 ``[R]``, ascending) in blocks that fit the memory."""
        length = self.inputs.geometry.query_length
        wanted = torch.arange(length) if rows is None else rows
        for chosen in wanted.split(self.block):
            yield self._rows(chosen)

    def statistical(self) -> JudgedRows | None:
        """A sample of the rows with the statistical bound where that is sharper.

        None where errors cannot be taken for independent.
        """
        rows = sampled_rows(self.inputs.geometry.query_length)
        sample = self._golden(rows)
        contract = self._contract(sample.core.scale)
        if (
            contract.sides > 1
            or not self.inputs.generic
            or not has_statistical_bound(sample.core.semantics)
        ):
            return None
        statistics = core_statistics(sample.core, contract, rows=rows)
        if statistics.saturated >= MOST_SATURATED:
            return None
        bound = torch.minimum(sample.bound, statistics.bound)
        return JudgedRows(rows=rows, output=sample.output, bound=bound, judged=sample.judged)

    def compare(
        self,
        answer: Tensor,
        wording: str = "the answer to a long sequence is wrong",
        *,
        rows: Tensor | None = None,
    ) -> Comparison:
        """Compare an answer ``[B, H, Lq, Dv]`` in all rows (or ``rows``) and the sampled rows."""
        worst = Comparison(margin=0.0)
        sample = self.statistical()
        for block in (*([] if sample is None else [sample]), *self.blocks(rows)):
            comparison = compare(
                answer[..., block.rows, :],
                block.output,
                block.bound,
                judged=block.judged,
                wording=wording,
            )
            if comparison.margin > worst.margin:
                worst = _place_among_rows(comparison, block.rows)
        return worst

    def _contract(self, scale: float) -> Contract:
        return contract_for(self.declaration, self._dtype, scale)

    def _rows(self, rows: Tensor) -> JudgedRows:
        answer = self._golden(rows)
        return JudgedRows(rows=rows, output=answer.output, bound=answer.bound, judged=answer.judged)

    def _golden(self, rows: Tensor) -> Golden:
        """The golden of some rows, over the keys attended by any row."""
        inputs, semantics = self.inputs, self.declaration.semantics
        shown = self._shown(rows)
        with torch.no_grad():
            core = golden.attend(
                inputs.query[..., rows, :],
                inputs.key,
                inputs.value,
                semantics=semantics,
                **shown.options,
            )
        # Keys that only other rows attend count in the bound of the whole. With normalised keys
        # or a sink (one more key), the keys of the rows alone count: their bound holds as well.
        attended = None if core.sinks is not None or semantics.qk_norm != "none" else self._attended
        if attended is not None:
            heads, unattended = inputs.geometry.num_heads, ~attended
            key, value = (
                golden.repeat_heads(tokens.double(), heads, semantics).masked_fill(unattended, 0.0)
                for tokens in (inputs.key, inputs.value)
            )
            core = dataclasses.replace(core, key=key, given_key=key, value=value)
        return Golden(
            output=core.output,
            contract=self._contract(core.scale),
            weights=core.weights,
            empty=core.empty,
            core=core,
            evaluation=core,
            limit=self.limit,
            attended=attended,
        )

    def _shown(self, rows: Tensor) -> Inputs:
        """The inputs with masks of some rows, in which causal flag and window hide keys as well."""
        inputs, point = self.inputs, self.declaration.semantics
        if not inputs.causal and inputs.window is None:
            return inputs.replace(keep=of_rows(inputs.keep, rows), bias=of_rows(inputs.bias, rows))
        shown = inputs.attending(inputs.allowed(point, rows), point)
        return shown.replace(bias=of_rows(shown.bias, rows))

    def _attended_keys(self) -> Tensor | None:
        """The keys that any row may attend, bool ``[B, H, Lk, 1]``; None if nothing is hidden."""
        inputs = self.inputs
        given = (inputs.keep, inputs.bias, inputs.window)
        if not inputs.causal and all(hiding is None for hiding in given):
            return None
        batch, heads, length, keys = inputs.score_shape
        attended = torch.zeros(batch, heads, keys, dtype=torch.bool)
        for rows in torch.arange(length).split(self.block):
            attended |= inputs.allowed(self.declaration.semantics, rows).any(dim=-2)
        return attended.unsqueeze(-1)


def _place_among_rows(comparison: Comparison, rows: Tensor) -> Comparison:
    """A comparison of some rows, with its worst element's index among all rows."""
    if not comparison.index:
        return comparison
    *head, row, channel = comparison.index
    return comparison.replace(index=(*head, int(rows[row]), channel))
