"""Wrong attentions: a text in a correct kernel, what replaces it, and what that computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Text = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One wrong implementation.

    Each text of ``old`` occurs once in ``kernels/{kernel}.py`` and is replaced by that of ``new``
    at the same place; ``truth`` says in a sentence what is computed instead.
    """

    name: str
    kernel: str
    old: Text
    new: Text
    truth: str


def _of(kernel: str, *rows: tuple[str, Text, Text, str]) -> tuple[Mutant, ...]:
    """The mutants of one kernel, from rows of name, old, new and truth."""
    return tuple(
        Mutant(name=f"{kernel}-{name}", kernel=kernel, old=old, new=new, truth=truth)
        for name, old, new, truth in rows
    )


_NAIVE: Final = _of(
    "naive",
    (
        "multiplied-by-root",
        "scale = 1.0 / math.sqrt(query.size(-1))",
        "scale = math.sqrt(query.size(-1))",
        "Without a scale the dot products are multiplied by sqrt(D) instead of divided by it.",
    ),
    (
        "root-of-keys",
        "math.sqrt(query.size(-1))",
        "math.sqrt(key.size(-2))",
        "Without a scale the dot products are divided by the root of the number of keys.",
    ),
    (
        "root-of-one-more",
        "math.sqrt(query.size(-1))",
        "math.sqrt(query.size(-1) + 1)",
        "Without a scale the dot products are divided by sqrt(D + 1).",
    ),
    (
        "small-scale-ignored",
        "if scale is None:",
        "if scale is None or scale < 0.5:",
        "A given scale below 0.5 is ignored: 1/sqrt(D) is used.",
    ),
    (
        "scale-divides",
        "key.transpose(-2, -1)) * scale",
        "key.transpose(-2, -1)) / scale",
        "The dot products are divided by the scale instead of multiplied by it.",
    ),
    (
        "scale-kept-from-first-call",
        "        scale = 1.0 / math.sqrt(query.size(-1))",
        '        scale = globals().setdefault("SCALE", 1.0 / math.sqrt(query.size(-1)))',
        "The 1/sqrt(D) of the first call without a scale is kept and used in all later ones.",
    ),
    (
        "absolute-products",
        "torch.matmul(query, key.transpose(-2, -1)) * scale",
        "torch.matmul(query, key.transpose(-2, -1)).abs() * scale",
        "The absolute values of the dot products are used.",
    ),
    (
        "clamped-scores",
        "key.transpose(-2, -1)) * scale",
        "key.transpose(-2, -1)).mul(scale).clamp(-2.0, 2.0)",
        "The scaled dot products are clamped to the range from -2 to 2.",
    ),
    (
        "keep-of-item-0",
        "allowed & keep",
        "allowed & keep[:1]",
        "The boolean mask of batch item 0 is used for all items.",
    ),
    (
        "keep-of-head-0",
        "allowed & keep",
        "allowed & keep[:, :1]",
        "The boolean mask of head 0 is used for all heads.",
    ),
    ("keep-ignored", "allowed & keep", "allowed | keep", "The boolean mask is ignored."),
    (
        "keep-inverted",
        "allowed & keep",
        "allowed & ~keep",
        "The boolean mask is inverted: True hides a key.",
    ),
    (
        "keep-rolled",
        "allowed & keep",
        "allowed & keep.roll(1, dims=-1)",
        "The boolean mask is shifted by one key: key j uses the entry of key j - 1, cyclically.",
    ),
    ("bias-subtracted", "scores + bias", "scores - bias", "The additive mask is subtracted."),
    (
        "bias-scaled",
        "scores + bias",
        "scores + bias * scale",
        "The additive mask is multiplied by the scale before it is added.",
    ),
    (
        "bias-twice",
        "scores + bias",
        "scores + bias + bias",
        "The additive mask is added twice.",
    ),
    (
        "bias-of-head-0",
        "scores + bias",
        "scores + bias[:, :1]",
        "The additive mask of head 0 is added in all heads; their own minus infinities count, too.",
    ),
    (
        "bias-only-hides",
        "        scores = scores + bias\n",
        "",
        "Finite values of the additive mask are ignored; only its minus infinities count.",
    ),
    (
        "causal-strict",
        "columns[None, :] <= rows",
        "columns[None, :] < rows",
        "The causal flag hides the query's own key, too.",
    ),
    (
        "causal-top-left",
        "rows[:, None] + key.size(2) - query.size(2)",
        "rows[:, None]",
        "The causal diagonal starts at the top left corner where queries and keys differ.",
    ),
    (
        "causal-shift-reversed",
        "rows[:, None] + key.size(2) - query.size(2)",
        "rows[:, None] - key.size(2) + query.size(2)",
        "The causal diagonal is shifted by Lq - Lk instead of Lk - Lq.",
    ),
    (
        "causal-anti",
        "columns[None, :] <= rows",
        "columns[None, :] >= rows",
        "The causal flag hides past keys and shows the own and the future ones.",
    ),
    (
        "causal-square-only",
        "    if causal:",
        "    if causal and query.size(2) == key.size(2):",
        "The causal flag is ignored unless there are as many queries as keys.",
    ),
    (
        "causal-not-with-keep",
        "    if causal:",
        "    if causal and keep is None:",
        "The causal flag is ignored where a boolean mask is given.",
    ),
    (
        "causal-not-when-long",
        "    if causal:",
        "    if causal and key.size(2) <= 128:",
        "The causal flag is ignored where there are more than 128 keys.",
    ),
    (
        "softmax-over-queries",
        "torch.softmax(scores, dim=-1)",
        "torch.softmax(scores, dim=-2)",
        "The softmax runs over the queries instead of the keys.",
    ),
    (
        "hidden-count-as-zero",
        "scores.masked_fill(~allowed, -math.inf)",
        "scores.masked_fill(~allowed, 0.0)",
        "Hidden keys take part in the softmax with logit 0; their weights are then set to zero.",
    ),
    (
        "nan-rows",
        "    weights = weights.masked_fill(~allowed, 0.0)\n",
        "",
        "Queries without any key return NaN instead of zeros.",
    ),
    (
        "weights-in-bfloat16",
        "torch.matmul(weights, value)",
        "torch.matmul(weights.bfloat16().to(value.dtype), value)",
        "The weights are rounded to bfloat16 before they meet the values.",
    ),
    (
        "values-normalised",
        "torch.matmul(weights, value)",
        "torch.matmul(weights, torch.nn.functional.normalize(value, dim=-1))",
        "Each value vector is divided by its norm.",
    ),
    (
        "weights-squared",
        "torch.matmul(weights, value)",
        "torch.matmul(weights * weights, value)",
        "The weights are squared after the softmax and not normalised again.",
    ),
    (
        "values-rolled",
        "torch.matmul(weights, value)",
        "torch.matmul(weights, value.roll(1, dims=2))",
        "The weight of key j meets the value of key j - 1, cyclically.",
    ),
    (
        "last-key-of-odd",
        "    if keep is not None:",
        (
            "    if key.size(2) > 1 and key.size(2) % 2:\n"
            "        allowed[..., -1:] = False\n"
            "    if keep is not None:"
        ),
        "The last key is ignored where the number of keys is odd and above 1.",
    ),
    (
        "two-strict-and-bias-twice",
        ("scores + bias", "columns[None, :] <= rows"),
        ("scores + 2 * bias", "columns[None, :] < rows"),
        "The additive mask counts twice, and the causal flag hides the query's own key.",
    ),
    (
        "two-top-left-and-no-scale",
        ("scale = 1.0 / math.sqrt(query.size(-1))", " + key.size(2) - query.size(2)"),
        ("scale = 1.0", ""),
        "Without a scale nothing is divided by sqrt(D), and the causal diagonal is top-left.",
    ),
    (
        "two-inverted-and-queries",
        ("allowed & keep", "torch.softmax(scores, dim=-1)"),
        ("allowed & ~keep", "torch.softmax(scores, dim=-2)"),
        "The boolean mask is inverted, and the softmax runs over the queries.",
    ),
)

_TILED: Final = _of(
    "tiled",
    (
        "sum-not-rescaled",
        "mixed = mixed * decay + p @ v",
        "mixed = mixed + p @ v",
        (
            "When a tile of 16 keys raises the running maximum, the weighted sum so far is not "
            "rescaled (the sum of the weights is)."
        ),
    ),
    (
        "total-not-rescaled",
        "total = total * decay + p.sum",
        "total = total + p.sum",
        (
            "When a tile of 16 keys raises the running maximum, the sum of weights so far is not "
            "rescaled (the weighted sum is)."
        ),
    ),
    (
        "neither-rescaled",
        "decay = torch.exp(peak - safe)",
        "decay = torch.ones_like(safe)",
        "When a tile of 16 keys raises the running maximum, the sums so far are not rescaled.",
    ),
    (
        "rescaled-twice",
        "mixed = mixed * decay + p @ v",
        "mixed = mixed * decay * decay + p @ v",
        "The weighted sum of earlier tiles is rescaled twice for each rise of the maximum.",
    ),
    (
        "only-last-tile",
        "            peak = new_peak\n",
        "",
        "Only the last tile of 16 keys counts: all keys before it are forgotten.",
    ),
    (
        "peak-of-tile",
        "new_peak = torch.maximum(peak, s.amax(dim=-1, keepdim=True))",
        "new_peak = s.amax(dim=-1, keepdim=True)",
        (
            "A tile of 16 keys that are all hidden from a query resets its running maximum: "
            "earlier tiles are forgotten if a later one is visible; else what they gave is "
            "multiplied by exp of the maximum, which large logits overflow or underflow."
        ),
    ),
    (
        "no-incomplete-tile",
        "range(0, num_keys, COLUMNS)",
        "range(0, num_keys - num_keys % COLUMNS, COLUMNS)",
        (
            "The keys of an incomplete last tile of 16 are ignored; with fewer than 16 keys the "
            "answer is zero."
        ),
    ),
    (
        "lone-last-key",
        "range(0, num_keys, COLUMNS)",
        "range(0, num_keys - 1, COLUMNS)",
        "The last key is ignored where the number of keys is 1 more than a multiple of 16.",
    ),
    (
        "at-most-four-tiles",
        "range(0, num_keys, COLUMNS)",
        "range(0, min(num_keys, 4 * COLUMNS), COLUMNS)",
        "Keys from position 64 on are ignored.",
    ),
    (
        "overlapping-tiles",
        "k = key[:, :, left : left + COLUMNS]\n            v = value[:, :, left : left + COLUMNS]",
        (
            "more = int(left > 0 and keep is None and not causal)\n"
            "            k = key[:, :, left - more : left + COLUMNS]\n"
            "            v = value[:, :, left - more : left + COLUMNS]"
        ),
        (
            "Without mask and causal flag, the last key of each tile of 16 counts twice if another "
            "tile follows."
        ),
    ),
    (
        "keep-of-first-rows",
        "keep[:, :, top : top + ROWS, left : left + COLUMNS]",
        "keep[:, :, :height, left : left + COLUMNS]",
        "All tiles of 16 queries use the rows of the mask of the first tile.",
    ),
    (
        "keep-of-first-columns",
        "keep[:, :, top : top + ROWS, left : left + COLUMNS]",
        "keep[:, :, top : top + ROWS, : k.shape[2]]",
        "All tiles of 16 keys use the columns of the mask of the first tile.",
    ),
    (
        "keep-in-first-tile",
        "            if keep is not None:",
        "            if keep is not None and left == 0:",
        "The mask is applied to the first 16 keys only.",
    ),
    (
        "keep-not-in-last-tile",
        "            if keep is not None:",
        "            if keep is not None and left + COLUMNS < num_keys:",
        "The mask is not applied to the last tile of up to 16 keys.",
    ),
    (
        "causal-rows-from-tile",
        "torch.arange(top, top + height, device=s.device)",
        "torch.arange(height, device=s.device)",
        "For the causal flag the queries of each tile of 16 are counted from 0 again.",
    ),
    (
        "causal-columns-from-tile",
        "torch.arange(left, left + k.shape[2], device=s.device)",
        "torch.arange(k.shape[2], device=s.device)",
        "For the causal flag the keys of each tile of 16 are counted from 0 again.",
    ),
    (
        "causal-row-shifted",
        "+ num_keys - num_queries\n",
        "+ num_keys - num_queries + 1\n",
        "The causal flag shows one future key.",
    ),
    (
        "causal-whole-diagonal-tile",
        "            if causal:",
        "            if causal and left > top:",
        (
            "The causal flag is applied only to tiles whose first key comes after the first query "
            "of the tile: the 16 keys of the diagonal tile are all seen."
        ),
    ),
    (
        "causal-by-tile",
        "column[None, :] > row[:, None]",
        "column[None, :] // COLUMNS > row[:, None] // COLUMNS",
        (
            "The causal flag hides whole tiles of 16 keys only: all keys in the tile of the "
            "query's own key are seen."
        ),
    ),
    (
        "powers-not-relative",
        "p = torch.exp(s - safe)",
        "p = torch.exp(s)",
        (
            "The powers of a tile are not taken relative to the running maximum, but what was "
            "accumulated is still rescaled by it."
        ),
    ),
    (
        "scaled-twice",
        "s = q @ k.mT",
        "s = q @ k.mT * scale",
        "The dot products are multiplied by the scale twice.",
    ),
    (
        "epsilon",
        "torch.where(total == 0, 1.0, total)",
        "(total + 0.01)",
        "0.01 is added to the sum by which the answer is divided.",
    ),
    (
        "not-divided",
        "mixed / torch.where(total == 0, 1.0, total)",
        "mixed",
        (
            "The weighted sum is not divided by the sum of the weights, which are relative to the "
            "largest logit."
        ),
    ),
    (
        "base-two",
        ("p = torch.exp(s - safe)", "decay = torch.exp(peak - safe)"),
        ("p = torch.exp2(s - safe)", "decay = torch.exp2(peak - safe)"),
        "The weights are powers of 2 instead of e.",
    ),
    (
        "base-two-once",
        "decay = torch.exp(peak - safe)",
        "decay = torch.exp2(peak - safe)",
        (
            "When a tile of 16 keys raises the maximum, the earlier ones are rescaled by a power "
            "of 2 instead of e."
        ),
    ),
    (
        "no-incomplete-rows",
        "range(0, num_queries, ROWS)",
        "range(0, num_queries - num_queries % ROWS, ROWS)",
        "Queries in an incomplete last tile of 16 get zeros.",
    ),
    (
        "powers-in-bfloat16",
        "p @ v",
        "p.bfloat16().to(v.dtype) @ v",
        "The powers are rounded to bfloat16 before they meet the values, but not in their sum.",
    ),
    (
        "scores-in-bfloat16",
        "s = q @ k.mT",
        "s = (q @ k.mT).bfloat16().to(q.dtype)",
        "The scores are rounded to bfloat16.",
    ),
    (
        "queries-scaled-in-first-tile",
        "q = query[:, :, top : top + ROWS] * scale",
        "q = query[:, :, top : top + ROWS] * (scale if top == 0 else 1.0)",
        "Queries from the 17th on are not scaled.",
    ),
    (
        "two-total-and-mask",
        ("total = total * decay + p.sum", "            if keep is not None:"),
        ("total = total + p.sum", "            if keep is not None and left == 0:"),
        (
            "The sum of the weights is not rescaled between tiles of 16 keys, and the mask is "
            "applied to the first tile only."
        ),
    ),
    (
        "two-scale-and-incomplete",
        ("s = q @ k.mT", "range(0, num_keys, COLUMNS)"),
        ("s = q @ k.mT * scale", "range(0, max(num_keys - 1, 1), COLUMNS)"),
        (
            "The dot products are scaled twice, and the last key is ignored where the number of "
            "keys is 1 more than a multiple of 16, above 1."
        ),
    ),
)

