"""Reads wrong gradients as variants of the backward pass, and states them.

Gradients are linear in the upstream gradient, which shows each step of the backward pass. Each
wrong gradient is compared with all variants of ``backward_variants`` times their best factors. The
variants that hold in every problem are combined, with as few variants, numbers and conditions as
possible, to a mistake that can be acted out and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...problems.inputs import Inputs
from ...tolerance import Gradient, model
from ..conditions import Condition
from ..mistakes import BACKWARD, NamedMistake, NotExpressible
from ..mistakes.backward_pass import stages_of
from ..mistakes.named_mistake import IMPOSSIBLE
from ..narrowing import say_limits, telling_apart
from ..observed_gradients import ObservedGradients, SquaredErrors, near, room
from .backward_variants import RIGHT, Variant, all_variants, places
from .read_gradients import ROLES, TOKENS, clamped, clamped_upstream, read_variants
from .reading import Number, numbers

# The most forms of a gradient to combine with other gradients' forms, and statements to try.
MOST_FORMS: Final = 8
MOST_STATEMENTS: Final = 12
# Problems after which a variant that leaves much of the errors is given up.
FEW: Final = 3
_NAMES: Final = {
    "query": "the query",
    "key": "the key",
    "value": "the value",
    "bias": "the additive mask",
}
# Catalogue names of a number times the right gradient, by the gradients concerned.
_OF_CATALOGUE: Final = {
    ("1 / scale", ("query", "key")): "scale-forgotten-backward",
    ("1 / scale", ("query",)): "scale-forgotten-for-query",
    ("1 / scale", ("key",)): "scale-forgotten-for-key",
    ("scale", ("query", "key")): "scaled-twice-backward",
    ("scale", ("key",)): "scaled-twice-for-key",
    ("0", ("query",)): "gradient-of-query-cut",
    ("0", ("key",)): "gradient-of-key-cut",
    ("0", ("value",)): "gradient-of-value-cut",
    ("0", ("query", "key")): "gradient-of-weights-cut",
}
_FIX: Final = "dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO, and dS for an additive mask"
_FIX_BIAS: Final = (
    "do not detach the additive mask: its gradient is dS, summed along the axes that it is "
    "repeated over"
)


@dataclass(frozen=True)
class Multiple:
    """A factor of a gradient, in words and as a function of a right run."""

    words: str
    value: Callable[[golden.Run], float]


ONCE: Final = Multiple("1", lambda _run: 1.0)
# The stages of the gradients of heads, by role.
_STAGES: Final = {**{role: f"given_{role}_gradient" for role in TOKENS}, "bias": "bias_gradient"}


@dataclass(frozen=True, eq=False)
class Form:
    """How one gradient is computed: a variant times a number, under conditions."""

    role: str
    variant: Variant
    times: Multiple
    conditions: tuple[Condition, ...] = ()

    def holds(self, inputs: Inputs) -> bool:
        """Whether the form applies in a call."""
        return all(condition.holds(inputs) for condition in self.conditions)

    @property
    def where(self) -> str:
        """The conditions in words, as a suffix of a sentence."""
        return f" (only {say_limits(self.conditions)})" if self.conditions else ""


class BackwardReading:
    """An observed problem with the right run of both passes and the values of variants."""

    def __init__(self, observed: ObservedGradients) -> None:
        self.observed = observed
        self.run = observed.passes
        self._values: dict[int, dict[str, Tensor]] = {}

    def name(self, role: str) -> str:
        """Return the gradient that shows the one of the heads: for a layer, of the projection."""
        return role[0] if self.observed.inputs.is_layer else role

    def shows(self, role: str) -> bool:
        """Whether a role's gradient was observed and the right pass gives its exact value."""
        exact = self.observed.expected.gradients.get(self.name(role))
        if exact is None or self.name(role) not in self.observed.actual.by_name:
            return False
        own = self.values(RIGHT, role)
        return own is not None and near(own, exact.value, room(own, exact.value, exact.worst))

    def actual(self, role: str) -> Tensor:
        """Return the gradient that the candidate computes."""
        return self.observed.actual.by_name[self.name(role)].double()

    def exact(self, role: str) -> Gradient:
        """Return the exact gradient with its bound."""
        return self.observed.expected.gradients[self.name(role)]

    def is_wrong(self, role: str) -> bool:
        """Whether the gradient that shows a role is wrong."""
        return self.name(role) in self.observed.wrong

    def values(self, variant: Variant, role: str) -> Tensor | None:
        """Return the gradient of a variant for one role, in the shape of the observed one.

        None if the variant cannot be made or does not change this gradient.
        """
        if id(variant) not in self._values:
            self._values[id(variant)] = self._made(variant)
        return self._values[id(variant)].get(role)

    def _made(self, variant: Variant) -> dict[str, Tensor]:
        stages = stages_of(self.run)
        asked = {role: stages[self.name(role)] for role in ROLES if self.name(role) in stages}
        try:
            with torch.inference_mode():
                run = self.run.edited(*variant.edits) if variant.edits else self.run
                made = {role: run[stage] for role, stage in asked.items()}
        except (NotExpressible, *IMPOSSIBLE):  # shapes do not meet, or nothing is there to change
            return {}
        return {
            role: values
            for role, values in made.items()
            if values is not None
            and values.shape == self.run[asked[role]].shape
            and (variant is RIGHT or values is not self.run[asked[role]])
        }

    def fits(self, role: str, values: Tensor) -> bool:
        """Whether a candidate that computes ``values`` would give the observed gradient."""
        exact = self.exact(role)
        return near(self.actual(role), values, room(values, exact.value, exact.worst))

    def spared(self, role: str, values: Tensor) -> bool:
        """Whether ``values`` would be wrong here, where the observed gradient is right."""
        exact = self.exact(role)
        return not near(values, exact.value, room(values, exact.value, exact.worst))


