"""groups.*: fewer key/value heads than heads, each shared by neighbouring query heads."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .._golden import golden
from ..base.geometry import PROBE, Geometry
from ..declare.candidate import Candidate
from ..problems.fitting import fitted_geometry
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION, Space
from .judging import heads_stay, matches_golden, same_answer
from .rearranging import head_blocks, permuted_heads_view, read_heads, reordered_heads
from .registry import Finding, clause, requires
from .subject import Subject

SOURCE = "Ainslie et al. 2023 (GQA), section 2.2"
ORDER = "onnx#7274, onnxruntime#26813: repeated whole where each head is repeated"
GROUPED = EVERY_OPTION.replace(grouped=True, share=0.5)
LIVELY_GROUPS = Space(grouped=True, mask="maybe", causal="maybe", values=LIVELY, share=0.5)


_own_weights = requires(
    lambda c: c.kind != "layer" or c.draws_weights,
    "its weights are fixed, so heads cannot be changed one by one",
)


def _takes(candidate: Candidate, geometry: Geometry) -> bool:
    settled = fitted_geometry(geometry, candidate, Space())
    heads = (geometry.num_heads, geometry.num_kv_heads)
    return (settled.num_heads, settled.num_kv_heads) == heads


def _with_heads(candidate: Candidate, geometry: Geometry, kv_heads: int) -> Geometry | None:
    """Sizes with another number of key/value heads; None where the declaration forbids them."""
    changed = geometry.replace(num_kv_heads=kv_heads)
    return changed if _takes(candidate, changed) else None


def _probe(candidate: Candidate) -> Geometry:
    return fitted_geometry(PROBE.replace(num_heads=4), candidate, Space(grouped=True))


_takes_equal_heads = requires(
    lambda c: _with_heads(c, _probe(c), _probe(c).num_heads),
    "its geometry never leaves each head keys and values of its own",
)


_takes_one_head = requires(
    lambda c: _with_heads(c, _probe(c), 1), "its geometry never leaves one key/value head"
)


_normalised_apart = requires(
    lambda c: c.declaration.semantics.qk_norm_over == "head",
    "its heads are normalised together: each answer depends on all of them",
)


def _one_head_shows(candidate: Candidate) -> str:
    """Why nothing can be compared with heads that share one key/value head, or ""."""
    return heads_stay(candidate) if _takes_equal_heads(candidate) else ""


def _other_order(subject: Subject, inputs: Inputs) -> golden.Semantics | None:
    """The point with heads in the other order; None where both orders are the same."""
    if inputs.geometry.num_kv_heads == 1:
        return None
    point = subject.declaration.semantics
    return point.replace(group_order="tile" if point.group_order != "tile" else "repeat")


@clause(
    "groups.golden",
    sentence=(
        "Where heads share keys and values, the answer is right, with any mask, causal flag and "
        "scale."
    ),
    source=SOURCE,
    space=GROUPED,
    needs_golden=True,
    counterfactual="heads dealt out in the other order (for one key/value head: by running)",
)
def groups_golden(subject: Subject, problem: Problem) -> Finding:
    """Grouped problems of any kind against the golden."""
    inputs = subject.inputs(problem)
    wording = "where heads share keys and values the answer is wrong"
    return matches_golden(subject, inputs, wording, counterfactual=_other_order(subject, inputs))


@clause(
    "groups.equals-repeated",
    sentence="Sharing a key/value head equals giving each of its query heads a copy of it.",
    source=f"{SOURCE}; {ORDER}",
    space=GROUPED,
    counterfactual="the copies dealt out in the other order (for one key/value head: by running)",
    applies=(_own_weights, _takes_equal_heads),
)
def equals_repeated(subject: Subject, problem: Problem) -> Finding:
    """A grouped call against the call with its key/value heads repeated."""
    inputs = subject.inputs(problem)
    return _as_repeated(subject, inputs, "shared key/value heads act unlike copies of them")


def _as_repeated(subject: Subject, inputs: Inputs, wording: str) -> Finding:
    sizes = inputs.geometry
    if _with_heads(subject.candidate, sizes, sizes.num_heads) is None:
        return Finding(binding=False)
    other = _other_order(subject, inputs)
    return same_answer(
        subject,
        _repeated(subject, inputs),
        inputs,
        wording,
        counterfactual=other,
    )


def _repeated(subject: Subject, inputs: Inputs) -> Inputs:
    """Give each query head its own copy of the key/value head it reads."""
    read, sizes = read_heads(subject, inputs), inputs.geometry
    equal = inputs.replace(
        geometry=sizes.replace(num_kv_heads=sizes.num_heads),
        learned=inputs.learned and inputs.learned.of_heads(torch.arange(sizes.num_heads), read),
        quantised=inputs.quantised and inputs.quantised.taken(heads=read),
        generic=False,
    )
    if not inputs.is_layer:
        return equal.replace(key=inputs.key[:, read], value=inputs.value[:, read])
    if inputs.weights is None:
        msg = "the heads of a layer can only be repeated where its projections are known"
        raise LookupError(msg)
    keys, values = head_blocks(read, sizes.head_size), head_blocks(read, sizes.value_head_size)
    weights = inputs.weights
    return equal.replace(
        weights=dataclasses.replace(
            weights,
            k=weights.k[keys],
            v=weights.v[values],
            k_bias=None if weights.k_bias is None else weights.k_bias[keys],
            v_bias=None if weights.v_bias is None else weights.v_bias[values],
        )
    )


@clause(
    "groups.order",
    sentence=(
        "Query head h reads key/value head h // (heads / key/value heads), neighbours sharing one, "
        "and no other (or as declared)."
    ),
    source=f"{SOURCE}; {ORDER}",
    space=LIVELY_GROUPS.replace(least=(("num_kv_heads", 2), ("num_heads", 4))),
    counterfactual="heads dealt out in turns",
    applies=(_own_weights, _normalised_apart),
)
def order(subject: Subject, problem: Problem) -> Finding:
    """Replace one key/value head: only the query heads that read it may change."""
    inputs = subject.inputs(problem)
    chosen = problem.seed % inputs.geometry.num_kv_heads
    reads = read_heads(subject, inputs) == chosen
    before = _without_heads(inputs, reads)
    after = _with_other_head(before, chosen, problem)
    point, other = subject.declaration.semantics, _other_order(subject, inputs)

    def tiled() -> Tensor:
        here, there = (subject.oracle.output(call, other) for call in (before, after))
        return subject.oracle.output(after, point) + there - here

    return same_answer(
        subject,
        before,
        after,
        f"key/value head {chosen} is read by query heads that belong to another",
        judged=None if inputs.is_layer else ~reads.reshape(1, -1, 1, 1),
        counterfactual=tiled,
    )


def _without_heads(inputs: Inputs, reads: Tensor) -> Inputs:
    """A layer whose output projection drops the heads ``reads``; a core stays unchanged."""
    weights = inputs.weights
    if not inputs.is_layer or weights is None or weights.o is None:
        return inputs
    columns = head_blocks(reads.nonzero().flatten(), inputs.geometry.value_head_size)
    matrix = weights.o.clone()
    matrix[:, columns] = 0.0
    return inputs.replace(weights=dataclasses.replace(weights, o=matrix), generic=False)


def _with_other_head(inputs: Inputs, chosen: int, problem: Problem) -> Inputs:
    """New keys and values in one head; for a layer, new rows of the projections."""
    generator, weights = generator_for(problem, 17), inputs.weights
    if not inputs.is_layer or weights is None:
        where = torch.arange(inputs.key.shape[1]).reshape(1, -1, 1, 1) == chosen
        return inputs.replace(
            key=_other(inputs.key, where, generator),
            value=_other(inputs.value, where, generator),
            generic=False,
        )
    sizes = inputs.geometry
    of_keys = _rows_of(chosen, sizes.head_size, weights.k)
    of_values = _rows_of(chosen, sizes.value_head_size, weights.v)
    changed = dataclasses.replace(
        weights,
        k=_other(weights.k, of_keys, generator),
        v=_other(weights.v, of_values, generator),
    )
    return inputs.replace(weights=changed, generic=False)


def _rows_of(head: int, size: int, matrix: Tensor) -> Tensor:
    """Which rows of a projection make a head: bool ``[out, 1]``."""
    return (torch.arange(matrix.shape[0]) // size == head).unsqueeze(-1)


def _other(tensor: Tensor, where: Tensor, generator: torch.Generator) -> Tensor:
    """New random numbers of about the same size where ``where`` is true."""
    size = float(tensor.double().abs().mean())
    drawn = size * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return torch.where(where, drawn.to(tensor.dtype) - tensor, tensor)


@clause(
    "groups.multi-query",
    sentence="One key/value head may serve all query heads, as if each had a copy of it.",
    source="Shazeer 2019 (Fast Transformer Decoding: One Write-Head is All You Need)",
    space=GROUPED,
    applies=(_own_weights, _takes_one_head, _one_head_shows),
)
def multi_query(subject: Subject, problem: Problem) -> Finding:
    """One shared key/value head against copies of it, else against query heads in another order."""
    sizes = _with_heads(subject.candidate, problem.geometry, 1)
    if sizes is None:
        return Finding(binding=False)
    inputs = subject.inputs(problem.replace(geometry=sizes))
    wording = "one key/value head for all query heads gives another answer"
    if not _takes_equal_heads(subject.candidate):
        return _as_repeated(subject, inputs, wording)
    turned = torch.arange(sizes.num_heads).roll(1)
    moved = reordered_heads(inputs, turned, torch.zeros(1, dtype=torch.long))
    view = permuted_heads_view(inputs, turned)
    return same_answer(subject, inputs, moved, wording, view=view)
