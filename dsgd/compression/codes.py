"""Codes of vectors: short forms of a [d] that are sent in its place, packed into numbers of its type.

topk     the k entries of largest magnitude       8 k bytes in single precision: values and places
randomk  k entries at random places, the same in all workers, for which only values are sent: 4 k
sign     the signs, times the mean magnitude      d / 8 + 4
qsgd     signs and levels 0 .. s of magnitude over the norm, rounded at random so that the mean is right:
         d (1 + ceil(log2(s + 1))) / 8 + 4. Alistarh et al. 2017, arXiv 1610.02132

The mean of all workers' vectors in few bits per number is no code of these: short floats are sent, and added up in full
precision (`mean_in_few_bits`, for `dsgd.algorithms.streaming`).

16       bfloat16
8        sign, 4 bits of exponent, 3 of mantissa (E4M3), relative to the largest magnitude
4        sign, 3 bits of exponent (E3M0): 0 and the largest magnitude times 2^-6 ... 2^0, as in Douillard et al. 2025,
         arXiv 2501.18512

PowerSGD (`low_rank_mean`, for `dsgd.algorithms.compressed`) sends the mean gradient as products of thin matrices:
Vogels, Karimireddy, Jaggi 2019, arXiv 1905.13727.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, prod, sqrt

import numpy as np
import torch
from torch import Tensor

from dsgd.streams import stream
from dsgd.worker import Worker

POWERS = (128, 64, 32, 16, 8, 4, 2, 1)
E4M3 = torch.float8_e4m3fn
MAGNITUDES = (0.0, *(2.0**-k for k in range(6, -1, -1)))


def pack(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the bytes of all parts as a vector of the type of `like`, filled up with zeros."""
    raw = torch.cat([part.contiguous().view(torch.uint8).flatten() for part in parts])
    return torch.cat((raw, raw.new_zeros(-len(raw) % like.element_size()))).view(like.dtype)


def unpack(packed: Tensor, kinds: Sequence[tuple[torch.dtype, int]]) -> list[Tensor]:
    """Split a packed vector into its parts. kinds: type and length of each part."""
    raw, begin, parts = packed.view(torch.uint8), 0, []
    for dtype, count in kinds:
        end = begin + count * dtype.itemsize
        parts.append(raw[begin:end].clone().view(dtype))
        begin = end
    return parts


def pack_bits(bits: Tensor) -> Tensor:
    """Return n bits, given as booleans, as ceil(n / 8) bytes."""
    if bits.device.type == "cpu":  # in a tenth of the time
        return torch.from_numpy(np.packbits(bits.numpy()))
    filled = torch.cat((bits, bits.new_zeros(-len(bits) % 8))).view(-1, 8)
    return (filled.to(torch.uint8) * torch.tensor(POWERS, dtype=torch.uint8, device=bits.device)).sum(1).to(torch.uint8)


def unpack_bits(raw: Tensor, count: int) -> Tensor:
    """Return the first `count` bits, as booleans."""
    if raw.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(raw.numpy(), count=count)).view(torch.bool)
    return (
        raw.unsqueeze(1).bitwise_and(torch.tensor(POWERS, dtype=torch.uint8, device=raw.device)).ne(0).flatten()[:count]
    )


def encode_topk(a: Tensor, k: int) -> Tensor:
    """Code a [d] by its k largest entries."""
    places = a.abs().topk(k).indices
    return pack((a[places], places.to(torch.int32)), a)


def decode_topk(packed: Tensor, d: int, k: int) -> Tensor:
    values, places = unpack(packed, ((packed.dtype, k), (torch.int32, k)))
    return packed.new_zeros(d).index_copy_(0, places.long(), values)


def encode_sign(a: Tensor) -> Tensor:
    """Code a [d] by its signs, times the mean of its magnitudes."""
    return pack((a.abs().mean().view(1), pack_bits(a >= 0)), a)


def decode_sign(packed: Tensor, d: int) -> Tensor:
    raw = packed.view(torch.uint8)[packed.element_size() :][: ceil(d / 8)]  # behind the mean magnitude
    return signs_of_bytes(packed.dtype, packed.device).index_select(0, raw.int()).view(-1)[:d].mul_(packed[0])


