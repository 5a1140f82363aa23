"""Every attention in a recorded module: its operands, its masks, or why it is not judged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, pad, scaled_dot_product_attention, softmax

from conformance.declare.declaration import is_mask_shape
from conformance.models.recording import record
from conformance.models.site import Uncut
from conformance.models.torch_sites import TorchSite, find_torch_sites

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
BATCH, LENGTH, HEADS, SIZE = 2, 5, 4, 3


class Holder(nn.Module):
    """Hands heads ``[B, L, H, D]`` and a mask ``[B, L]`` to a function."""

    def __init__(self, attend: Attend, kv_heads: int = HEADS) -> None:
        super().__init__()
        self.attend, self.kv_heads = attend, kv_heads

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """As a module is called."""
        query = (x * 2.0).unflatten(-1, (HEADS, SIZE))
        key, value = (
            (x[..., : self.kv_heads * SIZE] * factor).unflatten(-1, (self.kv_heads, SIZE))
            for factor in (3.0, 4.0)
        )
        return self.attend(query, key, value, mask)


def sites_of(attend: Attend, kv_heads: int = HEADS) -> tuple[list[TorchSite], list[Uncut]]:
    x, mask = torch.randn(BATCH, LENGTH, HEADS * SIZE), torch.ones(BATCH, LENGTH).bool()
    return find_torch_sites(record(Holder(attend, kv_heads).eval(), {"x": x, "mask": mask}))


def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    heads = (part.transpose(1, 2) for part in (query, key, value))
    return scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None])


def written(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    scores = query @ key.transpose(-1, -2) / math.sqrt(SIZE)
    return softmax(scores.masked_fill(~mask[:, None, None], -math.inf), -1) @ value


def in_place(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    scores = torch.matmul(query, key.mT)
    scores *= SIZE**-0.5
    scores += torch.where(mask, 0.0, -1e9)[:, None, None]
    return torch.matmul(scores.softmax(-1), value)


def by_letters(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("blhd,bmhd->bhlm", query, key) * SIZE**-0.5
    scores = torch.where(mask[:, None, None], scores, torch.full_like(scores, -math.inf))
    return torch.einsum("bhlm,bmhd->blhd", scores.softmax(-1), value)


def folded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (
        part.transpose(1, 2).reshape(BATCH * HEADS, LENGTH, SIZE) for part in (query, key, value)
    )
    scores = torch.bmm(query, key.transpose(1, 2)).view(BATCH, HEADS, LENGTH, LENGTH)
    scores = scores.masked_fill(~mask[:, None, None], -1e9) * 0.5
    return torch.bmm(scores.softmax(-1).view(BATCH * HEADS, LENGTH, LENGTH), value)


def spread(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    scores = query @ key.mT / math.sqrt(SIZE)
    hidden = (~mask).view(BATCH, 1, 1, LENGTH).expand_as(scores)
    return softmax(scores.masked_fill(hidden, -math.inf).float(), -1).type_as(scores) @ value


def by_name(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    scores = torch.matmul(input=query, other=key.mT).mul(0.5)
    scores = scores.masked_fill(mask=~mask[:, None, None], value=-math.inf)
    return torch.matmul(input=scores.softmax(dim=-1), other=value)


def chosen_by_a_method(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    scores = (query @ key.mT * 0.5).where(mask[:, None, None], torch.tensor(-math.inf))
    return scores.softmax(-1) @ value


def chosen_by_name(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    lowest = torch.tensor(-math.inf)
    hidden = ~mask[:, None, None]
    scores = torch.where(condition=hidden, input=lowest, other=query @ key.mT * 0.5)
    return scores.softmax(-1) @ value


def looked_at(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    scores = (query @ key.mT * 0.5).masked_fill(~mask[:, None, None], -math.inf)
    weights = scores.softmax(-1)
    weights @ torch.ones(LENGTH)  # a sum that nobody uses, before they meet values
    return weights @ value


def subtracted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    hidden = torch.where(mask[:, None, None], 0.0, 1e9)
    return (query @ key.mT * 0.5 - hidden).softmax(-1) @ value


def added_as_truth(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    return ((query @ key.mT * 0.5).softmax(-1) + mask[:, None, None]) @ value


def with_distances(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    places = torch.arange(LENGTH)
    distances = (places[:, None] - places + LENGTH).expand(BATCH, HEADS, -1, -1)
    of_distances = (query @ torch.ones(SIZE, 2 * LENGTH)).gather(-1, distances)
    return softmax((query @ key.mT + of_distances) / math.sqrt(2 * SIZE), -1) @ value


def turned(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    scores = torch.einsum("...id,...jd->...ij", query, key) * SIZE**-0.5
    weights = softmax(scores.masked_fill(~mask[:, None, None], -math.inf), -1)
    return value.mT @ weights.transpose(-1, -2)


def in_blocks_of_one(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (part[:, None].transpose(2, 3) for part in (query, key, value))
    scores = (query @ key.mT * 0.5).masked_fill(~mask[:, None, None, None], -math.inf)
    return scores.softmax(-1) @ value


def positions_first(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
    scores = torch.einsum("bihd,bjhd->ijbh", query, key) * 0.5
    hidden = ~torch.ones(LENGTH, LENGTH).tril().bool()[:, :, None, None]
    weights = scores.masked_fill(hidden, -math.inf).softmax(1)
    return torch.einsum("ijbh,bjhd->bihd", weights, value)


@pytest.mark.parametrize(
    ("attend", "role", "axes"),
    [
        (in_blocks_of_one, "drop", "B111K"),
        (positions_first, "drop", "QK11"),
        (kernel, "keep", "B11K"),
        (turned, "drop", "B11K"),
        (written, "drop", "B11K"),
        (in_place, "bias", "B11K"),
        (by_letters, "keep", "B11K"),
        (folded, "drop", "B11K"),
        (spread, "drop", "BHQK"),
        (by_name, "drop", "B11K"),
        (chosen_by_a_method, "keep", "B11K"),
        (chosen_by_name, "drop", "B11K"),
        (looked_at, "drop", "B11K"),
        (subtracted, "bias", "B11K"),
        (added_as_truth, "bias", "B11K"),
        (with_distances, "bias", "BHQK"),
    ],
)
def test_each_way_to_write_attention_is_read(attend: Attend, role: str, axes: str) -> None:
    """One site, the heads behind it, and the mask in the form in which it enters."""
    sites, uncut = sites_of(attend)
    assert not uncut
    (site,) = sites
    assert (site.heads, site.kv_heads, site.head_size) == (HEADS, HEADS, SIZE)
    assert [(mask.role, mask.axes) for mask in site.masks] == [(role, axes)]
    assert all(is_mask_shape(site.mask_letters(mask)) for mask in site.masks)


def _repeated(heads: Tensor) -> Tensor:
    wide = heads[:, :, None].expand(BATCH, 2, 2, LENGTH, SIZE)
    return wide.reshape(BATCH, HEADS, LENGTH, SIZE)


@pytest.mark.parametrize(
    "repeat", [_repeated, lambda heads: heads.repeat_interleave(2, 1)], ids=["expand", "repeat"]
)
def test_repeated_heads_are_taken_apart(repeat: Callable[[Tensor], Tensor]) -> None:
    """Two heads for four: the edges lie before the repetition."""

    def grouped(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return scaled_dot_product_attention(query, repeat(key), repeat(value))

    sites, _ = sites_of(grouped, 2)
    assert [(site.heads, site.kv_heads) for site in sites] == [(HEADS, 2)]


def test_what_cannot_be_cut_is_listed_with_the_reason() -> None:
    """Weights times another tensor, scores of two products, one key for values of four heads.

    And heads that weights mix.
    """

    def gated(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        weights = (query @ key.mT).softmax(-1) * mask[:, None, None].float().clone()
        return weights @ value

    def summed(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return (query @ key.mT + key @ query.mT).softmax(-1) @ value

    def one_key_head(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return (query @ key[:, :1].mT).softmax(-1) @ value

    by_head = torch.randn(HEADS, HEADS)
    by_place = by_head[:, :, None, None]

    def talking(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        mixed = linear((query @ key.mT).movedim(1, -1), by_head).movedim(-1, 1)
        return mixed.softmax(-1) @ value

    def talking_behind(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return conv2d((query @ key.mT).softmax(-1), by_place) @ value

    def talking_as_a_product(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        mixed = torch.einsum("bhij,hg->bgij", query @ key.mT, by_head)
        return mixed.softmax(-1) @ value

    for attend, reason in (
        (talking_as_a_product, "heads are mixed by further weights"),
        (talking, "heads are mixed by further weights"),
        (talking_behind, "heads are mixed by further weights"),
        (gated, r"mul .* reads a tensor from elsewhere|mul between"),
        (summed, "made of several products"),
        (one_key_head, "have 4, 1, 4 heads"),
    ):
        sites, uncut = sites_of(attend)
        assert not sites
        (entry,) = uncut
        assert re.search(reason, entry.reason), entry.reason


def test_numbers_by_head_are_the_query_s_where_they_multiply_products() -> None:
    """What multiplies scores that a bias is in already, or weights, is none of a query's."""
    by_head = torch.rand(HEADS, 1, 1)

    def attend(*, before: bool, bias: bool) -> Attend:
        def own(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))
            scores = query @ key.mT / 2
            scores = scores + torch.where(mask, 0.0, -1.0)[:, None, None] if bias else scores
            if before:
                return softmax(scores * by_head, -1) @ value
            return (softmax(scores, -1) * by_head) @ value

        return own

    (site,), _ = sites_of(attend(before=True, bias=False))
    assert site.factor is not None
    for other in (attend(before=True, bias=True), attend(before=False, bias=False)):
        sites, uncut = sites_of(other)
        assert not sites
        assert "reads a tensor from elsewhere" in uncut[0].reason


