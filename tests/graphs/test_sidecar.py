"""``conformance.graphs.sidecar``: what a declaration may say, and how its mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.errors import UsageError
from conformance.graphs.sidecar import read_declaration, sidecar_of

WHOLE = """
name = "my export"
num_heads = 4
num_kv_heads = 2
precision = "int8-dynamic"
empty_rows = "zeros"
causal = "top-left"

[inputs]
hidden = "x"
attn_mask = { role = "keep", axes = "BK" }

[inputs.training]
role = "constant"
value = false

[outputs.y]
role = "output"

[semantics]
softcap_placement = "after-mask"

[[expected]]
clause = "mask.empty-rows"
reason = "a finite fill"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "graph.conformance.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_that_can_be_said_is_read(tmp_path: Path) -> None:
    """Roles as words or tables, heads, promises, semantics and expected failures."""
    text = WHOLE.replace('softcap_placement = "after-mask"', 'scale = "none"')
    declaration = read_declaration(written(tmp_path, text))
    assert declaration.inputs["hidden"] == {"role": "x"}
    assert declaration.inputs["attn_mask"] == {"role": "keep", "axes": "BK"}
    assert declaration.inputs["training"] == {"role": "constant", "value": False}
    assert declaration.outputs == {"y": {"role": "output"}}
    assert (declaration.name, declaration.num_heads, declaration.num_kv_heads) == (
        "my export",
        4,
        2,
    )
    assert declaration.precision == "int8-dynamic"
    assert (declaration.promises["empty_rows"], declaration.promises["causal"]) == (
        "zeros",
        "top-left",
    )
    assert declaration.promises["semantics"].scale == "none"
    (expected,) = declaration.promises["expected_failures"]
    assert (expected.clause, expected.reason) == ("mask.empty-rows", "a finite fill")
    assert declaration.where.endswith("graph.conformance.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_head = 4", r"unknown key 'num_head'; did you mean 'num_heads'\?"),
        ('num_heads = "4"', r"num_heads is '4': give a whole number"),
        ("num_heads = true", r"num_heads is True: give a whole number"),
        ("num_heads = 0", r"num_heads is 0: give a positive whole number"),
        ('precision = "int8"', r"precision is 'int8', which is unknown; did you mean"),
        ('[inputs.m]\nrole = "kep"', r"input 'm': role is 'kep'.*did you mean 'keep'\?"),
        ('[inputs.m]\nrol = "keep"', r"input 'm' has an unknown key 'rol'; did you mean 'role'\?"),
        ('[inputs.m]\nrole = "keep"\naxes = "BLE"', r"input 'm': axes is 'BLE'"),
        ('[inputs.m]\nrole = "keep"\naxes = "QQ"', r"input 'm': axes is 'QQ'"),
        ('[inputs.m]\nrole = "keep"\naxes = 2', r"input 'm': axes is 2"),
        ('[inputs.m]\nrole = "keep"\nvalue = 2', r'has a value: that is for role = "constant"'),
        ('[inputs.m]\nrole = "constant"\nvalue = "high"', r"has the value 'high': give a number"),
        (
            '[inputs.m]\nrole = "constant"\nvalue = [1, "2"]',
            r"has the value \[1, '2'\]: give a num",
        ),
        ('[inputs.m]\nrole = "constant"\nvalue = nan', r"has the value nan: give a number"),
        ('[inputs.m]\nrole = "keep"\nshape = [3]', r'has the shape \[3\]: give .* role = "image"'),
        ('[inputs.m]\nrole = "image"\nshape = 3', r"has the shape 3: give sizes such as \[3, 2"),
        ("[inputs]\nm = 3", r"input 'm' is 3: give a role"),
        ("inputs = 3", r"inputs is 3: give a table"),
        ('[outputs.y]\nrole = "query"', r"output 'y': role is 'query'"),
        ('[outputs]\ny = "output"\nz = "output"', r"to y and z: only one is the answer"),
        ('[semantics]\nscal = "none"', r"\[semantics\] has an unknown key 'scal'; did you mean"),
        ('[semantics]\nscale = "nothing"', r"\[semantics\]: "),
        ('[[expected]]\nclause = "mask.*"', r"\[\[expected\]\] 1 has no 'reason'"),
        ('[[expected]]\nclaus = "mask.*"', r"\[\[expected\]\] 1 has an unknown key 'claus'"),
        ("expected = [1]", r"\[\[expected\]\] 1 is 1: write each"),
        ("num_heads = ", r"cannot be read as TOML"),
        (f"num_heads = {'[' * 5000}", r"cannot be read as TOML: its values are nested too deeply"),
    ],
)
def test_a_mistake_is_reported_with_file_place_and_remedy(
    text: str, message: str, tmp_path: Path
) -> None:
    """One sentence for each mistake; known words are suggested."""
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        read_declaration(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    """Both name the file."""
    with pytest.raises(UsageError, match="there is no file"):
        read_declaration(tmp_path / "nothing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"bytes\.toml cannot be read as TOML"):
        read_declaration(tmp_path / "bytes.toml")


def test_a_mark_of_byte_order_is_no_text(tmp_path: Path) -> None:
    """Windows' editors put one before a file's text: files of expected failures may have it."""
    file = tmp_path / "model.conformance.toml"
    file.write_text('\ufeffname = "mine"', encoding="utf-8")
    assert read_declaration(file).name == "mine"


def test_the_declaration_of_a_graph_lies_next_to_it(tmp_path: Path) -> None:
    """``graph.conformance.toml`` belongs to ``graph.onnx`` and to no other."""
    path = written(tmp_path, "num_heads = 2")
    assert sidecar_of(tmp_path / "graph.onnx") == path
    assert sidecar_of(tmp_path / "other.onnx") is None
