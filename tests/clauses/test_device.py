"""What a CPU shows of the clauses about devices: each catches its mistakes, and those alone."""

from __future__ import annotations

import pytest
import torch
from examples import CLAUSES, bare, core, run_clause
from torch import Tensor

from candidates.broken import MISTAKES
from candidates.legitimate import devices, loops
from conformance.declare.candidate import Candidate

PLAIN = {"features": [], "masks": [], "causal": None, "empty_rows": "any"}
BY_NAME = {mistake.name: mistake.candidate for mistake in MISTAKES}


@pytest.mark.parametrize(
    ("name", "slug", "reason"),
    [
        ("WholeTilesStored", "device.canaries", "bytes behind a tensor"),
        ("KeysPaddedInPlace", "device.canaries", "beside its key"),
        ("SumsIntoFreshMemory", "device.fresh-memory", "NaN in memory that nobody has written"),
        ("SplitsChosenByTheBatch", "device.batch-invariant", "is answered with other bits alone"),
        ("AllScoresAtOnce", "device.memory", "declared to grow linearly with the length"),
        ("WholeTriangle", "device.memory", "the memory of a call, causal grows faster"),
    ],
)
def test_a_mistake_is_caught_and_named(name: str, slug: str, reason: str) -> None:
    """The clause fails, and says where or how much."""
    result = run_clause(BY_NAME[name], slug)
    assert result.status == "failed"
    assert reason in result.reason


@pytest.mark.parametrize(
    ("candidate", "slug"),
    [
        (devices.each_item_by_itself, "device.batch-invariant"),
        (devices.blocks_of_queries, "device.memory"),
        (devices.torchs_own_choice, "device.memory"),
        (loops.item_by_item, "device.canaries"),
        (loops.item_by_item, "device.fresh-memory"),
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_what_is_right_passes(candidate: Candidate, slug: str) -> None:
    """Tiles, torch's own kernel and an output that is filled item by item bind and pass."""
    result = run_clause(candidate, slug)
    assert result.status == "passed", result.reason
    assert result.binding == result.examples


@pytest.mark.parametrize(
    ("slug", "promises", "reason"),
    [
        ("device.matches-cpu", {}, "it is judged on the CPU, and torch sees"),
        ("device.deterministic", {}, "it is judged on the CPU, and torch sees"),
        ("device.stream", {}, "it is judged on the CPU, and torch sees"),
        ("device.graph-capture", {}, "graph_capture is not declared"),
        ("device.graph-capture", {"features": ["graph_capture"]}, "it is judged on the CPU"),
        ("device.batch-invariant", {}, "batch_invariant is not declared"),
        ("device.memory", {}, "no growth of its memory is declared"),
        (
            "device.memory",
            {"memory": "linear", "max_length": 512},
            "does not take a length of 4096",
        ),
    ],
)
def test_what_does_not_apply_says_why(slug: str, promises: dict[str, object], reason: str) -> None:
    """Where there is no device, or no promise, the reason says so."""
    candidate = core(bare, **{**PLAIN, **promises})
    assert reason in CLAUSES[slug].not_applicable(candidate)


def test_quadratic_memory_may_be_promised() -> None:
    """All scores at once are what ``memory="quadratic"`` says."""
    assert run_clause(core(bare, **PLAIN, memory="quadratic"), "device.memory").status == "passed"


def test_fresh_memory_needs_unwritten_allocations() -> None:
    """A core made of products alone has nothing that fresh memory could change."""
    result = run_clause(core(bare, **PLAIN), "device.fresh-memory")
    assert result.status == "not-applicable"
    assert result.reason == "it allocates no memory that torch leaves unwritten"


def test_compiled_code_stays_compiled() -> None:
    """A call between guards does not make torch.compile give up on later ones."""
    compiled = [0]

    def backend(module: torch.fx.GraphModule, _inputs: list[Tensor]) -> object:
        compiled[0] += 1
        return module.forward

    kernel = torch.compile(bare, backend=backend, dynamic=False)
    assert run_clause(core(kernel, **PLAIN), "device.canaries", examples=2).status == "passed"
    torch._dynamo.reset()  # what it met is compiled again, unless it was given up
    before = compiled[0]
    kernel(*(torch.rand(2, 3, 57, 19) for _ in range(3)))
    assert compiled[0] == before + 1
