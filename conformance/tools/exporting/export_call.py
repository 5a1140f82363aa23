"""Example inputs of a module for an exporter, by the names of its parameters."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...adapters.calling import Calling, mask_parameters
from ...adapters.filling import filled
from ...adapters.module import calling_of, understand
from ...adapters.projection_search import ModuleRequest
from ...adapters.trial import with_plain_weights
from ...base.parameter_names import POSITIONAL
from ...errors import DeclarationError, UsageError
from ...models.recording import tensors_in
from ...targets.loading import one_line

_EXTENT: Final = {"B": "batch", "Q": "query_length", "K": "key_length"}
_PADDING: Final = ("BK", "B11K", "QK", "B1QK", "BQK")
_ANY: Final = ("B1QK", "BQK", "BK", "QK", "B11K", "BHQK", "FQK")
_LENGTHS: Final = ("B", "BQ")


@dataclass(frozen=True)
class ExampleSizes:
    """The sizes of example inputs."""

    batch: int
    queries: int
    keys: int


@dataclass
class Tried:
    """A module with tensors by the names of its parameters; ``heads`` is 0 where unknown.

    ``fills`` are what a reading gives further parameters.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    sizes: ExampleSizes
    heads: int
    fills: Mapping[str, Any]
    failure: str = "gives no tensor"

    def answers(self) -> bool:
        """Whether the module returns a tensor; ``failure`` says why not."""
        return self.answer({}) is not None

    def answer(self, more: Mapping[str, Tensor]) -> Tensor | None:
        """The first tensor that the module returns, None for an exception or no tensor."""
        tensors = self._tensors(more)
        return tensors[0] if tensors else None

    def outputs(self) -> tuple[str, ...]:
        """Names for the returned tensors."""
        names = []
        for number, tensor in enumerate(self._tensors({})):
            of_scores = tuple(tensor.shape[-2:]) == (self.sizes.queries, self.sizes.keys)
            word = "weights" if number and of_scores else "output"
            names.append(f"{word}_{number}" if word in names else word)
        return tuple(names)

    def _tensors(self, more: Mapping[str, Tensor]) -> list[Tensor]:
        arguments = {**absent(self.module), **self.fills, **self.inputs, **more}
        try:
            with torch.no_grad():
                return list(tensors_in(self.module(**arguments)))
        except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
            self.failure = f"raised {one_line(error)}"
            return []


def absent(module: nn.Module) -> dict[str, None]:
    """None for the parameters of a module that have no default."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        entry.name: None
        for entry in parameters
        if entry.kind in kinds and entry.default is inspect.Parameter.empty
    }


def first_mask(tried: Tried, name: str) -> tuple[Tensor, dict[int, str]] | None:
    """The first form of a mask that the module takes and that changes the answer, with axes.

    The mask hides some keys, and in either polarity every row keeps a key.
    """
    for letters in _letters(name):
        for mask, other in _pairs(letters, tried, name):
            first, second = tried.answer({name: mask}), tried.answer({name: other})
            if first is None or second is None or first.shape != second.shape:
                continue
            plain = tried.answer({})
            if plain is not None and first.shape != plain.shape:
                continue
            if not torch.equal(first, second):
                return mask, {
                    axis: _EXTENT[letter]
                    for axis, letter in enumerate(letters)
                    if letter in _EXTENT
                }
    return None


def _letters(name: str) -> tuple[str, ...]:
    if "len" in name.lower():
        return _LENGTHS
    return _PADDING if "pad" in name.lower() or "key" in name.lower() else _ANY


def _pairs(letters: str, tried: Tried, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Two different masks of some axes: bool, then additive, then 0 and 1; or two lengths."""
    sizes, heads = tried.sizes, max(tried.heads, 1)
    extents = {"B": sizes.batch, "Q": sizes.queries, "K": sizes.keys, "1": 1, "H": heads}
    shape = [extents.get(letter, sizes.batch * heads) for letter in letters]
    if letters in _LENGTHS:
        yield torch.full(shape, 2), torch.full(shape, sizes.keys)
        return
    if tried.heads == 0 and set(letters) & {"H", "F"}:
        return
    last = (torch.arange(sizes.keys) == sizes.keys - 1).expand(shape).clone()
    forms = [(~last, last), (last.float(), (~last).float()), ((~last).long(), last.long())]
    yield from forms[1:2] + forms[:1] + forms[2:] if "bias" in name.lower() else forms


# Sizes that all differ and are not 1, so that a traced graph cannot confuse two axes.
BATCHES: Final = (2, 4)
QUERIES: Final = 3
KEYS: Final = 5
_COUNT: Final = {"self": 1, "memory": 2, "separate": 3}
_BATCH, _QUERY, _KEY = "batch", "query_length", "key_length"


