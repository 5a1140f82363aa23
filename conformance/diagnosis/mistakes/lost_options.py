"""What a call gives, lost because something else is given too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...problems.caching import without_cache
from ...problems.inputs import Inputs
from ._given import changed, has_bias, has_cache, has_causal, has_softcap, has_window
from .named import Asked, NamedMistake, Question, mistakes


def _masked(inputs: Inputs) -> bool:
    return inputs.masked


_FEATURES: Final[dict[str, tuple[str, Callable[[Inputs], bool], dict[str, object]]]] = {
    "mask": (
        "the mask",
        lambda inputs: inputs.masked and inputs.mask_form != "bias",
        {"keep": None, "bias": None},
    ),
    "bias": ("the bias", has_bias, {"bias": None}),
    "lengths": (
        "lengths",
        lambda inputs: inputs.mask_form == "lengths",
        {"keep": None},
    ),
    "causal": ("the causal flag", has_causal, {"causal": False}),
    "window": ("the window", has_window, {"window": None}),
    "softcap": ("the softcap", has_softcap, {"softcap": None}),
    "scale-argument": (
        "the scale that the call gives",
        lambda inputs: inputs.scale is not None,
        {"scale": None},
    ),
}


_SPECIALS: Final = {
    "mask": "mask-ignored",
    "bias": "bias-ignored",
    "lengths": "lengths-ignored",
    "causal": "causal-ignored",
    "window": "window-ignored",
    "softcap": "softcap-ignored",
    "scale-argument": "scale-argument-ignored",
}


def _lost_features() -> list[NamedMistake]:
    """What is dropped on the path that something else takes."""
    found: list[NamedMistake] = []
    for name, (spoken, present, absent) in _FEATURES.items():
        for other, (winner, taken, _) in _FEATURES.items():
            if (
                other == name
                or {name, other} <= {"mask", "bias", "lengths"}
                or other == "scale-argument"
            ):
                continue
            found += mistakes(
                f"{name}-lost-to-{other}",
                "mask.causal-and-mask"
                if {name, other} == {"mask", "causal"}
                else "numerics.options",
                f"{spoken} is dropped where {winner} is given too",
                "apply both",
                {"question": changed(_both(present, taken), **absent)},
                *(
                    [{"question": changed(_both(present, taken), keep=None, bias=None)}]
                    if name == "bias"
                    else []
                ),
                *(
                    [{"question": changed(_both(_masked, taken), **absent)}]
                    if name == "mask"
                    else []
                ),
                *(
                    [{"question": changed(_both(present, _masked), **absent)}]
                    if other == "mask"
                    else []
                ),
                special_of=_SPECIALS[name],
            )
    return found


def _both(one: Callable[[Inputs], bool], two: Callable[[Inputs], bool]) -> Callable[..., bool]:
    return lambda inputs: one(inputs) and two(inputs)


# Seen best where every call has the one and some have the other.
_LOST_TO_CACHE: Final = {"causal": "cache.decode-equals-full", "bias": "mask.bias"}


def _lost_to_cache() -> list[NamedMistake]:
    """What is dropped where a part of the keys is cached, and the cache dropped for the rest."""
    found: list[NamedMistake] = []
    for name, (spoken, present, absent) in _FEATURES.items():
        found += mistakes(
            f"{name}-lost-to-cache",
            _LOST_TO_CACHE.get(name, "cache.golden"),
            f"{spoken} is dropped where a cache is given too",
            "apply both",
            {"question": changed(_both(present, has_cache), **absent)},
            special_of=_SPECIALS[name],
        )
        told = spoken.removesuffix(" that the call gives")
        found += mistakes(
            f"cache-lost-to-{name}",
            "cache.golden",
            f"the cache is dropped where {told} is given too",
            "apply both",
            {"question": _without_cache(present)},
            special_of="cache-ignored",
        )
    return found


def _without_cache(where: Callable[[Inputs], bool]) -> Question:
    def question(asked: Asked) -> Inputs | None:
        inputs = asked.inputs
        return without_cache(inputs) if inputs.past and where(inputs) else None

    return question


LOST_OPTIONS: Final[tuple[NamedMistake, ...]] = (*_lost_features(), *_lost_to_cache())
