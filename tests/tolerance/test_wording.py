"""A contract in words."""

from __future__ import annotations

from typing import Any

import pytest

import conformance
from conformance.declare.promises import declare
from conformance.tolerance import contract_for
from conformance.tolerance.contract import describe


def told(dtype: str, scale: float = 0.3, **promises: Any) -> str:
    """The whole description of a declaration's contract."""
    return "\n".join(describe(contract_for(declare("core", **promises), dtype, scale)))


def test_wording_of_the_plainest_contract() -> None:
    """Float32 with a scale that is a power of four."""
    assert told("float32", 0.25).splitlines() == [
        "tensors are rounded to a relative error of 2^-24 (float32)",
        "products are added up with one of 2^-24 (float32) a step",
        "the query may be scaled before its product with the key",
        "scores stay as precise as the sums",
        "exp is accurate to 4 steps of the sum, in blocks of 16 keys or more",
        "weights stay as precise as the sums",
    ]


@pytest.mark.parametrize(
    ("dtype", "promises", "sentence"),
    [
        ("float32", {"tf32": True}, "operands of products are rounded to 2^-10"),
        ("bfloat16", {}, "scores are stored with a relative error of 2^-8 (bfloat16)"),
        ("bfloat16", {"scores": "fused"}, "scores stay as precise as the sums"),
        ("float16", {}, "weights are rounded to 2^-11 (float16) before they meet the values"),
        ("float16", {"accumulate": "native"}, "one of 2^-11 (float16) a step"),
        ("float32", {}, "query and key may be scaled before their product"),
    ],
)
def test_each_freedom_is_told(dtype: str, promises: dict[str, Any], sentence: str) -> None:
    """What a declaration allows beyond plain arithmetic is said."""
    assert sentence in told(dtype, **promises)


def test_users_reach_the_contract() -> None:
    """The contract is among the public names."""
    declaration = declare("core", tf32=True)
    contract = conformance.contract_for(declaration, "float32", 0.25)
    assert isinstance(contract, conformance.Contract)
    assert contract.operand_roundoff > 0.0
