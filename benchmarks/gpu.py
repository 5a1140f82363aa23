"""Whether torch's kernels on a GPU conform: the default profile, written down as markdown.

``python benchmarks/gpu.py [--device cuda] [--profile default] [--seed 0] [--markdown FILE]
[TARGET ...]`` checks the targets (torch's attention on that device unless others are given), and
writes the hardware, driver and versions, a verdict for each candidate, and every clause that
failed. ``gpu.md`` says how to install and what to record. Exits 2 in one sentence where the device
is absent or a target cannot be checked, 1 when a candidate does not conform.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from conformance.calls.devices import canonical, kind_of, module_of, offers, why_absent
from conformance.errors import UsageError

CHECKOUT: Final = Path(__file__).resolve().parents[1]
# What is declared for CUDA alone, and what is declared for a CPU and runs there as well.
TARGETS: Final = (
    str(CHECKOUT / "candidates/torch_cuda.py"),
    str(CHECKOUT / "candidates/torch_scaled_dot_product.py:torch_scaled_dot_product"),
    str(CHECKOUT / "candidates/torch_scaled_dot_product.py:torch_scaled_dot_product_math"),
    str(CHECKOUT / "candidates/torch_multihead_attention.py"),
    str(CHECKOUT / "candidates/eager.py"),
)
PACKAGES: Final = ("torch", "triton", "attention-conformance", "nvidia-cudnn-cu12", "numpy")
GIGABYTE: Final = 2**30

Record = dict[str, Any]


def main(words: Sequence[str]) -> int:
    """Check, write, and say whether everything conforms."""
    given = _arguments(words)
    to = given.markdown
    if to is not None and (to.is_dir() or not to.parent.is_dir()):
        sys.stderr.write(f"gpu: --markdown {to} cannot be written: name a file in a folder\n")
        return 2
    absent = why_absent(given.device)
    if absent:
        sys.stderr.write(f"gpu: {given.device} cannot be used here: {absent}\n")
        return 2
    device = canonical(given.device)
    started = time.perf_counter()
    records, faults = [], []
    for target in given.targets:
        try:
            records.append(_check(target, device, given))
        except UsageError as error:
            faults.append(f"gpu: {error}\n")
    sys.stderr.writelines(faults)
    if not records:
        return 2
    text = "\n".join(_page(device, records, given, time.perf_counter() - started))
    if to is None:
        sys.stdout.write(text + "\n")
    else:
        to.write_text(text + "\n", encoding="utf-8")
    if faults:
        return 2
    found = [entry["verdict"] for record in records for entry in record["candidates"]]
    return int(not all(verdict.startswith("conforms") for verdict in found))


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", default="default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args(words)


def _check(target: str, device: str, given: argparse.Namespace) -> Record:
    """The report of ``conformance check`` on the device, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.json"
        only = [word for glob in given.only for word in ("--only", glob)]
        command = [sys.executable, "-m", "conformance", "check", target, "--device", device]
        command += ["--profile", given.profile, "--seed", str(given.seed), *only]
        done = subprocess.run(
            [*command, "--json", str(path)], capture_output=True, text=True, check=False
        )
        if not path.exists():
            msg = f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}"
            raise UsageError(msg)
        return {**json.loads(path.read_text(encoding="utf-8")), "command": command[2:]}


def _page(
    device: str, records: Sequence[Record], given: argparse.Namespace, seconds: float
) -> Iterator[str]:
    """The whole page, line by line."""
    yield f"# {given.profile} profile on {device}, {time.strftime('%Y-%m-%d')}"
    yield ""
    yield from (f"- {what}: {value}" for what, value in _surroundings(device, records))
    yield f"- seed {given.seed}, {seconds:.0f} seconds in all"
    yield ""
    yield "| candidate | verdict | passed | failed | not applicable | seconds | worst margin |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for record in records:
        yield from map(_row, record["candidates"])
    yield ""
    failures = [line for record in records for line in _failures(record)]
    yield from failures or ["No clause failed."]


def _surroundings(device: str, records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Hardware, driver, versions."""
    yield "hardware", _hardware(device)
    yield "driver", _driver()
    yield "CUDA, cuDNN", f"{torch.version.cuda}, {torch.backends.cudnn.version()}"
    yield "versions", ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    yield "specification", str(records[0]["tool"]["specification"])
    matmul = torch.get_float32_matmul_precision()
    yield "float32 products", f"{matmul} (torch.get_float32_matmul_precision)"


def _hardware(device: str) -> str:
    if kind_of(device) == "cpu" or not offers(device, "get_device_properties"):
        return f"{platform.processor() or platform.machine()} ({device})"
    seen = module_of(device).get_device_properties(device)
    memory = getattr(seen, "total_memory", 0) / GIGABYTE
    capability = f"{getattr(seen, 'major', '?')}.{getattr(seen, 'minor', '?')}"
    return f"{seen.name}, {memory:.0f} GiB, compute capability {capability}"


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown (no nvidia-smi)"
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip().partition("\n")[0] or "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _row(entry: Record) -> str:
    counts = entry["counts"]
    margins = [c["margin"] for c in entry["clauses"] if c.get("margin") is not None]
    worst = f"{max(margins):.2g}" if margins else "-"
    numbers = [counts.get(word, 0) for word in ("passed", "failed", "not-applicable")]
    cells = [entry["name"], entry["verdict"], *numbers, f"{entry['seconds']:.0f}", worst]
    return f"| {' | '.join(map(str, cells))} |"


def _failures(record: Record) -> Iterator[str]:
    """Each clause that did not pass, with its first sentence."""
    for entry in record["candidates"]:
        for clause in entry["clauses"]:
            if clause["status"] in ("failed", "error", "untestable", "unexpected-pass"):
                where = f"{entry['name']} {clause['id']} [{clause['level']}, {clause['dtype']}]"
                yield f"- {where} {clause['status']}: {clause['reason']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
