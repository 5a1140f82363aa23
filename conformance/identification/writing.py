"""Write the declaration as Python source to paste, from the investigation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from .._golden import golden
from ..adapters.filling import BY_ITEM, SCATTERED, at_squares
from ..adapters.multihead import is_multihead
from ..base.geometry import LENGTHS
from ..declare.declaration import DEFAULT_FEATURES, GIVEN_POSITIONS, mixed_in
from ..declare.signatures import SIGNATURES
from ..targets.target_strings import is_path, seen_from, split_site, split_target
from ..tolerance.model import SAME_READ
from .caches import cache_source
from .convention import LAYER_LAYOUTS, Convention, ScoreFunction, adapter_body, header, written
from .deviations import Investigation, deviations, expected, promised
from .implementation import LOAD, Implementation
from .points import function_in
from .record import NO_MEANING, deviations_words

Ties = tuple[tuple[str, str], ...]

_LOADED: Final = re.compile(rf"({re.escape(LOAD)}\(['\"])([^'\"\n]*):")
# Fields with separate keywords in a declaration.
_OWN_KEYWORDS: Final = ("causal_alignment", "empty_rows")


def declared_name(implementation: Implementation) -> str:
    """The name of the declared function: a candidate's name need not be a Python name."""
    return "_".join(["declared", *re.findall(r"\w+", implementation.name)])


def declaration_text(implementation: Implementation, case: Investigation) -> str:
    """A file that imports the implementation, adapts the call and declares the observation."""
    convention = convention_of(case)
    name = declared_name(implementation)
    promises = promises_of(case)
    promises |= {"rotary_tables": "'angles'"} if convention.angles else {}
    if not convention.angles and follows_positions(case):
        convention = convention.replace(placed=True)
        features = [*re.findall(r"\w+", promises.get("features", "")), GIVEN_POSITIONS]
        promises["features"] = repr(features)
    if implementation.form == "module":
        promises |= _lengths(case)
        promises |= {"unchecked": repr(case.unchecked)} if case.unchecked else {}
        promises |= {"cache": cache_source(case.cache, implementation)[0]} if case.cache else {}
        lines = _module(implementation, convention, name, promises)
    elif implementation.form == "builder":
        lines = _builder(implementation, convention, name, promises, case.caller.sizes.changes)
    else:
        lines = _core(implementation, convention, name, promises, case.caller.sizes.changes)
    # An imported candidate would be checked, too.
    only = ["", "", f'__conformance__ = ["{name}"]'] if implementation.declared is not None else []
    function = function_in(promised(case))
    if function is not None:
        lines = [*function.source(), "", "", *lines]
    return "\n".join([*_top(implementation, case, lines), "", "", *lines, *only, ""])


def convention_of(case: Investigation) -> Convention:
    """How the declaration calls: tables of positions are made of the angles of a call."""
    return case.caller.convention.replace(angles=bool(read_tables(case)))


def read_tables(case: Investigation, *, idle: bool = False) -> list[str]:
    """The parameters filled with tables of positions whose angles turn queries and keys.

    With ``idle``: the parameters filled with tables whose angles change no answer.
    """
    caller = case.caller
    others = {name: at_squares(source) for name, source in caller.convention.options}
    tables = [name for name, source in caller.convention.options if others[name] != source]
    inputs = caller.draw()
    own = caller.answer(inputs) if tables else None
    if own is None:
        return []
    changed = caller.under(options=tuple(others.items())).answer(inputs)
    is_idle = changed is not None and torch.equal(own.output, changed.output)
    turned = promised(case).rotary != "none"
    return tables if (is_idle if idle else turned and not is_idle) else []


def follows_positions(case: Investigation) -> bool:
    """Whether each item of a call on one input is turned by positions of its own."""
    caller = case.caller
    options = caller.convention.options
    if caller.convention.inputs != "self" or not any(value in BY_ITEM for _, value in options):
        return False
    if mixed_in(promised(case)) is None or not caller.convention.layout.batched:
        return False
    inputs = caller.draw()

    def at(positions: str) -> Tensor | None:
        own = tuple((name, positions if value in BY_ITEM else value) for name, value in options)
        answer = caller.under(options=own).answer(inputs)
        return None if answer is None else answer.output

    plain, scattered = at(BY_ITEM[0]), at(SCATTERED)
    if plain is None or scattered is None or torch.equal(plain, scattered):
        return False
    for item in range(inputs.geometry.batch):
        alone = at(f"{SCATTERED}[{item}].expand({inputs.geometry.batch}, -1)")
        if alone is None or not _is_alike(alone[item], scattered[item]):
            return False
    return inputs.geometry.batch > 1


def _is_alike(answer: Tensor, other: Tensor) -> bool:
    return bool((answer - other).abs().max() <= SAME_READ * other.abs().max())


def written_in(text: str, folder: Path) -> str:
    """A declaration for the working folder, with paths rewritten for another folder."""
    return _LOADED.sub(lambda match: f"{match[1]}{seen_from(match[2], folder)}:", text)


