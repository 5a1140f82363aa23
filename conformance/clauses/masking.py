"""mask.*: masks of every form, shape and memory layout hide the declared keys."""

from __future__ import annotations

import dataclasses
import math
from itertools import zip_longest
from typing import Final

import torch
from torch import Tensor

from ..calls.calling import arguments
from ..declare.candidate import Candidate
from ..declare.declaration import PADDED_QUERIES
from ..oracle.extreme_logits import keep_one_channel, single_key_inputs
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for, mask_sizes
from ..problems.memory_layouts import STRIDED
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import ANY_FORM, KEY_FORMS, Space, admits_lengths, can_cross, is_fixed
from ..tolerance import model
from .judging import (
    heads_stay,
    logits_grow,
    matches_golden,
    narrow_range,
    order_is_free,
    places_matter,
    relate,
    same_answer,
)
from .rearranging import one_item, permute_heads, permuted_heads_view
from .registry import Finding, clause, requires
from .subject import Subject

SCATTERED = ("random", "padding", "sparse", "dense", "mixed", "left-padding", "one-hidden")
# Positions that queries and keys share: where a query stands depends on how many keys there are.
MOVED_BY_KEYS = ("rotary", "alibi", "relative")
LIVELY_MASK = Space(mask="always", values=LIVELY, least=(("key_length", 2),))


@clause(
    "mask.golden",
    sentence="With a mask, the softmax runs over the kept keys alone.",
    source="Vaswani et al. 2017, section 3.2.3; ONNX Attention-23, input attn_mask",
    space=Space(mask="always", extras="maybe", patterns=SCATTERED, forms=ANY_FORM),
    needs_golden=True,
    counterfactual="no mask at all",
    subtle=True,
)
def mask_golden(subject: Subject, problem: Problem) -> Finding:
    """Any form and shape of mask against the golden."""
    inputs = subject.inputs(problem)
    return matches_golden(
        subject, inputs, "a masked answer is wrong", counterfactual=inputs.without_mask()
    )


def _keeps_causality(candidate: Candidate) -> str:
    # A mask that hides nothing would then replace the causal rule.
    replaces = candidate.declaration.semantics.causal_combination == "mask-only"
    replaced = replaces and candidate.declaration.always_causal
    return "any mask replaces its causal rule" if replaced else ""


@clause(
    "mask.all-keep",
    sentence="A mask that keeps every key changes nothing.",
    source="by definition: a mask says which keys are hidden, and this one hides none",
    space=Space(mask="always", patterns=("full",), share=0.5),
    counterfactual="the mask read with the opposite polarity",
    applies=(_keeps_causality,),
)
def all_keep(subject: Subject, problem: Problem) -> Finding:
    """The full mask against no mask."""
    inputs = subject.inputs(problem)
    wording = "a mask that keeps every key changes the answer"
    return same_answer(subject, inputs.without_mask(), inputs, wording)


_free_key_length = requires(
    lambda c: not is_fixed(c, "key_length"), "its geometry pins the key length"
)


def _padding_shows(candidate: Candidate) -> str:
    """Why causality hides the last keys from all queries that a call without them can have, or "".

    Where the diagonal ends at the last query and key, or both are one sequence, queries are cut off
    together with the keys, and the remaining queries see none of the cut keys. Positions counted
    from the last key move with the cut.
    """
    declared = candidate.declaration
    from_the_end = declared.semantics.causal_alignment == "bottom-right"
    if can_cross(candidate) and from_the_end and declared.position in MOVED_BY_KEYS:
        return f"fewer keys would move its queries' {declared.position} positions"
    shows = can_cross(candidate) and declared.causal == "top-left"
    return "" if shows else order_is_free(candidate)


@clause(
    "mask.padding-is-absence",
    sentence="Keys masked at the end give the answer of a sequence without them.",
    source="by definition: a weight of zero adds nothing to either sum of equation 1",
    space=Space(
        mask="always", patterns=("padding",), values=LIVELY, least=(("key_length", 3),), share=0.5
    ),
    counterfactual="no mask at all",
    applies=(_free_key_length, _padding_shows),
)
def padding_is_absence(subject: Subject, problem: Problem) -> Finding:
    """Every row masks equally many keys; a second call is made without these keys."""
    drawn = subject.inputs(problem)
    length = drawn.geometry.key_length
    kept = 1 + problem.seed % (length - 1)
    keep = (torch.arange(length) < kept).expand(mask_sizes(drawn.mask_shape, drawn.geometry))
    padded = drawn.replace(keep=keep, bias=None)
    cuts_queries = not can_cross(subject.candidate)
    query = padded.query[..., :kept, :] if cuts_queries else padded.query
    absent = padded.without_mask().with_tokens(
        query=query, key=padded.key[..., :kept, :], value=padded.value[..., :kept, :]
    )
    if not admits_lengths(subject.candidate, absent.geometry):
        return Finding(binding=False)

    def view(answer: Tensor) -> Tensor:
        return answer[..., :kept, :] if cuts_queries else answer

    return same_answer(
        subject,
        padded,
        absent,
        f"{length - kept} masked keys at the end do not act as if absent",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(padded.without_mask())),
    )


