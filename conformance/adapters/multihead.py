"""``torch.nn.MultiheadAttention``: the place of its weights, its calls and its promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from .._golden import golden
from ..base.geometry import Geometry
from ..declare.declaration import Declaration
from ..errors import DeclarationError
from .calling import Calling
from .packing import HeadSizes, Holder, StoredProjections

# True in its masks means ignore; [B,1,1,K] arrives as key_padding_mask, the others as attn_mask.
PROMISES: Final[dict[str, Any]] = {
    "masks": ["drop", "bias"],
    "mask_shapes": ["BHQK", "QK", "B11K"],
    "empty_rows": "any",
}
_FORMS: Final = ("keep", "drop", "bias")
_FULL: Final = 4
_BATCHED: Final = 3


def is_multihead(module: object) -> bool:
    """Whether an instance or class is torch's layer, or a subclass with the inherited forward."""
    kind = module if isinstance(module, type) else type(module)
    return issubclass(kind, nn.MultiheadAttention) and kind.forward is nn.MultiheadAttention.forward


def recipe(module: nn.MultiheadAttention) -> StoredProjections:
    """The layer's weights: fused, or separate when kdim or vdim differ."""
    fused = module.in_proj_weight is not None
    paths = {"qkv": "in_proj_weight"} if fused else {role: f"{role}_proj_weight" for role in "qkv"}
    paths["o"] = "out_proj.weight"
    biases = {"qkv": "in_proj_bias"} if module.in_proj_bias is not None else {}
    if module.out_proj.bias is not None:
        biases["o"] = "out_proj.bias"
    return StoredProjections(
        matrices=tuple(Holder(roles=roles, path=path) for roles, path in paths.items()),
        biases=tuple(Holder(roles=roles, path=path) for roles, path in biases.items()),
        memory=("bias_k", "bias_v") if module.bias_k is not None else (),
    )


def sizes(module: nn.MultiheadAttention) -> HeadSizes:
    """The number and the size of the module's heads."""
    return HeadSizes(
        num_heads=module.num_heads,
        num_kv_heads=module.num_heads,
        head_size=module.head_dim,
        value_head_size=module.head_dim,
    )


