"""flashinfer-bench's definitions: a JSON file on a serving kernel, read as a declaration.

A new op type is a row of :data:`_OP_TYPES`. A definition's reference is never run.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from ..base.printable_text import few, repr_of
from ..base.profile import DTYPES
from ..errors import DeclarationError, did_you_mean
from .keywords import OwnKeywords, parameters_of


class _OpType(NamedTuple):
    """An op type: the letters of its tensors' axes, "" for a scalar, and how calls are declared.

    Equal letters are equal sizes. ``heads`` are the tensors of each positional input of the layout:
    two for a latent, whose value and turned part are apart. ``made`` are inputs that follow from
    the others of a call and the sizes of the definition.
    """

    heads: tuple[tuple[str, ...], ...]
    tensors: Mapping[str, str]
    optional: frozenset[str]
    keywords: Mapping[str, str]
    promises: Mapping[str, Any]
    made: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], torch.Tensor]] = {}
    lse_base: str | None = None


def _chosen_slots(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> torch.Tensor:
    """The slots ``[T, K]`` of the keys that each item's query attends, -1 for none."""
    table, lengths = given["block_table"].long(), given["cache_lengths"]
    longest = max([1, *lengths.tolist()])
    ranks = torch.arange(longest, device=lengths.device).expand(len(lengths), -1)
    ranks = torch.where(ranks < lengths[:, None], ranks, -1)
    ranks = given.get("key_indices", ranks).long()
    page = sizes["L"] if isinstance(sizes["L"], int) else given["ckv_cache"].shape[1]
    slots = table.gather(1, ranks.clamp_min(0) // page) * page + ranks.clamp_min(0) % page
    slots = torch.where(ranks < 0, -1, slots)
    more = sizes["X"] - slots.shape[1] if isinstance(sizes["X"], int) else 0
    return torch.nn.functional.pad(slots, (0, max(more, 0)), value=-1)


_OFFSETS: Final = {"qo_indptr": "N", "kv_indptr": "N"}
_LATENT: Final = (("q_nope", "q_pe"), ("ckv_cache", "kpe_cache"))
_PARTS: Final = {"q_nope": "THE", "q_pe": "THR", "ckv_cache": "PLE", "kpe_cache": "PLR"}
_IN_ROWS: Final = {
    "cu_seqlens_q": "qo_indptr",
    "kv_indptr": "kv_indptr",
    "kv_indices": "kv_indices",
    "last_page_lengths": "kv_last_page_len",
    "scale": "sm_scale",
}
_OUTPUTS: Final = {"output": "THE", "lse": "TH"}
_OP_TYPES: Final[Mapping[str, _OpType]] = {
    "gqa_ragged": _OpType(
        heads=(("q",), ("k",), ("v",)),
        tensors={"q": "THD", "k": "SKD", "v": "SKE", **_OFFSETS, "sm_scale": ""},
        optional=frozenset(),
        keywords={"cu_seqlens_q": "qo_indptr", "cu_seqlens_k": "kv_indptr", "scale": "sm_scale"},
        promises={"layout": "varlen"},
    ),
    "gqa_paged": _OpType(
        heads=(("q",), ("k_cache",), ("v_cache",)),
        tensors={
            "q": "THD",
            "k_cache": "PLKD",
            "v_cache": "PLKE",
            **_OFFSETS,
            "kv_indices": "I",
            "kv_last_page_len": "B",
            "sm_scale": "",
        },
        optional=frozenset({"qo_indptr", "kv_last_page_len"}),
        keywords=_IN_ROWS,
        promises={"layout": "paged", "page_index": "csr"},
    ),
    "mla_paged": _OpType(
        heads=_LATENT,
        tensors={
            **_PARTS,
            **_OFFSETS,
            "kv_indices": "I",
            "kv_last_page_len": "B",
            "sm_scale": "",
        },
        optional=frozenset({"qo_indptr", "kv_last_page_len"}),
        keywords=_IN_ROWS,
        promises={"layout": "latent", "page_index": "csr"},
    ),
    # Its keys are slots of all pages: no table says which are those of an item.
    "dsa_paged": _OpType(
        heads=_LATENT,
        tensors={**_PARTS, "sparse_indices": "TX", "sm_scale": ""},
        optional=frozenset(),
        keywords={"scale": "sm_scale"},
        promises={"layout": "latent", "page_index": "table", "masks": ["indices"]},
        made={"sparse_indices": _chosen_slots},
        lse_base="2",
    ),
}
_SIZES: Final = {"H": "num_heads", "K": "num_kv_heads", "D": "head_size", "E": "value_head_size"}
_NOT_CAUSAL: Final = re.compile(r"(non?|not|un|without)[-_ ]*causal|bidirectional", re.IGNORECASE)
_WHOLE_NUMBERS: Final = ("int32", "int64")
_LSE_DTYPES: Final = ("float32", "float64")


class _Tensor(NamedTuple):
    """A tensor's axes, by size and by name, None for a scalar, and its dtype."""

    axes: tuple[int | str, ...] | None
    names: tuple[str, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What a definition promises, in the harness' words, and how its function is called.

    ``heads`` are the names of each positional input of a call among the inputs, which keep their
    order; ``letters`` the axes of every tensor, and ``sizes`` theirs.
    """

    op_type: str
    heads: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int | str]
    letters: Mapping[str, str]
    inputs: Mapping[str, _Tensor]
    outputs: Mapping[str, _Tensor]
    keywords: OwnKeywords
    promises: Mapping[str, Any]
    assumptions: tuple[str, ...]

    def called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of query, key, value and the definition's other names that calls another.

        It hands over the inputs by name, else by place, and then outputs to write into if the
        function requires them. Raises DeclarationError.
        """
        names, written = self._handing_over(function)

        @functools.wraps(function)
        def call(*heads: Any, **others: Any) -> Any:
            given = self._parts(heads) | others
            for name, make in _OP_TYPES[self.op_type].made.items():
                given[name] = make(given, self.sizes)
            values = {name: self._passed(name, given[name]) for name in self.inputs}
            sizes = _sizes({name: _given(values[name]) for name in values}, self.letters)
            query = heads[0]
            outputs = {}
            for name in self.outputs if written else ():
                shape = [sizes[letter] for letter in self.letters[name]]
                dtype = getattr(torch, self.outputs[name].dtype) if name == "lse" else query.dtype
                outputs[name] = query.new_full(shape, float("nan"), dtype=dtype)
            values |= outputs
            answer = function(**values) if names else function(*values.values())
            made = outputs if written else self._named(answer)
            lse = others.get("return_lse", False)
            return (made.get("output"), made.get("lse")) if lse else made.get("output")

        own = inspect.Parameter
        taken = {name for part in self.heads for name in part} | {*_OP_TYPES[self.op_type].made}
        others = [name for name in self.inputs if name not in taken]
        parameters = [own(part[0], own.POSITIONAL_OR_KEYWORD) for part in self.heads]
        parameters += [own(name, own.KEYWORD_ONLY) for name in others]
        more = own("more", own.VAR_KEYWORD)  # what calls of the layout give besides
        call.__signature__ = inspect.Signature([*parameters, more])  # type: ignore[attr-defined]  # what inspect reads
        return call

    def _handing_over(self, function: Callable[..., Any]) -> tuple[bool, bool]:
        """Whether a function takes arguments by name, and whether it takes outputs."""
        signature = parameters_of(function)
        if signature is None:
            return False, False
        for written in (False, True):
            names = (*self.inputs, *(self.outputs if written else ()))
            for by_name in (True, False):
                try:
                    signature.bind(*(() if by_name else names), **dict.fromkeys(names * by_name))
                except TypeError:
                    continue
                return by_name, written
        name = getattr(function, "__name__", "the function")
        msg = (
            f"{name}{signature} takes neither the definition's inputs {', '.join(self.inputs)} "
            f"nor {', '.join(self.outputs)} behind them, to write into"
        )
        raise DeclarationError(msg)

    def _parts(self, heads: tuple[Any, ...]) -> dict[str, Any]:
        """The positional inputs of a call by the definition's names, latents in two parts."""
        given: dict[str, Any] = {}
        for names, tensor in zip(self.heads, heads, strict=True):
            widths = [self.sizes[self.letters[name][-1]] for name in names]
            parts = (tensor,) if len(names) == 1 else tensor.split(widths, dim=-1)
            given |= dict(zip(names, parts, strict=True))
        return given

    def _passed(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self.inputs[name].dtype
        value = value.to(getattr(torch, dtype)) if dtype in _WHOLE_NUMBERS else value
        return value.contiguous()

    def _named(self, answer: Any) -> Mapping[str, Any]:
        """The outputs by name; what is neither all of them nor a mapping is the output."""
        if isinstance(answer, Mapping):
            return answer
        if isinstance(answer, (tuple, list)) and len(answer) == len(self.outputs):
            return dict(zip(self.outputs, answer, strict=True))
        return {"output": answer}


def _given(value: Any) -> _Tensor:
    """A value of a call as a tensor of a definition."""
    return _Tensor(tuple(value.shape) if isinstance(value, torch.Tensor) else None, (), "")


def read_definition(path: str | Path) -> Definition:
    """Read a definition's file; raises DeclarationError with one sentence."""
    try:
        return _read(_parsed(Path(path)))
    except DeclarationError as error:
        msg = f"the definition {path} {error}"
        raise DeclarationError(msg) from None


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        msg = f"cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError) as error:
        msg = f"is no JSON: {error}"
    else:
        if isinstance(data, Mapping):
            return data
        msg = f"is {repr_of(data)}: give an object with name, op_type, axes, inputs and outputs"
    raise DeclarationError(msg)


def _read(data: Mapping[str, Any]) -> Definition:
    name, op_type = (_part(data, word, str) for word in ("name", "op_type"))
    if op_type not in _OP_TYPES:
        hint = did_you_mean(op_type, _OP_TYPES)
        msg = f"has the op_type {op_type!r}, and {', '.join(_OP_TYPES)} can be judged{hint}"
        raise DeclarationError(msg)
    row = _OP_TYPES[op_type]
    axes = {axis: _axis(axis, entry) for axis, entry in _part(data, "axes", Mapping).items()}
    inputs = _tensors(_part(data, "inputs", Mapping), axes, "input")
    outputs = _tensors(_part(data, "outputs", Mapping), axes, "output")
    _check_names("input", inputs, row.tensors, row.optional, op_type)
    _check_names("output", outputs, _OUTPUTS, frozenset({"lse"}), op_type)
    heads = tuple(name for part in row.heads for name in part)
    letters, promises = {**row.tensors, **_OUTPUTS}, dict(row.promises)
    paged = "page_index" in promises
    if "k_cache" in inputs and any("page" in axis for axis in inputs["k_cache"].names[2:3]):
        letters |= {"k_cache": "PKLD", "v_cache": "PKLE"}
        promises["page_axes"] = "HND"
    sizes = _sizes({**inputs, **outputs}, letters)
    _check_dtypes(inputs, outputs, heads)
    said = " ".join([name, str(data.get("description", "")), *map(str, data.get("tags") or ())])
    lse = _log_sum_exp(_part(data, "outputs", Mapping).get("lse"), row)
    assumed = ["its log-sum-exp was not checked, only its output"] * ("lse" in outputs and not lse)
    geometry = _geometry(sizes)
    if row.heads == _LATENT:
        geometry = _of_latents(geometry, sizes)
        promises |= {"max_length": sizes["X"]} if isinstance(sizes.get("X"), int) else {}
    varlen = "qo_indptr" in inputs
    if paged:
        promises["queries"] = "varlen" if varlen else "single"
        promises |= {"page_sizes": (sizes["L"],)} if isinstance(sizes["L"], int) else {}
        in_rows = "kv_indptr" in inputs
        if in_rows and "kv_last_page_len" not in inputs and sizes["L"] != 1:
            msg = "has no input 'kv_last_page_len', so nothing says where a page's last key stands"
            raise DeclarationError(msg)
    if varlen:
        causal, sentence = _causality(said)
        promises |= {"causal": "bottom-right", "always_causal": True} if causal else {}
        geometry |= {"query_length": 1} if causal is None else {}
        assumed.append(sentence)
    assumed += [
        "its reference was not run, and the golden answer is this project's own",
        "it leaves open what queries without keys answer: any answer was taken",
        "tensors whose sizes contradict it, or with gaps, were not handed over",
    ]
    names = {word: (theirs,) for word, theirs in row.keywords.items() if theirs in inputs}
    features = ["scale", *lse.pop("features", ())]
    features += ["gqa"] if "K" in sizes and sizes["H"] != sizes["K"] else []
    promises |= {**lse, "features": features, "without": ["gradients"], "geometry": geometry}
    return Definition(
        op_type=op_type,
        heads=row.heads,
        sizes=sizes,
        letters=letters,
        inputs=inputs,
        outputs=outputs,
        keywords=OwnKeywords(names=names),
        promises={**promises, "dtypes": (inputs[heads[0]].dtype,)},
        assumptions=tuple(f"the definition: {sentence}" for sentence in assumed),
    )


_BASE_TWO: Final = re.compile(r"\b(2|two)[- ]?based|base[- ]?(2|two)\b|\blog2\b", re.IGNORECASE)
_NATURAL: Final = re.compile(r"natural (log|base)|base[- ]e\b|\bnats?\b", re.IGNORECASE)


def _log_sum_exp(entry: Any, row: _OpType) -> dict[str, Any]:
    """The promises of a returned log-sum-exp; {} where nothing says its base."""
    if not isinstance(entry, Mapping):
        return {}
    said = str(entry.get("description", ""))
    two, natural = bool(_BASE_TWO.search(said)), bool(_NATURAL.search(said))
    base = row.lse_base if two == natural else "2" if two else "e"
    if base is None:
        return {}
    return {"features": ("lse",), "lse_base": base, "lse_shape": "BQH", "lse_empty": "any"}


def _of_latents(geometry: dict[str, Any], sizes: Mapping[str, int | str]) -> dict[str, Any]:
    """The pinned sizes of latents in two parts; raises DeclarationError for a variable one."""
    widths = [sizes["E"], sizes["R"]]
    constant = [width for width in widths if isinstance(width, int)]
    if len(constant) < len(widths):
        msg = "has a variable axis of channels: give a constant size to both parts of the latent"
        raise DeclarationError(msg)
    return {**geometry, "head_size": sum(constant), "value_head_size": sizes["E"]}


def _causality(said: str) -> tuple[bool | None, str]:
    """Whether a definition is called causal, None where its words do not say, and a sentence."""
    rest = _NOT_CAUSAL.sub("", said)
    causal, not_causal = "causal" in rest.lower(), rest != said
    if causal and not not_causal:
        return True, "it says causal: an item's last query is taken to see every key"
    if not_causal and not causal:
        return False, "it says noncausal: every query is taken to see every key"
    return None, (
        "it does not say whether it is causal: asked with one query an item alone (name it causal "
        "or noncausal)"
    )


def _part(data: Mapping[str, Any], name: str, kind: type) -> Any:
    """A field of the file that has to be there."""
    if not isinstance(data.get(name), kind) or not data[name]:
        word = "a text" if kind is str else "an object"
        said = f"has {name} {repr_of(data[name])}" if name in data else f"has no {name}"
        msg = f"{said}: give {word}"
        raise DeclarationError(msg)
    return data[name]


def _axis(name: str, entry: Any) -> int | str:
    """The size of a constant axis, the name of a variable one."""
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    size = entry.get("value") if isinstance(entry, Mapping) else None
    if kind == "var":
        return name
    if kind != "const" or type(size) is not int or size < 1:
        msg = (
            f"has the axis {name!r} as {repr_of(entry)}: give {{'type': 'var'}}, or "
            "{'type': 'const', 'value': N} with a positive N"
        )
        raise DeclarationError(msg)
    return size


def _tensors(
    entries: Mapping[str, Any], axes: Mapping[str, int | str], what: str
) -> dict[str, _Tensor]:
    result = {}
    for name, entry in entries.items():
        shape = entry.get("shape", ()) if isinstance(entry, Mapping) else ()
        dtype = entry.get("dtype") if isinstance(entry, Mapping) else None
        if not isinstance(dtype, str) or not (shape is None or isinstance(shape, list)):
            msg = f"has the {what} {name!r} as {repr_of(entry)}: give its shape and dtype"
            raise DeclarationError(msg)
        for axis in shape or ():
            if not isinstance(axis, str) or axis not in axes:
                msg = f"has no axis {repr_of(axis)}, which the shape of {name!r} names"
                raise DeclarationError(msg)
        names = tuple(shape or ())
        sized = None if shape is None else tuple(axes[axis] for axis in names)
        result[name] = _Tensor(sized, names, dtype)
    return result


def _check_names(
    what: str,
    given: Mapping[str, _Tensor],
    known: Mapping[str, str],
    optional: frozenset[str],
    op_type: str,
) -> None:
    missing = [name for name in known if name not in given and name not in optional]
    strange = [name for name in given if name not in known]
    if missing:
        hint = f" (it has {few(strange)})" if strange else ""
        msg = f"has no {what} {missing[0]!r}, which {op_type} has{hint}"
        raise DeclarationError(msg)
    if strange:
        msg = f"has the {what} {strange[0]!r}, with which {op_type} is not judged yet"
        raise DeclarationError(msg)


def _sizes(tensors: Mapping[str, _Tensor], letters: Mapping[str, str]) -> dict[str, int | str]:
    """The size of each letter; raises DeclarationError for shapes that contradict one another."""
    sizes: dict[str, tuple[int | str, str]] = {}
    for name, tensor in tensors.items():
        axes = letters[name]
        if (tensor.axes is None) != (not axes) or len(tensor.axes or ()) != len(axes):
            said = "no axes" if tensor.axes is None else f"{len(tensor.axes)} axes"
            wanted = f"{len(axes)} are expected" if axes else "a scalar's null is expected"
            msg = f"gives the shape of {name!r} {said}, where {wanted}"
            raise DeclarationError(msg)
        for letter, size in zip(axes, tensor.axes or (), strict=True):
            known, where = sizes.setdefault(letter, (size, name))
            if isinstance(known, str):  # a variable axis may be as long as another
                sizes[letter] = size, name
            elif isinstance(size, int) and known != size:
                msg = f"contradicts itself: an axis of {known} in {where!r} is {size} in {name!r}"
                raise DeclarationError(msg)
    heads, groups = sizes["H"][0], sizes.get("K", ("",))[0]
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        msg = f"has {heads} query heads, which {groups} key heads do not divide"
        raise DeclarationError(msg)
    return {letter: size for letter, (size, _) in sizes.items()}


def _geometry(sizes: Mapping[str, int | str]) -> dict[str, Any]:
    """The pinned sizes; variable axes of one name are equal."""
    result: dict[str, Any] = {}
    for letter, field in _SIZES.items():
        if letter not in sizes:
            continue
        size = sizes[letter]
        other = next(other for other in _SIZES if sizes.get(other) == size)
        if isinstance(size, int):
            result[field] = size
        elif other != letter:
            result[field] = _SIZES[other]
    return result


def _check_dtypes(
    inputs: Mapping[str, _Tensor], outputs: Mapping[str, _Tensor], heads: tuple[str, ...]
) -> None:
    query = inputs[heads[0]].dtype
    for name, tensor in {**inputs, **outputs}.items():
        accepted: tuple[str, ...] = _LSE_DTYPES if name == "lse" else _WHOLE_NUMBERS
        if name in (*heads, "output"):
            accepted = (query,) if query in DTYPES else DTYPES
        if tensor.axes is not None and tensor.dtype not in accepted:
            msg = f"has {name!r} in {tensor.dtype}, where {' or '.join(accepted)} can be judged"
            raise DeclarationError(msg)
