"""An attention of a torch module as a core: its recorded calls replayed on other tensors."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from ..adapters.graph_forward import FORMS, arrange, axes_shape, mask_fits, nothing_hidden, restore
from ..graphs.weights.wiring import UnreadableError
from ..tolerance import model as constants
from .recording import Call, ModuleRecording, Ref, Size, Value, mapped, size_at, tensors_in
from .site import is_standard
from .torch_edges import PARTED
from .torch_sites import KERNEL, PARTS, SizeElsewhere, TorchMask, TorchSite

# Sizes of the trial calls, different from the recorded ones if possible: see _trial.
_TRIAL: Final = {"B": 3, "Q": 4, "K": 6}
_MOST_NUMBERS: Final = 6


class ReplayedCore:
    """The calls between query, key, value and the answer of one attention.

    Takes and returns ``[B, H, L, D]``, whatever the module's own order. Sizes read off tensors are
    replaced by the new tensors' sizes.
    """

    def __init__(self, recording: ModuleRecording, site: TorchSite) -> None:
        self.site = site
        self._values = recording.values
        self._changes = any(call.renewed for call in site.inside)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        sinks: Tensor | None = None,
        **masks: Any,
    ) -> Tensor:
        """Return the answer ``[B, H, Lq, Dv]``; raises the exceptions of its calls."""
        site = self.site
        heads = dict(zip(PARTS, (query, key, value), strict=True))
        sizes = {
            "B": query.shape[0],
            "H": query.shape[1],
            "Q": query.shape[2],
            "K": key.shape[2],
            "D": query.shape[3],
        }
        made: dict[int, Tensor] = {}
        for part, tensor in heads.items():
            edge = site.edges[part]
            own = arrange(tensor, "BHLD", edge.letters.replace(PARTED, "1"))
            made[edge.number] = own.clone() if self._changes else own
        if site.sinks is not None:
            own_sinks = self._values[site.sinks].tensor
            made[site.sinks] = torch.full_like(own_sinks, -math.inf) if sinks is None else sinks
        if site.factor is not None:  # it is the query's
            made[site.factor] = torch.ones_like(self._values[site.factor].tensor)
        for mask in site.masks:
            made[mask.number] = self._mask(mask, masks, sizes, query.dtype)
        if masks:
            msg = f"the attention has no place for {', '.join(masks)} of this shape"
            raise TypeError(msg)
        for call in site.inside:
            self._run(call, made, sizes)
            if sinks is None and site.entering_sinks in call.results:
                # No sinks: whatever their factor was.
                entering = made[site.entering_sinks]
                made[site.entering_sinks] = torch.full_like(entering, -math.inf)
        answer = made[site.output_value]
        letters = site.output_letters.replace(PARTED, "1")
        return restore(answer, letters, "BHLD", {**sizes, "L": sizes["Q"]})

    def _mask(
        self, mask: TorchMask, given: dict[str, Tensor], sizes: Mapping[str, int], dtype: Any
    ) -> Tensor:
        """Take the call's mask for this place out of ``given``; else make one hiding nothing."""
        form, letters = FORMS[mask.role], self.site.mask_letters(mask)
        handed_over = given.get(form)
        if handed_over is not None and mask_fits(handed_over, letters, sizes):
            del given[form]
        else:
            handed_over = nothing_hidden(form, axes_shape(letters, sizes))
        if form == "bias":
            handed_over = handed_over.to(dtype) / mask.factor  # -1 where it is subtracted
        varying = letters.replace("1", "")
        return arrange(handed_over.reshape(axes_shape(varying, sizes)), varying, mask.axes)

    def _run(self, call: Call, made: dict[int, Tensor], sizes: Mapping[str, int]) -> None:
        shapes = _Shapes(made)

        def leaf(entry: Any) -> Any:
            if isinstance(entry, Ref):
                known = made.get(entry.number)
                return self._values[entry.number].tensor if known is None else known
            if isinstance(entry, Size):
                return size_at(entry, shapes, self._otherwise(sizes))
            return entry

        result = call.function(*mapped(call.arguments, leaf), **mapped(call.keywords, leaf))
        for before, after in call.renewed:
            if before in made:
                made[after] = made[before]
        made.update(zip(call.results, tensors_in(result), strict=False))

    def _otherwise(self, sizes: Mapping[str, int]) -> Callable[[Size], int]:
        """Return the rule for sizes read off tensors outside the attention."""

        def become(size: Size) -> int:
            letters = self.site.outside.get(_elsewhere(size, self._values))
            return math.prod(sizes[letter] for letter in letters) if letters else int(size)

        return become


