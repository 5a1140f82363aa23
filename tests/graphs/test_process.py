"""A graph in a child process: what it answers, its limits, and what becomes of the child."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from little_graphs import (
    FLOAT,
    dividing,
    endless,
    endless_when_long,
    huge,
    model,
    node,
    plus_one,
    same,
    saved,
    tensor,
)
from onnx import TensorProto

from conformance.graphs.process import GraphProcess, Limits, Setting, limited
from conformance.graphs.protocol import GraphLost, GraphRefused

LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux' /proc")
X = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.fixture
def little(tmp_path: Path) -> Iterator[GraphProcess]:
    """The graph ``y = x·x + 1``."""
    with GraphProcess(saved(plus_one(), tmp_path / "little.onnx")) as process:
        yield process


def children() -> set[int]:
    """The numbers of this process' children, zombies included."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return {int(number) for number in children.split()}


def test_it_answers_by_name(little: GraphProcess) -> None:
    """The outputs come back under the graph's own names, with the values of the runtime."""
    answer = little.run({"x": X})
    assert list(answer) == ["y"]
    np.testing.assert_array_equal(answer["y"], X * X + 1)


@pytest.mark.parametrize("level", ["disabled", "basic", "extended", "all"])
def test_every_level_opens(little: GraphProcess, level: str) -> None:
    """All four optimisation levels of onnxruntime can be chosen."""
    np.testing.assert_array_equal(
        little.run({"x": X}, setting=Setting(level=level))["y"], X * X + 1
    )


def test_taps_show_tensors_inside(little: GraphProcess) -> None:
    """A tensor between two nodes, an initializer and an input can be had besides the outputs."""
    answer = little.run({"x": X}, taps=["square", "one", "x"])
    np.testing.assert_array_equal(answer["square"], X * X)
    np.testing.assert_array_equal(answer["one"], [1.0])
    np.testing.assert_array_equal(answer["x"], X)
    assert list(little.run({"x": X})) == ["y"]


def test_taps_keep_external_data(tmp_path: Path) -> None:
    """A graph whose weights lie next to it can be tapped: they are read from its own folder."""
    path = tmp_path / "outside.onnx"
    onnx.save_model(
        plus_one(), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert (tmp_path / "weights.bin").exists()
    with GraphProcess(path) as process:
        answer = process.run({"x": X}, taps=["square"])
    np.testing.assert_array_equal(answer["square"], X * X)
    np.testing.assert_array_equal(answer["y"], X * X + 1)


def test_an_empty_axis(little: GraphProcess) -> None:
    """Arrays without elements go in and come out."""
    assert little.run({"x": X[:0]})["y"].shape == (0,)


def test_large_arrays(little: GraphProcess) -> None:
    """What does not fit into a socket's buffer arrives whole, both ways."""
    many = np.arange(1 << 20, dtype=np.float32)
    np.testing.assert_array_equal(little.run({"x": many})["y"], many * many + 1)


def test_arrays_that_are_not_contiguous(little: GraphProcess) -> None:
    """A strided view is handed over by its values."""
    np.testing.assert_array_equal(little.run({"x": X[::-2]})["y"], X[::-2] ** 2 + 1)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "int32", "bool", "uint8"])
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    """What numpy has a dtype for keeps it, and a scalar keeps its rank."""
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = model([node("Identity", "x", "y")], [("x", code, [])], [("y", code, [])])
    values = np.array(1, dtype)
    with GraphProcess(saved(made, tmp_path / "same.onnx")) as process:
        answer = process.run({"x": values})["y"]
    assert answer.dtype == values.dtype
    assert answer.shape == ()
    assert answer == values


