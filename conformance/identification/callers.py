"""The ways of calling a function, a builder or a torch module, each as a :class:`Caller`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from torch import nn

from .._golden import golden
from ..adapters.arrays import arrays_of, on_arrays
from ..adapters.calling import Calling, ways_to_call
from ..adapters.filling import masks_that_hide_nothing, positions_for
from ..adapters.module import understand
from ..adapters.projection_search import ModuleProjections, ModuleRequest
from ..adapters.trial import duplicate, put_in_dtype
from ..base.geometry import Geometry
from ..calls.calling import CandidateFailure, guarded
from ..errors import DeclarationError, UsageError
from ..problems.materialise import TORCH_DTYPES, in_dtype
from .caller import Caller, SizeRule, draw_weights
from .convention import CORE_LAYOUTS, LAYER_LAYOUTS, MIXED_LAYOUTS, Convention, Layout
from .implementation import Implementation
from .signature import Parameters, read_parameters
from .switches import Options, plain_options

_MODES: Final = {1: "self", 2: "memory", 3: "separate"}
SEPARATE: Final = 3
# Attributes of a module with the size of a head.
_HEAD_SIZE: Final = re.compile(r"(head_?|key_|d_)?(dim|size|k)(_(per_)?heads?)?")
# The largest plausible head size.
_LARGEST_HEAD: Final = 1024
_LENGTHS: Final = ("key_length", "g.query_length")
_VALUES: Final = ("value_head_size", "g.head_size")
_EVEN_HEADS: Final = ("head_size", "g.head_size + g.head_size % 2")
# Sizes that many functions tie together, the fewest ties first.
_CORE_TIES: Final = (
    *((), (_VALUES,), (_LENGTHS,), (_LENGTHS, _VALUES)),
    *((("num_kv_heads", "1"),), (_EVEN_HEADS,), (_EVEN_HEADS, _LENGTHS, _VALUES)),
)


def function_callers(implementation: Implementation) -> Iterator[Caller]:
    """A plain function of query, key and value, in every order of axes."""
    parameters = implementation.parameters
    mode, first = read_inputs(parameters, implementation.name)
    if mode != "separate":
        return
    orders = _orders(parameters, first)
    heads = parameters.meaning("heads")
    tied = (SizeRule(changes=changes) for changes in _CORE_TIES)
    rules = (*_built_sizes(implementation.value), *tied)
    fills = list(needed(parameters))
    ways = (
        itertools.product(arrays_of(implementation.value), fills, rules, layouts, orders)
        for layouts in (CORE_LAYOUTS, MIXED_LAYOUTS)
    )
    for arrays, given, rule, layout, names in itertools.chain.from_iterable(ways):
        if arrays == "numpy" and layout.give != "{}":
            continue
        options: Options = given
        needs_heads = bool(heads) and heads[0].required
        if layout.name == "BLE":
            if not heads:
                continue
            options = (*options, (heads[0].name, "{query}.shape[1]"))
        elif needs_heads:
            continue
        for way in plain_options(parameters, options):
            yield Caller(
                prepare=partial(_prepared, implementation.value, arrays),
                arrays=arrays,
                convention=Convention(
                    kind="core",
                    inputs="separate",
                    layout=layout,
                    names=names,
                    options=way,
                ),
                sizes=_with_layout(rule, layout),
                weigh=lambda _geometry, _dtype, _seed: None,
                biases="",
            )


def _orders(parameters: Parameters, first: tuple[str, ...] | None) -> list[tuple[str, ...] | None]:
    """The input orders to try: the signature's own, then permutations if no name tells a role."""
    said = [entry for entry in parameters.entries if entry.meaning in ("q", "k", "v")]
    required = [entry for entry in parameters.entries if entry.required and not entry.meaning]
    if said or len(required) != SEPARATE or not all(entry.by_keyword for entry in required):
        return [first]
    names = tuple(entry.name for entry in required)
    return [first, *list(itertools.permutations(names))[1:]]


def _prepared(value: Any, arrays: str, _geometry: Geometry, _weights: Any) -> Any:
    return value if arrays == "torch" else partial(on_arrays, value)


