"""What a warm process has imported before it is forked for a candidate."""

from __future__ import annotations

from ...base.collector import uncollected

with uncollected():
    from ...diagnosis.mistakes import named_mistakes
    from .planning import plan_targets
    from .worker import ready

    WARMED = (plan_targets, named_mistakes(), ready())
