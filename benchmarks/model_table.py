"""Architectures of a library, exported in several ways, and what the check says of each model.

``tox -e model-table`` installs transformers and runs ``python -m benchmarks.model_table``: tiny
models with random weights, nothing is downloaded. It prints one line for each architecture and
exporter: attentions found, how many of them are distinct, the verdict on the model and those on its
attentions, processor seconds of the check, and what failed. An export and a check have ten minutes
each. ``--markdown FILE`` writes the table, ``--only bert`` asks one; ``--export FILE`` just writes
the graph of the one that ``--only`` and ``--ways`` name.

``--costs`` measures instead, with encoders of plain torch: processor seconds of a check of the
attentions and of the model by the number of layers, and what the process of a large graph holds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from torch import nn

from candidates.exports import by_tracing
from candidates.models.catalogue import encoder
from conformance.graphs.process import GraphProcess, Setting

EXPORTERS: Final = ("traced 18", "dynamo 20", "dynamo 23")
# The module itself, attending in the library's own code or by torch's function.
MODULES: Final = ("torch eager", "torch sdpa")
WAYS: Final = (*EXPORTERS, *MODULES)
HEADINGS: Final = (
    "architecture",
    "exporter",
    "attentions",
    "distinct",
    "model",
    "each",
    "seconds",
    "findings",
)
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_SECONDS: Final = 600
_LONGEST: Final = 160
_TEXT: Final = ("input_ids", "attention_mask")
_TWO_TEXTS: Final = (*_TEXT, "decoder_input_ids")
_SIZES: Final[Mapping[str, Any]] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}
_GROUPED: Final = {**_SIZES, "num_key_value_heads": 2}
_TOWERS: Final[Mapping[str, Any]] = {
    "vocab_size": 50,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model of the library by the names of its classes, with the inputs it is exported with."""

    model: str
    sizes: Mapping[str, Any]
    inputs: Sequence[str] = _TEXT
    cached: bool = False

    def made(self, **how: str) -> nn.Module:
        """The model with random weights, in evaluation mode; raises what the library raises."""
        import transformers  # noqa: PLC0415 (what is measured goes without it)

        own = getattr(transformers, self.model)
        torch.manual_seed(0)
        module: nn.Module = own(own.config_class(**self.sizes, **how)).eval()
        return module


