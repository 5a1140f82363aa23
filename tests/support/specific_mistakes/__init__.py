"""For each clause the mistake that only it, or as few others as can be, should see.

A gross mistake breaks nearly everything; these are the ones that tell the clauses apart. The second
entry lists every other clause that the mistake may fail too: its direct consequences.
"""

from __future__ import annotations

from typing import Final

from .consequences import ANYTHING, Specific
from .device import DEVICE, ON_A_DEVICE
from .equivariance import EQUIVARIANCE
from .export import EXPORT
from .gradients import GRADIENTS
from .kernels import KERNELS
from .layouts import LAYOUTS
from .mask import MASK
from .mixed import MIXED
from .models import MODELS
from .numerics import NUMERICS
from .position import POSITION
from .prepared import PREPARED
from .shape import SHAPE
from .state import STATE

SPECIFIC: Final[Specific] = {
    **DEVICE,
    **EQUIVARIANCE,
    **EXPORT,
    **GRADIENTS,
    **KERNELS,
    **LAYOUTS,
    **MASK,
    **MIXED,
    **MODELS,
    **NUMERICS,
    **POSITION,
    **PREPARED,
    **SHAPE,
    **STATE,
}

__all__ = ["ANYTHING", "ON_A_DEVICE", "SPECIFIC"]
