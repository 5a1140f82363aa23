"""The templates of pages: everything of a record is escaped, nothing is fetched from anywhere.

A page carries its own style and script. Its content security policy allows that one script, by its
hash, and no request at all: even a text that got through the escaping could neither run nor load.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib.resources import files
from typing import Any, Final

import jinja2

from . import html_words, wording

_FOLDER: Final = "templates"


@functools.cache
def environment() -> jinja2.Environment:
    """Where templates are found, and what they can use."""
    made = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(resource),
    )
    made.filters.update(
        duration=html_words.duration,
        margin=html_words.margin,
        short=html_words.short,
        coverage=wording.coverage,
    )
    made.globals.update(
        style=resource("page.css"),
        script=resource("page.js"),
        policy=_policy(resource("page.js")),
        verdict=html_words.verdict,
        sign=html_words.sign,
        kind=html_words.kind,
        meanings=html_words.KINDS,
    )
    return made


def resource(name: str) -> str:
    """The text of a file beside the templates."""
    return (files(__package__) / _FOLDER / name).read_text(encoding="utf-8")


def rendered(name: str, **data: Any) -> str:
    """A template with its data."""
    return environment().get_template(name).render(**data)


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
