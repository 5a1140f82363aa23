"""Lists which matrices of a module may be its four projections: by name, else all that fit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import nn

from ..base.parameter_names import role_of, roles_in, words_of
from ..base.printable_text import few
from ..errors import DeclarationError
from .packing import FUSED_LAYOUTS, TIMES, Holder, StoredProjections

_MATRIX: Final = 2
_NOT_PROJECTIONS: Final = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.Bilinear, nn.RNNBase)
_CONVOLVES: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Orders of the axes (heads, channels, width) in a parameter of three axes, likeliest first; the
# output projection has width first.
_CUBE: Final = ((0, 2, 1), (1, 2, 0), (0, 1, 2))
_OUTPUT_CUBE: Final = ((2, 0, 1), (0, 1, 2), (1, 0, 2))
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A matrix, or a list of one matrix per head (``*`` in its path).

    ``shape`` is as stored, the rows of all heads together; ``transposed`` lists the possible
    orientations, likeliest first; ``plain`` marks a parameter other than a layer's ``weight``.
    ``cube`` is the stored shape of a parameter with an axis of heads.
    """

    path: str
    bias: str | None
    shape: tuple[int, int]
    transposed: tuple[bool, ...]
    plain: bool = False
    count: int = 1
    known_layout: bool = False
    cube: tuple[int, ...] = ()

    def read_by(self, holder: Holder) -> tuple[int, int]:
        """The rows and columns ``(out, in)`` as a holder reads them."""
        if not self.cube:
            return self.out_and_in(transposed=holder.transposed)
        first, second, third = (self.cube[axis] for axis in holder.axes)
        return (first, second * third) if holder.roles == "o" else (first * second, third)

    def out_and_in(self, *, transposed: bool) -> tuple[int, int]:
        """The rows and columns of the matrix as ``(out, in)``."""
        rows, columns = self.shape
        if not transposed:
            return rows * self.count, columns
        return columns * self.count, rows

    @property
    def title(self) -> str:
        """The path without the ``.weight`` at its end."""
        return self.path.removesuffix(".weight")

    @property
    def role(self) -> tuple[str, bool]:
        """The roles in its name (of ``up @ down``, in ``up``), and whether they are clear."""
        up, _, down = self.path.partition(TIMES)
        return (roles_in(up), True) if down else role_of(self.path)


def leaves(module: nn.Module) -> list[Leaf]:
    """Every matrix that could be a projection, in order of definition, with heads stacked.

    Raises DeclarationError for lazy parameters.
    """
    result: list[Leaf] = []
    for name, owner in module.named_modules(remove_duplicate=False):
        if not isinstance(owner, _NOT_PROJECTIONS):
            _check_readable(name or type(owner).__name__, owner)
            result.extend(_of_owner(f"{name}." if name else "", owner))
    return _stack_heads(result)


# Names of a norm's vectors, which may lie beside a projection and are no biases.
_OF_NORMS: Final = frozenset("weight gamma beta gain g scale".split())


def plain_biases(module: nn.Module, taken: set[str]) -> list[Holder]:
    """Biases stored as parameters of their own, such as ``in_proj_bias`` or ``b_q``."""
    holders = []
    every = dict(module.named_parameters(remove_duplicate=False))
    for name, parameter in every.items():
        roles, clear = role_of(name)
        vector = parameter.dim() == 1 or _is_bias_of_heads(name, parameter, every)
        is_bias = vector and name.rpartition(".")[2] not in _OF_NORMS
        if is_bias and name not in taken and clear:
            axes = (0,) if parameter.dim() > 1 else ()
            holders.append(Holder(roles=roles, path=name, axes=axes))
    return holders


def _is_bias_of_heads(name: str, parameter: nn.Parameter, every: Container[str]) -> bool:
    """Whether a parameter is a bias ``[H, D]``, and not the second of the factors a and b."""
    words = set(words_of(name.rpartition(".")[2]))
    if f"{name.removesuffix('b')}a" in every:
        return False
    return parameter.dim() == _MATRIX and bool(words & {"b", "bias", "biases"})


