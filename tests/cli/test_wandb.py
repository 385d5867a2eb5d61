"""The mirror in Weights & Biases: works offline, and whatever becomes of it, the run goes on."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from dsgd.record.mirror import Mirror, new_lines
from tests.cli.command import call, lines, shell, summary

RUN = [
    *("algo=gossip", "experiment=quadratic", "nodes=2", "budget.steps=6", "eval.every_steps=2"),
    *("hydra.run.dir=run", "wandb.mode=offline"),
]
# of a machine without network and account; a proxy that is not there fails whatever should try
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "WANDB_API_KEY": ""}


def test_offline_needs_no_network_and_no_account(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    result = shell(f"dsgd-run {shlex.join(RUN)}", tmp_path, HOME=str(home), **NOWHERE)
    assert result.returncode == 0, result.stderr
    assert "wandb" not in result.stderr
    assert lines(tmp_path / "run") == 4
    (mirror,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    content = mirror.read_bytes()
    for text in (b"test_loss", b"consensus_distance", b"bytes_sent_total", b"gossip"):
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
    mirror = Mirror({"wandb": {"mode": "offline"}}, tmp_path, finish_timeout_s=0.2)
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
