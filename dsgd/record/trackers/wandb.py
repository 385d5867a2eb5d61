"""Copy a run to Weights & Biases."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb
from wandb.errors import CommError, UsageError

from dsgd.record.reader import name_of, read_config
from dsgd.record.safe_files import check_inside
from dsgd.record.trackers import new_id, read_id, run_name, write_id
from dsgd.record.writer import CONFIG, METRICS, SUMMARY

INIT_TIMEOUT_S = 30.0
RUN_ID = "wandb-id"  # file with the run's id in wandb, which a resumed run continues


def begin(folder: Path) -> WandbTracker:
    """Begin a run in wandb for the record in a folder, or continue the one that the record began."""
    return WandbTracker(folder, *init(folder))


class WandbTracker:
    """A run in wandb. Its charts have the run's clock as their axis."""

    def __init__(self, folder: Path, run: wandb.Run, why_offline: str) -> None:
        self._folder, self._run, self._why_offline = folder, run, why_offline
        self.copied = run.step
        run.define_metric("time_s")
        run.define_metric("*", step_metric="time_s")

    def log(self, number: int, mark: Mapping[str, Any]) -> None:
        """Send one line of metrics.jsonl."""
        self._run.log(dict(mark), step=number)

    def end(self, summary: Mapping[str, Any]) -> str:
        """Send the summary and the record's files. Returns the command to upload an offline run."""
        self._run.summary.update(dict(summary))
        record = wandb.Artifact(f"record-{self._run.id}", type="record")
        for file in (CONFIG, METRICS, SUMMARY):
            if (self._folder / file).exists():
                record.add_file(str(self._folder / file))
        self._run.log_artifact(record)
        run_folder, offline = Path(self._run.dir).parent, self._run.offline
        self._run.finish(exit_code=1 if summary["status"] in ("failed", "killed") else 0)
        sync = shlex.join(["wandb", "sync", str(run_folder)])
        return f"{self._why_offline}kept offline; to copy it: {sync}" if offline else ""


def init(folder: Path) -> tuple[wandb.Run, str]:
    """Call `wandb.init` for the record in a folder. Without a server, wandb writes files into it.

    Returns the run, and the reason why it is offline although `wandb.mode` is not, with a semicolon."""
    config = read_config(folder)
    options = config["wandb"]
    identity = read_id(folder / RUN_ID) or new_id()
    write_id(folder / RUN_ID, identity)
    check_inside(folder, "wandb")
    arguments: dict[str, Any] = {
        "id": identity,
        "entity": options["entity"],
        "project": options["project"],
        "group": options["group"] or f"{name_of(config['model'])}-{name_of(config['data'])}",
        "name": options["name"] or run_name(config),
        "tags": options["tags"],
        "dir": str(folder),
        "config": config,
        "settings": wandb.Settings(init_timeout=INIT_TIMEOUT_S, silent=True, console="off"),
    }
    why = ""
    if options["mode"] != "offline":
        try:
            return wandb.init(mode="online", resume="allow", **arguments), ""
        except (CommError, UsageError) as error:  # no network, or no account
            why = f"{' '.join(str(error).split())}; "
    return wandb.init(mode="offline", **arguments), why
