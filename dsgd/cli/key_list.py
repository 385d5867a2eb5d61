"""Write the text of dsgd-run --help: flags, groups, and every key with its value and its effect, from the text of the
configuration files."""

from __future__ import annotations

import textwrap
from argparse import SUPPRESS
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from dsgd.cli.arguments import open_mappings, run_parser
from dsgd.cli.compose import ConfigTree

WIDTH, COLUMN = 100, 44  # characters of a line, and before a comment, at most
HEAD = """\
dsgd-run: which way of distributing SGD reaches a given accuracy soonest?

    dsgd-run algo=gossip nodes=32                        one run
    dsgd-run -m algo=sync,gossip nodes=8,16,32           a sweep
    dsgd-run resume=outputs/...                          resume an interrupted run
    dsgd-run algo=easgd --cfg job                        show the configuration, run nothing

A number may carry a unit where its key has one: 10ms, 46.8MB, 64KiB, 1Gbit, 25GB/s.
"""


def help_text(tree: ConfigTree, overrides: Sequence[str]) -> str:
    """Return the text of --help with overrides. Raises ConfigError."""
    config = tree.load(overrides)
    groups = [f"{group}: {', '.join(sorted(tree.choices(group)))}" for group in sorted(tree.groups)]
    keys = key_list(config, files_of(tree.loader, tree.config_name, open_mappings(overrides)))
    flags = [
        f"{', '.join(action.option_strings)}: {action.help}"
        for action in run_parser()._actions
        if action.option_strings and action.help != SUPPRESS
    ]
    heading = "Keys (key=value), their current values and their effects:"
    lines = [HEAD, "Groups (group=choice):", "", *groups, "", heading, "", keys, "", "Flags:", "", *flags]
    return "\n".join(lines)


def key_list(config: DictConfig, files: Iterable[tuple[str, str]]) -> str:
    """Return a line for every key, with its comment, and a heading for every group.

    config: composed configuration. files: package (`algo`, or empty) and text of every file that it is composed of. The
    first comment on a key counts, because later files change values."""
    all_comments: dict[str, str] = {}
    titles: dict[str, str] = {}  # by package: the first lines of the last file
    for package, text in files:
        by_key = comments(text)
        titles[package] = by_key.pop("", "")
        for key, comment in by_key.items():
            all_comments.setdefault(f"{package}.{key}" if package else key, comment)
    choices: Mapping[str, Any] = config.hydra.runtime.choices
    values: Any = OmegaConf.to_container(config)
    blocks = {name: _leaves(name, value) for name, value in values.items() if name != "hydra"}
    single = {name for name, leaves in blocks.items() if name in leaves}  # keys that are in no group
    rows = [len(_row(key, value)) for leaves in blocks.values() for key, value in leaves.items()]
    column = max((length for length in rows if length <= COLUMN), default=0) + 2
    lines = [_title("experiment", choices, titles.get("", "")), ""] if choices.get("experiment") else []
    for name in sorted(blocks, key=lambda name: name not in single):
        if name not in single:
            lines += ["", _title(name, choices, titles.get(name) or all_comments.get(name, ""))]
        for key, value in blocks[name].items():
            lines += _with_comment(_row(key, value), all_comments.get(key, ""), column)
    return "\n".join(lines)


def comments(text: str) -> dict[str, str]:
    """Return the comments of a configuration file by dotted key: behind its value, or in the lines above it. The empty
    key has the first lines of the file.

    A comment behind a value continues in the next lines with a `#` in the same column."""
    lines = text.splitlines()
    root = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode) or not root.value:
        return {}
    first = root.value[0][0].start_mark.line
    by_key = {"": _joined([line for line in lines[:first] if not line.startswith("# @")])}
    read = first  # lines before this one belong to earlier keys
    for key, start, column in _places(root):
        above = start
        while above > read and lines[above - 1].lstrip().startswith("#"):
            above -= 1
        behind = lines[start][column:].lstrip(": ")
        indent = " " * (len(lines[start]) - len(behind)) + "#"
        read = start + 1
        while behind.startswith("#") and read < len(lines) and lines[read].startswith(indent):
            read += 1
        by_key[key] = _joined([*lines[above:start], behind, *lines[start + 1 : read]])
    return by_key


def files_of(loader: ConfigLoader, name: str, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield package and text of each file that a configuration is composed of, without Hydra's own, in their order."""
    for part in loader.compute_defaults_list(name, list(overrides), RunMode.RUN).defaults:
        path = str(part.config_path)
        source = next((source for source in loader.get_sources() if source.is_config(path)), None)
        if source is None or path.startswith("hydra/"):
            continue
        folder = Path(source.path) if source.scheme() == "file" else package_files(source.path)
        yield part.package or "", folder.joinpath(*f"{path}.yaml".split("/")).read_text(encoding="utf-8")


def _places(node: yaml.MappingNode, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield each dotted key with its line and the column behind which its comment begins."""
    for key, value in node.value:
        name, start = f"{prefix}{key.value}", key.start_mark.line
        end = value.end_mark if value.end_mark.line == start else key.end_mark
        yield name, start, end.column
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _places(value, f"{name}.")


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip().lstrip("#").strip() for line in lines if line.strip().startswith("#"))


def _leaves(name: str, value: Any) -> dict[str, Any]:
    """Return the keys of a group with their values; for a key outside of groups, the key itself."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {f"{name}.{key}": inner for key, inner in value.items() if key != "_target_"}


def _title(name: str, choices: Mapping[str, Any], comment: str) -> str:
    """Return the heading of a group: its choice, and the beginning of that file."""
    title = f"{name}={choices[name]}" if name in choices else name
    return textwrap.fill(f"{title}: {comment}" if comment else title, WIDTH)


def _row(key: str, value: Any) -> str:
    """Return a key and its value as one types them, indented."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    plain = text.removesuffix("\n").removesuffix("\n...")
    return f"  {key} = {plain}"


def _with_comment(row: str, comment: str, column: int) -> list[str]:
    """Return the lines of a key: its comment behind the value, if it fits, and below."""
    pieces = [f"# {piece}" for piece in textwrap.wrap(comment, WIDTH - column - 2)]
    if not pieces:
        return [row]
    if len(row) >= column:
        return [row, *(" " * column + piece for piece in pieces)]
    return [row.ljust(column) + pieces[0], *(" " * column + piece for piece in pieces[1:])]
