"""What Hydra offers goes on working: launchers, completion, flags; each job of a sweep is a process of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from dsgd.cli.arguments import _parser
from dsgd.cli.compose import ConfigTree
from dsgd.cli.multirun import needs_hydra
from tests.support.command import call, marks, shell, summary
from tests.support.long import long_but

SWEEP = "algo=sync,gossip experiment=quadratic nodes=2 budget.steps=5"


@pytest.mark.long
def test_a_launcher_plugin_starts_the_jobs(tmp_path: Path) -> None:
    """joblib runs them in processes of its own; the records are those of Hydra's own launcher."""
    assert shell(f"dsgd-run -m {SWEEP} hydra.sweep.dir=own", tmp_path).returncode == 0
    launched = shell(
        f"dsgd-run -m {SWEEP} hydra.sweep.dir=joblib hydra/launcher=joblib hydra.launcher.n_jobs=2", tmp_path
    )
    assert launched.returncode == 0, launched.stderr
    for name in ("0_sync_2", "1_gossip_2"):
        assert summary(tmp_path / "joblib" / name)["status"] == "completed"
        assert marks(tmp_path / "joblib" / name) == marks(tmp_path / "own" / name)


FAILING = """
from dataclasses import dataclass
from dsgd.worker import Algorithm

@dataclass(frozen=True)
class Failing(Algorithm):
    async def train(self, worker):
        if worker.nodes == 3:
            raise RuntimeError("it broke")
        while not worker.done:
            worker.step(await worker.gradient())
"""


@pytest.mark.parametrize("launcher", long_but([""], ["", "hydra/launcher=joblib"]))
def test_a_failed_job_does_not_end_the_others_and_shows_in_the_exit_status(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAILING)
    line = "dsgd-run -m experiment=quadratic ~algo.overlap ~algo.backups ~algo.elastic algo._target_=own.Failing"
    line += " nodes=2,3,4 budget.steps=3"
    swept = shell(f"{line} hydra.sweep.dir=swept {launcher}", tmp_path, PYTHONPATH=str(tmp_path))
    assert swept.returncode == 1, swept.stderr
    assert "RuntimeError: it broke" in swept.stderr
    found = {path.name: summary(path)["status"] for path in (tmp_path / "swept").iterdir() if path.is_dir()}
    assert found == {"0_sync_2": "completed", "1_sync_3": "failed", "2_sync_4": "completed"}


def test_a_bad_configuration_is_found_before_a_launcher_plugin_begins(tmp_path: Path) -> None:
    refused = shell("dsgd-run -m hydra/launcher=joblib algo=gossip algo.tau=1,0 hydra.sweep.dir=swept", tmp_path)
    assert (refused.returncode, refused.stderr) == (2, "algo.tau must be >= 1, got 0\n")
    assert list(tmp_path.iterdir()) == []


CALLBACK = """
from hydra.experimental.callback import Callback

class Noted(Callback):
    def on_job_start(self, config, **given):
        with open("noted.txt", "a") as file:
            print(config.hydra.job.num, file=file)
"""


def test_a_plain_sweep_is_composed_once_and_one_with_callbacks_goes_through_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write the same `multirun.yaml`, apart from what was asked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noting.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(str(tmp_path))
    composed: list[object] = []
    load = ConfigLoaderImpl.load_configuration
    monkeypatch.setattr(
        ConfigLoaderImpl, "load_configuration", lambda *given, **more: composed.append(0) or load(*given, **more)
    )
    line = [*SWEEP.split(), "seed=0,1", "hydra.sweep.dir=swept"]
    assert call("-m", *line).status == 0
    assert len(composed) == 3  # the sweep as a whole, and each algorithm
    plain = (tmp_path / "swept" / "multirun.yaml").read_text()
    shutil.rmtree("swept")
    assert call("-m", *line, "+hydra.callbacks.noted._target_=noting.Noted").status == 0
    assert (tmp_path / "noted.txt").read_text().split() == ["0", "1", "2", "3"]
    asked = (tmp_path / "swept" / "multirun.yaml").read_text()
    asked = asked.replace("    - +hydra.callbacks.noted._target_=noting.Noted\n", "")
    assert asked.replace("callbacks:\n    noted:\n      _target_: noting.Noted\n", "callbacks: {}\n") == plain


