"""Opening a whole model: accepted sizes, axes of answers, effects of masks.

All are measured by calls: neither file nor module states them reliably.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from ..base.printable_text import few
from ..base.record import SiteEntry
from ..graphs.process import Array, GraphProcess
from ..graphs.protocol import GraphLost, GraphRefused
from ..tolerance.model import HIDDEN_PART
from .in_place import GraphEngine
from .model_inputs import (
    ANSWERING,
    ATTENDING,
    ITEM,
    OTHER,
    PADDED,
    ModelCall,
    ModelInput,
    NoAnswerError,
    UnknownInputError,
    library_of,
    model_inputs,
    sized_pictures,
)
from .site import cache_shapes
from .sites import Sites
from .whole_model import RefusedSize, WholeModel

# Sizes that reveal which ones a model refuses: batches, and lengths of a sequence.
BATCHES: Final = (1, 2, 3, 5)
LENGTHS: Final = (1, 2, 3, 5, 8, 13, 21, 34)
# Tried until one is answered: a file may not say the size it was traced at.
_FIRST_LENGTHS: Final = (5, 8, 7, 6, 4, 16, 10, 12, 32, 64, 128, 1)
_FIRST_BATCHES: Final = (2, 1, 3, 4)
_SEED: Final = 1
# The fewest tokens to test a mask with: a hidden token, a visible token, and the last.
_SHOWING: Final = 3
# Uses of a library's models: the first is a decoder's, the second an encoder's.
_USES: Final = ("CAUSAL_LM", "MASKED_LM")
# The libraries' name of a mask of tokens in which 1 is attended.
ATTENTION_MASK: Final = "attention_mask"
OFFERED_MASK: Final = ModelInput(
    name=ATTENTION_MASK,
    role="mask",
    along=0,
    shape=("batch", "length"),
    dtype=np.dtype(np.int64),
)
_COUNTS_KEYS: Final = (
    "its mask becomes a number of keys for GroupQueryAttention, which by its documentation attends "
    "to padding before and between tokens: it was asked with padding on the right alone"
)
_AXES: Final = ("batch", "length", "second length")


def open_model(
    sites: Sites,
    described: Sequence[SiteEntry],
    declared: Mapping[str, Mapping[str, Any]],
    process: GraphProcess | None = None,
) -> WholeModel:
    """Open the model in a file, with the roles of inputs and the accepted sizes.

    ``process`` is a process that has opened the file already. Raises UnknownInputError where an
    input's role is unknown, or no call is answered.
    """
    inputs = model_inputs(
        sites.graph, declared, cache_shapes(sites.sites), sites.inputs_of_masks_alone
    )
    engine = GraphEngine(sites, process)
    try:
        warnings = [_COUNTS_KEYS] if engine.counts_keys else []
        warnings += [
            f"{entry.name} is given as False in a first call, as True with a cache"
            for entry in inputs
            if entry.role == "flag"
        ]
        model = WholeModel(
            engine=engine, described=described, inputs=inputs, warnings=tuple(warnings)
        )
        inputs = sized_pictures(inputs, lambda sized: _answers(replace(model, inputs=sized)))
        return measured_model(replace(model, inputs=inputs), declared, _tokenizer_of(model))
    except BaseException:
        engine.process.close()
        raise


def _tokenizer_of(model: WholeModel) -> str:
    """Return the library whose tokenizers make a model's inputs, by their names and integers."""
    whole = {entry.name for entry in model.inputs if entry.dtype.kind in "iu"}
    return "transformers" if whole >= {"input_ids", ATTENTION_MASK} else ""


def measured_model(
    model: WholeModel, declared: Mapping[str, Any], documented: str = ""
) -> WholeModel:
    """Measure the model's accepted sizes, the axes of answers, and the polarity of masks.

    documented: the library whose documentation says 1 in ``attention_mask`` is attended: any
    deviation of a model of the library is a mistake.

    Raises UnknownInputError where no call is answered.
    """
    return _polarised(_measured(model), declared, documented)


