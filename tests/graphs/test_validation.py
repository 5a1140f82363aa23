"""What a model file says of itself, and hostile files: one sentence each, the parent alive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from little_graphs import FLOAT, endless, model, node, plus_one, same, saved, tensor
from onnx import ModelProto, TensorProto, helper

from conformance.errors import UsageError
from conformance.graphs.process import GraphProcess
from conformance.graphs.reading import Port
from conformance.graphs.validation import defects, read_header

ONE = np.ones(4, np.float32)


def refusal(path: Path) -> str:
    """The sentence that a file is refused with; it names the file, on one line."""
    with pytest.raises(UsageError) as refused:
        read_header(path)
    reason = str(refused.value)
    assert str(path) in reason
    assert "\n" not in reason
    return reason


def refusal_of(made: ModelProto | bytes, folder: Path) -> str:
    """The sentence that a model, or the bytes of a file, are refused with."""
    path = folder / "model.onnx"
    if isinstance(made, bytes):
        path.write_bytes(made)
    else:
        saved(made, path)
    return refusal(path)


def outside(entries: Mapping[str, Any], elements: int = 4) -> ModelProto:
    """``y = x + w`` with ``w`` of some float32 elements where external data entries say."""
    held = TensorProto(
        name="w", data_type=FLOAT, dims=[elements], data_location=TensorProto.EXTERNAL
    )
    for key, value in entries.items():
        held.external_data.add(key=key, value=str(value))
    return model([node("Add", "x w", "y")], tensors=[held])


def write_sidecar(folder: Path, name: str, size: int = 16) -> Path:
    """A file of zeros next to a graph."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def test_the_header(tmp_path: Path) -> None:
    """Inputs without initializers, shapes with names and without, opsets, operators, the size."""
    made = model(
        [node("Add", "x w", "sum"), node("Cast", "sum", "y", to=TensorProto.FLOAT16)],
        [("x", FLOAT, ["batch", None, 3]), ("w", FLOAT, [3]), ("unknown", TensorProto.BOOL, None)],
        [("y", TensorProto.FLOAT16, ["batch", None, 3])],
        tensors=[tensor("w", np.ones(3, np.float32))],
        domains=["com.microsoft"],
    )
    made.producer_name, made.producer_version = "exporter", "1.2"
    path = saved(made, tmp_path / "model.onnx")
    header = read_header(path)
    assert header.inputs == (
        Port(name="x", dtype="float32", shape=("batch", None, 3)),
        Port(name="unknown", dtype="bool", shape=None),
    )
    assert header.outputs == (Port(name="y", dtype="float16", shape=("batch", None, 3)),)
    assert header.opsets == {"": 20, "com.microsoft": 1}
    assert header.operators == {"::Add", "::Cast"}
    assert (header.ir_version, header.producer) == (10, "exporter 1.2")
    assert header.size == path.stat().st_size
    assert (header.external, header.stray, header.random) == ((), (), ())


