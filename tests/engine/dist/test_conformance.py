"""What algorithms do in real processes: one that keeps step, one that runs freely, one with a server.

`tests/system/dist/test_every_algorithm.py` has those of conf/algo/, `test_divergence.py` how runs diverge."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgd.record.reader import find_runs
from dsgd.report.fields import crossings, target_crossing
from tests.support.cases import prepared
from tests.support.prefork import Prefork, Run
from tests.support.simulate import simulate

NODES = 3
STEPS = 40
QUADRATIC = ("experiment=quadratic", f"nodes={NODES}", "optimizer.lr=0.05", f"budget.steps={STEPS}")
DIST = (*QUADRATIC, "engine=dist", "engine.patience_s=60")
BY_HOST = {"wall_s"}  # of every line of a record, added to what an engine measures
ONLY_DIST = {"workers_lost", "messages_lost", "marks_left_out"}  # of a summary: a simulation loses what it is told to

each_kind = pytest.mark.parametrize("algo", ["delayfree", "gossip", "easgd"])


def completed(prefork: Prefork, folder: Path, *arguments: str) -> Run:
    run = prefork.start(folder, *arguments)
    assert run.wait() == 0, run.err
    assert run.summary["status"] == "completed", run.err
    return run


def is_lockstep(algo: str) -> bool:
    return prepared(*QUADRATIC, f"algo={algo}").algo.lockstep


def assert_sound(marks: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    """What holds in every record of real processes."""
    assert (marks[0]["samples"], marks[0]["time_s"]) == (0, 0)
    for field in ("samples", "time_s", "wall_s", "staleness_max"):
        values = [mark[field] for mark in marks]
        assert values == sorted(values), field
    for mark in marks:
        assert mark["clock"] == "wall"
        assert 0 <= mark["idle_fraction_mean"] <= mark["idle_fraction_max"] <= 1
        assert 0 <= mark["staleness_mean"] <= mark["staleness_max"]
        assert mark["consensus_distance"] <= mark["discrepancy"] / math.sqrt(2) + 1e-12
    assert [mark["bytes_received"] for mark in marks] == [mark["bytes_sent"] for mark in marks]
    assert summary["bytes_received_total"] == summary["bytes_sent_total"]
    assert summary["clock"] == "wall"
    assert summary["samples"] == marks[-1]["samples"]
    for field in ("train_loss", "test_loss", "test_accuracy", "consensus_distance", "discrepancy"):
        assert summary[field] == marks[-1][field]
    assert [summary[field] for field in sorted(ONLY_DIST)] == [0, 0, 0]


def assert_crossings_are_those_of_the_marks(run: Run) -> None:
    """What the summary says of the target is what its report finds."""
    (record,) = find_runs([run.folder])
    chosen, found = target_crossing(record), crossings(record)
    assert found.first is not None
    fields = [run.summary[name] for name in ("time_to_target_s", "target_resolution_s")]
    assert fields == ([None, None] if chosen is None else [chosen.time_s, chosen.resolution_s])
    assert run.summary["first_crossing_s"] == found.first.time_s
    assert run.summary["stable_crossing_s"] == (None if found.stable is None else found.stable.time_s)


def assert_trace_has_disjoint_spans(run: Run, algo: str) -> None:
    """A row for each worker and server, from the start to the end. The gradients of the budget's steps are spans; whose
    they are is free, but in lock-step."""
    servers = prepared(*QUADRATIC, f"algo={algo}").algo.servers
    names: dict[int, str] = {}
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in json.loads((run.folder / "trace.json").read_text())["traceEvents"]:
        if event["ph"] == "M":
            names[event["tid"]] = event["args"]["name"]
        else:
            rows[event["tid"]].append(event)
    gradients: dict[str, int] = {}
    wanted = [f"worker {i}" for i in range(NODES)] + [f"server {i}" for i in range(servers)]
    assert sorted(names.values()) == sorted(wanted)
    end = run.summary["time_s"] * 1e6
    for row, name in names.items():
        spans = sorted(rows[row], key=lambda span: span["ts"])
        assert all(span["dur"] > 0 for span in spans)
        assert spans[0]["ts"] == pytest.approx(0, abs=1)
        assert spans[-1]["ts"] + spans[-1]["dur"] == pytest.approx(end, rel=1e-9)
        for before, after in pairwise(spans):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3
        kinds = [span["cat"] for span in spans]
        assert set(kinds) <= {"compute", "communication", "waiting"}
        if name.startswith("worker"):
            gradients[name] = kinds.count("compute")
    assert sum(gradients.values()) >= STEPS * NODES
    assert min(gradients.values()) >= (STEPS if is_lockstep(algo) else 0)


@each_kind
def test_a_record_has_what_a_simulation_s_has(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    """The same fields at every mark, and in the summary but for three; the configuration; the environment. A budget of
    samples is used up exactly in lock-step.

    Free workers overshoot it: they count their own steps at once and hear of the others' some 20 ms later, so for that
    long all go on, and longer where a process gets no processor. But nobody makes more steps than the whole budget has,
    whatever it hears: that much is certain, and asserted."""
    run = completed(
        prefork, tmp_path / "run", *DIST, f"algo={algo}", "eval.every_steps=4", "data.dim=2000", "trace=true"
    )
    simulated = simulate(*QUADRATIC, f"algo={algo}", "eval.every_steps=20")
    marks, summary = run.marks, run.summary
    assert all(mark.keys() == simulated.marks[0].keys() | BY_HOST for mark in marks)
    assert_sound(marks, summary)
    by_cli = {"wall_s", "config_sha256", "algo", "nodes", "engine", "model", "data", "topology", "seed"}
    by_cli |= {"target_accuracy", "target_loss", "time_model", "error"}
    assert summary.keys() == simulated.summary.keys() | by_cli | ONLY_DIST
    assert (summary["engine"], summary["algo"], summary["error"]) == ("dist", algo, None)
    budget = STEPS * NODES
    if is_lockstep(algo):
        assert [mark["samples"] for mark in marks] == [4 * NODES * i for i in range(11)]
        assert (summary["samples"], summary["steps"]) == (budget, STEPS)
    else:
        assert budget <= summary["samples"] <= NODES * budget
        assert summary["steps"] <= budget
        assert len(marks) >= 2
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["algo"]["name"] == algo
    assert json.loads((run.folder / "env.json").read_text())["python"]
    assert not (run.folder / "checkpoint.pt").exists()
    assert run.out.count("record: ") == 1
    assert_trace_has_disjoint_spans(run, algo)


@pytest.mark.parametrize("algo", ["sync", "gossip"])
def test_a_budget_of_time_ends_at_its_moment_with_marks_at_fixed_times(
    prefork: Prefork, tmp_path: Path, algo: str
) -> None:
    """The last mark is at the limit, the others at multiples of the interval, as far as there was time to ask: on a
    busy machine there may not be any in so short a run."""
    for limit_s in (0.7, 5.1, 30.1):
        options = ("budget.steps=null", f"budget.time_s={limit_s}", "eval.every_steps=null", "eval.every_time_s=0.2")
        run = completed(prefork, tmp_path / f"run of {limit_s}", *DIST, f"algo={algo}", *options)
        assert run.summary["time_s"] == run.marks[-1]["time_s"] == limit_s
        times = [mark["time_s"] for mark in run.marks]
        assert set(times) <= {0.0, *(i * 0.2 for i in range(1, 151)), limit_s}
        assert times == sorted(set(times))
        assert_sound(run.marks, run.summary)
        if len(times) > 2 and run.summary["samples"] > 0:
            return
    raise AssertionError("nothing was measured in 30 s")


def test_a_loss_stops_a_run_and_its_crossing_is_that_of_the_marks(prefork: Prefork, tmp_path: Path) -> None:
    options = ("budget.steps=100000", "eval.every_steps=5", "target.loss=0.5", "target.stop=true", "data.spread=0.1")
    run = completed(prefork, tmp_path / "run", *DIST, "algo=sync", *options)
    losses = [mark["test_loss"] for mark in run.marks]
    assert max(losses[-2:]) <= 0.5 < min(losses[:-2])
    assert run.marks[-3]["time_s"] < run.summary["time_to_target_s"] <= run.marks[-2]["time_s"]
    assert run.summary["target_loss"] == 0.5
    assert_crossings_are_those_of_the_marks(run)


def test_a_sweep_runs_its_jobs_one_after_the_other(prefork: Prefork, tmp_path: Path) -> None:
    """The parent of one run becomes the parent of the next."""
    folder = tmp_path / "swept"
    run = prefork.start(tmp_path / "unused", "-m", *DIST, "algo=sync,gossip", f"hydra.sweep.dir={folder}")
    assert run.wait() == 0, run.err
    assert run.out.count("record: ") == 2
    for name in (f"0_sync_{NODES}", f"1_gossip_{NODES}"):
        summary = json.loads((folder / name / "summary.json").read_text())
        assert (summary["status"], summary["engine"]) == ("completed", "dist")
