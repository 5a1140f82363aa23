"""Mistakes of causality: lost, reversed or misplaced.

Mistakes of packed sequences, one after another in a tensor, that are cut at wrong places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, methodcaller
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...declare.declaration import SEQUENCES, mixed_in
from ...problems.arrangements import there
from ...problems.inputs import Inputs
from ._steps import has_causal, places_ahead, require
from .named_mistake import DeclaredCall, InputsChange, NamedMistake, fixing, named
from .readings import BY_OFFSETS, FIRST_KEYS, KEYS, KEYS_READ, reading_ways

Edit = golden.Edit
_BLOCKS: Final = (2, 4, 8, 16, 32)


def _triangle(admitted: Callable[[Tensor], Tensor], corner: str = "") -> golden.Edit:
    """Replace the causal table by a predicate of the distance from query to key.

    The diagonal lies as declared, or starts or ends in ``corner``.
    """
    if not corner:
        return Edit("by_causality", golden.Rewired(admitted, ("ahead",)))
    bottom_right = corner == "bottom-right"
    return Edit(
        "by_causality", lambda sizes: admitted(places_ahead(sizes, bottom_right=bottom_right))
    )


def _compare_blocks(size: int) -> golden.Edit:
    def table(positions: Tensor, sizes: golden.Sizes) -> Tensor:
        keys, places = torch.arange(sizes.key_length), positions[:, None]
        return keys.div(size, rounding_mode="floor") <= places.div(size, rounding_mode="floor")

    return Edit("by_causality", table)


def _either(
    ahead: Tensor, by_window: Tensor, by_mask: Tensor, scores_shape: tuple[int, ...]
) -> Tensor:
    return (by_window & ((ahead <= 0) | by_mask)).expand(scores_shape)


def _is_masked(inputs: Inputs) -> bool:
    return inputs.causal and inputs.keep is not None


@dataclass(frozen=True)
class _Packed:
    """Tokens of all sequences in a row: each sequence's length and start ``[B]``.

    ``item`` is the sequence of each token ``[T]``.
    """

    counts: Tensor
    starts: Tensor
    item: Tensor

    @property
    def index(self) -> Tensor:
        return torch.arange(len(self.item))

    @property
    def ends(self) -> Tensor:
        return self.starts + self.counts

    @property
    def place(self) -> Tensor:
        return self.index - self.starts[self.item]


@dataclass(frozen=True)
class _Sequences:
    """Packed queries and keys; ``at_end`` aligns the diagonal at the last token of both.

    Readings return the keys of each query, and their distances: both ``[Tq, Tk]``.
    """

    queries: _Packed
    keys: _Packed
    at_end: bool

    def shifted(self, shift: Tensor) -> tuple[Tensor, Tensor]:
        places = self.queries.place + shift[self.queries.item]
        return self.queries.item[:, None] == self.keys.item, self.keys.place - places[:, None]

    @property
    def aligned_first(self) -> tuple[Tensor, Tensor]:
        return self.shifted(torch.zeros_like(self.queries.counts))

    @property
    def aligned_last(self) -> tuple[Tensor, Tensor]:
        return self.shifted(self.keys.counts - self.queries.counts)

    @property
    def right(self) -> tuple[Tensor, Tensor]:
        return self.aligned_last if self.at_end else self.aligned_first

    @property
    def together(self) -> tuple[Tensor, Tensor]:
        shift = len(self.keys.item) - len(self.queries.item) if self.at_end else 0
        ahead = self.keys.index - (self.queries.index + shift)[:, None]
        return torch.ones_like(ahead, dtype=torch.bool), ahead

    def joined(self, group_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        groups = group_of(torch.arange(len(self.keys.counts)))
        queries, keys = (_joined(tokens, groups) for tokens in (self.queries, self.keys))
        return replace(self, queries=queries, keys=keys).right

    def recounted(
        self, change: Callable[[_Packed], Tensor], roles: str, *, cut: bool
    ) -> tuple[Tensor, Tensor]:
        """Count tokens to other sequences; ``cut``: these begin and end with the tokens."""
        queries, keys = self.queries, self.keys
        if "q" in roles:
            queries = _counted_to(queries, change(queries), cut=cut)
        if "k" in roles:
            keys = _counted_to(keys, change(keys), cut=cut)
        return replace(self, queries=queries, keys=keys).right


def _counted_to(tokens: _Packed, item: Tensor, *, cut: bool) -> _Packed:
    if cut:
        require(bool((item >= 0).all()))
        return _cut_at(torch.bincount(item, minlength=len(tokens.counts)), len(item))
    return replace(tokens, item=item)


def _cut_at(counts: Tensor, total: int) -> _Packed:
    ends = counts.cumsum(0)
    item = (ends <= torch.arange(total)[:, None]).sum(dim=-1).clamp(max=len(counts) - 1)
    return _Packed(counts, ends - counts, item)


def _joined(tokens: _Packed, groups: Tensor) -> _Packed:
    """Cut tokens where the group of a sequence differs from the group of the sequence before."""
    joined = groups[:, None] == groups.unique()
    return _cut_at((tokens.counts[:, None] * joined).sum(0), len(tokens.item))


def _cut_alike(tokens: _Packed) -> _Packed:
    total, count = len(tokens.item), len(tokens.counts)
    ends = torch.arange(1, count + 1) * total // max(count, 1)
    return _cut_at(ends.diff(prepend=ends.new_zeros(1)), total)


def _first_to_the_one_before(tokens: _Packed) -> Tensor:
    ends = tokens.counts.cumsum(0)
    return (ends < tokens.index[:, None]).sum(dim=-1).clamp(max=len(ends) - 1)


def _first_alone(tokens: _Packed) -> Tensor:
    """Count as ``searchsorted`` does from the left; the very first token is in no sequence."""
    return (tokens.starts < tokens.index[:, None]).sum(dim=-1) - 1


def _last_to_the_next(tokens: _Packed) -> Tensor:
    ends = tokens.counts.cumsum(0)
    return (ends <= tokens.index[:, None] + 1).sum(dim=-1).clamp(max=len(ends) - 1)


def _misread_sequences(read: Callable[[_Sequences], tuple[Tensor, Tensor]]) -> InputsChange:
    """Replace packed sequences by a mask that follows a wrong reading of their offsets."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if not inputs.head_layout.has_sequences:
            return None
        require(mixed_in(inputs.point) is None)  # mixing depends on places of tokens
        queries, keys = (there(inputs, name, getattr(inputs, name)) for name in ("query", "key"))
        sequences = _Sequences(
            queries=_cut_at(queries.sum(dim=-1), int(queries.sum())),
            keys=_cut_at(keys.sum(dim=-1), int(keys.sum())),
            at_end=call.semantics.causal_alignment == "bottom-right",
        )
        attended, ahead = read(sequences)
        left, right = inputs.window or (-1, -1)
        attended = attended & ((ahead <= 0) | (not inputs.causal))
        attended = attended & ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))
        keep = torch.zeros(*queries.shape, attended.shape[1], dtype=torch.bool)
        keep[queries] = attended
        key, value = (
            heads.transpose(1, 2)[keys].transpose(0, 1).expand(len(keys), -1, -1, -1)
            for heads in (inputs.key, inputs.value)
        )
        return inputs.replace(
            geometry=inputs.geometry.replace(key_length=attended.shape[1]),
            key=key,
            value=value,
            keep=keep.unsqueeze(1),
            mask_form=SEQUENCES,
            present=(queries, torch.ones(len(keys), attended.shape[1], dtype=torch.bool)),
            causal=False,
            window=None,
        )

    return inputs_for


