"""shape.*: what comes back has the right shape and dtype, whatever the sizes and the strides."""

from __future__ import annotations

import torch

from ..calling import CandidateFailure
from ..candidate import Candidate
from ..inputs import Inputs
from ..layouts import STRIDED
from ..problem import Problem
from ..registry import Finding, clause
from ..results import Violation
from ..space import KEY_FORMS, LENGTHS, Space, can_cross, is_fixed
from ..subject import Subject
from ._vocabulary import matches_golden_weights, same_answer

EVERYBODY = Space(
    mask="maybe", causal="maybe", extras="maybe", kinds=("core", "layer", "positions")
)
PLAIN = Space()
BATCH = Space(least=(("batch", 2),))
LEAST_OTHERS = (
    ("batch", 2),
    ("num_heads", 2),
    ("num_kv_heads", 2),
    ("query_length", 2),
    ("key_length", 2),
)
LEAST_MISMATCHED = (("key_length", 4), ("head_size", 2))


@clause(
    "shape.output",
    level="MUST",
    sentence="The output has one row a query: [B, H, Lq, Dv] for a core, [B, Lq, Eo] for a layer.",
    source="Vaswani et al. 2017, section 3.2; ONNX Attention-23, output Y",
    space=EVERYBODY,
)
def output_shape(subject: Subject, problem: Problem) -> Finding:
    """Reading an answer checks its shape."""
    subject.answer(subject.inputs(problem))
    return Finding()


@clause(
    "shape.dtype",
    level="MUST",
    sentence="The output has the dtype of the query.",
    source="ONNX Attention-23: type constraint T1 binds Q and Y",
    space=EVERYBODY,
    explained=False,
)
def output_dtype(subject: Subject, problem: Problem) -> Finding:
    """Compare the dtypes."""
    inputs = subject.inputs(problem)
    got = subject.answer(inputs).dtype
    if got == inputs.query.dtype:
        return Finding()
    message = f"the output has dtype {got} for inputs of dtype {inputs.query.dtype}"
    return Finding(
        violation=Violation(
            kind="dtype", message=message, expected=str(inputs.query.dtype), got=str(got)
        )
    )


def _batched(candidate: Candidate) -> str:
    if not candidate.declaration.batched:
        return "it takes one item without a batch axis"
    return "its geometry pins the batch" if is_fixed(candidate, "batch") else ""


@clause(
    "shape.empty-batch",
    level={"core": "MUST", "layer": "SHOULD"},
    sentence="A batch of no items gives an empty output of the right shape.",
    source="flash-attention#1159, pytorch#188765; array API: operations accept zero-size arrays",
    space=PLAIN,
    applies=(_batched,),
    explained=False,
)
def empty_batch(subject: Subject, problem: Problem) -> Finding:
    """Call with every tensor cut to zero items."""
    inputs = subject.inputs(problem)
    empty = inputs.with_tokens(query=inputs.query[:0], key=inputs.key[:0], value=inputs.value[:0])
    subject.answer(empty)
    return Finding()


def _free_lengths(candidate: Candidate) -> str:
    pinned = any(is_fixed(candidate, name) for name in LENGTHS)
    return "its geometry pins the lengths" if pinned else ""


@clause(
    "shape.empty-query",
    level={"core": "MUST", "layer": "SHOULD"},
    sentence="No queries give no rows: an empty output of the right shape.",
    source="pytorch#188765; array API: operations accept zero-size arrays",
    space=PLAIN,
    applies=(_free_lengths,),
    explained=False,
)
def empty_query(subject: Subject, problem: Problem) -> Finding:
    """Call with zero queries (an empty sequence where query and key are one)."""
    inputs = subject.inputs(problem)
    query = inputs.query[..., :0, :]
    if can_cross(subject.candidate):
        empty = inputs.with_tokens(query=query)
    else:
        key, value = inputs.key[..., :0, :], inputs.value[..., :0, :]
        empty = inputs.with_tokens(query=query, key=key, value=value)
    subject.answer(empty)
    return Finding()


