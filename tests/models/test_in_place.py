"""What enters and leaves an attention while its model runs, in the order of heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.transformers.float16 import convert_float_to_float16
from torch import Tensor, nn
from torch.nn.functional import interpolate

from candidates.exports import Input, Source, by_tracing
from conformance.graphs.process import Setting
from conformance.graphs.protocol import Array
from conformance.models.in_place import (
    Activations,
    GraphEngine,
    activations,
    assembled,
    tapped,
)
from conformance.models.operands import MaskInput
from conformance.models.site import Site
from conformance.models.sites import find_sites

GENERATOR = np.random.default_rng(0)
# Two items, four heads, three queries, five keys, six features.
HEADS = {
    "query": GENERATOR.standard_normal((2, 4, 3, 6)).astype(np.float32),
    "key": GENERATOR.standard_normal((2, 4, 5, 6)).astype(np.float32),
    "value": GENERATOR.standard_normal((2, 4, 5, 6)).astype(np.float32),
    "output": GENERATOR.standard_normal((2, 4, 3, 6)).astype(np.float32),
}
KEPT = GENERATOR.random((2, 4, 3, 5)) < 0.7
WAYS: dict[str, Callable[[Array], Array]] = {
    "BHLD": lambda heads: heads,
    "BLHD": lambda heads: heads.transpose(0, 2, 1, 3),
    "HBLD": lambda heads: heads.transpose(1, 0, 2, 3),
    "BHDL": lambda heads: heads.transpose(0, 1, 3, 2),
    "FLD": lambda heads: heads.reshape(-1, *heads.shape[2:]),
    "BLM": lambda heads: heads.transpose(0, 2, 1, 3).reshape(heads.shape[0], heads.shape[2], -1),
}


class Resized(nn.Module):
    """Adds a stored table that is resized, as pictures' positions are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Parameter(torch.randn(1, 17, 8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 16, 8]`` to the same."""
        first, grid = self.table[:, :1], self.table[:, 1:].transpose(1, 2).view(1, 8, 4, 4)
        sized = interpolate(grid, size=(x.shape[1] // 4, 4), mode="bicubic", align_corners=False)
        whole = torch.cat((first, sized.flatten(2).transpose(1, 2)), 1)
        answer: Tensor = self.linear(x) + whole[:, 1:]
        return answer


@pytest.mark.parametrize("narrow", [False, True])
def test_nudged_weights_reach_what_the_runtime_folds(tmp_path: Path, *, narrow: bool) -> None:
    """A resized table, and weights in float16, which become float32 before they are multiplied."""
    source = Source(
        name="resized",
        module=Resized().eval(),
        inputs=(Input(name="x", axes=("batch", 16, 8)),),
        outputs={"y": ("batch", 16, 8)},
    )
    path = by_tracing(source, tmp_path / "resized.onnx")
    if narrow:
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), path)
    engine = GraphEngine(find_sites(path))
    feeds = {"x": np.ones((2, 16, 8), np.float32)}
    with engine.process:
        plain = engine.run(feeds)["y"]
        nudged = engine.run(feeds, setting=Setting(nudge=1))["y"]
    assert 0 < np.abs(plain - nudged).max() < (1e-1 if narrow else 1e-5)


@pytest.fixture
def site(export_of: Callable[..., Path]) -> Site:
    """An attention of a model with four heads."""
    return find_sites(export_of("encoder")).sites[0]


def entered(
    site: Site, letters: str, *masks: tuple[MaskInput, Array], heads: int | None = 4
) -> Activations | None:
    """The activations of a site whose tensors lie in another order."""
    edges = {
        part: dataclasses.replace(edge, name=part, letters=letters)
        for part, edge in site.edges.items()
    }
    other = dataclasses.replace(
        site,
        **edges,
        heads=heads,
        kv_heads=heads,
        output="output",
        output_letters=letters,
        masks=tuple(mask for mask, _ in masks),
    )
    values = {name: WAYS.get(letters, WAYS["BHLD"])(value) for name, value in HEADS.items()}
    values |= {mask.name: value for mask, value in masks}
    assert set(tapped(other)) == set(values)
    return activations(other, values)


@pytest.mark.parametrize("letters", WAYS)
def test_heads_are_told_apart_in_any_order(letters: str, site: Site) -> None:
    """Whatever the axes are, the numbers are those of the same heads."""
    found = entered(site, letters)
    assert found is not None
    for name, value in HEADS.items():
        own = found.answer if name == "output" else getattr(found, name)
        np.testing.assert_array_equal(own, value)


