"""paged.*: caches whose items have lengths of their own, dense or in pages that a table names."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from ..calls.calling import arguments
from ..calls.devices import taken, whole_storage
from ..declare.candidate import Candidate
from ..declare.declaration import CACHE_WRITE, SEQUENCES
from ..oracle.comparison import equal_numbers
from ..problems.arrangements import caches, slots_of, there, with_lengths
from ..problems.fitting import fitted_geometry
from ..problems.inputs import Inputs
from ..problems.mask_patterns import NO_KEYS
from ..problems.misreading import misread, read_whole_pages
from ..problems.paging import TAILS
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from .empty_rows import follows_empty_rule
from .judging import (
    all_of,
    can_hold_nan,
    first_place,
    identical,
    matches_golden,
    same_answer,
    wide_range,
)
from .rearranging import one_item, reordered_items
from .registry import Finding, clause, declares, requires, violated
from .subject import Subject

SOURCE: Final = "Kwon et al. 2023 (PagedAttention), section 4"
# What unused slots hold besides: keys of a large logit, values that a tiny weight shows.
_LARGE: Final = 1e4
_LARGE_IN_HALF: Final = 1e2


def _space(causal: str = "maybe", patterns: tuple[str, ...] = ("random",)) -> Space:
    return Space(
        mask="always",
        forms=(SEQUENCES,),
        patterns=patterns,
        causal=causal,  # type: ignore[arg-type]  # one of the words of Often
        extras="maybe",
        values=LIVELY,
        least=(("key_length", 2),),
        preferred=(("batch", 3), ("query_length", 2), ("head_size", 2)),
        share=0.5,
    )


_takes_caches = requires(
    lambda candidate: candidate.declaration.head_layout.cache_axes,
    "it takes no caches with lengths",
)
_takes_pages = requires(
    lambda candidate: candidate.declaration.head_layout.is_paged, "it takes no pages"
)
_has_rest = requires(
    lambda candidate: candidate.declaration.page_sizes != (1,), "a page of one slot has no rest"
)
_writes = declares(CACHE_WRITE, "it writes into no cache")


def _over_pages(subject: Subject, problem: Problem) -> Problem:
    """The problem with at least two pages of keys."""
    declared, sizes = subject.declaration, problem.geometry
    if not declared.page_sizes:
        return problem
    page = declared.page_sizes[problem.seed % len(declared.page_sizes)]
    if sizes.key_length > page:
        return problem
    longer = sizes.replace(key_length=page + 1 + problem.seed % page)
    return problem.replace(geometry=fitted_geometry(longer, subject.candidate, _space()))


@clause(
    "paged.golden",
    sentence=(
        "The queries of an item stand at the end of its keys, which are the first slots of its "
        "cache as its length says, page after page where a table names pages."
    ),
    source=SOURCE,
    space=_space(),
    needs_golden=True,
    counterfactual="every item as long as the longest",
    applies=(_takes_caches,),
    resized=_over_pages,
)
def paged_golden(subject: Subject, problem: Problem) -> Finding:
    """Items of different lengths against the golden over padded and masked items."""
    inputs = subject.inputs(problem)
    wording = "with caches of different lengths an answer is wrong"
    return matches_golden(subject, inputs, wording, counterfactual=inputs.without_mask())


@clause(
    "paged.order",
    sentence="Which pages hold the keys of an item, and in what order, changes no answer.",
    source=f"{SOURCE}; a table is the only thing that says where keys lie",
    space=_space(),
    counterfactual="pages read in the order of memory",
    applies=(_takes_pages,),
    resized=_over_pages,
    explained=False,
)
def paged_order(subject: Subject, problem: Problem) -> Finding:
    """The same keys in other pages, shared by no two items."""
    inputs = subject.inputs(problem)
    if inputs.store is None:
        return Finding(binding=False)
    store = inputs.store.replace(seed=inputs.store.seed + 1, shares=False)
    moved = inputs.replace(store=store)
    wording = "with the same keys in other pages the answer is another"
    most = slots_of(moved).table.shape[1]
    in_order = torch.arange(inputs.geometry.batch * most).reshape(-1, most)
    return same_answer(
        subject, inputs, moved, wording, counterfactual=misread(moved, table=in_order)
    )


def _with_other_junk(inputs: Inputs, junk: tuple[float, float]) -> Inputs:
    if inputs.store is None:
        return inputs
    tail = TAILS[(TAILS.index(inputs.store.tail) + 1) % len(TAILS)]
    return inputs.replace(store=inputs.store.replace(junk=junk, tail=tail))


@clause(
    "paged.unused-unseen",
    sentence=(
        "Finite numbers in slots behind the keys of an item and in pages of nobody, and what a "
        "table holds behind the pages of an item, change no answer."
    ),
    source=f"{SOURCE}; the last page of an item is filled as it grows",
    space=_space(),
    counterfactual="the last page read whole",
    applies=(_takes_caches, _has_rest),
    resized=_over_pages,
    explained=False,
)
def unused_unseen(subject: Subject, problem: Problem) -> Finding:
    """Other junk in every unused slot, other entries behind the end of each row of the table."""
    inputs = subject.inputs(problem)
    size = _LARGE if wide_range(subject) else _LARGE_IN_HALF
    dirty = _with_other_junk(inputs, (1.0, -size))
    wording = "what lies in unused slots changes the answer"
    return same_answer(subject, inputs, dirty, wording, counterfactual=read_whole_pages(dirty))


@clause(
    "paged.unused-unseen-nonfinite",
    level="SHOULD",
    sentence="NaN in slots that hold no key of an item, and in pages of nobody, changes no answer.",
    source=f"{SOURCE}; memory that nobody filled; a SHOULD: 0 * NaN is NaN (IEEE 754-2019, 6.2)",
    space=_space(),
    applies=(_takes_caches, can_hold_nan),
    resized=_over_pages,
    explained=False,
)
def unused_unseen_nonfinite(subject: Subject, problem: Problem) -> Finding:
    """NaN in every unused slot."""
    inputs = subject.inputs(problem)
    dirty = _with_other_junk(inputs, (math.nan, math.nan))
    return same_answer(subject, inputs, dirty, "NaN in unused slots changes the answer")


@clause(
    "paged.shared",
    sentence="Items whose keys begin alike may share the pages of that beginning.",
    source=f"{SOURCE}.4: shared prefix",
    space=_space(),
    counterfactual="pages of their own for all items but the first left out",
    needs_golden=True,
    applies=(_takes_pages,),
    resized=_over_pages,
)
def paged_shared(subject: Subject, problem: Problem) -> Finding:
    """All items begin as the first does, as far as both are long, and share whole pages."""
    inputs = subject.inputs(problem)
    store = inputs.store
    if store is None or inputs.geometry.batch < len(("one", "other")):
        return Finding(binding=False)
    present = there(inputs, "key", inputs.key)
    key, value = inputs.key.clone(), inputs.value.clone()
    _begin_alike((key, value), present)
    alike = inputs.with_tokens(key=key, value=value).replace(store=store.replace(shares=True))
    table = slots_of(alike).table
    shared = bool((table[1:, 0] == table[:1, 0]).any()) and bool(present[:, -1].all())
    rank = present.cumsum(dim=-1) - 1
    lost = present & (rank < store.page_size) & (torch.arange(len(present)) > 0)[:, None]
    keep = torch.ones((), dtype=torch.bool) if alike.keep is None else alike.keep
    without = alike.replace(keep=(keep & ~lost[:, None, None]).expand(_table_shape(alike)))
    wording = "where items share pages an answer is wrong"
    finding = matches_golden(subject, alike, wording, counterfactual=without)
    return finding.only_if(shared)


def _table_shape(inputs: Inputs) -> tuple[int, int, int, int]:
    batch, _, queries, keys = inputs.score_shape
    return batch, 1, queries, keys


def _begin_alike(heads: tuple[Tensor, ...], present: Tensor) -> None:
    first = present[0].nonzero().flatten()
    for item in range(1, len(present)):
        own = present[item].nonzero().flatten()
        common = min(len(first), len(own))
        for tensor in heads:
            tensor[item, :, own[:common]] = tensor[0, :, first[:common]]


@clause(
    "paged.page-edges",
    sentence=(
        "An item may end exactly with a page, with the first slot of a page, or a slot before its "
        "end."
    ),
    source=f"{SOURCE}; a length that is a multiple of the page has a full last page",
    space=_space(),
    needs_golden=True,
    counterfactual="one key fewer",
    applies=(_takes_pages,),
    resized=_over_pages,
)
def page_edges(subject: Subject, problem: Problem) -> Finding:
    """Lengths of one page, and of one key more and fewer, in turn."""
    inputs = subject.inputs(problem)
    store = inputs.store
    if store is None:
        return Finding(binding=False)
    sizes = inputs.geometry
    edges = torch.tensor((0, 1, -1)).roll(problem.seed % len(("at", "behind", "before")))
    chosen = edges[torch.arange(sizes.batch) % len(edges)] + store.page_size
    least = min(max(sizes.query_length if store.writes else 1, 1), sizes.key_length)
    lengths = chosen.clamp(min=least, max=sizes.key_length)
    edged = with_lengths(inputs, lengths)
    fewer = with_lengths(edged, (lengths - 1).clamp(min=1))
    wording = f"with items that end at the edge of a page of {store.page_size} an answer is wrong"
    return matches_golden(subject, edged, wording, counterfactual=fewer)


def _may_be_empty(candidate: Candidate) -> str:
    writes = CACHE_WRITE in candidate.declaration.features
    return "every item has the keys that the call writes" if writes else ""


@clause(
    "paged.empty-sequence",
    sentence=(
        "An item without any key disturbs no other, and its queries return what is declared for "
        "rows without keys."
    ),
    source=f"{SOURCE}; requests that pad a batch have the length zero",
    space=_space(patterns=(NO_KEYS,)),
    needs_golden=True,
    counterfactual="every item as long as the longest",
    applies=(_takes_caches, _may_be_empty),
)
def empty_sequence(subject: Subject, problem: Problem) -> Finding:
    """About a third of the items have no key."""
    inputs = subject.inputs(problem)
    empty = ~there(inputs, "key", inputs.key).any(dim=-1)
    wording = "next to an item without keys an answer is wrong"
    finding = matches_golden(subject, inputs, wording, counterfactual=inputs.without_mask())
    rule = subject.oracle.empty_rule(inputs)
    if rule in ("zeros", "nan"):  # without keys there is no mean
        text = f"the queries of an item without keys do not return what is declared ({rule})"
        answer = subject.answer(inputs)
        finding = all_of([finding, follows_empty_rule(subject, inputs, answer, rule, text)])
    return finding.only_if(bool(empty.any()))


@clause(
    "paged.written",
    sentence="After a call the new keys and values lie behind those that the caches held, exactly.",
    source=f"{SOURCE}; flash_attn_with_kvcache: k and v are written into the caches in place",
    space=_space(),
    applies=(_writes,),
    resized=_over_pages,
    explained=False,
)
def written(subject: Subject, problem: Problem) -> Finding:
    """The written slots of both caches, bit for bit."""
    return _caches_after(subject, subject.inputs(problem), written_ones=True)


@clause(
    "paged.others-untouched",
    sentence="A call writes into no slot but those of its new keys, and nowhere beside the caches.",
    source=f"{SOURCE}; pages that items share, slots of -1, pages of nobody",
    space=_space(),
    applies=(_writes,),
    resized=_over_pages,
    explained=False,
)
def others_untouched(subject: Subject, problem: Problem) -> Finding:
    """All other slots of both caches, and the memory around them, bit for bit."""
    inputs = subject.inputs(problem)
    if problem.seed % 2:
        inputs = inputs.replace(layout="between-canaries")
    return _caches_after(subject, inputs, written_ones=False)


def _caches_after(subject: Subject, inputs: Inputs, *, written_ones: bool) -> Finding:
    """Compare the caches after a call with what they must hold there."""
    forward, call_arguments = subject.forward(inputs), arguments(inputs)
    names = subject.declaration.positional[1:]
    given = call_arguments[0][1:]
    before = [(as_bytes(taken(one)).clone(), whole_storage(one).clone()) for one in given]
    subject.call_with(forward, call_arguments, inputs)
    for name, cache, (held, storage), expected in zip(
        names, given, before, caches(inputs, after=True), strict=True
    ):
        own = ~equal_numbers(expected, held)
        got_there = as_bytes(taken(cache))
        wrong = ~equal_numbers(got_there, expected) & (own if written_ones else ~own)
        if bool(wrong.any()):
            where = first_place(wrong)
            what = "not the new one" if written_ones else "another than before the call"
            message = f"{name}{list(where)} is {what} after the call"
            got, right = float(got_there[where]), float(expected[where])
            return violated("value", message, expected=right, got=got, where=list(where))
        if not written_ones:
            with torch.no_grad():
                as_bytes(cache).copy_(held.to(cache.device))
            if not identical(whole_storage(cache), storage):
                return violated("mutated", f"the call wrote into memory beside its {name}")
    return Finding()


def as_bytes(cache: Tensor) -> Tensor:
    """Codes of eight bits as bytes, which torch can compare; other tensors unchanged."""
    return cache.view(torch.uint8) if cache.element_size() == 1 else cache


@clause(
    "paged.any-batch",
    sentence="The answer to an item is the same alone, among others and at any place of a batch.",
    source=f"{SOURCE}; schedulers batch requests as they come",
    space=_space().replace(least=(("key_length", 2), ("batch", 2))),
    counterfactual="the pages of another item",
    applies=(_takes_caches,),
    resized=_over_pages,
    explained=False,
)
def any_batch(subject: Subject, problem: Problem) -> Finding:
    """An item alone, or all items in the reverse order."""
    inputs = subject.inputs(problem)
    count = inputs.geometry.batch
    reverse = torch.arange(count).flip(0)
    other = reordered_items(inputs, reverse)
    wrong = reordered_items(other, reverse.roll(1)).replace(query=other.query)
    reordered = same_answer(
        subject,
        inputs,
        other,
        "in another order of items an answer is another",
        view=lambda answer: answer[reverse],
        counterfactual=wrong,
    )
    if reordered.violation is not None:
        return reordered
    alone, view = one_item(subject, inputs, problem.seed % count)
    wording = "the answer to an item alone is another than among others"
    single = same_answer(subject, inputs, alone, wording, view=view)
    return single if single.violation is not None else reordered