@clause(
    "shape.strided",
    level="MUST",
    sentence="Transposed, sliced and offset inputs give the same answer as contiguous ones.",
    source="pytorch#181133, #163597, flash-attention#2541, xformers#813",
    space=Space(mask="maybe"),
    explained=False,
)
def strided(subject: Subject, problem: Problem) -> Finding:
    """The same values in another memory layout."""
    inputs = subject.inputs(problem)
    layout = STRIDED[problem.seed % len(STRIDED)]
    if inputs.key.shape == inputs.value.shape and problem.seed % 2:
        layout = "mixed"  # strides of the key say nothing about the value's
    return same_answer(
        subject, inputs, inputs.replace(layout=layout), f"a {layout} input changes the answer"
    )


@clause(
    "shape.expanded",
    level="MUST",
    sentence="Inputs expanded with stride 0 give the same answer as materialised ones.",
    source="pytorch PR#114173",
    space=BATCH,
    explained=False,
)
def expanded(subject: Subject, problem: Problem) -> Finding:
    """Equal items (or equal heads) held once and repeated by a stride of zero."""
    inputs = subject.inputs(problem)
    by_head = subject.candidate.kind == "core" and problem.seed % 2 == 1
    layout = "expanded-heads" if by_head else "expanded"

    def repeat(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor[:, :1] if by_head else tensor[:1]).expand(tensor.shape).contiguous()

    equal = inputs.with_tokens(
        query=repeat(inputs.query), key=repeat(inputs.key), value=repeat(inputs.value)
    )
    return same_answer(
        subject, equal, equal.replace(layout=layout), "an expanded input changes the answer"
    )


def _mismatches(candidate: Candidate) -> list[str]:
    declared = candidate.declaration
    found = ["values"] if declared.inputs == "separate" else []
    if candidate.kind == "core":
        found.append("head-size")
    if declared.mask_shapes and set(declared.masks) & set(KEY_FORMS):
        found.append("mask")
    return found


def _some_mismatch(candidate: Candidate) -> str:
    return "" if _mismatches(candidate) else "no mismatch that must be refused can be expressed"


@clause(
    "shape.rejects-mismatch",
    level="MUST",
    sentence=(
        "Fewer values than keys, another query than key head size, or a mask of another key length "
        "raise an exception instead of giving an answer."
    ),
    source="pytorch#64888; DESIGN: mismatches that must be refused",
    space=Space(mask="offered", forms=KEY_FORMS, least=LEAST_MISMATCHED),
    applies=(_some_mismatch,),
    explained=False,
)
def rejects_mismatch(subject: Subject, problem: Problem) -> Finding:
    """One mismatch an example; sizes of 1, which broadcast, are never used."""
    kinds = _mismatches(subject.candidate)
    kind = kinds[problem.seed % len(kinds)]
    inputs = subject.inputs(problem)
    wrong, told = _mismatched(inputs, kind)
    return _must_raise(subject, inputs, wrong, told)


def _mismatched(inputs: Inputs, kind: str) -> tuple[Inputs, str]:
    length = inputs.geometry.key_length
    if kind == "values":
        fewer = inputs.replace(value=inputs.value[..., : length - 1, :]).without_mask()
        return fewer, f"{length} keys with {length - 1} values"
    if kind == "head-size":
        narrower = inputs.replace(key=inputs.key[..., :-1]).without_mask()
        size = inputs.geometry.head_size
        # A size of 1 would broadcast, which is never judged.
        if size - 1 == 1:
            wide = torch.cat([inputs.key, inputs.key[..., :1]], dim=-1)
            return inputs.replace(
                key=wide
            ).without_mask(), f"queries of size {size}, keys of {size + 1}"
        return narrower, f"queries of size {size}, keys of size {size - 1}"
    keep = torch.ones(1, 1, 1, length, dtype=torch.bool) if inputs.keep is None else inputs.keep
    geometry = inputs.geometry.replace(key_length=length - 1)
    return (
        inputs.replace(keep=keep[..., : length - 1], bias=None, geometry=geometry),
        f"{length} keys with a mask for {length - 1}",
    )


def _must_raise(subject: Subject, inputs: Inputs, wrong: Inputs, told: str) -> Finding:
    forward = subject.forward(inputs)
    try:
        answer = subject.call(forward, wrong)
    except CandidateFailure as failure:
        if failure.violation.kind == "raised":
            return Finding()
        came, got = f"an answer that is wrong ({failure.violation.message})", None
    else:
        got = list(answer.output.shape)
        came = f"an answer of shape {got}"
    message = f"{told}: {came} instead of an exception"
    return Finding(
        violation=Violation(kind="not-raised", message=message, expected="an exception", got=got)
    )


