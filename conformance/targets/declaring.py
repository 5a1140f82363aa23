"""Advice for a target without a declared candidate: lines to paste, and commands to run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from ..adapters.construction import instance_of, lines_needed
from ..adapters.matrices import as_module, takes_matrices
from ..adapters.packing import HEAD_NAMES
from ..base.parameter_names import POSITIONAL, option_of, role_of, signature_in_docstring, words_of
from ..base.printable_text import few
from ..declare.declaration import ARRAYS, LEARNED_KEYWORDS
from ..declare.signatures import SIGNATURES, signature_by_parameters
from ..errors import (
    BELOW,
    TO_CHECK,
    ConstructionError,
    DeclarationError,
    OtherAttentionError,
    indented,
    lacks_import,
    lines_to_paste,
)
from .target_strings import is_path, seen_from

_MOST: Final = 6
_MOST_NAMED: Final = 30
# A function of one argument is no attention, unless the argument is its only input.
_FEWEST: Final = 2
_ROLES: Final = {"q": "query", "k": "key", "v": "value"}
# The promise on a layer's inputs, by the number of required inputs.
_OWN_INPUTS: Final = {1: ', inputs="self"', 2: ', inputs="memory"'}
# The feature of each learned argument, which calls give by name.
_LEARNED: Final = {word: name for name, words in LEARNED_KEYWORDS.items() for word in words}
METHODS: Final = ("forward", "__call__")
_WITH_WEIGHTS: Final = "a new file layer.py, with the right q, k, v, o and num_heads"


def undeclared_in(module: ModuleType, where: str) -> str:
    """Lines on the modules and functions of a file without candidates, with advice for each.

    The lines stand below a sentence; "" if the file defines neither modules nor functions.
    """
    names = [*_own(module, _is_layer), *_own(module, _is_attention)]
    names.sort(key=lambda name: -_signs(name, getattr(module, name)))
    entries = (_entry(name, getattr(module, name), where) for name in names[:_MOST])
    return "".join(entries) + and_more(names[_MOST:])


def and_more(names: list[str]) -> str:
    """A line below a sentence that names the rest of some definitions; "" without a rest."""
    return f"{BELOW}and {len(names)} more: {few(names, _MOST_NAMED)}" if names else ""


def attention_signs(
    name: str, parameters: Iterable[str], used: Iterable[str], *, is_class: bool
) -> int:
    """How likely a definition is an attention: most by its name and its inputs' names.

    ``parameters`` are those of a function, or of a class's calling method; ``used`` are the names
    in the definition's code.
    """
    named = bool({"attention", "attn"}.intersection(words_of(name)))
    inputs = _ROLES.keys() <= {role_of(one)[0] for one in parameters}
    weighs = any("softmax" in one or "dot_product_attention" in one for one in used)
    if not is_class and named + inputs + weighs == 1:
        return inputs  # what draws attention, or draws tokens, is none
    return 2 * (named + inputs) + weighs


def _signs(name: str, value: Any) -> int:
    own = vars(value) if isinstance(value, type) else {METHODS[0]: value}
    functions = {name: one for name, one in own.items() if inspect.isfunction(one)}
    method = next((functions[one] for one in METHODS if one in functions), None)
    used = [word for one in functions.values() for word in one.__code__.co_names]
    parameters = list(inspect.signature(method).parameters) if method else []
    return attention_signs(name, parameters, used, is_class=isinstance(value, type))


def declaration_lines(function: Callable[..., Any], target: str) -> str:
    """What to paste for a function of query, key and value, below a sentence; "" for another."""
    where, _, name = target.rpartition(":")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        said = signature_in_docstring(function)
        if said is None:
            return ""
        signature = said
    parameters = list(signature.parameters.values())
    if not all(part.isidentifier() for part in name.split(".")):
        return ""
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    inputs = {} if takes_matrices(parameters) else _inputs(parameters)
    if not inputs and len(required) < _FEWEST:
        return ""
    if not inputs and role_of(required[0])[0] == "q":
        inputs = {required[0]: "query"}
    lines = [*_head(where, name), "", ""]
    public = signature_by_parameters(function)
    if public:
        lines[-2:] = ["", f'declared = conformance.core({name}, signature="{public}")']
        notes = f", at the word of {SIGNATURES[public].source}"
    elif inputs:
        learned = [entry.name for entry in parameters if entry.name in _LEARNED]
        needed = [word for word in required if word not in (*inputs, *learned)]
        given = [*(f"{word}={word}" for word in learned), *(f"{word}=…" for word in needed)]
        own = f", *, {', '.join(learned)}" * bool(learned)
        lines += [
            f"@conformance.core({_promised(learned)})",
            f"def declared(query, key, value{own}):",
        ]
        lines += [f"    return {name}({', '.join([*_given(inputs, parameters), *given])})"]
        notes = _notes(parameters, (*inputs, *learned), needed)
    else:  # the weights are among the arguments
        needed = required[1:]
        call = ", ".join(["x", *(f"{word}=…" for word in needed)])
        lines += ['@conformance.layer(inputs="self")', "def declared(geometry, weights):"]
        lines += ["    def forward(x):", f"        return {name}({call})", "", "    return forward"]
        names = " and ".join(needed) or "its weights"
        notes = f", with {names} made of weights.q, .q_bias … and geometry.num_heads"
    own = f"{where}/__init__.py" if Path(where).is_dir() else where
    into = own if is_path(where) else "a file of yours"
    what = f"{name}{_shown(parameters)}, paste into {into}{notes}"
    run = f"{BELOW}and run: conformance check {own}:declared" if is_path(where) else ""
    return f"{TO_CHECK}{what}:{indented(lines)}{run}"


def _head(where: str, name: str) -> Iterator[str]:
    yield "import conformance"
    if not is_path(where):
        yield f"from {where} import {name.partition('.')[0]}"


def _promised(learned: list[str]) -> str:
    """The promises of a core with learned arguments."""
    features = list(dict.fromkeys(_LEARNED[word] for word in learned))
    point = ', semantics=conformance.Semantics(qk_norm="rms")' * ("norm_weight" in features)
    quoted = ", ".join(f'"{name}"' for name in features)
    return f"features=[{quoted}]{point}" if features else ""


def _notes(parameters: list[inspect.Parameter], inputs: tuple[str, ...], needed: list[str]) -> str:
    """Notes on required arguments, and on mask options that the lines leave out."""
    notes = ""
    if needed:
        is_are = "has no default" if len(needed) == 1 else "have no defaults"
        notes += f", with a value for {' and '.join(needed)}, which {is_are}"
    others = [entry for entry in parameters if entry.name not in (*inputs, *needed)]
    masks = [entry.name for entry in others if option_of(entry) == "mask"]
    if masks:
        notes += f' (for {masks[0]} declare masks=["keep"], or ["drop"] where True hides a key)'
    return notes


def _inputs(parameters: list[inspect.Parameter]) -> dict[str, str]:
    """The roles query, key and value by parameter: by name, else the first three."""
    placed = [entry for entry in parameters if entry.kind in POSITIONAL]
    named = {role_of(entry.name)[0]: entry.name for entry in reversed(placed)}
    if named.keys() >= _ROLES.keys():
        return {named[letter]: role for letter, role in _ROLES.items()}
    required = [
        entry
        for entry in placed
        if entry.default is entry.empty and option_of(entry) != "positions"
        if entry.name.lower() not in HEAD_NAMES
    ]
    if len(required) < len(_ROLES):
        return {}
    return dict(zip((entry.name for entry in required), _ROLES.values(), strict=False))


def _given(inputs: dict[str, str], parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The arguments of the call: by place if the inputs come first, else by name."""
    if [entry.name for entry in parameters[: len(inputs)]] == list(inputs):
        yield from inputs.values()
    else:
        yield from (f"{name}={role}" for name, role in inputs.items())


