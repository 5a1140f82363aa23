"""What the queries and keys of a layer, and their positions, may be in place of what they should.

Each kind is a product of queries and keys made in another way, from the tokens of the call. Where
weights cannot be read, operands made of other tokens are compared with an answer as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, product
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...oracle.oracle import known_weights
from ...problems.inputs import Inputs
from ...tolerance import model
from ..agreement import BatteryAnswer
from ..mistakes import IMPOSSIBLE, DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import require
from ..mistakes.named_mistake import Heads
from .reading import statement
from .terms import Term, TermValues
from .value_steps import NORMS, cuts, fused, fused_bias, fused_cut, groups, other_matrices

HeadsOf = Callable[[DeclaredCall], Tensor]
Rule = Callable[[Tensor, golden.Semantics], Tensor]
_NAMES: Final = {"q": "query", "k": "key", "v": "value"}
_PLURALS: Final = {"q": "queries", "k": "keys"}


@dataclass(frozen=True, eq=False)
class Operand:
    """Heads ``[B, H, L, D]`` of queries or keys before their positions; words are a noun phrase."""

    words: str
    heads: HeadsOf


def _heads_of(role: str, call: DeclaredCall) -> tuple[Tensor, int]:
    sizes = call.inputs.geometry
    if role == "q":
        return call.inputs.query, sizes.num_heads
    return call.inputs.key, sizes.num_kv_heads


def _projected(
    role: str,
    matrix: Callable[[DeclaredCall], Tensor] | None = None,
    bias: tuple[str, float] | None = None,
    cut: Callable[[Tensor, int], Tensor] | None = None,
    added: Callable[[DeclaredCall], Tensor | None] | None = None,
    change: Callable[[Tensor], Tensor] | None = None,
) -> HeadsOf:
    """Projected heads with another matrix, another bias or a multiple of one, or cut otherwise.

    ``change`` is made to the tokens before they are projected.
    """

    def heads(call: DeclaredCall) -> Tensor:
        require(call.inputs.is_layer)
        weights = known_weights(call.inputs)
        own = getattr(weights, role)
        used = own if matrix is None else matrix(call)
        require(used is not None and used.shape == own.shape)
        given = _given_bias(role, bias, call) if added is None else added(call)
        require(given is None or given.shape[0] == own.shape[0])
        tokens, count = _heads_of(role, call)
        tokens = tokens if change is None else change(tokens.double())
        projected = golden.project(tokens, used, given)
        if cut is None:
            return golden.split_heads(projected, count, call.semantics)
        return cut(projected, count)

    return heads


def _given_bias(role: str, bias: tuple[str, float] | None, call: DeclaredCall) -> Tensor | None:
    """A multiple of the bias of some projection; the role's own one for None."""
    source, factor = bias or (role, 1.0)
    weights = known_weights(call.inputs)
    require(bias is None or getattr(weights, f"{source}_bias") is not None)
    given: Tensor | None = getattr(weights.taking_part(call.semantics), f"{source}_bias")
    return None if given is None else factor * given


def _operands(role: str) -> Iterator[Operand]:
    name = _PLURALS[role]
    for words, matrix in other_matrices(role):
        yield Operand(f"{name} projected by {words}", _projected(role, matrix))
        other = next((r for r in "qkv" if words == f"the matrix of the {_NAMES[r]} projection"), "")
        if other and other != role:
            yield Operand(
                f"{name} projected by {words} and its bias",
                _projected(role, matrix, (other, 1.0)),
            )
        yield Operand(
            f"{name} projected by {words}, without a bias",
            _projected(role, matrix, (role, 0.0)),
        )
    for by_channel, order in ((False, "head by head"), (True, "channel by channel")):
        yield Operand(
            f"{name} projected by rows of a fused matrix that is read {order}",
            _projected(role, fused("qkv".index(role), by_channel=by_channel)),
        )
        yield Operand(
            f"{name} projected by rows of a fused matrix and bias that are read {order}",
            _projected(
                role,
                fused("qkv".index(role), by_channel=by_channel),
                added=fused_bias("qkv".index(role), by_channel=by_channel),
            ),
        )
    yield Operand(
        f"{name} whose bias is not scaled",
        _projected(role, added=_unscaled_bias(role)),
    )
    for factor, words in ((0.0, "without their bias"), (2.0, "with their bias added twice")):
        yield Operand(f"{name} {words}", _projected(role, None, (role, factor)))
    for words, change in (
        ("divided by the root of its mean square", _rms),
        ("normalised to mean 0 and variance 1", _layer),
    ):
        yield Operand(
            f"{name} of which each token is {words} first", _projected(role, change=change)
        )
    yield Operand(f"{name} with their bias taken off", _projected(role, None, (role, -1.0)))
    for other in "qkv":
        if other != role:
            words = f"{name} with the bias of the {_NAMES[other]} projection"
            yield Operand(words, _projected(role, None, (other, 1.0)))
    for words, cut in cuts():
        yield Operand(f"projected {name} {words}", _projected(role, cut=cut))
    changes: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
        ("divided by their length in each head", _unit),
        ("divided by the root of the mean square of each head", _rms),
        ("normalised to mean 0 and variance 1 in each head", _layer),
        ("of which each has the softmax over its channels taken", lambda t: t.softmax(-1)),
        ("of which the positive part is taken", torch.relu),
        ("of which the GELU is taken", torch.nn.functional.gelu),
        ("of which the SiLU is taken", torch.nn.functional.silu),
        ("of which the hyperbolic tangent is taken", torch.tanh),
    )
    for words, of_heads in changes:
        own = _projected(role)
        yield Operand(f"{name} {words}", _changed(own, of_heads))