def _some_other_mismatch(candidate: Candidate) -> str:
    declared = candidate.declaration
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
    source="pytorch#64888: query batch 1 against key batch 4 accepted; PEERS",
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
    told, wrong = kinds[problem.seed % len(kinds)]
    return _must_raise(subject, inputs, wrong, told)


def _other_mismatches(inputs: Inputs) -> list[tuple[str, Inputs]]:
    """What should be refused, as it is told and as it is asked."""
    free, sizes = inputs.without_mask(), inputs.geometry
    found: list[tuple[str, Inputs]] = []
    if inputs.mode == "separate":
        more = free.replace(value=torch.cat([inputs.value, inputs.value[..., :1, :]], dim=-2))
        found.append((f"{sizes.key_length} keys with {sizes.key_length + 1} values", more))
    if inputs.mode != "self" and inputs.batched:
        key = torch.cat([inputs.key, inputs.key[:1]])
        value = key if inputs.mode == "memory" else torch.cat([inputs.value, inputs.value[:1]])
        told = f"a batch of {sizes.batch} queries with one of {sizes.batch + 1} keys"
        found.append((told, free.replace(key=key, value=value)))
    if not inputs.is_layer:
        heads = sizes.num_heads + 1
        key, value = (tensor[:, :1].repeat(1, heads, 1, 1) for tensor in (inputs.key, inputs.value))
        told = f"{sizes.num_heads} query heads with {heads} key heads"
        found.append((told, free.replace(key=key, value=value)))
    if inputs.mask_form in KEY_FORMS:
        found += _longer_masks(inputs)
    return found


def _longer_masks(inputs: Inputs) -> list[tuple[str, Inputs]]:
    """Masks with one more key, query, head or item than there are."""
    names = {"K": "key_length", "Q": "query_length", "H": "num_heads", "B": "batch"}
    found = []
    for name in (name for letter, name in names.items() if letter in inputs.mask_shape):
        size = getattr(inputs.geometry, name)
        longer = inputs.geometry.replace(**{name: size + 1})
        told = f"a mask for a {name.replace('_', ' ')} of {size + 1} where it is {size}"
        found.append((told, inputs.replace(keep=None, bias=None, geometry=longer)))
    return found


@clause(
    "shape.rejects-width",
    level="SHOULD",
    sentence="Tokens of another width than the projections take raise an exception.",
    source="VARIANTS: document 000 refuses a wrong token size",
    space=Space(kinds=("layer",), least=(("key_size", 2), ("query_size", 2))),
    explained=False,
)
def rejects_width(subject: Subject, problem: Problem) -> Finding:
    """One channel too many in the query (in the tokens, for self-attention)."""
    inputs = subject.inputs(problem)
    forward_inputs = inputs

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor[..., :1]], dim=-1)

    wrong = inputs.with_tokens(query=widen(inputs.query))
    if inputs.mode == "self":
        wrong = inputs.with_tokens(key=widen(inputs.key))
    width = inputs.query.shape[-1]
    return _must_raise(subject, forward_inputs, wrong, f"tokens of width {width + 1} for {width}")


def _offers_weights(candidate: Candidate) -> str:
    return "" if "weights" in candidate.declaration.features else "it does not return weights"


@clause(
    "shape.weights",
    level="MUST",
    sentence=(
        "The returned weights are [B, H, Lq, Lk], one table a head, equal the softmax and sum to "
        "one over the keys."
    ),
    source="Vaswani et al. 2017, equation 1; pytorch#42929, fairseq#3365",
    space=Space(mask="maybe", causal="maybe", finite_bias="maybe", extras="maybe"),
    needs_golden=True,
    counterfactual="equal weights for every key",
    applies=(_offers_weights,),
)
def weights(subject: Subject, problem: Problem) -> Finding:
    """Ask for the weights and compare them with the golden ones."""
    return matches_golden_weights(subject, subject.inputs(problem).replace(return_weights=True))
