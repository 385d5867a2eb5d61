"""dsgd-replay: says what a training job would take by other methods, on the same cluster, without training.

    dsgd-replay cluster=mine nodes=8 steps=3000 algo=sync,localsgd,diloco algo.tau=30
    dsgd-replay cluster=mine nodes=8 steps=3000 algo=sync,diloco parameters=8e9 precision=bf16 --node-hour 30
    dsgd-replay traces/ steps=3000 algo=sync,localsgd,diloco

Prints for each method the time, where it goes, the bytes and the cost for as many samples as all workers process in
these steps. The first method is the job as it is. With traces of torch.profiler, a folder with one of each rank, the
cluster is described by them, and the described job is compared with the traced one. The command also prints the
bandwidth with which the job would be as fast as by each other method, and its time without a straggler, with perfect
overlap and with twice the bandwidth. Nothing is trained: the accuracy after as many samples may differ, which
dsgd-compare measures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dsgd.cli.arguments import check_quotes, command_parser, exit_status, key_of
from dsgd.cli.from_trace import checks_table
from dsgd.cli.need import check_outputs, experiment_of, timing_overrides
from dsgd.comparison.contenders import Prices
from dsgd.experiment import Experiment
from dsgd.host.terminal import table_console
from dsgd.record.safe_files import write_atomically
from dsgd.record.safe_text import lines_for_terminal
from dsgd.replay.night import Night, last_rounds, replay_night
from dsgd.replay.replay_methods import SIZES, compare_command, read_overrides
from dsgd.replay.replay_tables import Factors, answer, as_json, described, night_table, whatif_table
from dsgd.replay.traced_night import CLUSTER, TracedNight, traced_night
from dsgd.replay.whatifs import WhatIf, bandwidth_factors, bandwidth_name, whatifs
from dsgd.report.replay_figure import Timeline, replay_figure
from dsgd.report.style import drawing, save
from dsgd.runner.values import ConfigError
from dsgd.traces.traced_timeline import traced_timeline

SET_HERE = ("engine", "budget")  # keys that are not the user's here
OF_TRACES = ("nodes", "cluster", "gradient_s", *SIZES)  # keys that traces have


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns 0, or 2 after one line on stderr."""
    return exit_status("dsgd-replay", lambda: _replay(_parser().parse_args(argv)))


def _parser() -> Any:
    parser = command_parser("dsgd-replay", __doc__)
    add = parser.add_argument
    keys = "set steps and algo, options algo.* of the methods that have them, cluster, nodes, or a key cluster.*; "
    keys += "without an equals sign: a trace, or a folder with a trace of each rank"
    add("overrides", nargs="*", metavar="KEY=VALUE", help=keys)
    add("--node-hour", type=float, metavar="PRICE", help="price a node for an hour, in any currency")
    add("--egress-gb", type=float, metavar="PRICE", help="price a GB that leaves an island, or without islands a node")
    add("--json", metavar="FILE", help="write all numbers to a file")
    add("--figure", metavar="FILE", help="draw a figure into a .png, .svg or .pdf file")
    add("--config-dir", metavar="DIR", help="read your own configuration files from a folder")
    return parser


@dataclass(frozen=True)
class Replay:
    """The nights of a job by each method, and under other conditions. experiments: runs by method, the job first."""

    experiments: dict[str, Experiment]
    nights: list[Night]
    factors: Factors
    conditions: list[WhatIf]

    @property
    def first(self) -> Experiment:
        """Return the job as it is."""
        return next(iter(self.experiments.values()))


def replay_job(experiments: dict[str, Experiment], steps: int) -> Replay:
    """Replay a job by each method, and by the first one on faster networks and under other conditions."""
    nights = [replay_night(method, experiment, steps) for method, experiment in experiments.items()]
    faster = [night for night in nights[1:] if night.time_s < nights[0].time_s]
    first = next(iter(experiments.values()))
    worth = bandwidth_factors(first, steps, [night.time_s for night in faster]) if faster else []
    factors = dict(zip((night.method for night in faster), worth, strict=True))
    return Replay(experiments, nights, factors, whatifs(list(experiments.values()), steps))


def _replay(options: Any) -> int:
    check_quotes(options.overrides)
    check_outputs(options.json, options.figure)
    prices = _prices(options.node_hour, options.egress_gb)
    paths = [text for text in options.overrides if "=" not in text]
    overrides = [text for text in options.overrides if "=" in text]
    if len(paths) > 1:
        raise ConfigError(f"the traces must be one file or one folder, got {' '.join(paths)}")
    with ExitStack() as stack:
        traced, config_dir = None, options.config_dir
        if paths:
            _check_of_traces(overrides, config_dir)
            traced = stack.enter_context(traced_night(paths[0]))
            config_dir = traced.folder
        methods, steps, others = read_overrides(overrides, config_dir, traced and len(traced.job.steps))
        if traced is not None:
            if methods[0].split()[0] != "sync":
                raise ConfigError(f"algo must begin with sync, the traced job's method, got {methods[0]}")
            others = [CLUSTER, f"nodes={traced.job.world_size}", *others]
        rule = "dsgd-replay sets it; the job's length is steps"
        timing = timing_overrides(others, config_dir, SET_HERE, rule)
        experiments = {method: _checked(experiment_of(method, timing, config_dir)) for method in methods}
        _show(replay_job(experiments, steps), traced, prices, options, others)
    return 0


