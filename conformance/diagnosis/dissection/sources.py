"""What is moved or exchanged: values, answers and operands that are those of another place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ..._golden import golden
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import scored, weighing
from ..mistakes.named_mistake import CoreChange, Heads, HeadsChange
from .influence import (
    AXIS_ORDERS,
    CHANGED,
    CHANGES,
    GROUPINGS,
    MOVES,
    SPREAD,
    orders,
    orders_along,
    regrouped,
)
from .reading import Number, Reading, numbers, statement

AnswerTerm = Callable[[golden.Attention], Tensor | None]
_NONE: Final = Number("0", lambda _sizes: 0.0)
_OWN: Final = "let each head of each batch item read its own {}"


def value_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Values or answers that are moved, such that values are weighed as was read.

    Proposed where the weighted sum of moved values is what the reading says.
    """
    attention = reading.attention
    for words, move in (*MOVES, *orders(reading)):
        moved = move(attention.value)
        if moved.shape == attention.value.shape and reading.answers(attention.weights @ moved):
            yield _statement_of_value(words, move)
        output = move(attention.output)
        if reading.answers(output):
            yield statement(
                f"answer: {words}",
                f"the answer {words} is returned",
                "return the answer of each query, head and item as it is, in its own place",
                core=lambda _call, a, move=move: dataclasses.replace(a, output=move(a.output)),
            )
    cut = _without_further_channels(attention)
    if cut is not None and reading.answers(attention.weights @ cut.value):
        yield statement(
            "values: with zeros past as many channels as a query has",
            "the weights meet values whose channels past the head size of queries are zero",
            "let the values have a head size of their own",
            core=lambda _call, a: _without_further_channels(a),
        )
    yield from _more_in_the_answer(reading)
    yield from _functions(reading)


def _without_further_channels(attention: golden.Attention) -> golden.Attention | None:
    """The same where values are cut off at the head size of queries; None if none are wider."""
    size = attention.query.shape[-1]
    if attention.value.shape[-1] <= size:
        return None
    value = attention.value.clone()
    value[..., size:] = 0.0
    return weighing(dataclasses.replace(attention, value=value), attention.weights)


def moved_value_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Values that are moved, such that the weights that were read make the answer of them."""
    value = reading.attention.value
    for words, move in (*MOVES, *orders(reading)):
        moved = move(value)
        if moved.shape != value.shape or torch.equal(moved, value):
            continue
        if reading.answers(reading.weights @ moved):
            yield _statement_of_value(words, move)


def key_order_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Values of other tokens, such that each weight stands at another key, for a layer's heads."""
    exact = reading.attention.weights
    own = torch.eye(exact.shape[-1], dtype=exact.dtype).expand(*exact.shape[:2], -1, -1)
    if reading.agree(reading.weights, exact):
        return
    for words, move in (*CHANGES, *orders(reading)):
        if "token" in words and reading.agree(reading.weights, exact @ move(own)):
            yield _statement_of_value(words, move)


def operand_statements(reading: Reading, *, of_tokens: bool = False) -> Iterator[NamedMistake]:
    """Queries or keys in another order of axes, or keys ``of_tokens`` in another than the mask."""
    axes = product(MOVES[-2 * len(AXIS_ORDERS) :], ("query", "key", "query and key"))
    orders_of_keys = orders_along(2, reading.sizes.key_length, pages=True)
    tokens = product(orders_of_keys, ("key", "key and value"))
    attention = reading.attention
    for (words, move), role in tokens if of_tokens else axes:
        query = move(attention.query) if "query" in role else attention.query
        key = move(attention.key) if "key" in role else attention.key
        if not math.isfinite(float(query.sum())):
            continue
        scores = scored(attention, query @ key.mT * attention.scale)
        logits = scores + (0.0 if attention.bias is None else attention.bias)
        weights = golden.softmax(logits.masked_fill(~attention.allowed, -math.inf))
        got = move(reading.weights.mT).mT if "value" in role else reading.weights
        if reading.agree(weights, got):
            yield _statement_of_operand(role, words, move, of_tokens=of_tokens)


