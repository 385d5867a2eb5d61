"""Copy a run to MLflow: to a tracking server, or to a local store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from dsgd.record.reader import read_config
from dsgd.record.trackers import numbers, read_id, run_name, write_id
from dsgd.record.writer import CONFIG, METRICS, SUMMARY

RUN_ID = "mlflow-id"  # file with the run's id in MLflow, which a resumed run continues
PARAMS_AT_ONCE, PARAM_CHARACTERS = 100, 6000  # the limits of MLflow's interface
STATUS = {"failed": "FAILED", "interrupted": "KILLED", "killed": "KILLED"}  # FINISHED otherwise


def begin(folder: Path) -> MlflowTracker:
    """Begin a run in MLflow for the record in a folder, or continue the one that the record began."""
    config = read_config(folder)
    client = MlflowClient(tracking_uri=config["mlflow"]["uri"])
    identity = read_id(folder / RUN_ID)
    if identity:
        try:
            client.update_run(identity, status="RUNNING")
        except MlflowException:  # deleted, or of another store
            identity = ""
    if not identity:
        identity = _create(client, config, folder)
        write_id(folder / RUN_ID, identity)
    return MlflowTracker(folder, client, identity)


class MlflowTracker:
    """A run in MLflow. The step of a metric is the number of samples; its time is the run's clock."""

    def __init__(self, folder: Path, client: MlflowClient, identity: str) -> None:
        self._folder, self._client, self._id = folder, client, identity
        self.copied = len(client.get_metric_history(identity, "time_s"))  # every line has this field
        self._last = 0

    def log(self, number: int, mark: Mapping[str, Any]) -> None:
        """Send the numbers of one line of metrics.jsonl."""
        self._last = int(mark["samples"])
        self._send(mark)

    def end(self, summary: Mapping[str, Any]) -> str:
        """Send the summary, end the run, and then send the record's files, which not every server takes."""
        self._send(summary, "summary/")
        self._client.set_tag(self._id, "status", str(summary["status"]))
        self._client.set_terminated(self._id, STATUS.get(str(summary["status"]), "FINISHED"))
        for file in (CONFIG, METRICS, SUMMARY):
            if (self._folder / file).exists():
                self._client.log_artifact(self._id, str(self._folder / file))
        return ""

    def _send(self, fields: Mapping[str, Any], prefix: str = "") -> None:
        milliseconds = int(1000 * float(fields.get("time_s", 0.0)))
        values = numbers(fields).items()
        metrics = [Metric(prefix + key, value, milliseconds, self._last) for key, value in values]
        self._client.log_batch(self._id, metrics=metrics)


def _create(client: MlflowClient, config: Mapping[str, Any], folder: Path) -> str:
    """Create a run, and the experiment if it is the first; return the run's id."""
    name = config["mlflow"]["experiment"]
    experiment = client.get_experiment_by_name(name)
    number = client.create_experiment(name) if experiment is None else experiment.experiment_id
    tags = {"folder": str(folder)}
    identity = str(client.create_run(number, run_name=run_name(config), tags=tags).info.run_id)
    params = [Param(key, value) for key, value in _flat(config)]
    for start in range(0, len(params), PARAMS_AT_ONCE):
        client.log_batch(identity, params=params[start : start + PARAMS_AT_ONCE])
    return identity


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each dotted key of a configuration, in the letters that MLflow allows, with its value as text."""
    for key, value in values.items():
        name = re.sub(r"[^\w. /-]", "_", f"{prefix}{key}")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, str(value)[:PARAM_CHARACTERS]