def _built_sizes(value: Any) -> list[SizeRule]:
    """The head sizes in the attributes of a module without projections."""
    if not isinstance(value, nn.Module):
        return []
    own = (part for part in value.modules() if not type(part).__module__.startswith("torch."))
    held = [entry for part in own for entry in vars(part).items()]
    numbers = {
        number for name, number in held if _HEAD_SIZE.fullmatch(name) and type(number) is int
    }
    return [
        SizeRule(changes=(("head_size", str(number)), ("value_head_size", str(number))))
        for number in sorted(numbers)
        if 1 < number <= _LARGEST_HEAD
    ]


def _with_layout(rule: SizeRule, layout: Layout) -> SizeRule:
    single = {"num_heads": layout.single_head, "num_kv_heads": layout.single_head}
    single["num_kv_heads"] |= layout.single_kv_head
    heads = tuple((name, "1") for name, is_single in single.items() if is_single)
    return SizeRule(changes=(*heads, *rule.changes))


def read_inputs(parameters: Parameters, shown: str) -> tuple[str, tuple[str, ...] | None]:
    """The kind of inputs, and their keywords if the order is not query, key, value.

    Raises UsageError for a number of required arguments that attention does not have.
    """
    roles = {entry.meaning: entry.name for entry in parameters.entries if entry.meaning in "qkv"}
    roles.pop("", None)
    if len(roles) == SEPARATE:
        names = tuple(roles[role] for role in "qkv")
        leading = [entry.name for entry in parameters.entries if entry.position in (0, 1, 2)]
        return "separate", None if tuple(leading) == names else names
    if not says_inputs(parameters):
        return "separate", None  # an open signature: query, key and value, by position
    required = [
        entry
        for entry in parameters.entries
        if entry.required and entry.meaning in ("q", "k", "v", "")
    ]
    if len(required) not in _MODES:
        names_text = ", ".join(entry.name for entry in required)
        msg = (
            f"{shown} needs {len(required)} arguments ({names_text}), and attention takes one, two "
            "or three inputs: wrap it in a function that fills in the others"
        )
        raise UsageError(msg)
    leading = [entry.name for entry in parameters.entries if 0 <= entry.position < len(required)]
    names = tuple(entry.name for entry in required)
    return _MODES[len(required)], None if tuple(leading) == names else names


def says_inputs(parameters: Parameters) -> bool:
    """Whether a signature names its inputs: ``*inputs, **keywords`` does not."""
    return any(entry.position >= 0 or entry.required for entry in parameters.entries)


def needed(parameters: Parameters) -> Iterator[Options]:
    """Values for required arguments without use in a plain call, the likeliest first.

    None for masks and no dropout; then masks that hide nothing, and tables of positions.
    """
    neutral = {"dropout": ("0.0", "None"), "causal": ("False",), "scale": ("None",)}
    groups: dict[str, list[list[tuple[str, str]]]] = {}
    roles = {entry.meaning for entry in parameters.entries} & {"q", "k", "v"}
    for entry in parameters.entries:
        unknown = not entry.meaning and len(roles) == SEPARATE  # query, key and value have names
        if not entry.required or not (unknown or entry.meaning in (*neutral, "mask", "positions")):
            continue
        if entry.meaning == "mask" or unknown:
            values: Iterable[str] = masks_that_hide_nothing()
        elif entry.meaning == "positions":
            values = positions_for(entry.name, ("{query}.shape[-1]",))
        else:
            values = neutral[entry.meaning]
        groups.setdefault(entry.meaning, []).append([(entry.name, value) for value in values])
    ways = [list(zip(*alike, strict=False)) for alike in groups.values()]
    for chosen in itertools.islice(itertools.product(*ways), _MOST_FILLED):
        yield tuple(itertools.chain.from_iterable(chosen))


# The largest number of ways to fill required arguments besides the inputs.
_MOST_FILLED: Final = 60


# Possible ties between the sizes of built layers, as changes in order.
_VALUE_HEADS: Final = ((), (("value_head_size", "g.head_size"),))
_WIDTHS: Final = (
    (),
    (("query_size", "g.num_heads * g.head_size"),),
    (
        ("query_size", "g.num_heads * g.head_size"),
        ("key_size", "g.query_size"),
        ("value_size", "g.query_size"),
    ),
)
_OUTPUT_WIDTHS: Final = (
    (),
    (("output_size", "g.num_heads * g.value_head_size"),),
    (("output_size", "g.query_size"),),
)
_EVEN: Final = (
    (),
    (("num_heads", "g.num_heads + g.num_heads % 2"), ("num_kv_heads", "g.num_heads")),
)
_TIES: Final = {
    "separate": (),
    "memory": (("value_size", "g.key_size"),),
    "self": (("key_size", "g.query_size"), ("value_size", "g.query_size")),
}


