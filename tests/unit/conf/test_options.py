"""The public list of options: a script that names one of them must go on working, so a change is made on purpose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dsgd.cli.compose import GROUPS, ConfigTree
from tests.support.command import call, shell

CONF = Path(__file__).parents[3] / "conf"
LIST = Path(__file__).parent / "options.txt"


def options() -> str:
    """Every key of the command line: those of every run, then those that come with each choice of a group."""
    tree = ConfigTree()
    everywhere = OmegaConf.to_container(tree.load([]))
    assert isinstance(everywhere, dict)
    found = [key for name, value in everywhere.items() if name not in (*GROUPS, "hydra") for key in keys(name, value)]
    for group in GROUPS:
        for path in sorted((CONF / group).glob("*.yaml")):
            found.append(f"{group}={path.stem}")
            if group != "experiment":
                chosen = keys(group, OmegaConf.to_container(tree.load([f"{group}={path.stem}"])[group]))
                found += [f"    {key}" for key in chosen if not key.endswith(("_target_", ".name"))]
    return "\n".join(found) + "\n"


def keys(name: Any, value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [str(name)]
    return [key for inner, below in value.items() for key in keys(f"{name}.{inner}", below)]


def test_the_options_are_those_of_the_list() -> None:
    assert options() == LIST.read_text(), (
        "the options of the command line have changed; if that is meant, say so in the CHANGELOG, and renew the list: "
        "python -m tests.unit.conf.test_options > tests/unit/conf/options.txt"
    )


def test_help_names_every_group_and_choice(tmp_path: Path) -> None:
    result = shell("dsgd-run --help", tmp_path)
    assert result.returncode == 0
    for group in GROUPS:
        choices = ", ".join(sorted(path.stem for path in (CONF / group).glob("*.yaml")))
        assert f"\n{group}: {choices}\n" in result.stdout
    assert "dsgd-run resume=" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", sorted((CONF / "data").glob("*.yaml")), ids=lambda path: path.stem)
def test_help_says_of_a_choice_what_its_file_says(path: Path) -> None:
    """Its heading begins as the file does, and a key has the comment that stands there."""
    text = path.read_text()
    shown = " ".join(ConfigTree().described([f"data={path.stem}"]).replace("# ", "").split())
    opening = text.splitlines()[0].removeprefix("# ")
    assert f"data={path.stem}: {opening}" in shown
    for comment in re.findall(r"^\w+: .*?# (.*)$", text, re.MULTILINE):
        assert " ".join(comment.split()) in shown


def test_the_configuration_can_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = OmegaConf.create(call("algo=easgd", "nodes=5", "--cfg", "job").out)
    assert (shown.nodes, shown.algo.tau) == (5, 10)
    assert call("--cfg", "job", "--package", "optimizer", "optimizer.lr=0.25").out.splitlines()[2] == "lr: 0.25"
    assert call("--cfg", "job", "model=import").status == 0  # what must still be given may be missing here
    for kind in ("config", "defaults", "defaults-tree", "searchpath", "plugins", "all"):
        assert call("--info", kind).status == 0
    assert list(tmp_path.iterdir()) == []


def test_tab_completion(tmp_path: Path) -> None:
    """Hydra's completion for bash: installs a function for this command, and answers its questions."""
    script = shell("dsgd-run -sc install=bash", tmp_path)
    assert script.returncode == 0
    assert "complete -o nospace -o default -F hydra_bash_completion dsgd-run" in script.stdout
    for typed, wanted in [
        ("dsgd-run algo=g", {"algo=gossip"}),
        ("dsgd-run optimizer.n", {"optimizer.nesterov="}),
    ]:
        answer = shell("dsgd-run -sc query=bash", tmp_path, COMP_LINE=typed, COMP_POINT=str(len(typed)))
        assert set(answer.stdout.split()) == wanted
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":
    print(options(), end="")
