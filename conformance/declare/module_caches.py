"""The cache of a module: which object holds earlier keys and values, and how calls get it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..base.printable_text import repr_of
from ..errors import DeclarationError, did_you_mean

# What a call is told of the places of its tokens: a number, or positions on these axes.
PLACES: Final = ("start", "length", "L", "1L", "BL", "B")
_SEQUENCE: Final = "sequence"


@dataclass(frozen=True, kw_only=True)
class Cache:
    """How a module keeps keys and values of earlier tokens from call to call.

    Without ``make`` the first call gets no cache, and every later call the cache that the call
    before returned. Without ``parameter`` the module itself holds the cache.

    parameter
        The parameter that takes the cache.
    make
        Makes an empty cache for a sequence: ``make()``, or ``make(module, tokens)`` with the
        module and all tokens ``[B, L, E]`` of the sequence. All calls get this object, which they
        write into, unless ``returned`` is given.
    returned
        Where in an answer the cache of the next call lies: a place in a tuple, a key or an
        attribute. None is found by trial where ``make`` is not given.
    reset
        What begins another sequence in a module that holds its cache: the name of a method without
        arguments, or a function ``(module, tokens)``.
    positions
        Parameters that say where the new tokens stand, and their form: ``"start"``, the number of
        earlier tokens; ``"length"``, that of all tokens so far; or int64 positions with the axes
        ``"L"``, ``"1L"``, ``"BL"``, or ``"B"`` for the start in each item.
    options
        Further arguments of each call with a cache, such as ``{"use_cache": True}``.
    slots
        How many keys a mask has: None for the tokens so far, ``"sequence"`` for all tokens of the
        sequence, a number for a cache of that many slots.
    """

    parameter: str | None = None
    make: Callable[..., Any] | None = None
    returned: int | str | None = None
    reset: str | Callable[..., Any] | None = None
    positions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    slots: int | str | None = None

    def __post_init__(self) -> None:
        self._check_names()
        if self.make is not None and not callable(self.make):
            msg = f"make of Cache is {repr_of(self.make)}: give a function that makes a cache"
            raise DeclarationError(msg)
        if self.make is not None and required_parameters(self.make) not in (0, 2):
            msg = "make of Cache is called as make() or make(module, tokens): it takes neither"
            raise DeclarationError(msg)
        if self.make is not None and self.parameter is None:
            msg = (
                "make of Cache is given without parameter: name the parameter that takes the "
                "cache, or give reset= for a module that holds it"
            )
            raise DeclarationError(msg)
        if self.parameter is None and not self.positions and self.reset is None:
            msg = (
                "Cache says nothing of the cache: give parameter= where calls take it, or "
                "positions= and reset= where the module holds it"
            )
            raise DeclarationError(msg)
        if self.reset is not None and not (isinstance(self.reset, str) or callable(self.reset)):
            msg = f"reset of Cache is {repr_of(self.reset)}: give a method's name or a function"
            raise DeclarationError(msg)
        if self.returned is not None and type(self.returned) not in (int, str):
            msg = f"returned of Cache is {repr_of(self.returned)}: give a place, a key or a name"
            raise DeclarationError(msg)
        counted = type(self.slots) is int and self.slots > 0
        if self.slots not in (None, _SEQUENCE) and not counted:
            msg = f"slots of Cache is {repr_of(self.slots)}: give None, 'sequence' or a number"
            raise DeclarationError(msg)

    def _check_names(self) -> None:
        if self.parameter is not None and not isinstance(self.parameter, str):
            msg = f"parameter of Cache is {repr_of(self.parameter)}: give a parameter's name"
            raise DeclarationError(msg)
        for name in ("positions", "options"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
                msg = f"{name} of Cache is {repr_of(value)}: give a dict with parameters' names"
                raise DeclarationError(msg)
        for name, form in self.positions.items():
            if form not in PLACES:
                msg = (
                    f"positions of Cache has {form!r} for {name!r}{did_you_mean(str(form), PLACES)}"
                    f": give one of {', '.join(map(repr, PLACES))}"
                )
                raise DeclarationError(msg)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Every parameter that calls with the cache pass."""
        own = () if self.parameter is None else (self.parameter,)
        return (*own, *self.positions, *self.options)

    @property
    def is_within(self) -> bool:
        """Whether the module itself holds the cache."""
        return self.parameter is None

    @property
    def in_words(self) -> str:
        """The fields that are given, as they are written."""
        return ", ".join(f"{name}={value}" for name, value in self.as_json().items())

    def as_json(self) -> dict[str, Any]:
        """The cache as plain data, for the report."""
        made = getattr(self.make, "__name__", "") if self.make is not None else None
        reset = getattr(self.reset, "__name__", self.reset) if self.reset is not None else None
        fields = {
            "parameter": self.parameter,
            "make": made,
            "returned": self.returned,
            "reset": reset,
            "positions": dict(self.positions),
            "options": {name: repr_of(value) for name, value in self.options.items()},
            "slots": self.slots,
        }
        return {name: value for name, value in fields.items() if value not in (None, {})}


def required_parameters(function: Callable[..., Any]) -> int:
    """How many parameters without a default a function takes by place; 0 where nobody can tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C, such as dict
        return 0
    placed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in placed and one.default is one.empty for one in parameters)
