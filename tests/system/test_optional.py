"""The main job needs neither torchvision nor wandb, which are extras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.command import PATIENCE_S, environment

WITHOUT = """
import sys
sys.modules["torchvision"] = sys.modules["wandb"] = None  # what is not installed
from dsgd.cli.run import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_run_needs_no_extra(tmp_path: Path) -> None:
    """wandb.mode=offline without wandb is no failure: the record on disk is complete."""
    line = [
        sys.executable,
        "-c",
        WITHOUT,
        "budget.steps=1",
        "engine=sim",
        "wandb.mode=offline",
        f"hydra.run.dir={tmp_path}",
    ]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, env=environment())
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "completed"
