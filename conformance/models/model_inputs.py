"""The inputs of a whole model, their roles, a call with all inputs, and the engine running it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from ..errors import UsageError
from ..graphs.process import DEFAULT, Setting
from ..graphs.protocol import Array
from ..graphs.reading import MODEL_ROLES, Axis

if TYPE_CHECKING:  # they import onnx, which few runs need
    from .in_place import Activations
    from .model_graph import ModelGraph

# Keys visible under a causal rule that ends one, two or three keys too late.
LOOKING_AHEAD: Final = (
    "the key after its own, too",
    "the 2 keys after its own, too",
    "the 3 keys after its own, too",
)
# Ids to draw from if no table of embeddings shows their number.
_FEW_IDS: Final = 8
# Ids below this one may have a special meaning, such as padding or the end of a text.
_SPECIAL: Final = 4
_WORDS: Final = re.compile(r"[^a-z]+")
# Pictures and sounds of open sizes, by number of axes: their names, and the channels and sides, or
# samples, to try.
_CALLED: Final = {4: ("pixel", "image", "picture"), 2: ("input_values", "wave", "audio", "speech")}
_SIDES: Final = (224, 32, 16, 64, 384, 8, 28, 512)
_CHANNELS: Final = (3, 1)
_COMMON: Final[Mapping[int, Sequence[tuple[int, ...]]]] = {
    4: [(channels, side, side) for channels in _CHANNELS for side in _SIDES],
    2: [(1600,), (16000,), (400,), (80,)],
}
_CACHED: Final = frozenset({"past", "cache", "key", "value", "state"})
ANSWERING: Final = ("decoder", "target", "tgt")
# By role: the number of axes, 0 for any number, and the kinds of numbers.
_AXES_OF: Final[Mapping[str, tuple[int, str]]] = {
    "tokens": (2, "iu"),
    "mask": (2, "iubf"),
    "padding": (2, "iubf"),
    "positions": (2, "iu"),
    "types": (2, "iu"),
    "features": (3, "f"),
    "image": (0, "f"),
    "past": (0, "f"),
}
_OF_TOKENS: Final = ("tokens", "features", "memory")
# What the names of all caches have in common.
_ANY_CACHE: Final = re.compile(r"(past|present)(_key_values?)?")
_PASSED: Final = ("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


class UnknownInputError(Exception):
    """Nothing says what an input of a model is; the message is a clause about it."""


class NoAnswerError(UnknownInputError):
    """A model answers none of the calls derived from its inputs."""


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """One input of a model.

    role: ``tokens``: ids ``[B, L]``; ``mask``: 1 or True at a token ``[B, L]``; ``positions`` and
        ``types`` of tokens ``[B, L]``; ``features`` ``[B, L, E]``; ``image``: floats of a fixed
        size ``[B, …]``; ``past``: keys or values of earlier tokens, counted by the only axis after
        the batch without a size; ``memory``: keys or values ``[B, H, L, D]`` that no call adds to,
        such as an encoder's; ``flag``: one bool, True where a cache is given; ``lengths`` ``[B]``:
        the number of tokens of each item; ``ones``: a mask of pixels, all of which exist.
    along: the sequence of the input: 0 for the sequence padded by a mask, 1 for the sequence
        attending to it, None for neither.
    shape: the size or the name of each axis.
    count: the ids end before this one.
    least: the first id to draw.
    chosen_by: the id at the first place where the place of the greatest id is looked for, else 0.
    hides: 1 in a mask means padding, as in torch's ``key_padding_mask``.
    added: a mask is added to the scores: 0 for existing tokens, else the least number.
    """

    name: str
    role: str
    along: int | None
    shape: tuple[Axis, ...]
    dtype: np.dtype[Any]
    count: int = 0
    least: int = 0
    chosen_by: int = 0
    hides: bool = False
    added: bool = False

    @property
    def place(self) -> int:
        """The axis of its tokens."""
        return {"mask": len(self.shape) - 1, "memory": 2}.get(self.role, 1)

    def drawn(
        self, batch: int, length: int, keep: Array | None, generator: np.random.Generator
    ) -> Array:
        """Values for some items of a length; ``keep`` (bool ``[B, L]``) says which tokens exist."""
        if self.role == "tokens":
            return self.ids((batch, length), generator)
        if self.role in ("mask", "lengths"):
            return self.mask(np.ones((batch, length), np.bool_) if keep is None else keep)
        if self.role == "positions":
            return np.broadcast_to(np.arange(length), (batch, length)).astype(self.dtype)
        sizes = [1] * len(self.shape) if self.role == "flag" else [batch, *self.shape[1:]]
        if self.role in ("types", "features", "memory"):
            sizes[self.place] = length
        shape = [size if isinstance(size, int) else 0 for size in sizes]
        if self.role in ("types", "past", "flag"):
            return np.zeros(shape, self.dtype)
        if self.role == "ones":
            return np.ones(shape, self.dtype)
        return np.asarray(generator.standard_normal(shape), self.dtype)

    def mask(self, keep: Array) -> Array:
        """Return the mask of the existing tokens (bool ``[B, L]``), or their numbers."""
        if self.role == "lengths":
            return np.asarray(keep.sum(axis=1), self.dtype)
        if self.added:
            mask = np.where(keep, 0, np.finfo(self.dtype).min).astype(self.dtype)
        else:
            mask = np.asarray(~keep if self.hides else keep, self.dtype)
        axes = len(self.shape) - mask.ndim
        return mask.reshape(mask.shape[0], *[1] * axes, mask.shape[1])

    def ids(self, shape: tuple[int, int], generator: np.random.Generator) -> Array:
        """Draw random ids, avoiding ids with a special meaning if enough remain."""
        result = generator.integers(self._least, self.count, shape)
        if self.chosen_by:
            result[:, 0] = self.chosen_by
        return result.astype(self.dtype)

    def other(self, values: Array, generator: np.random.Generator) -> Array:
        """Return values of the same shape with every token changed."""
        if self.role != "tokens":
            return np.asarray(generator.standard_normal(values.shape), self.dtype)
        ordinary = max(self.count - self._least, 1)
        step = generator.integers(1, max(ordinary, 2), values.shape)
        return ((values - self._least + step) % ordinary + self._least).astype(self.dtype)

    @property
    def _least(self) -> int:
        return self.least or (_SPECIAL if self.count > 2 * _SPECIAL else 0)


def model_inputs(
    graph: ModelGraph,
    declared: Mapping[str, Mapping[str, Any]],
    caches: Mapping[str, Sequence[Axis]] | None = None,
    masking: Container[str] = (),
) -> tuple[ModelInput, ...]:
    """Return a model's inputs with their roles: declared, else by name, type and rank.

    ``caches``: the shapes of inputs used as past keys or values; ``masking``: inputs whose values
    choose keys and enter no attention, masks of any name. Raises UnknownInputError for an input
    whose role or size stays unknown, UsageError for a declaration of a missing input.
    """
    ports = [port for port in graph.model.graph.input if port.name in graph.inputs]
    for name in declared:
        if name not in graph.inputs:
            known = ", ".join(port.name for port in ports)
            msg = f"the declaration names the input {name!r}, which the model lacks: it has {known}"
            raise UsageError(msg)
    shapes = {
        port.name: _sized(port.name, graph.shape(port.name), declared.get(port.name, {}))
        for port in ports
    }
    kinds = {port.name: _dtype(graph, port.name) for port in ports}
    roles = {
        name: _declared_role(name, declared[name], shapes[name], kinds[name])
        if name in declared
        else _role(name, shapes[name], kinds[name], masking)
        for name in shapes
    }
    handed_on = {marks_of(port.name) for port in graph.model.graph.output}
    pasts = [name for name, role in roles.items() if role == "past"]
    kept = [name for name in pasts if marks_of(name) not in handed_on]
    if len(kept) < len(pasts):  # a model that hands none on may leave them out
        roles |= dict.fromkeys(kept, "memory")
    sequences = sequences_of(shapes, roles)
    counting = [name for name, role in roles.items() if role == "lengths"]
    sequences |= dict.fromkeys(counting, 0)
    inputs = []
    for name, role in roles.items():
        if (role == "flag" and not pasts) or (role == "lengths" and counting != [name]):
            raise UnknownInputError(_untold(name))
        if role == "features" and not isinstance(shapes[name][2], int):
            sizes = f'[inputs.{name}] with role = "features" and shape = [80] or the like'
            msg = f"the width of its input {name} is not in the file; declare it: {sizes}"
            raise UnknownInputError(msg)
        if role in ("past", "memory"):
            shapes[name] = _counting_past(shapes[name], (caches or {}).get(name, ()))
        open_axes = sum(not isinstance(size, int) for size in shapes[name][1:])
        has_room = not open_axes and None not in (caches or {}).get(name, (None,))[1:]
        if role == "past" and open_axes != 1 and not has_room:
            msg = (
                f"no one axis of its input {name} counts the past tokens: export it with that "
                "axis, and no other but the batch, dynamic"
            )
            raise UnknownInputError(msg)
        count, special, chooses = _vocabulary(graph, name)
        count = int(declared.get(name, {}).get("vocabulary", 0)) or count
        least, end = _ordinary(count, special, chooses=chooses)
        inputs.append(
            ModelInput(
                name=name,
                role="mask" if role == "padding" else role,
                along=sequences.get(name),
                shape=shapes[name],
                dtype=kinds[name],
                count=end if role == "tokens" else 0,
                least=least,
                chosen_by=min(end, count - 1) if chooses else 0,
                hides=role == "padding" or (role == "mask" and _is_padding(name)),
            )
        )
    if not any(entry.role in ("tokens", "features", "image") for entry in inputs):
        msg = (
            "none of its inputs holds tokens, features or a picture: declare which it is, as "
            '[inputs.NAME] with role = "tokens"'
        )
        raise UnknownInputError(msg)
    return tuple(inputs)


def sized_pictures(
    inputs: Sequence[ModelInput], answered: Callable[[tuple[ModelInput, ...]], bool]
) -> tuple[ModelInput, ...]:
    """Set open sizes of pictures and sounds to the first common sizes that are answered.

    Raises UnknownInputError if none is.
    """
    open_ones = {
        entry.name
        for entry in inputs
        if entry.role == "image" and not all(isinstance(size, int) for size in entry.shape[1:])
    }
    if not open_ones:
        return tuple(inputs)
    ranks = {len(entry.shape) for entry in inputs if entry.name in open_ones}
    for common in _COMMON.get(min(ranks), ()) if len(ranks) == 1 else ():
        sized = tuple(
            replace(entry, shape=(entry.shape[0], *map(_first, entry.shape[1:], common)))
            if entry.name in open_ones
            else entry
            for entry in inputs
        )
        if answered(sized):
            return sized
    name = min(open_ones)
    sizes = f'[inputs.{name}] with role = "image" and shape = [3, 224, 224], [16000] or the like'
    msg = f"the sizes of its input {name} are not in the file; declare them: {sizes}"
    raise UnknownInputError(msg)


def _counting_past(shape: Sequence[Axis], known: Sequence[Axis]) -> tuple[Axis, ...]:
    """Complete the shape of past keys or values with the sizes known to their attention."""
    if len(shape) != len(known):
        return tuple(shape)
    pairs = zip(shape, known, strict=True)
    return tuple(own if other is None or isinstance(own, int) else other for own, other in pairs)


def _first(size: Axis, otherwise: int) -> Axis:
    return size if isinstance(size, int) else otherwise


def _sized(name: str, shape: Sequence[Axis], entry: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return the input's shape with the sizes declared after its batch, or its tokens.

    Raises UsageError where the file has other sizes.
    """
    sizes = entry.get("shape")
    if sizes is None:
        return tuple(shape)
    before = len("BL") if entry["role"] == "features" else len("B")
    own = shape[before:]
    fits = len(own) == len(sizes) and all(
        size == said for size, said in zip(own, sizes, strict=True) if isinstance(size, int)
    )
    if not fits:
        msg = f"the input {name} has the axes {list(shape)}, which the shape {sizes} does not fit"
        raise UsageError(msg)
    return (*shape[:before], *sizes)