def _title(implementation: Implementation) -> str:
    """The command that found the declaration, without machine paths."""
    whole, number = split_site(implementation.target)
    where, name = split_target(whole)
    parts = [seen_from(where, Path.cwd()) if is_path(where) else where, *([name] if name else [])]
    site = "" if number is None else f"#{number}"
    return f'"""Found by: conformance identify {":".join(parts)}{site}"""'


def _imported(implementation: Implementation, more: list[str]) -> list[str]:
    loaded = [line for line in implementation.imports if LOAD in line]
    others = [line for line in implementation.imports if line not in loaded]
    return [*others, *more, "", "import conformance", *(["", *loaded] if loaded else [])]


def _lengths(case: Investigation) -> dict[str, str]:
    """The fixed lengths of a module, its longest length, or a tie of keys to queries."""
    sizes = dict(case.caller.sizes.changes)
    geometry: dict[str, Any] = {
        name: int(sizes[name]) for name in LENGTHS if sizes.get(name, "").isdigit()
    }
    longest = case.caller.longest
    named = {} if longest is None or geometry else {"max_length": str(longest)}
    if sizes.get("key_length") == "g.query_length":
        geometry = {"key_length": "query_length"}
    if case.caller.most_items is not None:
        geometry["batch"] = [*range(1, case.caller.most_items + 1)]
    return {**named, "geometry": repr(geometry)} if geometry else named


def positions_text(implementation: Implementation, longest: int) -> str:
    """A file that declares a position encoding."""
    name = declared_name(implementation)
    only = ["", "", f'__conformance__ = ["{name}"]'] if implementation.declared is not None else []
    lines = [
        _title(implementation),
        "",
        *_imported(implementation, []),
        "",
        "",
        f"@conformance.positions(name={implementation.name!r}, max_length={longest})",
        f"def {name}(x):",
        f"    return {implementation.expression}(x)",
        *only,
        "",
    ]
    return "\n".join(lines)


def signature_text(implementation: Implementation, signature: str, arrays: str) -> str:
    """A file that declares a function by its public signature."""
    own = SIGNATURES[signature].promises.get("arrays", "torch")
    given = f"signature={signature!r}" + (f", arrays={arrays!r}" if arrays != own else "")
    declared = f"conformance.core(name={implementation.name!r}, {given})"
    name = declared_name(implementation)
    lines = [
        _title(implementation),
        "",
        *_imported(implementation, []),
        "",
        f"{name} = {declared}({implementation.expression})",
        "",
    ]
    return "\n".join(lines)


def model_text(implementation: Implementation) -> str:
    """A file that declares a whole model with the conventions of its attentions."""
    name = declared_name(implementation)
    made = f"lambda: {implementation.expression}, name={implementation.name!r}"
    lines = [_title(implementation), "", *_imported(implementation, []), ""]
    return "\n".join([*lines, f"{name} = conformance.model({made})", ""])


def _top(implementation: Implementation, case: Investigation, lines: list[str]) -> list[str]:
    uses_torch = any("torch." in line for line in lines)
    top = [_title(implementation), ""]
    top += _noted(case)
    if case.beyond:
        top += [f"# Beyond a declaration: {sentence}." for sentence in case.beyond] + [""]
    if implementation.form == "module" and case.unread:
        top += [*_unread(case), ""]
    if case.cache is not None:
        more = cache_source(case.cache, implementation)[1]
        implementation = replace(implementation, imports=(*implementation.imports, *more))
    return [*top, *_imported(implementation, ["import torch"] if uses_torch else [])]


def _unread(case: Investigation) -> list[str]:
    """Comments on masks with unknown meaning that no call passes."""
    names = ", ".join(f"`{name}`" for name in case.unread)
    return [
        f"# {names}: {NO_MEANING}, so that check leaves its verdict open.",
        "# Pass it in call where you know its meaning, or let it stay unjudged with",
        f"# unchecked={[*case.unchecked, *case.unread]}.",
    ]


def _noted(case: Investigation) -> list[str]:
    """The probable mistakes as comments, promised or not."""
    mistaken = [deviation for deviation in deviations(case) if deviation.mistaken]
    if not mistaken:
        return []
    end = "they are promised, as asked for" if case.as_observed else "the standard is promised"
    lines = [f"# {deviations_words(len(mistaken))}; {end}."]
    for deviation in mistaken:
        lines += [
            f"# - {deviation.text}.",
            f"#   Fix: {deviation.fix}.",
            f"#   Observed: {deviation.observed}",
        ]
    return [*lines, ""]


