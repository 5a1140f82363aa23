"""Hidden logits that are filled instead of hidden, and queries that no key is left for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ._steps import (
    admitted_by_mask,
    admitted_by_structure,
    has_bias,
    has_causal,
    has_mask,
    hides_keys,
    relogited,
    require,
    unmasked_logits,
    weighing,
)
from .named_mistake import CoreChange, DeclaredCall, InputsChange, NamedMistake, named
from .semantics_changes import OTHER_AXES, OVER_KEYS

_FILL: Final = "fill the hidden logits with minus infinity"


def hidden_by(call: DeclaredCall, part: str) -> tuple[Tensor, Tensor]:
    """What a part of the restrictions admits, and what the rest does: ``[B, H, Lq, Lk]``."""
    shape = call.inputs.score_shape
    by_mask, by_structure = (
        admitted_by_mask(call).expand(shape),
        admitted_by_structure(call).expand(shape),
    )
    if part == "both":
        return by_mask & by_structure, torch.ones_like(by_mask)
    return (by_mask, by_structure) if part == "mask" else (by_structure, by_mask)


def operated(
    part: str,
    change: Callable[[Tensor, Tensor], Tensor],
    *,
    last: bool = False,
    ruled: bool = False,
) -> CoreChange:
    """Something else is done to logits that one part hides; the other part hides as it should.

    It is done to what the other part hides, too, where it comes ``last``. Rows without keys keep
    what their rule gives them where they are ``ruled``.
    """

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        allowed, rest = hidden_by(call, part)
        logits = unmasked_logits(attention)
        if last:
            logits = change(logits.masked_fill(~rest, -math.inf), allowed)
        else:
            logits = change(logits, allowed).masked_fill(~rest, -math.inf)
        made = relogited(attention, logits)
        if not ruled:
            return made
        empty = attention.empty.unsqueeze(-1)
        return weighing(made, torch.where(empty, attention.weights, made.weights))

    return core


def cut_after_softmax(part: str) -> CoreChange:
    """The weights are cut after a softmax that has seen what they hide."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        allowed, rest = hidden_by(call, part)
        logits = unmasked_logits(attention).masked_fill(~rest, float("-inf"))
        return weighing(attention, golden.softmax(logits) * allowed)

    return core


def _cut_but_for_additive(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
    """Whatever hides keys cuts weights, but minus infinities that are added to the logits."""
    allowed, _ = hidden_by(call, "both")
    kept = admitted_by_mask(call) if has_bias(call.inputs) else torch.ones_like(allowed)
    logits = unmasked_logits(attention).masked_fill(~kept, float("-inf"))
    return weighing(attention, golden.softmax(logits) * allowed)


def added_to_hidden(part: str, fill: float, *, empty_too: bool) -> InputsChange:
    """A number is added to the logits that one part hides, in rows without other keys, too, or not.

    As an additive mask: so its bound is derived from the number, too.
    """

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        allowed, rest = hidden_by(call, part)
        if bool(allowed.all()):
            return None
        given = call.inputs.bias
        finite = 0.0 if given is None else given.double().masked_fill(torch.isneginf(given), 0.0)
        seen = rest if empty_too else rest & (allowed & rest).any(dim=-1, keepdim=True)
        bias = finite + torch.where(allowed, 0.0, fill).double()
        return call.inputs.replace(keep=seen, bias=bias, causal=False, window=None)

    return inputs_for


def filled(fill: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The hidden logits are replaced by a number."""
    return lambda logits, allowed: torch.where(allowed, logits, fill)


def increased(fill: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A number is added to the hidden logits."""
    return lambda logits, allowed: torch.where(allowed, logits, logits + fill)


def _over(dim: int, of_mask: float, of_structure: float, *, adds: bool = False) -> list[CoreChange]:
    """The softmax along another axis, of numbers where mask and structure hide.

    Where all along that axis is hidden, these decide. That of the mask may be added. Rows without
    keys get what the softmax gives them, or what their rule says.
    """

    def core(call: DeclaredCall, attention: golden.Attention, *, ruled: bool) -> golden.Attention:
        logits = unmasked_logits(attention).to(call.inputs.query.dtype)  # which a sum rounds
        hidden = logits + of_mask if adds else of_mask
        logits = torch.where(admitted_by_mask(call), logits, hidden)
        logits = torch.where(admitted_by_structure(call), logits, of_structure)
        weights = torch.softmax(logits.double(), dim=dim)
        if ruled:
            weights = torch.where(attention.empty.unsqueeze(-1), attention.weights, weights)
        return weighing(attention, weights)

    return [partial(core, ruled=ruled) for ruled in (False, True)]


def _nan_over(dim: int, *, zeros: bool) -> CoreChange:
    """The softmax along another axis, NaN where all along it is hidden; zeros for NaN at last."""

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        logits = unmasked_logits(attention).masked_fill(~attention.allowed, float("-inf"))
        returned = weighing(attention, torch.softmax(logits, dim=dim))
        if zeros:
            returned = dataclasses.replace(returned, output=returned.output.nan_to_num(0.0))
        return returned

    return core


def _over_other_axes() -> list[NamedMistake]:
    """Softmaxes over other axes: with NaN, or beside finite fills, which may harm empty rows."""
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
            *({"core": _nan_over(dim, zeros=zeros)} for zeros in (False, True)),
            *({"core": core} for pair in fills for core in _over(dim, *pair)),
            *({"core": core} for pair in fills[3:] for core in _over(dim, *pair, adds=True)),
        )
    ]