def _unscaled_bias(role: str) -> Callable[[DeclaredCall], Tensor | None]:
    """The bias as it counts where it is added to what is scaled already."""

    def added(call: DeclaredCall) -> Tensor | None:
        given = _given_bias(role, None, call)
        return None if given is None else call.inputs.geometry.head_size**0.5 * given

    return added


def _changed(own: HeadsOf, change: Callable[[Tensor], Tensor]) -> HeadsOf:
    return lambda call: change(own(call))


def _unit(heads: Tensor) -> Tensor:
    return torch.nn.functional.normalize(heads, dim=-1)


def _rms(heads: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(heads, heads.shape[-1:], eps=_EPSILON)


def _layer(heads: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(heads, heads.shape[-1:])


_EPSILON: Final = 1e-6
QUERIES: Final = tuple(_operands("q"))
KEYS: Final = tuple(_operands("k"))
OWN_QUERIES: Final = Operand("", _projected("q"))
OWN_KEYS: Final = Operand("", _projected("k"))


def product_of(query: Operand, key: Operand) -> TermValues:
    """Scaled products of some queries and keys, turned by their positions as is declared."""

    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        try:
            queries, keys = query.heads(call), key.heads(call)
        except (NotExpressible, ValueError, RuntimeError):
            return None
        if queries.shape[-1] != keys.shape[-1]:
            return None
        queries, keys = golden.position_heads(queries, keys, call.semantics)
        keys = golden.repeat_heads(keys, queries.shape[1], call.semantics)
        products = queries @ keys.mT * attention.scale
        return products if products.shape == attention.scores.shape else None

    return values


_FIX: Final = (
    "project the tokens as they are, queries and keys each by its own matrix and bias, cut the "
    "result into heads of neighbouring channels, and scale their products"
)


def operand_terms() -> Iterator[Term]:
    """Products with one operand that is made otherwise, or both in the same way."""
    for one in QUERIES:
        yield Term(one.words, one.words, product_of(one, OWN_KEYS), operand=True, fix=_FIX)
    for one in KEYS:
        yield Term(one.words, one.words, product_of(OWN_QUERIES, one), operand=True, fix=_FIX)
    for one, two in zip(QUERIES, KEYS, strict=True):
        words = f"{one.words} and {two.words}"
        yield Term(words, words, product_of(one, two), operand=True, fix=_FIX)
    for words, group in groups("keys"):
        yield Term(words, words, _grouped(group), operand=True, fix=_FIX)
    yield Term(
        "one head of the whole width",
        "one head of the whole width",
        _of_one_head,
        operand=True,
    )


def _grouped(group: Callable[[Tensor, int], Tensor]) -> TermValues:
    """Products where each head reads the keys of other key/value heads."""

    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        queries, keys = golden.position_heads(
            OWN_QUERIES.heads(call), OWN_KEYS.heads(call), call.semantics
        )
        return queries @ group(keys, queries.shape[1]).mT * attention.scale

    return values


def norm_terms(point: golden.Semantics) -> Iterator[Term]:
    """Products of queries and keys that are normalised otherwise than a point declares.

    Both by any of the usual rules, or one of them or both in an unusual way.
    """
    own = _NORMS[point.qk_norm]
    usual = product(_NORMS.values(), _NORMS.values())
    unusual = chain(*(((words, words), (words, own), (own, words)) for words in _UNUSUAL))
    fix = "normalise each head of each query and key by the declared rule, before it is turned"
    for query, key in chain((pair for pair in usual if pair != (own, own)), unusual):
        words = f"queries {query}, keys {key}"
        text = (
            f"queries and keys are {query}" if query == key else f"queries are {query}, keys {key}"
        )
        values = _normalised(_RULES[query], _RULES[key])
        yield Term(words, words, values, operand=True, text=f"{text}: both must be {own}", fix=fix)


def _normalised(of_query: Rule, of_key: Rule) -> TermValues:
    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
        point = call.semantics
        query, key, _ = call.projected_heads()
        query, key = of_query(query.double(), point), of_key(key.double(), point)
        query, key = golden.position_heads(query, key, point.replace(qk_norm="none"))
        key = golden.repeat_heads(key, query.shape[1], point)
        return query @ key.mT * attention.scale

    return values


def _by_rule(rule: str) -> Rule:
    return lambda heads, point: golden.normalise_heads(heads, point.replace(qk_norm=rule))


def _along(axes: tuple[int, ...], power: float = 0.5) -> Rule:
    """The declared rule along other axes, or with another power of the mean square."""

    def normalised(heads: Tensor, point: golden.Semantics) -> Tensor:
        if point.qk_norm == "layer":
            heads = heads - heads.mean(axes, keepdim=True)
        square = heads.square()
        if point.qk_norm == "l2":
            total = square.sum(axes, keepdim=True).pow(power)
            return heads / total.clamp_min(point.qk_norm_epsilon)
        return heads / (square.mean(axes, keepdim=True) + point.qk_norm_epsilon).pow(power)

    return normalised


_NORMS: Final = {
    "none": "left as they are",
    "rms": "divided by the root of their mean square",
    "l2": "divided by their length",
    "layer": "normalised to mean 0 and variance 1",
}
_UNUSUAL: Final[dict[str, Rule]] = {
    "normalised along the tokens in place of the channels": _along((-2,)),
    "normalised along tokens and channels": _along((-2, -1)),
    "normalised along the heads in place of the channels": _along((1,)),
    "normalised along the channels of all heads": _along((1, -1)),
    "divided by their mean square without its root": _along((-1,), 1.0),
    "multiplied by the root of their mean square": _along((-1,), -0.5),
}
_RULES: Final = {**{words: _by_rule(rule) for rule, words in _NORMS.items()}, **_UNUSUAL}


def pair_terms() -> Iterator[Term]:
    """Products with both operands made otherwise, each in its own way."""
    for (i, one), (j, two) in product(enumerate(QUERIES), enumerate(KEYS)):
        if i != j:
            words = f"{one.words} and {two.words}"
            yield Term(words, words, product_of(one, two), operand=True, fix=_FIX)


def _of_one_head(_call: DeclaredCall, attention: golden.Attention) -> Tensor | None:
    if attention.query.shape[1] == 1:
        return None
    products = (attention.query @ attention.key.mT).sum(1, keepdim=True) * attention.scale
    return products.expand_as(attention.scores)


_ROLES: Final = ("query", "key", "value")
_MANY: Final = {"query": "queries", "key": "keys", "value": "values"}
_FIX_SOURCES: Final = (
    "project the tokens of query, key and value once, each by its own matrix and bias"
)


@dataclass(frozen=True)
class Source:
    """Tokens, of an input or ``projected`` already as those of a role are, and a projection."""

    tokens: str
    by: str
    projected: bool = False

    @property
    def words(self) -> str:
        """What follows "are": the tokens and the projection."""
        if self.projected:
            return f"the projected {_MANY[self.tokens]}, projected by the {self.by}'s matrix"
        if self.tokens == self.by:
            return f"the projected {_MANY[self.by]}"
        return f"the {self.tokens}'s tokens, projected by the {self.by}'s matrix"

    def made(self, inputs: Inputs, point: golden.Semantics) -> Tensor:
        """The tokens as they are projected: ``[B, L, width]``."""
        tokens = getattr(inputs, self.tokens).double()
        if self.projected:
            tokens = _projected_by(tokens, self.tokens, inputs, point)
        return _projected_by(tokens, self.by, inputs, point)


def _projected_by(tokens: Tensor, role: str, inputs: Inputs, point: golden.Semantics) -> Tensor:
    weights = known_weights(inputs).taking_part(point)
    matrix = getattr(weights, role[0])
    require(matrix is not None and matrix.shape[1] == tokens.shape[-1])
    return golden.project(tokens, matrix, getattr(weights, f"{role[0]}_bias"))


@dataclass(frozen=True)
class Normed:
    """The tokens of a role, normalised before they are projected by its own matrix."""

    role: str
    kind: str
    norm: Callable[[Tensor], Tensor]

    @property
    def words(self) -> str:
        """What follows "are"."""
        return f"projected from tokens that are {self.kind}"

    def made(self, inputs: Inputs, point: golden.Semantics) -> Tensor:
        """The tokens as they are projected."""
        return _projected_by(self.norm(getattr(inputs, self.role)), self.role, inputs, point)


@dataclass(frozen=True)
class Packed:
    """Keys or values by rows of a matrix that holds both, read in another order."""

    role: str
    order: str

    @property
    def words(self) -> str:
        """What follows "are"."""
        return f"projected by rows of one matrix for keys and values that is read {self.order}"

    def made(self, inputs: Inputs, point: golden.Semantics) -> Tensor:
        """The tokens as they are projected."""
        weights = known_weights(inputs).taking_part(point)
        require(weights.k.shape == weights.v.shape)
        zeros = torch.zeros(weights.k.shape[0], dtype=torch.float64)
        biases = [zeros if bias is None else bias for bias in (weights.k_bias, weights.v_bias)]
        part, heads = ("key", "value").index(self.role), inputs.geometry.num_kv_heads
        matrix, bias = (
            fused_cut(torch.cat(both), heads, parts=2, by_channel=self.order == _BY_CHANNEL)[part]
            for both in ((weights.k, weights.v), biases)
        )
        return golden.project(getattr(inputs, self.role), matrix, bias)


_BY_CHANNEL: Final = "channel by channel"
_SOURCES: Final = tuple(
    Source(tokens, by, projected)
    for projected in (False, True)
    for tokens, by in product(_ROLES, _ROLES)
)
Sources = Mapping[str, Source | Normed | Packed]
# Operands that are made otherwise together.
_TOGETHER: Final[tuple[Sources, ...]] = (
    *(
        {role: Normed(role, words, norm) for role in roles}
        for words, norm in NORMS
        for roles in (("key", "value"), ("query", "value"), ("value",))
    ),
    *(
        {role: Packed(role, order) for role in ("key", "value")}
        for order in ("head by head", _BY_CHANNEL)
    ),
)


def source_statements(answer: BatteryAnswer) -> Iterator[NamedMistake]:
    """Operands made of other tokens, or by another projection, as explain a layer's answer."""
    inputs = answer.inputs
    if inputs.past or inputs.sinks is not None or inputs.weights is None or not answer.fits:
        return
    call = DeclaredCall(inputs=inputs, semantics=answer.subject.declaration.semantics)
    telling = _telling(call)
    for some in (_changes(telling, 1), _changes(telling, 2), _TOGETHER):
        found = [one for one in some if _explains(one, call, answer)]
        if found:
            yield from map(_as_mistake, found)
            return


def _telling(call: DeclaredCall) -> dict[str, list[Source]]:
    """For each role the sources that make another thing of the call's tokens."""
    telling: dict[str, list[Source]] = {}
    for role in _ROLES:
        own = Source(role, role).made(call.inputs, call.semantics)
        for source in _SOURCES:
            try:
                made = source.made(call.inputs, call.semantics)
            except NotExpressible:
                continue
            if made.shape[-1] == own.shape[-1] and not torch.equal(made, own):
                telling.setdefault(role, []).append(source)
    return telling


def _changes(telling: dict[str, list[Source]], count: int) -> Iterator[Sources]:
    """The ways to make so many operands otherwise: two of what is projected already from the same.

    So it goes where a projection is given the name of the tokens.
    """
    for roles in combinations(telling, count):
        for sources in product(*(telling[role] for role in roles)):
            read = {one.tokens if one.projected else "" for one in sources}
            if len(read) == 1:
                yield dict(zip(roles, sources, strict=True))


def _explains(changed: Sources, call: DeclaredCall, answer: BatteryAnswer) -> bool:
    try:
        heads = _heads_from(changed, call)
        output = call.answer_of(call.attend(heads).output)
    except (NotExpressible, *IMPOSSIBLE):
        return False
    if output.shape != answer.output.shape:
        return False
    size = output.abs().amax().clamp_min(model.SAME_READ**2)
    return bool(((answer.output - output).abs() <= model.SAME_READ * size).all())


def _heads_from(changed: Sources, call: DeclaredCall) -> Heads:
    own = {role: Source(role, role) for role in _ROLES}
    sizes, point = call.inputs.geometry, call.semantics
    every = {**own, **changed}.values()
    query, key, value = (_made_by(source, call.inputs, point) for source in every)
    return golden.cut_heads((query, key, value), sizes.num_heads, sizes.num_kv_heads, point)


@lru_cache(maxsize=64)  # each is combined with many others of the same call
def _made_by(source: Source | Normed | Packed, inputs: Inputs, point: golden.Semantics) -> Tensor:
    return source.made(inputs, point)


def _as_mistake(changed: Sources) -> NamedMistake:
    def heads(call: DeclaredCall, _before: Heads) -> Heads | None:
        return _heads_from(changed, call) if call.inputs.is_layer else None

    made: dict[str, list[str]] = {}
    for role, one in changed.items():
        made.setdefault(one.words, []).append(_MANY[role])
    words = " and ".join(f"the {' and '.join(roles)} are {how}" for how, roles in made.items())
    return statement(f"projections: {words}", words, _FIX_SOURCES, heads=heads)