@pytest.mark.parametrize(
    ("letters", "heads"), [("BLM", None), ("FLD", None), ("BXLD", 4), ("BLM", 7), ("FLD", 3)]
)
def test_axes_that_nobody_knows_are_none(letters: str, heads: int | None, site: Site) -> None:
    """Without a number of heads one axis cannot be cut, nor with a number that does not fit."""
    assert entered(site, letters, heads=heads) is None


MASKS: dict[str, tuple[str, str, Array]] = {
    "whole": ("keep", "BHQK", KEPT),
    "hidden": ("drop", "BHQK", ~KEPT),
    "integers": ("keep_int", "BHQK", KEPT.astype(np.int64)),
    "items and heads in one": ("keep", "FQK", KEPT.reshape(8, 3, 5)),
    "of keys": ("keep", "BK", KEPT[:, 0, 0]),
    "of queries and keys": ("keep", "QK", KEPT[0, 0]),
    "of heads": ("keep", "HQK", KEPT[0]),
    "of items": ("keep", "BQK", KEPT[:, 0]),
    "minus infinity": ("bias", "BHQK", np.where(KEPT, 0, -np.inf)),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks_get_four_axes(case: str, site: Site) -> None:
    """True attends, and what is broadcast stays so."""
    role, axes, value = MASKS[case]
    found = entered(site, "BHLD", (MaskInput(name="mask", role=role, axes=axes), value))
    assert found is not None
    assert found.keep is not None
    places = {"BK": (slice(None), 0, 0), "QK": (0, 0), "HQK": (0,), "BQK": (slice(None), 0)}
    expected = KEPT[places.get(axes, ())]
    np.testing.assert_array_equal(found.keep.reshape(expected.shape), expected)
    assert np.broadcast_shapes(found.keep.shape, KEPT.shape) == KEPT.shape


def test_masks_hide_together(site: Site) -> None:
    """Each of two masks hides its own keys; a row without any key is not judged."""
    first, second = KEPT.copy(), np.where(KEPT[:1, :1], 0.5, -1e4)
    first[1, 2, 0] = False
    masks = [
        (MaskInput(name="first", role="keep", axes="BHQK"), first),
        (MaskInput(name="second", role="bias", axes="11QK"), second),
    ]
    found = entered(site, "BHLD", *masks)
    assert found is not None
    assert found.bias is not None
    np.testing.assert_array_equal(found.bias, second)
    seen = (first & KEPT[:1, :1]).any(-1, keepdims=True)
    np.testing.assert_array_equal(found.judged, seen)
    assert not found.judged[1, 2, 0]


def test_what_lies_in_one_tensor_is_not_taken_apart(site: Site) -> None:
    """Query, key and value side by side may have any width: it is none of one of them."""
    packed = dataclasses.replace(site, opaque=True)
    assert entered(packed, "BLM", heads=7) is None


def test_lengths_in_another_form_are_none(site: Site) -> None:
    """A start and an end of each item are two numbers an item."""
    mask = MaskInput(name="mask", role="lengths", axes="B")
    assert entered(site, "BHLD", (mask, np.array([5, 3]))) is not None
    assert entered(site, "BHLD", (mask, np.array([5, 3, 0, 0]))) is None


@pytest.mark.parametrize(
    ("key_heads", "value_heads", "fit"), [(2, 2, True), (4, 1, True), (1, 4, False), (3, 3, False)]
)
def test_heads_that_do_not_pair_up_are_none(key_heads: int, value_heads: int, *, fit: bool) -> None:
    """Groups share a key, all heads one value; what broadcasting alone makes meet is none."""
    query, key, value = (np.zeros((2, heads, 3, 5)) for heads in (4, key_heads, value_heads))
    parts = {"query": query, "key": key, "value": value}
    found = assembled(parts, np.zeros_like(query), [], 4, causal=None, sinks=None)
    assert (found is not None) == fit


def test_an_item_that_all_share_is_one_of_each() -> None:
    """Learned keys and values have one item, which the items of the queries share."""
    query, learned = HEADS["query"], HEADS["key"][:1]
    parts = {"query": query, "key": learned, "value": learned}
    found = assembled(parts, HEADS["output"], [], 4, causal=None, sinks=None)
    assert found is not None
    for item in range(len(query)):
        np.testing.assert_array_equal(found.key[item], learned[0])
        np.testing.assert_array_equal(found.value[item], learned[0])
