# ruff: noqa: ARG005 (parameters are what is declared)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import public_functions as public
import pytest
from torch import Tensor

import conformance
from candidates.public_signatures import flash_attn_func
from conformance.identification.by_signature import read_by_signature
from conformance.identification.implementation import implementation_of
from conformance.identification.job import identify

FLASH = flash_attn_func.function.__wrapped__  # type: ignore[attr-defined]  # of a wrapper


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (FLASH, "flash_attn"),
        (public.flash_attn_varlen_func, "flash_attn_varlen"),
        (public.scaled_dot_product_attention, "torch_sdpa"),
        (public.memory_efficient_attention, "xformers"),
        (public.dot_product_attention, "jax"),
    ],
)
def test_functions_of_public_parameters_are_judged_by_them(
    function: Callable[..., Tensor], name: str
) -> None:
    """The assumption names the signature and its source; nothing is declared by the user."""
    read = read_by_signature(function, "kernel.py:it")
    assert read is not None
    assert f"its parameters are those of {name}: " in read.declaration.assumptions[0]
    report = conformance.check(function, only=["numerics.golden", "mask.*"], profile="smoke")
    assert report.verdict in ("conforms", "conforms-with-deviations"), report.reason


def test_identify_declares_by_the_signature() -> None:
    """Offsets of sequences are read by nothing else: the declaration is one line that conforms."""
    implementation = implementation_of(
        public.flash_attn_varlen_func,
        target="kernel.py:flash_attn_varlen_func",
        name="flash_attn_varlen_func",
        imports=("from public_functions import flash_attn_varlen_func",),
        expression="flash_attn_varlen_func",
    )
    record = identify(implementation, None, lambda _step, _what: None)
    assert record["identified"], record["reason"]
    assert record["facts"][0]["found"].startswith("that of flash_attn_varlen, ")
    scope: dict[str, Any] = {}
    exec(record["declaration"], scope)  # noqa: S102 (the text is the harness' own)
    declared = scope["declared_flash_attn_varlen_func"]
    assert declared.declaration.layout == "varlen"
    assert conformance.check(declared, only="varlen.golden").verdict == "conforms"


def test_a_mistake_by_the_signature_fails_by_its_name() -> None:
    """Torch's function attends where the mask is True: the inverse is named."""
    report = conformance.check(public.inverted, only="mask.golden")
    assert report.verdict == "fails"
    assert "hidden-and-seen-exchanged" in str(report.record)


def test_answers_decide_and_not_names() -> None:
    """Heads along another axis than FlashAttention's are read by what they do, not by its names."""

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,  # noqa: FBT001, FBT002 (theirs)
    ) -> Tensor:
        heads = (part.transpose(1, 2) for part in (q, k, v))
        answer: Tensor = FLASH(*heads, dropout_p, softmax_scale, causal).transpose(1, 2)
        return answer

    assert read_by_signature(attend, "kernel.py:attend") is None
    report = conformance.check(attend, only=["numerics.golden", "mask.causal"], profile="smoke")
    assert report.verdict == "conforms", report.reason
    assert read_by_signature(lambda query, key, value: query, "kernel.py:it") is None
