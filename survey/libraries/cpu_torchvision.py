"""Makes torchvision importable beside torch's build for CPUs: import this before anything of it.

The index has its wheel for CUDA alone, whose operators on boxes cannot be loaded without that; no
attention uses them, and their names are all that its import needs.
"""

import torch

_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

for _name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{_name}", _BOXES)
