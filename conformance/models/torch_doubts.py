"""Properties of a module around its attentions that are hardly ever intended."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ..adapters.filling import with_pairs
from ..adapters.idle import idle_tables
from ..graphs.protocol import Array
from ..graphs.weights.wiring import UnreadableError
from .recording import Call, ModuleRecording
from .replayed_core import runnable
from .site import is_standard
from .torch_edges import TorchEdge
from .torch_model import TorchEngine, first_sizes
from .torch_sites import PARTS, TorchSite
from .whole_model import WholeModel

# Additional length of the longer call.
_LONGER: Final = 4
# The relative error of a measured scale.
_SAME: Final = 1e-4
# A norm keeps at most this part of its input's size, by its epsilon.
_ROOM: Final = 1e-2
_PROJECTIONS: Final = frozenset("linear addmm matmul einsum conv1d conv2d".split())
_COUNTED: Final = {"query": "queries", "key": "keys"}


def idle_tables_of(engine: TorchEngine, model: WholeModel) -> list[str]:
    """The parts whose tables change no answer, by name."""
    arguments = engine.calling.arguments(model.call(*first_sizes(model), None, 1).feeds)
    hides = all(model.causal_sites)
    return idle_tables(engine.module, lambda module: module(**arguments), hides=hides)


def mistaken_scales(engine: TorchEngine, model: WholeModel) -> dict[int, str]:
    """Describe attentions scaled by another size than a head's, by index.

    The size is the width of all heads, or a number of tokens, confirmed by calls of two lengths
    where possible. A logarithm of the length is a choice.
    """
    odd = [
        site
        for site in engine.sites
        if site.scale is not None
        and site.scale != 1
        and not is_standard(site.scale, site.head_size)
    ]
    wide = {site.index: _width_meant(engine, site) for site in odd}
    said = {index: f"the root of the width of {what}" for index, what in wide.items() if what}
    for site in odd:
        if rules := _rules(engine.recording, site) & _rules_later(engine, model, site):
            said[site.index] = " or ".join(sorted(rules))
    return {
        index: f"attention #{index} divides its scores by {what}, not by the root of the head size"
        for index, what in said.items()
    }


def growing_biases(engine: TorchEngine) -> list[str]:
    """Describe attentions whose bias grows with the distance to a key in every head.

    A bias of linear distances, independent of inputs, with the wrong sign.
    """
    values = engine.recording.values
    found = []
    for site in engine.sites:
        tables = [
            mask.factor * values[mask.number].tensor.detach().double()
            for mask in site.masks
            if mask.role == "bias" and mask.axes[-2:] == "QK" and not values[mask.number].above
        ]
        if any(_grows_with_distance(one.reshape(-1, *one.shape[-2:])) for one in tables):
            found.append(f"#{site.index}")
    said = "its logits grow with the distance to a key: a bias of the wrong sign"
    return [f"attention {one}: {said}" for one in found]


def _grows_with_distance(biases: Tensor) -> bool:
    """Tell whether biases ``[H, Lq, Lk]`` are positive multiples of the distance, by head."""
    queries, keys = biases.shape[-2:]
    if queries != keys or queries < 3:  # noqa: PLR2004 (two distances)
        return False
    distance = (torch.arange(queries)[:, None] - torch.arange(keys)).double()
    slopes = (biases[:, 1, 0] - biases[:, 1, 1])[:, None, None]
    expected = biases[:, 1:2, 1:2] + slopes * distance
    same = _alike(biases, expected, _SAME) | (distance < 0)
    return bool(same.all() and (slopes > 0).all())


def unlike_rotations(engine: TorchEngine, model: WholeModel) -> list[str]:
    """Describe attentions whose positions rotate queries and keys but not by distance alone.

    Rotary positions enter after the projections, which are equal for equal tokens; then scores of
    equal tokens depend on distances alone (Su et al. 2021, 3.1). Only for models of one sequence.
    """
    if model.has_two_sequences or not model.is_sequential:
        return []
    feeds = model.call(*first_sizes(model), None, 1).feeds
    tokens = {one.name for one in engine.calling.inputs if one.role in ("tokens", "features")}
    equal = {
        name: np.broadcast_to(value[:, :1], value.shape) if name in tokens else value
        for name, value in feeds.items()
    }
    found = _turning_otherwise(engine, equal)
    if found and engine.calling.fills:  # tables of the other form may be meant
        before = engine.calling
        engine.calling = dataclasses.replace(before, fills=with_pairs(before.fills))
        found = _turning_otherwise(engine, equal)
        engine.calling = before if found else engine.calling
    return [
        f"attention #{index}: positions turn queries and keys, and the scores of equal tokens "
        "depend on more than their distance"
        for index in found
    ]


def _turning_otherwise(engine: TorchEngine, feeds: Mapping[str, Array]) -> list[int]:
    """Return attentions whose scores of equal tokens do not depend on distances alone."""
    try:
        recording = engine.recorded(feeds)
    except Exception:  # noqa: BLE001 (the user's module may raise anything)
        return []
    found = []
    for site in engine.placed(recording):
        heads = []
        for part in _COUNTED:
            edge = site.edges[part]
            if not {"L", "D"} <= set(edge.letters) or not _is_of_equal(recording, edge):
                break
            rows = recording.values[edge.number].tensor.detach().double()
            places = (edge.letters.index("L"), edge.letters.index("D"))
            heads.append(rows.movedim(places, (-2, -1)).flatten(0, -3))
        if len(heads) < len(_COUNTED) or _alike(heads[0], heads[0][:, :1], _SAME).all():
            continue
        scores = heads[0] @ heads[1][0].mT
        room = _ROOM * float(scores.abs().max())
        if not _alike(scores[:, 1:, 1:], scores[:, :-1, :-1], room).all():
            found.append(site.index)
    return found


def _is_of_equal(recording: ModuleRecording, edge: TorchEdge) -> bool:
    """Tell whether a projection behind an edge is equal for all tokens."""
    length = recording.values[edge.number].tensor.shape[edge.letters.index("L")]
    made = [recording.values[call.results[0]].tensor for call in _above(recording, edge.number)]
    return any(
        size == length and bool(_alike(one, one.narrow(axis, 0, 1), _SAME).all())
        for one in made
        for axis, size in enumerate(one.shape)
    )


def standardised(engine: TorchEngine, model: WholeModel) -> set[int]:
    """Return indices of attentions whose queries and keys ignore the size of weights.

    A norm lies between, so any scale of the scores is a choice.
    """
    feeds = model.call(*first_sizes(model), None, 1).feeds
    found = set()
    for site in engine.sites:
        own = [_projecting(engine, site.edges[part].number) for part in _COUNTED]
        if not all(own):
            continue
        try:
            plain = _entering(engine, site, feeds)
            with _doubled(itertools.chain(*own)):
                other = _entering(engine, site, feeds)
        except Exception:  # noqa: BLE001 (the user's module may raise anything)
            plain = other = {}
        if plain and all(_alike(plain[p], other[p], _ROOM).all() for p in _COUNTED):
            found.add(site.index)
    return found


def scaled_before(engine: TorchEngine) -> set[int]:
    """Return indices of attentions with the standard scale on queries and keys that enter them."""
    return {
        site.index
        for site in engine.sites
        if site.scaled_above != 1
        and is_standard((site.scale or 1.0) * site.scaled_above, site.head_size)
    }


def _alike(one: Tensor, other: Tensor, part: float) -> Tensor:
    """Compare elements: equal within ``part`` of one plus the second's size."""
    return (one - other).abs() <= part * (1.0 + other.abs())


