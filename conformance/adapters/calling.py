"""How the harness' call ``forward(query, key, value, *, keep=…)`` becomes a module's own."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from ..base.parameter_names import POSITIONAL, role_of
from ..declare.declaration import MASK_FORMS, Declaration
from ..errors import DeclarationError, did_you_mean

CallAdapter = Mapping[str, str] | Callable[..., Any]
_COUNTS: Final = {1: "self", 2: "memory", 3: "separate"}
# What libraries call an input of key and value that is the query where it is left out.
_CONTEXT: Final = re.compile(
    r"(y|xa|kv|kv_input|.*context|.*memory|key_value(_states|_input)?|encoder_(hidden_)?(states|outputs?)|cross_states)"
)
_MASK_WORDS: Final = ("mask", "valid_len", "length", "lens", "bias", "padding")


@dataclass(frozen=True, kw_only=True)
class Calling:
    """How a module is called.

    inputs
        ``separate``, ``memory`` or ``self``.
    names
        The parameters that take query, key and value when not by position in that order.
    rename
        Our keyword to the module's.
    absent
        Parameters without a default that get None when the problem does not use them.
    function
        What is called instead of the module: ``function(module, *inputs, **keywords)``.
    sequence_first
        The module's tensors are ``[L, B, E]``.
    """

    inputs: str
    names: tuple[str, ...] | None = None
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    absent: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    sequence_first: bool = False

    def __call__(
        self, module: nn.Module, inputs: tuple[Tensor, ...], keywords: dict[str, Any]
    ) -> Any:
        """Call the module; returns the harness' form of its answer: a tensor, or a pair."""
        if self.sequence_first:
            inputs = tuple(_swapped(tokens) for tokens in inputs)
        answer = self._call(module, inputs, keywords)
        parts = list(answer) if isinstance(answer, (tuple, list)) else [answer]
        if self.sequence_first and parts and isinstance(parts[0], Tensor):
            parts[0] = _swapped(parts[0])
        if keywords.get("return_weights"):
            return tuple(parts[:2]) if len(parts) > 1 else parts[0]
        return parts[0] if parts else answer

    def passed(self, forward: Callable[..., Any], declaration: Declaration) -> set[str]:
        """The parameters of a module's ``forward`` that calls pass.

        The source of a user's function shows them. Where it does not, it passes what is declared,
        and the masks where it takes a declared one or stands for one (always causal).
        """
        theirs = {self.rename.get(word, word) for word in declaration.keywords}
        if self.function is None:
            return theirs
        shown = _handed_over(self.function, forward, theirs)
        if shown is not None:
            return shown
        if declaration.masks or declaration.always_causal:
            theirs.update(mask_parameters(forward))
        return theirs

    def _call(self, module: nn.Module, inputs: tuple[Tensor, ...], keywords: dict[str, Any]) -> Any:
        if self.function is not None:
            return self.function(module, *inputs, **keywords)
        theirs: dict[str, Any] = dict.fromkeys(self.absent)
        theirs.update({self.rename.get(word, word): value for word, value in keywords.items()})
        if self.names is None:
            return module(*inputs, **theirs)
        return module(**dict(zip(self.names, inputs, strict=True)), **theirs)


def _swapped(tokens: Tensor) -> Tensor:
    """Batch and tokens change places, where there is a batch."""
    return tokens.transpose(0, 1) if tokens.dim() == len("BLE") else tokens


class AdaptedModule(nn.Module):
    """A user's module under the harness' call; its state has the user's names under ``module.``."""

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
        """Call the module; the output is a tensor, or output and weights for ``return_weights``."""
        return self.calling(self.module, inputs, keywords)


def read_calling(
    shown: str, forward: Callable[..., Any], call: CallAdapter | None, inputs: str | None
) -> Calling:
    """Read from its signature how to call a module; raises DeclarationError."""
    if call is not None and not isinstance(call, Mapping):
        if not callable(call):
            msg = (
                f"call is {call!r}: give a dict of our keywords to theirs, or call(module, "
                "query, …)"
            )
            raise DeclarationError(msg)
        return Calling(inputs=inputs or _inputs_of_call(call), function=call)
    parameters = list(inspect.signature(forward).parameters.values())
    inputs = inputs or _infer_inputs(shown, parameters)
    taken = [name for name in _input_names(parameters, inputs) if name]
    rename = dict(call or {})
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (*POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
        and parameter.name not in taken
    ]
    for name in required:
        if not _is_mask(name) and name not in rename.values():
            msg = (
                f"{shown}.forward needs {name!r}, which the harness knows nothing of: pass "
                "call=lambda module, query, key, value, **keywords: … to fill it in"
            )
            raise DeclarationError(msg)
    order = _by_name(parameters, inputs)
    return Calling(inputs=inputs, names=order, rename=rename, absent=tuple(required))


