"""The time of a gradient is that of the trained model on this machine, where nobody has said what it is."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

from dsgd.cli.compose import composed
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Experiment
from dsgd.gradients.choice import are_steady
from dsgd.runner.configuration import configure
from dsgd.runner.gradient_time import foreign_time, measured_gradient_s, with_shared_times
from dsgd.runner.plan import plan_run
from dsgd.worker import Algorithm, Worker
from tests.support.command import call, marks, summary

# nothing but gradients takes time
RUN = ("cluster=ideal", "nodes=2", "budget.steps=4", "engine=sim")
LINE = r"^one gradient of (.+) takes ([0-9.e-]+) ms here \(measured\); cluster\.gradient_s sets it$"


@dataclass(frozen=True)
class Interrupted(Algorithm):
    """Makes steps alone, and asks for the end of the run after the second one, the first time."""

    lockstep = True

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            worker.step(await worker.gradient())
            if worker.steps == 2 and worker.rank == 0 and not os.path.exists("interrupted"):  # noqa: ASYNC240
                os.mkdir("interrupted")
                os.kill(os.getpid(), signal.SIGINT)


def test_a_trace_is_the_time_of_a_run_and_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synchronous steps of three ranks take what the slowest takes: 3 + 2 + 4, and from the first step on again 3."""
    monkeypatch.chdir(tmp_path)
    times = [[1.0, 2.0, 4.0], [3.0, 1.0, 1.0], [2.0, 2.0, 1.0]]
    lines = [f"{step},{rank},{seconds}" for rank, of_rank in enumerate(times) for step, seconds in enumerate(of_rank)]
    (tmp_path / "times.csv").write_text("\n".join(["step,rank,seconds", *lines]))
    words = ("algo=sync", "experiment=quadratic", "cluster=ideal", "cluster.gradient_s=null", "engine=sim", "nodes=3")
    result = call(*words, "cluster.compute_trace=times.csv", "budget.steps=4", "hydra.run.dir=run")
    assert (result.status, "one gradient of" in result.err) == (0, False), result.err
    assert summary(Path("run"))["time_s"] == pytest.approx(12.0)
    assert summary(Path("run"))["gradient_s"] == pytest.approx(17 / 9)


