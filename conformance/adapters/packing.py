"""Describes a module's storage of its four projections, fused or separate, and its heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from .._golden import golden
from ..base.geometry import Geometry
from ..errors import DeclarationError

# Between the names of two parameters whose product is a matrix.
TIMES: Final = " @ "
FUSED_LAYOUTS: Final = ("blocks", "grouped", "hdk", "dkh")


@dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """The numbers of heads and their sizes."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    value_head_size: int

    def rows(self, role: str) -> int:
        """The number of rows of the query, key or value matrix."""
        return {
            "q": self.num_heads * self.head_size,
            "k": self.num_kv_heads * self.head_size,
            "v": self.num_kv_heads * self.value_head_size,
        }[role]


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A parameter with one projection, or several fused along their rows.

    roles
        The projections in order: ``"q"``, ``"kv"``, ``"qkv"`` …
    path
        The parameter's dotted name. A ``*`` stands for 0, 1, 2 … : one parameter a head, rows head
        after head. ``up @ down`` is a product of low rank.
    transposed
        Whether a matrix is stored ``[in, out]``, as in GPT-2's Conv1D, unlike in ``nn.Linear``.
    layout
        The order of rows of several roles: ``blocks`` role after role, ``grouped`` the roles of
        each key/value head together, ``hdk`` and ``dkh`` axes in this order: head (h), channel (d),
        role (k). ``parts`` are small matrices, one a head or one for all, each for a head's part of
        the tokens.
    axes
        For a parameter with an axis of heads: its axes in the order (heads, channels, width); a
        single axis marks a bias of heads and channels.
    """

    roles: str
    path: str
    transposed: bool = False
    layout: str = "blocks"
    axes: tuple[int, ...] = ()

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """The module's parameters of this holder, in the order of the heads."""
        if "*" not in self.path:
            return [self._single(module, name) for name in self.path.split(TIMES)]
        parameters = dict(module.named_parameters(remove_duplicate=False))
        result: list[nn.Parameter] = []
        while (name := self.path.replace("*", str(len(result)))) in parameters:
            result.append(parameters[name])
        return result

    @staticmethod
    def _single(module: nn.Module, path: str) -> nn.Parameter:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if name == path:
                return parameter
        msg = (
            f"{path} is in one {type(module).__name__} but not in that of another "
            "geometry: pin the sizes for which it is there with geometry="
        )
        raise DeclarationError(msg)

    def read(self, module: nn.Module, sizes: HeadSizes) -> dict[str, Tensor]:
        """Copies of the ``(out, in)`` matrices (or biases) by role."""
        parts = [self._as_matrix(parameter.detach()) for parameter in self.parameters(module)]
        if self.layout == "parts":
            packed = _side_by_side(parts, sizes.num_heads)
        else:
            packed = _product(parts) if TIMES in self.path else torch.cat(parts)
        unpacked = unpack(packed, self.roles, self.layout, sizes)
        return {role: part.clone() for role, part in unpacked.items()}

    @torch.no_grad()
    def write(self, module: nn.Module, sizes: HeadSizes, parts: Mapping[str, Tensor]) -> None:
        """Load matrices or biases by role, in place; raises DeclarationError for another shape."""
        packed = pack(parts, self.roles, self.layout, sizes)
        if self.layout == "parts":
            packed = self._of_parts(module, packed, sizes.num_heads)
        views = [self._as_rows(parameter) for parameter in self.parameters(module)]
        shapes = [self._as_matrix(parameter).shape for parameter in self.parameters(module)]
        rows = [shape[0] for shape in shapes]
        if packed.shape != (sum(rows), *shapes[0][1:]):
            msg = (
                f"{self.path} holds {[sum(rows), *shapes[0][1:]]} (out, in) for {self.roles}, "
                f"but a problem's weights make {list(packed.shape)}: pin the sizes that this "
                "module cannot change with geometry="
            )
            raise DeclarationError(msg)
        for view, part in zip(views, packed.split(rows), strict=True):
            view.copy_(part.reshape(view.shape))

    def _of_parts(self, module: nn.Module, packed: Tensor, heads: int) -> Tensor:
        """The small matrices (or biases) of ``packed``; DeclarationError if they lose numbers."""
        by_head = packed.chunk(heads)
        if packed.dim() > 1:
            by_head = tuple(rows.chunk(heads, 1)[head] for head, rows in enumerate(by_head))
        small = [*by_head[: len(self.parameters(module))]]
        if not torch.equal(_side_by_side(small, heads), packed):
            msg = f"{self.path} is of a head's part of the tokens, and can hold no other weights"
            raise DeclarationError(msg)
        return torch.cat(small)

    def _as_matrix(self, stored: Tensor) -> Tensor:
        """A parameter as an ``(out, in)`` matrix, or a bias with one axis."""
        rows = self._as_rows(stored)
        if len(self.axes) <= 1:
            return rows
        return rows.flatten(1) if self.roles == "o" else rows.flatten(0, 1)

    def _as_rows(self, stored: Tensor) -> Tensor:
        if self.axes:
            return stored.permute(self.axes) if stored.dim() == len(self.axes) else stored.view(-1)
        stored = stored.view(stored.shape[:2])  # a convolution has trailing axes of size one
        return stored.T if self.transposed else stored


