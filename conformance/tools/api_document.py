"""The public names as text: ``python -m conformance.tools.api_document``."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

# By name: the package's own __init__ names every layer, above this one, too.
_PUBLIC: Final = importlib.import_module("conformance")
_CHAPTERS: Final[Mapping[str, str]] = {
    "Declare": "core layer fixed_layer module Cache with_matrices model graph compiled positions "
    "load Candidate ExpectedFailure Geometry multiple_of ProjectionWeights Ranks Semantics "
    "STANDARD",
    "Check": "check Judge Report suite parametrize",
    "Bounds": "compare Contract contract_for",
    "Clauses and mistakes of your own": "clause Clause Finding Violation Space Subject Problem "
    "Inputs Mistake matches_golden same_answer",
    "Errors": "DeclarationError NonconformanceError UsageError",
}
_OPENING: Final = """\
# The Python API

Generated from the docstrings by `python -m conformance.tools.api_document`; a test fails when it is
stale. Every name is an attribute of `conformance`. What a declaration may promise is in
[candidates](candidates.md), how a report is read in [verdicts](verdicts.md), and how clauses and
mistakes of your own are added in [extending](extending.md).
"""
_STARS: Final[Mapping[object, str]] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_LONGEST: Final = 60  # of a default that is shown
_ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")
_TERM: Final = re.compile(r"\S.*\n(?=    )")


def render() -> str:
    """The text of all public names: signature, docstring and, of a class, public members."""
    chapters = [
        "\n".join([f"## {title}\n", *(_section(name) for name in names.split())])
        for title, names in _CHAPTERS.items()
    ]
    return "\n".join([_OPENING, *chapters])


def _section(name: str) -> str:
    value = getattr(_PUBLIC, name)
    heading = f"### `{name}`\n"
    if not callable(value):
        return f"{heading}\nA `{type(value).__name__}` whose fields all have their defaults.\n"
    parts = [heading, f"```text\n{_signature(name, value)}\n```\n", _text(value)]
    members = list(_members(name, value)) if inspect.isclass(value) else []
    return "\n".join([*parts, *(["\n".join([*members, ""])] if members else [])])


def _signature(name: str, value: Any) -> str:
    """The call with a parameter a line; of an exception or a class without one, the name."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return f"class {name}({value.__bases__[0].__name__})"
    lines = list(_parameters(value))
    return (
        "\n".join([f"{name}(", *(f"    {line}," for line in lines), ")"]) if lines else f"{name}()"
    )


def _parameters(value: Any) -> Iterator[str]:
    """The parameters as they are written, with the marks / and *."""
    before = None
    for parameter in inspect.signature(value).parameters.values():
        if before is parameter.POSITIONAL_ONLY and parameter.kind is not before:
            yield "/"
        if parameter.kind is parameter.KEYWORD_ONLY and before is not parameter.kind:
            yield "*"
        before = parameter.kind
        stars = _STARS.get(parameter.kind, "")
        annotation = str(parameter.annotation)
        default = repr(parameter.default)
        made = default if len(default) <= _LONGEST and "<" not in default else "..."
        ending = "" if parameter.default is parameter.empty else f" = {made}"
        yield f"{stars}{parameter.name}: {annotation}{ending}"


def _members(name: str, kind: type) -> Iterator[str]:
    """Yield an item for every public member of a class: its first paragraph of documentation."""
    for member, value in vars(kind).items():
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not member.startswith("_") and inspect.isfunction(inner) and inner.__doc__:
            called = "" if isinstance(value, property) else "()"
            first = _plain(inspect.cleandoc(inner.__doc__)).partition("\n\n")[0]
            yield f"- `{name}.{member}{called}`: {' '.join(first.split())}"


def _text(value: Any) -> str:
    """A docstring as Markdown: a term with text indented below it is an item of a list."""
    paragraphs = []
    for paragraph in _plain(inspect.getdoc(value) or "").split("\n\n"):
        if not _TERM.match(paragraph):
            paragraphs.append(f"{paragraph}\n")
            continue
        items = re.split(r"\n(?=\S)", paragraph)
        for item in items:
            term, _, text = item.partition("\n")
            names = ", ".join(f"`{word}`" for word in term.replace("`", "").split(", "))
            paragraphs.append(f"- {names}: {' '.join(text.split())}")
        paragraphs.append("")
    return "\n".join(paragraphs)


def _plain(text: str) -> str:
    """Markup of docstrings as Markdown: code and references alike are code."""
    return _ROLE.sub(r"`\1`", text.replace("``", "`"))


if __name__ == "__main__":
    sys.stdout.write(render())
