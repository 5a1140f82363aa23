"""Multi-head attention: projections, heads, attention, output projection.

    MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W^O
    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)

Vaswani et al. 2017, section 3.2.2, with separate widths for query, key and value, a value head size
independent of the query/key head size, biases, and grouped key/value heads (Ainslie et al.,
arXiv:2305.13245).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from torch import Tensor

from .attention import MEMORY, Attention, check_order, evaluation_of, given_options
from .checks import check_argument, check_divides, check_size, check_tensor
from .choices import choose_point
from .forward import FORWARD
from .heads import merge_heads, project, split_heads
from .program import Program, Run, Stage
from .semantics import STANDARD, Semantics


@dataclass(frozen=True, kw_only=True)
class ProjectionWeights:
    """The four projections as ``(out, in)`` matrices, like ``nn.Linear.weight``, and their biases.

    Head h owns rows ``h*D .. (h+1)*D`` of ``q``, ``k`` and ``v`` and columns ``h*Dv .. (h+1)*Dv``
    of ``o``. ``o=None`` means no output projection: the heads are only concatenated. ``bias_k
    [Hkv, D]`` and ``bias_v [Hkv, Dv]`` are a layer's own memory: a key and a value of every item.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor | None = None
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    bias_k: Tensor | None = None
    bias_v: Tensor | None = None

    def taking_part(self, semantics: Semantics) -> ProjectionWeights:
        """The weights in float64, without the biases that a point leaves out."""
        biases = {
            "q_bias": semantics.query_bias,
            "k_bias": semantics.key_bias,
            "v_bias": semantics.value_bias,
            "o_bias": semantics.output_bias,
        }
        return ProjectionWeights(
            **{
                name: tensor.double()
                for name, tensor in vars(self).items()
                if tensor is not None and biases.get(name, True)
            }
        )


_TOKENS: Final = ("query_tokens", "key_tokens", "value_tokens")
_WEIGHTS: Final = tuple(field.name for field in fields(ProjectionWeights))


def project_heads(merged: Tensor, o: Tensor | None, o_bias: Tensor | None) -> Tensor:
    """Merged heads behind a matrix ``o [out, in]``; unchanged for None."""
    if o is None:
        return merged
    # Heads concatenated along the tokens meet only the first block of the output matrix.
    return project(merged, o[:, : merged.shape[-1]], o_bias)


# The heads of a layer's tokens, attention, merged heads and the output projection.
LAYER: Final = Program.unedited(
    Stage(
        "projected_query",
        "BQE",
        lambda query_tokens, q, q_bias: project(query_tokens, q, q_bias),
    ),
    Stage("projected_key", "BKE", lambda key_tokens, k, k_bias: project(key_tokens, k, k_bias)),
    Stage(
        "projected_value",
        "BKE",
        lambda value_tokens, v, v_bias: project(value_tokens, v, v_bias),
    ),
    Stage(
        "given_query",
        "BHQD",
        lambda projected_query, num_heads: split_heads(projected_query, num_heads),
    ),
    Stage(
        "given_key",
        "BGKD",
        lambda projected_key, num_kv_heads: split_heads(projected_key, num_kv_heads),
    ),
    Stage(
        "given_value",
        "BGKV",
        lambda projected_value, num_kv_heads: split_heads(projected_value, num_kv_heads),
    ),
    *FORWARD.stages,
    Stage("merged", "BQE", lambda output: merge_heads(output)),
    Stage("answer", "BQE", project_heads),
)


@dataclass(frozen=True, kw_only=True)
class MultiHeadAttention:
    """One evaluation of the layer: the core with its intermediate values, and its surroundings.

    ``tokens`` and ``weights`` are the inputs in float64, without the biases that the point leaves
    out. ``projected`` are query, key and value behind their projections, before heads are cut:
    ``[B, Lq, H*D]``, ``[B, Lk, Hkv*D]``, ``[B, Lk, Hkv*Dv]``. ``merged`` is ``[B, Lq, H*Dv]``, the
    heads side by side; ``output`` is ``[B, Lq, Eo]``.
    """

    tokens: tuple[Tensor, Tensor, Tensor]
    weights: ProjectionWeights
    projected: tuple[Tensor, Tensor, Tensor]
    core: Attention
    merged: Tensor
    output: Tensor


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: ProjectionWeights,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
    sinks: Tensor | None = None,
    rotary_tables: Tensor | None = None,
    turned_keys: int = 0,
    learned: Mapping[str, Tensor] | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    semantics: Semantics = STANDARD,
) -> MultiHeadAttention:
    """The layer on ``query [B, Lq, Eq]``, ``key [B, Lk, Ek]``, ``value [B, Lk, Ev]``, in float64.

    Masks, scale and the rest are documented in :func:`reference.scaled_dot_product_attention`. The
    head size is the number of rows of ``weights.q`` over ``num_heads``.

    Raises ValueError or TypeError that names the argument of wrong shape or value.
    """
    run = run_of_layer(
        query,
        key,
        value,
        weights,
        semantics,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        keep=keep,
        bias=bias,
        lengths=lengths,
        causal=causal,
        scale=scale,
        softcap=softcap,
        window=window,
        sinks=sinks,
        rotary_tables=rotary_tables,
        turned_keys=turned_keys,
        learned=learned,
        query_positions=query_positions,
        key_positions=key_positions,
    )
    return layer_evaluation_of(run, semantics)


