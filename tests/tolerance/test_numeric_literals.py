"""No number picked by hand decides a verdict: tolerances live in ``conformance.tolerance.model``.

What counts as a comparison against a literal tolerance:

1. A function of tolerances by name, imported, called or mentioned: ``FORBIDDEN``.
2. A *small number* (not zero, nearer to zero than ``SMALL``, written out or as arithmetic of
   literals such as ``2.0**-20`` or ``1 / 1000``) that takes part in a comparison: anywhere on
   either side of ``<``, ``<=``, ``>`` or ``>=``, as an argument of a call that is one (``lt``,
   ``torch.ge`` ...) or that clamps (``max``, ``clamp_min`` ...), be it written there, under a name
   that the file gives to it or to a product with it, or under the name of a constant of another
   file.
   A comparison with numbers just drawn (``torch.rand(...) < share``) draws, and does not count.
3. Rounding to some digits inside a comparison of any kind.
4. A keyword or parameter named like a tolerance whose value is a number other than zero.

``tolerance/model.py`` is where such numbers belong: it is not read, and its names may be used.
"""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from _paths import CHECKOUT

PACKAGE = CHECKOUT / "conformance"
MODEL = PACKAGE / "tolerance" / "model.py"
SMALL = 1 / 16
FORBIDDEN = frozenset(
    {
        "allclose",
        "approx",
        "assert_allclose",
        "assert_almost_equal",
        "assert_array_almost_equal",
        "assert_close",
        "assertAlmostEqual",
        "isclose",
    }
)
NAMED_TOLERANCES = frozenset(
    {"abs_tol", "atol", "eps", "epsilon", "rel_tol", "rtol", "tol", "tolerance"}
)
COMPARING_CALLS = frozenset(
    {"clamp", "clamp_max", "clamp_min", "clip", "fmax", "fmin", "max", "maximum", "min", "minimum"}
    | {"ge", "greater", "greater_equal", "gt", "le", "less", "less_equal", "lt"}
)
DRAWING_CALLS = frozenset({"rand", "random"})
# What may be a function of tolerances, a parameter named like one, and a comparison.
NAMING = (ast.Name, ast.Attribute, ast.Import, ast.ImportFrom)
BINDING = (ast.keyword, ast.arguments, ast.AnnAssign)
COMPARING = (ast.Compare, ast.Call)
ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def sources() -> list[Path]:
    """Every file that must be free of literal tolerances."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path != MODEL)


def value_of(node: ast.AST) -> float | None:
    """The value of a number or of arithmetic of numbers, else None."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = value_of(node.operand)
        return None if value is None else abs(value)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = value_of(node.left), value_of(node.right)
    if left is None or right is None:
        return None
    try:
        return float(eval(compile(ast.Expression(node), "", "eval")))  # noqa: S307 (numbers alone)
    except (ArithmeticError, TypeError):
        return None


def is_small(value: float) -> bool:
    return 0.0 < abs(value) < SMALL


def numbers_in(node: ast.AST) -> Iterator[float]:
    """The values of the largest pieces of literal arithmetic in an expression."""
    value = value_of(node)
    if value is not None:
        yield value
        return
    for child in ast.iter_child_nodes(node):
        yield from numbers_in(child)


def names_in(node: ast.AST) -> Iterator[str]:
    """Names that an expression reads, ``name`` of ``module.name`` too, but for the model's."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute) and not _is_model(inner.value):
            yield inner.attr


def _is_model(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "model"


def is_arithmetic(node: ast.AST) -> bool:
    """Whether an expression is a number, or a collection of them, or a product and the like."""
    return isinstance(node, (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.List, ast.Dict))


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node of a tree, found once."""
    return tuple(ast.walk(tree))


