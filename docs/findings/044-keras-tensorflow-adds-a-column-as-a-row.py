# ruff: noqa: INP001, T201 (a script that prints)
# Runs in the environment of the survey for tensorflow.
"""keras on tensorflow: what is added along one axis is added along another of the same size.

Exits 0 while the defect is there, 1 when it is gone.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

matrix, column = np.zeros((3, 3), np.float32), np.array([[1.0], [2.0], [3.0]], np.float32)
added = np.array(keras.ops.add(matrix, column))
print(f"zeros of [3, 3] and a column of 1, 2, 3:\n{added}")

# 2 heads of size 1: their biases are a column, too, and 2 tokens are as many as heads.
keras.utils.set_random_seed(0)
layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=1, bias_initializer="random_normal")
tokens = np.random.default_rng(0).standard_normal((1, 3, 4)).astype(np.float32)
keep = np.array([[[True, True, False]]])
hidden = np.array(layer(tokens[:, :1], tokens, attention_mask=keep))
absent = np.array(layer(tokens[:, :1], tokens[:, :2]))
off = float(abs(hidden - absent).max())
print(f"the third of 3 keys is hidden, or absent: the answers are {off:.3g} apart")

as_row = np.array_equal(added, matrix + column.T) and not np.array_equal(added, matrix + column)
wrong = as_row and not np.allclose(hidden, absent, atol=1e-4)
print("a column is added as a row" if wrong else "the defect is gone")
sys.exit(0 if wrong else 1)
