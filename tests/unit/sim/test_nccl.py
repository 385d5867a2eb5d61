"""NCCL's all-reduce among hosts of several GPUs: each reason for its time is a formula."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.cluster.nccl import ALGORITHMS, GPUS, Nccl
from dsgd.engines.sim.collectives import Links
from dsgd.engines.sim.collectives import ring_s as ring_of_messages_s
from dsgd.engines.sim.nccl_time import nccl_s, nvls_tree_s, ring_s, tree_s
from dsgd.engines.sim.nccl_tuner import PROTOCOLS, Hosts, choice
from tests.support.each_row import each_row
from tests.support.timing import timed

US, MIB, GIB = 1e-6, 1 << 20, 1 << 30
H100, NETWORK = 370.8e9, 384e9  # 18 links of NVLink; eight cards of 400 Gbit/s less headers


def hosts(k: int = 2, m: int = 8, gpu: str = "hopper", nics: int = 8, network: float = NETWORK, **more: Any) -> Hosts:
    wire_s, nvlink = more.pop("wire_s", 0.0), more.pop("nvlink", H100)
    return Hosts(k, m, nvlink, network, wire_s, Nccl(gpu, nics, **more))


def seconds_a_byte(algorithm: str, each: Hosts, protocol: str = "simple") -> float:
    """What more bytes of a long vector take."""
    time_s = {"ring": ring_s, "tree": tree_s, "nvls_tree": nvls_tree_s}[algorithm]
    return (time_s(8e12, each, protocol) - time_s(4e12, each, protocol)) / 4e12


def test_eight_bytes_take_the_latencies_of_ll() -> None:
    """6.8 + 0.6 D + 2 g (5 + x) us with D = 14 and g = 1: NCCL's base, its hops, and the wire."""
    time_s, name = nccl_s(8, hosts(wire_s=7e-6))
    assert name == "nccl_tree"
    assert time_s == pytest.approx(US * (6.8 + 0.6 * 14 + 2 * (5 + 7)), rel=1e-2)
    slow_s, _ = nccl_s(8, hosts(wire_s=1e-3))
    assert slow_s - time_s == pytest.approx(2 * (1e-3 - 7e-6))


def test_a_long_vector_goes_at_the_slower_level_of_a_tree() -> None:
    """V / 2 within a host, as its GPUs pass on a sum and a result; R of two hosts, R / 2 of more."""
    assert seconds_a_byte("tree", hosts()) == pytest.approx(2 / H100)
    assert seconds_a_byte("tree", hosts(network=1e11)) == pytest.approx(1e-11)
    assert seconds_a_byte("tree", hosts(k=4, network=1e11)) == pytest.approx(2e-11)
    assert seconds_a_byte("tree", hosts(network=1e11), "ll128") == pytest.approx(1e-11 * 128 / 120)


def test_a_long_vector_is_no_faster_than_the_channels_of_its_protocol() -> None:
    assert seconds_a_byte("tree", hosts(), "ll") == pytest.approx(1 / 22.5e9)
    few = hosts(gpu="ampere", nics=4, network=1e11)
    assert seconds_a_byte("tree", few, "ll128") == pytest.approx(1 / (4 * 20e9))
    assert seconds_a_byte("ring", hosts(), "ll") == pytest.approx(2 * 15 / 16 / 22.5e9)


def test_a_long_vector_passes_each_wire_of_a_ring_twice_but_for_a_part() -> None:
    for k, m in ((2, 8), (4, 8), (3, 1)):
        p = k * m
        assert seconds_a_byte("ring", hosts(k, m, network=5e10)) == pytest.approx(2 * (p - 1) / p / 5e10)


def test_a_long_vector_fills_the_channels_of_switches_that_add() -> None:
    """57.7 GB/s of bus bandwidth for each of eight GPUs, between two hosts."""
    assert seconds_a_byte("nvls_tree", hosts()) == pytest.approx(2 * 15 / 16 / (8 * 57.7e9))
    assert seconds_a_byte("nvls_tree", hosts(network=1e11)) == pytest.approx(1e-11)


