"""Make an algorithm of its name and options, as the configuration files have them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import yaml

from dsgd.engines.rules.suitable import why_not
from dsgd.runner.values import ConfigError, build
from dsgd.topology import Topology
from dsgd.worker import Algorithm

TREE = "chain"  # of algorithms whose file chooses a topology
DEFAULT = "ring"


def named_algorithm(
    name: str, options: Mapping[str, Any], topology: str | Mapping[str, Any] | None, nodes: int, seed: int
) -> Algorithm:
    """Return the algorithm `conf/algo/<name>.yaml` with these options. Raises ConfigError.

    topology: name of a file of conf/topology, or its keys with `name`; None: ring, for relay chain. seed: of all that
    is drawn alike in all workers."""
    values = _file("algo", name)
    chooses = values.pop("defaults", None) is not None
    given = {"name": topology or (TREE if chooses else DEFAULT)} if isinstance(topology, str | None) else dict(topology)
    shape = build(None, _file("topology", given.pop("name", DEFAULT)) | given, "topology")
    graph: Topology = shape.build(nodes, seed)
    algo = build(None, values | dict(options), "algo", topology=graph, seed=seed)
    if reason := why_not(algo):
        raise ConfigError(f"algo={name} needs engine=dist, real processes of dsgd-run: {reason}")
    return algo


def _file(group: str, name: str) -> dict[str, Any]:
    """Return the values of a configuration file of the package."""
    folder = files("dsgd.conf") / group
    names = sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))
    if name not in names:
        raise ConfigError(f"{group} must be one of {', '.join(names)}, got {name!r}")
    return yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
