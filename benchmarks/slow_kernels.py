"""What a mistake of a slow kernel costs until it is told: calls of the candidate, and seconds.

``python benchmarks/slow_kernels.py`` checks ten mutants, of two Triton kernels in the interpreter
and of a core that waits half a second in each call, with ``exitfirst``: once for the verdict alone,
once with a smaller example and a name. Each call of a mutant leaves a byte in a file, which is
counted. It exits 1 when a mutant is not caught, or the goals are missed: at most 15 calls in the
median, and 40 in nine of ten. Triton must be installed, no GPU is needed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from conformance.tools.judge import check

MEDIAN_CALLS: Final = 15
MOST_CALLS: Final = 40
COUNTER: Final = "SLOW_KERNELS_COUNTER"
SLEEP: Final = "SLOW_KERNELS_SECONDS"
_COUNTED: Final = f"""
import os
import time
import torch
import conformance

def _count():
    with open(os.environ["{COUNTER}"], "ab") as file:
        file.write(b".")
"""
# Dao, "FlashAttention-2", 2023, algorithm 1: the kernel of candidates/triton_attention.py.
_ONLINE: Final = """
@conformance.core(
    causal="bottom-right", empty_rows="zeros", features=["scale", "gqa"], without=["gradients"],
    accumulate="float32", scores="fused",
)
def attend(query, key, value, *, causal=False, scale=None):
    _count()
    if key.shape[:3] != value.shape[:3] or query.shape[3] != key.shape[3]:
        raise ValueError("shapes do not belong together")
    output = query.new_empty(*query.shape[:3], value.shape[3])
    factor = query.shape[3] ** -0.5 if scale is None else scale
    if output.numel():
        run(query, key, value, output, causal=causal, scale=factor)
    return output
"""
# A program for each row of queries, which sees all keys at once; a mask of kept keys.
_BY_ROW: Final = """
import triton
import triton.language as tl

