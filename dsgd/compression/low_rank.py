"""PowerSGD: the mean gradient as products of thin matrices. Vogels, Karimireddy, Jaggi 2019, arXiv 1905.13727.

A part of `dsgd.algorithms.compressed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from dsgd.streams import stream
from dsgd.worker import Worker


async def low_rank_mean(worker: Worker, a: Tensor, r: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return what is sent of a worker's a [d], and the mean over all workers, [d]: for matrices both are P Q^T, for all
    else a and its mean. The Q's are kept from step to step, at first drawn by `seed`."""
    layers, whole = split(worker.layout, r)
    d = sum(prod(shape) for shape in worker.layout)
    p_size = sum(n for _, n, _ in layers) * r + sum(end - begin for begin, end in whole)
    q_size = sum(m for _, _, m in layers) * r
    if not a.numel():  # a run for its times alone
        await worker.all_reduce_mean(a, p_size / d)
        if layers:
            await worker.all_reduce_mean(a, q_size / d)
        return a, a
    kept = worker.keep("q", None if "q" in worker.kept else first_q(a, q_size, seed))
    matrices = [a[begin : begin + n * m].view(n, m) for begin, n, m in layers]
    qs = [q.view(m, r) for q, (_, _, m) in zip(kept[:q_size].split([m * r for *_, m in layers]), layers, strict=True)]
    parts = [(M @ Q).flatten() for M, Q in zip(matrices, qs, strict=True)] + [a[slice(*each)] for each in whole]
    means = (await worker.all_reduce_mean(torch.cat(parts), p_size / d)).split([len(part) for part in parts])
    mean, local = torch.empty_like(a), a.clone()
    for each, values in zip(whole, means[len(layers) :], strict=True):
        mean[slice(*each)] = values
    if layers:
        ps = [torch.linalg.qr(P.view(-1, r)).Q for P in means[: len(layers)]]
        codes = torch.cat([(M.T @ P).flatten() for M, P in zip(matrices, ps, strict=True)])
        kept[:q_size] = await worker.all_reduce_mean(codes, q_size / d)
        for (begin, n, m), P, Q in zip(layers, ps, qs, strict=True):
            mean[begin : begin + n * m] = local[begin : begin + n * m] = (P @ Q.T).flatten()
    return local, mean


def split(layout: Sequence[tuple[int, ...]], rank: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Return the layers that P and Q make smaller: where each begins, n and m; and the ranges of all others."""
    layers, whole, begin = [], [], 0
    for shape in layout:
        n, m = shape[0] if shape else 1, prod(shape[1:])
        if rank * (n + m) < n * m and rank <= min(n, m):
            layers.append((begin, n, m))
        else:
            whole.append((begin, begin + n * m))
        begin += n * m
    return layers, whole


def first_q(like: Tensor, count: int, seed: int) -> Tensor:
    """Return the first Q's as a vector [d] of which the first `count` numbers are used."""
    numbers = stream("first q", seed).standard_normal(count)
    return torch.cat((torch.from_numpy(numbers).to(like), like.new_zeros(len(like) - count)))