def _fills() -> list[NamedMistake]:
    """Finite fills, over what the mask hides and over what causality hides."""
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
                *({"core": operated(part, filled(fill))} for fill in fills),
                *({"core": operated("both", filled(fill))} for fill in fills if of_mask),
            )
        for text, fill in (("100", -1e2), ("1e4", -1e4), ("1e6", -1e6)):
            entries += named(f"{part}-adds-{text}", clause, where=where, needs=part)(
                f"about -{text} is added to {hidden} logits: high ones stay visible",
                _FILL,
                {"core": operated(part, increased(fill))},
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
                {"core": operated(one, filled(fill), last=last, ruled=ruled)}
                for one in parts
                for fill in fills
                for last in (False, True)[: 1 + (one == part)]
                for ruled in (False, True)[: 1 + (fill == math.inf)]
            ),
        )


def _before_scale(fill: float, *, added: bool) -> CoreChange:
    """A number is filled in for a hidden dot product, or added to it, before the scale."""

    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        make = increased if added else filled
        return operated("mask", make(fill * attention.scale))(call, attention)

    return core


def _fills_before_scale() -> Iterator[NamedMistake]:
    for text, fill in (("100", -1e2), ("1e3", -1e3), ("1e4", -1e4)):
        for added, name, made in (
            (True, "adds", "is added to hidden scores"),
            (False, "fill", "takes the place of hidden scores"),
        ):
            yield from named(f"mask-{name}-{text}-before-scale", "mask.single-key", where=has_mask)(
                f"-{text} {made} before the scale, which makes it smaller: high ones stay visible",
                "scale the scores first, and then fill the hidden ones with minus infinity",
                {"core": _before_scale(fill, added=added)},
            )


def _exchanged(of_lost_rows: str) -> CoreChange:
    """What should be hidden is seen, by whatever, and what should be seen is hidden.

    Rows that lose every key are "NaN", "zeros" or, as a finite fill leaves them, the "mean".
    """

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        require(attention.sinks is None)
        logits = unmasked_logits(attention).masked_fill(attention.allowed, float("-inf"))
        weights = torch.softmax(logits, dim=-1)
        if of_lost_rows != "NaN":
            share = 1.0 / logits.shape[-1] if of_lost_rows == "mean" else 0.0
            lost = attention.allowed.all(dim=-1, keepdim=True)
            weights = torch.where(lost, share, weights)
        return weighing(attention, weights)

    return core


# Common numbers; a report need not distinguish those that are nearly equal.
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
# No problem has a logit between these numbers: they are a range.
_IN_WORDS: Final = {"65000": "-6e4 to -65504"}


