"""A checkpoint from a stranger runs no code that the package does not offer, unless the user asks for it."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import dsgd
from dsgd.record.checkpoint_file import read_header, read_state, write_checkpoint
from dsgd.runner.values import ConfigError
from tests.support.command import Result, call, lines, marks, signalled

LINE = ["data=shapes", "data.resolution=8", "data.train_size=40", "data.test_size=8", "nodes=2", "batch_size=4"]
LINE += ["engine=sim", "cluster.gradient_s=0.01", "budget.steps=8", "eval.every_steps=4"]
# Written beside the commands: importing it, or calling anything in it, leaves a marker.
MODULE = """
from dataclasses import dataclass
from pathlib import Path
from dsgd.algorithms.sync import Sync
Path("marker").touch()
@dataclass(frozen=True)
class Mine(Sync):
    share: float = 1.0
def call(command="", **arguments):
    Path("marker").touch()
"""
NET = """
from torch import nn
def net(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 8))
"""
SETS = """
import torch
from torch.utils.data import TensorDataset
def sets():
    return tuple(TensorDataset(torch.eye(3).repeat(8, 1), torch.arange(24) % 3) for _ in range(2))
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that can go on, in the current folder, in which Python finds the module `nets`."""
    (tmp_path / "nets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    return kept(*LINE)


def kept(*line: str) -> Path:
    """Make a run that keeps its checkpoint, and take away that it is completed."""
    shutil.rmtree("run", ignore_errors=True)
    result = call(*line, "engine.keep_checkpoint=true", "hydra.run.dir=run")
    assert result.status == 0, result.err
    Path("run/summary.json").unlink()
    Path("marker").unlink(missing_ok=True)
    return Path("run").absolute()


def forge(folder: Path, **groups: Any) -> None:
    """Write a configuration into a checkpoint, with the right digest, and into the record beside it."""
    header, state = read_header(folder / "checkpoint.pt"), read_state(folder / "checkpoint.pt")
    header.pop("dsgd_checkpoint")
    header["config"] |= groups
    write_checkpoint(folder, header, state)
    (folder / "config.yaml").write_text(json.dumps(header["config"]))


def refused(result: Result, *texts: str) -> None:
    assert (result.status, result.out) == (2, ""), result.err
    (line,) = result.err.splitlines()
    for text in (*texts, "resume_trusted=true"):
        assert text in line
    assert not Path("marker").exists()


SHELL = {"command": "touch marker"}
GROUPS: dict[str, dict[str, Any]] = {
    "model": {"_target_": "dsgd.models.library.ImportedModel", "target": "os.system", "arguments": SHELL},
    "data": {"_target_": "dsgd.data.imported.ImportedData", "target": "os.system", "arguments": SHELL, "classes": 2},
    **{group: {"name": "sync", "_target_": "nets.Mine"} for group in ("algo", "optimizer", "cluster", "engine")},
}


def test_no_group_of_a_checkpoint_leads_to_an_import(stranger: Path) -> None:
    whole = read_header(stranger / "checkpoint.pt")["config"]
    for group, values in GROUPS.items():
        forge(stranger, **(whole | {group: values}))
        target = values.get("target", "nets.Mine")
        refused(call(f"resume={stranger}"), target, f"{group}.{'target' if 'target' in values else '_target_'}")


@pytest.mark.parametrize(
    "target", ["this.s", "dsgd.data.imported.ImportedData", "dsgd.models.library.call_by_path", ["dsgd.models.Vector"]]
)
def test_a_class_that_the_group_does_not_offer(target: Any, stranger: Path) -> None:
    forge(stranger, model={"name": "vector", "_target_": target, "target": "os.system", "arguments": SHELL})
    refused(call(f"resume={stranger}"), "model._target_")


def test_what_is_called_with_targets_in_its_arguments(stranger: Path) -> None:
    inner = {"_target_": "os.system", "command": "touch marker"}
    arguments = {"sizes": [1, {"activation": inner}]}
    forge(stranger, model={**GROUPS["model"], "target": "torch.nn.Identity", "arguments": arguments})
    refused(call(f"resume={stranger}"), "torch.nn.Identity")
    refused(call(f"resume={stranger}", "model=import", "model.target=torch.nn.Identity"), "model.arguments")


WAYS = (
    ["resume={folder}/checkpoint.pt"],
    ["resume=auto", "hydra.run.dir={folder}"],
    ["resume={folder}", "budget.steps=20"],
    ["resume={folder}", "hydra.run.dir=other"],
    ["-m", "resume=auto", "seed=0", "hydra.sweep.dir=.", "hydra.sweep.subdir=run"],
    ["resume={folder}", "resume_trusted=false"],
)


def test_every_way_to_go_on(stranger: Path) -> None:
    forge(stranger, model=GROUPS["model"], resume_trusted=True)  # a checkpoint cannot trust itself
    for way in WAYS:
        refused(call(*(word.format(folder=stranger) for word in way)), "model.target", "os.system")
    with pytest.raises(ConfigError, match=r"model\.target .*os\.system.*resume_trusted=true"):
        dsgd.run([f"resume={stranger}"])
    assert not Path("marker").exists()


def test_a_user_who_trusts_the_folder(stranger: Path) -> None:
    forge(stranger, model=GROUPS["model"])
    call(f"resume={stranger}", "resume_trusted=true")
    assert Path("marker").exists()


def test_a_run_of_ones_own_model_goes_on_as_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    line = [*LINE, "model=import", "model.target=own_net.net", "model.arguments={width: 3}"]
    folder = kept(*line)
    whole, config = marks(folder), (folder / "config.yaml").read_text()
    refused(call(f"resume={folder}"), "model.target", "own_net.net")
    refused(call(f"resume={folder}", "model=import", "model.target=own_net.net"), "model.arguments", "width")
    keep = "engine.keep_checkpoint=true"
    for words in (["resume_trusted=true"], [*line, keep], [*line, keep, "resume_trusted=true"]):
        result = call(f"resume={folder}", *words)
        assert result.status == 0, result.err
        assert marks(folder) == whole
        assert (folder / "config.yaml").read_text() == config
        (folder / "summary.json").unlink()


def test_what_is_not_typed_comes_from_the_checkpoint_even_where_the_choice_has_no_default_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_sets.py").write_text(SETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    line = ["data=import", "data.target=own_sets.sets", "data.classes=3", "nodes=2", "batch_size=4", "model=mlp"]
    folder = kept(*line, "engine=sim", "cluster.gradient_s=0.01", "budget.steps=8", "eval.every_steps=4")
    whole = marks(folder)
    for words in (["data=import"], ["data.classes=3"], ["data.decode=auto", "data.target=own_sets.other"]):
        refused(call(f"resume={folder}", *words), "data.target must be typed", "'own_sets.sets'")
    keep = "engine.keep_checkpoint=true"
    typed = (["data.target=own_sets.sets"], ["data=import", "data.target=own_sets.sets", "data.decode=auto"])
    trusted = (["data=import"], ["data.classes=3"], ["data.target=own_sets.sets"])
    for words in (*typed, *([*words, "resume_trusted=true"] for words in trusted)):
        result = call(f"resume={folder}", keep, *words)
        assert result.status == 0, result.err
        assert marks(folder) == whole
        (folder / "summary.json").unlink()
    wrong = call(f"resume={folder}", "data.classes=4", "resume_trusted=true")
    assert "data.classes must be 3, as in the checkpoint to resume from, got 4" in wrong.err


@pytest.mark.parametrize("text", ["'", "\\", "${oc.env:HOME}", "a' seed=3 'b", "a b, {c: [d"])
def test_a_text_of_a_checkpoint_is_nothing_but_a_text(text: str, stranger: Path) -> None:
    forge(stranger, data={"name": "folder", "_target_": "dsgd.data.image_folder.ImageFolder", "root": text})
    result = call(f"resume={stranger}", "data.augment=false")
    assert result.status == 2
    assert len(result.err.splitlines()) == 1
    assert str(Path.home()) not in result.err


def test_an_algorithm_from_a_folder_of_configurations_goes_on(stranger: Path) -> None:
    Path("conf/algo").mkdir(parents=True)
    Path("conf/algo/mine.yaml").write_text("_target_: nets.Mine\nshare: 0.5\n")
    line = ["--config-dir", "conf", *LINE, "algo=mine"]
    folder = kept(*line)
    refused(call(f"resume={folder}"), "algo._target_", "nets.Mine")
    refused(call(*line, f"resume={folder}", "algo.share=0.25"), "algo.share", "0.5")
    own = [*line, "engine.keep_checkpoint=true"]
    for words in (["resume_trusted=true"], own, [*own, "resume=auto", f"hydra.run.dir={folder}"]):
        result = call(*words, *([] if "resume=auto" in words else [f"resume={folder}"]))
        assert result.status == 0, result.err
        (folder / "summary.json").unlink()


def test_what_an_interrupted_run_prints_goes_on_with_it(tmp_path: Path) -> None:
    """The command is of a run that this user has just made, of code that he named."""
    (tmp_path / "nets.py").write_text(MODULE)
    (tmp_path / "conf/algo").mkdir(parents=True)
    (tmp_path / "conf/algo/mine.yaml").write_text("_target_: nets.Mine\n")
    words = [*LINE, "budget.steps=null", "budget.epochs=3000", "algo=mine", "hydra.run.dir=run"]
    line, record = f"dsgd-run --config-dir conf {shlex.join(words)}", tmp_path / "run"
    ended = signalled(line, tmp_path, record, lambda: lines(record) > 1, signal.SIGINT, PYTHONPATH=".")
    assert ended.returncode == 130, ended.stderr
    command = ended.stdout.splitlines()[-1].partition("resume with: ")[2]
    assert shlex.split(command) == ["dsgd-run", f"resume={record}", "resume_trusted=true"]
