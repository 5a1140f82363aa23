"""ONNX files as tools make them of models, their breaks, and what the check says of each.

``tox -e made-graphs`` installs transformers and the tools, and runs ``python
benchmarks/made_graphs.py``: each row of ``FILES`` is a tiny model with random weights, exported as
``model_table`` does, and changed by a tool (quantised, in float16, made smaller, fused), or built
by onnxruntime-genai. Of each file it makes the breaks of ``packaged_graphs``; those of a decoder
with a cache exchange two pasts. A file shall not fail, a break shall fail or be told in a warning.
It prints one line for each and ends with 1 where one is otherwise; a tool that is not installed is
said. ``--only qwen`` asks some, ``--kinds original`` the files alone, ``--markdown FILE`` writes
the table. Optimum needs an older transformers, and is left to an environment of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import onnx
from model_table import checked, export_within
from onnx import ModelProto
from packaged_graphs import BREAKS, fused, halved, quantised

HEADINGS: Final = (
    *("file", "kind", "as expected"),
    *("attentions", "distinct", "model", "each", "seconds", "findings"),
)
Tool = Callable[[Path, Path], None]


def slimmed(path: Path, target: Path) -> None:
    """Write the file as onnxslim makes it smaller."""
    import onnxslim  # noqa: PLC0415 (for this alone)

    onnxslim.slim(str(path), str(target))


def simplified(path: Path, target: Path) -> None:
    """Write the file as onnxsim folds it."""
    import onnxsim  # noqa: PLC0415 (for this alone)

    onnx.save(onnxsim.simplify(onnx.load(path))[0], target)


def rewritten(path: Path, target: Path) -> None:
    """Write the file with the fusions of onnxscript."""
    import onnx_ir  # noqa: PLC0415 (for this alone)
    from onnxscript.rewriter.ort_fusions import optimize_for_ort  # noqa: PLC0415

    onnx_ir.save(optimize_for_ort(onnx_ir.load(path))[0], target)


def halved_by_common(path: Path, target: Path) -> None:
    """Write the file in float16, as onnxconverter-common does."""
    from onnxconverter_common import float16  # noqa: PLC0415 (for this alone)

    onnx.save(float16.convert_float_to_float16(onnx.load(path)), target)


def stepped(path: Path, target: Path) -> None:
    """Write the file of pictures quantised by steps that some calls show."""
    import numpy as np  # noqa: PLC0415 (for this alone)
    from onnxruntime.quantization import (  # noqa: PLC0415
        CalibrationDataReader,
        QuantFormat,
        quantize_static,
    )

    class Pictures(CalibrationDataReader):  # type: ignore[misc]  # without types
        def __init__(self) -> None:
            generator = np.random.default_rng(0)
            drawn = (generator.standard_normal((2, 3, 16, 16)) for _ in range(4))
            self.feeds = iter([{"pixel_values": own.astype(np.float32)} for own in drawn])

        def get_next(self) -> Any:
            return next(self.feeds, None)

    quantize_static(str(path), str(target), Pictures(), quant_format=QuantFormat.QDQ)


def plain(path: Path, target: Path) -> None:
    """Write the file as the exporter made it."""
    onnx.save(onnx.load(path), target)


# The architecture, the exporter, and the tool.
FILES: Final[Mapping[str, tuple[str, str, Tool]]] = {
    "bert int8": ("bert", "traced 18", quantised),
    "bert float16": ("bert", "traced 18", halved_by_common),
    "bert slim": ("bert", "traced 18", slimmed),
    "bert fused by onnxscript": ("bert", "dynamo 20", rewritten),
    "distilbert fused": ("distilbert", "traced 18", fused),
    "roberta sim": ("roberta", "traced 18", simplified),
    "deberta": ("deberta", "dynamo 20", plain),
    "gpt2 fused": ("gpt2", "traced 18", fused),
    "gpt2 int8": ("gpt2", "traced 18", quantised),
    "llama": ("llama", "dynamo 20", plain),
    "llama slim": ("llama", "dynamo 20", slimmed),
    "llama float16": ("llama", "dynamo 20", halved),
    "llama fused by onnxscript": ("llama", "dynamo 20", rewritten),
    "mistral sim": ("mistral", "traced 18", simplified),
    "gemma2": ("gemma2", "dynamo 20", plain),
    "t5 slim": ("t5", "traced 18", slimmed),
    "bart int8": ("bart", "traced 18", quantised),
    "bart sim": ("bart", "traced 18", simplified),
    "whisper": ("whisper", "dynamo 20", plain),
    "vit steps": ("vit", "traced 18", stepped),
    "vit slim": ("vit", "traced 18", slimmed),
    "clip sim": ("clip", "traced 18", simplified),
}
# By onnxruntime-genai's builder: its precision, and the classes and sizes of the model.
_SIZES: Final[Mapping[str, Any]] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
BUILT: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "genai llama": ("fp32", "Llama", _SIZES),
    "genai llama int4": ("int4", "Llama", _SIZES),
    "genai qwen3": ("fp32", "Qwen3", {**_SIZES, "head_dim": 16}),
    "genai gemma2": ("fp32", "Gemma2", {**_SIZES, "head_dim": 16, "sliding_window": 8}),
    "genai gpt-oss": (
        "fp32",
        "GptOss",
        {**_SIZES, "head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}


def built(name: str, folder: Path, target: Path) -> None:
    """Write a decoder as onnxruntime-genai builds it; raises what the builder's process raises."""
    import torch  # noqa: PLC0415 (for this alone)
    import transformers  # noqa: PLC0415
    from tokenizers import Tokenizer, models  # noqa: PLC0415

    precision, kind, sizes = BUILT[name]
    own, made = folder / f"{name} model", folder / f"{name} built"
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(own)
    words = {f"t{at}": at for at in range(config.vocab_size)}
    tokens = Tokenizer(models.WordLevel(words, unk_token="t3"))  # noqa: S106 (a word)
    special = {"bos_token": "t1", "eos_token": "t2", "pad_token": "t0", "unk_token": "t3"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, **special).save_pretrained(own)
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(own)]
    command += ["-o", str(made), "-p", precision, "-e", "cpu", "-c", str(folder / "cache")]
    subprocess.run(command, check=True, capture_output=True)
    onnx.save(onnx.load(made / "model.onnx"), target)


