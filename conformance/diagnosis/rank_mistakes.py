"""Mistakes of candidates that span ranks, which name their failures.

Each entry of ``MISTAKES`` is a change of the golden on several ranks, in one or more ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from .._golden import golden
from ..declare.ranks import Placed
from ..oracle.oracle import known_weights
from .mistakes.named_mistake import NotExpressible, run_of_call
from .rank_parts import IS_WRONG, RAISES, Block, Parts, RankMistake, merged

Edits = tuple[golden.Edit, ...]


def _positions(kind: str, parts: Parts, place: Placed, length: int) -> list[Tensor]:
    right, count = parts.positions(place, length), parts.count
    if kind == "right" or len(right[0]) == length:
        return right
    if kind == "local":
        return [torch.arange(len(each)) for each in right]
    if kind == "contiguous":
        return parts.positions(replace(place, halves=1), length)
    step = -(-length // (2 * count))
    pieces: dict[str, Callable[[int], tuple[int, int]]] = {
        "zigzag": lambda r: (r, 2 * count - 1 - r),
        "unpaired": lambda r: (r, count + r),
        "swapped": lambda r: (2 * count - 1 - r, r),
    }
    return [
        torch.cat([torch.arange(p * step, (p + 1) * step) for p in pieces[kind](rank)])
        for rank in range(count)
    ]


def _masked(
    rows: str, columns: str, parts: Parts, rank: int, blocks: list[Block], *, short: bool = False
) -> list[Block]:
    """Return blocks with a causal mask at wrong positions; ``short`` aligns within the block."""
    sizes = parts.inputs.geometry
    if not parts.inputs.causal:
        return blocks
    own = _positions(rows, parts, parts.query_place, sizes.query_length)[rank]
    keys = _positions(columns, parts, parts.key_place, sizes.key_length)
    aligned = parts.call.semantics.causal_alignment == "bottom-right"
    offset = sizes.key_length - sizes.query_length if aligned else 0
    changed = []
    for block in parts.blocks(*_open(parts)):
        there = keys[block.home]
        most = (len(there) - len(own) if aligned else 0) if short else offset
        seen = torch.ones(block.logits.shape[-2:], dtype=torch.bool)
        seen[parts.queries[rank]] = there - own[:, None] <= most
        changed.append(replace(block, logits=block.logits.masked_fill(~seen, -math.inf)))
    return changed


def _open(parts: Parts) -> tuple[Tensor, Tensor]:
    return parts.full_attention.logits, parts.full_attention.value


def _counted(times: Callable[[Parts, int, int], int]) -> dict[str, Any]:
    def blocks(parts: Parts, rank: int, right: list[Block]) -> list[Block]:
        kept = [each for each in right for _ in range(times(parts, rank, each.home))]
        return kept or [replace(each, logits=each.logits - math.inf) for each in right]

    return {"blocks": blocks}


def _stale(step: int, names: Sequence[str], parts: Parts, rank: int, right: list[Block]) -> Any:
    """Return ring blocks with the content of an earlier step and their own mask."""
    core, changed = parts.full_attention, []
    for block in right:
        walked = (rank - block.home) % len(right)
        source = (block.home + min(step, walked)) % len(right)
        logits, value = block.logits, block.value
        if "key" in names:
            other = core.logits[..., parts.keys[source]]
            logits = other.masked_fill(block.logits.isneginf(), -math.inf)
        if "value" in names:
            value = core.value[..., parts.keys[source], :]
        changed.append(replace(block, logits=logits, value=value))
    return changed


def _padded(_parts: Parts, _rank: int, right: list[Block]) -> list[Block]:
    most = max(each.logits.shape[-1] for each in right)
    pad = torch.nn.functional.pad
    return [
        replace(
            each,
            logits=pad(each.logits, (0, most - each.logits.shape[-1])),
            value=pad(each.value, (0, 0, 0, most - each.value.shape[-2])),
        )
        for each in right
    ]


def _other_heads(
    shared: Callable[[Tensor, int, int, int], Tensor], parts: Parts, rank: int, right: list[Block]
) -> list[Block]:
    """Return blocks of other key/value heads: ``shared(own heads, rank, own count, kv count)``."""
    del right
    sizes = parts.inputs.geometry
    own = sizes.num_heads // parts.count
    index = torch.arange(sizes.num_heads) * 0
    index[own * rank : own * (rank + 1)] = shared(torch.arange(own), rank, own, sizes.num_kv_heads)
    run = run_of_call(parts.call).edited(
        golden.Edit("shared_key", lambda every_key: every_key[:, index]),
        golden.Edit("shared_value", lambda every_value: every_value[:, index]),
    )
    return parts.blocks(run["logits"], run["value"])


def _merge_by_sums(
    change: Callable[[Tensor], Tensor], _parts: Parts, _rank: int, right: list[Block]
) -> Tensor:
    sums = torch.stack([change(each.logits.logsumexp(-1)) for each in right])
    whole = sums.logsumexp(0)
    return _weighed((sums - whole.masked_fill(whole.isneginf(), 0.0)).exp(), right)


def _unanchored(parts: Parts, _rank: int, right: list[Block]) -> Tensor:
    dtype = getattr(torch, parts.subject.dtype)
    weights = torch.stack([each.logits.logsumexp(-1).to(dtype).exp() for each in right])
    total = weights.sum(0)
    return _weighed(weights, right) / total.masked_fill(total == 0, 1.0)[..., None]


def _weighed(weights: Tensor, blocks: list[Block]) -> Tensor:
    pairs = zip(weights[..., None].double(), blocks, strict=True)
    return sum((weight * merged([each]) for weight, each in pairs), torch.zeros(1))


def _added(divided: int, parts: Parts, _rank: int, right: list[Block]) -> Tensor:
    total = torch.stack([merged([each]) for each in right]).sum(0)
    return total / (parts.count if divided else 1)


def _projected(change: Callable[[Parts, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def answer(parts: Parts, _rank: int, output: Tensor) -> Tensor:
        bias = known_weights(parts.inputs).o_bias if parts.inputs.is_layer else None
        if bias is None:
            raise NotExpressible
        return change(parts, parts.call.answer_of(output), bias.double())

    return answer


def _some_heads(parts: Parts, rank: int, output: Tensor) -> Tensor:
    if not parts.inputs.is_layer or parts.ranks.weights != "heads":
        raise NotExpressible
    return parts.call.answer_of(output * parts.own_heads(rank))


def _lowered(by: float, parts: Parts, _rank: int, right: list[Block]) -> list[Block]:
    logits, value = _open(parts)
    hidden = parts.attention.logits.isneginf()
    return parts.blocks(logits - by * hidden, value) if parts.inputs.causal else right


def _upstream(own: Callable[[Parts, int], Tensor], parts: Parts, rank: int) -> Edits:
    mask = own(parts, rank)
    return (golden.Edit("output_gradient", change=lambda gradient: gradient * mask),)


def _scores(parts: Parts, rank: int) -> Edits:
    mask = parts.own_keys(rank)

    def rule(score_gradient: Tensor, key: Tensor, query_factor: float) -> Tensor:
        return query_factor * ((score_gradient * mask) @ key)

    return (golden.Edit("query_gradient", rule),)


def _elsewhere(step: int, parts: Parts, rank: int) -> Edits:
    if len(parts.keys) < parts.count:
        raise NotExpressible
    own, other = parts.keys[rank], parts.keys[(rank + step) % parts.count]
    length = min(len(own), len(other))

    def moved(gradient: Tensor) -> Tensor:
        result = torch.zeros_like(gradient)
        result[..., own[:length], :] = gradient[..., other[:length], :]
        return result

    return tuple(golden.Edit(f"{role}_gradient", change=moved) for role in ("key", "value"))


def _first_alone(others: Callable[[Parts, int], Edits]) -> Callable[..., Edits]:
    return lambda parts, rank: others(parts, rank) if rank else ()


def _raises(of: str, parts: Parts) -> str:
    empty = any(not len(each) for each in getattr(parts, of))
    return RAISES if empty else ""


def _named(name: str, sentence: str, fix: str, *ways: dict[str, Any]) -> list[RankMistake]:
    texts = {"name": name, "sentence": sentence, "fix": fix}
    return [RankMistake(**{**texts, **way}) for way in ways]


def _half(dtype: torch.dtype) -> dict[str, Any]:
    words = f"the logarithm of each part's sum is rounded to {str(dtype).removeprefix('torch.')}"
    return {
        "merge": partial(_merge_by_sums, lambda sums: sums.to(dtype).double()),
        "sentence": f"{words} before the parts are merged",
    }


def _mask(rows: str, columns: str, *, short: bool = False, **more: Any) -> dict[str, Any]:
    return {"blocks": partial(_masked, rows, columns, short=short), **more}


def _ring(step: int, *names: str) -> dict[str, Any]:
    what = " and ".join(f"{name}s" for name in names)
    whose = "its own part" if step > 1 else "the step before"
    return {
        "blocks": partial(_stale, step, names),
        "sentence": f"in later steps of the ring each rank attends to the {what} of {whose} again, "
        "under the mask of the part that should have arrived",
        "even": True,
    }


_ALL: Final = ("key", "value")
_MANY: Final = 64  # as far back as a ring goes
MISTAKES: Final[tuple[RankMistake, ...]] = (
    *_named(
        "part-mask-without-offset",
        "each part's causal mask counts its own rows and keys from 0",
        "add the position of the part's first query and first key before comparing them",
        _mask("local", "local", short=True),
        _mask("local", "local"),
        _mask("local", "right", sentence="each part's causal mask counts its own rows from 0"),
        _mask("right", "local", sentence="each part's causal mask counts its own keys from 0"),
    ),
    *_named(
        "zigzag-order-wrong",
        "the causal mask takes the second half of a zigzag part for part n + r, not 2n - 1 - r",
        "give tokens the positions of both halves: parts r and 2n - 1 - r of 2n",
        *(_mask(*kinds, even=True) for kinds in (("unpaired",) * 2,)),
        _mask(
            *("contiguous",) * 2,
            sentence="the causal mask takes the zigzag parts for contiguous ones",
        ),
        _mask(
            *("swapped",) * 2,
            even=True,
            sentence="the causal mask takes the two halves of a zigzag part in the wrong order",
        ),
    ),
    *_named(
        "part-sums-rounded",
        "",
        "keep the logarithms of the sums in float32 when they are sent and merged",
        *map(_half, (torch.float16, torch.bfloat16)),
    ),
    *_named(
        "maximum-not-subtracted",
        "the parts are merged by exponentials of their sums, from which no maximum is taken",
        "weigh each part's answer by exp(its log-sum-exp - that of all parts)",
        {"merge": _unanchored},
    ),
    *_named(
        "parts-merged-without-sums",
        "the answer is the sum of the parts' answers, not weighted by the sums of exponentials",
        "weigh each part's answer by exp(its log-sum-exp - that of all parts)",
        {"merge": partial(_added, 0)},
        {
            "merge": partial(_added, 1),
            "sentence": "the answer is the mean of the parts' answers, not weighted by their sums",
        },
    ),
    *_named(
        "stale-ring-buffer",
        "",
        "receive into a buffer of its own, and use it after the exchange is complete",
        *(_ring(step, *names) for step in (_MANY, 1) for names in (_ALL, ("key",), ("value",))),
    ),
    *_named(
        "own-part-alone",
        "each rank's answer is as if it saw only its own keys",
        "merge the partial answers of all ranks",
        _counted(lambda _parts, rank, home: int(rank == home)),
    ),
    *_named(
        "sum-on-first-rank-alone",
        "rank 0 has the sum over all ranks, and each other rank answers from its own keys alone",
        "add up with all_reduce, or broadcast what was reduced",
        _counted(lambda _parts, rank, home: int(rank in (0, home))),
    ),
    *_named(
        "number-of-ranks-written-down",
        "each rank sees its own part and that of the rank before, however many ranks there are",
        "walk the ring for as many steps as dist.get_world_size() says",
        _counted(lambda parts, rank, home: int((rank - home) % parts.count < 2)),  # noqa: PLR2004
    ),
    *_named(
        "ring-one-step-short",
        "each rank leaves out the keys of the rank after it, which the last step would bring",
        "walk the ring for as many steps as there are ranks",
        _counted(lambda parts, rank, home: int((home - rank) % parts.count != 1)),
    ),
    *_named(
        "own-part-counted-twice",
        "each rank counts its own keys twice",
        "merge each part once",
        _counted(lambda _parts, rank, home: 1 + (rank == home)),
        {
            **_counted(lambda _parts, rank, home: 1 + (rank == home == 0)),
            "sentence": "rank 0 counts its own keys twice",
        },
    ),
    *_named(
        "padding-of-a-short-part-counted",
        "a short part is padded with keys of zeros, which no mask hides: they take weight",
        "mask the padding of a short part, or send its true length",
        {"blocks": _padded},
    ),
    *_named(
        "hidden-parts-weighed",
        "keys of parts that a causal query may not attend are weighed, 10000 lower, not left out",
        "hide them with -inf, or leave the later parts out",
        {"blocks": partial(_lowered, 1e4)},
    ),
    *_named(
        "wrong-shared-heads",
        "rank r gives its head i the key/value head (i + r) mod Hkv, not that of its group",
        "take the key/value head (r * own + i) // group for the own head i of rank r",
        {"blocks": partial(_other_heads, lambda i, rank, _own, heads: (i + rank) % heads)},
        {
            "blocks": partial(_other_heads, lambda i, _rank, _own, heads: i % heads),
            "sentence": "each rank gives its head i the key/value head i mod Hkv, as rank 0 does",
        },
        {
            "blocks": partial(_other_heads, lambda i, _rank, own, heads: i * heads // own),
            "sentence": "each rank spreads its own heads over all key/value heads",
        },
        {
            "blocks": partial(_other_heads, lambda i, rank, _own, heads: (i * 0 + rank) % heads),
            "sentence": "all heads of rank r share the key/value head r",
        },
    ),
    *_named(
        "output-sum-missing",
        "each rank projects its own heads alone: the partial outputs are not added up",
        "all-reduce behind the output projection, before its bias",
        {"answer": _some_heads},
    ),
    *_named(
        "output-bias-on-every-rank",
        "the output bias is added once on each rank, and so as often as there are ranks",
        "add the output bias once, after the sum over the ranks",
        {"answer": _projected(lambda parts, answer, bias: answer + (parts.count - 1) * bias)},
    ),
    *_named(
        "output-summed-twice",
        "the sum behind the output projection is made twice: it is multiplied by the ranks",
        "all-reduce once behind the output projection",
        {"answer": _projected(lambda p, answer, bias: p.count * (answer - bias) + bias)},
        {"answer": _projected(lambda p, answer, _bias: p.count * answer)},
    ),
    *_named(
        "key-gradients-not-sent-home",
        "the gradients of keys and values stay on the rank where the ring's last step left them: "
        "each rank has those of the next rank's part",
        "pass the gradients on once more, so that each arrives where its keys are",
        {"backward": partial(_elsewhere, 1), "of": ("key", "value")},
        {
            "backward": partial(_elsewhere, -1),
            "of": ("key", "value"),
            "sentence": "each rank has the gradients of the keys and values of the rank before",
        },
    ),
    *_named(
        "key-gradients-of-own-queries",
        "the gradient of keys and values is that of the queries of the same rank alone",
        "add up the gradients of keys and values over all ranks, each for its own part",
        {"backward": partial(_upstream, Parts.own_rows), "of": ("key", "value", "context")},
    ),
    *_named(
        "gradient-of-own-heads",
        "the gradient of what every rank has is that of the rank's own heads alone",
        "all-reduce the gradients of inputs that every rank has on the way back",
        {
            "backward": partial(_upstream, Parts.own_heads),
            "of": ("query", "key", "value", "x", "context"),
        },
    ),
    *_named(
        "query-gradient-of-own-keys",
        "the gradient of the queries, which every rank has, is that of the rank's own keys alone",
        "all-reduce the gradient of the queries on the way back",
        {"backward": _scores, "of": ("query",)},
    ),
    *_named(
        "gradient-on-first-rank-alone",
        "rank 0 has the whole gradient of the queries, each other rank that of its own keys alone",
        "add up gradients of what every rank has with all_reduce, not with a reduce to one rank",
        {"backward": _first_alone(_scores), "of": ("query",)},
    ),
    *_named(
        "raises-on-an-empty-part",
        "a part without keys makes a rank raise, while the others wait or answer",
        "let a part without keys give zeros and a log-sum-exp of -inf",
        {"effect": partial(_raises, "keys")},
        {
            "effect": partial(_raises, "queries"),
            "sentence": "a part without queries makes a rank raise, while the others wait",
        },
    ),
    *_named(
        "read-before-it-has-arrived",
        "what a rank sends is read before it has arrived: where one is late the answer is wrong",
        "wait for each receive before its buffer is read",
        {"effect": lambda parts: "" if parts.late is None else IS_WRONG},
    ),
    *_named(
        "answers-without-the-others",
        "where another rank is lost a rank answers from its own keys alone, and does not raise",
        "let the exception of the collective end the call",
        _counted(lambda parts, rank, home: int(rank == home or not parts.missing)),
    ),
)