@dataclass(frozen=True, kw_only=True)
class StoredProjections:
    """The holders of a module's matrices and biases, valid for every size of the module.

    ``tied`` names two parameters that share a tensor, else "".
    """

    matrices: tuple[Holder, ...]
    biases: tuple[Holder, ...]
    tied: str = ""
    memory: tuple[str, ...] = ()

    def has_bias(self, role: str) -> bool:
        """Whether a projection has a bias."""
        return any(role in holder.roles for holder in self.biases)

    def in_parts(self) -> StoredProjections:
        """A copy with small query, key and value matrices, each for a head's part of the tokens."""

        def cut(holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
            return tuple(
                holder if holder.roles == "o" else replace(holder, layout="parts")
                for holder in holders
            )

        return StoredProjections(matrices=cut(self.matrices), biases=cut(self.biases))

    @property
    def is_free(self) -> bool:
        """Whether the module can hold arbitrary weights.

        Small matrices for parts of tokens, products of low rank and tied matrices cannot; a memory
        keeps its own.
        """
        in_parts = any(holder.layout == "parts" for holder in self.matrices)
        return not (in_parts or self.has_products or self.tied or self.memory)

    @property
    def has_products(self) -> bool:
        """Whether a projection is the product of two matrices."""
        return any(TIMES in holder.path for holder in self.matrices)

    @property
    def has_output(self) -> bool:
        """Whether there is an output projection."""
        return any(holder.roles == "o" for holder in self.matrices)

    def read(self, module: nn.Module, sizes: HeadSizes) -> golden.ProjectionWeights:
        """The module's weights in the layout of the golden reference."""
        result: dict[str, Tensor] = {}
        for holder in self.matrices:
            result.update(holder.read(module, sizes))
        for holder in self.biases:
            biases = holder.read(module, sizes)
            result.update({f"{role}_bias": bias for role, bias in biases.items()})
        for name, path in zip(golden.MEMORY, self.memory, strict=False):
            held: Tensor = module.get_parameter(path).detach()
            result[name] = held.reshape(sizes.num_kv_heads, -1)
        if self.has_products:  # rounded once, to the format of their use
            result = {name: held.double() for name, held in result.items()}
        return golden.ProjectionWeights(**result)

    def widths(self, module: nn.Module, sizes: HeadSizes) -> tuple[int, int, int]:
        """The widths of the inputs that the module projects to query, key and value."""
        weights = self.read(module, sizes)
        return weights.q.shape[1], weights.k.shape[1], weights.v.shape[1]

    def write(self, module: nn.Module, sizes: HeadSizes, weights: golden.ProjectionWeights) -> None:
        """Load weights in place; missing biases become zero.

        Raises DeclarationError for a shape that does not fit or a bias that the module lacks.
        """
        for holder in self.matrices:
            parts = {role: getattr(weights, role) for role in holder.roles}
            holder.write(module, sizes, parts)
        for holder in self.biases:
            parts = {role: _bias(weights, role) for role in holder.roles}
            holder.write(module, sizes, parts)
        for role in "qkvo":
            if getattr(weights, f"{role}_bias") is not None and not self.has_bias(role):
                msg = f"the problem has a bias for {role}, but the module has no place for it"
                raise DeclarationError(msg)


def _bias(weights: golden.ProjectionWeights, role: str) -> Tensor:
    bias: Tensor | None = getattr(weights, f"{role}_bias")
    matrix: Tensor = getattr(weights, role)
    return matrix.new_zeros(matrix.shape[0]) if bias is None else bias


def _product(factors: list[Tensor]) -> Tensor:
    product: Tensor = torch.linalg.multi_dot([factor.double() for factor in factors])
    return product


def _side_by_side(small: list[Tensor], heads: int) -> Tensor:
    """Small matrices (or biases) merged block by block; a single matrix serves every head."""
    blocks = small * heads if len(small) == 1 else small
    return torch.block_diag(*blocks) if small[0].dim() > 1 else torch.cat(blocks)


def supports(layout: str, roles: str, sizes: HeadSizes) -> bool:
    """Whether a layout is possible for these sizes: some layouts need equal heads in every role."""
    if layout == "blocks":
        return True
    if layout == "parts":
        return sizes.num_heads == sizes.num_kv_heads
    if len(roles) == 1:
        return False
    if layout == "grouped":
        return True
    same_heads = "q" not in roles or sizes.num_heads == sizes.num_kv_heads
    return same_heads and ("v" not in roles or sizes.head_size == sizes.value_head_size)


def unpack(packed: Tensor, roles: str, layout: str, sizes: HeadSizes) -> dict[str, Tensor]:
    """Cut ``[rows, ...]`` into the rows of each role."""
    if len(roles) == 1:
        return {roles: packed}
    heads, rest = sizes.num_kv_heads, packed.shape[1:]
    if layout == "blocks":
        parts = packed.split([sizes.rows(role) for role in roles])
    elif layout == "grouped":
        widths = [sizes.rows(role) // heads for role in roles]
        parts = packed.reshape(heads, -1, *rest).split(widths, dim=1)
        parts = tuple(part.flatten(0, 1) for part in parts)
    elif layout == "hdk":
        by_head = packed.reshape(heads, sizes.head_size, len(roles), *rest)
        parts = tuple(part.flatten(0, 1) for part in by_head.unbind(2))
    else:
        by_channel = packed.reshape(sizes.head_size, len(roles), heads, *rest)
        parts = tuple(part.transpose(0, 1).flatten(0, 1) for part in by_channel.unbind(1))
    return dict(zip(roles, parts, strict=True))


def pack(parts: Mapping[str, Tensor], roles: str, layout: str, sizes: HeadSizes) -> Tensor:
    """The inverse of :func:`unpack`."""
    if len(roles) == 1:
        return parts[roles]
    heads = sizes.num_kv_heads
    ordered = [parts[role] for role in roles]
    if layout == "blocks":
        return torch.cat(ordered)
    by_head = [part.reshape(heads, -1, *part.shape[1:]) for part in ordered]
    if layout == "grouped":
        return torch.cat(by_head, dim=1).flatten(0, 1)
    if layout == "hdk":
        return torch.stack(by_head, dim=2).flatten(0, 2)
    by_channel = [part.transpose(0, 1) for part in by_head]
    return torch.stack(by_channel, dim=1).flatten(0, 2)


HEAD_NAMES: Final = (
    "num_heads n_heads n_head num_head heads nheads nhead head_num num_attention_heads h nb_heads "
    "n_attention_heads number_of_heads num_attn_heads".split()
)
KV_HEAD_NAMES: Final = (
    "num_kv_heads n_kv_heads n_kv_head num_key_value_heads kv_heads n_local_kv_heads "
    "num_query_groups num_key_value_head".split()
)
_SETTINGS: Final = ("config", "cfg", "args", "hparams")


def positive_attribute(
    module: nn.Module, names: tuple[str, ...] | list[str]
) -> tuple[str, int] | None:
    """The first attribute with a given name and a positive integer, outermost module first."""
    for path, owner in module.named_modules():
        prefix = f"{path}." if path else ""
        holders = [(prefix, owner)]
        holders += [
            (f"{prefix}{word}.", vars(owner)[word]) for word in _SETTINGS if word in vars(owner)
        ]
        for place, holder in holders:
            for name in names:
                value = getattr(holder, name, None)
                if type(value) is int and value > 0:
                    return f"{place}{name}", value
    return None


def possible_sizes(
    shapes: Mapping[str, tuple[int, int]],
    num_heads: tuple[int, ...] | None,
    num_kv_heads: int | None,
) -> Iterator[HeadSizes]:
    """Every way to cut matrices into heads, likeliest first.

    ``shapes`` maps roles (``"q"``, ``"kv"``, ``"qkv"``, ``"o"`` …) to ``(out, in)``; without
    ``num_heads`` every divisor is tried, small divisors first.
    """
    yielded = set()
    merged = shapes["o"][1] if "o" in shapes else None
    total = sum(shape[0] for roles, shape in shapes.items() if roles != "o")
    for query_rows, key_rows, value_rows in _possible_rows(shapes, num_heads, num_kv_heads):
        if query_rows + key_rows + value_rows != total:
            continue
        for heads in num_heads or range(1, query_rows + 1):
            sizes = _cut(query_rows, key_rows, value_rows, heads)
            if sizes is None or sizes in yielded:
                continue
            yielded.add(sizes)
            wide = sizes.num_heads * sizes.value_head_size
            if merged in (None, wide) and num_kv_heads in (None, sizes.num_kv_heads):
                yield sizes


def _possible_rows(
    shapes: Mapping[str, tuple[int, int]],
    num_heads: tuple[int, ...] | None,
    num_kv_heads: int | None,
) -> Iterator[tuple[int, int, int]]:
    """Rows of q, k and v; fused rows are cut by the heads, equally, or by the output's width."""
    rows = {"".join(sorted(roles)): shape[0] for roles, shape in shapes.items()}
    merged = shapes["o"][1] if "o" in shapes else 0
    if "kqv" in rows:
        total = rows["kqv"]
        for heads in num_heads or ():
            unit = total // (heads + 2 * (num_kv_heads or heads))
            yield heads * unit, (total - heads * unit) // 2, (total - heads * unit) // 2
        yield total // 3, total // 3, total // 3
        yield merged, (total - merged) // 2, (total - merged) // 2
        yield (total - merged) // 2, (total - merged) // 2, merged
    elif "kv" in rows:
        yield rows["q"], rows["kv"] // 2, rows["kv"] // 2
        yield rows["q"], rows["q"], rows["kv"] - rows["q"]
    elif "kq" in rows:
        yield rows["kq"] // 2, rows["kq"] // 2, rows["v"]
    elif "qv" in rows:
        yield rows["qv"] // 2, rows["k"], rows["qv"] // 2
    else:
        yield rows["q"], rows["k"], rows["v"]


def _cut(query_rows: int, key_rows: int, value_rows: int, heads: int) -> HeadSizes | None:
    if min(query_rows, key_rows, value_rows) < 1 or query_rows % heads:
        return None
    head_size = query_rows // heads
    if key_rows % head_size:
        return None
    kv_heads = key_rows // head_size
    if heads % kv_heads or value_rows % kv_heads:
        return None
    return HeadSizes(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=value_rows // kv_heads,
    )


def sizes_of(geometry: Geometry) -> HeadSizes:
    """The numbers and sizes of a geometry's heads."""
    return HeadSizes(
        num_heads=geometry.num_heads,
        num_kv_heads=geometry.num_kv_heads,
        head_size=geometry.head_size,
        value_head_size=geometry.value_head_size,
    )


def blank_weights(geometry: Geometry) -> golden.ProjectionWeights:
    """Projection weights of zeros for a geometry, without biases."""
    sizes = sizes_of(geometry)
    return golden.ProjectionWeights(
        q=torch.zeros(sizes.rows("q"), geometry.query_size),
        k=torch.zeros(sizes.rows("k"), geometry.key_size),
        v=torch.zeros(sizes.rows("v"), geometry.value_size),
        o=torch.zeros(geometry.output_size, sizes.num_heads * sizes.value_head_size),
    )


def pinned_sizes(weights: golden.ProjectionWeights, sizes: HeadSizes) -> dict[str, int]:
    """The sizes that a module with these weights has in every call."""
    merged = sizes.num_heads * sizes.value_head_size
    return {
        **asdict(sizes),
        "query_size": weights.q.shape[1],
        "key_size": weights.k.shape[1],
        "value_size": weights.v.shape[1],
        "output_size": merged if weights.o is None else weights.o.shape[0],
    }
