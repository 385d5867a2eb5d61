"""Run the command `dsgd-sweep`: a grid of runs as jobs of SLURM, from one command on a login node to the figures."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from dsgd.cli.arguments import Parser, check_quotes, command_parser, exit_status, key_of
from dsgd.cli.folders import check_writable
from dsgd.host.terminal import table_console
from dsgd.record.reader import read_config
from dsgd.record.safe_files import read_end
from dsgd.record.safe_text import counted, for_terminal
from dsgd.sweep import slurm_jobs
from dsgd.sweep.manifest import MANIFEST, Point, Sweep, engine_of, identity, locked_sweep, point_of, read_sweep
from dsgd.sweep.site import JobSize, Site, batch_script
from dsgd.sweep.slurm_jobs import FINISHED, STATES, WAITING, PointState, finished, states

# Keys of `slurm` that run no code.
HARMLESS = ("partition", "account", "qos", "constraint", "time", "mem", "tasks_per_node", "cpus_per_task")
HARMLESS += ("gpus_per_task", "at_once", "requeue", "warning_s")
LOG_BYTES = 2**22  # of a job's output, from its end
SHOWN = 10  # points that `status` lists without --points

EXAMPLES = """\
    dsgd-sweep submit algo=sync,gossip nodes=8,16 seed=1,2,3 engine=dist slurm.partition=gpu
    dsgd-sweep status
    dsgd-sweep collect

submit takes the overrides of dsgd-run -m, and slurm.KEY=VALUE or slurm=FILE for the settings of your site
(conf/slurm/default.yaml has all keys). Repeat the command to submit the missing runs only."""


def code_of_point(point: Point, slurm_overrides: Sequence[str]) -> str | None:
    """Return the code outside of the package that a point of the manifest would run; None without such code.

    slurm_overrides: the `slurm.*` of its submission. Raises ConfigError."""
    from dsgd.cli.compose import ConfigTree, plain
    from dsgd.runner.configuration import code_of

    if point.config_dir is not None:
        return f"--config-dir {point.config_dir}"
    for word in slurm_overrides:
        if key_of(word).removeprefix("slurm.") not in HARMLESS:
            return word
    if flags := [text for text in point.overrides if text.startswith("-")]:
        return flags[0]
    tree = ConfigTree()
    for override in tree.parse(point.overrides):
        if override.key_or_group.partition(".")[0].partition("/")[0] in ("hydra", "resume_trusted"):
            return str(override.input_line)
    code = code_of(plain(tree.load(point.overrides)))
    return next((f"{group}.{key}={value}" for group, values in code.items() for key, value in values.items()), None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status: 0, 2 after one line on stderr, or 130 on Ctrl-C."""

    def work() -> int:
        options = parser().parse_args(argv)
        return options.command(options)

    return exit_status("dsgd-sweep", work)


def parser() -> argparse.ArgumentParser:
    """Return the parser; `command` in its result is the function to call with that result."""
    whole = command_parser("dsgd-sweep", "A grid of runs as jobs of SLURM.", EXAMPLES)
    commands = whole.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str, points: str | None) -> Parser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=run)
        command.add_argument(
            "--folder", default="sweep", metavar="DIR", help="folder of the sweep (default: %(default)s)"
        )
        if points is not None:
            command.add_argument("points", nargs="*", metavar="POINT", help=f"{points}; like gossip_8_1 or 'sync_*'")
        return command

    new = add("submit", _submit, "submit what is not yet there of a grid", None)
    new.add_argument("--config-dir", metavar="DIR", help="your own configuration files, with slurm/NAME.yaml")
    new.add_argument("--dry-run", action="store_true", help="print batch scripts, points and node-hours, do nothing")
    new.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    status = add("status", _status, "show the state of each point of a sweep", None)
    status.add_argument("--points", action="store_true", help="a line for every point")
    logs = add("logs", _logs, "show the output of jobs", "whose output (default: all failed or lost points)")
    logs.add_argument("--lines", type=int, default=20, help="how many lines, from the end (default: %(default)s)")
    add("cancel", _cancel, "remove points from the queue and end running ones", "which points (default: all)")
    again = add("retry", _retry, "submit anew what has ended without a result", "which (default: all such)")
    again.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help="changes slurm.KEY")
    again.add_argument("--trusted", action="store_true", help="run also the code that its manifest names")
    collect = add("collect", _collect, "table and figures of all completed points", None)
    collect.add_argument("--out", metavar="DIR", help="where to write (default: figures in the sweep's folder)")
    return whole


