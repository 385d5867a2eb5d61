"""Emulated devices are there in every process of a program, and what is found wrong is not lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.emulated_devices import findings_in, with_devices

IN_CHILDREN = """
import multiprocessing, os, subprocess, sys

def work():
    import torch
    print(torch.ones(3, device="emu:3").sum().item(), flush=True)

if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        import torch
        torch.accelerator.device_count()  # which must not begin the device: a fork could not use it then
        child = multiprocessing.get_context(method).Process(target=work)
        child.start()
        child.join()
    subprocess.run([sys.executable, "-c", "import torch; print(torch.ones(3, device='emu').sum().item())"], check=True)
"""
IN_A_CHILD = """
import multiprocessing, torch

def work():
    side = torch.Stream("emu:0")
    x = torch.ones(3, device="emu:0")
    with side:
        try:
            x.add(1)
        except RuntimeError:
            pass  # as of a thread whose errors nobody reads

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""
SWALLOWED = IN_A_CHILD.partition("if __name__")[0] + "work()\n"
COUNTED = "import torch; print(torch.accelerator.device_count(), torch.accelerator.is_available())"


def run(text: str, folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    environment = with_devices(folder / "findings", **changes)
    return subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)


def test_they_are_there_in_child_processes(tmp_path: Path) -> None:
    ended = run(IN_CHILDREN, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["3.0"] * 4
    assert findings_in(tmp_path / "findings") == []


def test_their_number_is_chosen(tmp_path: Path) -> None:
    assert run(COUNTED, tmp_path, EMU_DEVICES="2").stdout == "2 True\n"
    assert run(COUNTED, tmp_path, EMU_DEVICES="0").stdout == "0 False\n"


def test_a_process_that_swallows_an_error_ends_with_1(tmp_path: Path) -> None:
    ended = run(SWALLOWED, tmp_path)
    assert ended.returncode == 1
    assert "emu: race on Float[3]" in ended.stderr


def test_what_a_child_finds_is_told(tmp_path: Path) -> None:
    assert run(IN_A_CHILD, tmp_path).returncode == 0
    lines = findings_in(tmp_path / "findings")
    assert len(lines) == 1
    assert lines[0].startswith("race on Float[3]")
