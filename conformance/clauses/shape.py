"""shape.*: answers have the right shape and dtype, whatever the memory layout of the inputs."""

from __future__ import annotations

import torch

from ..base.geometry import LENGTHS
from ..calls.calling import CandidateFailure
from ..declare.candidate import Candidate
from ..problems.arrangements import expressible, with_equal_sequences
from ..problems.inputs import Inputs
from ..problems.materialise import with_equal_scales
from ..problems.memory_layouts import CANARIES, STRIDED
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import KEY_FORMS, OPTIONS, Space, can_cross, is_fixed
from .judging import (
    are_golden_weights,
    first_place,
    has_no_memory,
    same_answer,
    same_unless_identical,
)
from .registry import Finding, clause, declares, requires, violated
from .subject import Subject

ANY_KIND = OPTIONS.replace(kinds=("core", "layer", "positions"))
PLAIN = Space(share=0.5)
BATCH = Space(least=(("batch", 2),), share=0.5)


@clause(
    "shape.output",
    sentence="The output has one row a query: [B, H, Lq, Dv] for a core, [B, Lq, Eo] for a layer.",
    source="Vaswani et al. 2017, section 3.2; ONNX Attention-23, output Y",
    space=ANY_KIND,
    of_any_answer=True,
)
def output_shape(subject: Subject, problem: Problem) -> Finding:
    """Reading an answer checks its shape."""
    subject.any_answer(subject.inputs(problem))
    return Finding()


@clause(
    "shape.dtype",
    sentence="The output has the dtype of the query.",
    source="ONNX Attention-23: type constraint T1 binds Q and Y",
    space=ANY_KIND,
    explained=False,
    of_any_answer=True,
)
def output_dtype(subject: Subject, problem: Problem) -> Finding:
    """Compare the dtypes."""
    inputs = subject.inputs(problem)
    got = subject.any_answer(inputs).dtype
    if got == inputs.query.dtype:
        return Finding()
    message = f"the output has dtype {got} for inputs of dtype {inputs.query.dtype}"
    return violated("dtype", message, expected=str(inputs.query.dtype), got=str(got))


def without_batch(candidate: Candidate) -> str:
    """Why no batch can be empty, or ""."""
    if candidate.site is not None:
        return "it is an attention of a model, which gets tokens"
    if not candidate.declaration.batched:
        return "it takes one item without a batch axis"
    if candidate.declaration.head_layout.has_sequences:
        return "one sequence at least lies in its tensors"
    return "its geometry pins the batch" if is_fixed(candidate, "batch") else ""


@clause(
    "shape.empty-batch",
    level={"core": "MUST", "layer": "SHOULD"},
    sentence="A batch of no items gives an empty output of the right shape.",
    source="flash-attention#1159, pytorch#188765; array API: operations accept zero-size arrays",
    space=PLAIN,
    applies=(without_batch,),
    explained=False,
)
def empty_batch(subject: Subject, problem: Problem) -> Finding:
    """Call with every tensor cut to zero items."""
    subject.answer(without_items(subject.inputs(problem)))
    return Finding()


def without_items(inputs: Inputs) -> Inputs:
    """An empty batch."""
    return inputs.map_tokens(lambda tokens: tokens[:0])


def without_length(candidate: Candidate) -> str:
    """Why there can be no call without queries, or ""."""
    if candidate.declaration.head_layout.has_sequences:
        return "one token at least lies in its tensors"
    if candidate.site is not None:
        return "it is an attention of a model, which gets tokens"
    pinned = any(is_fixed(candidate, name) for name in LENGTHS)
    return "its geometry pins the lengths" if pinned else ""


@clause(
    "shape.empty-query",
    level={"core": "MUST", "layer": "SHOULD"},
    sentence="No queries give no rows: an empty output of the right shape.",
    source="pytorch#188765; array API: operations accept zero-size arrays",
    space=PLAIN,
    applies=(without_length,),
    explained=False,
)
def empty_query(subject: Subject, problem: Problem) -> Finding:
    """Call with zero queries (an empty sequence where query and key are one)."""
    subject.answer(without_queries(subject.candidate, subject.inputs(problem)))
    return Finding()


