"""Defects that are planted in dsgd's device code are found by emulated devices, each by a named check."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command import SCRIPTS
from tests.support.emulated_devices import ROOT, findings_in, with_devices

DEFECTS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("planted_defects.yaml").read_text())
RUN = ("model=mlp", "model.hidden=[8]", "budget.steps=6", "eval.every_steps=3", "engine.device=accelerator")


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str, tmp_path: Path) -> None:
    """A copy of the package has the defect; Python takes it before the one that is installed."""
    defect, findings = DEFECTS[name], tmp_path / "findings"
    shutil.copytree(ROOT / "dsgd", tmp_path / "dsgd")
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    changed = tmp_path / "dsgd" / defect["file"]
    text = changed.read_text()
    assert text.count(defect["line"]) == 1
    changed.write_text(text.replace(defect["line"], defect["instead"]))
    environment = with_devices(findings, EMU_UNPINNED="1")
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    torchrun = [str(SCRIPTS / "torchrun"), f"--nproc-per-node={defect.get('ranks')}", "--no-python"]
    line = [*(torchrun if "ranks" in defect else []), str(SCRIPTS / "dsgd-run"), *RUN, *defect["run"]]
    ended = subprocess.run(line, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert any(defect["finding"] in line for line in findings_in(findings)), (findings_in(findings), ended.stderr)
