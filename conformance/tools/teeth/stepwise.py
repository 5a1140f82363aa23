"""Acts out mistakes that are more than a point: other questions, heads, weights, answers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import combinations
from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...base.geometry import Geometry
from ...declare.candidate import Candidate
from ...diagnosis.acting import act
from ...diagnosis.mistakes import Asked, NamedMistake, NotExpressible
from ...diagnosis.search import touches
from ...oracle.oracle import Oracle
from ...problems.inputs import Inputs
from .acted import OTHER_POINT, Evaluate, Evaluation, acted, evaluate_at

_POINTS: Final = (golden.STANDARD, OTHER_POINT)
# Features that only some mistakes speak of, by the family of their clause.
_MORE: Final = {"sinks": ("sinks",)}
_MIXED: Final = Geometry(
    batch=2,
    num_heads=4,
    num_kv_heads=2,
    query_length=3,
    key_length=5,
    head_size=3,
    value_head_size=2,
    query_size=6,
    key_size=7,
    value_size=5,
    output_size=9,
)
_WIDTH: Final = {"query_size": 12, "key_size": 12, "value_size": 12, "output_size": 12}
_ALIKE: Final = _MIXED.replace(num_kv_heads=4, query_length=5, value_head_size=3, **_WIDTH)
# Longer than a tile, wider than a padded head.
_LARGE: Final = _MIXED.replace(query_length=2, key_length=300, head_size=17)


def act_out_named(named: NamedMistake) -> Candidate:
    """A candidate that makes a named mistake wherever it can be made.

    It is a core at the standard if that can show the mistake, else a core at another point, else a
    layer. What shows on none of the samples stays a core: the clauses will tell.
    """
    points = [point.replace(**named.base) for point in _POINTS]
    more = _MORE.get(named.clause.partition(".")[0], ())
    for kind in ("core", "layer"):
        for declared in points:
            if any(_shows(named, asked, right) for asked, right in _samples(kind, declared)):
                return acted(named.name, kind, declared, _evaluation(named, kind, declared), more)
    return acted(named.name, "core", points[0], _evaluation(named, "core", points[0]), more)


def _evaluation(named: NamedMistake, kind: str, declared: golden.Semantics) -> Evaluate:
    oracle = _oracle(kind, declared)

    def evaluate(inputs: Inputs) -> Evaluation:
        right = evaluate_at(inputs, declared)  # which refuses shapes that do not belong together
        try:
            return act(oracle, declared, (named,), inputs)
        except NotExpressible:
            return right

    return evaluate


@cache
def _oracle(kind: str, declared: golden.Semantics) -> Oracle:
    """What derives no bound here, but is asked for one by nobody."""
    candidate = acted("standard", kind, declared, partial(evaluate_at, point=declared))
    return Oracle(candidate.declaration, "float64")


def _shows(named: NamedMistake, asked: Asked, right: Tensor) -> bool:
    """Whether the answer to a sample is another one than the golden's."""
    if not touches(named, asked):
        return False
    kind = "layer" if asked.inputs.is_layer else "core"
    try:
        oracle = _oracle(kind, asked.semantics)
        got = act(oracle, asked.semantics, (named,), asked.inputs).output
    except NotExpressible:
        return False
    if got.shape != right.shape:
        return True
    room = torch.finfo(torch.float32).eps * right.abs().clamp_min(1.0)
    alike = ((got - right).abs() <= room) | (got.isnan() & right.isnan())
    return not bool(alike.all())


@cache
def _samples(kind: str, declared: golden.Semantics) -> tuple[tuple[Asked, Tensor], ...]:
    """Questions that use all there is to ask, with their answers, at a point."""
    return tuple(
        (Asked(inputs=inputs, semantics=declared), evaluate_at(inputs, declared).output)
        for inputs in _questions(kind)
    )


def _questions(kind: str) -> tuple[Inputs, ...]:
    """At sizes that differ, at equal ones, and once at large ones."""
    generator = torch.Generator().manual_seed(0)
    found = [
        _sample(kind, generator, sizes, options)
        for sizes in (_MIXED, _ALIKE)
        for options in _options(generator, sizes)
    ]
    return (*found, _sample(kind, generator, _LARGE, {}))


def _options(generator: torch.Generator, sizes: Geometry) -> Iterator[dict[str, Any]]:
    """Masks in every form, the flags, and what may meet what."""
    shape = (sizes.batch, sizes.num_heads, sizes.query_length, sizes.key_length)
    keep = torch.rand(shape, generator=generator) > 0.4  # noqa: PLR2004 (about half of them)
    keep[..., 0] = True
    emptied = keep.clone()
    emptied[0, :, 1] = False
    lengths = torch.tensor([2, sizes.key_length]).reshape(-1, 1, 1, 1)
    bias = {
        "bias": torch.randn(shape, generator=generator),
        "keep": keep,
        "mask_form": "bias",
        "mask_shape": "BHQK",
    }
    flags = {"causal": True, "window": (1, 1), "softcap": 1.5, "scale": 0.3}
    singles: list[dict[str, Any]] = [{name: value} for name, value in flags.items()]
    yield {}
    by_length = {"keep": torch.arange(sizes.key_length) < lengths, "mask_form": "lengths"}
    yield by_length
    for mask in (*(_table(keep, form) for form in ("keep", "drop", "keep_int")), bias):
        yield mask
        yield from ({**mask, **one} for one in singles)
    yield _table(emptied, "keep")
    yield from singles
    yield from ({**one, **two} for one, two in combinations(singles, 2))
    yield {"scale": 0.0}
    yield {"scale": -0.5}
    yield {"past": 2}
    for mask in (_table(keep, "keep"), bias, by_length):
        yield {**mask, "past": 2}
    yield from ({**one, "past": 2} for one in singles)
    yield {"sinks": torch.linspace(-1.0, 2.0, sizes.num_heads)}


def _table(keep: Tensor, form: str) -> dict[str, Any]:
    return {"keep": keep, "mask_form": form, "mask_shape": "BHQK"}


def _sample(
    kind: str, generator: torch.Generator, sizes: Geometry, options: dict[str, Any]
) -> Inputs:
    def drawn(*shape: int) -> Tensor:
        return 2.0 * torch.randn(*shape, generator=generator)

    batch, queries, keys = sizes.batch, sizes.query_length, sizes.key_length
    tokens = (
        drawn(batch, sizes.num_heads, queries, sizes.head_size),
        drawn(batch, sizes.num_kv_heads, keys, sizes.head_size),
        drawn(batch, sizes.num_kv_heads, keys, sizes.value_head_size),
    )
    weights = None
    if kind == "layer":
        tokens = (
            drawn(batch, queries, sizes.query_size),
            drawn(batch, keys, sizes.key_size),
            drawn(batch, keys, sizes.value_size),
        )
        rows = [sizes.num_heads * sizes.head_size, sizes.num_kv_heads * sizes.head_size]
        rows += [sizes.num_kv_heads * sizes.value_head_size]
        merged = sizes.num_heads * sizes.value_head_size
        weights = golden.ProjectionWeights(
            q=drawn(rows[0], sizes.query_size),
            k=drawn(rows[1], sizes.key_size),
            v=drawn(rows[2], sizes.value_size),
            o=drawn(sizes.output_size, merged),
            q_bias=drawn(rows[0]),
            k_bias=drawn(rows[1]),
            v_bias=drawn(rows[2]),
            o_bias=drawn(sizes.output_size),
        )
    query, key, value = tokens
    return Inputs(
        geometry=sizes,
        mode="separate",
        batched=True,
        query=query,
        key=key,
        value=value,
        weights=weights,
        **options,
    )