class Failing(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("no backward\npass")
        return super().forward(input.flatten(1))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that are found instead of measuring: 1 s, 2 s, ..."""
    found: list[float] = []

    def instead(*_: object) -> float:
        found.append(len(found) + 1.0)
        return found[-1]

    monkeypatch.setattr("dsgd.runner.gradient_time.measured_gradient_s", instead)
    return found


def experiment(*overrides: str) -> Experiment:
    return configure(composed(overrides)).experiment


def test_it_is_measured_printed_recorded_and_what_a_gradient_takes(tmp_path: Path) -> None:
    result = call(*RUN, "batch_size=5", "hydra.run.dir=run")
    assert result.status == 0, result.err
    ((name, shown_ms),) = re.findall(LINE, result.err, re.MULTILINE)
    gradient_s = summary(tmp_path / "run")["gradient_s"]
    assert name == "mlp, batch 5, fp32"
    assert 1e3 * gradient_s == pytest.approx(float(shown_ms))
    assert summary(tmp_path / "run")["time_s"] == pytest.approx(4 * gradient_s)
    assert json.loads((tmp_path / "run/env.json").read_text())["gradient_s"] == gradient_s  # from the beginning
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert config["cluster"]["gradient_s"] is None

    given = call(*RUN, "batch_size=5", f"cluster.gradient_s={gradient_s}", "hydra.run.dir=given")
    assert given.status == 0, given.err
    assert marks(tmp_path / "given") == marks(tmp_path / "run")
    assert summary(tmp_path / "given") == summary(tmp_path / "run")


def test_several_threads_where_this_process_has_had_some_before() -> None:
    """OpenMP's pool of threads does not live in a forked process, and whoever had one there would wait for it."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.randn(1000, 1000).exp()  # by both
        assert measured_gradient_s(configure(composed(["model.hidden=[500]", "engine.threads=2"]))) > 0
    finally:
        torch.set_num_threads(before)


def test_measuring_leaves_nothing_in_this_process() -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    measured_gradient_s(configure(composed(["model.hidden=[4]"])))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_more_gradients_are_measured_where_their_times_differ() -> None:
    assert are_steady([0.02] * 10)
    assert are_steady([0.02] * 4 + [0.021, 0.022])
    assert are_steady([0.02] * 9 + [5.0])  # the median knows nothing of one
    assert not are_steady([0.02, 0.04] * 5)  # as beside another program
    assert not are_steady([0.1] * 4)  # too few
    assert not are_steady([0.001] * 40)  # too short


def test_what_is_given_is_not_measured(tmp_path: Path, measured: list[float]) -> None:
    for number, options in enumerate((("cluster.gradient_s=0.5",), ("cluster=jin2016",), ("experiment=quadratic",))):
        result = call(*RUN, *options, f"hydra.run.dir={number}")
        assert result.status == 0, result.err
    assert summary(tmp_path / "0")["time_s"] == 2.0
    assert summary(tmp_path / "0")["gradient_s"] == 0.5
    assert measured == []


def test_real_processes_have_no_use_for_it(measured: list[float]) -> None:
    plans = [plan_run(composed(["engine=dist", "nodes=2"]), [])]
    assert with_shared_times(plans, [({}, Path())]) == plans
    assert measured == []


def test_a_run_that_goes_on_keeps_its_time(tmp_path: Path, measured: list[float]) -> None:
    own = (f"algo._target_={__name__}.Interrupted", "~algo.overlap", "~algo.backups", "~algo.elastic")
    line = (*RUN, *own, "hydra.run.dir=run")
    assert call(*line).status == 130
    assert summary(tmp_path / "run")["gradient_s"] == 1.0
    assert call(*line, "resume=run").status == 0
    assert measured == [1.0]
    assert (summary(tmp_path / "run")["gradient_s"], summary(tmp_path / "run")["time_s"]) == (1.0, 4.0)


def test_the_jobs_of_a_sweep_share_it_also_with_those_that_come_later(tmp_path: Path, measured: list[float]) -> None:
    """Measured before any of them starts; once for each kind of gradients."""

    def times() -> list[float]:
        return [summary(path.parent)["gradient_s"] for path in sorted((tmp_path / "swept").glob("*/summary.json"))]

    line = ("-m", *RUN, "engine.gradients=none", "sweep.jobs=2", "hydra.sweep.dir=swept", "resume=auto")
    assert call(*line, "batch_size=4,8", "seed=0,1").status == 0
    assert measured == [1.0, 2.0]
    assert times() == [1.0, 1.0, 2.0, 2.0]
    (tmp_path / "swept/3_sync_2/summary.json").unlink()  # it was killed before its first checkpoint
    assert call(*line, "batch_size=4,8", "seed=0,1").status == 0
    assert measured == [1.0, 2.0]
    assert times() == [1.0, 1.0, 2.0, 2.0]


def test_a_model_whose_gradient_fails_needs_one(tmp_path: Path) -> None:
    model = (f"model.target={__name__}.Failing", "model.arguments={in_features: 64, out_features: 10}")
    result = call("-m", "seed=0,1", *RUN, "model=import", *model, "engine.gradients=none")
    whose = "a gradient of Failing(in_features=64, out_features=10), batch 16, fp32"
    reason = f"{whose} cannot be measured: RuntimeError: no backward pass"
    assert result.status == 2
    assert result.err.splitlines()[-1] == f"cluster.gradient_s must be given, as {reason}"
    assert not list(tmp_path.glob("*/*/*/config.yaml"))


def test_a_simulation_by_itself_does_not_guess() -> None:
    with pytest.raises(ValueError, match=r"^cluster\.gradient_s must be a number in a simulation, got null$"):
        Simulation(experiment("engine.gradients=none"))


def test_what_depends_on_it_is_checked_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsgd.runner.gradient_time.measured_gradient_s", lambda *_: 10.0)
    for option, rule in (
        ("eval.every_time_s=1e-6", "eval.every_time_s must be >= "),
        ("cluster.stalls=[{every_s: 1e-5, duration_s: 1}]", "cluster.stalls: every_s must be >= 0.01 "),
    ):
        result = call(*RUN, "budget.steps=10", option)
        assert (result.status, result.err.splitlines()[-1][: len(rule)]) == (2, rule)


OWN_MODEL = ("model=import", "model.target=a.B")


def test_the_warning_is_one_line_of_the_run() -> None:
    result = call(*RUN, "cluster=jin2016", "engine.gradients=none")
    lines = [line for line in result.err.splitlines() if "warning" in line]
    assert lines == [
        "warning: cluster=jin2016 has the gradient time of resnet18, batch 32, but this run takes gradients of "
        "mlp, batch 16, fp32"
    ]


def test_a_time_of_other_gradients_is_said_to_be_one() -> None:
    given = "cluster.gradient_s=1"
    resnet = ("cluster=jin2016", "data=shapes", "data.channels=3", "model=resnet18")
    for options, whose in (
        (("cluster=jin2016",), "resnet18, batch 32"),
        ((*resnet, "batch_size=32"), None),
        (resnet, "resnet18, batch 32"),
        (("cluster=jin2016", "cluster.gradient_s=null"), None),
        (("cluster=lian2017_5ms", "data=shapes", "model=resnet20", "precision=bf16"), None),
        (("experiment=lian2017_small",), "resnet20"),
        ((given, "cluster.gradient_of='mlp, batch 16, bf16'"), "mlp, batch 16, bf16"),
        ((given, "cluster.gradient_of='mlp, batch 16, fp32'"), None),
        ((given, "cluster.gradient_of='own, batch 16'", *OWN_MODEL), "own, batch 16"),
        ((given, "cluster.gradient_of=own", *OWN_MODEL, "model.label=own"), None),
        ((given,), None),
        ((), None),
    ):
        line = foreign_time(configure(composed(options)))
        assert (line is None) == (whose is None), options
        assert line is None or f" has the gradient time of {whose}, but this run takes gradients of " in line