def _covers(narrow: str, wide: str) -> bool:
    return narrow != wide and set(narrow) - {"1"} <= set(wide) - {"1"}


def _broadcast_pairs(candidate: Candidate) -> list[tuple[str, str, str]]:
    """(form, narrow shape, wide shape) where the wide shape can hold the narrow mask, repeated."""
    declared = candidate.declaration
    pairs: list[tuple[str, str, str]] = []
    for form in declared.masks:
        shapes = declared.shapes_of(form)
        pairs.extend((form, a, b) for a in shapes for b in shapes if _covers(a, b))
    return pairs


def _some_pair(candidate: Candidate) -> str:
    if not candidate.declaration.masks:
        return "no mask is declared"
    return "" if _broadcast_pairs(candidate) else "only one mask shape is declared"


@clause(
    "mask.broadcast",
    sentence="A mask with an axis of size 1 acts like the same mask repeated along that axis.",
    source="ONNX Attention-23: attn_mask is broadcastable; graph-transformer#2",
    space=LIVELY_MASK,
    counterfactual="no mask at all",
    applies=(_some_pair,),
)
def broadcast(subject: Subject, problem: Problem) -> Finding:
    """One mask is passed in a narrow and in a wide shape."""
    pairs = _broadcast_pairs(subject.candidate)
    form, narrow, wide = pairs[problem.seed % len(pairs)]
    if problem.mask is None:
        return Finding(binding=False)
    plan = problem.mask.replace(form=form, shape=narrow, finite_bias=False)
    first = subject.inputs(problem.replace(mask=plan))
    repeated = None if first.keep is None else first.keep.expand(mask_sizes(wide, first.geometry))
    second = first.replace(mask_shape=wide, keep=repeated)
    wording = f"the mask as {narrow} and as {wide} give different answers"
    return same_answer(subject, first, second, wording, counterfactual=first.without_mask())


@clause(
    "mask.per-item",
    sentence="Each batch item obeys its own mask, as if it were alone.",
    source="ONNX Attention-23, input attn_mask; graph-transformer#2: the batch axis onto the heads",
    space=Space(mask="always", axes="B", values=LIVELY, least=(("batch", 2), ("key_length", 2))),
    counterfactual="the masks of the items exchanged",
    applies=(places_matter,),
)
def per_item(subject: Subject, problem: Problem) -> Finding:
    """One item of the batch against the same item alone with its mask."""
    inputs = subject.inputs(problem)
    if inputs.keep is None:
        return Finding(binding=False)
    item = problem.seed % inputs.geometry.batch
    exchanged = inputs.replace(keep=inputs.keep.roll(1, dims=0))
    alone, view = one_item(subject, inputs, item)
    return same_answer(
        subject,
        inputs,
        alone,
        f"item {item} of the batch does not obey its own mask",
        view=view,
        counterfactual=lambda: view(subject.oracle.output(exchanged)),
    )


@clause(
    "mask.per-head",
    sentence=(
        "Each head obeys its own mask: exchanging heads together with their masks changes nothing."
    ),
    source="ONNX Attention-23, input attn_mask: its second axis is that of the heads",
    space=Space(
        mask="always",
        axes="H",
        values=LIVELY,
        least=(("num_kv_heads", 2), ("num_heads", 2)),
        share=0.5,
    ),
    counterfactual="the masks of the heads exchanged",
    applies=(heads_stay,),
)
def per_head(subject: Subject, problem: Problem) -> Finding:
    """Heads, weights and masks exchanged together."""
    inputs = subject.inputs(problem)
    moved, order = permute_heads(subject, inputs, generator_for(problem, 1))
    view = permuted_heads_view(inputs, order)
    wording = "exchanging heads together with their masks changes the answer"
    return same_answer(
        subject, inputs, moved, wording, view=view, counterfactual=moved.replace(keep=inputs.keep)
    )


