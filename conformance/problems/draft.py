"""A problem before it meets a candidate and a clause: sizes, a seed and a handful of choices.

Drawing is the dear part, so the same drafts serve every clause: each clause's space and the
candidate's declaration turn them into problems that can be asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..base.geometry import Geometry
from ..declare.candidate import Candidate
from .caching import draws_cache, settle_past
from .problem import MaskPlan, Problem
from .settling import either_or, one_at_a_time, settle, settle_causal
from .space import Often, Space

SCALES = (None, 0.25, 0.3, 1.0, 1.7)
# Mostly absent: a narrow window hides what the other options do.
SOFTCAPS = (None, None, 3.0, None, 30.0)
WINDOWS = (None, None, None, (1, 1), None, None, (3, -1), None, None, (-1, 2), None, (0, 0), (2, 0))

# Whether heads have sinks.
SINKS = (False, True)
# The share of the keys that is cached; None is all those before as many as there are queries.
PASTS: tuple[float | None, ...] = (0.0, None, 0.0, 0.5, 1.0)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Sizes as drawn, and choices as integers that each space takes modulo what it offers."""

    geometry: Geometry
    seed: int
    values: int
    option: int
    pattern: int
    masked: bool
    causal: bool
    finite_bias: bool
    biases: bool
    extras: int

    def problem(self, candidate: Candidate, space: Space, *, dtype: str) -> Problem:
        """The problem of a space that this draft becomes for a candidate."""
        recipes = space.recipes(dtype, candidate)
        problem = Problem(
            geometry=settle(self.geometry, candidate, space),
            dtype=dtype,
            seed=self.seed,
            values=recipes[self.values % len(recipes)],
            mask=self._mask(candidate, space),
            causal=settle_causal(candidate, flagged=_decide(space.causal, drawn=self.causal)),
            biases=self.biases,
            **self._extras(candidate, space),
            sinks=self._has_sinks(candidate, space),
        )
        if not space.gives_both:
            problem = one_at_a_time(problem, candidate)
        return self._with_past(problem, candidate, space)

    def _mask(self, candidate: Candidate, space: Space) -> MaskPlan | None:
        options = space.options(candidate)
        if not options or not _decide(space.mask, drawn=self.masked):
            return None
        if space.causal == "always" and not space.gives_both and either_or(candidate):
            return None
        # The form first: one that comes in a single shape is drawn as often as the others.
        forms = list(dict.fromkeys(form for form, _ in options))
        form = forms[self.option % len(forms)]
        shapes = [shape for name, shape in options if name == form]
        shape = shapes[self.option // len(forms) % len(shapes)]
        return MaskPlan(
            pattern=space.patterns[self.pattern % len(space.patterns)],
            form=form,
            shape=shape,
            finite_bias=form == "bias" and _decide(space.finite_bias, drawn=self.finite_bias),
        )

    def _extras(self, candidate: Candidate, space: Space) -> dict[str, Any]:
        features = candidate.declaration.features
        extras: dict[str, Any] = {}
        # Digits of one number: each option is chosen apart from the others.
        if space.extras != "never" and "scale" in features:
            extras["scale"] = SCALES[self.extras % len(SCALES)]
        if space.extras == "maybe" and "softcap" in features:
            extras["softcap"] = SOFTCAPS[self.extras // len(SCALES) % len(SOFTCAPS)]
        if space.extras == "maybe" and "window" in features:
            both = len(SCALES) * len(SOFTCAPS)
            extras["window"] = WINDOWS[self.extras // both % len(WINDOWS)]
        return extras

    def _has_sinks(self, candidate: Candidate, space: Space) -> bool:
        """A digit beyond those of all other options: what does not offer sinks draws the same."""
        if space.extras != "maybe" or "sinks" not in candidate.declaration.features:
            return False
        digits = len(SCALES) * len(SOFTCAPS) * len(WINDOWS) * len(PASTS)
        return SINKS[self.extras // digits % len(SINKS)]

    def _with_past(self, problem: Problem, candidate: Candidate, space: Space) -> Problem:
        """Some of the keys cached, where caches are offered; a digit beyond those of the extras."""
        if space.extras != "maybe" or not draws_cache(candidate):
            return problem
        digits = len(SCALES) * len(SOFTCAPS) * len(WINDOWS)
        share = PASTS[self.extras // digits % len(PASTS)]
        sizes = problem.geometry
        if share is None:
            past = max(sizes.key_length - sizes.query_length, 1)
        else:
            past = math.ceil(share * sizes.key_length)
        return problem.replace(past=settle_past(problem.replace(past=past), candidate))


def _decide(often: Often, *, drawn: bool) -> bool:
    return often in ("always", "offered") or (often == "maybe" and drawn)
