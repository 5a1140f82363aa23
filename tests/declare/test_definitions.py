from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from _paths import CHECKOUT
from refusals import refused
from torch import Tensor

import conformance

Data = dict[str, Any]
_HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 8}
_LENGTHS = ("total_q", "total_kv", "len_indptr")


def tensor(axes: str, dtype: str = "float32") -> Data:
    return {"shape": axes.split(), "dtype": dtype}


INDPTR = tensor("len_indptr", "int32")
RAGGED: Data = {
    "name": "gqa_ragged_prefill_causal_h4_kv2_d8",
    "op_type": "gqa_ragged",
    "axes": {
        **{axis: {"type": "const", "value": size} for axis, size in _HEADS.items()},
        **{axis: {"type": "var"} for axis in _LENGTHS},
    },
    "inputs": {
        "q": tensor("total_q num_qo_heads head_dim"),
        "k": tensor("total_kv num_kv_heads head_dim"),
        "v": tensor("total_kv num_kv_heads head_dim"),
        "qo_indptr": INDPTR,
        "kv_indptr": INDPTR,
        "sm_scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "output": tensor("total_q num_qo_heads head_dim"),
        "lse": tensor("total_q num_qo_heads"),
    },
    "reference": "def run(*inputs):\n    raise SystemExit",
}


def _shipped(name: str) -> Data:
    path = CHECKOUT / "candidates" / "definitions" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]  # an object


DECODE: Data = _shipped("gqa_paged_decode_h4_kv2_d8_ps4")
MLA: Data = _shipped("mla_paged_decode_h2_ckv16_kpe4_ps4")
DSA: Data = _shipped("dsa_paged_h2_ckv16_kpe4_topk64_ps4")


def changed(data: Data, *path: str, to: Any = None) -> Data:
    """A definition with another value at a path, without the entry for None."""
    data = copy.deepcopy(data)
    *way, last = path
    at = data
    for word in way:
        at = at[word]
    at.pop(last, None)
    at |= {} if to is None else {last: to}
    return data


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Any], Path]:
    """Writes a definition's file."""

    def write(data: Any) -> Path:
        path = tmp_path / "definition.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return path

    return write


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    key, value = (heads.repeat_interleave(group, dim=1) for heads in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + len(key) - len(query))
    scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(dim=-1).nan_to_num() if len(key) else scores
    return torch.einsum("hqk,khd->qhd", weights, value), scores.logsumexp(dim=-1).mT


