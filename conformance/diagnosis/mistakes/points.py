"""Named mistakes that are another point of the semantics."""

from __future__ import annotations

import math
from typing import Any, Final

from ..._golden import golden
from .named import NamedMistake, Where, everywhere


def _mistake(
    name: str, clause: str, text: str, fix: str, where: Where = everywhere, **changes: Any
) -> NamedMistake:
    return NamedMistake(name=name, text=text, fix=fix, clause=clause, changes=changes, where=where)


POINTS: Final[tuple[NamedMistake, ...]] = (
    _mistake(
        "scale-missing",
        "numerics.scale",
        "the scores are not scaled",
        "divide them by the square root of the head size",
        scale="none",
    ),
    _mistake(
        "scale-not-rooted",
        "numerics.scale",
        "the scores are divided by the head size instead of its square root",
        "divide by the square root of the head size",
        scale="inverse-head-size",
    ),
    _mistake(
        "scale-inverted",
        "numerics.scale",
        "the scores are multiplied by the square root of the head size",
        "divide by it: head_size ** -0.5 as a factor, not as a divisor",
        scale="sqrt-head-size",
    ),
    _mistake(
        "scale-of-full-width",
        "numerics.scale",
        "the scale uses the width of all heads together",
        "use the size of one head: width / number of heads",
        scale="inverse-sqrt-model-width",
    ),
    _mistake(
        "scale-of-head-count",
        "numerics.scale",
        "the scale uses the number of heads",
        "use the head size",
        scale="inverse-sqrt-num-heads",
    ),
    _mistake(
        "scale-of-value-size",
        "numerics.scale",
        "the scale uses the value head size",
        "use the query and key head size",
        scale="inverse-sqrt-value-head-size",
    ),
    _mistake(
        "softmax-over-queries",
        "numerics.constant-value",
        "the softmax runs over the queries",
        "run it over the keys, the last axis of the scores",
        softmax_axis="query",
    ),
    _mistake(
        "softmax-over-heads",
        "numerics.constant-value",
        "the softmax runs over the heads",
        "run it over the keys, the last axis of the scores",
        softmax_axis="head",
    ),
    _mistake(
        "softmax-over-batch",
        "equivariance.batch-independent",
        "the softmax runs over the batch",
        "run it over the keys, the last axis of the scores",
        softmax_axis="batch",
    ),
    _mistake(
        "softmax-missing",
        "numerics.convex",
        "there is no softmax: the scores weigh the values",
        "apply a softmax over the keys to the scores",
        softmax_axis="none",
    ),
    _mistake(
        "mask-inverted",
        "mask.golden",
        "the mask is read with the opposite polarity: what it hides is attended",
        "invert the mask where it is applied",
        mask_polarity="drop",
    ),
    _mistake(
        "mask-ignored",
        "mask.no-leak",
        "the mask is ignored",
        "apply it before the softmax, and keep what masked_fill returns",
        mask_operation="ignore",
    ),
    _mistake(
        "mask-added-to-kept",
        "mask.no-leak",
        "1 is added to the kept logits instead of minus infinity to the hidden ones",
        "fill the hidden logits with minus infinity: a boolean mask is not an additive one",
        mask_operation="add-to-kept",
    ),
    _mistake(
        "mask-multiplies-logits",
        "mask.no-leak",
        "the logits are multiplied by the 0/1 mask: a hidden key keeps a logit of 0",
        "fill the hidden logits with minus infinity instead",
        mask_operation="multiply-logits",
    ),
    _mistake(
        "mask-multiplies-weights",
        "mask.padding-is-absence",
        "the weights are masked after the softmax: the rows no longer sum to one",
        "mask the logits before the softmax",
        mask_operation="multiply-weights",
    ),
    *(
        _mistake(
            f"mask-fill-{text}",
            "mask.single-key",
            (
                f"hidden logits are filled with about -{text} instead of minus infinity: "
                "they win over lower ones"
            ),
            "fill them with minus infinity",
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
            "mask.single-key",
            (
                f"about -{text} is added to hidden logits instead of minus infinity: "
                "high ones stay visible"
            ),
            "add minus infinity, or fill with it",
            mask_operation="add",
            mask_fill=fill,
        )
        for text, fill in (("100", -1e2), ("1e4", -1e4), ("1e6", -1e6))
    ),
    _mistake(
        "causal-top-left",
        "mask.causal-alignment",
        "the causal diagonal starts at the first query and key (top-left)",
        "align it at the last query and key (bottom-right), as declared: diagonal=Lk - Lq",
        causal_alignment="top-left",
    ),
    _mistake(
        "causal-bottom-right",
        "mask.causal-alignment",
        "the causal diagonal ends at the last query and key (bottom-right)",
        "align it at the first query and key (top-left), as declared: diagonal=0",
        causal_alignment="bottom-right",
    ),
    _mistake(
        "causal-sees-next",
        "mask.causal",
        "the causal diagonal is one too far: the next key is seen",
        "shift it back by one",
        causal_offset=1,
    ),
    _mistake(
        "causal-hides-own",
        "mask.causal-alignment",
        "the causal diagonal is one short: a query does not see its own position",
        "shift it by one: a query sees its own position",
        causal_offset=-1,
    ),
    _mistake(
        "empty-rows-zeros",
        "mask.empty-row",
        "a row without keys returns zeros, which is not what is declared",
        "return what empty_rows= declares, or declare zeros",
        empty_rows="zeros",
    ),
    _mistake(
        "empty-rows-nan",
        "mask.empty-row",
        "a row without keys returns NaN",
        "set the weights of such a row to zero after the softmax",
        empty_rows="nan",
    ),
    _mistake(
        "empty-rows-mean",
        "mask.empty-row",
        "a row without keys returns the mean of all values, as a finite fill does",
        "fill with minus infinity and set the weights of such a row to zero",
        empty_rows="mean-of-all",
    ),
    _mistake(
        "bias-before-scale",
        "mask.bias-counts",
        "the bias is added before the scaling and is scaled too",
        "scale the scores first, then add the bias",
        bias_order="before-scale",
    ),
    _mistake(
        "heads-split-interleaved",
        "numerics.golden",
        "head h takes every H-th channel instead of its own block of channels",
        "view the width as (heads, head size), not as (head size, heads)",
        head_split="interleaved",
    ),
    _mistake(
        "heads-split-without-transpose",
        "numerics.golden",
        "the heads are split by a view without the transpose: tokens and heads are mixed",
        "view as (batch, length, heads, head size), then transpose(1, 2)",
        head_split="reinterpret",
    ),
    _mistake(
        "heads-merged-interleaved",
        "numerics.golden",
        "the heads are merged channel by channel instead of side by side",
        "transpose to (batch, length, heads, head size) before the reshape",
        head_merge="interleaved",
    ),
    _mistake(
        "heads-merged-without-transpose",
        "numerics.golden",
        "the heads are merged by a view without the transpose: tokens and heads are mixed",
        "transpose(1, 2) before the reshape to (batch, length, width)",
        head_merge="reinterpret",
    ),
    _mistake(
        "heads-concatenated-along-tokens",
        "shape.output",
        "the heads are concatenated along the token axis",
        "concatenate them along the channels",
        head_merge="tokens",
    ),
    _mistake(
        "groups-tiled",
        "numerics.golden",
        "query head h reads key/value head h modulo their number",
        "read head h // group: repeat_interleave, not repeat",
        group_order="tile",
    ),
    _mistake(
        "query-bias-missing",
        "numerics.golden",
        "the bias of the query projection is left out",
        "add it",
        query_bias=False,
    ),
    _mistake(
        "value-bias-missing",
        "numerics.golden",
        "the bias of the value projection is left out",
        "add it",
        value_bias=False,
    ),
    _mistake(
        "output-bias-missing",
        "numerics.golden",
        "the bias of the output projection is left out",
        "add it",
        output_bias=False,
    ),
)

