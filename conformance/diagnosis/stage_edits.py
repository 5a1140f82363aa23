"""Mistakes nobody listed: each stage of the program with each operator that it can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from .._golden import golden
from ..declare.declaration import Declaration
from ..operators import operators
from ..problems.inputs import Inputs
from .mistakes import NamedMistake, everywhere
from .mistakes._steps import has_bias, has_causal, has_mask, has_sinks, has_softcap, has_window

_PRIMARY: Final = "numerics.golden"


@dataclass(frozen=True)
class Searched:
    """A stage, or several that are changed alike, in a noun and where a change of it can show.

    ``of`` is "layer" where cores have no such stage.
    """

    noun: str
    stages: tuple[str, ...]
    where: Callable[[Inputs], bool] = everywhere
    of: str = ""


def _has_numbers(inputs: Inputs) -> bool:
    return inputs.bias is not None


def _shares_heads(inputs: Inputs) -> bool:
    return inputs.geometry.num_heads != inputs.geometry.num_kv_heads


# In the order of the program; what a change of one stage does a later one may do, too, and the
# shortest text is said.
_SEARCHED: Final = (
    Searched("the projected queries", ("projected_query",), of="layer"),
    Searched("the projected keys", ("projected_key",), of="layer"),
    Searched("the projected values", ("projected_value",), of="layer"),
    Searched("the places that queries are counted at", ("positions",)),
    Searched("the distances from query to key", ("ahead",)),
    Searched("the mask", ("by_mask",), has_mask),
    Searched("the causal table", ("by_causality",), has_causal),
    Searched("the table of the window", ("by_window",), has_window),
    Searched("the table of all that may be attended", ("admitted",)),
    Searched("the additive mask", ("bias",), _has_numbers),
    Searched("the queries", ("query",)),
    Searched("the keys", ("turned_key",)),
    Searched("the keys of the heads", ("shared_key",), _shares_heads),
    Searched("queries and keys", ("query", "turned_key")),
    Searched("the values", ("given_value",)),
    Searched("the values of the heads", ("shared_value",), _shares_heads),
    Searched("keys and values", ("turned_key", "given_value")),
    Searched("queries, keys and values", ("query", "turned_key", "given_value")),
    Searched("the scores", ("scores",)),
    Searched("the capped scores", ("capped",), has_softcap),
    Searched("the logits before the mask", ("biased",), has_bias),
    Searched("the exponentials", ("exponentials",)),
    Searched("the sinks", ("sinks",), has_sinks),
    Searched("the sums of the exponentials", ("total",)),
    Searched("the weights", ("weights",)),
    Searched("the outputs of the heads", ("output",)),
    Searched("the merged heads", ("merged",), of="layer"),
    Searched("the answer", ("answer",), of="layer"),
)
_SINGULAR: Final = (
    "the mask",
    "the causal table",
    "the table",
    "the additive mask",
    "the answer",
    "the largest",
    "the sum ",
    "the softmax",
)
_AXES: Final = {stage.name: stage.axes for stage in golden.LAYER.stages}


# Results that a stage may read in place of each other, by kind.
_NOUNS: Final = (
    {"query": "the queries", "shared_key": "the keys", "shared_value": "the values"},
    {
        "products": "the dot products",
        "scores": "the scores",
        "squashed": "the hyperbolic tangents under the softcap",
        "capped": "the capped scores",
        "biased": "the logits before the mask",
        "logits": "the logits",
        "exponents": "the exponents",
        "exponentials": "the exponentials",
        "shares": "the softmax",
        "weights": "the weights",
        "bias": "the additive mask",
    },
    {"largest": "the largest logit of the row", "total": "the sum of the exponentials"},
)
_NUMBERS: Final = {"scale": "the scale", "softcap": "the softcap"}
_SAID: Final = {
    **{name: noun for nouns in _NOUNS for name, noun in nouns.items()},
    **_NUMBERS,
    "key": "the keys",
    "value": "the values",
    "modified": "the capped scores",
    "masked": "the logits",
    "output": "the outputs of the heads",
}


def stage_edits(declaration: Declaration) -> Iterator[NamedMistake]:
    """Every stage with every operator, as mistakes of a candidate with a declaration.

    And every stage that reads another result in place of one that it should read.
    """
    for one in _SEARCHED:
        if one.of in ("", declaration.kind):
            yield from _edits_of(one)
    yield from {one.name: one for one in _rewired()}.values()


def _rewired() -> Iterator[NamedMistake]:
    order = [stage.name for stage in golden.FORWARD.stages]
    for stage in golden.FORWARD.stages:
        noun, names = _SAID.get(stage.name, ""), golden.reads(stage.rule)
        for name, other in ((n, o) for n in names if noun for o in _in_place_of(n)):
            if order.index(other) >= order.index(stage.name):
                continue
            words = f"made with {_SAID[other]} in place of {_SAID[name]}"
            read = tuple(other if each == name else each for each in names)
            yield NamedMistake(
                name=f"{noun.removeprefix('the ')}: {words}",
                primary=_PRIMARY,
                sentence=f"{noun} {_verb(noun)} {words}",
                fix=f"make {noun} with {_SAID[name]}",
                edits=(golden.Edit(stage.name, golden.Rewired(stage.rule, read)),),
                where=_where(names, read),
                misplaces=other in _NOUNS[0],
            )


def _where(names: tuple[str, ...], read: tuple[str, ...]) -> Callable[[Inputs], bool]:
    """Calls that have what a rule that should read ``names`` reads."""
    if "softcap" in names:
        return has_softcap
    return _has_numbers if read.count("bias") > names.count("bias") else everywhere


def _verb(noun: str) -> str:
    return "is" if noun.startswith(_SINGULAR) else "are"


def _in_place_of(name: str) -> Iterator[str]:
    """Other results that may be read in place of one."""
    own = {"key": "shared_key", "value": "shared_value", "modified": "capped", "masked": "logits"}
    plain = own.get(name, name)
    for nouns in _NOUNS:
        yield from (other for other in nouns if plain in nouns and other != plain)
    if name in _NUMBERS:
        yield from _NOUNS[1]


def _edits_of(searched: Searched) -> Iterator[NamedMistake]:
    noun, last = searched.noun, searched.stages[-1]
    for operator in operators(last, _AXES[last]):
        yield NamedMistake(
            name=f"{noun.removeprefix('the ')}: {operator.words}",
            primary=_PRIMARY,
            sentence=f"{noun} {_verb(noun)} {operator.words}",
            fix=f"take {noun} as {'it is' if _verb(noun) == 'is' else 'they are'}",
            edits=tuple(golden.Edit(stage, change=operator.change) for stage in searched.stages),
            where=searched.where,
            misplaces=operator.misplaces,
            needs="mask" if searched.where is has_mask else "",
        )
