"""transformers: whole models and attentions, written out, by torch's function and by flex."""

import importlib
from collections.abc import Callable
from typing import Any

import checkout
import torch
import transformers
from torch import nn

from benchmarks.model_table import ARCHITECTURES, Architecture

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
    "qwen3_eager": "check",
    "qwen3_sdpa": "check",
    "gemma3_eager": "check",
    "gemma3_sdpa": "check",
    "gpt_neox_eager": "check",
    "gpt_neox_sdpa": "check",
    "opt_eager": "check",
    "opt_sdpa": "check",
    "bloom_eager": "check",
    "albert_eager": "check",
    "albert_sdpa": "check",
    "modernbert_eager": "check",
    "modernbert_sdpa": "check",
    "xlnet_eager": "check",
    "dinov2_eager": "check",
    "dinov2_sdpa": "check",
    "wav2vec2_eager": "check",
    "wav2vec2_sdpa": "check",
    "bert_flex": "check",
    "llama_flex": "check",
    "bert_layer_eager": "identify",
    "bert_layer_sdpa": "identify",
    "gpt2_layer_eager": "identify",
    "gpt2_layer_sdpa": "identify",
    "clip_layer_sdpa": "identify",
    "t5_layer": "identify",
    "mpnet_layer": "identify",
}
DECIDED = [
    {
        "clause": ["shape.strided", "shape.expanded", "shape.bounds"],
        "candidates": "gpt2_layer_*",
        "kind": "raised",
        "decided": "undocumented convention",
        "reason": "its Conv1D takes a view of the tokens and refuses those that are not contiguous",
    },
]
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_TEXT = {**_SIZES, "vocab_size": 50, "max_position_embeddings": 64}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
# What the table of architectures has not.
_MORE = {
    "qwen3": Architecture(model="Qwen3Model", sizes=_GROUPED),
    "gemma3": Architecture(model="Gemma3TextModel", sizes={**_GROUPED, "sliding_window": 4}),
    "gpt_neox": Architecture(model="GPTNeoXModel", sizes=_TEXT),
    "opt": Architecture(
        model="OPTModel",
        sizes={
            "vocab_size": 50,
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
        },
    ),
    "bloom": Architecture(
        model="BloomModel", sizes={"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    ),
    "albert": Architecture(model="AlbertModel", sizes={**_TEXT, "embedding_size": 16}),
    "modernbert": Architecture(
        model="ModernBertModel",
        sizes={
            **_TEXT,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "sep_token_id": 1,
            "bos_token_id": 2,
            "cls_token_id": 2,
            "local_attention": 8,
        },
    ),
    "xlnet": Architecture(
        model="XLNetModel",
        sizes={"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    ),
    "dinov2": Architecture(
        model="Dinov2Model", sizes={**_SIZES, "image_size": 16, "patch_size": 4}
    ),
    "wav2vec2": Architecture(
        model="Wav2Vec2Model",
        sizes={
            **_SIZES,
            "conv_dim": (8, 8),
            "conv_stride": (2, 2),
            "conv_kernel": (3, 3),
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
        },
    ),
}


def _model(name: str, implementation: str) -> Callable[[], nn.Module]:
    return lambda: {**ARCHITECTURES, **_MORE}[name].made(attn_implementation=implementation)


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
qwen3_eager, qwen3_sdpa = _both("qwen3")
gemma3_eager, gemma3_sdpa = _both("gemma3")
gpt_neox_eager, gpt_neox_sdpa = _both("gpt_neox")
opt_eager, opt_sdpa = _both("opt")
bloom_eager, _ = _both("bloom")
albert_eager, albert_sdpa = _both("albert")
modernbert_eager, modernbert_sdpa = _both("modernbert")
xlnet_eager, _ = _both("xlnet")
dinov2_eager, dinov2_sdpa = _both("dinov2")
wav2vec2_eager, wav2vec2_sdpa = _both("wav2vec2")
bert_flex = _model("bert", "flex_attention")
llama_flex = _model("llama", "flex_attention")


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
