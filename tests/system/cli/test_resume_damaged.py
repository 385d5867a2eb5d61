"""A checkpoint that is signed correctly but lacks what a run needs is refused in one line, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dsgd.record.checkpoint_file import write_checkpoint
from dsgd.record.reader import lines_sha256, read_config
from tests.support.command import Result, call

SMALL = ("experiment=quadratic", "nodes=2", "budget.steps=10", "eval.every_steps=5")
PROGRESS = {
    **{"marks": 1, "last_mark": (0.0, 0), "next_samples": 1, "next_time": 1, "first_loss": None},
    **{"recent": [], "first_crossing": None, "last_crossing": None, "smoothed_crossing": None, "last_values": None},
}
VECTOR = torch.zeros(20)
WORKER = {"steps": 0, "counters": {}, "vectors": {"x": VECTOR, "buffers": VECTOR[:0]}, "batches": 0, "rng": {}}
STATES: dict[str, dict[str, Any]] = {
    "sim": {"fingerprint": {"events": 3}, "progress": PROGRESS, "vectors": [VECTOR]},
    "dist": {"time_s": 0.0, "progress": PROGRESS, "next": [1, 1], "lost": [], "workers": [WORKER] * 2, "servers": []},
}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    assert call(*SMALL, "engine=sim", f"hydra.run.dir={folder}").status == 0
    (folder / "summary.json").unlink()
    return folder


def resume(folder: Path, header: dict[str, Any], state: dict[str, Any]) -> Result:
    """What the command says to a checkpoint that is written so."""
    write_checkpoint(folder, header, state)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    result = call(f"resume={folder}")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert result.out == ""
    return result


def header_of(folder: Path, engine: str) -> dict[str, Any]:
    config = {**read_config(folder), "resume": None}
    return {"config": config, "engine": engine, "lines": 1, "lines_sha256": lines_sha256(folder, 1), "wall_s": 0.5}


def without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


def test_a_header(record: Path) -> None:
    for key in ("config", "engine", "lines", "lines_sha256", "wall_s"):
        for wrong in (None, "x", [], True, -1, float("inf")):
            header = header_of(record, "sim")
            if (key, wrong) == ("lines_sha256", "x"):
                continue  # of other lines: test_resume_damaged_marks.py
            header = without(header, key) if wrong is None else header | {key: wrong}
            result = resume(record, header, STATES["sim"])
            assert (result.status, len(result.err.splitlines())) == (2, 1), (key, wrong)
            assert result.err.startswith("resume must be a checkpoint ")
            assert f"{record}/checkpoint.pt" in result.err
            assert key in result.err


def test_the_configuration_in_a_header_is_checked_as_any_other(record: Path) -> None:
    header = header_of(record, "sim")
    for config in ({}, without(header["config"], "nodes"), header["config"] | {"nodes": [1]}):
        result = resume(record, header | {"config": config}, STATES["sim"])
        assert (result.status, len(result.err.splitlines())) == (2, 1)
        assert "nodes must be" in result.err or "must be given" in result.err


@pytest.mark.parametrize("engine", ["sim", "dist"])
def test_a_state(engine: str, record: Path) -> None:
    header = header_of(record, engine)
    header["config"] = header["config"] | {"engine": header["config"]["engine"] | {"name": engine}}
    whole = STATES[engine]
    harms = [(key, without(whole, key)) for key in whole] + [(key, whole | {key: "x"}) for key in whole]
    harms += [("marks", whole | {"progress": {}})]
    if engine == "sim":
        harms += [("events", whole | {"fingerprint": {}}), ("vectors", whole | {"vectors": [3]})]
        harms += [("progress", whole | {"progress": PROGRESS | {"more": 3}})]
    else:
        harms += [(key, whole | {"workers": [without(WORKER, key)] * 2}) for key in WORKER]
        harms += [("x", whole | {"workers": [WORKER | {"vectors": {}}] * 2})]
        harms += [("2 workers", whole | {"workers": [WORKER]})]
        harms += [("vectors", whole | {"servers": [{"counters": {}}]})]
    for key, state in harms:
        result = resume(record, header, state)
        *why, error = result.err.splitlines()
        assert (result.status, len(why)) == (2, 1), (key, result.err)  # which engine, and why
        assert error.startswith("resume must be a checkpoint ")
        assert key in error


def test_automatic_resumption_beside_half_a_summary(record: Path) -> None:
    """There is no checkpoint: whether the run was over cannot be told, and nothing is taken for nothing."""
    (record / "checkpoint.pt").unlink(missing_ok=True)
    (record / "summary.json").write_text('{"status": "compl')
    before = {path.name: path.read_bytes() for path in record.iterdir()}
    result = call(*SMALL, "engine=sim", f"hydra.run.dir={record}", "resume=auto")
    assert (result.status, result.out, result.err) == (2, "", f"{record}/summary.json is not a JSON object\n")
    assert {path.name: path.read_bytes() for path in record.iterdir()} == before
    (record / "summary.json").unlink()
