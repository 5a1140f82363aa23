"""The mistakes that a failure can be named after, as data: see ``docs/mistakes.md``.

``MISTAKES`` show in answers, ``BACKWARD`` in gradients alone. Entries with equal names are ways to
make one mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final

import torch

from ..._golden import golden
from ...base.mistake import Mistake, mistakes_in
from ...declare.declaration import mixed_in
from ...problems.inputs import Inputs
from ...targets.loading import MISTAKE_GROUP, registered, taking_in
from ._steps import has_causal, has_mask, has_softcap, has_window, hides_keys
from .backward import ATTENTION, LAYERS, OF_CALLS, OF_OPTIONS
from .biases import BIASES, POSITIONS
from .caches import CACHES, LOST_OPTIONS
from .causality import CAUSALITY, OF_SEQUENCES
from .fills import FILLED, ROWS
from .given_positions import GIVEN_POSITIONS
from .latent import LATENT
from .layout import EXCHANGES, GROUPS, LAYOUT
from .learned import LEARNED, LEARNED_BACKWARD
from .masking import LENGTHS, MASKING, WINDOWS
from .named_mistake import (
    IMPOSSIBLE,
    DeclaredCall,
    NamedMistake,
    NotExpressible,
    Where,
    changes_run,
    everywhere,
    run_of_call,
)
from .paged import PAGED
from .projections import PROJECTIONS
from .quantised import QUANTISED
from .scaling import PREPARED, SCALING
from .semantics_changes import POINTS, mistaken_conventions
from .softmaxes import SINKS, SOFTCAPS, SOFTMAXES
from .weighing import TILES, WEIGHING

MISTAKES: Final[tuple[NamedMistake, ...]] = (
    *POINTS,
    *SCALING,
    *SOFTMAXES,
    *TILES,
    *WEIGHING,
    *FILLED,
    *MASKING,
    *LENGTHS,
    *CAUSALITY,
    *OF_SEQUENCES,
    *PAGED,
    *WINDOWS,
    *SOFTCAPS,
    *BIASES,
    *LEARNED,
    *CACHES,
    *LOST_OPTIONS,
    *ROWS,
    *LAYOUT,
    *LATENT,
    *GROUPS,
    *EXCHANGES,
    *PROJECTIONS,
    *POSITIONS,
    *GIVEN_POSITIONS,
    *SINKS,
    *PREPARED,
    *QUANTISED,
)
BACKWARD: Final[tuple[NamedMistake, ...]] = (
    *ATTENTION,
    *LAYERS,
    *OF_CALLS,
    *LEARNED_BACKWARD,
    *OF_OPTIONS,
)


def named_mistakes() -> tuple[NamedMistake, ...]:
    """Return the mistakes that answers show: of this project, then of other distributions."""
    return (*MISTAKES, *registered_mistakes())


@cache
def registered_mistakes() -> tuple[NamedMistake, ...]:
    """Return every registered mistake with ``changes``; UsageError for an unusable one."""
    return tuple(
        mistake
        for point in registered(MISTAKE_GROUP)
        for mistake in taking_in(point, "mistakes", _named)
    )


def _named(value: Any) -> list[NamedMistake]:
    return [_read_mistake(mistake) for mistake in mistakes_in(value) if mistake.changes]


def _read_mistake(mistake: Mistake) -> NamedMistake:
    golden.STANDARD.replace(**mistake.changes)  # raises for unknown fields and values
    return NamedMistake(**vars(mistake))


def touches_any(made: Sequence[NamedMistake], inputs: Inputs, declared: golden.Semantics) -> bool:
    """Whether a mistake among ``made`` may change the answer to the inputs."""
    return any(touches(one, DeclaredCall(inputs=inputs, semantics=declared)) for one in made)


def touches(mistake: NamedMistake, call: DeclaredCall) -> bool:
    """Whether a mistake may change the answer to a call at all."""
    inputs = call.inputs
    if not mistake.where(inputs) or not mistake.speaks_at(call.semantics):
        return False
    if any(holds(inputs) for holds in _deciding(mistake)):
        return True
    if mistake.inputs is None and not mistake.edits:
        return False
    try:
        with torch.inference_mode():
            asked = mistake.inputs is not None and mistake.inputs(call) is not None
            return asked or any(changes_run(run_of_call(call), edit) for edit in mistake.edits)
    except (NotExpressible, *IMPOSSIBLE):
        return True


def deciding_properties(mistake: NamedMistake) -> Sequence[Where] | None:
    """Return properties of inputs, at least one of which lets a mistake change the answer.

    None if these properties alone do not decide. The mistake must also be made ``where`` the inputs
    are, and at the declared point.
    """
    deciding = _deciding(mistake)
    decided = everywhere in deciding or (mistake.inputs is None and not mistake.edits)
    return deciding if decided else None


def _deciding(mistake: NamedMistake) -> Sequence[Where]:
    if mistake.acts_on_every_call:
        return (everywhere,)
    return [_MATTERS.get(name, everywhere) for name in mistake.changes]


# What inputs must have for a field of the semantics to matter to them.
_MATTERS: Final[dict[str, Callable[[Inputs], bool]]] = {
    **dict.fromkeys(("mask_operation", "mask_fill", "empty_rows"), hides_keys),
    "causal_combination": lambda inputs: inputs.masked and inputs.causal,
    "one_query_causal": lambda inputs: inputs.causal and inputs.geometry.query_length == 1,
    "mask_polarity": has_mask,
    "causal_alignment": lambda inputs: (
        inputs.causal or inputs.window is not None or mixed_in(inputs.point) is not None
    ),
    "causal_offset": has_causal,
    "causal_by": lambda inputs: (
        inputs.positions is not None and (inputs.causal or inputs.window is not None)
    ),
    "bias_order": lambda inputs: inputs.bias is not None,
    "softcap_order": has_softcap,
    "window_offset": has_window,
    "group_order": lambda inputs: inputs.geometry.num_heads != inputs.geometry.num_kv_heads,
    **dict.fromkeys(
        ("head_split", "head_merge", "query_bias", "value_bias", "output_bias"),
        attrgetter("is_layer"),
    ),
}


__all__ = [
    "BACKWARD",
    "IMPOSSIBLE",
    "MISTAKES",
    "DeclaredCall",
    "NamedMistake",
    "NotExpressible",
    "Where",
    "deciding_properties",
    "everywhere",
    "mistaken_conventions",
    "named_mistakes",
    "registered_mistakes",
    "touches",
    "touches_any",
]