def _statement_of_operand(
    role: str, words: str, move: Callable[[Tensor], Tensor], *, of_tokens: bool
) -> NamedMistake:
    def heads(_call: DeclaredCall, before: Heads) -> Heads:
        named = zip(("query", "key", "value"), before, strict=True)
        query, key, value = (move(tensor) if name in role else tensor for name, tensor in named)
        return query, key, value

    text, fix = f"the {role} {words} enters the products", _OWN.format(role)
    if of_tokens:
        text = f"the {role} {words} is read in place of each one's own"
        fix = "read keys, values and mask in one order of tokens: pages in that of their table"
    return statement(f"operand: {role} {words}", text, fix, heads=heads)


def _statement_of_value(words: str, move: Callable[[Tensor], Tensor]) -> NamedMistake:
    def core(_call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        moved = dataclasses.replace(attention, value=move(attention.value))
        return weighing(moved, attention.weights)

    return statement(
        f"values: {words}", f"the weights meet the value {words}", _OWN.format("value"), core=core
    )


def _more_in_the_answer(reading: Reading) -> Iterator[NamedMistake]:
    """A multiple of the answer and one of something else."""
    rows, own = reading.wrong_rows, reading.attention.output
    numeric = bool(rows.any()) and _all_finite(reading.answer[rows]) and _all_finite(own[rows])
    for words, of in (*_ADDED, *_moved_answers(reading)) if numeric else ():
        term = of(reading.attention)
        if term is None or term.shape != reading.answer.shape or not bool(term[rows].any()):
            continue
        if not _all_finite(term[rows]):
            continue
        for of_own, of_term in _factors(reading, term[rows]):
            named = words if of_term.words == "1" else f"{of_term.words} times {words}"
            fix = f"do not add {words} to the answer"
            if of_own.words == "1":
                name, text = f"answer: {named} added", f"the answer has {named} added"
            elif of_own.words == "0":
                name, text = f"answer: {named} in place of it", f"the answer is {named}"
                fix = "return the values summed up by their weights"
                if named == _MEAN:
                    name, text, fix = _all_alike(reading)
            else:
                name = f"answer: {of_own.words} times it and {named}"
                text = f"the answer is {of_own.words} times what it should be and {named}"
            yield statement(name, text, fix, core=_with_more(of, of_own, of_term))


_MEAN: Final = "the mean of the values"


def _all_alike(reading: Reading) -> tuple[str, str, str]:
    """Name, text and fix of the mean of all values: every key weighs the same, hidden or not."""
    inputs = reading.call.inputs
    name = "weights: the same for every key"
    if inputs.mask_form is None and not inputs.causal and inputs.window is None:
        text = "every key has the same weight"
        return name, text, "let the dot products of queries and keys reach the softmax"
    text = "every key has the same weight, hidden or not"
    fix = (
        "hide the hidden keys alone: all logits are equal where one finite number takes the place "
        "of every one"
    )
    if inputs.mask_form == "keep_int":
        fix += "; `~` of an integer mask is nonzero for 0 and for 1 alike: mask == 0 is not"
    return name, text, fix


def _all_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _factors(reading: Reading, term: Tensor) -> Iterator[tuple[Number, Number]]:
    """The numbers by which answer and term add up to wrong rows; the former one if that will do."""
    rows = reading.wrong_rows
    own, got = reading.attention.output[rows], reading.answer[rows]
    table = torch.stack([own.flatten(), term.flatten()], dim=-1)
    rest = got - own
    alone = float((rest * term).sum() / term.square().sum())
    both = [(1.0, alone)]
    if int(torch.linalg.matrix_rank(table, rtol=model.NO_EQUATION)) == table.shape[1]:
        solved = torch.linalg.lstsq(table, got.flatten()[:, None]).solution[:, 0]
        both.append((float(solved[0]), float(solved[1])))
    for of_own, of_term in both:
        close = reading.agree(of_own * own + of_term * term, got)
        if close and abs(of_term) > reading.same:
            lost = abs(of_own) <= reading.same
            of_answer = [_NONE] if lost else numbers(of_own, reading.sizes, reading.same)
            yield from product(of_answer, numbers(of_term, reading.sizes, reading.same))
            return


def _with_more(of: AnswerTerm, of_own: Number, of_term: Number) -> CoreChange:
    def core(call: DeclaredCall, attention: golden.Attention) -> golden.Attention:
        more, sizes = of(attention), call.inputs.geometry
        if more is None:
            raise NotExpressible
        output = of_own.value(sizes) * attention.output + of_term.value(sizes) * more
        return dataclasses.replace(attention, output=output)

    return core


def _moved_answers(reading: Reading) -> Iterator[tuple[str, AnswerTerm]]:
    """The answers of other heads, items and channels, where an answer is no sum of its values."""
    if reading.explained:
        return
    for words, move in SPREAD:
        yield f"the answer {words}", _answer_moved(move)
        if "head" in words or "item" in words:
            yield f"what its weights make of the value {words}", _weighed(move)


def _answer_moved(move: Callable[[Tensor], Tensor]) -> AnswerTerm:
    return lambda attention: move(attention.output)


def _weighed(move: Callable[[Tensor], Tensor]) -> AnswerTerm:
    return lambda attention: attention.weights @ move(attention.value)


def _if_same_shape(of: Callable[[golden.Attention], Tensor]) -> AnswerTerm:
    def term(attention: golden.Attention) -> Tensor | None:
        tensor = of(attention)
        return tensor if tensor.shape == attention.output.shape else None

    return term


_ADDED: Final[tuple[tuple[str, AnswerTerm], ...]] = (
    ("one", lambda a: torch.ones_like(a.output)),
    ("the query", _if_same_shape(lambda a: a.query)),
    (_MEAN, lambda a: a.value.mean(2, keepdim=True).expand_as(a.output)),
    ("the sum of the values", lambda a: a.value.sum(2, keepdim=True).expand_as(a.output)),
    ("the first value", lambda a: a.value[:, :, :1].expand_as(a.output)),
    ("the last value", lambda a: a.value[:, :, -1:].expand_as(a.output)),
    ("the value of the query's own place", _if_same_shape(lambda a: a.value)),
    ("the answer of the row before", lambda a: a.output.roll(1, 2)),
)


def _functions(reading: Reading) -> Iterator[NamedMistake]:
    """A function of the answer, or of the values."""
    attention = reading.attention
    for words, function in FUNCTIONS:
        if reading.answers(function(attention.output)):
            yield function_of_answer(
                words,
                core=lambda _call, a, f=function: dataclasses.replace(a, output=f(a.output)),
            )
        if reading.answers(attention.weights @ function(attention.value)):
            yield statement(
                f"values: {words} of them",
                f"the weights meet {words} of the values",
                "weigh the values as they are",
                core=lambda _call, a, f=function: weighing(
                    dataclasses.replace(a, value=f(a.value)), a.weights
                ),
            )


def function_of_answer(words: str, **steps: Any) -> NamedMistake:
    """That a function of the answer is returned; ``steps`` act it out."""
    return statement(
        f"answer: {words} of it",
        f"{words} of the answer is returned",
        "return the weighted sum of the values as it is",
        **steps,
    )


FUNCTIONS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("nothing", torch.zeros_like),
    ("the hyperbolic tangent", torch.tanh),
    ("the absolute value", torch.abs),
    ("the positive part", torch.relu),
    ("the square", torch.square),
    ("the sigmoid", torch.sigmoid),
    ("the GELU", functional.gelu),
    ("the GELU by the hyperbolic tangent", lambda t: functional.gelu(t, approximate="tanh")),
    ("the SiLU", functional.silu),
    ("the softplus", functional.softplus),
    ("the part between -1 and 1", lambda t: t.clamp(-1.0, 1.0)),
    ("the sum over the queries so far", lambda t: t.cumsum(-2)),
    ("the mean over the heads", lambda t: t.mean(-3, keepdim=True).expand_as(t)),
    ("the softmax over the channels", lambda t: torch.softmax(t, -1)),
    ("the layer norm over the channels", lambda t: functional.layer_norm(t, t.shape[-1:])),
    ("the unit vector", lambda t: functional.normalize(t, dim=-1)),
    *(
        (
            f"the quotient by the root of the mean square of the channels{words}",
            lambda t, epsilon=epsilon: functional.rms_norm(t, t.shape[-1:], eps=epsilon),
        )
        for words, epsilon in (("", 0.0), (" with 1e-6 added", 1e-6), (" with 1e-5 added", 1e-5))
    ),
)


