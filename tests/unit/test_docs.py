"""What the documents say is true: their commands are valid, their links and files exist."""

from __future__ import annotations

import re
import runpy
import shlex
import textwrap
import tomllib
from os.path import normpath
from pathlib import Path

import pytest

from dsgd.cli import plot
from dsgd.comparison.entries import Composer
from dsgd.comparison.preparation import compare_options
from dsgd.comparison.tuning import middle
from dsgd.runner.configuration import configure
from dsgd.runner.values import ConfigError
from tests.support.each_row import each_row
from tests.support.simulate import tree, values_of

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DOCUMENTS += ["examples/README.md"]
READERS = ("resume=", "data.root=/data/mine", "data.target=mydata.")  # arguments that name something of the reader's
FOLDERS = ("dsgd", "studies", "tests", "conf", "csrc", "docs", "benchmarks", "scripts", "examples", "results")
TEXTS = {".py", ".yaml", ".c", ".h", ".md", ".sh", ".txt"}
PAGE = rb"\bdocs/[a-z_/]+\.md\b"
MADE = {"results/papers_full", "results/papers/PAPER_real.md"}  # by dsgd-reproduce; PAPER stands for a name


def commands(program: str) -> list[list[str]]:
    """The arguments of every command of `program` in an indented block, continued lines joined, comments cut."""
    found = []
    for document in set(DOCUMENTS) - {"docs/reference/commands.md"}:  # which shows patterns
        text = (ROOT / document).read_text().replace("\\\n", " ")
        found += re.findall(rf"^    (?:\$ )?{program} (.+)$", text, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in found]


@each_row("arguments", commands("dsgd-run"))
def test_every_documented_command_is_a_valid_configuration(arguments: list[str]):
    """Except the one that shows an error, and those that need a run of the reader's own."""
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    if {"--help", "--config-dir", "--version"} & set(arguments) or any(text.startswith(READERS) for text in overrides):
        return
    jobs = tree().grid(overrides, [])
    assert len(jobs) == 1 or "-m" in arguments
    if "algo.tau=0" in overrides:
        with pytest.raises(ConfigError, match=r"^algo\.tau must be >= 1, got 0$"):
            configure(jobs[0].values)
        return
    for job in jobs:
        configure(job.values)


@each_row("arguments", commands("dsgd-plot"))
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
    """make puts them into .venv; the installation page names all that pyproject.toml declares."""
    text = (ROOT / "README.md").read_text()
    before = text.partition("    source .venv/bin/activate\n")[0]
    assert before != text
    assert re.findall(r"^    (dsgd-\S+)", before, flags=re.MULTILINE) == []
    assert "python3 -m venv .venv" in (ROOT / "Makefile").read_text().replace("$(PYTHON)", "python3")
    commands = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    page = (ROOT / "docs" / "howto" / "install.md").read_text()
    assert [name for name in commands if f"`{name}`" not in page] == []


def test_generated_pages_are_current():
    """`make docs` writes them again."""
    pages = runpy.run_path(str(ROOT / "scripts" / "reference_pages.py"))["reference_pages"]()
    folder = ROOT / "docs" / "reference"
    assert [name for name, text in pages.items() if (folder / name).read_text() != text] == []
    assert {path.name for path in folder.glob("algorithms/*")} == {Path(name).name for name in pages if "/" in name}


def test_the_readme_names_every_algorithm():
    names = {path.stem for path in (ROOT / "conf" / "algo").glob("*.yaml")}
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(docs/reference/algorithms/", (ROOT / "README.md").read_text(), flags=re.MULTILINE
    )
    assert sorted(rows) == sorted(names)


def test_the_readme_shows_the_committed_verdict():
    """`make figures` writes it. As a quotation, whose lines a narrow page breaks; code it would cut."""
    verdict = (ROOT / "results" / "compare" / "verdict.txt").read_text().splitlines()[0]
    assert f"> {verdict}" in " ".join((ROOT / "README.md").read_text().split())


@each_row("arguments", commands("dsgd-compare"))
def test_every_documented_comparison_has_contenders(arguments: list[str]):
    words = [argument for argument in arguments if argument.startswith("compare.")]
    overrides = [argument for argument in arguments if not argument.startswith(("-", "compare."))]
    options = compare_options(words)
    composer = Composer(tree(), options)
    entries = composer.entries(overrides)
    composer.check_conditions(entries, list(options.whatif or {}))
    for entry in entries:
        composer.measuring(entry, middle(entry.axes))


@each_row("document", DOCUMENTS)
def test_links_within_the_project_lead_somewhere(document: str):
    """Relative links and figures exist."""
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text())
    paths = {normpath(Path(document).parent / target) for target in targets if "://" not in target}
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


@each_row("document", DOCUMENTS)
def test_files_named_in_the_documents_exist(document: str):
    """`dsgd/...`, `tests/...` in backquotes are there."""
    names = re.findall(r"`((?:dsgd|tests|benchmarks|results|docs)/[\w./]+)`", (ROOT / document).read_text())
    missing = {name for name in names if not (ROOT / name).exists() and "mine" not in name} - MADE
    assert not missing


def test_pages_named_anywhere_exist():
    """In code, comments, configurations and generated pages."""
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS)
    names = {name for path in (*files, *ROOT.glob("[A-Z]*")) for name in re.findall(PAGE, path.read_bytes())}
    assert len(names) > 20
    assert sorted(name for name in {name.decode() for name in names} if not (ROOT / name).exists()) == []


def test_the_tutorial_on_your_model_and_data_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its file and its commands, which are run in that file's folder."""
    page = (ROOT / "docs" / "tutorials" / "model_and_data.md").read_text()
    (file,) = re.findall(r"^Save this as `mine\.py`:\n\n((?:    .*\n|\n)+)", page, flags=re.MULTILINE)
    (tmp_path / "mine.py").write_text(textwrap.dedent(file))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    lines = re.findall(r"^    PYTHONPATH=\. dsgd-(?:run|compare) (.+)$", page.replace("\\\n", " "), flags=re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        overrides = [text.replace("sync,gossip,diloco", "diloco") for text in shlex.split(line)]
        configure(values_of(*overrides))


def test_the_tutorial_on_algorithms_shows_the_example():
    """Class and options are those of examples/own_algorithm, which tests run on both engines."""
    page = (ROOT / "docs" / "tutorials" / "algorithm.md").read_text()
    for file in ("local_sgd.py", "conf/algo/local_sgd.yaml", "test_local_sgd.py"):
        (block,) = re.findall(rf"^Save this as `{file}`:\n\n((?:    .*\n|\n)+)", page, flags=re.MULTILINE)
        example = (ROOT / "examples" / "own_algorithm" / file).read_text()
        shown = textwrap.dedent(block).split("\n")
        missing = [line for line in shown if line and line not in example.split("\n")]
        assert missing == []
