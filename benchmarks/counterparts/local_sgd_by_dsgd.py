"""The task of benchmarks/simulators.py by dsgd-run, whose batches and start the task has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from simulators import OVERRIDES, TAU

rounds = int(os.environ["ROUNDS"])
with tempfile.TemporaryDirectory() as folder:
    command = [Path(sys.executable).with_name("dsgd-run"), *OVERRIDES, f"budget.steps={rounds * TAU}", *sys.argv[1:]]
    subprocess.run([*command, f"hydra.run.dir={folder}/run"], check=True, capture_output=True)
    print(json.dumps({"loss": json.loads(Path(folder, "run", "summary.json").read_text())["test_loss"]}))
