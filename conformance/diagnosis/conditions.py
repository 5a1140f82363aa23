"""Properties of problems, with the words for where a mistake shows and where it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..base.geometry import Geometry
from ..clauses.subject import Subject
from ..declare.declaration import STRUCTURED_FORMS
from ..problems.inputs import Inputs
from .mistakes._steps import (
    has_cache,
    has_causal,
    has_mask,
    has_scale,
    has_sinks,
    has_softcap,
    has_window,
    hides_keys,
)
from .mistakes.named_mistake import SizeRule

MANY_KEYS: Final = 64


@dataclass(frozen=True)
class Condition:
    """A property that inputs have or lack.

    ``words`` follow "only", and ``otherwise`` is their negation. ``implies`` names a weaker
    condition. ``sizes`` is the rule on sizes, if sizes alone decide.
    """

    name: str
    words: str
    holds: Callable[[Inputs], bool]
    implies: str = ""
    otherwise: str = ""
    sizes: SizeRule | None = None

    @property
    def negated(self) -> Condition:
        """The condition that inputs lack the property."""
        rule = self.sizes
        return Condition(
            f"not {self.name}",
            self.otherwise,
            lambda inputs: not self.holds(inputs),
            sizes=rule and SizeRule(rule.fields, lambda sizes: not rule.holds(sizes)),
        )


def _option(
    name: str, noun: str, holds: Callable[[Inputs], bool], *, implies: str = ""
) -> Condition:
    return Condition(name, f"with {noun}", holds, implies, f"without {noun}")


def _form_condition(form: str, words: str) -> Condition:
    return Condition(form, words, lambda inputs: inputs.mask_form == form, implies="mask")


def _size_condition(
    fields: str,
    name: str,
    words: str,
    holds: Callable[[Geometry], bool],
    implies: str = "",
    otherwise: str = "",
) -> Condition:
    return Condition(
        name,
        words,
        lambda inputs: holds(inputs.geometry),
        implies,
        otherwise,
        SizeRule(tuple(fields.split()), holds),
    )


CONDITIONS: Final[tuple[Condition, ...]] = (
    _option("mask", "a mask", has_mask),
    _form_condition("keep", "with a mask of what to keep"),
    _form_condition("drop", "with a mask of what to drop"),
    _form_condition("keep_int", "with an integer mask"),
    _form_condition("bias", "with an additive mask"),
    _form_condition("lengths", "with lengths"),
    *(_form_condition(form, f"with a mask by {form}") for form in STRUCTURED_FORMS),
    _option("causal", "the causal flag", has_causal),
    _option("scale", "a scale of the call", has_scale),
    _option("softcap", "a softcap", has_softcap),
    _option("window", "a window", has_window),
    _option("sinks", "sinks", has_sinks),
    _option("cache", "cached keys", has_cache),
    _size_condition(
        "num_heads",
        "several heads",
        "with several heads",
        lambda sizes: sizes.num_heads > 1,
        otherwise="with one head",
    ),
    _size_condition(
        "num_heads num_kv_heads",
        "grouped heads",
        "where heads share keys and values",
        lambda sizes: sizes.num_kv_heads < sizes.num_heads,
        implies="several heads",
        otherwise="where each head has its own keys and values",
    ),
    _size_condition(
        "batch",
        "several items",
        "with several batch items",
        lambda sizes: sizes.batch > 1,
        otherwise="with one batch item",
    ),
    _size_condition(
        "key_length",
        "many keys",
        f"with more than {MANY_KEYS} keys",
        lambda sizes: sizes.key_length > MANY_KEYS,
        otherwise=f"with at most {MANY_KEYS} keys",
    ),
    _size_condition(
        "query_length key_length",
        "unequal lengths",
        "with more or fewer keys than queries",
        lambda sizes: sizes.query_length != sizes.key_length,
        otherwise="with as many keys as queries",
    ),
    _size_condition(
        "query_length key_length",
        "more queries",
        "with more queries than keys",
        lambda sizes: sizes.query_length > sizes.key_length,
        implies="unequal lengths",
        otherwise="with no more queries than keys",
    ),
)


@dataclass(frozen=True)
class SizeLimit(Condition):
    """The condition that a size is above a number, or at most the number."""

    field: str = ""
    number: int = 0
    above: bool = True


def size_limit(field: str, number: int, *, above: bool) -> SizeLimit:
    """Return the condition that a field of ``Geometry`` is above a number, or at most it."""
    name, one = SIZES[field]
    said, sign = ("more than", ">") if above else ("at most", "<=")

    def keeps(sizes: Geometry) -> bool:
        size: int = getattr(sizes, field)
        return (size > number) == above

    return SizeLimit(
        f"{name} {sign} {number}",
        f"with {said} {number} {one if number == 1 else name}",
        lambda inputs: keeps(inputs.geometry),
        sizes=SizeRule((field,), keeps),
        field=field,
        number=number,
        above=above,
    )


# Sizes of a call in the plural and in the singular.
SIZES: Final[dict[str, tuple[str, str]]] = {
    "key_length": ("keys", "key"),
    "query_length": ("queries", "query"),
    "num_heads": ("heads", "head"),
    "batch": ("batch items", "batch item"),
    "head_size": ("channels of a head", "channel of a head"),
    "value_head_size": ("channels of a value", "channel of a value"),
}


def size_limits(made: Sequence[Geometry], spared: Sequence[Geometry]) -> Iterator[SizeLimit]:
    """Yield limits of sizes that all ``made`` keep and at least one ``spared`` violates."""
    for field in SIZES:
        sizes = ([getattr(one, field) for one in some] for some in (made, spared))
        yield from (size_limit(field, number, above=above) for number, above in limits(*sizes))


def limits(made: Sequence[int], spared: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Yield numbers, with True for lower limits, that separate all ``made`` from some ``spared``.

    Of equally good numbers the plainest is taken.
    """
    if not made:
        return
    least, most = min(made), max(made)
    below = max((one for one in spared if one < least), default=None)
    beyond = min((one for one in spared if one > most), default=None)
    if below is not None:
        yield plainest(below, least - 1), True
    if beyond is not None:
        yield plainest(most, beyond - 1), False


