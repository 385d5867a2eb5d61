"""Copies of a record in trackers: complete where the library works, and a run ends well whatever the library does."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsgd.cli.compose import composed
from dsgd.record.mirror import PACKAGES, Mirror, new_lines
from dsgd.runner.configuration import configure
from tests.engine.runner.test_full_disk import UNSHARE, can_mount
from tests.support.command import PATIENCE_S, call, environment, lines, shell, signalled, summary, typed

RUN = [
    *("algo=gossip", "experiment=quadratic", "nodes=2", "budget.steps=6", "eval.every_steps=2"),
    *(f"{name}.timeout_s={PATIENCE_S}" for name in ("wandb", "tensorboard", "mlflow")),
    "hydra.run.dir=run",
]
WITHOUT_IT = "the run continues without it"
LIBRARIES = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow"}  # tracker, name of its import
# of a machine without network and account; a proxy that is not there fails whatever should try
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "WANDB_API_KEY": ""}


def needs(name: str) -> None:
    pytest.importorskip(LIBRARIES[name], reason=f"needs {name}: pip install {PACKAGES[name]}")


def numbers_of(folder: Path) -> list[dict[str, float]]:
    """The numbers of every line of a record."""
    marks = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in mark.items() if isinstance(value, int | float)} for mark in marks]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], []),
        (["track=[tensorboard,mlflow]"], ["tensorboard", "mlflow"]),
        (["track=[wandb]"], ["wandb"]),
        (["wandb.mode=offline"], ["wandb"]),
        (["track=[tensorboard]", "wandb.mode=online"], ["wandb", "tensorboard"]),
        (["track=[wandb]", "wandb.mode=disabled"], []),
    ],
)
def test_the_trackers_of_a_run(options: list[str], names: list[str]) -> None:
    """`wandb.mode` alone still turns wandb on, and turns it off."""
    assert list(configure(composed(options)).trackers) == names


# TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """The points that TensorBoard shows of a run, by tag: step, time, value."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    found = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    return {tag: [(point.step, point.wall_time, point.value) for point in points] for tag, points in found.items()}


def assert_in_tensorboard(folder: Path) -> None:
    """Every number of every line is there, once; at its samples, and at its time on the run's clock."""
    shown = scalars(folder)
    marks = numbers_of(folder)
    for key in marks[0]:
        wanted = [(int(mark["samples"]), mark["time_s"], pytest.approx(mark[key])) for mark in marks if key in mark]
        assert shown[key] == wanted, key


