"""The convention of a call as data, and the Python adapter that follows the convention.

The adapter printed for the user is the text compiled for probing: results hold for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, Final

import torch
from torch import Tensor

from ..adapters.filling import BY_ITEM, by_angles
from ..base.results import Replaceable


@dataclass(frozen=True)
class Layout:
    """An order of axes.

    ``give`` turns the harness's tensor ``{}`` into the implementation's, ``take`` turns the answer
    back; ``words`` describe the order for the user. ``keys`` and ``values`` are expressions for
    keys and values with their own order. ``batched``, ``single_head`` and ``single_kv_head`` say
    which axes exist.
    """

    name: str
    words: str
    give: str = "{}"
    take: str = "{}"
    keys: str | None = None
    values: str | None = None
    batched: bool = True
    single_head: bool = False
    single_kv_head: bool = False

    @property
    def folds_heads(self) -> bool:
        """Whether the heads of every item are items of the implementation."""
        return self.give == _FOLDED

    def gives(self, count: int) -> tuple[str, ...]:
        """The expressions for the first ``count`` inputs."""
        others = (self.give if own is None else own for own in (self.keys, self.values))
        return (self.give, *others)[:count]


_TURNED: Final = "{}.transpose(0, 1)"
_FOLDED: Final = "{}.flatten(0, 1)"
_TOKENS_FIRST: Final = "{}.transpose(1, 2)"
CORE_LAYOUTS: Final = (
    Layout("BHLD", "heads first: [B, H, L, D]"),
    Layout("BLHD", "tokens first: [B, L, H, D]", _TOKENS_FIRST, _TOKENS_FIRST),
    Layout(
        *("LBHD", "sequence first: [L, B, H, D]"),
        *("{}.permute(2, 0, 1, 3)", "{}.permute(1, 2, 0, 3)"),
    ),
    Layout(
        *("NLD", "heads folded into the batch: [B*H, L, D]"),
        *(_FOLDED, "{}.unflatten(0, query.shape[:2])"),
    ),
    Layout(
        *("BLE", "heads side by side: [B, L, H*D]", f"{_TOKENS_FIRST}.flatten(2)"),
        f"{{}}.unflatten(2, (query.shape[1], -1)){_TOKENS_FIRST[2:]}",
    ),
    Layout("HLD", "one item, heads first: [H, L, D]", batched=False),
    Layout("LHD", "one item, tokens first: [L, H, D]", _TURNED, _TURNED, batched=False),
    Layout(
        *("LD", "one head of one item: [L, D]", "{}.squeeze(0)", "{}.unsqueeze(0)"),
        batched=False,
        single_head=True,
    ),
)
# Orders of axes for keys and values, different from the order of the queries.
_OF_KEYS: Final = (
    ("heads first", "{}", "{}", False),
    ("tokens first", _TOKENS_FIRST, _TOKENS_FIRST, False),
    ("[B, H, D, L] and heads first", "{}.transpose(2, 3)", "{}", False),
    ("[B, L, D], of one head", "{}.squeeze(1)", "{}.squeeze(1)", True),
    ("[B, D, L] and [B, L, D], of one head", "{}.squeeze(1).mT", "{}.squeeze(1)", True),
)
MIXED_LAYOUTS: Final = tuple(
    replace(
        layout,
        name=f"{layout.name}, {words}",
        words=f"{layout.words}; keys and values {words}",
        keys=keys,
        values=values,
        single_kv_head=single,
    )
    for layout in CORE_LAYOUTS[:2]
    for words, keys, values, single in _OF_KEYS
    if (keys, values) != (layout.give, layout.give)
)
LAYER_LAYOUTS: Final = (
    Layout("BLE", "batch first: [B, L, E]"),
    Layout("LBE", "sequence first: [L, B, E]", _TURNED, _TURNED),
    Layout("LE", "one sequence: [L, E]", batched=False),
)


@dataclass(frozen=True, kw_only=True)
class MaskUse:
    """How to pass a mask of the harness to the implementation.

    ``shape`` is the declared shape in letters, ``native`` the implementation's shape in words,
    ``give`` an expression of the harness's mask ``{}``.
    """

    form: str
    parameter: str
    shape: str
    native: str
    give: str = "{}"


@dataclass(frozen=True, kw_only=True)
class Convention(Replaceable):
    """How to make a call.

    names
        Keywords of the inputs; None for inputs by position.
    options
        Keywords with fixed values, as source.
    masks
        The use of a mask, for every form and shape.
    angles
        Whether the tables among the options are made of each call's angles.
    placed
        Whether the positions among the options are those of each call.
    causal, scale, softcap, window, dropout, weights
        Their parameters, or None. An empty ``weights``: returned without a request.
    causal_gives
        The causal value of the flag, as source.
    output, output_beside, returned_weights
        Expressions of ``answer``; ``output_beside`` applies if weights are requested.
    """

    kind: str
    inputs: str
    layout: Layout
    names: tuple[str, ...] | None = None
    options: tuple[tuple[str, str], ...] = ()
    angles: bool = False
    placed: bool = False
    masks: tuple[MaskUse, ...] = ()
    causal: str | None = None
    causal_gives: str = "True"
    scale: tuple[str, str] | None = None
    softcap: str | None = None
    window: str | None = None
    dropout: str | None = None
    weights: tuple[tuple[str, str], ...] | None = None
    output: str = "answer"
    output_beside: str = "answer[0]"
    returned_weights: str = "answer[1]"

    @property
    def forms(self) -> tuple[str, ...]:
        """The mask forms, each once."""
        return tuple(dict.fromkeys(use.form for use in self.masks))

    @property
    def shapes(self) -> list[str] | dict[str, list[str]]:
        """The shapes of masks, by form where the forms differ; then the shapes of lengths."""
        by_form = {
            form: [use.shape for use in self.masks if use.form == form] for form in self.forms
        }
        lengths = by_form.pop("lengths", [])
        several = list(by_form.values()) or [[]]
        if all(set(shapes) == set(several[0]) for shapes in several):
            return list(dict.fromkeys([*several[0], *lengths]))
        return {**by_form, "lengths": lengths} if lengths else by_form

    @property
    def keywords(self) -> tuple[str, ...]:
        """The harness's keywords that the adapter takes, with their defaults."""
        keywords = ["angles"] if self.angles else []
        keywords += ["positions"] if self.placed else []
        keywords += [f"{form}=None" for form in self.forms]
        keywords += ["causal=False"] if self.causal else []
        for word in ("scale", "softcap", "window", "dropout"):
            keywords += [f"{word}=None"] if getattr(self, word) else []
        keywords += ["return_weights=False"] if self.weights is not None else []
        return tuple(keywords)

    @property
    def inputs_names(self) -> tuple[str, ...]:
        """The names of the inputs in the adapter."""
        named = {"self": ("x",), "memory": ("query", "context")}
        return named.get(self.inputs, ("query", "key", "value"))


