"""Mistakes with quantised keys and values: other scales, and codes read in another format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from ...problems.inputs import Inputs
from ...problems.quantised import FORMATS, Quantised
from .named_mistake import DeclaredCall, InputsChange, NamedMistake, named

# Another scale, from the scales of a call, the side and its heads.
_Scale = Callable[[Quantised, str, Tensor], Tensor]
_OTHER: Final = {"key": "value", "value": "key"}
_PRIMARY: Final = "quantised.golden"
_FIX: Final = (
    "multiply each code once by the scale of its own side, item, token and head: key_scale for "
    "keys, value_scale for values"
)


_FLOATS: Final = ("float8_e4m3fn", "float8_e5m2")
# The largest number of float8_e4m3fnuz.
_OF_OTHER_BIAS: Final = 240.0


def is_quantised(inputs: Inputs) -> bool:
    """Whether keys and values are codes."""
    return inputs.quantised is not None


def _own(made: Quantised, side: str, heads: Tensor) -> Tensor:
    return made.scale_of(side, heads).expand(*heads.shape[:-1], 1)


def _reorder_scales(axis: int, order: Callable[[Tensor], Tensor]) -> _Scale:
    """The scales in another order along an axis of heads."""

    def scale(made: Quantised, side: str, heads: Tensor) -> Tensor:
        own = _own(made, side, heads)
        return own.index_select(axis, order(torch.arange(own.shape[axis])))

    return scale


def _first(places: Tensor) -> Tensor:
    return places.clamp(max=0)


def _scale_before(places: Tensor) -> Tensor:
    return places.roll(1)


def _scale_behind(places: Tensor) -> Tensor:
    return places.roll(-1)


def _last(places: Tensor) -> Tensor:
    return places[-1:].expand(len(places))


def _scale_of_other_side(made: Quantised, side: str, heads: Tensor) -> Tensor:
    return made.scale_of(_OTHER[side], heads)


def _scales() -> Iterator[tuple[str, str, _Scale]]:
    """The scales that may be taken in place of one's own: a slug, words and the scale."""
    yield "of-other-side", "by the scale of the {other}", _scale_of_other_side
    yield (
        "left-out",
        "by no scale",
        lambda made, side, heads: torch.ones_like(_own(made, side, heads)),
    )
    yield "twice", "by their scale twice", lambda *of: _own(*of).square()
    yield "divided", "by the reciprocal of their scale", lambda *of: _own(*of).reciprocal()
    yield "of-both", "by both scales", lambda *of: _own(*of) * _scale_of_other_side(*of)
    for axis, name in enumerate(("item", "head", "token")):
        for slug, words, order in (
            ("first", f"the scale of the first {name}", _first),
            ("last", f"the scale of the last {name}", _last),
            ("before", f"the scale of the {name} before", _scale_before),
            ("behind", f"the scale of the {name} behind", _scale_behind),
        ):
            yield f"of-{slug}-{name}", f"by {words}", _reorder_scales(axis, order)


def _use_scale(scale: _Scale, sides: tuple[str, ...]) -> InputsChange:
    """The numbers that other scales make of the codes of some sides."""

    def change(call: DeclaredCall) -> Inputs | None:
        inputs, made = call.inputs, call.inputs.quantised
        if made is None:
            return None
        changed = dict(zip(("key", "value"), inputs.exact[1:], strict=True))
        for side in sides:
            heads = changed[side]
            ratio = scale(made, side, heads) / made.scale_of(side, heads)
            if bool((ratio == 1.0).all()):
                continue
            changed[side] = (heads.double() * ratio).to(heads.dtype)
        same = all(
            torch.equal(heads, right)
            for heads, right in zip(changed.values(), inputs.exact[1:], strict=True)
        )
        return None if same else inputs.replace(**changed, quantised=None)

    return change