def _show(
    replay: Replay, traced: TracedNight | None, prices: Prices | None, options: Any, others: Sequence[str]
) -> None:
    """Print the tables and write the files that the options name."""
    first, nights, factors = replay.first, replay.nights, replay.factors
    steps, setting = nights[0].steps, described(first)
    traced_s = None if traced is None else steps * traced.step_s
    text = answer(nights, factors, bandwidth_name(first.cluster), traced_s)
    print(lines_for_terminal(text), end="\n\n")
    console = table_console()
    tables = [night_table(nights, factors, first.nodes, prices, setting), whatif_table(nights, replay.conditions)]
    changed = [text for text in others if key_of(text).startswith("cluster.")]
    tables += [] if traced is None else [checks_table(traced.job, traced.check, changed)]
    for table in tables:
        table.print(console)
        console.print()
    print("Only times and bytes: after as many samples the accuracy may differ. This measures it:")
    if traced is not None:
        print("    dsgd-calibrate --from-trace TRACES --out my/cluster/mine.yaml")
    shared = [text.replace(CLUSTER, "cluster=mine") for text in others]
    folder = options.config_dir if traced is None else "my"
    print(f"    {lines_for_terminal(compare_command(list(replay.experiments), shared, folder))}")
    if options.json is not None:
        whole: dict[str, Any] = {"answer": text, "setting": setting}
        whole |= as_json(nights, factors, replay.conditions, first.nodes, prices)
        if traced is not None:
            kinds = {
                f"{name.replace('compute', 'computing')}_s": time_s for name, time_s in traced.seconds(steps).items()
            }
            whole["traced"] = {"time_s": traced_s, "step_s": traced.step_s, **kinds}
        write_atomically(Path(options.json), f"{json.dumps(whole, indent=1, allow_nan=False)}\n".encode())
    if options.figure is not None:
        with drawing():
            save(_figure(replay, traced, f"{steps:,} steps; {setting}"), Path(options.figure))


def _figure(replay: Replay, traced: TracedNight | None, setting: str) -> Figure:
    """Draw the methods and the last steps of the job, the traced ones beside the predicted ones."""
    nights = replay.nights
    shown, rows = last_rounds(replay.first)
    timelines: list[Timeline] = [(f"{shown} steps of {nights[0].method}", rows)]
    bars = [(night.method, night.seconds) for night in nights]
    if traced is not None:
        bars = [("traced", traced.seconds(nights[0].steps))]
        bars += [(night.method, traced.with_host(night.seconds)) for night in nights]
        timelines = [
            (f"{shown} steps, predicted", rows),
            (f"{shown} steps, traced", traced_timeline(traced.job, shown)),
        ]
    return replay_figure(bars, timelines, setting)


def _check_of_traces(overrides: Sequence[str], config_dir: str | None) -> None:
    """Raise ConfigError for what cannot be given with traces."""
    for key in map(key_of, overrides):
        if key in OF_TRACES:
            raise ConfigError(f"{key} must not be given with traces, which have it")
    if config_dir is not None:
        raise ConfigError(f"--config-dir must not be given with traces, which describe the cluster, got {config_dir}")


def _checked(experiment: Experiment) -> Experiment:
    """Return an experiment whose gradients take time and whose messages have a size. Raises ConfigError."""
    if experiment.cluster.gradient_s == 0:
        raise ConfigError("cluster.gradient_s must be > 0 in a replay, got 0")
    if experiment.cluster.message_bytes is None:
        rule = "model, parameters or cluster.message_bytes must be given, the size of a message"
        raise ConfigError(f"{rule}: this cluster has none")
    if getattr(experiment.algo, "code", None) == "powersgd":  # the size of its messages follows from the layers
        rule = "topk, randomk, sign, qsgd or none, as a replay has no layers"
        raise ConfigError(f"algo.code must be {rule} (dsgd-run engine.gradients=none has them), got powersgd")
    return experiment


def _prices(node_hour: float | None, egress_gb: float | None) -> Prices | None:
    for flag, price in (("--node-hour", node_hour), ("--egress-gb", egress_gb)):
        if price is not None and not 0 < price < float("inf"):
            raise ConfigError(f"{flag} must be a price > 0, got {price:g}")
    return None if node_hour is None and egress_gb is None else Prices(node_hour or 0.0, egress_gb or 0.0)


if __name__ == "__main__":
    sys.exit(main())
