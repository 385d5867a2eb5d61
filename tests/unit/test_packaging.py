"""What others build from and cite: the container's recipe and CITATION.cff."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REFERENCE_TYPES = {"article", "conference-paper", "unpublished"}  # of those that CFF 1.2.0 knows


def test_the_citation_has_what_the_format_requires() -> None:
    """Citation File Format 1.2.0: the keys of the file, and those of every reference."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"authors", "message", "title"} <= cited.keys()
    assert cited["type"] == "software"
    assert cited["version"] == PROJECT["project"]["version"]
    assert cited["license"] in PROJECT["project"]["license"]
    for reference in (cited, *cited["references"]):
        assert all({"name"} == author.keys() or "family-names" in author for author in reference["authors"])
    for reference in cited["references"]:
        assert {"authors", "title", "type"} <= reference.keys()
        assert reference["type"] in REFERENCE_TYPES


def test_what_is_cited_is_what_the_algorithms_refer_to() -> None:
    """By its number at arXiv, or its title where it has none."""
    references = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    for algorithm, reference in zip(("gossip", "dpsgd", "delayfree"), references, strict=True):
        text = " ".join((ROOT / "dsgd" / "algorithms" / f"{algorithm}.py").read_text().split())
        assert f"algo={algorithm}" in reference["notes"]
        number = reference.get("doi", "").removeprefix("10.48550/arXiv.")
        assert f"arXiv {number}" in text if number else reference["title"] in text


def test_the_container_has_the_files_that_an_installation_needs() -> None:
    """What it copies is here, and is what packaging, `pip install` and the licence ask for."""
    recipe = (ROOT / "containers" / "dsgd.def").read_text()
    sections = dict(zip(*[iter(re.split(r"^%(\w+)\n", recipe, flags=re.MULTILINE)[1:])] * 2, strict=True))
    copied = dict(line.split() for line in sections["files"].splitlines() if line.strip())
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert all(path == f"/opt/dsgd/{name}" for name, path in copied.items())
    used = {"constraints.txt", "pyproject.toml", "setup.py", "csrc", "dsgd", "conf", PROJECT["project"]["readme"]}
    licences = {name for name in PROJECT["project"]["license-files"] if not name.startswith("dsgd/")}
    assert copied.keys() == used | licences
    assert "--constraint /opt/dsgd/constraints.txt '/opt/dsgd[torchvision,wandb]'\n" in sections["post"]
    lowest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert f"From: python:{lowest}-slim\n" in recipe


def test_the_workflows_call_targets_of_the_makefile() -> None:
    """What CI runs for strangers is what they can type."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)) | {".venv/ready"}
    workflows = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").iterdir()]
    steps = [step for workflow in workflows for job in workflow["jobs"].values() for step in job["steps"]]
    called = {word for step in steps for word in re.findall(r"make (\S+)", step.get("run", ""))}
    assert {"lint", "docs", "dist", "test", "test-all"} <= called <= targets


def test_the_released_version_heads_the_changelog() -> None:
    """Below what is unreleased."""
    released = re.findall(r"^## (\d\S+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert released[0] == PROJECT["project"]["version"]