class _Shapes(Mapping[int, Sequence[int]]):
    def __init__(self, made: Mapping[int, Tensor]) -> None:
        self._made = made

    def __getitem__(self, number: int) -> Sequence[int]:
        return self._made[number].shape

    def __iter__(self) -> Iterator[int]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def runnable(recording: ModuleRecording, site: TorchSite) -> TorchSite:
    """Add facts only a run shows to the site: sizes, scale, cap, own causal rule.

    Raises UnreadableError where its calls do not run at other sizes.
    """
    why = ""
    for outside in _readings(recording, site):
        made = replace(site, outside=outside)
        why = _trial(ReplayedCore(recording, made), recording)
        if not why:
            return _read(recording, made)
    msg = f"its calls do not run at other sizes: {why}"
    raise UnreadableError(msg)


def _readings(recording: ModuleRecording, site: TorchSite) -> Iterator[dict[SizeElsewhere, str]]:
    """Yield the possible meanings of sizes read off tensors outside the attention."""
    inside = {number for call in site.inside for number in call.results}
    inside |= {edge.number for edge in site.edges.values()}
    inside |= {mask.number for mask in site.masks}
    read: dict[SizeElsewhere, None] = {}
    for call in site.inside:
        for size in _outside((call.arguments, call.keywords), inside):
            read.setdefault(_elsewhere(size, recording.values))
    shapes = {part: recording.values[edge.number].tensor.shape for part, edge in site.edges.items()}
    query, key = site.edges["query"], site.edges["key"]
    own = dict(zip(query.letters.replace("L", "Q"), shapes["query"], strict=True))
    own["K"] = dict(zip(key.letters, shapes["key"], strict=True))["L"]
    folded = own.get("F", own.get("W"))
    if folded and site.heads:
        own |= {"B": folded // site.heads, "H": site.heads}
    letters = [letter for letter in "BQK" if letter in own]
    # Six products of one or two sizes, each equal to one number: at most 2 ** 6 readings.
    choices = []
    for _, number in read:
        fitting = ["".join(part) for n in (1, 2) for part in itertools.combinations(letters, n)]
        good = [text for text in fitting if math.prod(own[letter] for letter in text) == number]
        choices.append([*good, ""])
    for chosen in itertools.product(*choices):
        yield {size: text for size, text in zip(read, chosen, strict=True) if text}


def _elsewhere(size: Size, values: Sequence[Value]) -> SizeElsewhere:
    return values[size.parts[0]].above, int(size)


def _outside(value: Any, inside: set[int]) -> list[Size]:
    """Return the sizes read off tensors that a replay does not compute."""
    found: list[Size] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, Size) and len(leaf.parts) > len(("value", "axis")):
            mapped(leaf.parts[1:], note)
        elif isinstance(leaf, Size) and leaf.parts[0] not in inside:
            found.append(leaf)
        return leaf

    mapped(value, note)
    return found


