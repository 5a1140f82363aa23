"""How a torch module is called as a whole model: its tokens, masks and features.

A parameter's role follows from its name, or from the module's answers: the first combination of
meanings of the parameters without defaults for which a call is answered.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from ..adapters.calling import roles_by_name
from ..adapters.construction import HEAD_SIZE
from ..adapters.filling import (
    Fills,
    filled,
    masks_that_hide_nothing,
    moved,
    positions_for,
    sides_for,
)
from ..adapters.packing import HEAD_NAMES, positive_attribute
from ..base.parameter_names import may_be_left_out, option_of, words_of
from ..errors import UsageError
from ..graphs.protocol import Array, GraphRefused
from ..graphs.reading import MODEL_ROLES
from ..graphs.sidecar import read_model_input
from ..tolerance.model import SAME_READ
from .model_inputs import ModelInput, UnknownInputError, library_of, sequences_of
from .recording import ModuleRecording, record, tensors_in

# Optional parameters to pass: masks, positions, and others a model needs to answer.
_OPTIONAL: Final = frozenset(
    "input_ids attention_mask position_ids decoder_input_ids pixel_values input_features".split()
)
_PADDING: Final = "key_padding_mask"
_SWITCHED_OFF: Final = ("use_cache",)
_PICTURES: Final = (32, 16, 64, 224, 28, 8)
_DURATIONS: Final = (40, 16, 64, 100, 3000)
_MOST_WIDTHS: Final = 8
_MOST_SIZES: Final = 2
# The side of pictures that have channels last: of few tokens, and of even windows.
_SIDE: Final = 4
# Plausible sides of pictures.
_SHORTEST: Final = 3
_LONGEST: Final = 512
# The same where every place is a token: attention over all of them.
_MOST_PLACES: Final = 32
# Trials of one choice of optional parameters, and processor seconds for all: a target that loads
# for a minute is given up.
_MOST_TRIALS: Final = 400
_SECONDS: Final = 6.0
# Seconds left once a calling is known whose masks have an effect but hide nothing.
_SECONDS_MORE: Final = 1.0
_BATCH: Final = 2
_LENGTHS: Final = (5, 8, 16)
_TAKES: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


@dataclass(frozen=True, kw_only=True)
class TorchCalling:
    """The arguments of a module's calls.

    fixed: keywords of every call, such as ``use_cache=False``.
    sequence_first: features are ``[L, B, E]``, the default of torch's own modules.
    fills: further arguments: tables of positions, and masks hiding nothing.
    """

    inputs: tuple[ModelInput, ...]
    fixed: Mapping[str, Any]
    dtype: torch.dtype
    sequence_first: bool = False
    fills: Fills = ()

    def arguments(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Return the keywords of a call with these values of its inputs."""
        fills = filled(self.fills, self._tokens(feeds))
        return self.given_tensors(feeds) | dict(self.fixed) | fills

    def given_tensors(self, feeds: Mapping[str, Array]) -> dict[str, Tensor]:
        """Return the tensors of a call with these values of its inputs, by parameter."""
        return {name: self._tensor(name, value) for name, value in feeds.items()}

    @property
    def given(self) -> int:
        """How many parameters a call gets for its tokens."""
        return len(self.inputs) + len(self.fills)

    def _tokens(self, feeds: Mapping[str, Array]) -> list[Tensor]:
        entries = [entry for entry in self.inputs if entry.role in ("tokens", "features")]
        shapes = [(*feeds[entry.name].shape, 1)[:3] for entry in entries if entry.name in feeds]
        return [torch.zeros(shape, dtype=self.dtype) for shape in shapes]

    def _tensor(self, name: str, value: Array) -> Tensor:
        tensor = torch.from_numpy(np.array(value))
        if tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        entry = next(entry for entry in self.inputs if entry.name == name)
        turned = self.sequence_first and entry.role == "features"
        return tensor.transpose(0, 1) if turned or entry.shape[:1] == ("length",) else tensor

    def answers(self, answer: Any) -> dict[str, Array]:
        """The tensors that the module returned, by name."""
        return {
            name: as_array(
                tensor.transpose(0, 1) if self.sequence_first and tensor.dim() > 2 else tensor  # noqa: PLR2004 (with tokens)
            )
            for name, tensor in named_answers(answer)
        }


