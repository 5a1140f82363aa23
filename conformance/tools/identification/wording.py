"""Facts in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..._golden import golden
from ...base.geometry import Geometry
from .box import Box
from .convention import Convention
from .plain import Plain
from .signature import Parameter, Parameters

SCALE_WORDS: Final = {
    "inverse-sqrt-head-size": "1/sqrt(head size)",
    "none": "none: the dot products are not scaled",
    "inverse-head-size": "1/head size",
    "sqrt-head-size": "sqrt(head size)",
    "inverse-sqrt-model-width": "1/sqrt(width of all heads)",
    "inverse-sqrt-num-heads": "1/sqrt(number of heads)",
    "inverse-sqrt-value-head-size": "1/sqrt(value head size)",
}
_INPUTS: Final = {
    "separate": "cross-attention: query, key and value",
    "memory": "cross-attention: query, and one input for key and value",
    "self": "self-attention: one input",
}
_MOST_NAMES: Final = 8
_SPLITS: Final = {
    "blocks": "head h owns its own block of channels",
    "interleaved": "head h owns every H-th channel",
    "reinterpret": "split by a view without the transpose: tokens and heads are mixed",
}
_MERGES: Final = {
    "blocks": "merged side by side",
    "interleaved": "merged channel by channel",
    "reinterpret": "merged by a view without the transpose: tokens and heads are mixed",
    "tokens": "concatenated along the token axis",
}


def kind_words(convention: Convention) -> str:
    """What kind of thing it is, and whether it takes a batch."""
    kind = {
        "core": "core (attention proper, no projections)",
        "layer": "layer (with projections)",
    }[convention.kind]
    return f"{kind}, {'batched' if convention.layout.batched else 'one item, not batched'}"


def inputs_words(convention: Convention, parameters: Parameters) -> str:
    """Which inputs there are, and what they are called."""
    if convention.names is not None:
        return f"{_INPUTS[convention.inputs]}, as {', '.join(convention.names)}"
    count = len(convention.inputs_names)
    named = [entry.name for entry in parameters.entries if 0 <= entry.position < count]
    beside = f" ({', '.join(named)})" if named else ""
    return f"{_INPUTS[convention.inputs]}, by position{beside}"


def parameters_words(parameters: Parameters) -> str:
    """The names of the parameters, the first ones where there are many."""
    every = [entry.name for entry in parameters.entries if not entry.guessed]
    names = every[:_MOST_NAMES]
    more = len(every) - len(names)
    listed = f"parameters {', '.join(names)}" if names else "by calling it"
    listed += f" and {more} more" if more > 0 else ""
    return listed + (", and any keyword" if parameters.open_ended else "")


def placed(parameter: Parameter) -> str:
    """A parameter with its place in a call, counted from 1 as people do."""
    if parameter.position < 0:
        return f"{parameter.name} (keyword only)"
    return f"{parameter.name} (argument {parameter.position + 1})"


def rivals(plain: Plain) -> str:
    """What speaks for the reading of plain calls."""
    if plain.fitted:
        return (
            f"fitted on one probe, within bound ({plain.margin:.2g} of it) of another of other "
            "sizes"
        )
    return (
        f"golden within bound on every plain probe (at most {plain.margin:.2g} of it), "
        f"the simplest of {plain.tried} readings tried"
    )


def scale_number(point: golden.Semantics, sizes: Geometry) -> float:
    """The scale as a number at some sizes."""
    return golden.scale_value(
        point,
        head_size=sizes.head_size,
        value_head_size=sizes.value_head_size,
        num_heads=sizes.num_heads,
    )


def head_order_words(point: golden.Semantics, sizes: Geometry) -> str:
    """How heads are cut and put together."""
    return f"{sizes.num_heads} heads: {_SPLITS[point.head_split]}; {_MERGES[point.head_merge]}"


def biases_words(box: Box, point: golden.Semantics) -> str:
    """Which projections have a bias."""
    words = {"q": "query", "k": "key", "v": "value", "o": "output"}
    there = [
        word
        for role, word in words.items()
        if role in box.biases and getattr(point, f"{word}_bias")
    ]
    unused = [
        word
        for role, word in words.items()
        if role in box.biases and not getattr(point, f"{word}_bias")
    ]
    text = ", ".join(there) or "none"
    return text + (f" (that of {', '.join(unused)} is not used)" if unused else "")


def empty_words(rule: Sequence[str]) -> str:
    """An empty-row rule for the user."""
    words = {
        "zeros": "zeros",
        "nan": "NaN",
        "mean-of-all": "the mean of all values",
        "mean-of-valid": "the mean of the values that causality admits",
        "raises": "an exception",
        "other": "something that no rule gives",
    }
    return words[rule[0]]