def backward_statements(
    observed: Sequence[ObservedGradients], *, soon: bool = False
) -> list[NamedMistake]:
    """Return statements of what is computed instead of wrong gradients, simplest first.

    Each is a proposal to be checked on all observations and on more. Empty if a wrong gradient fits
    no variant. ``soon`` allows only a number times the right gradients: no statement of variants is
    as simple.
    """
    try:
        with torch.no_grad():
            readings = [BackwardReading(each) for each in observed]
            wrong = [role for role in ROLES if any(each.is_wrong(role) for each in readings)]
            variants = [RIGHT] if soon else [*all_variants(), *_read_variants(readings)]
            forms = [_forms(role, variants, readings) for role in wrong]
    except (NotExpressible, ValueError, LookupError):
        return []
    if not forms or not all(forms):
        return []
    chosen = [each[:MOST_FORMS] for each in forms]
    named = {id(f.variant): f.variant for each in chosen for f in each if f.variant.name}
    partial = [key for key, one in named.items() if not _touched(one, readings) <= set(wrong)]

    def complexity(forms: Sequence[Form]) -> tuple[int, int, int]:
        """Count a further step for partly made catalogue entries."""
        steps, words, place = _complexity(forms)
        return steps + any(id(form.variant) in partial for form in forms), words, place

    combined = sorted(product(*chosen), key=complexity)[:MOST_STATEMENTS]
    simple = (parts for parts in combined if not soon or complexity(parts)[0] == 1)
    return [_statement(parts, readings) for parts in simple]


def _forms(
    role: str, variants: Sequence[Variant], readings: Sequence[BackwardReading]
) -> list[Form]:
    shown = [each for each in readings if each.shows(role)]
    wrong = sorted((each for each in shown if each.is_wrong(role)), key=_telling)
    if not wrong or any(each.is_wrong(role) and each not in wrong for each in readings):
        return []
    right = [each for each in shown if not each.is_wrong(role)]
    if all(each.fits(role, torch.zeros_like(each.actual(role))) for each in wrong):
        variants = [RIGHT]  # a zero gradient is any variant times 0
    forms = []
    for variant in variants:
        for times in _multiples(variant, role, wrong):
            form = _limit_form(Form(role, variant, times), wrong, right)
            if form is not None:
                forms.append(form)
                break
    return sorted(forms, key=lambda form: _complexity((form,)))


