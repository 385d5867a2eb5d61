"""One run: what it writes, what it prints, where."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dsgd.cli.compose import composed
from dsgd.gradients.compiled import kernels_are_there
from dsgd.runner.configuration import configure
from tests.support.command import PATIENCE_S, call, environment, lines, on_a_terminal, shell, summary, typed

LINE = "dsgd-run algo=gossip nodes=4 budget.steps=40 eval.every_steps=20 trace=true hydra.run.dir='my runs/first'"


@pytest.fixture(scope="module")
def typed_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A run as typed, and the folder it was typed in."""
    folder = tmp_path_factory.mktemp("run")
    result = shell(LINE, folder, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    return result, folder


def test_the_record_has_its_fields(typed_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    folder = typed_run[1] / "my runs" / "first"
    assert {path.name for path in folder.iterdir()} == {
        *("config.yaml", "env.json", "metrics.jsonl", "summary.json", "trace.json")
    }
    written = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [mark["samples"] for mark in written] == [0, 20 * 64, 40 * 64]
    for mark in written:
        assert mark["clock"] == "virtual"
    last = json.loads((folder / "summary.json").read_text())
    assert (last["algo"], last["nodes"], last["engine"], last["status"]) == ("gossip", 4, "sim", "completed")
    assert last["samples"] == 40 * 64
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["algo"]["name"] == "gossip"
    assert "hydra" not in config
    env = json.loads((folder / "env.json").read_text())
    assert env.keys() >= {"dsgd", "commit", "python", "torch", "numpy", "host", "devices"}
    assert env["devices"] == ["cpu"]
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]


def test_it_prints_the_table_and_the_path(typed_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    result, folder = typed_run
    *_, path = result.stdout.splitlines()
    assert path == f"record: {folder / 'my runs' / 'first'}"
    assert re.search(r"^gossip .* completed$", result.stdout, re.MULTILINE)
    assert "test accuracy" in result.stdout


def test_it_is_quiet_without_a_terminal(typed_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    """It says what it takes, and how far it is at the first mark and at the last."""
    told = typed_run[0].stderr.splitlines()
    compiled = "gradients: compiled, by AVX on cpu"
    loop = "gradients: loop, because compiled does not know a package whose kernels no compiler has built"
    lines = re.sub("AVX(2|-512)", "AVX", "\n".join(told[:5]))
    # an earlier test of the same gradient may have kept its time
    assert re.sub(r"takes [0-9.e-]+ ms here \(measured[^)]*\)", "takes 1 ms here (measured)", lines) == (
        "engine: sim, no torchrun or srun, and 0 GPUs for 4 workers (engine=dist: real processes here); "
        "time is virtual, gradients are real\n"
        "budget.steps=40 ends the run after 40 steps, before budget.epochs=20; budget.steps=null lifts it\n"
        "one gradient of mlp, batch 16, fp32 takes 1 ms here (measured); cluster.gradient_s sets it\n"
        "threads: 1, as in OMP_NUM_THREADS\n" + (compiled if kernels_are_there() else loop)
    )
    assert {line.partition(": epoch ")[0] for line in told[5:-1]} == {"gossip"}
    # how far workers run apart depends on the measured time: one of four may have begun another step
    assert re.fullmatch(r"gossip: completed after 4[0-3] steps, ended by budget.steps=40", told[-1])
    assert len(told) < 10  # not one for every mark
    assert "\x1b" not in typed_run[0].stdout


def test_real_processes_make_the_same_kind_of_record(tmp_path: Path) -> None:
    line = "dsgd-run engine=dist algo=dpsgd experiment=quadratic nodes=3 budget.steps=20 eval.every_steps=10"
    result = shell(f"{line} hydra.run.dir=run", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "engine: dist, as configured; time is the wall's; workers compute on the CPU" in result.stderr
    last = summary(tmp_path / "run")
    assert (last["engine"], last["clock"], last["status"], last["samples"]) == ("dist", "wall", "completed", 60)
    assert lines(tmp_path / "run") == 3
    assert result.stdout.splitlines()[-1] == f"record: {tmp_path / 'run'}"


def test_so_does_torchrun_over_process_groups(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    line = "dsgd-run engine=torch algo=localsgd experiment=quadratic nodes=2 budget.steps=20 eval.every_steps=10"
    ended = subprocess.run(
        [*launcher, *typed(f"{line} hydra.run.dir=run")],
        cwd=tmp_path,
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stderr
    last = summary(tmp_path / "run")
    assert (last["engine"], last["clock"], last["status"], last["samples"]) == ("torch", "wall", "completed", 40)
    assert lines(tmp_path / "run") == 3


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], []),
        (["track=[tensorboard,mlflow]"], ["tensorboard", "mlflow"]),
        (["wandb.mode=offline"], ["wandb"]),
        (["track=[tensorboard]", "wandb.mode=online"], ["wandb", "tensorboard"]),
        (["track=[wandb]", "wandb.mode=disabled"], []),
    ],
)
def test_trackers_are_off_unless_a_run_asks_for_them(options: list[str], names: list[str]) -> None:
    """`wandb.mode` alone turns wandb on, and turns it off."""
    assert list(configure(composed(options)).trackers) == names


def test_a_record_is_never_overwritten(
    typed_run: tuple[subprocess.CompletedProcess[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = typed_run[1]
    monkeypatch.chdir(folder)
    before = (folder / "my runs" / "first" / "metrics.jsonl").read_bytes()
    result = call("nodes=2", "hydra.run.dir=my runs/first")
    assert result.status == 2
    assert "hydra.run.dir must not hold another run's record, got my runs/first" in result.err
    assert (folder / "my runs" / "first" / "metrics.jsonl").read_bytes() == before


def test_a_terminal_shows_progress(tmp_path: Path) -> None:
    """Virtual and host time, samples, loss and accuracy, on one line that is gone at the end."""
    text = on_a_terminal("dsgd-run nodes=2 budget.epochs=2 hydra.run.dir=shown", tmp_path)
    for part in ("s virtual", "s host", "samples", "loss", "accuracy"):
        assert part in text
    assert text.endswith("\x1b[2K")  # erased


def test_a_failed_run_leaves_a_valid_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error inside an algorithm is not hidden: its traceback, exit status 1, and status `failed` in the record."""
    write_algorithm(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = call("--config-dir", "conf", "algo=own", "experiment=quadratic", "hydra.run.dir=failed")
    assert result.status == 1
    assert "RuntimeError: it broke" in result.err
    assert summary(tmp_path / "failed")["status"] == "failed"
    assert lines(tmp_path / "failed") == 1


def write_algorithm(folder: Path) -> None:
    (folder / "conf" / "algo").mkdir(parents=True)
    (folder / "conf" / "algo" / "own.yaml").write_text("# Mine.\n_target_: own.Own\n")
    (folder / "own.py").write_text(
        "from dataclasses import dataclass\n"
        "from dsgd.worker import Algorithm\n\n"
        "@dataclass(frozen=True)\n"
        "class Own(Algorithm):\n"
        "    async def train(self, worker):\n"
        "        raise RuntimeError('it broke')\n"
    )
