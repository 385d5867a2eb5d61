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


def test_the_notebook_prints_what_its_committed_outputs_show(tmp_path: Path) -> None:
    """Its code cells, one after the other in a fresh interpreter; the figure is not compared."""
    cells = json.loads((EXAMPLES / "first_run.ipynb").read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    ends = "print('end of cell')"
    program = "import matplotlib\nmatplotlib.use('agg')\n" + "".join(
        f"{''.join(cell['source'])}\n{ends}\n" for cell in cells
    )
    printed = in_python(program, folder=tmp_path).split("end of cell\n")
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output.get("name", output["output_type"]) for output in outputs} == {"stdout", "display_data"}
    for cell, text in zip(cells, printed, strict=False):
        stored = [output["text"] for output in cell["outputs"] if output["output_type"] == "stream"]
        assert "".join(line for lines in stored for line in lines) == text
    assert printed[0].count("\n") == 2
    assert "image/png" in cells[-1]["outputs"][-1]["data"]
    assert (tmp_path / "outputs" / "first_run.png").stat().st_size > 1000
