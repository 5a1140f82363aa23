"""Finds a module's projections and heads by names, and by the golden reference where names fail."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from .._golden import golden
from ..base.geometry import read_pins
from ..base.printable_text import raised_text
from ..declare.declaration import ALIGNMENTS, MASK_FORMS
from ..declare.module_caches import Cache
from ..declare.promises import declare
from ..errors import DeclarationError, did_you_mean, lacks_import
from ..tolerance import contract_for, layer_bound
from .answers import output_of
from .calling import CallAdapter, Calling, call_to_fill
from .packing import (
    HEAD_NAMES,
    KV_HEAD_NAMES,
    TIMES,
    HeadSizes,
    StoredProjections,
    positive_attribute,
    possible_sizes,
    supports,
)
from .projections import INSIDE, OWN_WEIGHTS, Options, how_to_name, options, recipes
from .trial import LENGTHS, PROBES, Inputs, Trial, TrialAnswer, is_same

Semantics = golden.Semantics


def evaluate(
    inputs: Inputs,
    weights: golden.ProjectionWeights,
    sizes: HeadSizes,
    semantics: golden.Semantics,
    *,
    causal: bool = False,
) -> golden.MultiHeadAttention:
    """The golden layer's result on query, key and value."""
    return golden.multi_head_attention(
        *inputs,
        weights,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        causal=causal,
        semantics=semantics,
    )


def distance(answer: Tensor, evaluated: golden.MultiHeadAttention) -> float:
    """The largest difference from the golden output; infinite for another shape or NaN."""
    if answer.shape != evaluated.output.shape:
        return torch.inf
    difference = (answer.double() - evaluated.output).abs().max().item()
    return torch.inf if difference != difference else difference  # noqa: PLR0124 (NaN)


def agrees(
    answer: Tensor,
    inputs: Inputs,
    weights: golden.ProjectionWeights,
    sizes: HeadSizes,
    semantics: golden.Semantics,
    dtype: str,
    *,
    causal: bool = False,
) -> bool:
    """Whether ``answer [B, Lq, Eo]`` is golden for the inputs, as computed in ``dtype``."""
    evaluated = evaluate(inputs, weights, sizes, semantics, causal=causal)
    if answer.shape != evaluated.output.shape:
        return False
    contract = contract_for(declare("layer"), dtype, evaluated.core.scale)
    bound = layer_bound(evaluated, contract)
    return bool(((answer.double() - evaluated.output).abs() <= bound).all())


_MOST_HYPOTHESES: Final = 6_000
_STRICTNESSES: Final = 2  # float64, then float32
_OTHER_ANSWERS: Final = (
    "by no reading of its weights are its answers those of standard attention, or of what is "
    "declared: the plainest is judged. If it is meant so, 'conformance identify' declares it"
)
_WORDS: Final = {"q": "query", "k": "key", "v": "value", "o": "output"}


@dataclass(frozen=True, kw_only=True)
class ModuleRequest:
    """What the user passed for a module; ``promises`` are keywords of ``conformance.layer``."""

    shown: str
    num_heads: int | None = None
    num_kv_heads: int | None = None
    call: CallAdapter | None = None
    projections: Mapping[str, str] | None = None
    cache: Cache | None = None
    promises: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Earlier searches by way of calling, shared by requests that differ in their promises.
    known: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def inputs(self) -> str | None:
        """The declared inputs, if any."""
        inputs: str | None = self.promises.get("inputs")
        return inputs

    @property
    def batched(self) -> bool:
        """Whether the module's tensors have an axis of items."""
        return bool(self.promises.get("batched", True))

    @property
    def semantics(self) -> golden.Semantics:
        """The declared point, else the standard, with the alignment of the declared ``causal``."""
        point: golden.Semantics = self.promises.get("semantics") or golden.STANDARD
        causal = self.promises.get("causal")
        aligned = isinstance(causal, str) and causal in ALIGNMENTS
        return point.replace(causal_alignment=causal) if aligned else point

    @property
    def always_causal(self) -> bool:
        """Whether every call is declared causal, without a keyword that asks for causality."""
        return bool(self.promises.get("always_causal", False))

    def promising(self, more: Mapping[str, Any]) -> ModuleRequest:
        """A copy of the request with promises added or replaced."""
        return dataclasses.replace(self, promises={**self.promises, **more})


