"""model.*: items without tokens, the attentions in their places, sizes, and optimisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import torch

from .._golden import golden
from ..base.geometry import Geometry
from ..base.record import SiteEntry
from ..calls.calling import CandidateFailure
from ..declare.candidate import Candidate
from ..graphs.process import Array, Setting
from ..models.model_inputs import ATTENDING, PADDED
from ..oracle.comparison import compare
from ..oracle.oracle import Oracle
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from .registry import Finding, clause, requires, violated
from .subject import Subject
from .whole_models import (
    MASKED,
    MODELS,
    PADDED_RIGHT,
    agreement,
    allowed_differences,
    allowed_of_alike,
    apart,
    blaming,
    differing,
    drawn_call,
    existing_tokens,
    giving_answers,
    judged_heads,
    model_of,
    named,
    of_fixed_room,
    of_tokens,
    run,
    shows,
)

if TYPE_CHECKING:  # imports onnx, which few runs need
    from ..models.in_place import Activations
    from ..models.model_inputs import Engine, ModelCall
    from ..models.whole_model import WholeModel

_LOWEST: Final = Setting(level="disabled")
_EMPTY: Final = MASKED.replace(least=(("batch", 2), ("key_length", 2)))
_takes_empty: Final = requires(
    lambda c: not model_of(c).counts_keys,
    "its attention is told the last key of an item, and an item without any has none",
)


@clause(
    "model.empty-item-harmless",
    sentence="An item of nothing but padding changes the answer to no other item.",
    source="by definition: batch items are independent; pytorch#160064: one masked head spoils all",
    space=_EMPTY,
    applies=(apart, _takes_empty),
    explained=False,
)
def empty_item_harmless(subject: Subject, problem: Problem) -> Finding:
    """A batch whose last item is emptied against the unchanged batch."""
    model = model_of(subject.candidate)
    call = drawn_call(subject, problem)
    answers, emptied = run(model, call), run(model, _with_empty_item(model, call))
    judged = existing_tokens(model, call, answers)
    for each in judged.values():
        each[-1] = False
    allowed = allowed_of_alike(model, call, answers)
    wording = "an item of nothing but padding changes the answer to another item"
    return differing(model, agreement(model, answers, emptied, allowed, judged, wording))


@clause(
    "model.empty-item-finite",
    level="SHOULD",
    sentence="The answer to an item of nothing but padding is finite.",
    source="pytorch#103963, mlx#2395: NaN from rows without keys; a SHOULD: no paper defines them",
    space=_EMPTY,
    applies=(_takes_empty,),
    explained=False,
)
def empty_item_finite(subject: Subject, problem: Problem) -> Finding:
    """No NaN and no infinity for the last item of a batch, which is empty."""
    model = model_of(subject.candidate)
    answers = run(model, _with_empty_item(model, drawn_call(subject, problem)))
    for name in model.outputs:
        unusual = ~np.isfinite(answers[name][-1])
        if unusual.any():
            message = (
                f"{name} is not finite for an item of nothing but padding "
                f"({int(unusual.sum())} of {unusual.size} numbers)"
            )
            return violated("finite", message)
    return Finding()


def _with_empty_item(model: WholeModel, call: ModelCall) -> ModelCall:
    keep = call.keep.copy()
    keep[-1] = False
    return model.with_mask(call, keep)


def _open_sizes(candidate: Candidate) -> str:
    """Unless the file fixes every size."""
    model = model_of(candidate)
    fixed = [axis for axis, sizes in model.taken.items() if len(sizes) == 1]
    refused = {entry.axis for entry in model.refused}
    axes = {"batch", *(["length"] if model.is_sequential else [])}
    return "" if axes - (set(fixed) - refused) else "the file fixes every size"


@clause(
    "model.any-size",
    sentence="A model whose file leaves the batch or a length open runs at every size of it.",
    source="pytorch.org/docs/onnx: tracing bakes sizes that are read as numbers",
    space=MODELS,
    applies=(_open_sizes,),
    explained=False,
)
def any_size(subject: Subject, problem: Problem) -> Finding:
    """No refusal of a batch of 1 to 5 or of 1 to 34 tokens, and answers of as many entries."""
    model = model_of(subject.candidate)
    if model.refused:
        entry = model.refused[problem.seed % len(model.refused)]
        taken = ", ".join(map(str, model.taken[entry.axis]))
        message = (
            f"the {entry.axis} is open, but the model runs at {taken} only: at "
            f"{entry.size} it {entry.message}"
        )
        return violated("shape", message)
    run(model, drawn_call(subject, problem))
    return Finding()


_takes_cache: Final = requires(
    lambda c: model_of(c).has_cache, "it takes no keys of earlier tokens"
)
_LATER: Final = (("key_length", 2), ("query_length", 2))
# The most calls that a sequence is given in.
_MOST_CALLS: Final = 8


@clause(
    "model.cache-equals-full",
    sentence=(
        "A model that takes the keys and values of earlier tokens answers later ones as it answers "
        "all of them at once, and hands on the same keys and values."
    ),
    source="by definition of a cache: it saves work alone; executorch#2010: positions of the past",
    space=MASKED.replace(mask="maybe", least=_LATER),
    counterfactual="later tokens without the earlier ones",
    applies=(apart, _takes_cache),
    explained=False,
)
def cache_equals_full(subject: Subject, problem: Problem) -> Finding:
    """A sequence in two calls, in some, or token by token, against all of its tokens at once."""
    model = model_of(subject.candidate)
    call = drawn_call(subject, problem)
    stops = _stops(model, call, problem.seed)
    if model.counts_keys:  # takes whole items: one, or one token of each
        call = model.call(call.batch, call.lengths, None, problem.seed)
        if model.takes(1, call.lengths) and problem.seed % 2:
            call = model.items(call, [0])
        elif call.batch > 1:
            stops = [call.lengths[0] - 1]
    first, length = stops[-1], call.lengths[model.growing]
    whole, behind = run(model, call), model.in_turn(call, stops)
    existing = existing_tokens(model, call, whole)

    def later(name: str, value: Array) -> Array:
        return of_tokens(value, model.outputs[name], first, along=model.growing)

    expected, judged = {}, {}
    grows = (PADDED, ATTENDING)[model.growing]
    still = [name for name in model.handed_on if grows not in model.outputs[name]]
    outputs = {name: axes for name, axes in model.outputs.items() if name not in still}
    growing = dataclasses.replace(model, outputs=outputs)  # a memory is handed on once
    for name, value in whole.items():
        if name in still:
            continue
        is_whole = name in model.handed_on
        expected[name] = value if is_whole else later(name, value)
        judged[name] = np.ones(value.shape, bool) if is_whole else later(name, existing[name])
    where = f"after {first} of {length} tokens" + (f" in {len(stops)} calls" if stops[1:] else "")
    with giving_answers():
        cached = model.run(behind)
        alone = model.run(model.cut(call, slice(first, None), along=model.growing))
    misshapen = _other_shape(expected, cached, where)
    if misshapen is not None:
        return misshapen
    allowed = allowed_differences(model, call, whole)
    wording = f"{where} the cache changes the answer"
    comparison = agreement(growing, expected, cached, allowed, judged, wording)
    answers = {name: value for name, value in expected.items() if name not in model.handed_on}
    binding = shows(answers, alone, allowed, judged)
    calls = None if model.growing else (call, behind)
    return differing(model, comparison, calls, binding=binding, tokens=slice(first, None))


def _stops(model: WholeModel, call: ModelCall, seed: int) -> list[int]:
    """The numbers of tokens behind which a call ends; each item has a token in the first."""
    length = call.lengths[model.growing]
    tokens = 1 if model.growing else int(call.keep.argmax(axis=1).max()) + 1
    first = min(tokens, length - 1)
    one = first + seed % (length - first)
    ways: list[list[int]] = [[one], [*range(first, length)], [*range(one, length, 2)]]
    few = ways[seed // 7 % len(ways)]
    return few[-_MOST_CALLS:] if model.kept is not None else [one]


def _other_shape(
    expected: Mapping[str, Array], got: Mapping[str, Array], where: str
) -> Finding | None:
    """The finding that an answer to later tokens has another shape; None where none has."""
    for name, value in expected.items():
        if got[name].shape != value.shape:
            message = (
                f"{where} {name} has the shape {list(got[name].shape)}, expected "
                f"{list(value.shape)}"
            )
            return violated("shape", message)
    return None


@clause(
    "model.cache-in-order",
    sentence=(
        "Where the items of a cache are put in another order, later tokens are answered as behind "
        "the cache of items in this order."
    ),
    source="transformers, reorder_cache in beam search: a beam goes on with the cache of another",
    space=MODELS.replace(least=(("batch", 2), *_LATER)),
    counterfactual="the cache in the order of before",
    applies=(
        apart,
        _takes_cache,
        requires(
            lambda c: model_of(c).takes_an_order, "nothing says how its cache is put in order"
        ),
    ),
    explained=False,
)
def cache_in_order(subject: Subject, problem: Problem) -> Finding:
    """Items turned round behind the first tokens; the last item goes on twice, as beams do."""
    model = model_of(subject.candidate)
    call = drawn_call(subject, problem)
    order = [call.batch - 1, *range(call.batch - 1, 0, -1)]
    length = call.lengths[model.growing]
    first = 1 + problem.seed % (length - 1)
    if model.counts_keys:  # takes one token of each item
        first = length - 1
    ordered, behind = model.items(call, order), model.in_turn(call, [first], order)
    with giving_answers():
        answers = model.run(model.in_turn(ordered, [first]))
        other = model.run(dataclasses.replace(behind, order=None))
        got = model.run(behind)
    where = f"after {first} of {length} tokens and items in the order {order}"
    misshapen = _other_shape(answers, got, where)
    if misshapen is not None:
        return misshapen
    whole = allowed_differences(model, ordered, run(model, ordered))
    rooms = of_fixed_room(model)
    judged = {name: np.full(value.shape, name not in rooms) for name, value in answers.items()}
    comparison = agreement(model, answers, got, whole, judged, f"{where} the answer is another")
    return differing(model, comparison, binding=shows(answers, other, whole, judged))


def _unmasked_sites(candidate: Candidate) -> list[int]:
    """The attentions over keys of the padded sequence that no mask of the sequence reaches."""
    model = model_of(candidate)
    padded = {entry.name for entry in model.inputs if entry.along == 0}
    masks = {entry.name for entry in model.masks if entry.along == 0}
    unmasked = []
    for entry in model.described:
        sources = model.engine.key_inputs(entry["index"])
        if sources & padded and sources <= padded and masks.isdisjoint(entry["mask_inputs"]):
            unmasked.append(entry["index"])
    return unmasked


def _latent_sites(model: WholeModel, call: ModelCall) -> set[int]:
    """The attentions whose number of keys does not change with the sequence length.

    Their keys are no tokens, but made by the model from all tokens, such as Perceiver's latents.
    """
    length, second = call.lengths
    others = [size for size in model.taken.get("length", (5, 8)) if size not in (1, length)]
    if not others:
        return set()
    both = (others[0], second if model.has_two_sequences else others[0])
    calls = (call, model.call(call.batch, both, None, 1))
    with giving_answers():
        keys = [{at: one.key.shape[2] for at, one in model.in_place(each)} for each in calls]
    return {index for index, size in keys[0].items() if keys[1].get(index) == size}


@clause(
    "model.mask-reaches-all",
    sentence="The mask reaches every attention whose keys are tokens that it may hide.",
    source="by definition: what one attention sees, the later ones see through it; xformers#103",
    space=PADDED_RIGHT,
    applies=(requires(lambda c: model_of(c).has_mask, "no mask is declared"),),
    explained=False,
)
def mask_reaches_all(subject: Subject, problem: Problem) -> Finding:
    """By the graph: no attention to the padded sequence without the mask above it."""
    model, unmasked = model_of(subject.candidate), _unmasked_sites(subject.candidate)
    if unmasked:
        latent = _latent_sites(model, drawn_call(subject, problem))
        unmasked = [index for index in unmasked if index not in latent]
    if not unmasked:
        return Finding()
    names = ", ".join(named(model, index) for index in unmasked)
    return blaming(violated("value", f"the mask does not reach {names}"), unmasked[0])


@clause(
    "model.sites-in-place",
    sentence=(
        "On the activations of the model itself, too, each of its attentions answers as specified, "
        "within the derived bound; an operator is told as many keys as there are tokens, and turns "
        "queries and keys by their positions where all others of the model do."
    ),
    source="Vaswani et al. 2017, equation 1, on what the layers before it hand on; onnx#2815",
    space=MASKED.replace(mask="offered", least=()),
    counterfactual="an answer of zero",
    applies=(requires(lambda c: model_of(c).cores, "none of its attentions can be judged alone"),),
    explained=False,
)
def sites_in_place(subject: Subject, problem: Problem) -> Finding:
    """The inputs and the answer of each attention while the model runs, where a query has a key."""
    model = model_of(subject.candidate)
    call = drawn_call(subject, problem)
    worst, binding = None, False
    with giving_answers():
        places = list(model.in_place(call))
        told = model.engine.keys_told(call.feeds)
    if odd := _alone_in_its_options(model.described):
        return blaming(violated("value", f"{named(model, odd[0])} {odd[1]}"), odd[0])
    for index, keys in told.items():
        wrong = np.flatnonzero(keys != call.keep.sum(axis=1))
        if wrong.size:
            item = int(wrong[0])
            message = (
                f"{named(model, index)} is told that item {item} has {int(keys[item])} keys: "
                f"it has {int(call.keep[item].sum())} tokens"
            )
            return blaming(violated("value", message), index)
    for index, inside in places:
        core = model.cores[index]
        inputs = _core_inputs(core, inside)
        dtype = inside.dtype or str(inside.query.dtype)
        expected = Oracle(core.declaration, dtype).answer(inputs)
        judged = expected.judged & torch.from_numpy(inside.judged)
        found = compare(
            torch.from_numpy(inside.answer.astype(np.float64)),
            expected.output,
            expected.bound + _steps_taken(core, inside),
            judged=judged,
            wording=f"in the model {named(model, index)} answers wrongly",
        )
        binding = binding or bool(((expected.output.abs() > expected.bound) & judged).any())
        worst = found if worst is None or found.margin > worst.margin else worst
        if found.kind:  # all later attentions inherit a mistake here
            return blaming(Finding.of(found, binding=binding), index)
    if worst is None and not told:
        return Finding(inapplicable="the axes of what enters its attentions are not known")
    return Finding() if worst is None else Finding.of(worst, binding=binding)


# The fewest attentions among which one can be odd; the period of attentions without rotary
# positions in models that leave them out anywhere.
_FEWEST: Final = 3
_WITHOUT_ROTARY: Final = 4


def _alone_in_its_options(described: Sequence[SiteEntry]) -> tuple[int, str] | None:
    """The only attention with an option unlike all others, and the difference; else None."""
    own = [entry for entry in described if "options" in entry]
    for name in dict.fromkeys(name for entry in own for name in entry["options"]):
        values = [entry["options"][name] for entry in own]
        odd = [at for at, value in enumerate(values) if values.count(value) == 1]
        if len(own) < _FEWEST or len(set(values)) != len(("one", "others")) or len(odd) != 1:
            continue
        (at,) = odd
        if _in_a_pattern(name, values, at):
            continue
        other = values[1 if at == 0 else 0]
        why = f"has {name}={values[at]}, where the {len(own) - 1} others have {name}={other}"
        return own[at]["index"], why
    return None


def _in_a_pattern(name: str, values: Sequence[int], at: int) -> bool:
    """Whether models are built with such an exception, as one period of a known pattern."""
    last, only = at == len(values) - 1, 2 * at + 1 >= len(values)
    if "rotary" in name:
        return only and at + 1 >= _WITHOUT_ROTARY
    return last or (values[at] < 0 and (only or at == 0))  # a whole layer between windows


def _steps_taken(core: Candidate, inside: Activations) -> torch.Tensor:
    """How far integers of known steps on the way may move the answer ``[B, H, Lq, D]``.

    A score that moves by s at most moves each weight by the part ``exp(2 s) - 1`` at most; weights
    that move by w each move the answer by w times the sum of the sizes of all values.
    """
    if not inside.steps:
        return torch.zeros(())
    heads = inside.query.shape[1] // inside.key.shape[1]
    query, key, value = (
        torch.from_numpy(part).double() for part in (inside.query, inside.key, inside.value)
    )
    key, value = (part.repeat_interleave(heads, dim=1) for part in (key, value))
    scale = golden.scale_value(
        core.declaration.semantics,
        head_size=query.shape[-1],
        value_head_size=value.shape[-1],
        num_heads=query.shape[1],
    )
    scores, moved = scale * query @ key.transpose(-1, -2), torch.zeros(())
    if inside.bias is not None:
        scores = scores + torch.from_numpy(inside.bias)
    for step in (step for step in inside.steps if step.of_scores):
        ends = sorted((step.least * step.factor, step.most * step.factor))
        outside = (scores - scores.clamp(*ends)).abs()
        moved = moved + outside + step.size * abs(step.factor) / 2
    shown = torch.from_numpy(inside.shown.copy())
    weights = torch.nan_to_num(scores.masked_fill(~shown, -torch.inf).softmax(-1))
    largest = torch.where(shown, moved, 0.0).amax(dim=-1, keepdim=True)
    change = torch.nan_to_num(weights * torch.expm1(2.0 * largest), posinf=1.0)
    for step in (step for step in inside.steps if not step.of_scores):
        change = change + (weights - step.most).clamp(min=0.0) + step.size / 2
    return change.clamp(max=1.0) @ value.abs()


@clause(
    "model.heads-by-token",
    sentence=(
        "Where a model splits heads, each row of a head is of one token, and where it merges them, "
        "each row is of the heads of one token; rotary positions turn no values, and inputs called "
        "key and value make keys and values."
    ),
    source=(
        "Vaswani et al. 2017, 3.2.2: heads are concatenated for each position; Su et al. 2021, "
        "3.2: queries and keys are turned"
    ),
    space=MODELS,  # pictures included: they have one length
    applies=(
        requires(lambda c: model_of(c).engine.sites, "none of its attentions can be judged alone"),
    ),
    explained=False,
)
def heads_by_token(subject: Subject, problem: Problem) -> Finding:
    """Where numbers of heads stood before, and values of equal tokens, in calls of the model."""
    model = model_of(subject.candidate)
    feeds = drawn_call(subject, problem).feeds
    with giving_answers():
        mixing = model.engine.mixing_tokens(feeds)
    given = " and ".join(f"{name} {list(value.shape)}" for name, value in feeds.items())
    for index, words in mixing:
        message = f"in {named(model, index)} {words}: called with {given}"
        return blaming(violated("value", message), index)
    return Finding()


@clause(
    "model.leaves-no-trace",
    sentence=(
        "A call of a module changes none of its inputs, and the same call is answered the same "
        "after another one."
    ),
    source="by definition: a residual that is added in place is added to the caller's tensor, too",
    space=MODELS,
    applies=(
        requires(
            lambda c: hasattr(model_of(c).engine, "changed_inputs"),
            "a graph has no state, and inputs of its own",
        ),
    ),
    explained=False,
)
def leaves_no_trace(subject: Subject, problem: Problem) -> Finding:
    """The inputs after a call; and the answer before and after a call with other tokens."""
    model, call = model_of(subject.candidate), drawn_call(subject, problem)
    answers = run(model, call)
    with giving_answers():
        changed = getattr(model.engine, "changed_inputs")(call.feeds)  # noqa: B009 (torch's engine alone has it)
    if changed:
        return violated("value", f"a call changes its input {changed[0]}")
    everywhere = np.ones((call.batch, max(call.lengths)), dtype=bool)
    other = model.with_tokens(call, everywhere[:, : call.lengths[0]], problem.seed)
    run(model, other)
    allowed = allowed_differences(model, call, answers)
    judged = existing_tokens(model, call, answers)
    wording = "another call in between changes the answer"
    return differing(
        model, agreement(model, answers, run(model, call), allowed, judged, wording), binding=True
    )


def _core_inputs(core: Candidate, inside: Activations) -> Inputs:
    query, key, value = (
        torch.from_numpy(np.ascontiguousarray(part))
        for part in (inside.query, inside.key, inside.value)
    )
    if inside.dtype:
        own: torch.dtype = getattr(torch, inside.dtype)
        query, key, value = query.to(own), key.to(own), value.to(own)
    if value.shape[1] == 1:  # shared by all heads, though each has its own key
        value = value.expand(-1, key.shape[1], -1, -1)
    keep = None if inside.keep is None else torch.from_numpy(np.ascontiguousarray(inside.keep))
    bias, sinks = (
        None if part is None else torch.from_numpy(np.ascontiguousarray(part))
        for part in (inside.bias, inside.sinks)
    )
    sizes = Geometry(
        batch=query.shape[0],
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        query_length=query.shape[2],
        key_length=key.shape[2],
        head_size=query.shape[3],
        value_head_size=value.shape[3],
        **dict.fromkeys(("query_size", "key_size", "value_size", "output_size"), 1),
    )
    causal = inside.causal is not None
    point = core.declaration.semantics
    if causal and core.declaration.causal is None:  # only some calls of a module are
        point = point.replace(causal_alignment=inside.causal)
    return Inputs(
        geometry=sizes,
        mode="separate",
        batched=True,
        query=query,
        key=key,
        value=value,
        keep=keep,
        bias=bias,
        sinks=sinks,
        mask_form="keep" if bias is None else "bias",
        mask_shape="BHQK",
        causal=causal,
        always_causal=causal,
        point=point,
    )


@clause(
    "model.optimisation-levels",
    sentence=(
        "A model answers the same at the runtime's lowest and highest optimisation level, under "
        "any mask."
    ),
    source="onnxruntime#18945: fused graphs are far off for masks other than right padding",
    space=MASKED.replace(mask="offered", least=()),
    counterfactual="an answer of zero",
    explained=False,
    subtle=True,
)
def optimisation_levels(subject: Subject, problem: Problem) -> Finding:
    """No optimisation against all optimisations, over existing tokens."""
    model = model_of(subject.candidate)
    call = drawn_call(subject, problem)
    lowest = run(model, call, setting=_LOWEST)
    answers = run(model, call)
    # Each of the two may err by as much.
    allowed = {name: 2.0 * size for name, size in allowed_differences(model, call, answers).items()}
    judged = existing_tokens(model, call, answers)
    zeros = {name: np.zeros_like(value) for name, value in lowest.items()}
    wording = "optimisation changes the answer"
    comparison = agreement(model, lowest, answers, allowed, judged, wording)
    return differing(model, comparison, binding=shows(lowest, zeros, allowed, judged))


@clause(
    "model.matches-source",
    sentence="A model answers as the module that it was exported from, and so does each attention.",
    source="onnx#2815: incorrect output without any idea of the layer",
    space=MASKED.replace(mask="offered", least=()),
    counterfactual="an answer of zero",
    applies=(requires(lambda c: model_of(c).source is not None, "no source is named"),),
    explained=False,
)
def matches_source(subject: Subject, problem: Problem) -> Finding:
    """Compare existing tokens with the source; the first attention beyond its bound is named."""
    model = model_of(subject.candidate)
    call = drawn_call(subject, problem)
    source = dataclasses.replace(model, engine=cast("Engine", model.source))
    answers = run(model, call)
    with giving_answers():
        expected = source.run(call)
    missing = [name for name in model.outputs if name not in expected]
    if missing:
        return violated("shape", f"the source gives no answer in place of {', '.join(missing)}")
    misshapen = source.misshapen(call, expected)
    if misshapen:
        return violated("shape", f"the source {misshapen}")
    own, theirs = (
        allowed_differences(each, call, values)
        for each, values in ((model, answers), (source, expected))
    )
    allowed = {name: own[name] + theirs[name] for name in model.outputs}
    judged = existing_tokens(model, call, answers)
    zeros = {name: np.zeros_like(value) for name, value in answers.items()}
    wording = "it answers otherwise than its source"
    comparison = agreement(model, expected, answers, allowed, judged, wording)
    finding = Finding.of(comparison, binding=shows(expected, zeros, allowed, judged))
    if finding.violation is None:
        return finding
    site = _first_from_source(model, source, call)
    if site is None:
        return finding
    message = (
        f"{finding.violation.message}; the first that leaves its bound is {named(model, site)}"
    )
    violation = dataclasses.replace(finding.violation, message=message)
    return blaming(dataclasses.replace(finding, violation=violation), site)


def _first_from_source(model: WholeModel, source: WholeModel, call: ModelCall) -> int | None:
    """The first attention that answers unlike the source's attention; None: unknown."""
    from ..models.in_place import as_heads  # noqa: PLC0415 (it imports onnx)

    pairs = list(zip(model.engine.sites, source.engine.sites, strict=False))
    names = [[site.output for site in each] for each in zip(*pairs, strict=True)]
    try:
        sides = [
            (each, run(each, call, taps=taps))
            for each, taps in zip((model, source), names, strict=False)
        ]
        bounds = [
            allowed_differences(each, call, values, taps)
            for (each, values), taps in zip(sides, names, strict=True)
        ]
    except CandidateFailure:
        return None
    for own, other in pairs:
        taps = own.output, other.output
        known = zip(taps, (values for _, values in sides), bounds, strict=True)
        if not all(name in values and name in bound for name, values, bound in known):
            continue  # out of its place in this call
        heads = model.described[own.index]["heads"]
        values = [
            as_heads(values[site.output], site.output_letters, heads)
            for site, (_, values) in zip((own, other), sides, strict=True)
        ]
        if values[0] is None or values[1] is None or values[0].shape != values[1].shape:
            continue
        _, _, judged = judged_heads("BHLD", values[0].shape, call)
        allowed = {"": bounds[0][own.output] + bounds[1][other.output]}
        if shows({"": values[0]}, {"": values[1]}, allowed, {"": judged}):
            return own.index
    return None
