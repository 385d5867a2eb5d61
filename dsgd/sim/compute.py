"""How long a node computes: gradient time, slow nodes, jitter and stalls."""

from __future__ import annotations

import math

import numpy as np

from dsgd.cluster import Cluster, Stall
from dsgd.streams import stream


class Processor:
    """The processor of one node. Its random streams depend on nothing but (seed, node)."""

    def __init__(self, cluster: Cluster, node: int, seed: int) -> None:
        self.mean_s = cluster.gradient_s * (cluster.slow_nodes or {}).get(node, 1.0)
        self._receive_overhead_s = cluster.receive_overhead_s
        self._cv = cluster.jitter
        self._lognormal = cluster.jitter_distribution == "lognormal"
        self._rng = stream("jitter", seed, node)
        stalls = [Stall.of(entry) for entry in cluster.stalls]
        self._pauses = [
            Pauses(stall, stream("stall", seed, node, index))
            for index, stall in enumerate(stalls)
            if stall.node is None or stall.node == node
        ]
        self._steady = self._cv == 0 and not self._pauses

    def finish(self, start_s: float, vectors: int = 0) -> float:
        """When a gradient that is begun now will be done, after so many vectors that have been received. Calls must
        come in order of time."""
        before_s = vectors * self._receive_overhead_s
        if self._steady:
            return start_s + before_s + self.mean_s
        now_s, left_s = start_s, before_s + self.mean_s * self._factor()
        while self._pauses and now_s < math.inf:
            begin_s, end_s = min(pauses.after(now_s) for pauses in self._pauses)
            if begin_s >= now_s + left_s:
                break
            left_s -= max(0.0, begin_s - now_s)
            now_s = end_s
        return now_s + left_s

    def _factor(self) -> float:
        """A random number with mean 1 and standard deviation `jitter`."""
        if self._cv == 0:
            return 1.0
        if self._lognormal:
            variance = math.log1p(self._cv**2)
            return self._rng.lognormal(-variance / 2, math.sqrt(variance))
        shape = self._cv**-2
        return self._rng.gamma(shape, 1 / shape)


class Pauses:
    """The pauses of one `Stall` on one node, made one after the other as time goes on."""

    def __init__(self, stall: Stall, rng: np.random.Generator) -> None:
        self._stall = stall
        self._rng = rng
        self._begin = self._end = 0.0
        if stall.start_s is not None:
            self._begin, self._end = stall.start_s, stall.start_s + stall.duration_s
        else:
            self._next()

    def _next(self) -> None:
        if self._stall.every_s is None:
            self._begin = self._end = math.inf
        else:
            self._begin = self._end + self._rng.exponential(self._stall.every_s)
            self._end = self._begin + self._rng.exponential(self._stall.duration_s)

    def after(self, time_s: float) -> tuple[float, float]:
        """Begin and end of the first pause that is not over at this time; infinite after the last one."""
        while self._end <= time_s:
            self._next()
        return self._begin, self._end
