"""Whether the tests of every run catch what the nightly ones do: the harness, broken on purpose.

``python benchmarks/mutation.py [--mutants 70] [--seed 0] [--only tolerance] [--json FILE]
[--markdown FILE] [--python PYTHON]`` breaks one place after the other in a copy of the checkout:
comparison, tolerance, clauses, runner and diagnosis. For each the tests that mirror the part run
until one fails. Where no test of every run does, the nightly ones of the same files run, too. It
exits with 1 when a nightly test kills what survives the others.

It needs ``pip install cosmic-ray``, whose operators write the mutants. PYTHON is the interpreter
of the tests, by default the one that runs this. A JSON file of an earlier run is continued.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT: Final = Path(__file__).resolve().parents[1]
# Of each kind the mutants that change a value: what raises at import is killed by anything.
OPERATORS: Final = (
    *("ReplaceBinaryOperator_" + pair for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul")),
    *("ReplaceBinaryOperator_" + pair for pair in ("BitAnd_BitOr", "BitOr_BitAnd", "Pow_Mul")),
    *("ReplaceComparisonOperator_" + pair for pair in ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Gt")),
    *("ReplaceComparisonOperator_" + pair for pair in ("Gt_GtE", "Gt_Lt", "GtE_Lt", "Is_IsNot")),
    *("ReplaceComparisonOperator_" + pair for pair in ("IsNot_Is", "LtE_Lt", "GtE_Gt", "Lt_Gt")),
    *("ReplaceUnaryOperator_Delete_" + name for name in ("Not", "Invert", "USub")),
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse"),
    *("ReplaceFalseWithTrue", "NumberReplacer", "ZeroIterationForLoop", "ReplaceContinueWithBreak"),
)
LONGEST: Final = 1800.0  # seconds: a mutant that never ends is killed


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the harness, its share of the mutants, and the tests that run for it, in order."""

    name: str
    files: tuple[str, ...]
    share: float
    tests: tuple[str, ...]


