"""dsgd-calibrate: measures this machine or allocation and writes a file for the `cluster` group. With this file, the
simulator predicts the times of real processes on the same machines.

    dsgd-calibrate --out my/cluster/mine.yaml nodes=4 model=resnet8
    dsgd-run --config-dir my cluster=mine nodes=4 model=resnet8 engine=sim

Under torchrun or srun, the started processes measure their machines and the network between them.

    dsgd-calibrate --from-trace traces/ --out my/cluster/mine.yaml

describes the cluster of a job by its traces of torch.profiler, one of each rank, and checks the description: the
simulator must predict the traced steps. Nothing is measured, and no key is needed.

`dsgd-calibrate need` measures nothing: it says which bandwidth each method needs (`dsgd-calibrate need --help`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsgd.cli.arguments import check_quotes, command_parser, one_line
from dsgd.cli.compose import ConfigTree
from dsgd.cli.folders import check_file
from dsgd.host.launcher import launch
from dsgd.host.stop import EXIT_CONFIG, EXIT_FAILED
from dsgd.report.units import number_in
from dsgd.runner.configuration import RunConfig, configure
from dsgd.runner.gradient_time import gradient_name
from dsgd.runner.placement import worker_devices
from dsgd.runner.values import ConfigError

MEASURED = ("gradient_s", "bandwidth", "latency_s")  # results of a calibration, without links only the first


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, 1 if a worker was lost, or 2 for a bad configuration."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        if arguments[:1] == ["need"]:
            from dsgd.cli import need

            return need.main(arguments[1:])
        options = _parser().parse_args(arguments)
        check_quotes(options.overrides)
        out = Path(options.out)
        if options.steps < 2 or not options.link_s > 0:
            raise ConfigError(f"--steps must be >= 2 and --link-s > 0, got {options.steps} and {options.link_s}")
        if out.suffix != ".yaml":
            raise ConfigError(f"--out must be a .yaml file, got {out}")
        if launch(os.environ).rank == 0:  # which writes it
            check_file(out, "--out")
        if options.from_trace is not None:
            if options.overrides or options.config_dir:
                raise ConfigError("keys and --config-dir must not be given with --from-trace, whose job has its own")
            for word in arguments:
                if (flag := word.partition("=")[0]) in ("--steps", "--link-s"):
                    raise ConfigError(f"{flag} must not be given with --from-trace, which measures nothing")
            from dsgd.cli.from_trace import describe_trace

            return describe_trace(options.from_trace, out)
        (job,) = ConfigTree(options.config_dir).jobs(options.overrides, multirun=False)
        return calibrate_cluster(configure(job.values), out, options.steps, options.link_s)
    except ValueError as error:
        print(one_line(error), file=sys.stderr)
        return EXIT_CONFIG


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("dsgd-calibrate", __doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys of dsgd-run: nodes, model, data, ...")
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write, FOLDER/cluster/NAME.yaml")
    parser.add_argument("--steps", type=int, default=100, help="steps of each worker (default: %(default)s)")
    parser.add_argument(
        "--link-s",
        type=seconds,
        default=1.0,
        help="about a twelfth of the seconds for each link (default: %(default)s)",
    )
    parser.add_argument("--config-dir", metavar="DIR", help="your own configuration files")
    traces = "describe a job by its profiler traces: a folder with one of each rank, or one file"
    parser.add_argument("--from-trace", metavar="PATH", help=traces)
    return parser


def seconds(text: str) -> float:
    """Return the seconds that a number means, with a unit like 500ms or without. Raises ValueError."""
    number = number_in(text, "s")
    return float(text) if number is None else number


def calibrate_cluster(config: RunConfig, out: Path, steps: int, link_s: float) -> int:
    """Measure with all workers, and write the file in rank 0. Returns the exit status."""
    import tempfile

    import torch
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    from dsgd.engines.dist.calibration.cluster_calibration import WORKER_WAIT_S
    from dsgd.engines.dist.launch.parent import Parent
    from dsgd.engines.dist.launch.rendezvous import NoMeeting, listen, master_of, open_store, serve_store
    from dsgd.host.signals import signal_pipe
    from dsgd.problem.problem import build_problem

    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    experiment = config.experiment
    where = launch(os.environ)
    devices_by_rank = worker_devices(config.engine, experiment.nodes, os.environ)
    if where.kind != "local":
        if where.nodes != experiment.nodes:
            raise ConfigError(f"nodes must be {where.nodes}, the processes started, got {experiment.nodes}")
        devices = [torch.device(name) for name in devices_by_rank[where.rank]]
        try:
            store = open_store(where, time.monotonic() + WORKER_WAIT_S)
            host = master_of(where)
        except NoMeeting as error:
            raise ConfigError(str(error)) from error
        return _take_part(config, devices, where.rank, store, host, out, steps, link_s)
    build_problem(experiment)  # data files that cannot be read are found here, once
    listener = listen("127.0.0.1")
    port: int = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as logs, signal_pipe() as signals:
        parent = Parent(Path(logs), signals)
        children = []
        for rank in reversed(range(experiment.nodes)):  # rank 0, which ends the run, is last
            devices = [torch.device(name) for name in devices_by_rank[rank]]

            def main(rank: int = rank, devices: Sequence[torch.device] = devices) -> int:
                if rank == 0:
                    store = serve_store(listener)
                else:
                    listener.close()
                    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
                return _take_part(config, devices, rank, store, "127.0.0.1", out, steps, link_s)

            children.append(parent.start(f"worker {rank}", main, quiet=rank > 0))
        listener.close()
        status = parent.supervise(children[-1], lambda: os.kill(children[-1].pid, signal.SIGKILL))
    return EXIT_FAILED if status is None else abs(status)


def _take_part(
    config: RunConfig, devices: Sequence[Any], rank: int, store: Any, host: str, out: Path, steps: int, link_s: float
) -> int:
    """Run one worker of the calibration. host: host of the store, the address of rank 0's machine."""
    import torch

    from dsgd.engines.dist.calibration.cluster_calibration import CalibrationFailed, calibrate
    from dsgd.engines.dist.calibration.cluster_file import as_cluster_yaml, disagreement, noise
    from dsgd.engines.dist.launch.rendezvous import NoMeeting, address_of
    from dsgd.host.resources import keep_freed_memory
    from dsgd.problem.problem import build_problem
    from dsgd.record.safe_files import write_atomically

    keep_freed_memory()  # as workers do
    torch.set_num_threads(config.engine.threads or 1)
    experiment = config.experiment
    problem = build_problem(experiment)

    def say(line: str) -> None:
        if rank == 0:
            print(line, file=sys.stderr, flush=True)

    try:
        address = _local_address(address_of(host), store.port)
        calibration = calibrate(experiment, problem, devices, store, rank, address, steps, link_s, say)
    except (CalibrationFailed, NoMeeting) as error:
        print(f"calibration: {error}", file=sys.stderr)
        return EXIT_FAILED
    if calibration is not None:
        model, data = (config.values[group]["name"] for group in ("model", "data"))
        title = f"{experiment.nodes} worker{'s'[: experiment.nodes > 1]}, model {model} on {data}, "
        title += f"batches of {experiment.batch_size}, {config.engine.threads or 1} threads"
        gradient, links = gradient_name(config.values), calibration.links
        text = as_cluster_yaml(
            title, gradient, calibration.jitters, calibration.receive_overhead_s, links, experiment.cluster
        )
        if not links:
            assumed = config.values["cluster"]["name"]
            say(f"one worker has no network: bandwidth and latency are taken from cluster={assumed}")
        if warning := noise(calibration.jitters):
            say(f"warning: {warning}")
        print(text, end="", flush=True)
        before = out.read_text(encoding="utf-8", errors="replace") if out.is_file() else ""
        if differing := disagreement(before, text, MEASURED if links else MEASURED[:1]):
            say(f"warning: {out} disagrees with the previous calibration: {differing}")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, text.encode())
        except OSError as error:  # the disk is full, the folder has gone
            print(f"calibration: {out} cannot be written: {error.strerror}; its text is above", file=sys.stderr)
            return EXIT_FAILED
        use = shlex.join(["dsgd-run", "--config-dir", str(out.parent.parent), f"cluster={out.stem}", "engine=sim"])
        print(f"use it: {use}", file=sys.stderr)
    return 0


def _local_address(host: str, port: int) -> str:
    """Return the address of the interface that reaches rank 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return probe.getsockname()[0]


if __name__ == "__main__":
    sys.exit(main())
