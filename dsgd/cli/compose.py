"""Overrides to resolved configurations, by Hydra's compose API, with errors of one line and near names. Without torch.

Hydra composes and nothing else: `hydra.main` would compose every run again, and print errors of its own.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hydra import initialize_config_module
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.completion_plugin import CompletionPlugin
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from dsgd.cli.arguments import BY_NODE, RUN_FOLDER, SWEEP_FOLDER, as_typed, check_hydra, key_of, one_line, open_mappings
from dsgd.cli.folders import remove_empty
from dsgd.cli.wrong_keys import misplaced, suggestion, unknown_choice, without_value
from dsgd.report.units import without_units
from dsgd.runner.configuration import KEYS, SweepOptions
from dsgd.runner.plan import Plan
from dsgd.runner.values import CHOSEN, ConfigError, build, convert, locate, shown, with_numbers

if TYPE_CHECKING:
    from dsgd.engines.dist.launch.agreement import Joined

GROUPS = (*CHOSEN, "experiment")
CONFIG_MODULE, CONFIG_NAME, VERSION_BASE = "dsgd.conf", "config", "1.3"
HEADER = 512  # characters of a file in which Hydra looks for its package


@dataclass
class Job:
    """One run of a command line.

    values: its configuration, resolved. overrides: the user's overrides for it. folder: folder of its record, in a
    sweep below the sweep's. top: folder of the sweep, or of a single run. timed: the name of `top` has the time.
    at_once: number of parallel jobs of the sweep, from `sweep.jobs`; None for auto. label: its difference from the
    other jobs. plan: set by the check; None after it: the run has ended. standing: the nearest folder that existed
    before."""

    values: dict[str, Any]
    overrides: list[str]
    folder: Path
    top: Path
    label: str = ""
    timed: bool = False
    at_once: int | None = 1
    plan: Plan | None = None
    standing: Path | None = None
    joined: Joined | None = None

    @property
    def typed(self) -> dict[str, str]:
        """Return {key: value} of the user's overrides, as typed."""
        return dict(text.lstrip("+").split("=", 1) for text in self.overrides if "=" in text)

    def remove_empty(self) -> None:
        """Remove the folder if it is empty, and the folders above it that did not exist before."""
        remove_empty(self.folder, self.standing or self.folder)


class UserFolder(SearchPathPlugin):
    """Adds a folder to the configurations that Hydra finds, before the package's."""

    path: ClassVar[str | None] = None  # of the tree that is being made

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.path is not None:
            search_path.prepend("command-line", self.path, SearchPathQuery(provider="schema"))


class UserFiles(FileConfigSource):
    """The configuration files of a folder. A byte-order mark at the beginning, as editors write it on Windows, does not
    hide `# @package _global_`."""

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        try:
            result = super().load_config(config_path)
            with path.open(encoding="utf-8-sig") as file:
                result.header = self._get_header_dict(file.read(HEADER))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be a text file in UTF-8, got other bytes") from error
        return result