def with_pasts_exchanged(path: Path, target: Path) -> None:
    """Write the file with the past keys of two layers exchanged."""
    model: ModelProto = onnx.load(path)
    first, second = [own.name for own in model.graph.input if own.name.endswith(".key")][:2]
    other = {first: second, second: first}
    for node in model.graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = other.get(name, name)
    onnx.save(model, target)


def made(name: str, folder: Path, target: Path) -> str:
    """Write a file; returns why that cannot be done, "" where it is."""
    try:
        if name in BUILT:
            built(name, folder, target)
            return ""
        architecture, exporter, tool = FILES[name]
        exported = folder / f"{architecture}-{exporter}.onnx"
        why = "" if exported.is_file() else export_within(architecture, exporter, exported)
        if not why:
            tool(exported, target)
    except Exception as error:  # noqa: BLE001 (whatever a tool raises is what the table says)
        return f"not made: {type(error).__name__}: {error}"[:160]
    return why


def main() -> int:
    """Print the table, line by line as it is made; 1 where a verdict is not as expected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names of files")
    parser.add_argument("--kinds", nargs="*", choices=["original", *BREAKS, "pasts"])
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    lines, wrong = [" | ".join(HEADINGS), " | ".join(["---"] * len(HEADINGS))], 0
    with tempfile.TemporaryDirectory(prefix="conformance-made-") as place:
        folder = Path(place)
        for name in (*FILES, *BUILT):
            if not any(part in name for part in arguments.only):
                continue
            original = folder / f"{name}.onnx".replace(" ", "_")
            refused = made(name, folder, original)
            breaks = {"pasts": with_pasts_exchanged} if name in BUILT else BREAKS
            for kind in ("original", *breaks):
                if kind not in (arguments.kinds or ("original", *breaks)):
                    continue
                path = original
                if kind != "original" and not refused:
                    path = original.with_stem(f"{original.stem}-{kind}")
                    try:
                        breaks[kind](original, path)
                    except ValueError as error:
                        refused = f"not broken: {error}"
                cells = ["", "", "", "", "", refused]
                cells = cells if refused else checked(str(path), path.with_suffix(".json"))
                said = f"{cells[2]}, {cells[3]}"
                told = "fails" in said or (kind != "original" and "unlike" in cells[-1])
                good = bool(refused) or told == (kind != "original")
                wrong += not good
                row = [name, kind, "yes" if good else "no", *cells]
                lines.append(" | ".join(cell.replace("|", "/") for cell in row))
                print(lines[-1], flush=True)
                if arguments.markdown:
                    arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
