"""A key is declared by two lines: its default and effect in conf/, its type, limits and words in its dataclass."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support.command import environment

ROOT = Path(__file__).parents[3]
IN_CONF = "break_s: 0.02  # seconds that a node rests after each gradient\n"
IN_CLASS = '    break_s: Annotated[float, Key("breaks of {}", SECONDS, axis="length of a break")] = 0.02\n'
RUN = "nodes=2 engine=sim engine.gradients=none cluster.gradient_s=10ms budget.epochs=null budget.steps=2"
RUN += " eval.every_epochs=null hydra.run.dir=run"
PROGRAM = f"""
import sys
from dsgd.cli.plot import main as plot
from dsgd.cli.run import main as run
from dsgd.report.units import quantity
from scripts.reference_pages import keys_page

assert run(["--help"]) == 0
print(keys_page())
print("axis:", quantity("cluster.break_s", ["0.001", "0.002"]).label)
for value in ("-1", "3GB", "50ms"):
    print(f"exit status {{run([f'cluster.break_s={{value}}', *'{RUN}'.split()])}}", file=sys.stderr)
assert plot(["run", "--y", "time_s", "--x", "nodes", "--out", "figures"]) == 0
"""


def test_help_errors_units_captions_and_the_reference_page_follow_from_two_lines(tmp_path: Path) -> None:
    """In a copy of the package, to which the two lines are added."""
    nothing_compiled = shutil.ignore_patterns("__pycache__")
    for folder in ("conf", "dsgd", "scripts", "tests/support", "tests/engine/oracles"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=nothing_compiled)
    (tmp_path / "dsgd" / "conf").symlink_to(tmp_path / "conf")
    with (tmp_path / "conf" / "cluster" / "gigabit.yaml").open("a") as file:
        file.write(IN_CONF)
    source = tmp_path / "dsgd" / "cluster" / "__init__.py"
    source.write_text(source.read_text().replace("    gradient_of: str", f"{IN_CLASS}    gradient_of: str", 1))

    words = [sys.executable, "-c", PROGRAM]
    variables = environment(PYTHONPATH=str(tmp_path), MPLBACKEND="Agg")
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    effect = "seconds that a node rests after each gradient"
    assert " ".join(f"cluster.break_s = 0.02 # {effect}".split()) in " ".join(done.stdout.split())
    assert f"| `cluster.break_s` | `0.02` | {effect} |\n" in done.stdout
    assert "axis: length of a break (ms)\n" in done.stdout
    assert "cluster.break_s must be in [0, 1e+09], got -1.0\nexit status 2\n" in done.stderr
    assert "cluster.break_s must be in s, got 3GB; like 10ms or 5min\nexit status 2\n" in done.stderr
    assert done.stderr.count("exit status 0\n") == 1
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["cluster"]["break_s"] == 0.05
    (setting,) = (tmp_path / "figures").glob("*.setting.json")
    assert "; breaks of 50 ms; " in json.loads(setting.read_text())["setting"]
