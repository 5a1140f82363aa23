"""Translates the harness' call ``forward(query, key, value, *, keep=…)`` to a module's own call."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from ..base.parameter_names import POSITIONAL, option_of, role_of
from ..declare.declaration import MASK_FORMS, Declaration
from ..declare.module_caches import Cache
from ..errors import DeclarationError, did_you_mean
from .answers import output_of, weights_in
from .filling import Fills, filled, masks_that_hide_nothing
from .sequences import in_sequence, plainly

CallAdapter = Mapping[str, str | tuple[str, ...]] | Callable[..., Any]
_COUNTS: Final = {1: "self", 2: "memory", 3: "separate"}
# Names of the tokens for each kind of inputs.
TOKENS: Final = {
    "self": ("query",),
    "memory": ("query", "context"),
    "separate": ("query", "key", "value"),
}
_MASK_WORDS: Final = ("mask", "valid_len", "length", "lens", "bias", "padding")


@dataclass(frozen=True, kw_only=True)
class Calling:
    """How a module is called.

    inputs
        ``separate``, ``memory`` or ``self``.
    names
        The parameters of query, key and value; None for the first positions in this order.
    rename
        Our keyword to the module's, or to two parameters for the sides of a window.
    fills
        Names of further parameters, and expressions of their values when the problem gives none.
    wanted, guessed
        Parameters to fill, and the subset whose names do not exclude tokens.
    spare
        Optional parameters to fill if calls without them fail.
    function
        Called instead of the module: ``function(module, *inputs, **keywords)``.
    sequence_first
        Whether the module's tensors are ``[L, B, E]``.
    cache
        The cache of the module's own, in which calls may find earlier tokens.
    """

    inputs: str
    names: tuple[str, ...] | None = None
    rename: Mapping[str, str | tuple[str, ...]] = dataclasses.field(default_factory=dict)
    fills: Fills = ()
    wanted: tuple[inspect.Parameter, ...] = ()
    guessed: tuple[str, ...] = ()
    spare: tuple[inspect.Parameter, ...] = ()
    function: Callable[..., Any] | None = None
    sequence_first: bool = False
    cache: Cache | None = None

    def __call__(
        self, module: nn.Module, inputs: tuple[Tensor, ...], keywords: dict[str, Any]
    ) -> Any:
        """Call the module; returns the output, or output and weights for ``return_weights``."""
        if self.cache is None:
            return self.ask(module, inputs, keywords, filled(self.fills, inputs))
        call = in_sequence if "past" in keywords else plainly
        return call(self.cache, self.ask, module, inputs, {**keywords}, self.fills)

    def ask(
        self,
        module: nn.Module,
        inputs: tuple[Tensor, ...],
        keywords: dict[str, Any],
        fills: Mapping[str, Any],
    ) -> Any:
        """Call the module once, with fills that are made already."""
        if self.sequence_first:
            inputs = tuple(_swapped(tokens) for tokens in inputs)
        answer = self._call(module, inputs, {**keywords}, fills)
        output = output_of(answer, inputs[0]) if inputs else answer
        weights = weights_in(answer, output) if keywords.get("return_weights") else None
        if self.sequence_first and isinstance(output, Tensor):
            output = _swapped(output)
        return output if weights is None else (output, weights)

    def passed(self, forward: Callable[..., Any], declaration: Declaration) -> set[str]:
        """The parameters of a module's ``forward`` that calls pass.

        The source of a user's function shows them. Without readable source, a function is taken to
        pass the declared keywords, and all masks if a mask is declared or every call is causal.
        """
        theirs = {name for word in declaration.keywords for name in _theirs(self.rename, word)}
        theirs |= {*(() if self.cache is None else self.cache.parameters)}
        if self.function is None:
            return theirs | self._given(forward)
        shown = _handed_over(self.function, forward, theirs)
        if shown is not None:
            return shown | {*(() if self.cache is None else self.cache.parameters)}
        if declaration.masks or declaration.always_causal:
            theirs.update(mask_parameters(forward))
        return theirs

    def keeping(self, cache: Cache | None) -> Calling:
        """The calling with a cache, whose parameters are filled by nothing else."""
        if cache is None:
            return self
        own = cache.parameters
        return dataclasses.replace(
            self,
            cache=cache,
            wanted=tuple(entry for entry in self.wanted if entry.name not in own),
            spare=tuple(entry for entry in self.spare if entry.name not in own),
            fills=tuple(fill for fill in self.fills if fill[0] not in own),
            guessed=tuple(name for name in self.guessed if name not in own),
        )

    @property
    def guessed_masks(self) -> list[str]:
        """Parameters filled with ones or zeros although their names say nothing of masks."""
        masks = {*masks_that_hide_nothing()} - {"None"}
        return [name for name, source in self.fills if name in self.guessed and source in masks]

    def _given(self, forward: Callable[..., Any]) -> set[str]:
        """The parameters of the tokens and of filled positions."""
        parameters = inspect.signature(forward).parameters
        count = {mode: number for number, mode in _COUNTS.items()}[self.inputs]
        places = [entry.name for entry in _positional(list(parameters.values()))[:count]]
        tables = [
            name
            for name, _ in self.fills
            if name in parameters and option_of(parameters[name]) == "positions"
        ]
        return {*(self.names or places), *tables}

    def _call(
        self,
        module: nn.Module,
        inputs: tuple[Tensor, ...],
        keywords: dict[str, Any],
        fills: Mapping[str, Any],
    ) -> Any:
        if self.function is not None:
            return self.function(module, *inputs, **keywords)
        theirs = dict(fills)
        given: dict[str, list[Any]] = {}
        ordered = dict.fromkeys((*(word for word in self.rename if word in keywords), *keywords))
        for word in ordered:
            names, value = _theirs(self.rename, word), keywords[word]
            parts = (value,) if len(names) == 1 else value
            for name, part in zip(names, parts, strict=True):
                given.setdefault(name, []).append(part)
        theirs |= {name: each[0] if len(each) == 1 else tuple(each) for name, each in given.items()}
        if self.names is None:
            return module(*inputs, **theirs)
        return module(**dict(zip(self.names, inputs, strict=True)), **theirs)


def _theirs(rename: Mapping[str, str | tuple[str, ...]], word: str) -> tuple[str, ...]:
    names = rename.get(word, word)
    return (names,) if isinstance(names, str) else names


def _swapped(tokens: Tensor) -> Tensor:
    """Exchange the axes of batch and tokens; tokens without a batch stay."""
    return tokens.transpose(0, 1) if tokens.dim() == len("BLE") else tokens


class AdaptedModule(nn.Module):
    """A user's module behind the harness' call; state names begin with ``module.``."""

    def __init__(self, module: nn.Module, calling: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.calling = calling
        self.train(module.training)

    def passed(self, declaration: Declaration) -> set[str]:
        """The names of the module's parameters that calls pass."""
        if not isinstance(self.calling, Calling):
            return set(declaration.keywords)
        return self.calling.passed(self.module.forward, declaration)

    def forward(self, *inputs: Tensor, **keywords: Any) -> Any:
        """Call the module; returns the output, or output and weights for ``return_weights``."""
        return self.calling(self.module, inputs, keywords)


