"""The parameters of functions and modules: their roles by name, and those of functions in C."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

# The kinds of parameters that take an argument by its place.
POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WORDS: Final = {
    **dict.fromkeys(("q", "qs", "query", "queries"), "q"),
    **dict.fromkeys(("k", "ks", "key", "keys"), "k"),
    **dict.fromkeys(("v", "vs", "value", "values", "val", "vals"), "v"),
    **dict.fromkeys(("o", "out", "output", "outputs", "unifyheads", "unify", "combine"), "o"),
}
_FILLERS: Final = frozenset(
    "w b weight bias biases linear lin fc proj projection layer dense net to attn attention head "
    "self cross multi matrix mat c param transform map mapping".split()
)
_PREFIXES: Final = ("to", "w", "b", "linear", "lin", "fc", "proj")
_SUFFIXES: Final = ("projection", "proj", "linear", "lin", "layer")
_FUSED_NAMES: Final = (("c", "attn"), ("in", "proj"), ("w", "pack"), ("pack",))
# What a parameter of attention may switch or carry besides its inputs: the first that fits.
_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "weights": frozenset(
        "need_weights return_weights return_attn return_attention output_attentions with_weights "
        "need_attn average_attn_weights need_head_weights".split()
    ),
    "positions": frozenset(
        "position positions pos pe rotary rope rot freqs freq cis cos sin alibi offset".split()
    ),
    "cache": frozenset("past cache kvcache kv_cache incremental inference mems".split()),
    "dropout": frozenset("dropout".split()),
    "softcap": frozenset("softcap softcapping cap".split()),
    "window": frozenset("window".split()),
    "causal": frozenset("causal autoregressive".split()),
    "scale": frozenset("scale scaling temperature".split()),
    "mask": frozenset(
        "mask masks masking keep drop bias biases padding pad lengths lens len seqlens valid "
        "adjacency adj edges".split()
    ),
}
_NO_MASK: Final = frozenset("max min use add".split())
# What an input of key and value, or of more tokens, that may be left out is called.
_INPUTS: Final = re.compile(
    r"(y|xa|(x_)?(k|v|kv|keys?|values?|key_value)(_x|_in|_inputs?|_states|_tokens)?|.*context"
    r"|.*memory|encoder_(hidden_)?(states|outputs?)|cross_states|cond|conditioning|latents?)"
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def role_of(path: str) -> tuple[str, bool]:
    """The roles in a dotted parameter name, and whether the name states them clearly.

    ``"attn.q_proj.weight"`` gives ``("q", True)``, ``"Wqkv.weight"`` ``("qkv", True)``. Names that
    only say "a projection" (``proj``, ``fc``, ``W``) are often the output's: ``("o", False)``. A
    name that says nothing gives ``("", False)``.
    """
    components = [part for part in path.split(".") if not (part.isdigit() or part == "*")]
    if len(components) > 1 and components[-1] in ("weight", "bias"):
        components.pop()
    for component in reversed(components):
        roles = _clear_role(component)
        if roles:
            return roles, True
    vague = bool(components) and all(map(_is_filler, _split(components[-1])))
    return ("o", False) if vague else ("", False)


def roles_in(path: str) -> str:
    """The roles in any word of a name's last part: of ``q_up`` they are ``"q"``."""
    components = [part for part in path.split(".") if part not in ("weight", "bias")]
    words = (word for part in components[-2:] for word in _split(part) if not _is_filler(word))
    return "".join(dict.fromkeys("".join(map(_read_word, words))))


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case."""
    return _split(name)


def _split(component: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(component)]


def _clear_role(component: str) -> str:
    words = [word for word in _split(component) if word not in ("weight", "bias")]
    short = words[:-1] if words and words[-1] in ("w", "b") else words
    if tuple(words) in _FUSED_NAMES or tuple(short) in _FUSED_NAMES:
        return "qkv"
    roles = ""
    for word in words:
        if _is_filler(word):
            continue
        read = _read_word(word)
        if not read:
            return ""
        roles += read
    fused = len(roles) > 1
    if len(set(roles)) < len(roles) or (fused and "o" in roles):
        return ""
    return roles


def _is_filler(word: str) -> bool:
    """Whether a word, or its singular, tells no role."""
    return word in _FILLERS or word.removesuffix("s") in _FILLERS


def _read_word(word: str) -> str:
    """The roles in one word: ``queries`` is q, ``wo`` is o, ``kv`` is kv."""
    if word in _WORDS:
        return _WORDS[word]
    if set(word) <= set("qkv") and len(set(word)) == len(word):
        return word
    for prefix in _PREFIXES:
        if word.startswith(prefix) and (roles := _read_stem(word.removeprefix(prefix))):
            return roles
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and (roles := _read_stem(word.removesuffix(suffix))):
            return roles
    return ""


def _read_stem(stem: str) -> str:
    if stem in _WORDS:
        return _WORDS[stem]
    letters = set(stem)
    return stem if stem and letters <= set("qkv") and len(letters) == len(stem) else ""


@dataclass(frozen=True, kw_only=True)
class OptionParameter:
    """A parameter that no call of the harness gives: its name, and the option in the name.

    ``option`` is "mask", "cache", "input", "causal", "scale" and so on. ``accepted`` says that the
    parameter may stay unchecked.
    """

    name: str
    option: str
    accepted: bool = False


def option_of(parameter: inspect.Parameter) -> str:
    """The option that a parameter's name and default speak of, or ""."""
    words = set(_split(parameter.name))
    for option, option_words in _OPTIONS.items():
        if words & option_words or parameter.name.lower() in option_words:
            return _role_of_mask(words, parameter) if option == "mask" else option
    named = _INPUTS.fullmatch(parameter.name.lower())
    return "input" if named and may_be_left_out(parameter) else ""


