"""Build a language model: a small decoder-only transformer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

DEVIATION = 0.02  # of the initial weights, as in GPT-2


class Transformer(nn.Module):
    """Decoder-only transformer: tokens [b, context] -> logits [b, classes, context] of the token after each.

    Source: Radford et al. 2019 (GPT-2): layer norm before attention and before the multilayer perceptron (pre-norm) and
    before the head, GELU, learned positions; weights from N(0, 0.02^2), those that end a residual branch divided by
    sqrt(2 depth), biases 0. The head has weights of its own: with a vocabulary of bytes tying saves few parameters."""

    def __init__(self, classes: int, context: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, depth) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = linear(width, classes, bias=False)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=DEVIATION)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.embedding(tokens) + self.positions.weight)
        return self.head(self.norm(x)).transpose(1, 2)


class TransformerBlock(nn.Module):
    """Causal self-attention and a multilayer perceptron of four times the width, each beside a shortcut."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (linear(width, width) for _ in range(3))
        self.mixed = linear(width, width, ends_branch_of=depth)
        self.hidden = linear(width, 4 * width)
        self.narrowed = linear(4 * width, width, ends_branch_of=depth)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (self._split(project(y)) for project in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mixed(y.transpose(1, 2).flatten(2))
        return x + self.narrowed(F.gelu(self.hidden(self.norm2(x))))

    def _split(self, x: Tensor) -> Tensor:
        """Return [b, heads, context, width of a head] of [b, context, width]."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


def linear(inputs: int, outputs: int, bias: bool = True, ends_branch_of: int | None = None) -> nn.Linear:
    """Build a linear layer. ends_branch_of: the depth of the network, where the layer ends a residual branch."""
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.normal_(layer.weight, std=DEVIATION / (2 * ends_branch_of) ** 0.5 if ends_branch_of else DEVIATION)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
