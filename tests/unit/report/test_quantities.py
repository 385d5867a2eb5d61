"""Units of keys: of what a key ends in, in the size that suits the values."""

from __future__ import annotations

from dsgd.report.units import assigned, quantity
from tests.support.each_row import each_row


@each_row(
    ("key", "values", "label", "texts"),
    [
        ("cluster.bandwidth", ["1e+08", "1e+09", "1e+10"], "bandwidth (Gbit/s)", ["0.1", "1", "10"]),
        ("cluster.wan_bandwidth", ["5e+07", "none"], "wan bandwidth (Mbit/s)", ["50", "none"]),
        ("cluster.latency_s", ["0", "0.001", "0.01"], "latency (ms)", ["0", "1", "10"]),
        ("cluster.gradient_s", ["0.5", "2"], "time of a gradient (s)", ["0.5", "2"]),
        ("algo.name", ["sync"], "algorithm", ["sync"]),
        ("algo.tau", ["1e-05"], "tau", ["1e-05"]),
        ("cluster.jitter", ["0", "0.1", "1"], "jitter (%)", ["0", "10", "100"]),
        ("cluster.loss", ["0.001"], "messages lost (%)", ["0.1"]),
        ("cluster.failures.every_s", ["1e+05"], "mean time between failures of a node (s)", ["100,000"]),
        ("algo.size", ["1e+08", "1e+05"], "size", ["100,000,000", "100,000"]),
        ("model.hidden_size", ["64"], "model hidden size", ["64"]),
        ("nodes", ["8"], "nodes", ["8"]),
        ("cluster.slow_nodes.15", ["1.5"], "gradient time of node 15, times the others'", ["1.5"]),
    ],
)
def test_an_axis_names_a_key_in_words_with_its_unit(key: str, values: list[str], label: str, texts: list[str]):
    unit = quantity(key, values)
    assert unit.label == label
    assert [unit.text(value) for value in values] == texts


@each_row(
    ("short", "key", "value", "text"),
    [
        ("bandwidth", "cluster.bandwidth", "1e+07", "bandwidth=10 Mbit/s"),
        ("latency_s", "cluster.latency_s", "0.00025", "latency=250 µs"),
        ("latency_s", "cluster.latency_s", "0", "latency=0 s"),
        ("message_bytes", "cluster.message_bytes", "none", "message_bytes=none"),
        ("lr", "optimizer.lr", "0.1", "lr=0.1"),
    ],
)
def test_a_legend_gives_a_value_its_own_unit(short: str, key: str, value: str, text: str):
    assert assigned(short, key, value) == text