def _letters(shape: str) -> set[str]:
    return set(shape) - {"1", "K"}


def _form_pairs(candidate: Candidate) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Pairs of (form, shape) of different forms; the second can hold the first's mask.

    Every (form, shape) comes first in a pair once before a second time: few examples ask them all.
    """
    declared = candidate.declaration
    hiding = [form for form in declared.masks if form != PADDED_QUERIES]  # it hides no key
    options = [(form, shape) for form in hiding for shape in declared.shapes_of(form)]
    partners = [
        [
            (first, second)
            for second in options
            if first[0] != second[0]
            and second[0] in KEY_FORMS
            and _letters(first[1]) <= _letters(second[1])
        ]
        for first in options
    ]
    return [pair for turn in zip_longest(*partners) for pair in turn if pair is not None]


def _two_forms(candidate: Candidate) -> str:
    if len(candidate.declaration.masks) < len(("one", "two")):
        return "fewer than two mask forms are declared"
    return "" if _form_pairs(candidate) else "no two declared forms can carry the same mask"


@clause(
    "mask.forms-agree",
    sentence="The same mask in two declared forms gives the same answer.",
    source="pytorch#107084: cast to bool; x-transformers#160, TransformerEngine#614: polarity",
    space=LIVELY_MASK,
    counterfactual="no mask at all",
    applies=(_two_forms,),
)
def forms_agree(subject: Subject, problem: Problem) -> Finding:
    """One mask, passed in two forms."""
    pairs = _form_pairs(subject.candidate)
    (form, shape), (other, other_shape) = pairs[problem.seed % len(pairs)]
    if problem.mask is None:
        return Finding(binding=False)
    plan = problem.mask.replace(form=form, shape=shape, finite_bias=False)
    first = subject.inputs(problem.replace(mask=plan))
    second = first.replace(mask_form=other, mask_shape=other_shape)
    wording = f"the mask as {form} and as {other} give different answers"
    return same_answer(subject, first, second, wording, counterfactual=first.without_mask())


# Numbers that become zero where an integer mask is cut to a bit, to 8 bits or to 32.
OTHER_NUMBERS = (2, -1, 256, 2**32)


def held_numbers(candidate: Candidate) -> list[int]:
    """The mask numbers that the candidate can hold: arrays and graphs may have narrow integers."""
    dtypes = ["int32"] if candidate.declaration.arrays == "jax" else []
    if candidate.graph is not None:
        roles = candidate.graph.reading.masks
        dtypes += [role.dtype for role in roles if role.role == "keep_int"]
    ranges = [torch.iinfo(getattr(torch, dtype)) for dtype in dtypes if "int" in dtype]
    return [n for n in OTHER_NUMBERS if all(each.min <= n <= each.max for each in ranges)]


@clause(
    "mask.int-nonzero",
    level="SHOULD",
    sentence="An integer mask keeps a key by any number but zero, as by one.",
    source="ONNX Cast, torch.Tensor.bool: any number but zero is True; 256 in 8 bits is zero",
    space=LIVELY_MASK.replace(forms=("keep_int",), share=0.5),
    counterfactual="no mask at all",
)
def int_nonzero(subject: Subject, problem: Problem) -> Finding:
    """Mark each kept key by a different number; the answer must equal that of a mask of ones."""
    inputs = subject.inputs(problem)
    forward = subject.forward(inputs)
    ones = subject.call(forward, inputs).output
    positional, keywords = arguments(inputs)
    mask = keywords["keep_int"]
    held = held_numbers(subject.candidate)
    numbers = torch.tensor(held).roll(problem.seed)
    pattern = numbers.repeat(math.ceil(mask.numel() / len(held)))[: mask.numel()]
    marked = mask * pattern.reshape(mask.shape).to(mask)
    call_arguments = positional, {**keywords, "keep_int": marked}
    answer = subject.call_with(forward, call_arguments, inputs).output
    wording = f"a mask of {', '.join(map(str, held))} keeps other keys than one of ones"
    return relate(
        subject,
        (inputs, ones),
        (inputs, answer),
        wording,
        counterfactual=inputs.without_mask(),
    )


# Biases make a layer overshoot a little: the largest stays clear of 1e8.
# The size of the logit, and whether it is the kept key's (far below) or the hidden ones' (above).
# Mostly the largest one below: it shows any fill, and a form of mask may get few examples.
SINGLE_KEY_CASES: Final[tuple[tuple[float, bool], ...]] = (
    (8e7, True),
    (8e7, True),
    (8e7, False),
    (8e7, True),
    (4e5, True),
    (8e7, True),
    (1e2, False),
    (8e7, True),
)
HALF_CASES: Final[tuple[tuple[float, bool], ...]] = (
    (1e2, True),
    (1e3, False),
    (3e3, True),
    (1e2, False),
    (1e3, True),
    (3e3, False),
)
# Below the fill of -1e4 that was usual in float16; a logit of this size is a single product, so it
# may come this near to the largest number.
ONE_PRODUCT = (1.2e4, True)
FLOAT16_CASES = (*HALF_CASES[:2], ONE_PRODUCT, *HALF_CASES[2:])
ONE_PRODUCT_ROOM = 0.75


@clause(
    "mask.single-key",
    sentence=(
        "A row with one kept key returns that key's value, whatever its own logit (down to -1e8, "
        "in float16 to -1.2e4) and the hidden ones (up to 1e8)."
    ),
    source=("by definition: the softmax of one logit is one; a fill shows above the live logits"),
    space=Space(mask="always", values=("normal",), least=(("key_length", 2),)),
    needs_golden=True,
    counterfactual="a finite fill of half the logit's size",
    applies=(logits_grow,),
)
def single_key(subject: Subject, problem: Problem) -> Finding:
    """One live key for all rows of an item: its logit far below, or the hidden logits far above."""
    drawn = subject.inputs(problem)
    target, low = case = _single_key_case(subject, drawn, problem.seed)
    live = 0 if drawn.mask_form == "lengths" else problem.seed % drawn.geometry.key_length
    if case == ONE_PRODUCT:
        drawn = keep_one_channel(drawn, live=live)
    inputs, judged = single_key_inputs(drawn, live=live, target=target, low=low)
    fill = subject.declaration.semantics.replace(mask_operation="add", mask_fill=-target / 2)
    expected = subject.golden(inputs)
    if case == ONE_PRODUCT:
        room = ONE_PRODUCT_ROOM / model.HEADROOM
        expected = dataclasses.replace(expected, limit=room * expected.limit)
    rows = expected.judged if judged is None else expected.judged & judged
    return matches_golden(
        subject,
        inputs,
        f"the only kept key lies {target:.0e} below hidden ones and is not returned alone",
        counterfactual=fill,
        judged=rows,
        signal=False,  # the first key may be the kept key
    )


def _single_key_case(subject: Subject, drawn: Inputs, seed: int) -> tuple[float, bool]:
    """The size of a logit, and whether it belongs to the kept key (below the hidden keys)."""
    cases = HALF_CASES if narrow_range(subject) else SINGLE_KEY_CASES
    free = not drawn.is_layer and drawn.mode == "separate"  # query and key can be chosen
    if cases is HALF_CASES and free and not subject.declaration.precision:
        cases = FLOAT16_CASES
    return cases[seed % len(cases)]


MASK_LAYOUTS = (*STRIDED, "expanded")


@clause(
    "mask.strided",
    sentence="Transposed, sliced, expanded and offset masks act like contiguous ones.",
    source="xformers#813: a bias of another stride; pytorch#181133: contiguity assumptions",
    space=Space(
        mask="always",
        finite_bias="maybe",
        values=LIVELY,
        patterns=("random", "mixed", "padding"),
        least=(("key_length", 2),),
    ),
    counterfactual="no mask at all",
    explained=False,
)
def mask_strided(subject: Subject, problem: Problem) -> Finding:
    """Pass the mask in another memory layout; an expanded mask repeats one slice."""
    inputs = subject.inputs(problem)
    layout = MASK_LAYOUTS[problem.seed % len(MASK_LAYOUTS)]
    if layout == "expanded":
        inputs = inputs.replace(keep=_repeated(inputs.keep), bias=_repeated(inputs.bias))
    return same_answer(
        subject,
        inputs,
        inputs.replace(mask_layout=layout),
        f"a {layout} mask acts like another",
        counterfactual=inputs.without_mask(),
    )


def _repeated(mask: Tensor | None) -> Tensor | None:
    """Make a mask constant along its first axis longer than 1 (items, heads or queries)."""
    if mask is None:
        return None
    axis = next((axis for axis in range(3) if mask.shape[axis] > 1), 0)
    return mask.narrow(axis, 0, 1).expand(mask.shape).contiguous()
