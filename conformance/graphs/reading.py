"""What the inputs and outputs of a graph are: their roles, the order of their axes, fixed sizes.

What their names suggest breaks ties, never more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

# A size, the name of a dynamic axis, or None for one without a name.
Axis = int | str | None


@dataclass(frozen=True, kw_only=True)
class Port:
    """An input or output of a graph.

    dtype
        numpy's name (``float32``, ``int64``, ``bool``), ``bfloat16``, or "" if no tensor.
    shape
        One entry an axis; None if even the rank is open.
    """

    name: str
    dtype: str
    shape: tuple[Axis, ...] | None

    @property
    def rank(self) -> int | None:
        """The number of axes, where the file fixes it."""
        return None if self.shape is None else len(self.shape)


@dataclass(frozen=True, kw_only=True)
class Header:
    """A graph's file without its weights.

    inputs: the caller's inputs, without initializers.
    opsets: the version of each operator set by domain, "" for the standard's.
    operators: ``domain::Operator`` of every node, including subgraphs and functions, once each.
    external: the files, relative to the graph's folder, with tensors outside the graph's file.
    external_size: the bytes of the tensors in them.
    stray: sentences on external files that are links, or unused.
    random: the nodes drawing random numbers, such as ``Dropout 'drop' in training mode``.
    """

    path: Path
    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: frozenset[str]
    external: tuple[str, ...]
    size: int
    external_size: int = 0
    stray: tuple[str, ...] = ()
    random: tuple[str, ...] = ()

    def input(self, name: str) -> Port:
        """The input of a name; raises KeyError."""
        return {port.name: port for port in self.inputs}[name]


TENSOR_ROLES: Final = ("query", "key", "value", "x", "context")
MASK_ROLES: Final = ("keep", "drop", "keep_int", "drop_int", "bias", "lengths")
# The inputs of a whole model.
MODEL_ROLES: Final = (
    "tokens",
    "mask",
    "padding",
    "positions",
    "types",
    "features",
    "image",
    "past",
)
OTHER_ROLES: Final = ("past_key", "past_value", "constant", "sinks")
OUTPUT_ROLES: Final = ("output", "weights", "present_key", "present_value", "ignored")


@dataclass(frozen=True, kw_only=True)
class Role:
    """The role of one input or output of a graph.

    axes: one letter an axis, in the graph's order. Tokens: ``B`` item, ``L`` position, ``E`` width,
        such as ``BLE``, ``LBE`` or ``LE``. Heads: ``B``, ``H``, ``L``, ``D``, such as ``BHLD`` or
        ``BLHD``; ``M`` for heads and head size packed into one axis, such as ``BLM``. Masks: ``B``,
        ``H``, ``Q``, ``K``, and ``1`` for an axis of size 1. ``F`` is the axis of items and heads
        folded together, items first.
    dtype: as in :class:`Port`.
    value: for the role ``constant`` the value in every call, else None. ``sinks`` are one more
        score for each head, ``H``.
    """

    name: str
    role: str
    axes: str = ""
    dtype: str = "float32"
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class GraphReading:
    """The function a graph computes, and its inputs.

    kind: ``layer``: it projects tokens; ``core``: query, key and value come projected.
    mode: ``separate``: query, key and value; ``memory``: query and context; ``self``: x alone.
    inputs, outputs: the role of each, in the graph's order; one output has the role ``output``.
    pins: geometry fields (``batch``, ``query_length``, ``key_length``, ``num_heads``,
        ``query_size`` …) that the graph fixes: a number, the name of the field it equals, or the
        sizes it may have.
    baked: geometry field → size, for axes of a fixed size the file calls dynamic; also in ``pins``.
    causal: the alignment of a causal rule that always applies, None without one.
    assumptions: sentences on assumptions and on facts shown by behaviour.
    """

    kind: Literal["layer", "core"]
    mode: Literal["separate", "memory", "self"]
    inputs: tuple[Role, ...]
    outputs: tuple[Role, ...]
    pins: Mapping[str, int | str | tuple[int, ...]] = field(default_factory=dict)
    baked: Mapping[str, int] = field(default_factory=dict)
    causal: str | None = None
    assumptions: tuple[str, ...] = ()

    def role(self, role: str) -> Role | None:
        """The input of a role, None when there is none."""
        return next((entry for entry in self.inputs if entry.role == role), None)

    @property
    def batched(self) -> bool:
        """Whether the tokens or heads have an axis of items."""
        axes = next(entry.axes for entry in self.inputs if entry.role in TENSOR_ROLES)
        return "B" in axes or "F" in axes

    @property
    def output(self) -> Role:
        """The output holding the answer."""
        return next(entry for entry in self.outputs if entry.role == "output")

    @property
    def masks(self) -> tuple[Role, ...]:
        """The inputs that say which keys may be attended."""
        return tuple(entry for entry in self.inputs if entry.role in MASK_ROLES)


_WORDS: Final[dict[str, frozenset[str]]] = {
    "query": frozenset("q query queries tgt target decoder xq".split()),
    "key": frozenset("k key keys xk".split()),
    "value": frozenset("v val value values xv".split()),
    "context": frozenset("context memory kv encoder mem ctx src source".split()),
    "x": frozenset("x input inputs hidden states src".split()),
    "mask": frozenset("mask masks masked bias padding pad lens len lengths valid attn".split()),
    "past": frozenset("past cache cached".split()),
    "output": frozenset("output outputs out y context attn attention result hidden".split()),
    "weights": frozenset("weights weight probs probabilities scores attentions".split()),
    "present": frozenset("present new updated cache past".split()),
}
_DROPS: Final = frozenset("drop pad padding ignore ignored invalid blocked masked".split())
_LENGTHS: Final = frozenset("lens len length lengths valid seqlens seqlen".split())


_ITEMS: Final = frozenset("b bs bsz batch batches batchsize".split())


def items_axis(name: object) -> bool:
    """Tell whether the name of an axis means items."""
    return isinstance(name, str) and bool(words(name) & _ITEMS)


def words(name: str) -> frozenset[str]:
    """The words of a name: ``attn_mask``, ``attnMask`` and ``Attn.Mask`` all hold ``mask``."""
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return frozenset(re.findall(r"[a-z]+", split.lower()))


def suggests(name: str, role: str) -> bool:
    """Whether a name holds a word that people use for a role."""
    return bool(words(name) & _WORDS[role])


def suggests_drop(name: str) -> bool:
    """Tell whether a mask's name means it marks hidden tokens."""
    return bool(words(name) & _DROPS)


def suggests_keep(name: str) -> bool:
    """Tell whether a mask's name means it marks attended tokens, as in Keras and Hugging Face."""
    return {"attention", "mask"} <= words(name) and not suggests_drop(name)


def suggests_lengths(name: str) -> bool:
    """Whether a name speaks of numbers of valid keys."""
    return bool(words(name) & _LENGTHS)
