"""What dsgd-compare says of the use of its winner is the configuration that was measured, and runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from dsgd.cli.compose import composed
from dsgd.cli.own_script import script, usage
from dsgd.runner.configuration import configure, named_algorithm
from dsgd.runner.values import ConfigError
from tests.support.own_loops import ROOT

LOCKSTEP = [  # with options, with a graph, with a seed
    ["algo=localsgd", "algo.tau=8", "algo.group=2"],
    ["algo=sgp", "topology=one_peer_exponential"],
    ["algo=choco", "topology=complete", "seed=3"],
]


@pytest.mark.parametrize("overrides", LOCKSTEP, ids=" ".join)
def test_the_printed_lines_make_the_algorithm_that_was_measured(overrides: list[str]) -> None:
    values = composed([*overrides, "nodes=4", "optimizer.momentum=0.5"])
    heading, *lines = usage(values).splitlines()
    assert "torchrun" in heading
    tree = ast.parse("\n".join(line.strip() for line in lines))
    calls = {ast.unparse(call.func): call for call in ast.walk(tree) if isinstance(call, ast.Call)}
    assert ast.unparse(calls["torch.optim.SGD"]).endswith("lr=0.1, momentum=0.5, nesterov=False, weight_decay=0.0)")
    call = calls["dsgd.torch.distribute"]
    given = {key.arg: ast.literal_eval(key.value) for key in call.keywords}
    name = ast.literal_eval(call.args[2])
    seed = given.get("seed", 0)
    made = named_algorithm(name, given.get("options", {}), given.get("topology"), nodes=4, seed=seed)
    assert made == configure(values).experiment.algo


@pytest.mark.parametrize(("algo", "reason"), [("gossip", "do not keep step"), ("easgd", "parameter server")])
def test_a_winner_that_needs_real_processes_of_dsgd_is_named_with_the_reason(algo: str, reason: str) -> None:
    line = usage(composed([f"algo={algo}"]))
    assert line.startswith(f"in your own script: not with algo={algo}, which needs engine=dist: ")
    assert reason in line
    assert "\n" not in line
    with pytest.raises(ConfigError, match=rf"^--script needs a winner that .* can train, got algo={algo}"):
        script(composed([f"algo={algo}"]), "train.py")


def test_the_optimiser_is_written_with_the_options_that_were_measured() -> None:
    lines = usage(composed(["optimizer=adamw", "optimizer.weight_decay=0"]))
    assert "torch.optim.AdamW(model.parameters(), lr=0.001, betas=[0.9, 0.999], eps=1e-08, weight_decay=0" in lines


@pytest.mark.parametrize(
    "overrides", [["optimizer=muon"], ["optimizer.weight_decay=1e-4", "optimizer.decay_norm_and_bias=false"]]
)
def test_an_optimiser_that_one_line_of_torch_cannot_make_is_named(overrides: list[str]) -> None:
    assert usage(composed(overrides)).startswith(f"in your own script: not with {overrides[-1]}, ")


def test_the_written_script_runs_as_it_is_and_learns(tmp_path: Path) -> None:
    """By torchrun, with a schedule that warms up."""
    values = composed(["algo=diloco", "algo.tau=8", "nodes=2", "schedule=cosine", "schedule.warmup_epochs=1"])
    (tmp_path / "train.py").write_text(script(values, "train.py"))
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 20
    assert float(lines[-1].rpartition(" ")[2]) > 0.7
    assert (tmp_path / "model.pt").is_file()
