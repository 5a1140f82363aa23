# ruff: noqa: ARG005 (parameters are what is declared)
from __future__ import annotations

from collections.abc import Callable

import public_functions as public
import pytest
from torch import Tensor

import conformance
from candidates.public_signatures import flash_attn_func
from conformance.identification.by_signature import read_by_signature

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


def test_a_mistake_by_the_signature_fails_by_its_name() -> None:
    """Torch's function attends where the mask is True: the inverse has the name of that mistake."""
    report = conformance.check(public.inverted, only="mask.golden")
    assert report.verdict == "fails"
    assert "mask-inverted" in str(report.record)


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
