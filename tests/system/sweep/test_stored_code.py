"""A sweep's folder from a stranger submits nothing that would run code which the package does not offer."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dsgd.cli.compose import composed
from dsgd.cli.sweep import main
from dsgd.sweep.manifest import MANIFEST, Point, locked_sweep, point_of

PLAIN = ["experiment=quadratic", "engine=sim", "nodes=2"]
MODEL = ["model=import", "model.target=os.system", "model.arguments={command: touch marker}"]
DATA = ["data=import", "data.target=os.system", "data.classes=2", "data.arguments={command: touch marker}"]


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a SLURM that takes every job and starts none: it keeps the batch scripts."""
    (tmp_path / "bin").mkdir()
    for name, line in {"sbatch": 'cp "${@: -1}" "$TAKEN"; echo 7', "scontrol": "true", "squeue": "true"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TAKEN", str(tmp_path / "taken.sh"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def point() -> Point:
    return point_of(composed(PLAIN), PLAIN, None)


def written(folder: Path, made: Point, *words: str) -> None:
    """Write a manifest of one point that was submitted once and is lost."""
    with locked_sweep(folder / "sweep") as writer:
        writer.points([made])
        writer.submitting("first", [made], words)
        writer.refused("first", "")


@pytest.mark.parametrize(
    ("changes", "words", "named"),
    [
        ({"overrides": (*PLAIN, *MODEL)}, [], "model.target=os.system"),
        ({"overrides": (*PLAIN, "algo._target_=nets.Mine")}, [], "algo._target_=nets.Mine"),
        ({"overrides": (*PLAIN, "hydra.searchpath=[/tmp]")}, [], "hydra.searchpath=[/tmp]"),
        ({"overrides": (*PLAIN, "resume_trusted=true")}, [], "resume_trusted=true"),
        ({"config_dir": "/tmp"}, [], "--config-dir /tmp"),
        ({}, ["slurm.setup=['touch marker']"], "slurm.setup=['touch marker']"),
        ({}, ["++slurm.environment.LD_PRELOAD=x.so"], "++slurm.environment.LD_PRELOAD=x.so"),
        ({}, ["slurm.options.export=LD_PRELOAD=x"], "slurm.options.export=LD_PRELOAD=x"),
    ],
)
def test_retry_submits_no_code_of_the_manifest(
    changes: dict[str, Any], words: list[str], named: str, login: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(login, replace(point(), **changes), *words)
    before = sorted(login.rglob("*"))
    assert main(["retry"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dsgd-sweep: --trusted must be given, as sweep/manifest.jsonl runs code of its own, got ")
    assert line.endswith(named)
    assert sorted(login.rglob("*")) == before


@pytest.mark.parametrize(
    ("flags", "changes", "words"),
    [([], {}, ["slurm.partition=low"]), (["--trusted"], {"overrides": (*PLAIN, *MODEL)}, ["slurm.setup=[date]"])],
)
def test_retry_of_ones_own_sweep(
    flags: list[str], changes: dict[str, Any], words: list[str], login: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(login, replace(point(), **changes), *words)
    assert main(["retry", *flags]) == 0, capsys.readouterr().err
    text = (login / "taken.sh").read_text()
    assert shlex.join(changes.get("overrides", PLAIN)) in text
    assert not flags or "\ndate\n" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"folder": "../elsewhere"},
        {"folder": "runs/x'; touch marker; '-0123456789ab"},
        {"threads": "1; touch marker"},
        {"overrides": [3]},
        {"config_dir": 3},
    ],
    ids=str,
)
def test_a_point_of_which_no_script_can_be_made(
    changes: dict[str, Any], login: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (login / "sweep").mkdir()
    line = {"event": "point", **asdict(point()), **changes}
    (login / "sweep" / MANIFEST).write_text(json.dumps(line) + "\n")
    for command in ("status", "retry", "logs", "collect"):
        assert main([command]) == 2
        assert "manifest.jsonl line 1 is not a line of a manifest" in capsys.readouterr().err


@pytest.mark.parametrize("job", ["--user=me", "", 7])
def test_a_job_that_slurm_cannot_have_given(job: Any, login: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(login, made := point())
    with locked_sweep(login / "sweep") as writer:
        writer.submitting("second", [made], [])
        writer.add({"event": "submitted", "token": "second", "job": job})
    assert main(["cancel"]) == 2
    assert "manifest.jsonl line 5 is not a line of a manifest" in capsys.readouterr().err
