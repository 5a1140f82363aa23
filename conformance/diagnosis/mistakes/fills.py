"""Hidden logits that are filled instead of hidden, and queries without keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import (
    EMPTY_WITHOUT_LOGITS,
    has_bias,
    has_causal,
    has_mask,
    hides_keys,
    require,
)
from .named_mistake import Edits, NamedMistake, named
from .semantics_changes import OTHER_AXES, OVER_KEYS

Edit = golden.Edit
# Parts that hide keys: the stages of the keys admitted by the part, and by the rest.
_PARTS: Final = {
    "mask": ("by_mask", "structure"),
    "causal": ("structure", "by_mask"),
    "both": ("admitted",),
}
_FILL: Final = "fill the hidden logits with minus infinity"


def _hidden(logits: Tensor, admitted: Tensor) -> Tensor:
    return logits.masked_fill(~admitted, -math.inf)


def _keep_ruled(weights: Tensor, made: Tensor, empty: Tensor, point: golden.Semantics) -> Tensor:
    ruled = torch.zeros_like(weights) if point.empty_rows == "zeros" else weights
    return torch.where(empty.unsqueeze(-1), ruled, made)


def _kept_rule(weights: Tensor, empty: Tensor, point: golden.Semantics) -> Tensor:
    return _keep_ruled(weights, weights, empty, point)


def treated(
    part: str, change: Callable[..., Tensor], *, last: bool = False, ruled: bool = False
) -> Edits:
    """Change the logits that one part of the masks hides; the other part hides rightly.

    With ``last`` the change includes logits hidden by the other part. With ``ruled`` rows without
    keys keep the result of their rule.
    """

    def masked(biased: Tensor, scale: float, allowed: Tensor, rest: Tensor | None = None) -> Tensor:
        if rest is None:
            return change(biased, allowed, scale)
        if last:
            return change(_hidden(biased, rest), allowed, scale)
        return _hidden(change(biased, allowed, scale), rest)

    logits = Edit("masked", golden.Rewired(masked, ("biased", "scale", *_PARTS[part])))
    return logits, Edit("weights", change=_kept_rule) if ruled else EMPTY_WITHOUT_LOGITS


def _cut_after_softmax(part: str) -> Edits:
    allowed, rest = _PARTS[part]
    return (
        Edit("masked", golden.Rewired(_hidden, ("biased", rest))),
        Edit("weights", golden.Rewired(_cut, ("shares", allowed))),
    )


def _cut(shares: Tensor, allowed: Tensor) -> Tensor:
    return shares * allowed


# Masks cut the weights, except added minus infinities.
_CUT_BUT_FOR_ADDITIVE: Final = (
    Edit(
        "masked",
        lambda biased, by_mask, inputs: _hidden(biased, by_mask) if has_bias(inputs) else biased,
    ),
    Edit("weights", golden.Rewired(_cut, ("shares", "admitted"))),
)


def filled(fill: float) -> Callable[..., Tensor]:
    """Replace the hidden logits by a number."""
    return lambda logits, allowed, _scale=1.0: torch.where(allowed, logits, fill)


def increased(fill: float) -> Callable[..., Tensor]:
    """Add a number to the hidden logits."""
    return lambda logits, allowed, _scale=1.0: torch.where(allowed, logits, logits + fill)


def _plus_allowed(logits: Tensor, allowed: Tensor, _scale: float) -> Tensor:
    return logits + allowed


def _plus_hidden(logits: Tensor, allowed: Tensor, _scale: float) -> Tensor:
    return logits + ~allowed


def _over(dim: int, of_mask: float, of_structure: float, *, adds: bool = False) -> list[Edits]:
    """Take the softmax along another axis, with finite fills for mask and structure.

    If everything along this axis is hidden, the fills decide. With ``adds`` the mask's fill is
    added. Rows without keys get the softmax's result or their rule's.
    """

    def masked(biased: Tensor, by_mask: Tensor, structure: Tensor, inputs: Inputs) -> Tensor:
        logits = biased.to(inputs.query.dtype)  # which a sum rounds
        logits = torch.where(by_mask, logits, logits + of_mask if adds else of_mask)
        return torch.where(structure, logits, of_structure).double()

    def ruled(weights: Tensor, logits: Tensor, empty: Tensor, point: golden.Semantics) -> Tensor:
        return _keep_ruled(weights, torch.softmax(logits, dim), empty, point)

    logits, unruled = Edit("masked", masked), Edit("weights", lambda logits: logits.softmax(dim))
    return [(logits, unruled), (logits, Edit("weights", change=ruled))]


def _nan_over(dim: int, *, zeros: bool) -> Edits:
    weights = Edit("weights", lambda logits: logits.softmax(dim))
    mended = Edit("output", change=lambda output: output.nan_to_num(0.0))
    return (weights, mended) if zeros else (weights,)


def _over_other_axes() -> list[NamedMistake]:
    fills = (
        (-1e9, -1e9),
        (-1e9, -math.inf),
        (-math.inf, -1e9),
        (-1e4, -1e4),
        (-1e4, -1e9),
        (-1e4, -math.inf),
    )
    return [
        mistake
        for _axis, dim, plural, clause in OTHER_AXES
        for mistake in named(f"softmax-over-{plural}", clause)(
            f"the softmax runs over the {plural}",
            OVER_KEYS,
            *(_nan_over(dim, zeros=zeros) for zeros in (False, True)),
            *(edits for pair in fills for edits in _over(dim, *pair)),
            *(edits for pair in fills[3:] for edits in _over(dim, *pair, adds=True)),
        )
    ]


def _fills() -> list[NamedMistake]:
    entries: list[NamedMistake] = []
    for part, hidden in (("mask", "hidden"), ("causal", "future")):
        of_mask = part == "mask"
        clause = "mask.single-key" if of_mask else "mask.causal-first-key"
        where = hides_keys if of_mask else has_causal
        for text, fills in FILLS.items():
            entries += named(f"{part}-fill-{text}", clause, where=where, needs=part)(
                f"{hidden} logits are filled with {_IN_WORDS.get(text, f'about -{text}')}: "
                "they win over lower ones",
                _FILL,
                *(treated(part, filled(fill)) for fill in fills),
                *(treated("both", filled(fill)) for fill in fills if of_mask),
            )
        for text, fill in (("100", -1e2), ("1e4", -1e4), ("1e6", -1e6)):
            entries += named(f"{part}-adds-{text}", clause, where=where, needs=part)(
                f"about -{text} is added to {hidden} logits: high ones stay visible",
                _FILL,
                treated(part, increased(fill)),
            )
        entries += _fills_of_the_wrong_sign(part, hidden)
    return entries


def _fills_of_the_wrong_sign(part: str, hidden: str) -> Iterator[NamedMistake]:
    clause, where = ("mask.no-leak", hides_keys) if part == "mask" else ("mask.causal", has_causal)
    parts = ("mask", "both") if part == "mask" else (part,)
    for name, fills, follows in (
        ("positive", (1e4, 1e9), "they win over all others"),
        ("plus-infinity", (math.inf,), "their rows become NaN"),
    ):
        yield from named(f"{part}-fill-{name}", clause, where=where, needs=part)(
            f"{hidden} logits are filled with {name.replace('-', ' ')}"
            f"{' numbers' if name == 'positive' else ''}: {follows}",
            _FILL,
            *(
                treated(one, filled(fill), last=last, ruled=ruled)
                for one in parts
                for fill in fills
                for last in (False, True)[: 1 + (one == part)]
                for ruled in (False, True)[: 1 + (fill == math.inf)]
            ),
        )


def _treat_before_scale(fill: float, *, added: bool) -> Edits:
    make = increased if added else filled
    return treated("mask", lambda logits, allowed, scale: make(fill * scale)(logits, allowed))


def _fills_before_scale() -> Iterator[NamedMistake]:
    for text, fill in (("100", -1e2), ("1e3", -1e3), ("1e4", -1e4)):
        for added, name, made in (
            (True, "adds", "is added to hidden scores"),
            (False, "fill", "takes the place of hidden scores"),
        ):
            yield from named(f"mask-{name}-{text}-before-scale", "mask.single-key", where=has_mask)(
                f"-{text} {made} before the scale, which makes it smaller: high ones stay visible",
                "scale the scores first, and then fill the hidden ones with minus infinity",
                _treat_before_scale(fill, added=added),
            )


def _exchanged(of_lost_rows: str) -> Edits:
    """Exchange hidden and visible keys.

    Rows that lose every key are "NaN", "zeros" or, as a finite fill leaves them, the "mean".
    """

    def weights(logits: Tensor, attended: Tensor, sinks: Tensor | None) -> Tensor:
        require(sinks is None)
        made = torch.softmax(logits, dim=-1)
        if of_lost_rows == "NaN":
            return made
        share = 1.0 / logits.shape[-1] if of_lost_rows == "mean" else 0.0
        return torch.where(attended.all(dim=-1, keepdim=True), share, made)

    masked = Edit("masked", lambda biased, attended: _hidden(biased, ~attended))
    return masked, Edit("weights", weights)


# Common numbers; nearly equal numbers share a name.
FILLS: Final = {
    "1": (-1.0,),
    "10": (-10.0,),
    "20": (-20.0,),
    "30": (-30.0,),
    "50": (-50.0,),
    "100": (-1e2, -99.0),
    "1000": (-1e3, -999.0),
    "1e4": (-1e4, -9999.0, -9e3),
    "3e4": (-3e4, -32768.0),
    "5e4": (-5e4,),
    "65000": (-65504.0, -65000.0, -6e4),
    "1e5": (-1e5, -99999.0),
    "1e6": (-1e6, -999999.0),
    "1e7": (-1e7,),
}
# No problem has a logit between these numbers, so they share a name.
_IN_WORDS: Final = {"65000": "-6e4 to -65504"}


FILLED: Final[tuple[NamedMistake, ...]] = (
    *_fills(),
    *_fills_before_scale(),
    *_over_other_axes(),
    *named("hidden-and-seen-exchanged", "numerics.golden", needs="hiding")(
        "hidden keys are attended, and those that nothing hides are hidden",
        "invert the condition: masked_fill hides where it is True, where() where it is False",
        *(_exchanged(lost) for lost in ("NaN", "zeros", "mean")),
    ),
    *named("mask-fill-0", "mask.no-leak", special_of="mask-multiplies-logits", where=has_mask)(
        "hidden logits are replaced by zero, which is an ordinary logit",
        _FILL,
        treated("mask", filled(0.0)),
    ),
    *named("mask-multiplies-logits", "mask.no-leak", where=has_mask)(
        "a hidden key keeps a logit of 0: the logits are multiplied by the 0/1 mask, or filled "
        "with a number near zero, such as 1e-9 where -1e9 is meant",
        _FILL,
        treated("mask", filled(0.0)),
    ),
    *named("mask-added-to-kept", "mask.no-leak", where=has_mask)(
        "1 is added to the kept logits instead of minus infinity to the hidden ones",
        "a boolean mask is not an additive one: " + _FILL,
        treated("mask", _plus_allowed),
        treated("mask", _plus_hidden),
    ),
    *named("mask-multiplies-weights", "mask.padding-is-absence", where=has_mask)(
        "the weights are masked after the softmax: the rows no longer sum to one",
        "mask the logits before the softmax",
        _cut_after_softmax("mask"),
        {"edits": _CUT_BUT_FOR_ADDITIVE, "where": hides_keys},
    ),
    *named("causal-multiplies-logits", "mask.causal", where=has_causal)(
        "the logits are multiplied by the triangle: a future key keeps a logit of 0",
        _FILL,
        treated("causal", filled(0.0)),
    ),
    *named("causal-added-to-kept", "mask.causal", where=has_causal)(
        "the triangle of ones is added to the logits: future keys stay visible",
        _FILL,
        treated("causal", _plus_allowed),
        treated("causal", _plus_hidden),
    ),
    *named("causal-multiplies-weights", "mask.causal", where=has_causal)(
        "the weights are cut after the softmax: the rows no longer sum to one",
        "hide the future before the softmax",
        _cut_after_softmax("causal"),
    ),
)


_CLAUSE: Final = "mask.empty-row"
_FIX: Final = "set the weights of such a row to zero after the softmax"


def _change_empty_rows(stage: str, change: Callable[..., Tensor]) -> golden.Edit:
    return Edit(stage, change=change, when=lambda empty: bool(empty.any()))


def _value(place: int) -> golden.Edit:
    def change(output: Tensor, empty: Tensor, shared_value: Tensor) -> Tensor:
        value = shared_value[..., place, :].unsqueeze(-2)
        return torch.where(empty.unsqueeze(-1), value, output)

    return _change_empty_rows("output", change)


def _number(fill: float) -> golden.Edit:
    return _change_empty_rows(
        "output", lambda output, empty: output.masked_fill(empty.unsqueeze(-1), fill)
    )


def _spread(fill: float, axes: tuple[int, ...]) -> golden.Edit:
    def change(output: Tensor, empty: Tensor) -> Tensor:
        for axis in axes:
            empty = empty.any(dim=axis, keepdim=True)
        return output.masked_fill(empty.unsqueeze(-1), fill)

    return _change_empty_rows("output", change)


def _zero_answer(answer: Tensor, empty: Tensor) -> Tensor:
    return answer.masked_fill(empty.all(dim=1).unsqueeze(-1), 0.0)


ROWS: Final[tuple[NamedMistake, ...]] = (
    *named("empty-rows-mean-of-admitted", _CLAUSE, special_of="empty-rows-mean")(
        "a row without keys returns the mean of the values that causality admits",
        _FIX,
        {"changes": {"empty_rows": "mean-of-valid"}},
    ),
    *named("empty-rows-first-value", _CLAUSE, where=hides_keys)(
        "a row without keys returns the first value",
        _FIX,
        _value(0),
    ),
    *named("empty-rows-last-value", _CLAUSE, where=hides_keys)(
        "a row without keys returns the last value",
        _FIX,
        _value(-1),
    ),
    *named("empty-rows-infinite", _CLAUSE, where=hides_keys)(
        "a row without keys is infinite",
        _FIX,
        _number(-math.inf),
        _number(math.inf),
    ),
    *named("empty-row-empties-the-rest", "mask.empty-row-isolated", where=hides_keys)(
        "a row without keys takes other rows with it",
        "answer each row by itself",
        *(
            _spread(fill, axes)
            for fill in (0.0, math.nan)
            for axes in ((0, 1, 2), (1, 2), (2,), (0,), (1,))
        ),
    ),
    *named("empty-rows-lose-output-bias", _CLAUSE, where=hides_keys)(
        "a row without keys is zero behind the output projection: its bias is missing there",
        "set the weights of such a row to zero, not the answer",
        _change_empty_rows("answer", _zero_answer),
    ),
)
