"""Mistakes nobody listed: each stage of the program with each operator that fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import chain, groupby
from typing import Any, Final

import torch
from torch import Tensor

from .._golden import golden
from ..operators import OF_TABLES, Operator, mask_moves, misread_masks, moves, operators, sums
from ..oracle.comparison import GROSS
from ..problems.inputs import Inputs
from ..tolerance import model
from .agreement import BatteryAnswer, within
from .layer_edits import layer_edits
from .misread_structures import misread_structures
from .mistaken_answer import made_on, mistaken_call, mistaken_run
from .mistakes import NamedMistake, NotExpressible, everywhere
from .mistakes._steps import has_bias, has_causal, has_mask, has_sinks, has_softcap, has_window
from .mistakes.named_mistake import IMPOSSIBLE, answer_stage
from .turned_edits import is_turned, turned_edits

_PRIMARY: Final = "numerics.golden"
# Heads take a further axis in front, projected tokens do not.
_BEHIND: Final = {f"projected_{role}": f"given_{role}" for role in ("query", "key", "value")}
# The most numbers of a result in a run of several problems together.
_MOST_TOGETHER: Final = 1 << 18


@dataclass(frozen=True)
class Searched:
    """A stage (or several, changed alike) with its noun and the calls where a change can show.

    ``of`` is "layer" for stages that cores lack; ``needs`` is that of a mistake. Stages that are
    only ``moved`` take no other operators.
    """

    noun: str
    stages: tuple[str, ...]
    where: Callable[[Inputs], bool] = everywhere
    of: str = ""
    needs: str = ""
    moved: bool = False


def _has_structure(inputs: Inputs) -> bool:
    return inputs.causal or inputs.window is not None


def _has_numbers(inputs: Inputs) -> bool:
    return inputs.bias is not None


def _counts_places(inputs: Inputs) -> bool:
    return _has_structure(inputs) or inputs.point.alibi or inputs.point.rotary != "none"


def _counts_distances(inputs: Inputs) -> bool:
    return inputs.point.alibi


# In the order of the program. Changes of two stages may have the same effect: the shortest text is
# reported.
_SEARCHED: Final = (
    Searched("the projected queries", ("projected_query",), of="layer"),
    Searched("the projected keys", ("projected_key",), of="layer"),
    Searched("the projected values", ("projected_value",), of="layer"),
    Searched("the places that queries are counted at", ("positions",), _counts_places),
    Searched("the distances from query to key", ("ahead",), _counts_places),
    Searched("the rotary frequencies", ("frequencies",), is_turned),
    Searched("the angles of the queries", ("query_angles",), is_turned),
    Searched("the angles of the keys", ("key_angles",), is_turned),
    Searched("the angles", ("query_angles", "key_angles"), is_turned),
    Searched("the mask", ("bias", "by_mask"), has_mask, needs="mask"),
    Searched("the table of the mask", ("by_mask",), has_mask, needs="mask", moved=True),
    Searched("the causal flag", ("counted",), needs="causal"),
    Searched("the causal table", ("by_causality",), has_causal),
    Searched("the table of the window", ("by_window",), has_window),
    Searched("the table of causality and window", ("structure",), _has_structure),
    Searched("the table of all that may be attended", ("admitted",)),
    Searched("the additive mask", ("bias",), _has_numbers),
    Searched("the queries", ("query",)),
    Searched("the keys", ("joined_key",)),
    Searched("the keys of the heads", ("shared_key",)),
    Searched("queries and keys", ("query", "joined_key")),
    Searched("the values", ("value_heads",)),
    Searched("the values of the heads", ("shared_value",)),
    Searched("keys and values", ("joined_key", "value_heads")),
    Searched("keys and values of the heads", ("shared_key", "shared_value")),
    Searched("queries, keys and values", ("query", "joined_key", "value_heads")),
    Searched("the dot products", ("products",)),
    Searched("the scores", ("scores",)),
    Searched("the capped scores", ("capped",), has_softcap),
    Searched("the bias by distance", ("distance_bias",), _counts_distances),
    Searched("the logits before the mask", ("biased",), has_bias),
    Searched("the exponentials", ("exponentials",)),
    Searched("the sinks", ("sinks",), has_sinks),
    Searched("the sums of the exponentials", ("total",)),
    Searched("the softmax", ("shares",)),
    Searched("the weights", ("weights",)),
    Searched("the outputs of the heads", ("output",)),
    Searched("the merged heads", ("merged",), of="layer"),
    Searched("the answer", ("answer",), of="layer"),
)
# Stages that are not multiplied: a factor of theirs is a factor of the scores or the values.
_BEFORE_SCORES: Final = (
    *(("query",), ("joined_key",), ("shared_key",), ("products",)),
    *((f"projected_{role}",) for role in ("query", "key", "value")),
)
_SINGULAR: Final = (
    "the bias",
    "the mask",
    "the causal",
    "the table",
    "the additive mask",
    "the answer",
    "the largest",
    "the sum ",
    "the softmax",
)
# Stages that take no axis in front.
_SINGLY: Final = frozenset({"positions", "counted"})
_AXES: Final = {stage.name: stage.axes for stage in golden.LAYER.stages}


# Results that may be mistaken for each other, by kind.
_NOUNS: Final = (
    {"query": "the queries", "shared_key": "the keys", "shared_value": "the values"},
    {
        "products": "the dot products",
        "scores": "the scores",
        "squashed": "the hyperbolic tangents under the softcap",
        "capped": "the capped scores",
        "biased": "the logits before the mask",
        "logits": "the logits",
        "exponents": "the exponents",
        "exponentials": "the exponentials",
        "shares": "the softmax",
        "weights": "the weights",
        "bias": "the additive mask",
    },
    {"largest": "the largest logit of the row", "total": "the sum of the exponentials"},
)
_NUMBERS: Final = {"scale": "the scale", "softcap": "the softcap"}
_SAID: Final = {
    **{name: noun for nouns in _NOUNS for name, noun in nouns.items()},
    **_NUMBERS,
    "key": "the keys",
    "value": "the values",
    "modified": "the capped scores",
    "masked": "the logits",
    "output": "the outputs of the heads",
}


@cache
def stage_edits(kind: str) -> tuple[NamedMistake, ...]:
    """Return every stage with every operator, as mistakes of candidates of a kind.

    Includes stages that read a wrong result.
    """
    searched = (one for one in _SEARCHED if one.of in ("", kind))
    rewired = {one.name: one for one in _rewired()}
    return (
        *chain.from_iterable(map(_edits_of, searched)),
        *_double_mask_mistakes(),
        *_misread_mask_mistakes(),
        *misread_structures(),
        *rewired.values(),
        *turned_edits(),
        *(layer_edits() if kind == "layer" else ()),
    )


@dataclass(frozen=True, eq=False)
class Made:
    """Edits, each of one run, with their answers and their rows without keys along a first axis."""

    edits: Sequence[NamedMistake]
    answers: Tensor
    empty: Tensor


# Answers that thousands of edits are tried on, smallest first, and their largest size, except for
# the plainest answer: extreme values leave more room than the comparison allows.
_FITTED: Final = 3
_MOST_LOGITS: Final = 1 << 14


def edits_making(
    wrong: Sequence[BatteryAnswer], known: Sequence[NamedMistake] = ()
) -> tuple[NamedMistake, ...]:
    """Return the stages with operators that make a few plain errors, besides known mistakes."""
    gross = [one for one in wrong if one.fits and (known or one.margin > GROSS)]
    left = stage_edits(gross[0].subject.declaration.kind) if gross else ()
    usual = [one for one in gross if one.inputs.generic]
    small = sorted(usual, key=lambda one: one.inputs.geometry.logits)
    few = [one for one in small if one.inputs.geometry.logits <= _MOST_LOGITS]
    longest = sorted(few, key=lambda one: -one.inputs.geometry.key_length)
    for one in dict.fromkeys((*small[:1], *gross[:1], *longest[:1], *few[1:_FITTED])):
        left = tuple(fitting(left, one, known, some=one is gross[0]))
    return left


def fitting(
    edits: Sequence[NamedMistake],
    answer: BatteryAnswer,
    known: Sequence[NamedMistake] = (),
    *,
    some: bool = True,
) -> Iterator[NamedMistake]:
    """Yield the edits that make the wrong rows of an answer; known mistakes do not make these rows.

    With ``some``, an edit must leave keys to at least one wrong row: the answer of other rows is
    open. Operators on one stage are run together as problems of equal sizes, far quicker than
    acting each mistake out.
    """
    run = run_besides(answer, known)
    if run is None:
        return
    possible = [one for one in edits if one.where(answer.inputs)]
    with torch.inference_mode():
        for stages, alike in groupby(possible, key=_changed_stages):
            together = list(alike)
            made = _made_together(run, stages, together) if stages else None
            for each in made or _made_singly(run, together):
                yield from _making(answer, run, each, some=some)


def run_besides(answer: BatteryAnswer, known: Sequence[NamedMistake]) -> golden.Run | None:
    """Return the run of an answer's call with known mistakes and every key; None if impossible."""
    inputs, declared = answer.inputs, answer.subject.declaration.semantics
    made = made_on(declared, known, inputs)
    try:
        return mistaken_run(mistaken_call(declared, made, inputs), made).complete()
    except (NotExpressible, *IMPOSSIBLE):
        return None


