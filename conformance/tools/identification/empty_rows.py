"""What a query without any key returns, by mask and by causality."""

from __future__ import annotations

from typing import Final

import torch

from ..._golden import golden
from ...problems.inputs import Inputs
from .agreement import Judge, Seen
from .box import Box, Refusal
from .causality import LONG_QUERIES
from .convention import MaskUse
from .drawing import masked, prefix_keep, random_keep

RULES: Final = ("zeros", "nan", "mean-of-all", "mean-of-valid")
RAISES: Final = "raises"
OTHER: Final = "other"


def by_mask(box: Box, use: MaskUse, point: golden.Semantics, judge: Judge) -> tuple[str, ...]:
    """The rules that fit where a mask leaves the first row of each item (or an item) no key."""
    inputs = box.draw(seed=4)
    make = prefix_keep if use.form == "lengths" else random_keep
    keep = make(use.shape, inputs.geometry, seed=5).clone()
    keep[:1, :, :1] = False
    if keep.shape[2] > 1:
        keep[:, :, :1] = False
    return _rules(box.under(masks=(use,)), masked(inputs, use.form, use.shape, keep), point, judge)


def by_causality(box: Box, point: golden.Semantics, judge: Judge) -> tuple[str, ...]:
    """The rules that fit where more queries than keys leave the first ones none (bottom-right)."""
    inputs = box.draw(LONG_QUERIES, seed=4).replace(causal=True)
    if bool(inputs.allowed(point).any(dim=-1).all()):
        return ()
    return _rules(box, inputs, point, judge)


def by_both(box: Box, use: MaskUse, point: golden.Semantics, judge: Judge) -> tuple[str, ...]:
    """The same where mask and causality together leave none: tells the two means apart."""
    inputs = box.draw(seed=4).replace(causal=True)
    make = prefix_keep if use.form == "lengths" else random_keep
    keep = make(use.shape, inputs.geometry, seed=5).clone()
    keep[:1, :, :1] = False
    return _rules(box.under(masks=(use,)), masked(inputs, use.form, use.shape, keep), point, judge)


def _rules(box: Box, inputs: Inputs, point: golden.Semantics, judge: Judge) -> tuple[str, ...]:
    answer = box.ask(inputs)
    if isinstance(answer, Refusal):
        return (RAISES,)
    rows = ~inputs.allowed(point).any(dim=-1)
    empty = rows.any(dim=1).unsqueeze(-1) if inputs.is_layer else rows.unsqueeze(-1)
    if tuple(answer.output.shape) != inputs.output_shape:
        return (OTHER,)
    found = tuple(
        rule
        for rule in RULES
        if judge.fits(point.replace(empty_rows=rule), [Seen(inputs, answer.output, empty)])
    )
    if not found and bool(torch.isnan(answer.output[empty.expand(answer.output.shape)]).all()):
        return ("nan",)
    return found or (OTHER,)
