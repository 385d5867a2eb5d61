"""dsgd-run --help says of every key what it does, from the files in which the keys are."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.cases import ALGORITHMS
from tests.support.command import call

OWN = """\
# Averaging of my own, ${nodes} at a time: costs $2.
_target_: own.Mine
tau: 3        # how often, in steps
# a second key,
# told above it
inner: {a: 1}
"""


def keys_of(text: str) -> list[str]:
    """The lines of the help from the first key to the flags."""
    lines = text.splitlines()
    return lines[lines.index("Keys (key=value), their current values and their effects:") : lines.index("Groups:") - 1]


def test_every_key_has_its_value_and_what_it_does() -> None:
    shown = call("--help", "algo=easgd", "algo.tau=4", "cluster=jin2016", "experiment=slow_network")
    assert (shown.status, shown.err) == (0, "")
    lines = [re.sub(" +#", " #", line) for line in shown.out.splitlines()]
    assert f"algo: {', '.join(ALGORITHMS)}" in lines
    assert "--multirun, -m: a run for each combination of values, as of nodes=2,4 seed=0,1" in lines
    for line in (
        "experiment=slow_network: Slow network and one slow node: who waits for whom? The comparison of `make",
        "  nodes = 8 # workers; parameter servers come on top",
        "budget: training ends at the first limit that is reached",
        "  budget.time_s = 4.0 # of the training clock",
        "algo=easgd: Elastic averaging SGD (Zhang et al. 2015): waits for the centre, every tau steps.",
        "  algo.tau = 4 # steps between two exchanges with the centre",
        "  eval.diverged_factor = 1000000.0 # An evaluation whose loss is no number, or above this",
        "  cluster.slow_nodes = {3: 3.0} # factor on the gradient time of single nodes: {3: 2.0}",
    ):
        assert line in lines
    keys = lines[lines.index("Keys (key=value), their current values and their effects:") :]
    listed = keys[: next(i for i, line in enumerate(keys) if line.startswith("Flags"))]
    assert len(listed) > 60
    assert max(map(len, listed)) <= 100


def test_keys_of_files_of_ones_own_are_there(tmp_path: Path) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text(OWN)
    shown = call("--help", "--config-dir", str(tmp_path), "algo=mine", "model=import")
    assert shown.status == 0, shown.err
    for line in (
        "algo=mine: Averaging of my own, ${nodes} at a time: costs $2.",
        "  algo.tau = 3                          # how often, in steps",
        "  algo.inner = {a: 1}                   # a second key, told above it",
        "  model.target = ???                    # package.module.function",
    ):
        assert line in shown.out.splitlines()
