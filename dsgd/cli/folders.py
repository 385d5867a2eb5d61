"""Folders of records, and other outputs, before they are made: tried out, and taken away where nothing came of them."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from dsgd.record.written import check_inside
from dsgd.run.values import ConfigError

TRIALS = 20  # of making a folder


def existing_ancestor(folder: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    return next((path for path in [folder, *folder.parents] if os.path.exists(path)), folder)


def check_writable(folder: Path, key: str) -> None:
    """Raise ConfigError unless the folder that `key` names could be made and written; leaves nothing behind."""
    try:
        _try_out(folder)
    except OSError as error:
        raise ConfigError(f"{key} must be a folder that can be written, got {folder} ({error.strerror})") from error


def check_file(path: Path, key: str) -> None:
    """Raise ConfigError unless the file that `key` names could be written, in place of the one there; leaves nothing
    behind."""
    if path.is_dir():
        raise ConfigError(f"{key} must be a file, got the folder {path}")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{key} must be a file, got {path}, which is not a regular one")
    try:
        _try_out(path.absolute().parent)
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(f"{key} must be a file that can be written, got {path} ({error.strerror})") from error


def _try_out(folder: Path) -> None:
    """Make and write a folder under another name, beside where it will be: two commands that are given the same folder
    must not take it away from each other. Raises OSError."""
    for attempt in range(TRIALS):
        standing = existing_ancestor(folder)
        trial = standing / f".probe-{os.getpid()}"
        inner = trial / folder.relative_to(standing)
        try:
            inner.mkdir(parents=True)
            (inner / "file").touch()
            return
        except FileNotFoundError:
            # others that begin at the same time may take away a folder that they had made
            if attempt == TRIALS - 1:
                raise
        finally:
            shutil.rmtree(trial, ignore_errors=True)


def refuse_links(folder: Path, inner: str | Path, key: str) -> None:
    """Raise ConfigError if the folder that `key` names has a link on the way to what is written in it."""
    try:
        check_inside(folder, inner)
    except OSError as error:
        raise ConfigError(
            f"{key} must be a folder without links to elsewhere, got {folder} ({error.strerror})"
        ) from error


def remove_empty(folder: Path, standing: Path) -> None:
    """Take away a folder without content, and those above it up to one that stays."""
    for path in [folder, *folder.parents]:
        if path == standing:
            return
        try:
            path.rmdir()
        except OSError:  # there is something in it
            return
