"""Clauses: their fields, the check of these fields, and the registry of all clauses."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ..base.geometry import FIELDS
from ..base.results import ONE_THREAD, Violation
from ..declare.candidate import Candidate
from ..declare.declaration import KINDS, MASK_FORMS, SEQUENCES, STRUCTURED_FORMS
from ..errors import DeclarationError, UsageError
from ..problems.mask_patterns import OF_SEQUENCES, PATTERNS
from ..problems.recipes import RECIPES
from ..problems.space import Often, Space
from ..targets.loading import CLAUSES, registered, taking_in

if TYPE_CHECKING:
    from ..oracle.comparison import Comparison
    from ..problems.problem import Problem
    from .subject import Subject


_ONLY: Final = "only without --isolated"
# Why a clause about a layer as a module does not apply: see ``modules``.
OF_MODULES: Final = f"{_ONLY}: it asks for the module itself, which is in another process"
_MEMORY: Final = "of an answer the judge has a copy, never the candidate's own memory"
_ALLOCATED: Final = "what it allocates is watched in the judge's process alone"
_MODES: Final = "modes and settings of torch act in one process"
_WRAPPED: Final = "torch would look into the call that is sent, not into the candidate"

_NEEDS_ONE_PROCESS: Final[dict[str, str]] = {
    "compile.agrees": _WRAPPED,
    "device.canaries": _ALLOCATED,
    "device.fresh-memory": _ALLOCATED,
    "device.graph-capture": _WRAPPED,
    "device.memory": _ALLOCATED,
    "gradients.double-backward": "the way back is sent, and has no gradient of its own",
    "gradients.inputs-unchanged": "the way back is made with copies of the inputs",
    "mixed.autocast": _MODES,
    "operator.opcheck": _WRAPPED,
    "out.kept": _MEMORY,
    "state.answer-is-fresh": _MEMORY,
    "state.answer-kept": _MEMORY,
    "state.settings": _MODES,
    "state.threads": f"there it runs on {ONE_THREAD}",
}


def elsewhere(slug: str, candidate: Candidate) -> str:
    """Why a clause cannot be checked on a candidate that runs in another process, or ""."""
    if slug not in _NEEDS_ONE_PROCESS:
        return ""
    if candidate.declaration.ranks is not None:
        return f"it runs on ranks of its own: {_NEEDS_ONE_PROCESS[slug]}"
    return f"{_ONLY}: {_NEEDS_ONE_PROCESS[slug]}" if candidate.isolated else ""


LEVELS: Final = ("MUST", "SHOULD", "MAY")
_SLUG: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*")


def why_not(clause: Clause) -> str:
    """The reason why a clause is not valid, in words that follow its slug, or ""."""
    return next(_reasons(clause), "")


def _reasons(clause: Clause) -> Iterator[str]:
    if not isinstance(clause.id, str) or not _SLUG.fullmatch(clause.id):
        yield "has no valid slug: write family.what-holds in small letters, digits and hyphens"
    levels = clause.level.values() if isinstance(clause.level, Mapping) else [clause.level]
    if not set(levels) <= set(LEVELS):
        yield f"has the level {clause.level!r}: give MUST, SHOULD or MAY, or one for each kind"
    for name in ("sentence", "source"):
        text = getattr(clause, name)
        if not isinstance(text, str) or not text.strip():
            yield f"has the {name} {text!r}: give a text"
    if not isinstance(clause.counterfactual, str):
        yield f"has the counterfactual {clause.counterfactual!r}: give a text"
    if not callable(clause.check):
        yield f"has the check {clause.check!r}, which cannot be called"
    if not all(callable(requirement) for requirement in clause.requirements):
        yield f"applies where {clause.requirements!r}: give functions of a candidate"
    yield from _reasons_of_space(clause.space)


def _reasons_of_space(space: Any) -> Iterator[str]:
    if not isinstance(space, Space):
        yield f"has the space {space!r:.60}: give a conformance.Space"
        return
    for name in ("mask", "causal", "finite_bias"):
        yield from _unknown_words(name, [getattr(space, name)], get_args(Often))
    yield from _unknown_words("forms", space.forms, (*MASK_FORMS, *STRUCTURED_FORMS, SEQUENCES))
    yield from _unknown_words("values", space.values, RECIPES)
    yield from _unknown_words("patterns", space.patterns, (*PATTERNS, *OF_SEQUENCES))
    yield from _unknown_words("kinds", space.kinds, KINDS)
    for name in ("least", "preferred"):
        yield from _unknown_words(name, [pair[0] for pair in getattr(space, name)], FIELDS)


def _unknown_words(name: str, values: Any, allowed: Iterable[str]) -> Iterator[str]:
    words = [values] if isinstance(values, str) else list(values)
    for word in words:
        if word not in allowed:
            yield f"has a space whose {name} is {word!r}: known are {', '.join(allowed)}"
    if not words and name in ("kinds", "values"):
        yield f"has a space without {name}: it would never be tried"


Level = Literal["MUST", "SHOULD", "MAY"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one example.

    ``binding`` says whether the example tells the clause's counterfactual from the right answer.
    ``margin`` is the largest error over its bound, None where no numbers were compared.
    ``refused`` says that the candidate raised where it may: see ``RowWithoutKeysRefused``.
    ``inapplicable`` is the reason why the clause turned out not to apply to the example, or "":
    an inapplicable example never binds.
    """

    binding: bool = True
    refused: bool = False
    inapplicable: str = ""
    margin: float | None = None
    violation: Violation | None = None

    def __post_init__(self) -> None:
        """An example to which the clause does not apply shows nothing."""
        object.__setattr__(self, "binding", self.binding and not self.inapplicable)

    @classmethod
    def of(cls, comparison: Comparison, *, binding: bool = True) -> Finding:
        """The finding of one comparison."""
        return cls(binding=binding, margin=comparison.margin, violation=comparison.violation)

    def only_if(self, condition: bool) -> Finding:  # noqa: FBT001 (the condition is all there is)
        """This finding, binding only under a further condition."""
        return dataclasses.replace(self, binding=self.binding and condition)

    def told(self, facts: Mapping[str, Any], message: str = "") -> Finding:
        """Add facts to the violation, if any, and replace its message unless ``message`` is ""."""
        if (own := self.violation) is None:
            return self
        measured = {**own.measured, **facts}
        known = dataclasses.replace(own, measured=measured, message=message or own.message)
        return dataclasses.replace(self, violation=known)


