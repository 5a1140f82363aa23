"""``read_roles`` on cores: heads apart, packed, folded and grouped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from graph_exports import (
    attend,
    causal,
    dynamic,
    heads,
    keeping,
    merged,
    numbers,
    of_heads,
    split,
)
from role_reading import HEADS_APART, SEPARATE, counts, read, shown
from torch import Tensor, nn

APART = "q=query:BHLD k=key:BHLD v=value:BHLD -> y=output:BHLD"
PACKED = APART.replace("BHLD", "BLM")
ALL = dynamic(q="b h sq d", k="b h sk d", v="b h sk d")


class Case(NamedTuple):
    """A function of heads, what it is exported with, and what is read of it."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    axes: Mapping[str, Mapping[int, str]] | None
    shown: str
    pins: Mapping[str, int | str]
    options: Mapping[str, Any] = {}


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attend(query, key, value)[0]


def positions_first(*inputs: Tensor) -> Tensor:
    return plain(*(tensor.transpose(1, 2) for tensor in inputs)).transpose(1, 2)


def packed(*inputs: Tensor, kv_heads: int = 4) -> Tensor:
    query, key, value = inputs
    return merged(plain(split(query), split(key, kv_heads), split(value, kv_heads)))


def cached(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, past_key, past_value = inputs
    key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
    return plain(query, key, value), key, value


def swapped(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.transpose(1, 2).contiguous() for name, tensor in inputs.items()}


FOUR = {"num_heads": 4, "num_kv_heads": 4}
CASES = {
    "heads apart": Case(of_heads(plain), heads(), HEADS_APART, APART, FOUR),
    "all sizes open": Case(of_heads(plain), heads(), ALL, APART, {"num_kv_heads": "num_heads"}),
    "positions first": Case(
        of_heads(positions_first),
        swapped(heads()),
        SEPARATE,
        APART.replace("BHLD", "BLHD"),
        FOUR,
    ),
    "positions first, all sizes open": Case(
        of_heads(positions_first),
        swapped(heads()),
        dynamic(q="b sq h d", k="b sk h d", v="b sk h d"),
        APART.replace("BHLD", "BLHD"),
        {"num_kv_heads": "num_heads"},
    ),
    "grouped": Case(
        of_heads(plain), heads(2), HEADS_APART, APART, {"num_heads": 4, "num_kv_heads": 2}
    ),
    "one key head": Case(
        of_heads(plain), heads(1), HEADS_APART, APART, {"num_heads": 4, "num_kv_heads": 1}
    ),
    "packed": Case(
        of_heads(packed),
        {"q": numbers(3, 5, 32), "k": numbers(3, 7, 32), "v": numbers(3, 7, 32)},
        SEPARATE,
        PACKED,
        FOUR,
    ),
    "packed and grouped": Case(
        of_heads(lambda *inputs: packed(*inputs, kv_heads=2)),
        {"q": numbers(3, 5, 32), "k": numbers(3, 7, 16), "v": numbers(3, 7, 16)},
        SEPARATE,
        PACKED,
        {"num_heads": 4, "num_kv_heads": 2},
    ),
    "folded": Case(  # with heads among the items there is one head
        of_heads(lambda q, k, v: plain(q[None], k[None], v[None])[0]),
        {"q": numbers(12, 5, 8), "k": numbers(12, 7, 8), "v": numbers(12, 7, 8)},
        SEPARATE,
        PACKED,
        {"num_heads": 1, "num_kv_heads": 1},
    ),
    "packed answer": Case(
        of_heads(lambda *inputs: merged(plain(*inputs))),
        heads(),
        HEADS_APART,
        APART.replace("output:BHLD", "output:BLM"),
        FOUR,
    ),
    "weights": Case(
        of_heads(attend),
        heads(),
        HEADS_APART,
        APART + " w=weights:BHQK",
        FOUR,
        {"outputs": ("y", "w")},
    ),
    "fixed, all sizes equal": Case(
        of_heads(plain),
        {name: numbers(4, 4, 4, 4) for name in "qkv"},
        None,
        APART,
        {**FOUR, "batch": 4, "query_length": 4, "key_length": 4},
    ),
    "mask": Case(
        of_heads(lambda q, k, v, z: attend(q, k, v, masking=keeping(z))[0]),
        heads(z=torch.ones(3, 1, 5, 7, dtype=torch.bool)),
        {**HEADS_APART, **dynamic(z="b . sq sk")},
        APART.replace(" ->", " z=keep:B1QK ->"),
        FOUR,
    ),
    "mask of heads, all sizes open": Case(
        of_heads(lambda q, k, v, z: attend(q, k, v, masking=keeping(z))[0]),
        heads(z=torch.ones(3, 4, 5, 7, dtype=torch.bool)),
        {**ALL, **dynamic(z="b h sq sk")},
        APART.replace(" ->", " z=keep:BHQK ->"),
        {"num_kv_heads": "num_heads"},
    ),
    "cache": Case(
        of_heads(cached),
        heads(past_key=numbers(3, 4, 2, 8), past_value=numbers(3, 4, 2, 8)),
        {**HEADS_APART, **dynamic(past_key="b . p", past_value="b . p")},
        APART.replace(" ->", " past_key=past_key:BHLD past_value=past_value:BHLD ->")
        + " present_key=present_key:BHLD present_value=present_value:BHLD",
        FOUR,
        {"outputs": ("y", "present_key", "present_value")},
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_heads_are_where_the_function_has_them(name: str, tmp_path: Path) -> None:
    """Roles, axes and numbers of heads of a core."""
    case = CASES[name]
    reading = read(tmp_path, case.module, case.inputs, case.axes, **case.options)
    assert reading.kind == "core"
    assert shown(reading) == case.shown
    assert counts(reading) == case.pins


def test_value_heads_may_have_a_size_of_their_own(tmp_path: Path) -> None:
    """Both sizes are pinned where the file fixes them."""
    inputs = {**heads(), "v": numbers(3, 4, 7, 6)}
    reading = read(tmp_path, of_heads(plain), inputs, HEADS_APART)
    assert (reading.pins["head_size"], reading.pins["value_head_size"]) == (8, 6)


def test_the_rule_of_a_causal_core_is_aligned_by_unequal_lengths(tmp_path: Path) -> None:
    """A lower triangle that starts in the corner is top-left at any lengths."""
    module = of_heads(lambda q, k, v: attend(q, k, v, masking=causal)[0])
    assert read(tmp_path, module, heads(), HEADS_APART).causal == "top-left"
