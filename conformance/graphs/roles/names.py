"""What names suggest: they break ties, never more."""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final[dict[str, frozenset[str]]] = {
    "query": frozenset("q query queries tgt target decoder xq".split()),
    "key": frozenset("k key keys xk".split()),
    "value": frozenset("v val value values xv".split()),
    "context": frozenset("context memory kv encoder mem ctx src source".split()),
    "x": frozenset("x input inputs hidden states src".split()),
    "mask": frozenset("mask masks masked bias padding pad lens len lengths valid attn".split()),
    "past": frozenset("past cache cached".split()),
    "output": frozenset("output outputs out y context attn attention result hidden".split()),
    "weights": frozenset("weights weight probs probabilities scores attentions".split()),
    "present": frozenset("present new updated cache past".split()),
}
_DROPS: Final = frozenset("drop pad padding ignore ignored invalid blocked masked".split())
_LENGTHS: Final = frozenset("lens len length lengths valid seqlens seqlen".split())


_ITEMS: Final = frozenset("b bs bsz batch batches batchsize".split())


def items_axis(name: object) -> bool:
    """Whether the name of an axis says that items are along it."""
    return isinstance(name, str) and bool(words(name) & _ITEMS)


def words(name: str) -> frozenset[str]:
    """The words of a name: ``attn_mask``, ``attnMask`` and ``Attn.Mask`` all hold ``mask``."""
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return frozenset(re.findall(r"[a-z]+", split.lower()))


def suggests(name: str, role: str) -> bool:
    """Whether a name holds a word that people use for a role."""
    return bool(words(name) & _WORDS[role])


def suggests_drop(name: str) -> bool:
    """Whether a mask's name says that it marks what is left out."""
    return bool(words(name) & _DROPS)


def suggests_lengths(name: str) -> bool:
    """Whether a name speaks of numbers of valid keys."""
    return bool(words(name) & _LENGTHS)