def test_operators_inside_graphs_and_functions(tmp_path: Path) -> None:
    """A loop's body and a function's are looked into; a function of the model is no stranger."""
    made = endless()
    made.graph.node[0].output[0] = "looped"
    made.graph.node.append(node("Own", "looped", "y", domain="mine"))
    made.opset_import.append(helper.make_opsetid("mine", 1))
    made.functions.append(
        helper.make_function(
            "mine", "Own", ["a"], ["b"], [node("Neg", "a", "b")], [helper.make_opsetid("", 20)]
        )
    )
    header = read_header(saved(made, tmp_path / "model.onnx"))
    assert header.operators == {"::Loop", "::Identity", "::Neg", "mine::Own"}


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        (TensorProto.FLOAT16, "float16"),
        (TensorProto.BFLOAT16, "bfloat16"),
        (TensorProto.DOUBLE, "float64"),
        (TensorProto.INT64, "int64"),
        (TensorProto.STRING, "string"),
    ],
)
def test_dtypes_of_ports(tmp_path: Path, code: int, dtype: str) -> None:
    """Each dtype has numpy's name; bfloat16 and strings have their own."""
    header = read_header(saved(same(code), tmp_path / "model.onnx"))
    assert header.inputs[0].dtype == header.outputs[0].dtype == dtype


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (b"", "is empty"),
        (b"plain words\n" * 99, "is a text file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (bytes(5000), "is no ONNX graph"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is no ONNX graph"),
        (b"\x08\x0a", "holds no graph"),
    ],
    ids=["empty", "text", "pointer", "zeros", "picture", "stub"],
)
def test_what_is_no_graph(tmp_path: Path, held: bytes, reason: str) -> None:
    """Files of every other kind are distinguished; onnx itself would load an empty one."""
    assert reason in refusal_of(held, tmp_path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file(tmp_path: Path, part: float) -> None:
    """Whatever is missing at the end of a file, it is refused."""
    whole = plus_one().SerializeToString()
    reason = refusal_of(whole[: int(len(whole) * part)], tmp_path)
    assert "part of" in reason


def test_flipped_bytes_never_reach_the_parent(tmp_path: Path) -> None:
    """A file damaged anywhere is refused in a sentence or has a header; nothing else happens."""
    whole, path = plus_one().SerializeToString(), tmp_path / "model.onnx"
    random = np.random.default_rng(3)
    read = 0
    for _ in range(6):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            damaged[place] = int(random.integers(0, 256))
        path.write_bytes(damaged)
        try:
            read += bool(read_header(path).outputs)
            defects(path)
        except UsageError as error:
            assert str(path) in str(error)  # noqa: PT017 (both endings are right)
    assert read < 6


def test_missing_and_unreadable_paths(tmp_path: Path) -> None:
    """A path that leads nowhere, to a folder or to a device is named."""
    assert "there is no file" in refusal(tmp_path / "absent.onnx")
    assert "is a folder" in refusal(tmp_path)
    assert "is no regular file" in refusal(Path(os.devnull))


def test_more_than_a_protobuf_holds(tmp_path: Path) -> None:
    """A file beyond 2 GiB is refused by its size alone."""
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    assert "has 3 GiB, more than the 2 GiB" in refusal(path)


def test_a_claim_of_two_gigabytes(tmp_path: Path) -> None:
    """A tensor that claims more than the file holds is named, with both numbers."""
    claim = TensorProto(name="w", data_type=FLOAT, dims=[1 << 29], raw_data=b"\0\0\0\0")
    reason = refusal_of(model([node("Add", "x w", "y")], tensors=[claim]), tmp_path)
    assert "its tensor 'w' has 536870912 elements" in reason
    assert "holds 1 of them" in reason


@pytest.mark.parametrize("dims", [[1 << 62, 1 << 62], [-4]], ids=["overflow", "negative"])
def test_impossible_claims(tmp_path: Path, dims: list[int]) -> None:
    """Sizes that overflow or are negative are refused, in attributes of nodes, too."""
    claim = TensorProto(name="c", data_type=FLOAT, dims=dims, raw_data=b"\0\0\0\0")
    nodes = [helper.make_node("Constant", [], ["w"], value=claim), node("Add", "x w", "y")]
    assert "its tensor 'c' has" in refusal_of(model(nodes), tmp_path)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (model([node("Identity", "x", "y")], opset=27), "is of opset 27, newer than the 26"),
        (model([node("Identity", "x", "y")], opset=99), "is of opset 99, newer than"),
        (model([node("Identity", "x", "y")], ir_version=99), "version 99, newer than"),
        (
            model([node("Attention", "x x x", "y")], opset=18),
            "uses the operator Attention, which the opset 18 of its header does not have",
        ),
        (
            model([node("Rotary", "x", "y", domain="acme")], domains=["acme"]),
            "uses acme::Rotary, which neither ONNX nor onnxruntime defines",
        ),
        (
            model([node("Constant", "", "y", value_float=1.0)], inputs=[]),
            "has no inputs",
        ),
        (model([node("Identity", "x", "y")], outputs=[]), "has no outputs"),
        (
            model([node("Identity", "x", "y"), node("Neg", "x", "y")]),
            "cannot be opened by onnxruntime",
        ),
        (model([node("Identity", "nowhere", "y")]), "'nowhere' is not a graph input"),
    ],
    ids=["opset", "far-opset", "ir", "header", "custom", "inputs", "outputs", "twice", "dangling"],
)
def test_graphs_that_do_not_open(tmp_path: Path, made: ModelProto, reason: str) -> None:
    """What the runtime cannot open is refused with the reason in words of the user's."""
    sentence = refusal_of(made, tmp_path)
    assert reason in sentence
    assert ".cc:" not in sentence


