"""shape.rejects-*: sizes that do not belong together raise an exception."""

from __future__ import annotations

import torch

from ..calls.calling import CandidateFailure
from ..declare.candidate import Candidate
from ..problems.arrangements import expressible
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import KEY_FORMS, Space
from .registry import Finding, clause, requires, violated
from .subject import Subject

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
    apart = declared.inputs == "separate" and not declared.head_layout.is_packed
    found = ["values"] if apart else []
    if candidate.kind == "core" and len(declared.positional) > 1:
        found.append("head-size")
    if declared.mask_shapes and set(declared.masks) & set(KEY_FORMS):
        found.append("mask")
    return found


_some_mismatch = requires(_mismatches, "no mismatch that must be refused can be expressed")


@clause(
    "shape.rejects-mismatch",
    sentence=(
        "Fewer values than keys, another query than key head size, or a mask of another key length "
        "raise an exception instead of giving an answer."
    ),
    source="pytorch#64888; DESIGN: mismatches that must be refused",
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
    wrong, told = _mismatched(inputs, kind)
    return must_raise(subject, inputs, wrong, told)


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


def must_raise(subject: Subject, inputs: Inputs, wrong: Inputs, told: str) -> Finding:
    """Nothing but an exception is right; ``told`` says what was given."""
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
    return must_raise(subject, inputs, wrong, told)


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
    return [(told, wrong) for told, wrong in found if expressible(wrong)]


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
    return must_raise(subject, forward_inputs, wrong, f"tokens of width {width + 1} for {width}")