def without_queries(candidate: Candidate, inputs: Inputs) -> Inputs:
    """No queries, and no tokens at all where query and key are one."""
    query = inputs.query[..., :0, :]
    if can_cross(candidate):
        return inputs.with_tokens(query=query)
    key, value = inputs.key[..., :0, :], inputs.value[..., :0, :]
    return inputs.with_tokens(query=query, key=key, value=value)


def _keys_apart(candidate: Candidate) -> str:
    if not can_cross(candidate):
        return "it has as many keys as queries"
    return without_length(candidate)


@clause(
    "shape.empty-key",
    level="SHOULD",
    sentence=(
        "Without any key a query returns zeros, the empty sum, or NaN where zeros are not promised "
        "to rows without keys; such a call may be refused."
    ),
    source="flash-attention#1155, #2470: no keys, and an answer that nobody wrote, or a crash",
    space=PLAIN,
    needs_golden=True,
    counterfactual="an answer that nobody wrote",
    applies=(_keys_apart, has_no_memory),
    explained=False,
)
def empty_key(subject: Subject, problem: Problem) -> Finding:
    """Call with zero keys: every row of the answer is judged."""
    inputs = subject.inputs(problem.replace(past=0, sinks=False))
    empty = inputs.with_tokens(key=inputs.key[..., :0, :], value=inputs.value[..., :0, :])
    expected = subject.oracle.output(empty)
    output = subject.answer_or_refusal(empty)
    if output is None:
        return Finding()
    answer = output.double()
    may_be_nan = subject.declaration.empty_rules != {"zeros"}
    # A layer's answer is the bias of its output projection, added to zeros.
    right = (answer == expected.to(inputs.query.dtype).double()) | (answer.isnan() & may_be_nan)
    if bool(right.all()):
        return Finding()
    place = first_place(~right)
    got, wanted = float(answer[place]), float(expected[place])
    message = f"without any key the answer at {list(place)} is {got:.9g}, not {wanted:.9g}"
    return violated("value", message, expected=wanted, got=got, where=list(place))


@clause(
    "shape.strided",
    sentence="Transposed, sliced and offset inputs give the same answer as contiguous ones.",
    source="pytorch#181133, #163597, flash-attention#2541, xformers#813",
    space=Space(mask="maybe", share=0.5),
    explained=False,
)
def strided(subject: Subject, problem: Problem) -> Finding:
    """The call is repeated on equal values in another memory layout."""
    inputs = subject.inputs(problem)
    layout = STRIDED[problem.seed % len(STRIDED)]
    if inputs.key.shape == inputs.value.shape and problem.seed % 2:
        layout = "mixed"  # strides of the key say nothing about the value's
    return same_answer(
        subject, inputs, inputs.replace(layout=layout), f"a {layout} input changes the answer"
    )


@clause(
    "shape.expanded",
    sentence="Inputs expanded with stride 0 give the same answer as materialised ones.",
    source="pytorch PR#114173",
    space=BATCH,
    explained=False,
)
def expanded(subject: Subject, problem: Problem) -> Finding:
    """Equal items (or equal heads) held once and repeated by a stride of zero."""
    inputs = subject.inputs(problem)
    apart = subject.declaration.head_layout.has_lengths  # no axis holds the items
    by_head = apart or (subject.candidate.kind == "core" and problem.seed % 2 == 1)
    layout = "expanded-heads" if by_head else "expanded"

    def repeated(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor[:, :1] if by_head else tensor[:1]).expand(tensor.shape).contiguous()

    equal = with_equal_scales(inputs.map_tokens(repeated), layout)
    return same_answer(
        subject, equal, equal.replace(layout=layout), "an expanded input changes the answer"
    )


offers_weights = declares("weights", "it does not return weights")