def _row(
    query, key, value, keep, output, heads, queries, keys, channels, scale,
    key_block: tl.constexpr, block: tl.constexpr, masked: tl.constexpr,
):
    row, pair = tl.program_id(0), tl.program_id(1)
    across, down = tl.arange(0, block), tl.arange(0, key_block)
    held = (down[:, None] < keys) & (across[None, :] < channels)
    place = pair * keys * channels + down[:, None] * channels + across[None, :]
    own = (pair * queries + row) * channels + across
    q = tl.load(query + own, mask=across < channels, other=0.0)
    k = tl.load(key + place, mask=held, other=0.0)
    scores = tl.sum(k * q[None, :], 1) * scale
    seen = down < keys
    if masked:
        item = pair // heads
        kept = tl.load(keep + (item * queries + row) * keys + down, mask=seen, other=0)
        seen = seen & (kept != 0)
    scores = tl.where(seen, scores, -float("inf"))
    largest = tl.max(scores, 0)
    weights = tl.exp(scores - tl.where(largest == -float("inf"), 0.0, largest))
    total = tl.sum(weights, 0)
    v = tl.load(value + place, mask=held, other=0.0)
    mixed = tl.sum(weights[:, None] * v, 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(output + own, mixed, mask=across < channels)

_kernel = triton.jit(_row, do_not_specialize=("heads", "queries", "keys", "channels"))

@conformance.core(
    masks=["keep"], mask_shapes=["B1QK"], empty_rows="zeros", without=["gradients"],
    geometry={"value_head_size": "head_size"},
)
def attend(query, key, value, *, keep=None):
    _count()
    if key.shape != value.shape or query.shape[3] != key.shape[3]:
        raise ValueError("shapes do not belong together")
    batch, heads, queries, channels = query.shape
    keys = key.shape[2]
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    if keep is not None and keep.shape[-1] != keys:
        raise ValueError("the mask does not belong to the keys")
    masked = keep is not None
    keep = keep.to(torch.int8).contiguous() if masked else torch.ones(1, dtype=torch.int8)
    output = torch.empty_like(query)
    if output.numel():
        _kernel[(queries, batch * heads)](
            query, key, value, keep, output, heads, queries, keys, channels, channels**-0.5,
            key_block=triton.next_power_of_2(max(keys, 2)),
            block=triton.next_power_of_2(max(channels, 2)), masked=masked,
        )
    return output
"""
_WAITING: Final = f"""
@conformance.core(
    masks=["keep"], causal="bottom-right", empty_rows="zeros", features=["scale", "gqa"],
    without=["gradients"],
)
def attend(query, key, value, *, keep=None, causal=False, scale=None):
    _count()
    time.sleep(float(os.environ["{SLEEP}"]))
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal:
        seen = seen.tril(scores.shape[-1] - scores.shape[-2])
    if keep is not None:
        seen = seen & keep
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return weights @ value
"""


@dataclass(frozen=True)
class Mutant:
    """A kernel with one place of its text changed."""

    name: str
    kernel: str
    old: str
    new: str

    def source(self) -> str:
        """The text; raises ValueError where the place is not there once."""
        text = _kernels()[self.kernel]
        if text.count(self.old) != 1:
            msg = f"{self.name}: the kernel has {text.count(self.old)} times {self.old!r}"
            raise ValueError(msg)
        return _COUNTED + text.replace(self.old, self.new)


def _kernels() -> dict[str, str]:
    forward = Path(__file__).parents[1] / "candidates" / "_triton_forward.py"
    online = forward.read_text(encoding="utf-8").replace("from __future__ import annotations", "")
    return {"online": online + _ONLINE, "by row": _BY_ROW, "waiting": _WAITING}


MUTANTS: Final = (
    Mutant("total not shrunk", "online", "total * shrink + tl", "total + tl"),
    Mutant("answer not shrunk", "online", "mixed = mixed * shrink[:, None]", "mixed = mixed"),
    Mutant(
        "diagonal at the first key", "online", "        key_length - query_length,", "        0,"
    ),
    Mutant("scale of a given one", "online", "** -0.5 if scale is None else scale", "** -0.5"),
    Mutant("mask of the first item", "by row", "item = pair // heads", "item = 0"),
    Mutant("scale missing", "by row", "channels**-0.5,", "1.0,"),
    Mutant("last key lost", "by row", "seen = down < keys", "seen = down < keys - 1"),
    Mutant(
        "heads in turn",
        "waiting",
        "value.repeat_interleave(group, 1)",
        "value.repeat(1, group, 1, 1)",
    ),
    Mutant("mask inverted", "waiting", "seen & keep", "seen & ~keep"),
    Mutant(
        "mask dropped by causal",
        "waiting",
        "    if keep is not None:\n",
        "    if keep is not None and not causal:\n",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a check said of a mutant, and what it cost."""

    caught: bool
    clause: str
    cause: str
    calls: int
    seconds: float


def told(mutant: Mutant, folder: Path, *, explain: bool) -> Told:
    """Check a mutant until its first failure."""
    file, counter = folder / "mutant.py", folder / "calls"
    file.write_text(mutant.source(), encoding="utf-8")
    counter.write_bytes(b"")
    started = time.perf_counter()
    (report,) = check(f"{file}:attend", exitfirst=True, explain=explain).candidates
    seconds = time.perf_counter() - started
    cause = next(iter(report.causes), None)
    return Told(
        caught=report.verdict == "fails",
        clause=cause.clauses[0] if cause else "",
        cause=cause.name if cause else "",
        calls=counter.stat().st_size,
        seconds=seconds,
    )


def rows(mutants: Sequence[Mutant], *, explain: bool) -> Iterator[Told]:
    """What each mutant costs, printed line by line."""
    for mutant in mutants:
        with tempfile.TemporaryDirectory() as folder:
            os.environ[COUNTER] = str(Path(folder, "calls"))
            row = told(mutant, Path(folder), explain=explain)
        named = f", {row.cause}" if explain else ""
        where = f"{mutant.kernel}: {mutant.name}"
        print(
            f"{row.calls:5d} calls {row.seconds:6.1f} s  {where}: {row.clause}{named}", flush=True
        )
        yield row


def main() -> int:
    """Measure, print, and return 1 where a mutant is not caught or a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a call that waits")
    parser.add_argument("--only", default="", help="mutants whose kernel has this name")
    options = parser.parse_args()
    os.environ[SLEEP], os.environ["TRITON_INTERPRET"] = str(options.seconds), "1"
    mutants = [one for one in MUTANTS if options.only in one.kernel]
    met = True
    for explain in (False, True):
        print("with a smaller example and a name" if explain else "the verdict alone")
        every = list(rows(mutants, explain=explain))
        calls = sorted(row.calls for row in every)
        ninth = calls[(len(calls) * 9 - 1) // 10]
        caught = sum(row.caught for row in every)
        print(f"{caught} of {len(every)} caught; {median(calls):g} calls in the median, ", end="")
        print(f"{ninth} in nine of ten; {median(row.seconds for row in every):.1f} s in the median")
        met = met and caught == len(every) and median(calls) <= MEDIAN_CALLS and ninth <= MOST_CALLS
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