class ConfigTree:
    """The configuration files: the package's own, and a folder of the user's. loader: Hydra's loader. groups: names of
    the groups of files. config_name: the primary file."""

    def __init__(self, config_dir: str | None = None, config_name: str = CONFIG_NAME) -> None:
        """Raises ConfigError if there is no such folder."""
        if config_dir is not None and not os.path.isdir(config_dir):
            raise ConfigError(f"--config-dir must be a folder, got {config_dir}")
        if config_dir is not None:
            Plugins.instance().register(UserFolder)
            UserFolder.path = f"file://{Path(config_dir).resolve()}"
        Plugins.instance()  # which has Hydra's own reader by now
        SourcesRegistry.instance().types[UserFiles.scheme()] = UserFiles
        try:
            with initialize_config_module(CONFIG_MODULE, version_base=VERSION_BASE):
                self.loader: ConfigLoader = GlobalHydra.instance().config_loader()
        finally:
            UserFolder.path = None
        self.groups = {*GROUPS, *self.loader.list_groups("")} - {"hydra"}
        self.config_name = config_name
        self._parsed: dict[str, Override] = {}  # the jobs of a sweep have most overrides in common
        # by the files that overrides choose, pickled: copies of a configuration would take six times as long
        self._composed: dict[tuple[str, ...], bytes] = {}

    def choices(self, group: str) -> list[str]:
        """Return the names of the files of a group."""
        return self.loader.get_group_options(group)

    def load(self, overrides: Sequence[str]) -> DictConfig:
        """Compose the configuration of a command line, not yet resolved. Raises ConfigError."""
        overrides = open_mappings(overrides)
        for override in self.parse(overrides):
            if override.is_sweep_override():
                raise ConfigError(f"{override.key_or_group} must be one value, got {override.get_value_string()}")
        try:
            config = self.loader.load_configuration(self.config_name, overrides, RunMode.RUN)
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ConfigError(self._explained(error, overrides)) from error
        except RecursionError as error:
            raise ConfigError("the configuration must not be so deep, got lists or mappings in hundreds") from error
        for group in ("hydra/launcher", "hydra/sweeper"):
            if config.hydra.runtime.choices[group] != "basic":  # in a file of the user's
                check_hydra(group)
        return config

    def text(self, overrides: Sequence[str], resolve: bool) -> str:
        """Return the configuration of a run as YAML. resolve: replace interpolations by their values. Raises
        ConfigError."""
        config = self.load(overrides)
        try:
            keys = [str(key) for key in config if key != "hydra"]
            return OmegaConf.to_yaml(OmegaConf.masked_copy(config, keys), resolve=resolve)
        except OmegaConfBaseException as error:
            raise ConfigError(_reason(error)) from error

    def complete(self, overrides: Sequence[str]) -> None:
        """Print a shell's code for completing command lines, or its completions of a typed line. Raises ConfigError.

        overrides: install=SHELL, uninstall=SHELL or query=SHELL."""
        known: list[Any] = Plugins.instance().discover(CompletionPlugin)
        plugins = {plugin.provides(): plugin for plugin in known}
        action, _, shell = " ".join(overrides).partition("=")
        if action not in ("install", "uninstall", "query") or shell not in plugins:
            rule = f"install=SHELL, uninstall=SHELL or query=SHELL of {', '.join(sorted(plugins))}"
            raise ConfigError(f"--shell-completion must be followed by {rule}, got {' '.join(overrides) or 'nothing'}")
        plugin = plugins[shell](self.loader)
        if action == "query":
            plugin.query(self.config_name)
        else:
            getattr(plugin, action)()

    def jobs(self, overrides: Sequence[str], multirun: bool, between: Callable[[], object] = lambda: None) -> list[Job]:
        """Return every run of a command line: one, or the runs of a sweep. Raises ConfigError.

        between: called before each job of a sweep; its exceptions end this."""
        for override in self.parse(overrides):
            key, swept = override.key_or_group, override.is_sweep_override()
            if key.startswith("sweep.") and not multirun:
                raise ConfigError(f"sweep.jobs must be given with a sweep (-m) only, got {override.input_line}")
            if swept and not multirun:
                rule = f"{key} must be one value without -m (multirun), got {override.get_value_string()}"
                raise ConfigError(f"{rule}; add -m to run every one of them")
            if swept and key.startswith("sweep."):
                raise ConfigError(f"{key} must be one value, got {override.get_value_string()}")
        if not multirun:
            return [_job(self.load(overrides), overrides)]
        if not (jobs := self.grid(overrides, (), between)):
            raise ConfigError(f"a sweep must have at least one run, got none from {' '.join(overrides)}")
        return jobs

    def grid(
        self, overrides: Sequence[str], hydra: Sequence[str], between: Callable[[], object] = lambda: None
    ) -> list[Job]:
        """Return the runs of a grid. hydra: overrides of Hydra's own keys, including the folder. between: called before
        each job. Raises ConfigError."""
        parsed = self.parse(overrides)
        hydra = [*(str(override.input_line) for override in parsed if override.is_hydra_override()), *hydra]
        jobs, first = list[Job](), None
        for number, point in enumerate(self._points([item for item in parsed if not item.is_hydra_override()])):
            between()
            config = self._point([*hydra, *point])
            first = config if first is None else first
            OmegaConf.copy_cache(from_config=first, to_config=config)  # ${now:...} is the same for all
            jobs.append(_job(config, point, number))
        return jobs

    def _points(self, overrides: Sequence[Override]) -> list[list[str]]:
        """Return the overrides of every point of a grid, as Hydra's own sweeper orders them."""
        choices: dict[str, list[str]] = {}
        for override in overrides:
            key = override.get_key_element()
            if override.is_discrete_sweep():
                choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            elif override.is_sweep_override():
                raise ConfigError(f"{key} must be a list of values to sweep over, got {override.get_value_string()}")
            else:
                choices[key] = [f"{key}={override.get_value_element_as_str()}"]
        return [list(point) for point in itertools.product(*choices.values())]

    def _point(self, overrides: Sequence[str]) -> DictConfig:
        """Return the result of `load`, for one of many command lines: composing the chosen files takes most of the time
        and is done once. Raises ConfigError."""
        choosing, setting = [], []
        for override in self.parse(overrides):
            key = override.key_or_group
            plain_value = override.type is OverrideType.CHANGE and override.package is None and key not in self.groups
            (setting if plain_value and not key.startswith("hydra") else choosing).append(override)
        choice = tuple(str(override.input_line) for override in choosing)
        if choice not in self._composed:
            self._composed[choice] = pickle.dumps(self.load(choice))
        config: DictConfig = pickle.loads(self._composed[choice])
        try:
            for override in setting:
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException:
            return self.load(overrides)  # which raises a clear error
        if "override_dirname" in str(OmegaConf.to_container(config.hydra.sweep, resolve=False)):
            return self.load(overrides)  # only Hydra knows this name
        return config

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Parse overrides by Hydra's grammar. Raises ConfigError."""
        overrides = open_mappings(overrides)
        try:
            new = [text for text in dict.fromkeys(overrides) if text not in self._parsed]
            parser = OverridesParser.create(config_loader=self.loader)
            self._parsed.update(zip(new, parser.parse_overrides(new), strict=True))
            parsed = [self._parsed[text] for text in overrides]
        except RecursionError as error:
            longest = max(overrides, key=len)
            raise ConfigError(f"an override must not be so deep, got {shown(longest)}") from error
        except OverrideParseException as error:
            if text := without_value(as_typed(str(error.override)), {group: self.choices(group) for group in GROUPS}):
                raise ConfigError(text) from error
            reason = error.message.partition("\n")[0]
            rule = "an override must be key=value, with quotes around unusual characters, as in \"key='Größe 1'\""
            raise ConfigError(f"{rule}, got {as_typed(str(error.override))} ({reason})") from error
        for override in parsed:
            key = override.key_or_group
            if override.is_hydra_override():
                check_hydra(key)
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

    def _explained(self, error: Exception, overrides: Sequence[str]) -> str:
        """Return why Hydra does not compose overrides, in one line that names the key, with near names for unknown
        ones."""
        if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
            group, _, choice = error.missing_cfg_file.rpartition("/")
            return unknown_choice(group, choice, error.options)
        if isinstance(error, MissingConfigException) and error.missing_cfg_file == self.config_name:
            return f"--config-name must be a configuration there is, got {self.config_name}"
        parsed = self.parse(overrides)
        with suppress(HydraException, OmegaConfBaseException, YAMLError, ValueError):  # of a choice, or of a file
            choices = [str(item.input_line) for item in parsed if _chooses(item)]
            if text := misplaced(parsed, self.loader.load_configuration(self.config_name, choices, RunMode.RUN)):
                return text
        return _reason(error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error)


