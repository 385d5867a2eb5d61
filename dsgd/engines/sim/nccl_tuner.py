"""Choose the algorithm and protocol of an all-reduce among hosts of several GPUs as NCCL does, by an estimated time.

All constants are NCCL's, in GB/s and us as in its source: v2.28.7's, most of them unchanged since v2.18, but for
Blackwell's RING_LL128 of v2.29.7. Hosts have AMD's processors; with Intel's a ring starts sooner. Left out are
latencyInter, which plugins report, and that a ring with Simple has its factor only from 64 bytes of a channel and GPU
on. Files are in https://github.com/NVIDIA/nccl; a name without a file is in src/graph/tuning.cc."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2

from dsgd.cluster.nccl import GPUS, Nccl

US, GB = 1e-6, 1e9


@dataclass(frozen=True)
class Protocol:
    """tree_us, ring_us: baseLatencies, and hwLatencies of a step over NVLINK and of one over NET; a ring's over NVLINK
    takes at least what getNetOverhead says of AMD (Simple: three times). payload: the share of the bytes that is data,
    of LL 8 in 16, of LL128 120 in 128. corrections: treeCorrectionFactor, of powers of two from 64 bytes."""

    payload: float
    tree_us: tuple[float, float, float]
    ring_us: tuple[float, float, float]
    corrections: tuple[float, ...]

    def correction(self, n_bytes: float) -> float:
        """Return the share of a tree's bandwidth in the estimate for n_bytes."""
        power = int(log2(n_bytes / 64)) if n_bytes >= 64 else -1
        return self.corrections[power] if 0 <= power < len(self.corrections) else 1.0


_LL = (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_LL128 = (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9)
_SIMPLE = (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9)
PROTOCOLS = {
    "ll": Protocol(0.5, (6.8, 0.6, 5.0), (6.6, 2.0, 2.7), _LL),
    "ll128": Protocol(0.9375, (14.0, 1.25, 8.5), (14.0, 2.0, 4.0), _LL128),
    "simple": Protocol(1.0, (8.4, 4.0, 14.0), (8.4, 6.0, 14.0), _SIMPLE),
}
NVLS_US = (25.0, 14.0)  # hwLatencies of NVLSTree over NVLINK and NET
# of GPUS, for two hosts and for more; of a pair of channels, as the constants know one of each two
TREE_SIMPLE = ((18.5, 10.0), (23.6, 17.8), (41.4, 36.0), (42.8, 24.0))  # perChMaxTreeBws
TREE_LL128 = ((20.0, 20.0), (20.0, 20.0), (36.7, 29.0), (31.67, 20.0))  # perChMaxTreeLL128Bws
RING_LL128 = (20.0, 20.0, 36.7, 40.0)  # perChMaxRingLL128Bws
LL = (22.5, 19.0)  # llMaxBws of AMD, the lower ones, of all channels
NVLS_TREE = {"hopper": (57.7, 45.5), "blackwell": (96.0, 80.0)}  # perChMaxNVLSTreeBws, for each GPU of a host
NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}  # nvlsEfficiency
TREE, TREE_LL = 0.92, 1 / 3.8  # in ncclTopoTuneModel: shares of the bandwidth that a tree has, and with LL
RING_LL, RING_LL128_SHARE = 0.5, 0.92  # there: likewise a ring
PLATEAU = {"volta": 1.9}  # in ncclTopoGetAlgoTime: on the latency of a ring with Simple; of later GPUs 1.4
MOST_CHANNELS = 32  # src/include/device.h, MAXCHANNELS before v2.27


@dataclass(frozen=True)
class Hosts:
    """k hosts of m GPUs each. nvlink, network: bytes/s of a GPU's NVLink and of all network cards of a host, in each
    direction. wire_s: latency of the wire between two hosts."""

    k: int
    m: int
    nvlink: float
    network: float
    wire_s: float
    nccl: Nccl

    @property
    def p(self) -> int:
        """Return the number of GPUs."""
        return self.k * self.m

    @property
    def within(self) -> float:
        """Return the rate between GPUs of one host; inf for a single GPU."""
        return self.nvlink if self.m > 1 else inf

    @property
    def channels(self) -> int:
        """Return how many channels NCCL has: two for each network card; from Hopper on twice as many, if they are fewer
        than 16 and a card has more than 45 GB/s (src/graph/connect.cc, ncclTopoPostset)."""
        channels = min(MOST_CHANNELS, 2 * self.nccl.nics)
        doubles = self.nccl.gpu in NVLS_TREE and self.network / self.nccl.nics > 45 * GB and channels < 16
        return 2 * channels if doubles else channels

    @property
    def levels(self) -> int:
        """Return how many steps over the network lie between a leaf and the root of a tree of hosts."""
        return int(log2(self.k))

    def of_channels(self, constants: tuple[tuple[float, float], ...]) -> float:
        """Return the bytes/s of all channels by a table of pairs of them."""
        return GB * self.channels / 2 * constants[GPUS.index(self.nccl.gpu)][self.k > 2]