def test_no_opset(tmp_path: Path) -> None:
    """A header without operator sets is refused."""
    made = plus_one()
    del made.opset_import[:]
    assert "names no operator set" in refusal_of(made, tmp_path)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "inside/../../w.bin"])
def test_external_data_elsewhere(tmp_path: Path, location: str) -> None:
    """No path leads out of the graph's folder."""
    write_sidecar(tmp_path, "w.bin")
    (tmp_path / "home" / "inside").mkdir(parents=True)
    assert "outside its own folder" in refusal_of(
        outside({"location": location}), tmp_path / "home"
    )


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    """A symbolic link is followed before the question where a file lies."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "w.bin").symlink_to(write_sidecar(tmp_path, "secret"))
    assert "outside its own folder" in refusal_of(outside({"location": "w.bin"}), tmp_path / "home")


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"location": "absent.bin"}, "which is missing"),
        ({"location": "short.bin"}, "ends at byte 8 where 16 are needed"),
        ({"location": "w.bin", "offset": 8}, "ends at byte 16 where 24 are needed"),
        ({"location": "w.bin", "offset": "eight"}, "does not say in which bytes"),
        ({"location": "w.bin", "offset": -8}, "does not say in which bytes"),
        ({"location": "."}, "is no file"),
        ({}, "does not say where"),
    ],
    ids=["missing", "short", "beyond", "word", "negative", "folder", "nowhere"],
)
def test_external_data_that_are_not_there(
    tmp_path: Path, entries: dict[str, Any], reason: str
) -> None:
    """What is missing of external data is said, and in which file."""
    write_sidecar(tmp_path, "w.bin")
    write_sidecar(tmp_path, "short.bin", 8)
    assert reason in refusal_of(outside(entries), tmp_path)


def test_external_data_next_to_it(tmp_path: Path) -> None:
    """A file in the folder, or in a folder of it, is named in the header; a hard link is one."""
    other = write_sidecar(tmp_path, "elsewhere")
    home = tmp_path / "home"
    write_sidecar(home, "w.bin")
    (home / "hard.bin").hardlink_to(other)
    for location in ("w.bin", "./w.bin", "hard.bin"):
        path = saved(outside({"location": location}), home / "model.onnx")
        header = read_header(path)
        assert (header.external, header.external_size) == ((location,), 16)
        assert header.stray == ()
        assert defects(path) == ()


def test_stray_files(tmp_path: Path) -> None:
    """A link and a file of weights that nothing refers to are reported; an empty one is not."""
    write_sidecar(tmp_path, "real.bin")
    (tmp_path / "link.bin").symlink_to("real.bin")
    path = saved(outside({"location": "link.bin"}), tmp_path / "model.onnx")
    write_sidecar(tmp_path, "model.onnx.data", 0)
    assert ["link.bin" in reason for reason in read_header(path).stray] == [True]
    write_sidecar(tmp_path, "model.onnx.data", 5)
    assert ["model.onnx.data" in reason for reason in read_header(path).stray] == [False, True]


def test_a_download_cache(tmp_path: Path) -> None:
    """Where graph and data are both links to a store, as in download caches, all is well."""
    store, shown = tmp_path / "store", tmp_path / "shown"
    store.mkdir()
    shown.mkdir()
    write_sidecar(store, "5e6f")
    saved(outside({"location": "w.bin"}), store / "1a2b")
    path = shown / "model.onnx"
    path.symlink_to("../store/1a2b")
    (shown / "w.bin").symlink_to("../store/5e6f")
    header = read_header(path)
    assert (header.external, header.stray) == (("w.bin",), ())
    assert defects(path) == ()
    with GraphProcess(path) as process:
        assert set(process.run({"x": ONE}, taps=["w"])) == {"y", "w"}


def test_random_nodes(tmp_path: Path) -> None:
    """Operators that draw are named; a dropout only where its mode is on and its ratio not zero."""
    switches = [
        tensor("half", np.float32(0.5)),
        tensor("none", np.float32(0.0)),
        tensor("on", np.array(True)),  # noqa: FBT003
        tensor("off", np.array(False)),  # noqa: FBT003
    ]
    nodes = [
        node("Dropout", "x half off", "a", name="idle"),
        node("Dropout", "a none on", "b", name="nothing"),
        node("Dropout", "b half on", "c", name="drops"),
        node("RandomNormalLike", "c", "d", name="noise"),
        node("Add", "c d", "y"),
    ]
    header = read_header(saved(model(nodes, tensors=switches), tmp_path / "model.onnx"))
    assert header.random == ("Dropout 'drops' in training mode", "RandomNormalLike 'noise'")


def with_shape(shape: list[Any]) -> ModelProto:
    """A transposition of 2 by 3, whose answer is declared to have some shape."""
    return model(
        [node("Transpose", "x", "y", perm=[1, 0])], [("x", FLOAT, [2, 3])], [("y", FLOAT, shape)]
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (with_shape([2, 3]), "differ in dimension 0: (3) vs (2)"),
        (with_shape([6]), "differ in rank"),
        (model([node("Neg", "a", "y"), node("Neg", "x", "a")]), "topologically sorted"),
        (model([node("Identity", "x", "y")], ir_version=0), "ir_version"),
        (model([node("Identity", "x", "y")], [("x", FLOAT, None)]), "'shape'"),
    ],
    ids=["size", "rank", "order", "version", "unknown"],
)
def test_defects(tmp_path: Path, made: ModelProto, reason: str) -> None:
    """A graph that opens although onnx or its own header contradicts it has defects."""
    path = saved(made, tmp_path / "model.onnx")
    assert read_header(path).outputs
    sentences = defects(path)
    assert any(reason in defect for defect in sentences), sentences


def test_two_versions_of_an_operator_set(tmp_path: Path) -> None:
    """A header that imports one domain twice contradicts itself."""
    made = plus_one()
    made.opset_import.append(helper.make_opsetid("", 18))
    path = saved(made, tmp_path / "model.onnx")
    assert any("two versions" in defect for defect in defects(path))


def test_the_shapes_of_a_right_graph(tmp_path: Path) -> None:
    """Declared sizes and names that the operators bear out are no defects."""
    for shape in ([3, 2], ["rows", "columns"], [None, None]):
        assert defects(saved(with_shape(shape), tmp_path / "model.onnx")) == ()


def test_a_graph_that_hangs_has_a_header(tmp_path: Path) -> None:
    """Reading a file never runs it."""
    header = read_header(saved(endless(), tmp_path / "model.onnx"))
    assert [port.name for port in header.inputs] == ["x"]


def test_saving_next_to_it_and_moving_it_alone(tmp_path: Path) -> None:
    """The usual accident: a graph is copied without its weights."""
    path = tmp_path / "model.onnx"
    onnx.save_model(
        model([node("Add", "x w", "y")], tensors=[tensor("w", ONE)]),
        path,
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=0,
    )
    assert read_header(path).external == ("model.onnx.data",)
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    path.rename(alone / "model.onnx")
    assert "'model.onnx.data', which is missing" in refusal(alone / "model.onnx")


@pytest.mark.parametrize("called", ["Own", "Other"])
def test_functions_without_an_end(tmp_path: Path, called: str) -> None:
    """A function that calls itself, or another that calls it, cannot be written out."""
    made = model([node("Own", "x", "y", domain="own")], domains=["own"])
    for name, calls in (("Own", called), ("Other", "Own")):
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
        body = [node(calls, "x", "y", domain="own")]
        made.functions.append(helper.make_function("own", name, ["x"], ["y"], body, opsets))
    assert "has functions that cannot be written out" in refusal_of(made, tmp_path)


@pytest.mark.parametrize("sizes", [[2**40] * 4, [2**63 - 1, 1], ["n", 2**34]])
def test_an_input_that_nothing_can_hold(tmp_path: Path, sizes: list[Any]) -> None:
    """Fixed axes of more numbers than a process may take bytes are refused before any is drawn."""
    ports = ("x", FLOAT, sizes), ("y", FLOAT, sizes)
    made = model([node("Identity", "x", "y")], inputs=[ports[0]], outputs=[ports[1]])
    assert "export it with axes that have names" in refusal_of(made, tmp_path)


def test_an_input_that_holds_nothing(tmp_path: Path) -> None:
    """An axis of size zero leaves no number to draw."""
    made = model([node("Identity", "x", "y")], inputs=[("x", FLOAT, ["n", 0])])
    assert "'x' with an axis of size 0" in refusal_of(made, tmp_path)
