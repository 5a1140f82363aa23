"""Imports point one way: candidates → conformance → reference, and layer by layer inside."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from _paths import CHECKOUT

# From the bottom up. A module may import from its own layer and from those above it in this list. A
# new module must be added here; the narrowest pattern is the name itself.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "words",
        (
            "_golden",
            "beside",
            "clock",
            "covering",
            "compiled_names",
            "dtypes",
            "errors",
            "expected",
            "expected_file",
            "expected_lines",
            "geometry",
            "limits",
            "mistake",
            "parameter_names",
            "printable",
            "profile",
            "raised",
            "results",
            "shard",
            "tables",
            "tally",
        ),
    ),
    ("graphs", ("graphs", "graphs.*")),
    (
        "declaration",
        ("candidate", "declaration", "declare", "layout_promises", "operators", "promises"),
    ),
    ("tolerance", ("double_double*", "tolerance*")),
    ("adapters", ("adapters", "adapters.*")),
    ("targets", ("loading", "preflight", "registered", "targets", "whereabouts")),
    (
        "problem",
        (
            "arrangements",
            "caching",
            "draft",
            "genericity",
            "inputs",
            "layouts",
            "mask_patterns",
            "materialise",
            "overriding",
            "problem",
            "recipes",
            "settling",
            "space",
        ),
    ),
    (
        "judgement",
        (
            "allocations",
            "arrays",
            "calling",
            "combinations",
            "comparison",
            "edits",
            "devices",
            "differentiating",
            "edges",
            "gradient_headroom",
            "gradient_oracle",
            "headroom",
            "integrity",
            "intercepting",
            "long_sequences",
            "oracle",
            "plain_tensor",
            "peak_memory",
            "placing",
            "recording",
            "relation",
            "strategies",
            "stretching",
            "scale_error",
            "torch_state",
            "weight_leaves",
            "yardstick",
        ),
    ),
    ("clauses", ("clause_checks", "clauses", "clauses.*", "differentiator", "registry", "subject")),
    (
        "runner",
        (
            "answering",
            "applicability",
            "asking",
            "attention_told",
            "clause_facts",
            "control",
            "counterexample",
            "diagnosis",
            "diagnosis.*",
            "exporting",
            "exporting.blame",
            "exporting.influence",
            "exporting.sentence",
            "exporting.stages",
            "exporting.steps",
            "exporting.trail",
            "exporting.views",
            "memory",
            "mistakes",
            "mistakes.*",
            "mistakes_document",
            "pool",
            "precision_diagnosis",
            "precision_losses",
            "questions",
            "reduction",
            "roundings",
            "runner",
            "simplification",
            "smallest",
        ),
    ),
    (
        "process",
        (
            "bundles",
            "bundles.arrays",
            "bundles.details",
            "bundles.job",
            "crew",
            "databases",
            "declared_at",
            "environment",
            "heard",
            "loaded",
            "messages",
            "remembering",
            "replaying",
            "outcomes",
            "starvation",
            "supervisor",
            "worker",
        ),
    ),
    (
        "session",
        (
            "accepting",
            "announcing",
            "bundles.page",
            "bundles.rehearsal",
            "bundles.showing",
            "bundles.told",
            "bundles.writing",
            "checking",
            "comparing",
            "diffing",
            "diffing.*",
            "estimate",
            "expectations",
            "expected_text",
            "exploring",
            "folders",
            "exporting.asking",
            "exporting.exporter",
            "exporting.job",
            "exporting.opening",
            "exporting.session",
            "exporting.trying",
            "identification",
            "identification.*",
            "judging",
            "renewing",
            "recorded",
            "merging",
            "merging.*",
            "partial",
            "replay",
            "report",
            "script",
            "script_code",
            "script_sources",
            "selection",
            "spreading",
            "teeth",
            "teeth.*",
            "vectors",
            "vectors.*",
        ),
    ),
    (
        "surfaces",
        (
            "cases",
            "catalogue",
            "pictures",
            "pictures.*",
            "pytest_*",
            "reports",
            "reports.*",
            "specification",
            "suites",
        ),
    ),
    ("command", ("__init__", "__main__", "cli", "commands", "commands.*")),
)

# What each package may import besides the standard library and itself.
MAY_IMPORT = {
    "reference": {"torch"},
    "conformance": {
        "click",
        "hypothesis",
        "jinja2",
        "numpy",
        "onnx",
        "onnxruntime",
        "pytest",
        "_pytest",
        "redis",
        "reference",
        "rich",
        "safetensors",
        "tomlkit",
        "torch",
        "xdist",
    },
    # Triton only where it is installed: the candidate is offered nowhere else.
    "candidates": {"conformance", "numpy", "torch", "triton", "onnx", "onnxruntime"},
}


def sources(package: str) -> list[Path]:
    """Every Python file of a package."""
    return sorted((CHECKOUT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    """The dotted name of a file, ``__init__`` for the root of a package."""
    parts = path.relative_to(CHECKOUT).with_suffix("").parts[1:]
    if len(parts) > 1 and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def imports_of(path: Path) -> Iterator[str]:
    """Every absolute dotted name that a file imports, wherever in the file it does."""
    package = path.relative_to(CHECKOUT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            home = ".".join((*base, *filter(None, [node.module])))
            yield from (f"{home}.{alias.name}" for alias in node.names)


MODULES = frozenset(module_of(source) for source in sources("conformance"))


def layer_of(module: str) -> int | None:
    """The number of the layer of a module of conformance, or of the module that holds a name."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        for number, (_, patterns) in enumerate(LAYERS):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return number
    return None


