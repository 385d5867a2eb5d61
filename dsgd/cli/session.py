"""One run from configuration to summary: engine, record, progress, signals, checkpoints."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dsgd.cli.build import ConfigError, build_experiment, prefixed
from dsgd.cli.progress import ProgressLine
from dsgd.cli.resume import command
from dsgd.data import DataLost
from dsgd.engine.trace import write_trace
from dsgd.experiment import Experiment
from dsgd.gradients.loop import Loop
from dsgd.gradients.stacked import Stacked
from dsgd.host.launcher import STOPS
from dsgd.host.resources import cores
from dsgd.record.checkpoint import NAME, read_state, write_checkpoint
from dsgd.record.mirror import Mirror
from dsgd.record.writer import Record
from dsgd.report.runs import find_runs
from dsgd.report.table import print_table
from dsgd.sim.checkpoint import OtherRun, restore, snapshot
from dsgd.sim.simulation import Simulation


def run_and_record(values: Mapping[str, Any], folder: Path, checkpoint: tuple[Path, Mapping[str, Any]] | None) -> str:
    """Run the configuration `values`, or go on from `checkpoint` (its path and header), with its record in `folder`.
    Returns the status."""
    header = {} if checkpoint is None else checkpoint[1]
    threads = header.get("threads") or values["engine"]["threads"] or available_threads()
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler: 2 s
    # that mode would fill every new tensor: a twentieth of a run's time
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    experiment = build_experiment(values)
    if "gradients" in header:  # what the run began with, whatever it was to choose
        experiment = replace(experiment, gradients=header["gradients"], device=header["device"])
    try:
        with prefixed(None):
            simulation = Simulation(experiment)  # data that cannot be read, a model that does not fit them
    except DataLost as error:
        raise ConfigError(str(error)) from error
    if header.get("gradients", simulation.chosen.name) != simulation.chosen.name:
        raise ConfigError(f"resume must find gradients={header['gradients']} as before; {simulation.chosen.why}")
    if simulation.chosen.why is not None and checkpoint is None:
        print(simulation.chosen.why, file=sys.stderr)
    before, lines, wall_s = None, 0, 0.0
    if checkpoint is not None:
        path = checkpoint[0]
        try:
            restore(simulation, read_state(path))
        except OtherRun as error:
            raise ConfigError(f"resume must be a checkpoint of this version, got {path}: {error}") from error
        before, lines, wall_s = path.parent, header["lines"], header["wall_s"]
    # a simulation makes many small objects and hardly any cycles: do not look for them every few hundred
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    record = Record(folder, values, before, lines, wall_s)
    session = Session(values, simulation, record, threads)
    summary = session.run()
    if experiment.trace:
        write_trace(simulation.trace_rows(), simulation.time_s, folder / "trace.json")
    return summary["status"]


def available_threads() -> int:
    """As torch has it: OMP_NUM_THREADS, or the cores that this process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdecimal() and int(given) > 0 else cores()


def show(outcome: Mapping[Path, str]) -> None:
    """Print the table of the runs in these folders, where their records are, and how to go on with interrupted ones."""
    print_table(find_runs(list(outcome)), Console(width=None if sys.stdout.isatty() else 160))
    for folder, status in outcome.items():
        print(f"record: {folder}")
        if status == "interrupted" or (status == "failed" and (folder / NAME).is_file()):
            print(f"{status}; go on with: {command(folder)}")


class Session:
    """The loop around a simulation that knows host time. threads: what torch had when the simulation was made."""

    def __init__(self, values: Mapping[str, Any], simulation: Simulation, record: Record, threads: int) -> None:
        self.values = values
        self.simulation = simulation
        self.record = record
        self.threads = threads
        self.every_s: float | None = values["engine"]["checkpoint_every_s"]
        self.stop_signal: int | None = None
        self._saved = time.monotonic()
        self._looked = 0.0
        self._progress = ProgressLine(simulation.experiment, "virtual")

    def run(self) -> dict[str, Any]:
        """Run to the end or to a signal; returns the summary as written."""
        status = "failed"
        mirror = Mirror(self.values, self.record.folder)
        try:
            with self._signals():
                with self._progress:
                    for mark in self.simulation.run(interrupt=self._between_events):
                        self.record.mark(mark)
                        mirror.wake()
                        self._progress.measured(mark)
                status = self.simulation.status
                if status == "interrupted":
                    self.save()
                else:
                    (self.record.folder / NAME).unlink(missing_ok=True)  # there is nothing to go on with
        except DataLost as error:
            print(error, file=sys.stderr)
        except KeyboardInterrupt:  # a second Ctrl-C
            status = "interrupted"
            raise
        finally:
            summary = self.record.finish(
                describe(self.values, self.simulation.experiment)
                | self.simulation.summary()
                | self._arithmetic
                | {"status": status}
            )
            mirror.finish()
        return summary

    def save(self) -> None:
        """Write a checkpoint of this moment."""
        self.record.sync()
        header = {
            "config": dict(self.values) | {"resume": None},
            "engine": "sim",
            **self._arithmetic,
            "lines": self.simulation.progress.marks,
            "wall_s": self.record.wall_s,
        }
        write_checkpoint(self.record.folder, header, snapshot(self.simulation))
        self._saved = time.monotonic()

    @property
    def _arithmetic(self) -> dict[str, Any]:
        """What decides the last bits of a gradient."""
        chosen = self.simulation.chosen
        device = chosen.evaluator.device.type if isinstance(chosen.evaluator, (Loop, Stacked)) else "cpu"
        return {"gradients": chosen.name, "device": device, "threads": self.threads}

    def _between_events(self) -> bool:
        now = time.monotonic()
        if now - self._looked > 0.1:
            self._looked = now
            machine = self.simulation.machine
            self._progress.moved(machine.loop.now, machine.samples, self.record.wall_s)
            if self.every_s is not None and now - self._saved >= self.every_s:
                self.save()
        return self.stop_signal is not None

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Any of STOPS ends the run at the next event. After it Ctrl-C ends the process at once, and the others mean
        nothing new."""

        def remember(number: int, frame: object) -> None:
            self.stop_signal = number
            signal.signal(signal.SIGINT, previous[signal.SIGINT])

        previous = {number: signal.signal(number, remember) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                if self.stop_signal is None or number == signal.SIGINT:
                    signal.signal(number, handler)


def describe(values: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    """The part of the summary that says what was run."""
    return {
        "algo": values["algo"]["name"],
        "nodes": experiment.nodes,
        "engine": "sim",
        "model": values["model"]["name"],
        "data": values["data"]["name"],
        "topology": experiment.topology.name,
        "seed": experiment.seed,
        "target_accuracy": experiment.target.accuracy,
        "time_model": experiment.cluster.time_model,
    }