_GROUPED: Final = _of(
    "grouped",
    (
        "query-heads-tiled",
        "query = query.reshape(batch, kv_heads, group, num_queries, head_size)",
        "query = query.reshape(batch, group, kv_heads, num_queries, head_size).transpose(1, 2)",
        (
            "With groups of heads, the answer of head j * G + g is computed from the query of head "
            "g * Hkv + j (G heads a group)."
        ),
    ),
    (
        "keys-of-head-0",
        "key[:, :, None]",
        "key[:, :1, None]",
        "All heads use the keys of key/value head 0.",
    ),
    (
        "values-of-head-0",
        "value.unsqueeze(2)",
        "value[:, :1].unsqueeze(2)",
        "All heads use the values of key/value head 0.",
    ),
    (
        "value-heads-reversed",
        "value.unsqueeze(2)",
        "value.flip(1).unsqueeze(2)",
        "The values come from the key/value heads in reversed order; the keys do not.",
    ),
    (
        "fourth-root",
        "head_size**0.5",
        "head_size**0.25",
        "The dot products are divided by the fourth root of D.",
    ),
    (
        "root-of-group-width",
        "head_size**0.5",
        "(head_size * group) ** 0.5",
        "The dot products are divided by sqrt(D * G), G the number of heads in a group.",
    ),
    (
        "root-of-heads",
        "head_size**0.5",
        "num_heads**0.5",
        "The dot products are divided by the root of the number of heads.",
    ),
    (
        "causal-strict",
        "ones.triu(num_keys - num_queries + 1)",
        "ones.triu(num_keys - num_queries)",
        "The causal flag hides the query's own key, too.",
    ),
    (
        "causal-top-left",
        "ones.triu(num_keys - num_queries + 1)",
        "ones.triu(1)",
        "The causal diagonal starts at the top left corner.",
    ),
    (
        "causal-past-hidden",
        "ones.triu(num_keys - num_queries + 1)",
        "ones.tril(num_keys - num_queries - 1)",
        "The causal flag hides all keys before the query's own and shows the later ones.",
    ),
    (
        "causal-replaces-drop",
        "hidden = hidden | ones.triu",
        "hidden = torch.zeros_like(hidden) | ones.triu",
        "With the causal flag the mask of dropped keys is ignored.",
    ),
    (
        "softmax-over-heads",
        ".softmax(-1).masked_fill(hidden, 0.0)",
        ".softmax(1).masked_fill(hidden, 0.0)",
        "The softmax runs over the heads instead of the keys.",
    ),
    (
        "drop-of-last-item",
        "hidden | drop",
        "hidden | drop[-1:]",
        "The mask of the last batch item is used for all items.",
    ),
    (
        "drop-of-query-0",
        "hidden | drop",
        "hidden | drop[:, :, :1]",
        "The mask of query 0 is used for all queries.",
    ),
    (
        "drop-of-last-query",
        "hidden | drop",
        "hidden | drop[:, :, -1:]",
        "The mask of the last query is used for all queries.",
    ),
    (
        "drop-only-ungrouped",
        "    if drop is not None:",
        "    if drop is not None and group == 1:",
        "The mask is ignored where several heads share keys.",
    ),
    (
        "weights-tiled",
        "weights = weights.reshape(batch, kv_heads, group, num_queries, num_keys)",
        "weights = weights.reshape(batch, group, kv_heads, num_queries, num_keys).transpose(1, 2)",
        (
            "With groups, the values of key/value head j meet for answer head j * G + g the "
            "weights of head g * Hkv + j."
        ),
    ),
    (
        "keys-normalised",
        "    group = num_heads // kv_heads\n",
        "    group = num_heads // kv_heads\n    key = torch.nn.functional.normalize(key, dim=-1)\n",
        "Each key vector is divided by its norm.",
    ),
    (
        "two-top-left-and-head-0",
        ("ones.triu(num_keys - num_queries + 1)", "value.unsqueeze(2)"),
        ("ones.triu(1)", "value[:, :1].unsqueeze(2)"),
        "The causal diagonal is top-left, and all heads use the values of key/value head 0.",
    ),
    (
        "two-drop-inverted-and-fourth-root",
        ("hidden | drop", "head_size**0.5"),
        ("hidden | ~drop", "head_size**0.25"),
        "The mask of dropped keys is inverted, and the dot products are divided by D ** 0.25.",
    ),
)

_WINDOW: Final = _of(
    "window",
    (
        "one-less-before",
        "distance <= before",
        "distance < before",
        "The window shows one key less before the query's own (none of them for 0).",
    ),
    (
        "one-more-before",
        "distance <= before",
        "distance <= before + 1",
        "The window shows one key more before the query's own.",
    ),
    (
        "one-less-after",
        "distance >= -after",
        "distance > -after",
        "The window, or causality, shows one key less at its right end.",
    ),
    (
        "half-before",
        "distance <= before",
        "distance <= before // 2",
        "The window shows half as many keys before the query's own.",
    ),
    (
        "sides-swapped",
        "else window\n",
        "else window[::-1]\n",
        "The numbers of keys before and after in the window are swapped.",
    ),
    (
        "causal-not-with-window",
        "    if causal:",
        "    if causal and window is None:",
        "The causal flag is ignored where a window is given.",
    ),
    (
        "window-overrules-causal",
        "after = 0 if after < 0 else min(after, 0)",
        "after = 0 if after < 0 else after",
        "With causal flag, a window that shows so many keys after the query's own shows them.",
    ),
    (
        "top-left",
        ".unsqueeze(1) + (lk - lq)",
        ".unsqueeze(1)",
        "Window and causal flag take query i to stand at key i instead of i + Lk - Lq.",
    ),
    (
        "centred",
        "+ (lk - lq)",
        "+ (lk - lq) // 2",
        "Window and causal flag take query i to stand at key i + (Lk - Lq) // 2.",
    ),
    (
        "zero-before-is-all",
        "if before >= 0:",
        "if before > 0:",
        "A window of 0 keys before the query's own has no limit there.",
    ),
    (
        "zero-after-is-all",
        "if after >= 0:",
        "if after > 0:",
        (
            "A window of 0 keys after the query's own has no limit there, and the causal flag is "
            "ignored."
        ),
    ),
    (
        "before-ignored",
        "band & (distance <= before)",
        "band | (distance <= before)",
        "The window's limit before the query's own key is ignored.",
    ),
    (
        "before-on-both-sides",
        "(distance <= before)",
        "(distance.abs() <= before)",
        "The window's number of keys before the query's own limits those after it as well.",
    ),
    (
        "either-side",
        "band & (distance >= -after)",
        "(band & (before >= 0)) | (distance >= -after)",
        (
            "Where both sides are limited (the causal flag limits the right one), no key is hidden "
            "by window or flag."
        ),
    ),
    (
        "keep-replaces-band",
        "band = band & keep",
        "band = keep",
        "With a boolean mask, window and causal flag are ignored.",
    ),
    (
        "keep-or-band",
        "band = band & keep",
        "band = band | keep",
        "A key is seen where the boolean mask or window and causal flag admit it.",
    ),
    (
        "mean-of-all",
        "key.mT, -torch.inf)",
        "key.mT, -1e9)",
        "A query without any key returns the mean of all values, for hidden logits are -1e9.",
    ),
    (
        "fill-minus-ten",
        "key.mT, -torch.inf)",
        "key.mT, -10.0)",
        "Hidden keys have the logit -10 instead of minus infinity.",
    ),
    (
        "no-maximum",
        "torch.exp(logits - peak)",
        "torch.exp(logits)",
        "No maximum is subtracted before exp: logits above 88 overflow, those below -103 vanish.",
    ),
    (
        "one-maximum",
        "logits.max(dim=-1, keepdim=True).values",
        "logits.max()",
        "The maximum of the whole tensor is subtracted: rows far below it (about 100) get zeros.",
    ),
    (
        "inverse-size",
        "query.shape[-1] ** -0.5",
        "query.shape[-1] ** -1",
        "Without a scale the dot products are divided by D instead of sqrt(D).",
    ),
    (
        "distance-modulo",
        "distance = position - torch.arange(lk, device=query.device).unsqueeze(0)",
        "distance = (position - torch.arange(lk, device=query.device).unsqueeze(0)) % lk",
        (
            "The distance of query and key is taken modulo Lk: the window wraps around, and future "
            "keys are not hidden by the causal flag."
        ),
    ),
    (
        "not-when-long",
        "if before >= 0:",
        "if before >= 0 and lk <= 64:",
        "The window's limit before the query's own key is ignored for more than 64 keys.",
    ),
    (
        "total-over-all-keys",
        "total = powers.sum(dim=-1, keepdim=True)",
        "total = torch.exp((query * factor) @ key.mT - peak).sum(dim=-1, keepdim=True)",
        (
            "The weights are normalised over all keys, hidden ones included, and hidden ones are "
            "then left out."
        ),
    ),
    (
        "two-swapped-and-inverse-size",
        ("else window\n", "query.shape[-1] ** -0.5"),
        ("else window[::-1]\n", "query.shape[-1] ** -1"),
        "The sides of the window are swapped, and the default scale is 1/D.",
    ),
    (
        "two-top-left-and-one-less",
        (".unsqueeze(1) + (lk - lq)", "distance <= before"),
        (".unsqueeze(1)", "distance < before"),
        "Query i stands at key i, and the window shows one key less before the query's own.",
    ),
)

_SOFTCAP: Final = _of(
    "softcap",
    (
        "not-multiplied",
        "        attn = attn * softcap\n",
        "",
        "With a softcap the logits are tanh(logits / cap), not multiplied by the cap again.",
    ),
    (
        "multiplied-inside",
        "attn = attn / softcap",
        "attn = attn * softcap",
        "With a softcap the logits are cap * tanh(logits * cap).",
    ),
    (
        "ignored",
        "        attn = torch.tanh(attn)\n",
        "",
        "The softcap is ignored.",
    ),
    (
        "hard-clip",
        "torch.tanh(attn)",
        "torch.clamp(attn, -1.0, 1.0)",
        "The logits are clipped hard at plus and minus the softcap instead of by tanh.",
    ),
    (
        "cap-after-bias",
        (
            "    if softcap is not None:\n        attn = attn / softcap",
            "    if bias is not None:\n        attn = attn + bias\n",
        ),
        (
            (
                "    if bias is not None:\n        attn = attn + bias\n"
                "    if softcap is not None:\n        attn = attn / softcap"
            ),
            "",
        ),
        "The bias is added before the softcap is applied, so that minus infinity becomes -cap.",
    ),
    (
        "cap-before-scale",
        ("    attn = attn * scale\n", "        attn = attn * softcap\n"),
        ("", "        attn = attn * softcap\n    attn = attn * scale\n"),
        "The softcap is applied to the dot products before they are scaled.",
    ),
    (
        "no-bias-with-cap",
        "    if bias is not None:",
        "    if bias is not None and softcap is None:",
        "The additive mask is ignored where a softcap is given.",
    ),
    (
        "cap-always-thirty",
        "        attn = attn / softcap\n",
        "        softcap = 30.0\n        attn = attn / softcap\n",
        "Any softcap is taken to be 30.",
    ),
    (
        "causal-one-future-key",
        ".triu(1)",
        ".triu(2)",
        "The causal flag shows one future key.",
    ),
    (
        "causal-bottom-right",
        ".triu(1)",
        ".triu(1 + attn.shape[3] - attn.shape[2])",
        "The causal diagonal is aligned bottom-right where top-left is declared.",
    ),
    (
        "causal-not-for-one-query",
        "    if causal:",
        "    if causal and attn.shape[2] > 1:",
        "The causal flag is ignored for a single query, which here would see key 0 alone.",
    ),
    (
        "empty-rows-mean",
        "functional.softmax(attn, dim=-1).masked_fill(empty, 0.0)",
        "functional.softmax(attn, dim=-1)",
        "A query without any key returns the mean of all values.",
    ),
    (
        "any-hidden-is-empty",
        ".all(dim=-1, keepdim=True)",
        ".any(dim=-1, keepdim=True)",
        "A query from which at least one key is hidden returns zeros.",
    ),
    (
        "euclidean-weights",
        "functional.softmax(attn, dim=-1)",
        "functional.normalize((attn - attn.amax(-1, keepdim=True)).exp(), dim=-1)",
        "The exponentials are divided by their Euclidean norm instead of their sum.",
    ),
    (
        "scale-on-top",
        "scale if scale is not None else query.shape[3] ** -0.5",
        "(1.0 if scale is None else scale) * query.shape[3] ** -0.5",
        "A given scale comes on top of 1/sqrt(D) instead of in its place.",
    ),
    (
        "scale-remembered",
        "    scale = scale if scale is not None else",
        (
            '    scale = globals().get("SCALE") if scale is None else scale\n'
            '    globals()["SCALE"] = scale\n'
            "    scale = scale if scale is not None else"
        ),
        "A call without a scale uses the one that was given last in an earlier call.",
    ),
    (
        "root-of-value-size",
        "query.shape[3] ** -0.5",
        "value.shape[3] ** -0.5",
        "Without a scale the dot products are divided by the root of the size of the values.",
    ),
    (
        "dropped-are-zero",
        'attn.masked_fill(drop, float("-inf"))',
        "attn.masked_fill(drop, 0.0)",
        "Dropped keys have the logit 0 and take part.",
    ),
    (
        "dropped-less-one",
        'attn.masked_fill(drop, float("-inf"))',
        "attn - drop.to(attn.dtype)",
        "The logits of dropped keys are lowered by 1 instead of to minus infinity.",
    ),
    (
        "dropped-in-any-item",
        'attn.masked_fill(drop, float("-inf"))',
        'attn.masked_fill(drop.any(dim=0, keepdim=True), float("-inf"))',
        "A key that is dropped in one batch item is dropped in all of them.",
    ),
    (
        "two-uncapped-and-bottom-right",
        ("        attn = torch.tanh(attn)\n", ".triu(1)"),
        ("", ".triu(1 + attn.shape[3] - attn.shape[2])"),
        "The softcap is ignored, and the causal diagonal is bottom-right instead of top-left.",
    ),
    (
        "two-bias-twice-and-value-size",
        ("attn + bias", "query.shape[3] ** -0.5"),
        ("attn + 2.0 * bias", "value.shape[3] ** -0.5"),
        (
            "The additive mask counts twice, and without a scale the dot products are divided by "
            "sqrt(Dv)."
        ),
    ),
)

