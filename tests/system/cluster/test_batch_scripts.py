"""scripts/slurm: SLURM accepts every file, and what they start are complete runs."""

from __future__ import annotations

from pathlib import Path

from dsgd.record.reader import find_runs
from tests.support.command import SCRIPTS
from tests.support.slurm import Slurm

BATCH = Path(__file__).parents[3] / "scripts" / "slurm"
QUADRATIC = ("experiment=quadratic", "budget.steps=10", "eval.every_steps=5")
PATIENCE_S = 120

# options of sbatch, overrides; the algorithm, number of workers and clock of each run
CASES = {
    "one_machine": (["--ntasks=1"], ["engine=sim", "algo=dpsgd", "nodes=4"], [("dpsgd", 4, "virtual")]),
    "several_machines": (["--ntasks-per-node=1"], ["algo=gossip"], [("gossip", 2, "wall")]),
    "array": (["--array=0,3"], [], [("gossip", 2, "wall"), ("sync", 2, "wall")]),
    "preemptible": (["--partition=low"], ["algo=sync"], [("sync", 2, "wall")]),
    "torchrun": ([], ["algo=sync"], [("sync", 4, "wall")]),
}


def test_the_files_start_complete_runs(slurm: Slurm, tmp_path: Path) -> None:
    """All at once: most of the time goes into starting processes."""
    assert {path.stem for path in BATCH.iterdir()} == CASES.keys()
    environment = {**slurm.environment, "PATH": f"{SCRIPTS}:{slurm.environment['PATH']}"}
    jobs = {}
    for name, (options, overrides, _) in CASES.items():
        line = ["sbatch", "--parsable", *options, str(BATCH / f"{name}.sbatch"), *QUADRATIC, *overrides]
        (tmp_path / name).mkdir()
        jobs[name] = slurm.run(*line, cwd=tmp_path / name, env=environment).stdout.strip()
    for name, job in jobs.items():
        tasks = [f"{job}_0", f"{job}_3"] if name == "array" else [job]
        ended = [slurm.wait(task, timeout_s=PATIENCE_S) for task in tasks]
        log = "".join(path.read_text() for path in (tmp_path / name).glob("dsgd-*.log"))
        assert ended == ["COMPLETED"] * len(tasks), log
        runs = find_runs([tmp_path / name / "outputs" / f"slurm-{job}"])
        assert sorted((run.algorithm, run.nodes, run.clock) for run in runs) == CASES[name][2], log
        assert {run.status for run in runs} == {"completed"}