def test_the_levels_overlap() -> None:
    """8 GiB take the longer of what NVLink and the network take, not both."""
    each = hosts(network=192e9)
    time_s = tree_s(8 * GIB, each, "simple")
    within_s, between_s = 8 * GIB * 2 / H100, 8 * GIB / 192e9
    assert max(within_s, between_s) < time_s < 1.02 * max(within_s, between_s)


def test_a_chunk_crosses_every_hop() -> None:
    """A vector of one chunk for each channel: 14 hops of NVLink and two half vectors over the network, at no more than
    eight pairs of channels carry, 41.4 GB/s each."""
    each, n_bytes = hosts(nvlink=450e9), 16 * 512 * 1024
    latency_s = US * (8.4 + 14 * 4 + 2 * 14)
    assert tree_s(n_bytes, each, "simple") == pytest.approx(latency_s + n_bytes * (14 + 2) / (8 * 41.4e9))
    large = dataclasses.replace(each, nccl=Nccl("hopper", 8, buffer_bytes=8 * MIB))
    assert tree_s(2 * n_bytes, large, "simple") == pytest.approx(latency_s + 2 * n_bytes * 16 / (8 * 41.4e9))
    assert tree_s(2 * n_bytes, each, "simple") < tree_s(2 * n_bytes, large, "simple")


def test_with_one_gpu_in_a_host_a_ring_is_the_ring_of_messages() -> None:
    """But for the start-up; and NVLink, which it does not have, is no matter."""
    for k in (2, 4, 16):
        each = hosts(k, 1, nics=1, network=5e10)
        of_messages = Links(0.0, 5e10, 5e10)
        per_byte = ring_of_messages_s(k, 1e9, of_messages) / 1e9
        assert seconds_a_byte("ring", each) == pytest.approx(per_byte)
        for algorithm, time_s in (("ring", ring_s), ("tree", tree_s)):
            slow = dataclasses.replace(each, nvlink=1e6)
            assert time_s(GIB, slow, "simple") == time_s(GIB, each, "simple"), algorithm
        assert choice(GIB, each)[0] != "nvls_tree"


@settings(max_examples=60)
@given(data=st.data())
def test_no_algorithm_is_faster_with_more_bytes_or_a_slower_network(data: st.DataObject) -> None:
    """With as many channels."""
    k, m = data.draw(st.integers(2, 64)), data.draw(st.sampled_from([1, 2, 4, 8]))
    nics = data.draw(st.integers(1, 16))
    each = hosts(k, m, data.draw(st.sampled_from(GPUS[2:])), nics, network=nics * 40e9)
    fewer, more = sorted(data.draw(st.tuples(st.floats(8, 1e11), st.floats(8, 1e11))))
    slower = dataclasses.replace(each, network=each.network / data.draw(st.floats(1, 100)), wire_s=1e-5)
    for time_s, protocols in ((ring_s, PROTOCOLS), (tree_s, PROTOCOLS), (nvls_tree_s, ["simple"])):
        for protocol in protocols:
            assert time_s(fewer, each, protocol) <= time_s(more, each, protocol) * (1 + 1e-12)
            assert time_s(more, each, protocol) <= time_s(more, slower, protocol)


@each_row(
    ("n_bytes", "each", "expected"),
    [
        (1024, hosts(), ("tree", "ll")),
        (256 * 1024, hosts(), ("tree", "ll128")),
        (GIB, hosts(), ("nvls_tree", "simple")),
        (MIB, hosts(gpu="ampere", nvlink=240e9), ("tree", "ll128")),
        (GIB, hosts(gpu="ampere", nvlink=240e9), ("ring", "simple")),
        (GIB, hosts(gpu="ampere", nvlink=240e9, network=1e11), ("tree", "simple")),
        (GIB, hosts(k=4, gpu="volta", nvlink=120e9, network=48e9, nics=4), ("ring", "simple")),
        (GIB, hosts(network=192e9, algorithms=("ring", "tree"), protocols=("simple",)), ("tree", "simple")),
        (8, hosts(protocols=("ll128",)), ("tree", "ll128")),
    ],
)
def test_it_takes_what_it_expects_to_be_fastest(n_bytes: float, each: Hosts, expected: tuple[str, str]) -> None:
    assert choice(n_bytes, each) == expected


