"""Whether the tests of every run catch what the nightly ones do: the harness, broken on purpose.

``python benchmarks/mutation.py [--mutants 80] [--seed 0] [--only tolerance] [--json FILE]
[--markdown FILE]`` breaks one place after the other in a copy of the checkout:
comparison, tolerance, clauses, runner and diagnosis. For each the tests that mirror the part run
until one fails. With ``--nightly`` the nightly tests of these files run for each survivor of an
earlier run instead. It exits with 1 when a nightly test kills what survives the others.

It needs ``pip install cosmic-ray``, whose operators write the mutants. A JSON file of an earlier
run is continued. Who reads a survivor and sees that it computes the same writes why into its
``equivalent``; it is then no longer counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import onnx  # noqa: F401 (loaded once, for all tests)
import pytest
import torch  # noqa: F401
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
# A module that more test files import than these is judged by what mirrors it alone.
MOST_NEAR: Final = 4
SOUND: Final = "tests/test_errors.py"  # it passes, unless no test can run
LONGEST: Final = 1800.0  # seconds: a mutant that never ends is killed


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the harness, its share of the mutants, and where its tests are.

    Of the tests those run that mirror or import the broken module; ``without`` are for a module
    that has none of its own.
    """

    name: str
    files: tuple[str, ...]
    share: float
    tests: tuple[str, ...]
    without: tuple[str, ...]


