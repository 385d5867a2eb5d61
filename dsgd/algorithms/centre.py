"""The centre of EASGD (`easgd.py`): on a server, as a copy on every worker, or on its way from worker to worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.worker import Worker

if TYPE_CHECKING:
    from torch import Tensor


class Centre:
    """The centre variable, or one shard of it. x: [d]."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def exchange(self, x_i: Tensor, alpha: float) -> Tensor:
        """Move the centre towards x_i and return the same displacement, for the worker to subtract."""
        e = (x_i - self.x).mul_(alpha)
        self.x.add_(e)
        return e


async def exchange_at_once(worker: Worker, c: Tensor, x_i: Tensor, alpha: float) -> Tensor:
    """Move all copies of the centre c [d] by the sum over all workers of alpha (x_i - c); return that of this one."""
    mean = await worker.all_reduce_mean(x_i.clone())
    e = (x_i - c).mul_(alpha)
    c.lerp_(mean, worker.nodes * alpha)
    return e


async def exchange_in_turn(worker: Worker, c: Tensor, x_i: Tensor, alpha: float) -> Tensor:
    """Wait for the centre from the worker before, keep in c [d] what it is after this exchange, and pass it on. Returns
    the displacement."""
    before = (worker.rank - 1) % worker.nodes
    if worker.nodes > 1 and (worker.rank > 0 or worker.steps > 0):
        c.copy_((await worker.exchange(c, [], [before]))[before])
    e = Centre(c).exchange(x_i, alpha)
    await pass_on(worker, c)
    return e


async def pass_on(worker: Worker, c: Tensor) -> None:
    """Send the centre c [d] to the worker behind this one, that of rank 0 behind the last."""
    if worker.nodes > 1:
        await worker.exchange(c.clone(), [(worker.rank + 1) % worker.nodes], [])
