"""Training on emulated devices comes to the bits that it has on the CPU, with nothing found wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.emulated_devices import findings_in, with_devices

SCRIPT = Path(__file__).with_name("equality.py")


@pytest.fixture(scope="session")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("findings")


@cache
def differences(findings: Path) -> dict[str, list[str]]:
    command = [sys.executable, str(SCRIPT)]
    ended = subprocess.run(command, env=with_devices(findings), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("mixed", ["", " in bfloat16"])
@pytest.mark.parametrize("network", ["mlp", "resnet18", "attention"])
def test_a_network_trains_as_on_the_cpu(network: str, mixed: str, findings: Path) -> None:
    assert differences(findings)[network + mixed] == []
    assert findings_in(findings) == []


def by_ddp(folder: Path, **changes: str) -> list[str]:
    """Return what both processes come to."""
    rendezvous = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command += ["--redirects=3", f"--log-dir={folder / 'logs'}", str(SCRIPT), "ddp"]
    environment = with_devices(folder / "findings", **rendezvous, **changes)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return [path.read_text(encoding="utf-8").strip() for path in sorted(folder.rglob("stdout.log"))]


def test_ddp_comes_to_what_it_does_over_gloo(tmp_path: Path) -> None:
    on_devices = by_ddp(tmp_path / "devices")
    assert on_devices == by_ddp(tmp_path / "cpu", ON_CPU="1")
    assert len(on_devices) == 2
    assert on_devices[0] == on_devices[1] != ""
    assert findings_in(tmp_path / "devices" / "findings") == []
