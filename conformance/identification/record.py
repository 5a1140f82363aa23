"""The facts about an implementation with their evidence, as data and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .._golden import golden
from ..base.geometry import Geometry
from ..base.record import GREEN
from ..base.results import plain
from .caller import Caller
from .convention import Convention
from .plain_reading import PlainReading
from .signature import CallParameter, Parameters

# The profile to check a written declaration.
CHECK_PROFILE: Final = "quick"
_MOST_FAILURES: Final = 8
_LONGEST: Final = 140
# Said of an undeclared mask in a written declaration.
NO_MEANING: Final = "no meaning of it is known"
CERTAIN: Final = "certain"
LIKELY: Final = "likely"
UNDETERMINED: Final = "undetermined"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One property of an implementation, in words and as a value, with the evidence.

    ``confidence`` is ``certain`` if an answer is within the bound of exactly one reading,
    ``likely`` if probes support a reading without such a bound, ``undetermined`` if ``description``
    says why nothing is known.
    """

    name: str
    description: str
    evidence: str
    value: Any = None
    confidence: str = CERTAIN

    def as_json(self) -> dict[str, Any]:
        """Plain data for the record."""
        record: dict[str, Any] = plain(
            {
                "fact": self.name,
                "found": self.description,
                "value": self.value,
                "evidence": self.evidence,
                "confidence": self.confidence,
            }
        )
        return record


@dataclass(kw_only=True)
class Findings:
    """The facts found so far, in order; a later fact replaces an earlier fact of equal name."""

    facts: dict[str, Fact] = field(default_factory=dict)

    def add(
        self,
        name: str,
        description: str,
        evidence: str,
        value: Any = None,
        confidence: str = CERTAIN,
    ) -> None:
        """Add a fact."""
        self.facts[name] = Fact(
            name=name,
            description=description,
            evidence=evidence,
            value=value,
            confidence=confidence,
        )

    def undetermined(self, name: str, why: str) -> None:
        """Add a fact that could not be determined, and why."""
        self.add(name, f"undetermined ({why})", "", None, UNDETERMINED)

    def value(self, name: str) -> Any:
        """The value of a fact, or None."""
        return self.facts[name].value if name in self.facts else None

    def as_json(self) -> list[dict[str, Any]]:
        """All facts as plain data."""
        return [fact.as_json() for fact in self.facts.values()]


def deviations_words(count: int) -> str:
    """The number of probable mistakes in words, "" for none."""
    if not count:
        return ""
    if count == 1:
        return "1 deviation from the standard, probably a mistake"
    return f"{count} deviations from the standard, probably mistakes"


def check_lines(record: Mapping[str, Any]) -> list[str]:
    """The report of ``check`` on the declaration, line by line; empty if ``check`` did not run."""
    checked = record.get("check")
    if checked is None:
        return []
    head = f"conformance check --profile {CHECK_PROFILE} says of this: {checked['verdict']}"
    if checked["verdict"] in GREEN:
        return [f"{head}, {checked['reason']}"]
    mistaken = any(deviation.get("mistaken") for deviation in record.get("deviations", ()))
    why = (
        "as the deviations above let expect, since the standard is promised"
        if mistaken and not record.get("as_observed")
        else "so this is what it does wrong, or what identify does not know of it"
    )
    lines = [f"{head} ({why})."]
    shown = checked["failed"][:_MOST_FAILURES]
    lines += [f"- {clause['clause']}: {shortened(clause['message'])}" for clause in shown]
    more = len(checked["failed"]) - _MOST_FAILURES
    if more > 0:
        lines.append(f"- and {more} more")
    if not checked["failed"]:
        reason = checked["reason"]
        if NO_MEANING in record["declaration"]:  # the declaration gives the advice
            reason = reason.partition(": declare what it means")[0]
        lines.append(f"- {shortened(reason)}")
    return lines


def shortened(message: str) -> str:
    """A message as one line that fits."""
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


SCALE_WORDS: Final = {
    "inverse-sqrt-head-size": "1/sqrt(head size)",
    "none": "none: the dot products are not scaled",
    "inverse-head-size": "1/head size",
    "sqrt-head-size": "sqrt(head size)",
    "inverse-sqrt-model-width": "1/sqrt(width of all heads)",
    "inverse-sqrt-num-heads": "1/sqrt(number of heads)",
    "inverse-sqrt-value-head-size": "1/sqrt(value head size)",
}
_INPUTS: Final = {
    "separate": "cross-attention: query, key and value",
    "memory": "cross-attention: query, and one input for key and value",
    "self": "self-attention: one input",
}
_NORMS: Final = {
    "rms": "divided by the root of their mean square",
    "l2": "divided by their length",
    "layer": "normalised to mean 0 and variance 1",
}
_MOST_NAMES: Final = 8
_SPLITS: Final = {
    "blocks": "head h owns its own block of channels",
    "interleaved": "head h owns every H-th channel",
    "reinterpret": "split by a view without the transpose: tokens and heads are mixed",
}
_MERGES: Final = {
    "blocks": "merged side by side",
    "interleaved": "merged channel by channel",
    "reinterpret": "merged by a view without the transpose: tokens and heads are mixed",
    "tokens": "concatenated along the token axis",
}


