"""Make the tensors of a problem."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch
from torch import Generator, Tensor

from .._golden import golden
from ..base.geometry import Geometry
from ..declare.candidate import Candidate
from ..declare.declaration import SEQUENCES
from ..tolerance import model
from ..tolerance.layer import is_exact
from .arrangements import sequences, there
from .caching import cached_length, without_key_bias
from .inputs import Inputs
from .learned import draw_learned
from .mask_patterns import LENGTH_PATTERNS, PATTERNS
from .paging import KeyStore, beginning_alike, draw_store
from .positions import Positions, draw_positions
from .problem import MaskPlan, Overrides, Problem
from .quantised import draw_quantised, with_zeros
from .recipes import RECIPES, normal
from .rotary_tables import draw_tables
from .structured_items import table_of_items
from .structured_masks import STRUCTURED_MASKS, Structure


def has_generic_weights(candidate: Candidate) -> bool:
    """Whether a candidate's projections round their outputs independently of each other.

    True for cores and for drawn weights. A candidate's own matrices must hold many different
    numbers and rows in different directions, or only pick inputs: constant weights, or proportional
    rows, repeat one error many times.
    """
    if candidate.kind != "layer" or candidate.draws_weights:
        return True
    return candidate.fixed_weights is not None and are_varied(candidate.fixed_weights)


def are_varied(weights: golden.ProjectionWeights) -> bool:
    """Whether every matrix of the projections has varied numbers and rows."""
    matrices = (weights.q, weights.k, weights.v, weights.o)
    return all(matrix is None or _is_varied(matrix.detach().double()) for matrix in matrices)


def _is_varied(matrix: Tensor) -> bool:
    if is_exact(matrix, None):
        return True
    if not bool(torch.isfinite(matrix).all()) or matrix.numel() == 0:
        return False
    rows = matrix[:: max(1, matrix.shape[0] // model.SAMPLED_ROWS)]
    _, counts = rows.abs().unique(return_counts=True)
    if int(counts.max()) > model.MOST_ALIKE * rows.numel():
        return False
    return _mean_squared_cosine(rows) <= model.MOST_ALIGNED / matrix.shape[1]


def _mean_squared_cosine(rows: Tensor) -> float:
    """The mean squared cosine between rows: 1 / width for random rows, 0 for a single row."""
    count = rows.shape[0]
    if count == 1:
        return 0.0
    directions = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    squares = (directions @ directions.T).square()
    return float(squares.sum() - count) / (count * (count - 1))


TOKENS = ("query", "key", "value")
MASKS = ("keep", "bias")
SINKS_NAME = "sinks"
PROJECTION_NAMES = tuple(field.name for field in dataclasses.fields(golden.ProjectionWeights))


def overridden(drawn: Inputs, problem: Problem) -> Inputs:
    """The drawn inputs with the problem's overrides, if made for the problem's seed and sizes."""
    overrides = problem.overrides
    if overrides is None or overrides.seed != problem.seed:
        return drawn
    tokens = {name: _filled(getattr(drawn, name), overrides, name) for name in TOKENS}
    masks = {name: _filled(getattr(drawn, name), overrides, name) for name in MASKS}
    return drawn.with_tokens(**tokens).replace(
        **masks,
        sinks=_filled(drawn.sinks, overrides, SINKS_NAME),
        weights=_overridden_weights(drawn.weights, overrides),
    )


def _overridden_weights(
    drawn: golden.ProjectionWeights | None, overrides: Overrides
) -> golden.ProjectionWeights | None:
    if drawn is None:
        return None
    roles = {name: _filled(getattr(drawn, name), overrides, name) for name in PROJECTION_NAMES}
    return dataclasses.replace(drawn, **roles)  # type: ignore[arg-type]  # matrices are never None


def _filled(drawn: Tensor | None, overrides: Overrides, name: str) -> Tensor | None:
    values = overrides.value(name)
    if drawn is None or values is None or len(values) != drawn.numel():
        return drawn
    return torch.tensor(values, dtype=torch.float64).to(drawn.dtype).reshape(drawn.shape)


def changeable(inputs: Inputs, *, weights: bool) -> dict[str, Tensor]:
    """The tensors that overrides may replace, each object once; learned arguments stay as drawn.

    ``weights``: the problem brings a layer's weights. The kept keys of lengths, sequences and
    structured masks follow from their form and are left out.
    """
    tensors = {"key": inputs.key}
    if inputs.mode != "self" and inputs.query is not inputs.key:
        tensors["query"] = inputs.query
    if inputs.mode == "separate" and inputs.value is not inputs.key:
        tensors["value"] = inputs.value
    for name in MASKS:
        tensor = getattr(inputs, name)
        if tensor is not None and inputs.mask_form not in ("lengths", SEQUENCES, *STRUCTURED_MASKS):
            tensors[name] = tensor
    if inputs.sinks is not None:
        tensors[SINKS_NAME] = inputs.sinks
    if weights and inputs.weights is not None:
        roles = {name: getattr(inputs.weights, name) for name in PROJECTION_NAMES}
        tensors |= {name: tensor for name, tensor in roles.items() if tensor is not None}
    return tensors


TORCH_DTYPES: Final = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


# Layouts whose items, or heads, are equal.
REPEATED: Final = ("expanded", "expanded-heads")
# The random stream of the sinks, and their standard deviation: some outweigh a few dozen keys.
SINKS: Final = 40
SINK_SPREAD: Final = 2.0
# The random streams of rotary tables, of learned arguments and of positions.
TABLES: Final = 41
LEARNED: Final = 42
POSITIONS: Final = 43
# The random streams of caches, and of scales.
CACHES: Final = 44
SCALES: Final = 45


def generator_for(problem: Problem, purpose: int = 0) -> Generator:
    """A generator seeded by the problem, with a separate stream for each purpose."""
    return Generator().manual_seed(problem.seed * 1_000_003 + purpose)


def materialise(problem: Problem, candidate: Candidate) -> Inputs:
    """Make the tensors of a problem for a candidate."""
    generator = generator_for(problem)
    query, key, value = _tokens(problem, candidate, generator)
    keep, bias, present = _mask(problem, candidate, generator)
    plan = problem.mask
    drawn = Inputs(
        geometry=problem.geometry,
        mode=input_mode(candidate),  # type: ignore[arg-type]  # checked by declare()
        batched=candidate.declaration.batched,
        query=query,
        key=key,
        value=value,
        weights=_weights(problem, candidate, generator),
        keep=keep,
        bias=bias,
        mask_form=None if plan is None else plan.form,
        mask_shape="" if plan is None else plan.shape,
        present=present,
        causal=is_causal(problem, candidate),
        scale=problem.scale,
        softcap=problem.softcap,
        window=problem.window,
        sinks=_sinks(problem),
        tables=draw_tables(
            candidate.declaration,
            problem.geometry.batch,
            problem.geometry.key_length,
            problem.geometry.head_size,
            generator_for(problem, TABLES),
        ),
        learned=draw_learned(
            candidate.declaration,
            problem.geometry,
            TORCH_DTYPES[problem.dtype],
            generator_for(problem, LEARNED),
        ),
        positions=_positions(problem, candidate),
        generic=_is_generic(problem, candidate),
        always_causal=candidate.declaration.always_causal,
        past=cached_length(problem, candidate),
        own_cache=candidate.declaration.cache is not None,
        point=candidate.declaration.semantics,
        device=problem.device,
        head_layout=candidate.declaration.head_layout,
        block_size=candidate.declaration.block_size or (1, 1),
        grid=candidate.declaration.grid,
        layout=problem.layout,
        mask_layout=problem.mask_layout,
        shared=bool(problem.shared),
        return_weights=problem.return_weights,
        dropout=problem.dropout,
        store=_store(problem, candidate),
    )
    drawn = with_equal_beginnings(drawn)
    drawn = _quantised(_alike(overridden(drawn, problem), problem), problem, candidate)
    return without_key_bias(drawn, candidate) if drawn.past else drawn


def _store(problem: Problem, candidate: Candidate) -> KeyStore | None:
    seed = int(torch.randint(2**16, (1,), generator=generator_for(problem, CACHES)))
    return draw_store(candidate.declaration, problem.geometry, problem.seed, seed)


def with_equal_beginnings(inputs: Inputs) -> Inputs:
    """The inputs with some items that begin as the first does, where caches have pages."""
    if inputs.store is None or not inputs.store.page_size:
        return inputs
    key, value = inputs.key.clone(), inputs.value.clone()
    beginning_alike((key, value), there(inputs, "key", key), inputs.store)
    return inputs.replace(key=key, value=value)


def _quantised(drawn: Inputs, problem: Problem, candidate: Candidate) -> Inputs:
    """The inputs with scales, some keys and values zero, and none that no code stands for."""
    stream = generator_for(problem, SCALES)
    made = draw_quantised(candidate.declaration, drawn.key, drawn.value, stream)
    if made is None:
        return drawn
    if problem.overrides is None:
        key = with_zeros(drawn.key, stream)
        zeroed = drawn.with_tokens(key=key, value=with_zeros(drawn.value, stream))
        drawn = _alike(zeroed.replace(generic=drawn.generic), problem)
    if drawn.store is not None and made.by_token:  # what a shared page holds has one scale
        scales = {name: getattr(made, name).clone() for name in ("key_scale", "value_scale")}
        present = there(drawn, "key", drawn.key)
        beginning_alike(tuple(scales.values()), present, drawn.store)
        made = made.replace(**scales)
    given = with_equal_scales(drawn.replace(quantised=made), problem.layout)
    return given.replace(key=given.exact[1], value=given.exact[2])


def with_equal_scales(inputs: Inputs, layout: str) -> Inputs:
    """Inputs whose items, or heads, share a scale where a memory layout makes them equal."""
    if inputs.quantised is None or layout not in REPEATED:
        return inputs
    items, heads = (torch.zeros(size, dtype=torch.int64) for size in inputs.key.shape[:2])
    equal = {"items": items} if layout == "expanded" else {"heads": heads}
    return inputs.replace(quantised=inputs.quantised.taken(**equal))


def _positions(problem: Problem, candidate: Candidate) -> Positions | None:
    stream = generator_for(problem, POSITIONS)
    return draw_positions(candidate.declaration, problem.geometry, stream)


def is_causal(problem: Problem, candidate: Candidate) -> bool:
    """Whether the causal rule counts: a prefix mask itself defines the visible keys ahead."""
    prefixed = problem.mask is not None and problem.mask.form == "prefix"
    return (problem.causal and not prefixed) or candidate.declaration.always_causal


def _is_generic(problem: Problem, candidate: Candidate) -> bool:
    """Whether rounding errors count as independent."""
    if problem.shared or problem.layout in REPEATED:
        return False
    return RECIPES[problem.values].generic and has_generic_weights(candidate)


def input_mode(candidate: Candidate) -> str:
    """The inputs of a candidate: "separate", "self", or "memory" (a query and a memory)."""
    return "self" if candidate.kind == "positions" else candidate.declaration.inputs


def token_shapes(
    geometry: Geometry, *, layer: bool
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shapes of query, key and value."""
    batch, query_length, key_length = geometry.batch, geometry.query_length, geometry.key_length
    if layer:
        return (
            (batch, query_length, geometry.query_size),
            (batch, key_length, geometry.key_size),
            (batch, key_length, geometry.value_size),
        )
    return (
        (batch, geometry.num_heads, query_length, geometry.head_size),
        (batch, geometry.num_kv_heads, key_length, geometry.head_size),
        (batch, geometry.num_kv_heads, key_length, geometry.value_head_size),
    )


