"""Queries and keys normalised otherwise, scores modified otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

from ..._golden import golden
from .named import Asked, Heads, HeadsChange, NamedMistake, mistakes

_NORM: Final = "qk-norm.golden"
_MODIFIED: Final = "score-mod.golden"
_FIX: Final = "normalise each head of each query and key by itself, before it is turned"
_CALL: Final = "call it as score_mod(score, batch, head, query, key) on the scaled, capped scores"
_RMS: Final = {"qk_norm": "rms"}
_PLAIN: Final = {"qk_norm": "none"}


def _normalises(point: golden.Semantics) -> bool:
    return point.qk_norm != "none"


def _instead(change: Callable[[Tensor, Tensor, golden.Semantics], tuple[Tensor, Tensor]]) -> Any:
    """Query and key that are made by hand of those behind the projections."""

    def heads(asked: Asked, given: Heads) -> Heads:
        query, key, value = given
        declared = asked.inputs.point
        return (*change(query.double(), key.double(), declared), value)

    made: HeadsChange = heads
    return made


def _over_all_heads(tokens: Tensor, point: golden.Semantics) -> Tensor:
    """The heads of a token side by side are normalised as one."""
    merged = tokens.transpose(1, 2).flatten(2).unsqueeze(1)
    normalised = golden.normalise_heads(merged, point).squeeze(1)
    apart: Tensor = normalised.unflatten(-1, (tokens.shape[1], -1)).transpose(1, 2)
    return apart


def _norm(name: str, text: str, *ways: dict[str, Any]) -> list[NamedMistake]:
    shared = {"base": _RMS, "fits": _normalises}
    return mistakes(name, _NORM, text, _FIX, *({**shared, **way} for way in ways))


def leaning(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The function by which such mistakes are acted out: every index shows."""
    moved = 1.0 + 0.25 * ((query + 2 * key + head) % 3)
    return moved * score - 0.125 * batch * key


def _rearranged(order: Callable[..., tuple[Any, ...]]) -> dict[str, Any]:
    """The function called with its indices in another order."""

    def change(point: golden.Semantics) -> golden.Semantics:
        called = point.score_mod
        if called is None:
            return point
        return point.replace(score_mod=lambda score, *indices: called(score, *order(*indices)))

    return {"point": change}


def _modified(name: str, text: str, *ways: dict[str, Any]) -> list[NamedMistake]:
    shared = {
        "base": {"score_mod": leaning},
        "fits": lambda point: point.score_mod is not None,
    }
    return mistakes(name, _MODIFIED, text, _CALL, *({**shared, **way} for way in ways))


PREPARED: Final[tuple[NamedMistake, ...]] = (
    *_norm("qk-norm-missing", "queries and keys are not normalised", {"changes": _PLAIN}),
    *mistakes(
        "qk-norm-other",
        _NORM,
        "queries and keys are normalised by another rule",
        _FIX,
        *(
            {"base": {"qk_norm": declared}, "changes": {"qk_norm": other}}
            for declared in ("rms", "layer", "l2")
            for other in ("rms", "layer", "l2")
            if other != declared
        ),
    ),
    *_norm(
        "qk-norm-epsilon",
        "epsilon is left out, or is another",
        *({"changes": {"qk_norm_epsilon": value}} for value in (0.0, 1e-5, 1e-8)),
    ),
    *_norm(
        "qk-norm-query-only",
        "queries are normalised and keys are not",
        {
            "changes": _PLAIN,
            "heads": _instead(lambda q, k, point: (golden.normalise_heads(q, point), k)),
        },
    ),
    *_norm(
        "qk-norm-all-heads",
        "the norm is that of all heads of a token together",
        {
            "changes": _PLAIN,
            "heads": _instead(
                lambda q, k, point: (_over_all_heads(q, point), _over_all_heads(k, point))
            ),
        },
    ),
    *_modified(
        "score-mod-missing", "the function is not applied", {"changes": {"score_mod": None}}
    ),
    *_modified(
        "score-mod-indices",
        "the function gets its indices in another order",
        _rearranged(lambda batch, head, query, key: (batch, head, key, query)),
        _rearranged(lambda batch, head, query, key: (head, batch, query, key)),
    ),
)
