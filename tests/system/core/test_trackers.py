"""Copies of a record in trackers: complete where the library works, and a run ends well whatever the library does."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import pytest

from dsgd.record.mirror import PACKAGES, Mirror
from tests.support.command import PATIENCE_S, call, lines, shell, signalled, summary

RUN = [
    *("algo=gossip", "experiment=quadratic", "nodes=2", "budget.steps=6", "eval.every_steps=2"),
    *(f"{name}.timeout_s={PATIENCE_S}" for name in ("wandb", "tensorboard", "mlflow")),
    "hydra.run.dir=run",
]
WITHOUT_IT = "the run continues without it"
LIBRARIES = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow"}  # tracker, name of its import


def needs(name: str) -> None:
    pytest.importorskip(LIBRARIES[name], reason=f"needs {name}: pip install {PACKAGES[name]}")


def numbers_of(folder: Path) -> list[dict[str, float]]:
    """The numbers of every line of a record."""
    marks = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in mark.items() if isinstance(value, int | float)} for mark in marks]


# TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """The points that TensorBoard shows of a run, by tag: step, time, value."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    found = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    return {tag: [(point.step, point.wall_time, point.value) for point in points] for tag, points in found.items()}


def test_tensorboard_shows_every_line(tmp_path: Path) -> None:
    needs("tensorboard")
    result = shell(f"dsgd-run {shlex.join([*RUN, 'track=[tensorboard]'])}", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "tensorboard" not in result.stderr
    shown, marks = scalars(tmp_path / "run"), numbers_of(tmp_path / "run")
    for key in marks[0]:  # every number of every line, once; at its samples, and at its time on the run's clock
        wanted = [(int(mark["samples"]), mark["time_s"], pytest.approx(mark[key])) for mark in marks if key in mark]
        assert shown[key] == wanted, key
    ((_, _, loss),) = shown["summary/test_loss"]
    assert loss == pytest.approx(summary(tmp_path / "run")["test_loss"])


def test_a_resumed_run_is_one_run_in_the_tracker(tmp_path: Path) -> None:
    """Interrupted and resumed: each line of the record is there once."""
    needs("mlflow")
    variables = store(tmp_path)
    options = ["track=[mlflow]", "budget.steps=3000", "eval.every_steps=100"]
    line, record = f"dsgd-run {shlex.join([*RUN, *options])}", tmp_path / "run"
    ended = signalled(line, tmp_path, record, lambda: lines(record) >= 3, signal.SIGINT, **variables)
    assert ended.returncode == 130, ended.stderr
    resumed = shell(f"dsgd-run resume=run track=[mlflow] mlflow.timeout_s={PATIENCE_S}", tmp_path, **variables)
    assert resumed.returncode == 0, resumed.stderr
    assert_in_mlflow(record, variables)


# MLflow


def store(folder: Path) -> dict[str, str]:
    """Variables by which MLflow keeps its runs in files, as its small package can do without a server."""
    return {"MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}


def assert_in_mlflow(folder: Path, variables: dict[str, str]) -> None:
    """The experiment `dsgd` has one run, ended well, with the configuration, every number of every line, the files."""
    tracking = pytest.importorskip("mlflow.tracking")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        client = tracking.MlflowClient(variables["MLFLOW_TRACKING_URI"])
        (run,) = client.search_runs([client.get_experiment_by_name("dsgd").experiment_id])
        assert run.info.status == "FINISHED"
        assert run.info.run_name == "gossip-2-lr0.1-seed0"
        assert (run.data.params["algo.name"], run.data.params["nodes"]) == ("gossip", "2")
        marks = numbers_of(folder)
        for key in marks[0]:
            history = client.get_metric_history(run.info.run_id, key)
            points = sorted((point.step, point.timestamp, point.value) for point in history)
            assert points == sorted(
                (int(mark["samples"]), int(1000 * mark["time_s"]), pytest.approx(mark[key]))
                for mark in marks
                if key in mark
            )
        assert run.data.metrics["summary/test_loss"] == pytest.approx(summary(folder)["test_loss"])
        files = {file.path for file in client.list_artifacts(run.info.run_id)}
        assert files == {"config.yaml", "metrics.jsonl", "summary.json"}


# Nothing that a library does stops a run


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_broken_library_does_not_stop_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It prints, and fails with a text of two lines; the user sees one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    text = f"print('noise', flush=True)\nraise ImportError('no {name} here\\nat all')"
    (tmp_path / "broken" / f"{LIBRARIES[name]}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    assert call(*RUN, f"track=[{name}]").status == 0
    assert capfd.readouterr().err == f"{name}: ImportError: no {name} here at all; {WITHOUT_IT}\n"
    assert summary(tmp_path / "run")["status"] == "completed"


def test_a_missing_library_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fake(tmp_path, monkeypatch, "raise ModuleNotFoundError('No module named tensorboard', name='tensorboard')")
    assert call(*RUN, "track=[tensorboard]").status == 0
    assert capfd.readouterr().err == f"tensorboard: not installed: pip install tensorboard; {WITHOUT_IT}\n"
    assert summary(tmp_path / "run")["status"] == "completed"


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a module in the place of TensorBoard's."""
    (folder / "tensorboard.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_library_that_crashes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash in C code leaves no exception."""
    fake(tmp_path, monkeypatch, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    mirror = Mirror({"tensorboard": PATIENCE_S}, tmp_path)
    mirror.finish()
    assert capsys.readouterr().err == f"tensorboard: ended by signal 9; {WITHOUT_IT}\n"


def test_a_stuck_tracker_does_not_hold_up_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlflow.py").write_text("import signal\nsignal.pause()")
    fake(tmp_path, monkeypatch, "raise ImportError('none')")
    mirror = Mirror({"mlflow": 0.2, "tensorboard": PATIENCE_S}, tmp_path)
    for _ in range(100_000):  # more than a pipe holds: a stuck library never reads what it is told
        mirror.wake()
    mirror.finish()
    told = capfd.readouterr().err.splitlines()
    assert sorted(told) == [
        f"mlflow: not done 0.2 s after the run; {WITHOUT_IT}",
        f"tensorboard: ImportError: none; {WITHOUT_IT}",
    ]
