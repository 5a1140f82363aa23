"""The declaration that is written can be pasted, loads, and what it declares conforms."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from _paths import CHECKOUT
from identified import NAMES, record
from torch import Tensor

from conformance.identification import job
from conformance.identification.implementation import implementation_of
from conformance.identification.opening import resolve
from conformance.identification.record import check_lines
from conformance.running.workers.messages import RunOptions
from conformance.session.checking import check
from conformance.tools.identify import identify, write_checked
from conformance.views.tool_texts import show_identification

pytestmark = pytest.mark.usefixtures("warm_workers")

UNDECLARED = CHECKOUT / "tests" / "support" / "undeclared_attention.py"
UNUSUAL = CHECKOUT / "tests" / "support" / "unusual_attention.py"

OF_OBJECTS = """
import torch
from torch import nn


class Settings:
    def __init__(self, width, heads):
        self.width, self.heads = width, heads


class OfMaskObjects(nn.Module):
    def __init__(self, config: Settings):
        super().__init__()
        self.num_heads = config.heads
        self.q, self.k, self.v, self.o = (nn.Linear(config.width, config.width) for _ in range(4))

    def forward(self, x, attn_mask=None):
        parts = (one(x).unflatten(-1, (self.num_heads, -1)) for one in (self.q, self.k, self.v))
        q, k, v = (part.transpose(1, 2) for part in parts)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask.mask, -torch.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_text_is_python(name: str) -> None:
    """Every declaration compiles, and declares the thing under its own name."""
    text = record(name)["declaration"]
    compile(text, name, "exec")
    assert f"declared_{name}" in text
    assert f"name='{name}'" in text


def test_what_hides_nothing_is_promised() -> None:
    """Without that the declaration would conform; a second input that may be left out is found."""
    identification = record("crossed")
    facts = {entry["fact"]: entry["value"] for entry in identification["facts"]}
    assert facts["inputs"] == "memory"
    assert [(entry["text"], entry["mistaken"]) for entry in identification["deviations"]] == [
        ("`attn_mask` looks like a mask and hides no key", True),
        ("`is_causal` looks like a causal flag and hides no key", True),
    ]
    assert 'options["attn_mask"] = keep' in identification["declaration"]
    assert 'options["is_causal"] = True' in identification["declaration"]
    assert "causal='bottom-right'" in identification["declaration"]
    assert "module(query, context, **options)" in identification["declaration"]


def test_rows_without_keys_by_form() -> None:
    """Where the rule differs by the form of the mask, each has its own."""
    said = record("rows_by_form")["declaration"]
    assert "empty_rows={'keep': 'zeros', 'bias': 'nan'}" in said


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "target",
    [
        f"{UNDECLARED}:tokens_first",
        f"{UNDECLARED}:torch_sequence_first",
        f"{UNDECLARED}:valid_length_attention",
        f"{UNDECLARED}:unbatched_attention",
        f"{UNDECLARED}:half_scale",
        f"{UNDECLARED}:causal_by_default",
        f"{UNDECLARED}:causal_unless_told",
        f"{UNDECLARED}:always_causal",
        f"{UNDECLARED}:capped",
        f"{UNUSUAL}:rotary",
        f"{UNUSUAL}:layer_normalised",
        f"{UNUSUAL}:local",
        f"{UNUSUAL}:layer_sliding",
        f"{UNUSUAL}:layer_leaning",
    ],
    ids=lambda target: target.rpartition(":")[2],
)
def test_pasted_declaration_conforms(target: str, workspace: Path) -> None:
    """Pasted into a file of another folder, what was observed is green under ``check``."""
    identification = identify(target, as_observed=True)
    assert identification["identified"], identification["reason"]
    entry = checked(identification["declaration"], target.rpartition(":")[2], workspace)
    assert entry["verdict"].startswith("conforms"), entry["verdict_reason"]
    assert entry["warnings"] == []