def _read(numbers: Callable[[Tensor], Tensor]) -> InputsChange:
    """What another reading makes of the codes, of both sides."""

    def change(call: DeclaredCall) -> Inputs | None:
        inputs, made = call.inputs, call.inputs.quantised
        if made is None:
            return None
        changed = {}
        for side in ("key", "value"):
            heads = getattr(inputs, side)
            read = numbers(made.codes(side, heads)).double() * made.scale_of(side, heads)
            changed[side] = read.to(heads.dtype)
        return inputs.replace(**changed, quantised=None)

    return change


def _viewed(name: str) -> Callable[[Tensor], Tensor]:
    dtype = torch.float8_e4m3fnuz if name == "float8_e4m3fnuz" else FORMATS[name].dtype
    return lambda codes: codes.view(dtype).float()


def _unsigned(codes: Tensor) -> Tensor:
    return codes.view(torch.uint8).float()


def _has_format(*names: str) -> Callable[[Inputs], bool]:
    return lambda inputs: inputs.quantised is not None and inputs.quantised.format in names


def _ends() -> Iterator[tuple[str, str, Callable[[Tensor], Tensor]]]:
    """What may become of numbers at the ends of a format: a slug, words and the change."""
    clipped, lost = "codes-clipped", "the largest codes are taken for smaller ones"
    for most in (-1.0 - FORMATS["int8"].lowest, *(made.largest / 2.0 for made in FORMATS.values())):
        yield clipped, lost, lambda numbers, most=most: numbers.clamp(-most, most)  # type: ignore[misc]  # bound at once
    yield clipped, lost, lambda numbers: numbers.clamp(-_OF_OTHER_BIAS, _OF_OTHER_BIAS)
    lowest = FORMATS["int8"].lowest
    yield (
        "lowest-code-lost",
        "the lowest code is taken for zero",
        lambda numbers: numbers.masked_fill(numbers == lowest, 0.0),
    )
    for name in _FLOATS:
        normal = torch.finfo(FORMATS[name].dtype).smallest_normal
        yield (
            "finest-codes-flushed",
            "codes whose numbers are subnormal in their format are taken for zero",
            lambda numbers, normal=normal: numbers.masked_fill(numbers.abs() < normal, 0.0),  # type: ignore[misc]  # bound at once
        )


def _scale_mistakes() -> Iterator[NamedMistake]:
    for slug, words, scale in _scales():
        for side, other in _OTHER.items():
            said = words.format(other=f"{other}s")
            yield from named(
                f"{side}-scale-{slug}", _PRIMARY, needs="quantised", where=is_quantised
            )(
                f"the codes of {side}s are multiplied {said}",
                _FIX,
                {"inputs": _use_scale(scale, (side,))},
            )
        said = words.format(other="other side")
        yield from named(f"scales-{slug}", _PRIMARY, needs="quantised", where=is_quantised)(
            f"the codes of keys and values are multiplied {said}",
            _FIX,
            {"inputs": _use_scale(scale, ("key", "value"))},
        )


def _code_mistakes() -> Iterator[NamedMistake]:
    for name in (*_FLOATS, "float8_e4m3fnuz"):
        others = tuple(one for one in FORMATS if one != name)
        yield from named(
            f"codes-read-as-{name.replace('_', '-')}",
            _PRIMARY,
            needs="quantised",
            where=_has_format(*others),
        )(
            f"the codes are read as {name}",
            "read the codes in the dtype in which they arrive",
            {"inputs": _read(_viewed(name))},
        )
    for slug, words, change in _ends():
        yield from named(slug, "quantised.saturated", needs="quantised", where=is_quantised)(
            words,
            "take every code for the number that its format has for it",
            {"inputs": _read(lambda codes, change=change: change(codes.float()))},  # type: ignore[misc]  # bound at once
        )
    yield from named("codes-read-unsigned", _PRIMARY, needs="quantised", where=_has_format("int8"))(
        "the codes are read without a sign",
        "read the codes in the dtype in which they arrive",
        {"inputs": _read(_unsigned)},
    )


QUANTISED: Final[tuple[NamedMistake, ...]] = (*_scale_mistakes(), *_code_mistakes())
