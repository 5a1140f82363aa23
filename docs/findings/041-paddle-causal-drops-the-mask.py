# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for paddle.
"""paddlepaddle: is_causal drops attn_mask, and hides later keys by adding -10000 alone.

Exits 0 while the defect is there, 1 when it is gone.
"""

import sys

import paddle

paddle.seed(0)
attend = paddle.nn.functional.scaled_dot_product_attention
query, key, value = (paddle.randn([1, 5, 2, 4]) for _ in range(3))
limit = 1e-4


def apart(first: paddle.Tensor, second: paddle.Tensor) -> float:
    """The largest difference of two answers."""
    return float((first - second).abs().max())


shown = paddle.to_tensor([True, True, True, False, False])
padding = shown.reshape([1, 1, 1, 5]).expand([1, 1, 5, 5])
triangle = paddle.tril(paddle.ones([5, 5], dtype="int32")).astype("bool").reshape([1, 1, 5, 5])
both = attend(query, key, value, attn_mask=padding & triangle)
flagged = attend(query, key, value, attn_mask=padding, is_causal=True)
alone = attend(query, key, value, is_causal=True)
print(f"a mask with is_causal: {apart(flagged, both):.2g} from both in one mask")
print(f"the same: {apart(flagged, alone):.2g} from is_causal without the mask")
dropped = apart(flagged, alone) < limit < apart(flagged, both)

# The score of the second key is 20000 above that of the first.
large = paddle.to_tensor([[[[200.0]], [[200.0]]]])
keys = paddle.to_tensor([[[[-50.0]], [[50.0]]]])
values = paddle.to_tensor([[[[1.0]], [[2.0]]]])
first = float(attend(large, keys, values, is_causal=True)[0, 0, 0, 0])
masked = float(attend(large, keys, values, attn_mask=triangle[:, :, :2, :2])[0, 0, 0, 0])
print(f"the first query, whose own key has the value 1: {first:g} by is_causal, {masked:g} by mask")
seen = abs(first - 2) < limit and abs(masked - 1) < limit
wrong = dropped and seen
print("is_causal drops the mask and shows later keys" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
