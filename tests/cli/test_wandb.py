"""The mirror in Weights & Biases: works offline, and whatever becomes of it, the run goes on."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dsgd.cli.compose import composed
from dsgd.record.mirror import Mirror, MirrorOptions, begin, new_lines
from tests.support.command import call, lines, shell, signalled, summary

RUN = [
    *("algo=gossip", "experiment=quadratic", "nodes=2", "budget.steps=6", "eval.every_steps=2"),
    *("wandb.tags=['the first tag',b]", "hydra.run.dir=run", "wandb.mode=offline"),
]
# of a machine without network and account; a proxy that is not there fails whatever should try
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "WANDB_API_KEY": ""}


def test_offline_needs_no_network_and_no_account(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    result = shell(f"dsgd-run {shlex.join(RUN)}", tmp_path, HOME=str(home), **NOWHERE)
    assert result.returncode == 0, result.stderr
    assert lines(tmp_path / "run") == 4
    (mirror,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    (said,) = [line for line in result.stderr.splitlines() if "wandb" in line]
    assert said == f"wandb: kept offline; to copy it: wandb sync {mirror.parent}"
    content = mirror.read_bytes()
    for text in (b"test_loss", b"consensus_distance", b"bytes_sent_total", b"gossip", b"the first tag"):
        assert text in content


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, without network and account."""
    monkeypatch.chdir(tmp_path)
    for name, value in (NOWHERE | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("nowhere")
def test_a_broken_wandb_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "wandb.py").write_text("raise ImportError('no wandb here\\nat all')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    assert call(*RUN).status == 0
    assert capfd.readouterr().err == "wandb: ImportError: no wandb here at all; going on without it\n"
    assert summary(tmp_path / "run")["status"] == "completed"


@pytest.mark.usefixtures("nowhere")
def test_a_folder_that_wandb_cannot_use_does_not_stop_the_run(tmp_path: Path) -> None:
    """Where wandb wants to have its folder there is a file."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "wandb").write_text("a file")
    assert call(*RUN).status == 0
    assert summary(tmp_path / "run")["status"] == "completed"
    assert (tmp_path / "run" / "wandb").read_text() == "a file"


def test_a_stuck_wandb_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It never reads what it is told, and never ends."""
    (tmp_path / "wandb.py").write_text("import signal\nsignal.pause()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    mirror = Mirror(MirrorOptions(mode="offline", timeout_s=0.2), tmp_path)
    for _ in range(100_000):  # more than a pipe holds
        mirror.wake()
    mirror.finish()
    assert capsys.readouterr().err == "wandb: not done 0.2 s after the run; going on without it\n"


def test_a_resumed_run_is_mirrored_whole(tmp_path: Path) -> None:
    """What was measured before the interruption is copied as well; a torn last line is not."""
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


def online(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    home = folder / "home"
    home.mkdir()
    line = shlex.join([*RUN[:-1], "wandb.mode=online", "wandb.timeout_s=3"])
    variables = {"HOME": str(home), "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": url}
    return shell(f"dsgd-run {line}", folder, **variables)


def test_a_server_that_stalls_does_not_delay_training(tmp_path: Path, stalling: str) -> None:
    result = online(tmp_path, stalling)
    assert result.returncode == 0
    assert summary(tmp_path / "run")["status"] == "completed"
    assert lines(tmp_path / "run") == 4
    assert result.stderr.splitlines()[-1] == "wandb: not done 3 s after the run; going on without it"


@pytest.mark.long
def test_an_absent_server_does_not_delay_training(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # nobody listens there once it is closed
    result = online(tmp_path, f"http://127.0.0.1:{port}")
    assert result.returncode == 0
    assert summary(tmp_path / "run")["status"] == "completed"
    assert lines(tmp_path / "run") == 4
    assert any(line.startswith("wandb: ") for line in result.stderr.splitlines())


@pytest.mark.parametrize(
    ("options", "name", "group", "entity", "tags"),
    [
        ([], "gossip-4-lr0.05-seed3", "mlp-digits", None, []),
        (["model=import", "model.target=mine.deep"], "gossip-4-lr0.05-seed3", "deep-digits", None, []),
        (["wandb.name=one", "wandb.group=some"], "one", "some", None, []),
        (["wandb.entity=lab", "wandb.tags=[a,b]"], "gossip-4-lr0.05-seed3", "mlp-digits", "lab", ["a", "b"]),
    ],
)
def test_runs_are_told_apart_and_lie_with_those_that_compare(
    options: list[str],
    name: str,
    group: str,
    entity: str | None,
    tags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = composed(["algo=gossip", "nodes=4", "optimizer.lr=0.05", "seed=3", "wandb.mode=offline", *options])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    wandb = SimpleNamespace(Settings=dict, init=lambda **arguments: arguments)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "wandb.errors", SimpleNamespace(CommError=OSError, UsageError=ValueError))
    given: Any = begin(tmp_path)
    assert (given["name"], given["group"], given["entity"], given["tags"]) == (name, group, entity, tags)


@pytest.mark.long
def test_a_run_that_goes_on_has_one_name_in_wandb(tmp_path: Path) -> None:
    """Interrupted and resumed: both parts carry the same id, so `wandb sync` puts them together."""
    home = tmp_path / "home"
    home.mkdir()
    variables = {"HOME": str(home), **NOWHERE}
    line, record = f"dsgd-run {shlex.join([*RUN, 'budget.steps=3000', 'eval.every_steps=100'])}", tmp_path / "run"
    ended = signalled(line, tmp_path, record, lambda: lines(record) >= 3, signal.SIGINT, **variables)
    assert ended.returncode == 130, ended.stderr
    assert shell("dsgd-run resume=run wandb.mode=offline", tmp_path, **variables).returncode == 0
    ids = [path.name.rpartition("-")[2] for path in (tmp_path / "run" / "wandb").glob("offline-run-*")]
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert ids[0] == (tmp_path / "run" / "wandb-id").read_text().strip()


@pytest.mark.long
def test_the_runs_of_a_sweep_are_a_group(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    line = shlex.join(["-m", *RUN[:-2], "wandb.mode=offline", "seed=0,1", "hydra.sweep.dir=sweeps/mine"])
    result = shell(f"dsgd-run {line}", tmp_path, HOME=str(home), **NOWHERE)
    assert result.returncode == 0, result.stderr
    mirrors = sorted((tmp_path / "sweeps" / "mine").glob("*/wandb/offline-run-*/run-*.wandb"))
    assert len(mirrors) == 2
    assert all(b"mine" in mirror.read_bytes() for mirror in mirrors)