def plainest(least: int, most: int) -> int:
    """Return the number in a range that the highest power of two divides."""
    return max(range(least, most + 1), key=lambda number: number & -number)


def _multiple_of(field: str, number: int) -> Condition:
    of = f"the {_COUNTS[field]}"
    odd = number == 2  # noqa: PLR2004 (there is a word for it)
    return _size_condition(
        field,
        f"{field} % {number}",
        f"where {of} is odd" if odd else f"where {number} does not divide {of}",
        lambda sizes: getattr(sizes, field) % number != 0,
        otherwise=f"where {of} is even" if odd else f"where {of} is a multiple of {number}",
    )


_COUNTS: Final = {
    "key_length": "number of keys",
    "query_length": "number of queries",
    "head_size": "head size",
    "value_head_size": "head size of the values",
    "num_heads": "number of heads",
    "batch": "number of batch items",
}


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _power_of_two(field: str) -> Condition:
    of = f"the {_COUNTS[field]}"
    return _size_condition(
        field,
        f"{field} no power of two",
        f"where {of} is no power of two",
        lambda sizes: not _is_power_of_two(getattr(sizes, field)),
        otherwise=f"where {of} is a power of two",
    )


def _one_past(name: str, field: str, number: int) -> Condition:
    words = f"where the number of {name} is"
    return _size_condition(
        field,
        f"{name} % {number} == 1",
        f"{words} one more than a multiple of {number}",
        lambda sizes: getattr(sizes, field) % number == 1,
        otherwise=f"{words} not one more than a multiple of {number}",
    )


def _equal_counts(one: str, other: str) -> Condition:
    words = f"where the {_COUNTS[one]} is"
    return _size_condition(
        f"{one} {other}",
        f"{one} == {other}",
        f"{words} the {_COUNTS[other]}",
        lambda sizes: getattr(sizes, one) == getattr(sizes, other),
        otherwise=f"{words} not the {_COUNTS[other]}",
    )


def _varies(axis: int, words: str) -> Condition:
    return Condition(
        f"mask varies over {words}",
        f"with a mask that differs between {words}",
        lambda inputs: any(
            table is not None and table.shape[axis] > 1 for table in (inputs.keep, inputs.bias)
        ),
        implies="mask",
        otherwise=f"with a mask that is the same for all {words}",
    )


@dataclass(frozen=True)
class ScaleLimit(Condition):
    """The condition that the scale of the call is below a number."""

    number: float = 0.0


def scale_below(number: float) -> ScaleLimit:
    """Return the condition that the scale of the call is below a number."""
    words = f"a scale below {number:g} of the call"
    return ScaleLimit(
        f"scale < {number:g}",
        f"with {words}",
        lambda inputs: inputs.scale is not None and inputs.scale < number,
        implies="scale",
        otherwise=f"without {words}",
        number=number,
    )


def _keys_of_page(inputs: Inputs) -> int:
    return inputs.store.page_size if inputs.store is not None else 0


def _hides_the_future(inputs: Inputs) -> bool:
    return inputs.causal or (inputs.window is not None and inputs.window[1] == 0)


