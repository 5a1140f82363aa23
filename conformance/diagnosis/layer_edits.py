"""Unlisted mistakes of layers: other tokens, matrices, biases and orders of channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations, product
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._golden import golden
from ..operators.functions import over_root_mean_square, standardised
from .mistakes import NamedMistake
from .mistakes.named_mistake import Edits
from .mistakes.projections import other_weight, repacked, split_by_channel, split_by_head, weight

Edit = golden.Edit
_PRIMARY: Final = "numerics.golden"
ROLES: Final = {"query": "queries", "key": "keys", "value": "values"}
_PROJECTIONS: Final = {"q": "query", "k": "key", "v": "value", "o": "output"}
# Functions of each token before the projection.
NORMS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("normalised to mean 0 and variance 1", partial(standardised, axis=-1)),
    ("divided by the root of its mean square", partial(over_root_mean_square, axis=-1)),
    ("divided by its length", partial(normalize, dim=-1)),
    ("replaced by its softmax", partial(torch.softmax, dim=-1)),
)
_OF_TOKENS: Final = (("query", "key", "value"), ("key", "value"), ("query", "value"))


def layer_edits() -> Iterator[NamedMistake]:
    """Yield wrong projections of a layer, and wrong merges of its heads."""
    yield from normed_tokens()
    yield from _matrix_mistakes()
    yield from _channel_mistakes()
    yield from _source_mistakes()


def _mistake(words: str, fix: str, edits: Edits, *, misplaces: bool = True) -> NamedMistake:
    return NamedMistake(
        name=f"projections: {words}",
        primary=_PRIMARY,
        sentence=words,
        fix=fix,
        edits=edits,
        misplaces=misplaces,
    )


def normed_tokens() -> Iterator[NamedMistake]:
    """Yield tokens that are normalised before the projection, all inputs first."""
    fix = (
        "project the tokens as they are given; if the norm is meant, it cannot be declared: check "
        "the attention without it, as with module.norm = torch.nn.Identity()"
    )
    for roles, (words, norm) in product((*_OF_TOKENS, *((role,) for role in ROLES)), NORMS):
        named = "input" if len(roles) == len(ROLES) else _listed(roles)
        edits = tuple(Edit(f"{role}_tokens", change=_norm_in_double(norm)) for role in roles)
        said = f"each token of the {named} is {words} before it is projected"
        yield _mistake(said, fix, edits, misplaces=False)


def _listed(roles: tuple[str, ...]) -> str:
    return " and ".join(ROLES[role] for role in roles)


def _norm_in_double(norm: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda tokens: norm(tokens.double())


def _matrix_mistakes() -> Iterator[NamedMistake]:
    fix = "multiply by the projection's own matrix, (out, in) as in nn.Linear, and add its own bias"
    for role, name in _PROJECTIONS.items():
        for other, of in ((o, n) for o, n in _PROJECTIONS.items() if o != role):
            for words, turned in (("", False), (" transposed", True)):
                edit = Edit(role, change=partial(other_weight, source=other, transposed=turned))
                yield _mistake(f"the {name} projection has the {of} matrix{words}", fix, (edit,))
            bias = Edit(f"{role}_bias", partial(weight, name=f"{other}_bias"))
            said = f"the {name} projection adds the bias of the {of} projection"
            yield _mistake(said, fix, (bias,))
        for words, factor in (("added twice", 2.0), ("taken off", -1.0)):
            bias = Edit(f"{role}_bias", change=partial(torch.mul, other=factor))
            yield _mistake(f"the bias of the {name} projection is {words}", fix, (bias,))
    for (order, unpack), roles in product(_ORDERS.items(), ("qkv", "kv", *"qkv")):
        packed = roles if len(roles) > 1 else "qkv"
        edits = tuple(e for e in repacked(unpack, packed) if e.stage[0] in roles)
        named = " and ".join(ROLES[_PROJECTIONS[role]] for role in roles)
        one = "keys and values" if packed == "kv" else "queries, keys and values"
        said = f"the {named} are projected by rows of one matrix for {one} that is read {order}"
        yield _mistake(said, "cut the packed matrix into its parts, then each into heads", edits)
        yield _mistake(f"{said}, with their own biases", "cut the bias as the matrix", edits[::2])


_ORDERS: Final = {"head by head": split_by_head, "channel by channel": split_by_channel}


def _channel_mistakes() -> Iterator[NamedMistake]:
    for role, plural in ROLES.items():
        heads = "num_heads" if role == "query" else "num_kv_heads"
        edit = Edit(f"projected_{role}", change=golden.Rewired(_deinterleave_heads, ("", heads)))
        said = (
            f"the projected {plural} are cut so that head h takes every H-th channel from the h-th"
        )
        yield _mistake(said, "view them as [B, L, H, D], then exchange L and H", (edit,))
    fix = "exchange H and L of [B, H, L, D], then put the heads side by side"
    for words, edit in (
        ("as if [B, H, L, D] were [H, B, L, D]", Edit("merged", _merged_as_items)),
        (
            "channel by channel: channel d of head h goes to d * H + h",
            Edit("merged", change=golden.Rewired(_interleave_heads, ("", "num_heads"))),
        ),
    ):
        yield _mistake(f"the heads of the answer are put together {words}", fix, (edit,))


def _interleave_heads(merged: Tensor, heads: int) -> Tensor:
    turned: Tensor = merged.unflatten(-1, (heads, -1)).mT.flatten(-2)
    return turned


def _deinterleave_heads(merged: Tensor, heads: int) -> Tensor:
    turned: Tensor = merged.unflatten(-1, (-1, heads)).mT.flatten(-2)
    return turned


def _merged_as_items(output: Tensor) -> Tensor:
    batch, _, length, _ = output.shape
    return output.permute(1, 2, 0, 3).reshape(batch, length, -1)


# The tokens, the role whose matrix projects them, and whether their own projection comes first.
Source = tuple[str, str, bool]


def _source_mistakes() -> Iterator[NamedMistake]:
    every = [*product(ROLES, ROLES, (False, True))]
    for role, source in product(ROLES, every):
        if source != (role, role, False):
            yield _made_from({role: source})
    for one, two in combinations(ROLES, 2):
        for first, second in product(every, every):
            own = (one, one, False) == first or (two, two, False) == second
            plain = all(tokens == by for tokens, by, _ in (first, second))
            both = first[2] and second[2] and first[0] == second[0]
            if not own and (both or (plain and not first[2] and not second[2])):
                yield _made_from({one: first, two: second})


def _made_from(sources: Mapping[str, Source]) -> NamedMistake:
    edits = []
    said: dict[str, list[str]] = {}
    for role, source in sources.items():
        tokens, by, projected = source
        through = (tokens[0], f"{tokens[0]}_bias") if projected else ()
        names = (f"{tokens}_tokens", *through, by[0], f"{by[0]}_bias")
        edits.append(Edit(f"projected_{role}", golden.Rewired(_projected, names)))
        said.setdefault(_source_words(source), []).append(ROLES[role])
    words = " and ".join(f"the {' and '.join(roles)} are {how}" for how, roles in said.items())
    fix = "project the tokens of query, key and value once, each by its own matrix and bias"
    return _mistake(words, fix, tuple(edits))


def _source_words(source: Source) -> str:
    tokens, by, projected = source
    if projected:
        return f"the projected {ROLES[tokens]}, projected by the {by}'s matrix"
    if tokens == by:
        return f"the projected {ROLES[by]}"
    return f"the {tokens}'s tokens, projected by the {by}'s matrix"


def _projected(tokens: Tensor, *weights: Any) -> Tensor:
    for matrix, bias in zip(weights[::2], weights[1::2], strict=True):
        tokens = golden.project(tokens, matrix, bias)
    return tokens
