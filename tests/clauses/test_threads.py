"""state.threads: kernels that are right on one thread alone, and what is said of them."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import core
from torch import Tensor

import conformance
from conformance.calls.threads import threads, why_one_thread
from conformance.clauses.registry import all_clauses

KERNEL = r"""
#include <math.h>
#include <stdlib.h>
#ifdef SHARED
#define OWN scores
#else
#define OWN mine
#endif
void attend(const float *q, const float *k, const float *v, float *o,
            long heads, long rows, long keys, long width, long channels) {
  float *scores = malloc(sizeof(float) * (keys + 1));
  #pragma omp parallel for schedule(static)
  for (long h = 0; h < heads; h++) {
    float *mine = malloc(sizeof(float) * (keys + 1));
    for (long i = 0; i < rows; i++) {
      float top = -INFINITY, sum = 0;
      for (long j = 0; j < keys; j++) {
        float s = 0;
        const float *query = q + (h * rows + i) * width, *key = k + (h * keys + j) * width;
        for (long c = 0; c < width; c++) s += query[c] * key[c];
        OWN[j] = s / sqrtf(width);
        if (OWN[j] > top) top = OWN[j];
      }
      for (long j = 0; j < keys; j++) { OWN[j] = expf(OWN[j] - top); sum += OWN[j]; }
      for (long c = 0; c < channels; c++) {
        float answer = 0;
        for (long j = 0; j < keys; j++) answer += OWN[j] * v[(h * keys + j) * channels + c];
        o[(h * rows + i) * channels + c] = answer / sum;
#ifdef BESIDE
        if (i == rows - 1 && h + 1 < heads) o[(h + 1) * rows * channels + c] = answer / sum;
#endif
      }
    }
    free(mine);
  }
  free(scores);
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A kernel in C that is built with OpenMP, as a candidate; by a macro that breaks it."""
    compiler = shutil.which("gcc")
    if compiler is None:
        why = "no gcc is installed: no kernel that has threads was asked"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernel.c").write_text(KERNEL, encoding="utf-8")

    def build(macro: str) -> Any:
        built = folder / f"{macro.lower()}.so"
        flags = ("-O1", "-fopenmp", "-shared", "-fPIC", f"-D{macro}")
        command = (compiler, *flags, "-o", str(built), str(folder / "kernel.c"), "-lm")
        subprocess.run(command, check=True)
        return kernel(ctypes.CDLL(str(built)))

    return build


def kernel(library: ctypes.CDLL) -> Any:
    """A candidate that calls ``attend`` of a library."""

    @conformance.core(without=["gradients"])
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        (batch, heads, rows, width), (keys, channels) = query.shape, value.shape[2:]
        if key.shape != (batch, heads, keys, width) or value.shape[:2] != key.shape[:2]:
            msg = "the sizes of query, key and value do not fit"
            raise ValueError(msg)
        answer = torch.zeros(batch, heads, rows, channels)
        tensors = [each.contiguous() for each in (query, key, value)] + [answer]
        places = [ctypes.c_void_p(each.data_ptr()) for each in tensors]
        sizes = (batch * heads, rows, keys, width, channels)
        library.attend(*places, *map(ctypes.c_long, sizes))
        return answer

    return attend


def test_a_kernel_whose_threads_are_apart_conforms(compiled: Callable[[str], Any]) -> None:
    """Nothing is said of a right one."""
    report = conformance.check(compiled("RIGHT"), only=("state.threads", "numerics.golden"))
    assert [clause.status for clause in report.clauses] == ["passed", "passed"]


def test_scores_that_threads_share_are_a_race(compiled: Callable[[str], Any]) -> None:
    """It is right on one thread, so that no other clause sees it."""
    shared = compiled("SHARED")
    reports = (conformance.check(shared, only="state.threads", seed=seed) for seed in range(8))
    (cause,) = next(report.causes for report in reports if report.causes)  # a busy machine hides it
    assert (cause.name, cause.clauses) == ("race", ("state.threads",))
    assert "threads write one place" in cause.text


def test_a_row_that_is_written_to_the_next_head_is_seen(compiled: Callable[[str], Any]) -> None:
    """On one thread the next head writes over it, in the order of heads."""
    report = conformance.check(compiled("BESIDE"), only=("state.threads", "numerics.golden"))
    (cause,) = report.causes
    assert cause.name in ("threads-change-answer", "race")
    assert cause.clauses == ("state.threads",)


def test_what_is_not_finite_on_one_thread_either_is_no_matter_of_threads() -> None:
    """NaN for every row whose keys are all hidden is the same on any number of threads."""

    @conformance.core(masks=["keep"])
    def inverted(
        query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None
    ) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        scores = scores if keep is None else scores.masked_fill(keep, -torch.inf)
        return scores.softmax(-1) @ value

    report = conformance.check(inverted, only=("state.threads", "mask.golden"))
    status = {clause.id: clause.status for clause in report.clauses}
    assert status == {"mask.golden": "failed", "state.threads": "passed"}
    assert [cause.name for cause in report.causes] == ["mask-inverted"]


def test_threads_are_set_and_taken_back() -> None:
    """Also where the process was started for one thread alone."""
    torch.set_num_threads(1)
    with threads(4):
        assert torch.get_num_threads() == 4
    assert torch.get_num_threads() == 1


def test_a_process_that_is_limited_to_one_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clause does not apply, and the verdict says that one thread alone was asked."""
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    assert why_one_thread() == "it runs on one thread: OMP_THREAD_LIMIT is 1"
    report = conformance.check(core(), only=("state.threads", "shape.output"))
    assert report.candidates[0].reason == (
        "every applicable MUST clause passed, asked on one thread alone"
    )


def test_isolated_candidates_are_asked_on_one_thread() -> None:
    """Their process has one, which the reason says."""
    clauses = {clause.id: clause for clause in all_clauses()}
    reason = clauses["state.threads"].not_applicable(dataclasses.replace(core(), isolated=True))
    assert reason == "only without --isolated: there it runs on one thread"
