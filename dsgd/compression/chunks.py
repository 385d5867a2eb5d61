"""The largest entries of every chunk of a vector in few bits, as SparseLoCo sends them.

Sarfi, Therien, Lidin, Belilovsky 2025, arXiv 2508.15706. A vector [d] is cut into chunks of equal length. Of each
chunk, the `kept` entries of largest magnitude are sent: their indices, each in log2(chunk) bits rounded up, and their
values in `bits`. The range of three standard deviations around the mean of these values is cut into 2^bits bins of
equal width, one of them around the mean. The outermost bins are open. A value is sent as the number of its bin, and
read as the mean of the values in that bin. A table of the 2^bits means goes with every code.

With chunks of 4096, 64 entries and 2 bits that is 14 bits for 64 entries: 1 / 146 of 4 d bytes.

A part of `dsgd.algorithms.diloco`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod, sqrt

import torch
from torch import Tensor

from dsgd.compression.codes import pack, pack_bits, unpack, unpack_bits
from dsgd.worker import Worker

RANGE = 6  # standard deviations that the bins cover


@dataclass(frozen=True)
class ChunkCode:
    """Encode and decode vectors [d] by the `kept` largest entries of every chunk, in `bits` bits; 32: unrounded."""

    d: int
    chunk: int
    kept: int
    bits: int

    @cached_property
    def rows(self) -> int:
        return ceil(self.d / self.chunk)

    @cached_property
    def count(self) -> int:
        """Return the number of entries that are sent."""
        return self.rows * self.kept

    @cached_property
    def width(self) -> int:
        """Return the number of bits that name a place in a chunk."""
        return (self.chunk - 1).bit_length()

    def packed_size(self, item_bytes: int) -> int:
        """Return the length of a code, in numbers of `item_bytes` bytes."""
        values = self.count * item_bytes if self.bits == 32 else 2**self.bits * item_bytes
        bits = self.width + (0 if self.bits == 32 else self.bits)
        return ceil((values + ceil(self.count * bits / 8)) / item_bytes)

    def encode(self, a: Tensor) -> Tensor:
        filled = torch.cat((a, a.new_zeros(self.rows * self.chunk - self.d))).view(self.rows, self.chunk)
        places = filled.abs().topk(self.kept, dim=1).indices
        values, places = filled.gather(1, places).flatten(), places.flatten()
        bits = bits_of(places, self.width)
        if self.bits != 32:
            digits, values = self._binned(values, self._flat(places) < self.d)
            bits = torch.cat((bits, bits_of(digits, self.bits)))
        return pack((values, pack_bits(bits)), a)

    def decode(self, packed: Tensor) -> Tensor:
        numbers, split = (self.count if self.bits == 32 else 2**self.bits), self.count * self.width
        total = split + (0 if self.bits == 32 else self.count * self.bits)
        values, raw = unpack(packed, ((packed.dtype, numbers), (torch.uint8, ceil(total / 8))))
        bits = unpack_bits(raw, total)
        if self.bits != 32:
            values = values[number_of(bits[split:], self.bits)]
        places = self._flat(number_of(bits[:split], self.width))
        return packed.new_zeros(self.rows * self.chunk).index_copy_(0, places, values)[: self.d]

    def _flat(self, places: Tensor) -> Tensor:
        """Return places in the vector, of places in chunks [count]."""
        first = torch.arange(self.rows, device=places.device) * self.chunk
        return places + first.repeat_interleave(self.kept)

    def _binned(self, values: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bin of each value [count], and the mean of each bin. inside: False for padding."""
        real, bins = values[inside], 2**self.bits
        centred = values - real.mean()
        width = centred[inside].norm() / sqrt(max(1, len(real) - 1)) * (RANGE / bins)
        digits = (centred / width if width > 0 else torch.zeros_like(values)).round().long() + bins // 2
        digits.clamp_(0, bins - 1)
        sums = values.new_zeros(bins).index_add_(0, digits[inside], real)
        return digits, sums / torch.bincount(digits[inside], minlength=bins).clamp(min=1)


def bits_of(numbers: Tensor, width: int) -> Tensor:
    """Return numbers [n] as booleans [n width], the lowest bit of each first."""
    return torch.stack([numbers.bitwise_right_shift(i).bitwise_and(1).ne(0) for i in range(width)], 1).flatten()


def number_of(bits: Tensor, width: int) -> Tensor:
    """Return the numbers [n] of booleans [n width]."""
    return (bits.view(-1, width).long() * 2 ** torch.arange(width, device=bits.device)).sum(1)


async def chunked_mean(worker: Worker, a: Tensor, chunk: int, kept: int, bits: int) -> tuple[Tensor, Tensor]:
    """Return the worker's decoded code, and the mean of all decoded codes, both [d]."""
    d = sum(prod(shape) for shape in worker.layout)
    code = ChunkCode(d, min(chunk, d), min(kept, d), bits)
    size = code.packed_size(a.element_size()) / d
    others = [(worker.rank + i) % worker.nodes for i in range(1, worker.nodes)]
    if not a.numel():  # a run for its times alone
        await worker.exchange(a, others, size=size)
        return a, a
    coded = {worker.rank: code.encode(a)}
    coded |= await worker.exchange(coded[worker.rank], others, size=size)
    total = a.new_zeros(d)
    for rank in range(worker.nodes):  # in the same order everywhere: theta must be equal bit for bit
        total.add_(code.decode(coded[rank]))
    return code.decode(coded[worker.rank]), total.div_(worker.nodes)