def _submit(options: argparse.Namespace) -> int:
    check_quotes(options.overrides)
    slurm_overrides, overrides = [], []
    for text in options.overrides:
        (slurm_overrides if key_of(text).partition(".")[0] == "slurm" else overrides).append(text)
    if not overrides:
        raise ValueError("submit must be given overrides, like algo=sync,gossip nodes=8,16, got none")
    config_dir = str(Path(options.config_dir).resolve()) if options.config_dir else None
    site = site_of(slurm_overrides, config_dir)
    points = _points(overrides, config_dir)
    folder = Path(options.folder)
    arrays = slurm_jobs.arrays(points.values(), site)
    if options.dry_run:
        for size, members in arrays.items():
            print(batch_script("dsgd-sweep", members, folder.absolute(), size, site))
        _print_demand(arrays, site)
        return 0
    check_writable(folder, "--folder")
    largest = slurm_jobs.largest_array()
    with locked_sweep(folder) as writer:
        sweep = slurm_jobs.recover(writer, folder)
        known = [state for state in states(sweep)[0] if state.point.id in points]
        there = Counter(state.name for state in known if state.name in (*FINISHED, *WAITING))
        settled = {state.point.id for state in known if state.name in there}
        writer.points([point for key, point in points.items() if key not in sweep.points])
        missing = [point for key, point in points.items() if key not in settled]
        if there:
            print(f"{there.total()} of {len(points)} points exist already: {_counted(there)}")
        if not missing:
            print("nothing to submit")
            return 0
        slurm_jobs.submit(writer, folder, missing, site, slurm_overrides, largest, print_job)
    print(f"next: dsgd-sweep status{_option(options.folder)}")
    return 0


def site_of(slurm_overrides: Sequence[str], config_dir: str | None) -> Site:
    """Build the site. slurm_overrides: the slurm.KEY=VALUE and slurm=FILE of a command line."""
    from dsgd.cli.compose import options_of
    from dsgd.runner.values import build

    bare = [text.lstrip("+") for text in slurm_overrides]
    # a file of the user's need not have every key: set or add
    overrides = [text if text.startswith("slurm=") else f"++{text}" for text in bare]
    return build(Site, options_of(Site, "slurm", overrides, config_dir, "sweep"), "slurm")


def _points(overrides: Sequence[str], config_dir: str | None) -> dict[str, Point]:
    """Compose and check the points of a grid; returns them by their id, in the order of the grid."""
    from dsgd.cli.compose import ConfigTree
    from dsgd.runner.configuration import configure
    from dsgd.runner.plan import check_gradients
    from dsgd.runner.values import ConfigError

    tree = ConfigTree(config_dir)
    for override in tree.parse(overrides):
        key = override.key_or_group
        if key == "resume" or key.partition(".")[0].partition("/")[0] in ("hydra", "sweep"):
            raise ConfigError(f"{key} must not be given: dsgd-sweep says where records are and what runs when")
    points: dict[str, Point] = {}
    # the folders are not asked for, and would take half of the time
    for job in tree.grid(overrides, ("hydra.sweep.dir=.", "hydra.sweep.subdir=.")):
        config, engine = configure(job.values), engine_of(job.values)
        if engine != "sim":
            check_gradients(config, engine)
        point = point_of(job.values, job.overrides, config_dir)
        points.setdefault(point.id, point)
    if not points:
        raise ConfigError(f"a sweep must have at least one point, got none from {' '.join(overrides)}")
    return points


