"""The update of AdamW against torch.optim.AdamW."""

from __future__ import annotations

import torch

from dsgd.optim.optimizer import AdamW, State
from tests.support.each_row import each_row


@each_row("betas", [[0.9, 0.999], [0.0, 0.5]])
def test_adamw_is_that_of_torch_bit_for_bit(betas: list[float]) -> None:
    """In fp32, with a rate that changes; the moments are changed in place."""
    mine = AdamW(lr=1e-2, betas=betas, eps=1e-8, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1003, generator=generator)
    theirs = torch.nn.Parameter(x.clone())
    oracle = torch.optim.AdamW([theirs], lr=1e-2, betas=(betas[0], betas[1]), eps=1e-8, weight_decay=0.1)
    state: State | None = None
    for step in range(50):
        g = torch.randn(1003, generator=generator)
        theirs.grad = g.clone()
        lr = oracle.param_groups[0]["lr"] = 1e-2 / (1 + step // 10)
        oracle.step()
        state = mine.step(x, g, state, lr)
        assert torch.equal(x, theirs.detach()), step
