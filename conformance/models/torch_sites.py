"""Find every attention in a recorded forward pass, or why a similar structure is not one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from ..adapters.graph_forward import spelled
from ..declare.declaration import is_mask_shape
from ..graphs.weights.wiring import UnreadableError
from .operands import MaskInput
from .recording import Call, ModuleRecording, Ref, Value, mapped
from .site import Uncut, unpaired
from .torch_edges import (
    CASTS,
    PARTED,
    RANKS,
    Edges,
    Product,
    TorchEdge,
    kinds_of,
    leading,
    shown_call,
    swaps_last,
)

KERNEL: Final = "scaled_dot_product_attention"
PARTS: Final = ("query", "key", "value")
_PRODUCTS: Final = frozenset({"matmul", "bmm", "baddbmm", "einsum"})
_SOFTMAXES: Final = frozenset({"softmax", "exp"})
# Calls between scores and weights, and between weights and the product with values.
_BETWEEN: Final = CASTS | frozenset(
    "view reshape masked_fill where add sub mul div tanh clamp max min maximum minimum getitem cat "
    "nan_to_num softmax log_softmax exp sum amax logsumexp setitem neg".split()
)
# Values gathered from further scores, such as scores of distances, are a bias.
_GATHERS: Final = frozenset({"gather", "take_along_dim"})
# Calls that use only the shape or type of their second tensor.
_SHAPED: Final = frozenset({"expand_as", "reshape_as", "view_as", "type_as"})
# Calls never applied to one attention's weights, as in attention to blocks of tokens.
_MOVES: Final = frozenset(
    "pad as_strided flip roll gather index_select unfold stack split transpose permute".split()
)
_SUMMING: Final = frozenset({"add", "sub", "sum", "cat"})
# The upward search from a softmax stops at these: they make tokens, not scores.
_WALLS: Final = frozenset("linear embedding layer_norm rms_norm conv1d conv2d".split())
# These mix heads where what they make is as large as what they take, as in talking heads, and
# products do where one operand is a weight.
_MIXERS: Final = frozenset({"linear", "conv1d", "conv2d"})
_MIXED: Final = (
    "its heads are mixed by further weights before or behind its softmax (talking heads), and the "
    "specification is of heads that attend apart"
)
_UNUSUAL: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError)
_FACTORS: Final = frozenset({"mul", "div", "neg"})
_SPREADS: Final = CASTS | {"view", "reshape", "expand", "unsqueeze", "getitem", "repeat"}


# A size read off a tensor outside of an attention: the inputs of this tensor, and the size, since
# numbers of queries and keys may be equal.
SizeElsewhere = tuple[frozenset[str | None], int]


@dataclass(frozen=True, kw_only=True)
class TorchMask(MaskInput):
    """A mask at its point of entry, named after its value."""

    number: int


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchSite:
    """One attention of a module in one forward pass, with the terms of :class:`.site.Site`.

    place: the module computing its softmax, and the number of attentions of this module before it,
        including those that cannot be judged alone: the same place in every call.
    scaled_above: the factor on query and key before they enter, if more than turns lies between.
    edges: query, key and value by name.
    inside: the calls from the edges to the answer.
    sinks, entering_sinks: stored numbers by head, and the tensor of them beside the scores.
    factor: numbers by head multiplying the products, regarded as part of the query.
    output, output_value: the name of the answer in the model, and its value.
    """

    index: int
    nodes: tuple[str, ...]
    scope: str
    edges: Mapping[str, TorchEdge]
    inside: tuple[Call, ...]
    output_value: int
    output_letters: str
    masks: tuple[TorchMask, ...]
    heads: int | None
    kv_heads: int | None
    head_size: int
    value_size: int
    place: tuple[str, int] = ("", 0)
    scaled_above: float = 1.0
    scale: float | None = None
    cap: float | None = None
    causal: bool = False
    alignment: str | None = None
    outside: Mapping[SizeElsewhere, str] = field(default_factory=dict)
    sinks: int | None = None
    entering_sinks: int | None = None
    factor: int | None = None

    def mask_letters(self, mask: TorchMask) -> str:
        """Return the letters in which a mask is handed over.

        All axes if another mask has the same form or the mask's axes are in another order.
        """
        letters = spelled(mask.axes)
        alone = sum(other.role == mask.role for other in self.masks) == 1
        if alone and is_mask_shape(letters):
            return letters
        return "".join(letter if letter in letters else "1" for letter in "BHQK")

    @property
    def output(self) -> str:
        """The name of the attention's answer in a run."""
        return f"attention #{self.index}"