_MOVES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("of the first key/value head", lambda t: t[:, :1].expand_as(t)),
    ("of the last key/value head", lambda t: t[:, -1:].expand_as(t)),
    ("of the key/value head before", lambda t: t.roll(1, 1)),
    ("of the key/value head after", lambda t: t.roll(-1, 1)),
    ("of the opposite key/value head", lambda t: t.flip(1)),
    ("of the first batch item", lambda t: t[:1].expand_as(t)),
    ("of the batch item before", lambda t: t.roll(1, 0)),
    ("of the batch item after", lambda t: t.roll(-1, 0)),
    ("of the opposite batch item", lambda t: t.flip(0)),
    ("of the token counted from the end", lambda t: t.flip(2)),
    ("of the token before", lambda t: t.roll(1, 2)),
    ("of the token after", lambda t: t.roll(-1, 2)),
    (
        "of the token before, the first one twice,",
        lambda t: torch.cat([t[:, :, :1], t], 2)[:, :, :-1],
    ),
    (
        "of the token after, the last one twice,",
        lambda t: torch.cat([t, t[:, :, -1:]], 2)[:, :, 1:],
    ),
    ("of the token before, and zeros for the first,", lambda t: functional.pad(t, (0, 0, 1, -1))),
    ("of zeros", torch.zeros_like),
)
_ROLES: Final = ("key", "value", "key and value")
_PARTS: Final = ("", "cached ", "new ")
_ALL: Final = "whole "
_OTHER: Final = "other "


