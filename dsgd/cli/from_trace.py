"""Describe a cluster by the profiler traces of a job: `dsgd-calibrate --from-trace`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from dsgd.cli.folders import check_file
from dsgd.cli.traced_cluster import JobCheck, check_job, cluster_entries, doubts, times_text, timing_words
from dsgd.host.terminal import bar_console, table_console
from dsgd.record.safe_files import write_atomically
from dsgd.record.safe_text import counted
from dsgd.report.table_layout import Cell, ReportTable
from dsgd.report.units import in_units
from dsgd.runner.values import ConfigError
from dsgd.traces.cluster_fit import fit_cluster
from dsgd.traces.flight_recorder import RecordedKind, is_dump, read_dump
from dsgd.traces.traced_job import JointCollective, TracedJob, read_job, trace_files

MOST_RANKS = 16  # of a printed table: the slowest ones


def describe_trace(path: str, out: Path) -> int:
    """Read the traces of a job, describe its cluster, check the description against the traces, and write it.

    path: trace, or folder with a trace of each rank. Returns 0. Raises ValueError, with nothing written, for traces
    that do not carry a description."""
    from dsgd.engines.dist.calibration.cluster_file import cluster_text

    times = out.with_suffix(".csv")
    check_file(times, "--out")
    console = table_console()
    if is_dump(path):
        dump_table(read_dump(path)).print(console)  # then it is refused as a trace
    job = read_traces(path, "--from-trace")
    for table in (ranks_table(job), collectives_table(job)):
        table.print(console)
        console.print()
    try:
        fit = fit_cluster(job)
    except ValueError as error:
        raise ConfigError(f"{error}; {out} is not written") from error
    check = check_job(job, fit)
    checks_table(job, check).print(console)
    console.print()
    title = (
        f"Traced: {job.world_size} ranks, {counted(len(job.steps), 'step')}, {len(job.traces)} of the ranks; a step of "
        f"sync is predicted {check.error:+.1%} from the traced one"
    )
    text = cluster_text(title, cluster_entries(job, fit, times.absolute()))
    print(text, end="", flush=True)
    for line in fit.notes:
        print(f"not in the trace: {line}", file=sys.stderr)
    for line in doubts(job, fit, check):
        print(f"warning: {line}", file=sys.stderr)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if len(job.traces) > 1:
            write_atomically(times, times_text(job, fit).encode())
        write_atomically(out, text.encode())
    except OSError as error:  # the disk is full
        raise ConfigError(f"{out} cannot be written: {error.strerror}; its text is above") from error
    folder = str(out.parent.parent) if out.parent.name == "cluster" else "FOLDER"
    use = shlex.join(["dsgd-run", "--config-dir", folder, f"cluster={out.stem}", *timing_words(job)])
    print(f"use it: {use}", file=sys.stderr)
    if folder == "FOLDER":
        print(f"with FOLDER/cluster/{out.name}, where --config-dir finds it", file=sys.stderr)
    return 0


def read_traces(path: str, argument: str) -> TracedJob:
    """Read a job with a bar on the terminal. argument: name of the path on the command line. Raises ConfigError."""
    from rich.progress import Progress

    files = trace_files(path)
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise ConfigError(f"{argument} must be a trace of the profiler, or a folder of traces, got {missing[0]}")
    console, on_terminal = bar_console()
    with Progress(console=console, transient=True, disable=not on_terminal) as progress:
        task = progress.add_task("reading", total=sum(file.stat().st_size for file in files))
        return read_job(path, lambda count: progress.update(task, completed=count))


def ranks_table(job: TracedJob) -> ReportTable:
    """Return the mean step of each rank: of the slowest ones, if there are many."""
    heads = ["rank", "step (ms)", "computing (ms)", "exposed (ms)", "hidden (ms)", "host (ms)"]
    names = ("seconds", "computing_s", "exposed_s", "hidden_s", "host_s")
    least = sorted(job.traces, key=lambda trace: job.mean_s(trace, lambda step: step.exposed_s))[:MOST_RANKS]
    rows: list[list[Cell]] = [
        [trace.rank, *(1e3 * job.mean_s(trace, lambda step, name=name: getattr(step, name)) for name in names)]
        for trace in sorted(least, key=lambda trace: trace.rank)
    ]
    device = "kernels" if job.on_gpu else "operators"
    caption = (
        f"means of {counted(len(job.steps), 'step')} of {job.world_size} ranks; computing: {device} outside of "
        f"communication; exposed: communication that a rank waits for; host: neither {device} nor communication"
    )
    if len(rows) < len(job.traces):
        caption += f"; of {len(job.traces)} ranks those that wait least"
    return ReportTable(heads, frozenset(), rows, [heads, *rows], caption)


def collectives_table(job: TracedJob) -> ReportTable:
    """Return the collectives of a step by kind, group and size."""
    heads = ["collective", "ranks", "size", "in a step", "transfer (ms)", "waiting (ms)"]
    groups: dict[tuple[str, int | None, float | None], list[JointCollective]] = {}
    for joint in job.collectives:
        members = None if joint.ranks is None else len(joint.ranks)
        groups.setdefault((joint.kind, members, joint.n_bytes), []).append(joint)
    rows: list[list[Cell]] = []
    for (kind, members, n_bytes), joints in groups.items():
        size = "?" if n_bytes is None else in_units(n_bytes, "bytes")
        transfer_s = fmean(joint.transfer_s for joint in joints)
        waiting_s = fmean(fmean(map(joint.waiting_s, joint.parts)) for joint in joints)
        count = round(len(joints) / len(job.steps), 2)
        rows.append([kind, "?" if members is None else str(members), size, count, 1e3 * transfer_s, 1e3 * waiting_s])
    total = sum(joint.n_bytes or 0.0 for joint in job.collectives if joint.kind == "all_reduce") / len(job.steps)
    caption = f"transfer: the shortest over ranks; waiting: the rest; all-reduces of a step: {total / 1e6:.2f} MB"
    return ReportTable(heads, frozenset(heads[:3]), rows, [heads, *rows], caption, 3)


def dump_table(kinds: Sequence[RecordedKind]) -> ReportTable:
    """Return the collectives of a dump of the flight recorder by kind, group and size."""
    heads = ["collective", "ranks", "size", "number", "every (ms)"]
    rows: list[list[Cell]] = []
    for each in kinds:
        size = "?" if each.n_bytes is None else in_units(each.n_bytes, "bytes")
        every = "-" if each.every_s is None else 1e3 * each.every_s
        rows.append([each.kind, "?" if each.ranks is None else str(each.ranks), size, each.count, every])
    caption = "a dump of the flight recorder; every: mean time from one to the next"
    return ReportTable(heads, frozenset(heads[:3]), rows, [heads, *rows], caption, 3)


def checks_table(job: TracedJob, check: JobCheck, changed: Sequence[str] = ()) -> ReportTable:
    """Return the traced job, predicted and traced. changed: keys of the cluster that have other values elsewhere."""
    heads = ["sync with its buckets", "predicted (ms)", "traced (ms)"]
    lines: list[tuple[str, tuple[float, float]]] = [("step", check.step_s), ("exposed communication", check.exposed_s)]
    waiting = [(f"waiting of rank {trace.rank}", pair) for trace, pair in zip(job.traces, check.waiting_s, strict=True)]
    if len(waiting) > 1:
        lines += sorted(waiting, key=lambda line: line[1][1])[:MOST_RANKS] if len(waiting) > MOST_RANKS else waiting
    rows: list[list[Cell]] = [[name, *(1e3 * value for value in pair)] for name, pair in lines]
    caption = (
        f"predicted: by the simulator on the described cluster; the step is {check.error:+.1%} from the traced one"
    )
    caption += f"; of the cluster as described, without {', '.join(changed)}" if changed else ""
    return ReportTable(heads, frozenset(heads[:1]), rows, [heads, *rows], caption)