def test_bfloat16(tmp_path: Path) -> None:
    """bfloat16 goes through bit by bit, although numpy has no such dtype of its own."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    values = np.array([1.5, -2.25, np.inf], dtype)
    with GraphProcess(saved(same(TensorProto.BFLOAT16), tmp_path / "b.onnx")) as process:
        answer = process.run({"x": values})["y"]
    assert answer.dtype == dtype
    np.testing.assert_array_equal(answer.view(np.uint16), values.view(np.uint16))


def test_what_is_no_tensor_is_refused(tmp_path: Path) -> None:
    """An output that is a sequence is refused by name."""
    made = model([node("SequenceConstruct", "x", "y")], outputs=[])
    made.graph.output.append(
        onnx.helper.make_tensor_sequence_value_info("y", FLOAT, None),
    )
    with (
        GraphProcess(saved(made, tmp_path / "s.onnx")) as process,
        pytest.raises(GraphRefused, match=r"the output 'y' .*seq.* is no tensor of numbers"),
    ):
        process.run({"x": X})


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "missing"),
        ({"x": X.astype(np.float64)}, "Unexpected input data type"),
        ({"x": X[None]}, "Invalid rank"),
        ({"x": X, "stranger": X}, "stranger"),
    ],
)
def test_the_runtime_refuses(
    little: GraphProcess, feeds: dict[str, np.ndarray], message: str
) -> None:
    """The objection of onnxruntime comes back in one line, and the child goes on."""
    with pytest.raises(GraphRefused, match=message) as refused:
        little.run(feeds)
    assert "\n" not in str(refused.value)
    assert ".cc:" not in str(refused.value)
    assert little.run({"x": X})["y"].shape == X.shape


def test_an_unknown_tap_is_refused(little: GraphProcess) -> None:
    """A tensor that the graph does not have is refused by name, and spoils no later tap."""
    with pytest.raises(GraphRefused, match="stranger"):
        little.run({"x": X}, taps=["stranger"])
    assert set(little.run({"x": X}, taps=["square"])) == {"y", "square"}


def test_an_unknown_provider_is_refused(little: GraphProcess) -> None:
    """A provider that is not there is refused, and never replaced by the CPU's in silence."""
    with pytest.raises(GraphRefused, match="TensorrtExecutionProvider"):
        little.run({"x": X}, setting=Setting(provider="TensorrtExecutionProvider"))


def test_providers(little: GraphProcess) -> None:
    """The CPU's provider is always there; the one that sends graphs to a service is not."""
    assert "CPUExecutionProvider" in little.providers()
    assert "AzureExecutionProvider" not in little.providers()


@LINUX
def test_one_child_for_many_runs(little: GraphProcess) -> None:
    """A hundred runs are made by one child; ``child`` asks for another."""
    before = children()
    for _ in range(100):
        little.run({"x": X})
    assert len(children() - before) == 1
    little.run({"x": X}, setting=Setting(child=1))
    assert len(children() - before) == 2
    little.close()
    assert children() == before


@LINUX
def test_no_child_outlives_its_graph(tmp_path: Path) -> None:
    """A process that nobody closed ends with the object that held it, and leaves no zombie."""
    before = children()
    process = GraphProcess(saved(plus_one(), tmp_path / "little.onnx"))
    process.run({"x": X})
    assert children() != before
    del process
    gc.collect()
    assert children() == before


@LINUX
def test_a_child_that_ended_while_idle_is_replaced(little: GraphProcess) -> None:
    """What ended the child between two runs is no fault of the next one."""
    before = children()
    little.run({"x": X})
    (child,) = children() - before
    os.kill(child, signal.SIGKILL)
    time.sleep(0.2)
    assert little.run({"x": X})["y"].shape == X.shape


@LINUX
def test_a_signal_is_named(tmp_path: Path) -> None:
    """A division that the processor cannot make kills the child, and a new one goes on."""
    with GraphProcess(saved(dividing(), tmp_path / "dividing.onnx")) as process:
        for _ in range(2):
            np.testing.assert_array_equal(process.run({"x": X[:2]})["y"], X[:2])
            with pytest.raises(GraphLost, match=r"^killed its process \(SIGFPE\)$") as lost:
                process.run({"x": X})
            assert lost.value.kind == "crashed"


def test_an_endless_loop_is_stopped(tmp_path: Path) -> None:
    """Each hang is stopped at the wall's clock, later ones sooner; other runs go on."""
    made = endless_when_long(2)
    limits = Limits(wall_seconds=4.0)
    with GraphProcess(saved(made, tmp_path / "loop.onnx"), limits) as process:
        process.run({"x": X[:1]})
        with pytest.raises(GraphLost, match=r"^gave no answer for 4 s and was stopped$") as lost:
            process.run({"x": X})
        assert lost.value.kind == "hung"
        np.testing.assert_array_equal(process.run({"x": X[:1]})["y"], X[:1])
        with pytest.raises(GraphLost, match=r"^gave no answer for [0-3]\b"):
            process.run({"x": X})


