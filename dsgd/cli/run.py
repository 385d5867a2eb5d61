"""dsgd-run: check the configuration, run the experiment, keep its record."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser  # the parser of hydra.main itself: what it takes, we must take
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from dsgd.cli.build import ConfigError, build_experiment
from dsgd.cli.compose import CONFIG_MODULE, CONFIG_NAME, VERSION_BASE, ConfigTree, check_writable, one_line, plain
from dsgd.cli.resume import NothingToDo, checkpoint_of, is_automatic, quoted, resumed, unfinished
from dsgd.host.launcher import STOPS, advice, gpus, launch
from dsgd.models.library import Imported, Torchvision
from dsgd.record.writer import METRICS

if TYPE_CHECKING:
    from dsgd.cli.joined import Joined
    from dsgd.experiment import Experiment

EXIT_FAILED, EXIT_CONFIG, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0 (also for a diverged run, which is a result), 1 for a run of real processes that could not
    go on, 2 for a bad configuration, 130 where one of STOPS has ended it early.

    Raises SystemExit where Hydra ends the process itself: with 0 after --help, with 1 after a run that failed."""
    as_called = sys.argv
    sys.argv = [as_called[0], *(as_called[1:] if argv is None else argv)]  # Hydra reads it
    handlers = {number: signal.signal(number, _interrupt) for number in STOPS}
    try:
        return _main()
    except NothingToDo as line:
        if launch(os.environ).rank == 0:
            print(line, file=sys.stderr)
        return 0
    except ValueError as error:
        print(one_line(error), file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        sys.argv = as_called
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _main() -> int:
    parser = get_args_parser()
    parser.error = _refuse  # in one line, like every other error, without the usage
    arguments = parser.parse_args(sys.argv[1:])
    outcome: dict[Path, str] = {}  # the status of each run by its folder

    def task(config: DictConfig) -> None:
        try:
            execute(config, outcome, joined)
        except ConfigError as error:  # Hydra would print where it was raised
            folder = Path(HydraConfig.get().runtime.output_dir)  # which it has made
            remove_empty(folder, before.get(folder, folder))
            print(one_line(error), file=sys.stderr)
            sys.exit(EXIT_CONFIG)

    before: dict[Path, Path] = {}
    joined = check(arguments, before)
    try:
        hydra.main(config_path=f"pkg://{CONFIG_MODULE}", config_name=CONFIG_NAME, version_base=VERSION_BASE)(task)()
    finally:
        if outcome and (joined is None or joined.rank == 0):
            from dsgd.cli.session import show

            show(outcome)
    if "failed" in outcome.values():
        return EXIT_FAILED
    return EXIT_INTERRUPTED if "interrupted" in outcome.values() else 0


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def check(arguments: argparse.Namespace, before: dict[Path, Path]) -> Joined | None:
    """Check what Hydra is about to do, before it does anything. Raises ConfigError.

    before: gets, for the folder of each run, the one above it that is there already."""
    if arguments.hydra_help or arguments.shell_completion or arguments.experimental_rerun:
        return None
    if arguments.config_path is not None:
        raise ConfigError(f"--config-path must not be given (--config-dir adds a folder), got {arguments.config_path}")
    tree = ConfigTree(arguments.config_dir, arguments.config_name or CONFIG_NAME)
    if arguments.help or arguments.cfg or arguments.info:
        tree.load(arguments.overrides)
        return None
    added, joined = check_jobs(tree, arguments.overrides, arguments.multirun, before)
    sys.argv += added
    return joined


def check_jobs(
    tree: ConfigTree, overrides: Sequence[str], multirun: bool, standing: dict[Path, Path]
) -> tuple[list[str], Joined | None]:
    """Check every job before the first one starts, leave nothing behind. Returns overrides to add, and the other
    processes that a launcher has started, if it has. standing: as `before` of `check`."""
    added = [] if multirun or any(text.startswith("hydra.run.dir=") for text in overrides) else step_folder()
    jobs = tree.jobs([*overrides, *added], multirun)
    folders: dict[Path, str] = {}
    joined: Joined | None = None
    here = not any(text.startswith("hydra/launcher=") for text in overrides)  # not on machines that will be found
    models: list[tuple[object, ...]] = []
    for job in jobs:
        values, folder = job.values, job.folder.absolute()
        before, engine = None, None
        if values["resume"] is not None and len(jobs) > 1:
            raise ConfigError(f"resume must be used without a sweep, got {values['resume']}")
        if not multirun and is_automatic(values["resume"]):
            before = folder.resolve()  # what is there without a checkpoint is begun again
            values["resume"] = unfinished(folder, values)
            added.append("resume=null" if values["resume"] is None else f"resume={quoted(folder)}")
        if values["resume"] is not None:
            checkpoint, header = checkpoint_of(str(values["resume"]))
            values = resumed(values, job.overrides, header)
            engine = header.get("engine", "sim")
            before = checkpoint.parent.resolve()
            if not any(text.startswith(f"{job.folder_key}=") for text in overrides):
                folder = before
                added += [f"{job.folder_key}={quoted(folder)}"]
        engine, _ = choose_engine(values, engine)
        check_feasible(build_experiment(values), engine, values["engine"], here, models)
        if engine == "dist":
            joined = check_launch(values, folder, multirun)
            if joined is not None and joined.rank > 0:
                added += [f"{job.folder_key}={quoted(Path(joined.meeting.folder))}"]
                continue  # rank 0 checks its folder: several at once would take each other's trial away
        if (folder / METRICS).exists() and folder.resolve() != before:
            hint = "" if multirun else f"; resume={job.folder} goes on with that run"
            raise ConfigError(f"{job.folder_key} must not hold another run's record, got {job.folder}{hint}")
        if folder in folders:
            raise ConfigError(f"hydra.sweep.subdir must give every job a folder of its own, got {folder.name} twice")
        folders[folder] = job.folder_key
    for folder, key in folders.items():
        standing[folder] = next((path for path in [folder, *folder.parents] if path.exists()), folder)
        check_writable(folder, key)
    return added, joined


def check_feasible(
    experiment: Experiment, engine: str, options: Mapping[str, Any], here: bool, models: list[tuple[object, ...]]
) -> None:
    """Ask torch, which takes seconds to import, where only torch can tell. Raises ConfigError.

    here: the run will be on this machine. models: those that have been found to fit their data, which are not tried
    again."""
    asked = experiment.precision in ("tf32", "bf16") or experiment.device == "cuda" or options.get("gpus_per_node")
    if asked and here and experiment.gradients != "none":
        from dsgd.cli.feasible import check_devices

        check_devices(experiment, engine, options)
    model = (experiment.model, experiment.data.input_shape, experiment.data.classes)
    if isinstance(experiment.model, (Imported, Torchvision)) and model not in models:
        from dsgd.cli.feasible import check_model

        check_model(experiment)
        models.append(model)


def remove_empty(folder: Path, standing: Path) -> None:
    """Take away a folder without content, and those above it up to one that stays."""
    for path in [folder, *folder.parents]:
        if path == standing:
            return
        try:
            path.rmdir()
        except OSError:  # there is something in it
            return


def step_folder() -> list[str]:
    """The folder of a record in a step of SLURM, which finds it again when the job is started again."""
    step = launch(os.environ).step
    return [] if step is None else [f"hydra.run.dir=outputs/{step}_${{hydra.runtime.choices.algo}}_${{nodes}}"]


def choose_engine(values: Mapping[str, Any], before: str | None = None) -> tuple[str, str]:
    """`sim` or `dist`, and a line that says why. before: the engine of the run to go on with. Raises ConfigError."""
    wanted, nodes = values["engine"]["name"], values["nodes"]
    where = launch(os.environ)  # contradictions in the environment are errors whatever is wanted
    found = gpus(os.environ)
    if before is not None and wanted in ("auto", before):
        name, reason = before, "as the run to go on with"
    elif before is not None:
        raise ConfigError(f"engine must be {before}, as in the checkpoint to resume from, got {wanted}")
    elif wanted != "auto":
        name, reason = wanted, "as configured"
    elif where.kind != "local":
        name, reason = "dist", f"{where.kind} has started {where.nodes} processes"
    elif isinstance(nodes, int) and found >= nodes:
        name, reason = "dist", f"there are {found} GPUs for {nodes} workers"
    else:
        gpu = "1 GPU" if found == 1 else f"{found} GPUs"
        name, reason = "sim", f"no torchrun or srun, and {gpu} for {nodes} workers (engine=dist: real processes here)"
    if name == "dist":
        hint = advice(os.environ)
        return name, f"engine: dist, {reason}; time is the wall's" + (f"\n{hint}" if hint else "")
    if where.nodes > 1:
        raise ConfigError(f"engine must be dist in the {where.nodes} processes of {where.kind}, got sim ({reason})")
    gradients = "left out" if values["engine"].get("gradients") == "none" else "real"
    return name, f"engine: sim, {reason}; time is virtual, gradients are {gradients}"


def check_launch(values: dict[str, Any], folder: Path, multirun: bool) -> Joined | None:
    """Check what the launcher has started, and meet the other processes; None without a launcher. Raises
    ConfigError."""
    if values["engine"].get("gradients") == "none":
        raise ConfigError("engine.gradients must not be none with engine=dist, got none")
    where = launch(os.environ)
    if where.kind == "local":
        return None
    if multirun:
        raise ConfigError(f"a sweep must be started outside of {where.kind}, got --multirun in {where.nodes} processes")
    if where.nodes != values["nodes"]:
        variable = "WORLD_SIZE" if where.kind == "torchrun" else "SLURM_NTASKS"
        raise ConfigError(f"nodes must be {variable}={where.nodes}, the processes started, got {values['nodes']}")
    from dsgd.cli.joined import join  # imports torch

    return join(where, values, folder)


def execute(config: DictConfig, outcome: dict[Path, str], joined: Joined | None) -> None:
    """One job of Hydra's: puts the status of its run into `outcome`. joined: with the processes of a launcher."""
    hydra_config = HydraConfig.get()
    values = plain(DictConfig({**config, "hydra": {"runtime": {"choices": hydra_config.runtime.choices}}}))
    checkpoint = None
    if values["resume"] is not None:
        checkpoint = checkpoint_of(str(values["resume"]))
        values = resumed(values, hydra_config.overrides.task, checkpoint[1])
    engine, why = choose_engine(values, checkpoint[1].get("engine", "sim") if checkpoint else None)
    folder = Path(hydra_config.runtime.output_dir)
    if checkpoint is not None and checkpoint[0].parent.resolve() == folder.resolve():
        values["resume"] = None  # it is one run, however often it was interrupted
    if engine == "dist" and joined is None:  # but a launcher of Hydra's may have started several processes for this job
        joined = check_launch(values, folder, multirun=False)
    if joined is None or joined.rank == 0:
        print(why, file=sys.stderr)
    wandb = values["wandb"]
    if hydra_config.mode is RunMode.MULTIRUN and wandb["mode"] != "disabled" and wandb["group"] is None:
        wandb["group"] = Path(hydra_config.sweep.dir).name
    if engine == "sim":
        from dsgd.cli.session import run_and_record  # imports torch

        outcome[folder] = run_and_record(values, folder, checkpoint)
    else:
        from dsgd.cli.distributed import run_distributed

        outcome[folder] = run_distributed(values, folder, checkpoint, joined)
    if outcome[folder] == "interrupted" and hydra_config.mode is RunMode.MULTIRUN:
        raise KeyboardInterrupt  # ends the sweep as well


if __name__ == "__main__":
    sys.exit(main())
