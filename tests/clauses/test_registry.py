from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys

import pytest
from _paths import CHECKOUT
from examples import CLAUSES, core, layer
from refusals import refused

import conformance.clauses.registry as module
from conformance import clauses
from conformance.clauses.registry import Clause, Finding, all_clauses, clause, specification_hash
from conformance.declare.decorators import positions
from conformance.problems.space import Space

BY_FAMILY = {
    "shape": "output dtype empty-batch empty-query strided expanded rejects-mismatch weights",
    "mask": "golden no-leak no-leak-nonfinite all-keep padding-is-absence broadcast per-item "
    "per-head single-key empty-row empty-row-isolated forms-agree bias bias-counts causal "
    "causal-alignment causal-and-mask",
    "equivariance": "tokens queries keys batch heads batch-independent",
    "position": "formula relative-shift breaks-equivariance",
    "numerics": "golden large-logits key-shift constant-value value-linear convex scale",
    "state": "inputs-unchanged repeatable no-memory bitwise-repeatable eval-deterministic dropout "
    "follows-to state-dict",
}
WANTED = [f"{family}.{name}" for family, names in BY_FAMILY.items() for name in names.split()]
SHOULD = {"mask.no-leak-nonfinite", "state.bitwise-repeatable", "state.follows-to"}
MUST_FOR_CORES = {"shape.empty-batch", "shape.empty-query"}
REAL = all_clauses()
# What a reader can look up (a year, an issue, a public project, a page), or why nobody is cited.
CITED = re.compile(
    r"\b(19|20)\d\d\b|#\d+|\bdocs/[\w-]+\.md|\bby definition\b"
    r"|compute-sanitizer|CUDA|[Ff]lash-?_?[Aa]tt|GPT-J|onnx|ONNX|PyTorch|torch|transformers|vllm"
)
CAPITALS = {"CUDA", "IEEE", "ONNX", "SHOULD", "TRAINING"}


def test_wanted_clauses_exist_at_their_levels() -> None:
    """Every clause of the foundation is there, MUST unless the design says SHOULD."""
    for slug in WANTED:
        entry = CLAUSES[slug]
        for kind in ("core", "layer"):
            eased = slug in SHOULD or (slug in MUST_FOR_CORES and kind == "layer")
            assert entry.level_for(kind) == ("SHOULD" if eased else "MUST")


def test_each_clause_is_well_formed() -> None:
    """Each has a slug of two words, one sentence, a source, a check of a subject and a problem."""
    for entry in REAL:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*\.[a-z0-9-]+", entry.id)
        assert entry.family == entry.id.split(".")[0]
        assert re.fullmatch(r"[A-Z][^\n]*\.", entry.sentence)
        assert entry.source.strip()
        assert not entry.counterfactual.endswith(".")
        assert entry.check.__doc__
        assert len(inspect.signature(entry.check).parameters) == 2
        assert entry.space.kinds


def test_a_source_can_be_looked_up() -> None:
    """A source cites what is public or stands in this repository, or says why by definition."""
    for entry in REAL:
        assert CITED.search(entry.source), entry.id
        assert set(re.findall(r"\b[A-Z]{4,}\b", entry.source)) <= CAPITALS, entry.id
        pages = re.findall(r"(?<!onnx: )docs/[\w-]+\.md", entry.source)
        assert all((CHECKOUT / page).exists() for page in pages), entry.id


def test_slugs_are_unique_and_families_stay_together() -> None:
    """The specification reads family by family, each slug once."""
    slugs = [entry.id for entry in REAL]
    assert len(slugs) == len(set(slugs)) >= len(WANTED)
    assert len({entry.sentence for entry in REAL}) == len(REAL)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Clause]:
    """A copy of the registry, to register in."""
    copied = dict(module.REGISTRY)
    monkeypatch.setattr(module, "REGISTRY", copied)
    return copied


def register(slug: str, sentence: str = "It holds.", level: str = "MUST") -> None:
    """Register a clause that always holds."""
    clause(slug, level=level, sentence=sentence, source="here", space=Space())(  # type: ignore[arg-type]
        lambda _subject, _problem: Finding()
    )


def test_slug_is_registered_once(registry: dict[str, Clause]) -> None:
    """A second clause of one name is refused."""
    register("shape.mine")
    assert registry["shape.mine"].family == "shape"
    with refused("two clauses are called shape.mine"):
        register("shape.mine")


def test_a_file_imported_again_registers_again(
    registry: dict[str, Clause], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What pytester's runs in one process forget is registered again, in the same order."""
    before = dict(registry)
    monkeypatch.setattr(clauses, "state", clauses.state)  # importing it sets that
    monkeypatch.delitem(sys.modules, clauses.state.__name__)
    importlib.import_module(f"{clauses.__name__}.state")
    assert list(registry) == list(before)
    renewed = {slug for slug in registry if registry[slug] is not before[slug]}
    assert renewed == {slug for slug in before if before[slug].check.__module__.endswith(".state")}


def test_fingerprint_follows_the_specification(
    registry: dict[str, Clause], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fingerprint changes with a slug, a level or a sentence, and with nothing else."""
    prints = [specification_hash(), specification_hash()]
    assert prints[0] == prints[1]
    assert re.fullmatch(r"[0-9a-f]{12}", prints[0])
    changes = (
        ("shape.mine", "It holds.", "MUST"),
        ("shape.mine", "It holds!", "MUST"),
        ("shape.mine", "It holds.", "MAY"),
        ("shape.other", "It holds.", "MUST"),
    )
    for slug, sentence, level in changes:
        monkeypatch.setattr(module, "REGISTRY", dict(registry))
        register(slug, sentence, level)
        prints.append(specification_hash())
    assert len(set(prints)) == len(prints) - 1


def test_level_of_an_unnamed_kind() -> None:
    """A level by kind is MUST where nothing is said; graphs are held to what layers are."""
    assert CLAUSES["shape.empty-batch"].level_for("layer") == "SHOULD"
    assert CLAUSES["shape.empty-batch"].level_for("graph") == "SHOULD"
    assert CLAUSES["shape.empty-batch"].level_for("core") == "MUST"
    assert CLAUSES["shape.empty-batch"].level_for("positions") == "MUST"


def test_position_encodings_get_their_clauses_alone() -> None:
    """To an encoding apply the clauses for any function, none for attention; and the reverse."""
    encoding = positions(max_length=64)(lambda x: x)
    applicable = {entry.id for entry in REAL if not entry.not_applicable(encoding)}
    assert {slug for slug in applicable if slug.startswith("position.")} == {
        f"position.{name}" for name in BY_FAMILY["position"].split()
    }
    assert {slug for slug in applicable if not slug.startswith("position.")} == {
        "shape.dtype",
        "shape.output",
        "state.answer-is-fresh",
        "state.answer-kept",
        "state.inputs-unchanged",
        "state.untampered",
    }
    assert CLAUSES["position.formula"].not_applicable(core()) != ""


def test_layer_with_positions_has_no_golden() -> None:
    """Clauses with a golden answer give a layer that mixes in positions their reason."""
    reason = CLAUSES["numerics.golden"].not_applicable(layer(inputs="self", position="rotary"))
    assert reason == "it mixes in positions, so there is no golden answer"


def test_clauses_about_graphs_cost_others_nothing() -> None:
    """Whoever checks no graph imports no onnx, which cannot be imported twice in a process."""
    code = (
        "import sys; from conformance.clauses.registry import all_clauses; "
        "import conformance.running.workers.planning; "
        "all_clauses(); print({'onnx', 'onnxruntime', 'ml_dtypes'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