def kind_words(convention: Convention) -> str:
    """The kind of implementation in words, with or without a batch axis."""
    kind = {
        "core": "core (attention proper, no projections)",
        "layer": "layer (with projections)",
    }[convention.kind]
    return f"{kind}, {'batched' if convention.layout.batched else 'one item, not batched'}"


def inputs_words(convention: Convention, parameters: Parameters) -> str:
    """The inputs and their names, in words."""
    if convention.names is not None:
        return f"{_INPUTS[convention.inputs]}, as {', '.join(convention.names)}"
    count = len(convention.inputs_names)
    named = [entry.name for entry in parameters.entries if 0 <= entry.position < count]
    names = f" ({', '.join(named)})" if named else ""
    return f"{_INPUTS[convention.inputs]}, by position{names}"


def parameters_words(parameters: Parameters) -> str:
    """The names of the parameters, shortened if there are many."""
    every = [entry.name for entry in parameters.entries if not entry.guessed]
    names = every[:_MOST_NAMES]
    more = len(every) - len(names)
    listed = f"parameters {', '.join(names)}" if names else "by calling it"
    listed += f" and {more} more" if more > 0 else ""
    return listed + (", and any keyword" if parameters.open_ended else "")


def placed(parameter: CallParameter) -> str:
    """A parameter with its place in a call, counted from 1."""
    if parameter.position < 0:
        return f"{parameter.name} (keyword only)"
    return f"{parameter.name} (argument {parameter.position + 1})"


def rivals(plain: PlainReading) -> str:
    """The evidence for the reading of plain calls."""
    read = "read off the answers to unit values; " if plain.was_read else ""
    whose = "the answers of what it computes instead" if plain.made else "golden"
    return f"{read}{whose} within bound on every plain probe (at most {plain.margin:.2g} of it)"


def scale_number(point: golden.Semantics, sizes: Geometry) -> float:
    """The scale as a number at some sizes."""
    return golden.scale_value(
        point,
        head_size=sizes.head_size,
        value_head_size=sizes.value_head_size,
        num_heads=sizes.num_heads,
    )


def prepared_words(point: golden.Semantics) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Facts on the preparation of query and key, and on ALiBi: name, words and value."""
    if point.qk_norm != "none":
        yield (
            "query and key",
            f"{_NORMS[point.qk_norm]} in each head, with an epsilon of {point.qk_norm_epsilon:.3g}",
            {"norm": point.qk_norm, "epsilon": point.qk_norm_epsilon},
        )
    aligned = {"bottom-right": "last", "top-left": "first"}[point.causal_alignment]
    if point.rotary != "none":
        pairs = {"halves": "i and i + R/2", "interleaved": "2i and 2i + 1"}[point.rotary]
        part = "" if point.rotary_fraction == 1 else f", in {point.rotary_fraction:g} of them"
        words = f"channels {pairs} turn together{part}, base {point.rotary_base:g}"
        yield (
            "rotary positions",
            f"{words}, queries counted from the {aligned} key",
            {"pairs": point.rotary, "base": point.rotary_base, "fraction": point.rotary_fraction},
        )
    if point.alibi:
        yield (
            "bias by distance",
            f"ALiBi, with its own slopes; queries counted from the {aligned} key",
            {"alibi": True},
        )


def head_order_words(point: golden.Semantics, sizes: Geometry) -> str:
    """The way heads are cut and merged, in words."""
    return f"{sizes.num_heads} heads: {_SPLITS[point.head_split]}; {_MERGES[point.head_merge]}"


def biases_words(caller: Caller, point: golden.Semantics) -> str:
    """The projections that have a bias, in words."""
    words = {"q": "query", "k": "key", "v": "value", "o": "output"}
    used = [
        word
        for role, word in words.items()
        if role in caller.biases and getattr(point, f"{word}_bias")
    ]
    unused = [
        word
        for role, word in words.items()
        if role in caller.biases and not getattr(point, f"{word}_bias")
    ]
    text = ", ".join(used) or "none"
    return text + (f" (that of {', '.join(unused)} is not used)" if unused else "")


def empty_words(rule: Sequence[str]) -> str:
    """An empty-row rule for the user."""
    words = {
        "zeros": "zeros",
        "nan": "NaN",
        "mean-of-all": "the mean of all values",
        "mean-of-valid": "the mean of the values that causality admits",
        "raises": "an exception",
        "other": "something that no rule gives",
    }
    return words[rule[0]]
