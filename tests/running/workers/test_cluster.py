"""Runs on a cluster of Ray: nodes that are processes of this machine, and addresses without one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND
from workspaces import KERNEL, UNSCALED, write

from conformance.__main__ import run
from conformance.base.limits import Deadline
from conformance.running.workers import cluster
from conformance.running.workers.cluster import serve
from conformance.running.workers.messages import RunOptions

ray_cluster = pytest.importorskip("ray.cluster_utils", reason="ray is not installed")

LONGEST = 300  # seconds
STORE = 80 * 1024 * 1024
# The first candidate waits until its node is lost; the second dies.
CANDIDATES = (
    KERNEL
    + """
import os, time

@conformance.core()
def waits(query, key, value):
    if query.shape[2] > 6 and not os.path.exists({marker!r}):
        open({marker!r}, "w").close()
        time.sleep(600)
    return attend(query, key, value)


@conformance.core()
def dies(query, key, value):
    if query.shape[2] > 6:
        os._exit(3)
    return attend(query, key, value)
"""
)
FEW = (
    "--profile",
    "quick",
    "--dtype",
    "float32",
    "--only",
    "shape.output",
    "--only",
    "numerics.golden",
)
# A node that is lost is noticed within some seconds: Ray's own limit is half a minute.
CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
UNLIKE = ("seconds", "started")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose head does no work: workers ask for a place, which it has not."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    head = {
        "num_cpus": 1,
        "include_dashboard": False,
        "object_store_memory": STORE,
        "_system_config": CHECKS,
    }
    started = ray_cluster.Cluster(initialize_head=True, head_node_args=head)
    try:
        yield started
    finally:
        started.shutdown()


def node(nodes: Any) -> Any:
    """A further node, with one processor and one place."""
    return nodes.add_node(num_cpus=1, resources={"place": 1}, object_store_memory=STORE)


def command(nodes: Any, *arguments: str) -> subprocess.Popen[str]:
    """The command line, with the code of a folder sent to the nodes."""
    spread = ("--cluster", nodes.address, "--per-worker", "place=1")
    return subprocess.Popen(
        [*COMMAND, "check", "attn.py", *FEW, *spread, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a candidate has made a file."""
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def alike(value: Any) -> Any:
    """A record without what two runs never share."""
    if isinstance(value, dict):
        return {key: alike(entry) for key, entry in value.items() if key not in UNLIKE}
    return [alike(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.nightly
def test_a_lost_node_loses_nothing(folder: Path, nodes: Any) -> None:
    """The work of a node that is killed is done by another, and the record is that of ``-n 2``.

    The targets lie in a folder of a repository, and their lines are said as there.
    """
    marker, inside = folder / "reached", folder / "inside"
    (folder / ".git").mkdir()
    write(inside, {"attn.py": CANDIDATES.format(marker=str(marker))})
    os.chdir(inside)
    first = node(nodes)
    process = command(nodes, "--json", "spread.json")
    wait_for(marker, process)
    node(nodes)
    nodes.remove_node(first, allow_graceful=False)
    out, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 1, (out, err)
    here = [*COMMAND, "check", "attn.py", *FEW, "-n", "2", "--json", "here.json"]
    assert subprocess.run(here, capture_output=True, check=False).returncode == 1
    spread, same = (
        json.loads((inside / f"{name}.json").read_text()) for name in ("spread", "here")
    )
    verdicts = {entry["name"]: entry["verdict"] for entry in spread["candidates"]}
    assert verdicts == {
        "my_kernel": "conforms",
        "waits": "conforms",
        "dies": "fails",
    }
    assert spread["candidates"][0]["location"]["file"] == "inside/attn.py"
    assert alike(spread) == alike(same)


@pytest.mark.nightly
def test_an_interrupt_ends_what_hangs_elsewhere(folder: Path, nodes: Any) -> None:
    """Ctrl-C leaves a record of what was done, and no candidate goes on anywhere."""
    process_id = folder / "process"
    body = f"    open({str(process_id)!r}, 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
    waits = f"    if query.shape[2] > 6:\n    {body.replace('    time', '        time')}"
    write(
        folder,
        {
            "attn.py": "import os, time\n"
            + KERNEL.replace("    return attend", f"{waits}    return attend")
        },
    )
    node(nodes)
    process = command(nodes, "--json", "spread.json", "--timeout", "500")
    wait_for(process_id, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST)
    assert (process.returncode, "Traceback" in err) == (130, False), (out, err)
    assert json.loads((folder / "spread.json").read_text())["interrupted"] is True
    with pytest.raises(ProcessLookupError):
        os.kill(int(process_id.read_text()), 0)


@pytest.mark.nightly
def test_a_lost_head_is_one_sentence(folder: Path, nodes: Any) -> None:
    """A head that is gone ends the run before Ray does, and the record has what was done."""
    marker = folder / "reached"
    write(folder, {"attn.py": CANDIDATES.format(marker=str(marker))})
    node(nodes)
    process = command(nodes, "--json", "spread.json", "--timeout", "500")
    wait_for(marker, process)
    for kind in nodes.head_node.all_processes.values():
        for each in kind:
            each.process.kill()
    out, err = process.communicate(timeout=LONGEST)
    assert (process.returncode, out) == (3, "")
    assert f"the head of the cluster, {nodes.address}, is gone" in err
    assert not {"Traceback", "rpc_client"} & set(err.replace(":", " ").replace(".", " ").split())
    kept = json.loads((folder / "spread.json").read_text())
    assert kept["interrupted"] is True
    assert any(entry["clauses"] for entry in kept["candidates"])


@pytest.mark.nightly
def test_what_is_compared_is_spread(folder: Path, nodes: Any) -> None:
    """``compare`` checks its targets on the cluster, and its record is that of this machine."""
    write(folder, {"attn.py": KERNEL + UNSCALED})
    node(nodes)
    records = []
    for spread in ((), ("--cluster", nodes.address, "--per-worker", "place=1")):
        arguments = [*COMMAND, "compare", "attn.py", *FEW, *spread, "--json", "out.json"]
        done = subprocess.run(arguments, capture_output=True, check=False, timeout=LONGEST)
        assert done.returncode == 1, done
        records.append(alike(json.loads((folder / "out.json").read_text())))
    assert records[0] == records[1]


@pytest.mark.nightly
def test_what_no_machine_has_is_refused(folder: Path, nodes: Any) -> None:
    """A share that no node can ever give is one sentence, not a run that waits."""
    write(folder, {"attn.py": KERNEL})
    process = command(nodes)
    _, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 2
    assert "no machine of the cluster" in err
    assert "num_cpus=1, place=1" in err


REFUSED = {
    ("--cluster", "garbage"): "is no address of Ray",
    ("--cluster", "127.0.0.1:99999"): "is no address of Ray",
    ("--cluster", f"127.0.0.1:{'9' * 5000}"): "is no address of Ray",
    ("--cluster", "..:6379"): "no Ray cluster answers at ..:6379",
    ("--cluster", "ray://127.0.0.1:10001"): "ray job submit",
    ("--cluster", "auto", "--watch"): "--watch runs on this machine",
    ("--cluster", "auto", "--per-worker", "num_gpus=nan"): "no amount of Ray",
    ("--cluster", "auto", "--database", "failures"): "is a folder of this machine",
    ("--per-worker", "num_gpus=1"): "give --cluster, too",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_what_cannot_be_spread_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """One sentence and exit code 2, before anything is started."""
    write(folder, {"attn.py": KERNEL})
    assert run(["check", "attn.py", *arguments]) == 2
    assert REFUSED[arguments] in capsys.readouterr().err


@pytest.mark.parametrize(
    "target", ["FOLDER/attn.py:my_kernel", "../attn.py:my_kernel", "~/attn.py", "../attn.onnx#2"]
)
def test_a_target_that_is_not_sent_is_refused(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    """The working folder travels: a path out of it, or one of this machine alone, is refused."""
    write(folder, {"attn.py": KERNEL, "attn.onnx": "", "here/other.py": KERNEL})
    monkeypatch.setenv("HOME", str(folder))
    os.chdir(folder if target.startswith("FOLDER") else folder / "here")
    assert run(["check", target.replace("FOLDER", str(folder)), "--cluster", "auto"]) == 2
    assert "would not be on the other machines" in capsys.readouterr().err


def test_no_cluster_at_an_address(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port at which nobody listens is said at once."""
    write(folder, {"attn.py": KERNEL})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert run(["check", "attn.py", "--cluster", address]) == 2
    assert f"no Ray cluster answers at {address}" in capsys.readouterr().err


def test_a_port_that_never_answers(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What accepts connections and says nothing is no cluster, and is not waited for."""
    write(folder, {"attn.py": KERNEL})
    monkeypatch.setattr(cluster, "_STATUS_LIMIT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert run(["check", "attn.py", "--cluster", address]) == 2
    assert "does not answer as a Ray cluster" in capsys.readouterr().err


def test_without_ray(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence says what to install."""
    write(folder, {"attn.py": KERNEL})
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda _name: None)
    assert run(["check", "attn.py", "--cluster", "local"]) == 2
    assert "pip install 'attention-conformance[ray]'" in capsys.readouterr().err


def test_another_version_on_a_machine_is_refused() -> None:
    """Records of two versions are not put together."""
    order = cluster.TaskOrder(
        options=RunOptions(targets=("attn.py",)),
        timeout=30.0,
        limit=None,
        version="0.0.1",
        plan=[],
        index=0,
    )
    ((tag, sentence),) = serve(order, None, None)
    assert tag == "refused"
    assert "this machine 0.0.1: install the same" in sentence


def test_the_time_that_is_left_travels() -> None:
    """A task counts from its own clock what is left of the run, under the run's limit."""
    order = cluster.TaskOrder(
        options=RunOptions(targets=()),
        timeout=30.0,
        limit=(60.0, 10.0),
        version="",
        plan=[],
        index=0,
    )
    deadline = order.deadline()
    assert isinstance(deadline, Deadline)
    assert deadline.sentence == "the limit of 60 s was reached"
    assert 9.0 < deadline.left() <= 10.0