@each_row(
    ("gpu", "nics", "gbit_s", "channels"),
    [
        ("hopper", 1, 400, 4), ("hopper", 2, 400, 8), ("hopper", 4, 400, 16), ("hopper", 8, 400, 16),
        ("hopper", 4, 200, 8), ("ampere", 1, 100, 2), ("ampere", 16, 100, 32), ("blackwell", 4, 800, 16),
    ],
)  # fmt: skip
def test_fast_cards_have_four_channels_each_where_they_are_few(
    gpu: str, nics: int, gbit_s: float, channels: int
) -> None:
    """NCCL searches one channel for each card, of 12 in 12.5 of its rate, and duplicates them."""
    assert hosts(gpu=gpu, nics=nics, network=nics * gbit_s * 12e7).channels == channels


ENTRY = {"gpu": "hopper", "nics": 8}
CLUSTER: dict[str, Any] = {"gradient_s": 0.0, "bandwidth": 8 * H100, "latency_s": 0.0, "islands": 2, "nccl": ENTRY}
CLUSTER |= {"wan_bandwidth": 8 * NETWORK, "wan_latency_s": 7e-6}


@each_row(("n_bytes", "name"), [(8.0 * 16, "nccl_tree"), (float(GIB), "nccl_nvls_tree")])
def test_a_step_of_the_simulator_takes_it(n_bytes: float, name: str) -> None:
    run = timed(Sync(overlap=False), Cluster(**CLUSTER, message_bytes=n_bytes), 16, 1)
    expected_s, _ = nccl_s(n_bytes, hosts(wire_s=7e-6))
    assert run.time_s == pytest.approx(expected_s)
    assert run.summary()["collective"] == name
    assert run.machine.network.bytes_sent(run.time_s) == pytest.approx([2 * 15 / 16 * n_bytes] * 16)


@each_row(
    ("changed", "rule"),
    [
        ({"nccl": {"gpu": "hopper"}}, "nccl must be {gpu, nics} with or without buffer_bytes"),
        ({"nccl": ENTRY | {"gpu": "h100"}}, "nccl: gpu must be one of volta, ampere, hopper, blackwell, got 'h100'"),
        ({"nccl": ENTRY | {"nics": 0}}, "nccl: nics must be a whole number"),
        ({"nccl": ENTRY | {"buffer_bytes": 1}}, "nccl: buffer_bytes must be in"),
        ({"nccl": ENTRY | {"algorithms": ["collnet"]}}, "nccl: algorithms must be a list of"),
        ({"nccl": ENTRY | {"protocols": "ll"}}, "nccl: protocols must be a list of"),
        ({"nccl": ENTRY | {"protocols": {"ll": 1}}}, "nccl: protocols must be a list of"),
        ({"nccl": ENTRY | {"algorithms": 5}}, "nccl: algorithms must be a list of"),
        ({"nccl": ENTRY | {"algorithms": [["ring"]]}}, "nccl: algorithms must be a list of"),
        ({"nccl": {"gpu": "volta", "nics": 4, "algorithms": ["nvls_tree"]}}, "nccl: nvls_tree must be with"),
        ({"islands": 1, "wan_bandwidth": None}, "islands must be >= 2 with nccl"),
        ({"collective": "ring"}, "collective must be best, by its formula, with nccl"),
        ({"slice_bytes": 1e6}, "slice_bytes must be null with nccl"),
        ({"window_bytes": 1e6}, "window_bytes must be null with nccl"),
    ],
)
def test_what_it_cannot_be_ends_in_one_line(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match="^" + rule.replace("{", r"\{").replace("}", r"\}")) as raised:
        Cluster(**CLUSTER | changed)
    assert "\n" not in str(raised.value)


def test_a_part_of_its_algorithms_is_named_by_a_list() -> None:
    nccl = Nccl.from_entry(ENTRY | {"algorithms": ["tree"], "protocols": ["simple"], "nvls_chunk_bytes": None})
    assert nccl == Nccl("hopper", 8, algorithms=("tree",), protocols=("simple",))
    assert Nccl.from_entry(ENTRY).algorithms == ALGORITHMS