def print_job(job: str, size: JobSize, points: int) -> None:
    """Print one submitted job."""
    print(f"job {job}: {counted(points, 'point')}, each {_machines(size)}", flush=True)


def _machines(size: JobSize) -> str:
    gpus = f", {size.gpus_per_node} GPUs a machine" if size.gpus_per_node else ""
    return f"{counted(size.tasks, 'task')} on {counted(size.nodes, 'machine')}{gpus}"


def _print_demand(arrays: Mapping[JobSize, Sequence[Point]], site: Site) -> None:
    """Print every point with its machines, and their total demand. As comments: a shell may read the whole."""
    for size, members in arrays.items():
        for point in members:
            print(f"# {point.name}: {_machines(size)}")
    node_hours = site.hours * sum(size.nodes * len(members) for size, members in arrays.items())
    points = counted(sum(map(len, arrays.values())), "point")
    print(
        f"# {points}, {node_hours:,.4g} node-hours: machines x slurm.time={site.time}, once more for a requeued point"
    )


def _status(options: argparse.Namespace) -> int:
    sweep = read_sweep(Path(options.folder))
    point_states, problem = states(sweep)
    counts = Counter(state.name for state in point_states)
    print(f"{counted(len(point_states), 'point')} in {options.folder}: {_counted(counts)}")
    if not point_states:
        return 0

    console = table_console()
    names = [name for name in STATES if counts[name]]
    table = Table("algo", "nodes", *names)
    for algo, nodes in dict.fromkeys((state.point.algo, state.point.nodes) for state in point_states):
        row = Counter(state.name for state in point_states if (state.point.algo, state.point.nodes) == (algo, nodes))
        table.add_row(Text(for_terminal(algo)), str(nodes), *(str(row[name] or "") for name in names))
    console.print(table)
    shown = (
        point_states
        if options.points
        else [state for state in point_states if state.name not in (*FINISHED, "pending")][:SHOWN]
    )
    if shown:
        console.print(_points_table(shown, sweep))
    if problem and counts["lost"]:
        print(f"SLURM does not say more about lost points: {problem}")
    folder = _option(options.folder)
    if again := sum(counts[name] for name in STATES if name not in (*FINISHED, *WAITING)):
        print(f"{counted(again, 'point')} without a result: dsgd-sweep logs{folder}, then dsgd-sweep retry{folder}")
    return 0


def _points_table(point_states: Sequence[PointState], sweep: Sweep) -> Table:
    """Return a table with a row for each point; `with` holds the overrides that not all points have."""
    in_name = ("algo=", "nodes=", "seed=")  # which the name of the point has
    given = [{text for text in point.overrides if not text.startswith(in_name)} for point in sweep.points.values()]
    common = set.intersection(*given)
    table = Table("point", "with", "state", "job", "epoch", "test accuracy", "reason")
    for state in point_states:
        differing = [text for text in state.point.overrides if not text.startswith(in_name) and text not in common]
        epoch = "" if state.epoch is None else f"{state.epoch:.3g}"
        accuracy = "" if state.accuracy is None else f"{state.accuracy:.4f}"
        texts = (state.point.name, " ".join(differing), state.name, state.task or "", epoch, accuracy, state.reason)
        table.add_row(*(Text(for_terminal(text)) for text in texts))  # not a str, which has markup
    return table


