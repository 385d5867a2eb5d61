"""The examples run as they are: their commands as typed, the notebook's cells one after the other."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import dsgd
from tests.support.command import in_python

EXAMPLES = Path(__file__).parents[2] / "examples"
README = (EXAMPLES / "README.md").read_text().replace("\\\n", " ")


def commands() -> list[tuple[str, list[str]]]:
    """Folder and words of every documented command."""
    blocks = re.findall(r"^    cd examples/(\w+)\n((?:    PYTHONPATH.*\n)+)", README, flags=re.MULTILINE)
    lines = [(folder, line) for folder, block in blocks for line in block.splitlines()]
    return [(folder, shlex.split(line)[1:]) for folder, line in lines]


def loops(folder: str) -> dict[str, list[str]]:
    """The words of every documented torchrun in a folder, by the algorithm."""
    (block,) = re.findall(rf"^    cd examples/{folder}\n((?:    torchrun.*\n)+)", README, flags=re.MULTILINE)
    lines = [shlex.split(line)[1:] for line in block.splitlines()]
    return {words[words.index("--algo") + 1]: words for words in lines}


def printed(words: list[str], folder: str) -> list[float]:
    """Run torchrun in a folder; return the number in every line that names a loss or what was tested."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(line, cwd=EXAMPLES / folder, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return [float(number) for number in re.findall(r"^(?:loss|test|accuracy) (\S+)$", ended.stdout, re.MULTILINE)]


def test_the_loop_of_plain_torch_has_the_losses_of_data_parallel_and_learns_by_another_algorithm() -> None:
    words = loops("own_loop")
    assert list(words) == ["ddp", "sync", "diloco"]
    *losses, accuracy = printed(words["sync"], "own_loop")
    assert losses == pytest.approx(printed(words["ddp"], "own_loop"), abs=1e-6)
    assert accuracy > 0.9
    assert printed(words["diloco"], "own_loop")[-1] > 0.8


@pytest.mark.parametrize(("folder", "arguments"), commands())
def test_every_example_runs(folder: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its own folder, for a few steps, and learns."""
    monkeypatch.chdir(EXAMPLES / folder)
    monkeypatch.syspath_prepend(str(EXAMPLES / folder))
    overrides = [text for text in arguments if "=" in text]
    config_dir = arguments[arguments.index("--config-dir") + 1] if "--config-dir" in arguments else None
    if arguments[0] == "dsgd-compare":
        short = ["budget.epochs=3", "compare.tune={}", "compare.seeds=1", "cluster.gradient_s=0.01"]
        assert dsgd.compare([*overrides, *short], tmp_path / "comparison", config_dir).verdict
        return
    run = dsgd.run([*overrides, "budget.epochs=3"], tmp_path / "run", config_dir)
    assert run.status == "completed"
    assert run.metrics[-1]["train_loss"] < 0.95 * run.metrics[0]["train_loss"]


def test_there_are_examples_of_data_and_of_both_engines() -> None:
    """Guards the extraction above."""
    assert [folder for folder, _ in commands()] == [*2 * ["own_data"], *3 * ["own_algorithm"]]
    assert any("engine=dist" in arguments for _, arguments in commands())


def test_the_test_of_the_algorithm_passes() -> None:
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_local_sgd.py"]
    surroundings = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    ended = subprocess.run(
        line, cwd=EXAMPLES / "own_algorithm", env=surroundings, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its code cells, in a fresh interpreter; it draws its figure."""
    cells = json.loads((EXAMPLES / "first_run.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = "import matplotlib\nmatplotlib.use('agg')\n" + "\n".join(code)
    shown = in_python(program, folder=tmp_path).splitlines()
    assert [line.split()[:2] for line in shown] == [["sync", "completed"], ["gossip", "completed"]]
    assert (tmp_path / "outputs" / "first_run.png").stat().st_size > 1000


def test_the_notebook_has_no_outputs() -> None:
    """They would be somebody's machine, and change with every run."""
    cells = json.loads((EXAMPLES / "first_run.ipynb").read_text())["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