@clause(
    "shape.weights",
    sentence=(
        "The returned weights are [B, H, Lq, Lk], one table a head, equal the softmax and sum to "
        "one over the keys."
    ),
    source="Vaswani et al. 2017, equation 1; pytorch#42929, fairseq#3365",
    space=Space(mask="maybe", causal="maybe", finite_bias="maybe", extras="maybe"),
    needs_golden=True,
    counterfactual="equal weights for every key",
    applies=(offers_weights,),
)
def weights(subject: Subject, problem: Problem) -> Finding:
    """The returned weights against the golden ones."""
    inputs = subject.inputs(problem).replace(return_weights=True)
    answer = subject.call(subject.forward(inputs), inputs)
    return are_golden_weights(subject, inputs, answer)


@clause(
    "shape.weights-aside",
    sentence="Asking for the weights does not change the output.",
    source="pytorch#160064, PR#190486: one fully masked head turns all NaN only with need_weights",
    space=Space(
        mask="maybe",
        causal="maybe",
        extras="maybe",
        # In this order each form of mask gets an empty row among the few edge problems.
        patterns=("empty-rows", "full-and-empty", "random", "full-and-empty"),
        share=0.5,
    ),
    applies=(offers_weights,),
    explained=False,
)
def weights_aside(subject: Subject, problem: Problem) -> Finding:
    """One call with return_weights=True and one without."""
    inputs = subject.inputs(problem)
    with_weights = inputs.replace(return_weights=True)
    return same_answer(subject, inputs, with_weights, "asking for the weights changes the output")


def separate_inputs(candidate: Candidate) -> str:
    """Why inputs cannot be made one object, or ""."""
    declared = candidate.declaration
    if declared.head_layout.cache_axes:
        return "its keys and values lie in caches"
    if declared.head_layout.is_packed:
        return f"its inputs lie in one tensor anyway ({declared.layout})"
    return "" if declared.inputs == "separate" else "key and value are one input anyway"


# Key and value have one shape; query too where the lengths and the heads may be equal.
ONE_SHAPE = (
    ("value_head_size", "head_size"),
    ("value_size", "key_size"),
    ("key_size", "query_size"),
)


@clause(
    "shape.shared",
    sentence=(
        "Key and value, or query, key and value, that are one tensor object give the answer of "
        "equal copies."
    ),
    source="torch.nn.MultiheadAttention takes another path where query is key and key is value",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, equal=ONE_SHAPE, share=0.5),
    applies=(separate_inputs,),
    explained=False,
)
def shared(subject: Subject, problem: Problem) -> Finding:
    """The call gets query, key and value as one object, and as copies."""
    inputs = subject.inputs(problem)
    key, query, description = inputs.key, inputs.query, "key and value that are one object"
    if inputs.query.shape == key.shape and problem.seed % 4:  # equal lengths are rare
        query, description = key, "query, key and value that are one object"
    if inputs.value.shape != key.shape:
        return Finding(binding=False)
    copies = inputs.with_tokens(query=query, key=key, value=key)
    if query is key:  # sequences with different offsets cannot be one tensor
        copies = with_equal_sequences(copies)
    same_object = copies.replace(shared=True)
    wording = f"{description} change the answer"
    answers = subject.answer(copies), subject.answer(same_object)
    return same_unless_identical(subject, (copies, answers[0]), (copies, answers[1]), wording)


@clause(
    "shape.bounds",
    sentence="Nothing beside the elements of the given tensors is read: NaN around them is unseen.",
    source="pytorch#174861: out of bounds at a boundary size; compute-sanitizer, memcheck",
    space=Space(mask="maybe", causal="maybe", share=0.5),
    explained=False,
)
def bounds(subject: Subject, problem: Problem) -> Finding:
    """The call is repeated on views of larger buffers that hold NaN elsewhere."""
    inputs = subject.inputs(problem)
    layout = CANARIES[problem.seed % len(CANARIES)]
    between = inputs.replace(layout=layout, mask_layout="between-canaries")
    wording = f"what lies beside the inputs in memory ({layout}) changes the answer"
    answers = subject.answer(inputs), subject.answer(between)
    return same_unless_identical(subject, (inputs, answers[0]), (inputs, answers[1]), wording)


