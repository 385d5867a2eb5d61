"""Forecast how long the runs of studies compute, before any of them begins.

A run costs its samples times what one sample costs on one core, measured for the models of the small scale. Marks,
start-up and values that tuning tries beyond its grid are not counted; runs without gradients count nothing. A run that
ends at its target, or that tuning ends as it is late, costs less: where there are many of them, half or a quarter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.cli.compare import compare_options
from dsgd.cli.compose import ConfigTree
from dsgd.cli.entries import FOLDERS, Composer
from dsgd.runner.configuration import configure
from studies.reproduction.paper import Study

MLP_S = 15e-6  # a sample, on one core
RESNET8_S, RESNET8_PIXEL_S = 0.10e-3, 0.76e-6  # a sample, and each of its pixels: 0.15 ms of 8 x 8, 0.7 ms of 28 x 28
RESNET8_WIDTH = 16  # channels of that; the cost goes with their square


@dataclass(frozen=True)
class Cost:
    """Count the runs of a study and the seconds of one core that they take, core_s. unknown: runs whose model has no
    measured cost, or whose budget is a time."""

    runs: int = 0
    core_s: float = 0.0
    unknown: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.runs + other.runs, self.core_s + other.core_s, self.unknown + other.unknown)

    def __str__(self) -> str:
        text = f"{self.runs} runs, {self.core_s / 3600:.2g} core-hours"
        return f"{text} without {self.unknown} of them, whose cost is unknown" if self.unknown else text


def forecast(study: Study, overrides: Sequence[str]) -> Cost:
    """Return the cost of a study with these overrides. Raises ConfigError."""
    tree = ConfigTree(None)
    if not study.tuned:
        jobs = tree.grid(overrides, FOLDERS)
        return sum((_cost(job.values, 1) for job in jobs), Cost())
    options = [word for word in overrides if word.startswith("compare.")]
    compared = compare_options(options)
    cost = Cost()
    for entry in Composer(tree, compared).entries([word for word in overrides if word not in options]):
        values = 1
        for axis in entry.axes:
            values *= len(axis.grid)
        values += 2 * sum(axis.between for axis in entry.axes) if compared.tune_fine else 0
        cost += _cost(entry.values, compared.seeds + compared.tune_seeds * (values if entry.axes else 0))
    return cost


def _cost(values: Mapping[str, Any], runs: int) -> Cost:
    """Return the cost of runs with one configuration."""
    config = configure(dict(values))
    if config.engine.gradients == "none":
        return Cost(runs)
    samples, sample_s = config.experiment.total_samples, _sample_s(values)
    if samples is None or sample_s is None:
        return Cost(runs, unknown=runs)
    return Cost(runs, runs * samples * sample_s)


def _sample_s(values: Mapping[str, Any]) -> float | None:
    """Return the seconds that a core needs for a sample; None for a model that was not measured."""
    model, data = values["model"]["name"], values["data"]
    if data["name"] == "quadratic":
        return 0.0
    if model == "mlp":
        return MLP_S
    if model == "resnet8" and "resolution" in data:
        return (RESNET8_S + RESNET8_PIXEL_S * data["resolution"] ** 2) * (values["model"]["width"] / RESNET8_WIDTH) ** 2
    return None
