"""The mean of all workers' vectors in few bits per number: short floats are sent, and added up in full precision.

    16  bfloat16
    8   sign, 4 bits of exponent, 3 of mantissa (E4M3), relative to the largest magnitude
    4   sign, 3 bits of exponent (E3M0): 0 and the largest magnitude times 2^-6 ... 2^0, as in Douillard et al. 2025,
        arXiv 2501.18512

A part of `dsgd.algorithms.streaming`.
"""

from __future__ import annotations

from math import ceil, prod

import torch
from torch import Tensor

from dsgd.compression.codes import pack, unpack
from dsgd.worker import Worker

E4M3 = torch.float8_e4m3fn
MAGNITUDES = (0.0, *(2.0**-k for k in range(6, -1, -1)))


async def mean_in_few_bits(worker: Worker, v: Tensor, count: int, bits: int) -> Tensor:
    """Return the mean of v over all workers, the same bits in all of them.

    Worker j adds up the j-th of p pieces of all, then gives everybody the mean of it: twice p - 1 codes of a piece for
    each worker, as many as a ring sends. v: [count], or without numbers in a run for its times alone."""
    p, rank = worker.nodes, worker.rank
    if p == 1:
        return v
    length = ceil(count / p)
    size = code_bytes(length, bits, v.element_size()) / v.element_size() / sum(prod(shape) for shape in worker.layout)
    others = [(rank + i) % p for i in range(1, p)]
    if not v.numel():
        for peer in others:
            await worker.exchange(v, [peer], [(2 * rank - peer) % p], size)
        await worker.exchange(v, others, size=size)
        return v
    codes = [encode(piece, bits) for piece in torch.cat((v, v.new_zeros(p * length - count))).view(p, length)]
    of_mine = {rank: codes[rank]}
    for peer in others:
        of_mine |= await worker.exchange(codes[peer], [peer], [(2 * rank - peer) % p], size)
    total = v.new_zeros(length)
    for source in range(p):
        total.add_(decode(of_mine[source], length, bits))
    mean = encode(total.div_(p), bits)
    means = {rank: mean} | await worker.exchange(mean, others, size=size)
    return torch.cat([decode(means[owner], length, bits) for owner in range(p)])[:count]


def code_bytes(length: int, bits: int, item_bytes: int) -> int:
    """Return the bytes of a code of so many numbers, filled up to whole numbers of so many bytes."""
    raw = 2 * length if bits == 16 else item_bytes + ceil(length * bits / 8)
    return ceil(raw / item_bytes) * item_bytes


def encode(a: Tensor, bits: int) -> Tensor:
    """Round a [n] to the nearest numbers that so many bits can say. Returns them packed into numbers of its type."""
    if bits == 16:
        return pack((a.to(torch.bfloat16),), a)
    largest = a.abs().max()
    relative = a / largest if largest > 0 else torch.zeros_like(a)
    if bits == 8:
        return pack((largest.view(1), (relative * torch.finfo(E4M3).max).to(E4M3)), a)
    magnitudes = a.new_tensor(MAGNITUDES)
    digits = torch.bucketize(relative.abs(), (magnitudes[1:] + magnitudes[:-1]) / 2) + 8 * (relative < 0)
    pairs = torch.cat((digits, digits.new_zeros(len(digits) % 2))).view(-1, 2)
    return pack((largest.view(1), (16 * pairs[:, 0] + pairs[:, 1]).to(torch.uint8)), a)


def decode(packed: Tensor, length: int, bits: int) -> Tensor:
    if bits == 16:
        return unpack(packed, ((torch.bfloat16, length),))[0].to(packed.dtype)
    kind = E4M3 if bits == 8 else torch.uint8
    largest, raw = unpack(packed, ((packed.dtype, 1), (kind, ceil(length * bits / 8))))
    if bits == 8:
        return raw.to(packed.dtype) * (largest / torch.finfo(E4M3).max)
    digits = torch.stack((raw // 16, raw % 16), 1).flatten()[:length].long()
    magnitude = packed.new_tensor(MAGNITUDES)[digits % 8]
    return torch.where(digits < 8, magnitude, -magnitude) * largest
