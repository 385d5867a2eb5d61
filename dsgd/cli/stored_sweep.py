"""Find the code that a sweep's manifest names, which a stranger may have written: `retry` makes batch scripts of it."""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.cli.arguments import key_of
from dsgd.sweep.manifest import Point

# Keys of `slurm` that run nothing.
HARMLESS = ("partition", "account", "qos", "constraint", "time", "mem", "tasks_per_node", "cpus_per_task")
HARMLESS += ("gpus_per_task", "at_once", "requeue", "warning_s")


def code_of_point(point: Point, slurm_overrides: Sequence[str]) -> str | None:
    """Return what a point would run besides the package, as it stands in the manifest; None if there is nothing.

    slurm_overrides: the `slurm.*` that it was submitted with. Raises ConfigError."""
    from dsgd.cli.compose import ConfigTree, plain
    from dsgd.runner.configuration import code_of

    if point.config_dir is not None:
        return f"--config-dir {point.config_dir}"
    for word in slurm_overrides:
        if key_of(word).removeprefix("slurm.") not in HARMLESS:
            return word
    if flags := [text for text in point.overrides if text.startswith("-")]:
        return flags[0]
    tree = ConfigTree()
    for override in tree.parse(point.overrides):
        if override.key_or_group.partition(".")[0].partition("/")[0] in ("hydra", "resume_trusted"):
            return str(override.input_line)
    code = code_of(plain(tree.load(point.overrides)))
    return next((f"{group}.{key}={value}" for group, values in code.items() for key, value in values.items()), None)
