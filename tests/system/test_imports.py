"""What is imported when: a command line, a configuration and a record are checked before anything slow is."""

from __future__ import annotations

from pathlib import Path

import torch

from dsgd.record.checkpoint_file import NAME, write_checkpoint
from tests.support.command import in_python


def test_configurations_are_composed_and_checked_without_torch() -> None:
    """Importing torch takes longer than a configuration error may."""
    in_python("""
import sys
import dsgd.data.imagenet, dsgd.runner.configuration, dsgd.cli.compose, dsgd.cli.jobs, dsgd.cli.local_sweep
from importlib.resources import files
names = [path.name[:-5] for path in (files("dsgd.conf") / "algo").iterdir() if path.name.endswith(".yaml")]
assert names
for name in names:
    dsgd.runner.configuration.configure(dsgd.cli.compose.composed([f"algo={name}", "experiment=quadratic"])).experiment
    dsgd.runner.configuration.configure(dsgd.cli.compose.composed([f"algo={name}", "model=resnet8"])).experiment
dsgd.data.imagenet.ImageNetLike().check(1, 1)
slow = {"torch", "matplotlib", "wandb", "networkx"} & set(sys.modules)
assert not slow, slow
""")


def test_a_command_line_is_looked_at_before_anything_slow_is_imported() -> None:
    """What it asks for may take no time: the version, or to be told of a wrong flag."""
    in_python("""
import sys
from dsgd.cli.run import main
assert [main(["--version"]), main(["--nodes", "4"])] == [0, 2]
slow = {"torch", "numpy", "hydra", "omegaconf", "yaml"} & set(sys.modules)
assert not slow, slow
""")


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
    assert in_python(program, folder=tmp_path).splitlines()[-1] == "[]"


def test_neither_the_record_nor_a_sweep_needs_torch(tmp_path: Path) -> None:
    """Importing it takes longer than a login node's command may; nor does the header of a checkpoint."""
    write_checkpoint(tmp_path, {"lines": 3}, {"vectors": [torch.zeros(3)]})
    program = """
import sys
from pathlib import Path
import dsgd.record.reader, dsgd.record.writer, dsgd.sweep.slurm_jobs
from dsgd.record.checkpoint_file import read_header
assert read_header(Path(sys.argv[1]))["lines"] == 3
print({"torch", "omegaconf", "matplotlib"} & set(sys.modules))
"""
    assert in_python(program, tmp_path / NAME) == "set()\n"
