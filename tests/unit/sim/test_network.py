from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import Network

many = settings(max_examples=40)
END_S = 1e9  # when everything has long arrived
SLACK = 1e-9  # relative, for sums of floating-point times


@dataclass
class Message:
    number: int
    sender: int
    receiver: int
    size: float
    sent_s: float
    arrived_s: float | None = None


Traffic = tuple[list[float], float, list[tuple[float, int, list[tuple[int, float]]]]]


@st.composite
def traffic(draw: st.DrawFn) -> Traffic:
    """Rates of the ports, latency, and who sends when how much to whom at once."""
    nodes = draw(st.integers(2, 5))
    rates = draw(st.lists(st.floats(1, 1000), min_size=nodes, max_size=nodes))
    latency = draw(st.one_of(st.just(0.0), st.floats(0.001, 2)))
    one = st.tuples(st.integers(0, nodes - 1), st.floats(0.1, 500))
    burst = st.tuples(
        st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 5)),
        st.integers(0, nodes - 1),
        st.lists(one, min_size=1, max_size=4),
    )
    return rates, latency, draw(st.lists(burst, min_size=1, max_size=12))


def carried(
    rates: list[float],
    latency: float,
    bursts: list[tuple[float, int, list[tuple[int, float]]]],
    is_traced: bool = False,
) -> tuple[Network, list[Message], list[Message]]:
    """The network at the end, all messages in the order of their sending, and the order of their arrival."""
    loop = EventLoop()
    network = Network(loop, rates, latency)
    network.spans = [] if is_traced else None
    messages: list[Message] = []
    arrivals: list[Message] = []

    def send(sender: int, burst: list[tuple[int, float]]) -> None:
        new = [Message(len(messages) + i, sender, to, size, loop.now) for i, (to, size) in enumerate(burst)]
        messages.extend(new)
        network.send(sender, [(message.receiver, message.size, arrive, (message,)) for message in new])

    def arrive(message: Message) -> None:
        assert message.arrived_s is None  # once
        message.arrived_s = loop.now
        arrivals.append(message)

    for time_s, sender, burst in bursts:
        loop.at(time_s, send, sender, burst)
    while loop.next_time is not None:
        loop.process()
    return network, messages, arrivals


@many
@given(traffic(), st.integers(1, 3))
def test_bytes_count_as_they_go_through_the_ports(case: Traffic, chunks: int) -> None:
    """No more than a port can carry, none received before it was sent; what has arrived is counted."""
    rates, latency, bursts = case
    loop = EventLoop()
    network = Network(loop, rates, latency, chunks)
    handed_over, arrived = [0.0] * len(rates), [0.0] * len(rates)

    def send(sender: int, burst: list[tuple[int, float]]) -> None:
        handed_over[sender] += sum(size for _, size in burst)
        network.send(sender, [(to, size, arrive, (to, size)) for to, size in burst])

    def arrive(receiver: int, size: float) -> None:
        arrived[receiver] += size

    def look(time_s: float) -> None:
        sent, received = network.bytes_sent(time_s), network.bytes_received(time_s)
        for node, rate in enumerate(rates):
            assert no_more(before[0][node], sent[node])  # they never go back
            assert no_more(before[1][node], received[node])
            assert no_more(sent[node], min(rate * time_s, handed_over[node]))
            assert no_more(received[node], rate * time_s)
            assert no_more(arrived[node], received[node])
        assert no_more(sum(received), sum(sent))
        before[:] = sent, received

    def no_more(found: float, limit: float) -> bool:
        return 0 <= found <= limit * (1 + SLACK) + SLACK

    before = [[0.0] * len(rates)] * 2
    for time_s, sender, burst in bursts:
        loop.at(time_s, send, sender, burst)
    while (following := loop.next_time) is not None:
        look(loop.now)
        look((loop.now + following) / 2)
        loop.process()
    look(loop.now)
    assert network.bytes_sent(loop.now) == pytest.approx(handed_over, rel=SLACK)