ARCHITECTURES: Final = {
    "bert": Architecture(model="BertModel", sizes=_SIZES),
    "distilbert": Architecture(
        model="DistilBertModel",
        sizes={"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
    "roberta": Architecture(model="RobertaModel", sizes={**_SIZES, "max_position_embeddings": 66}),
    "deberta": Architecture(
        model="DebertaV2Model",
        sizes={
            **_SIZES,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_biased_input": False,
            "max_relative_positions": 16,
        },
    ),
    "gpt2": Architecture(
        model="GPT2Model",
        sizes={"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 64},
        cached=True,
    ),
    "llama": Architecture(model="LlamaModel", sizes=_GROUPED, cached=True),
    "mistral": Architecture(
        model="MistralModel", sizes={**_GROUPED, "sliding_window": 4}, cached=True
    ),
    "gemma2": Architecture(
        model="Gemma2Model", sizes={**_GROUPED, "head_dim": 8, "sliding_window": 4}, cached=True
    ),
    "gpt-oss": Architecture(
        model="GptOssModel",
        # Experts multiplied in one batch: no exporter knows what the library does by default.
        sizes={
            **_GROUPED,
            "head_dim": 8,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "experts_implementation": "batched_mm",
        },
        cached=True,
    ),
    "falcon": Architecture(
        model="FalconModel",
        sizes={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 50,
        },
        cached=True,
    ),
    "mpt": Architecture(
        model="MptModel",
        sizes={"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 50, "max_seq_len": 64},
        cached=True,
    ),
    "t5": Architecture(
        model="T5Model",
        sizes={
            "vocab_size": 50,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        inputs=_TWO_TEXTS,
        cached=True,
    ),
    "bart": Architecture(
        model="BartModel",
        sizes={**_TOWERS, "max_position_embeddings": 64},
        inputs=_TWO_TEXTS,
        cached=True,
    ),
    "whisper": Architecture(
        model="WhisperModel",
        sizes={
            **_TOWERS,
            "max_source_positions": 20,
            "max_target_positions": 40,
            "num_mel_bins": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        inputs=("input_features", "decoder_input_ids"),
        cached=True,
    ),
    "vit": Architecture(
        model="ViTModel",
        sizes={
            **{name: _SIZES[name] for name in list(_SIZES)[:4]},
            "image_size": 16,
            "patch_size": 4,
        },
        inputs=("pixel_values",),
    ),
    "clip": Architecture(
        model="CLIPTextModel",
        sizes={**_SIZES, "eos_token_id": 49, "bos_token_id": 48, "pad_token_id": 1},
    ),
}


class FirstAnswer(nn.Module):
    """The first answer of a model to inputs by position."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.model, self.architecture = architecture.made(), architecture

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Whatever the model's first output is."""
        named = dict(zip(self.architecture.inputs, inputs, strict=True))
        more = {"use_cache": False} if self.architecture.cached else {}
        answer: torch.Tensor = self.model(**named, **more)[0]
        return answer


_EXAMPLES: Final[Mapping[str, Callable[[], torch.Tensor]]] = {
    "input_ids": lambda: torch.randint(4, 48, (2, 7)),
    "attention_mask": lambda: torch.ones(2, 7, dtype=torch.long),
    "decoder_input_ids": lambda: torch.randint(4, 48, (2, 5)),
    "pixel_values": lambda: torch.randn(2, 3, 16, 16),
    "input_features": lambda: torch.randn(2, 8, 40),
}
_AXES: Final[Mapping[str, Mapping[int, str]]] = {
    "input_ids": {0: "batch", 1: "tokens"},
    "attention_mask": {0: "batch", 1: "tokens"},
    "decoder_input_ids": {0: "batch", 1: "answers"},
    "pixel_values": {0: "batch"},
    "input_features": {0: "batch"},
}


def export(architecture: Architecture, exporter: str, path: Path) -> str:
    """Write the graph; returns why that cannot be done, "" where it is."""
    module = FirstAnswer(architecture).eval()
    names = list(architecture.inputs)
    example = tuple(_EXAMPLES[name]() for name in names)
    kind, opset = exporter.split()
    how: dict[str, Any] = {"dynamo": False, "dynamic_axes": {n: dict(_AXES[n]) for n in names}}
    if kind == "dynamo":
        dynamic = torch.export.Dim.DYNAMIC
        shapes = tuple(dict.fromkeys(_AXES[name], dynamic) for name in names)
        how = {"dynamo": True, "dynamic_shapes": (shapes,), "verbose": False}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                example,
                str(path),
                input_names=names,
                output_names=["answer"],
                opset_version=int(opset),
                **how,
            )
    except Exception as error:  # noqa: BLE001 (whatever an exporter raises is what the table says)
        return f"the exporter fails: {type(error).__name__}"
    return ""


def export_within(name: str, exporter: str, path: Path) -> str:
    """As :func:`export`, in a process of its own, which may take ten minutes."""
    command = [sys.executable, "-m", "benchmarks.model_table", "--export", str(path)]
    command += ["--only", name, "--ways", exporter]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, cwd=_CHECKOUT
        )
    except subprocess.TimeoutExpired:
        return f"the exporter does not end within {_SECONDS} s"
    if path.is_file() and "the exporter fails" not in done.stdout:
        return ""
    said = done.stdout.strip() or done.stderr.strip() or "the exporter's process ends"
    return said.splitlines()[-1][:_LONGEST]


_BUILDER: Final = """
import sys
sys.path.insert(0, {folder!r})
from benchmarks.model_table import ARCHITECTURES

def build():
    return ARCHITECTURES[{name!r}].made(attn_implementation={kind!r})
"""


def written(name: str, way: str, path: Path) -> str:
    """Write a file whose ``build`` makes the module; returns why that cannot be done, or ""."""
    kind = way.split()[1]
    try:
        ARCHITECTURES[name].made(attn_implementation=kind)
    except ValueError:
        return f"the library has no variant {kind}"
    path.write_text(_BUILDER.format(folder=str(_CHECKOUT), name=name, kind=kind), encoding="utf-8")
    return ""


def checked(target: str, record: Path) -> list[str]:
    """What the check says: the cells of the table from the third on."""
    command = [sys.executable, "-m", "conformance", "check", target, "--json", str(record)]
    command += ["--profile", "quick"]
    before = _processor_seconds()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return ["", "", "", "", "", f"no verdict within {_SECONDS} s"]
    seconds = f"{_processor_seconds() - before:.0f}"
    if not record.is_file():
        return ["", "", "", "", seconds, done.stderr.strip()[:_LONGEST]]
    candidates = json.loads(record.read_text(encoding="utf-8"))["candidates"]
    whole = [one for one in candidates if one["kind"] == "model"]
    sites = [one for one in candidates if "site" in one]
    count = sum(1 + len(one["site"]["same_as"]) for one in sites)
    said = [warning for one in candidates for warning in one["warnings"]]
    for one in candidates:
        said += [
            f"{clause['id']}: {clause['violation']['message']}"
            for clause in one["clauses"]
            if clause["status"] == "failed" and clause["level"] == "MUST"
        ]
    verdicts = ", ".join(
        dict.fromkeys(one["verdict"] for one in candidates if one["kind"] != "model")
    )
    model = whole[0]["verdict"] if whole else "not judged"
    findings = "; ".join(one[:_LONGEST] for one in said)
    return [str(count), str(len(sites)), model, verdicts, seconds, findings]


LAYERS: Final = (2, 12, 48)
LARGE: Final = (12, 1024)  # layers, and the width of tokens
_MIB: Final = 1 << 20


def costs(folder: Path) -> None:
    """Print what a check costs by the number of layers, and what a large graph's process holds."""
    print("layers  seconds of the attentions (numerics.*)  seconds of the model (model.*)")
    for layers in LAYERS:
        path = by_tracing(encoder(layers), folder / f"layers-{layers}.onnx")
        seconds = [_seconds(path, only) for only in ("numerics.*", "model.*")]
        print(f"{layers:6}  {seconds[0]:38.1f}  {seconds[1]:30.1f}", flush=True)
    layers, width = LARGE
    path = by_tracing(encoder(layers, width), folder / "whole.onnx")
    beside = folder / "beside" / "large.onnx"
    beside.parent.mkdir()
    onnx.save(onnx.load(path), beside, save_as_external_data=True, location="large.onnx.data")
    feeds = {"input_ids": np.ones((2, 9), np.int64), "attention_mask": np.ones((2, 9), np.int64)}
    print(f"weights of {path.stat().st_size / _MIB:.0f} MiB: held, and of that pages of the file")
    for place, file in (("inside", path), ("beside", beside)):
        with GraphProcess(file) as process:
            settings = (Setting(level="disabled"), Setting(), Setting(nudge=1), Setting(nudge=2))
            for count, setting in enumerate(settings, 1):
                process.run(feeds, setting=setting)
                held, pages = _held(process)
                print(f"{place}, {count} sessions: {held} MiB, {pages} MiB", flush=True)


def _seconds(path: Path, only: str) -> float:
    """Processor seconds of a check, its processes included."""
    before = _processor_seconds()
    command = [sys.executable, "-m", "conformance", "check", str(path), "--only", only]
    subprocess.run([*command, "--profile", "quick"], capture_output=True, check=True)
    return _processor_seconds() - before


def _processor_seconds() -> float:
    """Processor seconds of all processes that were started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _held(process: GraphProcess) -> tuple[int, int]:
    """The MiB that the process of a graph holds, and how many of them are pages of files."""
    (pid,) = process.pids
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    sizes = {line.split()[0]: line.split()[1] for line in text.splitlines() if "kB" in line}
    return int(sizes["VmRSS:"]) >> 10, int(sizes["RssFile:"]) >> 10


def main() -> None:
    """Print the table, line by line as it is made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--export", type=Path)
    arguments = parser.parse_args()
    rows = []
    if arguments.export:
        (name,), (way,) = arguments.only, arguments.ways
        print(export(ARCHITECTURES[name], way, arguments.export))
        return
    if arguments.costs:
        with tempfile.TemporaryDirectory(prefix="conformance-costs-") as folder:
            costs(Path(folder))
        return
    with tempfile.TemporaryDirectory(prefix="conformance-models-") as folder:
        for name in arguments.only:
            for way in arguments.ways:
                path = Path(folder) / f"{name}-{way}".replace(" ", "_").replace("-", "_")
                if way in MODULES:
                    path = path.with_suffix(".py")
                    refused, target = written(name, way, path), f"{path}:build"
                else:
                    path = path.with_suffix(".onnx")
                    refused, target = export_within(name, way, path), str(path)
                said = ["", "", "", "", "", refused]
                cells = said if refused else checked(target, path.with_suffix(".json"))
                rows.append([name, way, *cells])
                print("  ".join(rows[-1]), flush=True)
    if arguments.markdown:
        lines = [HEADINGS, ["---"] * len(HEADINGS), *rows]
        table = "\n".join(
            f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines
        )
        arguments.markdown.write_text(f"{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
