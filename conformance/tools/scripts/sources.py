"""Reads off which answer of the calls each side of a comparison is, where no relation says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]


def with_sources(data: dict[str, Any]) -> dict[str, Any]:
    """The description of a failure with where to look for what was compared.

    ``got_of`` names the answer, the weights or the gradient that was judged; ``expected_of`` the
    one that it was compared with, where that is the candidate's as well; ``by_golden`` says that
    some answer is beyond its own bound instead. None of them where nobody can tell.
    """
    if "relation" in data:
        return data
    got = _found(data, data.get("got"))
    if got is not None and "bound" in data:
        if not data.get("law"):
            return {**data, "got_of": got}
        expected = _found(data, data.get("expected"), other_than=got)
        if expected is not None and expected["what"] == got["what"] == "gradient":
            return {**data, "got_of": got, "expected_of": expected}
    beyond = any(call.get("beyond") for call in data.get("calls", ()))
    return {**data, "by_golden": True} if beyond else data


def _found(data: Record, judged: Any, other_than: Record | None = None) -> dict[str, Any] | None:
    """The last of the answers that holds what was judged."""
    if not isinstance(judged, Mapping):
        return None
    known = content(judged)
    sources = [
        source
        for source, tensor in _answers(data)
        if known is not None and content(tensor) == known and source != other_than
    ]
    return sources[-1] if sources else None


def _answers(data: Record) -> Iterator[tuple[dict[str, Any], Record]]:
    last = len(data.get("calls", ())) - 1
    for number, call in enumerate(data.get("calls", ())):
        pulled = (call.get("pulled") or {}).get("found") or {}
        for place, leaf in enumerate(pulled):
            yield {"call": number, "what": "gradient", "place": place}, pulled[leaf]
        if number == last:
            for what in ("output", "weights"):
                if what in call:
                    yield {"call": number, "what": what}, call[what]


def content(tensor: Record) -> Any:
    """What tells one tensor from another, None where its elements are not there."""
    return tensor.get("values", tensor.get("digest"))
