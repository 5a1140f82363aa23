"""Caches with codes and latents, structures by item, sums and slopes of packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import problem

import conformance
from candidates.paged_attention import PagedCore
from candidates.served_attention import (
    LATENT,
    LatentPagedCore,
    StructuredPagedCore,
    paged_codes_by_slot,
    paged_latents,
    paged_structures,
)
from conformance.calls.calling import arguments
from conformance.declare.candidate import Candidate
from conformance.errors import DeclarationError
from conformance.problems.arrangements import slots_of, there
from conformance.problems.inputs import Inputs
from conformance.problems.materialise import materialise
from conformance.problems.problem import MaskPlan


def _made(candidate: Candidate, form: str, **sizes: Any) -> Inputs:
    shape = "11QK" if form == "chunks" else "B" if form == "sequences" else "B1QK"
    plan = MaskPlan(pattern="random", form=form, shape=shape)
    return materialise(problem(mask=plan, batch=3, **sizes), candidate)


def test_codes_and_scales_of_a_slot_are_the_key_that_it_holds() -> None:
    """Whatever page holds it; unused slots hold codes, too."""
    inputs = _made(paged_codes_by_slot, "sequences", dtype="bfloat16", key_length=9)
    (_, keys, _), keywords = arguments(inputs)
    held = (keys.float() * keywords["key_scale"].unsqueeze(-1)).flatten(0, 1)
    at, present = slots_of(inputs), there(inputs, "key", inputs.key)
    rank = present.cumsum(dim=-1) - 1
    tokens = inputs.key.transpose(1, 2)[present].float()
    assert keys.dtype == torch.int8
    assert torch.equal(held[at.places(rank.clamp(min=0))[present]], tokens)


def test_a_cache_of_latents_has_no_axis_of_heads() -> None:
    """Its slots hold the only key of all heads."""
    inputs = _made(paged_latents, "sequences", num_kv_heads=1, head_size=20, value_head_size=16)
    (query, cache), _ = arguments(inputs)
    assert (query.shape[0], query.shape[-1]) == (3, 20)
    assert cache.shape[1:] == (slots_of(inputs).store.page_size, 20)


@pytest.mark.parametrize("form", ["tree", "indices", "prefix", "chunks", "segments"])
def test_arguments_of_a_structure_show_what_the_table_shows(form: str) -> None:
    """Read by a core item by item, each argument gives the table back."""
    inputs = _made(paged_structures, form, query_length=4, key_length=7)
    _, keywords = arguments(inputs)
    offsets, lengths = keywords["cu_seqlens_q"].tolist(), keywords["cache_lengths"].tolist()
    rows, columns = (there(inputs, name, getattr(inputs, name)) for name in ("query", "key"))
    assert inputs.keep is not None
    for item, count in enumerate(lengths):
        own = slice(*offsets[item : item + 2])
        shown = StructuredPagedCore().seen(keywords, item, own, count)
        assert torch.equal(shown, inputs.keep[item, 0][rows[item]][:, columns[item]])


@pytest.mark.parametrize(
    ("promises", "said"),
    [
        ({"page_axes": "HND"}, "no axis of heads"),
        ({"masks": ["blocks"]}, "masks has 'blocks' with layout='latent-paged'"),
        ({"features": ["cache_write"]}, "one tensor holds keys and values"),
    ],
)
def test_promises_that_latents_in_pages_exclude(promises: dict[str, Any], said: str) -> None:
    """One sentence says which."""
    with pytest.raises(DeclarationError, match=said):
        conformance.core(LatentPagedCore(), **{**LATENT, **promises})


def test_masks_of_a_dense_call_have_no_form_in_pages() -> None:
    """The sentence lists what has one."""
    with pytest.raises(DeclarationError, match="of masks segments, prefix, chunks, tree, indices"):
        conformance.core(PagedCore(), layout="paged", masks=["keep"])