def _telling(reading: BackwardReading) -> tuple[bool, int]:
    """Order problems: small ones with different sizes rule out most variants."""
    sizes = reading.observed.inputs.geometry
    lengths = (sizes.query_length, sizes.key_length, sizes.head_size)
    return 1 in lengths or len(set(lengths)) < len(lengths), sizes.query_length * sizes.key_length


def _multiples(variant: Variant, role: str, wrong: Sequence[BackwardReading]) -> Iterator[Multiple]:
    fitted: list[tuple[BackwardReading, Tensor, float]] = []
    at_best = SquaredErrors()
    for reading in wrong:
        values = reading.values(variant, role)
        if values is None:
            return
        factor = _factor(reading.actual(role), values)
        if not reading.fits(role, factor * values):
            return
        fitted.append((reading, values, factor))
        at_best.add(reading.actual(role), reading.exact(role).value, factor * values)
        if len(fitted) == FEW and not at_best.explained:
            return

    def fits(times: Multiple) -> bool:
        errors = SquaredErrors()
        for reading, values, _ in fitted:
            given = times.value(reading.run) * values
            if not reading.fits(role, given):
                return False
            errors.add(reading.actual(role), reading.exact(role).value, given)
        return errors.explained

    # Closed forms are read at the problem with the largest values.
    first = max(fitted, key=lambda each: float(each[1].square().sum()))
    yield from filter(fits, _closed_forms(first[0], first[2], role))


def _factor(actual: Tensor, values: Tensor) -> float:
    """Return the least-squares factor of values; 1 if all are zero."""
    size = float(values.square().sum())
    if not size or not bool(actual.isfinite().all()):
        return 1.0
    return float((actual * values).sum()) / size


def _closed_forms(reading: BackwardReading, factor: float, role: str) -> Iterator[Multiple]:
    run, inputs = reading.run, reading.observed.inputs
    same = model.SAME_READ + torch.finfo(inputs.query.dtype).eps

    def close(value: float) -> bool:
        return abs(value - factor) <= 2.0 * same * max(abs(value), abs(factor))

    some = [
        ONCE,
        Multiple("scale", lambda run: run["scale"]),
        Multiple("1 / scale", lambda run: 1.0 / run["scale"]),
        Multiple("scale²", lambda run: run["scale"] ** 2),
        Multiple("default scale / scale", lambda run: run["default_scale"] / run["scale"]),
    ]
    if role == "bias":
        pairs = "the number of pairs that share an element"
        some.append(Multiple(f"1 / {pairs}", lambda run: 1.0 / _pairs_of_element(run)))
        some.append(Multiple(pairs, _pairs_of_element))
    yield from (one for one in some if run["scale"] and close(one.value(run)))
    if abs(factor) <= same:
        yield Multiple("0", lambda _run: 0.0)
    for number in numbers(factor, inputs.geometry, same):
        yield _size_multiple(number)


def _size_multiple(number: Number) -> Multiple:
    return Multiple(number.words, lambda run: number.value(run["inputs"].geometry))


def _pairs_of_element(run: golden.Run) -> float:
    bias = run["given_bias"]
    return 1.0 if bias is None else run["logits"].numel() / bias.numel()


def _limit_form(
    form: Form, wrong: Sequence[BackwardReading], right: Sequence[BackwardReading]
) -> Form | None:
    """Return a form under the conditions that spare right gradients; None if none fit."""
    made = [reading.observed.inputs for reading in wrong]
    spared, unable = [], []
    for reading in reversed(right):  # the last right gradients lie near wrong ones
        values = reading.values(form.variant, form.role)
        if values is None:
            unable.append(reading.observed.inputs)
        elif reading.spared(form.role, form.times.value(reading.run) * values):
            spared.append(reading.observed.inputs)
            if not len(spared) % FEW and telling_apart(made, spared) is None:
                return None  # more of them take no fewer conditions
    conditions = telling_apart(made, spared)
    if unable and conditions is not None:  # calls where it cannot be made are a condition, too
        conditions = telling_apart(made, [*spared, *unable]) or conditions
    return None if conditions is None else Form(form.role, form.variant, form.times, conditions)


