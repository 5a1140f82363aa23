"""How many heads a module has, and the sizes that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from torch import nn

from .packing import Sizes

HEAD_NAMES: Final = (
    "num_heads n_heads n_head num_head heads nheads nhead head_num num_attention_heads h nb_heads "
    "n_attention_heads number_of_heads num_attn_heads".split()
)
KV_HEAD_NAMES: Final = (
    "num_kv_heads n_kv_heads n_kv_head num_key_value_heads kv_heads n_local_kv_heads "
    "num_query_groups num_key_value_head".split()
)
_SETTINGS: Final = ("config", "cfg", "args", "hparams")


def known_number(module: nn.Module, names: tuple[str, ...] | list[str]) -> tuple[str, int] | None:
    """The first attribute of these names that is a positive integer, outermost module first."""
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
) -> Iterator[Sizes]:
    """Every way to cut matrices into heads, likeliest first.

    ``shapes`` maps roles (``"q"``, ``"kv"``, ``"qkv"``, ``"o"`` …) to ``(out, in)``; without
    ``num_heads`` every divisor is tried, small ones first.
    """
    seen = set()
    merged = shapes["o"][1] if "o" in shapes else None
    total = sum(shape[0] for roles, shape in shapes.items() if roles != "o")
    for query_rows, key_rows, value_rows in _possible_rows(shapes, num_heads, num_kv_heads):
        if query_rows + key_rows + value_rows != total:
            continue
        for heads in num_heads or range(1, query_rows + 1):
            sizes = _cut(query_rows, key_rows, value_rows, heads)
            if sizes is None or sizes in seen:
                continue
            seen.add(sizes)
            wide = sizes.num_heads * sizes.value_head_size
            if merged in (None, wide) and num_kv_heads in (None, sizes.num_kv_heads):
                yield sizes


def _possible_rows(
    shapes: Mapping[str, tuple[int, int]],
    num_heads: tuple[int, ...] | None,
    num_kv_heads: int | None,
) -> Iterator[tuple[int, int, int]]:
    """Rows of q, k and v; fused ones are cut by the heads, equally, or by the output's width."""
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


def _cut(query_rows: int, key_rows: int, value_rows: int, heads: int) -> Sizes | None:
    if min(query_rows, key_rows, value_rows) < 1 or query_rows % heads:
        return None
    head_size = query_rows // heads
    if key_rows % head_size:
        return None
    kv_heads = key_rows // head_size
    if heads % kv_heads or value_rows % kv_heads:
        return None
    return Sizes(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=value_rows // kv_heads,
    )