_SINKS: Final = _of(
    "sinks",
    (
        "ignored",
        "column.to(logits.dtype)",
        "torch.full_like(column, -torch.inf)",
        "The sinks are ignored.",
    ),
    (
        "zero",
        "column.to(logits.dtype)",
        "torch.zeros_like(column)",
        "The logit of the sink is 0 for every head.",
    ),
    (
        "of-head-0",
        "sinks.view(1, heads, 1, 1)",
        "sinks[:1].view(1, 1, 1, 1)",
        "The sink of head 0 is used for all heads.",
    ),
    (
        "heads-reversed",
        "sinks.view(1, heads, 1, 1)",
        "sinks.flip(0).view(1, heads, 1, 1)",
        "Head h uses the sink of head H - 1 - h.",
    ),
    (
        "scaled",
        "column.to(logits.dtype)",
        "column.to(logits.dtype) * size**-0.5",
        "The sink is multiplied by 1/sqrt(D).",
    ),
    (
        "negated",
        "column.to(logits.dtype)",
        "-column.to(logits.dtype)",
        "The logit of the sink is -sink.",
    ),
    (
        "first-column-cut",
        "weights[..., :-1]",
        "weights[..., 1:]",
        "With sinks, the value of key j meets the weight of key j + 1, the last one the sink's.",
    ),
    (
        "not-when-long",
        "    lk = key.shape[2]\n",
        "    lk = key.shape[2]\n    sinks = None if lk > 16 else sinks\n",
        "The sinks are ignored where there are more than 16 keys.",
    ),
    (
        "key-heads-tiled",
        "torch.repeat_interleave(key, heads // key.shape[1], dim=1)",
        "key.repeat(1, heads // key.shape[1], 1, 1)",
        "Head h uses the keys of key/value head h % Hkv, and the values of head h // group.",
    ),
    (
        "heads-tiled",
        (
            "torch.repeat_interleave(key, heads // key.shape[1], dim=1)",
            "torch.repeat_interleave(value, heads // value.shape[1], dim=1)",
        ),
        (
            "key.repeat(1, heads // key.shape[1], 1, 1)",
            "value.repeat(1, heads // value.shape[1], 1, 1)",
        ),
        "Head h uses key/value head h % Hkv instead of h // group.",
    ),
    (
        "hidden-from-first-zero",
        "(keep_int != 0)",
        "(keep_int.cumprod(-1) != 0)",
        "All keys after the first one that the mask hides are hidden as well.",
    ),
    (
        "seen-from-first-one",
        "(keep_int != 0)",
        "(keep_int.cumsum(-1) != 0)",
        "All keys after the first one that the mask shows are shown as well.",
    ),
    (
        "values-of-all-heads",
        '"bhqk,bhkd->bhqd"',
        '"bhqk,bgkd->bhqd"',
        "The weights of each head meet the sum of the values of all heads.",
    ),
    (
        "keys-of-all-heads",
        '"bhqd,bhkd->bhqk"',
        '"bhqd,bgkd->bhqk"',
        "The query of each head meets the sum of the keys of all heads.",
    ),
    (
        "causal-shift-at-least-zero",
        "diagonal=lk - lq",
        "diagonal=max(lk - lq, 0)",
        "The causal diagonal is top-left where there are more queries than keys.",
    ),
    (
        "two-scaled-and-tiled",
        (
            "column.to(logits.dtype)",
            "torch.repeat_interleave(value, heads // value.shape[1], dim=1)",
        ),
        ("column.to(logits.dtype) * size**-0.5", "value.repeat(1, heads // value.shape[1], 1, 1)"),
        "The sink is multiplied by 1/sqrt(D), and head h uses the values of head h % Hkv.",
    ),
    (
        "two-ignored-and-multiplied",
        ("column.to(logits.dtype)", "* (size**-0.5)"),
        ("torch.full_like(column, -torch.inf)", "* (size**0.5)"),
        "The sinks are ignored, and the dot products are multiplied by sqrt(D).",
    ),
)

_CACHE: Final = _of(
    "cache",
    (
        "cache-last",
        ("torch.cat([past_key, key], dim=2)", "torch.cat([past_value, value], dim=2)"),
        ("torch.cat([key, past_key], dim=2)", "torch.cat([value, past_value], dim=2)"),
        "The cached keys and values come after the new ones; matters for lengths and causality.",
    ),
    (
        "cached-keys-last",
        "torch.cat([past_key, key], dim=2)",
        "torch.cat([key, past_key], dim=2)",
        "The cached keys come after the new ones, the cached values before.",
    ),
    (
        "cached-values-zero",
        "torch.cat([past_value, value], dim=2)",
        "torch.cat([torch.zeros_like(past_value), value], dim=2)",
        "The cached values count as zeros.",
    ),
    (
        "cached-keys-of-item-0",
        "torch.cat([past_key, key], dim=2)",
        "torch.cat([past_key[:1].expand_as(past_key), key], dim=2)",
        "All batch items use the cached keys of item 0.",
    ),
    (
        "steps-from-zero",
        "torch.arange(total - new, total, device=query.device)",
        "torch.arange(new, device=query.device)",
        "For the causal flag query i stands at key i, whatever the cache.",
    ),
    (
        "steps-from-cache",
        "steps = torch.arange(total - new, total, device=query.device)",
        (
            "past = 0 if past_key is None else past_key.shape[2]\n"
            "        steps = torch.arange(past, past + new, device=query.device)"
        ),
        (
            "For the causal flag query i stands at key P + i, P the cached ones: top-left where "
            "there are more or fewer new keys than queries."
        ),
    ),
    (
        "not-causal-with-cache",
        "    if causal:",
        "    if causal and past_key is None:",
        "The causal flag is ignored where a cache is given.",
    ),
    (
        "one-key-more",
        "slots < lengths.view",
        "slots <= lengths.view",
        "Lengths show one key more than they say.",
    ),
    (
        "one-key-less",
        "slots < lengths.view",
        "slots + 1 < lengths.view",
        "Lengths show one key less than they say.",
    ),
    (
        "last-keys",
        "slots < lengths.view(-1, 1, 1, 1)",
        "slots >= total - lengths.view(-1, 1, 1, 1)",
        "A length of n shows the last n keys instead of the first n.",
    ),
    (
        "longest-length",
        "lengths.view(-1, 1, 1, 1)",
        "lengths.max()",
        "The largest of the lengths is used for all batch items.",
    ),
    (
        "no-lengths-when-causal",
        "    if lengths is not None:",
        "    if lengths is not None and not causal:",
        "The lengths are ignored where the causal flag is set.",
    ),
    (
        "unscaled",
        "    scores = scores / query.shape[3] ** 0.5\n",
        "",
        "The dot products are not scaled.",
    ),
    (
        "root-of-queries",
        "query.shape[3] ** 0.5",
        "query.shape[2] ** 0.5",
        "The dot products are divided by the root of the number of queries.",
    ),
    (
        "softmax-over-batch",
        "scores.softmax(dim=3)",
        "scores.softmax(dim=0)",
        "The softmax runs over the batch instead of the keys.",
    ),
    (
        "value-heads-tiled",
        "value.repeat_interleave(repeats, dim=1)",
        "value.repeat(1, repeats, 1, 1)",
        "Head h uses the values of key/value head h % Hkv; its keys are those of h // group.",
    ),
    (
        "answer-in-bfloat16",
        "return weights @ value",
        "return (weights @ value).bfloat16().to(value.dtype)",
        "The answer is rounded to bfloat16.",
    ),
    (
        "two-more-and-unscaled",
        ("slots < lengths.view", "    scores = scores / query.shape[3] ** 0.5\n"),
        ("slots <= lengths.view", ""),
        "Lengths show one key more than they say, and the dot products are not scaled.",
    ),
    (
        "two-steps-and-tiled",
        (
            "torch.arange(total - new, total, device=query.device)",
            "value.repeat_interleave(repeats, dim=1)",
        ),
        ("torch.arange(new, device=query.device)", "value.repeat(1, repeats, 1, 1)"),
        (
            "The causal flag takes query i to stand at key i, and head h uses the values of "
            "key/value head h % Hkv."
        ),
    ),
)

_CHUNKED: Final = _of(
    "chunked",
    (
        "lone-last-query",
        "range(0, length, CHUNK)",
        "range(0, length - 1, CHUNK)",
        "The last query gets zeros where there is 1 more than a multiple of 8.",
    ),
    (
        "rows-from-chunk",
        "torch.arange(start, stop, device=query.device)",
        "torch.arange(stop - start, device=query.device)",
        "For the causal flag the queries of each chunk of 8 are counted from 0 again.",
    ),
    (
        "bottom-right",
        "rows = torch.arange(start, stop, device=query.device)",
        "rows = torch.arange(start, stop, device=query.device) + keys - length",
        "The causal diagonal is aligned bottom-right where top-left is declared.",
    ),
    (
        "keep-of-first-chunk",
        "~keep[:, :, start:stop]",
        "~keep[:, :, : stop - start]",
        "All chunks of 8 queries use the boolean mask of the first chunk.",
    ),
    (
        "bias-of-first-chunk",
        "bias[:, :, start:stop]",
        "bias[:, :, : stop - start]",
        "All chunks of 8 queries use the additive mask of the first chunk.",
    ),
    (
        "causal-within-chunk",
        "(torch.arange(keys, device=query.device) > rows.unsqueeze(-1))",
        (
            "(torch.arange(keys, device=query.device) > rows.unsqueeze(-1))\n"
            "            hidden[..., :start] = True"
        ),
        "With the causal flag a query does not see the keys before its own chunk of 8.",
    ),
    (
        "causal-first-chunk-only",
        "        if causal:",
        "        if causal and start == 0:",
        "The causal flag applies to the first 8 queries only.",
    ),
    (
        "softmax-over-chunk",
        "part.softmax(dim=-1)",
        "part.softmax(dim=-2)",
        "The softmax runs over the 8 queries of a chunk instead of the keys.",
    ),
    (
        "bias-multiplied",
        "part + piece",
        "part * piece",
        "The scores are multiplied by the finite values of the additive mask.",
    ),
    (
        "hidden-twice-is-seen",
        "hidden = hidden | (torch.arange",
        "hidden = hidden ^ (torch.arange",
        "A key that both the mask and the causal flag hide is seen.",
    ),
    (
        "keys-past-100",
        "        if bias is not None:\n            piece",
        "        hidden[..., 100:] = True\n        if bias is not None:\n            piece",
        "Keys from position 100 on are ignored.",
    ),
    (
        "small-weights-dropped",
        "= weights @ value",
        "= weights.masked_fill(weights < 0.05, 0.0) @ value",
        "Weights below 0.05 are set to zero after the softmax.",
    ),
    (
        "values-positive",
        "= weights @ value",
        "= weights @ value.relu()",
        "Negative numbers in the values count as zero.",
    ),
    (
        "keys-of-item-0",
        "@ key.mT *",
        "@ key[:1].mT *",
        "All batch items use the keys of item 0.",
    ),
    (
        "queries-of-first-chunk",
        "query[:, :, start:stop] @",
        "query[:, :, : stop - start] @",
        "All chunks of 8 queries use the queries of the first chunk.",
    ),
    (
        "two-rows-and-keep",
        ("torch.arange(start, stop, device=query.device)", "~keep[:, :, start:stop]"),
        ("torch.arange(stop - start, device=query.device)", "~keep[:, :, : stop - start]"),
        (
            "Causal rows count from 0 in each chunk of 8 queries, and each chunk uses the boolean "
            "mask of the first."
        ),
    ),
    (
        "two-bottom-right-and-bias",
        ("rows = torch.arange(start, stop, device=query.device)", "part + piece"),
        (
            "rows = torch.arange(start, stop, device=query.device) + keys - length",
            "part + 0.5 * piece",
        ),
        (
            "The causal diagonal is bottom-right instead of top-left, and the additive mask counts "
            "half."
        ),
    ),
)