def _dtype(graph: ModelGraph, name: str) -> np.dtype[Any]:
    from onnx import helper  # noqa: PLC0415 (only for graphs)

    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(graph.type(name)))
    except (KeyError, TypeError, ValueError):
        msg = (
            f"its input {name} is no tensor of numbers: export it without what makes numbers of "
            f"{name}, such as a tokenizer"
        )
        raise UnknownInputError(msg) from None


def _is_padding(name: str) -> bool:
    """Tell whether a mask's name says 1 means padding."""
    return "pad" in name.lower()


def _declared_role(
    name: str, entry: Mapping[str, Any], shape: Sequence[Axis], kind: np.dtype[Any]
) -> str:
    role = str(entry["role"])
    axes, kinds = _AXES_OF[role]
    if (axes and len(shape) != axes) or not shape or kind.kind not in kinds:
        msg = f"the input {name} cannot be {role}: it has {len(shape)} axes of {kind}"
        raise UsageError(msg)
    return role


def _role(name: str, shape: Sequence[Axis], kind: np.dtype[Any], masking: Container[str]) -> str:
    joined, rank = name.lower(), len(shape)
    role = ""
    if kind.kind == "b" and (not rank or shape == (1,)):
        role = "flag"
    elif kind.kind in "iu" and rank == 1 and "length" in joined:
        role = "lengths"
    elif rank == len("BL") and ("mask" in joined or (name in masking and "pos" not in joined)):
        role = "mask"
    elif rank == len("BL") and kind.kind in "iu":
        types = set(_WORDS.split(joined)) & {"type", "types", "segment", "segments"}
        role = "positions" if "position" in joined else "types" if types else "tokens"
    elif rank > len("BL") and "mask" in joined and all(isinstance(n, int) for n in shape[1:]):
        role = "ones"
    elif kind.kind == "f":
        role = _float_role(joined, shape)
    if not role:
        raise UnknownInputError(_untold(name))
    return role


