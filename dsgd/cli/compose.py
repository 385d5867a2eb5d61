"""Hydra's part: overrides to resolved configurations, with errors of one line and near names. Does not import torch."""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dsgd.cli.build import ConfigError

GROUPS = ("algo", "model", "data", "optimizer", "schedule", "cluster", "topology", "engine", "experiment")
CONFIG_MODULE = "dsgd.conf"


def points(overrides: Sequence[str], multirun: bool) -> list[list[str]]:
    """The overrides of every job: one, or with multirun the product of all sweeps. Raises ConfigError."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(
            f"the command line must be a list of key=value, got {' '.join(overrides)} ({one_line(error)})"
        ) from error
    choices: list[list[str]] = []
    for override, text in zip(parsed, overrides, strict=True):
        if override.is_sweep_override():
            if not multirun:
                key, value = override.get_key_element(), override.get_value_string()
                raise ConfigError(f"{key} must be one value without -m (multirun), got {value}")
            choices.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([text])
    return [list(point) for point in itertools.product(*choices)]


def composed(overrides: Sequence[str], config_dir: str | None = None) -> tuple[dict[str, Any], DictConfig]:
    """The resolved configuration as plain values with the `name` of every chosen group in it, and Hydra's own part.

    config_dir: a folder of the user's own configuration files, searched besides. Raises ConfigError."""
    search = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        try:
            check_choices(overrides, GlobalHydra.instance().config_loader(), search)
            config = compose("config", [*search, *overrides], return_hydra_config=True)
            return plain(config), config.hydra
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(explained(error, overrides, search)) from error


def plain(config: DictConfig) -> dict[str, Any]:
    """Plain values of everything but Hydra's own part, each group with the name of its choice."""
    own = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
    for key in sorted(OmegaConf.missing_keys(own)):
        raise ConfigError(f"{key} must be given, got nothing")
    values = OmegaConf.to_container(own, resolve=True)
    assert isinstance(values, dict)
    for group, choice in config.hydra.runtime.choices.items():
        if group in GROUPS and isinstance(values.get(group), dict):
            values[group] = {"name": choice, **{k: v for k, v in values[group].items() if k != "name"}}
    return {str(key): value for key, value in values.items()}


def check_choices(overrides: Sequence[str], loader: ConfigLoader, search: list[str]) -> None:
    """Every group=choice must name a file there is; the message lists the near ones."""
    del search  # Hydra finds the user's own folders only while composing, and then reports by itself
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group = override.key_or_group
        if group not in GROUPS or not isinstance(override.value(), str) or override.is_delete():
            continue
        known = loader.get_group_options(group)
        choice = str(override.value())
        if choice not in known and not any("searchpath" in text for text in overrides):
            raise ConfigError(f"{group}: no {choice!r}{suggestion(choice, known)} ({', '.join(known)})")


def explained(error: Exception, overrides: Sequence[str], search: list[str]) -> str:
    """Hydra's message in one line that names the key, with near names for unknown keys."""
    text = one_line(error)
    found = re.search(r"Could not (?:override|append to config|delete from config)[. ]*(?:.*?)'([\w./@]+)'", text)
    if not found:
        return text
    key = found.group(1)
    chosen = [override for override in overrides if re.match(r"(\w+)=", override) and override.split("=")[0] in GROUPS]
    keys = flat_keys(plain(compose("config", [*search, *chosen], return_hydra_config=True)))
    return f"{key} is not a key of the configuration{suggestion(key, keys)}"


def suggestion(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    near = near or [name for name in known if name.split(".")[-1] == word.split(".")[-1]][:3]
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def flat_keys(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for key, value in values.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            keys += flat_keys(value, f"{prefix}{key}.")
    return keys


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def check_writable(folder: Path) -> None:
    """Raise ConfigError unless the folder could be made and written; leaves nothing behind."""
    made: list[Path] = []
    try:
        for path in [*reversed(folder.parents), folder]:
            if not path.exists():
                path.mkdir()
                made.append(path)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"hydra.run.dir must be a folder that can be written, got {folder} ({error.strerror})"
        ) from error
    finally:
        for path in reversed(made):
            path.rmdir()


def keys_given(overrides: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(overrides))
