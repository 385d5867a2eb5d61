"""What a site is told: its keys, what a point asks for, and the batch script, which bash itself runs here."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dsgd.cli.compose import composed
from dsgd.sweep.manifest import Point, point_of
from dsgd.sweep.site import JobSize, Site, batch_script, directives, job_size

DEFAULTS = Path(__file__).parents[3] / "conf" / "slurm" / "default.yaml"


def point(*overrides: str) -> Point:
    return point_of(composed(overrides), overrides, None)


def test_the_file_of_defaults_has_every_key_with_its_default() -> None:
    assert OmegaConf.to_container(OmegaConf.load(DEFAULTS)) == dataclasses.asdict(Site())


@pytest.mark.parametrize(
    ("overrides", "site", "expected"),
    [
        (["engine=sim", "nodes=1000"], Site(), JobSize(1, 1, 1, 1, 0)),
        (["engine=sim", "engine.threads=4"], Site(gpus_per_task=1), JobSize(1, 1, 1, 4, 1)),
        (["engine=dist", "nodes=8"], Site(), JobSize(8, 8, 1, 1, 0)),
        (["nodes=8", "engine.threads=2"], Site(tasks_per_node=4), JobSize(2, 8, 4, 2, 0)),
        (["engine=dist", "nodes=9"], Site(tasks_per_node=4, gpus_per_task=1), JobSize(3, 9, 4, 1, 4)),
        (["engine=dist", "nodes=3"], Site(tasks_per_node=8, gpus_per_task=2), JobSize(1, 3, 3, 1, 6)),
        (["nodes=2", "algo=easgd", "algo.servers=2"], Site(cpus_per_task=6), JobSize(2, 2, 1, 6, 0)),
    ],
)
def test_a_point_asks_for_its_workers(overrides: list[str], site: Site, expected: JobSize) -> None:
    assert job_size(point(*overrides), site) == expected


def test_what_is_null_is_left_to_the_site() -> None:
    names = {text.partition("=")[0] for text in directives(Site(), JobSize(2, 2, 1, 1, 0), "x")}
    assert names.isdisjoint({"--partition", "--account", "--qos", "--constraint", "--mem", "--gpus-per-node"})
    whole = Site(
        partition="p", requeue=False, warning_s=0, options={"exclusive": True, "licenses": "a:1", "hold": False}
    )
    text = directives(whole, JobSize(2, 4, 2, 1, 2), "x")
    assert {"--partition=p", "--exclusive", "--licenses=a:1", "--gpus-per-node=2", "--no-requeue"} <= set(text)
    assert not [option for option in text if option.startswith(("--signal", "--hold", "--requeue"))]


SRUN = """#!/bin/bash
printf '%s\\n' "$@"
exit 7
"""


def test_the_batch_script_passes_on_every_word(tmp_path: Path) -> None:
    """Whatever is in folders, overrides and the site's own lines; bash runs it, with a program for srun that prints."""
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    odd = point("algo=gossip", "nodes=2", "cluster.slow_nodes={1: 2.5}", "wandb.name='it is $HOME & more'")
    folder = Path("/scratch/größe 2's $x")
    site = Site(setup=["echo set up: $WORD"], environment={"WORD": "a  'b' $c"}, container=["box", "exec", "a b.sif"])
    text = batch_script("name", [point(), odd], folder, job_size(odd, site), site)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-s"], input=text, env={"PATH": path, "SLURM_ARRAY_TASK_ID": "1"}, capture_output=True, text=True
    )
    assert ran.stderr == ""
    assert ran.returncode == 7
    first, *words = ran.stdout.splitlines()
    assert first == "set up: a 'b' $c"
    place = str(folder / odd.folder).replace("'", "\\'")
    passed = ["box", "exec", "a b.sif", "dsgd-run", *odd.overrides, f"hydra.run.dir='{place}'", "resume=auto"]
    assert words == ["--ntasks=2", "--cpus-per-task=1", *passed]
    composed([text for text in passed[4:-1] if "=" in text])  # Hydra takes it


def test_an_array_has_no_other_tasks(tmp_path: Path) -> None:
    text = batch_script("name", [point()], tmp_path, JobSize(1, 1, 1, 1, 0), Site())
    environment = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "1"}
    ran = subprocess.run(["bash", "-s"], input=text, env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (2, "this array has no task 1\n")


@pytest.mark.parametrize(
    ("time", "hours"), [("1:30:00", 1.5), ("100:00:36", 100.01), ("2-0", 48.0), ("1-12:15", 36.25), ("0-01:00:00", 1.0)]
)
def test_the_time_limit_is_read_as_slurm_reads_it(time: str, hours: float) -> None:
    assert Site(time=time).hours == pytest.approx(hours)
