"""The names of the dtypes a candidate may be judged in."""

from typing import Final

DTYPES: Final = ("float32", "float64", "float16", "bfloat16")