def read_calling(
    shown: str, forward: Callable[..., Any], call: CallAdapter | None, inputs: str | None
) -> Calling:
    """Read from a signature how to call a module; raises DeclarationError."""
    if call is not None and not isinstance(call, Mapping):
        if not callable(call):
            msg = (
                f"call is {call!r}: give a dict of our keywords to theirs, or call(module, "
                "query, …)"
            )
            raise DeclarationError(msg)
        return Calling(inputs=inputs or _inputs_of_call(call), function=call)
    return next(iter(ways_to_call(shown, forward, call, inputs)))


def ways_to_call(
    shown: str,
    forward: Callable[..., Any],
    call: Mapping[str, str | tuple[str, ...]] | None,
    inputs: str | None,
) -> list[Calling]:
    """The ways to call a signature, the likeliest first; raises DeclarationError.

    Where names do not tell which parameters take tokens, every order is listed, for answers to
    decide.
    """
    parameters = list(inspect.signature(forward).parameters.values())
    rename = dict(call or {})
    roles = roles_by_name(parameters)
    needed = [entry for entry in _named(parameters) if entry.default is entry.empty]
    tokens = [entry for entry in needed if may_be_tokens(entry)]
    if len(roles) == len("qkv") and inputs in (None, "separate"):
        names = tuple(roles[role] for role in "qkv")
        tokens = [entry for entry in tokens if entry.name in names]
        orders = [names]
    elif inputs is not None:
        count = {mode: number for number, mode in _COUNTS.items()}[inputs]
        # Required parameters first, then optional ones, each in order.
        first = [entry.name for entry in tokens]
        later = [entry.name for entry in _positional(parameters) if may_be_tokens(entry)]
        taken = tuple(dict.fromkeys((*first, *later)))[:count]
        places = tuple(entry.name for entry in _positional(parameters)[:count])
        orders = list(itertools.permutations(taken)) if len(taken) == count else [places]
    else:
        orders = _orders(shown, parameters, tokens)
    named = {entry.name: entry for entry in needed}
    ways = []
    for order in orders:
        wanted = [entry for name, entry in named.items() if name not in order]
        spare = [
            entry
            for entry in _named(parameters)
            if entry.default is None
            and option_of(entry) in ("positions", "mask")
            and entry.name not in order
        ]
        ways.append(
            Calling(
                inputs=_COUNTS[len(order)] if order else inputs or "self",
                names=_by_name(parameters, order),
                rename=rename,
                wanted=tuple(wanted),
                guessed=tuple(
                    entry.name
                    for entry in wanted
                    if may_be_tokens(entry) and not _may_be_none(entry)
                ),
                spare=tuple(spare),
                fills=tuple((entry.name, "None") for entry in wanted),
            )
        )
    return ways