def second_input(forward: Callable[..., Any]) -> tuple[str, str] | None:
    """The one required input, and the optional one for key and value; None without both."""
    parameters = list(inspect.signature(forward).parameters.values())
    plain = [entry for entry in parameters if not _is_mask(entry.name)]
    required = [entry.name for entry in _positional(plain) if entry.default is entry.empty]
    optional = [
        entry.name
        for entry in plain
        if entry.default is None and _CONTEXT.fullmatch(entry.name.lower())
    ]
    return (required[0], optional[0]) if len(required) == 1 and optional else None


def check_keywords(
    shown: str, forward: Callable[..., Any], calling: Calling, declaration: Declaration
) -> None:
    """Require that the module takes every declared keyword; raises DeclarationError."""
    if calling.function is not None:
        _check_takes(f"the call= of {shown}", calling.function, {}, declaration)
    else:
        _check_takes(f"{shown}.forward", forward, calling.rename, declaration)


def _check_takes(
    shown: str, function: Callable[..., Any], rename: Mapping[str, str], declaration: Declaration
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
        theirs = rename.get(word, word)
        if theirs not in parameters:
            msg = (
                f"{shown} has no parameter {theirs!r} (it has {', '.join(parameters)}), but "
                f"{word!r} is declared: pass call={{{word!r}: '…'}} with the name it has there"
            )
            raise DeclarationError(msg)


def mask_parameters(forward: Callable[..., Any]) -> list[str]:
    """The parameters whose names are those of masks."""
    return [name for name in inspect.signature(forward).parameters if _is_mask(name)]


def _handed_over(
    function: Callable[..., Any], forward: Callable[..., Any], declared: set[str]
) -> set[str] | None:
    """The parameters of ``forward`` to which a function's source passes more than None or False.

    None where the source cannot be read, or does more with its module than call it with arguments
    that are written out. ``declared`` are the parameters that further keywords may name.
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
    """The keys of a dict that a function fills with options; None where it may hold others."""
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
    """The keys of a dict that is written out whose values are neither None nor False."""
    pairs = [(_text(key), value) for key, value in zip(options.keys, options.values, strict=True)]
    if any(key is None for key, _ in pairs):
        return None
    return {key for key, value in pairs if key is not None and not _off(value)}


def _text(node: ast.AST | None) -> str | None:
    """A text that is written out, None for anything else."""
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


def _roles(parameters: list[inspect.Parameter]) -> dict[str, str]:
    """The parameters whose names say query, key or value."""
    result: dict[str, str] = {}
    for parameter in parameters:
        if parameter.kind not in (*POSITIONAL, inspect.Parameter.KEYWORD_ONLY):
            continue
        role, clear = role_of(parameter.name)
        if clear and role in ("q", "k", "v"):
            result.setdefault(role, parameter.name)
    return result


def _infer_inputs(shown: str, parameters: list[inspect.Parameter]) -> str:
    if len(_roles(parameters)) == len("qkv"):
        return "separate"
    required = [
        parameter.name
        for parameter in _positional(parameters)
        if parameter.default is inspect.Parameter.empty and not _is_mask(parameter.name)
    ]
    if not required:
        signature = inspect.Signature(parameters)
        msg = (
            f"{shown}.forward{signature} does not say what it takes: pass inputs='self', "
            "'memory' or 'separate', and call=lambda module, …: … when the arguments are not "
            "positional"
        )
        raise DeclarationError(msg)
    return _COUNTS.get(len(required), "separate")


def _input_names(parameters: list[inspect.Parameter], inputs: str) -> tuple[str, ...]:
    order = _by_name(parameters, inputs)
    if order is not None:
        return order
    count = {mode: number for number, mode in _COUNTS.items()}[inputs]
    return tuple(parameter.name for parameter in _positional(parameters)[:count])


def _by_name(parameters: list[inspect.Parameter], inputs: str) -> tuple[str, ...] | None:
    """The parameters of query, key and value, when they do not simply come first in that order."""
    roles = _roles(parameters)
    if inputs != "separate" or len(roles) < len("qkv"):
        return None
    names = tuple(roles[role] for role in "qkv")
    leading = tuple(parameter.name for parameter in _positional(parameters)[: len(names)])
    return None if leading == names else names


def _inputs_of_call(call: Callable[..., Any]) -> str:
    parameters = _positional(list(inspect.signature(call).parameters.values()))
    required = [entry for entry in parameters if entry.default is inspect.Parameter.empty]
    return _COUNTS.get(len(required) - 1, "separate")