# Conditions that a branch in the code may test, the plainest first.
FINER: Final[tuple[Condition, ...]] = (
    _size_condition(
        "query_length",
        "one query",
        "with one query",
        lambda sizes: sizes.query_length == 1,
        otherwise="with several queries",
    ),
    *(one for one in CONDITIONS if one.name != "many keys"),  # limits of sizes are learnt
    Condition(
        "several cached keys",
        "with several cached keys",
        lambda inputs: inputs.past > 1,
        implies="cache",
        otherwise="with at most one cached key",
    ),
    Condition(
        "as many cached keys",
        "with as many cached keys as new ones",
        lambda inputs: inputs.past > 0 and inputs.geometry.key_length == 2 * inputs.past,
        implies="cache",
        otherwise="with more or fewer cached keys than new ones",
    ),
    Condition(
        "several pages",
        "where an item may have several pages",
        lambda inputs: 0 < _keys_of_page(inputs) < inputs.geometry.key_length,
        otherwise="where all items have a page at most",
    ),
    Condition(
        "pages of one slot",
        "with pages of one slot",
        lambda inputs: _keys_of_page(inputs) == 1,
        otherwise="with pages of several slots",
    ),
    _option(
        "finite bias",
        "finite numbers in an additive mask",
        lambda inputs: inputs.bias is not None,
        implies="bias",
    ),
    Condition(
        "weights",
        "where the weights are returned",
        lambda inputs: inputs.return_weights,
        otherwise="where no weights are returned",
    ),
    _option("dropout", "a dropout probability", lambda inputs: inputs.dropout is not None),
    _option(
        "nothing before",
        "a window of no key before the query",
        lambda inputs: inputs.window is not None and inputs.window[0] == 0,
        implies="window",
    ),
    _option(
        "some after",
        "a window that shows keys after the query",
        lambda inputs: inputs.window is not None and inputs.window[1] > 0,
        implies="window",
    ),
    Condition(
        "nothing after",
        "where no key after the query may be attended",
        _hides_the_future,
        otherwise="where some key after the query may be attended",
    ),
    _option(
        "limited on both sides",
        "keys hidden on both sides of the query",
        lambda inputs: (
            inputs.window is not None
            and inputs.window[0] >= 0
            and (inputs.causal or inputs.window[1] >= 0)
        ),
        implies="window",
    ),
    Condition("hiding", "where keys are hidden", hides_keys, otherwise="where no key is hidden"),
    *(scale_below(number) for number in (0.5, 1.0)),
    _size_condition(
        "head_size value_head_size",
        "wider values",
        "where values are wider than keys",
        lambda sizes: sizes.value_head_size > sizes.head_size,
        otherwise="where values are no wider than keys",
    ),
    _size_condition(
        "head_size value_head_size",
        "narrower values",
        "where values are narrower than keys",
        lambda sizes: sizes.value_head_size < sizes.head_size,
        otherwise="where values are no narrower than keys",
    ),
    *(
        _multiple_of(field, number)
        for field in ("key_length", "query_length")
        for number in (2, 4, 8, 16, 32, 64)
    ),
    *(_multiple_of("head_size", number) for number in (2, 4, 8, 16)),
    *(_multiple_of(field, 2) for field in ("num_heads", "batch", "value_head_size")),
    _size_condition(
        "num_heads num_kv_heads",
        "odd groups",
        "where an odd number of heads shares each key and value",
        lambda sizes: sizes.num_heads // max(sizes.num_kv_heads, 1) % 2 == 1,
        otherwise="where an even number of heads shares each key and value",
    ),
    *(_power_of_two(field) for field in ("num_heads", "head_size", "key_length")),
    *(
        _one_past(name, field, number)
        for name, field in (("keys", "key_length"), ("queries", "query_length"))
        for number in (4, 8, 16, 32)
    ),
    _varies(0, "batch items"),
    _varies(1, "heads"),
    _varies(2, "queries"),
    # Equal sizes: only then can axes be confused.
    *(
        _equal_counts(*fields)
        for fields in (
            ("batch", "num_heads"),
            ("query_length", "num_heads"),
            ("batch", "query_length"),
            ("key_length", "head_size"),
        )
    ),
)


def plainness(inputs: Inputs) -> tuple[int, int]:
    """Order calls, the plainest first: by options, then by size."""
    options = sum(condition.holds(inputs) for condition in CONDITIONS)
    return options, inputs.geometry.logits


def calls_for_weights(subject: Subject) -> Subject:
    """Return the subject of a candidate that answers each call as if the weights were asked for."""

    def asking(called: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*positional: Any, **keywords: Any) -> Any:
            both = called(*positional, **{**keywords, "return_weights": True})
            one = keywords.get("return_weights") or not isinstance(both, tuple)
            return both if one else both[0]

        return answer

    return subject.called_otherwise(asking)


def limit_to_calls_for_weights(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Limit entries, in their text, to calls that return the weights."""
    return [
        {**entry, "text": f"{entry['text']} (only where the weights are returned)"}
        for entry in entries
    ]
