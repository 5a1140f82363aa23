"""What a warm process has imported, and drawn, before it is forked for a candidate."""

from __future__ import annotations

# The first gradient would import it, and with it a second's worth of symbolic algebra.
from torch.fx.experimental import symbolic_shapes

from ...base.limits import uncollected

with uncollected():
    from ...base.profile import PROFILES
    from ...calls.integrity import seal
    from ...diagnosis.mistakes import named_mistakes
    from ...problems.strategies import FEW_DRAFTS, first_drafts
    from .planning import plan_targets
    from .worker import ready

    QUICK = PROFILES["quick"]
    DRAWN = [
        first_drafts(longest=QUICK.longest, count=count, seed_value=0)
        for count in (FEW_DRAFTS, QUICK.examples)
    ]
    WARMED = (plan_targets, named_mistakes(), ready(), seal(), symbolic_shapes)