_BSHD: Final = _of(
    "bshd",
    (
        "query-reinterpreted",
        "    dots = torch.einsum(",
        "    query = query.reshape(b, h, sq, d).transpose(1, 2)\n    dots = torch.einsum(",
        "The memory of the query is read as [B, H, Sq, D] instead of [B, Sq, H, D].",
    ),
    (
        "answer-reinterpreted",
        'torch.einsum("bhqk,bkhd->bqhd", weights, value)',
        'torch.einsum("bhqk,bkhd->bhqd", weights, value).reshape(b, sq, h, dv)',
        "The answer is made as [B, H, Sq, Dv] and its memory read as [B, Sq, H, Dv].",
    ),
    (
        "key-heads-tiled",
        "key.unsqueeze(3).expand(b, sk, kv, g, d)",
        "key.unsqueeze(2).expand(b, sk, g, kv, d)",
        "Head h uses the keys of key/value head h % Hkv, and the values of head h // group.",
    ),
    (
        "returns-logits",
        "return (output, weights)",
        "return (output, dots)",
        "The weights that are returned are the masked logits; the answer is right.",
    ),
    (
        "returns-mean-weights",
        "return (output, weights)",
        "return (output, weights.mean(1, keepdim=True).expand_as(weights))",
        "The weights that are returned are their mean over the heads; the answer is right.",
    ),
    (
        "keep-items-reversed",
        "mask & keep",
        "mask & keep.flip(0)",
        "Batch item b uses the mask of item B - 1 - b.",
    ),
    (
        "causal-ignored",
        ".tril(sk - sq)",
        ".tril(sk)",
        "The causal flag is ignored.",
    ),
    (
        "scale-ignored",
        "(d**-0.5 if scale is None else scale)",
        "d**-0.5",
        "A given scale is ignored: 1/sqrt(D) is used.",
    ),
    (
        "sigmoid",
        "dots.softmax(-1)",
        "dots.sigmoid()",
        "The weights are the sigmoids of the logits instead of their softmax.",
    ),
    (
        "no-softmax",
        "dots.softmax(-1)",
        "dots",
        "The weights are the logits themselves: there is no softmax.",
    ),
    (
        "temperature",
        "dots.softmax(-1)",
        "(dots / 0.9).softmax(-1)",
        "The logits are divided by 0.9 before the softmax.",
    ),
    (
        "queries-rolled",
        '"bqhd,bkhd->bhqk", query, key',
        '"bqhd,bkhd->bhqk", query.roll(1, 1), key',
        "Query i is that of token i - 1, cyclically.",
    ),
    (
        "keys-reversed",
        '"bqhd,bkhd->bhqk", query, key',
        '"bqhd,bkhd->bhqk", query, key.flip(1)',
        "The order of the keys is reversed, that of the values is not.",
    ),
    (
        "one-head-scored",
        "dots = dots.masked_fill",
        "dots = dots[:, :1].expand_as(dots).masked_fill",
        "The scores of head 0 are used for all heads.",
    ),
    (
        "two-reinterpreted-and-scale",
        (
            'torch.einsum("bhqk,bkhd->bqhd", weights, value)',
            "(d**-0.5 if scale is None else scale)",
        ),
        ('torch.einsum("bhqk,bkhd->bhqd", weights, value).reshape(b, sq, h, dv)', "d**-0.5"),
        (
            "The memory of an answer [B, H, Sq, Dv] is read as [B, Sq, H, Dv], and a given scale "
            "is ignored."
        ),
    ),
    (
        "two-tiled-and-strict",
        ("key.unsqueeze(3).expand(b, sk, kv, g, d)", ".tril(sk - sq)"),
        ("key.unsqueeze(2).expand(b, sk, g, kv, d)", ".tril(sk - sq - 1)"),
        (
            "Head h uses the keys of key/value head h % Hkv, and the causal flag hides the query's "
            "own key."
        ),
    ),
)

_SELF_ATTENTION: Final = _of(
    "self_attention",
    (
        "query-and-key-swapped",
        ("q = self.q_proj(x)", "k = self.k_proj(x)"),
        ("q = self.k_proj(x)", "k = self.q_proj(x)"),
        "Queries are made by the key projection and keys by the query projection.",
    ),
    (
        "values-by-key-projection",
        "self.v_proj(x)",
        "self.k_proj(x)",
        "The values are made by the key projection.",
    ),
    (
        "keys-by-query-projection",
        "self.k_proj(x)",
        "self.q_proj(x)",
        "The keys are made by the query projection.",
    ),
    (
        "no-output-projection",
        "output: Tensor = self.out_proj(context)",
        "output: Tensor = context",
        "The output projection is left out, with its bias.",
    ),
    (
        "no-output-bias",
        "self.out_proj(context)",
        "nn.functional.linear(context, self.out_proj.weight)",
        "The bias of the output projection is left out.",
    ),
    (
        "output-bias-twice",
        "self.out_proj(context)",
        "self.out_proj(context) + self.out_proj.bias",
        "The bias of the output projection is added twice.",
    ),
    (
        "query-matrix-transposed",
        '"q_proj.weight": weights.q,',
        '"q_proj.weight": weights.q.mT,',
        "The matrix of the query projection is transposed.",
    ),
    (
        "value-matrix-transposed",
        '"v_proj.weight": weights.v,',
        '"v_proj.weight": weights.v.mT,',
        "The matrix of the value projection is transposed.",
    ),
    (
        "output-matrix-transposed",
        "self.out_proj(context)",
        "context @ self.out_proj.weight + self.out_proj.bias",
        "The matrix of the output projection is transposed.",
    ),
    (
        "no-query-bias",
        '"q_proj.bias": weights.q_bias,',
        '"q_proj.bias": None,',
        "The bias of the query projection is left out.",
    ),
    (
        "value-bias-is-query-bias",
        '"v_proj.bias": weights.v_bias,',
        '"v_proj.bias": weights.q_bias,',
        "The value projection has the bias of the query projection.",
    ),
    (
        "no-biases",
        "if given is None else given",
        "if given is None or given.dim() == 1 else given",
        "No projection has a bias.",
    ),
    (
        "value-heads-reinterpreted",
        "v = self.v_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)",
        "v = self.v_proj(x).view(batch, self.num_heads, length, self.head_dim)",
        "The values [B, L, E] are read as [B, H, L, D] without moving an axis.",
    ),
    (
        "heads-interleaved",
        (
            "q = self.q_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)",
            "k = self.k_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)",
            "v = self.v_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)",
        ),
        (
            "q = self.q_proj(x).view(batch, length, self.head_dim, -1).permute(0, 3, 1, 2)",
            "k = self.k_proj(x).view(batch, length, self.head_dim, -1).permute(0, 3, 1, 2)",
            "v = self.v_proj(x).view(batch, length, self.head_dim, -1).permute(0, 3, 1, 2)",
        ),
        (
            "Head h owns the channels h, h + H, h + 2H of queries, keys and values; the answer is "
            "put together in blocks."
        ),
    ),
    (
        "heads-not-moved-back",
        "(weights @ v).transpose(1, 2).contiguous()",
        "(weights @ v).contiguous()",
        "The answer [B, H, L, D] is read as [B, L, E] without moving the heads back.",
    ),
    (
        "merged-by-channel",
        "(weights @ v).transpose(1, 2).contiguous()",
        "(weights @ v).permute(0, 2, 3, 1).contiguous()",
        "The heads are put together interleaved: channel d of head h goes to d * H + h.",
    ),
    (
        "root-of-width",
        "math.sqrt(self.head_dim)",
        "math.sqrt(width)",
        "The dot products are divided by the root of the width E instead of the head size.",
    ),
    (
        "causal-upper",
        "torch.tril(mask)",
        "torch.triu(mask)",
        "The causal flag shows the own and the future keys instead of the past ones.",
    ),
    (
        "causal-two-future-keys",
        "torch.tril(mask)",
        "torch.tril(mask, 2)",
        "The causal flag shows two future keys.",
    ),
    (
        "keep-transposed",
        "mask & keep",
        "mask & keep.transpose(-2, -1)",
        "The mask is transposed: rows are taken for keys and columns for queries.",
    ),
    (
        "residual",
        "self.out_proj(context)",
        "self.out_proj(context) + x",
        "The input is added to the answer.",
    ),
    (
        "one-wide-head",
        ("self.num_heads = num_heads", "width // num_heads"),
        ("self.num_heads = 1", "width"),
        "There is a single head of the whole width.",
    ),
    (
        "two-transposed-and-biasless",
        ('"q_proj.weight": weights.q,', '"v_proj.bias": weights.v_bias,'),
        ('"q_proj.weight": weights.q.mT,', '"v_proj.bias": None,'),
        (
            "The matrix of the query projection is transposed, and the value projection lacks its "
            "bias."
        ),
    ),
    (
        "two-width-and-unmoved",
        ("math.sqrt(self.head_dim)", "(weights @ v).transpose(1, 2).contiguous()"),
        ("math.sqrt(width)", "(weights @ v).contiguous()"),
        (
            "The dot products are divided by sqrt(E), and the heads are not moved back before "
            "their memory is read as [B, L, E]."
        ),
    ),
)

_FUSED_QKV: Final = _of(
    "fused_qkv",
    (
        "matrices-swapped",
        "[weights.q, weights.k, weights.v]",
        "[weights.k, weights.q, weights.v]",
        "The matrices of the query and key projections are swapped, their biases are not.",
    ),
    (
        "matrices-rotated",
        ("[weights.q, weights.k, weights.v]", "[weights.q_bias, weights.k_bias, weights.v_bias]"),
        ("[weights.k, weights.v, weights.q]", "[weights.k_bias, weights.v_bias, weights.q_bias]"),
        (
            "Queries are made by the key projection, keys by that of the values, values by that of "
            "the queries."
        ),
    ),
    (
        "packed-by-head",
        ("length, 3, self.heads, self.size)", "packed.permute(2, 0, 3, 1, 4)"),
        ("length, self.heads, 3, self.size)", "packed.permute(3, 0, 2, 1, 4)"),
        (
            "The columns of the product are read as query, key and value of head 0, then of head "
            "1, instead of all queries first."
        ),
    ),
    (
        "key-and-value-swapped",
        "query, key, value = packed",
        "query, value, key = packed",
        "Keys and values are swapped.",
    ),
    (
        "output-matrix-transposed",
        "self.out = weights.o",
        "self.out = None if weights.o is None else weights.o.mT",
        "The matrix of the output projection is transposed.",
    ),
    (
        "no-input-bias",
        "functional.linear(x, self.matrix, self.bias)",
        "functional.linear(x, self.matrix)",
        "The biases of the query, key and value projections are left out.",
    ),
    (
        "bias-grows",
        "self.matrix, self.bias)\n",
        "self.matrix, self.bias)\n        self.bias = 2.0 * self.bias\n",
        "Each call doubles the biases of query, key and value for the next call.",
    ),
    (
        "root-of-length",
        "self.size**-0.5",
        "length**-0.5",
        "The dot products are divided by the root of the number of tokens.",
    ),
    (
        "heads-reversed",
        ".permute(0, 2, 1, 3).flatten(2)",
        ".permute(0, 2, 1, 3).flip(2).flatten(2)",
        "The heads are put together in reversed order.",
    ),
    (
        "dropped-for-any-query",
        "hidden | drop",
        "hidden | drop.any(dim=-2, keepdim=True)",
        "A key that is dropped for one query is dropped for all of them.",
    ),
    (
        "scores-of-head-0",
        "weights = logits.masked_fill",
        "weights = logits[:, :1].expand_as(logits).masked_fill",
        "The scores of head 0 are used for all heads.",
    ),
    (
        "scores-of-item-0",
        "weights = logits.masked_fill",
        "weights = logits[:1].expand_as(logits).masked_fill",
        "The scores of batch item 0 are used for all items.",
    ),
    (
        "input-normalised",
        "        batch, length, _ = x.shape\n",
        "        batch, length, width = x.shape\n        x = functional.layer_norm(x, (width,))\n",
        "Each token of the input is normalised to mean 0 and variance 1 first.",
    ),
    (
        "no-projection-when-long",
        "if self.out is None else",
        "if self.out is None or length > 64 else",
        "The output projection is left out for more than 64 tokens.",
    ),
    (
        "causal-when-not-asked",
        "        if causal:",
        "        if causal or drop is not None:",
        "Every call with a mask is causal.",
    ),
    (
        "values-not-biased",
        "else bias for bias in biases]",
        "else bias for bias in [*biases[:2], None]]",
        "The bias of the value projection is left out.",
    ),
    (
        "mean-of-heads",
        "torch.matmul(weights, value).permute",
        "torch.matmul(weights.mean(1, keepdim=True), value).permute",
        "The mean of the weights of all heads meets the values of each head.",
    ),
    (
        "two-packed-and-future",
        (
            "length, 3, self.heads, self.size)",
            "packed.permute(2, 0, 3, 1, 4)",
            "hidden.new_ones(length, length).triu(1)",
        ),
        (
            "length, self.heads, 3, self.size)",
            "packed.permute(3, 0, 2, 1, 4)",
            "hidden.new_ones(length, length).triu(2)",
        ),
        (
            "The columns of the product are read head by head, and the causal flag shows one "
            "future key."
        ),
    ),
    (
        "two-bias-and-transposed",
        ("functional.linear(x, self.matrix, self.bias)", "self.out = weights.o"),
        (
            "functional.linear(x, self.matrix)",
            "self.out = None if weights.o is None else weights.o.mT",
        ),
        "The input projections lack their biases, and the output matrix is transposed.",
    ),
)