@LINUX
def test_too_much_cpu_is_stopped(tmp_path: Path) -> None:
    """The limit of CPU holds for one run, and is reported as a hang."""
    limits = Limits(wall_seconds=60.0, cpu_seconds=1.0)
    with (
        GraphProcess(saved(endless(), tmp_path / "loop.onnx"), limits) as process,
        pytest.raises(GraphLost, match=r"^used more than 1 s of CPU and was stopped$") as lost,
    ):
        process.run({"x": X})
    assert lost.value.kind == "hung"


def cpu_seconds(number: int) -> float:
    """The CPU that a process has used."""
    fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@LINUX
def test_cpu_is_counted_for_each_run(tmp_path: Path) -> None:
    """Runs that are short one by one may use more CPU together than one run may."""
    path, before = saved(huge(20_000_000), tmp_path / "slow.onnx"), children()
    with GraphProcess(path, Limits(wall_seconds=60.0, cpu_seconds=1.0)) as process:
        process.run({"x": X[:1]})
        (child,) = children() - before
        while cpu_seconds(child) < 1.5:
            process.run({"x": X[:1]})
        assert children() - before == {child}


@LINUX
def test_too_much_memory_is_reported(tmp_path: Path) -> None:
    """A tensor that does not fit into the limit is a loss that names the limit."""
    limits = Limits(memory=2 << 30)
    with GraphProcess(saved(huge(1 << 30), tmp_path / "huge.onnx"), limits) as process:
        for _ in range(2):
            with pytest.raises(GraphLost, match=r"^ran out of the 2 GiB it may use$") as lost:
                process.run({"x": X[:1]})
            assert lost.value.kind == "crashed"


def test_an_answer_too_large_is_refused(tmp_path: Path) -> None:
    """Outputs that the parent should not have to hold are refused."""
    path = saved(plus_one(), tmp_path / "little.onnx")
    with (
        GraphProcess(path, Limits(answer=8)) as process,
        pytest.raises(GraphRefused, match="its outputs have 12 bytes, more than the 8"),
    ):
        process.run({"x": X})


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    """Runs, taps and losses write no file next to the graph."""
    path = saved(dividing(), tmp_path / "dividing.onnx")
    with GraphProcess(path) as process:
        process.run({"x": X[:2]}, taps=["quotient"])
        with pytest.raises(GraphLost):
            process.run({"x": X})
    assert [file.name for file in tmp_path.iterdir()] == ["dividing.onnx"]


PARENT = """
    import sys
    import numpy as np
    from pathlib import Path
    from conformance.graphs.process import GraphProcess, Limits
    process = GraphProcess(Path(sys.argv[1]), Limits(wall_seconds=100, cpu_seconds=100))
    process.run({"x": np.ones(1, np.float32)})
    children = Path(f"/proc/self/task/{__import__('os').getpid()}/children")
    print(children.read_text(), flush=True)
    process.run({"x": np.ones(3, np.float32)})
"""


def parent_of_an_endless_run(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """A program amid a run that never ends, and the number of its graph's process."""
    path = saved(endless_when_long(2), folder / "loop.onnx")
    program = [sys.executable, "-c", textwrap.dedent(PARENT), str(path)]
    parent = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.5)
    return parent, child


