"""What looks like an option and was not declared: found in signatures, never guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_modules import Cloned
from refusals import refused
from torch import Tensor, nn

import conformance
from conformance.declare.candidate import Candidate
from conformance.targets.preflight import check_layer, unchecked_options

Named = dict[str, str]


def unchecked(candidate: Candidate, *accepted: str) -> Named:
    """The options by the names of their parameters; accepted ones in brackets."""
    names = unchecked_options(candidate, check_layer(candidate), accepted)
    return {
        option.name: f"({option.option})" if option.accepted else option.option for option in names
    }


class Many(Cloned):
    """A layer with options of every kind beside its mask."""

    def forward(  # noqa: PLR0917 (as libraries have them)
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        key_lengths: Tensor | None = None,
        is_causal: bool = False,  # noqa: FBT001, FBT002 (as torch has it)
        mask_future: bool = False,  # noqa: FBT001, FBT002
        scale: float | None = None,
        max_len: int | None = None,
        past_key_value: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Attention under the mask alone."""
        del key_lengths, is_causal, mask_future, scale, max_len, past_key_value, kwargs
        return super().forward(query, key, value, mask)


OTHERS: Named = {
    "is_causal": "causal",
    "mask_future": "causal",
    "scale": "scale",
    "past_key_value": "cache",
}


def test_options_of_a_module_that_nobody_declared() -> None:
    """Each parameter that speaks of an option is named with it; inputs and numbers are none."""
    names = unchecked(conformance.module(Many()))
    assert names == {"mask": "mask", "key_lengths": "mask", **OTHERS}


def test_what_is_declared_under_another_name_is_checked() -> None:
    """A renamed mask is no unchecked one."""
    renamed = conformance.module(Many(), call={"keep": "mask"}, unchecked=["key_lengths"])
    assert unchecked(renamed, "is_*") == {
        **OTHERS,
        "is_causal": "(causal)",
        "key_lengths": "(mask)",
    }


def test_masks_behind_a_function_of_the_user() -> None:
    """Where the function takes no mask the module's own stay unchecked, else they come from it."""
    plain = conformance.module(Cloned(), call=lambda module, q, k, v: module(q, k, v))
    assert unchecked(plain) == {"mask": "mask"}
    takes = conformance.module(
        Cloned(), masks=["keep"], call=lambda module, q, k, v, keep=None: module(q, k, v, keep)
    )
    assert unchecked(takes) == {}


def by_place(module: Any, q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Any:
    """The first mask by position, a scale by name; the flag is turned off."""
    return module(q, k, v, keep, scale=0.5, is_causal=False)


def by_options(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Any:
    """As identify writes it."""
    options: dict[str, Any] = {"mask_future": False}
    if keep is not None:
        options["key_lengths"] = keep
    if causal:
        options["is_causal"] = True
    return module(q, k, v, **options)


def by_another(module: Any, q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Any:
    """Hands its module to somebody else."""
    return by_place(module, q, k, v, keep=keep)


@pytest.mark.parametrize(
    ("call", "promises", "declared"),
    [
        (by_place, {}, {"mask", "scale"}),
        (by_options, {"causal": "top-left"}, {"key_lengths", "is_causal"}),
        (by_another, {}, {"mask", "key_lengths", "mask_future"}),
    ],
)
def test_what_a_function_of_the_user_gives(
    call: Any, promises: dict[str, Any], declared: set[str]
) -> None:
    """Its source tells which masks and options; else no mask is said to be missing."""
    names = unchecked(conformance.module(Many(), masks=["keep"], call=call, **promises))
    assert set(names) == {"mask", "key_lengths", *OTHERS} - declared


def test_multihead_attention() -> None:
    """Its two masks are declared by the adapter; without them they are missed."""
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    assert unchecked(conformance.module(layer)) == {"is_causal": "causal"}
    without = unchecked(conformance.module(layer, masks=[]))
    assert without == {
        "key_padding_mask": "mask",
        "attn_mask": "mask",
        "is_causal": "causal",
    }


def test_functions_of_the_harness_own_words() -> None:
    """Who declares a function of our keywords has chosen among them; a stranger's name counts."""

    def own(
        query: Tensor, key: Tensor, value: Tensor, *, keep: Any = None, causal: Any = None
    ) -> Any:
        return query, key, value, keep, causal

    def other(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Any:
        return query, key, value, attn_mask

    assert unchecked(conformance.core(own)) == {}
    assert unchecked(conformance.core(other)) == {"attn_mask": "mask"}
    build: Callable[..., Any] = lambda _geometry, _weights: other  # noqa: E731 (a builder)
    assert unchecked(conformance.layer(build)) == {"attn_mask": "mask"}


def test_what_shows_no_signature_is_asked_nothing() -> None:
    """Functions written in C and callables that take anything have no unchecked options."""

    class Anything:
        def __call__(self, *inputs: Tensor, **keywords: Any) -> Any:
            return inputs, keywords

    assert unchecked(conformance.core(torch._C._nn.scaled_dot_product_attention)) == {}
    assert unchecked(conformance.core(Anything(), name="anything")) == {}


def test_unchecked_names_parameters_that_are_there() -> None:
    """A name that is no parameter, or that is declared, is refused."""
    with refused("unchecked of Cloned names 'msk', which is no parameter; did you mean 'mask'?"):
        unchecked(conformance.module(Cloned(), unchecked=["msk"]))
    both = conformance.module(Cloned(), call={"keep": "mask"}, unchecked=["mask"])
    with refused("unchecked of Cloned names 'mask', which is declared: drop one"):
        unchecked(both)
    with refused("an entry of unchecked is 3: give the name of a parameter"):
        conformance.module(Cloned(), unchecked=[3])