LEAST_OTHERS = (
    ("batch", 2),
    ("num_heads", 2),
    ("num_kv_heads", 2),
    ("query_length", 2),
    ("key_length", 2),
)
LEAST_MISMATCHED = (("key_length", 4),)


def _mismatches(candidate: Candidate) -> list[str]:
    declared = candidate.declaration
    layout = declared.head_layout
    apart = declared.inputs == "separate" and not (layout.is_packed or layout.cache_axes)
    kinds = ["values"] if apart else []
    if candidate.kind == "core" and len(declared.positional) > 1:
        kinds.append("head-size")
    if declared.mask_shapes and set(declared.masks) & set(KEY_FORMS):
        kinds.append("mask")
    return kinds


_some_mismatch = requires(
    lambda c: c.site is None and _mismatches(c),
    "no mismatch that must be refused can be expressed, or none occurs in its model",
)


@clause(
    "shape.rejects-mismatch",
    sentence=(
        "Fewer values than keys, another query than key head size, or a mask of another key length "
        "raise an exception instead of giving an answer."
    ),
    source="pytorch#64888, #193728; by definition: equation 1 multiplies no such matrices",
    space=Space(
        mask="offered", forms=KEY_FORMS, least=LEAST_MISMATCHED, preferred=(("head_size", 2),)
    ),
    applies=(_some_mismatch,),
    explained=False,
)
def rejects_mismatch(subject: Subject, problem: Problem) -> Finding:
    """One mismatch an example; sizes of 1, which broadcast, are never used."""
    kinds = _mismatches(subject.candidate)
    if problem.geometry.head_size == 1 and "head-size" in kinds:
        kinds.remove("head-size")
    if not kinds:
        return Finding(binding=False)
    kind = kinds[problem.seed % len(kinds)]
    inputs = subject.inputs(problem)
    wrong, description = _mismatched(inputs, kind)
    return must_raise(subject, inputs, wrong, description)


def _mismatched(inputs: Inputs, kind: str) -> tuple[Inputs, str]:
    length = inputs.geometry.key_length
    if kind == "values":
        fewer = inputs.replace(value=inputs.value[..., : length - 1, :]).without_mask()
        return fewer, f"{length} keys with {length - 1} values"
    if kind == "head-size":
        narrower = _other_keys(inputs, inputs.key[..., :-1])
        size = inputs.geometry.head_size
        # A size of 1 would broadcast, which is never judged.
        if size - 1 == 1:
            wide = torch.cat([inputs.key, inputs.key[..., :1]], dim=-1)
            return _other_keys(inputs, wide), f"queries of size {size}, keys of {size + 1}"
        return narrower, f"queries of size {size}, keys of size {size - 1}"
    keep = torch.ones(1, 1, 1, length, dtype=torch.bool) if inputs.keep is None else inputs.keep
    geometry = inputs.geometry.replace(key_length=length - 1)
    return (
        inputs.replace(keep=keep[..., : length - 1], bias=None, geometry=geometry),
        f"{length} keys with a mask for {length - 1}",
    )


def _other_keys(inputs: Inputs, key: torch.Tensor) -> Inputs:
    """Keys of another size, and values where one tensor holds both."""
    other = inputs.replace(key=key).without_mask()
    return other if expressible(other) else other.replace(value=key)


def must_raise(subject: Subject, inputs: Inputs, wrong: Inputs, description: str) -> Finding:
    """Nothing but an exception is right; ``description`` says what the wrong inputs are."""
    forward = subject.forward(inputs)
    try:
        answer = subject.call(forward, wrong)
    except CandidateFailure as failure:
        if failure.violation.kind == "raised":
            return Finding()
        outcome, got = f"an answer that is wrong ({failure.violation.message})", None
    else:
        got = list(answer.output.shape)
        outcome = f"an answer of shape {got}"
    message = f"{description}: {outcome} instead of an exception"
    return violated("not-raised", message, expected="an exception", got=got)


