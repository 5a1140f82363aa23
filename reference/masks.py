"""Which keys a query may attend: every way of saying so, brought to one boolean table."""

from __future__ import annotations

from functools import lru_cache, reduce
from operator import and_

import torch
from torch import Tensor

from .alignment import query_positions
from .checks import check_argument, check_broadcasts, check_window
from .semantics import Semantics


def structural_mask(
    query_length: int,
    key_length: int,
    *,
    causal: bool,
    window: tuple[int, int] | None,
    semantics: Semantics,
    rows: Tensor | None = None,
) -> Tensor:
    """What causality and window admit: bool ``[Lq, Lk]``, True where query i may attend key j.

    With ``rows`` (int64 ``[R]``) only these queries are looked at: ``[R, Lk]``.

    Query i stands at key position ``i + Lk - Lq`` under bottom-right alignment and at ``i`` under
    top-left. ``window=(left, right)`` admits that many keys before and after that position; -1
    means no limit on that side (the convention of FlashAttention's ``window_size``).

    Raises ValueError for a negative length or a window that is not two integers from -1.
    """
    for name, length in (("query_length", query_length), ("key_length", key_length)):
        check_argument(length >= 0, name, f"is {length}, which is negative")
    check_window(window)
    causal, _ = counted(semantics, causal=causal, masked=False, query_length=query_length)
    if not causal and window is None:
        return torch.ones(query_length if rows is None else len(rows), key_length, dtype=torch.bool)
    position = query_positions(query_length, key_length, semantics)
    position = position[:, None] if rows is None else position[rows, None]
    ahead = torch.arange(key_length) - position
    left, right = (-1, -1) if window is None else window
    limits = []
    if causal:
        limits.append(ahead <= semantics.causal_offset)
    if left >= 0:
        limits.append(ahead >= -left - semantics.window_offset)
    if right >= 0:
        limits.append(ahead <= right + semantics.window_offset)
    return reduce(and_, limits) if limits else torch.ones(ahead.shape, dtype=torch.bool)


def given_mask(
    shape: tuple[int, int, int, int],
    *,
    keep: Tensor | None,
    lengths: Tensor | None,
    semantics: Semantics,
) -> Tensor | None:
    """What mask and lengths admit together: bool, broadcastable to ``[B, H, Lq, Lk]``, or None."""
    if keep is None and lengths is None:
        return None
    admitted = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    if keep is not None:
        check_broadcasts(keep, "keep", shape)
        check_argument(keep.dtype == torch.bool, "keep", f"has dtype {keep.dtype}, not torch.bool")
        admitted = keep if semantics.mask_polarity == "keep" else ~keep
    if lengths is not None:
        admitted = admitted & _within_lengths(lengths, shape)
    return admitted


def _within_lengths(lengths: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    _check_lengths(lengths, shape)
    per_item = lengths.unsqueeze(1) if lengths.dim() == 1 else lengths
    return torch.arange(shape[3], device=lengths.device) < per_item[:, None, :, None]


def _check_lengths(lengths: Tensor, shape: tuple[int, int, int, int]) -> None:
    batch, _, query_length, key_length = shape
    if not isinstance(lengths, Tensor):
        msg = f"lengths is a {type(lengths).__name__}, not a torch.Tensor"
        raise TypeError(msg)
    fits = tuple(lengths.shape) in ((batch,), (batch, query_length))
    check_argument(
        fits,
        "lengths",
        f"has shape {list(lengths.shape)}, not [{batch}] or [{batch}, {query_length}]",
    )
    whole = not lengths.is_floating_point() and lengths.dtype != torch.bool
    check_argument(whole, "lengths", f"has dtype {lengths.dtype}, not an integer one")
    inside = bool(((lengths >= 0) & (lengths <= key_length)).all())
    check_argument(inside, "lengths", f"has entries outside 0..{key_length}")


def counted(
    semantics: Semantics, *, causal: bool, masked: bool, query_length: int
) -> tuple[bool, bool]:
    """Whether causality, and whether the mask, count in a call that gives them.

    ``masked`` says whether a mask in any form is given: boolean, additive or lengths.
    """
    causal = causal and (query_length != 1 or semantics.one_query_causal)
    if not (causal and masked):
        return causal, masked
    rule = semantics.causal_combination
    return rule != "mask-only", rule != "causal-only"


def admitted(
    shape: tuple[int, int, int, int],
    given: Tensor | None,
    *,
    causal: bool,
    window: tuple[int, int] | None,
    semantics: Semantics,
    device: torch.device,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What causality and window admit: bool ``[Lq, Lk]``; and that with the mask: all four axes.

    ``given`` is what a boolean mask or lengths admit, None without; all that is given counts. With
    ``rows`` (int64 ``[R]``) only these queries are looked at, in ``given`` as well.
    """
    lengths = shape[2:]
    structure = _structure(lengths, causal, window, semantics, rows).to(device)
    shape = (*shape[:2], *structure.shape)
    if given is None:
        return structure, structure.expand(shape)
    given = given.to(device)
    both = structure & given
    if causal and semantics.causal_combination == "either":
        shown = _structure(lengths, False, window, semantics, rows)  # noqa: FBT003 (as it is called)
        both = shown.to(device) & (structure | given)
    return structure, both.expand(shape)


# Tables of more elements than this are made anew.
_MOST_REMEMBERED = 2**16


def _structure(
    lengths: tuple[int, ...],
    causal: bool,  # noqa: FBT001
    window: tuple[int, int] | None,
    semantics: Semantics,
    rows: Tensor | None,
) -> Tensor:
    """The structural mask, which nobody may write to: small ones are remembered."""
    if rows is None and lengths[0] * lengths[1] <= _MOST_REMEMBERED:
        return _small_structure(*lengths, causal, window and tuple(window), semantics)
    return structural_mask(*lengths, causal=causal, window=window, semantics=semantics, rows=rows)


@lru_cache(maxsize=256)
def _small_structure(
    query_length: int,
    key_length: int,
    causal: bool,  # noqa: FBT001
    window: tuple[int, int] | None,
    semantics: Semantics,
) -> Tensor:
    with torch.inference_mode(False):  # the next call may be differentiated  # noqa: FBT003
        return structural_mask(
            query_length, key_length, causal=causal, window=window, semantics=semantics
        )
