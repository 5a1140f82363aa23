"""Holds an attention against the test vectors: python vectors.py FOLDER. It needs numpy alone."""

import json
import math
import sys
from pathlib import Path

import numpy as np


def read(data, place):
    """One tensor of a case; the 16 bits of a bfloat16 are the upper half of a float32."""
    count = math.prod(place["shape"])
    array = np.frombuffer(data, place["stored"], count, place["offset"]).reshape(place["shape"])
    if place["dtype"] == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def attention(case, query, key, value, mask=None):
    """What is to be checked: put your own in its place."""
    query, key, value = (x.astype(np.float64) for x in (query, key, value))
    group = query.shape[1] // key.shape[1]
    scores = query @ key.repeat(group, axis=1).swapaxes(-1, -2) * case["scale"]
    if case["softcap"] is not None:
        scores = case["softcap"] * np.tanh(scores / case["softcap"])
    rows, columns = np.ogrid[: scores.shape[-2], : scores.shape[-1]]
    ahead = columns - rows - case["diagonal"]
    left, right = case["window"] or (-1, -1)
    hidden = (ahead > 0) & case["causal"] | (left >= 0) & (ahead < -left)
    hidden = hidden | (right >= 0) & (ahead > right)
    form = case["mask"] and case["mask"]["form"]
    if form == "bias":
        scores = scores + mask
    elif form is not None:
        hidden = hidden | {"keep": mask == 0, "drop": mask == 1, "lengths": columns >= mask}[form]
    scores = np.where(hidden, -np.inf, scores)
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(largest), 0.0, largest))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1.0, total) @ value.repeat(group, axis=1)


def passes(folder, entry):
    """Whether the answer to a case is within its bound wherever it counts."""
    path = folder / entry["file"]
    case = json.loads(path.read_text(encoding="utf-8"))
    data = (path.parent / case["data"]["file"]).read_bytes()
    tensors = {name: read(data, place) for name, place in case["tensors"].items()}
    expected, bound = tensors.pop("expected"), tensors.pop("bound")
    counts = (tensors.pop("judged") == 1) | (tensors.pop("empty") == 1)
    error = np.abs(attention(case, **tensors) - expected)
    return bool((error <= bound)[counts].all())  # not <= holds of NaN, too


folder = Path(sys.argv[1])
cases = json.loads((folder / "index.json").read_text(encoding="utf-8"))["cases"]
failed = [entry["id"] for entry in cases if not passes(folder, entry)]
print(f"{len(cases) - len(failed)} of {len(cases)} cases pass", *failed[:20], sep="\n")
sys.exit(1 if failed else 0)
