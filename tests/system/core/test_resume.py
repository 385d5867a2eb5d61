"""A run that is stopped, however it is stopped, goes on as if it never had been."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

from dsgd.gradients.compiled import kernels_are_there
from dsgd.record.checkpoint_file import read_header
from dsgd.runner.resume import quoted
from tests.support.command import call, lines, marks, refusal, shell, signalled, start, summary, wait_until

# messages in flight, random gradient times, a mapping with numbers as keys, two workers side by side
RUN = [
    *("algo=gossip", "algo.mode=push", "nodes=4", "cluster=lian2017_10mbit", "cluster.slow_nodes={1: 2.0}"),
    *("cluster.jitter=0.2", "optimizer.momentum=0.5", "budget.epochs=25", "engine.threads=2"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that is never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert call(*RUN, f"hydra.run.dir={folder}").status == 0
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run after Ctrl-C, and what it printed."""
    folder, name = tmp_path_factory.mktemp("interrupted"), "a b/run"
    line, record = f"dsgd-run {shlex.join(RUN)} 'hydra.run.dir={name}'", folder / name
    ended = signalled(line, folder, record, lambda: lines(record) >= 3, signal.SIGINT)
    assert ended.returncode == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    return record, ended.stdout


def assert_same(folder: Path, whole: Path) -> None:
    assert marks(folder) == marks(whole)
    assert summary(folder) == summary(whole)
    config = [line for line in (folder / "config.yaml").read_text().splitlines() if not line.startswith("resume:")]
    assert config == [line for line in (whole / "config.yaml").read_text().splitlines() if line != "resume: null"]
    assert not (folder / "checkpoint.pt").exists()


def test_ctrl_c_leaves_a_valid_record(interrupted: tuple[Path, str], whole: Path) -> None:
    folder, out = interrupted
    so_far = marks(folder)
    assert 3 <= len(so_far) < len(marks(whole))
    assert so_far == marks(whole)[: len(so_far)]
    last = summary(folder)
    assert last["status"] == "interrupted"
    assert last.keys() == summary(whole).keys()
    assert (last["gradients"], last["threads"]) == ("compiled" if kernels_are_there() else "loop", 2)
    assert last["samples"] < summary(whole)["samples"]
    assert (folder / "checkpoint.pt").exists()
    assert out.splitlines()[-2] == f"record: {folder}"


def test_what_it_prints_goes_on_in_the_same_folder(interrupted: tuple[Path, str], whole: Path, here: Path) -> None:
    moved = here / "it's größer"
    shutil.copytree(interrupted[0], moved)
    introduction = "interrupted; resume with: dsgd-run "
    (printed,) = [line for line in interrupted[1].splitlines() if line.startswith(introduction)]
    (override,) = shlex.split(printed.removeprefix(introduction))
    assert override == f"resume='{interrupted[0]}'"
    result = call("""resume='it\\'s größer'""")
    assert result.status == 0, result.err
    assert_same(moved, whole)


def test_the_same_line_goes_on_in_another_folder(interrupted: tuple[Path, str], whole: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in interrupted[0].iterdir()}
    result = call(*RUN, f"resume='{interrupted[0]}/checkpoint.pt'", f"hydra.run.dir={tmp_path}/other")
    assert result.status == 0, result.err
    assert_same(tmp_path / "other", whole)
    assert {path.name: path.read_bytes() for path in interrupted[0].iterdir()} == before


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path, whole: Path) -> None:
    """What it wrote since is written again, also a line that was torn."""
    line, folder = f"dsgd-run {shlex.join(RUN)} engine.checkpoint_every_s=0.2 hydra.run.dir=run", tmp_path / "run"
    signalled(line, tmp_path, folder, lambda: lines(folder) > lines_kept(folder) > 1, signal.SIGKILL)
    assert not (folder / "summary.json").exists()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"wall_s": 12.3, "time_')
    result = call(f"resume={folder}")
    assert result.status == 0, result.err
    assert marks(folder) == marks(whole)
    assert summary(folder) == summary(whole)


