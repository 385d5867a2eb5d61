"""Read the methods of a command line of dsgd-replay, and write the command that compares them by training."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence

from dsgd.cli.arguments import key_of
from dsgd.cli.compose import ConfigTree
from dsgd.comparison.entries import literal
from dsgd.runner.values import ConfigError

SIZES = ("model", "parameters", "precision")  # of a message


def read_overrides(
    overrides: Sequence[str], config_dir: str | None = None, traced_steps: int | None = None
) -> tuple[list[str], int, list[str]]:
    """Return the methods of a command line, as `diloco tau=30`, the number of steps, and the other overrides.

    An option like algo.tau=10,30 is one of each method that has it, and each of its values makes a method of its own.
    traced_steps: number of steps without another one. Raises ConfigError."""
    kept = {name: [text for text in overrides if key_of(text) == name] for name in ("algo", "steps")}
    given = [text for text in overrides if key_of(text).startswith("algo.")]
    others = [text for text in overrides if text not in (*kept["algo"], *kept["steps"], *given)]
    if traced_steps is not None and not kept["steps"]:
        kept["steps"] = [f"steps={traced_steps}"]
    for name, example in (("algo", "algo=sync,diloco"), ("steps", "steps=3000")):
        if len(kept[name]) != 1:
            raise ConfigError(f"{name} must be given once, like {example}, got {' '.join(kept[name]) or 'none'}")
    text = kept["steps"][0].partition("=")[2]
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"steps must be an integer >= 1, got {text}")
    tree = ConfigTree(config_dir)
    ((_, algos),) = _choices(tree, kept["algo"])
    having = {algo: tree.load([f"algo={algo}"])["algo"] for algo in algos}
    choices = _choices(tree, given)
    for key, _ in choices:
        if not any(key.split(".")[1] in keys for keys in having.values()):
            raise ConfigError(f"{key} must be a key of a method, which it is not of {', '.join(algos)}")
    methods = list[str]()
    for algo, keys in having.items():
        of_algo = [(key, values) for key, values in choices if key.split(".")[1] in keys]
        points = itertools.product(
            *([f"{key.removeprefix('algo.')}={value}" for value in values] for key, values in of_algo)
        )
        methods += [" ".join([algo, *point]) for point in points]
    return methods, int(text), others


def _choices(tree: ConfigTree, overrides: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the values of each key, as typed."""
    choices = list[tuple[str, list[str]]]()
    for override in tree.parse(overrides):
        values = override.sweep_iterator() if override.is_discrete_sweep() else [override.value()]
        choices.append((override.key_or_group, list(map(literal, values))))
    return choices


def compare_command(methods: Sequence[str], others: Sequence[str], config_dir: str | None) -> str:
    """Return the command that compares methods by training. others: other overrides of the command line."""
    contenders = []
    for method in methods:
        algo, *options = method.split()
        keys = [f"algo.{option.replace('=', ': ', 1)}" for option in options]
        contenders.append(f"{{{', '.join([f'algo: {algo}', *keys])}}}")
    folder = [] if config_dir is None else ["--config-dir", config_dir]
    shared = [text for text in others if key_of(text) not in SIZES]
    shared = [f"cluster.{text}" if key_of(text) == "gradient_s" else text for text in shared]
    command = ["dsgd-compare", *folder, *shared, f"compare.contenders=[{', '.join(contenders)}]"]
    return f"{shlex.join(command)} model=MODEL data=DATA target.accuracy=0.9"
