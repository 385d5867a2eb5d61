"""Hydra's part: overrides to resolved configurations, with errors of one line and near names. Does not import torch."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra import initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from dsgd.cli import other_names
from dsgd.cli.arguments import BY_NODE, as_typed, one_line, opened
from dsgd.cli.key_list import files_of, key_list
from dsgd.cli.wrong_keys import did_you_mean, key_first, suggestion, unknown_key
from dsgd.report.units import without_units
from dsgd.runner.configuration import KEYS, SweepOptions
from dsgd.runner.values import CHOSEN, ConfigError, build, checked, locate, shown, with_numbers
from dsgd.runner.withdrawn import explained

GROUPS = (*CHOSEN, "experiment")
CONFIG_MODULE, CONFIG_NAME, VERSION_BASE = "dsgd.conf", "config", "1.3"


@dataclass(frozen=True)
class HydraJob:
    """One run that Hydra would start. values: its configuration, resolved. overrides: what the user gave for it.
    folder: of its record; folder_key: the key that set it."""

    values: dict[str, Any]
    overrides: list[str]
    folder: Path
    folder_key: str


@dataclass(frozen=True)
class HydraJobs:
    """The runs of a command line, in their order.

    swept: those of a sweep; none of them is known beforehand with another sweeper than Hydra's own. here: Hydra starts
    them in this process. at_once: how many of a sweep at a time, from `sweep.jobs`; None for auto. folder: of the
    sweep; None if its jobs have several. whole: the configuration of the run, or of the sweep before its points are
    chosen. timed: the folder of the run or sweep has the time in its name."""

    runs: list[HydraJob]
    swept: bool
    here: bool
    at_once: int | None = None
    folder: Path | None = None
    whole: DictConfig | None = None
    timed: bool = False


class UserFolder(SearchPathPlugin):
    """Adds a folder to the configurations that Hydra finds, at the place that --config-dir has in `hydra.main`."""

    path: ClassVar[str | None] = None  # of the tree that is being made: hydra.main adds its folder by itself

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.path is not None:
            search_path.prepend("command-line", self.path, SearchPathQuery(provider="schema"))


class ConfigTree:
    """The configuration files as `hydra.main` finds them: the package's own, and a folder of the user's besides."""

    def __init__(self, config_dir: str | None = None, config_name: str = CONFIG_NAME) -> None:
        """Raises ConfigError if there is no such folder."""
        if config_dir is not None and not os.path.isdir(config_dir):
            raise ConfigError(f"--config-dir must be a folder, got {config_dir}")
        Plugins.instance().register(UserFolder)
        UserFolder.path = None if config_dir is None else f"file://{Path(config_dir).resolve()}"
        try:
            with initialize_config_module(CONFIG_MODULE, version_base=VERSION_BASE):
                self._loader: ConfigLoader = GlobalHydra.instance().config_loader()
        finally:
            UserFolder.path = None
        self._groups = {*GROUPS, *self._loader.list_groups("")}
        self._config_name = config_name
        self._parsed: dict[str, Override] = {}  # the jobs of a sweep have most overrides in common
        # by the files that overrides choose, pickled: copies of a configuration would take six times as long
        self._composed: dict[tuple[str, ...], bytes] = {}

    def choices(self, group: str) -> list[str]:
        """Return the names of the files of a group."""
        return self._loader.get_group_options(group)

    def load(self, overrides: Sequence[str], mode: RunMode = RunMode.RUN) -> DictConfig:
        """Compose the configuration of a command line, not yet resolved. Raises ConfigError."""
        overrides = opened(overrides)
        try:
            return self._load(overrides, mode)
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ConfigError(self._explained(error, overrides)) from error
        except RecursionError as error:
            raise ConfigError("the configuration must not be so deep, got lists or mappings in hundreds") from error

    def described(self, overrides: Sequence[str]) -> str:
        """Return every key of a command line with its value and what it does. Raises ConfigError."""
        config = self.load(overrides)
        return key_list(config, files_of(self._loader, self._config_name, opened(overrides)))

    def jobs(self, overrides: Sequence[str], multirun: bool, between: Callable[[], None] = lambda: None) -> HydraJobs:
        """Return every run of a command line: one, or those of a sweep. Raises ConfigError.

        between: called before each job of a sweep; what it raises ends this."""
        overrides = opened(overrides)
        parsed = self.parse(overrides)
        of_sweep = [override for override in parsed if override.get_key_element().startswith("sweep.")]
        for override in of_sweep:
            if override.is_sweep_override():
                raise ConfigError(f"sweep.jobs must be one value, got {override.get_value_string()}")
        master = self.load(overrides, RunMode.MULTIRUN)
        at_once = _at_once(master)
        hydra = master.hydra
        here = hydra.launcher._target_.endswith(".BasicLauncher")
        if of_sweep and not (here and (multirun or hydra.mode == RunMode.MULTIRUN)):
            rule = "sweep.jobs must be given with a sweep (-m) on this machine only"
            raise ConfigError(f"{rule}, got {of_sweep[0].input_line}")
        if not multirun and hydra.mode != RunMode.MULTIRUN:
            for override in parsed:
                if override.is_sweep_override():
                    key, value = override.get_key_element(), override.get_value_string()
                    rule = f"{key} must be one value without -m (multirun), got {value}"
                    raise ConfigError(f"{rule}; add -m to run every one of them")
            job = _job(master, hydra.overrides.task, None)
            return HydraJobs([job], False, here, whole=master, timed=_is_timed(master, "run"))
        if not hydra.sweeper._target_.endswith(".BasicSweeper"):
            return HydraJobs([], True, here=False)
        with contextlib.suppress(OmegaConfBaseException):  # every job reports it again
            OmegaConf.select(master, "hydra.sweep.dir")  # fixes the time of ${now:...}, which all jobs share
        # as typed: an interpolation in them is each job's to resolve
        given: Any = OmegaConf.to_container(hydra.overrides, resolve=False)
        swept = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
        jobs, folders = [], set()
        for number, point in enumerate(self._points([*swept, *given["task"]])):
            between()
            config = self._point([*given["hydra"], *point])
            OmegaConf.copy_cache(from_config=master, to_config=config)
            jobs.append(_job(config, point, number))
            folders.add(Path(config.hydra.sweep.dir))
        folder = folders.pop() if len(folders) == 1 else None
        return HydraJobs(jobs, True, here, at_once, folder, master, folder is not None and _is_timed(master, "sweep"))

    def grid(self, overrides: Sequence[str], hydra: Sequence[str]) -> list[HydraJob]:
        """Return the runs of a grid, whatever sweep the files ask for. hydra: overrides of Hydra's own keys, the folder
        among them. Raises ConfigError."""
        points = enumerate(self._points(opened(overrides)))
        return [_job(self._point([*hydra, *point]), point, number) for number, point in points]

    def _points(self, overrides: Sequence[str]) -> list[list[str]]:
        """Return the overrides of every point of a grid, as Hydra's own sweeper orders them."""
        choices: dict[str, list[str]] = {}
        for override in self.parse(overrides):
            key = override.get_key_element()
            if override.is_discrete_sweep():
                choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            elif override.is_sweep_override():
                raise ConfigError(f"{key} must be a list of values to sweep over, got {override.get_value_string()}")
            else:
                choices[key] = [f"{key}={override.get_value_element_as_str()}"]
        return [list(point) for point in itertools.product(*choices.values())]

    def _point(self, overrides: Sequence[str]) -> DictConfig:
        """Return what `load` gives, for one of many command lines: composing the files that it chooses takes most of
        the time and is done once. Raises ConfigError."""
        choosing, setting = [], []
        for override in self.parse(overrides):
            key = override.key_or_group
            plain_value = override.type is OverrideType.CHANGE and override.package is None and key not in self._groups
            (setting if plain_value and not key.startswith("hydra") else choosing).append(override)
        choice = tuple(str(override.input_line) for override in choosing)
        if choice not in self._composed:
            self._composed[choice] = pickle.dumps(self.load(choice))
        config: DictConfig = pickle.loads(self._composed[choice])
        try:
            for override in setting:
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException:
            return self.load(overrides)  # which says what is wrong
        if "override_dirname" in str(OmegaConf.to_container(config.hydra.sweep, resolve=False)):
            return self.load(overrides)  # only Hydra knows this name
        return config

    def _load(self, overrides: Sequence[str], mode: RunMode) -> DictConfig:
        self.parse(overrides)
        return self._loader.load_configuration(self._config_name, list(overrides), mode)

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Parse overrides by Hydra's grammar. Raises ConfigError."""
        try:
            new = [text for text in dict.fromkeys(overrides) if text not in self._parsed]
            parser = OverridesParser.create(config_loader=self._loader)
            self._parsed.update(zip(new, parser.parse_overrides(new), strict=True))
            parsed = [self._parsed[text] for text in overrides]
        except RecursionError as error:
            longest = max(overrides, key=len)
            raise ConfigError(f"an override must not be so deep, got {shown(longest)}") from error
        except OverrideParseException as error:
            if text := self._without_value(as_typed(str(error.override))):
                raise ConfigError(text) from error
            reason = one_line(error).split(" See https:")[0]
            rule = "an override must be key=value, with quotes around unusual characters, as in \"key='Größe 1'\""
            raise ConfigError(f"{rule}, got {as_typed(str(error.override))} ({reason})") from error
        for override in parsed:
            key = override.key_or_group
            if not key:
                raise ConfigError(f"an override must be key=value, got {override.input_line}")
            if override.is_delete() and key in KEYS:
                value = "NAME" if key in GROUPS else "VALUE"
                raise ConfigError(f"{key} must be given, got {override.input_line}; {key}={value} changes it")
            several = key == "experiment" and isinstance(override.value(), list)
            named = several or override.is_delete() or override.is_sweep_override() or isinstance(override.value(), str)
            if key in GROUPS and not named:
                raise ConfigError(f"{key} must be the name of one choice, got {override.get_value_string()}")
        return parsed

    def _without_value(self, text: str) -> str:
        """Return the error for a word without `=`, with the group of which it is a choice; empty for anything else."""
        if not re.fullmatch(r"[\w./@-]+", text):
            return ""
        groups = [group for group in GROUPS if text in self.choices(group)]
        way = did_you_mean([f"{group}={text}" for group in groups]) or f"; as in {text}=VALUE"
        return f"an override must be key=value, got {text}{way}"

    def _explained(self, error: Exception, overrides: Sequence[str]) -> str:
        """Return what Hydra says, in one line that names the key, with near names for unknown ones."""
        if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
            group, _, choice = error.missing_cfg_file.rpartition("/")
            known = error.options
            if line := explained(f"{group}={choice}"):
                return line
            named = other_names.method(choice) if group == "algo" else None
            hint = f"; that is algo={named} here" if named else suggestion(choice, known)
            return f"{group} must be one of {', '.join(known)}, got {choice!r}{hint}"
        if isinstance(error, MissingConfigException) and error.missing_cfg_file == self._config_name:
            return f"--config-name must be a configuration there is, got {self._config_name}"
        if isinstance(error.__cause__, OmegaConfBaseException) and not str(error):
            error = error.__cause__  # Hydra's wrapping of it says nothing
        text = one_line(error)
        if "already at" in text or "Multiple values for" in text or "appears more than once" in text:
            for added in self.parse(overrides):
                key = added.key_or_group
                if added.is_add() and re.search(rf"\b{re.escape(key)}\b", text):
                    return f"{key} must be given without +, as it is there already, got {added.input_line}"
        match = re.match(r"Could not (?:override|append to config|delete from config)[^']*'([^']+)'", text)
        if not match:
            return key_first(text)
        choices = [item for item in self.parse(overrides) if item.key_or_group in GROUPS and item.package is None]
        return unknown_key(match.group(1), self._load([str(item.input_line) for item in choices], RunMode.MULTIRUN))