def _chooses(override: Override) -> bool:
    """Return whether an override chooses a file of a group that every run has."""
    return override.type is OverrideType.CHANGE and override.key_or_group in GROUPS and override.package is None


def _reason(error: BaseException) -> str:
    """Return the text of an error in one line, with the key at the front, which OmegaConf names last."""
    if not isinstance(error, OmegaConfBaseException) or not error.full_key:
        return one_line(error)
    message, _, _ = str(error).partition(f"\n    full_key: {error.full_key}")
    return f"{error.full_key}: {one_line(message)}"


def options_of(cls: Any, group: str, overrides: Sequence[str], config_dir: str | None, file: str) -> dict[str, Any]:
    """Return the values of a group of options of a command, not of a run: `compare` or `slurm`.

    cls: dataclass of its options. overrides: `GROUP.KEY=VALUE`, each with one value, or `GROUP=CHOICE` if the primary
    `file` has choices. Raises ConfigError."""
    tree, fields = ConfigTree(config_dir, file), list(cls.__dataclass_fields__)
    for override in overrides:
        key = key_of(override).removeprefix(f"{group}.").partition(".")[0]
        if key not in fields and not (key == group and group in tree.groups):
            near = suggestion(key, fields, f"{group}.")
            raise ConfigError(f"{group}.{key} is not a key of {group}{near or '; it has ' + ', '.join(fields)}")
    for parsed in tree.parse(overrides):
        if parsed.is_sweep_override():
            raise ConfigError(f"{parsed.key_or_group} must be one value, got {parsed.get_value_string()}")
    return plain(tree.load(overrides)).get(group) or {}


