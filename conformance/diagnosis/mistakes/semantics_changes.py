"""Named mistakes that are another point of the semantics."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import torch

from ..._golden import golden
from ._steps import reweighed
from .named_mistake import NamedMistake, named

# Axes of the scores without the keys' axis: name, number, plural, a clause that fails.
OTHER_AXES: Final = (
    ("query", -2, "queries", "numerics.constant-value"),
    ("head", -3, "heads", "numerics.constant-value"),
    ("batch", 0, "batch", "equivariance.batch-independent"),
)
OVER_KEYS: Final = "run it over the keys, the last axis of the scores"

POINTS: Final[tuple[NamedMistake, ...]] = (
    *named("scale-missing", "numerics.scale")(
        "the scores are not scaled",
        "divide them by the square root of the head size",
        {"changes": {"scale": "none"}},
    ),
    *named("scale-not-rooted", "numerics.scale")(
        "the scores are divided by the head size instead of its square root",
        "divide by the square root of the head size",
        {"changes": {"scale": "inverse-head-size"}},
    ),
    *named("mask-beside-causal", "mask.causal-and-mask")(
        "mask and causal flag hide together, where one is declared to replace the other",
        "hide by that one alone, or declare that both do",
        *(
            {"base": {"causal_combination": rule}, "changes": {"causal_combination": "both"}}
            for rule in ("causal-only", "mask-only")
        ),
    ),
    *named("scale-of-full-width", "numerics.scale")(
        "the scale uses the width of all heads together",
        "use the size of one head: width / number of heads",
        {"changes": {"scale": "inverse-sqrt-model-width"}},
    ),
    *named("scale-of-head-count", "numerics.scale")(
        "the scale uses the number of heads",
        "use the head size",
        {"changes": {"scale": "inverse-sqrt-num-heads"}},
    ),
    *named("scale-of-value-size", "numerics.scale")(
        "the scale uses the value head size",
        "use the query and key head size",
        {"changes": {"scale": "inverse-sqrt-value-head-size"}},
    ),
    *(
        mistake
        for axis, dim, plural, clause in OTHER_AXES
        for mistake in named(f"softmax-over-{plural}", clause)(
            f"the softmax runs over the {plural}",
            OVER_KEYS,
            {"changes": {"softmax_axis": axis}},
            # A slice with all scores hidden is NaN, as in torch.
            reweighed(partial(torch.softmax, dim=dim)),
            # A finite fill shares the weight instead.
            {"changes": {"softmax_axis": axis, "mask_fill": -1e9}},
        )
    ),
    *named("softmax-missing", "numerics.convex")(
        "there is no softmax: the scores weigh the values",
        "apply a softmax over the keys to the scores",
        {"changes": {"softmax_axis": "none"}},
    ),
    *named("mask-inverted", "mask.golden")(
        "the mask is read with the opposite polarity: what it hides is attended",
        "invert the mask where it is applied",
        {"changes": {"mask_polarity": "drop"}},
    ),
    *named("mask-ignored", "mask.no-leak", needs="mask")(
        "the mask is ignored",
        "apply it before the softmax, and keep what masked_fill returns",
        {"changes": {"mask_operation": "ignore"}},
    ),
    *named("mask-added-to-kept", "mask.no-leak", needs="mask")(
        "1 is added to the kept logits instead of minus infinity to the hidden ones",
        "fill the hidden logits with minus infinity: a boolean mask is not an additive one",
        {"changes": {"mask_operation": "add-to-kept"}},
    ),
    *named("mask-multiplies-logits", "mask.no-leak", needs="mask")(
        "a hidden key keeps a logit of 0: the logits are multiplied by the 0/1 mask, or filled "
        "with a number near zero, such as 1e-9 where -1e9 is meant",
        "fill the hidden logits with minus infinity instead",
        {"changes": {"mask_operation": "multiply-logits"}},
    ),
    *named("mask-multiplies-weights", "mask.padding-is-absence", needs="mask")(
        "the weights are masked after the softmax: the rows no longer sum to one",
        "mask the logits before the softmax",
        {"changes": {"mask_operation": "multiply-weights"}},
    ),
    *(
        mistake
        for text in ("100", "1e4", "1e5", "1e6", "1e7")
        for mistake in named(f"mask-fill-{text}", "mask.single-key", needs="mask")(
            f"hidden logits are filled with about -{text} instead of minus infinity: "
            "they win over lower ones",
            "fill them with minus infinity",
            {"changes": {"mask_fill": -float(text)}},
        )
    ),
    *(
        mistake
        for text in ("100", "1e4", "1e6")
        for mistake in named(f"mask-adds-{text}", "mask.single-key", needs="mask")(
            f"about -{text} is added to hidden logits instead of minus infinity: "
            "high ones stay visible",
            "add minus infinity, or fill with it",
            {"changes": {"mask_operation": "add", "mask_fill": -float(text)}},
        )
    ),
    *named("causal-top-left", "mask.causal-alignment", needs="causal")(
        "the causal diagonal starts at the first query and key (top-left)",
        "align it at the last query and key (bottom-right), as declared: diagonal=Lk - Lq",
        {"changes": {"causal_alignment": "top-left"}},
    ),
    *named("causal-bottom-right", "mask.causal-alignment", needs="causal")(
        "the causal diagonal ends at the last query and key (bottom-right)",
        "align it at the first query and key (top-left), as declared: diagonal=0",
        {"changes": {"causal_alignment": "bottom-right"}},
    ),
    *named("causal-sees-next", "mask.causal")(
        "the causal diagonal is one too far: the next key is seen",
        "shift it back by one",
        {"changes": {"causal_offset": 1}},
    ),
    *named("causal-hides-own", "mask.causal-alignment")(
        "the causal diagonal is one short: a query does not see its own position",
        "shift it by one: a query sees its own position",
        {"changes": {"causal_offset": -1}},
    ),
    *named("empty-rows-zeros", "mask.empty-row")(
        "a row without keys returns zeros, which is not what is declared",
        "return what empty_rows= declares, or declare zeros",
        {"changes": {"empty_rows": "zeros"}},
    ),
    *named("empty-rows-nan", "mask.empty-row")(
        "a row without keys returns NaN",
        "set the weights of such a row to zero after the softmax",
        {"changes": {"empty_rows": "nan"}},
    ),
    *named("empty-rows-mean", "mask.empty-row")(
        "a row without keys returns the mean of all values, as a finite fill does",
        "fill with minus infinity and set the weights of such a row to zero",
        {"changes": {"empty_rows": "mean-of-all"}},
    ),
    *named("bias-before-scale", "mask.bias-counts")(
        "the bias is added before the scaling and is scaled too",
        "scale the scores first, then add the bias",
        {"changes": {"bias_order": "before-scale"}},
    ),
    *named("heads-split-interleaved", "numerics.golden")(
        "head h takes every H-th channel instead of its own block of channels",
        "view the width as (heads, head size), not as (head size, heads)",
        {"changes": {"head_split": "interleaved"}},
    ),
    *named("heads-split-without-transpose", "numerics.golden")(
        "the heads are split by a view without the transpose: tokens and heads are mixed",
        "view as (batch, length, heads, head size), then transpose(1, 2)",
        {"changes": {"head_split": "reinterpret"}},
    ),
    *named("heads-merged-interleaved", "numerics.golden")(
        "the heads are merged channel by channel instead of side by side",
        "transpose to (batch, length, heads, head size) before the reshape",
        {"changes": {"head_merge": "interleaved"}},
    ),
    *named("heads-merged-without-transpose", "numerics.golden")(
        "the heads are merged by a view without the transpose: tokens and heads are mixed",
        "transpose(1, 2) before the reshape to (batch, length, width)",
        {"changes": {"head_merge": "reinterpret"}},
    ),
    *named("heads-concatenated-along-tokens", "shape.output")(
        "the heads are concatenated along the token axis",
        "concatenate them along the channels",
        {"changes": {"head_merge": "tokens"}},
    ),
    *named("groups-tiled", "numerics.golden")(
        "query head h reads key/value head h modulo their number",
        "read head h // group: repeat_interleave, not repeat",
        {"changes": {"group_order": "tile"}},
    ),
    *(
        mistake
        for name in ("query", "value", "output")
        for mistake in named(f"{name}-bias-missing", "numerics.golden")(
            f"the bias of the {name} projection is left out",
            "add it",
            {"changes": {f"{name}_bias": False}},
        )
    ),
)

# Points that are chosen on purpose, so that a declaration of one says nothing wrong: T5 trains
# without a scale; alignments, rules for empty rows, orders of bias and of groups differ.
_CHOSEN: Final = frozenset(
    """
