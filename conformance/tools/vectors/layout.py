"""The words of the format that writing and checking share; it imports nothing."""

from __future__ import annotations

from typing import Final

# Goes up when a reader of the last one would misread.
FORMAT: Final = 1
INDEX: Final = "index.json"
CASES: Final = "cases"
SCHEMAS: Final = ("index.schema.json", "case.schema.json")
README: Final = "README.md"
# Every tensor begins at a multiple of so many bytes.
ALIGNED: Final = 8
SIZES: Final = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "bool": 1,
}
