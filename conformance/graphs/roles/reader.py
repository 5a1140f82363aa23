"""Reads a graph: finds a call that runs, then interprets its inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import onnx

from ...errors import UsageError
from ..process import Array, Feeds
from ..reading import GraphReading, Header, Port, Role, suggests
from ..sidecar import GraphDeclaration, check_declaration
from .first_call import read_outputs
from .interpreting import MODES, Interpretation, RoleAssignment, interpret, remedy
from .masks import read_masks, widened
from .packing import read_packing
from .plans import AXIS_ORDERS, FLOATS, INTEGERS, ROLES, CallPlan, plans, usual
from .probe import BaseCall, GraphProbe, Traits, affected
from .spans import SizeProbe, read_spans

_WIDTHS: Final = {"self": ("x",) * 3, "memory": ("query", "context", "context")}
_FIELDS: Final = {"B": "batch", "Q": "query_length", "K": "key_length"}


def read_without_calls(header: Header, declared: GraphDeclaration) -> GraphReading:
    """Guess roles by names, types and order of the inputs; raises UsageError without a query.

    The reading lets clauses call the graph, so that unanswered calls become a verdict.
    """
    plan = next((plan for plan in plans(header, declared, usual(())) if plan.shapes()), None)
    if plan is None or not header.outputs:
        msg = f"{header.path}: no input can be a query, and the graph gives no answer when called"
        raise UsageError(msg)
    roles = _tensor_roles(plan.tensors, declared)
    shapes = plan.shapes() or {}
    mode = MODES[len(plan.tensors)]
    sizes = {role: shapes[name] for name, role in roles.items()}
    inputs = [
        *(
            Role(name=n, role=role, axes=plan.layout, dtype=header.input(n).dtype)
            for n, role in roles.items()
        ),
        *(_mask(port, axes) for port, axes in plan.masks),
        *(
            Role(
                name=p.name, role="constant", dtype=p.dtype, value=np.zeros(shapes[p.name], p.dtype)
            )
            for p in (*plan.pasts, *plan.constants)
        ),
    ]
    return GraphReading(
        kind="core" if "D" in plan.layout else "layer",
        mode=mode,  # type: ignore[arg-type]  # a value of MODES
        inputs=tuple(inputs),
        outputs=(
            Role(
                name=header.outputs[0].name,
                role="output",
                axes=plan.layout,
                dtype=header.outputs[0].dtype,
            ),
        ),
        pins=_pins(plan, mode, sizes, header.outputs[0]),
        assumptions=("roles by names and order alone: the graph gave no answer to any call",),
    )


def _tensor_roles(tensors: Sequence[Port], declared: GraphDeclaration) -> dict[str, str]:
    """Return the roles of tensors: declared, else by telling names, else by order."""
    roles = ROLES[len(tensors)]
    interpretation: dict[str, str] = {}
    for port in tensors:
        said = declared.inputs.get(port.name, {}).get("role")
        named = [role for role in roles if suggests(port.name, role)]
        interpretation[port.name] = said or (named[0] if len(named) == 1 else "")
    if sorted(interpretation.values()) == sorted(roles):
        return interpretation
    return dict(zip((port.name for port in tensors), roles, strict=True))


def _mask(port: Port, axes: str) -> Role:
    if port.dtype in INTEGERS:
        role = "keep_int" if "K" in axes else "lengths"
    else:
        role = "keep" if port.dtype == "bool" else "bias"
    return Role(name=port.name, role=role, axes=axes, dtype=port.dtype)


def _pins(
    plan: CallPlan, mode: str, shapes: dict[str, tuple[int, ...]], output: Port
) -> dict[str, int | str]:
    """Return the widths and the sizes fixed by the file."""
    pins: dict[str, int | str] = {}
    for port in plan.tensors:
        for letter, size in zip(plan.layout, port.shape or (), strict=False):
            field = _FIELDS.get(
                "Q" if letter == "L" and port is plan.tensors[plan.lead] else letter
            )
            if field is not None and isinstance(size, int):
                pins[field] = size
    if mode == "self":
        pins["key_length"] = "query_length"
    if "E" not in plan.layout:
        return pins
    order = _WIDTHS.get(mode, ("query", "key", "value"))
    width = plan.layout.index("E")
    for field, role in zip(("query_size", "key_size", "value_size"), order, strict=True):
        pins[field] = shapes[role][width]
    last = (output.shape or (None,))[-1]
    return {**pins, "output_size": last if isinstance(last, int) else pins["query_size"]}


_POSITIONS_MIXED: Final = (
    "exchanging two keys changes the answer of a third token: positions are mixed in, or tokens "
    'are not kept apart; if positions are meant to be, declare them (such as position = "rotary")'
)
_LEAST: Final = 3


def about_positions(base: BaseCall, assignment: RoleAssignment) -> list[str]:
    """Return a sentence if the order of the first two keys matters to the last token.

    A softmax sums over keys in any order, also under a causal rule: the last token attends to both.
    """
    at = assignment.length_axis
    lengths = {base.feeds[name].shape[at] for name in assignment.roles}
    if min(lengths) < _LEAST:
        return []
    answer = base.evaluate(
        {
            name: np.take(tokens, [1, 0, *range(2, tokens.shape[at])], axis=at)
            for name in assignment.attended
            for tokens in [base.feeds[name]]
        }
    )
    if answer is None or answer.ndim <= at or answer.shape != base.answer.shape:
        return []
    before, after = (np.take(values, [-1], axis=at) for values in (base.answer, answer))
    return [_POSITIONS_MIXED] if base.probe.changed(before, after).any() else []


_LONGER: Final = 2
Allowed = np.ndarray[Any, np.dtype[np.bool_]]


def always_causal(
    base: BaseCall, assignment: RoleAssignment, sizes_probe: SizeProbe
) -> tuple[str | None, list[str]]:
    """Return the alignment of a causal rule that always applies, with a sentence.

    Only calls with unequal numbers of keys and queries distinguish alignments: with equal lengths
    alone the answer is bottom-right.
    """
    depends = [
        allowed for allowed in _dependence(base, assignment, sizes_probe) if allowed is not None
    ]
    if not depends or all(allowed.all() for allowed in depends):
        return None, []
    for alignment in ("bottom-right", "top-left"):
        if all((allowed == _rule(allowed, alignment)).all() for allowed in depends):
            why = "later keys do not reach earlier positions of the answer"
            return alignment, [f"a causal rule always applies, aligned {alignment} ({why})"]
    return None, []


def _rule(depends: Allowed, alignment: str) -> Allowed:
    queries, keys = depends.shape
    return np.tri(queries, keys, keys - queries if alignment == "bottom-right" else 0, dtype=bool)


def _dependence(
    base: BaseCall, assignment: RoleAssignment, sizes_probe: SizeProbe
) -> Iterator[Allowed | None]:
    """Yield query-key dependence: in the first call and, if it is a rule, in longer calls."""
    first = _reach(base, assignment)
    yield first
    if first is None or first.all() or "x" in assignment.roles.values():
        return
    for letters in ("K", "Q"):
        longer = sizes_probe.base(letters, _LONGER)
        if longer is not None:
            yield _reach(longer, assignment)


def _reach(base: BaseCall, assignment: RoleAssignment) -> Allowed | None:
    """Return whether each query's answer depends on each key's content; None if undecidable.

    The content is the value's, if separate: even a query with a single key depends on it.
    """
    name, at = assignment.attended[-1], assignment.length_axis
    if "value" in assignment.roles.values():
        name = assignment.of("value")
    keys, queries = base.feeds[name].shape[at], base.feeds[assignment.first].shape[at]
    if keys == 1 or base.answer.ndim <= at or base.answer.shape[at] != queries:
        return None
    depends = np.zeros((queries, keys), dtype=bool)
    for key in range(keys):
        change = affected(base, name, at, key)
        if change.shape != base.answer.shape:
            return None
        depends[:, key] = change.any(axis=tuple(axis for axis in range(change.ndim) if axis != at))
    return depends


# Operators required in a graph accepted as a wrong attention.
_SOFTMAXES: Final = frozenset({"Softmax", "LogSoftmax", "Exp"})
_WHOLE: Final = frozenset(
    {
        "Attention",
        "DecoderMaskedMultiHeadAttention",
        "DecoderMaskedSelfAttention",
        "GroupQueryAttention",
        "MultiHeadAttention",
        "PackedAttention",
        "PackedMultiHeadAttention",
        "QAttention",
        "SparseAttention",
    }
)
_PRODUCTS: Final = frozenset(
    {"DynamicQuantizeMatMul", "Einsum", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger"}
    | {"MatMulIntegerToFloat", "QLinearMatMul", "QGemm"}
)
# Operators giving sizes, not values: a product with one scales.
_SIZES: Final = frozenset({"Shape", "Size"})


def _has_softmax(header: Header) -> bool:
    """Tell whether a graph has operators that few graphs but attentions need."""
    return bool(_operators(header) & (_SOFTMAXES | _WHOLE))


def _multiplies_itself(header: Header) -> bool:
    """Tell whether two results of the inputs are multiplied; True in doubt."""
    if _operators(header) & _WHOLE:
        return True
    try:
        model = onnx.load(header.path, load_external_data=False)
    except (OSError, ValueError):
        return True
    attributes = (attribute for node in model.graph.node for attribute in node.attribute)
    if model.functions or any(attribute.HasField("g") for attribute in attributes):
        return True
    sums = "ReduceSum" in _operators(header)
    live = {port.name for port in header.inputs}
    before = 0
    # Repeated until nothing is added: converters append casts at the end, out of order.
    while len(live) > before:
        before = len(live)
        for node in model.graph.node:
            used = [name for name in node.input if name in live]
            product = node.op_type in _PRODUCTS or (sums and node.op_type == "Mul")
            if product and len(used) > 1:
                return True
            if used and node.op_type not in _SIZES:
                live.update(node.output)
    return False


def _operators(header: Header) -> frozenset[str]:
    return frozenset(operator.rpartition("::")[2] for operator in header.operators)


def read_roles(
    header: Header, run: Callable[[Feeds], Mapping[str, Array]], declared: GraphDeclaration
) -> GraphReading:
    """Return the role of each input and output; raises UsageError for other graphs.

    ``run`` gives the outputs by name and raises GraphRefused; GraphLost passes through.
    """
    check_declaration(declared, header)
    _check_ports(header)
    probe = GraphProbe(header, run, declared)
    interpretation = interpret(probe)
    _check_attention(header, interpretation)
    interpretation = replace(
        interpretation, start=widened(interpretation.start, interpretation.assignment)
    )
    packing = read_packing(
        interpretation.start.base, interpretation.start.plan, interpretation.assignment, declared
    )
    masks = read_masks(interpretation.start, interpretation.assignment, packing.output.axes)
    sizes_probe = SizeProbe(interpretation.start, interpretation.assignment, masks.roles)
    spans = read_spans(
        interpretation.start, interpretation.assignment, declared, masks.roles, sizes_probe
    )
    causal, why_causal = always_causal(
        interpretation.start.base, interpretation.assignment, sizes_probe
    )
    answers = probe.call(interpretation.start.base.feeds)
    outputs, about_outputs = read_outputs(header, declared, answers or {}, packing.output, probe)
    roles = {role.name: role for role in (*packing.tensors, *masks.roles, *spans.others)}
    return GraphReading(
        kind=packing.kind,
        mode=MODES[len(interpretation.start.plan.tensors)],  # type: ignore[arg-type]  # a value of MODES
        inputs=tuple(roles[port.name] for port in header.inputs if port.name in roles),
        outputs=outputs,
        pins={**packing.pins, **spans.pins},
        baked=spans.baked,
        causal=causal,
        assumptions=(
            *_about_tensors(interpretation, declared),
            *packing.assumptions,
            *masks.assumptions,
            *spans.assumptions,
            *why_causal,
            *about_positions(interpretation.start.base, interpretation.assignment),
            *about_outputs,
        ),
    )


def _check_ports(header: Header) -> None:
    """Require a float input that can carry tokens, and an output."""
    if not header.outputs:
        msg = f"{header.path}: a graph without outputs computes no attention"
        raise UsageError(msg)
    fitting = [p for p in header.inputs if p.dtype in FLOATS and p.rank in (None, *AXIS_ORDERS)]
    if not fitting:
        shapes = ", ".join(f"{p.name} ({p.dtype}, rank {p.rank})" for p in header.inputs)
        msg = (
            f"{header.path}: no input can be a query: attention takes float tensors of 2 to 4 "
            f"axes, and this graph takes {shapes or 'nothing'}"
        )
        raise UsageError(msg)


def _check_attention(header: Header, interpretation: Interpretation) -> None:
    """Refuse a graph that does not attend; a broken attention is accepted."""
    if interpretation.assignment.declared or (
        interpretation.clean and len(interpretation.traits) > 1
    ):
        return
    # An attention of several inputs that ignores one is broken.
    all_matter = all(traits.matters for traits in interpretation.traits.values())
    ignores = not all_matter and len(interpretation.traits) > 1 and _has_softmax(header)
    resembles = len(interpretation.traits) == len(ROLES) and all_matter and interpretation.likely
    if not _has_softmax(header) and not resembles:  # what the file shows comes before a guess
        why = "it holds no softmax, and its inputs do not behave as query, key and value"
    elif not (_mixes(interpretation) or ignores):
        why = "each position of its answer depends on the same position of its inputs alone"
    elif not _multiplies_itself(header):
        why = "it multiplies no two things that it computes from its inputs"
    else:
        return
    runs = interpretation.start.base.probe.runs
    msg = f"{header.path} is no attention: {why} (seen in {runs} calls); {remedy(header)}"
    raise UsageError(msg)


def _mixes(interpretation: Interpretation) -> bool:
    """Tell whether the answer mixes several positions, or items, of an input."""
    outer = [at for at, letter in enumerate(interpretation.assignment.layout) if letter in "BL"]
    return not interpretation.is_conclusive or any(
        traits.matters and not traits.open[at] and traits.local[at] is None
        for traits in interpretation.traits.values()
        for at in outer
    )


def _about_tensors(interpretation: Interpretation, declared: GraphDeclaration) -> list[str]:
    sentences = []
    assignment = interpretation.assignment
    if not assignment.clean:
        sentences.append(
            f"the graph does not behave as attention in everything: {assignment.fitting} of "
            f"{assignment.facts} facts about its inputs fit the roles that they are given"
        )
    for name, role in interpretation.assignment.roles.items():
        how = _how(role, interpretation.traits[name], interpretation.assignment)
        if declared.inputs.get(name, {}).get("role"):
            how = f"declared in {declared.where or 'the declaration'}"
        axes = interpretation.assignment.layout
        sentences.append(f"input {name}: {role}, axes {axes} ({how})")
    return sentences


def _how(role: str, traits: Traits, assignment: RoleAssignment) -> str:
    length = assignment.length_axis
    if not traits.matters:
        return "by name and place: the answer does not depend on it"
    facts = {
        "query": (
            "a change of one row changes that row of the answer alone",
            traits.local[length] is not None,
        ),
        "key": ("one vector added to all its rows changes nothing", traits.shift[length]),
        "value": ("the answer is affine in it", traits.affine),
        "context": (
            "a change of one row changes every row of the answer",
            traits.local[length] is None,
        ),
        "x": ("a change of one row changes other rows of the answer", traits.local[length] is None),
    }
    fact, true = facts[role]
    return f"by behaviour: {fact}" if true else "by name and place: its behaviour fits no role"
