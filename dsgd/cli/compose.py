"""Hydra's part: overrides to resolved configurations, with errors of one line and near names. Does not import torch."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from dsgd.cli.build import ConfigError

GROUPS = ("algo", "model", "data", "optimizer", "schedule", "cluster", "topology", "engine", "experiment")
TRIALS = 20  # of making a folder
CONFIG_MODULE, CONFIG_NAME, VERSION_BASE = "dsgd.conf", "config", "1.3"


@dataclass(frozen=True)
class Job:
    """One run that Hydra would start. values: its configuration, resolved. overrides: what the user gave for it.
    folder: of its record; folder_key: the key that set it."""

    values: dict[str, Any]
    overrides: list[str]
    folder: Path
    folder_key: str


class ConfigTree:
    """The configuration files as `hydra.main` finds them: the package's own, and a folder of the user's besides."""

    def __init__(self, config_dir: str | None = None, config_name: str = CONFIG_NAME) -> None:
        """Raises ConfigError if there is no such folder."""
        search = create_config_search_path(f"pkg://{CONFIG_MODULE}")
        if config_dir is not None:
            if not Path(config_dir).is_dir():
                raise ConfigError(f"--config-dir must be a folder, got {config_dir}")
            path = f"file://{Path(config_dir).resolve()}"
            search.prepend(provider="command-line", path=path, anchor=SearchPathQuery(provider="schema"))
        version.setbase(VERSION_BASE)
        setup_globals()
        self._loader = ConfigLoaderImpl(config_search_path=search)
        self._config_name = config_name
        self._parsed: dict[str, Override] = {}  # the jobs of a sweep have most overrides in common

    def load(self, overrides: Sequence[str], mode: RunMode = RunMode.RUN) -> DictConfig:
        """The configuration of a command line, not yet resolved. Raises ConfigError."""
        try:
            return self._load(overrides, mode)
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ConfigError(self._explained(error, overrides)) from error

    def jobs(self, overrides: Sequence[str], multirun: bool) -> list[Job]:
        """Every run of a command line: one, or those of a sweep in their order. Raises ConfigError."""
        parsed = self.parse(overrides)
        master = self.load(overrides, RunMode.MULTIRUN)
        if not multirun and master.hydra.mode != RunMode.MULTIRUN:
            for override in parsed:
                if override.is_sweep_override():
                    key, value = override.get_key_element(), override.get_value_string()
                    raise ConfigError(f"{key} must be one value without -m (multirun), got {value}")
            return [_job(master, None)]
        swept = [f"{key}={value}" for key, value in (master.hydra.sweeper.get("params") or {}).items()]
        # as typed: an interpolation in them is each job's to resolve
        given = OmegaConf.to_container(master.hydra.overrides, resolve=False)
        assert isinstance(given, dict)
        task = self.parse([*swept, *given["task"]])
        for override in task:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                key, value = override.get_key_element(), override.get_value_string()
                raise ConfigError(f"{key} must be a list of values to sweep over, got {value}")
        points = BasicSweeper.split_arguments(task, max_batch_size=None)[0]
        with contextlib.suppress(OmegaConfBaseException):  # every job reports it again
            OmegaConf.select(master, "hydra.sweep.dir")  # fixes the time of ${now:...}, which all jobs share
        jobs, files = [], {}
        for number, point in enumerate(points):
            config = self._point([*given["hydra"], *point], files)
            OmegaConf.copy_cache(from_config=master, to_config=config)
            jobs.append(_job(config, number))
        return jobs

    def _point(self, overrides: Sequence[str], files: dict[tuple[str, ...], bytes]) -> DictConfig:
        """What `load` gives, for one of many command lines: composing the files that it chooses takes most of the time
        and is done once. files: the configurations so far, pickled (copies of them would take six times as long)."""
        parsed = self.parse(overrides)
        chosen, given = [], []
        for override in parsed:
            key = override.key_or_group
            group = self._loader.repository.group_exists(key) and not isinstance(override.value(), dict)
            (chosen if group or key == "hydra.searchpath" else given).append(override)
        choice = tuple(str(override.input_line) for override in chosen)
        try:
            if choice not in files:
                files[choice] = pickle.dumps(self._load(choice, RunMode.RUN))
            config: DictConfig = pickle.loads(files[choice])
            self._loader._apply_overrides_to_config(given, config)
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ConfigError(self._explained(error, overrides)) from error
        job, task = config.hydra.job, [override for override in parsed if not override.is_hydra_override()]
        config.hydra.overrides.hydra = [override.input_line for override in parsed if override.is_hydra_override()]
        config.hydra.overrides.task = [override.input_line for override in task]
        style = job.config.override_dirname
        job.override_dirname = get_overrides_dirname(task, style.exclude_keys, style.item_sep, style.kv_sep)
        return config

    def _load(self, overrides: Sequence[str], mode: RunMode) -> DictConfig:
        self.parse(overrides)
        return self._loader.load_configuration(self._config_name, list(overrides), mode)

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Overrides as Hydra's grammar has them. Raises ConfigError."""
        try:
            new = [text for text in dict.fromkeys(overrides) if text not in self._parsed]
            parser = OverridesParser.create(config_loader=self._loader)
            self._parsed.update(zip(new, parser.parse_overrides(new), strict=True))
            parsed = [self._parsed[text] for text in overrides]
        except OverrideParseException as error:
            reason = one_line(error).split(" See https:")[0]
            rule = "an override must be key=value, with quotes around unusual characters, as in \"key='Größe 1'\""
            raise ConfigError(f"{rule}, got {error.override} ({reason})") from error
        for override in parsed:
            key = override.key_or_group
            if not key:
                raise ConfigError(f"an override must be key=value, got {override.input_line}")
            several = key == "experiment" and isinstance(override.value(), list)
            named = several or override.is_delete() or override.is_sweep_override() or isinstance(override.value(), str)
            if key in GROUPS and not named:
                raise ConfigError(f"{key} must be the name of one choice, got {override.get_value_string()}")
        return parsed

    def _explained(self, error: Exception, overrides: Sequence[str]) -> str:
        """What Hydra says, in one line that names the key, with near names for unknown ones."""
        if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
            group, _, choice = error.missing_cfg_file.rpartition("/")
            known = error.options
            return f"{group} must be one of {', '.join(known)}, got {choice!r}{suggestion(choice, known)}"
        if isinstance(error, MissingConfigException) and error.missing_cfg_file == self._config_name:
            return f"--config-name must be a configuration there is, got {self._config_name}"
        if isinstance(error.__cause__, OmegaConfBaseException) and not str(error):
            error = error.__cause__  # Hydra's wrapping of it says nothing
        text = one_line(error)
        found = re.match(r"Could not (?:override|append to config|delete from config)[^']*'([^']+)'", text)
        if not found:
            return key_first(text)
        choices = [item for item in self.parse(overrides) if item.key_or_group in GROUPS and item.package is None]
        return unknown_key(found.group(1), self._load([str(item.input_line) for item in choices], RunMode.MULTIRUN))


