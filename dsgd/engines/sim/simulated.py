"""A run in the simulator, in this process."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsgd.data import DataLost
from dsgd.data.protocols import ReadAhead
from dsgd.engines.rules.marks import Mark
from dsgd.engines.rules.trace import TraceRow
from dsgd.engines.sim.checkpoint import OtherRun, restore, snapshot
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Budget
from dsgd.gradients.choice import choose_threads
from dsgd.host.gpu_facts import gpu_facts, peak_bytes
from dsgd.host.resources import cores, omp_threads
from dsgd.host.signals import remembered
from dsgd.host.stop import STOP_SIGNALS
from dsgd.problem.precision import compute_deterministically
from dsgd.problem.problem import build_problem
from dsgd.record.checkpoint_file import CheckpointError, check_state, read_state
from dsgd.record.safe_text import lines_for_terminal
from dsgd.runner.gradient_time import GRADIENT_S, foreign_time, with_gradient_time
from dsgd.runner.life import TrainingState, checked_digest, live
from dsgd.runner.plan import Plan
from dsgd.runner.resume import Checkpoint
from dsgd.runner.values import ConfigError, prefixed


def run_simulated(plan: Plan, folder: Path, ended: Callable[[], None]) -> str:
    """Run a plan with its record in `folder`. Returns the status. Raises ConfigError.

    ended: called when the run is over, before signals do again what they did."""
    training = SimulatedTraining(plan)
    # a simulation makes many small objects and hardly any cycles: do not look for them every few hundred
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    with remembered(STOP_SIGNALS) as stops:
        try:
            return live(plan, folder, training, stops)
        finally:
            ended()


class SimulatedTraining:
    """A simulation at its start, or where the plan's checkpoint left it. Implements `dsgd.runner.life.Training`.

    header: what decides the last bits of a gradient."""

    engine = "sim"
    clock = "virtual"

    def __init__(self, plan: Plan) -> None:
        """Raises ConfigError for data that cannot be read, a model that does not fit them, or another run's
        checkpoint."""
        experiment, options, checkpoint = plan.config.experiment, plan.config.engine, plan.checkpoint
        before = {} if checkpoint is None else checkpoint.header
        compute_deterministically()
        if "gradients" in before:  # what the run began with, whatever it was to choose
            moved = options.device != before["config"]["engine"].get("device", options.device)
            device = options.device if moved else before["device"]
            experiment = replace(experiment, gradients=before["gradients"], device=device)
        try:
            with prefixed(None):
                problem = build_problem(experiment)  # in one thread, whatever is chosen for the gradients
                self.digest = checked_digest(problem, checkpoint)
                experiment, measured_on = with_gradient_time(experiment, plan, problem)
                torch.set_num_threads(1)  # until it is chosen: small operations wait for each other's threads
                self._data = problem.data
                if experiment.gradients != "none" and isinstance(self._data, ReadAhead):
                    self._data.read_ahead(options.threads or omp_threads(os.environ) or cores())
                configured = before.get("threads") or options.threads
                threads = choose_threads(configured, os.environ, cores(), experiment, problem)
                torch.set_num_threads(threads.sharing)
                self._simulation = Simulation(experiment, problem, threads.side_by_side)
        except DataLost as error:
            raise ConfigError(str(error)) from error
        chosen = self._simulation.chosen
        if before.get("gradients", chosen.name) != chosen.name:
            raise ConfigError(f"resume must find gradients={before['gradients']} as before; {chosen.why}")
        if checkpoint is not None:
            try:
                state = read_state(checkpoint.path)
                check_state(state, "sim", experiment.nodes, checkpoint.path)
                restore(self._simulation, state)
                _check_extension(plan, checkpoint, self._simulation)
            except CheckpointError as error:
                raise ConfigError(str(error)) from error
            except OtherRun as error:
                text = f"resume must be a checkpoint of this version, got {checkpoint.path}: {error}"
                raise ConfigError(text) from error
        elif plan.why or chosen.instead:
            foreign = foreign_time(plan.config) if plan.config.experiment.cluster.gradient_of else None
            lines = filter(None, (threads.why, chosen.why, foreign))
            print(*map(lines_for_terminal, lines), sep="\n", file=sys.stderr)
        device = chosen.evaluator.device.type
        self.devices = [device]
        self.header = {"gradients": chosen.name, "device": device, "threads": chosen.threads}
        self.header[GRADIENT_S] = experiment.cluster.mean_gradient_s
        self.circumstances = {"gradient_measured": measured_on}
        self._computing = [chosen.evaluator.device]
        self._checkpoint_every_s, self._keep_checkpoint = options.checkpoint_every_s, options.keep_checkpoint

    @property
    def state(self) -> TrainingState:
        simulation = self._simulation
        return TrainingState(simulation.status, "", simulation.time_s, simulation.machine.samples)

    def run(self, interrupted: Callable[[], bool], save: Callable[[Mapping[str, Any]], None]) -> Iterator[Mark]:
        simulation, every_s, keep = self._simulation, self._checkpoint_every_s, self._keep_checkpoint
        saved, total = time.monotonic(), simulation.experiment.total_samples
        left = simulation.left if keep else 0.0

        def between_events() -> bool:
            nonlocal saved, left
            due = every_s is not None and time.monotonic() - saved >= every_s
            # at half the distance from the end of the one before: a few of them, and one shortly before the end
            nearer = keep and simulation.left <= left / 2
            if (due or nearer) and not (keep and simulation.has_all_steps(total)):
                save(snapshot(simulation))
                saved, left = time.monotonic(), simulation.left
            return interrupted()

        yield from simulation.run(between_events if keep or every_s is not None else interrupted)
        if simulation.status == "interrupted":
            save(snapshot(simulation))

    def summary(self) -> Mark:
        return self._simulation.summary() | gpu_facts(self._computing) | peak_bytes(self._computing)

    def trace_rows(self) -> list[TraceRow]:
        return self._simulation.trace_rows()

    def close(self, outcome: str) -> None:
        """End the processes that read ahead; there are no others."""
        if isinstance(self._data, ReadAhead):
            self._data.close()


def _check_extension(plan: Plan, checkpoint: Checkpoint, simulation: Simulation) -> None:
    """Raise ConfigError if a worker has ended at the checkpoint that would have gone on with the larger budget."""
    before = checkpoint.header["config"]["budget"]
    if before != plan.config.values["budget"]:
        smaller = replace(plan.config.experiment, budget=Budget(**before))
        if simulation.has_all_steps(smaller.total_samples):
            rule = "resume must be a checkpoint from before the last step, to resume with a larger budget"
            raise ConfigError(f"{rule}, got {checkpoint.path}")
