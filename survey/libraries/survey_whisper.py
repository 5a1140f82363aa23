"""openai-whisper: its attention, and the whole model."""

from torch import nn
from whisper.model import ModelDimensions, MultiHeadAttention, Whisper

REQUIREMENTS = ["openai-whisper==20250625"]
CANDIDATES = {"layer": "identify", "model": "check"}


def layer() -> nn.Module:
    """Its attention, by torch's function."""
    return MultiHeadAttention(12, 3)


def model() -> nn.Module:
    """Encoder and decoder."""
    return Whisper(
        ModelDimensions(
            n_mels=8,
            n_audio_ctx=20,
            n_audio_state=24,
            n_audio_head=3,
            n_audio_layer=2,
            n_vocab=50,
            n_text_ctx=16,
            n_text_state=24,
            n_text_head=3,
            n_text_layer=2,
        )
    ).eval()
