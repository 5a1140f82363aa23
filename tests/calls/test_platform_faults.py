"""What torch does wrong on a machine is told as that, and no candidate is blamed for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import conformance
from candidates.eager import EagerLayer, eager_layer
from conformance.base.profile import DTYPES
from conformance.base.results import BLAMED_ON_PLATFORM
from conformance.calls.platform_faults import platform_fault

FAULT = "torch's own linear in bfloat16 reads beside the operands"


def beside(rows: Tensor) -> Tensor | float:
    """Zero times the number behind each row, where rows are odd and not contiguous."""
    columns, last = rows.shape[1], rows.storage_offset() + (rows.shape[0] - 1) * rows.stride(0)
    inside = 2 * (last + rows.shape[1]) < rows.untyped_storage().nbytes()
    if rows.dtype != torch.bfloat16 or columns % 2 == 0 or rows.stride(1) != 1 or not inside:
        return 0.0
    if rows.stride(0) == columns:
        return 0.0
    behind = torch.as_strided(rows, (len(rows), 1), rows.stride(), rows.storage_offset() + columns)
    return 0.0 * behind.double()


def product(one: Tensor, other: Tensor) -> Tensor:
    """A matrix product that reads beside its rows."""
    exact = (one.double()[:, :, None] * other.double()[None]).sum(1)
    return (exact + beside(one)).to(one.dtype)


def sum_and_product(more: Tensor, one: Tensor, other: Tensor, **factors: Any) -> Tensor:
    """The same with something added."""
    factors = {"beta": 1, "alpha": 1, **factors}
    summed = factors["beta"] * more.double() + factors["alpha"] * product(one, other).double()
    return summed.to(one.dtype)


@pytest.fixture
def faulty_torch() -> Iterator[None]:
    """A torch as on CPUs with AMX, where linear in bfloat16 reads past some rows."""
    library = torch.library.Library("aten", "IMPL")
    kernels: dict[str, Callable[..., Tensor]] = {"mm": product, "addmm": sum_and_product}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU")
    platform_fault.cache_clear()
    yield
    library._destroy()
    platform_fault.cache_clear()


def test_faults_are_said_in_the_environment_of_the_record() -> None:
    """Of this machine, whichever they are, with the processor that it calls its own."""
    report = conformance.check(eager_layer, only="shape.output", dtypes="float32")
    environment = report.record["environment"]
    assert environment["faults"] == (
        "; ".join(filter(None, map(platform_fault, DTYPES))) or "none found"
    )
    assert torch.backends.cpu.get_cpu_capability() in environment["cpu"]


@pytest.mark.usefixtures("faulty_torch")
def test_what_torch_reads_beside_its_operands_is_not_the_layers_fault() -> None:
    """The layer conforms, and the warning and the record name the operation."""
    asked = ("shape.output", "shape.bounds")
    report = conformance.check(eager_layer, only=asked, dtypes="bfloat16", explain=False)
    assert report.verdict == "conforms"
    assert FAULT in report.record["environment"]["faults"]
    (said,) = report.record["candidates"][0]["warnings"]
    assert said == f"{BLAMED_ON_PLATFORM}{FAULT}; with dense copies of them the clause holds"


@pytest.mark.usefixtures("faulty_torch")
def test_who_reads_beside_the_tokens_fails_on_a_faulty_machine_too() -> None:
    """What a candidate itself reads is read with dense copies of torch's operands as well."""

    @conformance.layer(dtypes=["bfloat16"])
    def reader(geometry: conformance.Geometry, weights: Any) -> Callable[..., Tensor]:
        plain = EagerLayer(geometry, weights)

        def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            steps = zip(query.shape, query.stride(), strict=True)
            behind = query.storage_offset() + 1 + sum((size - 1) * step for size, step in steps)
            answer: Tensor = plain(query, key, value)
            if 2 * behind >= query.untyped_storage().nbytes():
                return answer
            return answer + 0.0 * torch.as_strided(query, (1,), (1,), behind)

        return forward

    report = conformance.check(reader, only="shape.bounds", dtypes="bfloat16", explain=False)
    assert report.verdict == "fails"


@pytest.mark.usefixtures("faulty_torch")
def test_a_fault_in_one_dtype_excuses_no_other() -> None:
    """Each dtype is tried by itself."""
    assert [bool(platform_fault(dtype)) for dtype in DTYPES] == [
        dtype == "bfloat16" for dtype in DTYPES
    ]