def inner_imports(path: Path) -> set[str]:
    """The modules of conformance that one of its files imports, names cut off."""
    found = set()
    for name in imports_of(path):
        inner = name.removeprefix("conformance.")
        if inner != name:
            found.add(inner if inner in MODULES else inner.rpartition(".")[0] or "__init__")
    return found


@pytest.mark.parametrize("path", sources("conformance"), ids=module_of)
def test_module_imports_only_downwards(path: Path) -> None:
    """No module of conformance imports from a layer above its own."""
    module = module_of(path)
    own = layer_of(module)
    assert own is not None, f"{module} is in no layer: add it to LAYERS"
    upwards = {
        other: LAYERS[layer][0]
        for other in inner_imports(path)
        if (layer := layer_of(other)) is not None and layer > own
    }
    assert not upwards


def test_views_see_nothing_but_the_report() -> None:
    """A view is a function of the report alone: it runs without torch and without the harness.

    What makes a text printable, and says how long something took, is not of the harness.
    """
    seen = {
        f"{path.name}: {name}"
        for path in sources("conformance/views")
        for name in imports_of(path)
        if name.partition(".")[0] not in {"click", "jinja2", "rich"} | sys.stdlib_module_names
        and not name.startswith(("conformance.views.", "conformance.base.texts."))
        and name != "conformance.base.limits.spoken"
    }
    assert not seen


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_package_imports_only_what_it_may(package: str) -> None:
    """The golden needs torch alone, and candidates see the public harness, never the golden."""
    may = MAY_IMPORT[package] | {package} | sys.stdlib_module_names
    strangers = {
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in sources(package)
        for name in imports_of(path)
        if name.partition(".")[0] not in may
    }
    assert not strangers


def test_only_the_loader_names_the_golden() -> None:
    """The harness gets the golden from ``_golden``, else a user's ``reference`` would be taken."""
    importers = {
        module_of(path)
        for path in sources("conformance")
        for name in imports_of(path)
        if name.partition(".")[0] == "reference"
    }
    assert importers == {"_golden"}


def test_candidates_use_the_public_names_only() -> None:
    """A candidate imports ``conformance``, not its modules: what we ship, users can write."""
    private = {
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in sources("candidates")
        for name in imports_of(path)
        if name.startswith("conformance.") and name.count(".") > 1
    }
    assert not private


def test_architecture_places_every_module() -> None:
    """ARCHITECTURE.md names each module and package of conformance."""
    text = (CHECKOUT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    packages = {f"{name.partition('.')[0]}/" for name in MODULES if "." in name}
    flat = {name for name in MODULES if "." not in name and f"{name}/" not in packages}
    assert {name for name in packages | flat if f"`{name}`" not in text} == set()
