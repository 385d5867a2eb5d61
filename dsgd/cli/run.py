"""dsgd-run: check the configuration, run the experiment, keep its record."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser  # the parser of hydra.main itself: what it takes, we must take
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from dsgd.cli.build import ConfigError, build_experiment
from dsgd.cli.compose import CONFIG_MODULE, check_writable, composed, plain, points
from dsgd.record.checkpoint import CheckpointError, find_checkpoint, read_header

EXIT_CONFIG, EXIT_INTERRUPTED = 2, 130
# What may differ between a run and its resumption, because it does not touch the result.
FREE_TO_CHANGE = ("resume", "wandb")


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0 (also for a diverged run, which is a result), 2 for a bad configuration, 130 on Ctrl-C."""
    sys.argv = [sys.argv[0], *(sys.argv[1:] if argv is None else argv)]
    arguments = get_args_parser().parse_args(sys.argv[1:])
    shows_only = arguments.help or arguments.hydra_help or arguments.cfg or arguments.info or arguments.shell_completion
    outcome: list[str] = []

    def task(config: DictConfig) -> None:
        outcome.append(execute(config))

    run = hydra.main(config_path=f"pkg://{CONFIG_MODULE}", config_name="config", version_base="1.3")(task)
    try:
        if not shows_only:
            sys.argv += check_all(arguments.overrides, arguments.multirun, arguments.config_dir)
        run()
    except (ConfigError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_INTERRUPTED if "interrupted" in outcome else 0


def check_all(overrides: Sequence[str], multirun: bool, config_dir: str | None) -> list[str]:
    """Check every job before the first one starts, and leave nothing behind. Returns overrides to add. Raises
    ConfigError."""
    added: list[str] = []
    for point in points(overrides, multirun):
        values, hydra_config = composed(point, config_dir)
        folder = Path(str(hydra_config.sweep.dir if multirun else hydra_config.run.dir))
        if values["resume"] is not None:
            path = find_checkpoint(str(values["resume"]))
            if multirun:
                raise ConfigError(f"resume must be used without -m (multirun), got {values['resume']}")
            values = resumed(values, point, path)
            if not any(text.startswith("hydra.run.dir=") for text in point):
                folder = path.parent.resolve()
                added = [f"hydra.run.dir={quoted(folder)}"]
        elif not multirun and (folder / "metrics.jsonl").exists():
            raise ConfigError(
                f"hydra.run.dir must not hold another run's record, got {folder}; resume={folder} goes on with that run"
            )
        choose_engine(values["engine"])
        build_experiment(values)
        check_wandb(values["wandb"])
        check_writable(folder)
    return added


def quoted(path: Path) -> str:
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"


def choose_engine(engine: Mapping[str, Any]) -> str:
    """One line on which engine runs and why. Raises ConfigError inside a launcher that started several processes."""
    for variable in ("WORLD_SIZE", "SLURM_NTASKS"):
        if engine["name"] == "auto" and int(os.environ.get(variable, "1") or 1) > 1:
            raise ConfigError(
                f"engine must be sim with {variable}={os.environ[variable]}: this version has no engine of real "
                "processes, and would run the same simulation that many times, got auto"
            )
    reason = "as configured" if engine["name"] == "sim" else "this version has no other engine"
    gradients = "left out" if engine["gradients"] == "none" else "real"
    return f"engine: sim, {reason}; time is virtual, gradients are {gradients}"


def check_wandb(wandb: Mapping[str, Any]) -> None:
    if wandb["mode"] not in ("disabled", "offline", "online"):
        raise ConfigError(f"wandb.mode must be disabled, offline or online, got {wandb['mode']!r}")


def resumed(values: dict[str, Any], overrides: Sequence[str], path: Path) -> dict[str, Any]:
    """The configuration to go on with: the checkpoint's own. Whoever gives more than resume=PATH must give the same
    one."""
    stored: dict[str, Any] = read_header(path)["config"]
    own = [text for text in overrides if not text.lstrip("+").startswith(("resume=", "hydra.", "wandb."))]
    if own:
        for key in [*stored, *values]:
            if key not in FREE_TO_CHANGE:
                compare(stored.get(key), values.get(key), key)
    return {**stored, **{key: values[key] for key in FREE_TO_CHANGE}}


def compare(stored: Any, given: Any, key: str) -> None:
    """Raise ConfigError at the first difference."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for inner in dict.fromkeys([*stored, *given]):
            compare(
                stored.get(str(inner), stored.get(inner)), given.get(inner, given.get(str(inner))), f"{key}.{inner}"
            )
    elif stored != given:
        raise ConfigError(f"{key} must be {stored!r}, as in the checkpoint to resume from, got {given!r}")


def execute(config: DictConfig) -> str:
    """One job of Hydra's: returns the status of its run."""
    from dsgd.cli.session import run_and_record  # imports torch

    hydra_config = HydraConfig.get()
    values = plain(DictConfig({**config, "hydra": {"runtime": {"choices": hydra_config.runtime.choices}}}))
    folder = Path(hydra_config.runtime.output_dir)
    checkpoint = None
    if values["resume"] is not None:
        checkpoint = find_checkpoint(str(values["resume"]))
        values = resumed(values, hydra_config.overrides.task, checkpoint)
    print(choose_engine(values["engine"]), file=sys.stderr)
    status = run_and_record(values, folder, checkpoint)
    if status == "interrupted" and hydra_config.mode.name == "MULTIRUN":
        raise KeyboardInterrupt  # ends the sweep as well
    return status


if __name__ == "__main__":
    sys.exit(main())
