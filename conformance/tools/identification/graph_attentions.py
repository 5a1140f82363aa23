"""The attentions of an ONNX file as the facts that ``identify`` says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...graphs.protocol import GraphRefused
from ...models.candidates import describe_sites, uncut_entries
from ...models.recognition import is_model
from ...models.sites import Sites, find_sites
from ...targets.target_strings import split_site


def open_graph(target: str) -> tuple[Path, Sites]:
    """The file of a target such as ``model.onnx#2`` and all its attentions.

    Raises UsageError with one sentence for what is no graph, and for an attention that is not
    there.
    """
    file, number = split_site(target)
    path = Path(file).expanduser()
    if not path.is_file():
        msg = f"there is no file {file}: check the path"
        raise UsageError(msg)
    try:
        sites = find_sites(path)
    except GraphRefused as error:
        msg = f"{file} {error}"
        raise UsageError(msg) from None
    if number is not None and number >= len(sites.sites):
        msg = f"{file} has no attention #{number}: it has {len(sites.sites)}"
        raise UsageError(msg)
    return path, sites


def read_attentions(sites: Sites, target: str, record: dict[str, Any]) -> str:
    """Write ``sites``, ``uncut`` and ``model`` into a record; returns why there are none, or "".

    ``model`` says whether the graph is more than one attention.
    """
    entries = describe_sites(sites)
    number = split_site(target)[1]
    record["sites"] = entries if number is None else [entries[number]]
    record["uncut"] = uncut_entries(sites)
    record["model"] = is_model(sites.graph)
    if entries:
        return ""
    judged = "no attention in this graph can be judged alone"
    return judged if sites.uncut else "there is no attention in this graph"
