from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from _paths import CHECKOUT

from conformance.__main__ import run
from conformance.errors import UsageError
from conformance.tools.vectors import check_vectors
from conformance.tools.vectors.writing import ALIGNMENTS, FORMS

pytestmark = pytest.mark.usefixtures("warm_workers")

PYTHON = CHECKOUT / "docs" / "examples" / "vectors.py"
SHORT = CHECKOUT / "docs" / "examples" / "vectors_short.py"
NODE = CHECKOUT / "docs" / "examples" / "vectors.mjs"
DTYPES = ("float32", "bfloat16")
# Each: a text of the consumers, Python's and Node's, and the mistake in its place.
BROKEN = {
    "softmax over the queries": ("axis=-1, keepdims", "axis=-2, keepdims"),
    "top-left for bottom-right": (' - case["diagonal"]', ""),
    "mask inverted": (
        '"keep": mask == 0, "drop": mask == 1',
        '"keep": mask == 1, "drop": mask == 0',
    ),
    "unscaled": (' * case["scale"]', ""),
    "bfloat16 taken for float16": (
        "<< 16).view(np.float32)",
        ").astype(np.uint16).view(np.float16)",
    ),
}
BROKEN_SHORT = {
    "softmax over the queries": ("axis=-1, keepdims", "axis=-2, keepdims"),
    "top-left for bottom-right": ('case["diagonal"] if', "0 if"),
    "mask inverted": ('* x.get("mask", 1) == 1', '* x.get("mask", 0) == 0'),
    "not causal": (' if case["causal"] else', ' if case["causal"] is None else'),
    "unscaled": (' * case["scale"]', ""),
    "heads in another order": (
        'x["key"].repeat(groups, axis=1)',
        'np.tile(x["key"], (groups, 1, 1))',
    ),
}
BROKEN_NODE = {
    "top-left for bottom-right": (" - c.diagonal", ""),
    "mask inverted": ('form === "keep" && mask === 0', 'form === "keep" && mask === 1'),
}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vectors of two dtypes, written once."""
    folder = tmp_path_factory.mktemp("vectors") / "written"
    assert run(["vectors", "--output", str(folder), "--dtype", ",".join(DTYPES)]) == 0
    return folder


@pytest.fixture
def copied(vectors: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(vectors, tmp_path / "copied"))


def described(folder: Path) -> list[dict[str, Any]]:
    """The description of every case."""
    index = json.loads((folder / "index.json").read_text())
    return [json.loads((folder / entry["file"]).read_text()) for entry in index["cases"]]


def test_files_obey_the_schemas_beside_them(vectors: Path) -> None:
    """Index and cases are valid by the JSON Schemas that are shipped, which are schemas."""
    schemas = {
        kind: json.loads((vectors / f"{kind}.schema.json").read_text())
        for kind in ("index", "case")
    }
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads((vectors / "index.json").read_text()), schemas["index"])
    validator = jsonschema.Draft202012Validator(schemas["case"])
    assert [
        error.message for case in described(vectors) for error in validator.iter_errors(case)
    ] == []


def test_cases_cover_what_attention_can_be_asked(vectors: Path) -> None:
    """In each dtype every clause, mask form, alignment and option occurs, and rows without keys."""
    for dtype in DTYPES:
        cases = [case for case in described(vectors) if case["dtype"] == dtype]
        assert {case["clause"] for case in cases} == set(ALIGNMENTS["bottom-right"])
        assert {case["mask"]["form"] for case in cases if case["mask"]} == set(FORMS)
        assert {case["alignment"] for case in cases if case["causal"]} == set(ALIGNMENTS)
        for option in ("softcap", "window"):
            assert any(case[option] is not None for case in cases)
        assert any(case["sizes"]["kv_heads"] < case["sizes"]["heads"] for case in cases)
        assert any(has_empty_rows(vectors, case) for case in cases)


def has_empty_rows(folder: Path, case: dict[str, Any]) -> bool:
    """Whether some row of a case has no key."""
    place = case["tensors"]["empty"]
    data = (folder / "cases" / case["data"]["file"]).read_bytes()
    return any(data[place["offset"] : place["offset"] + place["bytes"]])


def test_same_bytes_are_written_again(vectors: Path, tmp_path: Path) -> None:
    """A second run writes the same cases, byte for byte."""
    assert run(["vectors", "--output", str(tmp_path / "again"), "--dtype", "float32"]) == 0
    again = {path.name: digest(path) for path in (tmp_path / "again" / "cases").iterdir()}
    first = {path.name: digest(path) for path in (vectors / "cases").glob("float32-*")}
    assert again == first


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_whole_vectors_pass_the_check(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check says how many cases there are, and exits with 0."""
    capsys.readouterr()
    assert run(["vectors", "--check", str(vectors)]) == 0
    assert capsys.readouterr().out.endswith(f"{len(described(vectors))} cases, whole\n")


