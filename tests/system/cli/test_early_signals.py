"""Signals that come early: they end a command whose modules are still imported, and wait while Hydra composes, as
OmegaConf makes another error of an exception in its midst."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dsgd.cli.run import main
from dsgd.host.stop import EXIT_INTERRUPTED, STOP_SIGNALS
from tests.support.command import environment

QUADRATIC = ["experiment=quadratic", "nodes=2", "budget.steps=2"]


@pytest.fixture
def resolved() -> Iterator[list[int]]:
    """Register ${signalled:x}, in whose midst a signal comes; yields every x that it has become."""
    values: list[int] = []

    def signalled(value: int) -> int:
        signal.raise_signal(signal.SIGTERM)
        values.append(value)
        return value

    OmegaConf.register_new_resolver("signalled", signalled)
    yield values
    OmegaConf.clear_resolver("signalled")


@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_what_is_composed_is_composed_to_its_end(tmp_path: Path, resolved: list[int], sweep: list[str]) -> None:
    folders = [f"hydra.run.dir={tmp_path}/records/run", f"hydra.sweep.dir={tmp_path}/records"]
    assert main([*sweep, *QUADRATIC, "seed=${signalled:5}", *folders]) == EXIT_INTERRUPTED
    assert set(resolved) == {5}
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize("module", ["argparse", "ctypes"])  # of a command's; of the first that is imported at all
@pytest.mark.parametrize("command", ["run", "plot", "compare", "reproduce", "sweep", "calibrate", "replay", "certify"])
def test_a_signal_ends_a_command_whose_modules_are_still_imported(command: str, module: str, tmp_path: Path) -> None:
    for number in STOP_SIGNALS if command == "run" else [signal.SIGINT]:
        (tmp_path / f"{module}.py").write_text(f"import signal\nsignal.raise_signal({number})")
        script = f"import sys; from dsgd.cli.commands import {command}; sys.exit({command}())"
        ended = subprocess.run(
            [sys.executable, "-c", script], env=environment(PYTHONPATH=str(tmp_path)), capture_output=True, text=True
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (EXIT_INTERRUPTED, "", "")