@cache
def signs_of_bytes(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the signs of the bits of each byte, [256, 8]: to look them up is several times as fast as to compute."""
    every = torch.arange(256, dtype=torch.uint8, device=device)
    return unpack_bits(every, 8 * 256).view(256, 8).to(dtype).mul_(2).sub_(1)


def encode_qsgd(a: Tensor, levels: int, rng: np.random.Generator) -> Tensor:
    """Code a [d] by levels of magnitude: s |a| / norm, rounded up with the probability of its fraction."""
    norm = a.norm()
    scaled = a.abs() * (levels / norm) if norm > 0 else torch.zeros_like(a)
    level = (scaled + torch.from_numpy(rng.random(len(a))).to(a)).floor().to(torch.int64).clamp_(max=levels)
    width = levels.bit_length()
    bits = [a >= 0] + [level.bitwise_right_shift(bit).bitwise_and(1).ne(0) for bit in range(width)]
    return pack((norm.view(1), pack_bits(torch.stack(bits, 1).flatten())), a)


def decode_qsgd(packed: Tensor, d: int, levels: int) -> Tensor:
    width = levels.bit_length()
    norm, raw = unpack(packed, ((packed.dtype, 1), (torch.uint8, ceil(d * (1 + width) / 8))))
    bits = unpack_bits(raw, d * (1 + width)).view(d, 1 + width)
    level = sum(bits[:, 1 + bit].to(packed.dtype) * 2**bit for bit in range(width))
    return torch.where(bits[:, 0], level, -level) * (norm / levels)


@dataclass(frozen=True)
class Coder:
    """encode: a [d] as a code, [n]. decode: back to [d]."""

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]


def coder(code: str, d: int, k: int, levels: int, rng: np.random.Generator, seed: int = 0, step: int = 0) -> Coder:
    """Return the encoder and decoder of any code but powersgd.

    rng: the worker's random stream, for qsgd. seed, step: seed of randomk's indices, the same in all workers."""
    if code == "topk":
        return Coder(lambda a: encode_topk(a, k), lambda packed: decode_topk(packed, d, k))
    if code == "randomk":
        places = stream("places", seed, step).choice(d, k, replace=False)
        return Coder(lambda a: a[places], lambda values: at_places(places, values, d))
    if code == "sign":
        return Coder(encode_sign, lambda packed: decode_sign(packed, d))
    if code == "qsgd":
        return Coder(lambda a: encode_qsgd(a, levels, rng), lambda packed: decode_qsgd(packed, d, levels))
    return Coder(lambda a: a, lambda a: a)


def at_places(places: np.ndarray, values: Tensor, d: int) -> Tensor:
    """Return a vector [d] that has these values at these places, and is 0 elsewhere."""
    return values.new_zeros(d).index_copy_(0, torch.from_numpy(places).to(values.device), values)


def excess(code: str, d: int, levels: int) -> float:
    """Return the divisor of a decoded vector [d] that makes the mean square error smaller than the vector. It is above
    1 for qsgd, which is unbiased. Source: Koloskova et al. 2019, arXiv 1902.00340, section 3.5."""
    return 1 + min(d / levels**2, sqrt(d) / levels) if code == "qsgd" else 1.0


def packed_size(code: str, d: int, item_bytes: int, k: int, levels: int) -> int:
    """Return the length of a code, in numbers of `item_bytes` bytes."""
    raw = {
        "none": d * item_bytes,
        "topk": k * (item_bytes + 4),
        "randomk": k * item_bytes,
        "sign": item_bytes + ceil(d / 8),
        "qsgd": item_bytes + ceil(d * (1 + levels.bit_length()) / 8),
    }[code]
    return ceil(raw / item_bytes)


async def mean_in_few_bits(worker: Worker, v: Tensor, count: int, bits: int) -> Tensor:
    """Return the mean of v over all workers, the same bits in all of them.

    Worker j sums the j-th of p pieces of all workers, then sends the piece's mean to all: 2 (p - 1) codes of a piece
    for each worker, as in a ring. v: [count], or empty in a run without gradients."""
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
    """Return the bytes of a code of `length` numbers, rounded up to a multiple of `item_bytes`."""
    raw = 2 * length if bits == 16 else item_bytes + ceil(length * bits / 8)
    return ceil(raw / item_bytes) * item_bytes


def encode(a: Tensor, bits: int) -> Tensor:
    """Round a [n] to the nearest numbers that `bits` bits can represent. Returns them packed into a's type."""
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


async def low_rank_mean(worker: Worker, a: Tensor, r: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the worker's decoded vector [d], and the mean over all workers [d]. For matrices both are P Q^T, for other
    parameters a and its mean. The Q's are kept between steps; `seed` draws the first ones."""
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
    """Return (begin, n, m) of each layer that P and Q make smaller, and the ranges of all others."""
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
    """Return the first Q's as a vector [d], in its first `count` numbers."""
    numbers = stream("first q", seed).standard_normal(count)
    return torch.cat((torch.from_numpy(numbers).to(like), like.new_zeros(len(like) - count)))
