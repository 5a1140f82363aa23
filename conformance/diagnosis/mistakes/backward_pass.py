"""The gradients of a candidate with an edited backward pass, in float64.

Both passes are one run: an edited stage of the forward pass is recomputed by the backward pass.
Edits may read ``inputs`` of the call, and ``right``, the right run with the saved forward results.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..._golden import golden
from ...oracle.oracle import core_of, evaluate
from ...problems.inputs import Inputs
from .named_mistake import IMPOSSIBLE, Gradients, NotExpressible

# The stage whose result is the gradient of an input, by the names of the inputs.
OF_CORE: Final = {
    "query": "given_query_gradient",
    "key": "given_key_gradient",
    "value": "given_value_gradient",
    "bias": "bias_gradient",
    **{name: f"{name}_gradient" for name in golden.LEARNED},
}
OF_LAYER: Final = {
    **{name: f"{name}_tokens_gradient" for name in ("query", "key", "value")},
    **{name: f"{name}_gradient" for role in "oqkv" for name in (role, f"{role}_bias")},
}
# Includes keys and values that no query reads: a backward pass may recompute their weights.
_EVERY_KEY: Final = (
    golden.Edit("unread_keys", lambda: None),
    golden.Edit("unread_values", lambda: None),
    golden.Edit("output", lambda weights, value: weights @ value),
)
# The input of the output matrix is saved, even if the backward pass recomputes the weights.
_OF_SAVED_HEADS: Final = golden.Edit(
    "o_gradient", lambda upstream, right: golden.outer(upstream, right["merged"])
)


def both_passes(inputs: Inputs, semantics: golden.Semantics, upstream: Tensor) -> golden.Run:
    """Return the complete right run of both passes for the gradient of an answer.

    Raises NotExpressible for a layer that is cut into heads in another way.
    """
    evaluation = evaluate(inputs, semantics)
    core, program = core_of(evaluation), golden.BOTH_PASSES
    if not isinstance(evaluation, golden.Attention):
        if (semantics.head_split, semantics.head_merge) != ("blocks", "blocks"):
            raise NotExpressible
        program = golden.BOTH_PASSES_OF_LAYER
    given = {**core.run.given, "upstream": upstream.double()}
    given |= {"inputs": inputs, "past": inputs.past, "point": semantics}
    # Layers are given their tokens in place of heads, and biases that they may lack.
    given = {**dict.fromkeys((f"{role}_bias" for role in "oqkv"), None), **given}
    with torch.no_grad():
        try:
            right = golden.Run(golden.choose_point(program, semantics), given).edited(*_EVERY_KEY)
            right.complete()
        except IMPOSSIBLE as error:
            raise NotExpressible from error
        return right.edited(_OF_SAVED_HEADS, right=right)


def stages_of(run: golden.Run) -> dict[str, str]:
    """Return the stages that are gradients, by the names of the inputs of a core or layer."""
    return OF_LAYER if "merged_gradient" in run.program.steps else OF_CORE


def gradients_of(run: golden.Run, inputs: Inputs) -> Gradients:
    """Return the gradients of a run of both passes, by the names of a call's inputs."""
    with torch.no_grad():
        made: dict[str, Any] = {name: run[stage] for name, stage in stages_of(run).items()}
    result = {name: gradient for name, gradient in made.items() if gradient is not None}
    if inputs.mode == "self":
        result["x"] = result.pop("query") + result.pop("key") + result.pop("value")
    elif inputs.mode == "memory":
        context, value = result.pop("key").clone(), result.pop("value")
        context[..., : value.shape[-1]] += value
        result["context"] = context
    return result


def gradients_with(right: golden.Run, inputs: Inputs, edits: tuple[golden.Edit, ...]) -> Gradients:
    """Return the gradients of a candidate with edited stages, by the names of its inputs.

    ``right`` is the run of :func:`both_passes`. Raises NotExpressible if a stage cannot be made.
    """
    try:
        return gradients_of(right.edited(*edits), inputs)
    except IMPOSSIBLE as error:
        raise NotExpressible from error
