"""Mistakes nobody listed: each stage of the program with each operator that it can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from .._golden import golden
from ..declare.declaration import Declaration
from ..operators import OF_TABLES, operators
from ..problems.inputs import Inputs
from .mistakes import NamedMistake, everywhere
from .mistakes._steps import has_bias, has_causal, has_mask, has_sinks, has_softcap, has_window

_PRIMARY: Final = "numerics.golden"


@dataclass(frozen=True)
class Searched:
    """A stage, or several that are changed alike, in a noun and where a change of it can show.

    ``of`` is "layer" where cores have no such stage. ``group`` says that key/value heads are fewer.
    """

    noun: str
    stages: tuple[str, ...]
    where: Callable[[Inputs], bool] = everywhere
    of: str = ""


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
    Searched("the additive mask", ("bias",), has_bias),
    Searched("the queries", ("query",)),
    Searched("the keys", ("turned_key",)),
    Searched("the keys of the heads", ("shared_key",), _shares_heads),
    Searched("queries and keys", ("query", "turned_key")),
    Searched("the values", ("given_value",)),
    Searched("the values of the heads", ("shared_value",), _shares_heads),
    Searched("keys and values", ("turned_key", "given_value")),
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
_SINGULAR: Final = ("the mask", "the causal", "the table", "the additive", "the answer")
_AXES: Final = {stage.name: stage.axes for stage in golden.LAYER.stages}


def stage_edits(declaration: Declaration) -> Iterator[NamedMistake]:
    """Every stage with every operator, as mistakes of a candidate with a declaration."""
    for one in _SEARCHED:
        if one.of in ("", declaration.kind):
            yield from _edits_of(one)


def _edits_of(searched: Searched) -> Iterator[NamedMistake]:
    noun = searched.noun
    for operator in operators(searched.stages[-1], _AXES[searched.stages[-1]]):
        singular = noun.startswith(
            ("the mask", "the causal", "the table", "the additive", "the ans")
        )
        verb = "is" if singular else "are"
        edits = tuple(golden.Edit(stage, change=operator.change) for stage in searched.stages)
        yield NamedMistake(
            name=f"{noun.removeprefix('the ')}: {operator.words}",
            primary=_PRIMARY,
            sentence=f"{noun} {verb} {operator.words}",
            fix=f"take {noun} as {'it is' if singular else 'they are'}",
            edits=edits,
            where=searched.where,
            needs="mask" if searched.stages[0] in OF_TABLES and searched.where is has_mask else "",
        )
