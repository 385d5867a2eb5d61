"""dsgd-replay: says what a training job would take by other methods, on the same cluster, without training.

    dsgd-replay cluster=mine nodes=8 steps=3000 algo=sync,localsgd,diloco algo.tau=30
    dsgd-replay cluster=mine nodes=8 steps=3000 algo=sync,diloco parameters=8e9 precision=bf16 --node-hour 30

Prints for each method the time, where it goes, the bytes and the cost for as many samples as all workers process in
these steps. The first method is the job as it is. Also the bandwidth with which it would be as fast as the others, and
its time without a straggler, with perfect overlap and with twice the bandwidth. Nothing is trained: the accuracy after
as many samples may differ, which dsgd-compare measures.
"""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsgd.cli.arguments import check_quotes, command_parser, exit_status, key_of
from dsgd.cli.compose import ConfigTree
from dsgd.cli.folders import check_file
from dsgd.cli.need import experiment_of, timing_overrides
from dsgd.comparison.contenders import Prices
from dsgd.comparison.entries import literal
from dsgd.experiment import Experiment
from dsgd.host.terminal import table_console
from dsgd.record.safe_files import write_atomically
from dsgd.record.safe_text import lines_for_terminal
from dsgd.replay.night import last_rounds, replay_night
from dsgd.replay.replay_tables import answer, as_json, described, night_table, whatif_table
from dsgd.replay.whatifs import bandwidth_factors, bandwidth_name, whatifs
from dsgd.report.replay_figure import replay_figure
from dsgd.report.style import drawing, save
from dsgd.runner.values import ConfigError

