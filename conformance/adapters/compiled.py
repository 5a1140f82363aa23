"""``--compile``: every candidate once more through ``torch.compile``, as further candidates.

Each call compiles for its sizes or reuses an earlier graph. Past its recompile limit torch silently
runs a function uncompiled; here the limit is high and reaching it is an error. Graphs of one
candidate are forgotten before the next candidate runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import torch

from ..base.printable_text import printable
from ..base.profile import Profile
from ..base.record import COMPILED_SUFFIXES
from ..declare.candidate import Candidate
from ..errors import DeclarationError, UsageError

# Clauses for compiled candidates; further clauses judge the eager candidate.
COMPILED_CLAUSES: Final = frozenset(
    {
        "compile.agrees",
        "gradients.golden",
        "mask.causal-alignment",
        "mask.golden",
        "numerics.golden",
        "shape.dtype",
        "shape.output",
        "state.inputs-unchanged",
        "varlen.golden",
    }
)
# Torch's limit of graphs for a function: far more than problems need.
MOST_GRAPHS: Final = 512
# Compiling takes seconds: the share of a profile's examples to run, and the longest sequence.
EXAMPLES: Final = 0.1
LONGEST: Final = 40
# The share of a profile's examples for problems with few sizes.
OF_FEW_SIZES: Final = 0.4


def compiled_variants(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each candidate followed by its compiled forms: torch's default mode, and dynamic sizes.

    Raises UsageError without a compiler or without a candidate to compile.
    """
    every = list(candidates)
    if not any(map(can_compile, every)):
        msg = (
            "--compile finds nothing to compile: graphs run in onnxruntime, arrays of NumPy or JAX "
            "are none of torch's, and ranks load what they call themselves; leave it out"
        )
        raise UsageError(msg)
    _require_compiler()
    return [
        form
        for candidate in every
        for form in (
            candidate,
            *(
                compiled(candidate, dynamic=key)
                for key in COMPILED_SUFFIXES
                if can_compile(candidate)
            ),
        )
    ]


def can_compile(candidate: Candidate) -> bool:
    """Whether a candidate is a torch function that runs in this process."""
    declared = candidate.declaration
    return candidate.graph is None and declared.arrays == "torch" and declared.ranks is None


def compiled(
    candidate: Candidate, *, dynamic: bool | None = None, name: str | None = None
) -> Candidate:
    """A candidate whose core, or whose built layers, go through ``torch.compile``.

    ``dynamic`` is torch's own: None leaves the choice to torch, True treats all sizes as variable.
    Only COMPILED_CLAUSES judge the result: clauses that compilation may affect and that run fast.

    Raises DeclarationError for a graph, a function of foreign arrays, or a candidate of several
    ranks.
    """
    if not can_compile(candidate):
        msg = f"{candidate.name} cannot be compiled: it is a graph, takes arrays, or spans ranks"
        raise DeclarationError(msg)
    declared = candidate.declaration
    kept = tuple(
        entry
        for entry in declared.expected_failures
        if any(fnmatchcase(slug, entry.clause) for slug in COMPILED_CLAUSES)
    )
    build = Compiled if candidate.kind != "layer" else CompiledBuilder
    return dataclasses.replace(
        candidate,
        name=name or candidate.name + COMPILED_SUFFIXES[dynamic or None],
        declaration=dataclasses.replace(declared, expected_failures=kept),
        function=build(candidate.function, dynamic=dynamic),
        eager=candidate,
    )


def profile_for(candidate: Candidate, profile: Profile) -> Profile:
    """The effort for a candidate: few, short and never reduced problems for a compiled candidate.

    Candidates that compile every new size (JAX) get fewer examples and reductions.
    """
    if candidate.declaration.compiles_sizes:
        examples = max(2, round(profile.examples * OF_FEW_SIZES))
        return dataclasses.replace(
            profile,
            examples=examples,
            edges=examples // 2,
            reductions=round(profile.reductions * EXAMPLES),
        )
    if candidate.eager is None:
        return profile
    examples = max(2, round(profile.examples * EXAMPLES))
    return dataclasses.replace(
        profile,
        examples=examples,
        edges=examples // 2,
        longest=min(profile.longest, LONGEST),
        reductions=0,
    )


class Compiled:
    """A function behind ``torch.compile``, compiled at its first call.

    ``owner`` is the compiled candidate: all layers built for one owner share torch's cache.
    """

    def __init__(
        self, function: Callable[..., Any], *, dynamic: bool | None, owner: object = None
    ) -> None:
        self.function = function
        self.dynamic = dynamic
        self.owner = self if owner is None else owner
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))
        self._made: Callable[..., Any] | None = None

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """Call the compiled function; raises where torch would fall back to eager execution."""
        with _settings():
            if _Session.take(self.owner) or self._made is None:
                self._made = torch.compile(self.function, dynamic=self.dynamic)
            return self._made(*positional, **keywords)


class _Session:
    """The owner of the graphs in torch's cache, and the count of graphs compiled before."""

    owner: object = None
    before: int = 0

    @classmethod
    def take(cls, owner: object) -> bool:
        """Forget the graphs of another candidate; whether the owner changed."""
        if cls.owner is owner:
            return False
        importlib.import_module("torch._dynamo").reset()
        cls.owner, cls.before = owner, _unique_graphs()
        return True


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Torch's settings for one call; the compiler works in this process, without a pool.

    DeprecationWarnings are ignored: torch's compiler causes them, and the candidate must not fail
    where warnings are errors.
    """
    limits = {
        "recompile_limit": MOST_GRAPHS,
        "accumulated_recompile_limit": MOST_GRAPHS,
        "fail_on_recompile_limit_hit": True,
        "suppress_errors": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        dynamo = importlib.import_module("torch._dynamo.config")
        inductor = importlib.import_module("torch._inductor.config")
        with dynamo.patch(limits), inductor.patch({"compile_threads": 1}):
            yield


@dataclass(frozen=True, eq=False)
class CompiledBuilder:
    """A builder whose layers are compiled."""

    build: Callable[..., Any]
    dynamic: bool | None

    def __call__(self, geometry: Any, weights: Any) -> Any:
        """Build a layer and compile it; an object that cannot be called is returned unchanged."""
        forward = self.build(geometry, weights)
        if isinstance(forward, torch.nn.Module):
            forward.eval()
        return Compiled(forward, dynamic=self.dynamic, owner=self) if callable(forward) else forward


def graphs_compiled() -> int:
    """The number of graphs that torch compiled for the latest candidate."""
    return _unique_graphs() - _Session.before


def _unique_graphs() -> int:
    return int(importlib.import_module("torch._dynamo.utils").counters["stats"]["unique_graphs"])


def _require_compiler() -> None:
    try:
        Compiled(lambda a, b: a + b, dynamic=None)(torch.ones(2), torch.ones(2))
    except Exception as error:  # noqa: BLE001 (whatever a compiler, or its absence, raises)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        msg = printable(
            f"--compile cannot compile here: {type(error).__name__}: {lines[0]}; torch's Inductor "
            "needs a C++ compiler (install g++, or name one in the variable CXX)"
        )
        raise UsageError(msg) from None