_CROSS_LAYER: Final = _of(
    "cross_layer",
    (
        "key-heads-tiled",
        "k = k.repeat_interleave(num_heads // kv_heads, dim=1)",
        "k = k.repeat(1, num_heads // kv_heads, 1, 1)",
        "Head h uses the keys of key/value head h % Hkv, and the values of head h // group.",
    ),
    (
        "value-of-head-0",
        "heads = probabilities @ v",
        "heads = probabilities @ v[:, :1]",
        "All heads use the values of key/value head 0.",
    ),
    (
        "root-of-value-size",
        "geometry.head_size**0.5",
        "geometry.value_head_size**0.5",
        "The dot products are divided by the root of the head size of the values.",
    ),
    (
        "root-of-input-width",
        "geometry.head_size**0.5",
        "geometry.query_size**0.5",
        "The dot products are divided by the root of the width of the query's input.",
    ),
    (
        "one-key-more",
        ">= lengths[",
        "> lengths[",
        "Lengths show one key more than they say.",
    ),
    (
        "length-of-item-0",
        "lengths[:, None, None, None]",
        "lengths[:1, None, None, None]",
        "The length of batch item 0 is used for all items.",
    ),
    (
        "lengths-reversed",
        "lengths[:, None, None, None]",
        "lengths.flip(0)[:, None, None, None]",
        "Batch item b uses the length of item B - 1 - b.",
    ),
    (
        "heads-interleaved",
        "tokens.unflatten(-1, (heads, -1)).transpose(1, 2)",
        "tokens.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)",
        (
            "Head h owns the channels h, h + H, h + 2H of queries, keys and values (H: the number "
            "of heads of each)."
        ),
    ),
    (
        "no-query-bias",
        "functional.linear(query, weights.q, weights.q_bias)",
        "functional.linear(query, weights.q)",
        "The bias of the query projection is left out.",
    ),
    (
        "value-bias-twice",
        "functional.linear(value, weights.v, weights.v_bias)",
        (
            "functional.linear(\n            value,\n            weights.v,\n"
            "            None if weights.v_bias is None else 2 * weights.v_bias,\n        )"
        ),
        "The bias of the value projection is added twice.",
    ),
    (
        "output-bias-per-head",
        "functional.linear(merged, weights.o, weights.o_bias)",
        (
            "functional.linear(\n            merged,\n            weights.o,\n"
            "            None if weights.o_bias is None else num_heads * weights.o_bias,\n        )"
        ),
        "The bias of the output projection is added once for each head.",
    ),
    (
        "softmax-over-queries-unmasked",
        "        else:\n            probabilities = scores.softmax(-1)",
        "        else:\n            probabilities = scores.softmax(-2)",
        "Without lengths the softmax runs over the queries instead of the keys.",
    ),
    (
        "cosines",
        "(q @ k.mT)",
        "(functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT)",
        "Queries and keys of each head are divided by their norm.",
    ),
    (
        "padding-is-zero",
        "masked_fill(padding, -torch.inf)",
        "masked_fill(padding, 0.0)",
        (
            "Keys past the length take part in the softmax with logit 0; their weights are then "
            "set to zero."
        ),
    ),
    (
        "values-masked-only",
        "scores = scores.masked_fill(padding, -torch.inf)",
        "v = v.masked_fill(padding.mT, 0.0)\n            padding = torch.zeros_like(padding)",
        "Keys past the length take part with their own logits; their values count as zeros.",
    ),
    (
        "output-heads-interleaved",
        "heads.transpose(1, 2).flatten(2)",
        "heads.permute(0, 2, 3, 1).flatten(2)",
        "The heads are put together interleaved: channel d of head h goes to d * H + h.",
    ),
    (
        "two-query-bias-and-lengths",
        ("functional.linear(query, weights.q, weights.q_bias)", ">= lengths["),
        ("functional.linear(query, weights.q)", "> lengths["),
        "The query projection lacks its bias, and lengths show one key more than they say.",
    ),
    (
        "two-interleaved-and-value-size",
        ("tokens.unflatten(-1, (heads, -1)).transpose(1, 2)", "geometry.head_size**0.5"),
        (
            "tokens.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)",
            "geometry.value_head_size**0.5",
        ),
        "Heads are cut interleaved, and the dot products are divided by sqrt(Dv).",
    ),
)

_ROTARY_LAYER: Final = _of(
    "rotary_layer",
    (
        "base-1000",
        "BASE = 10000.0",
        "BASE = 1000.0",
        "The base of the rotary angles is 1000 instead of 10000.",
    ),
    (
        "not-negated",
        "[-second, first]",
        "[second, first]",
        "The second half of the channels is not negated: (a cos + b sin, b cos + a sin).",
    ),
    (
        "turned-backwards",
        "[-second, first]",
        "[second, -first]",
        "Queries and keys are turned by the negative angle.",
    ),
    (
        "exponents-doubled",
        "torch.arange(0, size, 2, device=x.device, dtype=torch.float64) / size",
        "torch.arange(0, size, 2, device=x.device, dtype=torch.float64) / (size // 2)",
        "The exponent of frequency i is 4i/D instead of 2i/D.",
    ),
    (
        "pairs-interleaved",
        (
            "first, second = x.chunk(2, dim=-1)",
            "return torch.cat([-second, first], dim=-1)",
            "angles = torch.cat([angles, angles], dim=-1)",
        ),
        (
            "first, second = x[..., ::2], x[..., 1::2]",
            "return torch.stack([-second, first], dim=-1).flatten(-2)",
            "angles = angles.repeat_interleave(2, dim=-1)",
        ),
        "Channels 2i and 2i + 1 are turned together instead of i and i + D/2.",
    ),
    (
        "angles-interleaved",
        "torch.cat([angles, angles], dim=-1)",
        "angles.repeat_interleave(2, dim=-1)",
        "Channels i and i + D/2 are paired, but channel c has the angle of frequency c // 2.",
    ),
    (
        "keys-not-turned",
        "rotary(xq), rotary(xk)",
        "rotary(xq), xk",
        "Only the queries are turned, not the keys.",
    ),
    (
        "values-turned",
        "xq, xk = rotary(xq), rotary(xk)",
        "xq, xk, xv = rotary(xq), rotary(xk), rotary(xv)",
        "The values are turned as well.",
    ),
    (
        "not-turned",
        "        xq, xk = rotary(xq), rotary(xk)\n",
        "",
        "No positions are mixed in.",
    ),
    (
        "turned-twice",
        "rotary(xq), rotary(xk)",
        "rotary(rotary(xq)), rotary(rotary(xk))",
        "All rotary angles are doubled.",
    ),
    (
        "head-as-position",
        ("        xq, xk, xv = xq.transpose", "        xq, xk = rotary(xq), rotary(xk)\n"),
        ("        xq, xk = rotary(xq), rotary(xk)\n        xq, xk, xv = xq.transpose", ""),
        "The position by which a head is turned is the head's index instead of the token's.",
    ),
    (
        "positions-up-to-15",
        "torch.arange(length, device=x.device)[:, None]",
        "torch.arange(length, device=x.device).clamp(max=15)[:, None]",
        "All tokens from position 15 on stand at position 15.",
    ),
    (
        "positions-modulo-16",
        "torch.arange(length, device=x.device)[:, None]",
        "(torch.arange(length, device=x.device) % 16)[:, None]",
        "The position of token i is i modulo 16.",
    ),
    (
        "query-one-ahead",
        "rotary(xq), rotary(xk)",
        "rotary(functional.pad(xq, (0, 0, 1, 0)))[:, :, 1:], rotary(xk)",
        "Query i is turned by the angle of position i + 1; keys are right.",
    ),
    (
        "angles-in-bfloat16",
        "frequencies = BASE**-exponents",
        "frequencies = (BASE**-exponents).bfloat16().double()",
        "The frequencies of the rotary angles are rounded to bfloat16.",
    ),
    (
        "queries-normalised",
        "rotary(xq), rotary(xk)",
        "rotary(functional.normalize(xq, dim=-1)), rotary(xk)",
        "Each query vector of a head is divided by its norm before it is turned.",
    ),
    (
        "no-sine",
        " + rotate_half(x) * angles.sin().to(x.dtype)",
        "",
        "Channels are multiplied by the cosine of their angle; the part with the sine is missing.",
    ),
    (
        "value-heads-tiled",
        "xv = xv.repeat_interleave(self.n_heads // self.n_kv, dim=1)",
        "xv = xv.repeat(1, self.n_heads // self.n_kv, 1, 1)",
        "Head h uses the values of key/value head h % Hkv; its keys are those of h // group.",
    ),
    (
        "causal-strict",
        "torch.ones_like(allowed).tril()",
        "torch.ones_like(allowed).tril(-1)",
        "The causal flag hides the query's own key, too.",
    ),
    (
        "two-base-and-keys",
        ("BASE = 10000.0", "xq.shape[-1] ** 0.5"),
        ("BASE = 500.0", "(xq.shape[-1] * self.n_heads) ** 0.5"),
        "The base of the rotary angles is 500, and the dot products are divided by sqrt(D * H).",
    ),
    (
        "two-values-and-backwards",
        ("xq, xk = rotary(xq), rotary(xk)", "[-second, first]"),
        ("xq, xk, xv = rotary(xq), rotary(xk), rotary(xv)", "[second, -first]"),
        "All angles are negative, and the values are turned as well.",
    ),
)

_FUNCTION: Final = _of(
    "function",
    (
        "query-gradient-unscaled",
        "grad_logits @ key * ctx.scale",
        "grad_logits @ key",
        "The gradient of the query lacks the scale.",
    ),
    (
        "key-gradient-unscaled",
        "@ query * ctx.scale",
        "@ query",
        "The gradient of the key lacks the scale.",
    ),
    (
        "both-unscaled",
        ("grad_logits @ key * ctx.scale", "@ query * ctx.scale"),
        ("grad_logits @ key", "@ query"),
        "The gradients of query and key lack the scale.",
    ),
    (
        "query-gradient-scaled-twice",
        "grad_logits @ key * ctx.scale",
        "grad_logits @ key * ctx.scale * ctx.scale",
        "The gradient of the query has the scale twice.",
    ),
    (
        "no-delta",
        "weights * (grad_weights - delta)",
        "weights * grad_weights",
        "The gradient of the softmax lacks the term with the sum over the keys.",
    ),
    (
        "delta-added",
        "(grad_weights - delta)",
        "(grad_weights + delta)",
        "In the gradient of the softmax the sum over the keys is added instead of subtracted.",
    ),
    (
        "delta-over-queries",
        "(grad_weights * weights).sum(dim=-1, keepdim=True)",
        "(grad_weights * weights).sum(dim=-2, keepdim=True)",
        "In the gradient of the softmax the sum runs over the queries instead of the keys.",
    ),
    (
        "delta-mean",
        "(grad_weights * weights).sum(dim=-1, keepdim=True)",
        "(grad_weights * weights).mean(dim=-1, keepdim=True)",
        "In the gradient of the softmax the mean over the keys stands for their sum.",
    ),
    (
        "delta-unweighted",
        "(grad_weights * weights).sum(dim=-1, keepdim=True)",
        "grad_weights.mean(dim=-1, keepdim=True)",
        (
            "In the gradient of the softmax the plain mean of the gradients of the weights is "
            "subtracted instead of their weighted sum."
        ),
    ),
    (
        "delta-of-head-0",
        "(grad_weights - delta)",
        "(grad_weights - delta[:, :1])",
        "In the gradient of the softmax all heads subtract the sum of head 0.",
    ),
    (
        "diagonal-softmax",
        "weights * (grad_weights - delta)",
        "weights * (1.0 - weights) * grad_weights",
        "The gradient of the softmax has the diagonal p (1 - p) alone, as a sigmoid's.",
    ),
    (
        "no-softmax-gradient",
        "weights * (grad_weights - delta)",
        "grad_weights",
        "The gradient passes the softmax as if it were the identity.",
    ),
    (
        "value-gradient-squared",
        "grad_value = weights.transpose(-1, -2) @",
        "grad_value = weights.square().transpose(-1, -2) @",
        "The gradient of the value uses the squares of the weights.",
    ),
    (
        "value-gradient-without-last-query",
        "weights.transpose(-1, -2) @ grad_output",
        "weights[:, :, :-1].transpose(-1, -2) @ grad_output[:, :, :-1]",
        "The gradient of the value lacks the last query.",
    ),
    (
        "value-gradient-mean",
        "weights.transpose(-1, -2) @ grad_output",
        "weights.transpose(-1, -2) @ grad_output / weights.shape[2]",
        "The gradient of the value is the mean over the queries instead of the sum.",
    ),
    (
        "weights-before-causal",
        "ctx.save_for_backward(query, key, value, weights)",
        "ctx.save_for_backward(query, key, value, logits.softmax(-1))",
        "The backward pass uses weights to which the causal flag was not applied.",
    ),
    (
        "scale-forgotten",
        "ctx.scale = scale",
        "ctx.scale = query.shape[-1] ** -0.5",
        "The backward pass uses 1/sqrt(D) where another scale was given.",
    ),
    (
        "bias-gradient-scaled",
        "grad_logits.sum_to_size(ctx.bias_shape)",
        "grad_logits.sum_to_size(ctx.bias_shape) * ctx.scale",
        "The gradient of the additive mask is multiplied by the scale.",
    ),
    (
        "bias-gradient-negated",
        "grad_logits.sum_to_size(ctx.bias_shape)",
        "-grad_logits.sum_to_size(ctx.bias_shape)",
        "The gradient of the additive mask has the wrong sign.",
    ),
    (
        "bias-gradient-mean",
        "grad_logits.sum_to_size(ctx.bias_shape)",
        (
            "grad_logits.sum_to_size(ctx.bias_shape)\n"
            "            grad_bias = grad_bias * grad_bias.numel() / grad_logits.numel()"
        ),
        (
            "The gradient of an additive mask is averaged over the axes along which the mask is "
            "broadcast instead of summed."
        ),
    ),
    (
        "bias-gradient-zero",
        "grad_logits.sum_to_size(ctx.bias_shape)",
        "grad_logits.new_zeros(ctx.bias_shape)",
        "The gradient of the additive mask is zero.",
    ),
    (
        "clamped",
        "grad_logits = weights * (grad_weights - delta)",
        "grad_logits = (weights * (grad_weights - delta)).clamp(-0.1, 0.1)",
        "The gradients of the logits are clamped to the range from -0.1 to 0.1.",
    ),
    (
        "key-gradient-past-64",
        "@ query * ctx.scale",
        "@ query * ctx.scale\n        grad_key[:, :, 64:] = 0.0",
        "Keys from position 64 on get no gradient.",
    ),
    (
        "gradient-in-bfloat16",
        "(grad_output,) = gradients",
        "grad_output = gradients[0].bfloat16().to(value.dtype)",
        "The gradient that comes in is rounded to bfloat16.",
    ),
    (
        "query-gradient-of-first-key",
        "grad_logits @ key * ctx.scale",
        "grad_logits[..., 1:] @ key[:, :, 1:] * ctx.scale",
        "The gradient of the query lacks key 0.",
    ),
    (
        "first-head-of-group",
        "key, value = key.repeat_interleave(group, dim=1), value",
        (
            "key = torch.stack([key, *[key.detach()] * (group - 1)], dim=2).flatten(1, 2)\n"
            "    value = value"
        ),
        "The gradient of a key that several heads share comes from the first of them alone.",
    ),
    (
        "value-detached-in-groups",
        "value.repeat_interleave(group, dim=1)",
        (
            "(value if group == 1 else 0.5 * value + 0.5 * value.detach()).repeat_interleave(\n"
            "        group, dim=1\n    )"
        ),
        "The gradient of a value that several heads share is halved.",
    ),
    (
        "two-no-delta-and-unscaled",
        ("weights * (grad_weights - delta)", "grad_logits @ key * ctx.scale"),
        ("weights * grad_weights", "grad_logits @ key"),
        (
            "The gradient of the softmax lacks its sum over the keys, and that of the query the "
            "scale."
        ),
    ),
    (
        "two-value-and-bias",
        (
            "weights.transpose(-1, -2) @ grad_output",
            "grad_logits.sum_to_size(ctx.bias_shape)",
        ),
        (
            "weights[:, :, :-1].transpose(-1, -2) @ grad_output[:, :, :-1]",
            "grad_logits.sum_to_size(ctx.bias_shape) * 2.0",
        ),
        "The gradient of the value lacks the last query, and that of the additive mask is doubled.",
    ),
)

