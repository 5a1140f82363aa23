from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

import conformance
from candidates.module_caches import (
    WIDTH,
    ByCachePosition,
    ByDictionary,
    ByObject,
    ByTuples,
    DynamicCache,
    InBuffers,
    seeded,
)
from conformance import Cache, DeclarationError
from conformance.adapters.calling import Calling
from conformance.adapters.module_caches import CacheTrial, proposed

CAUSAL = {"causal": "top-left", "always_causal": True}
OBJECT = Cache(parameter="past_key_values", make=DynamicCache)


@pytest.mark.parametrize(
    ("kind", "cache", "found"),
    [
        (ByObject, OBJECT, {}),
        (ByCachePosition, OBJECT, {"positions": {"cache_position": "L"}}),
        (ByTuples, Cache(parameter="layer_past"), {"returned": 1, "options": {"use_cache": True}}),
    ],
)
def test_what_is_left_open_is_found(
    kind: type[nn.Module], cache: Cache, found: dict[str, Any]
) -> None:
    """The place of a returned cache, the switch that asks for it and the form of positions."""
    kept = conformance.module(seeded(kind), cache=cache, **CAUSAL).declaration.cache
    assert kept is not None
    assert (kept.returned, kept.options, kept.positions) == (
        found.get("returned"),
        found.get("options", {}),
        found.get("positions", {}),
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"cache": Cache(parameter="past_key")}, "'past_key', which is no parameter"),
        ({"cache": dict}, "give a conformance.Cache"),
        ({"cache": OBJECT, "inputs": "separate"}, "cache is given with inputs='separate'"),
        ({"cache": OBJECT, "batched": False}, "cache is given with batched=False"),
        ({"cache": OBJECT, "masks": ["tree"]}, "cache is given with masks=['tree']"),
        ({"cache": OBJECT, "features": ["kv_cache"]}, "cache is given with features=['kv_cache']"),
    ],
)
def test_what_a_cache_excludes(more: dict[str, Any], said: str) -> None:
    """What is not judged together is refused in one sentence."""
    with pytest.raises(DeclarationError) as raised:
        conformance.module(seeded(ByObject), **more)
    assert said in str(raised.value)


def test_torchs_layer_keeps_no_cache() -> None:
    """It has no parameter for one."""
    with pytest.raises(DeclarationError, match="keeps none"):
        conformance.module(nn.MultiheadAttention(8, 2), cache=Cache(parameter="past"))


def found(kind: Any, name: str = "hidden_states") -> list[Cache]:
    """The caches that are proposed for a class."""
    calling = Calling(inputs="self", names=(name,))
    return [*proposed(CacheTrial(seeded(kind), calling, WIDTH))][:1]


def test_a_cache_is_proposed_where_answers_show_it() -> None:
    """An object of a class beside the module's, what was returned, and a dict."""
    assert found(ByObject) == [OBJECT]
    assert found(ByTuples) == [
        Cache(parameter="layer_past", returned=1, options={"use_cache": True})
    ]
    assert found(ByDictionary, "x") == [Cache(parameter="kv_cache", make=dict)]


def test_buffers_are_told_by_the_start() -> None:
    """Tables that are made for a call are cut to its tokens."""
    places = "torch.arange({query}.shape[-2])[:, None].float()"
    table = f"torch.polar(torch.ones({{query}}.shape[-2], 2), {places})"
    fills = (("start_pos", "0"), ("freqs_cis", table))
    calling = Calling(inputs="self", names=("x",), fills=fills)
    cache = next(proposed(CacheTrial(seeded(InBuffers), calling, WIDTH)))
    assert cache == Cache(positions={"start_pos": "start"})


class Forgetful(ByObject):
    """Reads nothing from its cache."""

    def joined(self, cache: DynamicCache, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The new keys and values alone."""
        cache.update(key, value, self.layer_idx)
        return key, value


def test_what_is_wrong_is_not_proposed() -> None:
    """A guess would fail what nobody declared; declared, it is judged all the same."""
    assert found(Forgetful) == []
    declared = conformance.module(seeded(Forgetful), cache=OBJECT, **CAUSAL)
    assert declared.declaration.cache == OBJECT
