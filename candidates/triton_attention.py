"""A forward pass of one's own in Triton, checked on a GPU or in Triton's interpreter.

``TRITON_INTERPRET=1 conformance check candidates/triton_attention.py`` needs Triton and no GPU. A
check of the folder has it where Triton is installed and either is there; elsewhere every clause
says that there is no such device. The kernel itself is in ``candidates/_triton_forward.py``.

The interpreter multiplies the bits of bfloat16 (triton-lang/triton#11584), so it is not asked that.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Final

import torch
from torch import Tensor

import conformance

INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"
INSTALLED: Final = importlib.util.find_spec("triton") is not None
USABLE: Final = INSTALLED and (INTERPRETED or torch.cuda.is_available())

if INTERPRETED and not INSTALLED:
    message = "TRITON_INTERPRET is 1, but Triton is not installed: pip install triton"
    raise ImportError(message)


@conformance.core(
    causal="bottom-right",
    empty_rows="zeros",
    features=["scale", "gqa"],
    without=["gradients"],
    dtypes=["float32", "float16", *([] if INTERPRETED else ["bfloat16"])],
    devices=["cpu" if INTERPRETED else "cuda"],
    accumulate="float32",
    scores="fused",
)
def triton_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, Hkv, Lk, D]`` and ``[B, Hkv, Lk, Dv]``.

    Raises ValueError for shapes that do not belong together, before any memory is read.
    """
    from ._triton_forward import run  # noqa: PLC0415 (Triton need not be installed)

    _check(query, key, value)
    output = query.new_empty(*query.shape[:3], value.shape[3])
    if output.numel():
        factor = query.shape[3] ** -0.5 if scale is None else scale
        run(query, key, value, output, causal=causal, scale=factor)
    return output


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """A kernel that is handed pointers reads whatever lies there; raises ValueError."""
    if key.shape[:3] != value.shape[:3]:
        msg = f"keys {list(key.shape)} and values {list(value.shape)} do not belong together"
        raise ValueError(msg)
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        msg = f"queries {list(query.shape)} and keys {list(key.shape)} do not belong together"
        raise ValueError(msg)
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        msg = f"{query.shape[1]} heads cannot share {key.shape[1]} heads of keys"
        raise ValueError(msg)
    if not query.dtype == key.dtype == value.dtype:
        msg = f"query, key and value are {query.dtype}, {key.dtype} and {value.dtype}"
        raise ValueError(msg)