def _complexity(forms: Sequence[Form]) -> tuple[int, int, int]:
    """Order forms: conditions weigh most, then variants, then numbers, then words."""
    conditions = len({one.name for form in forms for one in form.conditions})
    variants = {id(form.variant) for form in forms if form.variant is not RIGHT}
    times = {form.times.words for form in forms if form.times.words != ONCE.words}
    steps = 2 * conditions + 2 * len(variants) + len(times)
    place = sum(places().get(id(form.variant), 0) for form in forms)
    words = sum(len(form.times.words) for form in forms)
    return steps, words, place


def _read_variants(readings: Sequence[BackwardReading]) -> Iterator[Variant]:
    yield from _clamped_steps(readings)
    for role in TOKENS:
        observed = []
        for each in sorted(readings, key=_telling):
            exact = each.values(RIGHT, role)
            plain = not each.observed.inputs.is_layer and each.shows(role) and each.is_wrong(role)
            if plain and exact is not None:
                observed.append((each.actual(role), exact))
        yield from read_variants(role, observed)


def _clamped_steps(readings: Sequence[BackwardReading]) -> Iterator[Variant]:
    """Yield the ranges that dS and the upstream gradient are clamped to.

    If keys are linearly independent, the gradient of the query determines dS; if the rows of the
    weights are, the gradient of the value determines the upstream gradient.
    """
    of_cores = (each for each in readings if not each.observed.inputs.is_layer)
    ordered = sorted(of_cores, key=_telling)
    for variant, read_from in ((clamped, _scores_read), (clamped_upstream, _upstream_read)):
        limits = (_limit_of(reading, read_from(reading)) for reading in ordered)
        yield from (variant(limit) for limit in islice(filter(None, limits), 1))


def _scores_read(reading: BackwardReading) -> Tensor | None:
    sizes, run = reading.observed.inputs.geometry, reading.run
    if not (1 < sizes.key_length <= sizes.head_size and reading.is_wrong("query")):
        return None
    products: Tensor = reading.actual("query") @ torch.linalg.pinv(run["key"].mT).mT
    scale: float = run["scale"]
    return products / scale


def _upstream_read(reading: BackwardReading) -> Tensor | None:
    sizes = reading.observed.inputs.geometry
    own = sizes.num_heads == sizes.num_kv_heads
    if not (own and 1 < sizes.query_length <= sizes.key_length and reading.is_wrong("value")):
        return None
    read: Tensor = torch.linalg.pinv(reading.run["weights"].mT) @ reading.actual("value")
    return read


def _limit_of(reading: BackwardReading, read: Tensor | None) -> float | None:
    """Return the magnitude that several of the largest numbers share, for a core without a mask."""
    inputs = reading.observed.inputs
    if read is None or inputs.masked or not bool(torch.isfinite(read).all()):
        return None
    limit = float(read.abs().amax())
    same = model.SAME_READ + torch.finfo(inputs.query.dtype).eps
    if int((read.abs() >= (1.0 - same) * limit).sum()) <= 1:
        return None
    rounded = float(f"{limit:.2g}")
    return rounded if abs(rounded - limit) <= same * limit else limit


def _statement(forms: Sequence[Form], readings: Sequence[BackwardReading]) -> NamedMistake:
    parts = [*_changed(forms, readings), *_multiplied(forms, readings)]
    return NamedMistake(
        name="+".join(part.name for part in parts),
        primary="gradients.golden",
        sentence="; ".join(part.sentence for part in parts),
        fix="; ".join(dict.fromkeys(part.fix for part in parts)),
        backward=tuple(map(_acted, forms)),
        sizes=tuple(one.sizes for form in forms for one in form.conditions if one.sizes),
    )