def _in_integers(*axes: int) -> Callable[[Tensor], Tensor]:
    """Eight bits, with one step for all that lies along some axes."""

    def rounded(tensor: Tensor) -> Tensor:
        largest = tensor.abs().amax(axes, keepdim=True)
        step = torch.where(largest == 0.0, 1.0, largest) / 127.0
        return (tensor / step).round() * step

    return rounded


# What becomes of cached keys or values besides their place.
_STORED: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("multiplied by the scale", lambda t: t * t.shape[-1] ** -0.5),
    *(
        (f"rounded to {words}", lambda t, dtype=dtype: t.to(dtype).to(t.dtype))
        for words, dtype in (
            ("float16", torch.float16),
            ("bfloat16", torch.bfloat16),
            ("float8_e4m3fn", torch.float8_e4m3fn),
            ("float8_e5m2", torch.float8_e5m2),
        )
    ),
    ("rounded to int8 for each token and head", _in_integers(-1)),
    ("rounded to int8 for each channel and head", _in_integers(-2)),
    ("rounded to int8 together", _in_integers(0, 1, 2, 3)),
)


def shared_head_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Keys or values moved before heads share them, or of a cache: elsewhere others say it."""
    call = reading.call
    sizes, past = call.inputs.geometry, call.inputs.past
    grouped = sizes.num_kv_heads < sizes.num_heads
    if call.inputs.is_layer or not (grouped or past):
        return
    yield from _of_moved_heads(call, lambda output: reading.agree(reading.answer, output))


def cached_head_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """The same of a layer with a cache, whose weights are not read: by its answer."""
    if answer.inputs.past and answer.fits:
        yield from _of_moved_heads(*_judged(answer))


def layer_head_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """Values, or keys and values, of a layer's heads that are changed: by its answer."""
    if not answer.fits:
        return
    core, (call, explained) = answer.exact.core, _judged(answer)
    for words, move in CHANGED:
        new = dataclasses.replace(core, value=move(core.value))
        if new.value.shape == core.value.shape and explained(weighing(new, core.weights).output):
            yield _statement_of_value(words, move)
    yield from _of_moved_heads(call, explained)


