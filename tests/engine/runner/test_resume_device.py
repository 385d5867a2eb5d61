"""A checkpoint may go on on another type of device, or is refused in one line: its vectors are stored on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgd.cli.compose import composed
from dsgd.record.checkpoint_file import NAME, read_header, read_state, write_checkpoint
from dsgd.runner.resume import has_configuration, resumed
from dsgd.runner.values import ConfigError
from tests.support.command import call, refusal, summary

OPTIONS = ["nodes=2", "model.hidden=[4]", "cluster.gradient_s=0.01", "engine.keep_checkpoint=true"]


def values(*options: str) -> dict[str, Any]:
    return composed(["engine=dist", *options])


def test_the_device_is_the_checkpoint_s_unless_another_one_is_typed() -> None:
    header = {"config": values("engine.device=cuda")}
    assert resumed(values(), ["resume=run"], header)["engine"]["device"] == "cuda"
    typed = ["resume=run", "engine.device=cpu"]
    assert resumed(values("engine.device=cpu"), typed, header)["engine"]["device"] == "cpu"


def test_beside_resume_auto_it_finds_the_run_and_must_be_the_same() -> None:
    header = {"config": values("engine.device=cuda")}
    with pytest.raises(ConfigError) as caught:
        resumed(values("engine.device=cpu"), ["resume=auto", "engine.device=cpu"], header)
    assert str(caught.value) == "engine.device must be 'cuda', as in the checkpoint to resume from, got 'cpu'"


def test_a_run_of_real_processes_from_before_they_had_the_key_goes_on(tmp_path: Path) -> None:
    stored = values()
    del stored["engine"]["device"]
    assert "device" not in resumed(values(), ["resume=auto", "nodes=4"], {"config": stored})["engine"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored))
    assert has_configuration(tmp_path, values())
    assert not has_configuration(tmp_path, values("engine.device=cpu"))


def test_a_simulation_that_names_a_device_which_is_not_here_goes_on_where_it_is_told_to(tmp_path: Path) -> None:
    assert call(*OPTIONS, "engine=sim", "budget.epochs=1", f"hydra.run.dir={tmp_path}/run").status == 0
    header, state = read_header(tmp_path / "run" / NAME), read_state(tmp_path / "run" / NAME)
    header["config"]["engine"]["device"] = header["device"] = "cuda"
    write_checkpoint(tmp_path / "run", header, state)
    line = "engine.device must be cpu or auto where torch has no accelerator, got cuda\n"
    assert refusal(f"resume={tmp_path}/run", "budget.epochs=2") == line
    resumed_run = call(f"resume={tmp_path}/run", "budget.epochs=2", "engine.device=cpu")
    assert resumed_run.status == 0, resumed_run.err
    assert summary(tmp_path / "run")["device"] == "cpu"
