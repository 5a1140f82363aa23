"""transformers: whole models and attentions, written out and by torch's function."""

import importlib
from collections.abc import Callable
from typing import Any

import checkout
import torch
import transformers
from torch import nn

from benchmarks.model_table import ARCHITECTURES

REQUIREMENTS = ["transformers==5.23.0"]
CANDIDATES = {
    "bert_eager": "check",
    "bert_sdpa": "check",
    "distilbert_eager": "check",
    "distilbert_sdpa": "check",
    "roberta_eager": "check",
    "roberta_sdpa": "check",
    "deberta_eager": "check",
    "gpt2_eager": "check",
    "gpt2_sdpa": "check",
    "llama_eager": "check",
    "llama_sdpa": "check",
    "mistral_eager": "check",
    "mistral_sdpa": "check",
    "gemma2_eager": "check",
    "gemma2_sdpa": "check",
    "gptoss_eager": "check",
    "falcon_eager": "check",
    "falcon_sdpa": "check",
    "mpt_eager": "check",
    "t5_eager": "check",
    "bart_eager": "check",
    "bart_sdpa": "check",
    "whisper_eager": "check",
    "whisper_sdpa": "check",
    "vit_eager": "check",
    "vit_sdpa": "check",
    "clip_eager": "check",
    "clip_sdpa": "check",
    "bert_layer_eager": "identify",
    "bert_layer_sdpa": "identify",
    "gpt2_layer_eager": "identify",
    "gpt2_layer_sdpa": "identify",
    "clip_layer_sdpa": "identify",
    "t5_layer": "identify",
    "mpnet_layer": "identify",
}


def _model(name: str, implementation: str) -> Callable[[], nn.Module]:
    return lambda: ARCHITECTURES[name].made(attn_implementation=implementation)


def _both(name: str) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
    return _model(name, "eager"), _model(name, "sdpa")


bert_eager, bert_sdpa = _both("bert")
distilbert_eager, distilbert_sdpa = _both("distilbert")
roberta_eager, roberta_sdpa = _both("roberta")
deberta_eager, _ = _both("deberta")
gpt2_eager, gpt2_sdpa = _both("gpt2")
llama_eager, llama_sdpa = _both("llama")
mistral_eager, mistral_sdpa = _both("mistral")
gemma2_eager, gemma2_sdpa = _both("gemma2")
gptoss_eager, _ = _both("gpt-oss")
falcon_eager, falcon_sdpa = _both("falcon")
mpt_eager, _ = _both("mpt")
t5_eager, _ = _both("t5")
bart_eager, bart_sdpa = _both("bart")
whisper_eager, whisper_sdpa = _both("whisper")
vit_eager, vit_sdpa = _both("vit")
clip_eager, clip_sdpa = _both("clip")


def _layer(kind: str, layer: str, implementation: str, **sizes: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        module = importlib.import_module(
            f"transformers.models.{kind.lower()}.modeling_{kind.lower()}"
        )
        more = sizes.get("arguments", {})
        own = {name: value for name, value in sizes.items() if name not in ("arguments", "config")}
        config = getattr(transformers, sizes.get("config", f"{kind}Config"))(**own)
        config._attn_implementation = implementation
        torch.manual_seed(0)
        built: nn.Module = getattr(module, layer)(config, **more)
        return built

    return build


_WIDE = {"hidden_size": 12, "num_attention_heads": 3}
_GPT2 = {"n_embd": 12, "n_head": 3, "arguments": {"layer_idx": 0}}
bert_layer_eager = _layer("Bert", "BertSelfAttention", "eager", **_WIDE)
bert_layer_sdpa = _layer("Bert", "BertSelfAttention", "sdpa", **_WIDE)
gpt2_layer_eager = _layer("GPT2", "GPT2Attention", "eager", **_GPT2)
gpt2_layer_sdpa = _layer("GPT2", "GPT2Attention", "sdpa", **_GPT2)
clip_layer_sdpa = _layer("CLIP", "CLIPAttention", "sdpa", config="CLIPTextConfig", **_WIDE)
mpnet_layer = _layer("MPNet", "MPNetSelfAttention", "eager", **_WIDE)
t5_layer = _layer(
    "T5",
    "T5Attention",
    "eager",
    arguments={"has_relative_attention_bias": False},
    d_model=12,
    d_kv=4,
    num_heads=3,
)
