# ruff: noqa: ARG001, ARG005 (parameters are what is declared)
from __future__ import annotations

from collections.abc import Callable

import public_functions as public
import pytest
import torch
from examples import bare
from refusals import refused
from torch import Tensor

import conformance
from candidates.paged_attention import batch_decode, flash_attn_varlen_func
from candidates.public_signatures import flash_attn_func
from conformance.declare.signatures import SIGNATURES, signature_by_parameters

FLASH = flash_attn_func.function.__wrapped__  # type: ignore[attr-defined]  # of a wrapper
FEW = ["numerics.golden", "mask.golden", "mask.causal-combined", "groups.golden", "window.golden"]


@pytest.mark.parametrize(
    ("name", "function", "options"),
    [
        ("flash_attn", FLASH, {"softcap", "scale", "window", "gqa", "gradients"}),
        (
            "flash_attn_varlen",
            public.flash_attn_varlen_func,
            {"scale", "window", "gqa", "gradients"},
        ),
        (
            "torch_sdpa",
            public.scaled_dot_product_attention,
            {"scale", "dropout", "gqa", "gradients"},
        ),
        ("xformers", public.memory_efficient_attention, {"scale", "dropout", "gradients"}),
        ("jax", public.dot_product_attention, {"scale", "gqa", "gradients"}),
    ],
)
def test_signature_declares_a_function(
    name: str, function: Callable[..., Tensor], options: set[str]
) -> None:
    """Names, layout and conventions come from the row, options from the function's parameters."""
    made = conformance.core(signature=name, arrays="torch")(function)
    assert made.declaration.features == options
    report = conformance.check(made, only=FEW, dtypes="float32")
    assert report.verdict == "conforms", report.reason


def test_promises_of_a_signature_can_be_given_otherwise() -> None:
    """What is declared beside it stands in its place; names join."""

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sm_scale: float | None = None,
        causal: bool = False,  # noqa: FBT001, FBT002 (theirs)
    ) -> Tensor:
        return bare(q, k, v)

    made = conformance.core(
        signature="flash_attn", layout="BHSD", causal="top-left", keywords={"scale": "sm_scale"}
    )(attend)
    declaration = made.declaration
    assert (declaration.layout, declaration.causal) == ("BHSD", "top-left")
    assert declaration.features == {"scale", "gqa", "gradients"}
    assert made.function.__signature__.parameters.keys() >= {"scale", "causal"}  # type: ignore[attr-defined]  # of a wrapper


def test_mistakes_are_held_against_the_signature() -> None:
    """A causal rule from the top left fails as FlashAttention's, whose last query sees all keys."""

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:  # noqa: FBT001, FBT002 (theirs)
        heads = (part.transpose(1, 2) for part in (q, k, v))
        answer = torch.nn.functional.scaled_dot_product_attention(
            *heads, is_causal=causal, enable_gqa=True
        )
        return answer.transpose(1, 2)

    made = conformance.core(signature="flash_attn")(attend)
    report = conformance.check(made, only="mask.*", dtypes="float32")
    assert report.verdict == "fails"
    assert "causal-top-left" in str(report.record)


def test_values_take_the_form_of_the_public_function() -> None:
    """flex_attention gets a block mask and a function of scores, JAX a window without -1."""
    seen: dict[str, object] = {}

    def flex(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: object = None,
        block_mask: object = None,
        enable_gqa: bool = False,  # noqa: FBT001, FBT002 (theirs)
    ) -> Tensor:
        seen.update(score_mod=score_mod, block_mask=block_mask, enable_gqa=enable_gqa)
        return query

    made = conformance.core(signature="flex")(flex)
    query, key = torch.zeros(1, 4, 3, 2), torch.zeros(1, 2, 5, 2)
    made(query, key, key, keep=torch.ones(1, 4, 3, 5, dtype=torch.bool))
    assert type(seen["block_mask"]).__name__ == "BlockMask"
    assert seen["enable_gqa"] is True
    made(query, query, query, bias=torch.full((1, 4, 3, 3), 2.0))
    score, index = torch.tensor(1.0), torch.tensor(0)
    assert seen["score_mod"](score, index, index, index, index) == 3.0  # type: ignore[operator]  # a function
    assert seen["enable_gqa"] is False

    def jax(query: Tensor, key: Tensor, value: Tensor, local_window_size: object = None) -> Tensor:
        seen["window"] = local_window_size
        return query

    made = conformance.core(signature="jax", arrays="torch")(jax)
    made(query.mT, key.mT, key.mT, window=(-1, 2))
    assert seen["window"] == (4, 2)


def test_functions_are_known_by_all_of_their_parameters() -> None:
    """Every parameter is the public function's, and those are there that it always had."""
    assert signature_by_parameters(FLASH) == "flash_attn"
    assert signature_by_parameters(public.flash_attn_varlen_func) == "flash_attn_varlen"
    assert signature_by_parameters(public.scaled_dot_product_attention) == "torch_sdpa"
    assert signature_by_parameters(public.memory_efficient_attention) == "xformers"
    assert signature_by_parameters(public.dot_product_attention) == "jax"
    assert signature_by_parameters(torch.nn.functional.scaled_dot_product_attention) == "torch_sdpa"
    assert not signature_by_parameters(lambda query, key, value, attn_mask=None: query)
    assert not signature_by_parameters(
        lambda q, k, v, dropout_p, softmax_scale, causal, mask=None: q
    )


def test_rows_name_keywords_of_the_harness() -> None:
    """Each row can be declared by, and says where its function is documented."""
    for name, row in SIGNATURES.items():
        assert row.source.startswith("https://"), name
        assert row.marks <= row.parameters, name


def test_unknown_signatures_are_refused() -> None:
    """A wrong name, and a layer, get one sentence."""
    names = ", ".join(SIGNATURES)
    hint = "did you mean 'flash_attn'?"
    with refused(f"signature is 'flash_att', which is unknown; {hint} (give one of {names})"):
        conformance.core(signature="flash_att")
    with refused("signature is 'jax' for a layer: only a core has one; drop it"):
        conformance.layer(signature="jax")


def test_signatures_of_serving_follow_what_a_function_takes() -> None:
    """Pages where it takes a table, offsets where it takes those, writes where it can."""

    def dense(q: Tensor, k_cache: Tensor, v_cache: Tensor, cache_seqlens: Tensor) -> Tensor:
        return q + k_cache + v_cache + cache_seqlens

    def table(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rows: Tensor, **more: Tensor) -> Tensor:
        return q + k_cache + v_cache + rows[0] + more["block_table"]

    one = conformance.core(signature="flash_attn_kvcache")(dense).declaration
    assert (one.layout, one.features, one.page_sizes) == (
        "BSHD-lengths",
        frozenset({"cache_lengths", "gqa"}),
        (),
    )
    other = conformance.core(signature="flash_attn_kvcache", page_sizes=[16])(table).declaration
    assert (other.layout, other.page_sizes) == ("paged", (16,))
    assert "cache_write" in other.features
    assert batch_decode.declaration.layout == "paged-csr-single"
    longest = flash_attn_varlen_func.declaration
    assert longest.layout == "paged-varlen"
    assert "max_seqlen_q" not in longest.required