def _polarised(model: WholeModel, declared: Mapping[str, Any], documented: str) -> WholeModel:
    """Set the polarity of masks according to the answers, where they show it.

    The mask is 0 at the first token and 1 at the rest: whichever of the first two tokens the last
    does not see is hidden. A warning says if 1 in ``attention_mask`` hides.
    """
    masks = {
        entry.name
        for entry in model.inputs
        if entry.role == "mask" and entry.along == 0 and not entry.added
        if entry.name not in declared
    }
    length = next((n for n in model.taken.get("length", LENGTHS) if n >= _SHOWING), 0)
    if model.counts_keys:
        return _dense(model, length) if length else model
    if not masks or not length:
        return model
    batch = model.taken.get("batch", BATCHES)[0]
    second = model.taken.get("second length", (length,))[-1]
    call = model.call(batch, (length, second if model.has_two_sequences else length), None, _SEED)
    said = np.arange(length) > 0
    seen = _told_apart(model, call, dict.fromkeys(masks, said), dict.fromkeys(masks, ~said))
    if seen is None:
        added = () if documented else [e for e in model.inputs if e.name in masks]
        return _with_added(model, call, added)
    hides = seen == (1, 0)
    turned = sorted(name for name in masks if hides and name.endswith(ATTENTION_MASK))
    believed = turned if documented else []
    inputs = tuple(
        replace(entry, hides=hides) if entry.name in masks - {*believed} else entry
        for entry in model.inputs
    )
    judged = (
        f"{documented} documents 1 as a token to attend to, and by that it is judged"
        if documented
        else "by custom 1 is a token to attend to: unless this is meant, its sign is wrong"
    )
    warnings = tuple(
        f"{name} works the wrong way round: tokens with 1 are hidden and those with 0 are seen; "
        f"{judged}"
        for name in turned
    )
    return replace(
        model, inputs=inputs, warnings=(*model.warnings, *warnings), inverted=tuple(believed)
    )


def _dense(model: WholeModel, length: int) -> WholeModel:
    """Note where attentions that count keys refuse an item with fewer keys than tokens."""
    batch = model.taken.get("batch", BATCHES)[0]
    keep = np.broadcast_to(np.arange(length) < length - 1, (batch, length))
    second = model.taken.get("second length", (length,))[-1]
    call = model.call(batch, (length, second if model.has_two_sequences else length), keep, _SEED)
    try:
        why = model.misshapen(call, model.run(call))
    except (GraphRefused, GraphLost) as refusal:
        why = str(refusal)
    if not why:
        return model
    warning = f"items of different lengths were not asked: padding is refused ({why})"
    others = (one for one in model.warnings if one != _COUNTS_KEYS)
    return replace(model, dense=True, warnings=(*others, warning))


def _with_added(model: WholeModel, call: ModelCall, masks: Iterable[ModelInput]) -> WholeModel:
    """Mark masks of floats as added to the scores, if adding them hides tokens.

    A warning says so: callers passing ones and zeros would hide nothing.
    """
    added = {e.name: replace(e, added=True) for e in masks if e.dtype.kind == "f"}
    keep = np.arange(call.lengths[0])[None] > 0
    said, other = (
        {name: entry.mask(own)[0] for name, entry in added.items()} for own in (keep, ~keep)
    )
    if not added or _told_apart(model, call, said, other) != (0, 1):
        return model
    inputs = tuple(added.get(entry.name, entry) for entry in model.inputs)
    warning = (
        f"{few(list(added))} is added to the scores: 0 stands for a token to attend to, and a "
        "large negative number for one that is hidden; ones and zeros hide nothing"
    )
    return replace(model, inputs=inputs, warnings=(*model.warnings, warning))