def run_of_layer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: ProjectionWeights,
    semantics: Semantics,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    **options: Any,
) -> Run:
    """The run behind :func:`multi_head_attention`, with no result made yet."""
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    _check_inputs(query, key, value)
    _check_weights((query, key, value), weights, num_heads, num_kv_heads)
    shape = (query.shape[0], num_heads, query.shape[1], key.shape[1])
    check_order(semantics, options.get("learned"))
    given = given_options(shape, **options)
    given |= dict(zip(_TOKENS, (query.double(), key.double(), value.double()), strict=True))
    own = {n: w for n, w in vars(weights.taking_part(semantics)).items() if n not in MEMORY}
    memory = {name: getattr(weights, name) for name in MEMORY}
    given |= {n: each.double() for n, each in memory.items() if each is not None}
    given |= {**own, "num_heads": num_heads}
    given["num_kv_heads"] = num_kv_heads
    return Run(choose_point(LAYER, semantics), given)


def layer_evaluation_of(run: Run, semantics: Semantics) -> MultiHeadAttention:
    """The intermediate values of a run of a layer, made in the order of the program."""
    core = evaluation_of(run, semantics)
    query, key, value = (run[name] for name in _TOKENS)
    return MultiHeadAttention(
        tokens=(query, key, value),
        weights=ProjectionWeights(**{name: run[name] for name in _WEIGHTS}),
        projected=(run["projected_query"], run["projected_key"], run["projected_value"]),
        core=core,
        merged=run["merged"],
        output=run["answer"],
    )


def evaluated(run: Run, semantics: Semantics) -> Attention | MultiHeadAttention:
    """The intermediate values of a run of attention, or of a layer."""
    if "answer" in run:
        return layer_evaluation_of(run, semantics)
    return evaluation_of(run, semantics)


def project_tokens(
    tokens: tuple[Tensor, Tensor, Tensor], weights: ProjectionWeights, semantics: Semantics
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value ``[B, L, width]`` behind their projections, float64."""
    query, key, value = tokens
    weights = weights.taking_part(semantics)
    return (
        project(query, weights.q, weights.q_bias),
        project(key, weights.k, weights.k_bias),
        project(value, weights.v, weights.v_bias),
    )


def cut_heads(
    projected: tuple[Tensor, Tensor, Tensor],
    num_heads: int,
    num_kv_heads: int,
    semantics: Semantics,
) -> tuple[Tensor, Tensor, Tensor]:
    """The heads of projected query, key and value."""
    query, key, value = projected
    return (
        split_heads(query, num_heads, semantics),
        split_heads(key, num_kv_heads, semantics),
        split_heads(value, num_kv_heads, semantics),
    )


def project_output(merged: Tensor, weights: ProjectionWeights, semantics: Semantics) -> Tensor:
    """Merged heads behind the output projection; unchanged without a projection."""
    return project_heads(merged, weights.o, weights.taking_part(semantics).o_bias)


def _check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    check_tensor(query, "query", "B Lq Eq")
    check_tensor(key, "key", "B Lk Ek")
    check_tensor(value, "value", "B Lk Ev")
    check_size(key, "key", 0, query.shape[0], "the batch size of query")
    check_size(value, "value", 0, query.shape[0], "the batch size of query")
    check_size(value, "value", 1, key.shape[1], "the length of key")


def _check_weights(
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: ProjectionWeights,
    num_heads: int,
    num_kv_heads: int,
) -> None:
    check_argument(num_heads > 0, "num_heads", f"is {num_heads}: there must be at least one head")
    check_divides(num_kv_heads, "num_kv_heads", num_heads, "the number of heads")
    for name, tokens in zip("qkv", inputs, strict=True):
        matrix = getattr(weights, name)
        check_tensor(matrix, f"weights.{name}", "out in")
        check_size(matrix, f"weights.{name}", 1, tokens.shape[-1], "the width of its input")
    check_divides(num_heads, "num_heads", weights.q.shape[0], "the rows of weights.q")
    check_divides(num_kv_heads, "num_kv_heads", weights.v.shape[0], "the rows of weights.v")
    key_rows = weights.q.shape[0] // num_heads * num_kv_heads
    check_size(weights.k, "weights.k", 0, key_rows, "num_kv_heads times the head size of q")
    if weights.o is not None:
        check_tensor(weights.o, "weights.o", "out in")
        merged_width = weights.v.shape[0] // num_kv_heads * num_heads
        check_size(weights.o, "weights.o", 1, merged_width, "num_heads times the value head size")
    _check_biases(weights)


def _check_biases(weights: ProjectionWeights) -> None:
    for name in "qkvo":
        matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
        if bias is None:
            continue
        check_argument(matrix is not None, f"weights.{name}_bias", "is given without its matrix")
        check_tensor(bias, f"weights.{name}_bias", "out")
        check_size(bias, f"weights.{name}_bias", 0, matrix.shape[0], f"the rows of weights.{name}")
