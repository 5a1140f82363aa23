"""Devices by name: which can be used, what is said of the others, what the command does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from workspaces import KERNEL, write

from conformance.__main__ import run
from conformance.base.profile import PROFILES
from conformance.calls.devices import canonical, forked_random, offers, synchronise, why_absent
from conformance.declare.candidate import Candidate
from conformance.declare.decorators import core
from conformance.running.runner import CandidateRun
from conformance.tolerance import contract_for, model

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "torch knows no such device"),
        ("", "torch knows no such device"),
        ("cuda:-1", "torch knows no such device"),
        ("cpu cpu", "torch knows no such device"),
        ("meta", "it holds no values"),
        pytest.param("cuda:99", "torch sees", marks=NO_CUDA),
        ("privateuseone", "torch sees"),
    ],
)
def test_what_cannot_be_used_says_why(name: str, message: str) -> None:
    """Each is refused in words, whatever torch raises."""
    assert message in why_absent(name)


@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_the_cpu_has_one_name(name: str) -> None:
    """It is here, and tensors call it ``cpu``."""
    assert not why_absent(name)
    assert canonical(name) == "cpu"


def test_an_absent_device_keeps_its_name() -> None:
    """What cannot be asked is not renamed."""
    assert canonical("gpu") == "gpu"


def test_the_cpu_offers_no_streams_and_needs_no_waiting() -> None:
    """Nothing is asked of torch's modules that they have not."""
    assert not offers("cpu", "CUDAGraph")
    synchronise("cpu")


def test_random_numbers_are_put_back() -> None:
    """What is drawn or seeded inside is not seen outside."""
    before = torch.get_rng_state()
    with forked_random("cpu"):
        torch.manual_seed(1)
        torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())


def made(**promises: object) -> Candidate:
    """A core without promises but those given."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value

    candidate: Candidate = core(**promises)(attend)
    return candidate


@NO_CUDA
def test_a_declared_device_that_is_absent_is_not_applicable() -> None:
    """Each clause says that the device is not here; those of the CPU run."""
    run_of = CandidateRun(made(devices=["cpu", "cuda"]), profile=PROFILES["quick"])
    reasons = {planned.device: planned.reason for planned in run_of.planned()}
    assert reasons["cuda"].startswith("the device cuda is not here: torch sees")
    assert any(not planned.reason for planned in run_of.planned() if planned.device == "cpu")


def test_precision_follows_the_device_that_is_judged() -> None:
    """Declared for both, halves get the bound of tensor cores on the device alone."""
    candidate = made(devices=["cpu", "cuda"], dtypes=["float16"])
    here = contract_for(candidate.on("cpu").declaration, "float16", 0.5)
    there = contract_for(candidate.on("cuda:0").declaration, "float16", 0.5)
    assert here.accumulator_roundoff == model.UNIT_ROUNDOFF["float32"]
    assert there.accumulator_roundoff == model.TENSOR_CORE_ROUNDOFF
    assert candidate.on("cuda:0").declared_on == ("cpu", "cuda")


def test_tf32_must_be_declared_on_a_device() -> None:
    """Float32 products on a device are float32's unless tf32 is declared."""
    plain = contract_for(made(devices=["cuda"]).declaration, "float32", 0.5)
    declared = contract_for(made(devices=["cuda"], tf32=True).declaration, "float32", 0.5)
    assert plain.operand_roundoff == 0.0
    assert plain.accumulator_roundoff == model.UNIT_ROUNDOFF["float32"]
    assert declared.operand_roundoff == model.TENSOR_FLOAT_32


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "the device 'gpu' cannot be used here: torch knows no such device"),
        ("meta", "the device 'meta' cannot be used here: it holds no values"),
        ("cpu,cuda:99", "the device 'cuda:99' cannot be used here: torch sees"),
    ],
)
@NO_CUDA
def test_the_command_refuses_in_one_sentence(
    folder: Path, device: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line, no traceback."""
    write(folder, {"attn.py": KERNEL})
    assert run(["check", "attn.py", "--device", device]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("warm_workers")
def test_the_report_names_the_device_by_its_one_name(folder: Path) -> None:
    """``cpu:0`` is judged as ``cpu``."""
    write(folder, {"attn.py": KERNEL})
    words = ["--profile", "quick", "--only", "numerics.golden", "--json", "out.json"]
    assert run(["check", "attn.py", "--device", "cpu:0", *words]) == 0
    (entry,) = json.loads((folder / "out.json").read_text(encoding="utf-8"))["candidates"]
    assert [clause["device"] for clause in entry["clauses"]] == ["cpu"]