SET_HERE = ("engine", "budget")  # keys that are not the user's here
SIZES = ("model", "parameters", "precision")  # of a message


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns 0, or 2 after one line on stderr."""
    return exit_status("dsgd-replay", lambda: _replay(_parser().parse_args(argv)))


def _parser() -> Any:
    parser = command_parser("dsgd-replay", __doc__)
    add = parser.add_argument
    keys = "set steps and algo, options algo.* of the methods that have them, cluster, nodes, or a key cluster.*"
    add("overrides", nargs="*", metavar="KEY=VALUE", help=keys)
    add("--node-hour", type=float, metavar="PRICE", help="price a node for an hour, in any currency")
    add("--egress-gb", type=float, metavar="PRICE", help="price a GB that leaves an island, or without islands a node")
    add("--json", metavar="FILE", help="write all numbers to a file")
    add("--figure", metavar="FILE", help="draw a figure into a .png, .svg or .pdf file")
    add("--config-dir", metavar="DIR", help="read your own configuration files from a folder")
    return parser


def _replay(options: Any) -> int:
    check_quotes(options.overrides)
    for flag, path in (("--json", options.json), ("--figure", options.figure)):
        if path is not None:
            check_file(Path(path), flag)
    if options.figure is not None and Path(options.figure).suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--figure must be a .png, .svg or .pdf file, got {options.figure}")
    prices = _prices(options.node_hour, options.egress_gb)
    methods, steps, others = read_overrides(options.overrides, options.config_dir)
    rule = "dsgd-replay sets it; the job's length is steps"
    timing = timing_overrides(others, options.config_dir, SET_HERE, rule)
    experiments = {method: _checked(experiment_of(method, timing, options.config_dir)) for method in methods}
    first = experiments[methods[0]]
    nights = [replay_night(method, experiment, steps) for method, experiment in experiments.items()]
    faster = [night for night in nights[1:] if night.time_s < nights[0].time_s]
    worth = bandwidth_factors(first, steps, [night.time_s for night in faster]) if faster else []
    factors = dict(zip((night.method for night in faster), worth, strict=True))
    conditions = whatifs(list(experiments.values()), steps)

    text, setting = answer(nights, factors, bandwidth_name(first.cluster)), described(first)
    print(lines_for_terminal(text), end="\n\n")
    console = table_console()
    for table in (night_table(nights, factors, first.nodes, prices, setting), whatif_table(nights, conditions)):
        table.print(console)
        console.print()
    print("Only times and bytes: after as many samples the accuracy may differ. This measures it:")
    print(f"    {lines_for_terminal(_compare(options, methods, others))}")
    if options.json is not None:
        whole = {"answer": text, "setting": setting} | as_json(nights, factors, conditions, first.nodes, prices)
        write_atomically(Path(options.json), f"{json.dumps(whole, indent=1, allow_nan=False)}\n".encode())
    if options.figure is not None:
        shown, rows = last_rounds(first)
        bars = [(night.method, night.seconds) for night in nights]
        with drawing():
            figure = replay_figure(bars, [(f"{shown} steps of {methods[0]}", rows)], f"{steps:,} steps; {setting}")
            save(figure, Path(options.figure))
    return 0


def read_overrides(overrides: Sequence[str], config_dir: str | None = None) -> tuple[list[str], int, list[str]]:
    """Return the methods of a command line, as `diloco tau=30`, the number of steps, and the other overrides.

    An option like algo.tau=10,30 is one of each method that has it, and each of its values makes a method of its own.
    Raises ConfigError."""
    kept = {name: [text for text in overrides if key_of(text) == name] for name in ("algo", "steps")}
    given = [text for text in overrides if key_of(text).startswith("algo.")]
    others = [text for text in overrides if text not in (*kept["algo"], *kept["steps"], *given)]
    for name, example in (("algo", "algo=sync,diloco"), ("steps", "steps=3000")):
        if len(kept[name]) != 1:
            raise ConfigError(f"{name} must be given once, like {example}, got {' '.join(kept[name]) or 'none'}")
    text = kept["steps"][0].partition("=")[2]
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"steps must be an integer >= 1, got {text}")
    tree = ConfigTree(config_dir)
    ((_, algos),) = _choices(tree, kept["algo"])
    having = {algo: tree.load([f"algo={algo}"])["algo"] for algo in algos}
    choices = _choices(tree, given)
    for key, _ in choices:
        if not any(key.split(".")[1] in keys for keys in having.values()):
            raise ConfigError(f"{key} must be a key of a method, which it is not of {', '.join(algos)}")
    methods = list[str]()
    for algo, keys in having.items():
        of_algo = [(key, values) for key, values in choices if key.split(".")[1] in keys]
        points = itertools.product(
            *([f"{key.removeprefix('algo.')}={value}" for value in values] for key, values in of_algo)
        )
        methods += [" ".join([algo, *point]) for point in points]
    return methods, int(text), others


def _choices(tree: ConfigTree, overrides: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the values of each key, as typed."""
    choices = list[tuple[str, list[str]]]()
    for override in tree.parse(overrides):
        values = override.sweep_iterator() if override.is_discrete_sweep() else [override.value()]
        choices.append((override.key_or_group, list(map(literal, values))))
    return choices


def _checked(experiment: Experiment) -> Experiment:
    """Return an experiment whose messages have a size. Raises ConfigError."""
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


def _compare(options: Any, methods: Sequence[str], others: Sequence[str]) -> str:
    """Return the command that compares the same methods by training."""
    contenders = []
    for method in methods:
        algo, *options_of_algo = method.split()
        keys = [f"algo.{option.replace('=', ': ', 1)}" for option in options_of_algo]
        contenders.append(f"{{{', '.join([f'algo: {algo}', *keys])}}}")
    of_cluster = [
        f"cluster.{word}" if key_of(word) == "gradient_s" else word for word in others if key_of(word) not in SIZES
    ]
    folder = [] if options.config_dir is None else ["--config-dir", options.config_dir]
    command = ["dsgd-compare", *folder, *of_cluster, f"compare.contenders=[{', '.join(contenders)}]"]
    return f"{shlex.join(command)} model=MODEL data=DATA target.accuracy=0.9"


if __name__ == "__main__":
    sys.exit(main())
