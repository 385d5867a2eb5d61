"""Model a cluster: the time of gradients and messages. Used by the simulator, measured by the calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Annotated, Any, TypeVar

from dsgd.cluster.compute_trace import LONGEST_S, ComputeTrace, Congestion, JitterLaw, Stall
from dsgd.cluster.failures import Failures
from dsgd.cluster.link_matrix import LinkMatrix
from dsgd.cluster.nccl import Nccl
from dsgd.keys import Key, check_options

BEST_OF = ("ring", "halving_doubling", "tree")
BEST_OF_ISLANDS = ("ring", "hierarchical")
CENTRAL = ("star", "store")  # collectives with one node more, behind all others
COLLECTIVES = ("best", *BEST_OF, "chain", "hierarchical", *CENTRAL)
MOST_BYTES = 1e15  # of a vector
MOST_STALLS = 1000  # in the time of one gradient, each of which is drawn
SLOWNESS = "gradient time of node {}, times the others'"
SECONDS = f"in [0, {LONGEST_S:g}]"
BANDWIDTH = "in [1, inf] bit/s"
WINDOW = f"in [1500, {MOST_BYTES:g}], a packet or more"
PART = f"in [64, {MOST_BYTES:g}]"
FEW = "in [1, 1024]"

T = TypeVar("T")


def _read_once(key: str, read: Callable[[Any], T]) -> cached_property[T | None]:
    """Return a property of a cluster that is what `read` makes of the value of a key; None where that is null."""

    def value(cluster: Cluster) -> T | None:
        return None if (given := getattr(cluster, key)) is None else read(given)

    return cached_property(value)


@dataclass(frozen=True)
class Cluster:
    """`cluster.*`: speeds of nodes and ports, the same for every node unless a mapping names single ones.

    conf/cluster/gigabit.yaml describes each key. None, there null, leaves it to another key or to the run."""

    gradient_s: Annotated[float | None, Key(axis="time of a gradient", rule=SECONDS)]
    bandwidth: Annotated[float, Key("{}", BANDWIDTH)]
    latency_s: Annotated[float, Key("{} latency", SECONDS)]
    receive_bandwidth: Annotated[float | None, Key("{} received", BANDWIDTH)] = None
    protocol_efficiency: Annotated[float, Key("{} of it payload", "in (0, 1]", unit="%")] = 1.0
    window_bytes: Annotated[float | None, Key("windows of {}", WINDOW)] = None
    initial_window_bytes: Annotated[float | None, Key("from {} on", WINDOW)] = None
    connection_bandwidth: Annotated[float | None, Key("{} a connection", BANDWIDTH)] = None
    streams: Annotated[int, Key("{} connections a pair", FEW)] = 1
    links: Annotated[Mapping[str, Any] | None, Key("regions {:regions}")] = None
    message_bytes: Annotated[float | None, Key(axis="message size", rule=f"in (0, {MOST_BYTES:g}]")] = None
    server_bandwidth: Annotated[float | None, Key("servers {}", BANDWIDTH)] = None
    servers_colocated: Annotated[bool, Key("servers on workers' ports")] = False
    node_bandwidth: Annotated[Mapping[int, float] | None, Key("nodes {}")] = None
    islands: Annotated[int, Key("{} islands", ">= 1")] = 1
    wan_bandwidth: Annotated[float | None, Key("{} between islands", BANDWIDTH)] = None
    wan_latency_s: Annotated[float | None, Key("{} latency between islands", SECONDS)] = None
    nccl: Annotated[Mapping[str, Any] | None, Key("NCCL: {:entries}")] = None
    receive_overhead_s: Annotated[float, Key("{} for each received vector", SECONDS)] = 0.0
    chunks_per_message: Annotated[int, Key("{} chunks a message", FEW)] = 1
    collective: Annotated[str, Key("all-reduce {}", COLLECTIVES)] = "best"
    collective_messages: Annotated[bool, Key("simulated message by message")] = False
    slice_bytes: Annotated[float | None, Key("slices of {}", PART)] = None
    chunk_bytes: Annotated[float | None, Key("loops over chunks of {}", PART)] = None
    collective_startup_s: Annotated[float, Key("{} before each all-reduce", SECONDS)] = 0.0
    bucket_bytes: Annotated[float | None, Key("buckets of {}", PART)] = None
    bucket_startup_s: Annotated[float, Key("{} before each bucket", SECONDS)] = 0.0
    jitter: Annotated[float, Key("jitter {}", unit="%")] = 0.0
    jitter_distribution: Annotated[str, Key("{}")] = "gamma"
    jitter_skew: Annotated[float | None, Key("of skew {:g}")] = None
    jitter_persistent: Annotated[float, Key("{} of it for good", unit="%")] = 0.0
    jitter_memory_s: Annotated[float, Key("slow phases of {}")] = 0.0
    compute_trace: Annotated[str | None, Key("gradient times of {:file}")] = None
    slow_nodes: Annotated[Mapping[int, float] | None, Key("slow nodes {:factors}", of_node=SLOWNESS)] = None
    stalls: Annotated[list[Mapping[str, Any]], Key("stalls: {:entries}")] = field(default_factory=list)
    failures: Annotated[Mapping[str, Any] | None, Key("failures: {:entries}", entry=Failures)] = None
    congestion: Annotated[list[Mapping[str, Any]], Key("congestion: {:entries}")] = field(default_factory=list)
    loss: Annotated[float, Key("{} of messages lost", "in [0, 1)", axis="messages lost", unit="%")] = 0.0
    retransmit_s: Annotated[float, Key(rule=SECONDS)] = 0.2
    gradient_of: str | None = None
    time_model: str | None = None

    replayed = _read_once("compute_trace", ComputeTrace.read)  # gradient times
    failing = _read_once("failures", Failures.from_entry)  # when nodes fail
    link_matrix = _read_once("links", LinkMatrix.from_entry)  # what is between regions
    of_nccl = _read_once("nccl", Nccl.from_entry)  # how it is set up

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.jitter_law
        if self.replayed is not None:
            replaced = {"gradient_s": self.gradient_s, "jitter": self.jitter or None}
            replaced["jitter_persistent"] = self.jitter_persistent or None
            for name, value in replaced.items():
                if value is not None:
                    usual = "null" if name == "gradient_s" else "0"
                    raise ValueError(f"{name} must be {usual} with compute_trace, which has its own, got {value:g}")
        for name, what, least, most in (("node_bandwidth", "bit/s", 1, 1e18), ("slow_nodes", "a factor", 1e-6, 1e6)):
            for node, value in (getattr(self, name) or {}).items():
                if not least <= value <= most:
                    raise ValueError(f"{name} must give {what} in [{least:g}, {most:g}], got {value} for node {node}")
        if self.wan_latency_s is not None and self.wan_latency_s < self.latency_s:
            raise ValueError(f"wan_latency_s must be >= latency_s ({self.latency_s:g}), got {self.wan_latency_s}")
        if self.links is not None and self.islands != 1:
            raise ValueError(f"islands must be 1 with links, whose regions take their place, got {self.islands}")
        if self.of_nccl is not None:
            self._check_nccl()
        links = self.link_matrix
        for congestion in map(Congestion.from_entry, self.congestion):
            for region in congestion.between or ():
                if links is None:
                    raise ValueError(f"congestion: between must not be given without links, got {congestion.between}")
                links.index(region, "congestion: between")
        if self.congestion and self.islands == 1 and links is None:
            raise ValueError(f"congestion must be [] without islands, whose uplinks it slows, got {self.congestion}")
        named = ", ".join(name for name in COLLECTIVES if name != "best")
        first, whole = self.initial_window_bytes, self.window_bytes
        if first is not None and (whole is None or first > whole):
            given = f"{first:g} and {'null' if whole is None else f'{whole:g}'}"
            raise ValueError(f"initial_window_bytes must be at most window_bytes, to which it grows, got {given}")
        by_messages = {"congestion": self.congestion, "loss": self.loss, "initial_window_bytes": first}
        by_messages["links.loss"] = links is not None and links.lossy
        for name, given in by_messages.items():
            if given and not self.collective_messages:
                rule = f"collective_messages must be true with {name}, which no formula knows, and collective one of"
                raise ValueError(f"{rule} {named}, got false and {self.collective}")
        has_formula = self.collective_messages or self.collective == "best" or self.collective in self.with_formula
        if not has_formula:
            what = "islands" if self.islands > 1 else "links" if links else "slice_bytes, a limit per connection"
            raise ValueError(
                f"collective must be one of best, {', '.join(self.with_formula)} with {what} and without "
                f"collective_messages, got {self.collective!r}"
            )
        if self.collective == "best" and self.collective_messages:
            raise ValueError(f"collective must be one of {named} with collective_messages=true, got 'best'")
        if self.collective in CENTRAL and self.servers_colocated:
            rule = f"servers_colocated must be false with collective={self.collective}, whose centre has its own port"
            raise ValueError(f"{rule}, got true")
        if self.failing is not None and self.failing.every_s < (least_s := self.longest_gradient_s):
            rule = f"every_s must be >= {least_s:g}, the longest gradient, which else would hardly end"
            raise ValueError(f"failures: {rule}, got {self.failing.every_s:g}")
        for stall in map(Stall.from_entry, self.stalls):
            least_s = self.longest_s / MOST_STALLS
            if stall.every_s is not None and stall.every_s < least_s:
                rule = f"every_s must be >= {least_s:g} ({MOST_STALLS} stalls in {self.longest_s:g} s of work)"
                raise ValueError(f"stalls: {rule}, got {stall.every_s}")

    def _check_nccl(self) -> None:
        if self.islands < 2:
            raise ValueError(f"islands must be >= 2 with nccl, of which they are the hosts, got {self.islands}")
        if self.collective != "best" or self.collective_messages:
            given = f"{self.collective} and collective_messages={str(self.collective_messages).lower()}"
            raise ValueError(f"collective must be best, by its formula, with nccl, which chooses, got {given}")
        for name in ("slice_bytes", "chunk_bytes", "window_bytes", "connection_bandwidth"):
            if (value := getattr(self, name)) is not None:
                raise ValueError(f"{name} must be null with nccl, whose hosts have none, got {value:g}")

    @property
    def longest_s(self) -> float:
        """Return the seconds of the longest single operation: a gradient on the slowest node, a latency, a received
        vector, or the time until a lost message is sent again. An unmeasured gradient does not count."""
        links = self.link_matrix
        between = [] if links is None else [latency_s for row in links.latency_s for latency_s in row]
        latency_s = max(self.latency_s, self.latency_between_islands_s, *between)
        again_s = self.retransmit_s if self.loss or (links is not None and links.lossy) else 0.0
        return max(self.longest_gradient_s, latency_s, self.receive_overhead_s, again_s)

    @property
    def longest_gradient_s(self) -> float:
        """Return the seconds of a gradient on the slowest node, 0 where they are still to be measured."""
        slowest = max((self.slow_nodes or {}).values(), default=1.0)
        gradient_s = (self.gradient_s or 0.0) if self.replayed is None else self.replayed.longest_s
        return gradient_s * max(1.0, slowest)

    @cached_property
    def jitter_law(self) -> JitterLaw:
        """Return how the gradient times of a node vary."""
        kind, skew = self.jitter_distribution, self.jitter_skew
        return JitterLaw(self.jitter, kind, skew, self.jitter_persistent, self.jitter_memory_s)

    @property
    def mean_gradient_s(self) -> float | None:
        """Return the seconds of a gradient on average, None where they are still to be measured."""
        return self.gradient_s if self.replayed is None else self.replayed.mean_s

    @property
    def latency_between_islands_s(self) -> float:
        """Return the seconds of a message from one island to another."""
        return self.latency_s if self.wan_latency_s is None else self.wan_latency_s

    @property
    def uplink_bytes_per_s(self) -> float | None:
        """Return the rate of one direction of a region's uplink; None without uplinks."""
        if self.islands > 1:
            return self._payload(self.wan_bandwidth or self.bandwidth)
        return self._payload(self.wan_bandwidth) if self.links is not None and self.wan_bandwidth else None

    @property
    def limits_connections(self) -> bool:
        """Return whether a connection may carry less than the ports at its ends."""
        return self.window_bytes is not None or self.connection_bandwidth is not None

    @property
    def cuts_parts(self) -> bool:
        """Return whether a collective forwards less than a node's whole part at once."""
        return self.slice_bytes is not None or self.chunk_bytes is not None

    @property
    def best_of(self) -> tuple[str, ...]:
        """Return what collective=best chooses from, as far as it has a formula."""
        return BEST_OF if self.islands == 1 and self.links is None else BEST_OF_ISLANDS

    @property
    def with_formula(self) -> tuple[str, ...]:
        """Return the collectives that have a formula on this network."""
        if self.links is not None or (self.islands > 1 and (self.limits_connections or self.cuts_parts)):
            return ("ring",)
        if self.islands > 1:
            return BEST_OF_ISLANDS
        named = COLLECTIVES[1:]
        if self.slice_bytes and self.limits_connections:
            return tuple(name for name in named if name != "halving_doubling")
        return named

    def link_bytes_per_s(self, here: int, there: int) -> float:
        """Return the rate of the link from one region to another."""
        assert self.link_matrix is not None
        return self._payload(self.link_matrix.bandwidth[here][there])

    def between(self, here: int, there: int) -> tuple[float, float]:
        """Return the latency from one region to another, and the rate of the slowest uplink or link between them."""
        if here == there:
            return self.latency_s, inf
        uplink = self.uplink_bytes_per_s or inf
        if self.link_matrix is None:
            return self.latency_between_islands_s, uplink
        return self.link_matrix.latency_s[here][there], min(uplink, self.link_bytes_per_s(here, there))

    def link_congestion(self, here: int, there: int) -> list[tuple[int, Congestion]]:
        """Return what congests the link between two regions, each with its number in `congestion`."""
        links = self.link_matrix
        assert links is not None
        names = {links.regions[here], links.regions[there]}
        numbered = enumerate(map(Congestion.from_entry, self.congestion))
        return [(number, each) for number, each in numbered if each.between is None or set(each.between) == names]

    def connection_bytes_per_s(self, latency_s: float, line_bytes_per_s: float) -> float:
        """Return the total rate of a pair's connections; inf if it is at least the line's rate.

        A connection sends its window W at the rate B of the line and waits a round trip for the acknowledgement:
        W / (2 a + W / B). Several fill each other's pauses."""
        each = inf if self.connection_bandwidth is None else self._payload(self.connection_bandwidth)
        if self.window_bytes is not None and (turn_s := 2 * latency_s + self.window_bytes / line_bytes_per_s) > 0:
            each = min(each, self.window_bytes / turn_s)
        return self.streams * each if self.streams * each < line_bytes_per_s else inf

    def first_turns(self, latency_s: float, line_bytes_per_s: float) -> list[tuple[float, float]]:
        """Return what the connections of a pair carry together in each of their first round trips, and its seconds:
        a window that doubles from `initial_window_bytes` until it is `window_bytes` (RFC 5681, slow start)."""
        turns, window = [], self.initial_window_bytes
        while window is not None and window < (self.window_bytes or 0):
            together = self.streams * window
            turns.append((together, max(2 * latency_s + window / line_bytes_per_s, together / line_bytes_per_s)))
            window *= 2
        return turns

    def check(self, nodes: int) -> None:
        """Raise ValueError if a node is named that a cluster of `nodes` workers does not have, or they do not make
        equal islands."""
        if self.link_matrix is not None:
            self.link_matrix.check(nodes)
        if self.replayed is not None:
            self.replayed.check(nodes)
        if nodes % self.islands:
            raise ValueError(f"islands must divide the number of nodes (nodes={nodes}), got {self.islands}")
        named = [("slow_nodes", node) for node in self.slow_nodes or {}]
        named += [("node_bandwidth", node) for node in self.node_bandwidth or {}]
        named += [("stalls", stall.node) for stall in map(Stall.from_entry, self.stalls) if stall.node is not None]
        for key, node in named:
            if not 0 <= node < nodes:
                raise ValueError(f"{key} must name nodes in 0..{nodes - 1} (nodes={nodes}), got {node}")

    @property
    def warning(self) -> str | None:
        """Return one line about allowed options that are probably a mistake, or None."""
        if self.islands == 1 or not self.wan_bandwidth or self.wan_latency_s is not None:
            return None
        line = f"cluster.wan_latency_s=null with cluster.wan_bandwidth={self.wan_bandwidth:g}: messages between islands"
        return f"{line} take cluster.latency_s={self.latency_s:g}, as those within do"

    def region(self, node: int, nodes: int) -> int:
        """Return the island or region of a node; parameter servers, and the centre of a star, are in the first."""
        if node >= nodes:
            return 0
        links = self.link_matrix
        return node // (nodes // self.islands) if links is None else links.region_of(node, nodes)

    def bytes_per_s(self, node: int, nodes: int) -> float:
        """Return the rate at which a node's port sends; nodes `nodes` and above are parameter servers."""
        if node >= nodes:
            return inf if self.collective == "store" else self._payload(self.server_bandwidth or self.bandwidth)
        return self._payload((self.node_bandwidth or {}).get(node, self.bandwidth))

    def receive_bytes_per_s(self, node: int, nodes: int) -> float:
        """Return the rate at which a node's port receives: as it sends where it has a bandwidth of its own."""
        of_server = self.server_bandwidth is not None or self.collective == "store"
        special = of_server if node >= nodes else node in (self.node_bandwidth or {})
        if special or self.receive_bandwidth is None:
            return self.bytes_per_s(node, nodes)
        return self._payload(self.receive_bandwidth)

    def _payload(self, bandwidth: float) -> float:
        """Return the bytes per second that are left of a bandwidth in bit/s."""
        return bandwidth * self.protocol_efficiency / 8
