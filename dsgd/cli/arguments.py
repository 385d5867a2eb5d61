"""Parse command lines as far as that takes neither Hydra nor torch, and say which version the commands are of."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from dsgd.host.resources import cores
from dsgd.runner.values import ConfigError
from dsgd.safe_text import for_terminal

# mappings whose keys are the user's: Hydra by itself would refuse those that no file has
BY_NODE = ("cluster.slow_nodes", "cluster.node_bandwidth", "algo.slow_nodes")
FREE = ("model.arguments", "data.arguments", "cluster.links", "cluster.failures", *BY_NODE)


class Parser(argparse.ArgumentParser):
    """A parser that raises ValueError, of one line, for wrong arguments; it does not print its usage or exit.

    Flags may stand anywhere between other arguments."""

    _inside = False  # `parse_known_intermixed_args` calls `parse_known_args` for its two passes

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse a command line. Raises ValueError; for a key that is written as a flag it says how a key is given."""
        given = sys.argv[1:] if args is None else list(args)
        options, unknown = self.parse_known_args(given, namespace)
        if unknown:
            self.error(unrecognized(unknown, given))
        return options

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        if self._inside or self._subparsers is not None:  # commands have their own parsers
            return super().parse_known_args(args, namespace)
        self._inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._inside = False


def unrecognized(unknown: Sequence[str], given: Sequence[str]) -> str:
    """Return the error for unknown arguments of a command line."""
    flags = [word for word in unknown if word.startswith("-")]  # others may be values that a key would have
    text = f"unrecognized arguments: {' '.join(flags or unknown)}"
    flag = next((word for word in unknown if word.startswith("--")), None)
    if flag is None:
        return text
    key, _, value = flag.removeprefix("--").partition("=")
    following = given[given.index(flag) + 1 :][:1]
    if not value and following and not following[0].startswith("-") and "=" not in following[0]:
        value = following[0]
    return f"{text}; keys have no dashes: {key}={value or 'VALUE'}"


def check_quotes(overrides: Sequence[str]) -> None:
    """Raise ConfigError for a value that the shell has split at its spaces, as {3: 2.0} without quotes."""
    for number, text in enumerate(overrides):
        for end in range(number + 2, len(overrides) + 1) if _open_brackets(text) > 0 else ():
            whole = " ".join(overrides[number:end])
            if _open_brackets(whole) == 0:
                quoted = shlex.quote(as_typed(whole))
                raise ConfigError(f"a value with spaces must be in quotes, {quoted}, got {as_typed(text)}")


def _open_brackets(text: str) -> int:
    return sum((letter in "{[(") - (letter in "}])") for letter in text)


def version_line() -> str:
    """Return what every command prints for --version."""
    from importlib.metadata import version  # imports the parsers of e-mails

    return f"dsgd {version('dsgd')}"


def opened(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which free mappings are set as Hydra lets new keys be set, by `++`: as a whole,
    model.arguments={width: 3}, which adds to the keys that are there, or by key, model.arguments.width=3."""
    free = tuple(f"{key}{sign}" for key in FREE for sign in "=.")
    return [f"++{text}" if text.startswith(free) else text for text in arguments]


def as_typed(override: str) -> str:
    """Return an override as it was before `opened`."""
    return override.removeprefix("++") if override.startswith(tuple(f"++{key}" for key in FREE)) else override


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse flags and overrides. Raises ConfigError."""
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        raise ConfigError(unrecognized(unknown, arguments))
    check_quotes(options.overrides)
    return options


def together(arguments: Sequence[str]) -> list[str]:
    """Return a command line with its overrides behind each other, as Hydra wants them. Raises ConfigError."""
    overrides = parsed(arguments).overrides
    first = arguments.index(overrides[0]) if overrides else 0
    if list(arguments[first : first + len(overrides)]) == overrides:
        return list(arguments)
    flags = list(arguments)
    for text in overrides:
        flags.remove(text)
    return [*overrides, *flags]


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
    return for_terminal(" ".join(str(error).split()))
