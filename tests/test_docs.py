"""What the documents say is true: their commands are valid, their links and files exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from dsgd.cli import plot
from dsgd.cli.compare import compare_options
from dsgd.cli.compose import ConfigTree
from dsgd.cli.entries import Composer
from dsgd.contest.tuning import middle
from dsgd.run.configuration import configure
from dsgd.run.values import ConfigError

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DOCUMENTS += ["examples/README.md"]
MADE = "results/papers_full"  # by dsgd-reproduce --scale full, on the reader's cluster


def commands(program: str) -> list[list[str]]:
    """The arguments of every command of `program` in an indented block, continued lines joined, comments cut."""
    found = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text().replace("\\\n", " ")
        found += re.findall(rf"^    (?:\$ )?{program} (.+)$", text, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in found]


@pytest.mark.parametrize("arguments", commands("dsgd-run"), ids=" ".join)
def test_every_documented_command_is_a_valid_configuration(arguments: list[str]):
    """Except the one that shows an error, and those that need a run of the reader's own."""
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    if {"--help", "--config-dir"} & set(arguments) or any(text.startswith("resume=") for text in overrides):
        return
    jobs = ConfigTree().jobs(overrides, multirun="-m" in arguments).runs
    if "algo.tau=0" in overrides:
        with pytest.raises(ConfigError, match=r"^algo\.tau must be >= 1, got 0$"):
            configure(jobs[0].values)
        return
    for job in jobs:
        configure(job.values)


@pytest.mark.parametrize("arguments", commands("dsgd-plot"), ids=" ".join)
def test_every_documented_figure_has_valid_options(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The records are the reader's own: the command gets as far as looking for them."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^no run under .*: no such folder$"):
        plot.run(arguments)


def test_the_documents_show_commands():
    """Guards the extraction above: an empty list would test nothing."""
    assert len(commands("dsgd-run")) >= 8
    assert len(commands("dsgd-plot")) >= 1


def test_the_readme_says_where_the_commands_are_before_it_uses_them():
    """The Makefile puts them into .venv; all that pyproject.toml declares are named."""
    text = (ROOT / "README.md").read_text()
    first, rest = text.split("    source .venv/bin/activate\n")
    assert re.findall(r"^    (dsgd-\S+)", first, flags=re.MULTILINE) == ["dsgd-compare"]
    assert "](#two-commands):\n\n    dsgd-compare algo=" in first  # the headline, which leads to the set-up
    assert "\n## Two commands\n" in first
    assert "python3 -m venv .venv" in (ROOT / "Makefile").read_text().replace("$(PYTHON)", "python3")
    commands = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert [name for name in commands if f"`{name}`" not in rest] == []


@pytest.mark.parametrize("arguments", commands("dsgd-compare"), ids=" ".join)
def test_every_documented_comparison_has_contenders(arguments: list[str]):
    words = [argument for argument in arguments if argument.startswith("compare.")]
    overrides = [argument for argument in arguments if not argument.startswith(("-", "compare."))]
    options = compare_options(words)
    composer = Composer(ConfigTree(), options)
    entries = composer.entries(overrides)
    composer.check_conditions(entries, list(options.whatif or {}))
    for entry in entries:
        composer.measuring(entry, middle(entry.axes))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_within_the_project_lead_somewhere(document: str):
    """Relative links and figures exist."""
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text())
    missing = [
        target for target in targets if "://" not in target and not (ROOT / document).parent.joinpath(target).exists()
    ]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_named_in_the_documents_exist(document: str):
    """`dsgd/...`, `tests/...` in backquotes are there."""
    names = re.findall(r"`((?:dsgd|tests|benchmarks|results|docs)/[\w./]+)`", (ROOT / document).read_text())
    missing = {name for name in names if not (ROOT / name).exists() and "mine" not in name} - {MADE}
    assert not missing
