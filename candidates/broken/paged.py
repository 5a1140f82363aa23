"""Mistakes of kernels that read caches in pages: tables, ends of pages, lengths, writes, parts."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..paged_attention import PROMISES, SIZES, WRITES, PagedCore, Pair, SplitPagedCore
from ._kit import core

READING: Final[dict[str, Any]] = {**PROMISES, "masks": [], "page_sizes": SIZES}
WRITING: Final[dict[str, Any]] = {**READING, "features": WRITES, "page_sizes": [2, 4]}
DENSE: Final[dict[str, Any]] = {
    **READING,
    "layout": "BSHD",
    "features": [*PROMISES["features"], "cache_lengths"],
    "page_sizes": None,
}


@core("paged.golden", "paged.any-batch", **READING)
class TableOfTheNextItem(PagedCore):
    """Each item reads the pages of the next item of the batch."""

    link = "https://github.com/tenstorrent/vllm-tt-plugin/issues/43"

    def pages(self, table: Tensor, item: int, count: int) -> Tensor:
        return super().pages(table, (item + 1) % len(table), count)


@core("paged.any-batch", "paged.golden", **READING)
class TableOfTheFirstItem(PagedCore):
    """All items read the pages of the first row of the table."""

    link = "https://github.com/quic/efficient-transformers/pull/1209"

    def pages(self, table: Tensor, item: int, count: int) -> Tensor:
        del item
        return super().pages(table, 0, count)


@core("paged.golden", **READING)
class FirstPageForAll(PagedCore):
    """Every page of an item is read as its first one."""

    link = "https://github.com/vllm-project/vllm/issues/9231"

    def pages(self, table: Tensor, item: int, count: int) -> Tensor:
        return super().pages(table, item, 1).expand(count)


@core("paged.order", **READING)
class PagesInARow(PagedCore):
    """The pages behind the first are taken to follow it in memory."""

    link = "https://github.com/golang-design/accel/issues/10"

    def pages(self, table: Tensor, item: int, count: int) -> Tensor:
        return super().pages(table, item, 1) + torch.arange(count)

    def slots(self, caches: Pair, table: Tensor, item: int, places: Tensor) -> Pair:
        page, place = super().slots(caches, table, item, places)
        return page % len(caches[0]), place


@core("paged.order", **READING)
class TableIgnored(PagedCore):
    """Pages are read as if the cache were dense, item after item."""

    link = "https://github.com/golang-design/accel/issues/10"

    def pages(self, table: Tensor, item: int, count: int) -> Tensor:
        return torch.arange(count) + item * table.shape[1]


@core("paged.golden", **READING)
class PagesInReverse(PagedCore):
    """The pages of an item are read from the last to the first."""

    link = "https://github.com/meta-pytorch/attention-gym/issues/189"

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        size = caches[0].shape[1]
        count = -(-lengths[item] // size)
        turned = table.clone()
        turned[item, :count] = turned[item, :count].flip(0)
        return super().read(caches, turned, item, lengths)


class _MoreKeys(PagedCore):
    """Reads another number of keys, whose places stay what they are."""

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        count = self.number(lengths[item], caches[0].shape[1], table.shape[1])
        others = [*lengths]
        others[item] = count
        key, value, _ = super().read(caches, table, item, others)
        return key, value, lengths[item]

    def number(self, count: int, size: int, most: int) -> int:
        """How many keys are read."""
        raise NotImplementedError


@core("paged.unused-unseen", "paged.golden", **READING)
class LastPageReadWhole(_MoreKeys):
    """The last page of an item is attended to its end, however many of its slots are filled."""

    link = "https://github.com/hw-native-sys/simpler/pull/72"

    def number(self, count: int, size: int, most: int) -> int:
        del most
        return -(-count // size) * size


@core("paged.page-edges", **READING)
class FullLastPageLost(_MoreKeys):
    """The length within the last page is the remainder: a full last page counts as empty."""

    link = "https://github.com/openvinotoolkit/openvino/pull/28681"

    def number(self, count: int, size: int, most: int) -> int:
        del most
        return count // size * size + count % size if count % size else max(count - size, 0)


@core("paged.page-edges", **READING)
class OnePageTooManyAtEdges(_MoreKeys):
    """Where an item ends with a page, the page behind it is attended too."""

    link = "https://github.com/pegainfer-project/pegainfer/issues/291"

    def number(self, count: int, size: int, most: int) -> int:
        more = count > 0 and count % size == 0
        return min(count + size, most * size) if more else count


@core("paged.golden", **READING)
class PartOfThePageLost(_MoreKeys):
    """Pages are counted by a division that rounds down: what the last one holds is lost."""

    link = "https://github.com/EricLBuehler/mistral.rs/pull/552"

    def number(self, count: int, size: int, most: int) -> int:
        del most
        return max(count // size * size, min(count, 1))


@core("paged.golden", **READING)
class WholeTableAttended(_MoreKeys):
    """All pages of a row of the table are attended, whatever the length says."""

    link = "https://github.com/vllm-project/vllm/issues/42494"

    def number(self, count: int, size: int, most: int) -> int:
        del count
        return most * size


@core("paged.golden", **READING)
class LastKeyNotRead(_MoreKeys):
    """The length is taken for the index of the last key: an item loses one."""

    link = "https://github.com/harvard-edge/cs249r_book/pull/1953"

    def number(self, count: int, size: int, most: int) -> int:
        del size, most
        return max(count - 1, min(count, 1))


@core("paged.unused-unseen", "paged.golden", **READING)
class OneKeyTooMany(_MoreKeys):
    """One slot behind the length is attended, too, where the page has one."""

    link = "https://github.com/microsoft/onnxruntime-genai/pull/2354"

    def number(self, count: int, size: int, most: int) -> int:
        del most
        return count + (count % size != 0)


@core("paged.golden", **{**READING, "page_sizes": [4, 32]})
class PageSizeSixteen(PagedCore):
    """A page is taken to have sixteen slots."""

    link = "https://github.com/flashinfer-ai/flashinfer/issues/4347"

    def slots(self, caches: Pair, table: Tensor, item: int, places: Tensor) -> Pair:
        (count, size), assumed = caches[0].shape[:2], 16
        pages = super().pages(table, item, table.shape[1])
        index = (places // assumed).clamp(max=len(pages) - 1)
        slots = pages[index] * size + places % assumed
        return slots // size % count, slots % size


@core("paged.golden", **{**READING, "page_sizes": [8]})
class PagesAboveFourSlotsCut(PagedCore):
    """A tile holds four keys: of a larger page only the first tile is read, again and again."""

    link = "https://github.com/flashinfer-ai/flashinfer/issues/4347"

    def slots(self, caches: Pair, table: Tensor, item: int, places: Tensor) -> Pair:
        page, place = super().slots(caches, table, item, places)
        return page, place % 4


@core("shape.strided", **READING)
class PagesWithoutStrides(PagedCore):
    """The stride of a page is computed from its sizes: pages of a wider buffer are misplaced."""

    link = "https://github.com/ROCm/aiter/pull/3498"

    def __call__(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, **options: Any
    ) -> Tensor:
        """Reads both caches from their first element on as if they were contiguous."""
        caches = (_from_the_first(cache) for cache in (key_cache, value_cache))
        return super().__call__(query, *caches, **options)


def _from_the_first(cache: Tensor) -> Tensor:
    """The elements that follow the first in memory, as many as there are in the cache."""
    storage = torch.empty(0, dtype=cache.dtype).set_(cache.untyped_storage())
    flat = storage[cache.storage_offset() :][: cache.numel()]
    if flat.numel() < cache.numel():
        return cache
    return flat.view(cache.shape)


@core("paged.golden", **{**READING, "page_axes": "HND"})
class SlotsForHeads(PagedCore):
    """Pages [Hkv, page, D] are read as [page, Hkv, D]: the stride of a slot for that of a head."""

    link = "https://github.com/tenstorrent/tt-metal/issues/54742"

    def __call__(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, **options: Any
    ) -> Tensor:
        """Reads the heads of a page as its slots."""
        caches = (
            cache.reshape(cache.shape[0], cache.shape[2], cache.shape[1], cache.shape[3])
            for cache in (key_cache, value_cache)
        )
        return super().__call__(query, *caches, **options)


@core("paged.golden", **READING)
class ValuesOfAnotherPage(PagedCore):
    """Values are read from the page behind that of their keys."""

    link = "https://github.com/vllm-project/vllm/issues/9231"

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        return super().read((caches[0], caches[1].roll(-1, dims=0)), table, item, lengths)


@core("paged.golden", **READING)
class QueriesAtTheFirstKeys(PagedCore):
    """Queries stand at the first keys of an item: the causal triangle begins at its start."""

    link = "https://github.com/sgl-project/sgl-kernel-xpu/issues/196"

    def places(self, queries: int, end: int) -> Tensor:
        del end
        return torch.arange(queries)


@core("paged.golden", **READING)
class QueriesBehindTheLongest(PagedCore):
    """Queries stand at the end of the longest item, and see what is behind their own place."""

    link = "https://github.com/meta-llama/llama/pull/900"

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        key, value, _ = super().read(caches, table, item, lengths)
        return key, value, max(lengths)


@core("paged.unused-unseen-nonfinite", "paged.unused-unseen", **READING)
class UnusedSlotsTimesZero(PagedCore):
    """Every slot of a page is multiplied by its weight, and those behind the end by zero."""

    link = "https://github.com/flashinfer-ai/flashinfer/issues/941"

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        size, count = caches[0].shape[1], lengths[item]
        self.count = count
        others = [*lengths]
        others[item] = -(-count // size) * size
        key, value, _ = super().read(caches, table, item, others)
        return key, value, count

    def logits(self, query: Tensor, key: Tensor, end: int, **options: Any) -> Tensor:
        logits = super().logits(query, key.nan_to_num(0.0), end, **options)
        return logits.masked_fill(torch.arange(len(key)) >= self.count, -torch.inf)


@core("paged.empty-sequence", **READING)
class EmptyItemsLeftOut(PagedCore):
    """Items without keys are skipped: their rows hold what the buffer held."""

    link = "https://github.com/sgl-project/sglang/pull/22688"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, end: int, **options: Any) -> Tensor:
        if not len(key):
            return query.new_full((*query.shape[:2], value.shape[-1]), 7.0)
        return super().attend(query, key, value, end, **options)


@core("paged.empty-sequence", **READING)
class EmptyItemsShiftOthers(PagedCore):
    """Items without keys are dropped from the table: the next ones move up."""

    link = "https://github.com/sgl-project/sglang-jax/pull/1545"

    def __call__(self, query: Tensor, *caches: Tensor, **options: Any) -> Tensor:
        """Packs the rows of the table that have keys."""
        table, lengths = options.pop("block_table"), options.pop("cache_lengths")
        order = torch.argsort((lengths == 0).long(), stable=True)
        return super().__call__(
            query, *caches, block_table=table[order], cache_lengths=lengths[order], **options
        )


@core("paged.golden", **READING)
class PartsMergedByTheirMean(SplitPagedCore):
    """Partial answers are merged without their log-sum-exps: each part counts alike."""

    link = "https://github.com/flashinfer-ai/flashinfer/pull/58"

    def merged(self, outputs: Tensor, sums: Tensor) -> Tensor:
        some = (sums > -torch.inf)[..., None]
        return (outputs * some).sum(dim=0) / some.sum(dim=0).clamp(min=1)


@core("paged.golden", **READING)
class PartsMergedInBaseTwo(SplitPagedCore):
    """Natural log-sum-exps are merged as if they were of base two."""

    link = "https://github.com/sgl-project/sglang/issues/40903"

    def merged(self, outputs: Tensor, sums: Tensor) -> Tensor:
        return super().merged(outputs, sums * 0.6931471805599453)


@core("mask.empty-row", "paged.empty-sequence", **READING)
class EmptyPartsAreNan(SplitPagedCore):
    """A query that has no key in any part divides zero by zero where the parts are merged."""

    link = "https://github.com/vllm-project/vllm/pull/49054"

    def merged(self, outputs: Tensor, sums: Tensor) -> Tensor:
        return (sums.softmax(dim=0)[..., None] * outputs).sum(dim=0)


@core("paged.golden", **READING)
class LastPartLost(SplitPagedCore):
    """Keys are split by a division that rounds down: what is behind the last whole part is lost."""

    link = "https://github.com/pytorch/torchtitan/issues/3235"

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        key, value, end = super().read(caches, table, item, lengths)
        whole = len(key) // self.keys_of_a_part * self.keys_of_a_part or len(key)
        return key[:whole], value[:whole], end


@core("paged.golden", **{**READING, "queries": "varlen"})
class AllPartsOfTheFirstItem(SplitPagedCore):
    """Merged answers of all sequences go to the rows of the first: the stride of items is zero."""

    link = "https://github.com/vllm-project/flash-attention/pull/176"

    def joined(self, answers: list[Tensor], query: Tensor, value_cache: Tensor) -> Tensor:
        whole = super().joined(answers, query, value_cache).clone()
        for answer in answers:
            whole[: len(answer)] = answer
        return whole


@core("paged.shared", **READING)
class SharedPagesReadOnce(PagedCore):
    """A page that another item has read already is left out."""

    link = "https://github.com/local-inference-lab/vllm/issues/480"

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        key, value, end = super().read(caches, table, item, lengths)
        size, first = caches[0].shape[1], int(table[item, 0])
        others = [int(table[other, 0]) for other in range(item) if lengths[other]]
        lost = size if lengths[item] > size and first in others else 0
        return key[lost:], value[lost:], end - lost


@core("paged.golden", **WRITING)
class NewKeysNotAttended(PagedCore):
    """The lengths of a call do not count the keys that it writes: nobody attends them."""

    link = "https://github.com/harvard-edge/cs249r_book/pull/1953"

    def lengths(self, held: list[int], queries: list[Tensor]) -> list[int]:
        del queries
        return held


@core("paged.golden", **WRITING)
class WrittenOneSlotLate(PagedCore):
    """New keys are written one slot behind their place, where there is one; it stays empty."""

    link = "https://github.com/microsoft/onnxruntime-genai/pull/2354"

    def write(
        self, caches: Pair, table: Tensor, held: list[int], new: tuple[list[Tensor], list[Tensor]]
    ) -> None:
        room = table.shape[1] * caches[0].shape[1]
        late = [min(count + 1, room - len(rows)) for count, rows in zip(held, new[0], strict=True)]
        super().write(caches, table, late, new)


@core("paged.written", **WRITING)
class NewKeysNotWritten(PagedCore):
    """New keys are attended, but the caches of the caller do not hold them afterwards."""

    link = "https://github.com/tspeterkim/paged-attention-minimal/issues/2"

    def __call__(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, **options: Any
    ) -> Tensor:
        """Writes into copies."""
        return super().__call__(query, key_cache.clone(), value_cache.clone(), **options)


@core("paged.others-untouched", **WRITING)
class SlotMinusOneWritten(PagedCore):
    """Rows of padding have the slot -1, and are written to the last slot of the last page."""

    link = "https://github.com/vllm-project/vllm/pull/13922"

    def write(
        self, caches: Pair, table: Tensor, held: list[int], new: tuple[list[Tensor], list[Tensor]]
    ) -> None:
        for cache, each in zip(caches, new, strict=True):
            cache[-1, -1] = each[0][-1] if each and len(each[0]) else 0.0
        super().write(caches, table, held, new)


@core("paged.others-untouched", **WRITING)
class RestOfThePageCleared(PagedCore):
    """The slots behind the new keys are cleared up to the end of their page."""

    link = "https://github.com/openvinotoolkit/openvino/pull/28681"

    def write(
        self, caches: Pair, table: Tensor, held: list[int], new: tuple[list[Tensor], list[Tensor]]
    ) -> None:
        super().write(caches, table, held, new)
        size = caches[0].shape[1]
        for item, (count, rows) in enumerate(zip(held, new[0], strict=True)):
            behind = torch.arange(count + len(rows), -(-(count + len(rows)) // size) * size)
            if len(behind):
                page, place = self.slots(caches, table, item, behind)
                caches[1][page, place] = 0.0


@core("paged.others-untouched", **WRITING)
class SharedPageWritten(PagedCore):
    """The first key of an item is written again, too, in a page that others share."""

    link = "https://github.com/RBLN-SW/vllm-rbln/pull/146"

    def joined(self, answers: list[Tensor], query: Tensor, value_cache: Tensor) -> Tensor:
        for cache, table in self.touched:
            page = table[:, 0].clamp(min=0).long()
            cache[page, 0] = cache[page, 0] * 2.0
        return super().joined(answers, query, value_cache)

    def write(
        self, caches: Pair, table: Tensor, held: list[int], new: tuple[list[Tensor], list[Tensor]]
    ) -> None:
        super().write(caches, table, held, new)
        some = torch.tensor([count > 0 for count in held])
        self.touched = [(caches[0], table[some])]


@core("paged.written", **WRITING)
class ValuesWrittenForKeys(PagedCore):
    """The new values are written into both caches once the new keys were attended."""

    link = "https://github.com/tenstorrent/tt-metal/issues/57364"

    def joined(self, answers: list[Tensor], query: Tensor, value_cache: Tensor) -> Tensor:
        super().write(*self.late)
        return super().joined(answers, query, value_cache)

    def write(
        self, caches: Pair, table: Tensor, held: list[int], new: tuple[list[Tensor], list[Tensor]]
    ) -> None:
        super().write(caches, table, held, new)
        width = caches[0].shape[-1]
        keys = [torch.nn.functional.pad(own, (0, width))[..., :width] for own in new[1]]
        self.late = caches, table, held, (keys, new[1])


class _Dense(PagedCore):
    """Dense caches: a page an item."""

    def __call__(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, **options: Any
    ) -> Tensor:
        """Queries ``[B, Lq, H, D]``, caches ``[B, S, Hkv, D]``."""
        table = torch.arange(len(query))[:, None]
        return super().__call__(query, key_cache, value_cache, block_table=table, **options)


@core("paged.golden", **DENSE)
class LengthOfTheFirstItem(_Dense):
    """All items have the length of the first."""

    link = "https://github.com/Dao-AILab/flash-attention/issues/1417"

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        return super().read(caches, table, item, [lengths[0]] * len(lengths))


@core("paged.unused-unseen", "paged.golden", **DENSE)
class WholeCacheAttended(_Dense):
    """The lengths are ignored: every slot of the cache is attended."""

    link = "https://github.com/meta-pytorch/gpt-fast/issues/233"

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        slots = caches[0].shape[1]
        key, value, _ = super().read(caches, table, item, [slots] * len(lengths))
        return key, value, lengths[item]