def check_number(name: str, value: int | None) -> None:
    """Require a number of heads to be a positive integer or None; raises DeclarationError."""
    if value is not None and (type(value) is not int or value < 1):
        msg = f"{name} is {value!r}: give a positive integer"
        raise DeclarationError(msg)


def check_promises(promises: Mapping[str, Any]) -> None:
    """Raise DeclarationError for wrong promises, before the search."""
    accepted = [word for word in inspect.signature(declare).parameters if word != "kind"]
    for word in promises:
        if word not in accepted:
            msg = (
                f"conformance.module got an unknown argument {word!r}{did_you_mean(word, accepted)}"
            )
            raise DeclarationError(msg)
    declare("layer", **promises)


def with_masks(promises: Mapping[str, Any], call: CallAdapter | None) -> dict[str, Any]:
    """The promises, completed by the mask forms that ``call=`` renames."""
    renamed = call if "masks" not in promises and isinstance(call, Mapping) else ()
    forms = [word for word in renamed if word in MASK_FORMS]
    return {**promises, "masks": forms} if forms else dict(promises)


@dataclass(frozen=True, kw_only=True)
class ModuleProjections:
    """The places of a module's projections, their cut into heads, and the assumptions.

    ``golden`` says whether the module's answer on a trial problem was golden; otherwise
    ``warnings`` say so. ``longest`` is the largest accepted number of tokens, ``only`` the single
    accepted number, and ``most_items`` the largest batch. ``point`` holds the semantics of the
    golden answers, ``always`` the alignment of their causality. ``calling`` is the way of calling;
    ``answered`` means that outputs had a row per query, and every input mattered.
    """

    recipe: StoredProjections
    sizes: HeadSizes
    golden: bool
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    longest: int | None = None
    only: int | None = None
    most_items: int | None = None
    calling: Calling | None = None
    answered: bool = False
    point: Semantics | None = None
    always: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypothesis:
    """A reading of a module's matrices; ``choice`` numbers the assignment of roles."""

    choice: int
    recipe: StoredProjections
    sizes: HeadSizes


@dataclass(frozen=True, kw_only=True)
class ProjectionSearch:
    """The state of a search; ``heads`` is None when no name or number tells the number of heads."""

    module: nn.Module
    request: ModuleRequest
    possible: Options
    heads: tuple[int, ...] | None
    kv_heads: int | None
    trial: Trial
    hypotheses: tuple[Hypothesis, ...] = ()
    notes: tuple[str, ...] = ()
    read: dict[Hypothesis, golden.ProjectionWeights] = dataclasses.field(default_factory=dict)
    # Keys of value and output projections, and whether they may be right at a point.
    value_paths: dict[Hypothesis, Any] = dataclasses.field(default_factory=dict)
    right_values: dict[Any, bool] = dataclasses.field(default_factory=dict)

    def weights(self, hypothesis: Hypothesis) -> golden.ProjectionWeights:
        """The drawn projections, read under a hypothesis."""
        if hypothesis not in self.read:
            read = hypothesis.recipe.read(self.trial.module, hypothesis.sizes)
            self.read[hypothesis] = read
        return self.read[hypothesis]

    def value_path(self, hypothesis: Hypothesis) -> Any:
        """A key for a hypothesis's value and output projections; equal keys, equal numbers."""
        if hypothesis not in self.value_paths:
            weights = self.weights(hypothesis)
            passed = (weights.v, weights.v_bias, weights.o, weights.o_bias)
            numbers = (b"" if one is None else one.numpy().tobytes() for one in passed)
            self.value_paths[hypothesis] = (hypothesis.sizes, *numbers)
        return self.value_paths[hypothesis]