def _check_readable(name: str, owner: nn.Module) -> None:
    for parameter in owner.parameters(recurse=False):
        if isinstance(parameter, nn.UninitializedParameter):
            msg = (
                f"{name} has no weights yet (it is lazy): call the module once before declaring it"
            )
            raise DeclarationError(msg)


def _of_owner(prefix: str, owner: nn.Module) -> Iterator[Leaf]:
    for name, parameter in owner.named_parameters(recurse=False):
        if parameter.dim() == len(_CUBE) and role_of(name)[1] and not isinstance(owner, _CONVOLVES):
            first, second, third = parameter.shape
            yield Leaf(
                path=f"{prefix}{name}",
                bias=None,
                shape=(first * second, third),
                transposed=(False,),
                plain=True,
                cube=tuple(parameter.shape),
            )
            continue
        if _is_bias_of_heads(name, parameter, dict(owner.named_parameters(recurse=False))):
            continue
        if parameter.dim() != _MATRIX and not _mixes_channels(owner, name):
            continue
        bias = getattr(owner, "bias", None) if name == "weight" else None
        yield Leaf(
            path=f"{prefix}{name}",
            bias=f"{prefix}bias" if isinstance(bias, nn.Parameter) and bias.dim() == 1 else None,
            shape=(parameter.shape[0], parameter.shape[1]),
            transposed=_orientations(owner, name),
            plain=name != "weight" or not prefix,
            known_layout=isinstance(owner, nn.MultiheadAttention),
        )


def _mixes_channels(owner: nn.Module, name: str) -> bool:
    """Whether a weight belongs to a convolution over single tokens, which is a matrix product."""
    if not isinstance(owner, _CONVOLVES) or name != "weight":
        return False
    return owner.groups == 1 and all(size == 1 for size in owner.kernel_size)


def _orientations(owner: nn.Module, name: str) -> tuple[bool, ...]:
    if isinstance(owner, (nn.Linear, nn.MultiheadAttention)) or _mixes_channels(owner, name):
        return (False,)
    if "Conv1D" in type(owner).__name__ or not name.endswith("weight"):
        return (True, False)
    return (False, True)


def _stack_heads(result: list[Leaf]) -> list[Leaf]:
    """Stack ``heads.0.query``, ``heads.1.query`` …; lists without clear roles stay apart."""
    groups: dict[str, list[Leaf]] = {}
    for leaf in result:
        roles, clear = role_of(leaf.path)
        per_head = clear and roles != "o"
        template = _NUMBER.sub("*", leaf.path, count=1) if per_head else leaf.path
        groups.setdefault(template, []).append(leaf)
    return [stacked for template, group in groups.items() for stacked in _stack(template, group)]


def _stack(template: str, group: list[Leaf]) -> list[Leaf]:
    first = group[0]
    paths = [template.replace("*", str(index)) for index in range(len(group))]
    alike = all(leaf.shape == first.shape and bool(leaf.bias) == bool(first.bias) for leaf in group)
    if len(group) == 1 or not alike or [leaf.path for leaf in group] != paths:
        return group
    return [
        Leaf(
            path=template,
            bias=_NUMBER.sub("*", first.bias, count=1) if first.bias else None,
            shape=first.shape,
            transposed=first.transposed,
            plain=first.plain,
            count=len(group),
        )
    ]


_FUSED_COUNTS: Final[dict[int, tuple[str, ...]]] = {
    1: ("qkv",),
    2: ("qkv", "o"),
    3: ("q", "kv", "o"),
    4: ("q", "k", "v", "o"),
}
_ROLES: Final = "qkvo"
_MOST_LEAVES: Final = 7

# Advice for a module with unreadable weights.
INSIDE: Final = (
    "declare it with conformance.fixed_layer (conformance.check(module) judges the attention in "
    "it alone, where it finds one)"
)
# Advice for weights that are not stored as matrices.
OWN_WEIGHTS: Final = (
    "declare it with the weights that it has, conformance.fixed_layer(module, "
    "conformance.ProjectionWeights(q=q, k=k, v=v, o=o), num_heads=4), each reshaped to a matrix "
    "[out, in] in which a head's rows are neighbours"
)
_NO_MATRICES: Final = f"no matrices: {OWN_WEIGHTS}"
_NO_WEIGHTS: Final = (
    "it has no parameters): where it takes heads that are projected already, pass a function that "
    "calls it to conformance.core"
)
# Parameters whose shapes a message shows.
_MOST_SHOWN: Final = 4