def _orders(
    shown: str, parameters: list[inspect.Parameter], tokens: list[inspect.Parameter]
) -> list[tuple[str, ...]]:
    """Possible parameters of query, key and value, where names do not tell the roles."""
    optional = [
        entry.name
        for entry in _named(parameters)
        if entry.default is None and not _is_mask(entry.name) and option_of(entry) in ("", "input")
    ]
    names = [entry.name for entry in tokens]
    if not names:
        signature = inspect.Signature(parameters)
        msg = (
            f"{shown}.forward{signature} does not say what it takes: pass inputs='self', "
            "'memory' or 'separate', and call= when the arguments are not positional"
        )
        lacking = "inputs='self', call=lambda module, query: module(query)"
        raise DeclarationError(msg, lacking)
    if len(names) > len("qkv"):
        names = [entry.name for entry in tokens if not _may_be_none(entry)] or names
    if len(names) > len("qkv"):
        more = names[len("qkv") :]
        needs = " and ".join(repr(name) for name in more)
        lacking = call_to_fill("separate", names, more)
        msg = (
            f"{shown}.forward needs {needs}, which the harness knows nothing of: give the right "
            f"value, instead of None, in {lacking}"
        )
        raise DeclarationError(msg, lacking)
    orders = list(itertools.permutations(names))
    if len(names) == 1:
        orders += [(names[0], other) for other in optional]
    else:  # all but one may be no tokens at all
        orders += [(name,) for name in names]
    return orders


def call_to_fill(inputs: str, names: Sequence[str], more: Iterable[str]) -> str:
    """Arguments of ``conformance.module`` with further parameters None, for the user to edit."""
    tokens = TOKENS[inputs]
    taken = [f"{name}={token}" for name, token in zip(names, tokens, strict=False)] or tokens
    given = ", ".join([*taken, *(f"{name}=None" for name in more)])
    return f"inputs={inputs!r}, call=lambda module, {', '.join(tokens)}: module({given})"


def _may_be_none(parameter: inspect.Parameter) -> bool:
    annotation = str(parameter.annotation)
    return "Optional" in annotation or bool(re.search(r"\|\s*None\b", annotation))


def may_be_tokens(parameter: inspect.Parameter) -> bool:
    """Whether a parameter's name means neither a mask nor an option."""
    return not _is_mask(parameter.name) and option_of(parameter) in ("", "input")


def check_keywords(
    shown: str, forward: Callable[..., Any], calling: Calling, declaration: Declaration
) -> None:
    """Require the module to take every declared keyword; raises DeclarationError."""
    if calling.function is not None:
        _check_takes(f"the call= of {shown}", calling.function, {}, declaration)
    else:
        _check_takes(f"{shown}.forward", forward, calling.rename, declaration)


def _check_takes(
    shown: str,
    function: Callable[..., Any],
    rename: Mapping[str, str | tuple[str, ...]],
    declaration: Declaration,
) -> None:
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for word in rename:
        if word not in declaration.keywords:
            msg = (
                f"call renames {word!r}, which is not "
                f"declared{did_you_mean(word, {*declaration.keywords, *MASK_FORMS})}"
            )
            raise DeclarationError(msg)
    for word in declaration.keywords:
        for theirs in _theirs(rename, word):
            if theirs not in parameters:
                msg = (
                    f"{shown} has no parameter {theirs!r} (it has {', '.join(parameters)}), but "
                    f"{word!r} is declared: pass call={{{word!r}: '…'}} with the name it has there"
                )
                raise DeclarationError(msg)


