"""Compiled kernels of transformers and of dropout: the numbers of the module itself, with the masks that it draws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from dsgd.data.in_memory import TextWindows, windows
from dsgd.data.partition import Partition
from dsgd.data.text import generated_text
from dsgd.gradients.compiled import CompiledEvaluator
from dsgd.gradients.tracing import Untranslatable
from dsgd.models.networks import Transformer
from dsgd.problem.problem import Problem
from dsgd.streams import stream
from tests.support.each_row import each_row
from tests.support.kernels import require_kernels
from tests.unit.gradients.test_compiled import assert_agree, use_lesser_processor
from tests.unit.gradients.test_evaluators import pending_gradients

BYTES = 256


@pytest.fixture(autouse=True)
def _kernels() -> None:
    require_kernels()


class Writing(nn.Module):
    """A transformer as people write it: positions by a table, by a parameter or none; queries, keys and values cut from
    one product; dropout by a module and by a function; a head of its own weights or of the embedding's."""

    def __init__(
        self, tokens: int, heads: int, each: int, depth: int, positions: str, tied: bool, causal: bool, drop: float
    ) -> None:
        super().__init__()
        width = heads * each
        self.heads, self.causal, self.positions, self.drop = heads, causal, positions, drop
        self.embedding = nn.Embedding(BYTES, width)
        self.places = nn.Parameter(torch.randn(1, tokens, width)) if positions == "parameter" else None
        self.table = nn.Embedding(tokens + 3, width) if positions == "table" else None
        self.register_buffer("numbers", torch.arange(tokens).flip(0), persistent=False)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "cut": nn.Linear(width, 3 * width),
                    "mixed": nn.Linear(width, width, bias=False),
                    "mlp": nn.Sequential(
                        nn.LayerNorm(width, elementwise_affine=False),
                        nn.Linear(width, 2 * width),
                        nn.ReLU(),
                        nn.Linear(2 * width, width),
                        nn.Dropout(drop),
                    ),
                }
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, BYTES, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.places is not None:
            x = self.places + x
        if self.table is not None:
            x = x + self.table(self.numbers)
        x = F.dropout(x, self.drop, training=self.training)
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            q, k, v = (self._split(part) for part in self._cut(block["cut"](block["norm"](x))))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=self.causal)
            x = x + block["mixed"](y.transpose(1, 2).contiguous().view(x.shape))
            x = x + block["mlp"](x)
        return self.head(x).permute(0, 2, 1)

    def _cut(self, x: Tensor) -> list[Tensor]:
        width = x.size(-1) // 3
        return [x[:, :, :width], x[..., width : 2 * width], x[:, :, 2 * width :]]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)


def text_problem(module: nn.Module | None, tokens: int, batch_size: int, dtype: torch.dtype = torch.float64) -> Problem:
    """A module on windows of a text; None: the text model of the package."""
    text = generated_text(5000, stream("text", 0))
    train, test = windows(text[:4000], tokens), windows(text[4000:], tokens)
    data = TextWindows(train, test, Partition(len(train), 3, batch_size, 0))
    torch.manual_seed(3)
    return Problem(module or Transformer(BYTES, tokens, 32, 2, 4), data, dtype, 0.01, decay_norm_and_bias=True)


@settings(max_examples=10)
@given(
    tokens=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    heads=st.integers(1, 3),
    each=st.integers(1, 9),
    depth=st.integers(0, 2),
    positions=st.sampled_from(["none", "table", "parameter"]),
    tied=st.booleans(),
    causal=st.booleans(),
    drop=st.sampled_from([0.0, 0.2]),
)
def test_random_transformers_have_the_gradients_of_the_loop(tokens: int, batch_size: int, **options: int) -> None:
    """With dropout, too: its masks are those that the loop draws for the same worker and step."""
    torch.manual_seed(3)
    assert_agree(text_problem(Writing(tokens, **options), tokens, batch_size))  # pyright: ignore


@pytest.mark.parametrize("extension", ["", "avx2", "plain"])
def test_the_text_model_has_the_gradients_of_the_loop(monkeypatch: pytest.MonkeyPatch, extension: str) -> None:
    """Of more tokens than are computed together, on every kind of processor."""
    if extension:
        use_lesser_processor(monkeypatch, extension)
    assert_agree(text_problem(None, 33, 9))
    assert_agree(text_problem(None, 33, 9, torch.float32), 1e-4)