@contextmanager
def refusing() -> Iterator[None]:
    """Turn every exception of the user's module into GraphRefused."""
    try:
        yield
    except Exception as error:
        raise GraphRefused(" ".join(f"{type(error).__name__}: {error}".split())) from error


class InOrder(nn.Module):
    """Renames a module's inputs, which are passed in order."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **named: Any) -> Any:
        """Whatever the module answers."""
        return self.module(*named.values())


def source_calling(
    module: nn.Module, inputs: Sequence[ModelInput]
) -> tuple[nn.Module, TorchCalling]:
    """Call a module with the inputs of a graph: by name if the names agree, else in order.

    The returned module accepts the inputs by the graph's names.
    """
    parameters = inspect.signature(module.forward).parameters
    named = all(entry.name in parameters for entry in inputs)
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    fixed = {name: False for name in _SWITCHED_OFF if name in parameters} if named else {}
    calling = TorchCalling(inputs=tuple(inputs), fixed=fixed, dtype=dtype)
    return module if named else InOrder(module), calling


def as_array(tensor: Tensor) -> Array:
    """A tensor as an array; bfloat16 is none of numpy's formats and becomes float32."""
    tensor = tensor.detach().cpu()
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def named_answers(answer: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield a module's answers: fields by name, else ``output``, ``output_1`` and so on."""
    if isinstance(answer, Mapping):
        for name, part in answer.items():
            yield from ((str(name), tensor) for tensor in tensors_in(part))
        return
    for place, tensor in enumerate(tensors_in(answer)):
        yield (f"output_{place}" if place else "output"), tensor


def torch_calling(
    module: nn.Module,
    declared: Mapping[str, Any],
    *,
    gives_masks: bool = True,
    makes: bool = True,
) -> tuple[TorchCalling, ModuleRecording]:
    """Find how a module is called, and record one call.

    ``declared``: roles of parameters, or tables as in :func:`conformance.model`. ``gives_masks``:
    optional masks of a user's own code are passed. ``makes``: required tables of positions are
    made. Raises UnknownInputError where a parameter's role stays unknown, UsageError for a
    declaration that contradicts the module.
    """
    if any(weight.is_meta for weight in module.parameters()):
        msg = "its weights are on the meta device, which holds no numbers: load or initialise them"
        raise UnknownInputError(msg)
    parameters = inspect.signature(module.forward).parameters
    declared = _checked(module, parameters, declared)
    own_code = gives_masks and not library_of(module)
    wanted = [
        parameter
        for parameter in parameters.values()
        if parameter.kind in _TAKES
        and (_is_given(parameter, own_code=own_code) or parameter.name in declared)
    ]
    if not wanted:
        msg = "its forward names no input"
        raise UnknownInputError(msg)
    refusal, ends = "", time.process_time() + _SECONDS
    without_effect: tuple[TorchCalling, ModuleRecording] | None = None
    unhidden: tuple[TorchCalling, ModuleRecording] | None = None
    # A mask is an input, though it may be refused, or have a head's size as length.
    ways = itertools.takewhile(
        lambda way: unhidden is None or way[0].given >= unhidden[0].given,
        _callings(module, wanted, declared, makes=makes),
    )
    for calling, length in ways:
        made, why = _tried(module, calling, length)
        if made is None or not _chooses(made, calling):
            refusal = refusal or why
        elif (
            _masks_show(module, calling, length)
            and items_stay_apart(module, calling, length)
            and _turns_by_distance(module, calling, length)
        ):
            if _masks_hide(module, calling, length) and _takes_others(module, calling, length):
                return _completed(module, calling, made, declared)
            if unhidden is None:
                unhidden, ends = (calling, made), min(ends, time.process_time() + _SECONDS_MORE)
        else:
            without_effect = without_effect or (calling, made)
        if time.process_time() > ends:
            refusal = f"{refusal or 'nothing of use'}, and there was time for some trials alone"
            break
    without_effect = unhidden or without_effect
    if without_effect is not None:
        return _completed(module, *without_effect, declared)
    said = f": it gave {refusal}" if refusal else ""
    msg = (
        f"no call of it is answered{said}; declare its inputs: conformance.model("
        f"module, inputs={{{wanted[0].name!r}: {{'role': …}}}}) with the roles "
        f"{', '.join(MODEL_ROLES)}"
    )
    raise UnknownInputError(msg)


def _callings(
    module: nn.Module,
    wanted: Sequence[inspect.Parameter],
    declared: Mapping[str, Mapping[str, Any]],
    *,
    makes: bool,
) -> Iterator[tuple[TorchCalling, int]]:
    """Yield the possible callings of a module with a length each, the likeliest first."""
    parameters = inspect.signature(module.forward).parameters
    fixed = {name: False for name in _SWITCHED_OFF if name in parameters}
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    said = {part.batch_first for part in module.modules() if hasattr(part, "batch_first")}
    orders = (False,) if said == {True} else (False, True)
    for optional in _subsets([p for p in wanted if not _is_required(p, declared)]):
        taken = [p.name for p in wanted if _is_required(p, declared) or p in optional]
        # Optional tables are not made.
        known = {one.name for one in (optional if makes else wanted)}
        meanings = [
            [
                meaning
                for meaning in _meanings(module, name, declared.get(name, {}))
                if name not in known or meaning.role != _MADE
            ]
            for name in taken
        ]
        for chosen in itertools.islice(_alike_first(meanings), _MOST_TRIALS):
            meant = dict(zip(taken, chosen, strict=True))
            fills = tuple((name, one.kind) for name, one in meant.items() if one.role == _MADE)
            meant = {name: one for name, one in meant.items() if one.role != _MADE}
            inputs = tuple(_along(meant))
            if not any(entry.role in ("tokens", "features", "image") for entry in inputs):
                continue
            of_items = all(one.shape[0] == "batch" for one in meant.values())
            turns = orders if of_items else orders[1:]
            for length, turned in itertools.product(_LENGTHS, turns):
                calling = TorchCalling(
                    inputs=inputs, fixed=fixed, dtype=dtype, sequence_first=turned, fills=fills
                )
                yield calling, length


def _alike_first(meanings: Sequence[list[_Meaning]]) -> Iterator[tuple[_Meaning, ...]]:
    """Yield all choices of meanings; first equal choices for parameters with equal candidates.

    Tables of cosines and of sines have one form.
    """
    likely = [tuple(_form(meaning) for meaning in one) for one in meanings]
    kinds = list(dict.fromkeys(likely))
    for places in itertools.product(*(range(len(kind)) for kind in kinds)):
        yield tuple(
            own[places[kinds.index(kind)]] for own, kind in zip(meanings, likely, strict=True)
        )
    if len(kinds) < len(meanings):
        yield from itertools.product(*meanings)


def _form(meaning: _Meaning) -> _Meaning:
    made = meaning.kind.replace(".sin()", ".cos()") if meaning.role == _MADE else meaning.kind
    return replace(meaning, kind=made)


def _checked(
    module: nn.Module, parameters: Mapping[str, inspect.Parameter], declared: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """Return the declarations of parameters as tables; raises UsageError for mistakes in them."""
    for name in declared:
        if name not in parameters:
            known = ", ".join(parameters)
            msg = (
                f"inputs names {name!r}, which the forward of {type(module).__name__} lacks: it "
                f"has {known}"
            )
            raise UsageError(msg)
    return {name: read_model_input(entry, f"inputs[{name!r}]") for name, entry in declared.items()}


def _is_given(parameter: inspect.Parameter, *, own_code: bool) -> bool:
    """Tell whether calls give a parameter: required ones, and masks of a user's own code."""
    if parameter.default is inspect.Parameter.empty:
        return True
    own = parameter.name in _OPTIONAL or parameter.name.endswith(_PADDING)
    left_out = may_be_left_out(parameter) and not parameter.name.startswith("tgt")
    mask = own_code and option_of(parameter) == "mask" and not _takes_several(parameter)
    return left_out and (own or mask)


def _takes_several(parameter: inspect.Parameter) -> bool:
    return re.search(r"(list|sequence|tuple)\[", str(parameter.annotation).lower()) is not None


def _is_required(parameter: inspect.Parameter, declared: Mapping[str, Any]) -> bool:
    return parameter.default is inspect.Parameter.empty or parameter.name in declared


def _subsets(optional: Sequence[inspect.Parameter]) -> Iterator[Sequence[inspect.Parameter]]:
    """Yield all of the parameters, then subsets with one parameter less, and so on."""
    for number in range(len(optional), -1, -1):
        yield from itertools.combinations(optional, number)


@dataclass(frozen=True)
class _Meaning:
    """A possible meaning of a parameter: role, shape in letters or sizes, and format.

    For tables made for tokens the format is the expression that makes them.
    """

    role: str
    shape: tuple[Any, ...]
    kind: str


_IDS: Final = _Meaning("tokens", ("batch", "length"), "int64")
_MASKS: Final = (
    _Meaning("mask", ("batch", "length"), "int64"),
    _Meaning("mask", ("batch", "length"), "bool"),
    _Meaning("mask", ("batch", "length"), "float32"),
    _Meaning("mask", ("batch", 1, 1, "length"), "bool"),
    _Meaning("added", ("batch", 1, 1, "length"), "float32"),
    _Meaning("mask", ("batch", 1, "length"), "bool"),
    _Meaning("padding", ("batch", "length"), "bool"),
    _Meaning("padding", ("batch", 1, "length"), "bool"),
    _Meaning("padding", ("batch", 1, 1, "length"), "bool"),
    _Meaning("padding", ("length", "batch"), "bool"),
    _Meaning("mask", ("length", "batch"), "bool"),
)


# By a part of a name, the first that fits.
_BY_NAME: Final[Mapping[str, Sequence[_Meaning]]] = {
    _PADDING: [_Meaning("padding", ("batch", "length"), "bool")],
    "mask": _MASKS,
    "length": [],
    "position": [replace(_IDS, role="positions")],
    "type": [replace(_IDS, role="types")],
    "segment": [replace(_IDS, role="types")],
    "ids": [_IDS],
}


_MADE: Final = "made"
_TABLES: Final = frozenset(
    "cos sin cis freqs freq rope rotary rot start encoding encodings pe".split()
)
# Idle masks tried where no hiding mask is accepted.
_MOST_IDLE: Final = 7


def _meanings(module: nn.Module, name: str, entry: Mapping[str, Any]) -> list[_Meaning]:
    joined = name.lower()
    if entry:
        return _declared_meanings(module, entry)
    for word, meanings in _BY_NAME.items():
        if word in joined:
            idle = itertools.islice(masks_that_hide_nothing(name), _MOST_IDLE)
            hides = word in ("mask", "length")
            return [*meanings, *_made(idle if hides else _tables_for(module, name))]
    if _TABLES & {*words_of(name)}:
        return _made(_tables_for(module, name))
    features = _features(module)
    pictures = [*_pictures(module), *_pictures_of(module, features)]
    if any(word in joined for word in ("pixel", "image", "input_features")):
        return pictures or features
    embeds = any(isinstance(part, nn.Embedding) for part in module.modules())
    ids = [_IDS] if embeds else []
    sides = _made(sides_for(name))
    return [*sides, *ids, *features, *pictures, *_MASKS, *_made(_tables_for(module, name))]


def _made(sources: Iterable[str]) -> list[_Meaning]:
    return [_Meaning(_MADE, (), source) for source in sources]


def _tables_for(module: nn.Module, name: str) -> list[str]:
    """Return expressions of positions and of tables for the head sizes of the module's parts."""
    sizes: dict[int, None] = {}
    for part in module.modules():
        heads = positive_attribute(part, HEAD_NAMES)
        matrices = (one for one in part.parameters() if one.dim() > 1)
        widths = [size for one in matrices for size in one.shape[::-1]] if heads else []
        sizes |= dict.fromkeys(w // heads[1] for w in widths if heads and w % heads[1] == 0)
    return positions_for(name, list(sizes)[:_MOST_SIZES] or [HEAD_SIZE])


def _declared_meanings(module: nn.Module, entry: Mapping[str, Any]) -> list[_Meaning]:
    role = str(entry["role"])
    sizes = entry.get("shape")
    if role in ("mask", "padding"):
        return [replace(meaning, role=role) for meaning in _MASKS]
    if role in ("tokens", "positions", "types"):
        return [replace(_IDS, role=role)]
    if sizes is not None:
        whole = ("batch", *sizes) if role == "image" else ("batch", "length", *sizes)
        return [_Meaning(role, whole, "float32")]
    return _features(module) if role == "features" else _pictures(module)


def _features(module: nn.Module) -> list[_Meaning]:
    """Return meanings as feature vectors, for every width a part of the module accepts."""
    widths: dict[int, None] = {}
    for part in module.modules():
        for name in ("embed_dim", "d_model", "in_features", "normalized_shape"):
            size = getattr(part, name, None)
            size = size[-1] if isinstance(size, (tuple, list)) and size else size
            if isinstance(size, int):
                widths.setdefault(size)
    if not widths:  # of what has matrices of its own alone
        sizes = [size for one in module.parameters() if one.dim() > 1 for size in one.shape]
        sizes.sort(key=sizes.count, reverse=True)
        sizes += [size for size in vars(module).values() if type(size) is int]
        widths = dict.fromkeys(sizes)
    first = list(widths)[:_MOST_WIDTHS]
    return [_Meaning("features", ("batch", "length", width), "float32") for width in first]


def _pictures(module: nn.Module) -> list[_Meaning]:
    """Return meanings as pictures and sounds, of sizes from configuration or convolutions."""
    config = getattr(module, "config", None)
    bins, places = (
        getattr(config, name, None) for name in ("num_mel_bins", "max_source_positions")
    )
    shapes: list[tuple[int, ...]] = []
    if isinstance(bins, int) and isinstance(places, int):
        shapes.append((bins, 2 * places))
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            own = getattr(config, "image_size", None)
            strides = {one.stride for one in module.modules() if isinstance(one, nn.Conv2d)}
            sizes = [own] if isinstance(own, int) else [*_own_sizes(module), *_PICTURES]
            # If each pixel is a token, a small picture is enough; a single patch has one token.
            sizes = sorted({_SIDE, *sizes}) if strides == {(1, 1)} else sizes
            sizes = sorted(sizes, key=lambda side: side < 2 * max(map(max, strides)))
            shapes += [(part.in_channels, size, size) for size in sizes]
            break
        if isinstance(part, nn.Conv1d) and not shapes:
            shapes += [(part.in_channels, size) for size in _DURATIONS]
            if part.in_channels == 1:  # a sound may come without an axis for its one channel
                shapes += [(size,) for size in _DURATIONS]
            break
    return [_Meaning("image", ("batch", *shape), "float32") for shape in shapes]


def _pictures_of(module: nn.Module, features: Sequence[_Meaning]) -> list[_Meaning]:
    """Pictures whose places are tokens, with channels behind or before them."""
    widths = [one.shape[-1] for one in features[:_MOST_SIZES]]
    shapes: list[tuple[int | str, ...]] = []
    sides = (_SIDE, *(one for one in _own_sizes(module) if one <= _MOST_PLACES))
    for side in dict.fromkeys(sides):
        shapes += [("batch", side, side, width) for width in widths]
        shapes += [("batch", width, side, side) for width in widths]
    return [_Meaning("image", shape, "float32") for shape in shapes]


def _own_sizes(module: nn.Module) -> list[int]:
    """Return the picture sides named by the module's numbers and tables, or by their roots.

    A resolution or a table of positions fixes the side of the pictures the module accepts; a table
    may hold one more position, for a token before the picture's.
    """
    spoken: dict[int, None] = {}
    for part in module.modules():
        # Of torch's own modules, norms alone know about sides.
        held = vars(part).values() if _knows_sides(part) else ()
        own = [one for some in held for one in (some if isinstance(some, tuple) else (some,))]
        tables = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        own += [] if _is_of_torch(part) else [size for one in tables for size in one.shape]
        numbers = [one for one in own if type(one) is int and _SHORTEST < one <= _LONGEST**2]
        spoken |= dict.fromkeys(one for one in numbers if one <= _LONGEST)
        roots = ((n, math.isqrt(n)) for n in numbers)
        spoken |= dict.fromkeys(root for n, root in roots if root**2 in (n, n - 1))
    return list(spoken)[:_MOST_WIDTHS]


def _knows_sides(part: nn.Module) -> bool:
    return isinstance(part, nn.LayerNorm) or not _is_of_torch(part)


def _is_of_torch(part: nn.Module) -> bool:
    return type(part).__module__.startswith("torch.")


def _along(meanings: Mapping[str, _Meaning]) -> Iterator[ModelInput]:
    """Yield the inputs with the sequences they lie along; raises UnknownInputError."""
    shapes = {
        name: ("batch", "answers" if _answers(name) else "length")
        if meaning.role in ("mask", "added")
        else tuple(
            "answers" if size == "length" and _answers(name) else size for size in meaning.shape
        )
        for name, meaning in meanings.items()
    }
    roles = {
        name: "mask" if meaning.role == "added" else meaning.role
        for name, meaning in meanings.items()
    }
    along = sequences_of(shapes, roles)
    for name, meaning in meanings.items():
        hides = meaning.role == "padding"
        yield ModelInput(
            name=name,
            role="mask" if hides else roles[name],
            along=along.get(name),
            shape=meaning.shape,
            dtype=np.dtype(meaning.kind),
            count=2 if meaning.role == "tokens" else 0,
            hides=hides,
            added=meaning.role == "added",
        )


def _answers(name: str) -> bool:
    return name.lower().startswith(("decoder", "tgt", "target"))


def _tried(
    module: nn.Module, calling: TorchCalling, length: int
) -> tuple[ModuleRecording | None, str]:
    """Record a call with drawn inputs, or return why it is not answered."""
    generator = np.random.default_rng(0)
    feeds = {e.name: e.drawn(_BATCH, length, None, generator) for e in calling.inputs}
    try:
        recording = record(module, calling.arguments(feeds))
        answers = calling.answers(recording.answer)
    except Exception as error:  # noqa: BLE001 (whatever the user's module raises)
        return None, " ".join(f"{type(error).__name__}: {error}".split())[:200]
    floats = [value for value in answers.values() if value.dtype.kind == "f" and value.ndim]
    if not floats:
        return None, "nothing that is a tensor of floats"
    if np.isnan(floats[0]).any():  # a mask of the other sign hides everything
        return None, "NaN"
    return recording, ""


def _takes_others(module: nn.Module, calling: TorchCalling, length: int) -> bool:
    """Tell whether a call of another length is answered; else a size fit by chance."""
    others = (_tried(module, calling, other)[0] for other in _LENGTHS if other != length)
    return any(other is not None for other in others)


def _chooses(made: ModuleRecording, calling: TorchCalling) -> bool:
    """Tell whether every input called ids indexes rows of a table."""
    return all(
        entry.name.lower().endswith("ids") or _tables(made, entry.name)
        for entry in calling.inputs
        if entry.role == "tokens"
    )


def _turns_by_distance(module: nn.Module, calling: TorchCalling, length: int) -> bool:
    """Tell whether answers stay with moved angles of positions, as those of rotations do."""
    others = moved(calling.fills)
    if others == calling.fills:
        return True
    plain, other = (
        _answers_to(module, replace(calling, fills=fills), length, "")
        for fills in (calling.fills, others)
    )
    if plain is None or other is None or plain.keys() != other.keys():
        return False
    floats = [(one, other[name]) for name, one in plain.items() if one.dtype.kind == "f"]
    return all(
        one.shape == two.shape
        and np.abs(one - two).max(initial=0.0) <= SAME_READ * np.abs(one).max(initial=0.0)
        for one, two in floats
    )


def _masks_show(module: nn.Module, calling: TorchCalling, length: int) -> bool:
    masks = [entry.name for entry in calling.inputs if entry.role == "mask"]
    plain = _answers_to(module, calling, length, "") if masks else None
    return not any(_same(plain, _answers_to(module, calling, length, name)) for name in masks)


def _masks_hide(module: nn.Module, calling: TorchCalling, length: int) -> bool:
    """Tell whether changing hidden features changes no other answer; ids are not tested.

    False where a mask hiding a token is refused.
    """
    entries = {entry.name: entry for entry in calling.inputs}
    for name, mask in entries.items():
        own = [e.name for e in entries.values() if e.role == "features" and e.along == mask.along]
        if mask.role != "mask":
            continue
        if _answers_to(module, calling, length, name) is None:
            return False
        if not own:
            continue
        plain, other = (
            _answers_to(module, calling, length, name, turned=turned, at=(slice(None), 0))
            for turned in ((), own)
        )
        if plain is None or other is None:
            continue
        floats = [(one, other[key]) for key, one in plain.items() if one.dtype.kind == "f"]
        if not all(
            one.shape == two.shape
            and np.abs(one - two)[:, 1:].max(initial=0.0) <= SAME_READ * np.abs(one).max()
            for one, two in floats
            if one.ndim > 1 and one.shape[:2] == (_BATCH, length)
        ):
            return False
    return True


def items_stay_apart(module: nn.Module, calling: TorchCalling, length: int) -> bool:
    """Tell whether features of one item affect no other answer: else tokens may come first.

    Also whether reversed items have reversed answers: else an input may have no items.
    """
    features = [entry.name for entry in calling.inputs if entry.role in ("features", "image")]
    if not features:
        return True
    plain = _answers_to(module, calling, length, "")
    turned = _answers_to(module, calling, length, "", turned=features)
    exchanged = _answers_to(module, calling, length, "", exchanged=True)
    if plain is None or turned is None or plain.keys() != turned.keys():
        return True
    pairs = [(plain[name], turned[name]) for name in plain if plain[name].dtype.kind == "f"]
    whole = [(one, other) for one, other in pairs if one.ndim and one.shape[0] == _BATCH]
    if exchanged is not None and exchanged.keys() == plain.keys():
        pairs = [(plain[name], exchanged[name]) for name in plain if plain[name].dtype.kind == "f"]
        whole += [(one, o[::-1]) for one, o in pairs if one.ndim and one.shape[0] == _BATCH]
    return all(
        np.abs(one[0] - other[0]).max(initial=0.0) <= SAME_READ * np.abs(one).max(initial=0.0)
        for one, other in whole
        if one.shape == other.shape and np.isfinite(one).all() and np.isfinite(other).all()
    )


def idle_inputs(module: nn.Module, calling: TorchCalling, length: int) -> list[str]:
    """The features and pictures with which no answer changes by a bit, by name."""
    names = [entry.name for entry in calling.inputs if entry.role in ("features", "image")]
    plain = _answers_to(module, calling, length, "")
    return [
        name
        for name in names
        if _same(plain, _answers_to(module, calling, length, "", turned=[name], at=slice(None)))
    ]


def queries_meet(module: nn.Module, calling: TorchCalling) -> bool:
    """Tell whether a query changes the answers to other queries, impossible in attention.

    Only for modules with parameters called query, key and value.
    """
    roles = roles_by_name(list(inspect.signature(module.forward).parameters.values()))
    if len(roles) < len("qkv") or roles["q"] not in {entry.name for entry in calling.inputs}:
        return False
    plain, turned = (
        _answers_to(module, calling, _LENGTHS[0], "", turned=names, at=(slice(None), -1))
        for names in ((), (roles["q"],))
    )
    if plain is None or turned is None or plain.keys() != turned.keys():
        return False
    rows = [
        (plain[name], turned[name])
        for name in plain
        if plain[name].shape[:2] == (_BATCH, _LENGTHS[0])
    ]
    return any(
        np.abs(one[:, :-1] - other[:, :-1]).max() > SAME_READ * np.abs(one).max()
        for one, other in rows
    )


def _same(one: Mapping[str, Array] | None, other: Mapping[str, Array] | None) -> bool:
    """Compare two answers bit by bit; a refusal (None) equals no answer."""
    if one is None or other is None or one.keys() != other.keys():
        return False
    return all(np.array_equal(one[key], other[key], equal_nan=True) for key in one)


def _answers_to(
    module: nn.Module,
    calling: TorchCalling,
    length: int,
    hiding: str,
    *,
    turned: Sequence[str] = (),
    at: Any = -1,
    exchanged: bool = False,
) -> dict[str, Array] | None:
    """Return the answers to a drawn call, with one mask (``hiding``) hiding the first token.

    ``turned`` inputs change sign at ``at``, by default in the last item; with ``exchanged`` the
    items are reversed. None where the module refuses the call.
    """
    generator = np.random.default_rng(0)
    feeds = {e.name: e.drawn(_BATCH, length, None, generator) for e in calling.inputs}
    if hiding:
        mask = next(entry for entry in calling.inputs if entry.name == hiding)
        feeds[hiding] = mask.mask(np.broadcast_to(np.arange(length) > 0, (_BATCH, length)))
    for name in turned:
        feeds[name] = feeds[name].copy()
        feeds[name][at] *= -1
    if exchanged:
        feeds = {name: feed[::-1].copy() for name, feed in feeds.items()}
    try:
        with torch.no_grad():
            return calling.answers(module(**calling.arguments(feeds)))
    except Exception:  # noqa: BLE001 (whatever the user's module raises)
        return None


def _completed(
    module: nn.Module,
    calling: TorchCalling,
    made: ModuleRecording,
    declared: Mapping[str, Mapping[str, Any]],
) -> tuple[TorchCalling, ModuleRecording]:
    """Add vocabularies and the order of axes to the calling."""
    inputs = []
    for entry in calling.inputs:
        if entry.role == "tokens":
            said = int(declared.get(entry.name, {}).get("vocabulary", 0))
            count = said or _ordinary(module, min(_tables(made, entry.name), default=2))
            inputs.append(replace(entry, count=count))
        else:
            inputs.append(entry)
    calling = replace(calling, inputs=tuple(inputs))
    if not calling.sequence_first and _is_sequence_first(module, calling):
        turned = replace(calling, sequence_first=True)
        again, _ = _tried(module, turned, _LENGTHS[0])
        if again is not None:
            return turned, again
    return calling, made


def _ordinary(module: nn.Module, count: int) -> int:
    """Return the number of ids without the last ids to which the configuration gives a meaning.

    A model may answer differently at a special token.
    """
    settings = getattr(getattr(module, "config", None), "__dict__", {})
    special = [value for name, value in settings.items() if name.endswith("_token_id")]
    while count > 2 and count - 1 in special:  # noqa: PLR2004 (of one id alone no token is another)
        count -= 1
    return count


def _tables(recording: ModuleRecording, name: str) -> list[int]:
    """Return the number of rows of every table indexed by an input."""
    rows = []
    own = next(v.tensor for v in recording.values if v.kind == "input" and v.above == {name})
    for call in recording.calls:
        if call.name not in ("embedding", "getitem", "index_select"):
            continue
        read = [recording.values[number] for number in call.reads]
        tables = [value.tensor for value in read if value.tensor.is_floating_point()]
        chosen = [value for value in read if not value.tensor.is_floating_point()]
        if len(tables) == len(chosen) == 1 and chosen[0].above == {name}:
            rows += [int(tables[0].shape[0])] if _same_ids(chosen[0].tensor, own) else []
    return rows


def _same_ids(index: Tensor, ids: Tensor) -> bool:
    """Tell whether an index tensor equals the ids: as is, transposed, flattened or padded."""
    if index.dim() != ids.dim():
        return torch.equal(index, ids.reshape(-1))
    return any(torch.equal(one, ids) for one in (index[..., : ids.shape[-1]], index.mT))


def _is_sequence_first(module: nn.Module, calling: TorchCalling) -> bool:
    """Tell whether items of the first axis influence each other: then it is the token axis."""
    takes = [entry for entry in calling.inputs if entry.role == "features"]
    if not takes or all(getattr(part, "batch_first", True) for part in module.modules()):
        return False
    generator = np.random.default_rng(0)
    feeds = {e.name: e.drawn(_BATCH, _LENGTHS[0], None, generator) for e in calling.inputs}
    answers = []
    for change in (0.0, 1.0):
        for entry in takes:
            feeds[entry.name] = feeds[entry.name].copy()
            feeds[entry.name][1] += change
        try:
            with torch.no_grad():
                made = module(**calling.arguments(feeds))
        except Exception:  # noqa: BLE001 (whatever the user's module raises)
            return True
        floats = (value for value in calling.answers(made).values() if value.dtype.kind == "f")
        answers.append(next((value[0] for value in floats if value.ndim), np.zeros(0)))
    if answers[0].shape != answers[1].shape:
        return False
    return bool(np.abs(answers[0] - answers[1]).max() > 0)
