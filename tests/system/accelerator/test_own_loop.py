"""The script that dsgd-compare writes for its winner trains on emulated accelerators as on the CPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from dsgd.cli.compose import composed
from dsgd.cli.own_script import script
from tests.support.command import SCRIPTS
from tests.support.emulated_devices import findings_in, with_devices


@pytest.mark.parametrize("algo", ["sync", "localsgd", "diloco", "delayfree"])
def test_the_written_script_has_the_bits_of_the_cpu(tmp_path: Path, algo: str) -> None:
    """Each rank has a device of its own; without devices the script takes the CPU."""
    text = script(composed([f"algo={algo}", "nodes=2", "batch_size=32", "budget.epochs=2"]), "train.py")
    models = []
    for devices in ("4", "0"):
        folder = tmp_path / devices
        folder.mkdir()
        (folder / "train.py").write_text(text)
        line = [str(SCRIPTS / "torchrun"), "--nproc-per-node=2", "train.py"]
        environment = with_devices(folder / "findings", EMU_DEVICES=devices, EMU_UNPINNED="1")
        ended = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert findings_in(folder / "findings") == []
        saved = (folder / "model.pt").read_bytes()
        assert (b"emu:0" in saved) == (devices == "4")
        models.append(torch.load(folder / "model.pt", map_location="cpu"))
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())