PARTS: Final = (
    Part(
        name="comparison",
        files=("conformance/oracle/comparison.py", "conformance/oracle/yardstick.py"),
        share=0.16,
        tests=("tests/oracle",),
        without=("tests/clauses/test_judging.py", "tests/clauses/test_numerics.py"),
    ),
    Part(
        name="tolerance",
        files=("conformance/tolerance/*.py",),
        share=0.22,
        tests=("tests/tolerance",),
        without=("tests/tolerance/test_gradients.py", "tests/tolerance/test_legitimate.py"),
    ),
    Part(
        name="clauses",
        files=("conformance/clauses/*.py",),
        share=0.26,
        tests=("tests/clauses",),
        without=("tests/tools/teeth/test_teeth.py",),
    ),
    Part(
        name="runner",
        files=("conformance/running/*.py",),
        share=0.16,
        tests=("tests/running", "tests/session"),
        without=("tests/running/test_runner.py",),
    ),
    Part(
        name="diagnosis",
        files=("conformance/diagnosis/*.py",),
        share=0.2,
        tests=("tests/diagnosis",),
        without=("tests/diagnosis/test_diagnostician.py",),
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


def without_signatures(code: str) -> str:
    """The syntax of a module without annotations and ways to pass arguments; "" for none.

    No test can see these change.
    """
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a unary operator may be deleted in front of what needs it
        return ""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                setattr(node, name, ast.Constant(None))
        if isinstance(node, ast.arguments):
            node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            node.defaults += [default for default in node.kw_defaults if default is not None]
            node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
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
    if broken is None or without_signatures(broken) in ("", without_signatures(code)):
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
    samples: list[list[Mutant]] = []
    for part in PARTS:
        if only is not None and only != part.name:
            continue
        by_line = places(part)
        lines = drawn.sample(sorted(by_line), len(by_line))
        each = (mutant(part, line[0], *drawn.choice(by_line[line])) for line in lines)
        mutants = (one for one in each if one is not None)
        samples.append(list(islice(mutants, round(part.share * count))))
    # The parts in turn: what ends early has some of each.
    return [one for turn in zip_longest(*samples) for one in turn if one is not None]


def tests_of(part: Part, tree: Path, broken: str) -> list[Path]:
    """The test files for a broken module: what mirrors it first, then what imports it."""
    module = Path(broken).stem
    files = [file for folder in part.tests for file in sorted((tree / folder).rglob("test_*.py"))]
    imported = re.compile(rf"\b{Path(broken).parent.name}(\.| import .*\b){module}\b")
    mirrored = [file for file in files if file.stem == f"test_{module}"]
    near = [file for file in files if imported.search(file.read_text(encoding="utf-8"))]
    near = near if len(near) <= MOST_NEAR else []
    return list(dict.fromkeys((*mirrored, *near))) or [tree / name for name in part.without]


def run_tests(words: Sequence[str], tree: Path, output: Path) -> None:
    """Run pytest in this process, which a fork of the benchmark is: torch is loaded already."""
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    environment = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CI": "true"}
    os.environ.update(environment)
    with output.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
        os._exit(int(pytest.main(list(words))))


def killer(tree: Path, tests: Sequence[Path | str], *options: str) -> str:
    """The test that fails first, "too slow" or "no import" for none of them, "" if all pass."""
    words = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", *options, *map(str, tests)]
    output = tree / "output.txt"
    process = get_context("fork").Process(target=run_tests, args=(words, tree, output))
    process.start()
    process.join(LONGEST)
    if process.exitcode is None:
        process.kill()
        process.join()
        return "too slow"
    if process.exitcode in (0, 5):  # 5: nothing is collected
        return ""
    failed = re.search(
        r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output.read_text("utf-8"), re.MULTILINE
    )
    return failed[1] if failed else "no import"


def killed_by(one: Mutant, tree: Path, *options: str) -> str:
    """The test that kills a mutant, or "" where all of them pass."""
    (part,) = (part for part in PARTS if part.name == one.part)
    path = tree / one.file
    before = path.read_text(encoding="utf-8")
    path.write_text(one.code, encoding="utf-8")
    try:
        return killer(tree, tests_of(part, tree, one.file), *options)
    finally:
        path.write_text(before, encoding="utf-8")


def check_sound(rows: Sequence[dict[str, Any]], tree: Path) -> None:
    """Require that what killed the mutants passes unbroken: else it would kill any mutant."""
    killers = {str(row[key]) for row in rows for key in ("killed_by", "killed_at_night_by")}
    failed = killer(tree, sorted(test for test in killers if "::" in test), "-m", "")
    if failed:
        sys.exit(f"mutation.py: {failed} fails where nothing is broken: mend it first")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The counts of each part, and what lives and is another program, as markdown."""
    counted = [row for row in rows if not row["equivalent"]]
    lines = [
        "| part | mutants | of them equivalent | killed each time | killed at night alone | live |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    names = [part.name for part in PARTS if any(row["part"] == part.name for row in rows)]
    for name in (*names, "all"):
        drawn = [row for row in rows if name in (row["part"], "all")]
        mine = [row for row in counted if name in (row["part"], "all")]
        fast = sum(bool(row["killed_by"]) for row in mine)
        night = sum(bool(row["killed_at_night_by"]) for row in mine)
        counts = (len(drawn), len(drawn) - len(mine), fast, night, len(mine) - fast - night)
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    for row in counted:
        if not row["killed_by"]:
            late = row["killed_at_night_by"] or "nobody"
            lines += ["", f"- `{row['file']}` {row['change']}: killed by {late}"]
    return "\n".join(lines) + "\n"


def survivors(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Mutant]]:
    """What no test of every run killed, with the broken code as the file is now."""
    for row in rows:
        if row["killed_by"] or row["killed_at_night_by"] is not None or row["equivalent"]:
            continue
        (part,) = (part for part in PARTS if part.name == row["part"])
        one = mutant(part, ROOT / row["file"], row["operator"], row["occurrence"])
        if one is None or one.change != row["change"]:
            sys.exit(f"mutation.py: {row['file']} is another than the one that was broken")
        yield row, one


def main() -> int:
    """Break, test, and write down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[part.name for part in PARTS])
    parser.add_argument("--nightly", action="store_true")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--json", type=Path, default=Path("mutation.json"))
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    until = time.monotonic() + 60.0 * options.minutes
    written = options.json.exists() and json.loads(options.json.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = written or []

    def keep(row: dict[str, Any]) -> None:
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
        print({key: row[key] for key in ("file", "change", "killed_by", "killed_at_night_by")})

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("conformance", "reference", "candidates", "tests", "docs", "benchmarks"):
            shutil.copytree(ROOT / name, tree / name)
        for file in (path for path in ROOT.iterdir() if path.is_file()):
            shutil.copy(file, folder)
        if killer(tree, [SOUND]):
            sys.exit(f"mutation.py: {SOUND} fails where nothing is broken")
        if options.nightly:
            for row, one in survivors(rows):
                row["killed_at_night_by"] = killed_by(one, tree, "-m", "nightly")
                keep(row)
        else:
            ready = {(row["file"], row["change"]) for row in rows}
            for one in chosen(options.mutants, options.seed, options.only):
                if (one.file, one.change) in ready or time.monotonic() > until:
                    continue
                shown = {name: value for name, value in asdict(one).items() if name != "code"}
                killed = killed_by(one, tree)
                rows.append(
                    {**shown, "killed_by": killed, "killed_at_night_by": None, "equivalent": ""}
                )
                keep(rows[-1])
        check_sound(rows, tree)
    text = table(rows)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    return int(any(row["killed_at_night_by"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
