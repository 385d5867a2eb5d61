from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dsgd.models import GPT, MLP, ModelConfig, ResNet, TokenShape
from dsgd.models.networks import Block, Transformer, TransformerBlock
from tests.support.each_row import each_row

torch.set_num_threads(1)


def build(config: ModelConfig, input_shape: tuple[int, ...], classes: int | None, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return config.build(input_shape, classes)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@each_row(("depth", "parameters"), [(8, 75_290), (20, 269_722), (56, 853_018)])
@each_row("norm", ["batch", "group"])
def test_resnet_has_the_published_number_of_parameters(depth: int, parameters: int, norm: str):
    """0.27 M for ResNet-20 and 0.85 M for ResNet-56 in He et al. 2015, table 6; both norms have 2 values a channel.

    By hand for ResNet-8: 432 + 4,608 + 13,824 + 55,296 weights of convolutions, 480 of norms, 650 of the last layer.
    """
    assert count(build(ResNet(depth, norm=norm), (3, 32, 32), 10)) == parameters


def test_mlp_has_weights_and_biases_of_each_layer():
    """(64 + 1) 32 + (32 + 1) 16 + (16 + 1) 10; without hidden layers (64 + 1) 10."""
    assert count(build(MLP([32, 16]), (1, 8, 8), 10)) == 65 * 32 + 33 * 16 + 17 * 10
    assert count(build(MLP([]), (1, 8, 8), 10)) == 65 * 10


@each_row("shape", [(1, 8, 8), (3, 32, 32), (2, 9, 13)])
@each_row("config", [ResNet(8), ResNet(8, width=12, norm="group"), ResNet(20, width=3), MLP([5])])
def test_classifiers_serve_any_image_shape(config: ModelConfig, shape: tuple[int, ...]):
    """Any number of channels, odd sides too: one finite logit for each class."""
    logits = build(config, shape, 7)(torch.randn(4, *shape))
    assert logits.shape == (4, 7)
    assert logits.isfinite().all()


def test_shortcut_takes_every_second_pixel_and_adds_zero_channels():
    """Option A of He et al. 2015: with the residual branch at 0, a widening block is subsampling and zero padding."""
    block = Block(2, 4, "group")
    nn.init.zeros_(block.conv2.weight)
    images = torch.rand(3, 2, 8, 8)  # not negative, so the last ReLU changes nothing
    out = block(images)
    assert torch.equal(out[:, :2], images[:, :, ::2, ::2])
    assert torch.equal(out[:, 2:], torch.zeros(3, 2, 4, 4))


def test_convolutions_start_with_variance_2_over_fan_out():
    """He initialisation: standard deviation sqrt(2 / (9 * outputs)); 36,864 draws give it to about 0.4 %."""
    module = build(ResNet(20), (3, 32, 32), 10)
    weights = [p for p in module.parameters() if p.shape == (64, 64, 3, 3)]
    assert len(weights) == 5
    for weight in weights:
        assert weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


def test_gpt_has_the_published_number_of_parameters():
    """GPT-2 of 12 layers and width 768 has 124,439,808 with a tied head; here a head of its own takes a table more.

    A block has 12 w^2 + 13 w: attention 4 (w^2 + w), the perceptron 8 w^2 + 5 w, two norms 4 w. Here at width 48."""
    width, depth, context, classes = 48, 3, 20, 256
    blocks = depth * (12 * width**2 + 13 * width)
    expected = 2 * classes * width + context * width + blocks + 2 * width
    assert count(build(GPT(width, depth), TokenShape((context,)), classes)) == expected
    assert 124_439_808 == 50_257 * 768 + 1024 * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768


def test_gpt_is_what_its_formulas_say():
    """x + Attention(LN(x)), then x + MLP(LN(x)): against matrices, one head and token at a time."""
    module = build(GPT(6, 1, 2), TokenShape((4,)), 11).double()
    assert isinstance(module, Transformer)
    block = module.blocks[0]
    assert isinstance(block, TransformerBlock)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    tokens = torch.tensor([3, 10, 0, 3])
    x = module.embedding.weight[tokens] + module.positions.weight
    norm = block.norm1(x)
    q, k, v = (of(norm) for of in (block.query, block.key, block.value))
    mixed = torch.zeros(4, 6, dtype=torch.float64)
    for head in (slice(0, 3), slice(3, 6)):
        for t in range(4):
            weights = torch.softmax(k[: t + 1, head] @ q[t, head] / 3**0.5, dim=0)
            mixed[t, head] = weights @ v[: t + 1, head]
    x = x + block.mixed(mixed)
    x = x + block.narrowed(F.gelu(block.hidden(block.norm2(x))))
    expected = module.head(module.norm(x)).T
    torch.testing.assert_close(module(tokens[None])[0], expected, rtol=1e-12, atol=1e-12)


@each_row(
    ("config", "shape", "classes", "message"),
    [
        (GPT(), (64,), 256, "model=gpt needs data=text"),
        (
            MLP([4]),
            TokenShape((64,)),
            256,
            "model=mlp needs data of measured numbers; data=text has tokens and needs model=gpt",
        ),
        (MLP([4]), (20,), None, "model=mlp needs data with classes; data=quadratic has none and needs model=vector"),
        (ResNet(8), (1, 4, 8), 10, "model=resnet8 needs images of at least 8 x 8 pixels, got inputs of 1 x 4 x 8"),
    ],
)
def test_models_refuse_data_they_cannot_serve(config: ModelConfig, shape: tuple, classes: int | None, message: str):
    """The same sentence from `check`, which needs no torch, and from `build`."""
    for call in (config.check, config.build):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole text is compared
            call(shape, classes)
        assert str(error.value) == message