def _float_role(name: str, shape: Sequence[Axis]) -> str:
    words, rank = set(_WORDS.split(name)), len(shape)
    if "past" in words and rank == len("BHLD"):
        return "past"
    if words & _CACHED:
        return ""
    is_called_so = any(word in name for word in _CALLED.get(rank, ()))
    is_called_so |= rank == len("BCHW") and shape[1] in _CHANNELS
    if is_called_so or (rank > 1 and all(isinstance(size, int) for size in shape[1:])):
        return "image"
    return "features" if rank == len("BLE") else ""


def _untold(name: str) -> str:
    return (
        f"nothing says what its input {name} is; declare it: [inputs.{name}] with one of the roles "
        f"{', '.join(MODEL_ROLES)}"
    )


def sequences_of(shapes: Mapping[str, Sequence[Axis]], roles: Mapping[str, str]) -> dict[str, int]:
    """Return the sequence number of every input; raises UnknownInputError for more than two."""
    places = {
        name: (shapes[name][2 if role == "memory" else 1], name.lower().startswith(ANSWERING))
        for name, role in roles.items()
        if role not in ("image", "past", "flag", "lengths", "ones")
    }
    own = [places[name] for name, role in roles.items() if role in _OF_TOKENS]
    found = list(dict.fromkeys(own))
    if len(found) > len(("padded", "attending")):
        shown = ", ".join(name for name, role in roles.items() if role in _OF_TOKENS)
        msg = (
            f"its inputs {shown} lie along more than two sequences: let the forward of a module of "
            "yours take two of them, and give it constants for the others"
        )
        raise UnknownInputError(msg)
    masked = [
        _nearest(places[name], found) for name, role in roles.items() if role in ("mask", "padding")
    ]
    # The answering sequence comes second; otherwise the padded sequence comes first.
    found.sort(key=lambda place: (place[1], place not in masked))
    return {name: found.index(_nearest(place, found)) for name, place in places.items() if found}


