"""A user's modules may import torchvision, also beside a torch that its operators were not built for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dsgd

MINE = """
from dataclasses import dataclass
from importlib.util import find_spec
import torch
from dsgd.algorithms.sync import Sync
IMPORT

def images():
    LATER
    sets = [datasets.FakeData(size, (3, 8, 8), 2, transforms.ToTensor()) for size in (8, 4)]
    return sets

def net():
    LATER
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 8, 2))

@dataclass(frozen=True)
class Mine(Sync):
    pass
"""
ASKING = """
import sys
paths = sys.path[:]
sys.path[:] = [path for path in paths if "site-packages" not in path]
assert find_spec("torchvision") is None
try:
    import torchvision
except ModuleNotFoundError as error:
    assert error.name == "torchvision"
sys.path[:] = paths
"""
LINES = {
    "data": "data=import data.target=mine.images data.classes=2",
    "model": "data=shapes data.classes=2 model=import model.target=mine.net data.resolution=8",
    "algorithm": "algo._target_=mine.Mine",
}
TORCHVISION = "from torchvision import datasets, transforms"


def run(line: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in a process of its own, with a module `mine` of the user's."""
    (folder / "mine.py").write_text(text)
    program = "import sys; from dsgd.cli.run import main; sys.exit(main(sys.argv[1:]))"
    words = [*line.split(), "nodes=2", "batch_size=2", "budget.steps=1", "engine=sim", "hydra.run.dir=run"]
    paths = f"{folder}:{Path(dsgd.__file__).parents[1]}"
    environment = {"PYTHONPATH": paths, "PATH": ""}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("what", LINES)
def test_a_module_that_imports_torchvision(what: str, tmp_path: Path) -> None:
    ended = run(LINES[what], MINE.replace("IMPORT", TORCHVISION).replace("LATER", "pass"), tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("what", ["data", "model"])
def test_a_function_that_imports_torchvision_when_it_is_called(what: str, tmp_path: Path) -> None:
    ended = run(LINES[what], MINE.replace("IMPORT", "").replace("LATER", TORCHVISION), tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_a_module_may_ask_whether_there_is_torchvision(tmp_path: Path) -> None:
    """Where there is none, which is no error of whoever asks."""
    ended = run(LINES["model"], MINE.replace("IMPORT", ASKING).replace("LATER", "pass"), tmp_path)
    assert ended.returncode == 0, ended.stderr
