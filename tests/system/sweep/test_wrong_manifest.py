"""Whatever stands in a manifest, a command ends in one line that names it, or does without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsgd.cli.sweep import main as sweep
from dsgd.sweep.manifest import MANIFEST, locked_sweep, point_of
from tests.support.wrong_json import wrong
from tests.unit.record.test_safe_text import is_calm


def test_a_manifest_with_anything_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"algo": {"name": "sync"}, "nodes": 2, "seed": 0, "engine": {"name": "sim"}}
    point = point_of(config, ["algo=sync", "nodes=2"], None)
    with locked_sweep(tmp_path) as writer:
        writer.points([point])
        writer.submitting("token", [point], ["slurm.partition=cpu"])
        writer.submitted("token", "12")
        writer.cancelled([point])
    path = tmp_path / MANIFEST
    lines = path.read_text().splitlines()
    refused = 0
    for number, line in enumerate(lines):
        for other in wrong(json.loads(line)):
            path.write_text("\n".join([*lines[:number], other, *lines[number + 1 :], ""]))
            for words in (["status", "--points"], ["logs", "*"]):
                status = sweep([*words, "--folder", str(tmp_path)])
                said = capsys.readouterr()
                assert is_calm((said.out + said.err).replace("\n", "")), other
                assert status == 0 or len(said.err.splitlines()) == 1, (other, said.err)
                refused += status == 2
    assert refused > 100
