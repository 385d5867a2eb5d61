"""A number may carry a unit wherever a key has one, and becomes a plain number in the configuration, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsgd.cli.compose import composed
from dsgd.cli.sweep import site_of
from dsgd.comparison.preparation import compare_options
from dsgd.report.units import number_in, unit_of, without_units
from dsgd.runner.configuration import configure
from dsgd.runner.values import ConfigError
from tests.support.each_row import each_row
from tests.support.simulate import tree

OPTIONS = (Path(__file__).parents[1] / "conf" / "options.txt").read_text().split()


@each_row(
    ("text", "unit", "number"),
    [
        ("1Gbit", "bit/s", 1e9),
        ("1.5Mbps", "bit/s", 1.5e6),
        ("1GB/s", "bit/s", 8e9),
        ("10ms", "s", 1e-2),
        ("5us", "s", 5e-6),  # 5 * 1e-6 is another float
        ("2 min", "s", 120.0),
        ("64KiB", "bytes", 65536.0),
        (".5kB", "bytes", 500.0),
    ],
)
def test_a_number_with_a_unit(text: str, unit: str, number: float) -> None:
    assert number_in(text, unit) == number


@each_row("text", ["fast", "1e9", "inf", ".inf", "nan", "", "12", "1_000", "01:00:00", "0x10"])
def test_what_has_no_unit_is_left_to_whoever_checks_the_type(text: str) -> None:
    assert number_in(text, "s") is None


@each_row(("text", "unit"), [("10ms", "bit/s"), ("1Gb", "bit/s"), ("1MB/s", "bytes"), ("10MB", "s")])
def test_another_unit_is_refused(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match=rf"^must be in {unit}, got {text}; like "):
        number_in(text, unit)


def test_the_unit_of_a_key_is_in_its_name() -> None:
    """A new key in seconds, bytes or bit/s gets its unit by its name."""
    units = {key: unit_of(key) for key in OPTIONS if "." in key and "=" not in key}
    rates = ("", "server_", "node_", "wan_", "receive_", "connection_", "links.")
    assert {key for key, unit in units.items() if unit == "bit/s"} == {f"cluster.{name}bandwidth" for name in rates}
    sizes = {
        f"cluster.{name}_bytes"
        for name in (
            "message",
            "window",
            "initial_window",
            "slice",
            "chunk",
            "bucket",
            "nccl.buffer",
            "nccl.nvls_chunk",
        )
    }
    assert {key for key, unit in units.items() if unit == "bytes"} == {*sizes, "data.generated_bytes"}
    assert [key for key, unit in units.items() if unit == "s"] == [key for key in units if key.endswith("_s")]
    assert (unit_of("cluster.node_bandwidth.3"), unit_of("cluster.slow_nodes.15"), unit_of("3")) == (
        "bit/s",
        None,
        None,
    )


WRITTEN: list[tuple[str, str, Any]] = [
    ("cluster.bandwidth=1Gbit", "cluster.bandwidth", 1e9),
    ("cluster.latency_s=10ms", "cluster.latency_s", 0.01),
    ("cluster.message_bytes=46.8MB", "cluster.message_bytes", 46.8e6),
    ("cluster.node_bandwidth.3=100Mbit", "cluster.node_bandwidth", {3: 1e8}),
    (
        "cluster.stalls=[{node:3,start_s:10ms,duration_s:1min}]",
        "cluster.stalls",
        [{"node": 3, "start_s": 0.01, "duration_s": 60.0}],
    ),
    ("budget.time_s=2h", "budget.time_s", 7200.0),
    ("eval.every_time_s=500ms", "eval.every_time_s", 0.5),
]


@each_row(("typed", "key", "value"), WRITTEN)
def test_a_configuration_holds_the_plain_number(typed: str, key: str, value: Any) -> None:
    group, _, name = key.partition(".")
    assert tree().jobs([typed], multirun=False)[0].values[group][name] == value
    assert composed(["++" * typed.startswith("cluster.node_bandwidth.") + typed])[group][name] == value


def test_conditions_contenders_and_sites() -> None:
    options = compare_options(
        [
            "compare.whatif={cluster.bandwidth:[100Mbit,1Gbit],cluster.node_bandwidth.3:[1GB/s],nodes:[2,4]}",
            "compare.contenders=[{algo:sync,cluster.latency_s:10ms}]",
        ]
    )
    assert options.whatif == {"cluster.bandwidth": [1e8, 1e9], "cluster.node_bandwidth.3": [8e9], "nodes": [2, 4]}
    assert options.contenders == [{"algo": "sync", "cluster.latency_s": 0.01}]
    words = ["compare.crossing=cluster.bandwidth", "compare.bracket=[100Mbit,10Gbit]"]
    assert compare_options(words).bracket == [1e8, 1e10]
    with pytest.raises(ValueError, match=r"^cluster\.bandwidth\[1\] must be in bit/s, got 10ms"):
        compare_options([words[0], "compare.bracket=[100Mbit,10ms]"])
    assert site_of(["slurm.warning_s=5min"], None).warning_s == 300


def test_arguments_of_a_users_function_are_its_own() -> None:
    values = {"target": "a.b", "arguments": {"window_s": "10ms"}}
    assert without_units(values, "data") == values
    assert without_units(values, "model") == values


@each_row(
    ("typed", "line"),
    [
        (
            "cluster.stalls=[{node:3,start_s:10MB,duration_s:1}]",
            "cluster.stalls[0].start_s must be in s, got 10MB; like 10ms or 5min",
        ),
        ("data=text model=gpt data.generated_bytes=0.5B", "data.generated_bytes must be an integer, got 0.5"),
    ],
)
def test_a_unit_that_does_not_fit_is_one_line(typed: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configure(composed(typed.split()))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
