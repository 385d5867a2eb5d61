"""Read NCCL's settings on hosts of several GPUs, `cluster.nccl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

GPUS = ("volta", "ampere", "hopper", "blackwell")
ALGORITHMS = ("ring", "tree", "nvls_tree")
PROTOCOLS = ("ll", "ll128", "simple")
KIB = 1 << 10
MOST_NICS = 128


@dataclass(frozen=True)
class Nccl:
    """Describe hosts of GPUs of one generation: their network cards, and the values of NCCL's variables.

    buffer_bytes: NCCL_BUFFSIZE. nvls_chunk_bytes: NCCL_NVLS_CHUNKSIZE and NCCL_NVLSTREE_MAX_CHUNKSIZE; None: 128 KiB,
    and 64 KiB from four hosts on. algorithms, protocols: NCCL_ALGO and NCCL_PROTO, from which it takes the fastest."""

    gpu: str
    nics: int
    buffer_bytes: float = 4096 * KIB
    nvls_chunk_bytes: float | None = None
    algorithms: tuple[str, ...] = ALGORITHMS
    protocols: tuple[str, ...] = PROTOCOLS

    @staticmethod
    def from_entry(entry: Mapping[str, Any]) -> Nccl:
        """Make it from `cluster.nccl`. Raises ValueError."""
        known = [field.name for field in fields(Nccl)]
        if not {"gpu", "nics"} <= set(entry) <= set(known):
            given = ", ".join(map(str, entry)) or "nothing"
            raise ValueError(f"nccl must be {{gpu, nics}} with or without {', '.join(known[2:])}, got {given}")
        if entry["gpu"] not in GPUS:
            raise ValueError(f"nccl: gpu must be one of {', '.join(GPUS)}, got {entry['gpu']!r}")
        nics = entry["nics"]
        if isinstance(nics, bool) or not isinstance(nics, int) or not 1 <= nics <= MOST_NICS:
            raise ValueError(f"nccl: nics must be a whole number in [1, {MOST_NICS}], got {nics!r}")
        for name in ("buffer_bytes", "nvls_chunk_bytes"):
            value = entry.get(name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (is_number and 32 * KIB <= value <= 1e9):
                raise ValueError(f"nccl: {name} must be in [32768, 1e9], got {value!r}")
        given = {name: value for name, value in entry.items() if value is not None}
        for name, options in (("algorithms", ALGORITHMS), ("protocols", PROTOCOLS)):
            if name in given:
                given[name] = _some(name, given[name], options)
        nccl = Nccl(**given)
        if nccl.protocols_of_rings_and_trees or nccl.has_nvls_tree:
            return nccl
        rule = "nvls_tree must be with protocol simple on hopper or blackwell, where it is the only algorithm"
        raise ValueError(f"nccl: {rule}, got {', '.join(nccl.protocols)} on {nccl.gpu}")

    @property
    def has_nvls_tree(self) -> bool:
        """Return whether switches that add can take part: they came with Hopper, and use one protocol."""
        return "nvls_tree" in self.algorithms and "simple" in self.protocols and self.gpu in ("hopper", "blackwell")

    @property
    def protocols_of_rings_and_trees(self) -> tuple[str, ...]:
        """Return the protocols of rings and trees, none without rings and trees."""
        return self.protocols if {"ring", "tree"} & set(self.algorithms) else ()


def _some(name: str, given: Any, options: tuple[str, ...]) -> tuple[str, ...]:
    """Return some of the options, as a list names them. Raises ValueError."""
    if not isinstance(given, list | tuple) or not given or any(each not in options for each in given):
        raise ValueError(f"nccl: {name} must be a list of {', '.join(options)}, got {given!r}")
    return tuple(given)
