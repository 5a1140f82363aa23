"""What a cluster of Ray costs over processes of one machine: the same run with 1, 2 and 4 workers.

``python benchmarks/cluster.py``: for each number of workers ``-n`` and ``--cluster`` in turn, on a
cluster of one node that stays up. Seconds are wall time; processor seconds are those of all
processes, Ray's own included, and are what another load on the machine changes little.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

import psutil

_STORE: Final = 128 * 1024 * 1024
_LOOK: Final = 0.5  # seconds
_UNLIKE: Final = ("seconds", "started")
_TARGETS: Final = (
    "candidates/token_attention.py",
    "candidates/per_head_matrices.py",
    "candidates/unbatched_attention.py",
    "candidates/wide_head_attention.py",
)
_CHECKOUT: Final = Path(__file__).resolve().parent.parent


class ProcessorTime:
    """Processor seconds of this process and all below it, also of those that have ended.

    Ray's processes do not collect those of theirs that end: each is looked at twice a second.
    """

    def __init__(self) -> None:
        self._seen: dict[psutil.Process, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._before = sum(self._seen.values())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
        self.seconds = sum(self._seen.values()) - self._before

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK):
            self._look()

    def _look(self) -> None:
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                times = process.cpu_times()
                self._seen[process] = times.user + times.system


def _run(record: Path, *arguments: str) -> tuple[float, float]:
    """Wall and processor seconds of one check; its record must be whole."""
    command = [sys.executable, "-m", "conformance", "check", *_TARGETS, "--dtype", "float32"]
    quick = ["--profile", "quick", "--json", str(record)]
    started = time.perf_counter()
    with ProcessorTime() as processor:
        done = subprocess.run(
            [*command, *quick, *arguments],
            cwd=_CHECKOUT,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in {0, 1}:
        sys.exit(done.stderr)
    return time.perf_counter() - started, processor.seconds


def _alike(value: Any) -> Any:
    """A record without what two runs never share."""
    if isinstance(value, dict):
        return {key: _alike(entry) for key, entry in value.items() if key not in _UNLIKE}
    return [_alike(entry) for entry in value] if isinstance(value, list) else value


def main() -> None:
    """Print a row for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="1,2,4", metavar="N,...")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster  # noqa: PLC0415 (an extra)

    print("| workers | `-n` s | `--cluster` s | ratio | `-n` CPU s | `--cluster` CPU s | ratio |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for workers in map(int, options.workers.split(",")):
            head = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": _STORE}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            here, there = Path(folder, "here.json"), Path(folder, "there.json")
            try:
                wall, processor = _run(here, "-n", str(workers))
                many = ("-n", str(workers), "--cluster", cluster.address)
                spread_wall, spread_processor = _run(there, *many)
            finally:
                cluster.shutdown()
            if _alike(json.loads(here.read_text())) != _alike(json.loads(there.read_text())):
                sys.exit("the records differ")
            print(
                f"| {workers} | {wall:.0f} | {spread_wall:.0f} | {spread_wall / wall:.2f} "
                f"| {processor:.0f} | {spread_processor:.0f} "
                f"| {spread_processor / processor:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
