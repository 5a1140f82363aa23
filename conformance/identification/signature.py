"""Read the signature of possible attention code: the parameters and their meanings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from ..base.parameter_names import POSITIONAL, role_of, signature_in_docstring

# Longer words first: "attention_mask_bias" is a bias.
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "dropout": ("dropout", "p_drop", "drop_rate", "drop_prob", "attn_drop"),
    "weights": (
        "need_weights",
        "return_weights",
        "return_attn",
        "output_attentions",
        "with_weights",
        "return_attention",
        "need_attn",
    ),
    "average": ("average_attn_weights", "average_weights"),
    "gqa": ("enable_gqa", "gqa"),
    "heads": ("num_heads", "n_heads", "n_head", "nheads", "heads", "head_num", "h"),
    "softcap": ("softcap", "soft_cap", "logit_cap", "logits_soft_cap", "logit_softcapping"),
    "window": ("window", "window_size", "sliding_window", "local_window"),
    "causal": ("is_causal", "causal"),
    "scale": ("softmax_scale", "sm_scale", "scale", "scaling", "temperature"),
    "mask": ("mask", "bias", "len", "padding", "keep", "drop", "seqlens", "adj"),
}
# Positions, and tables of them.
_ROTARY: Final = (
    *("cos", "sin", "freqs", "rope", "rotary", "position_embed", "pos_emb", "position_ids"),
    *("start_pos", "input_pos", "cache_position"),
)
# Keywords that a function of ``**keywords`` may accept.
GUESSED: Final = (
    "keep",
    "drop",
    "keep_int",
    "bias",
    "lengths",
    "mask",
    "attn_mask",
    "causal",
    "is_causal",
    "scale",
    "softcap",
    "window",
    "dropout",
    "return_weights",
)


@dataclass(frozen=True)
class CallParameter:
    """One parameter: name, place, necessity, and the meaning of the name.

    ``guessed`` marks a keyword that ``**keywords`` may accept or ignore: only an effect proves the
    keyword.
    """

    name: str
    position: int
    required: bool
    by_keyword: bool
    meaning: str
    default: str = ""
    guessed: bool = False


@dataclass(frozen=True)
class Parameters:
    """Every parameter in order. ``open_ended``: further keywords are accepted without names."""

    entries: tuple[CallParameter, ...]
    open_ended: bool = False
    text: str = ""

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        return [entry.name for entry in self.entries]

    def meaning(self, *words: str) -> list[CallParameter]:
        """The parameters whose names have one of these meanings."""
        return [entry for entry in self.entries if entry.meaning in words]

    @property
    def inputs(self) -> list[CallParameter]:
        """The parameters that may be tokens: query, key, value and names of unknown meaning."""
        return [entry for entry in self.entries if entry.meaning in ("q", "k", "v", "")]


def read_parameters(function: Callable[..., Any]) -> Parameters:
    """The parameters of a function, of a module's ``forward``, or from a builtin's docstring."""
    called = function
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        called = function.forward.__get__(object())
    elif isinstance(function, torch.nn.Module):
        called = function.forward
    try:
        signature = inspect.signature(called)
    except Exception:  # noqa: BLE001 (written in C, or the user's object answers anything)
        said = signature_in_docstring(called)
        if said is None:
            return Parameters((), open_ended=True)
        signature = said
    entries = []
    open_ended = False
    for position, parameter in enumerate(signature.parameters.values()):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            empty = parameter.default is inspect.Parameter.empty
            entries.append(
                CallParameter(
                    name=parameter.name,
                    position=position if parameter.kind in POSITIONAL else -1,
                    required=empty,
                    by_keyword=parameter.kind is not inspect.Parameter.POSITIONAL_ONLY,
                    meaning=_meaning(parameter.name, parameter.default),
                    default="" if empty else repr(parameter.default)[:40],
                )
            )
    if open_ended:
        named = {entry.name for entry in entries}
        entries += [
            CallParameter(
                name=name,
                position=-1,
                required=False,
                by_keyword=True,
                meaning=_meaning(name, None),
                guessed=True,
            )
            for name in GUESSED
            if name not in named
        ]
    return Parameters(tuple(entries), open_ended, str(signature))


def _meaning(name: str, default: object) -> str:
    """The meaning of a parameter's name: q, k, v, mask, causal …; "" if unknown."""
    lowered = name.lower()
    for meaning, words in _WORDS.items():
        if meaning == "mask":
            break
        if lowered in words:
            return meaning
    for meaning, words in (("positions", _ROTARY), ("dropout", _WORDS["dropout"])):
        if any(word in lowered for word in words):
            return meaning
    # A boolean switch named mask turns the causal triangle on.
    is_triangle = "mask" in lowered and isinstance(default, bool)
    if is_triangle or ("causal" in lowered and isinstance(default, (bool, type(None), str))):
        return "causal"
    if any(word in lowered for word in _WORDS["mask"]):
        return "mask"
    role, clear = role_of(name)
    if clear and role in ("q", "k", "v"):
        return role
    return "" if default is inspect.Parameter.empty else "other"