def test_a_plain_run_is_composed_once_and_one_with_callbacks_goes_through_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noting_one.py").write_text(CALLBACK.replace("config.hydra.job.num", "1"))
    monkeypatch.syspath_prepend(str(tmp_path))
    composed: list[object] = []
    load = ConfigLoaderImpl.load_configuration
    monkeypatch.setattr(
        ConfigLoaderImpl, "load_configuration", lambda *given, **more: composed.append(0) or load(*given, **more)
    )
    line = ["algo=sync", *SWEEP.split()[1:]]
    first = call(*line, "hydra.run.dir=a/../plain")
    assert (first.status, len(composed)) == (0, 1)
    asked = call(*line, "hydra.run.dir=a/../asked", "+hydra.callbacks.noted._target_=noting_one.Noted")
    assert (asked.status, (tmp_path / "noted.txt").exists()) == (0, True)
    assert first.out == asked.out.replace("asked", "plain")
    assert (tmp_path / "plain" / "config.yaml").read_bytes() == (tmp_path / "asked" / "config.yaml").read_bytes()
    assert marks(tmp_path / "plain") == marks(tmp_path / "asked")
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == sorted(
        path.name for path in (tmp_path / "asked").iterdir()
    )


BROKEN = """
from dataclasses import dataclass
from dsgd.models import MLP

@dataclass(frozen=True)
class Failing(MLP):
    def build(self, input_shape, classes):
        raise {error}("it broke")
"""


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [("RuntimeError", 1, "RuntimeError: it broke"), ("ValueError", 2, "it broke")],
)
def test_an_error_of_a_users_own_code_has_its_traceback(tmp_path: Path, error: str, status: int, line: str) -> None:
    """But for a ValueError in the midst of building a model, which is what models say of wrong options."""
    (tmp_path / "own.py").write_text(BROKEN.format(error=error))
    result = shell(
        "dsgd-run model=mlp model._target_=own.Failing nodes=2 budget.steps=5 cluster.gradient_s=1 hydra.run.dir=run",
        tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert result.returncode == status
    assert result.stderr.splitlines()[-1] == line
    assert ("Traceback" in result.stderr) is (status == 1)


@pytest.mark.parametrize(
    "asked",
    [
        "hydra.verbose=true",
        "hydra.job.chdir=true",
        "hydra.output_subdir=.hydra",
        "hydra/job_logging=default",
        "hydra.job_logging.root.level=INFO",
    ],
)
def test_what_else_hydra_is_asked_for_goes_through_hydra(asked: str) -> None:
    whole = ConfigTree().jobs([*SWEEP.split(), asked], multirun=True).whole
    assert whole is not None
    assert needs_hydra(whole)


def test_a_mode_in_the_configuration_is_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("hydra.mode=MULTIRUN", *SWEEP.split(), "hydra.sweep.dir=swept").status == 0
    assert {path.name for path in (tmp_path / "swept").iterdir()} == {"0_sync_2", "1_gossip_2", "multirun.yaml"}


def test_completion_names_the_choices(tmp_path: Path) -> None:
    line = {"COMP_LINE": "dsgd-run algo=g", "COMP_POINT": "15", "COMP_WORDBREAKS": ""}
    assert shell("dsgd-run -sc query=bash", tmp_path, **line).stdout.split() == ["algo=gossip"]
    assert "dsgd-run" in shell("dsgd-run --shell-completion install=bash", tmp_path).stdout


def test_every_flag_of_hydra_is_known(tmp_path: Path) -> None:
    """The flags are checked before Hydra sees them: a new version may have more."""
    listed = shell("dsgd-run --hydra-help", tmp_path).stdout
    flags = set(re.findall(r"^\s*(--[a-z-]+)", listed, re.MULTILINE))
    assert {"--cfg", "--multirun", "--info"} <= flags
    known = {option for action in _parser()._actions for option in action.option_strings}
    assert flags <= known


DATA = """
import os, threading
from dataclasses import dataclass
from dsgd.data.quadratic import Quadratic

@dataclass(frozen=True)
class Threaded(Quadratic):
    def load(self, *arguments):
        with open("loaded.txt", "a") as file:
            print(os.getpid(), threading.active_count(), file=file)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().load(*arguments)
"""


@pytest.mark.long
def test_a_job_of_a_sweep_inherits_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Threads, say, which a fork would not survive: a job in real processes comes after one in the simulator."""
    (tmp_path / "own.py").write_text(DATA)
    line = (
        "dsgd-run -m engine=sim,dist experiment=quadratic data._target_=own.Threaded nodes=2 budget.steps=3 algo=sync"
    )
    swept = shell(f"{line} hydra.sweep.dir=swept", tmp_path, PYTHONPATH=str(tmp_path))
    assert swept.returncode == 0, swept.stderr
    assert swept.stdout.count("completed") == 2
    (first, one), (second, other) = (line.split() for line in (tmp_path / "loaded.txt").read_text().splitlines())
    assert first != second
    assert one == other == "1"