def small_names(tree: ast.AST) -> frozenset[str]:
    """Every name in a file that is ever bound to arithmetic with a small number."""
    names = set()
    for node in nodes(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            targets = [node.target]
        value = getattr(node, "value", None)
        if value is None or not is_arithmetic(value):
            continue
        if any(is_small(number) for number in numbers_in(value)):
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(names)


def constants(tree: ast.Module) -> frozenset[str]:
    """The small names that other files can import: those of the module itself."""
    return small_names(ast.Module([n for n in tree.body if not is_scope(n)], []))


def is_scope(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def bound_names(tree: ast.AST) -> frozenset[str]:
    """Names that a file assigns itself: they are not another file's constants."""
    stores = (n for n in nodes(tree) if isinstance(n, ast.Name))
    return frozenset(n.id for n in stores if isinstance(n.ctx, ast.Store))


@dataclass(frozen=True)
class Reader:
    """Finds the tolerances of one file, given the constants of all others."""

    tree: ast.Module
    elsewhere: frozenset[str]

    def complaints(self) -> list[str]:
        """A line for each literal tolerance."""
        small = small_names(self.tree)
        imported = self._imported_from_the_model()
        small_constants = small | (self.elsewhere - bound_names(self.tree) - imported)
        complaints = []
        for node in nodes(self.tree):
            if isinstance(node, NAMING):
                complaints += [(node, text) for text in _forbidden(node)]
            elif isinstance(node, BINDING):
                complaints += [(node, text) for text in _named(node)]
            elif isinstance(node, COMPARING):
                complaints += [(node, text) for text in _compared(node, small_constants)]
        return sorted(f"line {getattr(node, 'lineno', '?')}: {text}" for node, text in complaints)

    def _imported_from_the_model(self) -> frozenset[str]:
        return frozenset(
            alias.asname or alias.name
            for node in nodes(self.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == "model"
            for alias in node.names
        )


def _forbidden(node: ast.AST) -> Iterator[str]:
    names = [getattr(node, "id", None), getattr(node, "attr", None)]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [part for alias in node.names for part in alias.name.split(".")]
    yield from (f"{name} has tolerances of its own" for name in names if name in FORBIDDEN)


def _named(node: ast.AST) -> Iterator[str]:
    """Keywords and parameters named like a tolerance, with a number."""
    pairs: list[tuple[str | None, ast.AST | None]] = []
    if isinstance(node, ast.keyword):
        pairs = [(node.arg, node.value)]
    elif isinstance(node, ast.arguments):
        positional = node.posonlyargs + node.args
        defaults = [None] * (len(positional) - len(node.defaults)) + node.defaults
        names = [argument.arg for argument in positional + node.kwonlyargs]
        pairs = list(zip(names, [*defaults, *node.kw_defaults], strict=True))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        pairs = [(node.target.id, node.value)]
    for name, value in pairs:
        if name in NAMED_TOLERANCES and value is not None and value_of(value):
            yield f"{name} is the number {value_of(value)}"


def _compared(node: ast.AST, small_constants: frozenset[str]) -> Iterator[str]:
    """Small numbers and names of small numbers that take part in a comparison."""
    if isinstance(node, ast.Compare):
        sides: list[ast.expr] = [node.left, *node.comparators]
        if any(_rounds(inner) for side in sides for inner in ast.walk(side)):
            yield "a comparison of rounded numbers"
        if not any(isinstance(operator, ORDERINGS) for operator in node.ops) or any(
            isinstance(side, ast.Call) and _called(side) in DRAWING_CALLS for side in sides
        ):
            return
    elif isinstance(node, ast.Call) and _called(node) in COMPARING_CALLS:
        sides = [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        return
    for side in sides:
        yield from (f"compares with {number}" for number in numbers_in(side) if is_small(number))
        yield from (f"compares with {name}" for name in names_in(side) if name in small_constants)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _rounds(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not _called(node).startswith("round"):
        return False
    digits = [*node.args[1:], *(k.value for k in node.keywords if k.arg in ("ndigits", "decimals"))]
    return bool(digits)


def all_constants(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Small constants of some files."""
    return frozenset().union(*(constants(tree) for tree in trees))


@contextlib.contextmanager
def unsearched() -> Iterator[None]:
    """Make a million nodes without looking through them all, again and again, for garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_no_comparison_against_a_literal_tolerance() -> None:
    """No file but the error model holds a number that an answer is measured by."""
    with unsearched():
        trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources()}
        elsewhere = all_constants(trees.values())
        complaints = {
            str(path): Reader(tree, elsewhere).complaints() for path, tree in trees.items()
        }
    assert {path: lines for path, lines in complaints.items() if lines} == {}


PLANTED = {
    "torch.allclose(got, expected)": "allclose",
    "from math import isclose": "isclose",
    "import numpy.testing\nnumpy.testing.assert_allclose(got, expected)": "assert_allclose",
    "torch.testing.assert_close(got, expected)": "assert_close",
    "close = torch.isclose": "isclose",
    "assert got == pytest.approx(expected)": "approx",
    "wrong = error > 1e-3": "compares with 0.001",
    "wrong = 1e-3 < error": "compares with 0.001",
    "wrong = not error <= 0.05": "compares with 0.05",
    "wrong = error > -1e-3": "compares with 0.001",
    "wrong = error > 10**-4": "compares with 0.0001",
    "wrong = error > 2.0**-20": "compares with 9.5",
    "wrong = error > 1 / 1000": "compares with 0.001",
    "wrong = error > 1e-5 + 1e-3 * expected.abs()": "compares with 1e-05",
    "wrong = error.abs() - 1e-3 * size > 0": "compares with 0.001",
    "wrong = torch.gt(error, 1e-3)": "compares with 0.001",
    "wrong = error.le(other=1e-3)": "compares with 0.001",
    "least = max(bound, 1e-3)": "compares with 0.001",
    "bound = bound.clamp_min(1e-3)": "compares with 0.001",
    "while 0 < error < 1e-3: pass": "compares with 0.001",
    "LIMIT = 1e-3\nwrong = error > LIMIT": "compares with LIMIT",
    "LIMIT: Final = 1e-3\nwrong = error > 2 * LIMIT": "compares with LIMIT",
    "LIMITS = {'float32': 1e-3}\nwrong = error > LIMITS[dtype]": "compares with LIMITS",
    "def f(error):\n    limit = 1e-3 * size\n    return error > limit": "compares with limit",
    "class Rule:\n    limit = 1e-3\nwrong = error > Rule.limit": "compares with limit",
    "from .other import ELSEWHERE\nwrong = error > ELSEWHERE": "compares with ELSEWHERE",
    "from . import other\nwrong = error > other.ELSEWHERE": "compares with ELSEWHERE",
    "same = round(got, 6) == round(expected, 6)": "rounded",
    "same = got.round(decimals=6).equal(other) != torch.round(got, decimals=3)": "rounded",
    "compare(got, expected, rtol=1e-3)": "rtol is the number 0.001",
    "compare(got, expected, atol=2)": "atol is the number 2",
    "def compare(got, tolerance=1e-3): pass": "tolerance is the number",
    "def compare(got, *, eps=1e-3): pass": "eps is the number",
    "class Rule:\n    epsilon: float = 1e-3": "epsilon is the number",
}
HARMLESS = (
    "wrong = error > bound",
    "wrong = error > model.LIMIT * size",
    "from .tolerance.model import LIMIT\nwrong = error > LIMIT",
    "wrong = 0.0 < error",
    "wrong = margin > 1.0",
    "unit = 2.0**-24\nbound = unit * size",
    "kept = torch.rand(3) < 0.01",
    "compare(got, expected, rtol=0, atol=0.0)",
    "eps = torch.finfo(dtype).eps",
    "whole = counts.round() == counts",
    "tiny = values * 1e-30",
    "def f(ELSEWHERE):\n    ELSEWHERE = measured()\n    return error > ELSEWHERE",
)


def complaints(source: str) -> list[str]:
    return Reader(ast.parse(source), frozenset({"ELSEWHERE"})).complaints()


@pytest.mark.parametrize(("source", "reason"), PLANTED.items())
def test_a_planted_tolerance_is_found(source: str, reason: str) -> None:
    """Each way of writing a literal tolerance is seen, and named."""
    assert any(reason in complaint for complaint in complaints(source)), complaints(source)


@pytest.mark.parametrize("source", HARMLESS)
def test_what_is_no_tolerance_is_not_found(source: str) -> None:
    """Bounds, numbers of the model, counts, factors of inputs and drawn numbers are left alone."""
    assert complaints(source) == []


def test_the_whole_package_is_read() -> None:
    """The error model alone is left out, and it does hold small numbers."""
    left_out = set(PACKAGE.rglob("*.py")) - set(sources())
    assert left_out == {MODEL}
    assert constants(ast.parse(MODEL.read_text(encoding="utf-8")))