_causal: Final = partial(named, where=has_causal)
_IGNORED: Final = Edit("causal", lambda: False)
CAUSALITY: Final[tuple[NamedMistake, ...]] = (
    *_causal("causal-ignored", "mask.causal")(
        "the causal flag is ignored",
        "hide the keys after each query when it is set, whether a mask is given or not",
        _IGNORED,
    ),
    *_causal(
        "causal-needs-mask",
        "mask.causal",
        special_of="causal-ignored",
        needs="mask",
        where=lambda inputs: inputs.causal and not inputs.masked,
    )(
        "the causal flag takes effect only where a mask is given too",
        "hide the keys after each query whether a mask is given or not",
        _IGNORED,
    ),
    *_causal(
        "causal-only-when-square",
        "mask.causal-alignment",
        special_of="causal-ignored",
        where=lambda inputs: (
            inputs.causal and inputs.geometry.query_length != inputs.geometry.key_length
        ),
    )(
        "the causal flag is dropped where there are more or fewer keys than queries",
        "align the triangle as declared and apply it to every shape",
        _IGNORED,
    ),
    *_causal("causal-sees-only-the-future", "mask.causal")(
        "the triangle is the upper one: a query sees the future and not the past",
        "hide the keys after each query: tril, not triu",
        *(
            _triangle(admitted, corner)
            for corner in ("", "top-left")
            for admitted in (lambda ahead: ahead >= 0, lambda ahead: ahead > 0)
        ),
    ),
    *_causal("causal-by-blocks", "mask.causal", special_of="causal-ignored")(
        "causality is kept between blocks of tokens and forgotten inside a block",
        "compare positions of tokens, not of blocks",
        *(_compare_blocks(size) for size in _BLOCKS),
    ),
    # The triangle alone may be misplaced, with positions and windows in place.
    *named("causal-top-left", "mask.causal-alignment")(
        "the causal diagonal starts at the first query and key (top-left)",
        "align it at the last query and key (bottom-right), as declared: diagonal=Lk - Lq",
        {
            "edits": (_triangle(lambda ahead: ahead <= 0, "top-left"),),
            "where": has_causal,
            "fits": lambda point: point.causal_alignment == "bottom-right",
            "base": {"rotary": "halves"},
        },
        {
            "sentence": "the causal diagonal starts at the first query and key of a sequence",
            "fix": "align it at the last query and key of each sequence, as declared",
            "inputs": _misread_sequences(attrgetter("aligned_first")),
            "needs": "sequences",
            "base": {"causal_alignment": "bottom-right"},
        },
    ),
    *named("causal-bottom-right", "mask.causal-alignment")(
        "the causal diagonal ends at the last query and key (bottom-right)",
        "align it at the first query and key (top-left), as declared: diagonal=0",
        {
            "edits": (_triangle(lambda ahead: ahead <= 0, "bottom-right"),),
            "where": has_causal,
            "fits": lambda point: point.causal_alignment == "top-left",
            "base": {"rotary": "halves", "causal_alignment": "top-left"},
        },
        {
            "sentence": "the causal diagonal ends at the last query and key of a sequence",
            "fix": "align it at the first query and key of each sequence, as declared",
            "inputs": _misread_sequences(attrgetter("aligned_last")),
            "needs": "sequences",
            "base": {"causal_alignment": "top-left"},
        },
    ),
    *_causal("causal-or-mask", "mask.causal-and-mask", where=_is_masked)(
        "a key is attended when causality or the mask admits it",
        "combine the two with and, not or",
        Edit("own_admitted", _either),
    ),
)