def _some_other_mismatch(candidate: Candidate) -> str:
    declared = candidate.declaration
    if len(declared.head_layout.inputs) == 1:
        return "" if declared.masks else "one tensor holds all, so nothing can differ"
    if declared.inputs != "self" or candidate.kind == "core":
        return ""
    return _some_mismatch(candidate)


@clause(
    "shape.rejects-others",
    level="SHOULD",
    sentence=(
        "More values than keys, a longer mask, and another batch, number of heads or query length "
        "of an input or mask raise an exception."
    ),
    source="pytorch#64888: query batch 1 against key batch 4 accepted",
    space=Space(mask="offered", forms=KEY_FORMS, least=LEAST_OTHERS, share=0.5),
    applies=(_some_other_mismatch,),
    explained=False,
)
def rejects_others(subject: Subject, problem: Problem) -> Finding:
    """One mismatch an example; sizes of 1, which broadcast, are never used."""
    inputs = subject.inputs(problem)
    kinds = _other_mismatches(inputs)
    if not kinds:
        return Finding(binding=False)
    description, wrong = kinds[problem.seed % len(kinds)]
    return must_raise(subject, inputs, wrong, description)


def _other_mismatches(inputs: Inputs) -> list[tuple[str, Inputs]]:
    free, sizes = inputs.without_mask(), inputs.geometry
    mismatches: list[tuple[str, Inputs]] = []
    if inputs.mode == "separate":
        more = free.replace(value=torch.cat([inputs.value, inputs.value[..., :1, :]], dim=-2))
        mismatches.append((f"{sizes.key_length} keys with {sizes.key_length + 1} values", more))
    if inputs.mode != "self" and inputs.batched:
        key = torch.cat([inputs.key, inputs.key[:1]])
        value = key if inputs.mode == "memory" else torch.cat([inputs.value, inputs.value[:1]])
        description = f"a batch of {sizes.batch} queries with one of {sizes.batch + 1} keys"
        mismatches.append((description, free.replace(key=key, value=value)))
    if not inputs.is_layer:
        heads = sizes.num_heads + 1
        key, value = (tensor[:, :1].repeat(1, heads, 1, 1) for tensor in (inputs.key, inputs.value))
        description = f"{sizes.num_heads} query heads with {heads} key heads"
        mismatches.append((description, free.replace(key=key, value=value)))
    if inputs.mask_form in KEY_FORMS:
        mismatches += _longer_masks(inputs)
    return [(description, wrong) for description, wrong in mismatches if expressible(wrong)]


def _longer_masks(inputs: Inputs) -> list[tuple[str, Inputs]]:
    names = {"K": "key_length", "Q": "query_length", "H": "num_heads", "B": "batch"}
    mismatches = []
    for name in (name for letter, name in names.items() if letter in inputs.mask_shape):
        size = getattr(inputs.geometry, name)
        longer = inputs.geometry.replace(**{name: size + 1})
        description = f"a mask for a {name.replace('_', ' ')} of {size + 1} where it is {size}"
        mismatches.append((description, inputs.replace(keep=None, bias=None, geometry=longer)))
    return mismatches


@clause(
    "shape.rejects-width",
    level="SHOULD",
    sentence="Tokens of another width than the projections take raise an exception.",
    source="torch.nn.Linear: the last axis has in_features elements",
    space=Space(kinds=("layer",), least=(("key_size", 2), ("query_size", 2))),
    explained=False,
)
def rejects_width(subject: Subject, problem: Problem) -> Finding:
    """One channel too many in the query (in the tokens, for self-attention)."""
    inputs = subject.inputs(problem)

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor[..., :1]], dim=-1)

    wrong = inputs.with_tokens(query=widen(inputs.query))
    if inputs.mode == "self":
        wrong = inputs.with_tokens(key=widen(inputs.key))
    width = inputs.query.shape[-1]
    return must_raise(subject, inputs, wrong, f"tokens of width {width + 1} for {width}")