def violated(kind: str, message: str, **details: Any) -> Finding:
    """The finding that a clause is broken; ``details`` are fields of the violation."""
    return Finding(violation=Violation(kind=kind, message=message, **details))


Check = Callable[["Subject", "Problem"], Finding]
Applies = Callable[[Candidate], str]


def requires(holds: Callable[[Candidate], object], reason: str) -> Applies:
    """A requirement of a clause: gives ``reason`` where ``holds`` is false for a candidate."""

    def requirement(candidate: Candidate) -> str:
        return "" if holds(candidate) else reason

    requirement.__doc__ = f"Unless {reason}."  # the specification shows it
    return requirement


def declares(feature: str, reason: str = "") -> Applies:
    """The requirement that a candidate declares a feature."""
    return requires(
        lambda candidate: feature in candidate.declaration.features,
        reason or f"no {feature} is declared",
    )


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One requirement of the specification and its check.

    id
        The stable slug, such as ``mask.no-leak``; its first word is the family.
    level
        MUST, SHOULD or MAY, or a level for each kind of candidate.
    sentence, source
        The requirement in one sentence, and its origin.
    counterfactual
        The wrong answer that an example must tell from the right answer to bind; "": all bind.
    space
        The problems on which the clause is tried.
    requirements
        Each gives the reason why the clause does not apply to a candidate, or "".
    explained
        Whether another point of the semantics may explain a failure: then the failure is diagnosed.
    of_repetition
        Whether the clause checks that equal calls give equal answers: randomness fails it, while
        for other clauses an answer that differs from call to call says nothing.
    subtle
        Whether a coarse precision may hide the defect: then the clause does not apply, where other
        clauses would be untestable. A declared ``precision`` may hide the defect from any clause.
    of_any_answer
        Whether any answer shows whether the clause holds: for a slow candidate the check takes
        known answers, as far as the clause may ask their problems.
    resized
        Gives a drawn problem the sizes that the clause needs. The check gets the resized problem,
        and failures are shrunk and shown at its sizes. None leaves problems as they are.

    Raises DeclarationError (a ValueError) for a field that no clause can have.
    """

    id: str
    level: Level | Mapping[str, Level]
    sentence: str
    source: str
    check: Check
    space: Space
    counterfactual: str = ""
    needs_golden: bool = False
    requirements: tuple[Applies, ...] = ()
    explained: bool = True
    subtle: bool = False
    of_repetition: bool = False
    of_any_answer: bool = False
    resized: Callable[[Subject, Problem], Problem] | None = None

    def problem_for(self, subject: Subject, drawn: Problem) -> Problem:
        """The problem to ask in place of a drawn problem."""
        return drawn if self.resized is None else self.resized(subject, drawn)

    def __post_init__(self) -> None:
        reason = why_not(self)
        if reason:
            msg = f"the clause {self.id!r} {reason}"
            raise DeclarationError(msg)

    @property
    def origin(self) -> str:
        """The package that registers the clause, "" for the specification's own."""
        package = self.check.__module__.partition(".")[0]
        return "" if package == _OWN else package

    @property
    def family(self) -> str:
        """The first word of the slug."""
        return self.id.partition(".")[0]

    @property
    def level_text(self) -> str:
        """The level, or one for each kind: ``MUST (core), SHOULD (layer)``."""
        levels = {kind: self.level_for(kind) for kind in self.space.kinds}
        if len(set(levels.values())) == 1:
            return next(iter(levels.values()))
        return ", ".join(f"{level} ({kind})" for kind, level in levels.items())

    def level_for(self, kind: str) -> Level:
        """The level for a kind of candidate; MUST where none is given.

        Graphs have the level of layers where no level for graphs is given.
        """
        if isinstance(self.level, str):
            return self.level
        return self.level.get(kind, self.level_for("layer") if kind == "graph" else "MUST")

    def not_applicable(self, candidate: Candidate) -> str:
        """Why the clause does not apply to a candidate, or ""."""
        if candidate.kind not in self.space.kinds:
            return self.space.not_applicable(candidate)
        if self.needs_golden and not candidate.golden_known:
            why = (
                "the weights are unknown"
                if not candidate.weights_known
                else "it mixes in positions"
            )
            return f"{why}, so there is no golden answer"
        for requirement in (*self.requirements, self.space.not_applicable):
            reason = requirement(candidate)
            if reason:
                return reason
        return elsewhere(self.id, candidate)


