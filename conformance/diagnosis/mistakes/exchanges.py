"""Queries, keys and values taken for one another, or added to the answer."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from ...problems.inputs import Inputs
from ._steps import require
from .named import Asked, NamedMistake, Question, mistakes

_GOLDEN: Final = "numerics.golden"


def _exchanged(query: str = "query", key: str = "key", value: str = "value") -> Question:
    """One input used for another: as tokens of a layer, or as heads of a core."""

    def question(asked: Asked) -> Inputs:
        inputs = asked.inputs
        require(inputs.mode != "self")
        given = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        read = (given[query], given[key], given[value])
        require(read[1].shape[:-1] == read[2].shape[:-1])
        fits = inputs.is_layer or read[0].shape[-1] == read[1].shape[-1]
        require(fits and read[0].shape[-2] == inputs.query.shape[-2])
        if inputs.is_layer:
            widths = zip(read, (inputs.query, inputs.key, inputs.value), strict=True)
            require(all(one.shape[-1] == other.shape[-1] for one, other in widths))
        geometry = inputs.geometry.replace(key_length=read[1].shape[-2])
        require(geometry.key_length == inputs.geometry.key_length or not inputs.masked)
        return inputs.replace(query=read[0], key=read[1], value=read[2], geometry=geometry)

    return question


def _with_query(asked: Asked, output: Tensor) -> Tensor:
    query = asked.inputs.query.double()
    require(query.shape == output.shape)
    return output + query


def _with_value(asked: Asked, output: Tensor) -> Tensor:
    value = asked.inputs.value.double()
    require(value.shape == output.shape)
    return output + value


EXCHANGES: Final[tuple[NamedMistake, ...]] = (
    *mistakes(
        "key-and-value-swapped",
        _GOLDEN,
        "key and value are swapped",
        "multiply queries by keys, and weights by values",
        {"question": _exchanged(key="value", value="key")},
    ),
    *mistakes(
        "key-used-for-value",
        _GOLDEN,
        "the keys are averaged instead of the values",
        "multiply the weights by the values",
        {"question": _exchanged(value="key")},
    ),
    *mistakes(
        "value-used-for-key",
        _GOLDEN,
        "the queries meet the values instead of the keys",
        "multiply the queries by the keys",
        {"question": _exchanged(key="value")},
    ),
    *mistakes(
        "query-used-for-key",
        _GOLDEN,
        "the queries meet themselves instead of the keys",
        "multiply the queries by the keys",
        {"question": _exchanged(key="query")},
    ),
    *mistakes(
        "query-used-for-value",
        _GOLDEN,
        "the queries are averaged instead of the values",
        "multiply the weights by the values",
        {"question": _exchanged(value="query")},
    ),
    *mistakes(
        "query-used-for-key-and-value",
        _GOLDEN,
        "the query attends to itself: key and value inputs have no influence",
        "take keys and values from their own inputs",
        {"question": _exchanged(key="query", value="query")},
    ),
    *mistakes(
        "key-used-for-query",
        _GOLDEN,
        "the keys meet themselves instead of the queries",
        "multiply the queries by the keys",
        {"question": _exchanged(query="key")},
    ),
    *mistakes(
        "query-and-key-swapped",
        _GOLDEN,
        "query and key are swapped",
        "the softmax runs over the keys of each query",
        {"question": _exchanged(query="key", key="query")},
    ),
    *mistakes(
        "query-and-value-swapped",
        _GOLDEN,
        "query and value are swapped",
        "multiply queries by keys, and weights by values",
        {"question": _exchanged(query="value", value="query")},
    ),
    *mistakes(
        "residual-added",
        _GOLDEN,
        "the query is added to the answer: the residual connection belongs outside",
        "leave it out",
        {"output": _with_query},
    ),
    *mistakes(
        "value-added",
        _GOLDEN,
        "the value is added to the answer",
        "leave it out",
        {"output": _with_value},
    ),
)