def _projecting(engine: TorchEngine, number: int) -> list[Tensor]:
    """Return the weights of the nearest projections behind a value, biases included."""
    values = engine.recording.values
    read = [values[one] for call in _above(engine.recording, number) for one in call.reads]
    return [one.tensor for one in read if one.kind == "weight"]


def _above(recording: ModuleRecording, number: int) -> list[Call]:
    """Return the nearest projections behind a value."""
    values = recording.values
    found, waiting, visited = list[Call](), [number], {number}
    while waiting:
        call = values[waiting.pop()].made_by
        if call is None:
            continue
        if call.name in _PROJECTIONS and any(values[one].kind == "weight" for one in call.reads):
            found.append(call)
            continue
        fresh = set(call.reads) - visited
        visited |= fresh
        waiting += sorted(fresh)
    return found


def _width_meant(engine: TorchEngine, site: TorchSite) -> str:
    """The tensor whose width fits a scale: "all heads" or "the tokens" of the query's matrix."""
    matrices = engine.projections(site.edges["query"].number)
    if len(matrices) != 1:
        return ""
    rows = {len(matrices[0]) // parts for parts in (1, 2, 3)}
    if site.heads is not None:  # of the parts of a fused matrix only one is the heads'
        rows &= {site.heads * site.head_size}
    for what, widths in (("all heads", rows), ("the tokens", {matrices[0][0].numel()})):
        if any(is_standard(site.scale or 1.0, one) for one in widths - {0, site.head_size}):
            return what
    return ""


def _rules_later(engine: TorchEngine, model: WholeModel, site: TorchSite) -> set[str]:
    """Return the functions of token counts equal to the scale in a longer call; may be empty."""
    batch, (length, second) = first_sizes(model)
    longer = (length + _LONGER, second + _LONGER)
    if not model.takes(batch, longer):
        return set()
    try:
        recording = engine.recorded(model.call(batch, longer, None, 1).feeds)
    except Exception:  # noqa: BLE001 (the user's module may raise anything at a length)
        return set()
    later = next((one for one in engine.placed(recording) if one.index == site.index), None)
    again = None if later is None else _with_scale(recording, later)
    return set() if again is None else _rules(recording, again)


def _with_scale(recording: ModuleRecording, site: TorchSite) -> TorchSite | None:
    try:
        return runnable(recording, site)
    except UnreadableError:
        return None


def _rules(recording: ModuleRecording, site: TorchSite) -> set[str]:
    """Return the functions of token counts equal to the attention's scale in a call."""
    found = set()
    for part, noun in _COUNTED.items():
        edge = site.edges[part]
        count = recording.values[edge.number].tensor.shape[edge.letters.index("L")]
        for words, size in (("the root of ", count), ("", count**2)):
            if count > 1 and is_standard(site.scale or 0.0, size):
                found.add(f"{words}the number of {noun}")
    return found


def packed_otherwise(engine: TorchEngine, model: WholeModel) -> list[str]:
    """Describe matrices holding values before keys or queries, in equal blocks of rows."""
    names = {id(weight): name for name, weight in engine.module.named_parameters()}
    feeds = model.call(*first_sizes(model), None, 1).feeds
    said: dict[str, None] = {}
    for site in engine.sites:
        above = {part: engine.projections(site.edges[part].number) for part in PARTS}
        single = {part: own[0] for part, own in above.items() if len(own) == 1}
        matrix = single.get("value")
        sharing = [part for part, own in single.items() if own is matrix]
        if matrix is None or len(sharing) < 2 or id(matrix) not in names:  # noqa: PLR2004 (two roles)
            continue
        order = _order(engine, site, sharing, matrix, feeds)
        if order and order[-1] != "value":
            said[f"{names[id(matrix)]} holds {', '.join(order)} in this order"] = None
    return list(said)


def _order(
    engine: TorchEngine,
    site: TorchSite,
    sharing: Sequence[str],
    matrix: Tensor,
    feeds: Mapping[str, Array],
) -> list[str]:
    """Return the part made by each block of a matrix's rows; [] where a block makes several."""
    blocks = len(sharing)
    if len(matrix) % blocks:
        return []
    size, order = len(matrix) // blocks, []
    plain = _entering(engine, site, feeds)
    try:
        for block in range(blocks):
            with _doubled([matrix], slice(block * size, (block + 1) * size)):
                other = _entering(engine, site, feeds)
            order.append([p for p in sharing if not torch.equal(plain[p], other[p])])
    except Exception:  # noqa: BLE001 (the user's module may raise anything)
        return []
    single = [parts[0] for parts in order if len(parts) == 1]
    return single if sorted(single) == sorted(sharing) else []


@contextmanager
def _doubled(weights: Iterable[Tensor], rows: slice = slice(None)) -> Iterator[None]:
    before = [(one, one.data) for one in {id(one): one for one in weights}.values()]
    try:
        for one, data in before:
            one.data = data.clone()
            one.data[rows] *= 2
        yield
    finally:
        for one, data in before:
            one.data = data


def _entering(
    engine: TorchEngine, site: TorchSite, feeds: Mapping[str, Array]
) -> dict[str, Tensor]:
    recording = engine.recorded(feeds)
    for own in engine.placed(recording):
        if own.index == site.index:
            return {part: recording.values[own.edges[part].number].tensor for part in PARTS}
    return {}
