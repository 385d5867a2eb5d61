"""The time of NCCL's all-reduce among hosts of several GPUs.

k hosts of m GPUs, p = k m GPUs in all, N bytes; V is the rate of a GPU's NVLink, R the rate of all network cards of a
host, x the latency of the wire between two hosts.

NCCL cuts the vector into chunks, some on each of its channels. These are pipelined over all hops of a ring or tree, so
NVLink and network do not add up: the first chunks cross every hop, one after the other, and all others follow at the
rate of the slowest level. A small vector has no others. `nccl_tuner.py` has the choice, and the latencies; constants
are NCCL's, with their files in https://github.com/NVIDIA/nccl."""

from __future__ import annotations

from math import inf

from dsgd.cluster.nccl import KIB
from dsgd.engines.sim.nccl_tuner import (
    GB,
    LL,
    NVLS_TREE,
    PROTOCOLS,
    TREE_LL128,
    TREE_SIMPLE,
    Hosts,
    choice,
    latency_s,
    ring_ll128,
)

STEPS = 8  # src/include/device.h, NCCL_STEPS: the slots of a buffer
LL_CHUNK = 32 * KIB  # src/init.cc, DEFAULT_LL_BUFFSIZE / NCCL_STEPS, half of it data
LL128_CHUNK = 576_000  # src/init.cc, DEFAULT_LL128_BUFFSIZE / NCCL_STEPS, 15 in 16 of it data
NVLS_CHANNELS = {"hopper": 16, "blackwell": 32}  # src/transport/nvls.cc, NVLS_NCHANNELS_SM90 and _SM100
PASSES = 4  # of a vector over NVLink: to the switch, to the GPU that sends it, back, and to all


def nccl_s(n_bytes: float, hosts: Hosts) -> tuple[float, str]:
    """Return the seconds of an all-reduce with the algorithm and protocol that NCCL takes, and the algorithm's name."""
    algorithm, protocol = choice(n_bytes, hosts)
    seconds = {"ring": ring_s, "tree": tree_s, "nvls_tree": nvls_tree_s}[algorithm]
    return seconds(n_bytes, hosts, protocol), f"nccl_{algorithm}"


def tree_s(n_bytes: float, hosts: Hosts, protocol: str) -> float:
    """Return the time of two trees of hosts, up and down; the GPUs of a host are a chain. With C bytes in the first
    chunks, G = 2 floor(log2 k) hops over the network and D = 2 (m - 1) hops over NVLink

        latency + G x + C (D / V + G / H) + (N - C) / min(V / 2, S)

    because a GPU within a chain forwards a sum and a result. H and S come from `_network`. V, H and S carry the
    protocol's share of data, and no hop is faster than all channels."""
    hops, up_down = 2 * hosts.levels, 2 * (hosts.m - 1)
    nvlink, network = _of_channels(protocol, hosts)
    share = PROTOCOLS[protocol].payload
    at_once, stream = _network(hosts)
    chunk = {"ll": LL_CHUNK, "simple": hosts.nccl.buffer_bytes / STEPS}.get(protocol) or _ll128_chunk(n_bytes, hosts)
    first = min(n_bytes, hosts.channels * chunk)
    way_s = up_down / min(share * hosts.nvlink, nvlink) + hops / min(share * at_once, network)
    rate = min(share * min(hosts.within / 2, stream), nvlink, network)
    return latency_s("tree", protocol, hosts) + hops * hosts.wire_s + first * way_s + (n_bytes - first) / rate


def _network(hosts: Hosts) -> tuple[float, float]:
    """Return the rates over the network of all chunks at once from one level of the two trees to the next, and of a
    long vector.

    Each tree has half of the vector. Of two hosts each is the root of one tree, so that one level takes both directions
    of the network, and what goes up in one tree goes down in the other: 2 R and R. Of more hosts most have two below
    them in one tree, and none in the other: R and R / 2."""
    return (2 * hosts.network, hosts.network) if hosts.k == 2 else (hosts.network, hosts.network / 2)


def _of_channels(protocol: str, hosts: Hosts) -> tuple[float, float]:
    """Return the rates of all channels of a tree in one direction: over NVLink, and over the network. NCCL limits LL
    only over the network."""
    if protocol == "ll":
        return inf, GB * LL[hosts.k > 2]
    rate = hosts.of_channels(TREE_SIMPLE if protocol == "simple" else TREE_LL128)
    return rate, rate


def _ll128_chunk(n_bytes: float, hosts: Hosts) -> float:
    """Return the bytes of a chunk of a tree with LL128: src/enqueue.cc, calcCollChunking."""
    chunk, of_channel = float(LL128_CHUNK), n_bytes / hosts.channels
    steps = (1 + hosts.levels + 0.1 * hosts.m) / hosts.m
    for chunks, least in ((64, 128 * KIB), (16, 32 * KIB)):
        while of_channel / chunk < chunks * steps and chunk > least:
            chunk /= 2
    return chunk


def ring_s(n_bytes: float, hosts: Hosts, protocol: str) -> float:
    """Return the time of a ring over all GPUs: latency + 2 (k - 1) x + 2 (p - 1) / p N / min(V, R). LL and LL128 carry
    their share of data at this rate, at most the rate of their channels."""
    rate = PROTOCOLS[protocol].payload * min(hosts.within, hosts.network)
    if protocol != "simple":
        rate = min(rate, GB * LL[hosts.k > 2] if protocol == "ll" else ring_ll128(hosts))
    wire_s = 2 * (hosts.k - 1) * hosts.wire_s
    return latency_s("ring", protocol, hosts) + wire_s + 2 * (hosts.p - 1) / hosts.p * n_bytes / rate


def nvls_tree_s(n_bytes: float, hosts: Hosts, protocol: str = "simple") -> float:
    """Return the time of a tree of hosts whose switches add. With L bytes in the first chunks, and H and S from
    `_network`

    latency + G x + L (4 / V + G / H) + (N - L) / min(channels, S)"""
    hops = 2 * hosts.levels
    channels = GB * hosts.m * hosts.p / (2 * (hosts.p - 1)) * NVLS_TREE[hosts.nccl.gpu][hosts.k > 2]
    at_once, stream = _network(hosts)
    first = min(n_bytes, _nvls_chunks(n_bytes, hosts))
    way_s = PASSES / hosts.nvlink + hops / at_once
    wire_s = hops * hosts.wire_s
    return latency_s("nvls_tree", protocol, hosts) + wire_s + first * way_s + (n_bytes - first) / min(channels, stream)


def _nvls_chunks(n_bytes: float, hosts: Hosts) -> float:
    """Return the bytes of all chunks that are sent at once: src/enqueue.cc, calcCollChunking."""
    count = NVLS_CHANNELS[hosts.nccl.gpu] * hosts.m
    chunk = hosts.nccl.nvls_chunk_bytes or (64 * KIB if hosts.k >= 4 else 128 * KIB)
    for chunks, least in ((32, 256 * KIB), (16, 128 * KIB), (4, 64 * KIB), (1, 32 * KIB)):
        if n_bytes < chunks * count * chunk:
            chunk = min(chunk, least)
    return count * chunk
