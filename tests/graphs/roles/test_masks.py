"""``read_roles`` on masks: form, polarity and axes, alone and together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from graph_exports import (
    WIDTH,
    adding,
    causal,
    dropping,
    dynamic,
    keeping,
    numbers,
    of_layer,
    separate,
)
from role_reading import SEPARATE, read, shown
from torch import Tensor, nn

Masking = Callable[[Tensor], Callable[[Tensor], Tensor]]


class Case(NamedTuple):
    """How a mask enters the logits, an example of it, its dynamic axes, and what is read of it."""

    masking: Masking
    example: Tensor
    axes: str
    role: str


def ones(*shape: int, dtype: torch.dtype = torch.bool) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def none(*shape: int, dtype: torch.dtype = torch.bool) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def of_items(masking: Masking) -> Masking:
    """A mask ``[B, K]`` for all heads and queries."""
    return lambda mask: masking(mask[:, None, None])


def nonzero(masking: Masking) -> Masking:
    return lambda mask: masking(mask != 0)


def hiding(fill: float) -> Masking:
    """A mask of ones and zeros of which the zeros add ``fill``."""
    return lambda mask: adding((1 - mask.float()) * fill)


def up_to(shape: tuple[int, ...]) -> Masking:
    """Numbers of keys, reshaped to meet logits ``[B, H, Q, K]``."""

    def masking(lengths: Tensor) -> Callable[[Tensor], Tensor]:
        def apply(logits: Tensor) -> Tensor:
            keys = torch.cumsum(torch.ones_like(logits), -1) - 1
            return logits.masked_fill(keys >= lengths.reshape(shape), -torch.inf)

        return apply

    return masking


long, short, single = torch.int64, torch.int32, torch.float32
FINEST = torch.finfo(torch.float32).min
CASES = {
    "keep QK": Case(keeping, ones(5, 7), "sq sk", "keep:QK"),
    "drop QK": Case(dropping, none(5, 7), "sq sk", "drop:QK"),
    "keep BK": Case(of_items(keeping), ones(3, 7), "b sk", "keep:BK"),
    "drop BK": Case(of_items(dropping), none(3, 7), "b sk", "drop:BK"),
    "keep BQK": Case(lambda m: keeping(m[:, None]), ones(3, 5, 7), "b sq sk", "keep:BQK"),
    "keep K": Case(keeping, ones(7), "sk", "keep:K"),
    "keep BHQK": Case(keeping, ones(3, 4, 5, 7), "b . sq sk", "keep:BHQK"),
    "keep BHQK, heads open": Case(keeping, ones(3, 4, 5, 7), "b h sq sk", "keep:BHQK"),
    "keep B1QK": Case(keeping, ones(3, 1, 5, 7), "b . sq sk", "keep:B1QK"),
    "keep B11K": Case(keeping, ones(3, 1, 1, 7), "b . . sk", "keep:B11K"),
    "keep 11QK": Case(keeping, ones(1, 1, 5, 7), ". . sq sk", "keep:11QK"),
    "drop B1QK": Case(dropping, none(3, 1, 5, 7), "b . sq sk", "drop:B1QK"),
    "lengths fixed by the mask": Case(keeping, ones(3, 1, 5, 7), "b", "keep:B1QK"),
    "bias QK": Case(adding, none(5, 7, dtype=single), "sq sk", "bias:QK"),
    "bias HQK": Case(adding, none(4, 5, 7, dtype=single), ". sq sk", "bias:HQK"),
    "bias BHQK": Case(adding, none(3, 4, 5, 7, dtype=single), "b . sq sk", "bias:BHQK"),
    "int64 keep": Case(of_items(nonzero(keeping)), ones(3, 7, dtype=long), "b sk", "keep_int:BK"),
    "int32 drop": Case(of_items(nonzero(dropping)), none(3, 7, dtype=short), "b sk", "drop_int:BK"),
    "int64 keep by the smallest number": Case(
        of_items(hiding(FINEST)), ones(3, 7, dtype=long), "b sk", "keep_int:BK"
    ),
    "int64 keep by -10000": Case(
        of_items(hiding(-1e4)), ones(3, 7, dtype=long), "b sk", "keep_int:BK"
    ),
    "int64 keep that leaks": Case(
        of_items(hiding(-5.0)), ones(3, 7, dtype=long), "b sk", "keep_int:BK"
    ),
    "float keep": Case(of_items(hiding(-1e9)), ones(3, 7, dtype=single), "b sk", "keep:BK"),
    "float drop": Case(
        of_items(lambda m: adding(m * -1e9)), none(3, 7, dtype=single), "b sk", "drop:BK"
    ),
    "float drop, compared": Case(
        of_items(lambda m: dropping(m > 0.5)), none(3, 7, dtype=single), "b sk", "drop:BK"
    ),
    "int64 added to the logits": Case(adding, ones(5, 7, dtype=long), "sq sk", "keep_int:QK"),
    "int64 keep that nothing fails": Case(
        of_items(lambda m: keeping(m < 2)), ones(3, 7, dtype=long), "b sk", "keep_int:BK"
    ),
    "lengths of items": Case(up_to((-1, 1, 1, 1)), torch.tensor([7, 3, 2]), "b", "lengths:B"),
    "lengths of queries": Case(
        up_to((3, 1, -1, 1)), torch.full((3, 5), 7, dtype=long), ". sq", "lengths:BQ"
    ),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CASES)
def test_a_mask_is_read_as_what_it_does(name: str, tmp_path: Path) -> None:
    """Form, polarity and axes of one mask besides query, key and value; its name says nothing."""
    case = CASES[name]
    module = of_layer(lambda layer, q, k, v, z: layer(q, k, v, masking=case.masking(z))[0])
    axes = {**SEPARATE, **dynamic(z=case.axes)}
    reading = read(tmp_path, module, separate(z=case.example), axes)
    expected = f"q=query:BLE k=key:BLE v=value:BLE z={case.role} -> y=output:BLE"
    assert shown(reading) == expected
    assert any(sentence.startswith("input z:") for sentence in reading.assumptions)


class Itself(NamedTuple):
    """A mask of self-attention, with fixed sizes where ``axes`` is empty."""

    masking: Masking
    example: Tensor
    axes: Mapping[str, Mapping[int, str]]
    items: int
    role: str


def two_rules(mask: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: keeping(mask[:, None, None])(causal(logits))


OPEN = dynamic(x="b s")
ITSELF = {
    "padding": Itself(of_items(dropping), none(3, 5), OPEN | dynamic(z="b s"), 3, "drop:BK"),
    "int64 attention mask": Itself(
        of_items(nonzero(keeping)),
        ones(3, 5, dtype=long),
        OPEN | dynamic(z="b s"),
        3,
        "keep_int:BK",
    ),
    "queries by keys": Itself(keeping, ones(5, 5), OPEN | dynamic(z="s s"), 3, "keep:QK"),
    "padding, five items of five": Itself(of_items(dropping), none(5, 5), {}, 5, "drop:BK"),
    "queries by keys, five items of five": Itself(keeping, ones(5, 5), {}, 5, "keep:QK"),
    "lengths, five items of five": Itself(
        up_to((-1, 1, 1, 1)), torch.tensor([5, 3, 2, 1, 4]), {}, 5, "lengths:B"
    ),
    "padding under a causal rule": Itself(
        two_rules, ones(3, 5), OPEN | dynamic(z="b s"), 3, "keep:BK"
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ITSELF)
def test_a_mask_of_self_attention_is_read_by_what_it_reaches(name: str, tmp_path: Path) -> None:
    """Also where sizes cannot tell items, queries and keys apart."""
    case = ITSELF[name]
    module = of_layer(lambda layer, x, z: layer(x, x, x, masking=case.masking(z))[0])
    inputs = {"x": numbers(case.items, 5, WIDTH), "z": case.example}
    reading = read(tmp_path, module, inputs, case.axes or None)
    assert shown(reading) == f"x=x:BLE z={case.role} -> y=output:BLE"


class Own(nn.Module):
    """torch's module with both of its masks."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, *inputs: Tensor) -> Any:
        """Query, key, value, key_padding_mask, attn_mask."""
        query, key, value, padding, mask = inputs
        return self.attention(query, key, value, key_padding_mask=padding, attn_mask=mask)