def _nearest(place: tuple[Axis, bool], found: Sequence[tuple[Axis, bool]]) -> Any:
    """Return the sequence of an input: by its axis, else by its name, else the first."""
    if place in found or not found:
        return place
    return next((other for other in found if other[1] == place[1]), found[0])


def marks_of(name: str) -> tuple[str, ...]:
    """Return the identifying parts of a cache's name: numbers, and words such as key."""
    own = _ANY_CACHE.sub("", name.lower())
    return tuple(re.findall(r"[0-9]+|key|value|encoder|decoder|self|cross", own))


def _vocabulary(graph: ModelGraph, name: str) -> tuple[int, set[int], bool]:
    """Return the number of ids, those that they are compared with, and whether the greatest counts.

    The number is that of the rows of the smallest table they index.
    """
    waiting, visited, rows, special = [name], {name}, list[int](), set[int]()
    chooses = False
    while waiting:
        for node in graph.wiring.consumers[waiting.pop()]:
            table = graph.wiring.initializers.get(node.input[0])
            if node.op_type == "Gather" and table is not None and node.input[1] in visited:
                rows.append(int(table.dims[0]))
            elif node.op_type == "Equal":
                numbers = (graph.scalar(own) for own in node.input)
                special |= {int(number) for number in numbers if number is not None}
            elif node.op_type in _PASSED:
                fresh = set(node.output) - visited
                visited |= fresh
                waiting += sorted(fresh)
            chooses = chooses or node.op_type == "ArgMax"
    return min(rows, default=_FEW_IDS), special, chooses


