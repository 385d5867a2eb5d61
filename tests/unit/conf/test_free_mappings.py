"""A mapping whose keys are the user's can be set as a whole and by key, as every other key of the configuration."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsgd.cli.arguments import FREE
from dsgd.cli.compose import GROUPS, composed
from dsgd.runner.configuration import configure
from dsgd.runner.values import locate
from tests.support.choices import choice
from tests.support.each_row import each_row
from tests.support.simulate import tree

CONF = Path(__file__).parents[3] / "conf"
MODEL, DATA = ("model=import", "model.target=torch.nn.Linear"), ("data=import", "data.target=a.b", "data.classes=3")


def is_mapping(hint: Any) -> bool:
    """Whether it is one, or one or nothing; a list of them is set as a whole."""
    options = [hint] if typing.get_origin(hint) is list else [hint, *typing.get_args(hint)]
    return any(issubclass(kind, Mapping) for kind in map(typing.get_origin, options) if isinstance(kind, type))


def test_all_of_them_are_known() -> None:
    found = set()
    for path in CONF.glob("*/*.yaml"):
        group = path.parent.name
        target = choice(group, path.stem).get("_target_") if group in GROUPS and group != "experiment" else None
        if target is not None:
            hints = typing.get_type_hints(locate(target, group))
            found |= {f"{group}.{name}" for name, hint in hints.items() if is_mapping(hint)}
    assert found == set(FREE)


@each_row(
    ("choice", "override", "group", "expected"),
    [
        (MODEL, "model.arguments={width: 3}", "model", {"width": 3}),
        (MODEL, "model.arguments.width=3", "model", {"width": 3}),
        (DATA, "data.arguments={folder: {a: [1]}}", "data", {"folder": {"a": [1]}}),
    ],
)
def test_arguments(choice: tuple[str, ...], override: str, group: str, expected: dict[str, Any]) -> None:
    assert composed([*choice, override])[group]["arguments"] == expected


@each_row(
    ("overrides", "expected"),
    [
        (["cluster.slow_nodes.2=1.5"], {2: 1.5}),
        (["experiment=slow_network", "cluster.slow_nodes={2: 1.5}"], {2: 1.5, 3: 3.0}),
        (["experiment=slow_network", "cluster.slow_nodes.2=1.5"], {2: 1.5, 3: 3.0}),
        (["experiment=slow_network", "cluster.slow_nodes=null"], None),
    ],
)
def test_nodes(overrides: list[str], expected: dict[int, float] | None) -> None:
    assert configure(composed(overrides)).experiment.cluster.slow_nodes == expected


def test_a_sweep_over_them() -> None:
    runs = tree().jobs([*MODEL, "model.arguments={width: 3},{width: 4}", "nodes=2,4"], multirun=True)
    assert [job.values["model"]["arguments"]["width"] for job in runs] == [3, 3, 4, 4]
    runs = tree().jobs(["cluster.slow_nodes={1: 1.0}", "cluster.slow_nodes.1=2,3"], multirun=True)
    assert [job.values["cluster"]["slow_nodes"] for job in runs] == [{1: 2}, {1: 3}]
