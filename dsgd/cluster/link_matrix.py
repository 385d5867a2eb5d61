"""The links between regions, pair by pair: `cluster.links`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LinkTable = tuple[tuple[float, ...], ...]  # [from][to]; the diagonal has no meaning
KEYS = ("regions", "nodes", "latency_s", "bandwidth", "loss")


@dataclass(frozen=True)
class LinkMatrix:
    """Regions of nodes with consecutive ranks, and the link from each of them to each other one.

    nodes: nodes of each region, None for equal numbers. bandwidth: bit/s from region to region, shared by all nodes of
    a region; a matrix of single nodes has a region for each node. loss: probability that a message is lost."""

    regions: tuple[str, ...]
    latency_s: LinkTable
    bandwidth: LinkTable
    loss: LinkTable
    nodes: tuple[int, ...] | None = None

    @staticmethod
    def from_entry(entry: Mapping[str, Any]) -> LinkMatrix:
        """Make the links from `cluster.links`. Raises ValueError."""
        unknown, missing = set(entry) - set(KEYS), {"regions", "latency_s", "bandwidth"} - set(entry)
        if unknown or missing:
            raise ValueError(
                "links must be {regions, latency_s, bandwidth} with or without nodes and loss, "
                f"got {', '.join(map(str, entry))}"
            )
        regions = entry["regions"]
        if not isinstance(regions, Sequence) or isinstance(regions, str) or len(regions) < 2:
            raise ValueError(f"links.regions must be a list of at least two names, got {regions!r}")
        names = tuple(map(str, regions))
        if len(set(names)) < len(names):
            raise ValueError(f"links.regions must have different names, got {', '.join(names)}")
        zeros = [[0.0] * len(names)] * len(names)
        return LinkMatrix(
            names,
            _matrix("latency_s", entry["latency_s"], names, ">= 0 seconds", lambda value: 0 <= value <= 1e9),
            _matrix("bandwidth", entry["bandwidth"], names, ">= 1 bit/s", lambda value: value >= 1),
            _matrix("loss", entry.get("loss") or zeros, names, ">= 0 and < 1", lambda value: 0 <= value < 1),
            _nodes(entry.get("nodes"), names),
        )

    @property
    def lossy(self) -> bool:
        """Return whether any link loses messages."""
        return any(loss for row in self.loss for loss in row)

    def index(self, region: str, key: str) -> int:
        """Return the number of a region that a key names. Raises ValueError for one that there is not."""
        if region not in self.regions:
            raise ValueError(f"{key} must name regions of links ({', '.join(self.regions)}), got {region}")
        return self.regions.index(region)

    def check(self, nodes: int) -> None:
        """Raise ValueError if the regions cannot have `nodes` workers."""
        if self.nodes is None and nodes % len(self.regions):
            raise ValueError(
                f"links.nodes must be given where {len(self.regions)} regions cannot share the nodes equally "
                f"(nodes={nodes}), got null"
            )
        if self.nodes is not None and sum(self.nodes) != nodes:
            raise ValueError(f"links.nodes must sum to the number of nodes (nodes={nodes}), got {sum(self.nodes)}")

    def region_of(self, node: int, nodes: int) -> int:
        """Return the number of a worker's region."""
        if self.nodes is None:
            return node // (nodes // len(self.regions))
        region, end = 0, self.nodes[0]
        while node >= end:
            region += 1
            end += self.nodes[region]
        return region


def _matrix(name: str, rows: Any, regions: Sequence[str], expected: str, good: Callable[[float], bool]) -> LinkTable:
    """Return a square matrix of numbers. A pair that is null one way is as the other way."""
    k, key = len(regions), f"links.{name}"
    lengths = [len(row) if isinstance(row, Sequence) and not isinstance(row, str) else 0 for row in _listed(rows)]
    if lengths != [k] * k:
        rule = f"{k} rows of {k} numbers, from the row's region to the column's"
        raise ValueError(f"{key} must be {rule}, got rows of {lengths}")
    values = [[0.0] * k for _ in regions]
    for i, here in enumerate(regions):
        for j, there in enumerate(regions):
            value = rows[i][j] if rows[i][j] is not None else rows[j][i]
            if i == j:
                if value not in (None, 0):
                    raise ValueError(f"{key} must be null within a region, got {value!r} for {here}")
                continue
            if value is None:
                raise ValueError(
                    f"{key} from {here} to {there} must be {expected}, got null, as from {there} to {here}"
                )
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not good(value):
                raise ValueError(f"{key} from {here} to {there} must be {expected}, got {value!r}")
            values[i][j] = float(value)
    return tuple(map(tuple, values))


def _nodes(counts: Any, regions: Sequence[str]) -> tuple[int, ...] | None:
    if counts is None:
        return None
    good = all(isinstance(count, int) and not isinstance(count, bool) and count >= 1 for count in _listed(counts))
    if not good or len(_listed(counts)) != len(regions):
        raise ValueError(f"links.nodes must be a number >= 1 for each of {len(regions)} regions, got {counts!r}")
    return tuple(counts)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