def may_be_left_out(parameter: inspect.Parameter) -> bool:
    """Whether the default gives nothing: None, or the empty tensor of scripted modules."""
    shape = getattr(parameter.default, "shape", ())
    return parameter.default is None or (isinstance(shape, tuple) and 0 in shape)


def _role_of_mask(words: set[str], parameter: inspect.Parameter) -> str:
    """A switch called mask is the triangle; numbers and texts are no masks."""
    if words & _NO_MASK:
        return ""
    if may_be_left_out(parameter) or parameter.default is inspect.Parameter.empty:
        return "mask"
    if isinstance(parameter.default, bool):
        return "causal" if "mask" in words else ""
    return "dropout" if "drop" in words else ""


def undeclared_options(
    signature: inspect.Signature,
    declared: Container[str],
    accepted: Iterable[str] = (),
    *,
    inputs: int = len("qkv"),
    masks: Container[str] = (),
) -> Iterator[OptionParameter]:
    """The parameters that look like options and are not declared.

    ``declared`` are the names that calls may give, ``accepted`` globs of names that may stay
    unchecked. The first ``inputs`` parameters take query, key and value by their places. ``masks``
    are names without a known meaning to which calls give masks that hide nothing.
    """
    accepted = tuple(accepted)
    for place, parameter in enumerate(signature.parameters.values()):
        option = "mask" if parameter.name in masks else option_of(parameter)
        if option == "input" and place < inputs:
            continue
        open_ended = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        is_given = parameter.name in declared and parameter.name not in masks
        if option and not open_ended and not is_given:
            may_stay = any(fnmatchcase(parameter.name, glob) for glob in accepted)
            yield OptionParameter(name=parameter.name, option=option, accepted=may_stay)


def signature_in_docstring(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature that begins the docstring of a function in C; None where none does."""
    name, text = (getattr(function, each, None) for each in ("__name__", "__doc__"))
    if not isinstance(name, str) or not isinstance(text, str) or not name:
        return None
    match = re.match(rf"\s*{re.escape(name)}(\([^()]*\))", text)
    try:
        parsed = ast.parse(f"def f{match.group(1)}: pass" if match else "").body
        if len(parsed) != 1 or not isinstance(parsed[0], ast.FunctionDef):
            return None
        return inspect.Signature(list(_parameters(parsed[0].args)))
    except (SyntaxError, ValueError):
        return None


def _parameters(arguments: ast.arguments) -> Iterator[inspect.Parameter]:
    kind = inspect.Parameter
    placed = [*arguments.posonlyargs, *arguments.args]
    lacking: list[ast.expr | None] = [None] * (len(placed) - len(arguments.defaults))
    for place, (one, default) in enumerate(
        zip(placed, [*lacking, *arguments.defaults], strict=True)
    ):
        alone = place < len(arguments.posonlyargs)
        own = kind.POSITIONAL_ONLY if alone else kind.POSITIONAL_OR_KEYWORD
        yield kind(one.arg, own, default=_value(default))
    if arguments.vararg is not None:
        yield kind(arguments.vararg.arg, kind.VAR_POSITIONAL)
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield kind(one.arg, kind.KEYWORD_ONLY, default=_value(default))
    if arguments.kwarg is not None:
        yield kind(arguments.kwarg.arg, kind.VAR_KEYWORD)


def _value(default: ast.expr | None) -> Any:
    """The value of a literal, the text of any other expression; empty without a default."""
    if default is None:
        return inspect.Parameter.empty
    try:
        return ast.literal_eval(default)
    except ValueError:
        return ast.unparse(default)