def find_torch_sites(recording: ModuleRecording) -> tuple[list[TorchSite], list[Uncut]]:
    """Return the attentions of a forward pass in order, and similar structures."""
    return _Finder(recording).find()


class _Finder:
    def __init__(self, recording: ModuleRecording) -> None:
        self._values, self._calls = recording.values, recording.calls
        self._readers = recording.readers()
        self._edges = Edges(self._values)

    def find(self) -> tuple[list[TorchSite], list[Uncut]]:
        sites: list[TorchSite] = []
        uncut: list[Uncut] = []
        answers: set[int] = set()
        before: Counter[str] = Counter()
        for call in self._calls:
            if call.name != KERNEL and call.name not in _SOFTMAXES:
                continue
            nodes: tuple[str, ...] = (shown_call(call),)
            place = (call.scope, before[call.scope])
            site: TorchSite | None
            try:
                if call.name == KERNEL:
                    site = self._of_kernel(call, len(sites))
                else:
                    site = self._of_softmax(call, len(sites), answers)
            except (UnreadableError, *_UNUSUAL) as error:
                known = isinstance(error, UnreadableError)
                reason = str(error) if known else f"its calls are unusual ({error})"
                uncut.append(Uncut(nodes=nodes, scope=call.scope, reason=reason))
                before[call.scope] += 1
                continue
            if site is not None and site.output_value not in answers:
                answers.add(site.output_value)
                sites.append(replace(site, place=place))
                before[call.scope] += 1
        return sites, uncut

    def _of_kernel(self, call: Call, index: int) -> TorchSite:
        own = _kernel_arguments(call)
        operands = [own[part] for part in PARTS]
        if not all(isinstance(operand, Ref) for operand in operands):
            msg = "its operands are no tensors"
            raise UnreadableError(msg)
        rank = self._tensor(operands[0].number).dim()
        if rank not in RANKS:
            msg = f"its heads have {rank} axes: 3 to 5 are expected"
            raise UnreadableError(msg)
        letters = f"{leading(rank)}LD"
        operand = {part: (own[part].number, letters) for part in PARTS}
        named = replace(call, arguments=(), keywords={part: own[part] for part in PARTS} | own)
        calls = dict.fromkeys(PARTS, named)
        scores = f"{leading(rank)}QK" if rank > len("FQK") else "HQK"
        return self._site(index, (call,), calls, operand, call.results[0], letters, scores)

    def _of_softmax(self, softmax: Call, index: int, answers: set[int]) -> TorchSite | None:
        second = self._mean(softmax, _BETWEEN)
        if second is None:
            self._refuse_moved_weights(softmax)
            return None
        if second[0].call.results[0] in answers:
            return None
        product, weights, turned = second
        kinds = kinds_of(product, weights)
        firsts = self._scores(softmax)
        if not firsts:
            if softmax.name == "exp":
                return None
            mixed = self._of_products(softmax)
            raise UnreadableError(_MIXED if mixed else "its scores are no product of two tensors")
        if all(map(self._mixes, firsts)) and self._of_products(softmax):
            raise UnreadableError(_MIXED)
        # Products of queries with tables of positions are added like biases.
        of_tokens = [one for one in firsts if self._is_of_tokens(one)]
        beside = [one for one in firsts if one not in of_tokens] if len(of_tokens) == 1 else []
        firsts = of_tokens if beside else firsts
        if len(firsts) > 1:
            lines = ", ".join(shown_call(first) for first in firsts)
            msg = f"its scores are made of several products: {lines}"
            raise UnreadableError(msg)
        first = self._edges.product(firsts[0])
        own_order = kinds[:-2] + kinds[:-3:-1] if turned else kinds
        scores = (
            leading(len(first.letters[2])) + own_order[-2:]
            if len(kinds) != len(first.letters[2])
            else own_order
        )
        named = dict(zip(first.letters[2], scores, strict=True))
        sides = ["".join(named.get(axis, "D") for axis in axes) for axes in first.letters[:2]]
        parts = ["key", "query"] if "Q" in sides[1] else ["query", "key"]
        own = dict(zip(product.letters[weights], kinds, strict=True))
        value = "".join(own.get(axis, "D") for axis in product.letters[1 - weights])
        answer = "".join(own.get(axis, "D") for axis in product.letters[2])
        entering = dict(zip(parts, zip(first.operands, sides, strict=True), strict=True))
        entering["value"] = (product.operands[1 - weights], value)
        axes_of = {part: axes for part, (_, axes) in entering.items()} | {"answer": answer}
        for part, axes in axes_of.items():
            kind = "Q" if part in ("query", "answer") else "K"
            wanted = {*leading(len(axes)), kind, "D"}
            if len(axes) not in RANKS or set(axes) != wanted:
                msg = f"the axes of its products are none of items, heads and positions ({axes})"
                raise UnreadableError(msg)
        as_positions = str.maketrans("QK", "LL")
        operands = {
            part: (number, axes.translate(as_positions))
            for part, (number, axes) in entering.items()
        }
        taken_by = {**dict.fromkeys(parts, first.call), "value": product.call}
        calls, output = (first.call, softmax, product.call), product.call.results[0]
        letters = answer.translate(as_positions)
        return self._site(index, calls, taken_by, operands, output, letters, scores, beside=beside)

    def _is_of_tokens(self, product: Call) -> bool:
        """Tell whether both operands of a product are computed from inputs of the module."""
        return all(self._values[number].above - {None} for number in product.reads)

    def _site(
        self,
        index: int,
        calls: Sequence[Call],
        taken_by: Mapping[str, Call],
        operands: Mapping[str, tuple[int, str]],
        output: int,
        output_letters: str,
        scores: str,
        *,
        beside: Sequence[Call] = (),
    ) -> TorchSite:
        edges, untied = self._untied(taken_by, operands)
        if any(edge.heads_lead for edge in edges.values()):
            output_letters, scores = (own.replace("F", "W") for own in (output_letters, scores))
            edges = {
                own: replace(edge, letters=edge.letters.replace("F", "W"))
                for own, edge in edges.items()
            }
        part = _Slice(self._values, edges, untied, output, scores, beside)
        inside, masks = part.read()
        heads, kv_heads = edges["query"].heads, edges["key"].heads
        if why := unpaired(heads, kv_heads, edges["value"].heads):
            raise UnreadableError(why)
        kernel = _kernel_arguments(calls[0]) if calls[0].name == KERNEL else {}
        return TorchSite(
            index=index,
            nodes=tuple(map(shown_call, calls)),
            scope=calls[-1].scope,
            edges=edges,
            inside=inside,
            output_value=output,
            output_letters=output_letters,
            masks=masks,
            heads=heads or None,
            kv_heads=kv_heads or heads or None,
            head_size=self._edges.size(edges["query"]),
            value_size=self._edges.size(edges["value"]),
            causal=bool(kernel.get("is_causal")),
            sinks=part.sinks,
            entering_sinks=part.entering_sinks,
            factor=part.factor,
            scaled_above=math.prod(
                self._edges.factor_above(edges[own].number) for own in ("query", "key")
            ),
        )

    def _untied(
        self, taken_by: Mapping[str, Call], operands: Mapping[str, tuple[int, str]]
    ) -> tuple[Mapping[str, TorchEdge], dict[int, Call]]:
        """Return the edges of query, key and value, and by place the calls changed to read them.

        Parts sharing a tensor get separate values where a product reads them, so that calls can be
        replayed on different tensors.
        """
        edges = self._edges.edges(operands)
        uses = Counter(edge.number for edge in edges.values())
        changed: dict[int, Call] = {}
        for part, call in taken_by.items():
            if uses[edges[part].number] == 1:
                continue
            number, letters = operands[part]
            own = replace(self._values[number], number=len(self._values))
            self._values.append(own)
            edges[part] = self._edges.counted(TorchEdge(number=own.number, letters=letters))
            taking = changed.get(call.place, call)
            changed[call.place] = _with_operand(taking, Ref(number), Ref(own.number))
        return edges, changed

    def _tensor(self, number: int) -> Tensor:
        return self._values[number].tensor

    def _refuse_moved_weights(self, softmax: Call) -> None:
        """Raise UnreadableError if weights are permuted before they meet the values."""
        if softmax.name == "exp" or not self._of_products(softmax):
            return
        second = self._mean(softmax, _BETWEEN - _SUMMING | _MOVES)
        if second is not None:
            msg = f"its weights change their places before {shown_call(second[0].call)}"
            raise UnreadableError(msg)
        if self._mean(softmax, _BETWEEN - _SUMMING | _MOVES, mixing=True) is not None:
            raise UnreadableError(_MIXED)

    def _of_products(self, softmax: Call) -> bool:
        """Tell whether the softmax is computed from a product of two tensors, however moved."""
        waiting, visited = list(softmax.reads), set(softmax.reads)
        while waiting:
            call = self._values[waiting.pop()].made_by
            if call is None or (call.name in _WALLS and not self._mixes(call)):
                continue
            if call.name in _PRODUCTS and not self._mixes(call):
                return True
            fresh = {*call.reads, *(before for before, _ in call.renewed)} - visited
            visited |= fresh
            waiting += sorted(fresh)
        return False

    def _mixes(self, call: Call) -> bool:
        """Whether a call may mix heads by weights, of which there are as many before as behind."""
        read = [self._values[number] for number in call.reads]
        of_tokens = [value.tensor.numel() for value in read if value.above - {None}]
        stored = (value.tensor for value in read if value.made_by is None)
        square = any(one.dim() > 1 and one.shape[0] == one.shape[1] for one in stored)
        if call.name not in _MIXERS | _PRODUCTS or len(of_tokens) != 1 or not square:
            return False
        return [self._tensor(number).numel() for number in call.results] == of_tokens

    def _mean(
        self, softmax: Call, between: frozenset[str], *, mixing: bool = False
    ) -> tuple[Product, int, bool] | None:
        """The product with values behind certain calls, and which operand the weights are.

        Also behind what mixes heads by weights, if asked. Then whether queries and keys of the
        weights have changed places before.
        """
        waiting, visited = list(softmax.results), set(softmax.results)
        turned: set[int] = set()
        unread: UnreadableError | None = None
        while waiting:
            for call in self._readers.get(waiting.pop(), []):
                mixes = self._mixes(call)
                if call.name in _PRODUCTS and not mixes:
                    try:
                        product = self._edges.product(call)
                    except UnreadableError as error:  # perhaps the weights meet values elsewhere
                        unread = unread or error
                        continue
                    for at, operand in enumerate(product.operands):
                        if operand in visited:
                            return product, at, operand in turned
                swaps = len(call.reads) == 1 and swaps_last(call, self._tensor(call.reads[0]).dim())
                if call.name in between or swaps or (mixes and mixing):
                    results = [*call.results, *(after for _, after in call.renewed)]
                    waiting += [number for number in results if number not in visited]
                    visited.update(results)
                    if swaps != bool(turned.intersection(call.reads)):
                        turned.update(results)
        if unread is not None:
            raise unread
        return None

    def _scores(self, softmax: Call) -> list[Call]:
        found: dict[int, Call] = {}
        waiting, visited = list(softmax.reads), set(softmax.reads)
        while waiting:
            call = self._values[waiting.pop()].made_by
            if call is None:
                continue
            if call.name in _PRODUCTS:
                found[call.place] = call
            elif call.name in _BETWEEN:
                fresh = set(call.reads) - visited
                visited |= fresh
                waiting += sorted(fresh)
        return [found[place] for place in sorted(found)]