def find(module: nn.Module, request: ModuleRequest, calling: Calling) -> ModuleProjections:
    """Find projections and heads; raises DeclarationError with a sentence on what to pass."""
    search = _opened(module, request, calling)
    hypotheses, notes = list(search.hypotheses), list(search.notes)
    chosen, is_golden = _decide(hypotheses, search)
    recipe = dataclasses.replace(chosen.recipe, tied=_tied(module, chosen.recipe))
    if len(hypotheses) > 1:
        notes.append(_confirmation(chosen, search, is_golden=is_golden))
    notes.extend(_leftovers(search.possible, chosen.recipe))
    widths = chosen.recipe.widths(search.trial.module, chosen.sizes)
    longest = _longest(chosen, search) if search.trial.answered else None
    if longest is not None:
        of_what = f", a size of its {longest[1]}" if longest[1] else ""
        notes.append(f"it takes at most {longest[0]} tokens{of_what}")
    only = search.trial.only
    if only is not None:
        notes.append(f"it takes {only} tokens alone")
    most = search.trial.most_items(widths) if search.trial.answered else None
    if most is not None:
        notes.append(f"it takes at most {most} items")
    notes.extend(trial_notes(search.trial))
    return ModuleProjections(
        recipe=recipe,
        sizes=chosen.sizes,
        golden=is_golden,
        assumptions=(*recipe_notes(recipe), *notes),
        longest=None if longest is None else longest[0],
        warnings=() if is_golden or not search.trial.answered else (_OTHER_ANSWERS,),
        only=only,
        most_items=most,
        point=request.semantics if is_golden else None,
        always=request.semantics.causal_alignment if request.always_causal else None,
        calling=search.trial.calling,
        answered=search.trial.plausible
        and search.trial.keeps_items_apart(widths)
        and search.trial.heeds_every_input(widths),
    )


def _opened(module: nn.Module, request: ModuleRequest, calling: Calling) -> ProjectionSearch:
    way = (
        *(calling.inputs, calling.names, calling.sequence_first, id(calling.function)),
        _lengths(request),
    )
    key = (id(module), way, request.batched, request.num_heads, request.num_kv_heads)
    if key not in request.known:
        possible = options(request.shown, module, request.projections)
        heads, notes = _declared_heads(module, request, possible)
        attribute = positive_attribute(module, KV_HEAD_NAMES)
        search = ProjectionSearch(
            module=module,
            request=request,
            possible=possible,
            heads=heads,
            kv_heads=request.num_kv_heads or (attribute[1] if attribute else None),
            trial=_trial(module, request, calling, possible),
        )
        hypotheses = tuple(itertools.islice(_hypotheses(search), _MOST_HYPOTHESES))
        answered = _settle(search.trial, hypotheses)
        if not answered and (in_parts := tuple(_in_parts(search))):
            hypotheses = in_parts
            _settle(search.trial, hypotheses)
        if not hypotheses:
            search, notes = _with_any_heads(search), []
            hypotheses = tuple(itertools.islice(_hypotheses(search), _MOST_HYPOTHESES))
            _settle(search.trial, hypotheses)
        request.known[key] = dataclasses.replace(
            search,
            hypotheses=hypotheses,
            notes=tuple(notes),
            read={},
            value_paths={},
            right_values={},
        )
    search = cast("ProjectionSearch", request.known[key])
    return dataclasses.replace(search, request=request)


# Widths tried until a module answers; twice as many head sizes.
_MOST_TRIED: Final = 4


def _settle(trial: Trial, hypotheses: Iterable[Hypothesis]) -> bool:
    """Fill the parameters besides tokens; whether any call answers."""
    some = list(itertools.islice(hypotheses, _MOST_HYPOTHESES))
    widths = dict.fromkeys(one.recipe.widths(trial.module, one.sizes) for one in some[:_MOST_TRIED])
    sizes = dict.fromkeys(one.sizes.head_size for one in some)
    return trial.settle(tuple(widths), tuple(sizes)[: 2 * _MOST_TRIED])


