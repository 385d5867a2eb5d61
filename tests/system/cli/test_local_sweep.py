"""The jobs of a sweep, several at a time on this machine: the same records, whatever becomes of the others."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from dsgd.cli import local_sweep
from dsgd.cli.compose import Job, composed
from dsgd.cli.local_sweep import LocalSweep, jobs_at_once
from dsgd.host.devices import Accelerators
from dsgd.host.signals import Interruption
from dsgd.runner import placement
from dsgd.runner.plan import plan_run
from tests.support.command import PATIENCE_S, call, lines, marks, shell, start, summary, wait_until
from tests.support.faults.victims import family
from tests.support.planes import until
from tests.support.proc import is_alive
from tests.system.core.test_sweep import SLOW

SMALL = "cluster.gradient_s=0.01 nodes=2 budget.steps=20 eval.every_steps=5"
ENDLESS = "experiment=quadratic nodes=2 budget.steps=10000000 eval.every_steps=50"


def test_the_records_are_those_of_one_job_after_the_other(here: Path) -> None:
    for name, jobs in (("one", 1), ("two", 2)):
        line = ("algo=sync,gossip", "seed=0,1", f"sweep.jobs={jobs}", f"hydra.sweep.dir={name}")
        result = call("-m", *SMALL.split(), *line)
        assert result.status == 0, result.err
    folders = sorted(path.name for path in (here / "one").iterdir() if path.is_dir())
    assert len(folders) == 4
    for folder in folders:
        one, two = here / "one" / folder, here / "two" / folder
        assert (one / "config.yaml").read_bytes() == (two / "config.yaml").read_bytes()
        assert marks(one) == marks(two)
        assert summary(one) == summary(two)
        assert summary(one)["threads"] == 1


def sweep_of(folder: Path, at_once: int, *kinds: str) -> LocalSweep:
    """Return a sweep whose jobs are of these kinds."""
    runs = [Job({}, [], folder / str(number), folder, f"{kind} {number}") for number, kind in enumerate(kinds)]
    sweep = LocalSweep(runs, at_once, {}, Interruption())
    sweep._kinds = list[str | None](kinds)
    return sweep


def test_what_takes_longest_is_started_first_once_that_is_known(tmp_path: Path) -> None:
    """So long as one of each kind has not begun, the order is that of the command line."""
    go_on = tmp_path / "go_on"

    def long() -> str:
        until(go_on.exists)
        return "completed"

    with sweep_of(tmp_path, 2, "long", "short", "short", "long") as sweep:
        assert sweep.next([0, 1, 2, 3]) == 0
        sweep.start(0, long)
        assert sweep.next([1, 2, 3]) == 1
        sweep.start(1, lambda: "completed")
        assert sweep.next([2, 3]) == 3  # the other has ended, and this kind takes longer already
        go_on.touch()
        sweep.finish()
        assert sweep.next([2, 3]) == 3


def test_one_job_at_a_time_is_in_the_order_of_the_command_line(tmp_path: Path) -> None:
    with sweep_of(tmp_path, 1, "a", "a", "b") as sweep:
        assert sweep.next([0, 1, 2]) == 0
        sweep.start(0, lambda: "completed")
        assert sweep.next([1, 2]) == 1


FAILING = """
import os
from dataclasses import dataclass
from pathlib import Path
from dsgd.worker import Algorithm

@dataclass(frozen=True)
class Failing(Algorithm):
    async def train(self, worker):
        if worker.nodes > 2 and not Path("repaired").exists():
            if worker.nodes == 5:
                os.kill(os.getpid(), 9)
            raise RuntimeError("it broke")
        while not worker.done:
            worker.step(await worker.gradient())
