"""PowerSGD and local SGD are what torch has under these names, at every gradient of every worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.command import PATIENCE_S

CROSSCHECK = Path(__file__).parents[3] / "benchmarks" / "crosscheck.py"


def test_power_sgd_and_local_sgd_are_those_of_torch(tmp_path: Path) -> None:
    line = [sys.executable, str(CROSSCHECK), "--checkouts", str(tmp_path), "powersgd", "localsgd", "post-local"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" torch ") == 3