def _shown(parameters: list[inspect.Parameter]) -> str:
    return f"({', '.join(entry.name for entry in parameters)})"


def _entry(name: str, value: Any, where: str) -> str:
    if isinstance(value, type):
        said = ", a torch.nn.Module" if issubclass(value, torch.nn.Module) else ", a class"
    else:
        said = _shown(list(inspect.signature(value).parameters.values()))
    return f"{TO_CHECK}{name}{said}: conformance check {where}:{name}"


def _own(module: ModuleType, fits: Callable[[Any], bool]) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and fits(value)
    ]


def _is_layer(value: Any) -> bool:
    """Whether a value is a class of torch modules, or a class with its own calling method."""
    called = isinstance(value, type) and any(callable(vars(value).get(one)) for one in METHODS)
    return called or (isinstance(value, type) and issubclass(value, torch.nn.Module))


def _is_attention(value: Any) -> bool:
    """Whether a function takes at least three inputs, or matrices."""
    if not inspect.isfunction(value):
        return False
    parameters = list(inspect.signature(value).parameters.values())
    return bool(_inputs(parameters)) or takes_matrices(parameters)


def how_to_make(error: ConstructionError, target: str) -> str:
    """The reason why the target's class cannot be constructed, and a file that constructs it."""
    where, _, name = target.rpartition(":")
    if lacks_import(error) or error.call == f"{name}()":  # without arguments none can be mended
        return error.why
    if not name.isidentifier() or not error.call.startswith(f"{name}("):
        return (
            f"{error.why}: write a function without arguments that returns an instance in a file "
            "of yours, and name it as FILE.py:function"
        )
    lines = [*_head_of(error.call, where, name), "", ""]
    lines += ["def made():", f"    return {error.call}"]
    fitting = f"the right {' and '.join(error.guessed)}" if error.guessed else "the right values"
    place = f"a new file made.py, with {fitting}"
    return f"{error.why}{lines_to_paste(place, lines, 'made.py:made')}"