FILLED: Final[tuple[NamedMistake, ...]] = (
    *_fills(),
    *_fills_before_scale(),
    *_over_other_axes(),
    *named("hidden-and-seen-exchanged", "numerics.golden", needs="hiding")(
        "hidden keys are attended, and those that nothing hides are hidden",
        "invert the condition: masked_fill hides where it is True, where() where it is False",
        *({"core": _exchanged(lost)} for lost in ("NaN", "zeros", "mean")),
    ),
    *named("mask-fill-0", "mask.no-leak", special_of="mask-multiplies-logits", where=has_mask)(
        "hidden logits are replaced by zero, which is an ordinary logit",
        _FILL,
        {"core": operated("mask", filled(0.0))},
    ),
    *named("mask-multiplies-logits", "mask.no-leak", where=has_mask)(
        "a hidden key keeps a logit of 0: the logits are multiplied by the 0/1 mask, or filled "
        "with a number near zero, such as 1e-9 where -1e9 is meant",
        _FILL,
        {"core": operated("mask", filled(0.0))},
    ),
    *named("mask-added-to-kept", "mask.no-leak", where=has_mask)(
        "1 is added to the kept logits instead of minus infinity to the hidden ones",
        "a boolean mask is not an additive one: " + _FILL,
        {"core": operated("mask", torch.add)},
        {"core": operated("mask", lambda logits, allowed: logits + torch.where(allowed, 0.0, 1.0))},
    ),
    *named("mask-multiplies-weights", "mask.padding-is-absence", where=has_mask)(
        "the weights are masked after the softmax: the rows no longer sum to one",
        "mask the logits before the softmax",
        {"core": cut_after_softmax("mask")},
        {"core": _cut_but_for_additive, "where": hides_keys},
    ),
    *named("causal-multiplies-logits", "mask.causal", where=has_causal)(
        "the logits are multiplied by the triangle: a future key keeps a logit of 0",
        _FILL,
        {"core": operated("causal", filled(0.0))},
    ),
    *named("causal-added-to-kept", "mask.causal", where=has_causal)(
        "the triangle of ones is added to the logits: future keys stay visible",
        _FILL,
        {"core": operated("causal", torch.add)},
        {"core": operated("causal", lambda logits, allowed: logits + ~allowed)},
    ),
    *named("causal-multiplies-weights", "mask.causal", where=has_causal)(
        "the weights are cut after the softmax: the rows no longer sum to one",
        "hide the future before the softmax",
        {"core": cut_after_softmax("causal")},
    ),
)


_CLAUSE: Final = "mask.empty-row"
_FIX: Final = "set the weights of such a row to zero after the softmax"


def _answered(answer: Callable[[golden.Attention], Tensor | float]) -> CoreChange:
    """Another answer in rows without keys."""

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        empty = attention.empty.unsqueeze(-1)
        if not bool(empty.any()):
            return None
        other = torch.as_tensor(answer(attention), dtype=torch.float64)
        return dataclasses.replace(attention, output=torch.where(empty, other, attention.output))

    return core


def _spread(fill: float, axes: tuple[int, ...]) -> CoreChange:
    """A row without keys takes others with it: those along some axes ``[B, H, Lq]``."""

    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention | None:
        if not bool(attention.empty.any()):
            return None
        taken = attention.empty.any(dim=axes[0], keepdim=True)
        for axis in axes[1:]:
            taken = taken.any(dim=axis, keepdim=True)
        output = attention.output.masked_fill(taken.unsqueeze(-1), fill)
        return dataclasses.replace(attention, output=output)

    return core


def _output_of_empty_rows(call: DeclaredCall, output: Tensor) -> Tensor | None:
    inputs = call.inputs
    if not inputs.is_layer:
        return None
    empty = ~inputs.allowed(call.semantics).any(dim=-1).any(dim=1)
    return output.masked_fill(empty.unsqueeze(-1), 0.0)


ROWS: Final[tuple[NamedMistake, ...]] = (
    *named("empty-rows-mean-of-admitted", _CLAUSE, special_of="empty-rows-mean")(
        "a row without keys returns the mean of the values that causality admits",
        _FIX,
        {"changes": {"empty_rows": "mean-of-valid"}},
    ),
    *named("empty-rows-first-value", _CLAUSE, where=hides_keys)(
        "a row without keys returns the first value",
        _FIX,
        {"core": _answered(lambda attention: attention.value[..., :1, :])},
    ),
    *named("empty-rows-last-value", _CLAUSE, where=hides_keys)(
        "a row without keys returns the last value",
        _FIX,
        {"core": _answered(lambda attention: attention.value[..., -1:, :])},
    ),
    *named("empty-rows-infinite", _CLAUSE, where=hides_keys)(
        "a row without keys is infinite",
        _FIX,
        {"core": _answered(lambda _attention: -math.inf)},
        {"core": _answered(lambda _attention: math.inf)},
    ),
    *named("empty-row-empties-the-rest", "mask.empty-row-isolated", where=hides_keys)(
        "a row without keys takes other rows with it",
        "answer each row by itself",
        *(
            {"core": _spread(fill, axes)}
            for fill in (0.0, math.nan)
            for axes in ((0, 1, 2), (1, 2), (2,), (0,), (1,))
        ),
    ),
    *named("empty-rows-lose-output-bias", _CLAUSE, where=hides_keys)(
        "a row without keys is zero behind the output projection: its bias is missing there",
        "set the weights of such a row to zero, not the answer",
        {"output": _output_of_empty_rows},
    ),
)