def size_rules(mode: str) -> list[SizeRule]:
    """The possible ties between a builder's sizes, the fewest ties first."""
    rules = []
    for parts in itertools.product(_VALUE_HEADS, _WIDTHS, _OUTPUT_WIDTHS, _EVEN):
        values, widths, outputs, even = parts
        changes = (*even, *values, *widths, *_TIES[mode], *outputs)
        rules.append((sum(map(bool, parts)), len(changes), changes))
    return [SizeRule(changes=changes) for _, _, changes in sorted(rules, key=lambda rule: rule[:2])]


def builder_callers(implementation: Implementation) -> Iterator[Caller]:
    """Callers of a function ``(geometry, weights) -> forward``, the fewest size ties first."""
    declared = implementation.declared
    if declared is not None and not declared.draws_weights:
        yield from _fixed_callers(implementation)
        return
    for mode in ("separate", "self", "memory"):
        rules = [*_pinned(implementation), *size_rules(mode)]
        for rule, biases in itertools.product(rules, ("qkvo", "", "qkv", "o")):
            for layout in LAYER_LAYOUTS:
                yield from _layer_callers(implementation, mode, rule, layout, biases)


def _pinned(implementation: Implementation) -> list[SizeRule]:
    """The fixed sizes of a declared layer that was built before."""
    sizes = (
        implementation.declared.declaration.pins.sizes
        if implementation.declared is not None
        else {}
    )
    fixed = tuple((name, str(values[0])) for name, values in sizes.items() if len(values) == 1)
    return [SizeRule(changes=fixed)] if fixed else []


def _layer_callers(
    implementation: Implementation, mode: str, rule: SizeRule, layout: Layout, biases: str
) -> Iterator[Caller]:
    caller = Caller(
        prepare=partial(_built, implementation.value),
        convention=Convention(kind="layer", inputs=mode, layout=layout),
        sizes=rule,
        weigh=lambda geometry, dtype, seed: draw_weights(geometry, biases, dtype=dtype, seed=seed),
        biases=biases,
    )
    forward = _try_building(caller)
    if forward is None:
        return
    parameters = read_parameters(forward)
    try:
        taken, names = read_inputs(parameters, implementation.name)
    except UsageError:
        return
    if taken != mode and says_inputs(parameters):
        return
    for given in needed(parameters):
        for way in plain_options(parameters, given):
            yield caller.under(names=names, options=way)


def _try_building(caller: Caller) -> Any:
    try:
        inputs = caller.draw()
        return guarded(caller.prepare, (inputs.geometry, inputs.weights), {})
    except CandidateFailure:
        return None


def _built(builder: Any, geometry: Any, weights: Any) -> Any:
    forward = builder(geometry, weights)
    if hasattr(forward, "eval"):
        forward.eval()
    return forward


def _fixed_callers(implementation: Implementation) -> Iterator[Caller]:
    """The callers of a declared layer whose own weights fix widths and heads."""
    declared = implementation.declared
    if declared is None:
        return
    pins = declared.declaration.pins
    fixed = declared.fixed_weights
    forward = declared.function(None, fixed)
    parameters, mode, names = read_parameters(forward), declared.declaration.inputs, None
    if says_inputs(parameters):
        mode, names = read_inputs(parameters, implementation.name)
    rule = SizeRule(changes=tuple((name, str(sizes[0])) for name, sizes in pins.sizes.items()))
    for layout in LAYER_LAYOUTS:
        yield Caller(
            prepare=lambda _geometry, weights: _built(declared.function, None, weights),
            convention=Convention(kind="layer", inputs=mode, layout=layout, names=names),
            sizes=rule,
            weigh=lambda _geometry, dtype, _seed: in_dtype(fixed, TORCH_DTYPES[dtype]),
            draws=False,
        )


@dataclass(frozen=True)
class Understood:
    """A module's projections, and the way to call the module."""

    built: nn.Module
    calling: Calling
    finding: ModuleProjections
    batched: bool


