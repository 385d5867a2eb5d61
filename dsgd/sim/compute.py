"""Computing time of a node: gradients, slow nodes, jitter and stalls."""

from __future__ import annotations

import math

import numpy as np

from dsgd.cluster import Cluster
from dsgd.disturbances import Congestion, Stall
from dsgd.streams import stream


class Processor:
    """Compute the durations of one node's gradients. Its random streams depend only on (seed, node)."""

    def __init__(self, cluster: Cluster, node: int, seed: int) -> None:
        if cluster.gradient_s is None:
            raise ValueError("cluster.gradient_s must be a number in a simulation, got null")
        self.mean_s = cluster.gradient_s * (cluster.slow_nodes or {}).get(node, 1.0)
        self._receive_overhead_s = cluster.receive_overhead_s
        self._cv = cluster.jitter
        self._distribution = cluster.jitter_distribution
        self._rng = stream("jitter", seed, node)
        stalls = [Stall.of(entry) for entry in cluster.stalls]
        self._pauses = [
            Pauses(stall, stream("stall", seed, node, index))
            for index, stall in enumerate(stalls)
            if stall.node is None or stall.node == node
        ]
        self._steady = self._cv == 0 and not self._pauses

    def finish(self, start_s: float, vectors: int = 0) -> float:
        """Return the time at which a gradient begun at start_s is done, if `vectors` received vectors come before it.
        Calls must come in order of time."""
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
        """Draw a factor with mean 1 and standard deviation `jitter`. A normal one that is not above 0 is drawn again:
        one in 741 with the largest jitter, by which the mean is 0.15 % more than 1 and the deviation 0.7 % less."""
        if self._cv == 0:
            return 1.0
        if self._distribution == "lognormal":
            variance = math.log1p(self._cv**2)
            return self._rng.lognormal(-variance / 2, math.sqrt(variance))
        if self._distribution == "normal":
            while (factor := self._rng.normal(1.0, self._cv)) <= 0:
                pass
            return factor
        shape = self._cv**-2
        return self._rng.gamma(shape, 1 / shape)


class Pauses:
    """Generate the pauses of one `Stall` on one node, or the times of a `Congestion`, in order of time."""

    def __init__(self, stall: Stall | Congestion, rng: np.random.Generator) -> None:
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
        """Return begin and end of the first pause that ends after this time; infinite after the last one."""
        while self._end <= time_s:
            self._next()
        return self._begin, self._end
