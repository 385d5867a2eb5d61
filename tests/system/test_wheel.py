"""The wheel works from an empty folder, with no checkout anywhere near."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

from tests.support.command import PATIENCE_S, environment

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("conf", "csrc", "dsgd", "pyproject.toml", "setup.py", "LICENSE", "README.md")


def built_wheel(copy: Path) -> Path:
    """Build a source distribution from a copy of the sources, and a wheel from it."""
    copy.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "_kernels*"))
        else:
            shutil.copy(source, copy)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S, env=environment())
    (built,) = (copy / "dist").glob("*.whl")
    return built


def archive_text(wheel: Path, name: str) -> str:
    """Return a text of the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (path for path in archive.namelist() if path.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


def check_contents(wheel: Path) -> None:
    """Assert that a wheel holds the package and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name for name in names if not name.startswith("dsgd-")}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "dsgd").rglob("*.py")}
    sources |= {f"dsgd/{path.relative_to(ROOT)}" for kind in ("*.py", "*.yaml") for path in (ROOT / "conf").rglob(kind)}
    kernels = {name for name in packed if name.startswith("dsgd/gradients/_kernels.")}
    assert len(kernels) == (shutil.which("cc") is not None)
    beside = {"dsgd/data/digits.npz", "dsgd/data/digits_licence.txt", "dsgd/py.typed", "dsgd/sweep/job.txt"}
    beside |= {f"dsgd/cli/{name}" for name in ("names_elsewhere.yaml", "own_script.txt")}
    beside |= {f"dsgd/report/{name}" for name in ("figures.mplstyle", "page.html")}
    assert packed == sources | beside | kernels
    metadata = archive_text(wheel, "METADATA")
    assert f"\nVersion: {PROJECT['version']}\n" in metadata
    assert set(re.findall(r"^Provides-Extra: (\S+)$", metadata, flags=re.MULTILINE)) == set(
        PROJECT["optional-dependencies"]
    )
    commands = re.findall(r"^(\S+) = ", archive_text(wheel, "entry_points.txt"), flags=re.MULTILINE)
    assert set(commands) == set(PROJECT["scripts"])
    for licence in ("LICENSE", "dsgd/data/digits_licence.txt"):
        assert any(name.endswith(f".dist-info/licenses/{licence}") for name in names)


def test_the_wheel_holds_the_package_alone_and_runs_where_it_is_installed(tmp_path: Path) -> None:
    wheel = built_wheel(tmp_path / "sources")
    check_contents(wheel)
    venv, work = tmp_path / "venv", tmp_path / "empty"
    work.mkdir()
    steps = [
        [sys.executable, "-m", "venv", "--without-pip", str(venv)],
        [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "--no-deps", str(wheel)],
    ]
    for step in steps:
        subprocess.run(step, check=True, capture_output=True, timeout=PATIENCE_S, env=environment(PIP_NO_INDEX="1"))
    # what it depends on is already here; a path in a .pth file does not bring the editable dsgd with it
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def typed(*line: str, status: int = 0) -> str:
        command = [str(venv / "bin" / line[0]), *line[1:]]
        result = subprocess.run(
            command, cwd=work, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert result.returncode == status, result.stderr
        return result.stdout if status == 0 else result.stdout + result.stderr

    assert typed("python", "-c", "import dsgd; print(dsgd.__file__)").startswith(str(site))
    assert typed("python", "-c", "import dsgd.data.built_in as d; print(len(d.read_digits()[1]))") == "1797\n"
    typed("dsgd-run", "experiment=quadratic", "algo=dpsgd", "nodes=4", "budget.steps=5", "hydra.run.dir=run")
    assert json.loads((work / "run" / "summary.json").read_text())["status"] == "completed"
    assert json.loads((work / "run" / "env.json").read_text())["commit"] is None
    assert "dpsgd" in typed("dsgd-plot", "run", "--out", "figures")
    assert list((work / "figures").glob("*.png"))
    rule = "must be run from a clone of the repository, which has the studies in studies/, got the package"
    assert typed("dsgd-reproduce", "--redraw", status=2) == f"dsgd-reproduce {rule} {site / 'dsgd'}\n"
    assert not (work / "results").exists()