def _told_apart(
    model: WholeModel, call: ModelCall, said: Mapping[str, Array], other: Mapping[str, Array]
) -> tuple[int, int] | None:
    """Return (hidden, seen): the places of the first two tokens under the given masks.

    None if the last token sees both or neither, or what is hidden stays so under the ``other``
    masks, as what comes after the token that is answered does.
    """
    under = [
        replace(
            call,
            feeds={
                **call.feeds,
                **{
                    name: np.broadcast_to(value, call.feeds[name].shape).astype(
                        call.feeds[name].dtype
                    )
                    for name, value in masks.items()
                },
            },
        )
        for masks in (said, other)
    ]
    try:
        effects = [_effect(model, under[0], place) for place in (0, 1)]
        hidden = int(effects[1] < effects[0])
        shown = _effect(model, under[1], hidden)
    except (GraphRefused, GraphLost):  # nothing is seen: the names of the masks are believed
        return None
    least = min(effects)
    if min(max(effects), shown) * HIDDEN_PART < least or shown == least or effects[0] == effects[1]:
        return None
    return hidden, 1 - hidden


def is_decoder(module: Any) -> bool:
    """Tell whether a module is a decoder alone, by its library's names and its parts."""
    config = getattr(module, "config", None)
    kind = str(getattr(config, "model_type", ""))
    if not library_of(module) or not kind or getattr(config, "is_encoder_decoder", False):
        return False
    modeling_auto = importlib.import_module("transformers.models.auto.modeling_auto")
    names = [getattr(modeling_auto, f"MODEL_FOR_{use}_MAPPING_NAMES", {}) for use in _USES]
    says = {
        own for part in module.modules() if (own := getattr(part, "is_causal", None)) is not None
    }
    return [kind in known for known in names] == [True, False] and says == {True}


def is_padded(entry: ModelInput) -> bool:
    """Tell whether ``attention_mask`` is about an input's tokens, not about a decoder beside it."""
    return (
        entry.role in ("tokens", "features")
        and entry.along == 0
        and not entry.name.lower().startswith(ANSWERING)
    )


def changes_nothing(model: WholeModel, name: str) -> bool:
    """Whether no answer changes by a bit, whatever tokens a mask of the padded sequence hides."""
    length = next((n for n in model.taken.get("length", LENGTHS) if n >= _SHOWING), 0)
    if not length:
        return False
    batch = model.taken.get("batch", BATCHES)[-1]
    second = model.taken.get("second length", (length,))[-1]
    call = model.call(batch, (length, second if model.has_two_sequences else length), None, _SEED)
    place = np.arange(length)
    answers = []
    try:
        for keep in (place >= 0, place > 0, place < length - 1, place == 1):
            value = np.broadcast_to(keep, call.feeds[name].shape).astype(call.feeds[name].dtype)
            answers.append(model.run(replace(call, feeds={**call.feeds, name: value})))
    except (GraphRefused, GraphLost):
        return False
    return all(
        other.keys() == answers[0].keys()
        and all(np.array_equal(other[key], answers[0][key], equal_nan=True) for key in other)
        for other in answers[1:]
    )


def sees_later_tokens(model: WholeModel) -> bool:
    """Whether no attention is causal, and the last token changes the answer to the first."""
    length = next((n for n in model.taken.get("length", LENGTHS) if n >= _SHOWING), 0)
    if not length or model.has_two_sequences:
        return False
    if not model.described or any(entry["causal"] is not False for entry in model.described):
        return False
    call = model.call(model.taken.get("batch", BATCHES)[0], (length, length), None, _SEED)
    changed = np.broadcast_to(np.arange(length) == length - 1, call.keep.shape)
    try:
        own, other = model.run(call), model.run(model.with_tokens(call, changed, _SEED + 1))
    except (GraphRefused, GraphLost):
        return False
    for name, letters in model.outputs.items():
        first = tuple(0 if letter == PADDED else slice(None) for letter in letters)
        if PADDED in letters and not np.array_equal(own[name][first], other[name][first]):
            return True
    return False


