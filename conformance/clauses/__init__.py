"""The specification: one file a family, one short function a clause. Importing registers them."""

from . import shape  # noqa: I001  (the order here is the order of the specification)
from . import rejection
from . import masking
from . import leaks
from . import empty_rows
from . import bias
from . import position
from . import sinks
from . import causal
from . import equivariance
from . import prepared
from . import numerics
from . import precision
from . import extremes
from . import mixed
from . import varlen
from . import outputs
from . import operators
from . import compiled
from . import algebra
from . import options
from . import groups
from . import windows
from . import softcaps
from . import caches
from . import long_sequences
from . import state
from . import tampering
from . import modules
from . import dropout
from . import gradients
from . import gradient_calls
from . import gradient_checks
from . import gradient_features
from . import device
from . import device_memory
from . import export_file
from . import export_dynamic
from . import export_runs

__all__ = [
    "accumulation",
    "algebra",
    "alibi",
    "autocast",
    "bias",
    "caches",
    "calls",
    "causal",
    "compiled",
    "decoding",
    "device",
    "device_canaries",
    "device_memory",
    "device_streams",
    "dropout",
    "empty_rows",
    "equivariance",
    "export_dynamic",
    "export_file",
    "export_inputs",
    "export_runs",
    "extremes",
    "freshness",
    "gradient_calls",
    "gradient_checks",
    "gradient_features",
    "gradients",
    "groups",
    "leaks",
    "lengths",
    "long_sequences",
    "mask_memory",
    "masking",
    "memory",
    "mixed",
    "mixed_masks",
    "modules",
    "numerics",
    "operators",
    "options",
    "outputs",
    "position",
    "precision",
    "prepared",
    "propagation",
    "rejection",
    "rotary",
    "settings",
    "shape",
    "sinks",
    "softcaps",
    "state",
    "tampering",
    "unchanged",
    "varlen",
    "windows",
]
