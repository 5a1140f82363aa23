"""Named mistakes that are another point of the semantics: what diagnosis compares answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ._golden import golden


@dataclass(frozen=True, kw_only=True)
class NamedMistake:
    """A mistake as changes to the declared point.

    name
        A stable slug.
    text
        What the candidate does, and the fix, in the user's terms.
    """

    name: str
    text: str
    changes: dict[str, Any]

    def at(self, point: golden.Semantics) -> golden.Semantics:
        """The declared point with this mistake made."""
        return point.replace(**self.changes)


def _mistake(name: str, text: str, **changes: Any) -> NamedMistake:
    return NamedMistake(name=name, text=text, changes=changes)


MISTAKES: Final[tuple[NamedMistake, ...]] = (
    _mistake(
        "scale-missing",
        "the scores are not scaled: divide them by the square root of the head size",
        scale="none",
    ),
    _mistake(
        "scale-not-rooted",
        "the scores are divided by the head size instead of its square root",
        scale="inverse-head-size",
    ),
    _mistake(
        "scale-inverted",
        "the scores are multiplied by the square root of the head size instead of divided",
        scale="sqrt-head-size",
    ),
    _mistake(
        "scale-of-full-width",
        "the scale uses the width of all heads together: use the size of one head",
        scale="inverse-sqrt-model-width",
    ),
    _mistake(
        "scale-of-head-count",
        "the scale uses the number of heads: use the head size",
        scale="inverse-sqrt-num-heads",
    ),
    _mistake(
        "scale-of-value-size",
        "the scale uses the value head size: use the query and key head size",
        scale="inverse-sqrt-value-head-size",
    ),
    _mistake(
        "softmax-over-queries",
        "the softmax runs over the queries: it must run over the keys (the last axis)",
        softmax_axis="query",
    ),
    _mistake(
        "softmax-over-heads",
        "the softmax runs over the heads: it must run over the keys (the last axis)",
        softmax_axis="head",
    ),
    _mistake(
        "softmax-over-batch",
        "the softmax runs over the batch: it must run over the keys (the last axis)",
        softmax_axis="batch",
    ),
    _mistake(
        "softmax-missing", "there is no softmax: the scores weigh the values", softmax_axis="none"
    ),
    _mistake(
        "mask-inverted",
        "the mask is read with the opposite polarity: what it hides is attended",
        mask_polarity="drop",
    ),
    _mistake("mask-ignored", "the mask is ignored", mask_operation="ignore"),
    _mistake(
        "mask-added-to-kept",
        "1 is added to the kept logits instead of minus infinity to the hidden ones",
        mask_operation="add-to-kept",
    ),
    _mistake(
        "mask-multiplies-logits",
        "the logits are multiplied by the 0/1 mask: a hidden key keeps a logit of 0",
        mask_operation="multiply-logits",
    ),
    _mistake(
        "mask-multiplies-weights",
        "the weights are masked after the softmax: the rows no longer sum to one",
        mask_operation="multiply-weights",
    ),
    *(
        _mistake(
            f"mask-fill-{text}",
            (
                f"hidden logits are filled with -{text} instead of minus infinity: they win over "
                "lower ones"
            ),
            mask_fill=fill,
        )
        for text, fill in (
            ("100", -1e2),
            ("1e4", -1e4),
            ("1e5", -1e5),
            ("1e6", -1e6),
            ("1e7", -1e7),
        )
    ),
    *(
        _mistake(
            f"mask-adds-{text}",
            f"-{text} is added to hidden logits instead of minus infinity: high ones stay visible",
            mask_operation="add",
            mask_fill=fill,
        )
        for text, fill in (("100", -1e2), ("1e4", -1e4), ("1e6", -1e6))
    ),
    _mistake(
        "causal-top-left",
        (
            "the causal diagonal starts at the first query and key (top-left): bottom-right is "
            "declared"
        ),
        causal_alignment="top-left",
    ),
    _mistake(
        "causal-bottom-right",
        "the causal diagonal ends at the last query and key (bottom-right): top-left is declared",
        causal_alignment="bottom-right",
    ),
    _mistake(
        "causal-sees-next",
        "the causal diagonal is one too far: the next key is seen",
        causal_offset=1,
    ),
    _mistake(
        "causal-hides-own",
        "the causal diagonal is one short: a query does not see its own position",
        causal_offset=-1,
    ),
    _mistake("causal-ignored", "the causal flag is ignored", causal_combination="mask-only"),
    _mistake(
        "mask-lost-to-causal",
        "the mask is dropped when the causal flag is set",
        causal_combination="causal-only",
    ),
    _mistake(
        "causal-or-mask",
        "a key is attended when causality or the mask admits it: both must",
        causal_combination="either",
    ),
    _mistake("empty-rows-zeros", "a row without keys returns zeros", empty_rows="zeros"),
    _mistake("empty-rows-nan", "a row without keys returns NaN", empty_rows="nan"),
    _mistake(
        "empty-rows-mean",
        "a row without keys returns the mean of all values, as a finite fill does",
        empty_rows="mean-of-all",
    ),
    _mistake(
        "bias-before-scale",
        "the bias is added before the scaling and is scaled too",
        bias_order="before-scale",
    ),
    _mistake(
        "heads-split-interleaved",
        "head h takes every H-th channel instead of its own block of channels",
        head_split="interleaved",
    ),
    _mistake(
        "heads-split-without-transpose",
        "the heads are split by a view without the transpose: tokens and heads are mixed",
        head_split="reinterpret",
    ),
    _mistake(
        "heads-merged-interleaved",
        "the heads are merged channel by channel instead of side by side",
        head_merge="interleaved",
    ),
    _mistake(
        "heads-merged-without-transpose",
        "the heads are merged by a view without the transpose: tokens and heads are mixed",
        head_merge="reinterpret",
    ),
    _mistake(
        "heads-concatenated-along-tokens",
        "the heads are concatenated along the token axis: concatenate them along the channels",
        head_merge="tokens",
    ),
    _mistake(
        "groups-tiled",
        "query head h reads key/value head h modulo their number: it must read h // group",
        group_order="tile",
    ),
    _mistake(
        "query-bias-missing", "the bias of the query projection is left out", query_bias=False
    ),
    _mistake(
        "value-bias-missing", "the bias of the value projection is left out", value_bias=False
    ),
    _mistake(
        "output-bias-missing", "the bias of the output projection is left out", output_bias=False
    ),
)
