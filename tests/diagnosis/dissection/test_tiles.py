"""Online softmaxes that rescale their sums a wrong number of times are stated with their tile."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from examples import core
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose

PLAIN = {"masks": [], "causal": None, "features": [], "empty_rows": "any", "dtypes": ["float32"]}


@pytest.mark.parametrize(
    ("summed", "totalled", "text"),
    [
        (2, 1, "with tiles of 8 keys the weighted sum so far is rescaled twice"),
        (1, 2, "with tiles of 8 keys the sum of the weights so far is rescaled twice"),
    ],
)
def test_a_sum_that_is_rescaled_twice_is_stated(summed: int, totalled: int, text: str) -> None:
    """The statement says which sum it is, how large the tiles are and when it happens."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        mixed, total = torch.zeros(()), torch.zeros(())
        largest = torch.full_like(scores[..., :1], -1e30)
        for tile, values in zip(scores.split(8, -1), value.split(8, 2), strict=True):
            grown = torch.maximum(largest, tile.amax(-1, keepdim=True))
            decay, powers = (largest - grown).exp(), (tile - grown).exp()
            mixed = mixed * decay**summed + powers @ values
            total = total * decay**totalled + powers.sum(-1, keepdim=True)
            largest = grown
        return mixed / total

    (entry,) = diagnose(Subject(core(attend, **PLAIN), "float32"))
    assert text in entry["text"]


@pytest.mark.parametrize(
    ("halves", "name"),
    [
        (lambda keys: keys.tensor_split(2, -2), "2 parts of the keys: a softmax of each, averaged"),
        (
            lambda keys: keys.split([keys.shape[-2] // 2, -(-keys.shape[-2] // 2)], -2),
            "2 parts of the keys (longer ones last): a softmax of each, averaged",
        ),
    ],
)
def test_halves_of_the_keys_that_do_not_know_of_each_other(halves: Any, name: str) -> None:
    """Keys split for decoding into parts whose answers are averaged, of however many keys."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        pairs = [(k, v) for k, v in zip(halves(key), halves(value), strict=True) if k.shape[-2]]
        scale = query.shape[-1] ** -0.5
        answers = [(query @ k.mT * scale).softmax(-1) @ v for k, v in pairs]
        return torch.stack(answers).mean(0)

    (entry,) = diagnose(Subject(core(attend, **PLAIN), "float32"))
    assert entry["name"] == name


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (lambda scores: scores.amax(-1), "the exponentials of their largest logits"),
        (
            lambda scores: scores.logsumexp(-1) - scores.amax(-1),
            "sums of exponentials that are less the largest logit of each, and not of all",
        ),
    ],
)
def test_halves_of_the_keys_that_are_merged_by_other_numbers(share: Any, words: str) -> None:
    """Not by their log-sum-exps: the largest logits alone, or sums that leave them out."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        half = key.shape[2] // 2
        scores = query @ key.mT * query.shape[-1] ** -0.5
        parts = [(scores[..., :half], value[:, :, :half]), (scores[..., half:], value[:, :, half:])]
        parts = [part for part in parts if part[0].shape[-1]]
        shares = torch.stack([share(one) for one, _ in parts]).softmax(0)[..., None]
        answers = torch.stack([one.softmax(-1) @ values for one, values in parts])
        return (shares * answers).sum(0)

    (entry,) = diagnose(Subject(core(attend, **PLAIN), "float32"))
    assert entry["name"].startswith("2 parts of the keys (longer ones last): a softmax of each, ")
    assert entry["name"].endswith(f"weighed by {words}")


def online(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    rescaled: int = 99,
    own_maximum: bool = False,
    divided: str = "",
) -> Tensor:
    """An online softmax over tiles of 16 keys, mistaken unless it is called as it stands."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
    mixed, total = torch.zeros(()), torch.zeros(())
    largest = torch.full_like(scores[..., :1], -torch.inf)
    pairs = zip(scores.split(16, -1), value.split(16, 2), strict=True)
    for number, (tile, values) in enumerate(pairs):
        grown = tile.amax(-1, keepdim=True)
        grown = grown if own_maximum else torch.maximum(largest, grown)
        shift = torch.where(grown == -torch.inf, 0.0, grown)
        decay, powers = (largest - shift).exp(), (tile - shift).exp()
        own, total = powers.sum(-1, keepdim=True), total * decay + powers.sum(-1, keepdim=True)
        powers = powers / torch.where(own == 0.0, 1.0, own) if divided == "tiles" else powers
        mixed = mixed * (decay if number < rescaled else 1.0) + powers @ values
        mixed = mixed / torch.where(total == 0.0, 1.0, total) if divided == "so far" else mixed
        largest = grown
    return mixed if divided == "so far" else mixed / torch.where(total == 0.0, 1.0, total)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ({"rescaled": 2}, "the weighted sum so far is not rescaled from the third tile on"),
        ({"own_maximum": True}, "the maximum is that of the tile, not the largest so far"),
        (
            {"divided": "tiles"},
            "a softmax of each, rescaled in turn, then divided by the sum of all",
        ),
        (
            {"divided": "so far"},
            "a softmax of each, added in turn, each time divided by the sum so far",
        ),
    ],
)
def test_tiles_at_which_a_sum_is_not_rescaled_rightly(how: dict[str, Any], name: str) -> None:
    """Only some tiles, or only those behind one whose keys are all hidden."""
    promises = {**PLAIN, "masks": ["keep"], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(partial(online, **how), **promises), "float32"))
    assert entry["name"] == f"tiles of 16: {name}"
    assert diagnose(Subject(core(online, **promises), "float32")) == []


def test_a_last_tile_that_is_filled_up_with_the_last_key_is_stated() -> None:
    """Keys past the end are read at the last one, which so counts as often as a tile lacks keys."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        read = torch.arange(-(-key.shape[2] // 8) * 8).clamp(max=key.shape[2] - 1)
        scores = query @ key[:, :, read].mT * query.shape[-1] ** -0.5
        return scores.softmax(-1) @ value[:, :, read]

    (entry,) = diagnose(Subject(core(attend, **PLAIN), "float32"))
    name = "exponentials: counted as often for the last key as fills up its tile of 8"
    assert entry["name"] == name


def test_the_additive_mask_of_the_tile_before_is_stated() -> None:
    """A pointer into the additive mask that moves on too late, from the second tile of 16 on."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if bias is not None:
            read = torch.arange(key.shape[2])
            bias = bias.expand(*bias.shape[:3], len(read))
            scores = scores + bias[..., torch.where(read < 16, read, read - 16)]
        return scores.softmax(-1).nan_to_num(0.0) @ value

    promises = {**PLAIN, "masks": ["bias"], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(core(attend, **promises), "float32"))
    assert "those of the key at the same place of the tile of 16 before" in entry["name"]
