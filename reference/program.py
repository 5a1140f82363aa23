"""A calculation as a program of named stages, and changes as edits of these stages.

A rule's parameters are the names of the results to read, so a program needs no further wiring:

    Stage("scores", "BHQK", lambda products, scale: scale * products)

An edit changes one stage: by another rule, by a change of the result, or both. Choices of
``Semantics`` and mistakes alike are edits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

Rule = Callable[..., Any]


@dataclass(frozen=True)
class Stage:
    """One step of a program: its name is the name of its result.

    ``axes`` has a letter for each axis of the result: B items, H heads, G key/value heads, Q
    queries, K keys, D channels of query and key, V channels of a value, E channels of a token; 1
    for an axis of one. Empty for a result that is no tensor.
    """

    name: str
    axes: str
    rule: Rule


def always() -> bool:
    """The condition of an edit that is made in every run."""
    return True


@dataclass(frozen=True)
class Edit:
    """A change of one stage.

    ``rule`` replaces the rule of the stage and all earlier edits; ``change`` computes a new result
    from the result and from further results named by its parameters. Both apply only if ``when`` is
    true; parameters of ``when`` are names of results, too.
    """

    stage: str
    rule: Rule | None = None
    change: Callable[..., Any] | None = None
    when: Callable[..., bool] = always


@dataclass(frozen=True)
class Rewired:
    """A rule whose results to read are listed in ``names``, not named by its parameters."""

    rule: Rule
    names: tuple[str, ...]

    def __call__(self, *results: Any) -> Any:
        """The result of the rule."""
        return self.rule(*results)


def reads_besides(change: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the results that a change reads besides the result to change."""
    function = change.func if isinstance(change, partial) else change
    known = isinstance(change, Rewired) or hasattr(function, "__code__")  # torch.abs has none
    return reads(change)[1:] if known else ()


def reads(rule: Rule) -> tuple[str, ...]:
    """The names of the results that a rule or condition reads: its parameters without default."""
    if isinstance(rule, Rewired):
        return rule.names
    if isinstance(rule, partial):
        return tuple(name for name in reads(rule.func) if name not in rule.keywords)
    code = rule.__code__
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount - len(rule.__defaults__ or ())]
    return names


class Step(NamedTuple):
    """A stage with its edits.

    ``needed`` are the results that the rule reads if no edit has a condition, ``reached`` all
    results that the step may read.
    """

    rule: Rule
    edits: tuple[Edit, ...]
    needed: tuple[str, ...]
    reached: frozenset[str]

    def edited(self, edit: Edit) -> Step:
        """The step with a further edit at the end."""
        if edit.rule is not None and edit.when is always and edit.change is None:
            return step(edit.rule)
        return step(self.rule, (*self.edits, edit))


def step(rule: Rule, edits: tuple[Edit, ...] = ()) -> Step:
    """A step from a rule and edits; parameters are read once."""
    rules = [rule, *(edit.when for edit in edits)]
    rules += [edit.rule for edit in edits if edit.rule is not None]
    changes = (edit.change for edit in edits if edit.change is not None)
    reached = {name for change in changes for name in reads_besides(change)}
    reached.update(name for each in rules for name in reads(each))
    return Step(rule, edits, reads(rule), frozenset(reached))


class Program(NamedTuple):
    """Stages in their order, their edits, and a step for each stage; immutable."""

    stages: tuple[Stage, ...]
    edits: tuple[Edit, ...]
    steps: Mapping[str, Step]

    def __hash__(self) -> int:
        """By identity, to cache results by program."""
        return id(self)

    @classmethod
    def unedited(cls, *stages: Stage) -> Program:
        """A program without edits."""
        steps = {stage.name: step(stage.rule) for stage in stages}
        return cls(stages, (), MappingProxyType(steps))

    def making(self, values: Mapping[str, Any]) -> Program:
        """The program with given values as further stages in front, which edits can change."""
        made = {name: step(partial(_same, value=value)) for name, value in values.items()}
        return self._replace(steps=MappingProxyType({**made, **self.steps}))

    def edited(self, edits: Iterable[Edit]) -> Program:
        """The program with further edits, after its own; edits of foreign stages are dropped."""
        own = tuple(edit for edit in edits if edit.stage in self.steps)
        steps = dict(self.steps)
        for edit in own:
            steps[edit.stage] = steps[edit.stage].edited(edit)
        return Program(self.stages, (*self.edits, *own), MappingProxyType(steps))


def _same(value: Any) -> Any:
    return value


class Run:
    """The results of a program on given values, computed on demand and kept.

    ``run["weights"]`` is the result of a stage, or a given value. Raises KeyError for unknown
    names.
    """

    def __init__(self, program: Program, given: Mapping[str, Any]) -> None:
        self.program: Final = program
        self.given: Final = given
        self._results = dict(given)

    def __getitem__(self, name: str) -> Any:
        """The result of a stage, or a given value."""
        if name not in self._results:
            self._results[name] = self._made(self.program.steps[name])
        return self._results[name]

    def __contains__(self, name: str) -> bool:
        """Whether a name is a stage or a given value."""
        return name in self.given or name in self.program.steps

    def complete(self) -> Run:
        """Make the results of all stages, in their order."""
        results = self._results
        for name, step in self.program.steps.items():
            if name not in results:
                results[name] = self._made(step)
        return self

    def edited(self, *edits: Edit, **given: Any) -> Run:
        """The run with further edits, of given values too, and with other given values.

        Results that no change reaches are taken over.
        """
        changed = {e.stage: self.given[e.stage] for e in edits if e.stage in self.given}
        program = self.program.making(changed) if changed else self.program
        program = program.edited(edits) if edits else program
        values = {name: value for name, value in self.given.items() if name not in changed}
        other = Run(program, {**values, **given})
        reached = {*given, *(edit.stage for edit in edits)}
        for name, step in program.steps.items():
            if name in reached or not reached.isdisjoint(step.reached):
                reached.add(name)
            elif name in self._results:
                other._results[name] = self._results[name]
        return other

    def holds(self, edit: Edit) -> bool:
        """Whether the condition of an edit is true of the results."""
        return edit.when is always or bool(self._answer(edit.when))

    def remade(self, edit: Edit) -> Any:
        """The result of a single edit of a stage, or of a given value, all else unchanged."""
        result = self[edit.stage] if edit.rule is None else self._answer(edit.rule)
        return result if edit.change is None else self._changed(result, edit.change)

    def forget_but(self, names: Iterable[str]) -> None:
        """Drop the results of all other stages; requests compute them again."""
        kept = {*names, *self.given}
        self._results = {name: value for name, value in self._results.items() if name in kept}

    def _made(self, step: Step) -> Any:
        if not step.edits:
            results = self._results
            return step.rule(*[results[n] if n in results else self[n] for n in step.needed])
        rule = step.rule
        changes: list[Callable[..., Any]] = []
        for edit in step.edits:
            if not self.holds(edit):
                continue
            if edit.rule is not None:
                rule, changes = edit.rule, []
            if edit.change is not None:
                changes.append(edit.change)
        result = self._answer(rule)
        for change in changes:
            result = self._changed(result, change)
        return result

    def _changed(self, result: Any, change: Callable[..., Any]) -> Any:
        if result is None:  # an absent mask, for example
            return None
        return change(result, *[self[name] for name in reads_besides(change)])

    def _answer(self, rule: Rule) -> Any:
        return rule(*[self[name] for name in reads(rule)])
