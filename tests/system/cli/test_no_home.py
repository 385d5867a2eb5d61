"""A user without a home folder and without an entry in the password database, as containers have it: everything works,
or ends in one line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.command import PATIENCE_S, environment, typed

HOMES = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")
NOBODY = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
RUN = "dsgd-run nodes=2 budget.steps=3 cluster.gradient_s=0.01 hydra.run.dir=run"


def homeless(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Type a line as a user whom the system does not know."""
    known = {name: value for name, value in environment().items() if name not in HOMES}
    return subprocess.run(
        [*NOBODY, *typed(line)], cwd=folder, env=known, capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.fixture(scope="module", autouse=True)
def _needs_user_namespaces() -> None:
    if subprocess.run([*NOBODY, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine makes no user namespaces")


@pytest.mark.parametrize("options", ["engine=dist", "wandb.mode=offline wandb.timeout_s=60"])
def test_runs_work(options: str, tmp_path: Path) -> None:
    result = homeless(f"{RUN} {options}", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("options", "path", "given"),
    [
        ("""data=cifar10 'data.root="~/images"'""", "data.root", "~/images"),
        ("data=imagenet-like model=resnet18", "the default of data.path", "~/.cache"),
    ],
)
def test_a_path_below_a_home_is_refused_in_one_line(options: str, path: str, given: str, tmp_path: Path) -> None:
    result = homeless(f"{RUN} {options}", tmp_path)
    rule = f"{path} must be a path without ~ where there is no home folder, got {given}\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", rule)
    assert not (tmp_path / "run").exists()
