"""A stranger's checkpoint leads `resume` to no file, but for data and traces that its configuration names: these are
regular files of bounded size, or end the command in one line."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsgd.record.reader import read_config
from tests.support.command import call
from tests.support.each_row import each_row
from tests.system.cli.test_resume_trust import LINE, forge, kept

opened: list[str] | None = None

NAMED = (("cluster", "compute_trace"), ("cluster", "links"))  # files that a configuration may name


def notice(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what this process opens. A hook cannot be taken away again."""
    if opened is not None and event in ("open", "os.listdir", "os.scandir"):
        opened.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes)) else str(arguments[0]))


sys.addaudithook(notice)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, before = tmp_path_factory.mktemp("run"), Path.cwd()
    os.chdir(folder)
    try:
        return kept(*LINE)
    finally:
        os.chdir(before)


@pytest.fixture
def bait(tmp_path: Path) -> Path:
    folder = tmp_path / "bait"
    folder.mkdir()
    for name in ("sync.yaml", "x.yaml", "config.yaml"):
        (folder / name).write_text("_target_: dsgd.algorithms.sync.Sync\n")
    return folder


def leaves(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def with_value(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    key, *rest = path
    return {**config, key: with_value(config[key], tuple(rest), value) if rest else value}


def test_no_key_and_no_value_leads_to_another_file(run: Path, bait: Path, tmp_path: Path) -> None:
    global opened
    config = {key: value for key, value in read_config(run).items() if key != "resume"}
    target = {"name": "x", "_target_": "dsgd.algorithms.sync.Sync"}
    changes: list[dict[str, Any]] = [{f"{bait}{end}": target} for end in ("", "/", "/x", "/../bait")]
    changes += [{f"../{'../' * 30}{str(bait)[1:]}": target}, {"algo/../../..": target}]
    changes += [with_value(config, path, str(bait / "x.yaml")) for path in leaves(config) if path not in NAMED]
    for change in changes:
        folder = Path(shutil.copytree(run, tmp_path / "copy"))
        forge(folder, **change)
        opened = []
        try:
            result = call(f"resume={folder}")
        finally:
            found, opened = opened, None
        assert [path for path in found if "bait" in path] == [], change
        assert result.status == 0 or (result.status, len(result.err.splitlines())) == (2, 1), result.err
        shutil.rmtree(folder)


def stop(path: Path) -> None:
    os.mkfifo(path)


def swell(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def devour(path: Path) -> None:
    path.symlink_to("/dev/zero")


@each_row("make", [stop, swell, devour])
@pytest.mark.parametrize("key", ["data", "cluster.compute_trace", "cluster.links", "cluster.failures.trace"])
def test_what_a_checkpoint_may_name_is_a_regular_file_of_bounded_size(
    make: Any, key: str, run: Path, tmp_path: Path
) -> None:
    path, folder = tmp_path / "file", Path(shutil.copytree(run, tmp_path / "copy"))
    make(path)
    config = read_config(folder)
    if key == "data":
        text = {"name": "text", "_target_": "dsgd.data.text.Text", "path": str(path)}
        forge(folder, data=text)
    else:
        group, name, *inner = key.split(".")
        value = {inner[0]: str(path)} if inner else str(path)
        forge(folder, **{group: {**config[group], name: value}})
    result = call(f"resume={folder}")
    assert (result.status, len(result.err.splitlines())) == (2, 1), result.err