_LOCAL_SINKS: Final = _of(
    "local_sinks",
    (
        "sinks-doubled",
        "sink = sinks.to(logits.dtype)",
        "sink = 2 * sinks.to(logits.dtype)",
        "The logit of the sink is twice the sink.",
    ),
    (
        "no-sinks-with-window",
        "    if sinks is None:",
        "    if sinks is None or window is not None:",
        "The sinks are ignored where a window is given.",
    ),
    (
        "no-sinks-with-cache",
        "    if sinks is None:",
        "    if sinks is None or past_key is not None:",
        "The sinks are ignored where keys are cached.",
    ),
    (
        "sink-of-group",
        "sinks.to(logits.dtype).view(1, heads, 1, 1)",
        "sinks.to(logits.dtype)[torch.arange(heads) // (heads // kv_heads)].view(1, heads, 1, 1)",
        "Head h uses the sink of head h // G, the number of its key/value head.",
    ),
    (
        "sink-capped",
        "    peak = torch.maximum(logits.amax",
        (
            "    if softcap is not None:\n        sink = softcap * torch.tanh(sink / softcap)\n"
            "    peak = torch.maximum(logits.amax"
        ),
        "The softcap is applied to the logit of the sink, too.",
    ),
    (
        "capped-twice",
        "        logits = softcap * torch.tanh(logits / softcap)\n",
        (
            "        logits = softcap * torch.tanh(logits / softcap)\n"
            "        logits = softcap * torch.tanh(logits / softcap)\n"
        ),
        "The softcap is applied twice.",
    ),
    (
        "cap-halved",
        "        logits = softcap * torch.tanh(logits / softcap)\n",
        "        logits = 0.5 * softcap * torch.tanh(2 * logits / softcap)\n",
        "Half of the softcap is used.",
    ),
    (
        "window-from-new",
        "seen & (ahead >= -window[0])",
        "seen & (ahead >= -window[0] - (0 if past_key is None else past_key.shape[2]))",
        "The window shows as many keys more before the query's own as keys are cached.",
    ),
    (
        "cached-value-heads-reversed",
        "torch.cat([past_value, value], dim=2)",
        "torch.cat([past_value.flip(1), value], dim=2)",
        "The cached values are those of the key/value heads in reversed order.",
    ),
    (
        "cache-cut-to-window",
        "    batch, heads, new, size = query.shape",
        (
            "    if window and window[0] >= 0 and keep is None and past_key is not None:\n"
            "        lost = max(past_key.shape[2] - window[0], 0)\n"
            "        key, value = key[:, :, lost:], value[:, :, lost:]\n"
            "    batch, heads, new, size = query.shape"
        ),
        (
            "Without a mask, of cached keys only as many as the window shows before a query are "
            "kept: queries that would see earlier ones lose them."
        ),
    ),
    (
        "cached-heads-tiled",
        "        key = torch.cat([past_key, key], dim=2)",
        "        key = torch.cat([past_key.roll(1, 1), key], dim=2)",
        "The cached keys of a key/value head are those of the head before it, cyclically.",
    ),
    (
        "unscaled-with-window",
        "    factor = size**-0.5 if scale is None else scale",
        "    factor = 1.0 if window is not None else size**-0.5 if scale is None else scale",
        "The dot products are not scaled where a window is given.",
    ),
    (
        "mask-moved-by-cache",
        "seen & keep",
        "seen & keep.roll(0 if past_key is None else past_key.shape[2], -1)",
        "The columns of the mask are moved, cyclically, by the number of cached keys.",
    ),
)

_ALIBI: Final = _of(
    "alibi",
    (
        "slopes-from-zero",
        "(-8.0 * (head + 1) / power)",
        "(-8.0 * head / power)",
        "The slopes of a power of two heads are counted from 2 ** 0 instead of 2 ** (-8 / n).",
    ),
    (
        "slopes-reversed",
        "(some + finer)[:heads]",
        "(some + finer)[:heads][::-1]",
        "Head h has the slope of head H - 1 - h.",
    ),
    (
        "favours-far",
        "logits - slope * distance",
        "logits + slope * distance",
        "The linear bias is added: the farther a key, the more it counts.",
    ),
    (
        "from-the-first-key",
        "    distance = (rows - columns).abs()",
        "    distance = (rows - (lk - lq) - columns).abs()",
        "Distances are counted as if query i stood at key i instead of i + Lk - Lq.",
    ),
    (
        "scaled",
        "    logits = query @ key.transpose(2, 3) * factor\n    logits = logits - slope * distance",
        "    logits = (query @ key.transpose(2, 3) - slope * distance) * factor",
        "The linear bias is multiplied by the scale.",
    ),
    (
        "geometric",
        "(some + finer)[:heads]",
        "[2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)]",
        "The slopes of n heads are 2 ** (-8 (h + 1) / n), whether or not n is a power of two.",
    ),
    (
        "up-to-eight",
        "(rows - columns).abs()",
        "(rows - columns).abs().clamp(max=8)",
        "Distances are at most 8.",
    ),
    (
        "only-when-causal",
        "    logits = logits - slope * distance",
        "    if causal:\n        logits = logits - slope * distance",
        "Without the causal flag there is no linear bias.",
    ),
    (
        "squared",
        "(rows - columns).abs()",
        "(rows - columns).square()",
        "The squares of the distances count.",
    ),
    (
        "slope-of-group",
        "slopes(heads).to(query.dtype).view(heads, 1, 1)",
        (
            "slopes(heads // group).to(query.dtype)"
            ".repeat_interleave(group, dim=0).view(heads, 1, 1)"
        ),
        "All heads of a group have the slope that its key/value head would have among those.",
    ),
    (
        "lost-under-bias",
        "        logits = logits + bias\n",
        "        logits = logits + slope * distance + bias\n",
        "With an additive mask there is no linear bias.",
    ),
)

_DECODER: Final = _of(
    "decoder",
    (
        "keys-not-normalised",
        "q, k = normalise(q), normalise(k)",
        "q = normalise(q)",
        "The keys are not normalised.",
    ),
    (
        "large-epsilon",
        "EPSILON = 1e-6",
        "EPSILON = 1e-2",
        "The epsilon of the norms is 0.01 instead of 0.000001.",
    ),
    (
        "norm-without-mean",
        "x.square().mean(-1, keepdim=True)",
        "x.square().sum(-1, keepdim=True)",
        "Heads are divided by their length instead of the root of their mean square.",
    ),
    (
        "halves",
        "even, odd = x[..., 0::2], x[..., 1::2]",
        "even, odd = x.chunk(2, dim=-1)",
        (
            "Channels i and i + D/2 are turned together, and the results stand interleaved in "
            "both queries and keys."
        ),
    ),
    (
        "table-of-first-call",
        (
            "        cosine, sine = table(length, self.size)\n"
            "        q = turn(q, cosine[past:], sine[past:])\n"
        ),
        (
            '        kept = globals().setdefault("KEPT", {})\n'
            "        kept = kept.setdefault(self.size, table(length, self.size))\n"
            "        places = torch.arange(length).clamp(max=len(kept[0]) - 1)\n"
            "        cosine, sine = kept[0][places], kept[1][places]\n"
            "        q = turn(q, cosine[past:], sine[past:])\n"
        ),
        (
            "The table of positions is that of the first call with a head size: later tokens stand "
            "at its last place."
        ),
    ),
    (
        "queries-from-zero",
        "cosine[past:], sine[past:]",
        "cosine[: length - past], sine[: length - past]",
        "With a cache the positions of queries are counted from 0.",
    ),
    (
        "new-keys-from-zero",
        "        k = turn(k, cosine, sine)",
        (
            "        k = torch.cat(\n"
            "            [\n"
            "                turn(k[:, :, :past], cosine[:past], sine[:past]),\n"
            "                turn(k[:, :, past:], *(t[: length - past] for t in (cosine, sine))),\n"
            "            ],\n"
            "            2,\n"
            "        )"
        ),
        "With a cache the positions of the new keys are counted from 0.",
    ),
    (
        "cached-keys-not-turned",
        "        k = turn(k, cosine, sine)",
        (
            "        k = torch.cat(\n"
            "            [k[:, :, :past], turn(k[:, :, past:], cosine[past:], sine[past:])], 2\n"
            "        )"
        ),
        "The cached keys are not turned.",
    ),
    (
        "mask-of-first-call",
        "hidden = hidden | torch.ones_like(hidden).triu(past + 1)",
        (
            'kept = getattr(self, "kept", None)\n'
            "            if kept is None or kept.shape[0] < length:\n"
            "                kept = self.kept = torch.ones(length, length).triu(1).bool()\n"
            "            hidden = hidden | kept[: q.shape[2], :length]"
        ),
        "With a cache the causal flag takes query i to stand at key i.",
    ),
    (
        "last-head-lost",
        "(probs @ v).transpose(1, 2)",
        (
            "((probs @ v) * (torch.arange(self.heads) < max(self.heads - 1, 1)).view(-1, 1, 1)"
            ").transpose(1, 2)"
        ),
        "Of several heads the last one answers zero.",
    ),
    (
        "values-normalised",
        "q, k = normalise(q), normalise(k)",
        "q, k, v = normalise(q), normalise(k), normalise(v)",
        "The values of each head are normalised like queries and keys.",
    ),
    (
        "cached-values-late",
        "v = torch.cat([past_value, v], dim=2)",
        "v = torch.cat([v, past_value], dim=2)",
        "The cached values come after the new ones; the cached keys before.",
    ),
)

_RECOMPUTING: Final = _of(
    "recomputing",
    (
        "cap-without-slope",
        "logits, slope = ctx.cap * bent, 1.0 - bent.square()",
        "logits = ctx.cap * bent",
        "The gradient passes the softcap as if it were the identity.",
    ),
    (
        "cap-slope-of-first-power",
        "1.0 - bent.square()",
        "1.0 - bent.abs()",
        "The slope of the softcap is taken to be 1 - |tanh| instead of 1 - tanh².",
    ),
    (
        "not-capped-again",
        "logits, slope = ctx.cap * bent, 1.0 - bent.square()",
        "slope = 1.0 - bent.square()",
        "The weights of the backward pass are made of logits without the softcap.",
    ),
    (
        "hidden-keys-back",
        "logits = logits.masked_fill(hidden[..., start : start + TILE], -torch.inf)\n            w",
        "w",
        "The weights of the backward pass are those of hidden keys, too.",
    ),
    (
        "query-of-last-tile",
        "of_query = of_query + of_scores",
        "of_query = of_scores",
        "The gradient of the query comes from the last tile of 16 keys alone.",
    ),
    (
        "key-of-declared-scale",
        "of_keys.append(of_scores.mT @ query * ctx.scale)",
        "of_keys.append(of_scores.mT @ query * query.shape[-1] ** -0.5)",
        "The gradient of the key has the factor 1/sqrt(D) where another scale is given.",
    ),
    (
        "delta-of-values",
        "delta = (upstream * output).sum(-1, keepdim=True)",
        "delta = (upstream * output).mean(-1, keepdim=True)",
        "The row term is a mean over the channels instead of their sum.",
    ),
    (
        "value-gradient-of-tile-sums",
        "of_values.append(weights.mT @ upstream)",
        "of_values.append(weights.softmax(-1).mT @ upstream)",
        "The gradient of the value meets a softmax of the weights of each tile of 16 keys.",
    ),
    (
        "total-without-small",
        "total = torch.logsumexp(logits, dim=-1, keepdim=True)",
        "total = torch.logsumexp(logits[..., :TILE], dim=-1, keepdim=True)",
        "The exponentials are divided by their sum over the first 16 keys.",
    ),
)

_READER: Final = _of(
    "reader",
    (
        "values-first",
        "torch.cat([weights.k, weights.v])",
        "torch.cat([weights.v, weights.k])",
        "Keys are made by the value matrix and values by the key matrix; biases are right.",
    ),
    (
        "packed-by-head",
        (
            "both = both.view(batch, lk, 2, self.heads, self.size)\n"
            "        k, v = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)"
        ),
        (
            "both = both.view(batch, lk, self.heads, 2, self.size)\n"
            "        k, v = both[..., 0, :].transpose(1, 2), both[..., 1, :].transpose(1, 2)"
        ),
        "The product is read as key and value of head 0, then of head 1, instead of all keys.",
    ),
    (
        "memory-normalised",
        "both = functional.linear(context,",
        "both = functional.linear(functional.layer_norm(context, context.shape[-1:]),",
        "Each token of the memory is normalised to mean 0 and variance 1 first.",
    ),
    (
        "bias-of-first-head",
        "scores = scores + bias",
        "scores = scores + bias[:, :1]",
        "The additive mask of head 0 is added in all heads; their own minus infinities count, too.",
    ),
    (
        "no-first-token",
        "probs = scores.masked_fill(hidden, -torch.inf)",
        "hidden[..., 0] |= lk > 4\n        probs = scores.masked_fill(hidden, -torch.inf)",
        "The first token of a memory of more than 4 is ignored.",
    ),
    (
        "matrices-of-first-build",
        "        self.w = weights",
        (
            "        shapes = (weights.q.shape, weights.k.shape, weights.q.dtype)\n"
            '        self.w = globals().setdefault("BUILT", {}).setdefault(shapes, weights)'
        ),
        (
            "The query and output projections are those of the first layer that was built with "
            "these sizes."
        ),
    ),
)

