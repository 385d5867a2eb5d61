"""The mirror in Weights & Biases: works offline, and whatever becomes of it, the run goes on."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgd.cli.compose import composed
from tests.support.command import PATIENCE_S, lines, shell, signalled

pytest.importorskip("wandb", reason="needs wandb: pip install wandb")

RUN = [
    *("algo=gossip", "experiment=quadratic", "nodes=2", "budget.steps=6", "eval.every_steps=2"),
    *("wandb.tags=['the first tag',b]", f"wandb.timeout_s={PATIENCE_S}", "hydra.run.dir=run", "wandb.mode=offline"),
]
# of a machine without network and account; a proxy that is not there fails whatever should try
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "WANDB_API_KEY": ""}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), **NOWHERE}


def test_offline_needs_no_network_and_no_account(variables: dict[str, str], tmp_path: Path) -> None:
    result = shell(f"dsgd-run {shlex.join(RUN)}", tmp_path, **variables)
    assert result.returncode == 0, result.stderr
    assert lines(tmp_path / "run") == 4
    (mirror,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    (said,) = [line for line in result.stderr.splitlines() if "wandb" in line]
    assert said == f"wandb: kept offline; to copy it: wandb sync {mirror.parent}"
    content = mirror.read_bytes()
    axis_of_all = b'*"\x06time_s'
    for text in (b"test_loss", b"consensus_distance", b"bytes_sent_total", b"gossip", b"the first tag", axis_of_all):
        assert text in content


@pytest.mark.parametrize(
    ("options", "name", "group", "entity", "tags"),
    [
        ([], "gossip-4-lr0.05-seed3", "mlp-digits", None, []),
        (["model=import", "model.target=mine.deep"], "gossip-4-lr0.05-seed3", "deep-digits", None, []),
        (["wandb.name=one", "wandb.group=some"], "one", "some", None, []),
        (["wandb.entity=lab", "wandb.tags=[a,b]"], "gossip-4-lr0.05-seed3", "mlp-digits", "lab", ["a", "b"]),
    ],
)
def test_runs_are_told_apart_and_lie_with_those_that_compare(
    options: list[str],
    name: str,
    group: str,
    entity: str | None,
    tags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import wandb

    from dsgd.record.trackers.wandb import init

    config = composed(["algo=gossip", "nodes=4", "optimizer.lr=0.05", "seed=3", "wandb.mode=offline", *options])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(wandb, "init", lambda **arguments: arguments)
    given: Any = init(tmp_path)[0]
    assert (given["name"], given["group"], given["entity"], given["tags"]) == (name, group, entity, tags)


def test_a_run_that_goes_on_has_one_name_in_wandb(variables: dict[str, str], tmp_path: Path) -> None:
    """Interrupted and resumed: both parts carry the same id, so `wandb sync` puts them together."""
    line, record = f"dsgd-run {shlex.join([*RUN, 'budget.steps=3000', 'eval.every_steps=100'])}", tmp_path / "run"
    ended = signalled(line, tmp_path, record, lambda: lines(record) >= 3, signal.SIGINT, **variables)
    assert ended.returncode == 130, ended.stderr
    again = shell(f"dsgd-run resume=run wandb.mode=offline wandb.timeout_s={PATIENCE_S}", tmp_path, **variables)
    assert again.returncode == 0, again.stderr
    ids = [path.name.rpartition("-")[2] for path in (tmp_path / "run" / "wandb").glob("offline-run-*")]
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert ids[0] == (tmp_path / "run" / "wandb-id").read_text().strip()


def test_the_runs_of_a_sweep_are_a_group(variables: dict[str, str], tmp_path: Path) -> None:
    line = shlex.join(["-m", *RUN[:-2], "wandb.mode=offline", "seed=0,1", "hydra.sweep.dir=sweeps/mine"])
    result = shell(f"dsgd-run {line}", tmp_path, **variables)
    assert result.returncode == 0, result.stderr
    mirrors = sorted((tmp_path / "sweeps" / "mine").glob("*/wandb/offline-run-*/run-*.wandb"))
    assert len(mirrors) == 2
    assert all(b"mine" in mirror.read_bytes() for mirror in mirrors)