TEETH: Final = "tests/tools/teeth/test_teeth.py"
PARTS: Final = (
    Part(
        name="comparison",
        files=("conformance/oracle/comparison.py", "conformance/oracle/yardstick.py"),
        share=0.18,
        tests=("tests/oracle", "tests/running/test_runner.py", "tests/clauses/test_judging.py",
               "tests/clauses/test_numerics.py", "tests/clauses/test_shape.py"),
    ),
    Part(
        name="tolerance",
        files=("conformance/tolerance/*.py",),
        share=0.24,
        tests=("tests/tolerance", "tests/clauses/test_numerics.py"),
    ),
    Part(
        name="clauses",
        files=("conformance/clauses/*.py",),
        share=0.24,
        tests=("tests/clauses", TEETH),
    ),
    Part(
        name="runner",
        files=("conformance/running/*.py",),
        share=0.16,
        tests=("tests/running/test_*.py", "tests/running/shrinking",
               "tests/session/test_merging.py", "tests/clauses/test_registry.py"),
    ),
    Part(
        name="diagnosis",
        files=("conformance/diagnosis/*.py",),
        share=0.18,
        tests=("tests/diagnosis",),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One place that is broken: the file, the operator and which of its occurrences."""

    part: str
    file: str
    operator: str
    occurrence: int
    change: str
    code: str


def without_annotations(code: str) -> str:
    """The syntax of a module without annotations, which no test can see change; "" for none."""
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a unary operator may be deleted in front of what needs it
        return ""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


def change_of(before: str, after: str) -> str:
    """The first line that differs, as it was and as it is."""
    numbered = enumerate(zip(before.splitlines(), after.splitlines(), strict=False), 1)
    number, old, new = next((n, a.strip(), b.strip()) for n, (a, b) in numbered if a != b)
    return f"{number}: {old} → {new}"


def places(part: Part) -> dict[tuple[Path, int], list[tuple[str, int]]]:
    """The operators that apply in each line of a part, with their occurrences in the file."""
    found: dict[tuple[Path, int], list[tuple[str, int]]] = {}
    for file in sorted(path for glob in part.files for path in ROOT.glob(glob)):
        nodes = list(ast_nodes(get_ast(file.read_text(encoding="utf-8"))))
        for name in OPERATORS:
            operator = get_operator(f"core/{name}")()
            positions = (
                position for node in nodes for position in operator.mutation_positions(node)
            )
            for occurrence, ((line, _), _) in enumerate(positions):
                found.setdefault((file, line), []).append((name, occurrence))
    return found


def mutant(part: Part, file: Path, name: str, occurrence: int) -> Mutant | None:
    """A mutant, or None where it is no other program."""
    code = file.read_text(encoding="utf-8")
    broken = mutate_code(code, get_operator(f"core/{name}")(), occurrence)
    if broken is None or without_annotations(broken) in ("", without_annotations(code)):
        return None
    return Mutant(
        part=part.name,
        file=file.relative_to(ROOT).as_posix(),
        operator=name,
        occurrence=occurrence,
        change=change_of(code, broken),
        code=broken,
    )


def chosen(count: int, seed: int, only: str | None) -> list[Mutant]:
    """A sample of the mutants of every part, of each line at most one."""
    drawn = random.Random(seed)  # noqa: S311 (no secret)
    sample: list[Mutant] = []
    for part in PARTS:
        if only is not None and only != part.name:
            continue
        by_line = places(part)
        lines = drawn.sample(sorted(by_line), len(by_line))
        each = (mutant(part, line[0], *drawn.choice(by_line[line])) for line in lines)
        sample += islice((one for one in each if one is not None), round(part.share * count))
    return sample


def killer(tree: Path, python: str, tests: Sequence[str], *options: str, mirrored: str) -> str:
    """The test that fails first, "too slow" or "no import" for none of them, "" if all pass."""
    named = [path for test in tests for path in sorted(tree.glob(test))]
    files = [file for path in named for file in (sorted(path.rglob("test_*.py")) or [path])]
    paths = sorted(files, key=lambda path: path.stem != f"test_{mirrored}")
    words = [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *options]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CI": "true"}
    try:
        done = subprocess.run(
            [*words, *map(str, paths)],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return "too slow"
    if done.returncode in (0, 5):  # 5: nothing is collected
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "no import"


def check_sound(name: str, tree: Path, python: str) -> None:
    """Require that the tests of a part pass unbroken: one that fails would kill any mutant."""
    (part,) = (part for part in PARTS if part.name == name)
    failed = killer(tree, python, part.tests, mirrored="")
    if failed:
        sys.exit(f"mutation.py: {failed} fails where nothing is broken: mend it first")


def run(one: Mutant, tree: Path, python: str) -> dict[str, Any]:
    """What becomes of a mutant: the tests that kill it, each time or at night."""
    (part,) = (part for part in PARTS if part.name == one.part)
    path, started = tree / one.file, time.monotonic()
    before = path.read_text(encoding="utf-8")
    path.write_text(one.code, encoding="utf-8")
    try:
        fast = killer(tree, python, part.tests, mirrored=path.stem)
        night = (
            "" if fast else killer(tree, python, part.tests, "-m", "nightly", mirrored=path.stem)
        )
    finally:
        path.write_text(before, encoding="utf-8")
    shown = {name: value for name, value in asdict(one).items() if name != "code"}
    seconds = round(time.monotonic() - started, 1)
    return {**shown, "killed_by": fast, "killed_at_night_by": night, "seconds": seconds}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The counts of each part, and the survivors, as markdown."""
    lines = [
        "| part | mutants | killed each time | killed at night alone | survive |",
        "|---|--:|--:|--:|--:|",
    ]
    names = [part.name for part in PARTS if any(row["part"] == part.name for row in rows)]
    for name in (*names, "all"):
        mine = [row for row in rows if name in (row["part"], "all")]
        fast = sum(bool(row["killed_by"]) for row in mine)
        night = sum(bool(row["killed_at_night_by"]) for row in mine)
        lines.append(f"| {name} | {len(mine)} | {fast} | {night} | {len(mine) - fast - night} |")
    for row in rows:
        if not row["killed_by"]:
            late = row["killed_at_night_by"] or "nobody"
            lines += ["", f"- `{row['file']}` {row['change']}: killed by {late}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Break, test, and write down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=70)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[part.name for part in PARTS])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--json", type=Path, default=Path("mutation.json"))
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    until = time.monotonic() + 60.0 * options.minutes
    written = options.json.exists() and json.loads(options.json.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = written or []
    ready = {(row["file"], row["change"]) for row in rows}
    sound: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("conformance", "reference", "candidates", "tests", "docs", "benchmarks"):
            shutil.copytree(ROOT / name, Path(folder, name))
        for file in (path for path in ROOT.iterdir() if path.is_file()):
            shutil.copy(file, folder)
        for one in chosen(options.mutants, options.seed, options.only):
            if (one.file, one.change) in ready or time.monotonic() > until:
                continue
            if one.part not in sound:
                check_sound(one.part, Path(folder), options.python)
                sound.add(one.part)
            rows.append(run(one, Path(folder), options.python))
            options.json.write_text(
                json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8"
            )
            print({name: rows[-1][name] for name in ("file", "change", "killed_by", "seconds")})
    text = table(rows)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    return int(any(row["killed_at_night_by"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