def _effect(model: WholeModel, call: ModelCall, place: int) -> float:
    """Return how much changing a token moves the last token's answer, or a whole item's.

    Raises GraphRefused and GraphLost.
    """
    changed = np.broadcast_to(np.arange(call.lengths[0]) == place, call.keep.shape)
    answers = model.run(call)
    others = model.run(model.with_tokens(call, changed, _SEED + 1))
    misshapen = model.misshapen(call, answers) or model.misshapen(call, others)
    if misshapen:
        raise GraphRefused(misshapen)
    moved = [0.0]
    for name, letters in model.outputs.items():
        last = tuple(-1 if letter == PADDED else slice(None) for letter in letters)
        sizes = np.abs(others[name][last] - answers[name][last]).astype(np.float64)
        moved.append(float(np.nan_to_num(sizes, nan=0.0, posinf=0.0).max(initial=0.0)))
    return max(moved)


def _measured(model: WholeModel) -> WholeModel:
    """Measure the axes of the model's answers and the sizes it accepts."""
    fixed = {axis: _fixed(model, axis) for axis in _AXES}
    batch, lengths = _answered(model, fixed)
    base = {"batch": batch, "length": lengths[0], "second length": lengths[1]}
    model = _with_sizes(model, fixed, base)
    outputs = _letters(model, base)
    if not outputs:
        msg = (
            "none of its answers is a tensor of floats with one entry an item: answer logits or "
            "hidden states [B, …], and not what is chosen by them"
        )
        raise UnknownInputError(msg)
    # With the axes of answers known, a wrong shape counts as a refusal of the size, too.
    return _with_sizes(replace(model, outputs=outputs), fixed, base)


def _with_sizes(
    model: WholeModel, fixed: Mapping[str, int | None], base: Mapping[str, int]
) -> WholeModel:
    """Set the model's accepted sizes, and the refused sizes it should accept.

    Raises UnknownInputError where the sizes of an answered call are refused later.
    """
    accepted: dict[str, tuple[int, ...]] = {}
    refused: list[RefusedSize] = []
    for axis in _AXES:
        own = fixed[axis]
        if own is not None:
            accepted[axis] = (own,)
            continue
        if axis == "second length" and not model.has_two_sequences:
            continue
        sizes = sorted({*(BATCHES if axis == "batch" else LENGTHS), base[axis]})
        messages = {size: _answer(model, {**base, axis: size})[1] for size in sizes}
        if messages[base[axis]]:
            msg = f"it answered a call once, and not again: it {messages[base[axis]]}"
            raise UnknownInputError(msg)
        good = tuple(size for size in sizes if not messages[size])
        bad = [size for size in sizes if messages[size]]
        if bad:
            accepted[axis] = good
            if axis == "batch" or not _ends_with_a_table(model, good, bad):
                refused += [
                    RefusedSize(axis=axis, size=size, message=messages[size]) for size in bad
                ]
    return replace(model, taken=accepted, refused=tuple(refused))


def _fixed(model: WholeModel, axis: str) -> int | None:
    for entry in model.inputs:
        if entry.role in ("flag", "lengths"):
            continue
        if axis == "batch":
            size = entry.shape[0]
        elif entry.along == ("length", "second length").index(axis):
            size = entry.shape[entry.place]
        else:
            continue
        if isinstance(size, int):
            return size
    return None if axis == "batch" or model.is_sequential else 1