def _drawn(site: TorchSite, dtype: torch.dtype, sizes: Mapping[str, int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads, kv_heads = site.heads or 2, site.kv_heads or 2

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return [
        draw(sizes["B"], heads, sizes["Q"], site.head_size),
        draw(sizes["B"], kv_heads, sizes["K"], site.head_size),
        draw(sizes["B"], kv_heads, sizes["K"], site.value_size),
    ]


def _dtype(recording: ModuleRecording, site: TorchSite) -> torch.dtype:
    return recording.values[site.edges["query"].number].tensor.dtype


def _trial(core: ReplayedCore, recording: ModuleRecording) -> str:
    """Return why an attention does not run at other sizes than its own, or ""."""
    site = core.site
    inputs = _drawn(site, _dtype(recording, site), _TRIAL)
    try:
        with torch.no_grad():
            answer = core(*inputs)
    except Exception as error:  # noqa: BLE001 (code of the user's, and any torch function)
        return " ".join(f"{type(error).__name__}: {error}".split())[:160]
    wanted = [*inputs[0].shape[:3], site.value_size]
    shape = list(answer.shape)
    return "" if shape == wanted else f"it answers {wanted} with {shape}"


def _read(recording: ModuleRecording, site: TorchSite) -> TorchSite:
    """Measure the site's scale, cap and causal rule."""
    core = ReplayedCore(recording, site)
    dtype = _dtype(recording, site)
    alignment = _alignment(core, dtype)
    scale, cap = _scale(core, dtype, _numbers(recording, site))
    return replace(site, alignment=alignment, scale=scale, cap=cap)


def _alignment(core: ReplayedCore, dtype: torch.dtype) -> str | None:
    """Return the alignment of the attention's own causal rule; None without one."""
    queries, keys = 2, 4
    query, key, value = _drawn(core.site, dtype, {"B": 1, "Q": queries, "K": keys})
    with torch.no_grad():
        plain = core(query, key, value)
        seen = torch.zeros(queries, keys, dtype=torch.bool)
        for place in range(keys):
            changed = value.clone()
            changed[:, :, place] += 1
            moved = (core(query, key, changed) - plain).abs().amax(dim=(0, 1, 3))
            seen[:, place] = moved > torch.finfo(dtype).eps
    for name, shift in (("top-left", 0), ("bottom-right", keys - queries)):
        if bool((seen == torch.ones(queries, keys).tril(shift).bool()).all()):
            return name
    return None


def _scale(
    core: ReplayedCore, dtype: torch.dtype, numbers: Sequence[float]
) -> tuple[float | None, float | None]:
    """Measure the scale of the dot products and their cap by two calls.

    The last query of two sees one key with a product and one without: the logarithm of the odds is
    the score. Numbers in the code that explain both scores, within rounding, replace the
    measurement.
    """
    size = core.site.head_size
    small = 0.5 * math.sqrt(size)
    first = _odds(core, dtype, small)
    if not math.isfinite(first) or not first:
        return None, None
    # Scores as large as the format shows odds for: there a cap is visible.
    large = small * -math.log(torch.finfo(dtype).tiny) / (3 * abs(first))
    odds = [first, _odds(core, dtype, large)]
    if not math.isfinite(odds[1]):
        return None, None
    roundings = constants.SCORE_ROUNDINGS * float(torch.finfo(dtype).eps)

    def explains(scale: float, cap: float | None) -> bool:
        for product, read in zip((small, large), odds, strict=True):
            score = scale * product
            score = score if cap is None else cap * math.tanh(score / cap)
            room = constants.LOGIT_READ_TO + roundings * max(1.0, abs(read))
            if abs(score - read) > room:
                return False
        return True

    standard = 1 / math.sqrt(size)
    scales = [standard, 1.0, *_products(numbers)]
    for cap in (None, *sorted({abs(number) for number in numbers if number})):
        for scale in scales:
            if explains(scale, cap):
                return scale, cap
    read = odds[0] / small
    return (standard if is_standard(read, size) else read), None


def _odds(core: ReplayedCore, dtype: torch.dtype, product: float) -> float:
    """Return the score of a key with a given product with the query, relative to product 0."""
    query, key, value = _drawn(core.site, dtype, {"B": 1, "Q": 2, "K": 2})
    query.zero_()
    key.zero_()
    value.zero_()
    query[..., 0] = math.sqrt(product)
    key[:, :, 0, 0] = math.sqrt(product)
    value[:, :, 0] = 1
    with torch.no_grad():
        weights = [float(core(query, key, each)[0, 0, -1, 0]) for each in (value, 1 - value)]
    return math.log(weights[0] / weights[1]) if min(weights) > 0 else math.nan


def _numbers(recording: ModuleRecording, site: TorchSite) -> list[float]:
    """Return the numbers in the code of an attention."""
    found: list[float] = []

    def note(leaf: Any) -> Any:
        number: Any = leaf
        if isinstance(leaf, Ref):
            tensor = recording.values[leaf.number].tensor
            number = float(tensor) if tensor.numel() == 1 else None
        if isinstance(number, float) and number and math.isfinite(number):
            found.append(number)
        return leaf

    for call in site.inside:
        if call.name in ("mul", "div", "baddbmm", KERNEL):
            mapped((call.arguments, call.keywords), note)
    return list(dict.fromkeys(found))[:_MOST_NUMBERS]


def _products(numbers: Sequence[float]) -> list[float]:
    """Return products of the numbers and their reciprocals."""
    result = {1.0}
    for number in numbers:
        result |= {value * number for value in result} | {value / number for value in result}
        result |= {value * number * number for value in result if number < 1}
    return sorted(result, key=lambda value: abs(math.log(abs(value))))


def digest(recording: ModuleRecording, site: TorchSite) -> str:
    """Return a digest equal for attentions that differ only in weights and names."""
    names: dict[int, str] = {edge.number: part for part, edge in site.edges.items()}
    names |= {mask.number: f"mask {at}" for at, mask in enumerate(site.masks)}
    for call in site.inside:
        for number in (*call.results, *(after for _, after in call.renewed)):
            names.setdefault(number, f"made {len(names)}")

    def shown(leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            tensor = recording.values[leaf.number].tensor
            alone = f"{tensor.dtype} {tensor.item()}" if tensor.numel() == 1 else "tensor"
            return names.get(leaf.number, alone)
        if isinstance(leaf, Size):
            if len(leaf.parts) > len(("value", "axis")):
                return [leaf.parts[0].__name__, *map(shown, leaf.parts[1:])]
            known = leaf.parts[0] in names
            return (
                f"{names[leaf.parts[0]]}@{leaf.parts[1]}"
                if known
                else site.outside.get(_elsewhere(leaf, recording.values), str(int(leaf)))
            )
        return leaf

    parts = [
        [(part, edge.letters) for part, edge in site.edges.items()],
        [(mask.role, mask.axes) for mask in site.masks],
        [site.heads, site.kv_heads, site.head_size, site.value_size, site.output_letters],
        [
            (call.name, mapped(call.arguments, shown), mapped(call.keywords, shown))
            for call in site.inside
        ],
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