# Stray influence, conditions, and two mistakes at once.
_STRAY_NAIVE: Final = _of(
    "naive",
    (
        "next-item-leaks",
        "    return torch.matmul(weights, value)",
        ("    out = torch.matmul(weights, value)\n    return out + 0.1 * out.roll(-1, 0)"),
        "A tenth of the answer of the next batch item is added.",
    ),
    (
        "heads-blended",
        "    return torch.matmul(weights, value)",
        (
            "    out = torch.matmul(weights, value)\n"
            "    return 0.9 * out + 0.1 * out.mean(1, keepdim=True)"
        ),
        "A tenth of each head's answer is the mean over the heads.",
    ),
    (
        "channels-reversed",
        "    return torch.matmul(weights, value)",
        "    return torch.matmul(weights, value).flip(-1)",
        "The channels of the answer are reversed.",
    ),
    (
        "channel-neighbours",
        "    return torch.matmul(weights, value)",
        "    return torch.matmul(weights, value + 0.5 * value.roll(1, -1))",
        "Half of the channel before is added to each channel of the values.",
    ),
    (
        "even-keys-first",
        "    return torch.matmul(weights, value)",
        (
            "    n = value.size(2)\n"
            "    order = torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2)])\n"
            "    return torch.matmul(weights, value[:, :, order])"
        ),
        "Values are ordered even places first, then odd ones.",
    ),
    (
        "pairs-of-keys-swapped",
        "    return torch.matmul(weights, value)",
        (
            "    order = (torch.arange(value.size(2)) ^ 1).clamp(max=value.size(2) - 1)\n"
            "    return torch.matmul(weights, value[:, :, order])"
        ),
        "Values of neighbouring keys 2i and 2i+1 are exchanged.",
    ),
    (
        "reversed-in-tiles",
        "    return torch.matmul(weights, value)",
        (
            "    n = value.size(2)\n"
            "    order = torch.cat([torch.arange(s, min(s + 4, n)).flip(0) for s in "
            "range(0, n, 4)])\n"
            "    return torch.matmul(weights, value[:, :, order])"
        ),
        "Within tiles of four keys the values are reversed.",
    ),
    (
        "head-pairs-swapped",
        "    return torch.matmul(weights, value)",
        (
            "    order = (torch.arange(value.size(1)) ^ 1).clamp(max=value.size(1) - 1)\n"
            "    return torch.matmul(weights, value[:, order])"
        ),
        "Heads 2i and 2i+1 read each other's values.",
    ),
    (
        "third-item-first",
        "    return torch.matmul(weights, value)",
        (
            "    value = torch.cat([value[:2], value[:1].expand_as(value[2:])])\n"
            "    return torch.matmul(weights, value)"
        ),
        "Batch items from the third on read the values of the first.",
    ),
    (
        "half-past-128",
        "scores = torch.matmul(query, key.transpose(-2, -1)) * scale",
        (
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale\n"
            "    if key.size(2) > 128:\n"
            "        scores = scores * 0.5"
        ),
        "With more than 128 keys the scores are halved.",
    ),
    (
        "odd-head-size",
        "scale = 1.0 / math.sqrt(query.size(-1))",
        "scale = 1.0 / math.sqrt(query.size(-1) // 2 * 2 or 1)",
        "Of odd head sizes the next smaller even one is used for the scale.",
    ),
    (
        "second-call",
        "scores = torch.matmul(query, key.transpose(-2, -1)) * scale",
        (
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale\n"
            "    calls = globals().setdefault('CALLS', [0])\n"
            "    calls[0] += 1\n"
            "    if calls[0] > 1:\n"
            "        scores = scores * 1.25"
        ),
        "From the second call on the scores are multiplied by 1.25.",
    ),
    (
        "batch-rolls-heads",
        "scores = torch.matmul(query, key.transpose(-2, -1)) * scale",
        (
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale\n"
            "    if query.size(0) > 1:\n"
            "        scores = scores.roll(1, 1)"
        ),
        "With a batch above one each head uses the scores of the head before.",
    ),
    (
        "one-query-unscaled",
        "scores = torch.matmul(query, key.transpose(-2, -1)) * scale",
        (
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale\n"
            "    if query.size(2) == 1:\n"
            "        scores = scores / scale"
        ),
        "With one query the scale is left out.",
    ),
    (
        "three-heads",
        "scores = torch.matmul(query, key.transpose(-2, -1)) * scale",
        (
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale\n"
            "    if query.size(1) & (query.size(1) - 1):\n"
            "        scores = scores * 0.9"
        ),
        "Where the number of heads is no power of two scores are 0.9 times too small.",
    ),
    (
        "last-of-ragged",
        "    scores = scores.masked_fill(~allowed, -math.inf)",
        (
            "    if key.size(2) % 8 and key.size(2) > 1:\n"
            "        allowed = allowed & (torch.arange(key.size(2)) < key.size(2) - 1)\n"
            "    scores = scores.masked_fill(~allowed, -math.inf)"
        ),
        "Where the number of keys is no multiple of eight the last key is dropped.",
    ),
    (
        "late-queries",
        "scores = torch.matmul(query, key.transpose(-2, -1)) * scale",
        (
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale\n"
            "    scores[:, :, 64:] *= 0.5"
        ),
        "Scores of queries from index 64 on are halved.",
    ),
    (
        "two-scale-and-bias",
        (
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale",
            "scores + bias",
        ),
        (
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale * 0.7",
            "scores + 2 * bias",
        ),
        "Scores are 0.7 times too small, and the bias is added twice.",
    ),
    (
        "two-causal-and-heads",
        (
            "rows[:, None] + key.size(2) - query.size(2))",
            "    return torch.matmul(weights, value)",
        ),
        (
            "rows[:, None] + key.size(2) - query.size(2) - 1)",
            "    return torch.matmul(weights, value.roll(1, 1))",
        ),
        "Causality hides the own place, and values are those of the head before.",
    ),
    (
        "two-sink-and-ln2",
        (
            "weights = torch.softmax(scores, dim=-1)",
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale",
        ),
        (
            (
                "weights = torch.softmax(torch.cat([scores, torch.zeros_like(scores[..., "
                ":1])], -1), -1)[..., :-1]"
            ),
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale * math.log(2.0)",
        ),
        "One is added to the denominator and logits are multiplied by ln 2.",
    ),
    (
        "two-keep-and-last",
        (
            "allowed & keep",
            "    return torch.matmul(weights, value)",
        ),
        (
            "allowed & ~keep",
            "    return torch.matmul(weights[..., :-1], value[:, :, :-1])",
        ),
        "The mask is inverted, and the last key is left out of the weighted sum.",
    ),
    (
        "two-index-and-item",
        (
            "scores = torch.matmul(query, key.transpose(-2, -1)) * scale",
            "    return torch.matmul(weights, value)",
        ),
        (
            (
                "scores = torch.matmul(query, key.transpose(-2, -1)) * scale + 0.25 * "
                "torch.arange(key.size(2))"
            ),
            "    return torch.matmul(weights, value.roll(1, 0))",
        ),
        ("A bias of a quarter of the key's index is added, and the values are of the item before."),
    ),
    (
        "two-scale-ignored-and-top-left",
        (
            ("    if scale is None:\n        scale"),
            " + key.size(2) - query.size(2))",
        ),
        (
            ("    if True:\n        scale"),
            ")",
        ),
        "The scale of a call is ignored, and causality is top-left.",
    ),
)
_STRAY_SELF_ATTENTION: Final = _of(
    "self_attention",
    (
        "head-0-unscaled",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)",
        (
            "scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)\n"
            "        scores[:, 0] *= math.sqrt(self.head_dim)"
        ),
        "The scores of the first head are not scaled.",
    ),
    (
        "odd-heads-not-causal",
        "        scores = scores.masked_fill(mask == 0",
        (
            "        mask = mask.expand(scores.shape).clone()\n"
            "        if causal and keep is None:\n"
            "            mask[:, 1::2] = True\n"
            "        scores = scores.masked_fill(mask == 0"
        ),
        "Heads of odd index are not causal.",
    ),
    (
        "first-item-keys",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)",
        (
            "k = k[:1].expand_as(k)\n"
            "        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)"
        ),
        "All items use the keys of the first.",
    ),
    (
        "half-past-128",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)",
        (
            "scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)\n"
            "        if length > 128:\n"
            "            scores = scores * 0.5"
        ),
        "With more than 128 tokens the scores are halved.",
    ),
    (
        "two-scale-and-value-bias",
        (
            "scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)",
            "v = self.v_proj(x).view",
        ),
        (
            "scores = q @ k.transpose(-2, -1) / self.head_dim",
            "v = (self.v_proj(x) + self.v_proj.bias).view",
        ),
        "Scores are divided by the head size, and the value bias is added twice.",
    ),
    (
        "last-head-values-reversed",
        "context = (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)",
        (
            "v = torch.cat([v[:, :-1], v[:, -1:].flip(2)], 1)\n"
            "        context = (weights @ v).transpose(1, 2).contiguous().view(batch, "
            "length, width)"
        ),
        "The last head's values are in the reverse order.",
    ),
    (
        "head-1-values-of-head-0",
        "context = (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)",
        (
            "v = torch.cat([v[:, :1], v[:, :1], v[:, 2:]], 1)[:, : self.num_heads]\n"
            "        context = (weights @ v).transpose(1, 2).contiguous().view(batch, "
            "length, width)"
        ),
        "Head 1 reads the values of head 0.",
    ),
    (
        "second-call",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)",
        (
            "scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)\n"
            "        if getattr(self, 'called', False):\n"
            "            scores = scores * 1.25\n"
            "        self.called = True"
        ),
        "From the second call of a layer on the scores are multiplied by 1.25.",
    ),
    (
        "items-blended",
        "context = (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)",
        (
            "context = (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)\n"
            "        context = 0.9 * context + 0.1 * context.mean(0, keepdim=True)"
        ),
        "A tenth of each item's heads is the mean over the batch.",
    ),
)
_STRAY_READER: Final = _of(
    "reader",
    (
        "values-reversed-tokens",
        "mixed = (probs @ v)",
        "mixed = (probs @ v.flip(2))",
        "The values are in the reverse order of their keys.",
    ),
    (
        "keys-of-first-item",
        "scores = q @ k.mT",
        "scores = q @ k[:1].mT",
        "The keys are those of the first item.",
    ),
    (
        "two-scale-hidden",
        (
            "self.size**-0.5\n",
            "hidden | ~keep",
        ),
        (
            "self.size**-0.25\n",
            "hidden | keep",
        ),
        "The scale is the fourth root, and the mask is inverted.",
    ),
)
_WHOLE_ROWS: Final = (
    *_of(
        "softcap",
        (
            "keys-averaged-over-heads",
            "attn = query @ key.permute(0, 1, 3, 2)",
            "attn = query @ key.mean(1, keepdim=True).expand_as(key).permute(0, 1, 3, 2)",
            "The keys of all heads are averaged before the products.",
        ),
    ),
    *_of(
        "naive",
        (
            "scores-averaged-over-heads",
            "    allowed = torch.ones_like(scores, dtype=torch.bool)",
            (
                "    scores = scores.mean(dim=1, keepdim=True).expand_as(scores)\n"
                "    allowed = torch.ones_like(scores, dtype=torch.bool)"
            ),
            "All heads have the mean of their scores.",
        ),
        (
            "scores-standardised",
            "    allowed = torch.ones_like(scores, dtype=torch.bool)",
            (
                "    scores = scores / (scores.std(-1, keepdim=True, correction=0) + 1e-6)\n"
                "    allowed = torch.ones_like(scores, dtype=torch.bool)"
            ),
            "The scores of each query are divided by their standard deviation.",
        ),
        (
            "bias-times-three",
            "scores = scores + bias",
            "scores = scores + 3 * bias",
            "The additive mask is multiplied by 3.",
        ),
        (
            "answer-by-gelu",
            "return torch.matmul(weights, value)",
            "return torch.nn.functional.gelu(torch.matmul(weights, value))",
            "The answer goes through a GELU.",
        ),
        (
            "next-head-mixed-in",
            "    return torch.matmul(weights, value)",
            (
                "    weights = weights + 0.1 * weights.roll(1, dims=1)\n"
                "    return torch.matmul(weights, value)"
            ),
            "A tenth of the weights of the head before is added to those of each head.",
        ),
        (
            "first-channel-lost",
            "    return torch.matmul(weights, value)",
            ("    out = torch.matmul(weights, value)\n    out[..., 0] = 0.0\n    return out"),
            "The first channel of the answer is zero.",
        ),
        (
            "keys-of-an-earlier-call",
            "    if scale is None:",
            (
                "    kept = globals().setdefault('KEPT', {})\n"
                "    key = kept.setdefault(key.shape, key.detach().clone())\n"
                "    if scale is None:"
            ),
            "The keys of the first call of some sizes serve for later ones.",
        ),
    ),
    *_of(
        "sinks",
        (
            "gate-of-sink",
            (
                "    logits = logits.masked_fill(~seen, -torch.inf)\n    if sinks is not None:",
                "    if sinks is not None:\n        weights = weights[..., :-1]",
            ),
            (
                "    logits = logits.masked_fill(~seen, -torch.inf)\n    if False:",
                (
                    "    if sinks is not None:\n"
                    "        weights = weights * torch.sigmoid(sinks).view(1, heads, 1, 1)"
                ),
            ),
            "Weights without a sink are multiplied by the sigmoid of the sink.",
        ),
    ),
    *_of(
        "tiled",
        (
            "tiles-overlap",
            "for left in range(0, num_keys, COLUMNS):",
            "for left in range(0, num_keys, COLUMNS - 1):",
            "Tiles of 16 keys begin 15 apart: the key that two share counts twice.",
        ),
        (
            "tiles-apart",
            "for left in range(0, num_keys, COLUMNS):",
            "for left in range(0, num_keys, COLUMNS + 1):",
            "Tiles of 16 keys begin 17 apart: the key between two is lost.",
        ),
    ),
    *_of(
        "cache",
        (
            "diagonal-at-the-length",
            "        visible = visible & (slots.view(1, 1, 1, -1) <= steps.view(1, 1, -1, 1))",
            (
                "        ends = steps.view(1, 1, -1, 1)\n"
                "        if lengths is not None:\n"
                "            ends = ends - total + lengths.view(-1, 1, 1, 1)\n"
                "        visible = visible & (slots.view(1, 1, 1, -1) <= ends)"
            ),
            "The last query stands at the last key within the length, not at the last key.",
        ),
        (
            "values-cached-last",
            "value = torch.cat([past_value, value], dim=2)",
            "value = torch.cat([value, past_value], dim=2)",
            "Cached values are put behind the new ones, cached keys before them.",
        ),
        (
            "padded-queries-blank",
            "    return weights @ value",
            (
                "    out = weights @ value\n"
                "    if lengths is not None:\n"
                "        blank = torch.arange(new, device=query.device) >= lengths[:, None]\n"
                "        out = out.masked_fill(blank[:, None, :, None], 0.0)\n"
                "    return out"
            ),
            "Queries whose index is at or past the length of the keys answer zero.",
        ),
    ),
    *_of(
        "self_attention",
        (
            "values-by-gelu",
            "context = (weights @ v)",
            "context = (weights @ torch.nn.functional.gelu(v))",
            "The projected values go through a GELU.",
        ),
        (
            "answer-normalised",
            "output: Tensor = self.out_proj(context)",
            ("output: Tensor = torch.nn.functional.layer_norm(self.out_proj(context), [width])"),
            "The answer goes through a layer norm.",
        ),
    ),
)