@dataclass(frozen=True, kw_only=True)
class ExportCall:
    """The call of a module for its export.

    inputs
        Tensors by the names of the module's parameters.
    axes
        The names of the dynamic axes, by input.
    outputs
        The names of the returned tensors.
    fills
        What the reading gives further parameters.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    axes: Mapping[str, Mapping[int, str]]
    outputs: tuple[str, ...]
    fills: Mapping[str, Any]

    def arguments(self) -> dict[str, Any]:
        """Every argument by name, None for parameters without a default that take nothing."""
        return {**absent(self.module), **self.fills, **self.inputs}


def export_call(module: nn.Module, shown: str) -> ExportCall:
    """The call of a module for its export; raises UsageError with one sentence."""
    request = ModuleRequest(shown=shown)
    widths: tuple[tuple[int, ...], ...]
    heads = 0
    try:
        plain = with_plain_weights(module)
        calling, finding, _ = understand(plain, request)
        weights = finding.recipe.read(plain, finding.sizes)
        widths = ((weights.q.shape[1], weights.k.shape[1], weights.v.shape[1]),)
        heads = finding.sizes.num_heads
    except DeclarationError as error:
        calling, widths = _calling(module, request, str(error)), _possible_widths(module)
    names = _names(module, calling)
    batch = next(size for size in BATCHES if size != heads)
    failure = "has no matrix that takes tokens"
    for sizes in _sizes(batch, calling):
        for width in widths:
            tokens = _tokens(names, width, sizes, calling)
            by_item = (
                one.transpose(0, 1) if calling.sequence_first else one for one in tokens.values()
            )
            fills = filled(calling.fills, tuple(by_item))
            tried = Tried(module, tokens, sizes, heads, fills)
            if tried.answers():
                return _with_masks(tried, calling, names)
            failure = tried.failure
    msg = f"{shown} cannot be called with {', '.join(names)} of any width: it {failure}"
    raise UsageError(msg)


def _calling(module: nn.Module, request: ModuleRequest, why: str) -> Calling:
    try:
        return calling_of(module, request)
    except DeclarationError:
        raise UsageError(why) from None


def _possible_widths(module: nn.Module) -> tuple[tuple[int, ...], ...]:
    """The widths that linear layers take, for modules whose projections are not recognised."""
    widths = {part.in_features for part in module.modules() if isinstance(part, nn.Linear)}
    widths |= {parameter.shape[-1] for parameter in module.parameters() if parameter.dim() > 1}
    return tuple((width,) * 3 for width in sorted(widths))


def _names(module: nn.Module, calling: Calling) -> tuple[str, ...]:
    if calling.names is not None:
        return calling.names
    parameters = inspect.signature(module.forward).parameters.values()
    positional = [entry.name for entry in parameters if entry.kind in POSITIONAL]
    return tuple(positional[: _COUNT[calling.inputs]])


def _sizes(batch: int, calling: Calling) -> Iterator[ExampleSizes]:
    """Different lengths of queries and keys first, unless it is self-attention; then equal ones."""
    if calling.inputs != "self":
        yield ExampleSizes(batch=batch, queries=QUERIES, keys=KEYS)
    yield ExampleSizes(batch=batch, queries=KEYS, keys=KEYS)


def _tokens(
    names: tuple[str, ...], width: tuple[int, ...], sizes: ExampleSizes, calling: Calling
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = (sizes.queries, sizes.keys, sizes.keys)
    tokens = {}
    for name, length, size in zip(names, lengths, width, strict=False):
        shape = (length, sizes.batch) if calling.sequence_first else (sizes.batch, length)
        tokens[name] = torch.randn(*shape, size, generator=generator)
    return tokens


def _with_masks(tried: Tried, calling: Calling, names: tuple[str, ...]) -> ExportCall:
    inputs, axes = dict(tried.inputs), _token_axes(names, tried.sizes, calling)
    for name in mask_parameters(tried.module.forward):
        if name in names:
            continue
        mask = first_mask(dataclasses.replace(tried, inputs=inputs), name)
        if mask is not None:
            inputs[name], axes[name] = mask
    outputs = dataclasses.replace(tried, inputs=inputs).outputs()
    return ExportCall(
        module=tried.module, inputs=inputs, axes=axes, outputs=outputs, fills=tried.fills
    )


def _token_axes(
    names: tuple[str, ...], sizes: ExampleSizes, calling: Calling
) -> dict[str, dict[int, str]]:
    items, tokens = (1, 0) if calling.sequence_first else (0, 1)
    apart = sizes.queries != sizes.keys
    lengths = (_QUERY, _KEY, _KEY) if apart else ("length",) * 3
    return {name: {items: _BATCH, tokens: word} for name, word in zip(names, lengths, strict=False)}


def described(call: ExportCall) -> dict[str, Any]:
    """The inputs as plain data, for the record."""
    return {
        name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in call.inputs.items()
    }