def _with_operand(call: Call, old: Ref, new: Ref) -> Call:
    once = iter([new])

    def leaf(entry: Any) -> Any:
        return next(once, entry) if isinstance(entry, Ref) and entry == old else entry

    return replace(
        call, arguments=mapped(call.arguments, leaf), keywords=mapped(call.keywords, leaf)
    )


_KERNEL_PARAMETERS: Final = (*PARTS, "attn_mask", "dropout_p", "is_causal")


def _kernel_arguments(call: Call) -> dict[str, Any]:
    return {**dict(zip(_KERNEL_PARAMETERS, call.arguments, strict=False)), **call.keywords}


def _choice(call: Call) -> tuple[Any, Any, Any]:
    """Return condition and branches of a choice; ``Tensor.where`` has another argument order."""
    other = call.argument(2, "other")
    if call.function is Tensor.where:
        return call.argument(1, "condition"), call.argument(0), other
    return call.argument(0, "condition"), call.argument(1, "input", "self"), other


class _Slice:
    """The calls from the edges of an attention to its answer, and their further inputs."""

    def __init__(
        self,
        values: Sequence[Value],
        edges: Mapping[str, TorchEdge],
        untied: Mapping[int, Call],
        output: int,
        scores: str,
        beside: Sequence[Call],
    ) -> None:
        self._values, self._output, self._scores = values, output, scores
        self._untied = untied
        self._ends = {edge.number for edge in edges.values()}
        self._made: dict[int, bool] = dict.fromkeys(self._ends, True)
        self._made |= {number: False for call in beside for number in call.results}
        self._masks: dict[int, TorchMask] = {}
        self._calls: list[Call] = []
        self._more: list[Call] = []
        self.sinks: int | None = None
        self.entering_sinks: int | None = None
        self.factor: int | None = None

    def read(self) -> tuple[tuple[Call, ...], tuple[TorchMask, ...]]:
        """Return the calls in order and the masks; raises UnreadableError for unknown inputs."""
        calls: dict[int, Call] = {}
        waiting = [self._output]
        while waiting:
            number = waiting.pop()
            call = self._maker(number)
            if number in self._ends or call is None or call.place in calls:
                continue
            if not self._depends(number):
                continue
            calls[call.place] = call
            waiting += [*call.reads, *(before for before, _ in call.renewed)]
        self._calls = [calls[place] for place in sorted(calls)]
        for call in self._calls:
            self._enter(call)
        for call in self._more:
            calls[call.place] = call
        return tuple(calls[place] for place in sorted(calls)), tuple(self._masks.values())

    def _maker(self, number: int) -> Call | None:
        call = self._values[number].made_by
        return None if call is None else self._untied.get(call.place, call)

    def _depends(self, number: int) -> bool:
        """Tell whether a value is computed from the edges."""
        waiting = [number]
        while waiting:
            top = waiting[-1]
            call = self._maker(top)
            if top in self._made or call is None or call.name in _GATHERS:
                self._made.setdefault(top, False)
                waiting.pop()
                continue
            reads = call.reads[:1] if call.name in _SHAPED else call.reads
            parts = [*reads, *(before for before, _ in call.renewed)]
            unknown = [part for part in parts if part not in self._made and part != top]
            if unknown:
                waiting += unknown
                continue
            self._made[top] = any(self._made.get(part, False) for part in parts)
            waiting.pop()
        return self._made[number]

    def _enter(self, call: Call) -> None:
        """Register the inputs of a call that are not computed from the edges."""
        for number in dict.fromkeys(call.reads):
            if self._depends(number):
                continue
            value = self._values[number]
            if call.name in ("type_as", "to"):
                continue
            if value.tensor.numel() == 1 and not value.above:
                continue
            if self._multiplies_products(call, number):
                self.factor = number
                continue
            role = self._role(call, number)
            if role == "sinks":
                self._sinks(number)
                continue
            result = self._values[(call.results or [after for _, after in call.renewed])[0]]
            scores = self._letters(result.tensor.dim())
            if role == "bias" and call.name != "sub" and self._filled(number, scores):
                continue
            factor = self._factor_after(call) if role == "bias" else 1.0
            self._mask(number, role, scores, factor=-factor if call.name == "sub" else factor)

    def _factor_after(self, call: Call) -> float:
        """Return the factor applied to the scores between a call and the softmax."""
        result, here = 1.0, set(call.results)
        for later in self._calls:
            if later.place <= call.place or here.isdisjoint(later.reads):
                continue
            if later.name in _SOFTMAXES or later.name in _PRODUCTS:
                break
            numbers = [self._constant(entry) for entry in later.arguments]
            factor = next((one for one in numbers if one is not None), None)
            if later.name in ("mul", "div") and factor is not None:
                result = result * factor if later.name == "mul" else result / (factor or math.inf)
            here = set(later.results)
        return result

    def _multiplies_products(self, call: Call, number: int) -> bool:
        """Tell whether a call multiplies the products of query and key by a number for each head.

        The query multiplied by the numbers gives equal products.
        """
        shape = list(self._values[number].tensor.shape)
        by_head = self._scores[:2] == "BH" and len(shape) > 2 and shape[-2:] == [1, 1]  # noqa: PLR2004
        if call.name != "mul" or not by_head or self.factor is not None:
            return False
        above: Call | None = call
        while above is not None and above.name not in _PRODUCTS:
            if above.name not in _FACTORS | CASTS:
                return False
            before = [other for other in above.reads if self._depends(other)]
            above = self._maker(before[0]) if len(before) == 1 else None
        return above is not None

    def _letters(self, rank: int) -> str:
        return self._scores if rank == len(self._scores) else leading(rank) + self._scores[-2:]

    def _role(self, call: Call, number: int) -> str:
        """Return the role of a tensor entering by a call; raises UnreadableError if no mask."""
        value = self._values[number]
        is_bool = value.tensor.dtype == torch.bool
        if value.tensor.numel() == 1 and value.tensor.dim() < 2:  # noqa: PLR2004 (a number)
            msg = f"{shown_call(call)} reads a number that is computed elsewhere"
            raise UnreadableError(msg)
        if call.name == KERNEL and _kernel_arguments(call).get("attn_mask") == Ref(number):
            return "keep" if is_bool else "bias"
        fills = call.name in ("masked_fill", "setitem")
        if fills and is_bool and call.argument(1, "mask") == Ref(number):
            return "drop"
        condition, if_true, _ = _choice(call)
        if call.name == "where" and is_bool and condition == Ref(number):
            return "drop" if self._is_fill(if_true) else "keep"
        taken = call.name == "sub" and call.argument(1, "other") == Ref(number)
        plain = taken and "alpha" not in call.keywords
        if plain or call.name in ("add", "baddbmm"):
            return "bias"
        if call.name == "cat" and not value.above:
            return "sinks"
        msg = f"{shown_call(call)} between its products reads a tensor from elsewhere"
        raise UnreadableError(msg)

    def _sinks(self, number: int) -> None:
        """Register sinks: the stored numbers by head behind the calls that broadcast them.

        Factors after broadcasting count as inside: sinks stand beside the scores as stored.
        """
        here = number
        while True:
            call = self._values[here].made_by
            spread = self._values[here].tensor.dim() > 1
            names = _SPREADS | _FACTORS if spread else _SPREADS
            if call is None or call.name not in names or len(call.reads) != 1:
                break
            self._more.append(call)
            here = call.reads[0]
        if self.sinks is not None or self._values[here].tensor.dim() != 1:
            msg = "what stands beside its scores is not one number a head"
            raise UnreadableError(msg)
        self.sinks, self.entering_sinks = here, number

    def _is_fill(self, entry: Any) -> bool:
        """Tell whether a branch of a choice is the fill value for hidden scores."""
        if not isinstance(entry, Ref):
            return True
        call = self._values[entry.number].made_by
        fills = call is not None and call.name.endswith(("full", "full_like", "zeros_like"))
        return fills or not self._depends(entry.number)

    def _filled(self, number: int, scores: str) -> bool:
        """Read a choice between two numbers as a mask: its condition hides or keeps."""
        call = self._values[number].made_by
        if call is None or call.name != "where":
            return False
        condition, *branches = _choice(call)
        numbers = [self._constant(branch) for branch in branches]
        if None in numbers or numbers[0] == numbers[1] or not isinstance(condition, Ref):
            return False
        role = "keep" if numbers[0] > numbers[1] else "drop"  # type: ignore[operator]  # no None
        self._mask(condition.number, role, scores)
        self._more.append(call)
        return True

    def _constant(self, entry: Any) -> float | None:
        if isinstance(entry, Ref):
            value = self._values[entry.number]
            is_one = value.tensor.numel() == 1 and not value.above
            return float(value.tensor) if is_one else None
        return float(entry) if isinstance(entry, (int, float)) else None

    def _mask(self, number: int, role: str, scores: str, factor: float = 1.0) -> None:
        shape = list(self._values[number].tensor.shape)
        if len(shape) > len(scores):
            msg = f"a mask of {len(shape)} axes enters scores of {len(scores)}"
            raise UnreadableError(msg)
        own = scores[len(scores) - len(shape) :]
        axes = "".join("1" if size == 1 else axis for axis, size in zip(own, shape, strict=True))
        if PARTED in axes:
            msg = "a mask differs between the blocks that its tokens are cut into"
            raise UnreadableError(msg)
        name = f"value {number}"
        mask = TorchMask(name=name, role=role, axes=axes, number=number, factor=factor)
        self._masks.setdefault(number, mask)