def _longest(chosen: Hypothesis, search: ProjectionSearch) -> tuple[int, str] | None:
    """The largest number of tokens and the tensor with this size; None without a limit.

    None also where the declaration speaks of lengths.
    """
    if not {"max_length", "geometry"}.isdisjoint(search.request.promises):
        return None
    return search.trial.longest(chosen.recipe.widths(search.trial.module, chosen.sizes))


def _with_any_heads(search: ProjectionSearch) -> ProjectionSearch:
    """The search without an attribute that looked like a number of heads, but fits no matrix.

    Raises DeclarationError where no number of heads fits, or the user gave the number.
    """
    freed = dataclasses.replace(search, heads=None, kv_heads=None)
    declared = search.request.num_heads is not None or search.request.num_kv_heads is not None
    if declared or search.heads is None or next(_hypotheses(freed), None) is None:
        raise DeclarationError(_unfit(search))
    return freed


def _declared_heads(
    module: nn.Module, request: ModuleRequest, possible: Options
) -> tuple[tuple[int, ...] | None, list[str]]:
    if request.num_heads is not None:
        return (request.num_heads,), []
    result = positive_attribute(module, HEAD_NAMES)
    if result is not None:
        return (result[1],), [f"{result[1]} heads, as its attribute {result[0]} says"]
    matrices = possible.assignments[0].items()
    counts = [leaf.count for roles, leaf in matrices if "q" in roles and leaf.count > 1]
    if counts:
        return (counts[0],), [f"{counts[0]} heads, one matrix each"]
    return None, []


def _trial(module: nn.Module, request: ModuleRequest, calling: Calling, possible: Options) -> Trial:
    """A trial with random numbers in every matrix and bias that may belong to a projection."""
    drawn: set[int] = set()
    for assignment in possible.assignments:
        recipe = next(recipes(assignment, possible.biases))
        for holder in (*recipe.matrices, *recipe.biases):
            drawn |= {id(parameter) for parameter in holder.parameters(module)}
    parameters = module.named_parameters(remove_duplicate=False)
    names = tuple(name for name, parameter in parameters if id(parameter) in drawn)
    return Trial(module, calling, request.batched, names, lengths=_lengths(request))


def _lengths(request: ModuleRequest) -> tuple[tuple[int, int], ...]:
    """Query and key lengths of trial calls: the usual ones, limited to the declared lengths."""
    rule, longest = request.promises.get("geometry"), request.promises.get("max_length")
    pins = read_pins(rule if isinstance(rule, Mapping) else None)
    lengths = []
    for queries, keys in LENGTHS:
        most = longest or max(queries, keys)
        wanted = PROBES[0].replace(query_length=min(queries, most), key_length=min(keys, most))
        pinned = pins.apply(wanted)
        lengths.append((pinned.query_length, pinned.key_length))
    return tuple(dict.fromkeys(lengths))


def _hypotheses(search: ProjectionSearch) -> Iterator[Hypothesis]:
    for choice, assignment in enumerate(search.possible.assignments):
        for recipe in recipes(assignment, search.possible.biases):
            pairs = zip(recipe.matrices, assignment.values(), strict=True)
            shapes = {holder.roles: leaf.read_by(holder) for holder, leaf in pairs}
            for sizes in possible_sizes(shapes, search.heads, search.kv_heads):
                if _fits(search.module, recipe, sizes):
                    yield Hypothesis(choice=choice, recipe=recipe, sizes=sizes)


