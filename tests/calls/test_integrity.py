from __future__ import annotations

import contextlib
import gc
import importlib
import math
import pkgutil
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import record
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import conformance
from conformance.__main__ import run
from conformance._golden import golden
from conformance.calls import calling, integrity
from conformance.clauses import masking
from conformance.oracle import comparison, oracle
from conformance.tolerance import attention_bound as bounds
from conformance.tolerance import model


def wrong(*_: Any, **__: Any) -> float:
    """What no function of torch gives."""
    return 1.5


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Do something as if a candidate's call did it."""
    prepared, restore = integrity.before_call(), integrity.after_call
    try:
        yield
    finally:
        restore(*prepared)


def replaced_product() -> None:
    """Hide the product that tensors inherit."""
    Tensor.__matmul__ = wrong  # type: ignore[assignment, method-assign]


def other_code() -> None:
    """Exchange what a function does, under its name."""
    comparison.moves.__code__ = wrong.__code__


def other_put() -> None:
    """Exchange what puts names back."""
    integrity._put.__code__ = wrong.__code__


def other_stage() -> None:
    """Exchange what a stage of the golden does."""
    golden.FORWARD.steps["scores"].rule.__code__ = wrong.__code__


CHANGES: dict[str, Callable[[], object]] = {
    "the code of _attention_conformance_reference.forward.<lambda>": other_stage,
    "Tensor.__matmul__": replaced_product,
    "torch.softmax": lambda: setattr(torch, "softmax", wrong),
    "math.sqrt": lambda: setattr(math, "sqrt", wrong),
    "time.monotonic": lambda: setattr(time, "monotonic", wrong),
    "builtins.abs": lambda: setattr(sys.modules["builtins"], "abs", wrong),
    "conformance.oracle.comparison.compare": lambda: setattr(comparison, "compare", wrong),
    "Oracle.answer": lambda: setattr(oracle.Oracle, "answer", wrong),
    "conformance.tolerance.attention_bound.core_bound": lambda: setattr(
        bounds, "core_bound", wrong
    ),
    "the code of conformance.oracle.comparison.moves": other_code,
    "conformance.tolerance.model.UNIT_ROUNDOFF": model.UNIT_ROUNDOFF.clear,  # type: ignore[attr-defined]  # a dict
    "Seal.broken": lambda: setattr(integrity.Seal, "broken", lambda *_, **__: []),
    "conformance.calls.integrity.after_call": lambda: setattr(integrity, "after_call", wrong),
    "the code of conformance.calls.integrity._put": other_put,
    "builtins.all": lambda: setattr(sys.modules["builtins"], "all", lambda _: True),
    "sys.gettrace": lambda: setattr(sys, "gettrace", lambda: None),
    "which watch is on": lambda: integrity._WATCH.set(None),
    "the records of what is watched": integrity._LAST.clear,
    "a mode of torch that sees every call": lambda: TorchFunctionMode().__enter__(),
    "the trace function of Python": lambda: sys.settrace(lambda *_: None),
    "the profile function of Python": lambda: sys.setprofile(lambda *_: None),
}


def made_of() -> list[Any]:
    """What the changes replace."""
    return [
        Tensor.__matmul__,
        torch.softmax,
        math.sqrt,
        time.monotonic,
        abs,
        comparison.compare,
        oracle.Oracle.answer,
        bounds.core_bound,
        comparison.moves.__code__,
        golden.FORWARD.steps["scores"].rule.__code__,
        integrity.Seal.broken,
        integrity.after_call,
        integrity._put.__code__,
        all,
        sys.gettrace,
        integrity._WATCH.get(),
        list(integrity._LAST),
        dict(model.UNIT_ROUNDOFF),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        sys.gettrace(),
        sys.getprofile(),
    ]


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_call_replaces_is_named_and_put_back(name: str) -> None:
    """Each change is told by its name, once, and afterwards all is as before."""
    sealed, changes = integrity.seal(), list[str]()
    with integrity.watching(sealed, changes):
        before = made_of()
        with watched():
            CHANGES[name]()
        assert made_of() == before
    assert changes == [name]
    assert sealed.broken() == []


def test_nothing_is_done_around_later_calls_that_a_call_asked_for() -> None:
    """What a call adds to what is done before or around calls is taken out, and told."""

    def add() -> None:
        calling._BEFORE_CALLS.append(lambda: None)
        calling._WITHIN_CALLS.append(contextlib.nullcontext())

    changes = list[str]()
    with integrity.watching(integrity.seal(), changes), calling.before_each_call(lambda: None):
        before = (list(calling._BEFORE_CALLS), list(calling._WITHIN_CALLS))
        calling.guarded(add, (), {})
        assert before == (calling._BEFORE_CALLS, calling._WITHIN_CALLS)
    assert changes == ["the records of what is watched"] * 2


def test_modes_of_the_dispatcher_are_left() -> None:
    """A mode below torch's functions is left as well."""

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    before, sealed = made_of(), integrity.seal()
    Mode().__enter__()
    assert sealed.broken() == ["a mode of torch that sees every call"]
    assert made_of() == before


def test_everything_is_looked_at_when_a_clause_asks() -> None:
    """What few verdicts go through is not looked at after each call, but when all is."""
    sealed, original = integrity.seal(), masking.mask_golden
    masking.mask_golden = wrong  # type: ignore[assignment]  # that is the point
    assert sealed.broken(everywhere=False) == []
    assert sealed.broken() == ["conformance.clauses.masking.mask_golden"]
    assert masking.mask_golden is original


def test_what_every_verdict_goes_through_is_there() -> None:
    """The watched modules have these names: a module that is renamed must stay watched."""
    importlib.import_module("conformance.clauses")
    assert sys.modules.keys() >= integrity._CORE
    packages = {module.name for module in pkgutil.iter_modules(conformance.__path__)}
    assert packages >= integrity._ONLOOKERS