REGISTRY: Final[dict[str, Clause]] = {}
_OWN: Final = str(__package__).partition(".")[0]
_FAMILIES: Final = str(__package__)
_taken_in: Final[set[str]] = set()


def clause(
    slug: str,
    *,
    sentence: str,
    source: str,
    space: Space,
    level: Level | Mapping[str, Level] = "MUST",
    counterfactual: str = "",
    needs_golden: bool = False,
    applies: tuple[Applies, ...] = (),
    explained: bool = True,
    subtle: bool = False,
    of_repetition: bool = False,
    of_any_answer: bool = False,
    resized: Callable[[Subject, Problem], Problem] | None = None,
) -> Callable[[Check], Check]:
    """Register the decorated check as a clause of the specification.

    The check is called as ``check(subject, problem)`` and returns a :class:`Finding`. The other
    arguments are the fields of :class:`Clause`. Every list, report and run then has the clause:
    installed distributions register clauses at the entry point ``attention_conformance.clauses``.
    A second import of a family's file registers its clauses again.

    Raises DeclarationError (a ValueError) for a slug that is taken or an argument that no clause
    can have.
    """

    def register(check: Check) -> Check:
        add(
            Clause(
                id=slug,
                level=level,
                sentence=sentence,
                source=source,
                check=check,
                space=space,
                counterfactual=counterfactual,
                needs_golden=needs_golden,
                requirements=applies,
                explained=explained,
                subtle=subtle,
                of_repetition=of_repetition,
                of_any_answer=of_any_answer,
                resized=resized,
            )
        )
        return check

    return register


def add(new: Clause) -> None:
    """Register a clause; raises DeclarationError for a slug that is taken."""
    if new.origin:  # the specification's own come first, and keep their slugs
        importlib.import_module(_FAMILIES)
    taken = REGISTRY.get(new.id)
    if taken is not None and taken is not new and _still_imported(taken.check):
        msg = f"two clauses are called {new.id}"
        raise DeclarationError(msg)
    REGISTRY[new.id] = new


def _still_imported(check: Check) -> bool:
    """Whether the module behind a check is still in ``sys.modules`` under its name.

    pytester's runs inside a process drop their imports from ``sys.modules``, and a failed import
    drops its module, too: the slugs registered by a dropped module are free.
    """
    module = sys.modules.get(check.__module__)
    return module is not None and vars(module) is getattr(check, "__globals__", None)


def all_clauses() -> list[Clause]:
    """Every clause: the specification's, in the order of the families' files, then the others.

    Raises UsageError when an installed distribution registers what cannot be used.
    """
    # The families register their clauses when they are imported, and they import this module.
    importlib.import_module(_FAMILIES)
    for entry in registered(CLAUSES) if not _taken_in else ():
        taking_in(entry, "clauses", _take)
    _taken_in.add(CLAUSES)  # looking for distributions takes as long as a clause
    return list(REGISTRY.values())


def _take(loaded: Any) -> None:
    """Register the clauses of an entry point; a module has registered its own at import."""
    if isinstance(loaded, Clause):
        add(loaded)
    elif isinstance(loaded, (list, tuple)):
        for entry in loaded:
            _take(entry)
    elif not isinstance(loaded, ModuleType) and not _is_registered(loaded):
        if not callable(loaded):
            msg = (
                f"it is {loaded!r:.60}: name a module, a clause, a list of clauses or a function "
                "without arguments"
            )
            raise UsageError(msg)
        _take_returned(loaded())


def _take_returned(returned: Any) -> None:
    if returned is not None:
        if callable(returned) and not _is_registered(returned):
            msg = f"it returns {returned!r:.60}, which is no clause"
            raise UsageError(msg)
        _take(returned)


def _is_registered(check: Any) -> bool:
    return any(clause.check is check for clause in REGISTRY.values())


def specification_hash() -> str:
    """Twelve hexadecimal digits that change when a slug, a level or a sentence changes."""
    text = "\n".join(f"{c.id} {c.level} {c.sentence}" for c in all_clauses())
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def facts(clause: Clause) -> dict[str, str]:
    """Plain data; ``origin`` is "" for a clause of the specification itself."""
    return {
        "family": clause.family,
        "level": clause.level_text,
        "sentence": clause.sentence,
        "source": clause.source,
        "origin": clause.origin,
        "counterfactual": clause.counterfactual,
    }
