"""dsgd-calibrate need: finds the bandwidth and the latency that each method needs, so that its workers do not wait.

    dsgd-calibrate need model=resnet50 nodes=32 gradient_s=0.1
    dsgd-calibrate need parameters=8e9 precision=bf16 nodes=64 gradient_s=4s --method sync --method "diloco tau=500"

Prints for each method the smallest bandwidth of a node that lets workers compute in 50 to 99 % of the time, and the
largest latency with unlimited bandwidth. The simulator's clock finds them: nothing is trained. Parameters of a model
are counted with ImageNet's images and classes, gpt's with 256 bytes and a context of 1,024.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from dsgd.cli.arguments import check_quotes, command_parser, full_option
from dsgd.cli.compose import composed
from dsgd.cli.folders import check_file
from dsgd.experiment import Experiment
from dsgd.host.terminal import table_console
from dsgd.models import GPT, TokenShape
from dsgd.record.safe_files import write_atomically
from dsgd.report.need_figure import need_figure
from dsgd.report.style import drawing, save
from dsgd.report.table_layout import ReportTable
from dsgd.report.units import bandwidth, in_units
from dsgd.runner.configuration import configure
from dsgd.runner.values import ConfigError, build

METHODS = (
    "sync", "localsgd tau=10", "diloco tau=100", "streaming tau=100", "delayfree tau=10", "dpsgd", "sgp", "gossip",
    "easgd tau=10",
)  # fmt: skip
TARGETS = (50.0, 80.0, 90.0, 95.0, 99.0)  # per cent of the time
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}  # of a parameter in a message
TIMING = (
    "data=quadratic", "model=vector", "batch_size=1", "precision=fp64", "engine.gradients=none",
    "eval.every_epochs=null",
)  # fmt: skip
FOUND = ("algo", "cluster.bandwidth", "engine", "budget", "cluster.message_bytes")  # keys that are not the user's here
# rounds, and minimum of steps, of a short and a long run: the additional time of the long run has neither start nor end
ROUNDS, FEWEST_STEPS = (2, 5), (20, 50)
PER_OCTAVE = 16  # numbers that are tried in a factor of two: an answer is at most 4.4 % above the smallest one
BANDWIDTHS = (1e4, 1e15)  # bit/s, between which an answer is searched
LATENCIES = (1e-7, 1e3)  # seconds


@dataclass(frozen=True)
class LinkNeed:
    """Say which network lets the workers of a method compute in a share of the time.

    bandwidth: bit/s of each node, infinite where none is enough. latency_s: seconds, 0 where none is short enough."""

    method: str
    percent: float
    bandwidth: float
    latency_s: float


def main(argv: Sequence[str]) -> int:
    """Run the command. argv: arguments after `need`. Returns 0. Raises ValueError for wrong arguments."""
    options = _parser().parse_args(argv)
    check_quotes(options.overrides)
    check_outputs(options.json, options.figure)
    targets = tuple(options.target or TARGETS)
    if wrong := [percent for percent in targets if not 0 < percent < 100]:
        raise ConfigError(f"--target must be in (0, 100) %, got {wrong[0]:g}")
    timing = timing_overrides(options.overrides, options.config_dir)
    experiments = {method: experiment_of(method, timing, options.config_dir) for method in options.method or METHODS}
    needs = [
        need for method, experiment in experiments.items() for need in needs_of(method, experiment, sorted(targets))
    ]
    setting = setting_of(next(iter(experiments.values())))
    console = table_console()
    for table in tables(needs, setting):
        table.print(console)
        console.print()
    if options.json is not None:
        rows = [{name: _finite(value) for name, value in vars(need).items()} for need in needs]
        text = json.dumps({"setting": setting, "needs": rows}, indent=1, allow_nan=False)
        write_atomically(Path(options.json), f"{text}\n".encode())
    if options.figure is not None:
        points = [(need.method, need.percent, need.bandwidth) for need in needs]
        with drawing():
            save(need_figure(points, setting), Path(options.figure))
    return 0


def _parser() -> Any:
    parser = command_parser("dsgd-calibrate need", __doc__)
    add = parser.add_argument
    keys = "set gradient_s, nodes, model or parameters, precision, or a key cluster.* of dsgd-run"
    add("overrides", nargs="*", metavar="KEY=VALUE", help=keys)
    methods = f"choose an algorithm with its options; repeat for several (default: {', '.join(METHODS)})"
    add("--method", action="append", metavar="METHOD", help=methods)
    shares = "choose a share of the time that computes, in %%; repeat for several (default: 50, 80, 90, 95, 99)"
    add("--target", type=float, action="append", metavar="PERCENT", help=shares)
    add("--json", metavar="FILE", help="write all numbers to a file")
    add("--figure", metavar="FILE", help="draw a figure into a .png, .svg or .pdf file")
    add("--config-dir", metavar="DIR", help="read your own configuration files from a folder")
    return parser


def check_outputs(json_file: str | None, figure: str | None) -> None:
    """Raise ConfigError, before any work, for files of --json and --figure that cannot be written or drawn."""
    for flag, path in (("--json", json_file), ("--figure", figure)):
        if path is not None:
            check_file(Path(path), flag)
    if figure is not None and Path(figure).suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--figure must be a .png, .svg or .pdf file, got {figure}")


def timing_overrides(
    typed: Sequence[str],
    config_dir: str | None = None,
    reserved: Sequence[str] = FOUND,
    instead: str = "it is what `need` sets or finds; a method is --method",
) -> list[str]:
    """Return the overrides that the timing runs of all methods have in common.

    typed: overrides of the command line. reserved: keys that the command sets; without the size of a message among them
    the cluster may have its own. instead: reason for the error about these keys. Raises ConfigError."""
    sizes, others = dict[str, str](), list[str]()
    for override in typed:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"arguments must be KEY=VALUE, got {override}")
        if key in ("parameters", "precision", "model"):
            sizes[key] = value
        elif key.partition(".")[0] in reserved or key in reserved:
            raise ConfigError(f"{key} must not be given: {instead}")
        else:
            others.append(f"cluster.{override}" if key == "gradient_s" else override)
    if not any(override.startswith("cluster") for override in others):
        raise ConfigError("gradient_s must be given, the seconds of a worker's gradient, got none")
    # the gradient's time comes after the cluster, whose own time it replaces
    others.sort(key=lambda override: override.startswith("cluster.gradient_s="))
    if sizes or "cluster.message_bytes" in reserved:
        others.append(f"cluster.message_bytes={message_bytes(sizes, config_dir)!r}")
    return [*TIMING, *others, f"budget.steps={FEWEST_STEPS[0]}", "budget.epochs=null"]


def experiment_of(method: str, timing: Sequence[str], config_dir: str | None = None) -> Experiment:
    """Return the timing run of a method, in which bandwidth and latency are varied.

    method: `diloco tau=500`. timing: result of `timing_overrides`. Raises ConfigError."""
    if not method.split():
        raise ConfigError(f"--method must be an algorithm with its options, like diloco tau=500, got {method!r}")
    algo, *options = method.split()
    overrides = [*timing, f"algo={algo}", *map(full_option, options)]
    if algo == "sgp" and not any(override.startswith("topology") for override in overrides):
        overrides.append("topology=one_peer_exponential")
    experiment = configure(composed(overrides, config_dir)).experiment
    if experiment.cluster.mean_gradient_s is None:
        raise ConfigError("gradient_s must be given, the seconds of a worker's gradient: this cluster has none")
    return experiment


def message_bytes(sizes: Mapping[str, str], config_dir: str | None = None) -> float:
    """Return the bytes of a message of every parameter. sizes: values of `parameters` or `model`, and `precision`.

    Raises ConfigError."""
    precision = sizes.get("precision", "fp32")
    if precision not in BYTES:
        raise ConfigError(f"precision must be one of {', '.join(BYTES)}, got {precision}")
    if ("parameters" in sizes) == ("model" in sizes):
        given = "both" if "model" in sizes else "none"
        raise ConfigError(f"one of model and parameters must be given, got {given}")
    if "model" in sizes:
        return float(BYTES[precision] * parameters_of(sizes["model"], config_dir))
    try:
        count = float(sizes["parameters"])
    except ValueError:
        count = math.nan
    if not 1 <= count < math.inf:
        raise ConfigError(f"parameters must be a number >= 1, got {sizes['parameters']}")
    return BYTES[precision] * count


def parameters_of(name: str, config_dir: str | None = None) -> int:
    """Return the number of a model's parameters, for ImageNet's images and classes or, for gpt, for bytes. Raises
    ConfigError."""
    import torch

    model = build(None, composed([f"model={name}"], config_dir)["model"], "model")
    tokens = isinstance(model, GPT)
    shape, classes = (TokenShape((1024,)), 256) if tokens else ((3, 224, 224), 1000)
    try:
        with torch.device("meta"):
            module = model.build(shape, classes)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return sum(parameter.numel() for parameter in module.parameters())


def needs_of(method: str, experiment: Experiment, targets: Sequence[float]) -> list[LinkNeed]:
    """Return the needs of a method for each target. targets: shares in per cent, ascending."""
    cluster = experiment.cluster

    def with_bandwidth(value: float) -> float:
        return computing(replace(experiment, cluster=replace(cluster, bandwidth=value)))

    def with_latency(value: float) -> float:
        unlimited = replace(cluster, bandwidth=math.inf, receive_bandwidth=None, latency_s=value)
        return computing(replace(experiment, cluster=unlimited))

    rates = first_enough(with_bandwidth, targets, grid(*BANDWIDTHS))
    latencies = first_enough(with_latency, targets, grid(*LATENCIES)[::-1])
    return [
        LinkNeed(method, percent, math.inf if rate is None else rate, latency_s or 0.0)
        for percent, rate, latency_s in zip(targets, rates, latencies, strict=True)
    ]


def grid(low: float, high: float) -> list[float]:
    """Return numbers from low to high, a sixteenth of an octave apart."""
    return [low * 2 ** (k / PER_OCTAVE) for k in range(math.ceil(PER_OCTAVE * math.log2(high / low)) + 1)]


def first_enough(
    share_of: Callable[[float], float], targets: Sequence[float], values: Sequence[float]
) -> list[float | None]:
    """Return for each target, in per cent, the first value whose share reaches it, or None if no value's share does.

    share_of: does not fall from value to value."""
    share = cache(share_of)
    return [
        None if share(values[-1]) < percent / 100 else values[bisect_left(values, percent / 100, key=share)]
        for percent in targets
    ]


def computing(experiment: Experiment) -> float:
    """Return the share of the time in which workers compute, in the mean over workers, of a run without an end."""
    from dsgd.engines.sim.simulation import Simulation

    tau = getattr(experiment.algo, "tau", 1)
    ends = list[tuple[float, float]]()  # of the short and of the long run: seconds, and seconds of them computing
    for rounds, fewest in zip(ROUNDS, FEWEST_STEPS, strict=True):
        budget = replace(experiment.budget, steps=max(fewest, rounds * tau))
        simulation = Simulation(replace(experiment, budget=budget))
        for _ in simulation.run():
            pass
        summary = simulation.summary()
        ends.append((summary["time_s"], summary["time_s"] * (1 - summary["idle_fraction_mean"])))
    (short_s, short_busy_s), (long_s, long_busy_s) = ends
    return (long_busy_s - short_busy_s) / (long_s - short_s)


def setting_of(experiment: Experiment) -> str:
    """Return the setting for which the numbers hold, in one line."""
    cluster = experiment.cluster
    assert cluster.mean_gradient_s is not None
    assert cluster.message_bytes is not None
    parts = [
        f"{experiment.nodes} nodes",
        f"gradient of {in_units(cluster.mean_gradient_s, 's')}",
        f"messages of {in_units(cluster.message_bytes, 'bytes')}",
        f"latency {in_units(cluster.latency_s, 's')} for the bandwidths",
        "unlimited bandwidth for the latencies",
    ]
    return "; ".join(parts)


def tables(needs: Sequence[LinkNeed], setting: str) -> list[ReportTable]:
    """Return a table of bandwidths and a table of latencies. Both have a row for each method."""
    targets = sorted({need.percent for need in needs})
    by_method: dict[str, list[LinkNeed]] = {}
    for need in needs:
        by_method.setdefault(need.method, []).append(need)

    def table(what: str, text: Callable[[LinkNeed], str], caption: str) -> ReportTable:
        heads = [what, *(f"{percent:g} %" for percent in targets)]
        rows: list[list[Any]] = [[method, *map(text, of_method)] for method, of_method in by_method.items()]
        return ReportTable(heads, frozenset({what}), rows, [heads, *rows], caption)

    caption = f"for so much of the time computing: {setting}"
    if any(math.isinf(need.bandwidth) for need in needs):
        caption = f"none: the latency alone takes too long\n{caption}"
    return [
        table("smallest bandwidth", lambda need: _bandwidth(need.bandwidth), ""),
        table("largest latency", lambda need: _latency(need.latency_s), caption),
    ]


def _bandwidth(bits_per_s: float) -> str:
    if math.isinf(bits_per_s):
        return "none"
    return "any" if bits_per_s <= BANDWIDTHS[0] else bandwidth(_two_digits(bits_per_s, math.ceil))


def _latency(seconds: float) -> str:
    if seconds <= 0:
        return "none"
    return "any" if seconds >= LATENCIES[1] else in_units(_two_digits(seconds, math.floor), "s")


def _two_digits(value: float, whole: Callable[[float], int]) -> float:
    """Return a number with two digits, rounded to the safe side."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{whole(round(value / unit, 9)) * unit:.2g}")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and math.isinf(value) else value
