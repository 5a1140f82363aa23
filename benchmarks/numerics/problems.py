"""Problems: a few words and numbers that stand for the tensors made from them."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

import torch
from torch import Generator, Tensor

from conformance._golden import golden

from .families import FAMILIES, normal
from .inputs import Heads, Inputs, Tokens
from .layer_families import LAYER_FAMILIES, draw
from .masks import MASKS, make_mask

DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
KINDS: Final = ("core", "layer")


@dataclass(frozen=True, kw_only=True)
class Size:
    """The numbers of a problem: batch, heads, key/value heads, lengths and head sizes."""

    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    queries: int
    keys: int
    head_size: int
    value_head_size: int

    def __str__(self) -> str:
        numbers = (self.batch, self.heads, self.kv_heads, self.queries, self.keys)
        return ",".join(map(str, (*numbers, self.head_size, self.value_head_size)))


def size(text: str) -> Size:
    """Read "batch,heads,kv_heads,queries,keys,head_size,value_head_size"."""
    batch, heads, kv_heads, queries, keys, head_size, value_head_size = map(int, text.split(","))
    return Size(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        head_size=head_size,
        value_head_size=value_head_size,
    )


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem; ``str`` of it is what ``--problem`` takes."""

    kind: str
    family: str
    mask: str
    size: Size
    softcap: float | None
    dtype: str
    seed: int

    @property
    def generic(self) -> bool:
        """Whether the tokens are independent, so that the statistical tests apply."""
        if self.kind == "layer":
            return LAYER_FAMILIES[self.family].generic
        return FAMILIES[self.family].generic

    def __str__(self) -> str:
        words = (self.kind, self.family, self.mask, self.size, self.softcap, self.dtype, self.seed)
        return "/".join(map(str, words))

    @staticmethod
    def parse(text: str) -> Problem:
        """Read what ``str`` has written."""
        kind, family, mask, numbers, softcap, dtype, seed = text.split("/")
        return Problem(
            kind=kind,
            family=family,
            mask=mask,
            size=size(numbers),
            softcap=None if softcap == "None" else float(softcap),
            dtype=dtype,
            seed=int(seed),
        )

    def generator(self) -> Generator:
        """Draws that depend on every word of the problem but its dtype."""
        words = str(self).replace(f"/{self.dtype}/", "/")
        return Generator().manual_seed(zlib.crc32(words.encode()))

    def make(self) -> Inputs | None:
        """The tensors; None where the dtype cannot hold them."""
        inputs = self._tokens() if self.kind == "layer" else self._heads()
        given = (inputs.query, inputs.key, inputs.value)
        return inputs if all(bool(t.isfinite().all()) for t in given) else None

    def _scale(self) -> float:
        return 1.0 / math.sqrt(self.size.head_size)

    def _masking(self, generator: Generator) -> tuple[Tensor | None, Tensor | None]:
        table = (self.size.batch, self.size.heads, self.size.queries, self.size.keys)
        keep, bias = make_mask(self.mask, table, self.dtype, generator)
        return keep, None if bias is None else bias.to(DTYPES[self.dtype])

    def _causal(self) -> bool:
        return self.mask == "causal" and self.size.queries == self.size.keys

    def _heads(self) -> Heads:
        generator, shape = self.generator(), self.size
        drawn = [
            normal(generator, shape.batch, heads, length, width)
            for heads, length, width in (
                (shape.heads, shape.queries, shape.head_size),
                (shape.kv_heads, shape.keys, shape.head_size),
                (shape.kv_heads, shape.keys, shape.value_head_size),
            )
        ]
        family = FAMILIES[self.family]
        made = family.make(drawn[0], drawn[1], drawn[2], self.dtype, generator)
        query, key, value = (tokens.to(DTYPES[self.dtype]) for tokens in made)
        keep, bias = self._masking(generator)
        return Heads(
            query=query,
            key=key,
            value=value,
            keep=keep,
            bias=bias,
            scale=self._scale(),
            softcap=self.softcap,
            causal=self._causal(),
        )

    def _tokens(self) -> Tokens:
        generator, shape = self.generator(), self.size
        width, narrow = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        widths = {"q": (width, width), "k": (narrow, width), "v": (narrow, width)}
        drawn = draw(
            shape.batch, shape.queries, shape.keys, {**widths, "o": (width, width)}, generator
        )
        drawn = LAYER_FAMILIES[self.family].change(drawn, self.dtype, generator)
        keep, bias = self._masking(generator)
        dtype = DTYPES[self.dtype]
        alike = drawn.x.shape == drawn.context.shape and torch.equal(drawn.x, drawn.context)
        context = drawn.context.to(dtype)
        matrices = {role: m.to(dtype) for role, m in drawn.matrices.items()}
        biases = {f"{role}_bias": b.to(dtype) for role, b in drawn.biases.items()}
        return Tokens(
            query=context if alike else drawn.x.to(dtype),
            key=context,
            value=context,
            weights=golden.ProjectionWeights(**matrices, **biases),
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            keep=keep,
            bias=bias,
            scale=self._scale(),
            softcap=self.softcap,
            causal=self._causal(),
            alike=alike,
        )