def _logs(options: argparse.Namespace) -> int:
    if options.lines < 1:
        raise ValueError(f"--lines must be >= 1, got {options.lines}")
    sweep = read_sweep(Path(options.folder))
    if options.points:
        points = sweep.select(options.points)
    else:
        points = [state.point for state in states(sweep)[0] if state.name in ("failed", "lost")]
        if not points:
            print("no point has failed or is lost; name the points whose logs you want")
    for point in points:
        task = sweep.tasks.get(point.id)
        path = None if task is None else slurm_jobs.log(sweep.folder, task)
        if path is None or not path.is_file():
            print(f"{for_terminal(point.name)}: nothing printed yet")
            continue
        lines = read_end(path, LOG_BYTES).decode(errors="replace").splitlines()[-options.lines :]
        print(for_terminal(f"{point.name}: {path}"), *(f"    {for_terminal(line)}" for line in lines), sep="\n")
    return 0


def _cancel(options: argparse.Namespace) -> int:
    folder = Path(options.folder)
    read_sweep(folder)  # fails without a sweep, before a folder and a lock are made
    with locked_sweep(folder) as writer:
        sweep = slurm_jobs.recover(writer, folder)
        wanted = {point.id for point in sweep.select(options.points)}
        waiting = [state for state in states(sweep)[0] if state.name in WAITING and state.point.id in wanted]
        if not waiting:
            print("nothing to cancel: no such point is in the queue")
            return 0
        writer.cancelled([state.point for state in waiting])
        slurm_jobs.cancel([state.task for state in waiting if state.task is not None])
    print(f"cancelled: {counted(len(waiting), 'point')}; dsgd-sweep retry{_option(options.folder)} resumes them")
    return 0


def _retry(options: argparse.Namespace) -> int:
    folder = Path(options.folder)
    largest = slurm_jobs.largest_array()
    read_sweep(folder)  # fails without a sweep, before a folder and a lock are made
    with locked_sweep(folder) as writer:
        sweep = slurm_jobs.recover(writer, folder)
        wanted = {point.id for point in sweep.select(options.points)}
        batches: dict[tuple[tuple[str, ...], str | None], list[Point]] = {}
        for state in states(sweep)[0]:
            if state.point.id not in wanted:
                continue
            if state.name in (*FINISHED, *WAITING):
                if options.points:
                    raise ValueError(f"POINT must have ended without a result, got {state.point.name}: {state.name}")
                continue
            stored = sweep.slurm.get(state.point.id, ())
            if not options.trusted and (code := code_of_point(state.point, stored)):
                raise ValueError(f"--trusted must be given, as {folder / MANIFEST} runs code of its own, got {code}")
            slurm_overrides = (*stored, *(f"slurm.{text}" for text in options.slurm))
            batches.setdefault((slurm_overrides, state.point.config_dir), []).append(state.point)
        if not batches:
            print("nothing to retry: every point is completed or in the queue")
            return 0
        sites = {key: site_of(*key) for key in batches}  # every one is checked before anything is submitted
        for key, points in batches.items():
            slurm_jobs.submit(writer, folder, points, sites[key], key[0], largest, print_job)
    return 0


def _collect(options: argparse.Namespace) -> int:
    from dsgd.cli import plot

    sweep = read_sweep(Path(options.folder))
    points = finished(sweep)
    if not points:
        raise ValueError(f"collect needs a completed point, got none of {len(sweep.points)} in {options.folder}")
    folders = {point.id: sweep.folder / point.folder for point in points}
    for key, folder in folders.items():
        if identity(read_config(folder)) != key:
            line = f"warning: {folder} is not of the configuration that was submitted; have defaults changed?"
            print(for_terminal(line))
    status = plot.main([*map(str, folders.values()), "--out", options.out or str(sweep.folder / "figures")])
    if unfinished := len(sweep.points) - len(points):
        print(
            f"left out: {counted(unfinished, 'point')} without a result, see dsgd-sweep status{_option(options.folder)}"
        )
    return status


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in STATES if counts[name])


def _option(folder: str) -> str:
    return "" if folder == "sweep" else f" --folder {shlex.quote(folder)}"


if __name__ == "__main__":
    sys.exit(main())