@lru_cache(maxsize=512)
def compiled(convention: Convention) -> Callable[..., Any]:
    """The adapter as a function ``call(theirs, query, key, value, *, …)``."""
    lines = [header("call", convention, "theirs"), *adapter_body(convention, "theirs")]
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile("\n".join(lines), "<adapter>", "exec"), namespace)  # noqa: S102 (text of this module)
    function: Callable[..., Any] = namespace["call"]
    return function


def header(name: str, convention: Convention, first: str = "") -> str:
    """The line that begins the adapter."""
    positional = [*([first] if first else []), *convention.inputs_names]
    keywords = ["*", *convention.keywords] if convention.keywords else []
    return f"def {name}({', '.join([*positional, *keywords])}):"


def adapter_body(convention: Convention, callee: str) -> list[str]:
    """The adapter's lines, indented once."""
    lines = _options(convention)
    for form in convention.forms:
        lines += _mask_lines(convention, form)
    if convention.causal:
        lines += ["if causal:", f'    options["{convention.causal}"] = {convention.causal_gives}']
    for word, parameter, give in _numbers(convention):
        lines += [f"if {word} is not None:", f'    options["{parameter}"] = {give}']
    weights = convention.weights
    if weights:
        lines.append("if return_weights:")
        lines += [f'    options["{name}"] = {value}' for name, value in weights]
    return [f"    {line}" for line in [*lines, *_call_lines(convention, callee)]]


def _given(convention: Convention) -> tuple[tuple[str, str], ...]:
    """The fixed options as source, with angles or positions of the call where these are given."""
    options = convention.options
    if convention.placed:
        own = ((name, "positions" if value in BY_ITEM else value) for name, value in options)
        options = tuple(own)
    if not convention.angles:
        return options
    return tuple((name, by_angles(value, "angles")) for name, value in options)


def _options(convention: Convention) -> list[str]:
    names = convention.inputs_names
    key = names[min(1, len(names) - 1)]
    entries = ", ".join(
        f'"{name}": {value.replace("{query}", names[0]).replace("{key}", key)}'
        for name, value in _given(convention)
    )
    return [f"options = {{{entries}}}"] if entries or convention.keywords else []


def _numbers(convention: Convention) -> list[tuple[str, str, str]]:
    numbers = []
    if convention.scale:
        numbers.append(("scale", *convention.scale))
    for word in ("softcap", "window", "dropout"):
        parameter = getattr(convention, word)
        if parameter:
            numbers.append((word, parameter, word))
    return numbers


def _mask_lines(convention: Convention, form: str) -> list[str]:
    uses = [use for use in convention.masks if use.form == form]
    ways = {(use.parameter, use.give) for use in uses}
    if len(ways) == 1:
        use = uses[0]
        return [
            f"if {form} is not None:",
            f'    options["{use.parameter}"] = {_mask_expression(use)}',
        ]
    # Several uses: the shape of the mask decides, the most special shape first.
    lines = []
    word = "if"
    query = convention.inputs_names[0]
    ordered = sorted(uses, key=lambda use: _SPECIAL.get(use.shape, len(_SPECIAL)))
    for use in ordered:
        test = _shape_test(use.shape, form, query)
        lines += [
            f"{word} {form} is not None and {test}:",
            f'    options["{use.parameter}"] = {_mask_expression(use)}',
        ]
        word = "elif"
    return lines