def _tokens(
    problem: Problem, candidate: Candidate, generator: Generator
) -> tuple[Tensor, Tensor, Tensor]:
    recipe = RECIPES[problem.values]
    mode = input_mode(candidate)
    shapes = token_shapes(problem.geometry, layer=candidate.kind != "core")
    working = TORCH_DTYPES[problem.dtype]
    key = recipe.key(shapes[1], generator).to(working)
    if mode == "self":
        return key, key, key
    query = recipe.query(shapes[0], generator).to(working)
    if mode == "memory":
        return query, key, key if candidate.kind != "core" else key[..., : shapes[2][-1]]
    return query, key, recipe.value(shapes[2], generator).to(working)


def _alike(drawn: Inputs, problem: Problem) -> Inputs:
    """Inputs made equal if they share a tensor or repeat in memory."""
    if not problem.shared and problem.layout not in REPEATED:
        return drawn
    query, key, value = drawn.query, drawn.key, drawn.value
    # The mode of the inputs ("self", "memory") shares tensors whatever the problem says.
    all_same = problem.shared == "all" or query is key
    key_is_value = bool(problem.shared) or key is value
    if problem.layout in REPEATED:
        query, key, value = (_repeated(each, problem.layout) for each in (query, key, value))
    return drawn.replace(
        query=key if all_same else query, key=key, value=key if key_is_value else value
    )