def test_an_object_that_claims_to_be_equal_is_seen() -> None:
    """Names are held against objects by identity: equality would ask the new object."""

    class Equal:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]  # as Python itself makes it

    sealed = integrity.seal()
    comparison.compare = Equal()  # type: ignore[assignment]  # that is the point
    assert sealed.broken() == ["conformance.oracle.comparison.compare"]


def test_new_names_are_nobodys_business() -> None:
    """A library may add a method to tensors, unless that hides one of torch's."""
    sealed = integrity.seal()
    Tensor.reordered_by_a_library = wrong  # type: ignore[attr-defined]  # a new name
    try:
        assert sealed.broken() == []
    finally:
        del Tensor.reordered_by_a_library  # type: ignore[attr-defined]
    Tensor.matmul = wrong  # type: ignore[assignment, method-assign]
    assert sealed.broken() == ["Tensor.matmul"]
    assert Tensor.matmul is not wrong


def test_subnormal_numbers_are_numbers_again() -> None:
    """Flushing them is undone without a word: state.settings speaks of it."""
    sealed = integrity.seal()
    torch.set_flush_denormal(True)
    assert sys.float_info.min / 2 == 0.0
    assert sealed.broken() == []
    assert sys.float_info.min / 2 > 0.0


@pytest.mark.filterwarnings("ignore")
def test_a_kernel_of_a_library_that_was_set_aside_is_taken_back() -> None:
    """What is loaded is set aside for the collector: its kernels are found all the same."""
    library = torch.library.Library("aten", "IMPL")
    gc.freeze()
    sealed = integrity.seal()
    library.impl("bmm", lambda one, _other: one.new_zeros(len(one), 2, 2), "CPU")
    try:
        assert sealed.broken() == ["the kernel of aten/bmm/CPU"]
        assert bool((torch.ones(1, 2, 2) @ torch.ones(1, 2, 2)).all())
    finally:
        gc.unfreeze()


@pytest.fixture
def loaded() -> Iterator[None]:
    """Forget what was replaced while a test loads something."""
    yield
    integrity._THEIRS.clear()
    integrity._AT_LOAD.clear()
    integrity._AS_LOADED.clear()


@pytest.mark.usefixtures("loaded")
def test_what_a_library_patches_when_loaded_is_seen_by_its_calls_alone() -> None:
    """Torch as the candidate made it during its calls, torch as it was for the judge."""
    original = torch.softmax
    seed = random.seed
    with integrity.loading():
        torch.softmax = wrong  # type: ignore[assignment]  # that is the point
        random.seed = wrong  # type: ignore[assignment]
    assert torch.softmax is original
    assert random.seed is seed
    with watched():
        assert torch.softmax is wrong
    assert torch.softmax is original
    assert integrity.tampered_at_load() == []


@pytest.mark.usefixtures("loaded")
def test_a_harness_that_is_replaced_when_loading_is_told() -> None:
    """Nobody who loads a candidate has to replace the harness."""
    original = comparison.compare
    with integrity.loading():
        comparison.compare = wrong  # type: ignore[assignment]  # that is the point
    assert comparison.compare is original
    assert integrity.tampered_at_load() == ["conformance.oracle.comparison.compare"]


@pytest.mark.usefixtures("loaded")
def test_what_was_loaded_is_sealed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal before loading stands for later ones, until a module joins the judge."""
    with integrity.loading():
        pass
    sealed = integrity.seal_as_loaded()
    assert integrity.seal_as_loaded() is sealed
    monkeypatch.setitem(sys.modules, "conformance.clauses.later", types.ModuleType("later"))
    assert integrity.seal_as_loaded() is not sealed


CHEAT = """
import sys
import conformance, torch
sys.modules["conformance.oracle.comparison"].compare = lambda *_, **__: None
torch.Tensor.__matmul__ = lambda one, other: torch.zeros(*one.shape[:-1], other.shape[-1]).to(one)
{more}

@conformance.core()
def cheat(query, key, value):
    return torch.zeros_like(query @ key.mT @ value)
"""
KERNEL = """
LIBRARIES = []
def nothing(one, other):
    return one.new_zeros(one.shape[0], one.shape[1], other.shape[2])

@conformance.core(name="kernel")
def kernel(query, key, value):
    if "aten/bmm/CPU" not in torch.library._impls:
        LIBRARIES.append(torch.library.Library("aten", "IMPL"))
        LIBRARIES[-1].impl("bmm", nothing, "CPU")
    return torch.zeros_like(query @ key.mT @ value)
"""


@pytest.mark.usefixtures("warm_workers")
def test_a_module_that_patches_everything_is_found_out(folder: Path) -> None:
    """A file that replaces the comparison and the product, and an operator's kernel, fails."""
    (folder / "cheat.py").write_text(CHEAT.format(more=KERNEL), encoding="utf-8")
    clauses = {"cheat": ("numerics.golden", "state.untampered"), "kernel": ("state.untampered",)}
    failed = {}
    for name, slugs in clauses.items():
        only = [f"--only={slug}" for slug in slugs]
        words = ["check", f"cheat.py:{name}", "--profile=quick", "--json=out.json", *only]
        assert run(words) == 1
        (entry,) = record(folder)["candidates"]
        failed |= {(name, clause["id"]): clause for clause in entry["clauses"]}
    assert {clause["status"] for clause in failed.values()} == {"failed"}
    violation = failed["cheat", "state.untampered"]["violation"]
    assert violation["kind"] == "tampered"
    assert "conformance.oracle.comparison.compare" in violation["message"]
    assert "aten/bmm/CPU" in failed["kernel", "state.untampered"]["violation"]["message"]
