"""The same in separate processes, whose sets and hashes are in another order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from dsgd.engines.sim.simulation import Simulation
from tests.support.cases import ALGORITHMS, prepared

ROOT = Path(__file__).parents[3]
SMALL = ("experiment=quadratic", "nodes=4", "cluster.jitter=0.3", "cluster.message_bytes=1e6")
SMALL += ("cluster.slow_nodes={1: 4.0}", "budget.steps=40", "eval.every_steps=5")


def digests() -> dict[str, str]:
    """Return what every algorithm's marks and summary come to, to the last digit."""
    found = {}
    for algo in ALGORITHMS:
        simulation = Simulation(prepared(*SMALL, f"algo={algo}"))
        marks = list(simulation.run())
        found[algo] = sha256(json.dumps([*marks, simulation.summary()]).encode()).hexdigest()
    return found


def test_two_processes_make_the_same_marks_to_the_last_digit() -> None:
    code = f"import json; from {__name__} import digests; print(json.dumps(digests()))"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, timeout=120)
    assert ended.returncode == 0, ended.stderr.decode()
    assert json.loads(ended.stdout) == digests()