def mask_parameters(forward: Callable[..., Any]) -> list[str]:
    """The parameters with names of masks."""
    return [name for name in inspect.signature(forward).parameters if _is_mask(name)]


def _handed_over(
    function: Callable[..., Any], forward: Callable[..., Any], declared: set[str]
) -> set[str] | None:
    """The parameters of ``forward`` that a function's source sets to more than None or False.

    None without readable source, or with uses of the module besides calls with plain arguments.
    ``declared`` are the parameters that ``**keywords`` may name.
    """
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError):
        return None
    written = body[0] if body else None
    if not isinstance(written, ast.FunctionDef) or not written.args.args:
        return None
    module, rest = written.args.args[0].arg, written.args.kwarg
    calls = [
        node
        for node in ast.walk(written)
        if isinstance(node, ast.Call) and _names(node.func) == module
    ]
    uses = [node for node in ast.walk(written) if _names(node) == module]
    if not calls or len(uses) > len(calls):
        return None
    places = [
        entry.name for entry in _positional(list(inspect.signature(forward).parameters.values()))
    ]
    passed: set[str] = set()
    for call in calls:
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            return None
        passed.update(
            name for name, value in zip(places, call.args, strict=False) if not _off(value)
        )
        for keyword in call.keywords:
            if keyword.arg is not None:
                passed.update([] if _off(keyword.value) else [keyword.arg])
            elif rest is not None and _names(keyword.value) == rest.arg:
                passed.update(declared)
            else:
                entries = _entries(written, keyword.value)
                if entries is None:
                    return None
                passed.update(entries)
    return passed


def _entries(written: ast.FunctionDef, value: ast.expr) -> set[str] | None:
    """The keys of an options dict that a function builds; None if further keys are possible."""
    if isinstance(value, ast.Dict):
        return _keys(value)
    name, result, understood = _names(value), set(), 1
    if name is None:
        return None
    for node in ast.walk(written):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _targets(node) == [name]:
            keys = _keys(node.value) if isinstance(node.value, ast.Dict) else None
        elif isinstance(node, ast.Subscript) and _names(node.value) == name:
            key = _text(node.slice)
            keys = None if key is None else {key}
        else:
            continue
        if keys is None:
            return None
        result |= keys
        understood += 1
    uses = sum(_names(node) == name for node in ast.walk(written))
    return result if uses == understood else None


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str | None]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [_names(target) for target in targets]


def _keys(options: ast.Dict) -> set[str] | None:
    """The keys of a dict literal whose values are neither None nor False."""
    pairs = [(_text(key), value) for key, value in zip(options.keys, options.values, strict=True)]
    if any(key is None for key, _ in pairs):
        return None
    return {key for key, value in pairs if key is not None and not _off(value)}


def _text(node: ast.AST | None) -> str | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def _names(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _off(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and (value.value is None or value.value is False)


def _is_mask(name: str) -> bool:
    return any(word in name.lower() for word in _MASK_WORDS)


def _positional(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [parameter for parameter in parameters if parameter.kind in POSITIONAL]


def roles_by_name(parameters: list[inspect.Parameter]) -> dict[str, str]:
    """The parameters with clear names of query, key or value, by role."""
    result: dict[str, str] = {}
    for parameter in parameters:
        if parameter.kind not in (*POSITIONAL, inspect.Parameter.KEYWORD_ONLY):
            continue
        role, clear = role_of(parameter.name)
        if clear and role in ("q", "k", "v"):
            result.setdefault(role, parameter.name)
    return result


def _named(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    kinds = (*POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
    return [parameter for parameter in parameters if parameter.kind in kinds]


def _by_name(parameters: list[inspect.Parameter], order: tuple[str, ...]) -> tuple[str, ...] | None:
    """The names of the tokens' parameters, or None when they are the first in this order."""
    leading = tuple(parameter.name for parameter in _positional(parameters)[: len(order)])
    return None if leading == order else order


def _inputs_of_call(call: Callable[..., Any]) -> str:
    parameters = _positional(list(inspect.signature(call).parameters.values()))
    required = [entry for entry in parameters if entry.default is inspect.Parameter.empty]
    return _COUNTS.get(len(required) - 1, "separate")