def test_tensorboard_shows_every_line(tmp_path: Path) -> None:
    needs("tensorboard")
    result = shell(f"dsgd-run {shlex.join([*RUN, 'track=[tensorboard]'])}", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "tensorboard" not in result.stderr
    assert_in_tensorboard(tmp_path / "run")
    ((_, _, loss),) = scalars(tmp_path / "run")["summary/test_loss"]
    assert loss == pytest.approx(summary(tmp_path / "run")["test_loss"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_resumed_run_is_one_run_in_the_tracker(name: str, tmp_path: Path) -> None:
    """Interrupted and resumed: each line of the record is there once."""
    needs(name)
    variables = store(tmp_path)
    options = [f"track=[{name}]", "budget.steps=3000", "eval.every_steps=100"]
    line, record = f"dsgd-run {shlex.join([*RUN, *options])}", tmp_path / "run"
    ended = signalled(line, tmp_path, record, lambda: lines(record) >= 3, signal.SIGINT, **variables)
    assert ended.returncode == 130, ended.stderr
    assert (
        shell(f"dsgd-run resume=run track=[{name}] {name}.timeout_s={PATIENCE_S}", tmp_path, **variables).returncode
        == 0
    )
    check = {"tensorboard": assert_in_tensorboard, "mlflow": lambda folder: assert_in_mlflow(folder, variables)}
    check[name](record)


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
            points = sorted((point.step, point.value) for point in history)
            assert points == sorted((int(mark["samples"]), pytest.approx(mark[key])) for mark in marks if key in mark)
        assert run.data.metrics["summary/test_loss"] == pytest.approx(summary(folder)["test_loss"])
        files = {file.path for file in client.list_artifacts(run.info.run_id)}
        assert files == {"config.yaml", "metrics.jsonl", "summary.json"}


def test_mlflow_has_every_line(tmp_path: Path) -> None:
    needs("mlflow")
    result = shell(f"dsgd-run {shlex.join([*RUN, 'track=[mlflow]'])}", tmp_path, **store(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "mlflow" not in result.stderr
    assert_in_mlflow(tmp_path / "run", store(tmp_path))


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


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named_with_its_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = f"raise ModuleNotFoundError('No module named {name}', name={LIBRARIES[name]!r})"
    (tmp_path / f"{LIBRARIES[name]}.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert call(*RUN, f"track=[{name}]").status == 0
    assert capfd.readouterr().err == f"{name}: not installed: pip install {PACKAGES[name]}; {WITHOUT_IT}\n"
    assert summary(tmp_path / "run")["status"] == "completed"


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a module in the place of TensorBoard's."""
    (folder / "tensorboard.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_stuck_library_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It never reads what it is told, and never ends."""
    fake(tmp_path, monkeypatch, "import signal\nsignal.pause()")
    mirror = Mirror({"tensorboard": 0.2}, tmp_path)
    for _ in range(100_000):  # more than a pipe holds
        mirror.wake()
    mirror.finish()
    assert capsys.readouterr().err == f"tensorboard: not done 0.2 s after the run; {WITHOUT_IT}\n"


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
    mirror.finish()
    told = capfd.readouterr().err.splitlines()
    assert sorted(told) == [
        f"mlflow: not done 0.2 s after the run; {WITHOUT_IT}",
        f"tensorboard: ImportError: none; {WITHOUT_IT}",
    ]


def test_a_resumed_run_is_mirrored_whole(tmp_path: Path) -> None:
    """Lines from before the interruption are copied as well; a torn last line is not."""
    (tmp_path / "metrics.jsonl").write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read) as ended:
        assert list(new_lines(tmp_path / "metrics.jsonl", ended)) == [b'{"a": 1}', b'{"a": 2}']


@pytest.fixture
def stalling() -> Iterator[str]:
    """The address of a server that takes every connection and answers nothing."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hold() -> None:
            with contextlib.suppress(OSError):  # it is closed in the end
                while True:
                    held.append(server.accept()[0])

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
    for connection in held:
        connection.close()


def with_server(name: str, folder: Path, url: str) -> Any:
    """Run with a tracker whose server has this address."""
    needs(name)
    (folder / "home").mkdir()
    servers = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": url, "MLFLOW_TRACKING_URI": url}
    line = shlex.join([*RUN, f"track=[{name}]", f"{name}.timeout_s=3"])
    return shell(f"dsgd-run {line}", folder, HOME=str(folder / "home"), **servers)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_server_that_stalls_does_not_delay_training(name: str, tmp_path: Path, stalling: str) -> None:
    result = with_server(name, tmp_path, stalling)
    assert result.returncode == 0
    assert summary(tmp_path / "run")["status"] == "completed"
    assert lines(tmp_path / "run") == 4
    assert result.stderr.splitlines()[-1] == f"{name}: not done 3 s after the run; {WITHOUT_IT}"


@pytest.mark.long
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_an_absent_server_does_not_delay_training(name: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # nothing listens there once it is closed
    result = with_server(name, tmp_path, f"http://127.0.0.1:{port}")
    assert result.returncode == 0
    assert summary(tmp_path / "run")["status"] == "completed"
    assert lines(tmp_path / "run") == 4
    assert any(line.startswith(f"{name}: ") for line in result.stderr.splitlines())


@pytest.mark.skipif(not can_mount(), reason="needs user and mount namespaces")
def test_a_full_disk_under_the_events_does_not_stop_the_run(tmp_path: Path) -> None:
    """The folder of the events is a file system of 4 kB, which the first events fill; the record has room."""
    import subprocess

    needs("tensorboard")
    (tmp_path / "run" / "tensorboard").mkdir(parents=True)
    line = shlex.join(typed(f"dsgd-run {shlex.join([*RUN, 'track=[tensorboard]'])}"))
    script = f"mount -t tmpfs -o size=4k tmpfs run/tensorboard || exit 77\n{line}"
    command = [*UNSHARE, "sh", "-c", script]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stderr.splitlines() if "tensorboard" in line]
    assert told == [f"tensorboard: OSError: [Errno 28] No space left on device; {WITHOUT_IT}"]
    assert summary(tmp_path / "run")["status"] == "completed"
    assert lines(tmp_path / "run") == 4
