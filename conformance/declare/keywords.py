"""A candidate's names for keywords: translates calls from the harness' names to the user's."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor, nn

from .._golden import golden
from ..base.parameter_names import signature_in_docstring
from ..base.printable_text import repr_of
from ..errors import DeclarationError, did_you_mean
from .declaration import OWN_KEYWORDS, Declaration
from .head_layouts import HEAD_LAYOUTS
from .operators import signature_of

_OF_SEQUENCES: Final = frozenset(
    word for layout in HEAD_LAYOUTS.values() for word in layout.sequence_keywords
)
_WORDS: Final = tuple(sorted(OWN_KEYWORDS))
# Keywords whose two parts may be handed over as two parameters.
_PAIRS: Final = frozenset({"window"})
# Values of required parameters in calls without their keyword; a mask gets None.
_UNUSED: Final[Mapping[str, Any]] = {
    "causal": False,
    "dropout": 0.0,
    "return_lse": False,
    "return_weights": False,
    "softcap": 0.0,
    "window": (-1, -1),
}
Prepare = Callable[[dict[str, Any], Tensor, Tensor], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class OwnKeywords:
    """A function's names for the harness' keywords, and the form of their values.

    names
        The parameter of each keyword, or two parameters for the parts of a pair. Keywords that
        share a parameter are passed together, as a tuple in this order.
    prepare
        A function that converts values: from a call's keywords, in the harness' names, its query
        and its key, to the keywords to pass.
    grouped
        A flag for calls in which key and value have fewer heads, "" without a flag.
    made
        Parameters that follow from a call's keywords, by functions of those.
    """

    names: Mapping[str, tuple[str, ...]]
    prepare: Prepare | None = None
    grouped: str = ""
    made: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)

    def joined(self, others: OwnKeywords | None) -> OwnKeywords:
        """These names, overridden by others."""
        if others is None:
            return self
        return dataclasses.replace(self, names={**self.names, **others.names})

    def applied(self, function: Callable[..., Any], declaration: Declaration) -> Callable[..., Any]:
        """The function, or the builder of a layer, behind the harness' keywords."""
        if declaration.kind != "layer":
            return self._called(function, declaration, None)

        @functools.wraps(function)
        def build(geometry: Any, weights: Any) -> Any:
            forward = function(geometry, weights)
            if not callable(forward):  # refused where the layer is called
                return forward
            pinned = declaration.pins.sizes.get("head_size", (None,))
            head_size = pinned[0] if geometry is None else geometry.head_size
            return self._called(forward, declaration, head_size)

        return build

    def _called(
        self, function: Callable[..., Any], declaration: Declaration, head_size: int | None
    ) -> Callable[..., Any]:
        """A function of the harness' keywords that calls ``function`` with the user's names.

        ``head_size`` None means the size of the query's last axis.
        """
        required = tuple(self._required(function))
        point, heads = declaration.semantics, declaration.head_layout.axes.index("H")

        def unused(word: str, query: Tensor) -> Any:
            if word != "scale":
                return _UNUSED.get(word)
            size = head_size or query.shape[-1]
            sizes = {"head_size": size, "value_head_size": size, "num_heads": 1}
            return golden.scale_value(point, **sizes)

        def theirs(inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
            query, key = inputs[0], inputs[min(1, len(inputs) - 1)]
            given = dict(keywords)
            if self.prepare is not None:
                given = self.prepare(given, query, key)
            values = {word: unused(word, query) for word in required if word not in given} | given
            result = self._handed_over(values)
            result |= {name: make(given) for name, make in self.made.items()}
            if self.grouped and query.shape[heads] != key.shape[heads]:
                result[self.grouped] = True
            return result

        if isinstance(function, nn.Module):
            return _RenamedModule(function, theirs)

        @functools.wraps(function)
        def call(*inputs: Any, **keywords: Any) -> Any:
            return function(*inputs, **theirs(inputs, keywords))

        signature = parameters_of(function)
        if signature is not None:
            call.__signature__ = self._in_our_words(signature)  # type: ignore[attr-defined]  # what inspect reads
        return call

    def _handed_over(self, values: Mapping[str, Any]) -> dict[str, Any]:
        parts: dict[str, list[Any]] = {}
        ordered = dict.fromkeys((*(word for word in self.names if word in values), *values))
        for word in ordered:
            names = self.names.get(word, (word,))
            for name, value in zip(
                names, values[word] if len(names) > 1 else [values[word]], strict=True
            ):
                parts.setdefault(name, []).append(value)
        return {name: each[0] if len(each) == 1 else tuple(each) for name, each in parts.items()}

    def _in_our_words(self, signature: inspect.Signature) -> inspect.Signature:
        """A function's signature, with the harness' keywords in place of the user's.

        Raises DeclarationError if a declared name is no parameter.
        """
        parameters = dict(signature.parameters)
        opens = [entry for entry in parameters.values() if entry.kind is entry.VAR_KEYWORD]
        replaced = {name for names in self.names.values() for name in names}
        for name in replaced - parameters.keys() if not opens else ():
            word = next(word for word, names in self.names.items() if name in names)
            hint = did_you_mean(name, parameters)
            msg = (
                f"keywords calls {word!r} {name!r}, which is no parameter of {signature}: give "
                f"the name that it has there{hint}"
            )
            raise DeclarationError(msg)
        own = inspect.Parameter
        ours = [own(word, own.KEYWORD_ONLY, default=None) for word in self.names]
        gone = {*replaced, *self.names, *self.made}
        kept = [entry for name, entry in parameters.items() if name not in gone]
        kept = [entry for entry in kept if entry.kind is not entry.VAR_KEYWORD]
        kept.sort(key=lambda entry: entry.kind)
        return inspect.Signature([*kept, *ours, *opens])

    def _required(self, function: Callable[..., Any]) -> Iterator[str]:
        signature = parameters_of(function)
        parameters = {} if signature is None else signature.parameters
        for word, names in self.names.items():
            held = [parameters[name] for name in names if name in parameters]
            if any(entry.default is entry.empty for entry in held) and word not in _OF_SEQUENCES:
                yield word


class _RenamedModule(nn.Module):
    """A module behind the harness' keywords, moved and cast with its inner module."""

    def __init__(
        self, module: nn.Module, theirs: Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
    ) -> None:
        super().__init__()
        self.module = module
        self.theirs = theirs
        self.train(module.training)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the module with the user's names."""
        return self.module(*inputs, **self.theirs(inputs, keywords))


def parameters_of(function: Any) -> inspect.Signature | None:
    """The signature of a function, an operator or a module's forward.

    None for a function in C whose docstring begins without a signature.
    """
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        return signature_of(called) or inspect.signature(called)
    except (TypeError, ValueError):
        return signature_in_docstring(called)


def read_keywords(given: object) -> OwnKeywords:
    """Check a declaration's names of keywords; raises DeclarationError with a sentence."""
    example = '{"keep": "attn_mask", "scale": "sm_scale"}'
    if not isinstance(given, Mapping):
        msg = (
            f"keywords is {repr_of(given)}: give a dict of our keywords to yours, such as {example}"
        )
        raise DeclarationError(msg)
    names: dict[str, tuple[str, ...]] = {}
    for word, theirs in given.items():
        if word not in _WORDS:
            hint = did_you_mean(word if isinstance(word, str) else "", _WORDS)
            msg = f"keywords has the key {repr_of(word)}, which is no keyword of the harness{hint}"
            raise DeclarationError(msg)
        parts = (theirs,) if isinstance(theirs, str) else theirs
        fits = isinstance(parts, (tuple, list)) and all(
            isinstance(name, str) and name.isidentifier() for name in parts
        )
        if not fits or len(parts) not in ((1, 2) if word in _PAIRS else (1,)):
            more = ", or two of them for its left and right part" if word in _PAIRS else ""
            msg = f"keywords calls {word!r} {repr_of(theirs)}: give the name of a parameter{more}"
            raise DeclarationError(msg)
        names[word] = tuple(parts)
    return OwnKeywords(names=names)
