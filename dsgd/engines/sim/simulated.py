"""A run in the simulator, in this process, and its exact checkpoints, which have in-flight messages and gradients and
suspended algorithms.

An algorithm is a coroutine, and a coroutine cannot be stored. But the times of events do not depend on the contents of
vectors. So a checkpoint stores the number of events so far and the contents of all live vectors. To restore, the events
are replayed without gradients and evaluations, which brings every coroutine, message, queue and random stream to its
state; then the stored contents are copied into the vectors, found by the same walk in the same order. If a user's own
algorithm branches on the contents of vectors, the fingerprint differs, and resuming is refused.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import AsyncGeneratorType, CellType, CoroutineType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.data import DataLost
from dsgd.data.protocols import ReadAhead
from dsgd.engines.rules.marks import Mark, Progress
from dsgd.engines.rules.trace import TraceRow
from dsgd.engines.sim.simulation import EVENTS, Simulation
from dsgd.experiment import Budget
from dsgd.gradients.choice import choose_threads
from dsgd.host.gpu_facts import gpu_facts, peak_bytes
from dsgd.host.resources import cores, omp_threads
from dsgd.host.signals import remember_signals
from dsgd.host.stop import STOP_SIGNALS
from dsgd.problem.precision import compute_deterministically
from dsgd.problem.problem import build_problem
from dsgd.record.checkpoint_file import CheckpointError, check_state, read_state
from dsgd.record.safe_text import lines_for_terminal
from dsgd.runner.gradient_time import GRADIENT_S, foreign_time, with_gradient_time
from dsgd.runner.life import TrainingState, checked_digest, live
from dsgd.runner.plan import Plan
from dsgd.runner.resume import Checkpoint
from dsgd.runner.values import ConfigError, key_prefix


class OtherRun(ValueError):
    """Raised for a stored state that does not fit the run it should be restored into."""


def snapshot(simulation: Simulation) -> dict[str, Any]:
    """Return the state between two events, as plain values and copies of all live vectors."""
    device = simulation.machine.evaluator.device
    if device.type != "cpu":
        torch.accelerator.synchronize(device)  # losses reach the host after their gradients
    return {
        "fingerprint": _fingerprint(simulation),
        "progress": asdict(simulation.progress),
        "vectors": [vector.detach().to("cpu", copy=True) for vector in live_vectors(simulation)],
    }


def restore(simulation: Simulation, state: dict[str, Any]) -> None:
    """Restore a snapshot into a new simulation of the same experiment. Raises OtherRun."""
    simulation.replay(state["fingerprint"]["events"])
    vectors = live_vectors(simulation)
    fingerprint = _fingerprint(simulation)
    if state["progress"].keys() != asdict(simulation.progress).keys():
        raise OtherRun(f"its progress is {', '.join(map(str, state['progress']))}")
    if fingerprint != state["fingerprint"] or [v.shape for v in vectors] != [v.shape for v in state["vectors"]]:
        raise OtherRun(
            f"the run went another way than before ({fingerprint} instead of {state['fingerprint']}): either its "
            "algorithm decides by the contents of vectors, or the code has changed"
        )
    for vector, stored in zip(vectors, state["vectors"], strict=True):
        vector.copy_(stored)
    findings = state["progress"]
    if findings["last_mark"] is not None:
        findings["last_mark"] = tuple(findings["last_mark"])
    simulation.progress = Progress(**findings)


def live_vectors(simulation: Simulation) -> list[Tensor]:
    """Return every vector that later events can read, each once, in an order determined by the events so far."""
    machine = simulation.machine
    vectors: list[Tensor] = []
    # the problem and the experiment are rebuilt from the configuration
    seen = {id(simulation.problem), id(simulation.experiment), id(machine.evaluator)}
    stack: list[Any] = [machine]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, (str, bytes, int, float, np.random.Generator)):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            vectors.append(item)
        else:
            stack.extend(reversed(_references(item)))
    return vectors


def _references(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, (list, tuple, deque)):
        return list(item)
    if isinstance(item, (CoroutineType, AsyncGeneratorType, Iterator, CellType)):
        # local variables, values within a suspended expression, the remaining iterations of a loop
        return gc.get_referents(item)
    if isinstance(item, FunctionType):
        return list(item.__closure__ or ())
    if isinstance(item, MethodType):
        return [item.__self__]
    if isinstance(item, (type, ModuleType)):
        return []
    slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    return [getattr(item, name) for name in slots if hasattr(item, name)] + list(getattr(item, "__dict__", {}).values())


def _fingerprint(simulation: Simulation) -> dict[str, Any]:
    machine = simulation.machine
    streams = json.dumps([node.worker.rng.bit_generator.state for node in machine.nodes], sort_keys=True, default=str)
    return {
        "events": machine.loop.processed,
        "time_s": machine.loop.now,
        "samples": machine.samples,
        "marks": simulation.progress.marks,
        "bytes_sent": sum(machine.network.bytes_sent(machine.loop.now)),
        "streams": hashlib.sha256(streams.encode()).hexdigest(),
    }


def run_simulated(plan: Plan, folder: Path, ended: Callable[[], None]) -> str:
    """Run a plan with its record in `folder`. Returns the status. Raises ConfigError.

    ended: called at the end of the run, before signal handlers are restored."""
    training = SimulatedTraining(plan)
    # a simulation makes many small objects and hardly any cycles: do not look for them every few hundred
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    with remember_signals(STOP_SIGNALS) as stops:
        try:
            return live(plan, folder, training, stops)
        finally:
            ended()


class SimulatedTraining:
    """A simulation at its start, or at the plan's checkpoint. Implements `dsgd.runner.life.Training`.

    header: settings that determine the last bits of a gradient."""

    engine = "sim"
    clock = "virtual"

    def __init__(self, plan: Plan) -> None:
        """Raises ConfigError for data that cannot be read, a model that does not fit them, or another run's
        checkpoint."""
        experiment, options, checkpoint = plan.config.experiment, plan.config.engine, plan.checkpoint
        before = {} if checkpoint is None else checkpoint.header
        compute_deterministically()
        if "gradients" in before:  # the choice of the run's start, also for `auto`
            moved = options.device != before["config"]["engine"].get("device", options.device)
            device = options.device if moved else before["device"]
            experiment = replace(experiment, gradients=before["gradients"], device=device)
        try:
            with key_prefix(None):
                problem = build_problem(experiment)  # in one thread, for any evaluator of gradients
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
            hardly_fits = experiment.algo.check_layout(problem.layout)
            lines = filter(None, (threads.why, chosen.why, foreign, hardly_fits and f"warning: {hardly_fits}"))
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

        looks = between_events if keep or every_s is not None else interrupted
        yield from simulation.run(looks, EVENTS if simulation.machine.timing_only and not keep else 1)
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
    """Raise ConfigError if a worker has ended at the checkpoint, although the larger budget has more steps for it."""
    before = checkpoint.header["config"]["budget"]
    if before != plan.config.values["budget"]:
        smaller = replace(plan.config.experiment, budget=Budget(**before))
        if simulation.has_all_steps(smaller.total_samples):
            rule = "resume must be a checkpoint from before the last step, to resume with a larger budget"
            raise ConfigError(f"{rule}, got {checkpoint.path}")
