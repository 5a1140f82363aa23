"""Small attention layers of libraries, each made by a function without arguments.

They are what ``benchmarks/identification_of_libraries.py`` identifies. A library is imported by its
own functions alone, so that none of them is needed here.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

WIDTH: Final = 12
HEADS: Final = 3


def torch_multihead() -> nn.Module:
    """Sequence first, as by default."""
    return nn.MultiheadAttention(WIDTH, HEADS)


def timm_vision() -> nn.Module:
    """The attention of timm's vision transformer."""
    from timm.layers import Attention  # noqa: PLC0415 (its library)

    layer: nn.Module = Attention(WIDTH, num_heads=HEADS, qkv_bias=True)
    return layer


def diffusers_self() -> nn.Module:
    """Self-attention of diffusers."""
    from diffusers.models.attention_processor import Attention  # noqa: PLC0415 (its library)

    layer: nn.Module = Attention(query_dim=WIDTH, heads=HEADS, dim_head=WIDTH // HEADS)
    return layer


def diffusers_cross() -> nn.Module:
    """Cross-attention of diffusers, to tokens of another width."""
    from diffusers.models.attention_processor import Attention  # noqa: PLC0415 (its library)

    layer: nn.Module = Attention(
        query_dim=WIDTH, cross_attention_dim=9, heads=HEADS, dim_head=WIDTH // HEADS
    )
    return layer


def torchtune() -> nn.Module:
    """``MultiHeadAttention`` of torchtune, causal as by default."""
    from torchtune.modules import MultiHeadAttention  # noqa: PLC0415 (its library)

    projections = {f"{name}_proj": nn.Linear(WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    layer: nn.Module = MultiHeadAttention(
        embed_dim=WIDTH,
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=WIDTH // HEADS,
        **projections,
    )
    return layer


def _of_transformers(kind: str, layer: str, implementation: str, **sizes: Any) -> nn.Module:
    import importlib  # noqa: PLC0415 (beside its only use)

    import transformers  # noqa: PLC0415 (its library)

    module = importlib.import_module(f"transformers.models.{kind.lower()}.modeling_{kind.lower()}")
    more = sizes.pop("arguments", {})
    config = getattr(transformers, sizes.pop("config", f"{kind}Config"))(**sizes)
    config._attn_implementation = implementation  # noqa: SLF001 (how transformers chooses it)
    built: nn.Module = getattr(module, layer)(config, **more)
    return built


def bert_eager() -> nn.Module:
    """``BertSelfAttention``, written out."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
    return _of_transformers("Bert", "BertSelfAttention", "eager", **sizes)


def bert_sdpa() -> nn.Module:
    """``BertSelfAttention`` by torch's kernel."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
    return _of_transformers("Bert", "BertSelfAttention", "sdpa", **sizes)


def gpt2_eager() -> nn.Module:
    """``GPT2Attention``, written out."""
    more = {"layer_idx": 0}
    sizes = {"n_embd": WIDTH, "n_head": HEADS}
    return _of_transformers("GPT2", "GPT2Attention", "eager", arguments=more, **sizes)


def gpt2_sdpa() -> nn.Module:
    """``GPT2Attention`` by torch's kernel."""
    more = {"layer_idx": 0}
    sizes = {"n_embd": WIDTH, "n_head": HEADS}
    return _of_transformers("GPT2", "GPT2Attention", "sdpa", arguments=more, **sizes)


def vit() -> nn.Module:
    """``ViTAttention``, written out."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
    return _of_transformers("ViT", "ViTAttention", "eager", **sizes)


def clip() -> nn.Module:
    """``CLIPAttention`` by torch's kernel."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "config": "CLIPTextConfig"}
    return _of_transformers("CLIP", "CLIPAttention", "sdpa", **sizes)


def t5() -> nn.Module:
    """``T5Attention``, written out: not scaled."""
    sizes = {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "num_heads": HEADS}
    more = {"has_relative_attention_bias": False}
    return _of_transformers("T5", "T5Attention", "eager", arguments=more, **sizes)


def whisper() -> nn.Module:
    """``MultiHeadAttention`` of openai-whisper."""
    from whisper.model import MultiHeadAttention  # noqa: PLC0415 (its library)

    layer: nn.Module = MultiHeadAttention(WIDTH, HEADS)
    return layer


def open_clip() -> nn.Module:
    """``Attention`` of open_clip."""
    from open_clip.transformer import Attention  # noqa: PLC0415 (its library)

    layer: nn.Module = Attention(WIDTH, num_heads=HEADS)
    return layer


def x_transformers() -> nn.Module:
    """``Attention`` of x-transformers."""
    from x_transformers.x_transformers import Attention  # noqa: PLC0415 (its library)

    layer: nn.Module = Attention(dim=WIDTH, heads=HEADS, dim_head=WIDTH // HEADS)
    return layer


def x_transformers_flash() -> nn.Module:
    """The same by torch's kernel."""
    from x_transformers.x_transformers import Attention  # noqa: PLC0415 (its library)

    layer: nn.Module = Attention(dim=WIDTH, heads=HEADS, dim_head=WIDTH // HEADS, flash=True)
    return layer


def mpnet() -> nn.Module:
    """``MPNetSelfAttention``, written out, with a bias of positions beside its mask."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
    return _of_transformers("MPNet", "MPNetSelfAttention", "eager", **sizes)


def esm() -> nn.Module:
    """``MultiheadAttention`` of fair-esm, a descendant of fairseq's."""
    from esm.multihead_attention import MultiheadAttention  # noqa: PLC0415 (its library)

    layer: nn.Module = MultiheadAttention(WIDTH, HEADS)
    return layer


class _WithTables(nn.Module):
    """LLaMA's attention with its rotary tables filled in."""

    def __init__(self, attention: nn.Module, rotary: nn.Module) -> None:
        super().__init__()
        self.attention, self.rotary = attention, rotary

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Positions count from zero."""
        places = torch.arange(hidden_states.shape[1])[None]
        tables = self.rotary(hidden_states, places)
        answer: Tensor = self.attention(
            hidden_states, position_embeddings=tables, attention_mask=attention_mask
        )[0]
        return answer


def llama() -> nn.Module:
    """``LlamaAttention`` alone: it needs tables of positions."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    more = {"layer_idx": 0}
    return _of_transformers("Llama", "LlamaAttention", "eager", arguments=more, **sizes)


def llama_with_tables() -> nn.Module:
    """``LlamaAttention`` with the tables of its own library."""
    from transformers import LlamaConfig  # noqa: PLC0415 (its library)
    from transformers.models.llama.modeling_llama import (  # noqa: PLC0415 (its library)
        LlamaRotaryEmbedding,
    )

    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS)
    return _WithTables(llama(), LlamaRotaryEmbedding(config))


def x_transformers_qk_norm() -> nn.Module:
    """The same with queries and keys of unit length."""
    from x_transformers.x_transformers import Attention  # noqa: PLC0415 (its library)

    layer: nn.Module = Attention(WIDTH, heads=HEADS, dim_head=WIDTH // HEADS, qk_norm=True)
    return layer


def vit_pytorch() -> nn.Module:
    """The attention of a vision transformer that normalises its own tokens."""
    from vit_pytorch.vit import Attention  # noqa: PLC0415 (its library)

    layer: nn.Module = Attention(WIDTH, heads=HEADS, dim_head=WIDTH // HEADS)
    return layer


def vit_pytorch_qk_norm() -> nn.Module:
    """The same with queries and keys that are normalised, too."""
    from vit_pytorch.simple_vit_with_qk_norm import Attention  # noqa: PLC0415 (its library)

    layer: nn.Module = Attention(WIDTH, heads=HEADS, dim_head=WIDTH // HEADS)
    return layer


def vit_pytorch_small() -> nn.Module:
    """The attention for small data sets: no query attends to its own place."""
    from vit_pytorch.vit_for_small_dataset import LSA  # noqa: PLC0415 (its library)

    layer: nn.Module = LSA(WIDTH, heads=HEADS, dim_head=WIDTH // HEADS)
    return layer


def local_attention() -> nn.Module:
    """Causal attention within windows, with rotary positions."""
    from local_attention import LocalMHA  # noqa: PLC0415 (its library)

    layer: nn.Module = LocalMHA(
        dim=WIDTH, heads=HEADS, dim_head=WIDTH // HEADS, window_size=4, causal=True
    )
    return layer