def flipped(folder: Path) -> None:
    path = folder / "cases" / "float32-numerics.golden-01.bin"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)


def edited(folder: Path) -> None:
    path = folder / "cases" / "float32-numerics.golden-01.json"
    path.write_text(path.read_text().replace('"causal": false', '"causal": true'))


def removed(folder: Path) -> None:
    (folder / "cases" / "float32-numerics.golden-01.bin").unlink()


def added(folder: Path) -> None:
    (folder / "cases" / "mine.json").write_text("{}")


def listed_elsewhere(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["cases"][0]["file"] = "../../etc/passwd"
    (folder / "index.json").write_text(json.dumps(index))


def unnameable(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["cases"][0]["file"] = "cases/\0.json"
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(("shape", "offset"), [([-1, -1], 0), ([1], -8), ([-1, -1], -8)])
def test_negative_sizes_and_offsets_are_faults(
    tmp_path: Path, shape: list[int], offset: int
) -> None:
    """A tensor of negative sizes, or one before its file, lies nowhere."""
    (tmp_path / "cases").mkdir()
    data = bytes(8)
    (tmp_path / "cases" / "a.bin").write_bytes(data)
    place = {"shape": shape, "dtype": "float64", "bytes": 8, "offset": offset}
    digest = hashlib.sha256(data).hexdigest()
    case = json.dumps({"data": {"file": "a.bin", "sha256": digest}, "tensors": {"query": place}})
    (tmp_path / "cases" / "a.json").write_text(case)
    digest = hashlib.sha256(case.encode()).hexdigest()
    listed = {"id": "a", "file": "cases/a.json", "sha256": digest}
    (tmp_path / "index.json").write_text(json.dumps({"format": 1, "cases": [listed]}))
    _, faults = check_vectors(tmp_path)
    assert faults == ["cases/a.bin: the tensor query does not lie where it is said to"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flipped, "01.bin is not what was written"),
        (edited, "01.json is not what was written"),
        (removed, "01.bin cannot be read"),
        (added, "cases/mine.json is not in the index"),
        (listed_elsewhere, "lies outside the folder"),
        (unnameable, "cannot be read"),
    ],
)
def test_damage_is_found(copied: Path, damage: Callable[[Path], None], words: str) -> None:
    """Each damaged file is named, with what is wrong."""
    damage(copied)
    _, faults = check_vectors(copied)
    assert any(words in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no index.json"),
        ("{", "is no JSON"),
        ("[]", "lists no cases"),
        ('{"cases": [{"id": 3}]}', "lists no cases"),
        ('{"format": 1, "cases": []}', "lists no cases"),
        ('{"format": 2, "cases": []}', "has format 2; this version reads format 1"),
    ],
)
def test_what_holds_no_vectors_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    """One sentence for a folder without an index, or with another's."""
    if text is not None:
        (tmp_path / "index.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        check_vectors(tmp_path)


def test_places_that_cannot_be_written_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with files in it, a missing one above it, an unknown dtype: exit code 2."""
    (tmp_path / "mine.txt").write_text("")
    assert run(["vectors", "--output", str(tmp_path)]) == 2
    assert "is a folder with files in it" in capsys.readouterr().err
    assert run(["vectors", "--output", str(tmp_path / "no" / "where")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert run(["vectors", "--dtype", "int8"]) == 2
    assert run(["vectors", "--check", str(tmp_path), "--dtype", "float32"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def consumed(text: str, vectors: Path, folder: Path, name: str) -> tuple[int, str]:
    """Exit code and output of a consumer; Python's sees no site but NumPy's."""
    (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-I", "-W", "ignore"] if name.endswith(".py") else ["node"]
    done = subprocess.run(
        [*command, str(folder / name), str(vectors)], capture_output=True, text=True, check=False
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_a_right_attention_passes_every_case(vectors: Path, tmp_path: Path) -> None:
    """The example of the documentation, which imports NumPy alone, passes."""
    text = PYTHON.read_text(encoding="utf-8")
    assert "conformance" not in text
    assert "torch" not in text
    code, output = consumed(text, vectors, tmp_path, "right.py")
    count = len(described(vectors))
    assert (code, output) == (0, f"{count} of {count} cases pass\n")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_attention_fails(vectors: Path, tmp_path: Path, name: str) -> None:
    """One mistake in the example, and cases fail."""
    right, wrong = BROKEN[name]
    text = PYTHON.read_text(encoding="utf-8")
    assert right in text
    code, _ = consumed(text.replace(right, wrong), vectors, tmp_path, "broken.py")
    assert code == 1


def test_a_consumer_fits_in_thirty_lines(vectors: Path, tmp_path: Path) -> None:
    """It judges the cases whose options it has, counts the others by their reason, and passes."""
    text = SHORT.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 30
    assert "conformance" not in text
    assert "torch" not in text
    cases = described(vectors)
    left = [case for case in cases if (case["mask"] or {"form": "keep"})["form"] != "keep"
            or case["dtype"] == "bfloat16" or case["softcap"] or case["window"]]  # fmt: skip
    bfloat16 = sum(case["dtype"] == "bfloat16" for case in cases)
    code, output = consumed(text, vectors, tmp_path, "short.py")
    judged = len(cases) - len(left)
    assert judged > 50
    assert output.startswith(
        f"{judged} judged, 0 differ; {len(left)} left out: {bfloat16} bfloat16,"
    )
    assert code == 0


@pytest.mark.parametrize("name", BROKEN_SHORT)
def test_the_short_consumer_finds_mistakes(vectors: Path, tmp_path: Path, name: str) -> None:
    """One mistake in its attention, and cases differ."""
    right, wrong = BROKEN_SHORT[name]
    text = SHORT.read_text(encoding="utf-8")
    assert right in text
    code, output = consumed(text.replace(right, wrong), vectors, tmp_path, "short.py")
    assert code == 1
    assert " judged, 0 differ" not in output


def test_a_consumer_that_judged_nothing_does_not_pass(tmp_path: Path) -> None:
    """A folder without cases is no success."""
    code, output = consumed(SHORT.read_text(encoding="utf-8"), tmp_path, tmp_path, "short.py")
    assert (code, output) == (1, "0 judged, 0 differ; 0 left out: \n")


@pytest.mark.one_in(2)
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to run JavaScript with")
@pytest.mark.parametrize("name", ["right", *BROKEN_NODE])
def test_another_language_reads_them(vectors: Path, tmp_path: Path, name: str) -> None:
    """JavaScript passes every case without a library, and fails with a mistake."""
    text = NODE.read_text(encoding="utf-8")
    right, wrong = BROKEN_NODE.get(name, ("", ""))
    assert right in text
    code, output = consumed(text.replace(right, wrong, 1), vectors, tmp_path, "consumer.mjs")
    assert code == int(name != "right"), output