def _mask_expression(use: MaskUse) -> str:
    return use.give.format(use.form)


_SPECIAL: Final = {"B11K": 0, "11QK": 1, "B1QK": 2}


def _shape_test(shape: str, form: str, query: str) -> str:
    if shape == "B11K":
        return f"{form}.shape[:3] == ({query}.shape[0], 1, 1)"
    if shape == "B1QK":
        return f"{form}.dim() == 4 and {form}.shape[1] == 1"
    if shape == "11QK":
        return f"{form}.dim() == 4 and {form}.shape[0] == {form}.shape[1] == 1"
    return f"{form}.dim() == {len(shape)}"


def _call_lines(convention: Convention, callee: str) -> list[str]:
    inputs = convention.inputs_names
    gives = convention.layout.gives(len(inputs))
    tokens = [give.format(name) for give, name in zip(gives, inputs, strict=True)]
    if convention.names is not None:
        tokens = [f"{name}={token}" for name, token in zip(convention.names, tokens, strict=True)]
    call = f"{callee}({', '.join([*tokens, *(['**options'] if _options(convention) else [])])})"
    take = convention.layout.take
    first = inputs[0]
    if first != "query":
        take = take.replace("query", first)
    if convention.weights is None and convention.output == "answer":
        return [f"return {take.format(call)}"]
    lines = [f"answer = {call}"]
    if convention.weights is not None:
        whole = take.format(convention.output_beside)
        lines += ["if return_weights:", f"    return {whole}, {convention.returned_weights}"]
    return [*lines, f"return {take.format(convention.output)}"]


@dataclass(frozen=True)
class ScoreFunction:
    """A function of scaled scores and of the indices of item, head, query and key.

    ``expression`` is its Python source, ``words`` a description. ``cap`` is the number of a cap,
    ``mistake`` the reason why the function can only be a mistake, ``doubt`` why it may be one.
    """

    expression: str
    words: str
    cap: float | None = None
    mistake: str = ""
    doubt: str = ""

    def __call__(
        self, score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
    ) -> Tensor:
        """The scores ``[B, H, Lq, Lk]`` after the function, in their dtype."""
        places = {"score": score, "batch": batch, "head": head, "query": query, "key": key}
        changed: Tensor = eval(self._code, {"torch": torch}, places)  # noqa: S307 (text of this module)
        return changed

    @cached_property
    def _code(self) -> CodeType:
        return compile(self.expression, "<score_mod>", "eval")

    def __str__(self) -> str:
        """The Python text of the score function, which a record keeps."""
        return self.expression

    def source(self) -> list[str]:
        """The definition of a function ``score_mod``, line by line."""
        words = self.words[0].upper() + self.words[1:]
        return [
            "def score_mod(score, batch, head, query, key):",
            f'    """{words}."""',
            f"    return {self.expression}",
        ]


def capped(cap: float) -> ScoreFunction:
    """A cap on the logits."""
    number = written(cap)
    return ScoreFunction(
        f"{number} * torch.tanh(score / {number})",
        f"logits become {number} * tanh(logits / {number})",
        cap,
    )


def windowed(before: int, after: int | None) -> ScoreFunction:
    """A window of ``before`` keys before a query's own index and ``after`` behind; None: no end."""
    hidden = f"query - key > {before}"
    words = f"keys more than {before} places before a query are hidden"
    if after is not None:
        hidden = f"({hidden}) | (key - query > {after})"
        words += f", and those more than {after} behind it"
    turned = before == 0 and after is None
    mistake = "a query sees itself and later keys alone: a triangle the wrong way round"
    doubt = (
        f"a query sees {after} of the later keys and {before} of the earlier ones, as with a "
        "causal rule that is off: declare it if it is meant"
    )
    return ScoreFunction(
        f"score.masked_fill({hidden}, -torch.inf)",
        words,
        mistake=mistake if turned else "",
        doubt=doubt if after and after < before else "",
    )


def sloped(slopes: Sequence[float]) -> ScoreFunction:
    """A bias by the distance from query to key, with a slope for each head or a common slope."""
    numbers = [written(slope) for slope in slopes]
    if len(numbers) == 1:
        slope, each = numbers[0], f"{numbers[0]} for each key of distance"
    else:
        slope = f"torch.tensor([{', '.join(numbers)}], dtype=score.dtype)[head]"
        named = ", ".join(f"{number} in head {index}" for index, number in enumerate(numbers))
        each = f"for each key of distance {named}"
    mistake = "logits grow with the distance to a key: a bias of the wrong sign"
    return ScoreFunction(
        f"score + {slope} * (query - key).abs()",
        f"logits get a bias by distance: {each}",
        mistake=mistake if min(slopes) > 0.0 else "",
    )


def written(number: float) -> str:
    """A number as Python."""
    return f"{number:.9g}"