# Fifteen small ones to one of those with long rows: legitimate errors differ most among them.
CORE_SIZES: Final = (
    "1,1,1,1,1,1,1",
    "2,2,2,5,1,8,8",
    "1,2,1,3,2,1,1",
    "2,3,3,7,11,5,3",
    "1,2,2,17,17,16,16",
    "2,2,2,33,33,16,16",
    "1,4,2,33,31,8,8",
    "1,2,2,16,16,64,64",
    "1,2,2,64,64,64,64",
    "1,2,1,40,100,32,16",
    "1,1,1,65,65,128,128",
    "1,1,1,16,129,256,64",
    "1,2,2,20,257,64,64",
    "1,1,1,100,300,80,80",
)
LONG_CORE_SIZES: Final = (
    "1,2,2,16,512,32,32",
    "1,1,1,16,700,256,256",
    "1,2,1,16,1024,64,64",
    "1,1,1,16,2048,128,16",
    "1,1,1,16,4096,64,64",
    "1,1,1,2,4096,128,128",
)
LAYER_SIZES: Final = (
    "1,1,1,1,1,1,1",
    "2,2,2,5,3,4,4",
    "1,3,3,7,11,5,5",
    "2,2,2,17,17,16,16",
    "1,2,2,33,33,16,16",
    "1,4,2,33,31,8,8",
    "1,2,2,64,64,64,64",
    "1,2,1,40,100,32,32",
    "1,1,1,33,65,256,256",
    "1,2,2,20,257,32,32",
)
LONG_LAYER_SIZES: Final = ("1,2,2,16,600,16,16", "1,2,2,16,1024,64,64", "1,1,1,16,4096,32,32")
LONG_SHARE: Final = 1 / 10
SOFTCAP_SHARE: Final = 1 / 8
LAYER_SHARE: Final = 1 / 3
SOFTCAPS: Final = (5.0, 20.0, 50.0)


def _numbers(kind: str, choose: random.Random) -> Size:
    short, long = (
        (LAYER_SIZES, LONG_LAYER_SIZES) if kind == "layer" else (CORE_SIZES, LONG_CORE_SIZES)
    )
    return size(choose.choice(long if choose.random() < LONG_SHARE else short))


def problems(seed: int, dtypes: Sequence[str]) -> Iterator[Problem]:
    """Problems without end: all families in turn, dtypes in turn, the rest at random."""
    choose = random.Random(seed)  # noqa: S311  (nothing secret is drawn)
    for index in count():
        kind = "layer" if choose.random() < LAYER_SHARE else "core"
        table = LAYER_FAMILIES if kind == "layer" else FAMILIES
        make = partial(
            Problem,
            kind=kind,
            family=list(table)[index // len(dtypes) % len(table)],
            mask=choose.choice(MASKS),
            size=_numbers(kind, choose),
            softcap=choose.choice(SOFTCAPS) if choose.random() < SOFTCAP_SHARE else None,
        )
        yield make(dtype=dtypes[index % len(dtypes)], seed=seed * 1_000_000 + index)