def _answered(model: WholeModel, fixed: Mapping[str, int | None]) -> tuple[int, tuple[int, int]]:
    """Find sizes of an answered call; raises NoAnswerError with the first refusal.

    A length accepted for a single item is preferred: where windows of tokens are filled up from
    other items, items cannot be independent.
    """
    first, together = "", []
    lengths = _only(fixed["length"], _FIRST_LENGTHS)
    for length, batch in product(lengths, _only(fixed["batch"], _FIRST_BATCHES)):
        sizes = {"length": length, "second length": fixed["second length"] or length}
        _, message = _answer(model, {"batch": batch, **sizes})
        if not message:
            together.append((batch, (length, sizes["second length"])))
            if fixed["batch"] or not _answer(model, {"batch": 1, **sizes})[1]:
                return together[-1]
        first = first or message
    if together:
        return together[0]
    msg = (
        f"it answers no call that was tried: it {first}; declare the roles and the sizes of its "
        "inputs"
    )
    raise NoAnswerError(msg)


def _answers(model: WholeModel) -> bool:
    try:
        _answered(model, {axis: _fixed(model, axis) for axis in _AXES})
    except UnknownInputError:
        return False
    return True


def _only(size: int | None, otherwise: Iterable[int]) -> tuple[int, ...]:
    return tuple(otherwise) if size is None else (size,)


def _answer(model: WholeModel, sizes: Mapping[str, int]) -> tuple[dict[str, Array], str]:
    """Return the answers to a call of the given sizes, and why there is none, or ""."""
    second = sizes["second length"] if model.has_two_sequences else sizes["length"]
    call = model.call(sizes["batch"], (sizes["length"], second), None, _SEED)
    try:
        answers = model.run(call)
    except GraphLost as lost:
        return {}, str(lost)
    except GraphRefused as refusal:
        return {}, f"says: {refusal}"
    return answers, model.misshapen(call, answers)


def _ends_with_a_table(model: WholeModel, good: Sequence[int], bad: Sequence[int]) -> bool:
    """Tell whether only lengths beyond a stored tensor's rows are refused, e.g. positions."""
    longest, shortest = max(good), min(bad)
    if longest > shortest:
        return False
    return any(longest <= size < shortest for size in model.engine.table_sizes() if size > 1)


def _letters(model: WholeModel, base: Mapping[str, int]) -> dict[str, str]:
    """Return the letters of every answer's axes, from two calls of different sizes."""
    sizes = [dict(base), dict(base)]
    for axis in _AXES:
        others = [size for size in model.taken.get(axis, LENGTHS) if size > 1]
        used = {sizes[0][other] for other in _AXES} | {sizes[1][other] for other in _AXES}
        fresh = [size for size in others if size not in used]
        sizes[1][axis] = (fresh or [base[axis]])[0]
        if axis == "second length" and model.has_two_sequences and len(fresh) > 1:
            sizes[0][axis] = fresh[1]
    shapes = []
    for each in sizes:
        answers, why = _answer(model, each)
        if why:
            msg = f"it answers no batch of {each['batch']} of length {each['length']}: it {why}"
            raise UnknownInputError(msg)
        shapes.append({name: value.shape for name, value in answers.items()})
    first, second = shapes
    letters = {}
    for name, shape in first.items():
        other = second.get(name, ())
        pairs = list(zip(shape, other, strict=False))
        if len(shape) != len(other) or not pairs:
            continue
        read = [_letter(pair, place, sizes, model) for place, pair in enumerate(pairs)]
        batches = (sizes[0]["batch"], sizes[1]["batch"])
        joined = batches[0] != batches[1] and pairs.count(batches) > 1  # numbers of pairs of items
        if read[0] == ITEM and not joined:
            letters[name] = "".join(read)
    return letters


def _letter(
    pair: tuple[int, int], place: int, sizes: Sequence[Mapping[str, int]], model: WholeModel
) -> str:
    if place == 0:
        return ITEM if pair == (sizes[0]["batch"], sizes[1]["batch"]) else OTHER
    named = [("length", PADDED), ("second length", ATTENDING)][: 1 + model.has_two_sequences]
    for axis, letter in named:
        if pair == (sizes[0][axis], sizes[1][axis]) and (pair[0] != pair[1] or place == 1):
            return letter
    return OTHER