def _ordinary(count: int, special: Iterable[int], *, chooses: bool) -> tuple[int, int]:
    """Return the longest range of ids, and its end, without those that mean something."""
    end = count - chooses if count > 1 + chooses else count
    ends = sorted({own for own in special if 0 <= own < end} | {end})
    starts = [_SPECIAL if count > 2 * _SPECIAL else 0, *(own + 1 for own in ends[:-1])]
    ranges = [(max(start, starts[0]), stop) for start, stop in zip(starts, ends, strict=True)]
    least, last = max(ranges, key=lambda own: own[1] - own[0])
    return (least, last) if last - least > 1 else (starts[0], end)


# Runs with weights nudged by one unit in the last place, to see how far answers move.
NUDGES: Final = (1, 2)
# The letters of an answer's axes: item, first and second sequence, anything else.
ITEM, PADDED, ATTENDING, OTHER = "B", "P", "A", "."


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelCall:
    """The arguments of one call of a model.

    keep: bool ``[B, L]``: the existing tokens of the padded sequence.
    lengths: of the padded and of the attending sequence; equal for a single sequence.
    behind: the call whose cache holds the tokens before; None where there are none.
    order: the order in which the items of this cache are put first.
    """

    feeds: Mapping[str, Array]
    keep: Array
    lengths: tuple[int, int]
    behind: ModelCall | None = None
    order: tuple[int, ...] | None = None

    @property
    def batch(self) -> int:
        """The number of items."""
        return int(self.keep.shape[0])


class ModelCache(Protocol):
    """The cache that a module keeps from call to call."""

    def run(self, call: ModelCall, taps: Sequence[str] = ()) -> dict[str, Array]:
        """The answers to a call behind others, by name, and attentions' answers.

        Raises GraphRefused for the module's exceptions, and for a cache without a known order.
        """

    def can_be_ordered(self, call: ModelCall) -> bool:
        """Whether the items of the cache can be put in another order."""


class PlacedSite(Protocol):
    """The facts on an attention in its place needed by clauses."""

    @property
    def index(self) -> int:
        """Its place in the order of execution."""

    @property
    def output(self) -> str:
        """The answer's name for a request of :meth:`run`."""

    @property
    def output_letters(self) -> str:
        """The axes of the answer, one letter each."""


class Engine(Protocol):
    """Runs a whole model: a graph's process, or a module of torch."""

    @property
    def shown(self) -> str:
        """The file or the target, for messages."""

    @property
    def quantised(self) -> bool:
        """Whether activations become integers by the range of a whole tensor, which joins items."""

    @property
    def rounds_to_integers(self) -> bool:
        """Whether activations become integers of 8 bits, by whatever range."""

    @property
    def sites(self) -> Sequence[PlacedSite]:
        """The attentions that can be judged alone, in order."""

    def run(
        self, feeds: Mapping[str, Array], *, setting: Setting = DEFAULT, taps: Sequence[str] = ()
    ) -> dict[str, Array]:
        """Every answer by name, and the tensors inside that are asked for.

        Raises GraphRefused and GraphLost.
        """

    def in_place(self, feeds: Mapping[str, Array]) -> Iterator[tuple[int, Activations]]:
        """Yield the activations of each attention in a call, by index; raises as ``run``."""

    @property
    def counts_keys(self) -> bool:
        """Whether a mask becomes a number of keys: it can say padding on the right alone."""

    def keys_told(self, feeds: Mapping[str, Array]) -> Mapping[int, Array]:
        """Map attentions to the number of keys of each item, if given; raises as ``run``."""

    def mixing_tokens(self, feeds: Mapping[str, Array]) -> Sequence[tuple[int, str]]:
        """Describe attentions whose heads mix tokens, by index; raises as ``run``."""

    def key_inputs(self, index: int) -> frozenset[str]:
        """The inputs that the keys of an attention are computed from."""

    def table_sizes(self) -> frozenset[int]:
        """The sizes of stored tensors: a table of positions ends where lengths end."""


def library_of(module: object) -> str:
    """Return the library whose documentation defines the meaning of the module's mask, else ""."""
    library = sys.modules.get("transformers")
    own = getattr(library, "PreTrainedModel", None)
    return "transformers" if isinstance(own, type) and isinstance(module, own) else ""
