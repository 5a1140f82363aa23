"""Files of weights: what is read, and the one sentence for what is not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from conformance.errors import UsageError
from conformance.graphs.weights import read_state_dict

STATE = nn.Linear(3, 2).state_dict()


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".weights"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"lr": 0.1}},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {**state, "steps": 5, "counts": torch.arange(3)},
    ],
    ids=["plain", "state_dict", "model", "nested", "with others"],
)
def test_torch_files_are_read(suffix: str, wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    """Whatever suffix it has and whatever wraps it; what is no weight is left out."""
    path = tmp_path / f"weights{suffix}"
    torch.save(wrap(STATE), path)
    read_state = read_state_dict(path)
    assert set(read_state) == {"weight", "bias"}
    assert torch.equal(read_state["weight"], STATE["weight"])


def test_the_older_format_is_read(tmp_path: Path) -> None:
    """Files from before torch wrote zip archives."""
    path = tmp_path / "old.pt"
    torch.save(STATE, path, _use_new_zipfile_serialization=False)
    assert set(read_state_dict(path)) == {"weight", "bias"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_safetensors_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    """In every float dtype."""
    path = tmp_path / "weights.safetensors"
    save_file({name: value.to(dtype) for name, value in STATE.items()}, path)
    assert read_state_dict(path)["bias"].dtype is dtype


class Evil:
    """What runs code when it is unpickled by a reader that lets it."""

    def __reduce__(self) -> Any:
        """Call ``exit``."""
        return exit, (7,)


def junk(kind: str, path: Path) -> None:
    """A file that is no state dict."""
    whole = path.with_name("whole")
    torch.save(STATE, whole)
    contents: dict[str, bytes] = {
        "empty": b"",
        "text": b"these are not the weights you are looking for\n",
        "truncated": whole.read_bytes()[:300],
        "damaged": whole.read_bytes()[:-200] + b"\0" * 200,
        "code": pickle.dumps(Evil()),
        "number": pickle.dumps(5),
        "onnx": b"\x08\x0a\x12\x07pytorch",
        "zip": b"PK\x03\x04" + b"\0" * 40,
        "pickle": pickle.dumps({"weight": [1.0, 2.0]}),
        "one byte": b"\x80",
        "random": bytes(range(256)),
    }
    path.write_bytes(contents[kind])


KINDS = [*"empty text truncated damaged code number onnx zip pickle".split(), "one byte", "random"]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("kind", KINDS)
def test_junk_is_refused_in_one_sentence(kind: str, suffix: str, tmp_path: Path) -> None:
    """No traceback and no code of the file's: one sentence with its path."""
    path = tmp_path / f"junk{suffix}"
    junk(kind, path)
    with pytest.raises(UsageError) as refused:
        read_state_dict(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "saved",
    [{}, {"a": 1}, [torch.ones(2)], torch.ones(2), {"steps": torch.arange(3)}],
    ids=["empty", "numbers", "list", "tensor", "integers"],
)
def test_files_without_weights_are_refused(saved: Any, tmp_path: Path) -> None:
    """A file that torch reads but that names no float tensor."""
    path = tmp_path / "weights.pt"
    torch.save(saved, path)
    with pytest.raises(UsageError, match="holds no tensors by name"):
        read_state_dict(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """The path is named."""
    for path in (tmp_path / "absent.pt", tmp_path):
        with pytest.raises(UsageError, match="no state dict at"):
            read_state_dict(path)


def test_a_whole_module_is_refused(tmp_path: Path) -> None:
    """A pickled module is code; the sentence says what to save instead."""
    path = tmp_path / "module.pt"
    torch.save(nn.Linear(3, 2), path)
    with pytest.raises(UsageError, match=r"torch\.save\(module\.state_dict\(\)"):
        read_state_dict(path)