def composed(overrides: Sequence[str], config_dir: str | None = None) -> tuple[dict[str, Any], DictConfig]:
    """The resolved configuration as plain values with the `name` of every chosen group in it, and Hydra's own part.

    config_dir: a folder of the user's own configuration files, searched besides. Raises ConfigError."""
    config = ConfigTree(config_dir).load(overrides)
    return plain(config), config.hydra


def _job(config: DictConfig, number: int | None) -> Job:
    """number: of a job in a sweep, None for a single run."""
    values, hydra = plain(config), config.hydra
    try:
        if number is None:
            key, path = "hydra.run.dir", hydra.run.dir
        else:
            hydra.job.num = number
            key, path = "hydra.sweep.dir", hydra.sweep.dir and f"{hydra.sweep.dir}/{hydra.sweep.subdir}"
    except OmegaConfBaseException as error:
        raise ConfigError(key_first(one_line(error))) from error
    if not path:
        raise ConfigError(f"{key} must be a folder, got {path!r}")
    return Job(values, list(hydra.overrides.task), Path(path), key)


def plain(config: DictConfig) -> dict[str, Any]:
    """Plain values of everything but Hydra's own part, each group with the name of its choice. Raises ConfigError."""
    values: dict[str, Any] = {}
    try:
        for key in (str(key) for key in config if key != "hydra"):
            value = config[key]
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
            values[key] = value
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} must be given, got nothing") from error
    except OmegaConfBaseException as error:
        raise ConfigError(key_first(one_line(error))) from error
    for group, choice in config.hydra.runtime.choices.items():
        if group in GROUPS and isinstance(values.get(group), dict):
            values[group] = {"name": choice, **values[group]}  # model=torchvision has a name of its own
    return values


def unknown_key(key: str, config: DictConfig) -> str:
    """Says that there is no such key, with near names: first of the same group, then anywhere."""
    parent, _, leaf = key.rpartition(".")
    beside = OmegaConf.select(config, parent) if parent else None
    siblings = [str(name) for name in beside if name != "_target_"] if isinstance(beside, DictConfig) else []
    near = [f"{parent}.{name}" for name in difflib.get_close_matches(leaf, siblings)]
    if near or not siblings:
        keys = [name for name in _flat_keys(OmegaConf.to_container(config)) if not name.startswith("hydra")]
        same_leaf = [name for name in keys if name.rpartition(".")[2] == leaf]
        near = near or same_leaf or difflib.get_close_matches(key, keys)
        return f"{key} is not a key of the configuration{did_you_mean(near)}"
    choice = config.hydra.runtime.choices.get(parent)
    group = f"{parent}={choice}" if choice else parent
    return f"{key} is not a key of the configuration; {group} has {', '.join(siblings)}"


def suggestion(word: str, known: Sequence[str]) -> str:
    return did_you_mean(difflib.get_close_matches(word, known))


def did_you_mean(near: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _flat_keys(values: Any, prefix: str = "") -> list[str]:
    if not isinstance(values, Mapping):
        return []
    keys = [[prefix + key, *_flat_keys(value, f"{prefix}{key}.")] for key, value in values.items() if key != "_target_"]
    return list(itertools.chain(*keys))


def key_first(text: str) -> str:
    """OmegaConf names the key at the end, "... not found full_key: nodes object_type=dict": bring it to the front."""
    message, _, rest = text.partition(" full_key: ")
    return f"{rest.split()[0]}: {message}" if rest else message


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def check_writable(folder: Path, key: str) -> None:
    """Raise ConfigError unless the folder that `key` names could be made and written; leaves nothing behind."""
    for attempt in range(TRIALS):
        made: list[Path] = []
        try:
            for path in [*reversed(folder.parents), folder]:
                if not path.exists():
                    path.mkdir(exist_ok=True)
                    made.append(path)
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
            return
        except OSError as error:
            # jobs that begin at the same time take away the folders above that they made for their trial
            if not isinstance(error, FileNotFoundError) or attempt == TRIALS - 1:
                reason = f"{folder} ({error.strerror})"
                raise ConfigError(f"{key} must be a folder that can be written, got {reason}") from error
        finally:
            for path in reversed(made):
                with contextlib.suppress(OSError):  # somebody else is using it by now
                    path.rmdir()
