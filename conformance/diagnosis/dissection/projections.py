"""The path of a layer's values, from tokens to answer: which step is not as it should be.

Where all logits are equal the answer is an affine map of the values' tokens, whatever queries and
keys do: of a single token, or where queries are next to nothing. Its matrix is explained first, by
as few wrong steps as will do, then what is added to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...clauses.subject import Subject
from ...oracle.oracle import known_weights
from ...problems.inputs import Inputs
from ...tolerance import model
from ..battery import answer_to, can_be_asked
from ..mistaken_answer import Combination, made_on, mistaken_attention, mistaken_call
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes.named_mistake import Heads
from .reading import ONE, Number, numbers, statement
from .value_steps import (
    ALTERNATIVES,
    BIASES,
    MIXED,
    Steps,
    from_one_head,
    misplaces,
    mixed,
    reading_from,
)

# A power of two: what is off in a weight by logits so much smaller is below what is read.
FAINT: Final = 2.0**-11
# Paths that explain one layer equally well: more are not followed.
MOST_PATHS: Final = 3
# Pairs of a query head and a key/value head up to which values of other heads are looked for.
MOST_PAIRS: Final = 64
NONE: Final = Number("0", lambda _sizes: 0.0)
_TINY: Final = torch.finfo(torch.float64).tiny
_RESIDUALS: Final = ("query", "key", "value")
_RIGHT: Final = Steps()
_HALF: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class AddedTerms:
    """What is added on the way: factors of the biases, of the answer, and of input tokens.

    ``value`` and ``source`` are the factor of the value projection's bias and which it is;
    ``output`` is that of the output bias, ``answer`` that of the whole product, and ``residual``
    that of the ``tokens`` (the name of an input) in the answer.
    """

    value: Number = ONE
    source: str = ""
    output: Number = ONE
    answer: Number = ONE
    residual: Number = NONE
    tokens: str = ""


_MEANT: Final[tuple[set[str], ...]] = (set(), {"cut", "merge"})


@dataclass(frozen=True)
class ValuePath:
    """The wrong steps of a layer's values, and what is added to them."""

    steps: Steps = field(default_factory=Steps)
    added: AddedTerms = field(default_factory=AddedTerms)

    @property
    def right(self) -> bool:
        """Whether the values go the way that they should."""
        return not self.steps.wrong and self.added == AddedTerms()

    def mistake(self) -> NamedMistake:
        """The path as a mistake that can be acted out."""
        words, fixes = self._words()
        steps = self.steps
        return statement(
            f"projections: {'; '.join(words)}",
            "; ".join(words),
            "; ".join(dict.fromkeys(fixes)),
            inputs=self._inputs,
            heads=self._heads if steps.changed("cut", "group", "turn") else None,
            core=self._core if steps.changed("merge") else None,
            output=self._output if self.added.tokens else None,
            # Heads that are cut and merged in another order alike are others' convention.
            misplaces={one.step for one in filter(misplaces, steps.wrong)} not in _MEANT,
        )

    def _words(self) -> tuple[list[str], list[str]]:
        added = self.added
        words = [one.words for one in self.steps.wrong]
        fixes = [one.fix for one in self.steps.wrong]
        if added.answer is not ONE:
            words.append(f"the values are multiplied by {added.answer.words}")
            fixes.append("do not multiply the values by anything but their weights")
        for words_of, fix in (
            (_bias_words(added.value, added.source, "value"), "the value projection"),
            (_bias_words(added.output, "", "output"), "the output projection"),
        ):
            words += words_of
            fixes += [f"add the bias of {fix} once, where it belongs"] * len(words_of)
        if added.tokens:
            times = "" if added.residual.words == "1" else f"{added.residual.words} times "
            words.append(f"{times}the {added.tokens}'s tokens are added to the answer")
            fixes.append("return the projected heads alone; a residual is the caller's")
        return words, fixes

    def _inputs(self, call: DeclaredCall) -> Inputs | None:
        inputs, steps, added = call.inputs, self.steps, self.added
        if not inputs.is_layer or inputs.weights is None:
            return None
        sizes, weights = inputs.geometry, inputs.weights
        value, output = steps.matrices(call)
        factor = added.answer.value(sizes)
        changed = dataclasses.replace(
            weights,
            v=value if factor == 1.0 else value.double() * factor,
            o=output,
            v_bias=_times(factor * added.value.value(sizes), BIASES[added.source](call)),
            o_bias=_times(added.output.value(sizes), weights.o_bias),
        )
        norm = steps.of("tokens")
        tokens = {
            name: getattr(inputs, name) if norm is None else norm.change(getattr(inputs, name))
            for name in ("query", "key", "value")
        }
        return inputs.replace(weights=changed, **tokens)

    def _heads(self, call: DeclaredCall, before: Heads) -> Heads:
        query, key, _ = before
        weights = known_weights(call.inputs)
        bias = weights.v_bias if call.semantics.value_bias else None
        value = self.steps.heads(call, golden.project(call.inputs.value, weights.v, bias))
        return query, golden.repeat_heads(key, query.shape[1], call.semantics), value

    def _core(self, call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        merged = self.steps.merged(call, attention.output)
        heads = _unmerged(merged, call)
        return dataclasses.replace(attention, output=heads)

    def _output(self, call: DeclaredCall, output: Tensor) -> Tensor:
        tokens: Tensor = getattr(call.inputs, self.added.tokens)
        if tokens.shape != output.shape:
            raise NotExpressible
        return output + self.added.residual.value(call.inputs.geometry) * tokens.double()


def _unmerged(merged: Tensor, call: DeclaredCall) -> Tensor:
    """The heads that the declared merge puts together as ``merged``."""
    heads = call.inputs.geometry.num_heads
    kind = call.semantics.head_merge
    if kind == "tokens" or merged.shape[-1] % heads:
        raise NotExpressible
    return golden.split_heads(merged, heads, golden.STANDARD.replace(head_split=kind))


def _times(factor: float, bias: Tensor | None) -> Tensor | None:
    if bias is None or factor == 1.0:
        return bias
    return bias.double() * factor


def _bias_words(number: Number, source: str, role: str) -> list[str]:
    if source:
        times = "" if number.words == "1" else f"{number.words} times "
        return [f"the {role} projection adds {times}{source}"]
    if number is ONE or number.words == "1":
        return []
    if number is NONE:
        return [f"the bias of the {role} projection is left out"]
    if number.words == "2":
        return [f"the bias of the {role} projection is added twice"]
    return [f"the bias of the {role} projection is added {number.words} times"]


class Probe:
    """Inputs for which all logits are equal, with the answers to them and to other tokens."""

    def __init__(self, subject: Subject, inputs: Inputs, known: Combination) -> None:
        self.first = self._call(subject, inputs, known)
        self.other = self._call(subject, _with_other_tokens(inputs), known)
        self.answers = [_answer(subject, inputs), _answer(subject, _with_other_tokens(inputs))]
        self.weights = [
            mistaken_attention(call, made_on(call.semantics, known, call.inputs), every_key=False)[
                1
            ].weights
            for call in (self.first, self.other)
        ]
        size = torch.finfo(inputs.query.dtype).eps
        self.same = max(model.SAME_READ, size)
        self._predicted: dict[Steps, Tensor | None] = {}

    @staticmethod
    def _call(subject: Subject, inputs: Inputs, known: Combination) -> DeclaredCall:
        declared = subject.declaration.semantics
        return mistaken_call(declared, made_on(declared, known, inputs), inputs)

    @property
    def readable(self) -> bool:
        """Whether there are two finite answers."""
        return all(one is not None and bool(torch.isfinite(one).all()) for one in self.answers)

    @property
    def change(self) -> Tensor:
        """What changes in the answer with the tokens: biases do not count."""
        first, other = self.answers
        return first - other  # type: ignore[operator]  # read where readable

    def shows(self, steps: Steps) -> bool:
        """Whether the values would change otherwise by some steps than they should."""
        predicted, right = self.linear(steps), self.linear(_RIGHT)
        return predicted is not None and (right is None or not torch.equal(predicted, right))

    def linear(self, steps: Steps) -> Tensor | None:
        """What would change if the values took some steps, None if they cannot; remembered."""
        if steps not in self._predicted:
            try:
                one = steps.answer(self.first, self.weights[0])
                self._predicted[steps] = one - steps.answer(self.other, self.weights[1])
            except (NotExpressible, ValueError, RuntimeError):
                self._predicted[steps] = None
        return self._predicted[steps]

    def fits(self, steps: Steps) -> Number | None:
        """The factor by which some steps explain the change, if they do."""
        predicted, change = self.linear(steps), self.change
        if predicted is None or predicted.shape != change.shape:
            return None
        factor = float((predicted * change).sum() / predicted.square().sum().clamp_min(_TINY))
        if not self.agree(factor * predicted, change) or abs(factor) <= self.same:
            return None
        return next(numbers(factor, self.first.inputs.geometry, self.same))

    def agree(self, one: Tensor, other: Tensor) -> bool:
        """Whether two tensors are the same, measured by the largest entry."""
        return bool(((one - other).abs() <= self.same * other.abs().amax()).all())

    def factors(self, columns: Sequence[Tensor]) -> list[float] | None:
        """The factors by which some changes add up to the one that is seen; None where none do."""
        change, table = self.change, torch.stack([one.flatten() for one in columns], dim=-1)
        if table.shape[0] != change.numel() or table.shape[0] < table.shape[1]:
            return None
        if int(torch.linalg.matrix_rank(table, rtol=model.NO_EQUATION)) < table.shape[1]:
            return None
        solution = torch.linalg.lstsq(table, change.flatten()[:, None]).solution
        made = (table @ solution).reshape(change.shape)
        return solution[:, 0].tolist() if self.agree(made, change) else None

    def residuals(self) -> Iterator[tuple[str, Tensor]]:
        """The inputs whose tokens have the shape of the answer, with what changes in them."""
        seen: list[Tensor] = []
        for name in _RESIDUALS:
            tokens, others = (getattr(c.inputs, name) for c in (self.first, self.other))
            if tokens.shape == self.change.shape and not any(tokens is one for one in seen):
                seen.append(tokens)
                yield name, (tokens.double() - others.double())


def probes(subject: Subject, inputs: Inputs, known: Combination = ()) -> list[Probe]:
    """Readable probes at the sizes of some inputs: of one token, and of all with equal logits."""
    plain = inputs.without_mask().replace(
        causal=inputs.always_causal, window=None, softcap=None, generic=False
    )
    chosen = [_of_one_token(plain)]
    small = plain.point.qk_norm == "none"  # else queries are made large again
    if subject.candidate.draws_weights and small and not plain.past:
        chosen.append(plain.replace(weights=_with_faint_queries(known_weights(plain))))
    every = []
    for one in (one for one in chosen if can_be_asked(subject, one)):
        with suppress(NotExpressible):  # what is known may be impossible at these sizes
            every.append(Probe(subject, one, known))
    return [probe for probe in every if probe.readable]


def _of_one_token(inputs: Inputs) -> Inputs:
    inputs = inputs.replace(past=0, sinks=None) if inputs.past else inputs
    return inputs.map_tokens(lambda tokens: tokens[:, :1].contiguous())


def _with_faint_queries(weights: golden.ProjectionWeights) -> golden.ProjectionWeights:
    """Projections that make queries so small that all logits are nearly equal.

    Not zero: the values may be projected by the matrix of the queries, or have their bias.
    """
    bias = weights.q_bias
    return dataclasses.replace(
        weights, q=FAINT * weights.q, q_bias=None if bias is None else FAINT * bias
    )


def _with_other_tokens(inputs: Inputs) -> Inputs:
    generator = torch.Generator().manual_seed(inputs.key.numel())

    def drawn(tokens: Tensor) -> Tensor:
        return torch.randn(tokens.shape, generator=generator, dtype=torch.float64).to(tokens.dtype)

    return inputs.map_tokens(drawn)


def _answer(subject: Subject, inputs: Inputs) -> Tensor | None:
    answer = answer_to(subject, inputs)
    return None if answer is None or answer.output.shape != inputs.output_shape else answer.output


def value_paths(
    subject: Subject,
    inputs: Inputs,
    known: Combination = (),
    likely: Sequence[ValuePath] = (),
) -> list[ValuePath]:
    """The ways that the values of a layer may go: the right one alone where it explains answers.

    Where no way explains the answers for many tokens, those for one token; empty if there is none.
    Steps of paths that are ``likely`` are tried before others.
    """
    read = probes(subject, inputs, known)
    some = list(dict.fromkeys(path.steps for path in likely))
    return (_paths(read, some) or _paths(read[:1], some)) if read else []


def _paths(read: Sequence[Probe], likely: Sequence[Steps]) -> list[ValuePath]:
    """The paths with the fewest wrong steps that explain some probes."""
    for several in ((_RIGHT,), likely, _ONE_WRONG, _read_steps(read[0]), _two_wrong(read)):
        paths = [
            path
            for steps in several
            for matrix in _matrices(read, steps)
            for path in _offsets(read, matrix)
        ]
        if paths:
            return paths[:MOST_PATHS]
    return []


_ONE_WRONG: Final = tuple(Steps((one,)) for one in ALTERNATIVES)


def _read_steps(probe: Probe) -> Iterator[Steps]:
    """Wrong steps whose numbers are read: heads mixed with others, values of other heads."""
    own, sizes = probe.linear(_RIGHT), probe.first.inputs.geometry
    for words, change in MIXED:
        other = probe.linear(Steps((mixed(words, change, NONE, ONE),)))
        factors = None if own is None or other is None else probe.factors([own, other])
        if factors is not None and min(map(abs, factors)) > probe.same:
            read = (next(numbers(one, sizes, probe.same)) for one in factors)
            yield Steps((mixed(words, change, *read),))
    sources = _sources(probe)
    yield from (Steps((reading_from(one),)) for one in _counted(sources, sizes))


def _sources(probe: Probe) -> dict[int, int]:
    """Query heads that read the values of another key/value head, and of which."""
    sizes = probe.first.inputs.geometry
    heads, every = sizes.num_heads, list(product(range(sizes.num_heads), range(sizes.num_kv_heads)))
    columns = [probe.linear(Steps((from_one_head(*pair),))) for pair in every]
    if len(every) > MOST_PAIRS or any(one is None for one in columns):
        return {}
    factors = probe.factors([one for one in columns if one is not None])
    if factors is None:
        return {}
    table = torch.tensor(factors).reshape(heads, -1)
    read = {h: int(row.argmax()) for h, row in enumerate(table) if float(row.max()) > _HALF}
    group = heads // max(sizes.num_kv_heads, 1)
    return {head: source for head, source in read.items() if source != head // group}


def _counted(sources: dict[int, int], sizes: Geometry) -> Iterator[dict[int, int]]:
    """The same heads counted from the start, and a single one from the end, too."""
    if sources:
        yield sources
    if len(sources) == 1:
        ((reader, source),) = sources.items()
        yield {reader - sizes.num_heads: source}
        yield {reader - sizes.num_heads: source - sizes.num_kv_heads}
        yield {reader: source - sizes.num_kv_heads}


def _two_wrong(read: Sequence[Probe]) -> Iterator[Steps]:
    """Pairs of wrong steps that may explain some probes.

    Steps that change nothing there are in none. Where fewer wrong steps explain the first probe,
    others do not show there: where none is needed both must be such, where one is needed the other.
    """
    shown = [one for one in _ONE_WRONG if any(probe.shows(one) for probe in read)]
    fitting = [read[0].fits(one) is not None for one in shown]
    needed = 2 if read[0].fits(_RIGHT) is not None else min(sum(fitting), 1)
    for (one, first), (two, second) in combinations(zip(shown, fitting, strict=True), 2):
        wrong = (*one.wrong, *two.wrong)
        if first + second >= needed and len({each.step for each in wrong}) == len(wrong):
            yield Steps(wrong)


def _matrices(read: Sequence[Probe], steps: Steps) -> Iterator[ValuePath]:
    """The paths by some steps whose matrix is right, up to a factor or some tokens added."""
    if read[0].fits(steps) is not None:
        number = _same_number([probe.fits(steps) for probe in read])
        if number is not None:
            yield ValuePath(steps, AddedTerms(answer=_simplest(number)))
        return
    if len(steps.wrong) > 1:
        return
    for name, _ in read[0].residuals():
        number = _same_number([_with_residual(probe, steps, name) for probe in read])
        if number is not None:
            yield ValuePath(steps, AddedTerms(residual=number, tokens=name))


def _same_number(read: Sequence[Number | None]) -> Number | None:
    """The number that several readings say; None where they differ."""
    first = read[0]
    if first is None or any(one is None or one.words != first.words for one in read):
        return None
    return first


def _simplest(number: Number) -> Number:
    return ONE if number.words == "1" else number


def _with_residual(probe: Probe, steps: Steps, name: str) -> Number | None:
    """The factor of the tokens of an input that are added to the answer."""
    predicted, tokens = probe.linear(steps), dict(probe.residuals()).get(name)
    if predicted is None or tokens is None:
        return None
    left = probe.change - predicted
    factor = float((left * tokens).sum() / tokens.square().sum())
    rest = (left - factor * tokens).abs()
    if abs(factor) <= probe.same or not bool((rest <= probe.same * probe.change.abs().max()).all()):
        return None
    return next(numbers(factor, probe.first.inputs.geometry, probe.same))


def _offsets(read: Sequence[Probe], path: ValuePath) -> Iterator[ValuePath]:
    """The path with the factors of the biases that leave nothing over.

    The path as it is where the offset cannot be explained is none.
    """
    for source in BIASES:
        fitted = [_offset(probe, path, source) for probe in read]
        if any(one is None for one in fitted):
            continue
        values, outputs = fitted[0]  # type: ignore[misc]  # none is None
        for value, output in product(values, outputs):
            added = dataclasses.replace(path.added, value=value, source=source, output=output)
            if source and value is NONE:
                continue  # said of the value's own bias
            yield ValuePath(path.steps, added)
        return


def _offset(probe: Probe, path: ValuePath, source: str) -> tuple[list[Number], list[Number]] | None:
    """What the factors of value bias and output bias may be; None where they explain nothing."""
    call, steps, point = probe.first, path.steps, probe.first.semantics
    weights, sizes = known_weights(call.inputs).taking_part(point), call.inputs.geometry
    factor = path.added.answer.value(sizes)
    answer = probe.answers[0] - factor * steps.answer(call, probe.weights[0])  # type: ignore[operator]
    if path.added.tokens:
        tokens = getattr(call.inputs, path.added.tokens)
        answer = answer - path.added.residual.value(sizes) * tokens.double()
    columns = []
    try:
        bias = BIASES[source](call)
    except NotExpressible:
        return None
    if bias is not None:
        columns.append(factor * steps.answer(call, probe.weights[0], bias, zero=True))
    elif source:
        return None
    if weights.o_bias is not None and weights.o is not None:
        columns.append(weights.o_bias.expand_as(answer))
    room = probe.same * max(1.0, float(probe.answers[0].abs().amax()))  # type: ignore[union-attr]
    if not columns:
        return ([ONE], [ONE]) if bool((answer.abs() <= room).all()) else None
    table = torch.stack([column.flatten() for column in columns], dim=-1)
    solution = torch.linalg.lstsq(table, answer.flatten()[:, None]).solution[:, 0]
    if not bool(((table @ solution - answer.flatten()).abs() <= room).all()):
        return None
    read = [_numbers(float(one), probe) for one in solution]
    values = read[0] if bias is not None else [ONE]
    outputs = read[-1] if len(columns) > (bias is not None) else [ONE]
    return values, outputs


def _numbers(factor: float, probe: Probe) -> list[Number]:
    if abs(factor) <= probe.same * 2.0:
        return [NONE]
    read = list(numbers(factor, probe.first.inputs.geometry, probe.same))
    return [ONE] if read[0].words == "1" else read