def _in_parts(search: ProjectionSearch) -> Iterator[Hypothesis]:
    """Hypotheses in which every head projects its own part of the tokens by a small matrix."""
    for choice, assignment in enumerate(search.possible.assignments):
        inputs = [leaf for roles, leaf in assignment.items() if roles != "o"]
        counts = {leaf.count for leaf in inputs}
        for recipe in recipes(assignment, search.possible.biases):
            pairs = zip(recipe.matrices, assignment.values(), strict=True)
            shapes = {holder.roles: leaf.read_by(holder) for holder, leaf in pairs}
            small = {shapes[roles] for roles in "qkv" if roles in shapes}
            if any(holder.axes for holder in recipe.matrices) or {*shapes} - {"o"} != {*"qkv"}:
                continue
            if len(small) > 1 or len(counts) > 1:
                continue
            ((rows, columns),), (stacked,) = small, counts
            merged = shapes["o"][1] if "o" in shapes else None
            heads = merged // columns if merged else max(stacked, *search.heads or (1,))
            sizes = HeadSizes(
                num_heads=heads, num_kv_heads=heads, head_size=columns, value_head_size=columns
            )
            as_many = heads > 1 and stacked in (1, heads) and search.heads in (None, (heads,))
            square = rows == stacked * columns and merged in (None, heads * columns)
            if as_many and square:
                yield Hypothesis(choice=choice, recipe=recipe.in_parts(), sizes=sizes)


def _fits(module: nn.Module, recipe: StoredProjections, sizes: HeadSizes) -> bool:
    """Whether layouts suit these sizes and biases have the right number of rows."""
    if not all(supports(holder.layout, holder.roles, sizes) for holder in recipe.matrices):
        return False
    for holder in recipe.biases:
        rows = sum(parameter.numel() for parameter in holder.parameters(module))
        if holder.roles != "o" and rows != sum(sizes.rows(role) for role in holder.roles):
            return False
    return True


def _decide(hypotheses: list[Hypothesis], search: ProjectionSearch) -> tuple[Hypothesis, bool]:
    agreeing = _agreeing(hypotheses, search)
    if len({hypothesis.choice for hypothesis in agreeing}) > 1:
        msg = (
            f"several assignments of {search.request.shown}'s matrices to query, key and value "
            f"agree with the golden reference: {how_to_name(search.possible.leaves)}"
        )
        raise DeclarationError(msg)
    if agreeing:
        return agreeing[0], True
    failure = search.trial.failure
    if failure is not None and not search.trial.answered and lacks_import(failure):
        msg = f"{search.request.shown} cannot be called: it {raised_text(failure)}"
        raise DeclarationError(msg) from failure
    if search.trial.calling.wanted and not search.trial.answered:
        raise _unfilled(search)
    if not search.possible.named:
        raise DeclarationError(_unknown_roles(search))
    if search.heads is None and len({hypothesis.sizes for hypothesis in hypotheses}) > 1:
        msg = (
            f"{search.request.shown} does not say how many heads it has, and with no number of "
            f"them does it agree with the golden reference{_because(search)}: pass "
            "num_heads="
        )
        raise DeclarationError(msg)
    return hypotheses[0], False


def _agreeing(hypotheses: list[Hypothesis], search: ProjectionSearch) -> list[Hypothesis]:
    """The hypotheses with golden answers, in the strictest dtype that a hypothesis meets.

    Bounds cost more than answers, so check the nearest answers first and stop at a failure.
    """
    of_logits = ("scale", "rotary", "qk_norm", "causal_alignment")
    plain = {name: getattr(golden.STANDARD, name) for name in of_logits}
    point = search.request.semantics.replace(**plain)
    indices = range(len(hypotheses))
    possible = [index for index in indices if _has_right_values(hypotheses[index], search, point)]
    distances = {index: _distance(hypotheses[index], search) for index in possible}
    nearest = sorted(possible, key=distances.__getitem__)
    for strictness in range(_STRICTNESSES):
        near = []
        for index in nearest:
            hypothesis = hypotheses[index]
            if not holds(
                hypothesis.recipe,
                hypothesis.sizes,
                search.trial,
                search.request,
                strictness,
            ):
                break
            near.append(index)
        if near:
            return [hypotheses[index] for index in sorted(near)]
    return []