_CUT: Final = "sequence i reaches from cu_seqlens[i] to cu_seqlens[i + 1]: searchsorted(right=True)"


def _sequences(
    name: str, sentence: str, fix: str, *reads: Callable[[_Sequences], tuple[Tensor, Tensor]]
) -> list[NamedMistake]:
    ways = ({"inputs": _misread_sequences(read)} for read in reads)
    return named(name, "varlen.golden", needs="sequences")(sentence, fix, *ways)


_read_sequences: Final = fixing(BY_OFFSETS, primary="varlen.golden", needs="sequences")
OF_SEQUENCES: Final[tuple[NamedMistake, ...]] = (
    *_sequences(
        "sequences-not-separated",
        "tokens of all sequences attend each other, as if there were one",
        "hide the keys of other sequences: cu_seqlens says where each begins",
        attrgetter("together"),
    ),
    *_read_sequences("sequences-not-separated")(
        "tokens of all sequences attend each other, as if there were one",
        *reading_ways(KEYS, "those of all items"),
    ),
    *(
        mistake
        for words, group_of in (
            ("all but the first sequence attend", lambda number: number.clamp(max=1)),
            ("all but the last sequence attend", lambda number: number // max(1, len(number) - 1)),
            ("two neighbouring sequences each attend", lambda number: number // 2),
        )
        for mistake in _sequences(
            "sequences-not-separated",
            f"tokens of {words} each other, as if they were one",
            "hide the keys of other sequences: cu_seqlens says where each begins",
            methodcaller("joined", group_of),
        )
    ),
    *(
        mistake
        for name, sentence, change in (
            (
                "sequences-begin-late",
                "the first token of every sequence but the first is counted to the one before",
                _first_to_the_one_before,
            ),
            (
                "sequences-begin-late",
                "first tokens of sequences are counted to the one before, the very first to none",
                _first_alone,
            ),
            (
                "sequences-begin-early",
                "the last token of every sequence but the last is counted to the next one",
                _last_to_the_next,
            ),
        )
        for mistake in _sequences(
            name,
            sentence,
            _CUT,
            *(
                methodcaller("recounted", change=change, roles=roles, cut=cut)
                for roles in ("k", "q", "qk")
                for cut in (False, True)
            ),
        )
    ),
    *(
        mistake
        for name, sentence, parts, words in (
            (
                "sequences-lose-their-first-key",
                "every sequence but the first leaves out its first key, where it has another",
                FIRST_KEYS,
                "one later, but of the first item and of a single key",
            ),
            (
                "sequences-lose-their-last-key",
                "every sequence leaves out its last key, where it has another",
                KEYS_READ,
                "one fewer, but at least one",
            ),
            (
                "sequences-see-the-key-before",
                "every sequence but the first sees the last key of the one before it",
                FIRST_KEYS,
                "one earlier, but of the first item",
            ),
            (
                "sequences-see-the-key-after",
                "every sequence but the last sees the first key of the next one",
                KEYS_READ,
                "one more",
            ),
            (
                "sequences-lose-keys-past-the-most-queries",
                "of each sequence as many keys are seen as the one with most queries has queries",
                KEYS_READ,
                "at most the largest number of queries",
            ),
        )
        for mistake in _read_sequences(name)(sentence, *reading_ways(parts, words))
    ),
    *(
        mistake
        for size in _BLOCKS
        for mistake in _read_sequences("sequences-in-whole-tiles")(
            f"the keys of each sequence are whole tiles of {size}, those of its neighbours in them",
            *reading_ways(FIRST_KEYS[1:], f"rounded down to a multiple of {size}"),
            *reading_ways(KEYS, f"followed by the others of their last tile of {size}"),
            *reading_ways(KEYS, f"whole tiles of {size}"),
        )
    ),
    *_read_sequences("sequences-read-the-first")(
        "all sequences attend the keys of the first one",
        *reading_ways(KEYS, "those of the first batch item"),
    ),
    *_read_sequences("sequences-read-the-first")(
        "where each sequence has one query, all of them attend the keys of the first sequence",
        *reading_ways(KEYS, "those of the first batch item", "items, where each has one query,"),
    ),
    *_read_sequences("sequences-cut-by-the-queries")(
        "the keys of a sequence are taken from where its queries begin",
        *reading_ways(("the place of the keys",), "where its queries begin"),
        *reading_ways(KEYS, "those where its queries lie"),
    ),
    *_sequences(
        "sequences-of-equal-length",
        "sequences are cut at equal lengths, whatever the offsets say",
        "cut them where cu_seqlens says",
        lambda all_: (
            replace(all_, queries=_cut_alike(all_.queries), keys=_cut_alike(all_.keys)).right
        ),
    ),
    *_sequences(
        "sequences-counted-by-the-queries",
        "places of keys are counted from where the queries of their sequence begin",
        "count them from cu_seqlens_k, those of queries from cu_seqlens_q",
        lambda all_: replace(all_, keys=replace(all_.keys, starts=all_.queries.starts)).right,
    ),
    *_sequences(
        "causal-of-the-longest",
        "the causal diagonal of each sequence is placed by max_seqlen_k - max_seqlen_q",
        "place it by the lengths of the sequence itself",
        lambda all_: all_.shifted(
            (all_.keys.counts.max() - all_.queries.counts.max()).expand_as(all_.queries.counts)
        ),
    ),
    *_sequences(
        "causal-of-all-sequences",
        "the causal diagonal is that of all tokens together, not of each sequence",
        "place it by the lengths of the sequence itself",
        lambda all_: (all_.right[0], all_.together[1]),
    ),
)