def how_to_call(kind: type, target: str) -> str:
    """Why a class of no modules is not judged, and a file that calls an instance."""
    where, _, name = target.rpartition(":")
    method = next((one for one in METHODS if callable(vars(kind).get(one))), "")
    own = list(inspect.signature(vars(kind)[method]).parameters.values())[1:] if method else []
    inputs = _inputs(own)
    required = sum(one.default is one.empty for one in own)
    if not name.isidentifier() or not (inputs or required in _OWN_INPUTS):
        return (
            f"{target} is a class, but no torch.nn.Module: write a function of query, key and "
            "value that calls an instance, in a file of yours, and name it as FILE.py:function"
        )
    needed = inspect.signature(kind).parameters.values()
    given = ", ".join(f"{one.name}=…" for one in needed if one.default is one.empty)
    lines = ["import conformance", "", loaded(where, name), f"attention = {name}({given})"]
    called = f"attention{'.forward' * (method == 'forward')}"
    said = f"{target} is a class, but no torch.nn.Module"
    if not inputs:
        promises = f"{_OWN_INPUTS[required]}{_arrays_of(kind)}"
        lines += _fixed("as tensors of torch", called, promises)
        return f"{said}{lines_to_paste(_WITH_WEIGHTS, lines, 'layer.py:layer')}"
    call = ", ".join(f"{one}={role}" for one, role in inputs.items())
    lines += ["", "", "def attend(query, key, value):", f"    return {called}({call})"]
    place = "a new file attend.py, with the right arguments"
    return f"{said}{lines_to_paste(place, lines, 'attend.py:attend')}"


def _arrays_of(kind: type) -> str:
    """What a layer promises of a class whose file has NumPy's or JAX's arrays and not torch's."""
    modules = [one for one in vars(sys.modules[kind.__module__]).values() if inspect.ismodule(one)]
    used = {one.__name__.partition(".")[0] for one in modules}
    arrays = next((one for one in ARRAYS if one in used), "")
    double = ', dtypes=["float64"]' * (arrays == "numpy")  # NumPy's own
    return f', arrays="{arrays}"{double}' if arrays else ""


def _fixed(of: str, called: str, promises: str) -> list[str]:
    return [
        f"# matrices [out, in], a head's rows together, {of}",
        "q, k, v, o = …",
        "weights = conformance.ProjectionWeights(q=q, k=k, v=v, o=o)",
        f"layer = conformance.fixed_layer({called}, weights, num_heads=…{promises})",
    ]


def _head_of(made: str, where: str, name: str) -> list[str]:
    """The first lines of a file in which ``made`` constructs an instance of a class ``name``."""
    needed = lines_needed(made, lambda one: loaded(where, one))
    lines = [*dict.fromkeys((*needed, "import conformance", loaded(where, name)))]
    imports = [line for line in lines if " = " not in line]
    return [*imports, "", *(line for line in lines if line not in imports)]


def loaded(where: str, name: str) -> str:
    """The line that names an object of another file or module."""
    if is_path(where):
        return f"{name} = conformance.load({f'{seen_from(where, Path.cwd())}:{name}'!r})"
    return f"from {where} import {name}"