def beside_more_keys(
    module: nn.MultiheadAttention, declared: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The promises, with those of ``add_zero_attn`` and ``add_bias_kv``.

    The weights that the module returns have more columns, and no gradients are known beside a
    memory.
    """
    if not module.add_zero_attn and module.bias_k is None:
        return {}
    without = [*declared.get("without", ()), "weights"]
    without += [] if module.bias_k is None else ["gradients"]
    point = declared.get("semantics") or golden.STANDARD
    return {"semantics": point.replace(null_key=module.add_zero_attn), "without": without}


def promises(declared: Mapping[str, Any]) -> dict[str, Any]:
    """The user's promises, completed by the module's own.

    Raises DeclarationError for promises that the module cannot keep.
    """
    for form in declared.get("masks", ()):
        if form not in _FORMS:
            msg = (
                f"nn.MultiheadAttention takes no mask {form!r}: declare {', '.join(_FORMS)}, or "
                "pass call="
            )
            raise DeclarationError(msg)
    if declared.get("causal") is not None:
        msg = "nn.MultiheadAttention takes causality as a mask only: drop causal=, or pass call="
        raise DeclarationError(msg)
    features = declared.get("features", ())
    if not isinstance(features, str) and "weights" not in declared.get("without", ()):
        features = [*features, "weights"]
    return {**PROMISES, **declared, "features": features}


@dataclass(frozen=True, kw_only=True)
class MultiheadCalling(Calling):
    """Calls the layer as documented, in its own batch order.

    Calls without ``return_weights`` pass ``need_weights=False``, which takes the fused path.
    """

    def _call(
        self,
        module: nn.Module,
        inputs: tuple[Tensor, ...],
        keywords: dict[str, Any],
        fills: Mapping[str, Any],  # noqa: ARG002 (it needs none)
    ) -> Any:
        # A single input serves as all three; a second input serves as key and value.
        query, key, value = (*inputs, *(inputs[-1:] * (3 - len(inputs))))
        return_weights = bool(keywords.get("return_weights"))
        masks = _masks(self._scores_shape(module, query, key), keywords)
        return module(
            query, key, value, need_weights=return_weights, average_attn_weights=False, **masks
        )

    def passed(self, forward: Callable[..., Any], declaration: Declaration) -> set[str]:
        """The declared parameters, both masks if a mask is declared, and the weights' switches."""
        masks = {"attn_mask", "key_padding_mask"} if declaration.masks else set()
        switches = {"need_weights", "average_attn_weights"}
        return super().passed(forward, declaration) | masks | switches

    def _scores_shape(self, module: nn.Module, query: Tensor, key: Tensor) -> tuple[int, ...]:
        heads = cast("nn.MultiheadAttention", module).num_heads
        if query.dim() < _BATCHED:
            return heads, query.shape[0], key.shape[0]
        batch, length = (1, 0) if self.sequence_first else (0, 1)
        return query.shape[batch], heads, query.shape[length], key.shape[length]


def calling(module: nn.MultiheadAttention, inputs: str | None) -> MultiheadCalling:
    """How to call an instance of the layer."""
    return MultiheadCalling(
        inputs=inputs or "separate", sequence_first=not getattr(module, "batch_first", False)
    )


def check_mask_shapes(name: str, declaration: Declaration) -> None:
    """Require mask shapes that tell padding from ``[Q, K]`` masks; raises DeclarationError.

    A mask of two axes counts as ``[Q, K]``, whatever its letters.
    """
    for shape in declaration.mask_shapes if declaration.batched else ():
        if "B" in shape and len(shape) != _FULL:
            msg = (
                f"{name} is called with masks of four axes, [Q, K] or less: mask_shapes has "
                f"{shape!r}; write B11K for a mask of padding, or pass call="
            )
            raise DeclarationError(msg)


def _masks(shape: tuple[int, ...], keywords: dict[str, Any]) -> dict[str, Tensor]:
    """Masks under the layer's names: both boolean or both float, as the layer requires."""
    masks = [mask for mask in (_as_drop(keywords), keywords.get("bias")) if mask is not None]
    if len(masks) > 1:
        drop, bias = masks
        masks = [torch.zeros_like(drop, dtype=bias.dtype).masked_fill(drop, -torch.inf), bias]
    theirs: dict[str, Tensor] = {}
    for mask in masks:
        padding = mask.dim() == _FULL and mask.shape[1] == mask.shape[2] == 1
        name = "key_padding_mask" if padding else "attn_mask"
        if padding:
            ready = mask[:, 0, 0]
        elif mask.dim() == len("QK"):
            ready = mask.expand(shape[-2:])
        else:  # [B*H, Q, K], batch-major
            ready = mask.expand(shape).flatten(0, -3)
        theirs[name] = ready + theirs[name] if name in theirs else ready
    return theirs


def _as_drop(keywords: dict[str, Any]) -> Tensor | None:
    drop: Tensor | None = keywords.get("drop")
    keep: Tensor | None = keywords.get("keep")
    if keep is None:
        return drop
    return ~keep if drop is None else drop | ~keep


def construct(geometry: Geometry) -> nn.MultiheadAttention:
    """The layer of a geometry: fused projections for equal widths, else separate ones."""
    return nn.MultiheadAttention(
        geometry.query_size,
        geometry.num_heads,
        kdim=geometry.key_size,
        vdim=geometry.value_size,
        batch_first=True,
    )


def nearest(geometry: Geometry) -> Geometry:
    """The nearest geometry of the layer; about half get equal widths, to test both kinds."""
    width = geometry.num_heads * geometry.head_size
    separate = geometry.key_size > geometry.value_size
    return geometry.replace(
        num_kv_heads=geometry.num_heads,
        value_head_size=geometry.head_size,
        query_size=width,
        output_size=width,
        key_size=geometry.key_size if separate else width,
        value_size=geometry.value_size if separate else width,
    )
