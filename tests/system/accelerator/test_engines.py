"""What else computes on a device: the simulator, process groups of torchrun, checkpoints, runs that lose a worker."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from torch import nn

from tests.support.command import SCRIPTS, shell
from tests.support.emulated import DIST, ON_DEVICES, completed, measured
from tests.support.emulated_devices import ACCELERATOR, findings_in
from tests.support.prefork import Prefork

SIM = ("engine=sim", "engine.gradients=loop", "model=mlp", "model.hidden=[8]", "nodes=4", "cluster.gradient_s=0.01")
KEPT = "engine.keep_checkpoint=true"


@pytest.mark.parametrize("algo", ["gossip", "delayfree", "downpour"])
def test_a_simulation_has_the_bits_of_the_cpu(emulated: Prefork, prefork: Prefork, tmp_path: Path, algo: str) -> None:
    line = (*SIM, f"algo={algo}", "budget.steps=6", "eval.every_steps=3")
    runs = completed(emulated, tmp_path / "emulated", *line, ON_DEVICES), completed(prefork, tmp_path / "cpu", *line)
    assert [run.devices for run in runs] == [["emu"], ["cpu"]]
    assert measured(runs[0]) == measured(runs[1])


def test_graphs_of_the_device_have_the_bits_of_the_cpu(emulated: Prefork, prefork: Prefork, tmp_path: Path) -> None:
    """Recorded once a lane, and replayed for 4 workers."""
    line = (*SIM, "algo=gossip", "budget.steps=6", "eval.every_steps=3")
    run = completed(emulated, tmp_path / "emulated", *line, "engine.gradients=graphs", ON_DEVICES)
    assert run.summary["gradients"] == "graphs"
    assert measured(run) == measured(completed(prefork, tmp_path / "cpu", *line))


@pytest.mark.parametrize("algo", ["sync", "localsgd", "diloco", "delayfree"])
def test_process_groups_have_the_bits_of_the_cpu(tmp_path: Path, algo: str) -> None:
    """Each rank of torchrun has a device of its own."""
    program = shlex.quote(str(SCRIPTS / "dsgd-run"))  # its path may have a space
    line = f"torchrun --nproc-per-node=2 --no-python {program} engine=torch nodes=2 model=mlp"
    line += f" model.hidden=[8] algo={algo} budget.steps=6 eval.every_steps=3"
    (tmp_path / "findings").mkdir()
    places = {"PYTHONPATH": str(ACCELERATOR), "EMU_FINDINGS": str(tmp_path / "findings")}
    marks = []
    for name, variables, more in (("emulated", places, f" {ON_DEVICES}"), ("cpu", {}, "")):
        ended = shell(f"{line}{more} hydra.run.dir={tmp_path / name}", tmp_path, **variables)
        assert ended.returncode == 0, ended.stderr
        text = (tmp_path / name / "metrics.jsonl").read_text()
        marks.append([part for part in text.replace(",", "\n").splitlines() if "loss" in part])
    assert marks[0] == marks[1]
    assert marks[0]
    assert findings_in(tmp_path / "findings") == []


@pytest.mark.parametrize("first", ["emulated", "cpu"])
@pytest.mark.parametrize("engine", ["sim", "dist"])
def test_a_checkpoint_goes_on_on_another_type_of_device(
    emulated: Prefork, prefork: Prefork, tmp_path: Path, engine: str, first: str
) -> None:
    """With the bits of the run that was on the CPU all along."""
    line = (*(SIM if engine == "sim" else (*DIST, "nodes=2")), "algo=localsgd", "eval.every_steps=3", KEPT)
    places = {"emulated": (emulated, ON_DEVICES), "cpu": (prefork, "engine.device=cpu")}
    server, device = places.pop(first)
    completed(server, tmp_path / "run", *line, "budget.epochs=1", "budget.steps=null", device)
    ((server, device),) = places.values()
    run = completed(server, tmp_path / "run", f"resume={tmp_path / 'run'}", "budget.epochs=2", device)
    assert run.devices != ["cpu"] if device == ON_DEVICES else run.devices == ["cpu"]
    whole = completed(prefork, tmp_path / "whole", *line, "budget.epochs=2", "budget.steps=null", "engine.device=cpu")
    assert measured(run)[-1] == measured(whole)[-1]


def test_a_run_goes_on_without_a_worker_that_was_killed(emulated: Prefork, tmp_path: Path) -> None:
    findings = tmp_path / "findings"
    findings.mkdir()
    line = ("engine=dist", "nodes=4", "algo=gossip", "model=mlp", "model.hidden=[8]", "budget.epochs=40", ON_DEVICES)
    run = emulated.start(tmp_path / "run", *line, "engine.patience_s=0.5", EMU_FINDINGS=str(findings))
    run.until(lambda: len(run.marks) >= 2)
    os.kill(run.processes()["worker 2"], signal.SIGKILL)
    assert run.wait() == 0, run.err
    assert (run.summary["status"], run.summary["workers_lost"]) == ("completed", 1), run.err
    assert findings_in(findings) == []


def test_fewer_devices_than_workers_are_told_before_the_start(emulated: Prefork, tmp_path: Path) -> None:
    run = emulated.run(tmp_path / "run", *DIST, "algo=sync", "nodes=4", ON_DEVICES, EMU_DEVICES="2")
    rule = "engine.device must be auto or cpu for 4 workers on 2 emu devices"
    assert run.err == f"{rule} (engine.workers_per_gpu=2 lets workers share one), got accelerator\n"
    assert not run.folder.exists()


def vanishing() -> nn.Module:
    """Return a model. While it is built, half of the devices go, of which four were counted before."""
    os.environ["EMU_DEVICES"] = "2"
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_a_device_that_has_gone_since_it_was_counted_ends_the_run_in_one_line(
    emulated: Prefork, tmp_path: Path
) -> None:
    model = ("model=import", f"model.target={vanishing.__module__}.vanishing")
    run = emulated.run(tmp_path / "run", "engine=dist", "algo=sync", "nodes=4", *model, "budget.steps=6", ON_DEVICES)
    line = r"engine.device must name a device that is here, got emu:[23], of which there are 2 by now"
    assert re.search(line, run.err), run.err
    assert "Traceback" not in run.err
    assert run.summary["status"] == "failed"
    assert run.summary["samples"] == 0
