"""Parse command lines as far as that takes neither Hydra nor torch, and say which version the commands are of."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from dsgd.host.resources import cores
from dsgd.run.values import ConfigError

# mappings whose keys are the user's: Hydra by itself would refuse those that no file has
BY_NODE = ("cluster.slow_nodes", "cluster.node_bandwidth")
FREE = ("model.arguments", "data.arguments", *BY_NODE)


class Parser(argparse.ArgumentParser):
    """A parser that raises ValueError, of one line, for wrong arguments; it does not print its usage or exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def version_line() -> str:
    """Return what every command prints for --version."""
    from importlib.metadata import version  # imports the parsers of e-mails

    return f"dsgd {version('dsgd')}"


def opened(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which free mappings are set as Hydra lets new keys be set, by `++`: as a whole,
    model.arguments={width: 3}, which adds to the keys that are there, or by key, model.arguments.width=3."""
    free = tuple(f"{key}{sign}" for key in FREE for sign in "=.")
    return [f"++{text}" if text.startswith(free) else text for text in arguments]


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse flags and overrides. Raises ConfigError."""
    options, rest = _parser().parse_known_args(arguments)
    if not rest:
        return options
    if any(text.startswith("-") for text in rest):
        raise ConfigError(f"unrecognized arguments: {' '.join(rest)}")
    raise ConfigError(f"every key=value must stand together, before or behind the flags, got {rest[0]} apart from them")


def has_jobs_at_a_time(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for a sweep that uses several cores. Raises ConfigError."""
    options = parsed(arguments)
    instead = options.help, options.hydra_help, options.shell_completion, options.experimental_rerun
    asked = options.multirun and not any((*instead, options.cfg, options.info))
    return asked and "sweep.jobs=1" not in options.overrides and cores() > 1


def _parser() -> argparse.ArgumentParser:
    """Return a parser of Hydra's flags, whose errors are one line."""
    parser = Parser(prog="dsgd-run", add_help=False)
    parser.add_argument("overrides", nargs="*")
    for names in (("--help", "-h"), ("--hydra-help",), ("--version",), ("--resolve",), ("--run", "-r")):
        parser.add_argument(*names, action="store_true")
    for names in (("--multirun", "-m"), ("--shell-completion", "-sc")):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    infos = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=infos)
    for names in (("--package", "-p"), ("--config-path", "-cp"), ("--config-name", "-cn"), ("--config-dir", "-cd")):
        parser.add_argument(*names)
    parser.add_argument("--experimental-rerun")
    return parser


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
