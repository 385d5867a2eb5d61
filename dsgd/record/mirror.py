"""A copy of the record in Weights & Biases. The record on disk is the truth; a mirror that breaks is left behind."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INIT_TIMEOUT_S = 30.0
MODES = ("disabled", "offline", "online")


@dataclass(frozen=True)
class MirrorOptions:
    """`wandb.*`"""

    mode: str = "disabled"  # offline: files in the run folder, for `wandb sync`
    project: str = "dsgd"
    group: str | None = None
    name: str | None = None  # null: made from the configuration

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")


class Mirror:
    """wandb.mode: disabled | offline (files in the run folder, for `wandb sync`) | online."""

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        options = config["wandb"]
        self._run: Any = None
        if options["mode"] == "disabled":
            return

        def begin() -> None:
            import wandb

            self._run = wandb.init(
                mode=options["mode"],
                project=options["project"],
                group=options["group"],
                name=options["name"] or f"{config['algo']['name']}-{config['nodes']}",
                dir=str(folder),
                config=dict(config),
                settings=wandb.Settings(init_timeout=INIT_TIMEOUT_S, silent=True, console="off"),
            )
            self._run.define_metric("*", step_metric="time_s")

        self._attempt(begin)

    def log(self, line: Mapping[str, Any]) -> None:
        """Mirror one line of metrics.jsonl."""
        if self._run is not None:
            self._attempt(lambda: self._run.log({key: value for key, value in line.items() if value is not None}))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mirror the summary and end."""
        if self._run is None:
            return

        def end() -> None:
            self._run.summary.update(dict(summary))
            self._run.finish(exit_code=0 if summary["status"] != "failed" else 1)

        self._attempt(end)

    def _attempt(self, action: Any) -> None:
        try:
            action()
        except Exception as error:  # whatever a mirror may raise, training goes on
            print(f"wandb: {type(error).__name__}: {error}; going on without it", file=sys.stderr)
            self._run = None