def ended(number: int, seconds: float = 120.0) -> bool:
    """Whether a process is gone, or goes in two minutes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        if status.split()[0] == "Z":  # its new parent has not looked after it yet
            return True
        time.sleep(0.05)
    return False


@LINUX
def test_the_child_follows_its_parent(tmp_path: Path) -> None:
    """A killed parent takes the child along, even amid a run that never ends."""
    parent, child = parent_of_an_endless_run(tmp_path)
    with parent:
        parent.kill()
    assert ended(child)


@LINUX
def test_ctrl_c_ends_both(tmp_path: Path) -> None:
    """Ctrl-C amid a run ends parent and child; the child itself prints nothing."""
    parent, child = parent_of_an_endless_run(tmp_path)
    with parent:
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=300)
    assert parent.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert ended(child)


def test_importing_needs_no_resource_module() -> None:
    """Where the system has no limits the module can still be imported."""
    program = """
        import json, select, signal, socket, subprocess, sys, numpy
        import conformance.base.patience  # psutil asks which system this is
        import conformance.base.printable_text  # asks where the standard library lies here
        sys.modules["resource"] = None
        sys.platform = "win32"
        from conformance.graphs.process import GraphProcess
        from conformance.graphs.server import confine, grant_cpu
        confine(1)
        grant_cpu(1.0)
        print(GraphProcess.__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "GraphProcess"


def test_the_parent_imports_no_runtime() -> None:
    """A parent holds graphs without onnx, onnxruntime and torch; its child imports no torch."""
    program = """
        import sys
        import conformance.graphs.process, conformance.graphs.process, conformance.graphs.server
        print(sorted({"onnx", "onnxruntime", "torch"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def weighed(path: Path, rows: int, *, external: bool) -> Path:
    """``y = x · weights`` with as many rows of 1,024 numbers, inside the file or beside it."""
    weights = np.full((rows, 1024), 0.5, np.float32)
    made = model(
        [node("MatMul", "x weights", "y")],
        inputs=(("x", FLOAT, ["n", rows]),),
        outputs=(("y", FLOAT, ["n", 1024]),),
        tensors=[tensor("weights", weights)],
    )
    onnx.save(made, path, save_as_external_data=external, location=f"{path.name}.data")
    return path


def private_bytes(process: GraphProcess) -> int:
    """What the child of a graph holds besides the pages of files."""
    (pid,) = process.pids
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) << 10


@LINUX
@pytest.mark.parametrize("place", ["inside", "beside"])
def test_the_sessions_of_a_large_model_share_its_weights(place: str, tmp_path: Path) -> None:
    """Other levels and nudged weights take less than a tenth of them; in a file beside, all do."""
    rows, external = 18_000, place == "beside"
    size = rows * 1024 * 4
    x = np.ones((1, rows), np.float32)
    with GraphProcess(weighed(tmp_path / "large.onnx", rows, external=external)) as process:
        process.open(setting=Setting(level="disabled"))
        before = private_bytes(process)
        answers = [
            process.run({"x": x}, setting=each)["y"]
            for each in (Setting(), Setting(level="basic"), Setting(nudge=1), Setting(nudge=2))
        ]
        assert private_bytes(process) - before < size / 10
        assert not external or private_bytes(process) < size
    for answer in answers:
        np.testing.assert_allclose(answer, rows / 2, rtol=1e-4)


def test_a_nudge_changes_each_weight_by_its_size(tmp_path: Path) -> None:
    """By one unit in the last place, or by a part of it that is asked for."""
    x = np.ones((1, 64), np.float32)
    with GraphProcess(weighed(tmp_path / "small.onnx", 64, external=False)) as process:
        moved = [
            np.abs(process.run({"x": x}, setting=each)["y"] - 32).max()
            for each in (Setting(), Setting(nudge=1), Setting(nudge=1, nudge_size=0.01))
        ]
    assert moved[0] == 0
    assert 0 < moved[1] < 1e-4 < moved[2] < 32 * 0.011


def test_limits_follow_from_those_of_the_run(tmp_path: Path) -> None:
    """A call has a third of the worker's time, and no less memory than always; the usual later."""
    path = saved(endless(), tmp_path / "loop.onnx")
    with limited(0.9, 16 << 30):
        process = GraphProcess(path)
    with process, pytest.raises(GraphLost, match=r"^gave no answer|^used more than 0.6 s"):
        process.run({"x": X})
    assert (process.limits.wall_seconds, process.limits.memory) == (pytest.approx(0.3), 16 << 30)
    assert GraphProcess(path).limits == Limits()
    with limited(30.0, None):
        assert GraphProcess(path).limits == Limits()


@LINUX
def test_weights_come_on_top_of_the_memory(tmp_path: Path) -> None:
    """They are mapped, and what is left does not depend on how large they are."""
    with GraphProcess(weighed(tmp_path / "large.onnx", 1024, external=True)) as process:
        process.open()
        (pid,) = process.pids
        lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith("Max address space")]
    assert 4 << 20 <= int(line.split()[3]) - Limits().memory < 5 << 20
