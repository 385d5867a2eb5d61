"""Hold local SGD against all-reduce SGD: python -m pytest test_local_sgd.py"""

from pathlib import Path

import pytest

import dsgd

HERE = Path(__file__).parent
SETTING = ("nodes=4", "engine=sim", "cluster.gradient_s=1ms", "budget.epochs=2", "precision=fp64")


def run(folder: Path, *overrides: str) -> float:
    """Return the test loss at the end of a run."""
    return dsgd.run([*SETTING, *overrides], folder=folder, config_dir=HERE / "conf").final("test_loss")


def test_an_average_in_every_step_is_all_reduce_sgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))  # where the run finds local_sgd.py
    every_step = run(tmp_path / "local_sgd", "algo=local_sgd", "algo.tau=1")
    assert every_step == pytest.approx(run(tmp_path / "sync", "algo=sync"), rel=1e-9)