def _repeated(tensor: Tensor, layout: str) -> Tensor:
    first = tensor[:1] if layout == "expanded" else tensor[:, :1]
    return first.expand(tensor.shape).contiguous()


def _weights(
    problem: Problem, candidate: Candidate, generator: Generator
) -> golden.ProjectionWeights | None:
    if candidate.kind != "layer":
        return None
    if not candidate.draws_weights:
        return in_dtype(candidate.fixed_weights, TORCH_DTYPES[problem.dtype])
    return draw_weights(problem, candidate.declaration.semantics, generator)


def in_dtype(
    weights: golden.ProjectionWeights | None, working: torch.dtype
) -> golden.ProjectionWeights | None:
    """The weights in a working dtype, on the CPU."""
    if weights is None:
        return None
    tensors = {name: tensor for name, tensor in vars(weights).items() if tensor is not None}
    return golden.ProjectionWeights(
        **{name: tensor.detach().to("cpu", working) for name, tensor in tensors.items()}
    )


def draw_weights(
    problem: Problem, semantics: golden.Semantics, generator: Generator
) -> golden.ProjectionWeights:
    """Random projections that keep the spread of their inputs, with biases of half the spread."""
    working = TORCH_DTYPES[problem.dtype]
    biases = (semantics.query_bias, semantics.key_bias, semantics.value_bias, semantics.output_bias)
    tensors = {}
    for (role, shape), has_bias in zip(
        projection_shapes(problem.geometry).items(), biases, strict=True
    ):
        matrix, bias = PROJECTIONS[RECIPES[problem.values].weights](*shape, generator)
        tensors[role] = matrix.to(working)
        if has_bias and problem.biases:
            tensors[f"{role}_bias"] = bias.to(working)
    return golden.ProjectionWeights(**tensors)