def checked(declaration: str, name: str, workspace: Path) -> dict[str, Any]:
    """The entry of the record for a declaration that is pasted into a file."""
    (workspace / "pasted.py").write_text(declaration, encoding="utf-8")
    (candidate,) = resolve(["pasted.py"])
    assert candidate.name == name
    only = ("*.golden", "shape.*", "mask.*", "numerics.scale", "numerics.golden", "equivariance.*")
    options = RunOptions(targets=("pasted.py",), profile="quick", dtypes=("float32",), only=only)
    (entry,) = check(options)["candidates"]
    return entry


def test_lines_for_settings_and_for_a_mask_that_no_call_takes(workspace: Path) -> None:
    """The class of settings is loaded, too; the mask is left in a comment, with unchecked=."""
    (workspace / "of_objects.py").write_text(OF_OBJECTS, encoding="utf-8")
    text = identify("of_objects.py:OfMaskObjects")["declaration"]
    assert "unchecked=['attn_mask']" in text
    entry = checked(text, "OfMaskObjects", workspace)
    assert entry["verdict_reason"].startswith("conforms, but `attn_mask` was not checked")


def test_what_is_written_is_checked_first(workspace: Path) -> None:
    """A layer of mistakes fails under its declaration, too, and the file says so."""
    identification = copy.deepcopy(record("mistaken"))
    write_checked(identification, workspace / "pasted.py")
    text = (workspace / "pasted.py").read_text(encoding="utf-8")
    assert identification["check"]["verdict"] == "fails"
    assert {"numerics.scale", "mask.golden"} <= {
        entry["clause"] for entry in identification["check"]["failed"]
    }
    assert text == identification["declaration"]
    shown = io.StringIO()
    show_identification(identification, shown)
    assert "\n2 deviations from the standard, probably mistakes:\n" in shown.getvalue()
    assert "conformance check --profile quick says of this: fails" in shown.getvalue()
    assert "# conformance check --profile quick says of this: fails" in text
    compile(text, "pasted.py", "exec")


class Padded(torch.nn.Module):
    """Zeroes the answers of padded tokens, and hides no key."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = 2, torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The answers, those of tokens that the mask hides zero."""
        query, key, value = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        merged = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        answer: Tensor = self.out(merged.transpose(1, 2).flatten(2))
        return answer if mask is None else answer * mask[..., None]


def test_what_to_do_about_a_mask_without_a_known_meaning_is_written() -> None:
    """What was checked then is said without a way back to identify."""
    names = {"target": "a.py:Padded", "name": "Padded", "expression": "Padded()"}
    thing = implementation_of(Padded().eval(), imports=("from a import Padded",), **names)
    written = job.identify(thing, None, lambda _step, _what: None)
    declaration = written["declaration"]
    assert "# `mask`: no meaning of it is known" in declaration
    assert "# unchecked=['mask']." in declaration
    reason = "conforms, but `mask` was not checked: declare what it means with masks= ('…')"
    check = {"verdict": "inconclusive", "reason": reason, "failed": []}
    assert check_lines({**written, "check": check})[1:] == [
        "- conforms, but `mask` was not checked"
    ]


DECLARED = """
import torch

import conformance


@conformance.core(name="my kernel-2")
def kernel(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.qkv = 2, torch.nn.Linear(8, 24)

    def forward(self, x):
        query, key, value = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        merged = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return merged.transpose(1, 2).flatten(2)


without_output = conformance.module(Attention(), num_heads=2)
"""


@pytest.mark.parametrize(
    "name", ["kernel", pytest.param("without_output", marks=pytest.mark.nightly)]
)
def test_what_is_declared_already_is_declared_again(tmp_path: Path, name: str) -> None:
    """Names that are not Python's, and layers with weights of their own, give Python as well."""
    (tmp_path / "attn.py").write_text(DECLARED)
    found = identify(f"{tmp_path / 'attn.py'}:{name}")
    compile(found["declaration"], name, "exec")
    assert "attn.py:" in found["declaration"]