def composed(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """Return the resolved configuration as plain values, with the `name` of every chosen group in it.

    config_dir: a folder of the user's own configuration files, also searched. Raises ConfigError."""
    return plain(ConfigTree(config_dir).load(overrides))


def _job(config: DictConfig, overrides: Sequence[str], number: int | None = None) -> Job:
    """Return one run. number: number of a job in a sweep, None for a single run. Raises ConfigError."""
    values, hydra = plain(config), config.hydra
    key = RUN_FOLDER if number is None else SWEEP_FOLDER
    try:
        if number is None:
            top, path = hydra.run.dir, hydra.run.dir
        else:
            hydra.job.num = number
            top, path = hydra.sweep.dir, hydra.sweep.dir and f"{hydra.sweep.dir}/{hydra.sweep.subdir}"
    except OmegaConfBaseException as error:
        raise ConfigError(_reason(error)) from error
    if not path:
        raise ConfigError(f"{key} must be a folder, got {path!r}")
    convert(path, str, key)
    folders: Any = OmegaConf.to_container(hydra.run if number is None else hydra.sweep, resolve=False)
    timed, at_once = "${now:" in str(folders["dir"]), 1 if number is None else _at_once(config)
    return Job(values, list(overrides), Path(path), Path(top), timed=timed, at_once=at_once)


def _at_once(config: DictConfig) -> int | None:
    """Return the value of `sweep.jobs`, None for auto. Raises ConfigError."""
    values: Any = config.get("sweep", {})
    try:
        values = OmegaConf.to_container(values, resolve=True) if OmegaConf.is_config(values) else values
    except OmegaConfBaseException as error:
        raise ConfigError(_reason(error)) from error
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
        raise ConfigError(_reason(error)) from error
    except ValueError as error:  # a unit that is not the key's
        raise ConfigError(str(error)) from error
    for key in BY_NODE:  # {3: 2.0} of a file and .3=4 of the command line are one node's
        group, _, name = key.partition(".")
        if isinstance(values.get(group), dict) and isinstance(values[group].get(name), dict):
            values[group][name] = with_numbers(values[group][name])
    for group, choice in config.hydra.runtime.choices.items():
        if group in GROUPS and isinstance(values.get(group), dict):
            if values[group].get("name", choice) != choice and "_target_" in values[group]:
                _check_name(values[group], group, choice)
            values[group] = {"name": choice, **values[group]}  # model=torchvision has its own name
    return values


def _check_name(values: Mapping[str, Any], group: str, choice: str) -> None:
    """Raise ConfigError for a name that a record would show instead of the choice, if the group has no such key."""
    cls = locate(values["_target_"], group)
    if "name" not in cls.__dataclass_fields__:
        raise ConfigError(
            f"{group}.name is not a key of {cls.__name__}, which {group}={choice} names, got {shown(values['name'])}"
        )
