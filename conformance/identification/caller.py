"""Call an implementation under one convention: an answer to a probe, or a refusal with a reason.

Probes hold normally distributed numbers; their sizes all differ.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from .._golden import golden
from ..adapters.answers import parts_of
from ..base.geometry import Geometry
from ..calls.calling import CandidateFailure, arguments, guarded
from ..declare.candidate import Candidate
from ..declare.decorators import core, layer
from ..problems.inputs import Inputs
from ..problems.materialise import TORCH_DTYPES, projection_shapes, token_shapes
from .convention import Convention, compiled

# Pairwise different, so that no axis can stand in for another.
FREE = Geometry(
    batch=2,
    num_heads=3,
    num_kv_heads=3,
    query_length=4,
    key_length=6,
    head_size=5,
    value_head_size=7,
    query_size=11,
    key_size=13,
    value_size=8,
    output_size=9,
)


def draw(
    geometry: Geometry,
    *,
    kind: str,
    mode: str = "separate",
    batched: bool = True,
    dtype: str = "float32",
    seed: int = 0,
    weights: golden.ProjectionWeights | None = None,
) -> Inputs:
    """Normal tokens (or heads) of a geometry; the inputs that a mode shares are one object."""
    generator = torch.Generator().manual_seed(1 + seed)
    shapes = token_shapes(geometry, layer=kind != "core")
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(TORCH_DTYPES[dtype])
        for shape in shapes
    )
    if mode != "separate":
        value = key
    if mode == "self":
        query = key
    return Inputs(
        geometry=geometry,
        mode=mode,  # type: ignore[arg-type]  # one of the three
        batched=batched,
        query=query,
        key=key,
        value=value,
        weights=weights,
    )


def draw_weights(
    geometry: Geometry, biases: str, *, dtype: str, seed: int
) -> golden.ProjectionWeights:
    """Random projections of unit output size, with biases for some roles (``"qkvo"`` for all)."""
    generator = torch.Generator().manual_seed(100 + seed)
    rows = projection_shapes(geometry)

    def number(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (drawn / shape[-1] ** 0.5 if len(shape) > 1 else drawn).to(TORCH_DTYPES[dtype])

    tensors = {role: number(*shape) for role, shape in rows.items()}
    drawn = {f"{role}_bias": number(shape[0]) for role, shape in rows.items()}
    kept = {name: tensor for name, tensor in drawn.items() if name[0] in biases}
    return golden.ProjectionWeights(**tensors, **kept)


def letter_sizes(letters: str, geometry: Geometry) -> tuple[int, ...]:
    """The four sizes of a canonical mask that varies along the axes named by letters."""
    full = {
        "B": geometry.batch,
        "H": geometry.num_heads,
        "Q": geometry.query_length,
        "K": geometry.key_length,
    }
    if letters in ("B", "BQ", "Q", ""):  # lengths vary the keys without a letter K
        letters += "K"
    return tuple(full[axis] if axis in letters else 1 for axis in "BHQK")


def random_keep(letters: str, geometry: Geometry, *, seed: int = 0) -> Tensor:
    """A random mask with kept and hidden keys in every row."""
    sizes = letter_sizes(letters, geometry)
    generator = torch.Generator().manual_seed(7 + seed)
    keys = sizes[-1]
    ranks = torch.rand(sizes, generator=generator).argsort(-1).argsort(-1)
    kept = torch.randint(1, max(2, keys), (*sizes[:-1], 1), generator=generator)
    return ranks < kept


def draw_keep(form: str, letters: str, geometry: Geometry, *, seed: int = 0) -> Tensor:
    """A mask for a form; for lengths, rows keep their first keys, later rows fewer.

    As many keys as the row's place would be causality, too.
    """
    if form != "lengths":
        return random_keep(letters, geometry, seed=seed)
    sizes = letter_sizes(letters, geometry)
    rows = seed - torch.arange(sizes[0] * sizes[2]).reshape(sizes[0], 1, sizes[2], 1)
    return torch.arange(sizes[-1]) < 1 + rows % max(1, sizes[-1] - 1)


def masked(inputs: Inputs, form: str, shape: str, keep: Tensor | int = 0) -> Inputs:
    """Inputs with a mask in a form and shape; ``keep`` is the mask or the seed to draw a mask."""
    if isinstance(keep, int):
        keep = draw_keep(form, shape, inputs.geometry, seed=keep)
    return inputs.replace(keep=keep, mask_form=form, mask_shape=shape)


Prepare = Callable[[Geometry, golden.ProjectionWeights | None], Callable[..., Any]]
Weigh = Callable[[Geometry, str, int], golden.ProjectionWeights | None]


@dataclass(frozen=True)
class Refusal:
    """No answer, and why: ``kind`` is ``raised`` or ``type``."""

    kind: str
    why: str


@dataclass(frozen=True)
class ProbeAnswer:
    """A probe and its answer, batched, in float64; ``dtype`` is the dtype of the returned tensor.

    rows: the rows to compare, broadcastable to the answer; None for all.
    """

    inputs: Inputs
    output: Tensor
    dtype: torch.dtype
    returned: Any = None
    rows: Tensor | None = None

    def read_as(self, **options: Any) -> ProbeAnswer:
        """The same answer with changed options in its probe."""
        return dataclasses.replace(self, inputs=self.inputs.replace(**options))

    def compared(self, rows: Tensor | None) -> ProbeAnswer:
        """The answer with only ``rows`` left to compare."""
        return dataclasses.replace(self, rows=rows)

    def live(self, point: golden.Semantics) -> ProbeAnswer:
        """The answer with only the rows to compare whose heads all have a key at a point."""
        return self.compared(rows_with_keys(self.inputs, point))


def rows_with_keys(inputs: Inputs, point: golden.Semantics) -> Tensor:
    """The rows in which every head has a key, broadcastable to the answer."""
    return ~inputs.answer_rows(~inputs.allowed(point).any(dim=-1), point)


@dataclass(frozen=True, kw_only=True)
class SizeRule:
    """Ties between sizes: geometry fields with the source of their values in terms of ``g``."""

    changes: tuple[tuple[str, str], ...] = ()

    def with_heads(self, heads: int | None) -> SizeRule:
        """The ties, plus a fixed number of heads unless ``heads`` is None."""
        if heads is None:
            return self
        pinned = (("num_heads", str(heads)), ("num_kv_heads", str(heads)))
        return SizeRule(changes=(*pinned, *self.changes))

    def apply(self, geometry: Geometry) -> Geometry:
        """The geometry with all ties obeyed."""
        for name, source in self.changes:
            value = eval(source, {"g": geometry})  # noqa: S307 (text of the harness)
            geometry = geometry.replace(**{name: int(value)})
        return geometry


@dataclass(kw_only=True)
class Caller:
    """One way of calling an implementation.

    prepare
        Makes the implementation to call, from sizes and weights.
    convention
        The way to make a call.
    sizes
        The ties between sizes.
    weigh
        Draws a probe's projections from geometry, dtype and seed; returns None for a core.
    draws
        Whether a layer accepts any projections; False if it brings its own.
    longest, most_items
        The largest accepted numbers of tokens and of items, if known.
    arrays
        The array library: torch or NumPy.
    hint
        A point that explained a trial call, and the alignment of causality in every call.
    """

    prepare: Prepare
    convention: Convention
    sizes: SizeRule
    weigh: Weigh
    biases: str = "qkvo"
    draws: bool = True
    dtype: str = "float32"
    longest: int | None = None
    most_items: int | None = None
    arrays: str = "torch"
    hint: tuple[golden.Semantics, str | None] | None = None

    def under(self, **changes: Any) -> Caller:
        """A copy with some fields of the convention changed."""
        other = copy.copy(self)
        other.convention = self.convention.replace(**changes)
        return other

    def at_length(self, length: int) -> Caller:
        """A copy whose probes have ``length`` queries and keys."""
        pinned = (("query_length", str(length)), ("key_length", str(length)))
        return dataclasses.replace(self, sizes=SizeRule(changes=(*pinned, *self.sizes.changes)))

    def with_head_size(self, size: int) -> Caller:
        """A copy whose probes have heads of ``size`` channels."""
        pinned = ("head_size", str(size))
        return dataclasses.replace(self, sizes=SizeRule(changes=(pinned, *self.sizes.changes)))

    @property
    def kind(self) -> str:
        """``core`` or ``layer``."""
        return self.convention.kind

    @property
    def heads_are_fixed(self) -> bool:
        """Whether the number of heads ignores the request."""
        numbers = {self.draw({"num_heads": count}).geometry.num_heads for count in (2, 3)}
        return len(numbers) == 1

    def draw(
        self, sizes: Mapping[str, int] | None = None, *, seed: int = 0, dtype: str | None = None
    ) -> Inputs:
        """A probe with the possible sizes nearest to the requested sizes."""
        geometry = self.sizes.apply(FREE.replace(**(sizes or {})))
        batched = self.convention.layout.batched
        if not batched:
            geometry = geometry.replace(batch=1)
        if self.convention.layout.single_head:
            geometry = geometry.replace(num_heads=1, num_kv_heads=1)
        if self.convention.inputs == "self":
            geometry = geometry.replace(query_length=geometry.key_length)
        return draw(
            geometry,
            kind=self.kind,
            mode=self.convention.inputs,
            batched=batched,
            dtype=dtype or self.dtype,
            seed=seed,
            weights=self.weigh(geometry, dtype or self.dtype, seed),
        )

    def call(self, inputs: Inputs) -> ProbeAnswer | Refusal:
        """Call with copies of a probe."""
        try:
            called = guarded(self.prepare, (inputs.geometry, inputs.weights), {}, "building it")
            if self.convention.output != "answer":
                called = _with_parts(called)
            returned = guarded(partial(compiled(self.convention), called), *arguments(inputs))
        except CandidateFailure as failure:
            return Refusal("raised", failure.violation.message)
        return read(returned, inputs)

    def returned(self, inputs: Inputs) -> Any:
        """The unprocessed return value of the implementation; None for a refusal."""
        seen: list[Any] = []

        def prepare(
            geometry: Geometry, weights: golden.ProjectionWeights | None
        ) -> Callable[..., Any]:
            built = self.prepare(geometry, weights)

            def call(*tokens: Any, **options: Any) -> Any:
                seen.append(built(*tokens, **options))
                return seen[-1]

            return call

        dataclasses.replace(self, prepare=prepare).call(inputs)
        return seen[-1] if seen else None

    def taking_output(self) -> Caller:
        """A caller for the returned part with attention's shape, if several parts are returned."""
        inputs = self.draw()
        answer = self.returned(inputs) if self.convention.output == "answer" else None
        for shown, part in parts_of(answer) if not isinstance(answer, Tensor) else ():
            caller = self.under(output=shown)
            if part.is_floating_point() and caller.answer(inputs) is not None:
                return caller
        return self

    def candidate(
        self, point: golden.Semantics, always: str | None = None, *, heads: int | None = None
    ) -> Candidate:
        """This way of calling as a candidate that declares a point and takes no options.

        ``always`` is the alignment of causality in every call; ``heads`` pins the number of heads.
        """
        call = compiled(self.convention)
        promises: dict[str, Any] = {
            "semantics": self.with_own_biases(point),
            "batched": self.convention.layout.batched,
            "geometry": self.sizes.with_heads(heads).apply,
        }
        if always is not None:
            promises |= {"causal": always, "always_causal": True}
        if self.kind == "core":
            theirs = self.prepare(FREE, None)

            def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
                return call(theirs, query, key, value)

            return core(name="it", **promises)(attend)
        return layer(name="it", inputs=self.convention.inputs, **promises)(self._builder(call))

    def with_own_biases(self, point: golden.Semantics) -> golden.Semantics:
        """A point without the biases that a layer lacks; a core's point stays unchanged."""
        if self.kind == "core":
            return point
        words = {"q": "query", "k": "key", "v": "value", "o": "output"}
        absent = {f"{words[role]}_bias": False for role in words if role not in self.biases}
        return point.replace(**absent)

    def _builder(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A builder that appends an output projection to a layer without one."""
        absent: dict[str, Any] = {
            f"{role}_bias": None for role in "qkvo" if role not in self.biases
        }
        drawn = self.draw()
        has_output = drawn.weights is not None and drawn.weights.o is not None

        def build(geometry: Geometry, weights: golden.ProjectionWeights) -> Callable[..., Any]:
            own = dataclasses.replace(weights, **absent)
            built = self.prepare(geometry, own)

            def forward(*tokens: Tensor) -> Any:
                answer = call(built, *tokens)
                if has_output or weights.o is None or not isinstance(answer, Tensor):
                    return answer
                return linear(answer, weights.o)

            return forward

        return build

    def answer(self, inputs: Inputs) -> ProbeAnswer | None:
        """Call; None for a refusal or for an answer without attention's shape."""
        result = self.call(inputs)
        if isinstance(result, Refusal) or tuple(result.output.shape) != inputs.output_shape:
            return None
        return result


def _with_parts(called: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that rejects a single tensor: its first item would pass for the whole answer."""

    def call(*tokens: Any, **options: Any) -> Any:
        answer = called(*tokens, **options)
        if isinstance(answer, Tensor):
            msg = "returned a tensor, of which no part is the answer"
            raise TypeError(msg)
        return answer

    return call


def read(returned: Any, inputs: Inputs) -> ProbeAnswer | Refusal:
    """The returned value as a batched float64 output; a pair's weights stay in ``returned``."""
    output = returned[0] if inputs.return_weights and isinstance(returned, tuple) else returned
    if not isinstance(output, Tensor):
        return Refusal("type", f"returned {_kind_of(output)}, not a tensor")
    if output.layout != torch.strided or output.is_nested or not output.is_floating_point():
        return Refusal("type", f"returned a tensor of {output.dtype}, {output.layout}")
    batched = output if inputs.batched else output.unsqueeze(0)
    return ProbeAnswer(inputs, batched.detach().clone().double(), output.dtype, returned)


def _kind_of(value: Any) -> str:
    """The kind of a value, in words: ``None``, ``a str``, ``a tuple of 2``."""
    if value is None:
        return "None"
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"a {type(value).__name__}{size}"