def composed(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """Return the resolved configuration as plain values, with the `name` of every chosen group in it.

    config_dir: a folder of the user's own configuration files, searched besides. Raises ConfigError."""
    return plain(ConfigTree(config_dir).load(overrides))


def _job(config: DictConfig, overrides: Sequence[str], number: int | None) -> HydraJob:
    """Return one run. number: of a job in a sweep, None for a single run. Raises ConfigError."""
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
    checked(path, str, key)
    return HydraJob(values, list(overrides), Path(path), key)


def _is_timed(config: DictConfig, kind: str) -> bool:
    """Return whether the folder of a run or a sweep has the time in its name. kind: run | sweep."""
    folders: Any = OmegaConf.to_container(config.hydra[kind], resolve=False)
    return "${now:" in str(folders["dir"])


def _at_once(config: DictConfig) -> int | None:
    """Return the value of `sweep.jobs`, None for auto. Raises ConfigError."""
    values: Any = config.get("sweep", {})
    try:
        values = OmegaConf.to_container(values, resolve=True) if OmegaConf.is_config(values) else values
    except OmegaConfBaseException as error:
        raise ConfigError(key_first(one_line(error))) from error
    return build(SweepOptions, values, "sweep").at_once


def plain(config: DictConfig) -> dict[str, Any]:
    """Return plain values of everything that decides about a run, each group with the name of its choice, and numbers
    without their units.

    Raises ConfigError."""
    values: dict[str, Any] = {}
    try:
        for key in (str(key) for key in config if key not in ("hydra", "sweep")):
            value = config[key]
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
            values[key] = value
        values = {key: without_units(value, key) for key, value in values.items()}
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} must be given, got nothing") from error
    except OmegaConfBaseException as error:
        raise ConfigError(key_first(one_line(error))) from error
    except ValueError as error:  # a unit that is not the key's
        raise ConfigError(str(error)) from error
    for key in BY_NODE:  # {3: 2.0} of a file and .3=4 of the command line are one node's
        group, _, name = key.partition(".")
        if isinstance(values.get(group), dict) and name in values[group]:
            values[group][name] = with_numbers(values[group][name])
    for group, choice in config.hydra.runtime.choices.items():
        if group in GROUPS and isinstance(values.get(group), dict):
            _check_name(values[group], group, choice)
            values[group] = {"name": choice, **values[group]}  # model=torchvision has a name of its own
    return values


def _check_name(values: Mapping[str, Any], group: str, choice: str) -> None:
    """Raise ConfigError for a name that a record would show in place of the choice, where the group has no such key."""
    name = values.get("name", choice)
    if name == choice or "_target_" not in values:
        return
    cls = locate(values["_target_"], group)
    if "name" not in cls.__dataclass_fields__:
        raise ConfigError(
            f"{group}.name is not a key of {cls.__name__}, which {group}={choice} names, got {shown(name)}"
        )