Assignment = Mapping[str, Leaf]


@dataclass(frozen=True)
class Options:
    """The possible assignments of roles to matrices, and the biases stored apart.

    ``named`` says that names left a single assignment.
    """

    assignments: tuple[Assignment, ...]
    biases: tuple[Holder, ...]
    leaves: tuple[Leaf, ...]
    named: bool


def options(shown: str, module: nn.Module, projections: Mapping[str, str] | None) -> Options:
    """List the possible assignments; raises DeclarationError when there is none."""
    result = leaves(module)
    taken = {leaf.bias for leaf in result if leaf.bias}
    biases = tuple(plain_biases(module, taken))
    if projections is not None:
        assignments = [_as_named(shown, result, projections)]
    else:
        products = _products(result)
        assignments = [*(_by_name(products) if products else ()), *_by_name(result)]
    if not assignments:
        titles = ", ".join(leaf.title for leaf in result)
        if titles:
            what = f"it has {titles}): {how_to_name(result)}"
        else:
            shapes = [f"{name} {list(one.shape)}" for name, one in module.named_parameters()]
            what = f"it has {few(shapes, _MOST_SHOWN)}): {OWN_WEIGHTS}" if shapes else _NO_WEIGHTS
        msg = f"{shown} has no matrices that could be query, key and value projections ({what}"
        raise DeclarationError(msg)
    return Options(tuple(assignments), biases, tuple(result), len(assignments) == 1)


def how_to_name(leaves: Sequence[Leaf]) -> str:
    """Advice on naming the projections, with the module's own names."""
    named = dict(zip(_ROLES, (leaf.title for leaf in leaves), strict=False))
    return f"say which is which, as in projections={named}, or {INSIDE}"


def recipes(assignment: Assignment, biases: tuple[Holder, ...]) -> Iterator[StoredProjections]:
    """Every way to read an assignment, likeliest first: orientation, order and layout."""
    variants = [list(_holders(roles, leaf)) for roles, leaf in assignment.items()]
    own = [leaf.bias for leaf in assignment.values()]
    for holders in itertools.product(*variants):
        cubes = {holder.axes for holder in holders if holder.roles != "o"}
        if len(cubes) > 1:  # query, key and value are stored alike
            continue
        attached = [
            replace(holder, path=bias, transposed=False)
            for holder, bias in zip(holders, own, strict=True)
            if bias
        ]
        covered = "".join(holder.roles for holder in attached)
        loose = [
            holder
            for holder in biases
            if not set(holder.roles) & set(covered)
            and set(holder.roles) <= set("".join(projection.roles for projection in holders))
        ]
        layouts = {holder.layout for holder in holders}
        fused = next(iter(layouts - {"blocks"}), "blocks")
        yield StoredProjections(
            matrices=tuple(holders),
            biases=(
                *attached,
                *(
                    replace(holder, layout=fused) if len(holder.roles) > 1 else holder
                    for holder in loose
                ),
            ),
        )


def _holders(roles: str, leaf: Leaf) -> Iterator[Holder]:
    if leaf.cube:
        for axes in _OUTPUT_CUBE if roles == "o" else _CUBE if len(roles) == 1 else ():
            yield Holder(roles=roles, path=leaf.path, axes=axes)
        return
    if len(roles) == 1:
        for transposed in leaf.transposed:
            yield Holder(roles=roles, path=leaf.path, transposed=transposed)
        return
    orders = ["".join(order) for order in itertools.permutations(roles)]
    layouts: tuple[str, ...] = FUSED_LAYOUTS
    if leaf.known_layout:
        orders, layouts = [roles], ("blocks",)
    for order, layout, transposed in itertools.product(orders, layouts, leaf.transposed):
        yield Holder(roles=order, path=leaf.path, transposed=transposed, layout=layout)