@pytest.mark.parametrize("scaled_together", [True, False])
def test_products_with_tables_are_biases_of_the_product_of_tokens(*, scaled_together: bool) -> None:
    """As in relative positions of Shaw et al. 2018: with the factor of what is scaled together."""
    table = torch.rand(LENGTH, LENGTH, SIZE)

    def relative(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        places = torch.einsum("bhqd,qkd->bhqk", query, table)
        if scaled_together:
            return ((query @ key.mT + places) / 4).softmax(-1) @ value
        return (query @ key.mT / 4 + places).softmax(-1) @ value

    (site,), uncut = sites_of(relative)
    assert not uncut
    (mask,) = site.masks
    assert (mask.role, mask.axes) == ("bias", "BHQK")
    assert mask.factor == (1 / 4 if scaled_together else 1.0)


def test_tables_of_as_many_places_as_channels_mix_no_heads() -> None:
    """Products with positions are biases, however many numbers they make."""
    table = torch.rand(SIZE, SIZE)

    def relative(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        places = torch.einsum("bhqd,kd->bhqk", query, table * 2.0)
        return (query @ key.mT + places).softmax(-1) @ value

    inputs = {"x": torch.randn(BATCH, SIZE, HEADS * SIZE), "mask": torch.ones(BATCH, SIZE).bool()}
    (site,), uncut = find_torch_sites(record(Holder(relative).eval(), inputs))
    assert not uncut
    assert [mask.role for mask in site.masks] == ["bias"]


def test_a_softmax_that_weighs_nothing_is_no_attention() -> None:
    """Such as that of a classifier."""

    def classified(query: Tensor, _key: Tensor, _value: Tensor, _mask: Tensor) -> Tensor:
        return query.softmax(-1)

    assert sites_of(classified) == ([], [])


def test_weights_that_move_before_they_meet_values_are_listed() -> None:
    """As in an attention to blocks of tokens: it is not judged alone, and not dropped."""

    def in_blocks(query: Tensor, key: Tensor, value: Tensor, _mask: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        weights = softmax(pad(query @ key.mT, (0, 1)).roll(1, -1) / math.sqrt(SIZE), -1)
        return pad(weights, (1, 0))[..., 1:-1] @ value

    sites, uncut = sites_of(in_blocks)
    assert not sites
    (one,) = uncut
    assert re.search(r"weights change their places before matmul \(test_torch", one.reason)
