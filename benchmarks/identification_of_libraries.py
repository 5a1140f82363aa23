"""What ``conformance identify`` says of layers of libraries, and what ``check`` says of that.

``python benchmarks/identification_of_libraries.py FOLDER [NAME …]`` identifies the layers of
``benchmarks/library_attention.py`` (or those that are named) as a user does on the command line,
writes declarations and facts into the folder, and prints the table of ``docs/identification.md``
from all facts that lie there. It runs where the libraries are installed; ``--table`` only prints.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

LAYERS: Final = Path(__file__).with_name("library_attention.py")
# What is identified, in the order of the table, and the distribution that it comes from.
NAMES: Final = {
    "torch_multihead": "torch",
    "timm_vision": "timm",
    "diffusers_self": "diffusers",
    "diffusers_cross": "diffusers",
    "torchtune": "torchtune",
    "bert_eager": "transformers",
    "bert_sdpa": "transformers",
    "gpt2_eager": "transformers",
    "gpt2_sdpa": "transformers",
    "vit": "transformers",
    "clip": "transformers",
    "t5": "transformers",
    "llama": "transformers",
    "llama_with_tables": "transformers",
    "whisper": "openai-whisper",
    "open_clip": "open_clip_torch",
    "x_transformers": "x-transformers",
    "x_transformers_flash": "x-transformers",
    "x_transformers_qk_norm": "x-transformers",
    "vit_pytorch": "vit-pytorch",
    "vit_pytorch_qk_norm": "vit-pytorch",
    "vit_pytorch_small": "vit-pytorch",
    "local_attention": "local-attention",
    "mpnet": "transformers",
    "esm": "fair-esm",
}
COLUMNS: Final = ("layer", "library", "what identify says", "deviations", "check", "why")
_SECONDS: Final = 600


def identify(name: str, folder: Path) -> None:
    """Run the command for one layer; its files lie in the folder."""
    facts = folder / f"{name}.json"
    facts.unlink(missing_ok=True)
    command = [sys.executable, "-m", "conformance", "identify", f"{LAYERS}:{name}"]
    command += ["--output", str(folder / f"declared_{name}.py"), "--json", str(facts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if not facts.exists():
        sys.stderr.write(f"{name}: {done.stderr.strip()}\n")
        return
    record = json.loads(facts.read_text(encoding="utf-8"))
    library = NAMES[name]
    record["library"] = f"{library} {importlib.metadata.version(library)}"
    facts.write_text(json.dumps(record, indent=1), encoding="utf-8")


def row(name: str, record: dict[str, Any]) -> str:
    """One line of the table."""
    values = {fact["fact"]: fact["value"] for fact in record["facts"]}
    if record["identified"]:
        said = f"{values['inputs']}, {values['axes']}"
        masks = sorted(
            {
                f"{value['parameter']} ({_does(value)})"
                for fact, value in values.items()
                if fact.startswith("mask ") and isinstance(value, dict) and value["form"]
            }
        )
        said += f"; {', '.join(masks)}" if masks else "; no mask"
        flag = (values.get("causal") or {}).get("flag")
        said += f"; {flag}" if flag else ""
        said += "".join(f"; {one}" for one in record.get("beyond") or ())
    else:
        said = f"nothing: {record['reason']}"
    deviations = ", ".join(one["observed"] for one in record.get("deviations") or ())
    checked = record.get("check") or {"verdict": "", "failed": []}
    why = "; ".join(f"`{one['clause']}`" for one in checked["failed"])
    if checked["verdict"] == "inconclusive" and not why:
        why = checked["reason"].partition(":")[0]
    cells = [name, record["library"], said, deviations, checked["verdict"], why]
    return f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |"


def _does(value: dict[str, Any]) -> str:
    """The form of a mask, or that it is none."""
    added = value.get("operation") == "add-to-kept"
    return "bool: added as 1, hides nothing" if added else str(value["form"])


def table(folder: Path) -> Iterator[str]:
    """The whole table, line by line."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for name in NAMES:
        facts = folder / f"{name}.json"
        if facts.exists():
            yield row(name, json.loads(facts.read_text(encoding="utf-8")))


def main(arguments: list[str]) -> int:
    """Identify what is named, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of layers; all by default")
    parser.add_argument("--table", action="store_true", help="print the table of what lies there")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in () if options.table else options.names or NAMES:
        identify(name, options.folder)
    print("\n".join(table(options.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