def _as_named(shown: str, result: list[Leaf], declared: Mapping[str, str]) -> Assignment:
    by_title = {leaf.title: leaf for leaf in result} | {leaf.path: leaf for leaf in result}
    for roles, path in declared.items():
        if not roles or not set(roles) <= set(_ROLES):
            msg = (
                f"projections has the key {roles!r}: use 'q', 'k', 'v', 'o', or 'qkv' and 'kv' "
                "for fused"
            )
            raise DeclarationError(msg)
        if path not in by_title:
            titles = ", ".join(leaf.title for leaf in result)
            msg = f"projections names {path!r}, but {shown} has {titles or _NO_MATRICES}"
            raise DeclarationError(msg)
    letters = "".join(declared)
    if not {"q", "k", "v"} <= set(letters) or len(set(letters)) < len(letters):
        msg = (
            f"projections gives {', '.join(declared)}: it needs each of q, k and v once (o may be "
            "absent)"
        )
        raise DeclarationError(msg)
    return {roles: by_title[path] for roles, path in declared.items()}


def _products(result: list[Leaf]) -> list[Leaf]:
    """The matrices with products of low rank in place of their factors, or [] without products.

    The factor ``up`` has one role; ``down`` has this role, alone or among others.
    """
    made: dict[str, Leaf] = {}
    factors: set[str] = set()
    for down, up in itertools.permutations(result, 2):
        roles = roles_in(up.path)
        same = len(roles) == 1 and roles in roles_in(down.path)
        whole = any((down.cube, up.cube, down.bias, down.count > 1, up.count > 1))
        if not same or whole or roles in made or down.transposed[0] != up.transposed[0]:
            continue
        (rows, rank), (inner, columns) = (
            leaf.out_and_in(transposed=up.transposed[0]) for leaf in (up, down)
        )
        if rank == inner < min(rows, columns):
            path = f"{up.path}{TIMES}{down.path}"
            stored = (columns, rows) if up.transposed[0] else (rows, columns)
            made[roles] = replace(up, path=path, shape=stored, transposed=up.transposed[:1])
            factors |= {down.path, up.path}
    return [*made.values(), *(leaf for leaf in result if leaf.path not in factors)] if made else []


def _by_name(result: list[Leaf]) -> list[Assignment]:
    named: dict[str, list[Leaf]] = {}
    vague: list[Leaf] = []
    for leaf in result:
        roles, clear = leaf.role
        if clear:
            named.setdefault(roles, []).append(leaf)
        elif not leaf.plain or roles:
            vague.append(leaf)
    inner = _cover(named)
    if inner is None:
        return _search([leaf for leaf in result if not leaf.plain] or result)
    outputs: list[Leaf | None] = [*named.get("o", [])]
    if not outputs:
        outputs = [leaf for leaf in vague if leaf.role[0] == "o"] or [*vague] or [None]
    assignments: list[Assignment] = []
    for *inputs, output in itertools.product(*(named[roles] for roles in inner), outputs):
        assignment = dict(zip(inner, inputs, strict=True)) | {"o": output}
        distinct = {id(leaf) for leaf in assignment.values()}
        if len(distinct) == len(assignment):
            assignments.append({role: leaf for role, leaf in assignment.items() if leaf})
    return assignments


def _cover(named: Mapping[str, list[Leaf]]) -> tuple[str, ...] | None:
    """Role names that cover q, k and v once, separate names preferred to fused names."""
    roles = sorted((name for name in named if name != "o"), key=len)
    for count in (3, 2, 1):
        for chosen in itertools.combinations(roles, count):
            if sorted("".join(chosen)) == sorted("qkv"):
                return tuple(sorted(chosen, key=lambda name: "qkv".index(name[0])))
    return None


def _search(result: list[Leaf]) -> list[Assignment]:
    """Every assignment of unnamed matrices, the order of definition first."""
    if len(result) > _MOST_LEAVES:
        return []
    count = min(len(result), len(_ROLES))
    if count == 0:
        return []
    assignments: list[Assignment] = []
    for chosen in itertools.permutations(result, count):
        assignments.append(dict(zip(_FUSED_COUNTS[count], chosen, strict=True)))
        if count == len("qkv"):
            assignments.append(dict(zip("qkv", chosen, strict=True)))
    return assignments
