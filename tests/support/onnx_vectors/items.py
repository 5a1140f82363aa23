"""Says a vector in the golden's words: heads, a mask, where the queries stand among the keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance._golden import golden

from .collected import Array, Vector


@dataclass(frozen=True, kw_only=True)
class Question:
    """One item of a vector: query ``[1, H, Lq, D]``, key and value with every key, cached or new.

    ``offset`` is how many keys stand before the first query: 0 without a cache, the number of
    cached keys, or with an external cache the number of valid keys less that of queries.
    ``window`` is (left, right) around that position. ``keep`` and ``bias`` have four axes.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None
    bias: Tensor | None
    lengths: Tensor | None
    offset: int
    causal: bool
    window: tuple[int, int] | None
    scale: float | None
    softcap: float | None

    def evaluate(self, *, masked: bool = True, **changes: Any) -> golden.Attention:
        """The golden's evaluation; without masks all keys count, as in scores before a mask.

        Its causal diagonal runs through a corner of the score matrix. An offset that leads through
        neither corner is reached by rows of queries before the first one that nobody compares.
        ``changes`` are fields of the semantics, for showing that the vectors notice them.
        """
        point, ahead = self._aligned()
        shifted = _shifted(self, ahead)
        return golden.attend(
            shifted.query,
            shifted.key,
            shifted.value,
            scale=self.scale,
            softcap=self.softcap,
            semantics=point.replace(**changes),
            **(shifted.masks() if masked else {}),
        )

    def own_rows(self) -> slice:
        """The rows of an evaluation that the vector has."""
        return slice(max(self._aligned()[1], 0), None)

    def own_keys(self) -> slice:
        """The keys of an evaluation that the vector has."""
        return slice(max(-self._aligned()[1], 0), None)

    def masks(self) -> dict[str, Any]:
        """What the golden calls the things that hide keys."""
        return {
            "keep": self.keep,
            "bias": self.bias,
            "lengths": self.lengths,
            "causal": self.causal,
            "window": self.window,
        }

    def _aligned(self) -> tuple[golden.Semantics, int]:
        """The point to evaluate at, and by how many rows the queries are moved down."""
        top_left = golden.STANDARD.replace(causal_alignment="top-left")
        if not self.causal and self.window is None:
            return top_left, 0
        if self.offset == self.key.shape[2] - self.query.shape[2]:
            return golden.STANDARD, 0
        return top_left, self.offset


def _shifted(question: Question, rows: int) -> Question:
    """Queries of zero before the first query, or for a negative number hidden keys."""
    if rows == 0:
        return question
    changes: dict[str, Any] = {}
    if rows > 0:
        changes["query"] = _before(question.query, rows, 2, 0.0)
        for name in ("keep", "bias"):
            mask = getattr(question, name)
            if mask is not None and mask.shape[2] > 1:
                changes[name] = _before(mask, rows, 2, 0.0)
    else:
        shape = (1, 1, 1, question.key.shape[2])
        keep = torch.ones(shape, dtype=torch.bool) if question.keep is None else question.keep
        if question.lengths is not None:
            keep = keep & (torch.arange(shape[3]) < question.lengths)
        changes |= {"keep": _before(keep, -rows, 3, 0.0), "lengths": None}
        changes["key"] = _before(question.key, -rows, 2, 0.0)
        changes["value"] = _before(question.value, -rows, 2, 0.0)
        if question.bias is not None:
            changes["bias"] = _before(question.bias, -rows, 3, 0.0)
    return Question(**{**question.__dict__, **changes})


def _before(tensor: Tensor, count: int, axis: int, fill: float) -> Tensor:
    shape = list(tensor.shape)
    shape[axis] = count
    return torch.cat([torch.full(shape, fill).to(tensor.dtype), tensor], dim=axis)


def questions(vector: Vector) -> Iterator[Question]:
    """The items of a vector's batch."""
    heads = {name: _heads(vector, name) for name in "QKV"}
    cached = 0
    if "past_key" in vector.inputs:
        past = torch.from_numpy(vector.inputs["past_key"])
        cached = past.shape[2]
        heads["K"] = torch.cat([past, heads["K"]], dim=2)
        heads["V"] = torch.cat([torch.from_numpy(vector.inputs["past_value"]), heads["V"]], dim=2)
    attributes = vector.attributes
    sides = (attributes.get("left_window_size", -1), attributes.get("right_window_size", -1))
    for item in range(heads["Q"].shape[0]):
        here = slice(item, item + 1)
        lengths = vector.inputs.get("nonpad_kv_seqlen")
        keep, bias = _mask(vector, heads["K"].shape[2], here)
        valid = None if lengths is None else torch.from_numpy(lengths[here])
        yield Question(
            query=heads["Q"][here],
            key=heads["K"][here],
            value=heads["V"][here],
            keep=keep,
            bias=bias,
            lengths=valid,
            offset=cached if valid is None else int(valid) - heads["Q"].shape[2],
            causal=bool(attributes.get("is_causal", 0)),
            window=None if sides == (-1, -1) else sides,
            scale=attributes.get("scale"),
            softcap=attributes.get("softcap"),
        )


def _heads(vector: Vector, name: str) -> Tensor:
    """``[B, H, L, D]``, from three axes by the attribute that counts the heads."""
    tensor = torch.from_numpy(vector.inputs[name])
    if tensor.dim() == len("BHLD"):
        return tensor
    count = vector.attributes["q_num_heads" if name == "Q" else "kv_num_heads"]
    return tensor.unflatten(2, (count, -1)).transpose(1, 2)


def _mask(vector: Vector, key_length: int, here: slice) -> tuple[Tensor | None, Tensor | None]:
    """``keep`` of a boolean mask or ``bias`` of any other: numbers, integers too, are added."""
    array: Array | None = vector.inputs.get("attn_mask")
    if array is None:
        return None, None
    mask = torch.from_numpy(array)
    mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    mask = mask if mask.shape[0] == 1 else mask[here]
    boolean = mask.dtype == torch.bool
    missing = key_length - mask.shape[3]
    if missing:  # opset 24: the keys that a mask does not reach are hidden
        hidden = torch.zeros(()) if boolean else torch.full((), -math.inf)
        shape = (*mask.shape[:3], missing)
        mask = torch.cat([mask, hidden.to(mask.dtype).expand(shape)], dim=3)
    return (mask, None) if boolean else (None, mask.double())