def _has_right_values(
    hypothesis: Hypothesis, search: ProjectionSearch, point: golden.Semantics
) -> bool:
    """Whether a hypothesis may be right about the value and output matrices.

    With equal tokens and weights that sum to one, queries, keys and logits have no influence:
    hypotheses that differ only there share a single trial, at a point with standard logits.
    """
    key = search.value_path(hypothesis), point
    if key not in search.right_values:
        weights, sizes = search.weights(hypothesis), hypothesis.sizes
        answer = search.trial.answer_to_equal_tokens(_widths(weights))
        search.right_values[key] = True
        if answer is not None and not _leaves_rows_empty(answer):
            evaluated = evaluate(answer.inputs, weights, sizes, point)
            sums = evaluated.core.weights.sum(-1)
            if is_same(torch.ones_like(sums), sums):
                as_said = evaluated.output.shape == answer.output.shape
                search.right_values[key] = as_said and is_same(evaluated.output, answer.output)
    return search.right_values[key]


def _leaves_rows_empty(answer: TrialAnswer) -> bool:
    """Whether a causal rule may leave queries without keys."""
    query, key, _ = answer.inputs
    return query.shape[1] > key.shape[1]


def _distance(hypothesis: Hypothesis, search: ProjectionSearch) -> float:
    weights = search.weights(hypothesis)
    answer = search.trial.answer(_widths(weights))
    if answer is None:
        return math.inf
    semantics, causal = search.request.semantics, search.request.always_causal
    evaluated = evaluate(answer.inputs, weights, hypothesis.sizes, semantics, causal=causal)
    return distance(answer.output, evaluated)


def _widths(weights: golden.ProjectionWeights) -> tuple[int, int, int]:
    return weights.q.shape[1], weights.k.shape[1], weights.v.shape[1]


def answers_golden(
    recipe: StoredProjections, sizes: HeadSizes, trial: Trial, request: ModuleRequest
) -> bool:
    """Whether a module's trial answer is golden when a recipe reads its weights."""
    return any(holds(recipe, sizes, trial, request, step) for step in range(_STRICTNESSES))


def holds(
    recipe: StoredProjections,
    sizes: HeadSizes,
    trial: Trial,
    request: ModuleRequest,
    strictness: int,
) -> bool:
    """Whether the trial answer is golden within the bound of its dtype number ``strictness``."""
    weights = recipe.read(trial.module, sizes)
    answer = trial.answer(_widths(weights))
    if answer is None or strictness >= len(answer.dtypes):
        return False
    dtype = answer.dtypes[strictness]
    return agrees(
        answer.output,
        answer.inputs,
        weights,
        sizes,
        request.semantics,
        dtype,
        causal=request.always_causal,
    )


def is_causal_with_masks(
    module: nn.Module, finding: ModuleProjections, calling: Calling, request: ModuleRequest
) -> bool:
    """Whether a module that is causal without a mask stays causal with every declared mask."""
    declared = declare("layer", **request.promises)
    widths = finding.recipe.widths(module, finding.sizes)
    trial = Trial(module, calling, batched=request.batched, names=())
    return all(
        trial.is_causal_with(widths, finding.sizes.num_heads, form, declared.mask_shapes[0])
        for form in declared.masks
        if form != "lengths"
    )


def _confirmation(chosen: Hypothesis, search: ProjectionSearch, *, is_golden: bool) -> str:
    if not is_golden:
        return "no layout of the weights agrees with the golden reference: the likeliest was taken"
    if search.heads is None:
        return f"{chosen.sizes.num_heads} heads: with these it agrees with the golden reference"
    return "roles and layout were confirmed by agreement with the golden reference"


def _unfilled(search: ProjectionSearch) -> DeclarationError:
    calling, shown = search.trial.calling, search.request.shown
    names = [parameter.name for parameter in calling.wanted]
    lacking = call_to_fill(calling.inputs, calling.names or (), names)
    msg = (
        f"{shown}.forward needs {' and '.join(map(repr, names))}, and takes nothing that the "
        f"harness makes for {'it' if len(names) == 1 else 'them'}{_because(search)}: give "
        f"the right value{'s' * (len(names) > 1)}, instead of None, in {lacking}"
    )
    return DeclarationError(msg, lacking)