# Points that are chosen on purpose, so that a declaration of one says nothing wrong: T5 trains
# without a scale; alignments, rules for empty rows, orders of bias and of groups differ.
_CHOSEN: Final = frozenset(
    {
        "scale-missing",
        "causal-top-left",
        "causal-bottom-right",
        "empty-rows-zeros",
        "empty-rows-nan",
        "empty-rows-mean",
        "bias-before-scale",
        "groups-tiled",
        "query-bias-missing",
        "value-bias-missing",
        "output-bias-missing",
    }
)
_INTERLEAVED: Final = ("heads-split-interleaved", "heads-merged-interleaved")
_EITHER: Final = _mistake(
    "causal-or-mask",
    "mask.causal-and-mask",
    "a key is attended when causality or the mask admits it",
    "combine the two with and, not or",
    causal_combination="either",
)


def mistaken_conventions(point: golden.Semantics) -> list[NamedMistake]:
    """What of a point nobody chooses on purpose, each as the mistake that it is.

    A missing scale, alignments, rules for empty rows and the like are conventions. So are heads of
    interleaved channels where they are split and merged alike.
    """
    changed = golden.STANDARD.differences(point)
    found = [
        one
        for one in (*POINTS, _EITHER)
        if one.name not in _CHOSEN
        and "mask_fill" not in one.changes
        and all(name in changed and changed[name][1] == v for name, v in one.changes.items())
    ]
    if {one.name for one in found} >= set(_INTERLEAVED):
        found = [one for one in found if one.name not in _INTERLEAVED]
    return [*found, *([filled_mistake(point)] if point.mask_fill > -math.inf else [])]


def filled_mistake(point: golden.Semantics) -> NamedMistake:
    """The mistake of a finite number where minus infinity is meant."""
    fill = f"{point.mask_fill:g}".replace("e+0", "e").replace("e+", "e")
    if point.mask_operation == "add":
        return _mistake(
            "mask-adds-finite",
            "mask.single-key",
            f"{fill} is added to hidden logits instead of minus infinity: high ones stay visible",
            "add minus infinity, or fill with it",
            mask_operation="add",
            mask_fill=point.mask_fill,
        )
    return _mistake(
        "mask-fill-finite",
        "mask.single-key",
        f"hidden logits are filled with {fill} instead of minus infinity: they win over lower ones",
        "fill them with minus infinity",
        mask_fill=point.mask_fill,
    )