def promises_of(case: Investigation) -> dict[str, str]:
    """The arguments of the declaration, as source."""
    convention, promises = case.caller.convention, case.promises
    source: dict[str, str] = {}
    arrays = case.caller.arrays
    source |= {} if convention.inputs == "separate" else {"inputs": repr(convention.inputs)}
    source |= {} if convention.layout.batched else {"batched": "False"}
    source |= {} if arrays == "torch" else {"arrays": repr(arrays)}
    if convention.masks:
        source["masks"] = repr(list(convention.forms))
        source["mask_shapes"] = repr(convention.shapes)
    if convention.causal or "always_causal" in promises:
        source["causal"] = repr(promises["causal"])
    source |= {"always_causal": "True"} if "always_causal" in promises else {}
    # A finite fill itself turns a row without keys into a mean: no rule can be told.
    filled = math.isfinite(promised(case).mask_fill)
    rule = "any" if filled else promises.get("empty_rows", "any")
    if rule != "any":
        source["empty_rows"] = repr(rule)
    features = [word for word in case.features if word not in DEFAULT_FEATURES[case.caller.kind]]
    if features:
        source["features"] = repr(features)
    if promises.get("dtypes", ["float32"]) != ["float32"]:
        source["dtypes"] = repr(promises["dtypes"])
    semantics = _semantics(promised(case), aligned="causal" in source)
    if semantics:
        source["semantics"] = semantics
    failures = expected(case)
    if failures:
        source["expected_failures"] = _expected(failures)
    return source


def _semantics(point: golden.Semantics, *, aligned: bool) -> str:
    """The point as source; positions need the alignment if no keyword says it (``aligned``)."""
    changed = golden.STANDARD.differences(point)
    own = set(_OWN_KEYWORDS)
    if mixed_in(point) is not None and not aligned:
        own.discard("causal_alignment")
    entries = [f"{name}={_number(pair[1])}" for name, pair in changed.items() if name not in own]
    return f"conformance.STANDARD.replace({', '.join(entries)})" if entries else ""


def _number(value: Any) -> str:
    if isinstance(value, ScoreFunction):
        return "score_mod"  # defined above
    return written(value) if isinstance(value, float) else repr(value)


def _expected(failures: list[tuple[str, str]]) -> str:
    entries = [
        f"conformance.ExpectedFailure(clause={clause!r}, reason={reason!r})"
        for clause, reason in failures
    ]
    return f"[{', '.join(entries)}]"


def _arguments(promises: Mapping[str, str], indent: int) -> list[str]:
    pad = " " * indent
    return [f"{pad}{name}={value}," for name, value in promises.items()]


def _decorated(kind: str, shown: str, promises: Mapping[str, str]) -> list[str]:
    return [f"@conformance.{kind}(", *_arguments({"name": repr(shown), **promises}, 4), ")"]


def _core(
    implementation: Implementation,
    convention: Convention,
    name: str,
    promises: dict[str, str],
    ties: Ties,
) -> list[str]:
    return [
        *_sizes(promises, ties),
        *_decorated("core", implementation.name, promises),
        header(name, convention),
        *adapter_body(convention, implementation.expression),
    ]


def _sizes(promises: dict[str, str], ties: Ties) -> list[str]:
    """A function for ``geometry=`` if sizes are tied; adds the argument to the promises.

    Numbers alone need no function.
    """
    if not ties:
        return []
    if all(source.isdigit() for _, source in ties):
        promises["geometry"] = repr({name: int(source) for name, source in ties})
        return []
    promises["geometry"] = "sizes"
    steps = [f"    g = g.replace({name}={source})" for name, source in ties]
    return [
        "def sizes(g):",
        '    """The sizes that it can have."""',
        *steps,
        "    return g",
        "",
        "",
    ]


def _builder(
    implementation: Implementation,
    convention: Convention,
    name: str,
    promises: dict[str, str],
    ties: Ties,
) -> list[str]:
    lines = (header("forward", convention), *adapter_body(convention, "theirs"))
    inner = [f"    {line}" for line in lines]
    return [
        *_sizes(promises, ties),
        *_decorated("layer", implementation.name, promises),
        f"def {name}(geometry, weights):",
        f"    theirs = {implementation.expression}(geometry, weights)",
        '    if hasattr(theirs, "eval"):',
        "        theirs.eval()",
        "",
        *inner,
        "",
        "    return forward",
    ]


def _module(
    implementation: Implementation,
    convention: Convention,
    name: str,
    promises: dict[str, str],
) -> list[str]:
    if _turned_by_us(implementation.value):
        convention = convention.replace(layout=LAYER_LAYOUTS[0])
    call = {"name": repr(implementation.name), "call": "call", "inputs": repr(convention.inputs)}
    return [
        header("call", convention, "module"),
        *adapter_body(convention, "module"),
        "",
        "",
        f"{name} = conformance.module(",
        f"    {implementation.expression},",
        *_arguments({**call, **promises}, 4),
        ")",
    ]


def _turned_by_us(built: Any) -> bool:
    """Whether ``conformance.module`` itself puts the batch second for a module."""
    says = isinstance(built, torch.nn.Module) and getattr(built, "batch_first", None) is False
    return says and not is_multihead(built)