def _unknown_roles(search: ProjectionSearch) -> str:
    titles = ", ".join(leaf.title for leaf in search.possible.leaves)
    number = "" if search.heads is None else f" with {_heads(search.heads[0])}"
    return (
        f"the names in {search.request.shown} ({titles}) do not say which projection is which, "
        f"and no assignment{number} agrees with the golden reference{_because(search)}: "
        f"{how_to_name(search.possible.leaves)}"
    )


def _because(search: ProjectionSearch) -> str:
    trial = search.trial
    if trial.failure is None or trial.answered:
        return ""
    why = f"a trial call {raised_text(trial.failure)}"
    if _takes_one_query(search):
        why += (
            "; it takes a query [B, E], of a single token and without an axis of lengths, where "
            "every clause gives [B, L, E]: say in call= how it is called with a token at a time"
        )
    return f" ({why})"


def _takes_one_query(search: ProjectionSearch) -> bool:
    """Whether a module answers single queries without an axis of lengths, with such an answer."""
    trial, places = search.trial, {"memory": 1, "separate": 2}.get(search.trial.calling.inputs, 0)
    widths = {leaf.out_and_in(transposed=leaf.transposed[0])[1] for leaf in search.possible.leaves}
    for width in widths if places else ():
        dtype = next((one.dtype for one in trial.module.parameters()), torch.float32)
        query, tokens = torch.ones(2, width, dtype=dtype), torch.ones(2, 3, width, dtype=dtype)
        try:
            with torch.no_grad():
                answer = output_of(trial.module(query, *[tokens] * places), query)
        except Exception:  # noqa: BLE001, S112 (a user's module may raise anything)
            continue
        if isinstance(answer, Tensor) and answer.dim() == query.dim():
            return True
    return False


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


def _unfit(search: ProjectionSearch) -> str:
    shapes = ", ".join(
        f"{leaf.title} {list(leaf.out_and_in(transposed=leaf.transposed[0]))}"
        for leaf in search.possible.leaves
    )
    number = "any number of heads" if search.heads is None else _heads(search.heads[0])
    freed = dataclasses.replace(search, heads=None, kv_heads=None)
    others = next(_hypotheses(freed), None) is not None
    lead = f"pass num_heads= and num_kv_heads=, or {INSIDE}" if others else OWN_WEIGHTS
    return (
        f"the matrices of {search.request.shown} (out, in: {shapes}) cannot be multi-head "
        f"attention with {number}: {lead}"
    )


def _tied(module: nn.Module, recipe: StoredProjections) -> str:
    """The paths of two parameters of a recipe that share a tensor, in words; else ""."""
    paths: dict[int, str] = {}
    for holder in (*recipe.matrices, *recipe.biases):
        for parameter in holder.parameters(module) if TIMES not in holder.path else ():
            other = paths.setdefault(id(parameter), holder.path)
            if other != holder.path:
                return f"{other} and {holder.path}"
    return ""


def recipe_notes(recipe: StoredProjections) -> Iterator[str]:
    """Sentences on where each projection was found."""
    for holder in recipe.matrices:
        roles = ", ".join(_WORDS[role] for role in holder.roles)
        fused = f", fused as {holder.layout}" if len(holder.roles) > 1 else ""
        stored = ", stored [in, out]" if holder.transposed else ""
        yield f"{roles}: {holder.path}{fused}{stored}"
    if not recipe.has_output:
        yield "no output projection"
    if recipe.tied:
        yield f"{recipe.tied} are one tensor: it keeps its own weights"


def _leftovers(possible: Options, recipe: StoredProjections) -> Iterator[str]:
    used = {holder.path for holder in recipe.matrices}
    others = [leaf.title for leaf in possible.leaves if leaf.path not in used]
    if others:
        yield f"left as they are: {', '.join(others)}"


def trial_notes(trial: Trial) -> Iterator[str]:
    """Sentences on what a trial call showed."""
    if not trial.answered and trial.failure is not None:
        yield f"a trial call {raised_text(trial.failure)}"
    elif trial.returned is not None and issubclass(trial.returned, (tuple, list)):
        yield "it returns several things: the first is the output"
