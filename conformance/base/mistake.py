"""A mistake of the catalogue: its sentence, its primary clause, and its broken candidate."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from ..errors import DeclarationError

# The name of a diagnosis that found none.
UNKNOWN: Final = "unknown-mistake"
# The name of a diagnosis for a failure that further attempts do not show.
UNREPEATABLE: Final = "answers-not-repeatable"
# The beginning of an unknown mistake's sentence.
NO_MISTAKE: Final = "no known mistake explains it"
# What those who declare nothing may mean: a residual sum of a block, three tensors packed a head,
# the one table of weights of interpretable attention (Lim et al. 2019, Temporal Fusion), scores of
# content and position that are scaled as one (Dai et al. 2019, Transformer-XL), a norm of all heads
# of a token together (Groeneveld et al. 2024, OLMo), and any epsilon of a norm. Hidden logits are
# filled with numbers from -1e4 (GPT-2, BERT) on that half precision or a tutorial could hold.
CHOSEN_UNDECLARED: Final = frozenset(
    "residual-added value-added packed-by-head weights-averaged-over-heads "
    "bias-before-scale qk-norm-all-heads qk-norm-epsilon qk-norm-epsilon-of-queries "
    "qk-norm-epsilon-of-keys".split()
) | frozenset(
    f"{hidden}-fill-{number}"
    for hidden in ("mask", "causal")
    for number in "1e4 3e4 5e4 65000 1e5 1e6 1e7".split()
)
# Between the names of two mistakes; a sum has spaces, and the exponent of a number has digits.
_BETWEEN: Final = re.compile(r"(?<! )\+(?=[a-z])")


def parts_of(name: str) -> list[str]:
    """The names of the mistakes made together, from their joint name."""
    return _BETWEEN.split(name)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A way to get attention wrong that the clauses must catch, for ``conformance teeth``.

    name
        Unique in its catalogue.
    sentence, fix
        What is wrong, and what to do instead, in the user's terms.
    primary
        The clause that must fail: the one that names this mistake best.
    also
        Clauses that see it too. The list is not complete: gross mistakes break nearly everything.
    candidate
        The broken implementation: a declared candidate or a ``torch.nn.Module``.
    changes
        For a mistake that is another point of the semantics: fields of ``conformance.Semantics``
        with their wrong values. Without a candidate it is acted out at that point.
    link
        Where such a mistake was reported, if it was: the address of an issue or a commit.

    Raises DeclarationError (a ValueError) for a field of the wrong kind, or without any of
    candidate and changes.
    """

    name: str
    sentence: str
    primary: str
    also: tuple[str, ...] = ()
    fix: str = ""
    candidate: Any = field(default=None, hash=False)
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    link: str = ""

    def __post_init__(self) -> None:
        for name in ("name", "sentence", "primary"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                msg = f"a Mistake's {name} is {text!r}: give a text"
                raise DeclarationError(msg)
        if isinstance(self.also, str) or not all(isinstance(slug, str) for slug in self.also):
            msg = f"also= of the mistake {self.name!r} is {self.also!r}: give a tuple of slugs"
            raise DeclarationError(msg)
        if not isinstance(self.link, str) or (self.link and not self.link.startswith("https://")):
            msg = f"link= of the mistake {self.name!r} is {self.link!r}: give an https address"
            raise DeclarationError(msg)
        if not isinstance(self.changes, Mapping):
            msg = f"changes= of the mistake {self.name!r} is {self.changes!r}: give a dict"
            raise DeclarationError(msg)
        if self.candidate is None and not self.changes:
            msg = f"the mistake {self.name!r} has neither candidate= nor changes=: give one"
            raise DeclarationError(msg)


def mistakes_in(value: Any) -> Iterator[Mistake]:
    """The mistakes of an object: a Mistake, a list of mistakes, a module of either."""
    if isinstance(value, Mistake):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from mistakes_in(entry)
    elif isinstance(value, ModuleType):
        yielded: set[int] = set()
        for member in list(vars(value).values()):
            if isinstance(member, (Mistake, list, tuple)):
                fresh = [mistake for mistake in mistakes_in(member) if id(mistake) not in yielded]
                yielded.update(map(id, fresh))
                yield from fresh