def _acted(form: Form) -> golden.Edit:
    stage = _STAGES[form.role]

    def made(right: golden.Run) -> Any:
        gradient = right.edited(*form.variant.edits, right=right)[stage]
        return None if gradient is None else form.times.value(right) * gradient  # without a mask

    return golden.Edit(stage, made, when=golden.Rewired(form.holds, ("inputs",)))


@dataclass(frozen=True)
class WrongPart:
    """One wrong part of the backward pass, in words."""

    name: str
    sentence: str
    fix: str


def _changed(forms: Sequence[Form], readings: Sequence[BackwardReading]) -> Iterator[WrongPart]:
    groups: dict[Any, list[Form]] = {}
    for form in forms:
        if form.variant is not RIGHT:
            groups.setdefault((id(form.variant), form.where), []).append(form)
    for same in groups.values():
        variant, where = same[0].variant, same[0].where
        of_roles = _gradients(same, readings, each=variant.each)
        if variant.name and _touched(variant, readings) <= {form.role for form in same}:
            yield WrongPart(variant.name, variant.words + where, variant.fix)
        elif variant.name:
            words = f"{variant.words}, as far as {of_roles} shows"
            yield WrongPart(f"{_named(of_roles)}: {variant.name}", words + where, variant.fix)
        else:
            words = f"in {of_roles} {variant.words}{where}"
            yield WrongPart(f"{_named(of_roles)}: {variant.words}", words, variant.fix)


def _touched(variant: Variant, readings: Sequence[BackwardReading]) -> set[str]:
    touched = set()
    for role in ROLES:
        for reading in readings:
            values = reading.values(variant, role) if reading.shows(role) else None
            if values is not None and _moves(values, reading.exact(role).value):
                touched.add(role)
                break
    return touched


def _moves(values: Tensor, exact: Tensor) -> bool:
    moved = float((values - exact).square().sum())
    return moved > model.NEARLY_NOTHING * float(exact.square().sum())


def _multiplied(forms: Sequence[Form], readings: Sequence[BackwardReading]) -> Iterator[WrongPart]:
    groups: dict[Any, list[Form]] = {}
    for form in forms:
        if form.times is not ONCE:
            groups.setdefault((form.times.words, form.where), []).append(form)
    for same in groups.values():
        words, where = same[0].times.words, same[0].where
        known = _OF_CATALOGUE.get((words, tuple(form.role for form in same)))
        if known is not None:
            entry = next(mistake for mistake in BACKWARD if mistake.name == known)
            yield WrongPart(entry.name, entry.sentence + where, entry.fix)
            continue
        several = len(same) > 1
        of_roles = _gradients(same, readings, each=True)
        if words == "0":
            what, short = f"{'are' if several else 'is'} zero", "zero"
        elif words == "-1":
            what, short = f"{'have' if several else 'has'} the wrong sign", "the wrong sign"
        else:
            short = f"{words} times what {'they' if several else 'it'} must be"
            what = f"{'are' if several else 'is'} {short}"
        alone = all(form.role == "bias" for form in same)
        fix = _FIX_BIAS if alone else _FIX
        yield WrongPart(f"{_named(of_roles)}: {short}", f"{of_roles} {what}{where}", fix)


def _gradients(
    same: Sequence[Form], readings: Sequence[BackwardReading], *, each: bool = False
) -> str:
    roles = [form.role for form in same]
    shown = [role for role in ROLES if any(reading.shows(role) for reading in readings)]
    if roles == [role for role in shown if role != "value"] and not each:
        return "the gradient of the scores"
    if len(roles) > 1 and roles == shown and not each:
        return "every gradient"
    names = [_NAMES[role] for role in roles]
    listed = ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]
    return f"the gradient{'s' * (len(names) > 1)} of {listed}"


def _named(of_roles: str) -> str:
    return of_roles.removeprefix("the ").replace("of the ", "of ")
