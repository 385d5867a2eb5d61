"""Parse command lines as far as that needs neither Hydra nor torch, and return the version of the commands."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from dsgd.cluster import Cluster
from dsgd.host.stop import EXIT_CONFIG, EXIT_INTERRUPTED
from dsgd.keys import mappings_in
from dsgd.record.safe_text import for_terminal
from dsgd.runner.values import FLAGS, ConfigError

# mappings with the user's keys: Hydra itself would refuse keys that no file has
_OF_CLUSTER = {f"cluster.{name}": keys for name, keys in mappings_in(Cluster).items()}
BY_NODE = ("algo.slow_nodes", *(key for key, keys in _OF_CLUSTER.items() if keys is int))
FREE = ("model.arguments", "data.arguments", "algo.slow_nodes", *_OF_CLUSTER)
RUN_FOLDER, SWEEP_FOLDER = "hydra.run.dir", "hydra.sweep.dir"
# prefixes of Hydra's keys for the places of records and for composition
OF_HYDRA = (RUN_FOLDER, "hydra.sweep.", "hydra.searchpath", "hydra.job.config.override_dirname")
PLAIN_KEYS = ("topology", "cluster", "schedule", "optimizer", "batch_size")  # without a dot, and not the algorithm's
PLUGINS = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper")


class Parser(argparse.ArgumentParser):
    """A parser that raises ValueError, of one line, for wrong arguments; it does not print its usage or exit.

    Flags may be anywhere between other arguments."""

    _inside = False  # `parse_known_intermixed_args` calls `parse_known_args` for its two passes

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse a command line. Raises ValueError; for a key written as a flag, with the right form."""
        given = sys.argv[1:] if args is None else list(args)
        options, unknown = self.parse_known_args(given, namespace)
        if unknown:
            self.error(unknown_arguments(unknown, given))
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


def command_parser(program: str, description: str | None, epilog: str | None = None) -> Parser:
    """Return the parser of a command, with --version."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=program, description=description, epilog=epilog, formatter_class=form)
    parser.add_argument("--version", action="version", version=version_line())
    return parser


def exit_status(program: str, work: Callable[[], int]) -> int:
    """Return the exit status of a command's work: its own, 2 after one line on stderr, or 130 on Ctrl-C."""
    try:
        return work()
    except ValueError as error:
        print(f"{program}: {one_line(error)}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def unknown_arguments(unknown: Sequence[str], given: Sequence[str]) -> str:
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
    opened_in = [sum((letter in "{[(") - (letter in "}])") for letter in text) for text in overrides]
    for number, text in enumerate(overrides):
        for end in range(number + 2, len(overrides) + 1) if opened_in[number] > 0 else ():
            if sum(opened_in[number:end]) == 0:
                quoted = shlex.quote(as_typed(" ".join(overrides[number:end])))
                raise ConfigError(f"a value with spaces must be in quotes, {quoted}, got {as_typed(text)}")


def version_line() -> str:
    """Return the text of --version, for every command."""
    from importlib.metadata import version  # imports the parsers of e-mails

    return f"dsgd {version('dsgd')}"


def open_mappings(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which free mappings are set as Hydra lets new keys be set, by `++`: as a whole,
    model.arguments={width: 3}, which adds to the keys that are there, or by key, model.arguments.width=3."""
    free = tuple(f"{key}{sign}" for key in FREE for sign in "=.")
    return [f"++{text}" if text.startswith(free) else text for text in arguments]


def key_of(override: str) -> str:
    """Return the key of an override, without a sign before it."""
    return override.lstrip("+").partition("=")[0]


def as_typed(override: str) -> str:
    """Return an override as it was before `open_mappings`."""
    return override.removeprefix("++") if override.startswith(tuple(f"++{key}" for key in FREE)) else override


def full_option(option: str) -> str:
    """Return an option of a method, as `tau=10`, as dsgd-run has it: without a dot it is the algorithm's."""
    key = option.partition("=")[0]
    return option if "." in key or key in PLAIN_KEYS else f"algo.{option}"


class _Withdrawn(argparse.Action):
    """A flag that says what to use instead."""

    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> NoReturn:
        raise ConfigError(f"{option_string} is withdrawn: {FLAGS[str(self.option_strings[0])]}")


def run_parser() -> Parser:
    """Return the parser of dsgd-run, whose errors are one line."""
    parser = Parser(prog="dsgd-run", add_help=False)
    parser.add_argument("overrides", nargs="*")
    add = parser.add_argument
    add("--multirun", "-m", action="store_true", help="a run for each combination of values, as of nodes=2,4 seed=0,1")
    add("--cfg", "-c", choices=["job"], help="job: print the configuration, run nothing")
    add("--resolve", action="store_true", help="with --cfg: print what interpolations come to")
    add("--config-dir", "-cd", help="a folder of your own configuration files")
    add("--config-name", "-cn", default="config", help="the file to begin with, in place of config.yaml")
    add("--shell-completion", "-sc", action="store_true", help="install=bash, and what bash then asks; also zsh, fish")
    add("--version", action="store_true", help="print the version of dsgd")
    add("--help", "-h", action="store_true", help="print this")
    for flag in FLAGS:
        add(flag, nargs="?", action=_Withdrawn, help=argparse.SUPPRESS)
    return parser


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line of dsgd-run. Raises ValueError."""
    options, unknown = run_parser().parse_known_args(arguments)
    if unknown:
        raise ConfigError(unknown_arguments(unknown, arguments))
    if options.multirun and options.cfg:
        raise ConfigError("--cfg must be given without -m, got both")
    check_quotes(options.overrides)
    return options


def check_hydra(key: str) -> None:
    """Raise ConfigError for a key of Hydra's that has no effect here."""
    if key.startswith(PLUGINS):
        rule = "dsgd-run -m runs jobs on this machine, dsgd-sweep on SLURM, and a Python program its own by dsgd.run"
        raise ConfigError(f"{key} is withdrawn: {rule}")
    if not key.startswith(OF_HYDRA):
        rule = f"of Hydra's keys dsgd-run reads {RUN_FOLDER}, {SWEEP_FOLDER} and hydra.sweep.subdir"
        raise ConfigError(f"{key} must not be given: {rule}")


def one_line(error: BaseException | str) -> str:
    return for_terminal(" ".join(str(error).split()))
