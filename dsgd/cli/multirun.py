"""Runs and sweeps on this machine that are begun without Hydra, as Hydra does it.

Hydra itself would compose every run twice more before it starts, though all were composed when they were checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from dsgd.cli.checked import NO_LOGS, Multirun

SILENT = "disabled"  # Hydra's choice of logging that writes nothing


def needs_hydra(config: DictConfig) -> bool:
    """Return whether Hydra does more for a run, or the jobs of a sweep, than to start them: callbacks, logs, files, an
    environment or a folder to work in."""
    hydra: Any = OmegaConf.to_container(config.hydra, resolve=False)
    job, choices = hydra["job"], hydra["runtime"]["choices"]
    asked = hydra["callbacks"], hydra["output_subdir"], hydra["verbose"], job["chdir"], job["env_set"], job["env_copy"]
    logs = any(choices.get(f"hydra/{name}") != SILENT for name in ("hydra_logging", "job_logging"))
    logs |= hydra["job_logging"] != NO_LOGS
    batches = hydra["sweeper"].get("max_batch_size") is not None
    return any(asked) or logs or batches or hydra["mode"] == RunMode.RUN  # of the last Hydra warns


def multirun_of(config: DictConfig, folder: Path, added: Sequence[str]) -> Multirun:
    """Return the sweep of this configuration, which is changed as Hydra would change it.

    added: what Hydra would be given besides what was typed: the folder, if that was not."""
    hydra = config.hydra
    if added:
        hydra.overrides.hydra.extend(added)
        hydra.sweep.dir = str(folder)
    if hydra.mode is None:
        hydra.mode = RunMode.MULTIRUN
        hydra.overrides.hydra.append(f"hydra.mode={RunMode.MULTIRUN.name}")
    return Multirun(folder, OmegaConf.to_yaml(config))