@pytest.mark.parametrize(
    ("mask", "axes", "padding", "read_as"),
    [
        (none(5, 7), "sq sk", none(3, 7), "p=drop:BK m=drop:QK"),
        (none(12, 5, 7), "f sq sk", none(3, 7), "p=drop:BK m=drop:FQK"),
        (none(5, 7, dtype=single), "sq sk", none(3, 7, dtype=single), "p=bias:BK m=bias:QK"),
    ],
    ids=["bool", "per head", "float"],
)
def test_two_masks_are_distinguished(
    mask: Tensor, axes: str, padding: Tensor, read_as: str, tmp_path: Path
) -> None:
    """Padding by items and keys, the other by queries and keys, or by heads folded into items."""
    dynamics = {**SEPARATE, **dynamic(p="b sk", m=axes)}
    inputs = separate(p=padding, m=mask)
    reading = read(tmp_path, Own(), inputs, dynamics, outputs=("y", "w"))
    assert shown(reading).split(" -> ")[0].endswith(read_as)
    if "F" in read_as:
        assert reading.pins["num_heads"] == 4


def test_integers_that_are_added_are_called_a_trap(tmp_path: Path) -> None:
    """The sentence says that as a mask they hide nothing."""
    module = of_layer(lambda layer, q, k, v, z: layer(q, k, v, masking=adding(z))[0])
    inputs = separate(z=ones(5, 7, dtype=long))
    reading = read(tmp_path, module, inputs, {**SEPARATE, **dynamic(z="sq sk")})
    assert any("hides nothing" in sentence for sentence in reading.assumptions)
