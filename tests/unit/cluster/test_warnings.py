"""What a configuration of a cluster takes in silence is said before the run."""

from __future__ import annotations

from dsgd.cli.compose import composed
from dsgd.runner.plan import plan_run

TIMING = ["engine.gradients=none", "cluster.gradient_s=0.1", "nodes=4"]


def warnings(*words: str) -> list[str]:
    lines = plan_run(composed([*TIMING, *words]), []).why.splitlines()
    return [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]


def test_a_bandwidth_between_islands_without_a_latency_names_the_one_that_is_taken() -> None:
    line = (
        "cluster.wan_latency_s=null with cluster.wan_bandwidth=4e+11: messages between islands take "
        "cluster.latency_s=0.0001, as those within do"
    )
    fast = "cluster.wan_bandwidth=400Gbit"
    for words, expected in (
        (("cluster.islands=2", fast), [line]),
        (("cluster.islands=2", fast, "cluster.wan_latency_s=7us", "cluster.latency_s=4us"), []),
        (("cluster.islands=2",), []),  # slow nowhere
        ((fast,), []),  # no islands
        (("cluster=aws_p4d",), []),
    ):
        assert warnings(*words) == expected, words
