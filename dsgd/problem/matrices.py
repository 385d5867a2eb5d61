"""Which parameters are matrices for `optimizer=muon`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dsgd.optim.optimizer import Matrix
from dsgd.problem.decay import is_norm_or_bias
from dsgd.problem.slots import Slot

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def matrices_of(module: nn.Module, slots: Sequence[Slot]) -> list[Matrix]:
    """Return the parameters with two axes or more, in order: a kernel [o, c, h, w] of a convolution is [o, c h w].
    Scales, shifts and embeddings are none, nor are the weights that an output layer has in common with an embedding."""
    embedded = {
        id(weight) for owner in module.modules() if isinstance(owner, EMBEDDINGS) for weight in owner.parameters()
    }
    return [
        Matrix(slot.start, rows, slot.shape.numel() // rows)
        for slot in slots
        if not is_norm_or_bias(slot) and id(getattr(slot.owner, slot.name)) not in embedded and (rows := slot.shape[0])
    ]
