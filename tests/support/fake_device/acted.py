"""A mistake of the catalogue, acted out on the device ``fake``."""

from __future__ import annotations

from conformance.diagnosis.mistakes import named_mistakes
from conformance.tools.teeth.mistaken_candidates import act_out_named
from fake_device import installed  # noqa: F401 (the device)

acted_out = act_out_named(next(one for one in named_mistakes() if one.name == "mask-fill-1e4"))
