"""Problems, calls and reductions in which a part of the keys is handed over as a cache."""

from __future__ import annotations

import pytest
import torch
from declared import core as declared_core
from examples import core, layer, plan, problem

import conformance
from candidates.eager import EagerCore, eager_layer
from conformance.calls.calling import arguments
from conformance.clauses.subject import Subject
from conformance.problems.caching import cached, cached_length, draws_cache, no_cache, without_cache
from conformance.problems.materialise import materialise
from conformance.problems.space import Space
from conformance.problems.strategies import Draft

FEATURES = ["scale", "gqa", "softcap", "window", "kv_cache"]
CACHING = core(features=FEATURES)
DECODER = conformance.layer(
    name="decoder", masks=["keep"], causal="bottom-right", features=["kv_cache"], inputs="self"
)(eager_layer.function)


def test_keys_are_split_for_a_core() -> None:
    """The first keys come as past_key and past_value, the others by position."""
    inputs = materialise(problem(past=3), CACHING)
    (query, key, value), keywords = arguments(inputs)
    assert query.shape[2] == 5
    assert torch.equal(torch.cat([keywords["past_key"], key], dim=2), inputs.key)
    assert torch.equal(torch.cat([keywords["past_value"], value], dim=2), inputs.value)


def test_no_cache_passes_no_keyword() -> None:
    """Without cached keys the keywords are absent, not None."""
    assert arguments(materialise(problem(), CACHING))[1] == {}


def test_masks_are_for_all_keys() -> None:
    """A mask has a column for each cached key and each new one."""
    inputs = materialise(problem(past=3, mask=plan()), CACHING)
    assert arguments(inputs)[1]["keep"].shape == (2, 4, 5, 7)


def test_layers_get_projected_heads() -> None:
    """A layer's cache holds its own projections of the first tokens, cut into heads."""
    inputs = materialise(problem(past=3), layer())
    (_, key, _), keywords = arguments(inputs)
    weights = inputs.weights
    assert weights is not None
    assert key.shape[1] == 4
    expected = inputs.key[:, :3].double() @ weights.k.double().T
    shown = keywords["past_key"].transpose(1, 2).flatten(2)
    assert float((shown.double() - expected).abs().max()) <= 1e-6 * float(expected.abs().max())


def test_cached_layers_have_no_key_bias() -> None:
    """A layer that leaves out the bias of its keys is right, unless a cached key has one."""
    drawn, held = (materialise(problem(past=past), layer()).weights for past in (0, 3))
    assert drawn is not None
    assert held is not None
    assert drawn.k_bias is not None
    assert held.k_bias is None


def test_unbatched_caches_have_no_batch_axis() -> None:
    """A core of one item takes a cache of three axes."""
    candidate = core(features=["kv_cache"], batched=False, mask_shapes=["HQK"], masks=["keep"])
    keywords = arguments(materialise(problem(past=2, batch=1), candidate))[1]
    assert keywords["past_key"].shape == (4, 2, 3)


def test_the_golden_sees_all_keys() -> None:
    """A cache changes nothing about what is right."""
    subject = Subject(CACHING, "float32")
    plain, held = (subject.inputs(problem(past=past, causal=True)) for past in (0, 4))
    assert torch.equal(subject.oracle.output(plain), subject.oracle.output(held))


def test_one_key_stays_new() -> None:
    """No more is cached than leaves one new key."""
    assert cached_length(problem(past=99), CACHING) == 6
    assert materialise(problem(past=99), CACHING).past == 6


def test_cut_keys_shorten_the_cache() -> None:
    """A question with fewer keys holds fewer of them in its cache."""
    inputs = materialise(problem(past=5), CACHING)
    fewer = inputs.with_tokens(key=inputs.key[:, :, :3], value=inputs.value[:, :, :3])
    assert fewer.past == 2


@pytest.mark.parametrize(
    ("more", "past"), [({}, 3), ({"causal": True}, 0), ({"window": (1, 1)}, 0)]
)
def test_places_from_the_first_key_are_not_asked(more: dict[str, object], past: int) -> None:
    """Where the diagonal starts at the first key, nobody says whether that is a cached one."""
    top_left = core(EagerCore(causal="top-left"), causal="top-left", features=FEATURES)
    assert cached_length(problem(past=3, **more), top_left) == past


def test_only_those_who_can_get_caches() -> None:
    """None without the feature, with unknown weights, or with positions that nobody knows."""
    assert no_cache(core()) == "no cache is declared"
    unknown = conformance.fixed_layer(
        lambda x: x,
        None,
        num_heads=2,
        features=["kv_cache"],
        name="unknown",
        geometry={"query_size": 8, "key_size": 8, "value_size": 8, "output_size": 8},
    )
    assert "weights are unknown" in no_cache(unknown)
    assert "rotary" in no_cache(declared_core(features=["kv_cache"], position="rotary"))
    assert no_cache(DECODER) == ""
    assert not draws_cache(DECODER)


def test_what_attends_to_itself_is_asked_its_new_tokens() -> None:
    """The queries of cached tokens are left out, rows of the mask with them."""
    widths = dict.fromkeys(("query_size", "key_size", "value_size"), 9)
    whole = materialise(problem(query_length=7, mask=plan(), **widths), DECODER)
    held = cached(whole, 3, DECODER)
    (tokens,), keywords = arguments(held)
    assert torch.equal(tokens, whole.key[:, 3:])
    assert keywords["keep"].shape[2:] == (4, 7)
    assert keywords["past_key"].shape[2] == 3


def test_lost_caches_lose_their_columns() -> None:
    """Without the cached keys the mask has the columns of the new ones."""
    inputs = materialise(problem(past=3, mask=plan()), CACHING)
    lost = without_cache(inputs)
    assert inputs.keep is not None
    assert lost.keep is not None
    assert torch.equal(lost.keep, inputs.keep[..., 3:])
    assert lost.geometry.key_length == 4


def test_other_draws_stay_what_they_are() -> None:
    """Offering a cache changes nothing but the cache of what is drawn."""
    space = Space(extras="maybe", mask="maybe", causal="maybe")
    for extras in range(0, 4000, 37):
        draft = Draft(
            geometry=problem().geometry,
            seed=1,
            values=2,
            option=3,
            pattern=4,
            masked=True,
            causal=True,
            finite_bias=False,
            biases=True,
            extras=extras,
        )
        plain = draft.problem(core(features=FEATURES[:-1]), space, dtype="float32")
        held = draft.problem(CACHING, space, dtype="float32")
        assert held.replace(past=0) == plain


def test_every_share_is_drawn() -> None:
    """No cache, all but as many keys as there are queries, half of them, all but one."""
    space = Space(extras="maybe")
    drawn = {
        Draft(
            geometry=problem().geometry,
            seed=1,
            values=0,
            option=0,
            pattern=0,
            masked=False,
            causal=False,
            finite_bias=False,
            biases=True,
            extras=extras,
        )
        .problem(CACHING, space, dtype="float32")
        .past
        for extras in range(0, 4000, 37)
    }
    assert drawn == {0, 2, 4, 6}
