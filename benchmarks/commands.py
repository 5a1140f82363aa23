"""What whole commands cost, in this checkout and beside it in another: for ``cost.py --commands``.

Each runs in a process of its own: the seconds of a processor, imports and workers included, the
calls of the candidate, which leave a byte each in a file, and the memory of the largest process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COUNTER: Final = "COST_COUNTER"
_CORE: Final = f"""
import os
import torch
import conformance

def attend(query, key, value, *, keep=None, causal=False):
    with open(os.environ["{COUNTER}"], "ab") as file:
        file.write(b".")
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
        seen = seen.tril(scores.shape[-1] - scores.shape[-2])
        scores = scores.masked_fill(~seen, -torch.inf)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ value
"""
_DECLARED: Final = """
attend = conformance.core(masks=["keep"], causal="bottom-right")(attend)
"""
_MODEL: Final = """
import torch
torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
"""
_JUDGE: Final = """
import os
from pathlib import Path
import conformance
text = Path("wrong.py").read_text()
with conformance.Judge() as judge:
    for _ in range(10):
        judge.check_source(text, "attend", exitfirst=True)
"""
_INVERTED: Final = "masked_fill(~keep", "masked_fill(keep"
FILES: Final[Mapping[str, str]] = {
    "core.py": _CORE + _DECLARED,
    "wrong.py": _CORE.replace(*_INVERTED) + _DECLARED,
    "undeclared.py": _CORE,
    "model.py": _MODEL,
    "judge.py": _JUDGE,
}
_CHECK: Final = ("-m", "conformance", "check")
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "smoke": (*_CHECK, "core.py:attend", "--profile", "smoke"),
    "quick": (*_CHECK, "core.py:attend", "--profile", "quick"),
    "full": (*_CHECK, "core.py:attend", "--profile", "full"),
    "first": (*_CHECK, "wrong.py:attend", "-x"),
    "identify": ("-m", "conformance", "identify", "undeclared.py:attend"),
    "model": (*_CHECK, "model.py:model"),
    "judge": ("judge.py",),
}


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a command took."""

    seconds: float
    calls: int
    megabytes: float

    def row(self) -> str:
        """Three columns."""
        return f"{self.seconds:9.1f} {self.calls:7d} {self.megabytes:7.0f}"


def spent(command: tuple[str, ...], tree: Path) -> Spent:
    """Run a command with the package of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        counter = Path(folder, "calls")
        counter.write_bytes(b"")
        own = {"PYTHONPATH": str(tree), COUNTER: str(counter), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=os.environ | own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0  # it has been waited for
        return Spent(
            seconds=usage.ru_utime + usage.ru_stime,
            calls=counter.stat().st_size,
            megabytes=usage.ru_maxrss / 1024.0,
        )


def print_commands(names: list[str], before: Path | None) -> None:
    """Print what commands take here, and to the left of that what they take in another checkout."""
    trees = [*([before] if before else []), Path(__file__).parents[1]]
    heading = f"{'seconds':>9} {'calls':>7} {'MiB':>7}"
    print(f"{'seconds of a processor':24}" + "   ".join(heading for _ in trees))
    for name in names or COMMANDS:
        columns = [spent(COMMANDS[name], tree.resolve()).row() for tree in trees]
        print(f"{name:24}" + "   ".join(columns), flush=True)
