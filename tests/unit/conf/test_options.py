"""The public list of options: a script that names one of them must go on working, so a change is made on purpose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dsgd.cli.compose import GROUPS
from dsgd.runner.values import locate
from tests.support.choices import choice
from tests.support.command import call
from tests.support.simulate import tree

CONF = Path(__file__).parents[3] / "conf"
INTERPOLATED = ("algo=asyncdiloco", "algo.slow_nodes=${cluster.slow_nodes}")
LIST = Path(__file__).parent / "options.txt"
CHOSEN = {
    ("cifar100", "classes"),
    *((name, "collection") for name in ("mnist", "kmnist", "emnist")),
    *(("emnist", "subset"), ("imagenet", "path")),
}


def options() -> str:
    """Every key of the command line: those of every run, then those that come with each choice of a group."""
    everywhere = OmegaConf.to_container(tree().load([]))
    assert isinstance(everywhere, dict)
    found = [key for name, value in everywhere.items() if name not in (*GROUPS, "hydra") for key in keys(name, value)]
    for group in GROUPS:
        for path in sorted((CONF / group).glob("*.yaml")):
            found.append(f"{group}={path.stem}")
            if group != "experiment":
                chosen = keys(group, choice(group, path.stem))
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


@pytest.mark.parametrize("group", ["algo", "data", "topology", "optimizer", "cluster"])
def test_the_defaults_of_a_class_are_those_of_its_file(group: str) -> None:
    """`dsgd.torch.distribute` makes algorithms and topologies of their classes, without the files."""
    for path in sorted((CONF / group).glob("gigabit.yaml" if group == "cluster" else "*.yaml")):
        values = choice(group, path.stem)
        cls = locate(values.pop("_target_"), group)
        for field in dataclasses.fields(cls):
            if field.name in values and values[field.name] != "???" and (path.stem, field.name) not in CHOSEN:
                default = field.default_factory() if callable(field.default_factory) else field.default
                if default is dataclasses.MISSING:  # always given
                    continue
                assert (path.stem, field.name, values[field.name]) == (path.stem, field.name, default)


def test_help_names_every_group_and_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("--help")
    assert result.status == 0
    for group in GROUPS:
        choices = ", ".join(sorted(path.stem for path in (CONF / group).glob("*.yaml")))
        assert f"\n{group}: {choices}\n" in result.out
    assert "dsgd-run resume=" in result.out
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_can_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = OmegaConf.create(call("algo=easgd", "nodes=5", "--cfg", "job").out)
    assert (shown.nodes, shown.algo.tau) == (5, 10)
    assert "\n  slow_nodes: ${cluster.slow_nodes}\n" in call("--cfg", "job", *INTERPOLATED).out
    assert "\n  slow_nodes: null\n" in call("--cfg", "job", *INTERPOLATED, "--resolve").out
    assert call("--cfg", "job", "model=import").status == 0  # what must still be given may be missing here
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":
    print(options(), end="")