def _judged(answer: BatteryAnswer) -> tuple[DeclaredCall, Callable[[Tensor], bool]]:
    """A call, and whether outputs of its heads make the answer that was given."""
    call = DeclaredCall(inputs=answer.inputs, semantics=answer.subject.declaration.semantics)
    size = answer.exact.output.abs().amax().clamp_min(model.SAME_READ**2)

    def explained(output: Tensor) -> bool:
        left = (answer.output - call.answer_of(output)).abs()
        return bool((left <= model.SAME_READ * size).all())

    return call, explained


def _of_moved_heads(
    call: DeclaredCall, explained: Callable[[Tensor], bool]
) -> Iterator[NamedMistake]:
    """Keys or values at another place, those of a cache or new ones alone, that are explained."""
    heads, past = call.projected_heads(), call.inputs.past
    parts = _PARTS if past else ("",)
    for (words, move), role, part in (*product(_MOVES, _ROLES, parts), *_behind(past)):
        if explained(call.attend(_moved(heads, move, role, part, past)).output):
            yield _statement(words, move, role, part)
    for words, order in GROUPINGS if call.inputs.geometry.num_kv_heads > 1 else ():
        regroup = regrouped(order)
        if explained(call.attend(regroup(call, heads)).output):
            said = f"query head h reads key/value head {words}"
            fix = "let query head h read key/value head h // (query heads // key/value heads)"
            yield statement(f"heads: {said}", said, fix, heads=regroup)


def _behind(past: int) -> Iterator[tuple[tuple[str, Callable[[Tensor], Tensor]], str, str]]:
    """Cached keys or values behind the new ones, taken for each other, or stored otherwise."""
    if past:
        for role in _ROLES[:-1]:
            yield ("behind the new ones", torch.clone), role, _ALL
        for role in _ROLES:
            yield ("of the other kind", torch.clone), role, _OTHER
        yield from product(_STORED, _ROLES, ("cached ",))


def _moved(
    heads: Heads, move: Callable[[Tensor], Tensor], role: str, part: str, past: int
) -> Heads:
    query, key, value = heads
    if part == _OTHER and key.shape != value.shape:
        return heads

    def changed(tensor: Tensor) -> Tensor:
        if not part:
            return move(tensor)
        if part == _ALL:
            return tensor.roll(-past, 2)
        cached, new = tensor[:, :, :past], tensor[:, :, past:]
        if part == _OTHER:
            return torch.cat([(value if tensor is key else key)[:, :, :past], new], dim=2)
        parts = (move(cached), new) if part == "cached " else (cached, move(new))
        return torch.cat(parts, dim=2)

    return (
        query,
        changed(key) if "key" in role else key,
        changed(value) if "value" in role else value,
    )


def _statement(words: str, move: Callable[[Tensor], Tensor], role: str, part: str) -> NamedMistake:
    def change(call: DeclaredCall, before: Heads) -> Heads | None:
        past = call.inputs.past
        return None if part and not past else _moved(before, move, role, part, past)

    heads: HeadsChange = change
    if part == _ALL:
        other = "values" if role == "key" else "keys"
        said = f"the cached {role}s are put behind the new ones, the cached {other} before them"
        fix = "concatenate keys and values alike: what is cached, then what is new"
        return statement(f"heads: cached {role}s behind the new ones", said, fix, heads=heads)
    if part == _OTHER:
        used = {"key": "values are used as cached keys", "value": "keys are used as cached values"}
        said = f"the cached {used.get(role, 'keys and values are taken for each other')}"
        name, fix = f"heads: cached {role} of the other kind", "keep what is cached of each apart"
        return statement(name, said, fix, heads=heads)
    if (words, move) in _STORED:
        said = f"each {part}{role} is {words} before the new ones join it"
        fix = "use cached keys and values as they are: a cache keeps what the projections gave"
        return statement(f"heads: {part}{role} {words}", said, fix, heads=heads)
    return statement(
        f"heads: {part}{role} {words.rstrip(',')}",
        f"the {part}{role} {words} stands in place of each one's own",
        "keep each key and value in its own place along the tokens, in a cache as well"
        if "token" in words
        else "let head h of each batch item read its own keys and values: those of head h // group",
        heads=heads,
        misplaces="token" not in words,
    )