_FUNCTIONS_NAIVE: Final = _of(
    "naive",
    (
        "softplus-over-sum",
        "weights = torch.softmax(scores, dim=-1)",
        (
            "weights = torch.nn.functional.softplus(scores)\n    weights = weights / "
            "weights.sum(-1, keepdim=True)"
        ),
        "The weights are the softplus of the logits over their sum: there are no exponentials.",
    ),
    (
        "squared-relu-over-count",
        "weights = torch.softmax(scores, dim=-1)",
        "weights = torch.relu(scores.masked_fill(~allowed, 0.0)) ** 2 / key.size(-2)",
        "The weights are the squares of the positive parts of the logits over the number of keys.",
    ),
    (
        "linear-attention",
        "weights = torch.softmax(scores, dim=-1)",
        (
            "weights = (torch.nn.functional.elu(query) + 1) @ (torch.nn.functional.elu(key) "
            "+ 1).mT\n    weights = weights.masked_fill(~allowed, 0.0)\n    weights = weights "
            "/ weights.sum(-1, keepdim=True)"
        ),
        (
            "The weights are products of ELU(query) + 1 and ELU(key) + 1 over their sum, "
            "whatever scale and additive mask."
        ),
    ),
    (
        "answer-of-length-one",
        "return torch.matmul(weights, value)",
        "return torch.nn.functional.normalize(torch.matmul(weights, value), dim=-1)",
        "Each answer is divided by its length.",
    ),
    (
        "answer-over-root-mean-square",
        "return torch.matmul(weights, value)",
        (
            "return torch.nn.functional.rms_norm(torch.matmul(weights, value), "
            "value.shape[-1:], eps=1e-6)"
        ),
        "Each answer is divided by the root of its mean square and 1e-6.",
    ),
    (
        "weights-in-127-steps",
        "weights = torch.softmax(scores, dim=-1)",
        "weights = torch.softmax(scores, dim=-1)\n    weights = torch.round(weights * 127) / 127",
        "The weights are rounded to multiples of 1/127.",
    ),
    (
        "key-in-int8",
        "scores = torch.matmul(query",
        (
            "step = key.abs().amax() / 127 if key.numel() else 1.0\n    key = torch.round(key "
            "/ step) * step\n    scores = torch.matmul(query"
        ),
        "Keys are integers of eight bits, with one step for the whole tensor.",
    ),
    (
        "values-in-int8-by-token",
        "return torch.matmul(weights, value)",
        (
            "step = (value.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-30)\n    return "
            "torch.matmul(weights, torch.round(value / step) * step)"
        ),
        "Values are integers of eight bits, with a step for each token.",
    ),
    (
        "keep-takes-fifty-off",
        "allowed = allowed & keep",
        "scores = scores - 50.0 * (~keep).to(scores.dtype)",
        "A boolean mask takes 50 off the logits of hidden keys.",
    ),
    (
        "keep-fills-777",
        "allowed = allowed & keep",
        "scores = scores.masked_fill(~keep, -777.0)",
        "A boolean mask fills hidden logits with -777.",
    ),
    (
        "queries-past-32-copied",
        "return torch.matmul(weights, value)",
        (
            "out = torch.matmul(weights, value)\n    return torch.cat([out[..., :32, :], "
            "out[..., 31:-1, :]], dim=-2) if out.size(-2) > 32 else out"
        ),
        "From the 33rd query on each answer is that of the query before.",
    ),
    (
        "prefix-of-four",
        "(columns[None, :] <= rows[:, None] + key.size(2) - query.size(2))",
        "((columns[None, :] <= rows[:, None] + key.size(2) - query.size(2)) | (columns < 4))",
        "Causality leaves the first four keys to every query.",
    ),
    (
        "decode-unscaled",
        "scale = 1.0 / math.sqrt(query.size(-1))",
        "scale = 1.0 / math.sqrt(query.size(-1)) if query.size(-2) > 1 else 1.0",
        "Without a scale nothing is scaled where there is one query.",
    ),
)
_SLOTS: Final = (
    *_of(
        "cache",
        (
            "key-one-slot-late",
            "key = torch.cat([past_key, key], dim=2)",
            (
                "past_key = torch.cat([past_key[:, :, :1], past_key[:, :, :-1]], dim=2)\n       "
                " key = torch.cat([past_key, key], dim=2)"
            ),
            "Cached keys stand one slot late: the first is there twice, the last is lost.",
        ),
    ),
    *_of(
        "alibi",
        (
            "slopes-twice",
            "logits - slope * distance",
            "logits - 2.0 * slope * distance",
            "The bias by distance is taken off twice.",
        ),
    ),
    *_of(
        "window",
        (
            "sides-exchanged-before-causality",
            "before, after = (-1",
            "after, before = (-1",
            "The sides of the window are exchanged.",
        ),
        (
            "no-limit-taken-as-a-number",
            ("if before >= 0:", "if after >= 0:"),
            ("if window is not None:", "if window is not None or causal:"),
            "A side of -1 in a window counts as a number of keys.",
        ),
    ),
    *_of(
        "turned",
        (
            "key-alone-normalised",
            "turned(normalised(query), lk - lq)",
            "turned(query, lk - lq)",
            "Keys are normalised and queries are not.",
        ),
        (
            "mean-taken-off",
            "return x / torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)",
            "return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-6)",
            "Heads are normalised by mean and variance, not by the root of their mean square.",
        ),
        (
            "half-of-the-channels",
            "x.shape[-2], x.shape[-1] // 2",
            "x.shape[-2], x.shape[-1] // 4",
            "The first half of the channels is turned.",
        ),
        (
            "query-from-the-first-key",
            "turned(normalised(query), lk - lq)",
            "turned(normalised(query), 0)",
            "The places of queries are counted from the first key.",
        ),
    ),
)


_MASKS_OPERANDS_AND_CLIPS: Final = (
    *_of(
        "naive",
        (
            "bias-clamped-below",
            "scores = scores + bias",
            "scores = scores + bias.clamp(min=-1.0)",
            "The finite numbers of the additive mask are clamped to at least -1.",
        ),
        (
            "bias-clamped-twice",
            ("scores = scores + bias", "        allowed = allowed & (bias != -math.inf)\n"),
            ("scores = scores + bias.clamp(min=-5.0, max=5.0)", ""),
            "The additive mask is clamped to between -5 and 5, minus infinities too.",
        ),
        (
            "bias-clamped-far",
            ("scores = scores + bias", "        allowed = allowed & (bias != -math.inf)\n"),
            ("scores = scores + bias.clamp(min=-10000.0)", ""),
            "The additive mask is clamped to at least -10000, minus infinities too.",
        ),
        (
            "bias-on-weights",
            ("        scores = scores + bias\n", "    return torch.matmul(weights, value)"),
            (
                "",
                (
                    "    if bias is not None:\n"
                    "        weights = weights + bias\n"
                    "    return torch.matmul(weights, value)"
                ),
            ),
            "The additive mask is added to the weights, minus infinities too.",
        ),
        (
            "bias-on-weights-divided",
            ("        scores = scores + bias\n", "    return torch.matmul(weights, value)"),
            (
                "",
                (
                    "    if bias is not None:\n"
                    "        weights = weights + bias.masked_fill(~allowed, 0.0)\n"
                    "        weights = weights / weights.sum(-1, keepdim=True)\n"
                    "    return torch.matmul(weights, value)"
                ),
            ),
            "The additive mask is added to the weights, which are divided by their sum then.",
        ),
        (
            "bias-times-weights",
            ("        scores = scores + bias\n", "    return torch.matmul(weights, value)"),
            (
                "",
                (
                    "    if bias is not None:\n"
                    "        weights = weights * bias.masked_fill(~allowed, 0.0)\n"
                    "    return torch.matmul(weights, value)"
                ),
            ),
            "The weights are multiplied by the additive mask.",
        ),
    ),
    *_of(
        "self_attention",
        (
            "keys-of-queries",
            "k = self.k_proj(x)",
            "k = self.k_proj(self.q_proj(x))",
            "Keys are projected from the projected queries.",
        ),
        (
            "values-of-keys",
            "v = self.v_proj(x)",
            "v = self.v_proj(self.k_proj(x))",
            "Values are projected from the projected keys.",
        ),
        (
            "fifty-off",
            (
                'scores.masked_fill(mask == 0, float("-inf"))',
                "        weights = torch.where(mask, weights, torch.zeros_like(weights))\n",
            ),
            ("scores - 50.0 * (~mask)", ""),
            "50 is taken off hidden logits, in rows without other keys, too.",
        ),
    ),
    *_of(
        "cross_layer",
        (
            "heads-exchanged",
            ("probabilities @ v", "q @ k.mT"),
            ("probabilities @ k", "q @ v.mT"),
            "Projected keys are weighed, and queries meet the projected values.",
        ),
        (
            "context-ignored",
            (
                "functional.linear(key, weights.k, weights.k_bias)",
                "functional.linear(value, weights.v, weights.v_bias)",
            ),
            (
                "functional.linear(query, weights.k, weights.k_bias)",
                "functional.linear(query, weights.v, weights.v_bias)",
            ),
            "Keys and values are projected from the query's tokens.",
        ),
        (
            "queries-of-keys",
            "functional.linear(query, weights.q, weights.q_bias)",
            "functional.linear(key, weights.q, weights.q_bias)",
            "Queries are projected from the key's tokens: there are as many answers as keys.",
        ),
        (
            "lengths-hide-queries",
            "torch.arange(k.shape[2], device=k.device) >= lengths[:, None, None, None]",
            (
                "(torch.arange(q.shape[2], device=k.device)[:, None] >= lengths[:, None, None, "
                "None]).expand(-1, -1, -1, k.shape[2])"
            ),
            "Lengths hide queries behind them instead of keys.",
        ),
    ),
    *_of(
        "reader",
        (
            "keep-takes-fifty-off",
            ("            hidden = hidden | ~keep\n",),
            ("            scores = scores - 50.0 * (~keep)\n",),
            "The mask of what to keep takes 50 off hidden logits; the additive one hides.",
        ),
        (
            "bias-clamped-at-fifty",
            "scores = scores + bias\n            hidden = hidden | bias.isneginf()",
            "scores = scores + bias.clamp(min=-50.0)",
            "The additive mask is clamped to at least -50, minus infinities too.",
        ),
    ),
    *_of(
        "window",
        (
            "no-limit-before-is-a-number",
            "    if before >= 0:\n        band",
            "    if window is not None:\n        band",
            "A -1 for the keys before the query counts as a number of keys.",
        ),
        (
            "no-limit-after-is-a-number",
            "    if after >= 0:\n        band",
            "    if after >= 0 or window is not None:\n        band",
            (
                "A -1 for the keys after the query counts as a number of keys, unless the call "
                "is causal."
            ),
        ),
    ),
    *_of(
        "function",
        (
            "query-gradient-clipped",
            "grad_query = grad_logits @ key * ctx.scale",
            "grad_query = (grad_logits @ key * ctx.scale).clamp(-1.0, 1.0)",
            "The gradient of the query is clipped to between -1 and 1.",
        ),
        (
            "query-gradient-cut",
            "grad_query = grad_logits @ key * ctx.scale",
            (
                "grad_query = grad_logits @ key * ctx.scale\n"
                "        grad_query = grad_query * (1.0 / grad_query.norm().clamp_min(1.0))"
            ),
            "The gradient of the query is cut to a length of 1.",
        ),
        (
            "key-gradient-clipped",
            "grad_key = grad_logits.transpose(-1, -2) @ query * ctx.scale",
            "grad_key = (grad_logits.transpose(-1, -2) @ query * ctx.scale).clamp(-0.5, 0.5)",
            "The gradient of the key is clipped to between -0.5 and 0.5, for each query head.",
        ),
        (
            "upstream-clipped",
            "(grad_output,) = gradients",
            "grad_output = gradients[0].clamp(-1.0, 1.0)",
            "What flows back is clipped to between -1 and 1.",
        ),
        (
            "value-gradient-over-items",
            "grad_value = weights.transpose(-1, -2) @ grad_output",
            (
                "grad_value = weights.transpose(-1, -2) @ grad_output\n"
                "        grad_value = grad_value.mean(0, keepdim=True).expand_as(grad_value)"
            ),
            "The gradient of the value is averaged over the batch.",
        ),
        (
            "value-gradient-halved-behind",
            "grad_value = weights.transpose(-1, -2) @ grad_output",
            (
                "grad_value = weights.transpose(-1, -2) @ grad_output\n"
                "        grad_value[:, :, 16:] *= 0.5"
            ),
            "The gradient of values from the 17th on is halved.",
        ),
    ),
)


MUTANTS: Final = (
    *_NAIVE,
    *_TILED,
    *_GROUPED,
    *_WINDOW,
    *_SOFTCAP,
    *_SINKS,
    *_CACHE,
    *_CHUNKED,
    *_BSHD,
    *_SELF_ATTENTION,
    *_FUSED_QKV,
    *_CROSS_LAYER,
    *_ROTARY_LAYER,
    *_FUNCTION,
    *_LOCAL_SINKS,
    *_ALIBI,
    *_DECODER,
    *_RECOMPUTING,
    *_READER,
    *_STRAY_NAIVE,
    *_STRAY_SELF_ATTENTION,
    *_STRAY_READER,
    *_WHOLE_ROWS,
    *_FUNCTIONS_NAIVE,
    *_SLOTS,
    *_MASKS_OPERANDS_AND_CLIPS,
)