@many
@given(traffic())
def test_messages_arrive_once_in_order_and_at_the_rate_of_their_ports(case: Traffic) -> None:
    """None is faster than its bytes through the slower port. Whatever was sent after s and has arrived by e went
    through a port within e - s - latency. No port is idle while its messages wait: all is there at the latest when
    every port has carried everything one after the other."""
    rates, latency, bursts = case
    network, messages, arrivals = carried(*case)
    assert sorted(message.number for message in arrivals) == list(range(len(messages)))
    ends = {message.number: message.arrived_s or math.nan for message in messages}
    for pair in {(message.sender, message.receiver) for message in messages}:
        numbers = [message.number for message in arrivals if (message.sender, message.receiver) == pair]
        assert numbers == sorted(numbers)
    for message in messages:
        least = latency + message.size / min(rates[message.sender], rates[message.receiver])
        assert ends[message.number] - message.sent_s >= least * (1 - SLACK)
    for node, rate in enumerate(rates):
        for way, counted in (("sender", network.bytes_sent), ("receiver", network.bytes_received)):
            through = [message for message in messages if getattr(message, way) == node]
            assert counted(END_S)[node] == pytest.approx(sum(message.size for message in through), rel=SLACK)
            for begin in {message.sent_s for message in through}:
                for end in {ends[message.number] for message in through}:
                    within = [m.size for m in through if m.sent_s >= begin and ends[m.number] <= end]
                    assert sum(within) <= rate * max(end - begin - latency, 0) * (1 + SLACK) + SLACK
    through_slowest = sum(m.size / rates[m.sender] + m.size / rates[m.receiver] for m in messages)
    last_s = max(burst[0] for burst in bursts) + latency + through_slowest
    assert ends[arrivals[-1].number] <= last_s * (1 + SLACK)


def test_half_a_message_has_gone_through_the_port_after_half_its_time() -> None:
    """40 bytes at 10 bytes/s from 1 s on, 0.5 s under way; the receiver's port takes 20 bytes/s, 10 come. What waits
    behind them has not been sent."""
    loop = EventLoop()
    network = Network(loop, [10.0, 20.0], 0.5)
    for _ in range(2):
        loop.at(1.0, network.send, 0, [(1, 40.0, lambda: None, ())])
    while loop.next_time is not None and loop.next_time < 2:
        loop.process()
    found = [(network.bytes_sent(t)[0], network.bytes_received(t)[1]) for t in (2.0, 3.0)]
    assert found == [(10.0, 5.0), (20.0, 15.0)]
    assert network.bytes_sent(3.0)[1] == network.bytes_received(3.0)[0] == 0


def test_bytes_of_a_collective_go_both_ways_while_it_lasts() -> None:
    network = Network(EventLoop(), [10.0, 10.0], 0.0)
    network.count(1, 8.0, 1.0, 5.0)
    for time_s, bytes_so_far in ((0.0, 0.0), (1.0, 0.0), (2.0, 2.0), (5.0, 8.0), (9.0, 8.0)):
        assert network.bytes_sent(time_s) == network.bytes_received(time_s) == [0.0, bytes_so_far]


@many
@given(traffic())
def test_a_trace_of_the_ports_changes_no_time_and_covers_every_transfer(case: Traffic) -> None:
    plain = carried(*case)[1]
    network, traced, _ = carried(*case, is_traced=True)
    assert network.spans is not None
    assert [message.arrived_s for message in traced] == [message.arrived_s for message in plain]
    for node, rate in enumerate(case[0]):
        mine = sorted((begin, end) for n, begin, end in network.spans if n == node)
        assert all(begin < end for begin, end in mine)
        busy, until = 0.0, 0.0
        for begin, end in mine:
            busy += max(0.0, end - max(begin, until))
            until = max(until, end)
        for way in ("sender", "receiver"):
            carried_s = sum(m.size for m in plain if getattr(m, way) == node) / rate
            assert busy >= carried_s * (1 - SLACK)


def test_messages_in_chunks_share_a_port() -> None:
    """The second is sent when half of the first has left. Alone, a message takes as long as ever."""
    ends: dict[int, dict[str, float]] = {}
    for chunks in (1, 1000):
        loop = EventLoop()
        network = Network(loop, [1.0, 1.0, 1.0], 0.0, chunks)
        found = ends[chunks] = {}

        def arrived(name: str, found: dict[str, float] = found, loop: EventLoop = loop) -> None:
            found[name] = loop.now

        network.send(0, [(1, 1.0, arrived, ("first",))])
        loop.at(0.5, network.send, 0, [(2, 1.0, arrived, ("second",))])
        loop.at(10.0, network.send, 2, [(0, 1.0, arrived, ("alone",))])
        while loop.next_time is not None:
            loop.process()
        assert sum(network.bytes_sent(loop.now)) == pytest.approx(3.0, rel=1e-9)
    assert ends[1] == {"first": 1.0, "second": 2.0, "alone": 11.0}
    assert ends[1000] == pytest.approx({"first": 1.5, "second": 2.0, "alone": 11.0}, abs=3e-3)
