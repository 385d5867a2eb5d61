"""A folder belongs to one command at a time: a second one ends in one line that names it, and leaves it alone; what a
killed command has left behind does not stand in the way."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from dsgd.cli.folders import folder_lock
from dsgd.record.lock import COMMAND_LOCK
from tests.support.command import PATIENCE_S, shell, start, wait_until

ENDLESS = "experiment=quadratic nodes=2 budget.steps=10000000 eval.every_steps=100 cluster.gradient_s=0.01"
COMPARE = f"dsgd-compare algo=sync,gossip {ENDLESS} target.loss=1e-30 compare.seeds=2 compare.tune={{}} --folder it"
SWEEP = f"dsgd-run -m {ENDLESS} seed=0,1 hydra.sweep.dir=it"
RUNNING = {COMPARE: "it/runs/*/metrics.jsonl", SWEEP: "it/*/metrics.jsonl"}


def _written(folder: Path, line: str) -> dict[Path, int]:
    """Return the time of the last write to each record, in ns. A resumed record may be missing for a moment."""
    written: dict[Path, int] = {}
    for path in folder.glob(RUNNING[line]):
        with contextlib.suppress(FileNotFoundError):
            written[path] = path.stat().st_mtime_ns
    return written


@pytest.mark.parametrize(("line", "key"), [(COMPARE, "dsgd-compare: --folder"), (SWEEP, "hydra.sweep.dir")])
def test_a_second_command_ends_in_one_line(line: str, key: str, tmp_path: Path) -> None:
    with folder_lock(tmp_path / "it", key):  # as a command owns it that goes on meanwhile
        before = sorted((tmp_path / "it").rglob("*"))
        second = shell(line, tmp_path)
        folder = "it" if line is COMPARE else tmp_path / "it"
        refusal = f"{key} must not be in use by another command, got {folder}\n"
        assert (second.returncode, second.stdout, second.stderr) == (2, "", refusal)
        assert sorted((tmp_path / "it").rglob("*")) == before


@pytest.mark.parametrize("line", [COMPARE, SWEEP])
def test_the_next_command_waits_for_what_a_killed_one_has_left(line: str, tmp_path: Path) -> None:
    first = start(line, tmp_path)
    wait_until(lambda: bool(list(tmp_path.glob(RUNNING[line]))), first)
    first.kill()
    first.communicate()
    lock = tmp_path / "it" / COMMAND_LOCK
    assert lock.exists()
    owner = lock.read_bytes()
    again = start(f"{line} resume=auto" if line is SWEEP else line, tmp_path)
    wait_until(lambda: lock.read_bytes() not in (owner, b""), again)  # all that the killed one has left is gone
    before = _written(tmp_path, line)
    wait_until(lambda: any(when > before.get(path, 0) for path, when in _written(tmp_path, line).items()), again)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=PATIENCE_S)
    assert not lock.exists()


def test_results_of_papers_are_of_one_command(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "results", "--results"):
        second = shell("dsgd-reproduce jin2016 --results results", tmp_path)
    line = "dsgd-reproduce: --results must not be in use by another command, got results\n"
    assert (second.returncode, second.stdout, second.stderr) == (2, "", line)
    assert not (tmp_path / "results").exists()


@pytest.fixture
def same_time(tmp_path: Path) -> Path:
    """Configurations whose folders have a time in their name that is the same for all commands of a test."""
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    year = "${now:%Y}"
    text = f"# @package _global_\nhydra: {{run: {{dir: 'a/{year}'}}, sweep: {{dir: 'b/{year}'}}}}\n"
    (folder / "century.yaml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("flags", "above", "commands"), [("", "a", 3), ("seed=0,1 -m", "b", 2)])
def test_commands_that_start_at_one_time_find_a_folder_each(
    flags: str, above: str, commands: int, same_time: Path
) -> None:
    line = f"dsgd-run --config-dir conf experiment=[quadratic,century] nodes=2 budget.steps=3 {flags}"
    started = [start(line, same_time) for _ in range(commands)]
    ended = [(process.communicate(timeout=PATIENCE_S)[1], process.returncode) for process in started]
    assert [status for _, status in ended] == [0] * commands, ended
    names = sorted(path.name for path in (same_time / above).iterdir())
    year = names[0]
    assert names == [year, f"{year}-2", f"{year}-3"][:commands]
    runs = 2 if "-m" in flags else 1
    for name in names:
        assert len(list((same_time / above / name).rglob("summary.json"))) == runs