def projection_shapes(geometry: Geometry) -> dict[str, tuple[int, int]]:
    """The shapes ``(out, in)`` of the four matrices, by role."""
    return {
        "q": (geometry.num_heads * geometry.head_size, geometry.query_size),
        "k": (geometry.num_kv_heads * geometry.head_size, geometry.key_size),
        "v": (geometry.num_kv_heads * geometry.value_head_size, geometry.value_size),
        "o": (geometry.output_size, geometry.num_heads * geometry.value_head_size),
    }


def _normal_projection(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Tensor]:
    matrix = normal((rows, columns), generator) / max(columns, 1) ** 0.5
    return matrix, 0.5 * normal((rows,), generator)


def _integer_projection(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Tensor]:
    matrix = torch.randint(-1, 2, (rows, columns), generator=generator).double()
    return matrix, torch.randint(-2, 3, (rows,), generator=generator).double()


def _selection(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Each output is one input; all inputs are used if they fit."""
    order = torch.randperm(columns, generator=generator)
    chosen = order[torch.arange(rows).remainder(columns)]
    matrix = torch.zeros(rows, columns, dtype=torch.float64)
    matrix[torch.arange(rows), chosen] = 1.0
    return matrix, torch.zeros(rows, dtype=torch.float64)


def _signed_selection(rows: int, columns: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """A selection that changes the sign of some of its outputs."""
    matrix, bias = _selection(rows, columns, generator)
    signs = torch.randint(0, 2, (rows, 1), generator=generator).double() * 2.0 - 1.0
    return matrix * signs, bias


PROJECTIONS: Final = {
    "normal": _normal_projection,
    "integers": _integer_projection,
    "selections": _selection,
    "signed-selections": _signed_selection,
}


def mask_sizes(plan_shape: str, geometry: Geometry) -> tuple[int, int, int, int]:
    """The canonical four sizes of a mask whose shape is given in letters."""
    sizes = {
        "B": geometry.batch,
        "H": geometry.num_heads,
        "Q": geometry.query_length,
        "K": geometry.key_length,
    }
    varies = [sizes[axis] if axis in plan_shape else 1 for axis in "BHQ"]
    return (varies[0], varies[1], varies[2], geometry.key_length)


def _mask(
    problem: Problem, candidate: Candidate, generator: Generator
) -> tuple[Tensor | None, Tensor | None, tuple[Tensor, Tensor] | None]:
    """The kept keys, the additive values, and the existing tokens if ``keep`` cannot tell them."""
    plan, geometry = problem.mask, problem.geometry
    if plan is None:
        return None, None, None
    declared = candidate.declaration
    if plan.form == SEQUENCES or (
        plan.form in STRUCTURED_MASKS and declared.head_layout.has_lengths
    ):
        sizes = (geometry.batch, geometry.query_length, geometry.key_length)
        keep, present = sequences(
            plan.pattern,
            sizes,
            declared.semantics.causal_alignment,
            generator,
            tied=declared.pins.ties_lengths,
            layout=declared.head_layout if declared.head_layout.cache_axes else None,
            writes="cache_write" in declared.features,
            least_keys=plan.form == "tree",
        )
        if plan.form == SEQUENCES:
            return keep, None, present
        return _structured_items(problem, plan, candidate, keep, generator)
    if plan.form in STRUCTURED_MASKS:
        return _structured(problem, plan, candidate, generator), None, None
    shape = mask_sizes(plan.shape, problem.geometry)
    keep = PATTERNS[pattern_for(plan)](shape, generator)
    if plan.visible:
        visible = structure(problem, candidate)
        keep = with_visible_keys(keep, visible, lengths=plan.form == "lengths")
    if not plan.finite_bias:
        return keep, None, None
    bias = 2.0 * normal(shape, generator)
    if plan.form == "bias":  # one tensor holds both: minus infinity leaves nothing of a bias
        bias = bias.masked_fill(~keep, 0.0)
    return keep, bias.to(TORCH_DTYPES[problem.dtype]), None


def _structured(
    problem: Problem, plan: MaskPlan, candidate: Candidate, generator: Generator
) -> Tensor:
    """The table of a structured mask; the ``full`` table if a query would lose all keys."""
    made = Structure.declared(candidate.declaration, problem.geometry)
    mask = STRUCTURED_MASKS[plan.form]
    table = mask.table(plan.pattern, made, generator)
    if mask.pads:
        return table
    seen = structure(problem, candidate) if plan.visible else None
    if seen is None or bool(((table & seen).any(dim=-1) | ~seen.any(dim=-1)).all()):
        return table
    return mask.table("full", made, generator)


def _structured_items(
    problem: Problem, plan: MaskPlan, candidate: Candidate, keep: Tensor, generator: Generator
) -> tuple[Tensor, None, tuple[Tensor, Tensor]]:
    """The table of a structured mask for items of some lengths, and what tokens these have."""
    whole = keep.squeeze(1)
    present = whole.any(dim=-1), whole.any(dim=-2)
    made = Structure.declared(candidate.declaration, problem.geometry)
    table = table_of_items(plan.form, plan.pattern, made, present, generator)
    seen = structure(problem, candidate) if plan.visible else None
    if seen is not None and bool((~(table & seen).any(dim=-1) & (keep & seen).any(dim=-1)).any()):
        table = table_of_items(plan.form, "full", made, present, generator)
    return table, None, present


def structure(problem: Problem, candidate: Candidate) -> Tensor:
    """The keys that queries may attend by causal rule and window: bool ``[Lq, Lk]``.

    ``[B, 1, Lq, Lk]`` where causality goes by given positions.
    """
    sizes, declared = problem.geometry, candidate.declaration
    positions = _positions(problem, candidate)
    return golden.structural_mask(
        sizes.query_length,
        sizes.key_length,
        causal=is_causal(problem, candidate),
        window=problem.window,
        semantics=declared.semantics,
        positions=None if positions is None else positions.of(sizes),
    )


def with_visible_keys(keep: Tensor, visible: Tensor, *, lengths: bool) -> Tensor:
    """The mask, extended until queries attend a ``visible`` key.

    ``visible`` is bool ``[Lq, Lk]``, or ``[B, 1, Lq, Lk]`` where items differ. Queries without
    visible keys stay unchanged. Lengths only grow.
    """
    keep = keep.clone()
    if visible.dim() > len(("queries", "keys")):
        for item, own in enumerate(visible.squeeze(1)):
            part = slice(None) if keep.shape[0] == 1 else slice(item, item + 1)
            keep[part] = with_visible_keys(keep[part], own, lengths=lengths)
        return keep
    keys = torch.arange(keep.shape[-1])
    for row, places in enumerate(visible):
        every = places.nonzero().flatten()
        if not len(every):
            continue
        own = keep[:, :, row if keep.shape[2] > 1 else 0]  # a view
        more = keys <= every[0] if lengths else keys == every[row % len(every)]
        own |= ~(own & places).any(dim=-1, keepdim=True) & more
    return keep


def _sinks(problem: Problem) -> Tensor | None:
    """A logit for each head, similar in size to the others; drawn from a separate stream."""
    if not problem.sinks:
        return None
    generator = generator_for(problem, SINKS)
    drawn = SINK_SPREAD * normal((problem.geometry.num_heads,), generator)
    return drawn.to(TORCH_DTYPES[problem.dtype])


def pattern_for(plan: MaskPlan) -> str:
    """The pattern in a form's range: lengths express padding only."""
    return LENGTH_PATTERNS[plan.pattern] if plan.form == "lengths" else plan.pattern