def how_to_pass(error: DeclarationError, value: Any, target: str) -> str:
    """The reason why a module's layer cannot be found, and a file with the missing arguments.

    ``value`` is the object of the target: a class, an instance or a builder. The file is left out
    if nothing is known to be missing and no call can be written.
    """
    where, _, name = target.rpartition(":")
    if not where or not name.isidentifier() or isinstance(error, OtherAttentionError):
        return str(error)
    if lacks_import(error):
        return str(error)
    if not error.lacking:
        return f"{error}{_around(value, where, name)}"
    made = name if isinstance(value, type) else _made(value, name)[1]
    lines = _head_of(made, where, name)
    lines += [f"layer = conformance.module({made}, {error.lacking})"]
    return f"{error}{lines_to_paste('a new file layer.py', lines, 'layer.py:layer')}"


def how_to_answer(value: Any, target: str, inputs: str) -> str:
    """A file with a call for a layer that answered no call; "" for another kind of target."""
    where, _, name = target.rpartition(":")
    if not where or not name.isidentifier():
        return ""
    made = name if isinstance(value, (type, torch.nn.Module)) else _made(value, name)[1]
    given = {"self": "x", "memory": "query, context"}.get(inputs, "query, key, value")
    lines = [*_head_of(made, where, name), "", ""]
    lines += [f"def call(module, {given}):", f"    return module({given})", "", ""]
    lines += [f"layer = conformance.module({made}, inputs={inputs!r}, call=call)"]
    sizes = "geometry=dict(batch=…, query_length=…, key_length=…) where it takes these alone"
    place = f"a new file layer.py, with a call that it answers, and {sizes}"
    return lines_to_paste(place, lines, "layer.py:layer")


def how_to_call_model(value: Any, target: str) -> str:
    """A file with a call for a whole model that answered no call; "" for another target."""
    where, _, name = target.rpartition(":")
    if not where or not name.isidentifier():
        return ""
    built, made = _made(value, name)
    parameters = inspect.signature(built.forward).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind in POSITIONAL]
    given = ", ".join(needed or ["input_ids"])
    lines = ["import torch", *_head_of(made, where, name), "", ""]
    lines += ["class Called(torch.nn.Module):", "    def __init__(self):"]
    lines += ["        super().__init__()", f"        self.model = {made}", ""]
    lines += [f"    def forward(self, {given}):", f"        return self.model({given})", "", ""]
    lines += [
        f"model = conformance.model(Called, inputs={{{given.partition(',')[0]!r}: 'tokens'}})"
    ]
    place = (
        "a new file model.py, with a forward that takes tensors [B, …] and answers floats [B, …]"
    )
    return lines_to_paste(place, lines, "model.py:model")


def _made(value: Any, name: str) -> tuple[torch.nn.Module, str]:
    """The module that a target's object is or makes, and the expression that makes it."""
    if isinstance(value, torch.nn.Module):
        return value, name
    if isinstance(value, type):
        built, how = instance_of(value, None)
        return built, how.removeprefix("constructed as ")
    return as_module(value, name) or (value(), f"{name}()")


def _around(value: Any, where: str, name: str) -> str:
    """A file that calls a module in which no layer was found, with the module's weights or none."""
    built, made = _made(value, name)
    lines = _head_of(made, where, name)
    lines += [f"attention = {made}.eval()"]
    parameters = list(inspect.signature(built.forward).parameters.values())
    own = [f"{path} {list(one.shape)}" for path, one in built.named_parameters()]
    if own:
        inputs = _OWN_INPUTS.get(sum(one.default is one.empty for one in parameters), "")
        lines += _fixed(f"of {few(own, _MOST)}", "attention", inputs)
        return lines_to_paste(_WITH_WEIGHTS, lines, "layer.py:layer")
    inputs_of_heads = _inputs(parameters)
    if not inputs_of_heads:
        return ""
    left = (
        f"{one.name}=None"
        for one in parameters
        if one.default is one.empty and one.kind in POSITIONAL and one.name not in inputs_of_heads
    )
    call = ", ".join((*_given(inputs_of_heads, parameters), *left))
    lines += ["", "", "@conformance.core()"]
    lines += ["def core(query, key, value):", f"    return attention({call})"]
    return lines_to_paste("a new file core.py", lines, "core.py:core")
