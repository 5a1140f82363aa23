"""``read_roles`` on attentions that are wrong: they are read as what they were meant to be."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from graph_exports import Layer, dynamic, heads, merged, of_heads, of_layer, separate, split
from role_reading import HEADS_APART, SEPARATE, read, shown
from torch import Tensor
from torch.nn import functional

Weighing = Callable[[Tensor], Tensor]
Attention = Callable[..., Tensor]


def weighed(weighing: Weighing, *, scaled: bool = True) -> Attention:
    """Attention whose weights are any function of the logits."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = query @ key.transpose(-1, -2)
        return weighing(logits / math.sqrt(query.shape[-1]) if scaled else logits) @ value

    return attention


def projected(attention: Attention) -> Callable[..., Tensor]:
    """A layer around it."""

    def function(layer: Layer, query: Tensor, key: Tensor, value: Tensor, *masks: Tensor) -> Tensor:
        pairs = ((layer.query, query), (layer.key, key), (layer.value, value))
        apart = [split(projection(tokens)) for projection, tokens in pairs]
        return layer.output(merged(attention(*apart, *masks)))

    return function


def usual(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


plain = weighed(usual)
BROKEN: dict[str, Attention] = {
    "no scale": weighed(usual, scaled=False),
    "softmax over queries": weighed(lambda logits: logits.softmax(-2)),
    "softmax over items": weighed(lambda logits: logits.softmax(0)),
    "softmax over heads": weighed(lambda logits: logits.softmax(1)),
    "no softmax": weighed(lambda logits: logits),
    "sigmoid": weighed(torch.sigmoid),
    "dropout left in": weighed(
        lambda logits: functional.dropout(usual(logits), 0.3, training=True)
    ),
    "NaN": lambda q, k, v: plain(q, k, v) * math.nan,
    "NaN here and there": weighed(lambda x: usual(torch.where(x > 1.0, math.nan, x))),
    "query does not matter": lambda q, k, v: plain(q * 0 + 1, k, v),
    "key does not matter": lambda q, k, v: plain(q, k * 0 + 1, v),
    "weights do not matter": lambda q, k, v: v.mean(2, keepdim=True) + 0 * plain(q, k, v),
    "items leak": lambda q, k, v: plain(q, k, v + v.mean(0, keepdim=True)),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_layer_is_read_as_a_layer(name: str, tmp_path: Path) -> None:
    """The clauses, not the reading, say what is wrong with it."""
    reading = read(tmp_path, of_layer(projected(BROKEN[name])), separate(), SEPARATE)
    assert shown(reading) == "q=query:BLE k=key:BLE v=value:BLE -> y=output:BLE"


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [*BROKEN, "value does not matter"])
def test_a_broken_core_is_read_as_a_core(name: str, tmp_path: Path) -> None:
    """The same without projections."""
    broken = {**BROKEN, "value does not matter": lambda q, k, v: plain(q, k, torch.ones_like(v))}
    reading = read(tmp_path, of_heads(broken[name]), heads(), HEADS_APART)
    assert shown(reading) == "q=query:BHLD k=key:BHLD v=value:BHLD -> y=output:BHLD"


def filled(value: float) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return weighed(lambda x: usual(x.masked_fill(~mask, value)))(q, k, v)

    return attention


def multiplied(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return weighed(lambda logits: usual(logits) * mask)(q, k, v)


def ignored(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return plain(q, k, v + 0 * mask.sum())


def of_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return weighed(lambda x: usual(x.masked_fill(~mask[:, :, :1], -math.inf)))(q, k, v)


MASKED: dict[str, Attention] = {
    "leaks": filled(-3.0),
    "leaks at large logits": filled(-30.0),
    "hides nothing": filled(0.0),
    "after the softmax": multiplied,
    "does not matter": ignored,
    "the first query's for all": of_first,
    "fills NaN": filled(math.nan),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", MASKED)
def test_a_broken_mask_is_read_as_what_it_should_be(name: str, tmp_path: Path) -> None:
    """True means attend, whatever becomes of False."""
    inputs = separate(z=torch.ones(3, 1, 5, 7, dtype=torch.bool))
    axes = {**SEPARATE, **dynamic(z="b . sq sk")}
    reading = read(tmp_path, of_layer(projected(MASKED[name])), inputs, axes)
    assert "z=keep:B1QK" in shown(reading)


def test_what_does_not_matter_is_said_so(tmp_path: Path) -> None:
    """The sentence of an input without influence says that its role is a guess."""
    module = of_layer(projected(BROKEN["query does not matter"]))
    reading = read(tmp_path, module, separate(), SEPARATE)
    (sentence,) = [
        assumption for assumption in reading.assumptions if assumption.startswith("input q:")
    ]
    assert "does not depend on it" in sentence
