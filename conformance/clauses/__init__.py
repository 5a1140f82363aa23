"""The specification: one file a family, one short function a clause. Importing registers them."""

from . import shape  # noqa: I001  (the order here is the order of the specification)
from . import masking
from . import leaks
from . import empty_rows
from . import bias
from . import causal
from . import equivariance
from . import position
from . import numerics
from . import precision
from . import algebra
from . import state
from . import modules
from . import dropout

__all__ = [
    "algebra",
    "bias",
    "causal",
    "dropout",
    "empty_rows",
    "equivariance",
    "leaks",
    "masking",
    "modules",
    "numerics",
    "position",
    "precision",
    "shape",
    "state",
]