"""


def test_failed_jobs_say_why_are_named_at_the_end_and_begin_again(tmp_path: Path) -> None:
    """Two with the same error, one without a word."""
    (tmp_path / "own.py").write_text(FAILING)
    line = "dsgd-run -m experiment=quadratic '~algo.overlap' '~algo.backups' '~algo.elastic' algo._target_=own.Failing"
    line += " nodes=3,2,4,5 budget.steps=3 sweep.jobs=2 hydra.sweep.dir=swept"
    failed = shell(line, tmp_path, PYTHONPATH=str(tmp_path))
    assert failed.returncode == 1, failed.stderr
    assert failed.stderr.count("\nthe simulation failed: RuntimeError: it broke\n") == 2
    assert failed.stderr.count("\nRuntimeError: it broke\n") == 2
    *named, last = failed.stdout.splitlines()[-4:]
    assert sorted(named) == [
        f"sync nodes=3: failed, in {tmp_path}/swept/0_sync_3",
        f"sync nodes=4: failed, in {tmp_path}/swept/2_sync_4",
        f"sync nodes=5: killed by SIGKILL, in {tmp_path}/swept/3_sync_5",
    ]
    assert last == f"3 of 4 jobs unfinished; resume with: {line} resume=auto"

    (tmp_path / "repaired").touch()
    again = shell(last.partition(": ")[2], tmp_path, PYTHONPATH=str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert re.fullmatch(r"3 runs in \d+ s, 1 was there before", again.stderr.splitlines()[-1])
    assert "unfinished" not in again.stdout


def test_a_sweep_that_was_given_no_folder_ends_with_the_command_that_goes_on_with_it(tmp_path: Path) -> None:
    """In the folder of the first time, whatever the time is then."""
    (tmp_path / "own.py").write_text(SLOW)
    line = "dsgd-run -m experiment=quadratic data._target_=own.Slow nodes=2 budget.steps=300,5 sweep.jobs=1"
    process = start(f"{line} eval.every_steps=1", tmp_path, PYTHONPATH=".")
    wait_until(lambda: any(lines(path) >= 2 for path in tmp_path.glob("multirun/*/*/0_sync_2")), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    (folder,) = tmp_path.glob("multirun/*/*")
    assert sorted(path.name for path in folder.iterdir()) == ["0_sync_2"]
    last = out.splitlines()[-1]
    assert last.startswith("2 of 2 jobs unfinished; resume with: dsgd-run -m experiment=quadratic ")
    (tmp_path / "go_on").touch()
    again = shell(last.partition(": ")[2], tmp_path, PYTHONPATH=".")
    assert again.returncode == 0, again.stderr
    assert list(tmp_path.glob("multirun/*/*")) == [folder]
    assert [lines(folder / name) for name in ("0_sync_2", "1_sync_2")] == [301, 6]


SLOW_DATA = """
import time
from dataclasses import dataclass
from pathlib import Path
from dsgd.data.quadratic import Quadratic

@dataclass(frozen=True)
class Slow(Quadratic):
    def load(self, *arguments):
        Path("loading").touch()
        while True:
            time.sleep(0.01)
"""


def test_a_job_that_has_recorded_nothing_yet_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SLOW_DATA)
    line = f"dsgd-run -m {ENDLESS} data._target_=own.Slow seed=0,1 sweep.jobs=1 hydra.sweep.dir=swept"
    process = start(line, tmp_path, PYTHONPATH=str(tmp_path))
    wait_until((tmp_path / "loading").exists, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert out == f"2 of 2 jobs unfinished; resume with: {line} resume=auto\n"
    assert not (tmp_path / "swept").exists()


def test_the_jobs_of_a_sweep_that_is_killed_end_with_checkpoints(tmp_path: Path) -> None:
    process = start(f"dsgd-run -m {ENDLESS} seed=0,1,2 sweep.jobs=2 hydra.sweep.dir=swept", tmp_path)
    folders = [tmp_path / "swept" / f"{number}_sync_2" for number in range(3)]
    wait_until(lambda: all(lines(folder) >= 2 for folder in folders[:2]), process)
    jobs = family(process.pid).values()
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    until(lambda: not any(map(is_alive, jobs)))
    for folder in folders[:2]:
        assert summary(folder)["status"] == "interrupted"
        assert (folder / "checkpoint.pt").exists()
    assert lines(folders[2]) == 0


THREADED = """
import os, threading
from dataclasses import dataclass
from dsgd.data.quadratic import Quadratic

@dataclass(frozen=True)
class Threaded(Quadratic):
    def load(self, *arguments):
        with open("loaded.txt", "a") as file:
            print(os.getpid(), threading.active_count(), file=file)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().load(*arguments)
"""


def test_a_job_of_a_sweep_inherits_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Threads, say, which a fork would not survive: a job in real processes comes after one in the simulator."""
    (tmp_path / "own.py").write_text(THREADED)
    line = "dsgd-run -m engine=sim,dist experiment=quadratic data._target_=own.Threaded nodes=2 budget.steps=3"
    swept = shell(f"{line} hydra.sweep.dir=swept", tmp_path, PYTHONPATH=str(tmp_path))
    assert swept.returncode == 0, swept.stderr
    assert swept.stdout.count("completed") == 2
    (first, one), (second, other) = (line.split() for line in (tmp_path / "loaded.txt").read_text().splitlines())
    assert first != second
    assert one == other == "1"


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        (["model=mlp", "model.hidden=[16]"], False),
        (["model=resnet20"], True),
        (["model=resnet20", "engine.device=cpu"], False),
        (["model=mlp", "engine.gradients=graphs"], True),
        (["model=resnet20", "engine.gradients=none"], False),
        (["model=mlp", "model.hidden=[16]", "engine=dist"], True),
    ],
)
def test_jobs_share_the_machine_beside_a_gpu_unless_one_takes_it(
    line: list[str], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `auto` chooses: small models are computed by the CPU's kernels, where there is a GPU, too."""
    monkeypatch.setattr(placement, "accelerators", lambda environment: Accelerators("cuda", 1, "nccl"))
    monkeypatch.setattr(local_sweep, "cores", lambda: 6)
    plans = [plan_run(composed(["engine=sim", "nodes=2", f"seed={seed}", *line]), []) for seed in range(2)]
    small = plan_run(composed(["engine=sim", "nodes=2", "model=mlp", "model.hidden=[8]"]), [])
    assert jobs_at_once([small, *plans]) == (1 if alone else 6)
