"""The golden reference of multi-head attention: float64, any point of ``Semantics``.

The package imports only torch, uses none of torch's attention functions, and reads like the paper.
``STANDARD`` is the specification.
"""

from .alibi import alibi_bias, alibi_slopes
from .alignment import query_positions
from .attention import (
    LEARNED,
    RESULTS,
    Attention,
    attend,
    evaluation_of,
    position_heads,
    repeat_heads,
    run_of_attention,
    scaled_dot_product_attention,
    softmax,
)
from .backward import (
    BACKWARD,
    BOTH_PASSES,
    BOTH_PASSES_OF_LAYER,
    of_temperature,
    of_weight,
    outer,
    summed_groups,
)
from .choices import at_point, counts, edits_of, hide, modify, slope_of_function
from .forward import FORWARD, Sizes, unread
from .heads import merge_heads, project, split_heads
from .layer import (
    LAYER,
    MultiHeadAttention,
    ProjectionWeights,
    cut_heads,
    evaluated,
    multi_head_attention,
    project_output,
    project_tokens,
    run_of_layer,
)
from .masks import attended_keys, structural_mask
from .normalisation import (
    joined_heads,
    normalise_heads,
    normalised_gradient,
    norms,
    parted_heads,
    temper,
    weigh,
)
from .positions import frequencies, rotate, sinusoidal_positions
from .program import Edit, Program, Rewired, Run, Stage, always, reads, reads_besides
from .rotary import (
    angles_at,
    prepare_heads,
    rotary_angles,
    rotary_frequencies,
    rotary_pairs,
    rotary_size,
    rotate_heads,
    rows_at,
    turn_heads,
)
from .semantics import STANDARD, CausalBy, Semantics, scale_value

__all__ = [
    "BACKWARD",
    "BOTH_PASSES",
    "BOTH_PASSES_OF_LAYER",
    "FORWARD",
    "LAYER",
    "LEARNED",
    "RESULTS",
    "STANDARD",
    "Attention",
    "CausalBy",
    "Edit",
    "MultiHeadAttention",
    "Program",
    "ProjectionWeights",
    "Rewired",
    "Run",
    "Semantics",
    "Sizes",
    "Stage",
    "alibi_bias",
    "alibi_slopes",
    "always",
    "angles_at",
    "at_point",
    "attend",
    "attended_keys",
    "counts",
    "cut_heads",
    "edits_of",
    "evaluated",
    "evaluation_of",
    "frequencies",
    "hide",
    "joined_heads",
    "merge_heads",
    "modify",
    "multi_head_attention",
    "normalise_heads",
    "normalised_gradient",
    "norms",
    "of_temperature",
    "of_weight",
    "outer",
    "parted_heads",
    "position_heads",
    "prepare_heads",
    "project",
    "project_output",
    "project_tokens",
    "query_positions",
    "reads",
    "reads_besides",
    "repeat_heads",
    "rotary_angles",
    "rotary_frequencies",
    "rotary_pairs",
    "rotary_size",
    "rotate",
    "rotate_heads",
    "rows_at",
    "run_of_attention",
    "run_of_layer",
    "scale_value",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
    "slope_of_function",
    "softmax",
    "split_heads",
    "structural_mask",
    "summed_groups",
    "temper",
    "turn_heads",
    "unread",
    "weigh",
]
