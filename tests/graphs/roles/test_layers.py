"""``read_roles`` on layers: which input is what, in which order of axes, at which sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from graph_exports import (
    WIDTH,
    Layer,
    attend,
    dynamic,
    merged,
    numbers,
    of_layer,
    separate,
    split,
)
from role_reading import SEPARATE, counts, read, shown
from torch import Tensor, nn

from conformance.graphs.reading import GraphReading
from conformance.graphs.sidecar import GraphDeclaration

PLAIN = "q=query:BLE k=key:BLE v=value:BLE -> y=output:BLE"
EQUAL = {"key_length": "query_length"}


class Case(NamedTuple):
    """A module, what it is exported with, and what is read of it."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    axes: Mapping[str, Mapping[int, str]] | None
    shown: str
    pins: Mapping[str, int | str] = {}
    options: Mapping[str, Any] = {}


def plain(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return layer(query, key, value)[0]


def itself(layer: Layer, x: Tensor) -> Tensor:
    return layer(x, x, x)[0]


def swapped(layer: Layer, *inputs: Tensor) -> Tensor:
    """Positions outside items, ``[L, B, E]``."""
    query, key, value = [tensor.transpose(0, 1) for tensor in inputs] * (3 // len(inputs))
    return layer(query, key, value)[0].transpose(0, 1)


def without_items(layer: Layer, *inputs: Tensor) -> Tensor:
    query, key, value = [tensor[None] for tensor in inputs] * (3 // len(inputs))
    return layer(query, key, value)[0][0]


def twice(layer: Layer, query: Tensor, context: Tensor) -> Tensor:
    return layer(query, context, context)[0]


class Frozen(nn.Module):
    """Reshapes with the sizes it was traced at."""

    def __init__(self, *, batch: bool, length: bool) -> None:
        super().__init__()
        self.layer, self.batch, self.length = Layer(), batch, length

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``[B, L, E]`` of the traced sizes."""
        layer = self.layer
        pairs = ((layer.query, query), (layer.key, key), (layer.value, value))
        answer, _ = attend(*(self._split(projection(tokens)) for projection, tokens in pairs))
        return layer.output(merged(answer))

    def _split(self, packed: Tensor) -> Tensor:
        batch = int(packed.shape[0]) if self.batch else packed.shape[0]
        length = int(packed.shape[1]) if self.length else packed.shape[1]
        return packed.reshape(batch, length, 4, 4).transpose(1, 2)


def fives(batch: int) -> dict[str, Tensor]:
    return {"q": numbers(batch, 6, WIDTH), "k": numbers(batch, 9, WIDTH)} | {
        "v": numbers(batch, 9, WIDTH)
    }


CASES = {
    "three inputs": Case(of_layer(plain), separate(), SEPARATE, PLAIN),
    "names that say nothing": Case(
        of_layer(plain),
        dict(zip("abc", separate().values(), strict=True)),
        dynamic(a="b s", b="b t", c="b t"),
        "a=query:BLE b=key:BLE c=value:BLE -> y=output:BLE",
    ),
    "names that lie": Case(
        of_layer(lambda layer, value, key, query: layer(query, key, value)[0]),
        {"query": numbers(3, 7, WIDTH), "key": numbers(3, 7, WIDTH), "value": numbers(3, 5, WIDTH)},
        dynamic(query="b t", key="b t", value="b s"),
        "query=value:BLE key=key:BLE value=query:BLE -> y=output:BLE",
    ),
    "positions first": Case(
        of_layer(swapped),
        {name: tensor.transpose(0, 1) for name, tensor in separate().items()},
        dynamic(q="s b", k="t b", v="t b"),
        PLAIN.replace("BLE", "LBE"),
    ),
    "fixed": Case(
        of_layer(plain),
        separate(),
        None,
        PLAIN,
        {"batch": 3, "query_length": 5, "key_length": 7},
    ),
    "fixed, all sizes equal": Case(
        of_layer(plain),
        {name: numbers(4, 4, WIDTH) for name in "qkv"},
        None,
        PLAIN,
        {"batch": 4, "query_length": 4, "key_length": 4},
    ),
    "fixed, one item": Case(
        of_layer(plain),
        {name: numbers(1, 4, WIDTH) for name in "qkv"},
        None,
        PLAIN,
        {"batch": 1, "query_length": 4, "key_length": 4},
    ),
    "only items dynamic": Case(
        of_layer(plain),
        separate(),
        dynamic(q="b", k="b", v="b"),
        PLAIN,
        {"query_length": 5, "key_length": 7},
    ),
    "only lengths dynamic": Case(
        of_layer(plain), separate(), dynamic(q=". s", k=". t", v=". t"), PLAIN, {"batch": 3}
    ),
    "one axis dynamic, its twin fixed": Case(
        of_layer(plain),
        separate(),
        dynamic(k=". t"),
        PLAIN,
        {"batch": 3, "query_length": 5, "key_length": 7},
    ),
    "one name for both lengths": Case(
        of_layer(plain),
        {name: numbers(3, 5, WIDTH) for name in "qkv"},
        dynamic(q="b s", k="b s", v="b s"),
        PLAIN,
        EQUAL,
    ),
    "self-attention": Case(
        of_layer(itself),
        {"x": numbers(3, 5, WIDTH)},
        dynamic(x="b s"),
        "x=x:BLE -> y=output:BLE",
        EQUAL,
    ),
    "self-attention, positions first": Case(
        of_layer(swapped),
        {"x": numbers(5, 3, WIDTH)},
        dynamic(x="s b"),
        "x=x:LBE -> y=output:LBE",
        EQUAL,
    ),
    "self-attention, positions first, one item": Case(
        of_layer(swapped),
        {"x": numbers(5, 1, WIDTH)},
        None,
        "x=x:LBE -> y=output:LBE",
        {"batch": 1, "query_length": 5, "key_length": 5},
    ),
    "self-attention, no items": Case(
        of_layer(without_items),
        {"x": numbers(5, WIDTH)},
        dynamic(x="s"),
        "x=x:LE -> y=output:LE",
        EQUAL,
    ),
    "no items": Case(
        of_layer(without_items),
        {"q": numbers(5, WIDTH), "k": numbers(7, WIDTH), "v": numbers(7, WIDTH)},
        dynamic(q="s", k="t", v="t"),
        PLAIN.replace("BLE", "LE"),
    ),
    "memory": Case(
        of_layer(twice),
        {"a": numbers(3, 5, WIDTH), "b": numbers(3, 7, WIDTH)},
        dynamic(a="b s", b="b t"),
        "a=query:BLE b=context:BLE -> y=output:BLE",
    ),
    "memory first": Case(
        of_layer(lambda layer, context, query: twice(layer, query, context)),
        {"a": numbers(3, 5, WIDTH), "b": numbers(3, 7, WIDTH)},
        dynamic(a="b s", b="b t"),
        "a=context:BLE b=query:BLE -> y=output:BLE",
    ),
    "memory, no items": Case(
        of_layer(without_items_twice := lambda layer, a, b: twice(layer, a[None], b[None])[0]),
        {"a": numbers(5, WIDTH), "b": numbers(7, WIDTH)},
        dynamic(a="s", b="t"),
        "a=query:LE b=context:LE -> y=output:LE",
    ),
    "torch's own": Case(
        nn.MultiheadAttention(WIDTH, 4, batch_first=True),
        separate(),
        SEPARATE,
        PLAIN + " w=weights:BQK",
        options={"outputs": ("y", "w")},
    ),
    "torch's own, positions first": Case(
        nn.MultiheadAttention(WIDTH, 4),
        {name: tensor.transpose(0, 1) for name, tensor in separate().items()},
        dynamic(q="s b", k="t b", v="t b"),
        PLAIN.replace("BLE", "LBE") + " w=weights:BQK",
        options={"outputs": ("y", "w")},
    ),
    "weights first": Case(
        of_layer(lambda layer, q, k, v: layer(q, k, v)[::-1]),
        separate(),
        SEPARATE,
        PLAIN.replace("-> ", "-> w=weights:BHQK "),
        options={"outputs": ("w", "y")},
    ),
    "frozen items": Case(Frozen(batch=True, length=False), fives(2), SEPARATE, PLAIN, {"batch": 2}),
    "frozen to seven items": Case(
        Frozen(batch=True, length=False), fives(7), SEPARATE, PLAIN, {"batch": 7}
    ),
    "frozen lengths": Case(
        Frozen(batch=False, length=True),
        fives(2),
        SEPARATE,
        PLAIN,
        {"query_length": 6, "key_length": 9},
    ),
    "frozen": Case(
        Frozen(batch=True, length=True),
        fives(2),
        SEPARATE,
        PLAIN,
        {"batch": 2, "query_length": 6, "key_length": 9},
    ),
    "keys with positions": Case(
        of_layer(plain, rotary=True),
        separate(),
        SEPARATE,
        PLAIN,
        {"query_length": 5, "key_length": 7},  # torch bakes the angles of the traced lengths
    ),
    "tiny weights": Case(of_layer(plain, spread=0.02), separate(), SEPARATE, PLAIN),
    "one head": Case(of_layer(plain, heads=1), separate(), SEPARATE, PLAIN),
    "grouped heads": Case(of_layer(plain, kv_heads=2), separate(), SEPARATE, PLAIN),
    "half precision": Case(
        of_layer(plain).half(),
        {n: tensor.half() for n, tensor in separate().items()},
        SEPARATE,
        PLAIN,
    ),
    "double precision": Case(
        of_layer(plain).double(),
        {n: tensor.double() for n, tensor in separate().items()},
        SEPARATE,
        PLAIN,
    ),
    "residual block": Case(
        of_layer(lambda layer, x: x + itself(layer, nn.functional.layer_norm(x, (WIDTH,)))),
        {"x": numbers(3, 5, WIDTH)},
        dynamic(x="b s"),
        "x=x:BLE -> y=output:BLE",
        EQUAL,
    ),
    "a flag": Case(
        of_layer(lambda layer, q, k, v, flag: plain(layer, q, k, v) * torch.where(flag, 2.0, 1.0)),
        separate(flag=torch.tensor(data=True)),
        SEPARATE,
        PLAIN.replace(" ->", " flag=constant: ->"),
    ),
}


@pytest.mark.one_in(15)
@pytest.mark.parametrize("name", CASES)
def test_roles_axes_and_sizes_are_those_of_the_module(name: str, tmp_path: Path) -> None:
    """The reading is what the module that was exported says of itself."""
    case = CASES[name]
    reading = read(tmp_path, case.module, case.inputs, case.axes, **case.options)
    assert reading.kind == "layer"
    assert shown(reading) == case.shown
    assert counts(reading) == case.pins


@pytest.mark.parametrize(
    ("name", "baked"),
    [
        ("three inputs", {}),
        ("fixed", {}),
        ("frozen items", {"batch": 2}),
        ("frozen", {"batch": 2, "query_length": 6, "key_length": 9}),
    ],
)
def test_frozen_axes_are_distinguished_from_fixed_axes(
    name: str, baked: dict[str, int], tmp_path: Path
) -> None:
    """``baked`` holds what the file calls dynamic and the runtime refuses, and nothing else."""
    case = CASES[name]
    assert read(tmp_path, case.module, case.inputs, case.axes).baked == baked


def test_one_tensor_given_thrice_leaves_self_attention(tmp_path: Path) -> None:
    """The exporter keeps one input of the three: that is a reading of its own."""

    class Thrice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            x = x.clone()
            return self.attention(x, x + 0, x + 0)

    reading = read(
        tmp_path, Thrice(), {"x": numbers(3, 5, WIDTH)}, dynamic(x="b s"), outputs=("y", "w")
    )
    assert (reading.mode, shown(reading)) == ("self", "x=x:BLE -> y=output:BLE w=weights:BQK")


def test_a_declaration_comes_before_behaviour(tmp_path: Path) -> None:
    """What is declared is not probed, and the sentence names the declaration."""
    declaration = GraphDeclaration(
        inputs={
            name: {"role": role}
            for name, role in zip("qkv", ("key", "query", "value"), strict=True)
        },
        where="graph.conformance.toml",
    )
    reading = read(tmp_path, of_layer(plain), separate(), SEPARATE, declaration=declaration)
    assert shown(reading).startswith("q=key:BLE k=query:BLE v=value:BLE")
    assert "input q: key, axes BLE (declared in graph.conformance.toml)" in reading.assumptions


def test_every_part_has_a_sentence(tmp_path: Path) -> None:
    """Each input and each other output is among the assumptions, with what shows it."""
    case = CASES["torch's own"]
    reading: GraphReading = read(tmp_path, case.module, case.inputs, case.axes, **case.options)
    for name in ("input q:", "input k:", "input v:", "output w:"):
        assert any(sentence.startswith(name) for sentence in reading.assumptions)


def test_sizes_are_what_the_clauses_may_draw(tmp_path: Path) -> None:
    """Widths of inputs and output are pinned, three that differ included."""
    inputs = {"q": numbers(3, 5, 16), "k": numbers(3, 7, 12), "v": numbers(3, 7, 10)}
    reading = read(tmp_path, of_layer(plain, widths=(16, 12, 10)), inputs, SEPARATE)
    widths = {"query_size": 16, "key_size": 12, "value_size": 10, "output_size": 16}
    assert reading.pins == widths


def test_a_reshape_of_the_traced_length_survives(tmp_path: Path) -> None:
    """Traced at one position it flattens items into positions at any other length."""

    def flat(layer: Layer, x: Tensor) -> Tensor:
        answer = itself(layer, x)
        return answer.reshape(-1, int(x.shape[1]), WIDTH)

    reading = read(tmp_path, of_layer(flat), {"x": numbers(3, 1, WIDTH)}, dynamic(x="b s"))
    assert shown(reading) == "x=x:BLE -> y=output:BLE"


def test_an_axis_that_is_called_batch_promises_items(tmp_path: Path) -> None:
    """A module that mixes along it is read as the file says, and the clauses find the leak."""
    module = of_layer(swapped)
    reading = read(tmp_path, module, {"x": numbers(5, 3, WIDTH)}, dynamic(x="batch tokens"))
    assert shown(reading) == "x=x:BLE -> y=output:BLE"
    assert any("does not behave as attention" in sentence for sentence in reading.assumptions)


def test_items_that_a_reshape_takes_for_positions_are_frozen(tmp_path: Path) -> None:
    """The runtime accepts four items and answers in another shape: that is no other size."""

    def flat(layer: Layer, x: Tensor) -> Tensor:
        return itself(layer, x).reshape(int(x.shape[0]), -1, WIDTH)

    reading = read(tmp_path, of_layer(flat), {"x": numbers(2, 5, WIDTH)}, dynamic(x="b s"))
    assert reading.baked == {"batch": 2}


def test_split_is_the_layers_own() -> None:
    """The helper of these tests cuts heads as blocks, so that pins of heads mean the same."""
    packed = numbers(2, 3, WIDTH)
    assert torch.equal(merged(split(packed)), packed)
