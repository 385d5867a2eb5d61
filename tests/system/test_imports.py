"""What is imported when: a command line, a configuration and a record are checked before anything slow is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from dsgd.record.checkpoint_file import NAME, write_checkpoint


def test_configurations_are_composed_and_checked_without_torch() -> None:
    """Importing torch takes longer than a configuration error may."""
    program = """
import sys
import dsgd.data.imagenet, dsgd.runner.configuration, dsgd.cli.compose, dsgd.cli.jobs, dsgd.cli.jobs
from importlib.resources import files
names = [path.name[:-5] for path in (files("dsgd.conf") / "algo").iterdir() if path.name.endswith(".yaml")]
assert names
for name in names:
    dsgd.runner.configuration.configure(dsgd.cli.compose.composed([f"algo={name}", "experiment=quadratic"])).experiment
    dsgd.runner.configuration.configure(dsgd.cli.compose.composed([f"algo={name}", "model=resnet8"])).experiment
dsgd.data.imagenet.ImageNetLike().check(1, 1)
slow = {"torch", "matplotlib", "wandb", "networkx"} & set(sys.modules)
assert not slow, slow
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_a_command_line_is_looked_at_before_anything_slow_is_imported() -> None:
    """What it asks for may take no time: the version, or to be told of a wrong flag."""
    program = """
import sys
from dsgd.cli.run import main
assert [main(["--version"]), main(["--nodes", "4"])] == [0, 2]
slow = {"torch", "numpy", "hydra", "omegaconf", "yaml"} & set(sys.modules)
assert not slow, slow
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_a_run_on_digits_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """A start takes what its imports take: torch's compiler a second, the others half of one."""
    program = """
import sys
from dsgd.cli.run import main
for number, line in enumerate(("model=mlp algo=gossip", "model=resnet8 algo=dpsgd engine.gradients=loop")):
    assert main([*line.split(), "nodes=2", "budget.steps=1", f"hydra.run.dir={number}"]) == 0
slow = ("torch._dynamo", "torch._inductor", "torchvision", "sympy", "networkx", "matplotlib", "PIL", "wandb")
print([name for name in slow if name in sys.modules])
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "[]"


def test_neither_the_record_nor_a_sweep_needs_torch() -> None:
    """Importing it takes longer than a login node's command may."""
    program = "import sys, dsgd.record.reader, dsgd.record.writer, dsgd.record.checkpoint_file\n"
    program += "import dsgd.sweep.slurm_jobs; print({'torch', 'omegaconf', 'matplotlib'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "set()\n"), ended.stderr


def test_the_header_of_a_checkpoint_is_read_without_torch(tmp_path: Path) -> None:
    """Whether a configuration fits a checkpoint is said before torch is imported."""
    write_checkpoint(tmp_path, {"lines": 3}, {"vectors": [torch.zeros(3)]})
    program = (
        "import sys; from pathlib import Path; from dsgd.record.checkpoint_file import read_header; "
        f"assert read_header(Path({str(tmp_path / NAME)!r}))['lines'] == 3; assert 'torch' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