def understood(built: nn.Module, request: ModuleRequest) -> Understood | DeclarationError:
    """The adapters' reading of a module, or the error that explains their failure."""
    try:
        calling, finding, promises = understand(built, request)
    except DeclarationError as error:
        return error
    return Understood(built, calling, finding, bool(promises.get("batched", True)))


def module_callers(reading: Understood) -> Iterator[Caller]:
    """The module called with batch or sequence first, or without a batch."""
    recipe, sizes = reading.finding.recipe, reading.finding.sizes
    own = recipe.read(reading.built, sizes)
    copies: dict[str, nn.Module] = {}
    widths = {
        "num_heads": sizes.num_heads,
        "num_kv_heads": sizes.num_kv_heads,
        "head_size": sizes.head_size,
        "value_head_size": sizes.value_head_size,
        "query_size": own.q.shape[1],
        "key_size": own.k.shape[1],
        "value_size": own.v.shape[1],
        "output_size": sizes.num_heads * sizes.value_head_size if own.o is None else own.o.shape[0],
    }
    if reading.finding.only is not None:
        widths |= dict.fromkeys(("query_length", "key_length"), reading.finding.only)
    biases = "".join(role for role in "qkvo" if recipe.has_bias(role))

    def prepare(_geometry: Geometry, weights: golden.ProjectionWeights | None) -> nn.Module:
        if weights is None:
            return reading.built
        name = str(weights.q.dtype)
        if name not in copies:
            copies[name] = put_in_dtype(duplicate(reading.built).eval(), weights.q.dtype)
        if not recipe.is_free:
            return copies[name]
        module = duplicate(copies[name])
        recipe.write(module, sizes, weights)
        return module

    def weigh(geometry: Geometry, dtype: str, seed: int) -> golden.ProjectionWeights | None:
        if not recipe.is_free:
            return in_dtype(own, TORCH_DTYPES[dtype])
        drawn = draw_weights(geometry, biases, dtype=dtype, seed=seed)
        if recipe.has_output:
            return drawn
        return golden.ProjectionWeights(
            q=drawn.q,
            k=drawn.k,
            v=drawn.v,
            q_bias=drawn.q_bias,
            k_bias=drawn.k_bias,
            v_bias=drawn.v_bias,
        )

    point, always = reading.finding.point, reading.finding.always
    caller = Caller(
        prepare=prepare,
        convention=Convention(kind="layer", inputs=reading.calling.inputs, layout=LAYER_LAYOUTS[0]),
        sizes=SizeRule(changes=tuple((name, str(size)) for name, size in widths.items())),
        weigh=weigh,
        biases=biases,
        draws=recipe.is_free,
        longest=reading.finding.longest,
        most_items=reading.finding.most_items,
        hint=None if point is None else (point, always),
    )
    ways = plain_options(read_parameters(reading.built), reading.calling.fills)
    called = itertools.product(_called(reading), _layouts(reading), ways)
    asked = [
        caller.under(inputs=mode, layout=layout, names=names, options=way)
        for (mode, names), layout, way in called
    ]
    yield from asked
    if reading.finding.only is None:
        yield from _of_one_length(asked)


def _of_one_length(asked: Iterable[Caller]) -> Iterator[Caller]:
    """The ways of calling with several inputs, now with as many keys as queries."""
    for way in asked:
        if way.convention.inputs != "self":
            yield replace(way, sizes=SizeRule(changes=(*way.sizes.changes, _LENGTHS)))


def _called(reading: Understood) -> list[tuple[str, tuple[str, ...] | None]]:
    """The inputs as the adapters read them, then with an optional second input."""
    called = [(reading.calling.inputs, reading.calling.names)]
    if called[0][0] == "self":
        try:
            others = ways_to_call("it", reading.built.forward, None, None)
        except DeclarationError:
            others = []
        called += [(way.inputs, way.names) for way in others if way.inputs == "memory"]
    return list(dict.fromkeys(called))


def _layouts(reading: Understood) -> list[Layout]:
    """The layouts, the adapters' own layout first."""
    first = "LE" if not reading.batched else "LBE" if reading.calling.sequence_first else "BLE"
    return sorted(LAYER_LAYOUTS, key=lambda layout: layout.name != first)