def _changed_stages(one: NamedMistake) -> tuple[str, ...]:
    """Return the stages that an edit changes; empty if they take no further axis in front."""
    changed = all(edit.change is not None and edit.rule is None for edit in one.edits)
    stages = tuple(edit.stage for edit in one.edits)
    changed = changed and _AXES.keys() >= set(stages)  # others are given, and take no axis
    return stages if changed and _SINGLY.isdisjoint(stages) else ()


def _made_singly(run: golden.Run, edits: Sequence[NamedMistake]) -> Iterator[Made]:
    for one in edits:
        with suppress(NotExpressible, *IMPOSSIBLE):  # it explains no wrong answer
            edited = run.edited(*one.edits)
            yield Made([one], edited[answer_stage(run)][None], edited["empty"][None])


def _made_together(
    run: golden.Run, stages: tuple[str, ...], edits: Sequence[NamedMistake]
) -> list[Made] | None:
    """Run the edits of several stages together; None if the stages take no further axis."""
    able: list[NamedMistake] = []
    results: list[list[Tensor | None]] = []
    behind = _BEHIND.get(stages[0], "")
    for one in edits:
        with suppress(*IMPOSSIBLE):
            changed = [_changed(run, edit) for edit in one.edits]
            results.append([run.edited(**{stages[0]: changed[0]})[behind]] if behind else changed)
            able.append(one)
    stages = (behind,) if behind else stages
    size = max(1, _MOST_TOGETHER // _largest_result(run))
    made: list[Made] = []
    for start in range(0, len(able), size):
        chosen, some = able[start : start + size], zip(*results[start : start + size], strict=True)
        stacked = (_stacked(stage, each) for stage, each in zip(stages, some, strict=True))
        given = {n: each for n, each in zip(stages, stacked, strict=True) if each is not None}
        shape = (len(chosen), *run["scores_shape"])
        try:
            answers, empty = answers_of(run, given, shape)
        except IMPOSSIBLE:
            return None
        made.append(Made(chosen, answers, empty.expand(len(chosen), *run["empty"].shape)))
    return made


def _largest_result(run: golden.Run) -> int:
    results = (run[stage.name] for stage in run.program.stages)
    return max(one.numel() for one in results if isinstance(one, Tensor)) or 1


# Stages that lack axes: their number of axes with one more in front.
_ALONG_PROBLEMS: Final = {"QK": 5, "QR": 5, "KR": 5, "R": 5, "H": 3}


def _stacked(stage: str, results: Sequence[Tensor | None]) -> Tensor | None:
    """Stack results of a stage along an axis in front of items and heads; None if not given."""
    made = [each for each in results if each is not None]
    if not made:
        return None
    stacked: Tensor = torch.stack(torch.broadcast_tensors(*made))
    axes = _ALONG_PROBLEMS.get(_AXES[stage], 0)
    spread: Tensor = stacked.unflatten(0, (len(made), *(1,) * (axes - stacked.dim())))
    return spread


def _changed(run: golden.Run, edit: golden.Edit) -> Tensor | None:
    """Return the changed result of a stage, in its dtype and in its shape or a broadcast shape."""
    change, result = edit.change or torch.clone, run[edit.stage]
    if result is None or not run.holds(edit):
        unchanged: Tensor | None = result
        return unchanged
    changed: Tensor = change(result, *(run[name] for name in _reads_besides(change)))
    changed = changed if changed.dtype == result.dtype else changed.to(result.dtype)
    if changed.shape == result.shape:
        return changed
    return changed.expand(torch.broadcast_shapes(changed.shape, result.shape))


# Cached: the changes live as long as the edits of stages.
_reads_besides: Final = lru_cache(maxsize=1 << 16)(golden.reads_besides)


def answers_of(
    run: golden.Run, given: dict[str, Tensor], shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return answers and empty rows for results of stages that have one more axis in front."""
    if "answer" in given:
        return given["answer"], run["empty"]
    if "merged" in given:
        merged = given["merged"]
        answers = run.edited(merged=merged.flatten(0, 1))["answer"]
        return answers.unflatten(0, merged.shape[:2]), run["empty"]
    together = run.edited(**given, scores_shape=shape)
    output: Tensor = together["output"]
    if answer_stage(together) == "output":
        return output, together["empty"]
    of_items = together.edited(output=output.flatten(0, 1))["answer"]
    return of_items.unflatten(0, output.shape[:2]), together["empty"]


def _making(
    answer: BatteryAnswer, run: golden.Run, made: Made, *, some: bool
) -> Iterator[NamedMistake]:
    """Yield the edits whose answers match the wrong rows of an answer.

    Rows that an edit leaves without keys do not count unless they match as well.
    """
    exact, output, right = answer.exact, answer.output, run[answer_stage(run)]
    if made.answers.shape[1:] != output.shape or right.shape != output.shape:
        return
    wrong = ~within(output, right, exact.bound).all(dim=-1)
    part = model.SAME_READ + model.ACTED_ROOM * torch.finfo(answer.inputs.query.dtype).eps
    finite = (output.masked_fill(~output.isfinite(), 0.0), right.nan_to_num(0.0, 0.0, 0.0))
    room = part * torch.stack(finite).abs().amax()
    apart = output.nan_to_num(nan=torch.pi) - made.answers.nan_to_num(nan=torch.pi)
    off = wrong & (apart.abs() > room).any(dim=-1)
    emptied = made.empty & ~run["empty"]
    emptied = emptied.any(dim=2) if answer.inputs.is_layer else emptied
    same = ~off.flatten(1).any(dim=1)
    if emptied.shape == off.shape:
        judged = wrong & ~emptied
        told = judged.flatten(1).any(dim=1) | (not some)
        same |= ~(off & ~emptied).flatten(1).any(dim=1) & told
    yield from (one for one, fits in zip(made.edits, same.tolist(), strict=True) if fits)


def _rewired() -> Iterator[NamedMistake]:
    order = [stage.name for stage in golden.FORWARD.stages]
    for stage in golden.FORWARD.stages:
        noun, names = _SAID.get(stage.name, ""), golden.reads(stage.rule)
        for name, other in ((n, o) for n in names if noun for o in _replacements(n)):
            if order.index(other) >= order.index(stage.name):
                continue
            words = f"made with {_SAID[other]} in place of {_SAID[name]}"
            sentence = f"{noun} {_verb(noun)} {words}"
            if len(names) == 1:
                sentence = f"{_SAID[other]} {_verb(_SAID[other])} used in place of {_SAID[name]}"
            read = tuple(other if each == name else each for each in names)
            yield NamedMistake(
                name=f"{noun.removeprefix('the ')}: {words}",
                primary=_PRIMARY,
                sentence=sentence,
                fix=f"make {noun} with {_SAID[name]}",
                edits=(golden.Edit(stage.name, golden.Rewired(stage.rule, read)),),
                where=_where(names, read),
                misplaces=other in _NOUNS[0],
            )


def _where(names: tuple[str, ...], read: tuple[str, ...]) -> Callable[[Inputs], bool]:
    if "softcap" in names:
        return has_softcap
    return _has_numbers if read.count("bias") > names.count("bias") else everywhere


def _verb(noun: str) -> str:
    return "is" if noun.startswith(_SINGULAR) else "are"


def _replacements(name: str) -> Iterator[str]:
    own = {"key": "shared_key", "value": "shared_value", "modified": "capped", "masked": "logits"}
    plain = own.get(name, name)
    for nouns in _NOUNS:
        yield from (other for other in nouns if plain in nouns and other != plain)
    if name in _NUMBERS:
        yield from _NOUNS[1]


def _edits_of(searched: Searched) -> Iterator[NamedMistake]:
    noun, last = searched.noun, searched.stages[-1]
    moving = {one.words for one in (*moves(_AXES[last]), *mask_moves())}
    fix = f"take {noun} as {'it is' if _verb(noun) == 'is' else 'they are'}"
    for operator in operators(last, _AXES[last], multiplied=searched.stages not in _BEFORE_SCORES):
        if searched.moved and operator.words not in moving:
            continue
        # The keys that a mask hides are no part of the numbers that it adds.
        tables = last in OF_TABLES and operator.words not in moving
        stages = (last,) if tables else searched.stages
        of_numbers = "bias" in _reads_besides(operator.change)
        yield NamedMistake(
            name=f"{noun.removeprefix('the ')}: {operator.words}",
            primary=_PRIMARY,
            sentence=f"{noun} {_verb(noun)} {operator.words}",
            fix="; ".join(filter(None, (fix, operator.fix))),
            edits=(*(_edit(stage, operator.change) for stage in stages), *_opening(operator)),
            where=has_bias if of_numbers else searched.where,
            misplaces=operator.misplaces,
            needs=searched.needs,
        )


def _double_mask_mistakes() -> Iterator[NamedMistake]:
    of_bias: list[tuple[str, Operator, Callable[..., Any]]] = [
        (f"{one.words}, and its own hides keys as well", one, _hide_besides(one.change))
        for one in moves(_AXES["by_mask"])
    ]
    for one in sums(_AXES["bias"]):
        if one.words in _MEANS:
            kept = partial(torch.Tensor.all, dim=_MEANS[one.words], keepdim=True)
            of_bias.append((one.words, one, _expand_change(kept)))
    for words, operator, of_table in of_bias:
        yield NamedMistake(
            name=f"mask: {words}",
            primary=_PRIMARY,
            sentence=f"the mask is {words}",
            fix="take the mask as it is",
            edits=(_edit("bias", operator.change), _edit("by_mask", of_table)),
            where=has_mask,
            misplaces=operator.misplaces,
            needs="mask",
        )


def _misread_mask_mistakes() -> Iterator[NamedMistake]:
    for operator in misread_masks():
        yield NamedMistake(
            name=f"mask: {operator.words}",
            primary=_PRIMARY,
            sentence=f"the mask is {operator.words}",
            fix="broadcast the mask over the axes that it lacks, and index it by its own strides",
            edits=tuple(golden.Edit(name, change=operator.change) for name in ("bias", "by_mask")),
            where=has_mask,
            needs="mask",
        )


def _opening(operator: Operator) -> tuple[golden.Edit, ...]:
    return (golden.Edit("empty", change=operator.opens),) if operator.opens else ()


def _edit(stage: str, change: Callable[..., Any]) -> golden.Edit:
    """Edit a stage; a mask is first expanded to each query, head and item."""
    if stage == "by_mask":
        return golden.Edit(stage, change=_expanded(change), when=_has_boolean)
    return golden.Edit(stage, change=_expanded(change) if stage == "bias" else change)


def _has_boolean(keep: Tensor | None, lengths: Tensor | None) -> bool:
    return keep is not None or lengths is not None


def _expanded(change: Callable[..., Tensor]) -> golden.Rewired:
    def changed(mask: Tensor, shape: tuple[int, ...], *besides: object) -> Tensor:
        return change(mask.expand(shape), *besides)

    return golden.Rewired(changed, ("", "scores_shape", *_reads_besides(change)))


# Axes along which an additive mask is averaged; keys hidden anywhere stay hidden.
_MEANS: Final = {f"averaged over the {n}": axis for n, axis in (("queries", -2), ("heads", -3))}


def _expand_change(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda table: change(table).expand_as(table)


def _hide_besides(change: Callable[..., Tensor]) -> golden.Rewired:
    def changed(table: Tensor, *besides: object) -> Tensor:
        return table & change(table, *besides)

    return golden.Rewired(changed, ("", *golden.reads_besides(change)))