def latency_s(algorithm: str, protocol: str, hosts: Hosts) -> float:
    """Return what NCCL expects of an all-reduce of nothing, without the wire. A ring with one GPU in each host takes a
    tree's time over the network (ppn == 1)."""
    if algorithm == "nvls_tree":
        nvlink_us, net_us = NVLS_US
        return US * (nvlink_us + 2 * hosts.levels * net_us)
    base_us, nvlink_us, net_us = getattr(PROTOCOLS[protocol], f"{algorithm}_us")
    if algorithm == "tree":
        return US * (base_us + 2 * (hosts.m - 1) * nvlink_us + 2 * hosts.levels * net_us)
    if hosts.m == 1:
        net_us = PROTOCOLS[protocol].tree_us[2]
    between = 2 * (hosts.k - 1)
    factor = PLATEAU.get(hosts.nccl.gpu, 1.4) if protocol == "simple" else 1.0
    return US * factor * (base_us + (2 * (hosts.p - 1) - between) * nvlink_us + between * net_us)


def choice(n_bytes: float, hosts: Hosts) -> tuple[str, str]:
    """Return the algorithm and the protocol with the least estimated time, among NCCL's options."""
    nccl = hosts.nccl
    options = [
        (algorithm, each) for algorithm in ("ring", "tree") for each in nccl.protocols if algorithm in nccl.algorithms
    ]
    if nccl.has_nvls_tree and (hosts.m > 1 or not options):
        options.append(("nvls_tree", "simple"))
    return min(options, key=lambda option: _estimated_s(n_bytes, *option, hosts))


def _estimated_s(n_bytes: float, algorithm: str, protocol: str, hosts: Hosts) -> float:
    """Return latency + N / bandwidth, by ncclTopoTuneModel and ncclTopoGetAlgoTime."""
    rate = {"ring": _of_ring, "tree": _of_tree, "nvls_tree": _of_nvls_tree}[algorithm](protocol, hosts)
    if algorithm == "tree":
        rate *= PROTOCOLS[protocol].correction(n_bytes) / 2
    else:
        rate *= hosts.p / (2 * (hosts.p - 1))
    return latency_s(algorithm, protocol, hosts) + n_bytes / rate


def _of_ring(protocol: str, hosts: Hosts) -> float:
    rate = min(hosts.within, hosts.network)
    if protocol == "ll":
        return min(RING_LL * rate, GB * LL[hosts.k > 2])
    return min(RING_LL128_SHARE * rate, ring_ll128(hosts)) if protocol == "ll128" else rate


def ring_ll128(hosts: Hosts) -> float:
    """Return the bytes/s of all channels of a ring with LL128."""
    return GB * hosts.channels / 2 * RING_LL128[GPUS.index(hosts.nccl.gpu)]


def _of_tree(protocol: str, hosts: Hosts) -> float:
    """Return the rate of a tree in the estimate, which takes NVLink's rate for two hosts."""
    wires = hosts.nvlink if hosts.k == 2 and hosts.m > 1 else min(hosts.within, hosts.network)
    rate = min(TREE * wires, hosts.of_channels(TREE_SIMPLE))
    if protocol == "ll":
        return min(TREE_LL * rate, GB * LL[hosts.k > 2])
    return min(PROTOCOLS[protocol].payload * rate, hosts.of_channels(TREE_LL128)) if protocol == "ll128" else rate


def _of_nvls_tree(_: str, hosts: Hosts) -> float:
    within = 2 * NVLS_EFFICIENCY[hosts.nccl.gpu] * (hosts.m - 1) / hosts.m * hosts.nvlink
    network = hosts.network * (2 if hosts.k == 2 else 1)
    return min(within, network, hosts.m * GB * NVLS_TREE[hosts.nccl.gpu][hosts.k > 2])
