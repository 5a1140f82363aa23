"""The whole models that are held: the right ones attend as meant, the broken ones otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from candidates.models import BROKEN, MODELS
from candidates.models.transformer import Attention, Mistake, Shape

IDS = torch.arange(12).reshape(2, 6) + 1


def answer(name: str, ids: Tensor, mask: Tensor) -> Tensor:
    more = (ids[:, :4],) if name == "encoder-decoder" else ()
    with torch.no_grad():
        result: Tensor = MODELS[name].module(ids, mask, *more)
    return result


@pytest.mark.parametrize("name", ["encoder", "encoder-written", "decoder"])
def test_padding_is_not_read(name: str) -> None:
    """Other words in the padding change nothing before it, and without a mask they do."""
    others = IDS.clone()
    others[:, 4:] += 7
    mask = torch.ones_like(IDS)
    mask[:, 4:] = 0
    padded = [answer(name, ids, mask)[:, :4] for ids in (IDS, others)]
    assert torch.equal(*padded)
    if name != "decoder":  # whose tokens see nothing that comes later anyway
        whole = [answer(name, ids, torch.ones_like(mask))[:, :4] for ids in (IDS, others)]
        assert not torch.equal(*whole)


def test_the_decoder_sees_no_later_word() -> None:
    """Another last word changes the last answer alone."""
    others = IDS.clone()
    others[:, -1] += 7
    one, two = (answer("decoder", ids, torch.ones_like(IDS)) for ids in (IDS, others))
    assert torch.equal(one[:, :-1], two[:, :-1])
    assert not torch.equal(one[:, -1], two[:, -1])


def test_written_attention_is_torchs() -> None:
    """The two ways to compute it agree to rounding."""
    torch.manual_seed(0)
    layer = Attention(Shape(written=True))
    parts = [torch.randn(2, 4, 5, 4) for _ in range(3)]
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    expected = scaled_dot_product_attention(*(part.double() for part in parts), attn_mask=mask)
    bound = 32 * torch.finfo(torch.float32).eps * expected.abs().max()
    assert (layer._written(*parts, mask) - expected).abs().max() <= bound


@pytest.mark.parametrize(
    "mistake",
    [Mistake(scale=1.0), Mistake(fill=-1.0), Mistake(axis=-2), Mistake(tiled=True)],
    ids=["scale", "fill", "axis", "groups"],
)
def test_each_mistake_shows(mistake: Mistake) -> None:
    """On the same weights the answer is another one."""
    shape = Shape(kv_heads=2, written=True)
    torch.manual_seed(0)
    right, wrong = Attention(shape), Attention(shape, mistake)
    wrong.load_state_dict(right.state_dict())
    tokens, mask = torch.randn(2, 5, 16), torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    with torch.no_grad():
        assert not torch.allclose(right(tokens, tokens, mask), wrong(tokens, tokens, mask))


def test_broken_models_name_what_is_wrong() -> None:
    """Each has a wrong attention and a clause, and keeps one that is right."""
    assert all(broken.wrong and broken.clause for broken in BROKEN.values())
    assert all(len(broken.wrong) < 2 for broken in BROKEN.values())