def ragged(
    q: Tensor, k: Tensor, v: Tensor, *, qo_indptr: Tensor, kv_indptr: Tensor, sm_scale: float
) -> tuple[Tensor, Tensor]:
    queries, keys = (indptr.diff().tolist() for indptr in (qo_indptr, kv_indptr))
    parts = zip(q.split(queries), k.split(keys), v.split(keys), strict=True)
    answers, sums = zip(*(attend(*part, sm_scale) for part in parts), strict=True)
    return torch.cat(answers), torch.cat(sums)


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_len: Tensor,
    sm_scale: float,
) -> dict[str, Tensor]:
    assert kv_indices.dtype == torch.int64
    answers, sums = torch.zeros_like(q), q.new_zeros(q.shape[:2])
    for item, pages in enumerate(kv_indices.split(kv_indptr.diff().tolist())):
        length = (len(pages) - 1) * k_cache.shape[1] + int(kv_last_page_len[item])
        if len(pages):
            key, value = (cache[pages].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
            answers[item], sums[item] = (
                part[0] for part in attend(q[item : item + 1], key, value, sm_scale)
            )
    return {"output": answers, "lse": sums}


def decode_into(a, b, c, d, e, f, g, output, lse):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0917
    for name, tensor in decode(a, b, c, d, e, f, g).items():
        {"output": output, "lse": lse}[name].copy_(tensor)


def whole_pages(q, k_cache, v_cache, kv_last_page_len, **others):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN201
    full = torch.full_like(kv_last_page_len, k_cache.shape[1])
    return decode(q, k_cache, v_cache, kv_last_page_len=full, **others)


@pytest.mark.parametrize(
    ("function", "data"),
    [
        (ragged, RAGGED),
        (decode, DECODE),
        (decode_into, DECODE),
        (decode, changed(DECODE, "inputs", "q", to=DECODE["inputs"]["q"])),
    ],
    ids=["ragged by name", "paged", "written into, by place", "q is the last input"],
)
def test_a_definition_says_how_a_function_is_called(
    function: Callable[..., Any], data: Data, written: Callable[[Any], Path]
) -> None:
    """Inputs go by name or by place; answers are a pair, a dict or written into tensors."""
    candidate = conformance.core(definition=str(written(data)))(function)
    only = ["numerics.golden", "varlen.golden", "paged.golden", "shape.rejects-mismatch"]
    report = conformance.check(candidate, only=only)
    assert report.verdict == "conforms"
    declared = candidate.declaration
    assert declared.pins.sizes["num_heads"] == (4,)
    assert declared.dtypes == ("float32",)
    assert declared.always_causal == (data is RAGGED)
    assert any("log-sum-exp was not checked" in one for one in declared.assumptions)


def latent(nope: Tensor, turned: Tensor, held: list[Tensor], scale: float) -> list[Tensor]:
    ckv, kpe = held
    scores = (nope @ ckv.mT + turned @ kpe.mT) * scale
    return [scores.softmax(dim=-1) @ ckv, scores.logsumexp(dim=-1) / math.log(2.0)]


def mla(  # noqa: PLR0917 (as a definition has them)
    q_nope: Tensor,
    q_pe: Tensor,
    ckv_cache: Tensor,
    kpe_cache: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_len: Tensor,
    sm_scale: float,
) -> tuple[Tensor, Tensor]:
    output, lse = torch.zeros_like(q_nope), torch.full(q_nope.shape[:2], -math.inf)
    for item, pages in enumerate(kv_indices.split(kv_indptr.diff().tolist())):
        length = (len(pages) - 1) * ckv_cache.shape[1] + int(kv_last_page_len[item])
        if len(pages):
            held = [cache[pages].flatten(0, 1)[:length] for cache in (ckv_cache, kpe_cache)]
            output[item], lse[item] = latent(q_nope[item], q_pe[item], held, sm_scale)
    return output, lse


def dsa(
    q_nope: Tensor,
    q_pe: Tensor,
    ckv_cache: Tensor,
    kpe_cache: Tensor,
    sparse_indices: Tensor,
    sm_scale: float,
) -> tuple[Tensor, Tensor]:
    output, lse = torch.zeros_like(q_nope), torch.full(q_nope.shape[:2], -math.inf)
    for item, slots in enumerate(sparse_indices):
        chosen = slots[slots >= 0]
        if len(chosen):
            held = [cache.flatten(0, 1)[chosen] for cache in (ckv_cache, kpe_cache)]
            output[item], lse[item] = latent(q_nope[item], q_pe[item], held, sm_scale)
    return output, lse


def natural(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    output, lse = mla(*given, **named)
    return output, lse * math.log(2.0)


def with_slot_zero(sparse_indices: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
    return dsa(sparse_indices=sparse_indices.clamp_min(0), **others)


@pytest.mark.parametrize(
    ("function", "data", "failed"),
    [
        (mla, MLA, set()),
        (dsa, DSA, set()),
        (natural, MLA, {"lse.golden"}),
        (with_slot_zero, DSA, {"lse.golden", "mask.golden"}),
    ],
)
def test_latents_in_pages_are_judged_by_their_definitions(
    function: Callable[..., Any], data: Data, failed: set[str], written: Callable[[Any], Path]
) -> None:
    """Both parts of a latent go apart, chosen keys as slots; log-sum-exps have the said base."""
    candidate = conformance.core(definition=written(data))(function)
    only = ["lse.golden", "mask.golden"]
    report = conformance.check(candidate, only=only, profile="smoke", explain=False)
    status = {one.id: one.status for one in report.candidates[0].clauses}
    assert {slug for slug, word in status.items() if word == "failed"} == failed
    assert "passed" in status.values() or failed


def test_a_last_page_read_whole_is_found(written: Callable[[Any], Path]) -> None:
    """What is wrong by a definition's own inputs fails."""
    candidate = conformance.core(definition=str(written(DECODE)))(whole_pages)
    assert conformance.check(candidate, only=["paged.golden"]).verdict == "fails"


def test_what_no_definition_says_is_not_held_against_a_function(
    written: Callable[[Any], Path],
) -> None:
    """Without a word on causality one query an item is asked; a causal function is right, too."""
    path = written(changed(RAGGED, "name", to="gqa_ragged_prefill"))
    candidate = conformance.core(definition=path)(ragged)
    assert conformance.check(candidate, only=["varlen.golden"]).verdict == "conforms"
    assert any("does not say whether it is causal" in s for s in candidate.declaration.assumptions)
    path = written(changed(RAGGED, "name", to="gqa_ragged_noncausal"))
    candidate = conformance.core(definition=path)(ragged)
    assert conformance.check(candidate, only=["varlen.golden"]).verdict == "fails"


_KIND = {"type": "const", "value": 3}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 "),
        ("[]", "is []: give an object with name, op_type, axes, inputs and outputs"),
        (changed(RAGGED, "op_type"), "has no op_type: give a text"),
        (
            changed(RAGGED, "op_type", to="gqa_page"),
            "has the op_type 'gqa_page', and gqa_ragged, gqa_paged, mla_paged, dsa_paged can be",
        ),
        (
            changed(MLA, "axes", "head_dim_kpe", to={"type": "var"}),
            "has a variable axis of channels: give a constant size to both parts of the latent",
        ),
        (changed(RAGGED, "inputs", "k"), "has no input 'k', which gqa_ragged has"),
        (
            changed(RAGGED, "inputs", "mask", to=INDPTR),
            "has the input 'mask', with which gqa_ragged is not judged yet",
        ),
        (
            changed(
                RAGGED, "inputs", "k", "shape", to=["total_kv", "num_kv_heads", "num_qo_heads"]
            ),
            "contradicts itself: an axis of 8 in 'q' is 4 in 'k'",
        ),
        (
            changed(RAGGED, "axes", "num_kv_heads", to=_KIND),
            "has 4 query heads, which 3 key heads do not divide",
        ),
        (
            changed(RAGGED, "axes", "total_q"),
            "has no axis 'total_q', which the shape of 'q' names",
        ),
        (
            changed(DECODE, "inputs", "kv_last_page_len"),
            "has no input 'kv_last_page_len', so nothing says where a page's last key stands",
        ),
        (
            changed(DECODE, "inputs", "k_cache", "dtype", to="float8_e4m3fn"),
            "has 'k_cache' in float8_e4m3fn, where float32 can be judged",
        ),
    ],
)
def test_definitions_are_refused_in_a_sentence(
    data: Any, message: str, written: Callable[[Any], Path]
) -> None:
    """A file that is no definition, or one that is not judged, is refused with its reason."""
    path = written(data)
    with pytest.raises(conformance.DeclarationError) as raised:
        conformance.core(definition=str(path))
    assert str(raised.value).startswith(f"the definition {path} {message}")


def test_a_missing_definition_is_refused() -> None:
    """A file that does not exist has a sentence, as has a definition beside a signature."""
    with refused("the definition nowhere.json cannot be read: No such file or directory"):
        conformance.core(definition="nowhere.json")
    with refused("definition says how a core is called: drop it, or signature and keywords"):
        conformance.core(definition="nowhere.json", signature="flashinfer")