scale-missing causal-top-left causal-bottom-right empty-rows-zeros empty-rows-nan empty-rows-mean
bias-before-scale groups-tiled query-bias-missing value-bias-missing output-bias-missing
""".split()
)
_INTERLEAVED: Final = ("heads-split-interleaved", "heads-merged-interleaved")
(_EITHER,) = named("causal-or-mask", "mask.causal-and-mask")(
    "a key is attended when causality or the mask admits it",
    "combine the two with and, not or",
    {"changes": {"causal_combination": "either"}},
)


def mistaken_conventions(point: golden.Semantics) -> list[NamedMistake]:
    """Return the mistakes in a point that nobody chooses on purpose.

    A missing scale, alignments, rules for empty rows and similar choices are conventions. Heads of
    interleaved channels are one as well, if split and merged alike.
    """
    changed = golden.STANDARD.differences(point)
    mistaken = [
        one
        for one in (*POINTS, _EITHER)
        if one.name not in _CHOSEN
        and one.changes
        and "mask_fill" not in one.changes
        and all(name in changed and changed[name][1] == v for name, v in one.changes.items())
    ]
    if {one.name for one in mistaken} >= set(_INTERLEAVED):
        mistaken = [one for one in mistaken if one.name not in _INTERLEAVED]
    return [*mistaken, *([filled_mistake(point)] if point.mask_fill > -math.inf else [])]


def filled_mistake(point: golden.Semantics) -> NamedMistake:
    """Return the mistake of a finite number in place of minus infinity."""
    fill = f"{point.mask_fill:g}".replace("e+0", "e").replace("e+", "e")
    if point.mask_operation == "add":
        (mistake,) = named("mask-adds-finite", "mask.single-key", needs="mask")(
            f"{fill} is added to hidden logits instead of minus infinity: high ones stay visible",
            "add minus infinity, or fill with it",
            {"changes": {"mask_operation": "add", "mask_fill": point.mask_fill}},
        )
        return mistake
    (mistake,) = named("mask-fill-finite", "mask.single-key", needs="mask")(
        f"hidden logits are filled with {fill} instead of minus infinity: they win over lower ones",
        "fill them with minus infinity",
        {"changes": {"mask_fill": point.mask_fill}},
    )
    return mistake