def test_ctrl_c_again_and_again_leaves_a_whole_record(tmp_path: Path) -> None:
    """However impatient somebody is: the checkpoint and the summary are whole."""
    record = tmp_path / "run"
    line = "dsgd-run experiment=quadratic nodes=2 engine=sim budget.steps=10000000 eval.every_steps=50"
    process = start(f"{line} engine.checkpoint_every_s=0.01 hydra.run.dir={record}", tmp_path)
    wait_until(lambda: lines(record) >= 2 and (record / "checkpoint.pt").exists(), process)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert summary(record)["status"] == "interrupted"
    assert f"interrupted; resume with: dsgd-run resume={record}" in out
    assert not [name for name in os.listdir(record) if name.endswith(".partial")]


def lines_kept(folder: Path) -> int:
    """Lines of metrics.jsonl that the checkpoint knows of; 0 without one."""
    file = folder / "checkpoint.pt"
    return read_header(file)["lines"] if file.exists() else 0


def test_a_completed_run_has_nothing_to_go_on_with(whole: Path) -> None:
    assert refusal(f"resume={whole}") == f"resume must be an interrupted run, got {whole}, which is completed\n"


@pytest.mark.parametrize(
    ("whole_line", "override", "rule"),
    [
        (True, "seed=1", "seed must be 0, as in the checkpoint to resume from, got 1"),
        (True, "cluster.slow_nodes={1: 3.0}", "cluster.slow_nodes.1 must be 2.0, as in the checkpoint"),
        (False, "optimizer.lr=0.5", "optimizer.lr must be 0.1, as in the checkpoint to resume from, got 0.5"),
        (False, "algo=sync", "algo must be 'gossip', as in the checkpoint to resume from, got 'sync'"),
        (False, "experiment=many_workers", "nodes must be 4, as in the checkpoint to resume from, got 32 of experi"),
    ],
)
def test_another_configuration_is_refused(
    whole_line: bool, override: str, rule: str, interrupted: tuple[Path, str]
) -> None:
    """Only what was typed is compared: optimizer.lr=0.5 was refused for the number of nodes, which nobody had given."""
    before = sorted(interrupted[0].iterdir())
    assert rule in refusal(*RUN * whole_line, override, f"resume='{interrupted[0]}'")
    assert sorted(interrupted[0].iterdir()) == before


def test_what_is_the_same_may_be_typed_in_part(interrupted: tuple[Path, str], whole: Path, tmp_path: Path) -> None:
    given = ["algo.mode=push", "algo=gossip", "nodes=4", "optimizer.momentum=0.5"]
    result = call(f"resume='{interrupted[0]}'", *given, f"hydra.run.dir={tmp_path}/run")
    assert result.status == 0, result.err
    assert marks(tmp_path / "run") == marks(whole)


def test_a_checkpoint_needs_the_record_it_belongs_to(interrupted: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copy(interrupted[0] / "checkpoint.pt", tmp_path)
    assert refusal(f"resume={tmp_path}").startswith("resume must have the first ")
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_going_on_does_not_overwrite_another_record(interrupted: tuple[Path, str], whole: Path) -> None:
    before = (whole / "metrics.jsonl").read_bytes()
    rule = f"hydra.run.dir must not hold another run's record, got {whole}; that run is completed\n"
    assert refusal(f"resume='{interrupted[0]}'", f"hydra.run.dir={whole}").endswith(rule)
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_what_is_offered_for_a_used_folder_works(interrupted: tuple[Path, str], tmp_path: Path) -> None:
    """Also where a shell would take its name apart."""
    folder = tmp_path / "it's $HOME & co"
    shutil.copytree(interrupted[0], folder)
    again = call(*RUN, f"hydra.run.dir={quoted(folder)}")
    assert again.status == 2
    assert " resumes that run\n" in again.err
    offered = again.err.partition("; ")[2].partition(" resumes")[0]
    ended = shell(offered, tmp_path)
    assert ended.returncode == 0, ended.stderr

    small = ["experiment=quadratic", "nodes=2", "engine=sim", "engine.keep_checkpoint=true"]
    assert call(*small, "budget.steps=4", f"hydra.run.dir={tmp_path}/kept").status == 0
    for line in ([*small, "budget.steps=4", f"hydra.run.dir={tmp_path}/kept"], [f"resume={tmp_path}/kept"]):
        assert f"resume={tmp_path}/kept with a larger budget resumes from its checkpoint\n" in refusal(*line)
    assert call(f"resume={tmp_path}/kept", "budget.steps=8").status == 0