def test_evaluation_of_a_text_model_is_that_of_the_module() -> None:
    of = text_problem(None, 21, 5)
    (item,) = pending_gradients(of, 1)
    assert item.snapshot is not None
    right = of.evaluate(item.snapshot, item.buffers, test=True)
    of.predict = CompiledEvaluator(of, 3).predict
    measured = of.evaluate(item.snapshot, item.buffers, test=True)
    assert (measured.accuracy, measured.top5) == (right.accuracy, right.top5)
    assert measured.loss == pytest.approx(right.loss, rel=1e-12)


@each_row(
    ("change", "unknown"),
    [
        (lambda of: setattr(of, "embedding", nn.Embedding(BYTES, 4, padding_idx=0)), "embedding .* with options"),
        (lambda of: setattr(of, "drop", 1.0), r"dropout \(dropout\)"),
        (lambda of: setattr(of.blocks[0], "norm", nn.BatchNorm1d(8)), "blocks.0.norm"),
    ],
)
def test_what_is_not_known_of_a_transformer_is_named(change: object, unknown: str) -> None:
    module = Writing(8, 2, 2, 1, "none", False, True, 0.1)
    change(module)  # pyright: ignore
    with pytest.raises(Untranslatable, match=unknown):
        CompiledEvaluator(text_problem(module, 8, 3), 3)


class Attending(nn.Module):
    """A block with torch's own module of attention. mask: how it is told that it is causal."""

    def __init__(self, mask: str, **options: object) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(BYTES, 6), nn.LayerNorm(6), nn.Linear(6, BYTES)
        self.attention = nn.MultiheadAttention(6, 2, **{"batch_first": True, **options})  # pyright: ignore
        later = torch.ones(8, 8, dtype=torch.bool).triu(1)
        self.register_buffer("later", later.T if mask == "odd" else later, persistent=False)
        self.square = nn.Transformer.generate_square_subsequent_mask(8, dtype=torch.float64)
        self.kind = mask

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        y, mask = self.norm(x), {"none": None, "float": self.square}.get(self.kind, self.later)
        with_weights = self.kind in ("none", "bool")
        y, _ = self.attention(y, y, y, need_weights=with_weights, attn_mask=mask, is_causal=self.kind == "said")
        return self.head(x + y).transpose(1, 2)


@each_row(("mask", "options"), [("none", {}), ("bool", {"bias": False}), ("float", {}), ("said", {"bias": False})])
def test_torchs_module_of_attention_has_the_gradients_of_the_loop(mask: str, options: dict[str, bool]) -> None:
    torch.manual_seed(3)
    assert_agree(text_problem(Attending(mask, **options), 8, 5))


@each_row(
    ("mask", "options"),
    [("odd", {}), ("none", {"batch_first": False}), ("none", {"dropout": 0.1}), ("none", {"add_bias_kv": True})],
)
def test_other_attention_of_torchs_module_is_named(mask: str, options: dict[str, object]) -> None:
    with pytest.raises(Untranslatable, match=r"attention \(MultiheadAttention\)"):
        CompiledEvaluator(text_problem(Attending(mask, **options), 8, 3), 3)


@each_row(("tokens", "batch_size"), [(8, 3), (24, 9)])
def test_arithmetic_and_layers_called_again_over_tokens(tokens: int, batch_size: int) -> None:
    """The second case goes over a batch in two parts, whose gradients are added up."""
    module = nn.Sequential(nn.Embedding(BYTES, 6), Recurring(6, tokens), nn.Linear(12, BYTES), Turned())
    assert_agree(text_problem(module, tokens, batch_size))


class Recurring(nn.Module):
    """One layer, called twice, factors of each number of a token, and operators in both places of an axis swap."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(width, width), nn.Parameter(torch.linspace(0.5, 1, width))
        self.places = nn.Parameter(torch.linspace(-1, 1, tokens * width).view(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places
        for _ in range(2):
            x = x + F.gelu(self.layer(x)) * self.scale
        turned = x.transpose(1, 2) * 0.5
        x = (turned * turned - 1).transpose(1, 2)
        return torch.cat([x, 1 / (2 + x * x)], dim=-1)


def test_a_token_beyond_the_table_is_an_error() -> None:
    module = nn.Sequential(nn.Embedding(100, 4), nn.Linear(4, BYTES), nn.Unflatten(1, (8,)), Turned())
    of = text_problem(module, 8, 3)
    with pytest.raises(IndexError, match=r"^a token must be >= 0 and < 100, got 1\d\d$"):
        CompiledEvaluator(of, 3).evaluate(pending_gradients(of, 1))


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(-1, -2)
