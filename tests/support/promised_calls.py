"""A correct attention of any declaration, which notes how it is called against what was promised.

``Watched`` knows nothing of problems: it reads a call as a user's kernel would, by the declaration
alone. A letter of a mask's shape is the size of that axis of the tensors of the same call.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

import conformance
from candidates.eager import EagerCore, EagerLayer
from conformance.declare.candidate import Candidate
from conformance.declare.declaration import SEQUENCES, Declaration
from conformance.declare.head_layouts import SEQUENCE_KEYWORDS

MASK_DTYPES: Final = {"keep": torch.bool, "drop": torch.bool, "keep_int": torch.int64}
TYPES: Final = {"causal": bool, "scale": float, "softcap": float, "dropout": float}
Heads = tuple[Tensor, Tensor, Tensor]


class Broken(Exception):  # noqa: N818 (a promise is)
    """What a call does that nobody promised."""


def require(holds: object, sentence: str) -> None:
    """Note a broken promise."""
    if not holds:
        raise Broken(sentence)


class Watched:
    """A candidate of a declaration; ``broken`` lists the calls that it did not promise."""

    def __init__(self, kind: str, **promises: Any) -> None:
        self.broken: list[str] = []
        self.calls = 0
        self.clause = ""
        made: Any
        if kind == "core":

            def core(*positional: Tensor, **keywords: Any) -> Any:
                return self._received(positional, keywords, None)

            made = conformance.core(name="watched", **promises)(core)
        else:

            def build(geometry: conformance.Geometry, weights: Any) -> Any:
                layer = EagerLayer(geometry, weights)
                layer.core = self._core
                return lambda *tensors, **keywords: self._received(tensors, keywords, layer)

            made = conformance.layer(name="watched", **promises)(build)
        self.candidate: Candidate = made
        self.declaration: Declaration = made.declaration
        alignment = self.declaration.semantics.causal_alignment
        self._core = EagerCore(causal=alignment)

    def _received(
        self, tensors: tuple[Tensor, ...], keywords: dict[str, Any], layer: EagerLayer | None
    ) -> Any:
        """Check a call, then answer it."""
        self.calls += 1
        try:
            return self._answer(tensors, keywords, layer)
        except Broken as broken:
            self.broken.append(f"{self.clause}: {broken}")
            raise

    def _answer(
        self, tensors: tuple[Tensor, ...], keywords: dict[str, Any], layer: EagerLayer | None
    ) -> Any:
        declared = self.declaration
        require(
            len(tensors) == len(declared.positional),
            f"{len(tensors)} inputs instead of {declared.positional}",
        )
        self._check_keywords(keywords, tensors[0])
        if declared.layout == "varlen":
            return self._sequences(tensors, keywords)
        read = self._heads(tensors) if layer is None else self._tokens(tensors)
        query, key, value = read
        heads = query.shape[1] if layer is None else layer.num_heads
        past = (
            keywords["past_key"].shape[-2 if declared.layout == "BHSD" else -3]
            if ("past_key" in keywords)
            else 0
        )
        sizes = {"B": len(query), "H": heads, "Q": query.shape[-2], "K": key.shape[-2] + past}
        require(len(query) == len(key) == len(value), "batches that differ")
        require(key.shape[-2] == value.shape[-2], "keys and values that differ in number")
        if not declared.batched:
            require(sizes["B"] == 1, "several items")
        options = self._options(keywords, sizes)
        if layer is None:
            answer = self._core(query, key, value, **options)
        else:
            answer = layer(query, key, value, **options)
        return self._presented(answer, is_core=layer is None)

    def _check_keywords(self, keywords: dict[str, Any], query: Tensor) -> None:
        declared = self.declaration
        strange = set(keywords) - set(declared.keywords)
        require(not strange, f"the keywords {sorted(strange)}")
        for name, value in keywords.items():
            require(value is not None, f"{name}=None")
            require(value is not False, f"{name}=False")
            require(type(value) is TYPES.get(name, type(value)), f"{name} is a {type(value)}")
        if "bias" in keywords:
            require(keywords["bias"].dtype == query.dtype, "a bias of another dtype")
        for name in MASK_DTYPES.keys() & keywords.keys():
            require(keywords[name].dtype == MASK_DTYPES[name], f"{name} of another dtype")
        require(("past_key" in keywords) == ("past_value" in keywords), "half a cache")
        forms = [form for form in declared.masks if form in keywords]
        require(len(forms) <= 1, f"the masks {forms} together")

    def _heads(self, tensors: tuple[Tensor, ...]) -> Heads:
        """Heads ``[B, H, L, D]`` of the tensors of a core."""
        declared = self.declaration
        if not declared.batched:
            require(all(tensor.dim() == 3 for tensor in tensors), "a batch axis")
            tensors = tuple(tensor.unsqueeze(0) for tensor in tensors)
        axes = {"packed-qkv": (5,), "packed-kv": (4, 5)}.get(declared.layout, (4, 4, 4))
        require(
            tuple(tensor.dim() for tensor in tensors) == axes, f"{declared.layout} of other axes"
        )
        if declared.layout == "packed-qkv":
            require(tensors[0].shape[2] == 3, "not three in one")
            tensors = tensors[0].unbind(2)
        elif declared.layout == "packed-kv":
            require(tensors[1].shape[2] == 2, "not two in one")
            tensors = (tensors[0], *tensors[1].unbind(2))
        if declared.layout != "BHSD":
            tensors = tuple(tensor.transpose(1, 2) for tensor in tensors)
        query, key, value = tensors
        grouped = "gqa" in declared.features or "num_kv_heads" in declared.pins.sizes
        require(key.shape[1] == value.shape[1], "key and value heads that differ")
        require(grouped or key.shape[1] == query.shape[1], "groups of heads")
        require(query.shape[1] % max(key.shape[1], 1) == 0, "heads that make no groups")
        require(query.shape[-1] == key.shape[-1], "head sizes that differ")
        self._check_pins(query=query, key=key)
        return query, key, value

    def _tokens(self, tensors: tuple[Tensor, ...]) -> Heads:
        """The tokens ``[B, L, E]`` of a layer: one input may be several of the three."""
        if not self.declaration.batched:
            require(all(tensor.dim() == 2 for tensor in tensors), "a batch axis")
            tensors = tuple(tensor.unsqueeze(0) for tensor in tensors)
        require(all(tensor.dim() == 3 for tensor in tensors), "tokens of other axes")
        if len(tensors) == 1:
            tensors = tensors * 3
        query, key = tensors[:2]
        if "cross" not in self.declaration.features:
            require(query.shape[1] == key.shape[1], "other keys than queries")
        return query, key, tensors[-1]

    def _check_pins(self, *, query: Tensor, key: Tensor) -> None:
        sizes = {
            "batch": len(query),
            "num_heads": query.shape[1],
            "num_kv_heads": key.shape[1],
            "head_size": query.shape[3],
        }
        for name, allowed in self.declaration.pins.sizes.items():
            if name in sizes:
                require(sizes[name] in allowed, f"{name} is {sizes[name]}, pinned to {allowed}")

    def _options(self, keywords: dict[str, Any], sizes: dict[str, int]) -> dict[str, Any]:
        """The keywords for the eager core; a mask ``[B, H, Lq, Lk]`` from whatever shape."""
        options = {name: value for name, value in keywords.items() if name != "lengths"}
        for form in self.declaration.masks:
            if form not in keywords:
                continue
            mask = self._four_axes(form, keywords[form], sizes)
            if form == "lengths":
                require(keywords[form].dtype == torch.int64, "lengths of another dtype")
                require(bool(((mask >= 0) & (mask <= sizes["K"])).all()), "lengths beyond the keys")
                options["keep"] = torch.arange(sizes["K"]) < mask
            else:
                options[form] = mask
        for name in ("past_key", "past_value"):
            if name in options:
                options[name] = self._cached(options[name])
        return options

    def _cached(self, heads: Tensor) -> Tensor:
        heads = heads if self.declaration.batched else heads.unsqueeze(0)
        require(heads.dim() == 4, "a cache of other axes")
        return heads.transpose(1, 2) if self.declaration.layout == "BSHD" else heads

    def _four_axes(self, form: str, mask: Tensor, sizes: dict[str, int]) -> Tensor:
        """The mask with all four axes; its shape is one that was declared, letter for letter."""
        letters = self.declaration.shapes_of(form)
        for shape in letters:
            if tuple(mask.shape) == tuple(sizes.get(letter, 1) for letter in shape):
                own = dict(zip([a for a in shape if a != "1"], _squeezed(mask, shape), strict=True))
                return mask.reshape([own.get(letter, 1) for letter in "BHQK"])
        sentence = (
            f"{form} {list(mask.shape)} where {letters} were promised and {sizes} are the sizes"
        )
        raise Broken(sentence)

    def _sequences(self, tensors: tuple[Tensor, ...], keywords: dict[str, Any]) -> Tensor:
        """Each sequence by itself."""
        query, key, value = tensors
        require(set(SEQUENCE_KEYWORDS) <= set(keywords), "no offsets")
        require(self.declaration.masks == (SEQUENCES,), "masks besides sequences")
        parts: dict[str, list[int]] = {}
        for letter, concatenated in (("q", (query,)), ("k", (key, value))):
            offsets = keywords[f"cu_seqlens_{letter}"]
            counts = offsets.diff()
            require(offsets.dtype == torch.int32, "offsets of another dtype")
            require(offsets.is_contiguous() and offsets.dim() == 1, "offsets that lie apart")
            require(int(offsets[0]) == 0, "offsets that do not begin at 0")
            require(bool((counts >= 0).all()), "offsets that fall")
            longest = keywords[f"max_seqlen_{letter}"]
            require(type(longest) is int, "a longest length that is no int")
            require(longest == int(counts.max()), f"max_seqlen_{letter} {longest} for {counts}")
            for tensor in concatenated:
                require(len(tensor) == int(offsets[-1]), "offsets that end elsewhere")
            parts[letter] = counts.tolist()
        require(len(parts["q"]) == len(parts["k"]), "sequences of queries and of keys")
        options = {name: v for name, v in keywords.items() if name not in SEQUENCE_KEYWORDS}
        answers = [
            self._core(*(tensor.transpose(0, 1).unsqueeze(0) for tensor in sequence), **options)
            for sequence in zip(
                query.split(parts["q"]), key.split(parts["k"]), value.split(parts["k"]), strict=True
            )
        ]
        return torch.cat([answer.squeeze(0).transpose(0, 1) for answer in answers])

    def _presented(self, answer: Any, *, is_core: bool) -> Any:
        """The answer in the declared axes."""
        output, *weights = answer if isinstance(answer, tuple) else (answer,)
        if is_core and self.declaration.layout != "BHSD":
            output = output.transpose(1, 2)
        answers = [output, *weights]
        if not self.declaration.batched:
            answers = [tensor.squeeze(0) for tensor in answers]
        return tuple(answers) if isinstance(answer, tuple) else answers[0]


def _squeezed(mask: Tensor, shape: str) -> list[int]:
    """The sizes of the axes that are letters."""
    return [size for size, letter in zip(mask.shape, shape, strict=True) if letter != "1"]
